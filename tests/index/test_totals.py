"""`retention` and `status` count unsent sessions from the index, and get the figures that reading would give."""

import os
import shutil
import time
from pathlib import Path

import pytest
from rows import Writer, agent_writer, save_agent

from turnspan.bulk.retention import expiring
from turnspan.delivery.destinations import Target
from turnspan.delivery.ship import ship
from turnspan.health import status as status_room
from turnspan.health.status import take_status
from turnspan.index import opened
from turnspan.index.totals import KnownTotals
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.sessions import all_sessions, session_at

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
LATER_NS = 90 * 86400 * 10**9
ID = "5e55104a-0000-4000-8000-00000000000{}"


def session(claude_home, number=1, turns=3, **options):
    """Write a session that was last written two months ago; return its path."""
    writer = Writer(session=ID.format(number), tag=f"s{number}", **options)
    for turn in range(turns):
        writer.turn(f"Question {turn}", "Answer.")
    path = writer.save(claude_home / "projects" / "-p")
    then = time.time() - 60 * 86400
    os.utime(path, (then, then))
    return path


def build():
    """Bring the index up to date."""
    with opened(load_config(os.environ)) as index:
        assert not index.is_in_memory


def found(now_ns=None):
    """Return what `retention` finds: everything that is not sent."""
    config = load_config(os.environ)
    unread = {}
    rows = list(expiring(config, config.destinations, 1, now_ns or time.time_ns(), unread))
    assert not unread
    return [
        (row.session, row.project, name, {**as_dict(tally), "cost_usd": round(tally.cost_usd, 9)})
        for row in rows
        for name, tally in row.unsent.items()
    ]


def as_dict(tally):
    """Return the figures that commands show."""
    names = ("turns", "generations", "tools", "agents", "errors", "usage", "cost_usd", "is_cost_partial")
    return {name: getattr(tally, name) for name in names}


def without_index(monkeypatch, asked, **options):
    """Return what is found by reading."""
    with monkeypatch.context() as patch:
        patch.setenv("TURNSPAN_INDEX", "false")
        return asked(**options)


@pytest.fixture
def unreadable(monkeypatch):
    """Fail if a session is read."""

    def read_unsent(session, *_, **__):
        raise AssertionError(f"{session.session_id} was read")

    monkeypatch.setattr("turnspan.bulk.retention.read_unsent", read_unsent)
    monkeypatch.setattr(status_room, "read_unsent", read_unsent)


def test_every_fixture_has_the_figures_of_reading_it(claude_home, monkeypatch):
    """Subagents, copies, interrupted and damaged sessions: the index and the transcripts say the same."""
    for project in FIXTURES.glob("*/projects/*"):
        shutil.copytree(project, claude_home / "projects" / f"{project.name}-{project.parents[1].name}")
    build()
    later = time.time_ns() + LATER_NS
    counted = found(later)
    assert len(counted) > 50
    assert counted == without_index(monkeypatch, found, now_ns=later)
    config = load_config(os.environ)
    known, target = KnownTotals(config), Target(config.destinations[0], config)
    files = list(all_sessions(claude_home / "projects", {}))
    from_index = [file for file in files if known.if_unsent(file, target, later) is not None]
    known.close()
    assert len(from_index) > len(files) / 2


@pytest.mark.usefixtures("unreadable")
def test_an_unchanged_session_is_not_read(claude_home):
    """Neither `retention` nor `status` opens it."""
    session(claude_home)
    build()
    [(_, project, _, figures)] = found()
    assert (project, figures["turns"]) == ("/home/ada/loom", 3)
    config = load_config(os.environ)
    pending = status_of(config, since_s=1.0)
    assert (pending.sessions, pending.turns, pending.open) == (1, 3, 0)


def status_of(config, since_s):
    """Return what is pending, if the destination was first used at a time."""
    target = Target(config.destinations[0], config)
    known = KnownTotals(config)
    try:
        return status_room.count_pending(
            list(all_sessions(config.claude_home / "projects", {})), {}, target,
            uses={target.identity: since_s}, now_s=time.time(), deadline=time.monotonic() + 60, totals=known,
        )  # fmt: skip
    finally:
        known.close()


def test_status_is_the_same_without_an_index(claude_home, monkeypatch):
    """Sessions, turns and history."""
    for number in (1, 2):
        session(claude_home, number)
    build()

    def pending():
        config = load_config(os.environ)
        status = take_status(config, os.environ, None, now_s=time.time())
        return status.destinations[0].pending, status_of(config, since_s=1.0)

    assert pending() == without_index(monkeypatch, pending)


def test_a_session_that_has_grown_is_read(claude_home):
    """The index is not brought up to date for it."""
    session(claude_home, turns=3)
    build()
    session(claude_home, turns=5)
    assert [row[-1]["turns"] for row in found()] == [5]


def test_a_subagent_that_has_grown_is_read(claude_home):
    """Its file counts, too."""
    path = session(claude_home)
    build()
    agent = agent_writer(Writer(session=ID.format(1)), "a1")
    agent.turn("Look.", "Found.")
    then = time.time() - 60 * 86400
    os.utime(save_agent(agent, path.parent, "a1"), (then, then))
    config = load_config(os.environ)
    known = KnownTotals(config)
    assert known.if_unsent(session_at(path), Target(config.destinations[0], config), time.time_ns()) is None
    known.close()


def test_what_was_sent_is_not_unsent(claude_home):
    """A session that is completely sent is not listed; of one that has grown since, only the rest."""
    path = session(claude_home, turns=3)
    config = load_config(os.environ)
    ship(session_at(path), Target(config.destinations[0], config), Ending(is_over=True), time.time)
    build()
    assert found() == []
    session(claude_home, turns=5)
    build()
    assert [row[-1]["turns"] for row in found()] == [2]


def test_a_directory_that_is_switched_off_has_nothing_unsent(claude_home, tmp_path):
    """Also if it was switched off after the index was made."""
    session(claude_home, cwd=str(tmp_path / "private"))
    build()
    assert len(found()) == 1
    settings = tmp_path / "private" / ".claude"
    settings.mkdir(parents=True)
    (settings / "turnspan.toml").write_text("enabled = false\n")
    assert found() == []
    build()
    assert found() == []


def test_a_damaged_index_does_not_matter(claude_home):
    """The session is read."""
    session(claude_home)
    build()
    file = claude_home / "turnspan" / "index.sqlite3"
    file.write_bytes(file.read_bytes()[:8192] + b"\x5a" * 50_000)
    assert [row[-1]["turns"] for row in found()] == [3]


def test_a_session_that_was_just_written_is_read(claude_home):
    """Its last turn may not have ended."""
    path = session(claude_home)
    os.utime(path)
    build()
    config = load_config(os.environ)
    known = KnownTotals(config)
    assert known.if_unsent(session_at(path), Target(config.destinations[0], config), time.time_ns()) is None
    known.close()


def test_a_directory_with_a_secret_in_its_name_is_read(claude_home):
    """The index has the name without the secret, so it cannot tell whether the directory is switched off."""
    path = session(claude_home, cwd="/home/ada/password=hunter2Xy!")
    build()
    config = load_config(os.environ)
    known = KnownTotals(config)
    assert known.if_unsent(session_at(path), Target(config.destinations[0], config), time.time_ns()) is None
    known.close()
