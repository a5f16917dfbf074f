"""What a destination does not have yet: every command gives the same answer, and one bad session stops no other."""

import json
import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest
from backends.servers import OK, HttpServer, reply
from rows import MODEL, Writer, agent_writer, save_agent

from turnspan.claude.event import Event
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target, since
from turnspan.delivery.ship import ship
from turnspan.delivery.unsent import may_have_more
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import session_at
from turnspan.worker import serve

ONE = "5e55104a-0000-4000-8000-000000000001"
TWO = "5e55104a-0000-4000-8000-000000000002"
DAY_S = 86400
OVER = Ending(is_over=True)
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
SESSIONS = {story.name: sorted(story.glob("projects/*/????????-*.jsonl")) for story in FIXTURES.iterdir()}
DELETIONS = [(name, path.name) for name, paths in sorted(SESSIONS.items()) if len(paths) > 1 for path in paths]
# Clients whose copies do not name their origin: when it is deleted after the copy was left out, `verify` expects it.
UNNAMED = {"copied-fork-unmarked", "copied-resume-1.0.80"}


def configure(claude_home, text):
    """Write config.toml."""
    path = claude_home / "turnspan" / "config.toml"
    path.write_text(text)
    path.chmod(0o600)


def session(claude_home, session_id=ONE, turns=2, **options):
    """Write a session that Claude Code deletes in a day, and return its path."""
    writer = Writer(session=session_id, tag=session_id[-1], **options)
    for number in range(turns):
        writer.turn(f"question {number}", "Answer.")
    path = writer.save(claude_home / "projects" / "-p")
    then = time.time() - 29 * DAY_S
    os.utime(path, (then, then))
    return path


def link_state(claude_home, session_id):
    """Make the state file of a session a symlink, which turnspan refuses to read."""
    directory = claude_home / "turnspan" / "state"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / f"{session_id}.json").symlink_to(claude_home / "elsewhere.json")


def newer_state(claude_home, session_id):
    """Write the state of a session as a newer turnspan would, which this one must not use."""
    directory = claude_home / "turnspan" / "state"
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / f"{session_id}.json"
    path.write_text(json.dumps({"session_id": session_id, "version": 99}))
    path.chmod(0o600)


UNUSABLE = pytest.mark.parametrize("make_unusable", [link_state, newer_state])


def asked(command, *arguments):
    """Run a command with --json; return its exit code and its objects."""
    code, out, _ = command(*arguments, "--json")
    return code, [json.loads(line) for line in out.splitlines()]


# ---- one answer


def test_the_users_prices_count_in_every_command(claude_home, command):
    """With prices of your own, `sessions`, `backfill --dry-run` and `retention` show the same cost."""
    dear = dict.fromkeys(("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"), 1e6)
    prices = claude_home / "prices.json"
    prices.write_text(json.dumps({MODEL: dear}))
    configure(claude_home, f'prices = "{prices}"')
    session(claude_home)
    _, [listed] = asked(command, "sessions")
    _, [planned] = asked(command, "backfill", "--dry-run", "--jobs", "1")
    _, [kept] = asked(command, "retention")
    [expiring] = kept["expiring"]
    [project] = planned["destinations"]["local"]["projects"].values()
    costs = {listed["cost_usd"], project["cost_usd"], expiring["unsent"]["local"]["cost_usd"]}
    assert len(costs) == 1
    assert costs.pop() > 700


def test_a_fork_whose_origin_was_exported_and_deleted_is_complete(claude_home, command):
    """Its copied turn was exported from the origin: `sessions` says so, as `backfill` and `verify` do."""
    projects = claude_home / "projects"
    shutil.copytree(FIXTURES / "copied-branch" / "projects", projects)
    origin, fork = sorted(projects.glob("*/*.jsonl"), key=lambda path: path.stat().st_size)
    command("backfill", "--jobs", "1", "--session", origin.stem)
    origin.unlink()
    assert [one["sent"] for one in asked(command, "sessions")[1]] == ["no"]
    command("backfill", "--jobs", "1")
    assert [(one["session_id"], one["sent"]) for one in asked(command, "sessions")[1]] == [(fork.stem, "all")]


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize(("story", "name"), DELETIONS)
def test_whatever_is_deleted_every_command_counts_the_same(claude_home, command, story, name, is_first):
    """A transcript is deleted after it was exported, before the others are or after: nothing of them is left."""
    projects = claude_home / "projects"
    shutil.copytree(FIXTURES / story / "projects", projects)
    deleted = next(projects.glob(f"*/{name}"))
    command("backfill", "--jobs", "1", *(("--session", deleted.stem) if is_first else ()))
    deleted.unlink()
    planned = asked(command, "backfill", "--jobs", "1", "--dry-run")[1][0]["destinations"]["local"]["total"]
    sent = asked(command, "backfill", "--jobs", "1")[1][0]
    assert (sent["spans"], sent["copied"]) == (planned["spans"], planned["copied"])
    left = asked(command, "backfill", "--jobs", "1")[1][0]
    assert (left["turns"], left["spans"], left["pending"]) == (0, 0, 0)
    if is_first or story not in UNNAMED:
        code, [verified] = asked(command, "verify")
        assert (code, verified["differences"]) == (0, [])
    listed = asked(command, "sessions")[1]
    assert {one["session_id"]: one["sent"] for one in listed} == {one["session_id"]: "all" for one in listed}


# ---- one bad session


@UNUSABLE
@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--limit", "5")])
def test_an_unusable_state_file_stops_no_other_session(claude_home, command, options, make_unusable):
    """`backfill` names the session, sends or counts all others, and exits with 1."""
    session(claude_home, ONE)
    session(claude_home, TWO)
    make_unusable(claude_home, ONE)
    code, [done] = asked(command, "backfill", "--jobs", "1", *options)
    assert code == 1
    if "--dry-run" in options:
        assert (list(done["failed"]), done["destinations"]["local"]["total"]["turns"]) == ([ONE], 2)
    else:
        assert (list(done["left"]), done["turns"], done["sessions"]) == ([ONE], 2, 1)


@UNUSABLE
def test_verify_names_a_session_whose_state_is_unusable(claude_home, command, make_unusable):
    """`verify` compares all others, and exits with 1."""
    session(claude_home, ONE)
    session(claude_home, TWO)
    command("backfill", "--jobs", "1", "--session", TWO)
    make_unusable(claude_home, ONE)
    code, [done] = asked(command, "verify")
    assert (code, list(done["failed"]), done["differences"]) == (1, [ONE], [])
    assert done["destinations"]["local"]["sessions"] == 1


@UNUSABLE
def test_retention_names_a_session_whose_state_is_unusable(claude_home, command, make_unusable):
    """`retention` lists all others, and exits with 1."""
    session(claude_home, ONE)
    session(claude_home, TWO)
    make_unusable(claude_home, ONE)
    code, [done] = asked(command, "retention")
    assert (code, list(done["failed"]), [one["session_id"] for one in done["expiring"]]) == (1, [ONE], [TWO])


@UNUSABLE
def test_sessions_lists_a_session_whose_state_is_unusable(claude_home, command, make_unusable):
    """`sessions` lists every session; what arrived of that one is unknown, it says why, and exits with 1."""
    session(claude_home, ONE)
    session(claude_home, TWO)
    make_unusable(claude_home, ONE)
    code, out, err = command("sessions", "--json")
    assert code == 1
    assert {one["session_id"]: one["sent"] for one in map(json.loads, out.splitlines())} == {ONE: "?", TWO: "no"}
    assert ONE in err


# ---- the same answer everywhere


def answers(command):
    """Return the unsent turns that `status`, `backfill --dry-run` and `retention` report."""
    _, [status] = asked(command, "status")
    _, [planned] = asked(command, "backfill", "--dry-run", "--jobs", "1")
    _, [kept] = asked(command, "retention")
    expiring = sum(one["unsent"]["local"]["turns"] for one in kept["expiring"])
    return (
        status["destinations"][0]["pending"]["turns"],
        planned["destinations"]["local"]["total"]["turns"],
        expiring,
    )


def target_of(claude_home):
    """Return the first destination, used for the first time long ago."""
    config = load_config(os.environ)
    target = Target(config.destinations[0], config)
    since(config, target.identity, time.time() - 90 * DAY_S)
    assert config.claude_home == claude_home
    return target


def test_every_command_counts_the_same_turns(claude_home, command):
    """Nothing sent, one turn unsent, everything sent."""
    target = target_of(claude_home)
    session(claude_home)
    assert answers(command) == (2, 2, 2)
    command("backfill", "--jobs", "1")
    assert answers(command) == (0, 0, 0)
    path = session(claude_home, turns=3)
    assert answers(command) == (1, 1, 1)
    assert ship(session_at(path), target, OVER, time.time).turns == 1
    assert answers(command) == (0, 0, 0)


def test_spans_that_arrived_are_not_unsent(claude_home, command):
    """A part of a batch was accepted before an outage: `status`, the dry run, `retention` and `verify` count the rest."""
    target = target_of(claude_home)
    path = session(claude_home)
    [piece] = Reader.for_people().read(session_at(path), Progress(), OVER).pieces()
    first, _ = piece.traces
    arrived = tuple(span.span_id.hex() for span in first.spans)
    cursor = state.Cursor(arrived=arrived, sent_spans=len(arrived))
    state.save(
        target.home, state.Checkpoint(session_id=ONE, transcript=str(path), destinations={target.identity: cursor})
    )
    assert answers(command) == (1, 1, 1)


def test_a_switched_off_directory_has_nothing_unsent(claude_home, tmp_path, command):
    """Neither `status` nor the dry run nor `retention` counts it, and `--limit` does not choose it."""
    target_of(claude_home)
    configure(claude_home, f'off = ["{tmp_path}/private/**"]')
    session(claude_home, ONE, cwd=str(tmp_path / "private"))
    assert answers(command) == (0, 0, 0)
    session(claude_home, TWO, turns=1)
    assert answers(command) == (1, 1, 1)
    _, [done] = asked(command, "backfill", "--jobs", "1", "--limit", "1")
    assert (done["sessions"], done["turns"]) == (1, 1)


def test_an_outdated_copy_has_nothing_unsent(claude_home, command):
    """A shorter copy of a transcript that was sent is not sent again, whichever way it is found."""
    target = target_of(claude_home)
    path = session(claude_home, turns=3)
    command("backfill", "--jobs", "1")
    copy = claude_home / "projects" / "-copy" / path.name
    copy.parent.mkdir()
    copy.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:4]))
    os.utime(copy, (path.stat().st_mtime,) * 2)
    before = state.peek(target.home, ONE)
    for ending in (OVER, Ending(is_stopped=True), Ending(now_ns=time.time_ns())):
        assert ship(session_at(copy), target, ending, time.time).spans == 0
    assert state.peek(target.home, ONE) == before
    assert answers(command) == (0, 0, 0)


def test_a_session_that_was_switched_off_has_nothing_unsent(claude_home, command):
    """`status`, the dry run and `retention` agree with the worker."""
    target = target_of(claude_home)
    path = session(claude_home)
    state.save(target.home, state.Checkpoint(session_id=ONE, transcript=str(path), is_off=True))
    assert answers(command) == (0, 0, 0)


def test_an_agent_that_was_resumed_is_unsent_though_its_session_is_unchanged(claude_home, command):
    """`status`, the dry run, `retention` and the worker's sweep look at the files of subagents, too."""
    target = target_of(claude_home)
    project = claude_home / "projects" / "-p"
    writer = Writer(session=ONE)
    writer.prompt("Go.")
    call = writer.call("Agent", {"prompt": "Go far.", "run_in_background": True})
    writer.result(call, "agentId: a1", outcome={"isAsync": True, "status": "async_launched", "agentId": "a1"})
    writer.say("Started.")
    agent = agent_writer(writer, "a1")
    agent.turn("Go far.", "Been far.")
    save_agent(agent, project, "a1")
    path = writer.save(project)
    then = time.time() - 29 * DAY_S
    os.utime(path, (then, then))
    command("backfill", "--jobs", "1")
    checkpoint = state.known(target.home, ONE)
    assert not may_have_more(session_at(path), checkpoint, target.identity)
    agent.turn("Go on.", "Been on.")
    save_agent(agent, project, "a1")
    assert may_have_more(session_at(path), checkpoint, target.identity)
    _, [status] = asked(command, "status")
    _, [planned] = asked(command, "backfill", "--dry-run", "--jobs", "1")
    _, [kept] = asked(command, "retention")
    assert status["destinations"][0]["pending"]["sessions"] == 1
    assert planned["destinations"]["local"]["total"]["generations"] == 1
    assert [one["unsent"]["local"]["generations"] for one in kept["expiring"]] == [1]


# ---- an outage, a killed client, a turn that has just ended


def recent(claude_home, number=1, tag="r", **options):
    """Return a session that began seconds ago."""
    writer = Writer(f"5e55104a-0000-4000-8000-{number:012}", tag=tag, **options)
    writer.now = datetime.fromtimestamp(time.time() - 20, tz=UTC)
    return writer, claude_home / "projects" / "-p"


def event(name, writer, directory, **more):
    """Have one event handled, without waiting for anything."""
    path = writer.save(directory)
    happened = Event(hook_event_name=name, session_id=writer.session, transcript_path=str(path), cwd="/home", **more)
    serve(happened, os.environ, time.time, lambda _seconds: None)


def pending(command):
    """Return what `status` says is pending at the first destination."""
    _, [found] = asked(command, "status")
    counted = found["destinations"][0]["pending"]
    return counted["sessions"], counted["turns"], counted["open"]


def test_an_outage_that_outlasts_a_session(claude_home, command, monkeypatch):
    """A server is down when a session ends: `status`, `backfill` and `verify` say what is true, before and after."""
    with HttpServer(reply(503)) as server:
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", server.url)
        identity = Target(load_config(os.environ).destinations[0], load_config(os.environ)).identity
        writer, directory = recent(claude_home)
        writer.turn("One.", "First.")
        event("Stop", writer, directory, last_assistant_message="First.")
        writer.prompt("Two.")
        writer.save(directory)
        assert pending(command) == (1, 1, 1)
        writer.say("Second.")
        event("Stop", writer, directory, last_assistant_message="Second.")
        assert pending(command) == (1, 2, 0)
        writer.prompt("Three, which ends with the session.")
        event("SessionEnd", writer, directory)
        assert pending(command) == (1, 3, 0)
        code, [found] = asked(command, "verify")
        assert (code, found["is_complete"]) == (1, False)
        assert found["differences"][0]["expected"]["turns"] == 3
        server.answers = [OK]
        backoff.clear(claude_home / "turnspan", identity)  # its time is over
        code, [found] = asked(command, "backfill", "--jobs", "1")
        assert (code, found["is_complete"], found["turns"], found["open"]) == (0, True, 3, 0)
        assert pending(command) == (0, 0, 0)
        code, [found] = asked(command, "verify")
        assert (code, found["is_complete"]) == (0, True)
        assert found["destinations"]["otlp"]["acknowledged"]["turns"] == 3


def test_an_outage_that_ends_with_another_server(claude_home, command, monkeypatch):
    """A session ends while a server is down, and the user configures another one: it gets all turns at once."""
    with HttpServer(reply(503)) as server, HttpServer(OK) as other:
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", server.url)
        writer, directory = recent(claude_home)
        writer.turn("One.", "First.")
        writer.prompt("Two, which ends with the session.")
        event("SessionEnd", writer, directory)
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", other.url)
        code, [found] = asked(command, "verify")
        assert (code, found["destinations"]["otlp"]["history"]) == (0, 1)  # it was not used yet
        code, [found] = asked(command, "backfill", "--jobs", "1")
        assert (code, found["is_complete"], found["turns"], found["open"]) == (0, True, 2, 0)


def test_a_killed_client_is_backfilled_at_once(claude_home, command):
    """Its process has ended, so its last turn has ended, however recent it is."""
    writer, directory = recent(claude_home)
    writer.turn("One.", "First.")
    writer.prompt("Two.")
    writer.call("Bash", {"command": "sleep 100"})
    writer.save(directory)
    _, [found] = asked(command, "backfill", "--jobs", "1")
    assert (found["turns"], found["open"]) == (1, 1)
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    (claude_home / "sessions").mkdir()
    named = {"pid": process.pid, "procStart": "1", "sessionId": writer.session}
    (claude_home / "sessions" / f"{process.pid}.json").write_text(json.dumps(named))
    code, [found] = asked(command, "verify")
    assert (code, found["differences"][0]["acknowledged"]["turns"]) == (1, 1)
    assert pending(command) == (1, 1, 0)
    code, [found] = asked(command, "backfill", "--jobs", "1")
    assert (code, found["turns"], found["open"]) == (0, 1, 0)
    assert asked(command, "verify")[0] == 0
    (claude_home / "sessions" / f"{process.pid}.json").unlink()  # the client's next start may do that
    code, [found] = asked(command, "verify")
    assert (code, found["destinations"]["local"]["expected"]["turns"]) == (0, 2)


@pytest.mark.parametrize("subtype", ["stop_hook_summary", "turn_duration"])
def test_a_turn_with_its_closing_row_is_backfilled_at_once(claude_home, command, subtype):
    """The client writes such a row when a turn has ended: an explicit backfill does not wait ten minutes."""
    writer, directory = recent(claude_home)
    writer.turn("One.", "First.")
    writer.save(directory)
    _, [found] = asked(command, "backfill", "--jobs", "1")
    assert (found["turns"], found["open"]) == (0, 1)
    writer.row("system", subtype=subtype, durationMs=1200)
    writer.save(directory)
    assert asked(command, "verify")[0] == 1
    code, [found] = asked(command, "backfill", "--jobs", "1")
    assert (code, found["turns"], found["open"]) == (0, 1, 0)
    assert asked(command, "verify")[0] == 0
