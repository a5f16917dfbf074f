"""Encodes traces as lines of OTLP/JSON, the format of OpenTelemetry's file exporter, and decodes them.

Written by hand: protobuf's `json_format` does not follow OTLP (it writes ids as base64), and building a dict for each
attribute takes several times as long. Names and fixed values are encoded once for many spans (see `attributes`), and
content under two names is escaped once.

Rules (opentelemetry-proto, "JSON Protobuf Encoding"):

- One line is one ExportTraceServiceRequest with one trace.
- Ids are lower-case hexadecimal, names camelCase, enums numbers, 64-bit integers strings.
- An incomplete line is skipped when read: a crash may have written one.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

import msgspec

from turnspan.backends.attributes import Attributes, Gap, Layouts
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
    from collections.abc import Iterator, Sequence

    from turnspan.backends.attributes import Value
    from turnspan.backends.naming import Naming
    from turnspan.trace.model import Link, Span, Trace

_encode = msgspec.json.Encoder().encode
_SCOPE = _encode({"name": SCOPE_NAME, "version": SCOPE_VERSION})
_FLAGS = b',"flags":%d}' % FLAGS


def encode_lines(traces: Sequence[Trace], naming: Naming) -> bytes:
    """Return one line for each trace, with its line end."""
    out: list[bytes] = []
    for trace in traces:
        if not trace.spans:
            continue
        before = len(out)
        try:
            _line(trace, naming, out)
        except UnicodeEncodeError:
            del out[before:]
            _line(scrubbed(trace), naming, out)
    return b"".join(out)


def _line(trace: Trace, naming: Naming, out: list[bytes]) -> None:
    out += (b'{"resourceSpans":[{"resource":{"attributes":[', _texts(tuple(naming.resource(trace).items())))
    out += (b']},"scopeSpans":[{"scope":', _SCOPE, b',"spans":[')
    everywhere = b"".join(_attributes(naming.of_trace(trace)))
    trace_id = trace.trace_id.hex()
    for number, span in enumerate(trace.spans):
        out.append(b"," if number else b"")
        _span(trace_id, span, everywhere, naming.of_span(trace, span), out)
    out.append(b"]}]}]}\n")


def _span(trace_id: str, span: Span, everywhere: bytes, attributes: Attributes, out: list[bytes]) -> None:
    parent = "" if span.parent_id is None else f'"parentSpanId":"{span.parent_id.hex()}",'
    ids = f'{{"traceId":"{trace_id}","spanId":"{span.span_id.hex()}",{parent}"name":'
    start, end = otlp_times(span)
    times = f',"kind":{otlp_kind(span)},"startTimeUnixNano":"{start}","endTimeUnixNano":"{end}","attributes":['
    out += (ids.encode(), _encode(span.name), times.encode(), everywhere)
    if everywhere and attributes.groups:
        out.append(b",")
    out += _attributes(attributes)
    out.append(b"]")
    if span.links:
        out += (b',"links":[', b",".join(map(_link, span.links)), b"]")
    out += (b',"status":', _status(span), _FLAGS)


def _link(link: Link) -> bytes:
    ids = f'{{"traceId":"{link.trace_id.hex()}","spanId":"{link.span_id.hex()}","attributes":['.encode()
    relation = _texts((("turnspan.link.relation", link.relation),))
    return b'%b%b],"flags":%d}' % (ids, relation, link_flags(link))


@lru_cache(maxsize=100)  # all traces of a session have the same resource
def _texts(pairs: tuple[tuple[str, str], ...]) -> bytes:
    """Return attributes of a resource or a link."""
    return b"".join(_attributes(Attributes.of(dict(pairs))))


def _status(span: Span) -> bytes:
    if span.error is None:
        return b"{}"
    return _encode(
        {"code": STATUS_ERROR, "message": span.error_message} if span.error_message else {"code": STATUS_ERROR}
    )


def _attributes(attributes: Attributes) -> list[bytes]:
    """Return key-value objects, separated by commas, in pieces."""
    fixed, numbers = _LAYOUTS.of(attributes)
    values = [_encode(value) if type(value) is str else _gap(value) for value in attributes.values]
    pieces = fixed.copy()
    pieces[1::2] = [values[number] for number in numbers]
    return pieces


def _gap(value: Value | bytes) -> bytes:
    if isinstance(value, bytes):
        return _encode(value.decode())
    return _encode([{"stringValue": item} for item in value] if isinstance(value, tuple) else value)


# What is before and after the value of a gap.
_AROUND = {
    str: (b'{"stringValue":', b"}"),
    int: (b'{"intValue":"', b'"}'),
    float: (b'{"doubleValue":', b"}"),
    tuple: (b'{"arrayValue":{"values":', b"}}"),
}


def _layout(fields: dict[str, Value | Gap]) -> tuple[list[bytes], list[int]]:
    """Return some attributes in pieces, every second one the place of a gap; and the number of the value for each."""
    pieces = [b""]
    numbers = []
    for place, (key, field) in enumerate(fields.items()):
        pieces[-1] += b'%b{"key":%b,"value":' % (b"," if place else b"", _encode(key))
        if isinstance(field, Gap):
            before, after = _AROUND[field.type]
            pieces[-1] += before
            pieces += (b"", after + b"}")
            numbers.append(field.number)
        else:
            pieces[-1] += _encode(_any_value(field)) + b"}"
    return pieces, numbers


_LAYOUTS = Layouts(_layout)


def _any_value(value: Value) -> dict[str, object]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, str):
        return {"stringValue": value}
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


class _Request(msgspec.Struct, frozen=True, rename="camel"):
    resource_spans: list[_ResourceSpans] = []


_decode = msgspec.json.Decoder(_Request).decode


def decode_line(line: bytes) -> Iterator[dict[str, object]]:
    """Yield the spans of one line as dicts; none for a line that is incomplete or has an invalid number or id."""
    try:
        found = list(_spans_of(_decode(line)))
    except (msgspec.DecodeError, ValueError, RecursionError):
        return
    yield from found


def _spans_of(request: _Request) -> Iterator[dict[str, object]]:
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
