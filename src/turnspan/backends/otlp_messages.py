"""OTLP requests and responses as OpenTelemetry's generated protobuf messages.

The messages are filled directly. The SDK's encoder (`encode_spans`) gives the same bytes, which a test compares, but
takes several times as long (benchmarks/encode.py), and needs `ReadableSpan`s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]  # has no stubs
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Status
from opentelemetry.proto.trace.v1.trace_pb2 import Span as OtlpSpan

from turnspan.backends.naming import (
    FLAGS,
    SCOPE_NAME,
    SCOPE_VERSION,
    link_flags,
    otlp_kind,
    otlp_times,
    scrubbed,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.backends.naming import Naming
    from turnspan.trace.model import Scalar, Span, Trace

_SCOPE = InstrumentationScope(name=SCOPE_NAME, version=SCOPE_VERSION)


class NotOtlpError(ValueError):
    """The bytes are not an OTLP response."""


def encode_request(traces: Sequence[Trace], naming: Naming) -> bytes:
    """Return all spans of these traces as one request body, grouped by resource."""
    request = ExportTraceServiceRequest()
    groups: dict[tuple[tuple[str, str], ...], ScopeSpans] = {}
    for trace in traces:
        if not trace.spans:
            continue
        try:
            _add_trace(request, groups, trace, naming)
        except ValueError:  # UnicodeEncodeError, except in the pure Python version of protobuf
            _add_trace(request, groups, scrubbed(trace), naming)
    body: bytes = request.SerializeToString()
    return body


def read_response(body: bytes) -> tuple[int, str]:
    """Return how many spans an ExportTraceServiceResponse rejects, and its message. Raises NotOtlpError."""
    try:
        partial = ExportTraceServiceResponse.FromString(body).partial_success
    except (DecodeError, ValueError):  # ValueError: a text that is not UTF-8, in the pure Python version of protobuf
        return _read_broken_text(body)
    return max(partial.rejected_spans, 0), partial.error_message


def _read_broken_text(body: bytes) -> tuple[int, str]:
    """Read a response whose message is not UTF-8: some servers quote what they received, and cut it anywhere.

    The generated messages refuse it, and the rejected spans would be sent again for ever.
    """
    try:
        partial = _fields(_fields(body).get(1))
    except (DecodeError, TypeError) as exc:
        raise NotOtlpError("not an ExportTraceServiceResponse") from exc
    rejected, text = partial.get(1, 0), partial.get(2, b"")
    if not isinstance(rejected, int) or not isinstance(text, bytes):
        raise NotOtlpError("not an ExportTracePartialSuccess")
    return rejected if rejected < 2**63 else 0, text.decode("utf-8", "replace")


def _fields(message: object) -> dict[int, object]:
    """Return the fields of a message by number. Raises DecodeError, or TypeError for anything but bytes."""
    from google.protobuf.empty_pb2 import Empty  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - rare
    from google.protobuf.unknown_fields import (  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415
        UnknownFieldSet,
    )

    return {field.field_number: field.data for field in UnknownFieldSet(Empty.FromString(message))}


def _add_trace(
    request: ExportTraceServiceRequest,
    groups: dict[tuple[tuple[str, str], ...], ScopeSpans],
    trace: Trace,
    naming: Naming,
) -> None:
    """Add a trace to the group of its resource. Adds no span if it raises ValueError."""
    pairs = tuple(naming.resource(trace).items())
    if pairs not in groups:
        resource = Resource(attributes=[KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in pairs])
        groups[pairs] = request.resource_spans.add(resource=resource).scope_spans.add(scope=_SCOPE)
    common = OtlpSpan(trace_id=trace.trace_id, flags=FLAGS)
    _fill(common, naming.of_trace(trace))
    spans = groups[pairs].spans
    before = len(spans)
    try:
        for span in trace.spans:
            message = spans.add()
            message.CopyFrom(common)
            _fill_span(message, span, *naming.place(span))
            _fill(message, naming.of_span(trace, span))
    except ValueError:
        del spans[before:]
        raise


def _fill_span(message: OtlpSpan, span: Span, name: str, parent_id: bytes | None) -> None:
    message.span_id = span.span_id
    if parent_id is not None:
        message.parent_span_id = parent_id
    message.name = name
    message.kind = cast("OtlpSpan.SpanKind.ValueType", otlp_kind(span))
    message.start_time_unix_nano, message.end_time_unix_nano = otlp_times(span)
    for link in span.links:
        linked = message.links.add(trace_id=link.trace_id, span_id=link.span_id, flags=link_flags(link))
        linked.attributes.add(key="turnspan.link.relation", value=AnyValue(string_value=link.relation))
    message.status.SetInParent()  # written even when it is empty
    if span.error is not None:
        message.status.code = Status.STATUS_CODE_ERROR
        message.status.message = span.error_message


def _fill(span: OtlpSpan, attributes: Mapping[str, Scalar]) -> None:
    """Append attributes to a span."""
    add = span.attributes.add
    for key, value in attributes.items():
        message = add(key=key).value
        if isinstance(value, str):
            message.string_value = value
        elif isinstance(value, bool):
            message.bool_value = value
        elif isinstance(value, int):
            message.int_value = value
        elif isinstance(value, float):
            message.double_value = value
        else:
            message.array_value.SetInParent()  # an empty list is a value, too
            for item in value:
                message.array_value.values.add(string_value=item)
