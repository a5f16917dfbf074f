"""Traces as OpenTelemetry attributes: what the encoders of protobuf and JSON have in common.

Rules:

- A `Naming` is pure: the same trace gives the same attributes in the same order.
- Attributes of every span of a trace (`of_trace`) are separate from those of one span (`of_span`), so that an encoder
  encodes them once. The two never share a name.
- The resource names the client and turnspan, without process id or instance: the same trace gives the same bytes. Its
  `host.id` is constant, derived from nothing of the machine. Without one Jaeger takes a child that outlives its parent
  for clock skew, moves it and warns. `host.name` is only what the user set.
- Names and parents of spans are what the destination is set to (`place`); the facts of a trace are masked before, so
  that a hint in a name holds no secret.
- Text that is not valid Unicode becomes U+FFFD (`scrubbed`); otherwise the request would fail every time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from turnspan import __version__
from turnspan.settings.options import SETTING
from turnspan.trace.labels import HINT, short
from turnspan.trace.model import CALLER, Kind

if TYPE_CHECKING:
    from turnspan.backends.attributes import Attributes
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Link, Span, Trace

Resource: TypeAlias = "dict[str, str]"

SCOPE_NAME = "turnspan"
SCOPE_VERSION = __version__
SERVICE_NAME = str(SETTING["service_name"].default)
HOST_ID = "turnspan"
_PROJECT = "{project}"
_HINTS = {Kind.TOOL: HINT, Kind.AGENT: "agent_description"}  # the fact that says what ran
_OPERATIONS = {Kind.GENERATION: "chat", Kind.TOOL: "execute_tool", Kind.AGENT: "invoke_agent"}
INTERNAL, CLIENT = 1, 3
STATUS_ERROR = 2
# The SDK's flags for a span with a local parent: "is remote" is known, and false.
FLAGS = 0x100
REMOTE_FLAGS = 0x300  # a span of another program
_MAX_NS = 2**63 - 1  # the year 2262; stores keep times as signed 64 bit


class Naming(Protocol):
    """The attribute names of one kind of destination."""

    def resource(self, trace: Trace) -> Resource:
        """Return the attributes of the resource."""

    def place(self, span: Span) -> tuple[str, bytes | None]:
        """Return the name of a span, and the id of its parent."""

    def of_trace(self, trace: Trace) -> Attributes:
        """Return the attributes of every span of the trace."""

    def of_span(self, trace: Trace, span: Span) -> Attributes:
        """Return the other attributes of one span."""


def resource(trace: Trace, capture: Capture) -> Resource:
    """Return the resource attributes of every naming."""
    out: Resource = {
        "service.name": _service_name(trace, capture.service_name),
        "service.version": trace.client_version,
        "telemetry.sdk.name": "turnspan",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
        "host.id": HOST_ID,
    }
    if capture.host:
        out["host.name"] = capture.host
    return out


def _service_name(trace: Trace, pattern: str) -> str:
    """Return the service's name; the default if its project is unknown, as in `metadata` mode."""
    if _PROJECT not in pattern:
        return pattern or SERVICE_NAME
    project = project_of(trace)
    return pattern.replace(_PROJECT, project) if project else SERVICE_NAME


def project_of(trace: Trace) -> str:
    """Return the name of the project's directory; empty if it is unknown."""
    return trace.cwd.replace("\\", "/").rstrip("/").rpartition("/")[2]


def place(span: Span, capture: Capture) -> tuple[str, bytes | None]:
    """Return the name of a span and the id of its parent, as the destination wants them.

    Both depend on this span only: a request may hold a part of its trace.
    """
    parent = span.asker_id if capture.tool_parent == "turn" and span.asker_id is not None else span.parent_id
    if capture.span_names == "hint":
        hint = span.facts.get(_HINTS.get(span.kind, ""))
        return (short(f"{span.name}: {hint}") if hint else span.name), parent
    if capture.span_names == "semconv" and span.kind in _OPERATIONS:
        # Not the name of an error in place of a model.
        subject = span.model or "" if span.kind is Kind.GENERATION else span.name
        return f"{_OPERATIONS[span.kind]} {subject}".strip(), parent
    return span.name, parent


def tags_of(trace: Trace, capture: Capture) -> tuple[str, ...]:
    """Return the tags of the trace, of the destination and of the host, each once."""
    host = (f"host:{capture.host}",) if capture.host else ()
    return tuple(dict.fromkeys((*trace.tags, *capture.tags, *host)))


def otlp_kind(span: Span) -> int:
    """Return OpenTelemetry's span kind: CLIENT for a generation, which calls a server."""
    return CLIENT if span.kind is Kind.GENERATION else INTERNAL


def link_flags(link: Link) -> int:
    """Return the flags of a link: whether its span is another program's."""
    return REMOTE_FLAGS if link.relation == CALLER else FLAGS


def otlp_times(span: Span) -> tuple[int, int]:
    """Return start and end of a span."""
    start, end = span.start_ns, span.end_ns
    return (start, end) if 0 <= start <= end <= _MAX_NS else (otlp_time(start), otlp_time(end))


def otlp_time(at_ns: int) -> int:
    """Return a time that fits into 64 bits, whatever the transcript says."""
    return 0 if at_ns < 0 else min(at_ns, _MAX_NS)


def scrub_text(text: str) -> str:
    """Return `text` with surrogate pairs joined and lone surrogates replaced by U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def scrubbed(trace: Trace) -> Trace:
    """Return the trace with all its text scrubbed. Slow, and only needed after an encoder has failed."""
    clean = scrub(trace)
    assert isinstance(clean, type(trace))
    return clean


def scrub(value: object) -> object:
    """Return a value with all its text scrubbed, keys included."""
    match value:
        case Kind():
            return value
        case str():
            return scrub_text(value)
        case tuple():
            return tuple(scrub(item) for item in value)
        case list():
            return [scrub(item) for item in value]
        case dict():
            return {scrub(key): scrub(item) for key, item in value.items()}
        case msgspec.Struct():
            return type(value)(**{name: scrub(getattr(value, name)) for name in value.__struct_fields__})
        case _:
            return value
