"""Encodes traces as lines of OTLP/JSON, the format of OpenTelemetry's file exporter, and decodes them.

Written by hand: protobuf's `json_format` does not follow OTLP (it writes ids as base64).

Rules (opentelemetry-proto, "JSON Protobuf Encoding"):

- One line is one ExportTraceServiceRequest with one trace.
- Ids are lower-case hexadecimal, names camelCase, enums numbers, 64-bit integers strings.
- An incomplete line is skipped when read: a crash may have written one.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, TypeAlias

import msgspec

from turnspan.backends.naming import (
    FLAGS,
    SCOPE_NAME,
    SCOPE_VERSION,
    STATUS_ERROR,
    link_flags,
    otlp_kind,
    otlp_times,
    scrubbed,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.backends.naming import Naming
    from turnspan.trace.model import Link, Scalar, Span, Trace

_encode = msgspec.json.Encoder().encode

_Pair: TypeAlias = "dict[str, object]"  # a key and its value


def encode_lines(traces: Sequence[Trace], naming: Naming) -> bytes:
    """Return one line for each trace, with its line end."""
    out: list[bytes] = []
    for trace in traces:
        if not trace.spans:
            continue
        try:
            out.append(_line(trace, naming))
        except UnicodeEncodeError:
            out.append(_line(scrubbed(trace), naming))
    return b"".join(out)


def _line(trace: Trace, naming: Naming) -> bytes:
    everywhere = _attributes(naming.of_trace(trace))
    spans = [
        _span(trace, span, naming.place(span), [*everywhere, *_attributes(naming.of_span(trace, span))])
        for span in trace.spans
    ]
    scope_spans = {"scope": {"name": SCOPE_NAME, "version": SCOPE_VERSION}, "spans": spans}
    resource = {"attributes": _attributes(naming.resource(trace))}
    return _encode({"resourceSpans": [{"resource": resource, "scopeSpans": [scope_spans]}]}) + b"\n"


def _span(trace: Trace, span: Span, place: tuple[str, bytes | None], attributes: list[_Pair]) -> dict[str, object]:
    name, parent_id = place
    start, end = otlp_times(span)
    out: dict[str, object] = {"traceId": trace.trace_id.hex(), "spanId": span.span_id.hex()}
    if parent_id is not None:
        out["parentSpanId"] = parent_id.hex()
    out |= {
        "name": name,
        "kind": otlp_kind(span),
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(end),
        "attributes": attributes,
    }
    if span.links:
        out["links"] = [_link(link) for link in span.links]
    return out | {"status": _status(span), "flags": FLAGS}


def _link(link: Link) -> dict[str, object]:
    return {
        "traceId": link.trace_id.hex(),
        "spanId": link.span_id.hex(),
        "attributes": _attributes({"turnspan.link.relation": link.relation}),
        "flags": link_flags(link),
    }


def _status(span: Span) -> dict[str, object]:
    if span.error is None:
        return {}
    return {"code": STATUS_ERROR, "message": span.error_message} if span.error_message else {"code": STATUS_ERROR}


def _attributes(attributes: Mapping[str, Scalar]) -> list[_Pair]:
    return [{"key": name, "value": _any_value(value)} for name, value in attributes.items()]


def _any_value(value: Scalar) -> dict[str, object]:
    if isinstance(value, str):
        return {"stringValue": value}
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)}
    if isinstance(value, float):
        return {"doubleValue": value if math.isfinite(value) else _NOT_FINITE[str(value)]}
    return {"arrayValue": {"values": [{"stringValue": item} for item in value]}}


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


class _AnyValue(msgspec.Struct, frozen=True, rename="camel"):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: int | str | None = None
    double_value: float | Literal["NaN", "Infinity", "-Infinity"] | None = None
    array_value: _ArrayValue | None = None


class _ArrayValue(msgspec.Struct, frozen=True):
    values: list[_AnyValue] = []


class _KeyValue(msgspec.Struct, frozen=True):
    key: str
    value: _AnyValue = _AnyValue()


class _Status(msgspec.Struct, frozen=True):
    code: int = 0
    message: str = ""


class _Link(msgspec.Struct, frozen=True, rename="camel"):
    trace_id: str
    span_id: str
    attributes: list[_KeyValue] = []


class _Span(msgspec.Struct, frozen=True, rename="camel"):
    trace_id: str
    span_id: str
    name: str = ""
    parent_span_id: str = ""
    kind: int = 0
    start_time_unix_nano: str = "0"
    end_time_unix_nano: str = "0"
    attributes: list[_KeyValue] = []
    links: list[_Link] = []
    status: _Status = _Status()


class _Resource(msgspec.Struct, frozen=True):
    attributes: list[_KeyValue] = []


class _ScopeSpans(msgspec.Struct, frozen=True):
    spans: list[_Span] = []


class _ResourceSpans(msgspec.Struct, frozen=True, rename="camel"):
    resource: _Resource = _Resource()
    scope_spans: list[_ScopeSpans] = []


class _OtlpRequest(msgspec.Struct, frozen=True, rename="camel"):
    resource_spans: list[_ResourceSpans] = []


_decode = msgspec.json.Decoder(_OtlpRequest).decode


def decode_line(line: bytes) -> Iterator[dict[str, object]]:
    """Yield the spans of one line as dicts; none for a line that is incomplete or has an invalid number or id."""
    try:
        found = list(_spans_of(_decode(line)))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    yield from found


def _spans_of(request: _OtlpRequest) -> Iterator[dict[str, object]]:
    for resource_spans in request.resource_spans:
        resource = _plain(resource_spans.resource.attributes)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield {
                    "trace_id": _id(span.trace_id, 16),
                    "span_id": _id(span.span_id, 8),
                    "parent_span_id": span.parent_span_id,
                    "name": span.name,
                    "kind": span.kind,
                    "start_ns": int(span.start_time_unix_nano),
                    "end_ns": int(span.end_time_unix_nano),
                    "attributes": _plain(span.attributes),
                    "status": span.status.code,
                    "status_message": span.status.message,
                    "links": [
                        {"trace_id": link.trace_id, "span_id": link.span_id, "attributes": _plain(link.attributes)}
                        for link in span.links
                    ],
                    "resource": resource,
                }


def _id(text: str, size: int) -> str:
    """Return a valid id as it is. Raises ValueError for any other text."""
    if len(bytes.fromhex(text)) != size:
        raise ValueError(text)
    return text


def _plain(attributes: list[_KeyValue]) -> dict[str, object]:
    return {item.key: _plain_value(item.value) for item in attributes}


def _plain_value(value: _AnyValue) -> object:
    if value.array_value is not None:
        return [_plain_value(item) for item in value.array_value.values]
    if value.int_value is not None:
        return int(value.int_value)
    if value.double_value is not None:
        return float(value.double_value)
    return value.bool_value if value.string_value is None else value.string_value
