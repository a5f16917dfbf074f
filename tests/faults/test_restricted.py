"""A session that ran with TURNSPAN_CAPTURE in its shell stays restricted, whatever exports or shows it later."""

import json
import os
import subprocess
import sys
import time

import msgspec
import pytest
from rows import Writer

from faults.world import BY_SHELL, HOOK, PATIENCE_S
from turnspan.delivery import state
from turnspan.delivery.destinations import targets_of
from turnspan.delivery.policy import ExportPolicy
from turnspan.delivery.unsent import Rest
from turnspan.page.preview import Preview
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.sessions import SessionFile

PRIVATE = "zebra-stripes"
PUBLIC = "quagga-stripes"
ONE, OTHER = "5e55104a-0000-4000-8000-000000000001", "5e55104a-0000-4000-8000-000000000002"
METADATA = {"TURNSPAN_CAPTURE": "metadata"}


def written(world, session, word):
    """Write a session of one turn; return its path."""
    writer = Writer(session, tag=session[-1])
    writer.turn(f"What about {word}?", f"About {word}.")
    writer.stopped()
    return writer.save(world.projects / "-home-ada-loom")


def event(path, name="Stop"):
    """Return a hook's payload for a session."""
    payload = {"hook_event_name": name, "session_id": path.stem, "transcript_path": str(path), "cwd": "/"}
    return json.dumps(payload).encode()


def received(world):
    """Return everything that the collector got."""
    return b"".join(request.body for request in world.sink.requests)


def arrived(world, word):
    """Wait until the collector has a word: the shell hook's worker may not have begun when the hook has ended."""
    deadline = time.monotonic() + PATIENCE_S
    while word.encode() not in received(world):
        assert time.monotonic() < deadline, f"{word} did not arrive"
        time.sleep(0.01)
    world.wait()


def command(world, *arguments):
    """Run a command in another shell; return what it prints."""
    ran = subprocess.run(
        [sys.executable, "-m", "turnspan", *arguments], env=world.env, capture_output=True, check=False, cwd=world.base
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def restricted(world):
    """A session whose shell has TURNSPAN_CAPTURE=metadata, while the destination is down: nothing was acknowledged."""
    world.sink.always = "503"
    path = world.projects / "-home-ada-loom" / f"{ONE}.jsonl"
    world.call_hook(event(path, "SessionStart"), command=HOOK, env=METADATA)
    world.wait()
    assert written(world, ONE, PRIVATE) == path
    world.sink.always = "ok"
    return path


@pytest.mark.parametrize("launcher", [HOOK, BY_SHELL], ids=["python", "sh"])
def test_recovered_by_the_event_of_another_session(world, restricted, launcher):
    """Another session of the project, without the variable, recovers it: only metadata is sent of it."""
    old = restricted.stat().st_mtime - 3600
    os.utime(restricted, (old, old))
    (world.home / "since.json").write_text(json.dumps(dict.fromkeys(state_identities(world), 0)))
    other = written(world, OTHER, PUBLIC)
    world.call_hook(event(other), command=launcher)
    arrived(world, PUBLIC)
    assert ONE.encode() in received(world), world.log
    assert PRIVATE.encode() not in received(world)


def state_identities(world):
    """Return the identities of the destinations."""
    return [target.identity for target in targets_of(load_config(world.env))]


@pytest.mark.parametrize("arguments", [("backfill",), ("backfill", "--resend")])
@pytest.mark.usefixtures("restricted")
def test_exported_by_a_backfill(world, arguments):
    """A backfill without the variable sends only metadata of it, and everything that is allowed of the others."""
    written(world, OTHER, PUBLIC)
    command(world, *arguments)
    assert PUBLIC.encode() in received(world)
    assert ONE.encode() in received(world)
    assert PRIVATE.encode() not in received(world)


def test_shown_as_it_is_exported(world, restricted):
    """`show`, `search`, `export` and the preview hold no more than what is exported."""
    written(world, OTHER, PUBLIC)
    shown = command(world, "show", ONE)
    assert PRIVATE.encode() not in shown
    assert b"metadata" in shown
    assert PUBLIC.encode() in command(world, "show", OTHER)
    assert PUBLIC.encode() in command(world, "search", PUBLIC)
    assert PRIVATE.encode() not in command(world, "sessions")
    index = b"".join(path.read_bytes() for path in world.home.glob("index.sqlite3*"))
    assert PUBLIC.encode() in index
    assert PRIVATE.encode() not in index
    config = load_config(world.env)
    session = SessionFile(ONE, restricted)
    [found] = Preview(session, config, config.destinations[0]).traces()
    assert PRIVATE not in str(found.trace)
    assert found.where == "to otlp, metadata"
    assert command(world, "backfill", "--dry-run")


def test_the_index_follows_a_later_restriction(world):
    """Texts of a session that is restricted after it was indexed are removed from the index."""
    path = written(world, ONE, PRIVATE)
    assert PRIVATE.encode() in command(world, "search", PRIVATE)
    world.call_hook(event(path), env=METADATA)
    world.wait()
    command(world, "sessions")
    assert PRIVATE.encode() not in b"".join(found.read_bytes() for found in world.home.glob("index.sqlite3*"))


def test_the_narrowest_mode_counts(world):
    """A later event with a wider mode, or without the variable, widens nothing; nothing is written for it either."""
    path = written(world, ONE, PRIVATE)
    for env in ({"TURNSPAN_CAPTURE": "metadata"}, {}, {"TURNSPAN_CAPTURE": "redacted"}, {"TURNSPAN_CAPTURE": "full"}):
        world.call_hook(event(path), env=env)
        world.wait()
        assert state.known(world.home, ONE).capture == "metadata"
    stamp = (world.home / "state" / f"{ONE}.json").stat().st_mtime_ns
    world.call_hook(event(path), env=METADATA)
    world.wait()
    assert (world.home / "state" / f"{ONE}.json").stat().st_mtime_ns == stamp
    assert PRIVATE.encode() not in received(world)


def test_a_mode_that_restricts_nothing_is_not_stored(world):
    """A variable that says what holds anyway needs no checkpoint."""
    path = world.projects / "-home-ada-loom" / f"{ONE}.jsonl"
    for mode in ("redacted", "full"):
        world.call_hook(event(path, "SessionStart"), env={"TURNSPAN_CAPTURE": mode})
        world.wait()
    assert not (world.home / "state" / f"{ONE}.json").exists()


def test_remembered_while_export_is_disabled(world):
    """The mode is remembered while config.toml disables export, and applies when that is enabled again."""
    world.home.mkdir(mode=0o700)
    config = world.home / "config.toml"
    config.write_text("enabled = false\n")
    config.chmod(0o600)
    path = written(world, ONE, PRIVATE)
    world.call_hook(event(path), env=METADATA)
    world.wait()
    config.write_text("enabled = true\n")
    command(world, "backfill")
    assert ONE.encode() in received(world)
    assert PRIVATE.encode() not in received(world)


def test_a_mode_that_a_project_plants_is_remembered(world, tmp_path):
    """A project sets TURNSPAN_CAPTURE and its file disappears: the user's own value is unknown, so metadata it stays."""
    settings = tmp_path / ".claude" / "settings.json"
    settings.parent.mkdir()
    settings.write_text(json.dumps({"env": {"TURNSPAN_CAPTURE": "full"}}))
    path = written(world, ONE, PRIVATE)
    start = json.dumps({**json.loads(event(path, "SessionStart")), "cwd": str(tmp_path)}).encode()
    world.call_hook(start, env={"TURNSPAN_CAPTURE": "full"})
    world.wait()
    settings.unlink()
    world.call_hook(event(path))
    world.wait()
    assert ONE.encode() in received(world)
    assert PRIVATE.encode() not in received(world)


def test_older_and_newer_state_files(world):
    """A state file without the mode is read as before; a mode that this version does not know is the narrowest."""
    checkpoint = state.Checkpoint(session_id=ONE)
    raw = msgspec.to_builtins(checkpoint)
    del raw["capture"]
    assert msgspec.convert(raw, state.Checkpoint) == checkpoint
    config = load_config(world.env)
    policy = ExportPolicy(config.destinations[0], config)
    assert policy.of_session("") is policy
    assert policy.of_session("full") is policy
    assert policy.of_session("nothing").capture("/") == "metadata"


def test_a_dry_run_masks_as_the_session_allows(world, restricted):
    """What a dry run counts as masked is what a backfill would mask."""
    config = load_config(world.env)
    rest = Rest(SessionFile(ONE, restricted), targets_of(config)[0], Ending.asked(10**19))
    [(_, [(trace, _)])] = rest.pieces()
    assert PRIVATE in str(trace)
    assert PRIVATE not in str(rest.masked([trace]))
