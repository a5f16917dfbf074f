"""An OTLP/HTTP server on loopback that records every span it receives.

A body that does not decode gets status 400 and is recorded as `undecodable`; everything else is acknowledged, or gets
status 503 and is not recorded while `is_down`. Each span is a line of `sink.jsonl`; a span that arrives twice is recorded
twice.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, Self

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span


def plain(value: AnyValue) -> Any:
    """Return an OTLP value as a Python value."""
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    held = getattr(value, kind)
    if kind == "array_value":
        return [plain(v) for v in held.values]
    if kind == "kvlist_value":
        return attributes(held.values)
    return held.hex() if kind == "bytes_value" else held


def attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """Return OTLP attributes as a dictionary."""
    return {p.key: plain(p.value) for p in pairs}


def _more(part: Span.Event | Span.Link) -> dict[str, Any]:
    return {"attributes": attributes(part.attributes)}


def decoded(raw: bytes) -> Iterator[dict[str, Any]]:
    """Yield the spans of a request."""
    for block in ExportTraceServiceRequest.FromString(raw).resource_spans:
        resource = attributes(block.resource.attributes)
        for scope in block.scope_spans:
            for s in scope.spans:
                yield {
                    "trace_id": s.trace_id.hex(), "span_id": s.span_id.hex(), "parent_span_id": s.parent_span_id.hex(),
                    "name": s.name, "kind": s.kind, "start_ns": s.start_time_unix_nano, "end_ns": s.end_time_unix_nano,
                    "status": s.status.code, "status_message": s.status.message, "attributes": attributes(s.attributes),
                    "resource": resource, "scope": [scope.scope.name, scope.scope.version],
                    "events": [{"t_ns": e.time_unix_nano, "name": e.name, **_more(e)} for e in s.events],
                    "links": [{"trace_id": k.trace_id.hex(), "span_id": k.span_id.hex(), **_more(k)} for k in s.links],
                    "dropped": s.dropped_attributes_count,
                }  # fmt: skip


class Sink:
    """The server, a context manager."""

    def __init__(self, kept: Path) -> None:
        self._out = kept.open("a", buffering=1)
        self._lock = threading.Lock()
        self.requests = 0
        self.is_down = False
        sink = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def do_POST(self) -> None:
                raw = self.rfile.read(int(self.headers.get("content-length") or 0))
                if self.headers.get("content-encoding") == "gzip":
                    raw = gzip.decompress(raw)
                status = 503 if sink.is_down else sink.keep(self.path, raw)
                body = ExportTraceServiceResponse().SerializeToString()
                self.send_response(status)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._out.close()

    def keep(self, path: str, raw: bytes) -> int:
        """Record the spans of a request; return the HTTP status."""
        now = time.time()
        with self._lock:
            self.requests += 1
            request = self.requests
            try:
                rows = [{"event": "span", "request": request, "t": now, "path": path, **span} for span in decoded(raw)]
                status = 200
            except DecodeError as exc:
                rows, status = (
                    [{"event": "undecodable", "request": request, "t": now, "path": path, "error": str(exc)}],
                    400,
                )
            rows.append(
                {
                    "event": "request",
                    "request": request,
                    "t": now,
                    "path": path,
                    "status": status,
                    "bytes": len(raw),
                    "spans": len(rows),
                }
            )
            self._out.writelines(json.dumps(row) + "\n" for row in rows)
        return status
