"""What a trace is in OpenTelemetry's terms, before it is bytes: a naming gives attributes their names.

Rules:

- A `Naming` is pure: the same trace gives the same attributes in the same order.
- What is the same on every span of a trace (`of_trace`) is kept apart from what is a span's own (`of_span`), so that a
  writer encodes it once. The two never use the same name.
- The resource says what wrote the trace, never where or when: no process id, no host, no random instance. The bytes
  must repeat.
- Text that UTF-8 cannot hold becomes U+FFFD (`scrubbed`) instead of losing an attribute or failing a request for ever.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeAlias

import msgspec

from turnspan import __version__
from turnspan.trace.model import Kind

if TYPE_CHECKING:
    from turnspan.trace.model import Span, Trace

Value: TypeAlias = "str | int | float | bool | tuple[str, ...]"
Attributes: TypeAlias = "dict[str, Value]"

SCOPE_NAME = "turnspan"
SCOPE_VERSION = __version__
INTERNAL, CLIENT = 1, 3
STATUS_ERROR = 2
# What the SDK's encoder writes for a span whose parent is local: "is remote" is known, and false.
FLAGS = 0x100
_MAX_NS = 2**63 - 1  # the year 2262; stores keep times as signed 64 bit


class Naming(Protocol):
    """The names one destination knows."""

    def resource(self, trace: Trace) -> Attributes:
        """What wrote the trace."""

    def of_trace(self, trace: Trace) -> Attributes:
        """What every span of the trace carries."""

    def of_span(self, trace: Trace, span: Span) -> Attributes:
        """What one span carries besides."""


def resource(trace: Trace) -> Attributes:
    """The resource that every naming starts from."""
    return {
        "service.name": "claude-code",
        "service.version": trace.client_version,
        "telemetry.sdk.name": "turnspan",
        "telemetry.sdk.language": "python",
        "telemetry.sdk.version": __version__,
    }


def otlp_kind(span: Span) -> int:
    """OpenTelemetry's span kind: only a generation calls out."""
    return CLIENT if span.kind is Kind.GENERATION else INTERNAL


def otlp_time(at_ns: int) -> int:
    """A time that 64 bits can hold, whatever a transcript claims."""
    return 0 if at_ns < 0 else min(at_ns, _MAX_NS)


def storable(value: Value) -> Value:
    """A value that survives: an integer past 63 bits vanishes in exporters, so it becomes its digits."""
    if type(value) is int and not -(2**63) <= value < 2**63:
        # Python refuses to write thousands of decimal digits; hexadecimal has no such limit.
        return str(value) if value.bit_length() < 10_000 else hex(value)
    return value


def scrub_text(text: str) -> str:
    """`text` with every lone surrogate replaced by U+FFFD; halves that belong together are joined."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def scrubbed(trace: Trace) -> Trace:
    """The same trace in text that UTF-8 can hold. Slow, and only needed after an encoder has refused."""
    clean = scrub(trace)
    assert isinstance(clean, type(trace))
    return clean


def scrub(value: object) -> object:
    """A value with all its text scrubbed, keys included."""
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
