"""Times: when turns and responses begin and end, and how long a model, a tool or a subagent worked (active time).

Rules:

- Times come from the transcript, never from the clock. A span lasts at least 1 ns.
- A turn's duration also includes waiting for the user.
- A tool call waits for the user before it works. One that recorded how long it ran waited for the rest of its time;
  one that was denied, or that only asks the user, waited all of it. Of others nothing is known: they worked.
- Active time is the union of the intervals in which responses, tool calls and subagents worked: what runs in parallel
  counts once.
- Both are inferred: most clients record neither when a request was sent, nor how long a tool waited for permission.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.trace.model import Span, Trace
    from turnspan.transcript.turns import ModelResponse, Turn

_WORK: Final = frozenset({Kind.GENERATION, Kind.TOOL, Kind.AGENT})
_QUESTIONS: Final = frozenset({"AskUserQuestion", "ExitPlanMode"})  # tools that only wait for the user
_SHORTEST_WAIT_NS: Final = 500_000_000  # less is not a question that a user answered


def active_ms(spans: Iterable[Span]) -> int:
    """Return the active time of some spans of one trace, in milliseconds."""
    total = until = 0
    for start, end in sorted((_began_work_ns(span), span.end_ns) for span in spans if span.kind in _WORK):
        if end > until:
            total += end - max(start, until)
            until = end
    return round(total / 1e6)


def active_ms_of(trace: Trace) -> int:
    """Return the active time of a trace: what its turn says, or, for what was added to a turn later, its spans."""
    known = trace.spans[0].facts.get("duration.active_ms")
    return known if isinstance(known, int) else active_ms(trace.spans)


def waited_ns(span: Span) -> int | None:
    """Return how long a tool call waited for the user; None if it did not, or that is not known."""
    waited = _began_work_ns(span) - span.start_ns
    return waited if waited >= _SHORTEST_WAIT_NS and "incomplete" not in span.facts else None


def _began_work_ns(span: Span) -> int:
    """Return when a span began to work: its end if it did nothing but wait for the user."""
    if span.kind is not Kind.TOOL:
        return span.start_ns
    if span.name in _QUESTIONS or span.error == "permission_denied":
        return span.end_ns
    took_ms = span.facts.get("duration_ms")
    if not isinstance(took_ms, (int, float)) or took_ms < 0:
        return span.start_ns
    return max(span.start_ns, span.end_ns - int(took_ms * 1_000_000))


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
