"""The spans of a turn as rows of a waterfall, and one span with everything that is known about it.

Rules:

- Times are milliseconds since the first span began; a start that the client did not record is marked as inferred.
- Ids, figures and other facts are apart: figures are formatted here, so that they are the same everywhere.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from turnspan.page.critical_path import critical_path
from turnspan.page.tree import badges_of, by_parent, details_of, figures_of, name_of
from turnspan.text import plain, usd
from turnspan.trace.model import Kind
from turnspan.trace.one_liner import gist_of
from turnspan.trace.tally import has_tokens
from turnspan.trace.times import waited_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.page.turns import Record
    from turnspan.trace.model import Scalar, Span, Trace

# Facts that are shown as figures, or in words elsewhere.
_SHOWN: Final = frozenset({"id", "first_token", "duration.active_ms", "duration_ms", "time.inferred", "tool.hint"})
_IDS: Final = (
    "response_id",
    "request_id",
    "tool_call_id",
    "agent_id",
    "prompt_id",
    "previous_turn",
    "launched_by",
    "caller",
)
_INFERRED: Final = "inferred"


def trace_record(trace: Trace) -> Record:
    """Return a trace with its spans, in the order of the waterfall."""
    began_ns = min(span.start_ns for span in trace.spans)
    ended_ns = max(span.end_ns for span in trace.spans)
    below = by_parent(trace)
    path = critical_path(trace.spans)
    rows = [
        {
            **_row(span, began_ns, below.get(span.span_id, ())),
            "depth": depth,
            "is_critical": span.span_id in path,
        }
        for span, depth in in_order(below.get(None, ()), below)
    ]
    return {
        "trace": trace.trace_id.hex(),
        "start_ms": began_ns / 1e6,
        "ms": (ended_ns - began_ns) / 1e6,
        "spans": rows,
    }


def in_order(
    spans: Sequence[Span], below: Mapping[bytes | None, Sequence[Span]], depth: int = 0
) -> Iterator[tuple[Span, int]]:
    """Yield spans and everything below them, with their depth."""
    for span in spans:
        yield span, depth
        yield from in_order(below.get(span.span_id, ()), below, depth + 1)


def _row(span: Span, began_ns: int, children: Sequence[Span]) -> Record:
    waited = waited_ns(span)
    return {
        "id": span.span_id.hex(),
        "kind": span.kind.value,
        "is_parent": bool(children),
        "name": name_of(span),
        "badges": list(badges_of(span)),
        "gist": gist_of(span, is_parent=bool(children)),
        "figures": figures_of(span, children),
        "error": plain(span.error).replace("_", " ") if span.error is not None else None,
        "from_ms": (span.start_ns - began_ns) / 1e6,
        "ms": (span.end_ns - span.start_ns) / 1e6,
        "first_token_ms": (span.first_token_ns - span.start_ns) / 1e6 if span.first_token_ns is not None else None,
        "waited_ms": waited / 1e6 if waited is not None else None,
        "is_inferred": span.facts.get("time.inferred") == "start",
    }


# ---- one span


def span_record(span: Span, trace: Trace) -> Record:
    """Return the figures, ids and facts of a span; `trace` is the one that is exported."""
    facts = details_of(span)
    ids = {"session": trace.session_id, "trace": trace.trace_id.hex(), "span": span.span_id.hex()}
    ids |= {name.removesuffix("_id").replace("_", " "): str(facts[name]) for name in _IDS if name in facts}
    return {
        "id": span.span_id.hex(),
        "kind": span.kind.value,
        "name": name_of(span),
        "badges": list(badges_of(span)),
        "error": plain(span.error).replace("_", " ") if span.error is not None else None,
        "figures": list(_figures(span)),
        "ids": [[name, plain(value)] for name, value in ids.items()],
        "facts": [[plain(name), plain(_text(value))] for name, value in facts.items() if name not in {*_IDS, *_SHOWN}],
    }


def _text(value: Scalar) -> str:
    return ", ".join(value) if isinstance(value, tuple) else str(value)


def _figures(span: Span) -> Iterator[list[str]]:
    """Yield (name, value, remark) of everything that was measured."""
    yield from _tokens(span)
    if span.kind is not Kind.EVENT:
        is_lost = span.kind is Kind.TOOL and "incomplete" in span.facts
        yield ["duration", "?" if is_lost else _seconds(span.end_ns - span.start_ns), _remark(span, "start")]
    active_ms = span.facts.get("duration.active_ms")
    if isinstance(active_ms, (int, float)):
        yield ["active time", _seconds(int(active_ms * 1e6)), f"{_INFERRED}: without waiting for the user"]
    took_ms = span.facts.get("duration_ms")
    if isinstance(took_ms, (int, float)):
        yield ["ran for", _seconds(int(took_ms * 1e6)), "as the client recorded it"]
    if (waited := waited_ns(span)) is not None:
        yield ["waited for you", _seconds(waited), _INFERRED]
    if span.first_token_ns is not None:
        yield ["first token", _seconds(span.first_token_ns - span.start_ns), "after the start"]
    if span.start_ns:
        yield ["start", _moment(span.start_ns), _remark(span, "start")]


def _remark(span: Span, what: str) -> str:
    return f"{_INFERRED}: the client did not record it" if span.facts.get("time.inferred") == what else ""


def _tokens(span: Span) -> Iterator[list[str]]:
    used = span.usage or span.totals
    if used is None or not has_tokens(used):
        return
    remark = "" if span.usage is not None else "all responses below"
    at_least = "≥ " if used.is_incomplete else ""
    yield ["input", f"{used.input:,}", remark]
    yield ["cache read", f"{used.cache_read:,}", ""]
    yield ["cache write 5m", f"{used.cache_write_5m:,}", ""]
    yield ["cache write 1h", f"{used.cache_write_1h:,}", ""]
    yield ["output", f"{at_least}{used.output:,}", "the client did not record all of it" if used.is_incomplete else ""]
    if span.usage is not None:
        yield ["context window", f"{used.input + used.cache_read + used.cache_write:,}", "input and cache"]
    if used.web_searches:
        yield ["web searches", f"{used.web_searches:,}", ""]
    cost = span.cost_usd if span.usage is not None else span.totals_cost_usd
    if cost is None:
        yield ["cost", "?", "no price is known"]
    else:
        yield ["cost", f"{at_least}{usd(cost)}", ""]


def _seconds(ns: int) -> str:
    """Format a duration to the millisecond."""
    minutes, rest_ms = divmod(round(ns / 1e6), 60_000)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02} min {rest_ms / 1000:06.3f} s"
    return f"{minutes} min {rest_ms / 1000:06.3f} s" if minutes else f"{rest_ms / 1000:.3f} s"


def _moment(at_ns: int) -> str:
    at = datetime.fromtimestamp(at_ns / 1e9).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}.{at.microsecond // 1000:03} {at:%z}"
