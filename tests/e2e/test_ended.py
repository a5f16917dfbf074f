"""The newest client ends while a destination is down, or is killed: every command says what is true at every moment."""

from __future__ import annotations

import json
import signal
import subprocess
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from .play import turnspan_program

if TYPE_CHECKING:
    from .stage import Stage

pytestmark = pytest.mark.slow


def asked(stage: Stage, *arguments: str) -> tuple[int, dict[str, Any]]:
    """Run a command of turnspan with --json; return its exit code and its object."""
    done = subprocess.run(
        [*turnspan_program(), *arguments, "--json"], env=stage.environment(), cwd=stage.home.project,
        capture_output=True, text=True, timeout=180, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout)


def pending(stage: Stage) -> tuple[int, int, int]:
    """Return the sessions and turns that `status` says are pending, and the sessions with an open turn."""
    found = asked(stage, "status")[1]["destinations"][0]["pending"]
    return found["sessions"], found["turns"], found["open"]


def received(stage: Stage) -> Counter[str]:
    """Count how often each response arrived."""
    rows = [json.loads(line) for line in (stage.root / "sink.jsonl").read_text().splitlines()]
    ids = (row["attributes"].get("gen_ai.response.id") for row in rows if row["event"] == "span")
    return Counter(str(each) for each in ids if each)


def assert_complete(stage: Stage, *turns: tuple[str, int]) -> None:
    """Everything arrived once, and `status` and `verify` say so."""
    assert pending(stage) == (0, 0, 0)
    code, found = asked(stage, "verify")
    assert (code, found["is_complete"]) == (0, True), found
    arrived = received(stage)
    assert {arrived[stage.api.wait_response(turn, step)["message_id"]] for turn, step in turns} == {1}
    assert set(arrived.values()) == {1}


def test_an_outage_from_one_session_into_the_next(stage: Stage) -> None:
    """It begins before the first session ends: that is pending until a backfill, and then complete."""
    client = stage.stream()
    stage.finished(client.say("{hello} before"))
    stage.wait_for_workers()
    assert pending(stage) == (0, 0, 0)
    stage.sink.is_down = True
    stage.finished(client.say("{tools} during"), 2)
    client.close()
    stage.wait_for_quiet(60)
    assert pending(stage) == (1, 1, 0)
    code, found = asked(stage, "verify")
    assert (code, len(found["differences"])) == (1, 1)
    stage.run("{hello} in the next session")
    stage.wait_for_quiet(60)
    assert pending(stage) == (2, 2, 0)
    stage.sink.is_down = False
    code, found = asked(stage, "backfill")
    assert (code, found["is_complete"], found["turns"], found["open"]) == (0, True, 2, 0)
    assert_complete(stage, ("p1", 0), ("p2", 2), ("p3", 0))


def test_a_client_that_was_killed_is_backfilled_at_once(stage: Stage) -> None:
    """While it runs its turn is open; from its death on it is pending, until a backfill."""
    _, text = stage.prompt("{slow} will be killed")
    client = stage.start(text)
    stage.wait_written(stage.api.wait_response("p1")["message_id"])
    stage.wait_gate("slow")
    assert pending(stage)[1:] == (0, 1)
    _, found = asked(stage, "backfill")
    assert (found["turns"], found["open"]) == (0, 1)
    client.kill(signal.SIGKILL)
    stage.open_gate("slow")
    stage.wait_for_quiet()
    assert pending(stage) == (1, 1, 0)
    assert asked(stage, "verify")[0] == 1
    code, found = asked(stage, "backfill")
    assert (code, found["turns"], found["open"]) == (0, 1, 0)
    assert_complete(stage, ("p1", 0))


def test_a_client_that_was_killed_is_exported_by_the_next_session(stage: Stage) -> None:
    """The first event of another session in the project exports it."""
    _, text = stage.prompt("{slow} will be killed")
    client = stage.start(text)
    stage.wait_written(stage.api.wait_response("p1")["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGKILL)
    stage.open_gate("slow")
    stage.run("{hello} another session")
    stage.wait_for_quiet()
    assert_complete(stage, ("p1", 0), ("p2", 0))
