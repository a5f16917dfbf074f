"""The trace of a program that runs Claude Code: `TRACEPARENT` in its environment, by W3C Trace Context.

Rules:

- A value that does not follow the specification counts as none: lower-case hexadecimal, no id of zeros, no version ff,
  nothing behind the flags in version 00.
- It is read when a client starts (SessionStart). In other hooks it may be a span of the client's own tracing, which
  2.1.325 passes on.
- Another program may resume the session: a `Caller` is known since a time, and a turn belongs to the one that was known
  when it ended. The list is part of the checkpoint, with the setting of that time: the same turn gives the same bytes.
- Span ids stay derived from the transcript. As a link, the caller is one more link of the root. As the parent, the
  trace has the caller's trace id, and the root its span id; the link to the previous turn, whose trace may be another
  caller's, is omitted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

if TYPE_CHECKING:
    from turnspan.trace.model import Trace

_LENGTHS: Final = (2, 32, 16, 2)  # version, trace id, span id, flags
_HEX: Final = frozenset("0123456789abcdef")
_MAX_LENGTH: Final = 512
_MAX_CALLERS: Final = 200

TraceId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{32})?\Z")]
SpanId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^([0-9a-f]{16})?\Z")]


class Caller(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A caller, and since when it is known. Without ids: from then on there is none."""

    since_ns: Annotated[int, msgspec.Meta(ge=0, le=2**62)] = 0
    trace_id: TraceId = ""
    span_id: SpanId = ""
    is_parent: bool = False


def parsed(text: str) -> tuple[str, str] | None:
    """Return the trace id and the span id of a `traceparent`; None if it is not valid."""
    fields = text.split("-") if len(text) <= _MAX_LENGTH else []
    if tuple(map(len, fields[:4])) != _LENGTHS or not all(map(_HEX.issuperset, fields[:4])):
        return None
    version, trace_id, span_id = fields[:3]
    is_valid = version != "ff" and (version != "00" or len(fields) == len(_LENGTHS))
    return (trace_id, span_id) if is_valid and trace_id.strip("0") and span_id.strip("0") else None


def noted(callers: tuple[Caller, ...], new: Caller) -> tuple[Caller, ...]:
    """Return the callers of a session after an event; unchanged if it has the caller that was known already."""
    before = [caller for caller in callers if caller.since_ns <= new.since_ns]
    known = before[-1] if before else Caller()
    if (known.trace_id, known.span_id) == (new.trace_id, new.span_id):
        return callers
    return (*before, new, *callers[len(before) :])[-_MAX_CALLERS:]


def called(trace: Trace, callers: tuple[Caller, ...]) -> Trace:
    """Return a trace with its caller, as a link or as the parent; unchanged if it has none."""
    if not callers or not trace.spans:
        return trace
    roots = [span for span in trace.spans if span.parent_id is None]
    end_ns = max(span.end_ns for span in (roots or trace.spans))
    known = [caller for caller in callers if caller.since_ns <= end_ns]
    if not known or not known[-1].trace_id:
        return trace
    from turnspan.trace.model import CALLER, Link  # noqa: PLC0415 - few sessions have a caller

    caller = known[-1]
    trace_id, span_id = bytes.fromhex(caller.trace_id), bytes.fromhex(caller.span_id)
    replace = msgspec.structs.replace
    if caller.is_parent:
        spans = [replace(span, parent_id=span_id, links=()) if span.parent_id is None else span for span in trace.spans]
        return replace(trace, trace_id=trace_id, spans=tuple(spans))
    link = Link(trace_id, span_id, CALLER)
    spans = [replace(span, links=(*span.links, link)) if span.parent_id is None else span for span in trace.spans]
    return replace(trace, spans=tuple(spans))
