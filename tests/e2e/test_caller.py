"""`TRACEPARENT` in the environment of the newest client: it reaches turnspan, and each turn is linked to its own caller."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from .test_ended import asked

if TYPE_CHECKING:
    from .stage import Stage

pytestmark = pytest.mark.slow
FIRST = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
SECOND = ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")


def run(stage: Stage, caller: tuple[str, str] | None, *args: str) -> str:
    """Run `claude -p` in a caller's trace until turnspan has exported it; return the session."""
    stage.env = {**stage.env, "TRACEPARENT": f"00-{caller[0]}-{caller[1]}-01" if caller else ""}
    session = stage.run("{hello} hello", *args)["session_id"]
    stage.wait_for_quiet()
    return str(session)


def turns(stage: Stage) -> list[dict[str, Any]]:
    """Return the turns that arrived, in their order."""
    return [row for row in spans(stage) if row["name"].startswith("Turn")]


def spans(stage: Stage) -> list[dict[str, Any]]:
    """Return the spans that arrived, without when and in which request."""
    rows = [json.loads(line) for line in (stage.root / "sink.jsonl").read_text().splitlines()]
    found = [row for row in rows if row["event"] == "span"]
    return [{name: value for name, value in row.items() if name not in {"t", "request"}} for row in found]


def callers(turn: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the callers that a turn is linked to."""
    links = [link for link in turn["links"] if link["attributes"]["turnspan.link.relation"] == "caller"]
    return [(link["trace_id"], link["span_id"]) for link in links]


def test_each_turn_is_linked_to_its_own_caller(stage: Stage) -> None:
    """`claude -p`, resumed by another caller and then by none: each turn has its caller's link, also when it is sent again."""
    session = run(stage, FIRST)
    run(stage, SECOND, "--resume", session)
    run(stage, None, "--resume", session)
    live = turns(stage)

    assert [callers(turn) for turn in live] == [[FIRST], [SECOND], []]
    assert all(not turn["parent_span_id"] and turn["trace_id"] not in {FIRST[0], SECOND[0]} for turn in live)
    assert asked(stage, "verify")[1]["is_complete"]
    assert asked(stage, "backfill", "--resend")[0] == 0
    assert turns(stage)[3:] == live


def test_a_caller_can_be_the_parent(stage: Stage) -> None:
    """With `traceparent = "parent"` the turn is a span of the caller's trace, and all spans of the turn are in it."""
    stage.env = {**stage.env, "TURNSPAN_TRACEPARENT": "parent"}
    run(stage, FIRST)
    [turn] = turns(stage)

    assert (turn["trace_id"], turn["parent_span_id"]) == FIRST
    assert {span["trace_id"] for span in spans(stage)} == {FIRST[0]}
    assert asked(stage, "verify")[1]["is_complete"]


def test_the_clients_own_tracing_does_not_take_the_callers_place(stage: Stage) -> None:
    """With its tracing on, the client passes spans of its own to hooks; turns are still linked to the caller."""
    stage.env = {
        **stage.env,
        "CLAUDE_CODE_ENABLE_TELEMETRY": "1",
        "CLAUDE_CODE_ENHANCED_TELEMETRY_BETA": "1",
        "OTEL_TRACES_EXPORTER": "otlp",
        "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf",
        "OTEL_EXPORTER_OTLP_ENDPOINT": stage.second_sink.url,
        "OTEL_TRACES_EXPORT_INTERVAL": "100",
    }
    session = run(stage, FIRST)
    run(stage, FIRST, "--resume", session)
    own = (stage.root / "backfill.jsonl").read_text()

    assert "claude_code.interaction" in own
    assert [callers(turn) for turn in turns(stage)] == [[FIRST], [FIRST]]
