"""Tests of the judge: a correct export passes, and every kind of error is reported under its name."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import pytest

from .judge import CHECKS, judge
from .time_shift import HOURS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Row = dict[str, Any]
SESSION, VERSION = "5e55", "2.1.325"
T0 = 1_800_000_000.0


def response(
    n: int, turn: str | None, at: float, calls: tuple[str, ...] = (), parent: str | None = None, **more: Any
) -> Row:
    """One response that the API served."""
    usage = {
        "input_tokens": n,
        "cache_creation_input_tokens": 10 * n,
        "cache_read_input_tokens": 100 * n,
        "output_tokens": 5 * n,
        "cache_creation": {"ephemeral_5m_input_tokens": 7 * n, "ephemeral_1h_input_tokens": 3 * n},
    }
    uses = [{"id": c, "name": "Agent" if c == "t2" else "Bash", "input": {}, "index": i} for i, c in enumerate(calls)]
    return {
        "event": "response",
        "n": n,
        "aux": None,
        "http_status": 200,
        "aborted": False,
        "message_id": f"m{n}",
        "model": "claude",
        "turn": turn,
        "parent_tool_use_id": parent,
        "thread": "subagent" if parent else "main",
        "session_id": SESSION,
        "queued": [],
        "script": "x",
        "step": 0,
        "t_request": T0 + at,
        "t_end": T0 + at + 0.5,
        "usage": usage,
        "tool_uses": uses,
        "block_end": [T0 + at + 0.4 for _ in uses],
        **more,
    }


def result(call: str, at: float, text: str, is_error: bool = False) -> Row:
    """One tool result that the API received."""
    return {"event": "tool_result", "tool_use_id": call, "is_error": is_error, "text": text, "t_seen": T0 + at}


TRUTH = [
    response(1, "p1", 1, ("t1", "t2")),
    result("t1", 4, "broken", is_error=True),
    response(2, None, 2, parent="t2"),
    result("t2", 4, "the report"),
    response(3, "p1", 4, queued=["p3"]),
    response(4, "p2", 6),
    {**response(5, None, 7), "aux": "title"},
]


def span(key: str, parent: str, kind: str, *when: float, trace: str = "a", **attributes: Any) -> Row:
    """One span as the server records it."""
    return {
        "event": "span",
        "trace_id": trace,
        "span_id": key,
        "parent_span_id": parent,
        "name": key,
        "start_ns": int((T0 + when[0]) * 1e9),
        "end_ns": int((T0 + when[1]) * 1e9),
        "status": 0,
        "status_message": "",
        "resource": {"service.version": VERSION},
        "attributes": {"openinference.span.kind": kind, "session.id": SESSION, **attributes},
    }


def generation(n: int, parent: str, at: float, trace: str = "a") -> Row:
    """A generation with the tokens of response n."""
    attributes = {
        "gen_ai.response.id": f"m{n}",
        "gen_ai.response.model": "claude",
        "gen_ai.usage.input_tokens": 111 * n,
        "gen_ai.usage.output_tokens": 5 * n,
        "gen_ai.usage.cache_read.input_tokens": 100 * n,
        "gen_ai.usage.cache_creation.input_tokens": 10 * n,
        "turnspan.usage.cache_creation_5m": 7 * n,
        "turnspan.usage.cache_creation_1h": 3 * n,
        "turnspan.cost.usd": n / 8,
    }
    return span(f"g{n}", parent, "LLM", at, at + 0.5, trace=trace, **attributes)


def tool(call: str, parent: str, output: str) -> Row:
    """A tool span."""
    return span(call, parent, "TOOL", 1.5, 3.9, **{"gen_ai.tool.call.id": call, "output.value": output})


SPANS = [
    span("root1", "", "AGENT", 1, 5, **{"input.value": "{x} first words #p1"}),
    generation(1, "root1", 1),
    {**tool("t1", "g1", "broken"), "status": 2},
    tool("t2", "g1", "the report"),
    span("agent", "t2", "AGENT", 2, 3),
    generation(2, "agent", 2),
    generation(3, "root1", 4),
    span("event", "root1", "CHAIN", 3, 3, **{"input.value": "typed #p3"}),
    span("root2", "", "AGENT", 6, 7, trace="b", **{"input.value": "{x} second words #p2"}),
    generation(4, "root2", 6, "b"),
]


@pytest.fixture
def judged(tmp_path: Path) -> Callable[..., set[str]]:
    """Write a run with these spans (and this record of the API); return the problems that the judge finds."""

    def write(
        spans: list[Row],
        truth: list[Row] = TRUTH,
        cost: float | None = None,
        backfilled: list[Row] | None = None,
        *,
        written: tuple[str, ...] = ("p1", "p2"),
        kept: tuple[str, ...] = (),
    ) -> set[str]:
        project = tmp_path / "projects" / "p"
        project.mkdir(parents=True, exist_ok=True)
        rows = [
            {"type": "assistant", "message": {"id": t["message_id"], "usage": t["usage"]}}
            for t in truth
            if t.get("message_id") and (not t["aux"] or t["message_id"] in kept)
        ]
        if cost is not None:
            tokens = {"inputTokens": 10, "outputTokens": 50, "cacheReadInputTokens": 1000}
            rows.append({"type": "cost-state", "sessionId": SESSION, "totalCostUSD": cost, "modelUsage": {"m": tokens}})
        prompts = {"p1": {"text": "{x} first words #p1"}, "p2": {"text": "{x} second words #p2"}}
        rows += [{"type": "user", "message": {"content": prompts[key]["text"]}} for key in written]
        for name, held in (("truth.jsonl", truth), ("sink.jsonl", spans), ("projects/p/s.jsonl", rows)):
            (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in held))
        if backfilled is not None:
            (tmp_path / "backfill.jsonl").write_text("".join(json.dumps(row) + "\n" for row in backfilled))
        (tmp_path / "meta.json").write_text(json.dumps({"version": VERSION, "prompts": prompts}))
        return set(judge(tmp_path).problems)

    return write


def test_a_correct_export_passes(judged: Callable[..., set[str]]):
    """If every response, tool, agent and turn is in its place, no problem is reported."""
    assert judged(SPANS) == set()


def without(key: str) -> Callable[[list[Row]], None]:
    """Remove a span."""
    return lambda spans: spans.remove(next(s for s in spans if s["span_id"] == key))


def changed(key: str, **changes: Any) -> Callable[[list[Row]], None]:
    """Change a span; a name with dots is an attribute."""

    def change(spans: list[Row]) -> None:
        found = next(s for s in spans if s["span_id"] == key)
        for name, value in changes.items():
            (found["attributes"] if "." in name else found)[name] = value

    return change


def added(row: Row) -> Callable[[list[Row]], None]:
    """Add a span."""
    return lambda spans: spans.append(row)


MUTANTS = {
    "response_missing": without("g4"),
    "response_twice": added({**generation(4, "root2", 6, "b"), "span_id": "g4again"}),
    "response_invented": added({**generation(9, "root2", 6, "b")}),
    "aux_exported": added(generation(5, "root2", 7, "b")),
    "usage_wrong": changed("g3", **{"gen_ai.usage.output_tokens": 1}),
    "model_wrong": changed("g3", **{"gen_ai.response.model": "gpt"}),
    "time_wrong": changed("g3", start_ns=int((T0 + 1) * 1e9)),
    "tool_missing": without("t1"),
    "tool_twice": added({**tool("t1", "g1", "broken"), "status": 2, "span_id": "t1again"}),
    "tool_parent_wrong": changed("t1", parent_span_id="g3"),
    "tool_status_wrong": changed("t1", status=0),
    "tool_output_wrong": changed("t1", **{"output.value": "something else"}),
    "agent_misplaced": changed("g2", parent_span_id="root1"),
    "turn_split": changed("g3", trace_id="b", parent_span_id="root2"),
    "turns_merged": changed("g4", trace_id="a", parent_span_id="root1"),
    "turn_input_missing": changed("root2", **{"input.value": "what?"}),
    "turn_error_wrong": changed("root2", status=2),
    "queued_missing": without("event"),
    "session_wrong": changed("g4", **{"session.id": "other"}),
    "roots_wrong": added(span("root3", "", "AGENT", 6, 7, trace="b")),
    "parent_missing": without("agent"),
    "span_repeated": added(SPANS[1]),
    "version_wrong": changed("event", resource={}),
    "undecodable": added({"event": "undecodable", "error": "garbage"}),
}


@pytest.mark.parametrize("check", MUTANTS)
def test_every_kind_of_error_is_reported(judged: Callable[..., set[str]], check: str):
    """Each kind of error is reported under its own name."""
    spans = copy.deepcopy(SPANS)
    MUTANTS[check](spans)
    assert check in judged(spans)


def test_costs_are_compared_with_the_clients_own(judged: Callable[..., set[str]]):
    """A cost that differs from the client's own total is reported, even in the fourth decimal."""
    truth = [t for t in TRUTH if not t.get("aux")]
    assert judged(SPANS, truth, cost=1.25) == set()
    assert judged(SPANS, truth, cost=1.2501) == {"cost_wrong"}


def test_a_response_that_the_client_did_not_record_is_not_a_problem(judged: Callable[..., set[str]]):
    """If the client was killed before it recorded a response, no exporter can export it."""
    lost = {**response(8, "p2", 6.5), "usage": None}
    truth = [*TRUTH, {**lost, "message_id": None}]
    assert judged(SPANS, truth) == set()


def test_a_backfill_that_differs_is_reported(judged: Callable[..., set[str]]):
    """A backfill must give the same spans as the live export; a changed start, a missing or an extra span is reported."""
    same = copy.deepcopy(SPANS)
    for row in same:
        row["start_ns"] -= HOURS * 3600 * 10**9
        row["end_ns"] -= HOURS * 3600 * 10**9
    assert judged(SPANS, backfilled=same) == set()
    moved = copy.deepcopy(same)
    moved[1]["start_ns"] += 1
    for other in (moved, same[1:], [*same, generation(9, "root2", 6, "b")]):
        assert judged(SPANS, backfilled=other) == {"backfill_differs"}


def test_every_check_is_tested():
    """For every check there is a run that it reports."""
    assert set(MUTANTS) | {"cost_wrong", "backfill_differs"} == set(CHECKS)


def test_a_prompt_that_the_client_did_not_record_is_not_required(judged):
    """An old client drops prompts that it takes from its queue: only recorded prompts must be in their turns."""
    spans = json.loads(json.dumps(SPANS))
    spans[0]["attributes"]["input.value"] = ""
    assert "turn_input_missing" in judged(spans)
    assert judged(spans, written=("p2",)) == set()


def test_a_recorded_suggestion_may_be_exported(judged):
    """2.1.29 writes a file for the agent that suggests prompts; a suggestion that is in no file must not be exported."""
    spans = [*SPANS, span("s1", "root1", "LLM", 1, 2, **{"gen_ai.response.id": "msg_s"})]
    suggestion = {**TRUTH[0], "n": 99, "message_id": "msg_s", "aux": "suggestion"}
    assert "aux_exported" in judged(spans, [*TRUTH, suggestion])
    assert "aux_exported" not in judged(spans, [*TRUTH, suggestion], kept=("msg_s",))


def test_a_response_in_the_suggesting_agents_file_belongs_to_that_agent(judged, tmp_path):
    """2.1.29 can write the last response of a turn there: it must be exported, and its place is not a problem."""
    spans = [{**row, "trace_id": "c"} if row["span_id"] == "g3" else row for row in json.loads(json.dumps(SPANS))]
    assert "roots_wrong" in judged(spans)
    moved = tmp_path / "projects" / "p" / "agent-aprompt_suggestion-1.jsonl"
    rows = (tmp_path / "projects" / "p" / "s.jsonl").read_text().splitlines(keepends=True)
    key = next(t["message_id"] for t in TRUTH if t.get("n") == 3)
    moved.write_text("".join(row for row in rows if key in row))
    (tmp_path / "projects" / "p" / "s.jsonl").write_text("".join(row for row in rows if key not in row))
    assert "roots_wrong" not in judge(tmp_path).problems


def test_a_result_may_arrive_late(judged):
    """With two clients in one session, a result can arrive after its turn was exported: it is an event below the call."""
    spans = copy.deepcopy(SPANS)
    next(row for row in spans if row["span_id"] == "t2")["attributes"].pop("output.value")
    spans.append(span("late", "t2", "CHAIN", 3.9, 3.9, **{"output.value": "the report"}))
    assert judged(spans) == set()
