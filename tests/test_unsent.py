"""What a destination does not have yet: every command gives the same answer, and one bad session stops no other."""

import json
import os
import time

import pytest
from rows import MODEL, Writer

ONE = "5e55104a-0000-4000-8000-000000000001"
TWO = "5e55104a-0000-4000-8000-000000000002"
DAY_S = 86400


@pytest.fixture
def claude(tmp_path, monkeypatch):
    """A Claude home in tmp_path, without any settings of this machine."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "claude" / "turnspan").mkdir(mode=0o700, parents=True)
    return tmp_path / "claude"


def configure(claude, text):
    """Write config.toml."""
    path = claude / "turnspan" / "config.toml"
    path.write_text(text)
    path.chmod(0o600)


def session(claude, session_id=ONE, turns=2, **options):
    """Write a session that Claude Code deletes in a day, and return its path."""
    writer = Writer(session=session_id, tag=session_id[-1], **options)
    for number in range(turns):
        writer.turn(f"question {number}", "Answer.")
    path = writer.save(claude / "projects" / "-p")
    then = time.time() - 29 * DAY_S
    os.utime(path, (then, then))
    return path


def link_state(claude, session_id):
    """Make the state file of a session a symlink, which turnspan refuses to read."""
    directory = claude / "turnspan" / "state"
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / f"{session_id}.json").symlink_to(claude / "elsewhere.json")


def asked(command, *arguments):
    """Run a command with --json; return its exit code and its objects."""
    code, out, _ = command(*arguments, "--json")
    return code, [json.loads(line) for line in out.splitlines()]


# ---- one answer


def test_the_users_prices_count_in_every_command(claude, command):
    """With prices of your own, `sessions`, `backfill --dry-run` and `retention` show the same cost."""
    dear = dict.fromkeys(("input", "output", "cache_read", "cache_write_5m", "cache_write_1h"), 1e6)
    prices = claude / "prices.json"
    prices.write_text(json.dumps({MODEL: dear}))
    configure(claude, f'prices = "{prices}"')
    session(claude)
    _, [listed] = asked(command, "sessions")
    _, [planned] = asked(command, "backfill", "--dry-run", "--jobs", "1")
    _, [kept] = asked(command, "retention")
    [expiring] = kept["expiring"]
    [project] = planned["destinations"]["local"]["projects"].values()
    costs = {listed["cost_usd"], project["cost_usd"], expiring["unsent"]["local"]["cost_usd"]}
    assert len(costs) == 1
    assert costs.pop() > 700


# ---- one bad session


@pytest.mark.parametrize("options", [(), ("--dry-run",), ("--limit", "5")])
def test_a_state_file_that_is_a_link_stops_no_other_session(claude, command, options):
    """`backfill` names the session, sends or counts all others, and exits with 1."""
    session(claude, ONE)
    session(claude, TWO)
    link_state(claude, ONE)
    code, [done] = asked(command, "backfill", "--jobs", "1", *options)
    assert code == 1
    if "--dry-run" in options:
        assert (list(done["failed"]), done["destinations"]["local"]["total"]["turns"]) == ([ONE], 2)
    else:
        assert (list(done["left"]), done["turns"], done["sessions"]) == ([ONE], 2, 1)


def test_verify_names_a_session_whose_state_cannot_be_read(claude, command):
    """`verify` compares all others, and exits with 1."""
    session(claude, ONE)
    session(claude, TWO)
    command("backfill", "--jobs", "1", "--session", TWO)
    link_state(claude, ONE)
    code, [done] = asked(command, "verify")
    assert (code, list(done["failed"]), done["differences"]) == (1, [ONE], [])
    assert done["destinations"]["local"]["sessions"] == 1


def test_retention_names_a_session_whose_state_cannot_be_read(claude, command):
    """`retention` lists all others, and exits with 1."""
    session(claude, ONE)
    session(claude, TWO)
    link_state(claude, ONE)
    code, [done] = asked(command, "retention")
    assert (code, list(done["failed"]), [one["session_id"] for one in done["expiring"]]) == (1, [ONE], [TWO])


def test_sessions_lists_a_session_whose_state_cannot_be_read(claude, command):
    """`sessions` lists every session; what arrived of that one is unknown, it says why, and exits with 1."""
    session(claude, ONE)
    session(claude, TWO)
    link_state(claude, ONE)
    code, out, err = command("sessions", "--json")
    assert code == 1
    assert {one["session_id"]: one["sent"] for one in map(json.loads, out.splitlines())} == {ONE: "?", TWO: "no"}
    assert f"{ONE}.json" in err
