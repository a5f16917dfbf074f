"""Compares the spans that reached the OTLP server with what the API served: a run's directory → its problems.

Rules:

- `truth.jsonl` is the reference. The transcript only shows what an exporter can know. A response that the client did not
  record (it was killed first) cannot be exported, nor can a prompt that it did not record (2.1.1 drops those that it
  takes from its queue), nor can a wrong token count be corrected. A response in the file of the agent that suggests
  prompts (2.1.29 sometimes does this) belongs to that agent. All of these are counted and are not problems.
- Every other difference is a problem; `CHECKS` describes them. A run passes if it has none.
"""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .live_vs_backfill import differences
from .recorded import Recorded, Row, read_transcripts

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

CHECKS = {
    "response_missing": "a response in the transcript has no generation",
    "response_twice": "a response has more than one generation",
    "response_invented": "a generation has no response that was served",
    "aux_exported": "a generation was exported for a request outside the conversation (a warm-up, a title)",
    "usage_wrong": "a generation's tokens are not those served",
    "model_wrong": "a generation names another model",
    "time_wrong": "a generation or a tool has a wrong start or end",
    "tool_missing": "a tool call has no span",
    "tool_twice": "a tool call has more than one span",
    "tool_parent_wrong": "a tool's parent is not the response that called it",
    "tool_status_wrong": "a failed tool has no error status, or the reverse",
    "tool_output_wrong": "a tool's output is not what the model got",
    "agent_misplaced": "a subagent's response is not below the call that launched it",
    "turn_split": "a turn is in several traces",
    "turns_merged": "a trace contains several turns",
    "turn_input_missing": "a turn's root does not contain its prompt",
    "turn_error_wrong": "a turn that ended in an API error has no error status, or the reverse",
    "queued_missing": "a queued prompt is missing from its turn",
    "session_wrong": "a span has a wrong session id",
    "roots_wrong": "a trace has no root, or several",
    "parent_missing": "a span's parent never arrived",
    "span_repeated": "a span was sent twice although it was acknowledged",
    "version_wrong": "the resource does not name the client's version",
    "cost_wrong": "a session's cost differs from the client's own total",
    "backfill_differs": "a backfill of the same transcripts gives different spans",
    "undecodable": "the server could not decode a request",
}
START_S = 0.35  # tolerance: time until the request is recorded and reaches the server, on a busy machine
END_S = 0.6
INFERRED_START_S = 1.5
AS_WRITTEN_S = 0.01
KINDS = {"LLM": "generation", "TOOL": "tool", "AGENT": "agent"}
HAND_BACK = re.compile(r"<tools-used-before-summary>.*?</tools-used-before-summary>|<system-reminder>.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Judged:
    """The outcome of a run."""

    problems: dict[str, list[str]]
    figures: Counter[str]

    @property
    def is_right(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


@dataclass(frozen=True, slots=True)
class Seen:
    """A span that arrived, with the fields that are compared."""

    row: Row
    id: tuple[str, str]
    parent: tuple[str, str] | None
    kind: str
    start: float
    end: float
    attributes: Row

    @property
    def is_error(self) -> bool:
        """Whether its status is an error."""
        return bool(self.row["status"] == 2)


@dataclass(slots=True)
class Case:
    """A run and the findings about it."""

    truth: list[Row]
    spans: dict[tuple[str, str], Seen]
    recorded: Recorded
    meta: Row
    problems: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    figures: Counter[str] = field(default_factory=Counter)
    generations: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))  # message id → spans
    tools: dict[str, list[Seen]] = field(default_factory=lambda: defaultdict(list))  # tool use id → spans

    def blame(self, check: str, what: str) -> None:
        """Record a problem."""
        assert check in CHECKS, check
        self.problems[check].append(what)

    def above(self, span: Seen) -> Iterator[Seen]:
        """Yield the ancestors of a span, up to its root."""
        met = set()
        while span.parent in self.spans and span.parent not in met:
            met.add(span.parent)
            span = self.spans[span.parent]
            yield span


def judge(run: Path) -> Judged:
    """Compare the spans of a run with the API's record."""
    case = Case(
        list(_rows(run / "truth.jsonl")), {}, read_transcripts(run), json.loads((run / "meta.json").read_text())
    )
    _arrived(case, list(_rows(run / "sink.jsonl")))
    responses = [t for t in case.truth if t["event"] == "response" and not t["aux"] and t["http_status"] == 200]
    known = [t for t in responses if t["message_id"] in case.recorded.usage]
    case.figures.update(
        responses=len(responses), unrecorded=len(responses) - len(known), aborted=sum(t["aborted"] for t in responses),
        spans=len(case.spans), traces=len({s.id[0] for s in case.spans.values()}),
    )  # fmt: skip
    _check_generations(case, known)
    _check_tools(case, known)
    _check_agents(case, known)
    _check_turns(case, known)
    _check_structure(case)
    _check_cost(case)
    if (run / "backfill.jsonl").exists():
        backfilled = [row for row in _rows(run / "backfill.jsonl") if row["event"] == "span"]
        case.figures["backfilled spans"] += len(backfilled)
        for what in differences((span.row for span in case.spans.values()), backfilled):
            case.blame("backfill_differs", what)
    return Judged({k: v for k, v in case.problems.items() if v}, case.figures)


def _rows(path: Path) -> Iterator[Row]:
    if path.exists():
        with path.open(encoding="utf-8") as lines:
            yield from (json.loads(line) for line in lines)


def _is_about(moment: float, truth: float, allowed_s: float, written: list[float]) -> bool:
    """Whether a time is close to the true one, or equal to one that the client recorded."""
    return abs(moment - truth) <= allowed_s or any(abs(moment - w) <= AS_WRITTEN_S for w in written)


def _arrived(case: Case, rows: list[Row]) -> None:
    for row in rows:
        if row["event"] == "undecodable":
            case.blame("undecodable", row["error"])
        if row["event"] != "span":
            continue
        key = (row["trace_id"], row["span_id"])
        if key in case.spans:
            case.blame("span_repeated", f"{row['name']} {row['span_id']}")
        attributes = row["attributes"]
        kind = KINDS.get(attributes.get("openinference.span.kind"), "other")
        parent = (row["trace_id"], row["parent_span_id"]) if row["parent_span_id"] else None
        span = case.spans[key] = Seen(row, key, parent, kind, row["start_ns"] / 1e9, row["end_ns"] / 1e9, attributes)
        if kind == "generation":
            case.generations[str(attributes.get("gen_ai.response.id"))].append(span)
        if kind == "tool":
            case.tools[str(attributes.get("gen_ai.tool.call.id"))].append(span)


def _label(t: Row) -> str:
    return f"r{t['n']} {{{t['script']}}} step {t['step']} of {t['turn'] or t['parent_tool_use_id']}"


def _check_generations(case: Case, known: list[Row]) -> None:
    for t in known:
        found = {s.id: s for s in case.generations.get(t["message_id"], [])}
        if len(found) != 1:
            case.blame("response_twice" if found else "response_missing", f"{_label(t)}: {len(found)} generations")
        for span in found.values():
            case.figures["generations"] += 1
            _check_usage(case, t, span)
            _check_generation(case, t, span)
    _check_unasked(case)


def _check_generation(case: Case, t: Row, span: Seen) -> None:
    if span.attributes.get("gen_ai.response.model") != t["model"]:
        case.blame("model_wrong", f"{_label(t)}: {span.attributes.get('gen_ai.response.model')}")
    if t["session_id"] and span.attributes.get("session.id") != t["session_id"]:
        case.blame("session_wrong", f"{_label(t)}: {span.attributes.get('session.id')} for {t['session_id']}")
    key, known = t["message_id"], case.recorded
    allowed = START_S if key in known.timed else INFERRED_START_S
    starts_right = _is_about(span.start, t["t_request"], allowed, known.starts[key])
    if not starts_right or not _is_about(span.end, t["t_end"], END_S, known.ends[key]):
        early, late = span.start - t["t_request"], span.end - t["t_end"]
        case.blame("time_wrong", f"{_label(t)}: start {early:+.2f} s, end {late:+.2f} s")


def _check_unasked(case: Case) -> None:
    """Find generations without a response, and those of requests outside the conversation."""
    served = {t["message_id"]: t for t in case.truth if t["event"] == "response" and t["message_id"]}
    for key, spans in case.generations.items():
        if key in served:
            if served[key]["aux"] == "suggestion" and key in case.recorded.usage:
                case.figures["suggestions that the client wrote down"] += 1
            elif served[key]["aux"]:
                case.blame("aux_exported", f"r{served[key]['n']} {served[key]['aux']}")
            continue
        for span in spans:
            failed = span.is_error and not span.attributes.get("gen_ai.usage.output_tokens")
            case.figures["error generations"] += failed
            if not failed:
                case.blame("response_invented", f"{span.row['name']} {span.row['span_id']}")


def _check_usage(case: Case, t: Row, span: Seen) -> None:
    """Compare token counts; by the GenAI conventions, input includes cached tokens."""
    written = case.recorded.usage[t["message_id"]]
    want = t["usage"]
    if written.get("output_tokens") != want["output_tokens"]:
        case.figures["usage the client wrote wrongly"] += 1
        want = {**want, "output_tokens": written.get("output_tokens")}
        if not t["aborted"] and not span.attributes.get("turnspan.usage.incomplete"):
            case.figures["wrong usage not marked"] += 1
    expected = {
        "gen_ai.usage.input_tokens": want["input_tokens"]
        + want["cache_creation_input_tokens"]
        + want["cache_read_input_tokens"],
        "gen_ai.usage.output_tokens": want["output_tokens"],
        "gen_ai.usage.cache_read.input_tokens": want["cache_read_input_tokens"],
        "gen_ai.usage.cache_creation.input_tokens": want["cache_creation_input_tokens"],
        "turnspan.usage.cache_creation_5m": want["cache_creation"]["ephemeral_5m_input_tokens"],
        "turnspan.usage.cache_creation_1h": want["cache_creation"]["ephemeral_1h_input_tokens"],
    }
    wrong = {k: (span.attributes.get(k), v) for k, v in expected.items() if span.attributes.get(k) != v}
    if wrong:
        case.blame("usage_wrong", f"{_label(t)}: {wrong}")


def _plain(text: str) -> str:
    return re.sub(r"[^0-9A-Za-z]+", "", re.sub(r"\\u[0-9a-f]{4}|\\[nrt\"]", "", text))


def _check_tools(case: Case, known: list[Row]) -> None:
    results = {t["tool_use_id"]: t for t in case.truth if t["event"] == "tool_result"}
    for t in known:
        for use in t["tool_uses"]:
            if t["aborted"]:
                continue
            label = f"{use['name']} of {_label(t)}"
            found = {s.id: s for s in case.tools.get(use["id"], [])}
            case.figures["tools"] += 1
            if len(found) != 1:
                case.blame("tool_twice" if found else "tool_missing", f"{label}: {len(found)} spans")
                continue
            span = next(iter(found.values()))
            if span.parent not in {g.id for g in case.generations.get(t["message_id"], [])}:
                case.blame("tool_parent_wrong", label)
            back = results.get(use["id"])
            if back:
                _check_result(case, label, span, back, t["block_end"][use["index"]])
            else:
                case.figures["tools without a result"] += 1


def _check_result(case: Case, label: str, span: Seen, back: Row, asked_at: float) -> None:
    if span.is_error != back["is_error"]:
        case.blame("tool_status_wrong", f"{label}: {span.row['status']} for {back['is_error']}")
    want = _plain(HAND_BACK.sub("", back["text"]))[:60]
    # A result that arrived after its turn was exported is an event below the call.
    outputs = [span, *(s for s in case.spans.values() if s.parent == span.id and s.kind == "other")]
    have = _plain("".join(str(s.attributes.get("output.value", "")) + s.row["status_message"] for s in outputs))
    if "[image]" not in back["text"] and want not in have:
        case.blame(
            "tool_output_wrong",
            f"{label}: {back['text'][:60]!r}, got {str(span.attributes.get('output.value'))[:60]!r}",
        )
    if span.start < asked_at - END_S or span.end > back["t_seen"] + END_S or span.end < span.start:
        early, late = span.start - asked_at, span.end - back["t_seen"]
        case.blame("time_wrong", f"{label}: starts {early:+.2f} s after the call, ends {late:+.2f} s after its result")


def _check_agents(case: Case, known: list[Row]) -> None:
    for t in known:
        if t["thread"] != "subagent":
            continue
        case.figures["subagent responses"] += 1
        calls = {s.id for s in case.tools.get(t["parent_tool_use_id"], [])}
        for span in case.generations.get(t["message_id"], []):
            above = list(case.above(span))
            if len(above) < 2 or above[0].kind != "agent" or above[1].id not in calls:
                case.blame("agent_misplaced", f"{_label(t)}: below {[s.row['name'] for s in above]}")


def _turn_of(t: Row, launched: dict[str, Row]) -> str | None:
    """Return the turn of a response; a subagent belongs to the turn of its call."""
    met = 0
    while t["turn"] is None and t["parent_tool_use_id"] in launched and met < 9:
        t, met = launched[t["parent_tool_use_id"]], met + 1
    return None if t["turn"] is None else str(t["turn"])


def _check_turns(case: Case, known: list[Row]) -> None:
    launched = {use["id"]: t for t in known for use in t["tool_uses"]}
    traces: dict[str, set[str]] = defaultdict(set)  # turn → the traces it is in
    turns_in: dict[str, set[str]] = defaultdict(set)  # trace → the turns in it
    for t in known:
        turn = str(_turn_of(t, launched))
        if t["message_id"] in case.recorded.misfiled:
            case.figures["responses that the client filed with another agent"] += 1
            continue
        for span in case.generations.get(t["message_id"], []):
            traces[turn].add(span.id[0])
            turns_in[span.id[0]].add(turn)
    for turn, held in traces.items():
        if len(held) > 1:
            case.blame("turn_split", f"{turn} in {len(held)} traces")
    for trace, turns in turns_in.items():
        if len(turns) > 1:
            case.blame("turns_merged", f"{trace[:8]} holds {sorted(turns)}")
    case.figures["turns"] += len(traces)
    _check_roots(case, traces)
    _check_queued(case, known)


def _check_roots(case: Case, traces: dict[str, set[str]]) -> None:
    roots = {s.id[0]: s for s in case.spans.values() if s.parent is None}
    last = {t["turn"]: t for t in _last_requests(case)}
    failed = {turn for turn, t in last.items() if t["http_status"] != 200}
    cut = {
        turn for turn, t in last.items() if t.get("stop_reason") == "max_tokens"
    }  # old clients record that as an error
    for turn, root in ((turn, roots[trace]) for turn, held in traces.items() for trace in held if trace in roots):
        if turn in case.meta["prompts"] and turn not in case.recorded.prompts:
            case.figures["prompts the client never wrote down"] += 1
        elif turn in case.meta["prompts"] and not _holds(root, case.meta["prompts"][turn]["text"]):
            case.blame("turn_input_missing", f"{turn}: {str(root.attributes.get('input.value'))[:80]!r}")
        if root.is_error != (turn in failed) and turn not in cut:
            case.blame("turn_error_wrong", f"{turn}: status {root.row['status']}")


def _check_queued(case: Case, known: list[Row]) -> None:
    for t in known:
        inside = {s.id[0] for s in case.generations.get(t["message_id"], [])}
        for words in t["queued"] if inside else ():
            if not any(s.id[0] in inside and f"#{words}" in json.dumps(s.row) for s in case.spans.values()):
                case.blame("queued_missing", f"{words} in {t['turn']}")


def _last_requests(case: Case) -> Iterator[Row]:
    """Yield the last request of each turn of the main conversation."""
    last = {t["turn"]: t for t in case.truth if t["event"] == "response" and not t["aux"] and t["thread"] == "main"}
    yield from last.values()


def _holds(root: Seen, prompt: str) -> bool:
    head = _plain(prompt)[:40]
    return head in _plain(str(root.attributes.get("input.value", ""))) or prompt.rsplit(maxsplit=1)[-1] in str(
        root.attributes.get("input.value")
    )


def _check_structure(case: Case) -> None:
    roots = Counter(s.id[0] for s in case.spans.values() if s.parent is None)
    theirs = {s.id[0] for key in case.recorded.misfiled for s in case.generations.get(key, [])}
    for trace in {s.id[0] for s in case.spans.values()} - theirs:
        if roots[trace] != 1:
            case.blame("roots_wrong", f"{trace[:8]} has {roots[trace]}")
    for span in case.spans.values():
        if span.parent is not None and span.parent not in case.spans:
            case.blame("parent_missing", f"{span.row['name']} {span.row['span_id']}")
        if span.row["resource"].get("service.version") != case.meta["version"]:
            case.blame("version_wrong", f"{span.row['name']}: {span.row['resource'].get('service.version')}")


def _check_cost(case: Case) -> None:
    """Compare the costs of sessions whose client total covers exactly the conversation's requests."""
    responses = [t for t in case.truth if t["event"] == "response" and t["http_status"] == 200]
    for session, counted in case.recorded.costs.items():
        own = [t for t in responses if t["session_id"] == session and not t["aux"] and not t["aborted"]]
        spans = [s for t in own for s in case.generations.get(t["message_id"], [])[:1]]
        costs = [s.attributes.get("turnspan.cost.usd") for s in spans]
        models = counted["modelUsage"].values()
        tokens = [(m["inputTokens"], m["outputTokens"], m["cacheReadInputTokens"]) for m in models]
        served = [
            (t["usage"]["input_tokens"], t["usage"]["output_tokens"], t["usage"]["cache_read_input_tokens"])
            for t in own
        ]
        if (
            not own
            or len(spans) != len(own)
            or [*map(sum, zip(*tokens, strict=True))] != [*map(sum, zip(*served, strict=True))]
        ):
            continue
        case.figures["costs compared"] += 1
        total = sum(cost or 0 for cost in costs)
        if None in costs or abs(total - counted["totalCostUSD"]) > 1e-9:
            case.blame("cost_wrong", f"{session[:8]}: {total:.7f} for {counted['totalCostUSD']:.7f}")
