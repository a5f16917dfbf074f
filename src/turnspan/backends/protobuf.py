"""Traces as the bytes of an OTLP ExportTraceServiceRequest, and the answer back: protobuf, written and read by hand.

The SDK's encoder builds two message objects per attribute before it serialises anything, and importing it costs more
than a whole event may. This writer puts the same bytes together directly; a test holds the two equal, byte by byte.

Rules:

- Fields go out in the order of their numbers, and every `oneof` value is written even when it is empty or zero.
- Long texts are never copied until the one join at the end: pieces and their sizes travel up instead.
- The reader knows the wire format, not the messages. It refuses what is cut off and skips fields it does not know.

Field numbers: opentelemetry-proto, trace/v1/trace.proto, common/v1/common.proto and collector/trace/v1.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from turnspan.backends.naming import (
    FLAGS,
    SCOPE_NAME,
    SCOPE_VERSION,
    STATUS_ERROR,
    otlp_kind,
    otlp_time,
    scrubbed,
    storable,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.backends.naming import Attributes, Spelling, Value
    from turnspan.trace.model import Link, Span, Trace

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_ONE_BYTE = tuple(bytes((n,)) for n in range(128))
_ATTRIBUTE_OF_SPAN = b"\x4a"  # field 9
_ATTRIBUTE_OF_LINK = b"\x22"  # field 4
_ATTRIBUTE_OF_RESOURCE = b"\x0a"  # field 1
_pack_double = struct.Struct("<d").pack
_pack_fixed64 = struct.Struct("<BQ").pack
_FLAGS_OF_SPAN = b"\x85\x01" + struct.pack("<I", FLAGS)  # field 16
_FLAGS_OF_LINK = b"\x35" + struct.pack("<I", FLAGS)  # field 6


class CutOffError(ValueError):
    """The bytes are not a whole protobuf message."""


def encode_request(traces: Sequence[Trace], spelling: Spelling) -> bytes:
    """All spans of these traces as one request body."""
    scope = _message(b"\x0a", _text(b"\x0a", SCOPE_NAME) + _text(b"\x12", SCOPE_VERSION))
    by_resource: dict[bytes, tuple[list[bytes], list[int]]] = {}
    for trace in traces:
        try:
            resource, pieces, size = _encode_trace(trace, spelling)
        except UnicodeEncodeError:
            resource, pieces, size = _encode_trace(scrubbed(trace), spelling)
        if not pieces:
            continue
        spans, sizes = by_resource.setdefault(resource, ([], []))
        spans += pieces
        sizes.append(size)
    out: list[bytes] = []
    for resource, (spans, sizes) in by_resource.items():
        scope_spans_size = len(scope) + sum(sizes)
        scope_spans = b"\x12" + _varint(scope_spans_size) + scope
        size = len(resource) + len(scope_spans) - len(scope) + scope_spans_size
        out += (b"\x0a" + _varint(size), resource, scope_spans)
        out += spans
    return b"".join(out)


def _encode_trace(trace: Trace, spelling: Spelling) -> tuple[bytes, list[bytes], int]:
    """The resource, the pieces of all spans, and how many bytes these are."""
    pieces: list[bytes] = []
    size = _attributes(_ATTRIBUTE_OF_RESOURCE, spelling.resource(trace), pieces)
    resource = b"\x0a" + _varint(size) + b"".join(pieces)
    shared: list[bytes] = []
    _attributes(_ATTRIBUTE_OF_SPAN, spelling.of_trace(trace), shared)
    everywhere = b"".join(shared)
    spans: list[bytes] = []
    size = 0
    for span in trace.spans:
        size += _span(trace, span, everywhere, spelling.of_span(trace, span), spans)
    return resource, spans, size


def _span(trace: Trace, span: Span, everywhere: bytes, attributes: Attributes, out: list[bytes]) -> int:
    parent = b"" if span.parent_id is None else b"\x22\x08" + span.parent_id
    head = b"".join(
        (
            b"\x0a\x10",
            trace.trace_id,
            b"\x12\x08",
            span.span_id,
            parent,
            _text(b"\x2a", span.name) if span.name else b"",
            b"\x30",
            _ONE_BYTE[otlp_kind(span)],
            _fixed64(0x39, otlp_time(span.start_ns)),
            _fixed64(0x41, otlp_time(span.end_ns)),
            everywhere,
        )
    )
    pieces: list[bytes] = []
    size = len(head) + _attributes(_ATTRIBUTE_OF_SPAN, attributes, pieces)
    tail = b"".join((*map(_link, span.links), _status(span), _FLAGS_OF_SPAN))
    size += len(tail)
    header = b"\x12" + _varint(size)
    out += (header, head)
    out += pieces
    out.append(tail)
    return len(header) + size


def _link(link: Link) -> bytes:
    pieces: list[bytes] = []
    _attributes(_ATTRIBUTE_OF_LINK, {"turnspan.link.relation": link.relation}, pieces)
    return _message(b"\x6a", b"".join((b"\x0a\x10", link.trace_id, b"\x12\x08", link.span_id, *pieces, _FLAGS_OF_LINK)))


def _status(span: Span) -> bytes:
    if span.error is None:
        return b"\x7a\x00"
    message = _text(b"\x12", span.error_message) if span.error_message else b""
    return _message(b"\x7a", message + b"\x18" + _ONE_BYTE[STATUS_ERROR])


def _attributes(tag: bytes, attributes: Attributes, out: list[bytes]) -> int:
    """Append key-value messages to `out`; how many bytes they are."""
    total = 0
    encoded: Value = ""
    text = b""
    for key, value in attributes.items():
        name = _KEYS.get(key) or _key(key)
        if type(value) is str:
            if value is not encoded:  # content often stands under two names in a row
                encoded, text = value, value.encode()
            n = len(text)
            size = len(name) + n + 4
            if size < 0x80:
                out.append(tag + _ONE_BYTE[size] + name + b"\x12" + _ONE_BYTE[n + 2] + b"\x0a" + _ONE_BYTE[n] + text)
                total += size + 2
                continue
            # Only strings are long: the text itself is not copied here.
            header = _text_header(n)
            header = tag + _varint(len(name) + len(header) + n) + name + header
            out.append(header)
            out.append(text)
            total += len(header) + n
            continue
        piece = _any_value(storable(value))
        piece = _message(tag, name + b"\x12" + _varint(len(piece)) + piece)
        out.append(piece)
        total += len(piece)
    return total


def _text_header(n: int) -> bytes:
    """What stands before a text of `n` bytes: the value's own header around the string's."""
    inner = b"\x0a" + _varint(n)
    return b"\x12" + _varint(len(inner) + n) + inner


def _any_value(value: Value) -> bytes:
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        return b"\x18" + _varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return b"\x21" + _pack_double(value)
    if isinstance(value, str):
        return _text(b"\x0a", value)
    return _message(b"\x2a", b"".join(_message(b"\x0a", _text(b"\x0a", item)) for item in value))


# Attribute names repeat on every span; facts have open names, so what is remembered is bounded.
_KEYS: dict[str, bytes] = {}
_MAX_KEYS = 1_000


def _key(key: str) -> bytes:
    encoded = _text(b"\x0a", key)
    if len(_KEYS) < _MAX_KEYS:
        _KEYS[key] = encoded
    return encoded


def _fixed64(tag: int, n: int) -> bytes:
    return _pack_fixed64(tag, n) if n else b""  # outside a oneof, zero is not written


def _text(tag: bytes, text: str) -> bytes:
    return _message(tag, text.encode())


def _message(tag: bytes, content: bytes) -> bytes:
    return tag + _varint(len(content)) + content


def _varint(n: int) -> bytes:
    if n < 0x80:
        return _ONE_BYTE[n]
    if n < 0x4000:
        return bytes((n & 0x7F | 0x80, n >> 7))
    if n < 0x20_0000:
        return bytes((n & 0x7F | 0x80, n >> 7 & 0x7F | 0x80, n >> 14))
    return bytes((n & 0x7F | 0x80,)) + _varint(n >> 7)


def read_fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a protobuf message, by number. Raises CutOffError if the bytes end within one."""
    at = 0
    while at < len(message):
        tag, at = _read_varint(message, at)
        number, wire_type = tag >> 3, tag & 7
        if number == 0:
            raise CutOffError("field number 0")
        if wire_type == _VARINT:
            value, at = _read_varint(message, at)
            yield number, value
            continue
        if wire_type == _BYTES:
            size, at = _read_varint(message, at)
        elif wire_type in (_FIXED64, _FIXED32):
            size = 8 if wire_type == _FIXED64 else 4
        else:
            raise CutOffError(f"wire type {wire_type}")
        if at + size > len(message):
            raise CutOffError(f"{at + size - len(message)} bytes missing")
        yield number, message[at : at + size]
        at += size


def _read_varint(message: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(message):
            raise CutOffError("ends within a number")
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFF_FFFF_FFFF_FFFF, at
    raise CutOffError("a number of more than ten bytes")


def read_response(message: bytes) -> tuple[int, str]:
    """How many spans an ExportTraceServiceResponse says were rejected, and what it says about it."""
    rejected, text = 0, ""
    for number, partial_success in read_fields(message):
        if number != 1:
            continue
        if not isinstance(partial_success, bytes):
            raise CutOffError("partial_success is not a message")
        for inner, value in read_fields(partial_success):
            if inner == 1 and isinstance(value, int):
                rejected = value if value < 2**63 else 0
            elif inner == 2 and isinstance(value, bytes):
                text = value.decode("utf-8", "replace")
    return rejected, text
