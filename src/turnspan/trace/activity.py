"""Active time: how long a model, a tool or a subagent worked. A turn's duration also includes waiting for the user.

Rules:

- Active time is the union of the intervals of responses, tool calls and subagents: what runs in parallel counts once.
- A tool that records its own duration counts with that: the rest of its interval is a question for permission. One that
  only asks the user does not count.
- It is inferred: most clients record neither when a request was sent, nor how long a tool waited for permission.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.trace.model import Span

_WORK: Final = frozenset({Kind.GENERATION, Kind.TOOL, Kind.AGENT})
_QUESTIONS: Final = frozenset({"AskUserQuestion", "ExitPlanMode"})  # tools that only wait for the user


def active_ns(spans: Iterable[Span]) -> int:
    """Return the active time of some spans of one trace, in nanoseconds."""
    total = until = 0
    for start, end in sorted(_interval(span) for span in spans if span.kind in _WORK and span.name not in _QUESTIONS):
        if end > until:
            total += end - max(start, until)
            until = end
    return total


def _interval(span: Span) -> tuple[int, int]:
    """Return when a span was at work."""
    start, end = span.start_ns, span.end_ns
    took_ms = span.facts.get("duration_ms") if span.kind is Kind.TOOL else None
    if isinstance(took_ms, (int, float)) and took_ms >= 0:
        start = max(start, end - int(took_ms * 1_000_000))
    return start, end
