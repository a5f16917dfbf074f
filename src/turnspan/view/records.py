"""Traces and sessions as records for machines: values that JSON knows.

Rules:

- The fields are a promise (`--help` of `show` and `sessions` lists them): none goes away, none changes its meaning.
- Every field is always there: null where there is nothing. Ids are hexadecimal; times are UTC, to the nanosecond.
- `line_of` is ASCII: whatever a terminal would obey stands in it as an escape.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from turnspan.terminal import iso_time
from turnspan.trace.model import Json, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnspan.trace.model import Content, Part, Span, Trace
    from turnspan.view.sessions_table import Summary


def line_of(record: Mapping[str, object]) -> str:
    """A record as one line of JSON."""
    return json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f")


def summary_record(summary: Summary, sent: str | None = None) -> dict[str, object]:
    """A session in one record. `sent` says how much of it has arrived, where that is known."""
    total = summary.tally
    used = total.usage
    return {
        "session_id": summary.session_id,
        "path": str(summary.path),
        "title": summary.title,
        "project": summary.project,
        "client_version": summary.client_version,
        "last_activity": iso_time(summary.last_ns) if summary.last_ns else None,
        "turns": total.turns,
        "generations": total.generations,
        "tools": total.tools,
        "agents": total.agents,
        "errors": total.errors,
        "usage": msgspec.to_builtins(used),
        "cost_usd": total.cost_usd,
        "is_cost_partial": total.is_cost_partial,
        "sent": sent,
    }


def trace_record(trace: Trace, masked: Mapping[str, int]) -> dict[str, object]:
    """A trace with all its spans; `masked` counts what each rule masked in it."""
    return {
        "trace_id": trace.trace_id.hex(),
        "name": trace.name,
        "session_id": trace.session_id,
        "client_version": trace.client_version,
        "tags": list(trace.tags),
        "facts": msgspec.to_builtins(trace.facts),
        "masked": dict(masked),
        "spans": [_span_record(span) for span in trace.spans],
    }


def _span_record(span: Span) -> dict[str, object]:
    return {
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_id.hex() if span.parent_id is not None else None,
        "kind": span.kind.value,
        "name": span.name,
        "start": iso_time(span.start_ns),
        "end": iso_time(span.end_ns),
        "duration_ms": (span.end_ns - span.start_ns) / 1e6,
        "first_token": iso_time(span.first_token_ns) if span.first_token_ns is not None else None,
        "model": span.model,
        "usage": msgspec.to_builtins(span.usage),
        "cost_usd": span.cost_usd,
        "totals": msgspec.to_builtins(span.totals),
        "totals_cost_usd": span.totals_cost_usd,
        "error": span.error,
        "error_message": span.error_message,
        "input": _content_record(span.input),
        "output": _content_record(span.output),
        "facts": msgspec.to_builtins(span.facts),
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "relation": link.relation}
            for link in span.links
        ],
    }


def _content_record(content: Content | None) -> object:
    if isinstance(content, tuple):
        return [
            {
                "role": message.role,
                "finish_reason": message.finish_reason,
                "parts": [_part_record(p) for p in message.parts],
            }
            for message in content
        ]
    return _value(content.text) if isinstance(content, Json) else content


def _part_record(part: Part) -> object:
    record = msgspec.to_builtins(part)
    if isinstance(part, ToolCall):
        record["arguments"] = _value(part.arguments)
    return record


def _value(text: str) -> object:
    """What JSON text says; the text itself if it does not hold JSON (any more)."""
    try:
        return json.loads(text, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return text


def _no_number(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
