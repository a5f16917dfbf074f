"""A turn as a row of the page, and what happened in it: waits, retries, refusals, compactions.

Rules:

- Figures are those of `show`. The context window of a response is all that the model was given: input, cache read and
  cache write. Only responses of the conversation itself count; a subagent has a context of its own.
- Active time and waiting are inferred, by `trace.times`.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from turnspan.page.tree import NO_ANSWER, Layout, badges_of, figures_of, time_of_day, turn_name
from turnspan.text import count, one_line
from turnspan.trace.build import root_of
from turnspan.trace.model import Kind, Text, parts_of
from turnspan.trace.one_liner import gist_of
from turnspan.trace.tally import tally_of
from turnspan.trace.times import active_ms_of, waited_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.page.preview import PreviewedTrace
    from turnspan.trace.model import Span, Trace

Record = dict[str, object]

_LAYOUT: Final = Layout(width=100)  # for the time zone only


def turn_record(previewed: PreviewedTrace, *, is_open: bool = False) -> Record:
    """Return a trace as one row. Spans that a turn got later, or that belong to none, are named after the first."""
    trace = previewed.own
    top = trace.spans[0]
    is_later = top.parent_id is not None
    tally = tally_of(trace)
    is_priced = bool(tally.generations) and tally.usage.output + tally.cost_usd > 0
    return {
        "trace": trace.trace_id.hex(),
        "name": turn_name(trace),
        "when": when_of(top.start_ns),
        "start_ms": top.start_ns / 1e6,
        "ms": (max(span.end_ns for span in trace.spans) - top.start_ns) / 1e6,
        "active_ms": active_ms_of(trace),
        "waited_ms": sum(waited_ns(span) or 0 for span in trace.spans) / 1e6,
        "is_later": is_later,
        "is_open": is_open,
        "badges": [each for each in badges_of(top) if not (is_open and each == NO_ANSWER)] + list(_happened(trace)),
        "gist": gist_of(top, is_parent=len(trace.spans) > 1),
        "answer": _answer(top),
        "figures": figures_of(top),
        "errors": tally.errors,
        "masked": sum(previewed.masked.values()),
        "cost_usd": tally.cost_usd if is_priced else None,
        **_context(trace),
    }


def when_of(start_ns: int) -> str:
    """Return when a turn began as HH:MM; empty if unknown."""
    return time_of_day(start_ns, _LAYOUT)


def _answer(span: Span) -> str:
    """Return the first line of what a turn or an agent answered."""
    texts = (part.text for part in parts_of(span.output, Text) if part.text.strip())
    return next((one_line(text)[:300] for text in texts), "")


def _happened(trace: Trace) -> Iterator[str]:
    """Yield what was unusual in a trace, in a word or two each."""
    events = Counter(span.facts.get("event") for span in trace.spans if span.kind is Kind.EVENT)
    if events["compaction"]:
        yield "compacted"
    if events["retry"]:
        yield count(events["retry"], "retry", "retries")
    if events["steering"]:
        yield count(events["steering"], "message meanwhile", "messages meanwhile")
    tools = Counter(span.error for span in trace.spans if span.kind is Kind.TOOL)
    if tools["permission_denied"]:
        yield f"{tools['permission_denied']} denied"
    if tools["interrupted"] and not trace.spans[0].facts.get("interrupted"):
        yield "tool interrupted"


def _context(trace: Trace) -> Record:
    """Return the context window of each response, and before which of them the conversation was compacted."""
    root = root_of(trace.trace_id)
    sizes: list[tuple[int, int]] = []  # (start, tokens)
    for span in trace.spans:
        used = span.usage
        if span.kind is Kind.GENERATION and span.parent_id == root and used is not None:
            tokens = used.input + used.cache_read + used.cache_write
            sizes += [(span.start_ns, tokens)] if tokens else []
    compacted = [span.start_ns for span in trace.spans if span.facts.get("event") == "compaction"]
    return {
        "context": [tokens for _, tokens in sizes],
        "compactions": [sum(start < at for start, _ in sizes) for at in compacted],
    }
