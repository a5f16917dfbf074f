"""Times: when turns and responses begin and end, and how long a model, a tool or a subagent worked (active time).

Rules:

- Times come from the transcript, never from the clock. A span lasts at least 1 ns.
- A turn's duration also includes waiting for the user.
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
    from turnspan.transcript.turns import ModelResponse, Turn

_WORK: Final = frozenset({Kind.GENERATION, Kind.TOOL, Kind.AGENT})
_QUESTIONS: Final = frozenset({"AskUserQuestion", "ExitPlanMode"})  # tools that only wait for the user


def active_ns(spans: Iterable[Span]) -> int:
    """Return the active time of some spans of one trace, in nanoseconds."""
    intervals = []
    for span in spans:
        if span.kind not in _WORK or span.name in _QUESTIONS:
            continue
        start, end = span.start_ns, span.end_ns
        if span.kind is Kind.TOOL:
            took_ms = span.facts.get("duration_ms")
            if isinstance(took_ms, (int, float)) and took_ms >= 0:
                start = max(start, end - int(took_ms * 1_000_000))
        intervals.append((start, end))
    intervals.sort()
    total = until = 0
    for start, end in intervals:
        if end > until:
            total += end - max(start, until)
            until = end
    return total


def lasting(start: int, end: int) -> int:
    """Return the end of a span: one of no length lasts 1 ns."""
    return end if end != start else start + 1


def start_of(turn: Turn) -> int:
    """Return when a turn began: the prompt's time if it has one, else the first; never the clock."""
    if turn.prompt is not None and turn.prompt.time_ns is not None:
        return turn.prompt.time_ns
    return min(turn.times, default=0)


def bounds(turn: Turn) -> tuple[int, int]:
    """Return start and end of a turn."""
    start = start_of(turn)
    return start, max([start, *turn.times])


def request_times(turn: Turn, response: ModelResponse, began_ns: int) -> tuple[int, int]:
    """Return start and end of a response: the recorded request, else the row that triggered it; its last block.

    `began_ns`: when its turn began.
    """
    first = response.first_ns if response.first_ns is not None else began_ns
    end = response.last_ns if response.last_ns is not None else first
    if response.request_ns is not None:
        return response.request_ns, max(response.request_ns, end)
    start = response.trigger_ns if response.trigger_ns is not None else first
    if turn.part == 0 and start < began_ns:
        start = began_ns
    if start > end:
        start = min(first, end)  # an impossible order
    return start, end
