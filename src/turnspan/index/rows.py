"""Masked traces as rows of the index: values in, values out.

Rules:

- Totals of a turn are those of `trace.tally`: each response is counted once, in the trace that contains it.
- `active_ns` is that of the turn's span; of spans that a turn got later, the same by `trace.times`.
- Texts for the search are cut after masking: a text that is cut first may end in half a secret.
- A text that two spans have is stored once: what a response was asked is a prompt or the output of a tool.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from turnspan.index.schema import USAGE
from turnspan.text import one_line
from turnspan.trace.build import root_of
from turnspan.trace.labels import HINT, headline, words_of
from turnspan.trace.model import Json, Kind, Reasoning, Text, parts_of
from turnspan.trace.one_liner import gist_of
from turnspan.trace.tally import tally_of
from turnspan.trace.times import active_ms_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.trace.model import Content, Span, Trace, Usage

Row = tuple[object, ...]

LONGEST_TEXT: Final = 20_000  # characters of a prompt, an answer or a thought that the search sees
LONGEST_TOOL_TEXT: Final = 4_000  # the same of the input or output of a tool
_LONGEST_LABEL: Final = 300  # characters of a prompt, a hint or an error
_LABEL_SOURCE: Final = 1_200  # characters that a label is made from
_STATUS: Final = {"tool_error": "error", "permission_denied": "denied", "interrupted": "interrupted"}
_NO_USAGE: Final = (None,) * len(USAGE)


class TraceRows(NamedTuple):
    """The rows of one trace, without the columns that say where they are in the index."""

    turn: Row
    responses: list[Row]
    tools: list[Row]
    agents: list[Row]
    events: list[Row]
    texts: list[Row]
    spans: int


def rows_of(trace: Trace, project: str) -> TraceRows:
    """Return the rows of a masked trace; `project` is its working directory."""
    top = trace.spans[0]
    agents = _agents(trace)
    responses: list[Row] = []
    tools: list[Row] = []
    subagents: list[Span] = []
    events: list[Row] = []
    texts: list[Row] = []
    for span in trace.spans:
        span_id, kind = span.span_id.hex(), span.kind
        if kind is Kind.GENERATION:
            responses.append(_response(span, span_id, agents.get(span.span_id, "")))
            _add_text(texts, span_id, "answer", _joined(span.output, Text))
            _add_text(texts, span_id, "thinking", _joined(span.output, Reasoning))
        elif kind is Kind.TOOL:
            tools.append(_tool(span, span_id, agents.get(span.span_id, "")))
            if isinstance(span.input, Json):
                _add_text(texts, span_id, "tool_input", values_in(span.input.text), LONGEST_TOOL_TEXT)
            _add_output(texts, span_id, span.output)
        elif kind is Kind.AGENT:  # it has no texts: its prompt is the input of a call, its answer a response
            subagents.append(span)
        else:
            _add_text(texts, span_id, "prompt", _joined(span.input, Text))
            if kind is Kind.EVENT:
                events.append(_event(span, span_id))
                _add_output(texts, span_id, span.output)
    return TraceRows(
        _turn(trace, top if top.kind is Kind.TURN else None, clean(project)),
        responses,
        tools,
        list(_subagents(trace, subagents)),
        events,
        texts,
        len(trace.spans),
    )


# ---- rows


def _turn(trace: Trace, root: Span | None, project: str) -> Row:
    total = tally_of(trace)
    events = [span.facts.get("event") for span in trace.spans if span.kind is Kind.EVENT]
    facts = root.facts if root is not None else {}
    # A turn says itself whether it was interrupted; a later part has only the event.
    is_interrupted = bool(facts.get("interrupted")) if root is not None else "interruption" in events
    prompt = label(headline(words_of(root))) if root is not None else ""
    return (
        trace.trace_id.hex(), _number(trace, facts), int(root is None), str(facts.get("origin") or ""),
        label(trace.name), prompt, _known_label(str(trace.facts.get("title") or "")), project,
        _known_label(str(trace.facts.get("git_branch") or "")), clean(trace.client_version),
        min(span.start_ns for span in trace.spans), max(span.end_ns for span in trace.spans),
        active_ms_of(trace) * 10**6,
        total.generations, total.tools, total.agents, total.errors, int(is_interrupted), events.count("compaction"),
        *_usage(total.usage), total.cost_usd, total.cut_off, total.incomplete, ", ".join(sorted(total.unpriced)),
    )  # fmt: skip


def _number(trace: Trace, facts: Mapping[str, object]) -> int | None:
    number = facts.get("turn_number")
    if isinstance(number, int):
        return number
    words = trace.name.split(":")[0].split(" ")
    return int(words[1]) if len(words) == 2 and words[0] == "Turn" and words[1].isdecimal() else None


def _response(span: Span, span_id: str, agent: str) -> Row:
    usage = span.usage
    return (
        span_id, agent, clean(span.model or span.name), span.start_ns, span.end_ns,
        span.first_token_ns, *(_usage(usage) if usage is not None else _NO_USAGE), span.cost_usd, _error(span),
        int(usage is not None and usage.is_incomplete), int("aborted" in span.facts),
        int("time.inferred" in span.facts),
    )  # fmt: skip


def _tool(span: Span, span_id: str, agent: str) -> Row:
    status = "unknown" if span.facts.get("incomplete") else "ok"
    if span.error is not None:
        status = _STATUS.get(span.error, "error")
    return (
        span_id, agent, clean(span.name), clean(str(span.facts.get(HINT) or "")), span.start_ns, span.end_ns, status,
        _error(span),
    )  # fmt: skip


def _subagents(trace: Trace, spans: Sequence[Span]) -> Iterator[Row]:
    if not spans:
        return
    owners = _owners(trace)
    for span in spans:
        own = [each for each in trace.spans if owners.get(each.span_id) == span.span_id]
        used = [each.usage for each in own if each.usage is not None]
        usage = [sum(getattr(each, name) for each in used) for name in USAGE]
        costs = [each.cost_usd for each in own if each.cost_usd is not None]
        status = "interrupted" if span.facts.get("interrupted") else "error" if span.error is not None else "ok"
        yield (
            span.span_id.hex(), clean(span.name), _agent_hint(span), span.start_ns, span.end_ns,
            status, sum(each.kind is Kind.GENERATION for each in own), sum(each.kind is Kind.TOOL for each in own),
            *usage, sum(costs) if costs else None,
        )  # fmt: skip


def _agent_hint(span: Span) -> str:
    return label(str(span.facts.get("agent_description") or "") or headline(words_of(span)))


def _event(span: Span, span_id: str) -> Row:
    name = str(span.facts.get("event") or span.name)
    return span_id, clean(name), span.start_ns, span.end_ns, label(gist_of(span, is_parent=False))


def _usage(usage: Usage) -> Row:
    return (
        usage.input, usage.output, usage.cache_read, usage.cache_write_5m, usage.cache_write_1h, usage.web_searches
    )  # fmt: skip


def _error(span: Span) -> str | None:
    return label(span.error_message) or clean(span.error) if span.error is not None else None


# ---- which agent a span belongs to


def _owners(trace: Trace) -> dict[bytes, bytes]:
    """Return the id of the nearest agent above each span that has one."""
    owners: dict[bytes, bytes] = {}
    agents = {span.span_id for span in trace.spans if span.kind is Kind.AGENT}
    for span in trace.spans:  # parents precede their children
        if span.parent_id in agents:
            owners[span.span_id] = span.parent_id
        elif span.parent_id in owners:
            owners[span.span_id] = owners[span.parent_id]
    return owners


def _agents(trace: Trace) -> dict[bytes, str]:
    """Return the type of the agent that each span belongs to; the session's own spans are not in it."""
    names = {span.span_id: clean(span.name) for span in trace.spans if span.kind is Kind.AGENT}
    owners = _owners(trace) if names else {}
    top = trace.spans[0]
    root = top.span_id if top.kind is Kind.TURN else root_of(trace.trace_id)
    found: dict[bytes, str] = {}
    for span in trace.spans:
        parent = span.parent_id
        if span.span_id in owners:
            found[span.span_id] = names[owners[span.span_id]]
        elif parent is None or parent == root:
            continue
        elif span.kind is Kind.GENERATION:
            found[span.span_id] = "agent"  # a later part of an agent, whose own span is in an earlier trace
        elif parent in found:
            found[span.span_id] = found[parent]
    return found


# ---- texts for the search


def _add_output(texts: list[Row], span_id: str, output: Content | None) -> None:
    if isinstance(output, str):
        _add_text(texts, span_id, "tool_output", output, LONGEST_TOOL_TEXT)


def _add_text(texts: list[Row], span_id: str, kind: str, body: str, longest: int = LONGEST_TEXT) -> None:
    """Add the row of a text, unless there is nothing to find in it."""
    if body and not body.isspace():
        texts.append((span_id, kind, body if len(body) <= longest else body[:longest]))


def _joined(content: Content | None, kind: type[Text | Reasoning]) -> str:
    return "\n".join(part.text for part in parts_of(content, kind))


def values_in(document: str) -> str:
    """Return the strings in a JSON text, one a line; the text itself if it is not JSON."""
    if "\\" not in document:
        return document  # without an escape every word is found as it is
    try:
        pending = [msgspec.json.decode(document)]
    except (ValueError, RecursionError):
        return document
    found = []
    while pending:
        value = pending.pop()
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            pending += reversed(value)
        elif isinstance(value, dict):
            pending += reversed(value.values())
        elif value is not None:
            found.append(str(value))
    return "\n".join(found)


def label(text: str) -> str:
    """Return the beginning of a text as one line that SQLite can store."""
    return clean(one_line(text[:_LABEL_SOURCE])[:_LONGEST_LABEL]) if text else ""


_known_label: Final = lru_cache(maxsize=64)(label)  # titles and branches: the same in all turns of a session


def clean(text: str) -> str:
    """Return a text without half characters, which SQLite cannot store."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()
