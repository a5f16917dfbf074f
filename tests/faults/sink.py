"""A collector on loopback that stores spans and fails in configurable ways, including the wrong responses of proxies."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from dataclasses import dataclass

from backends.servers import OK, HttpServer, partial_success, reply, reset
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def spans_in(body):
    """Return pairs of (trace id, span id, start) and the span with its resource and scope, as bytes."""
    found = []
    for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
        for scope in resource.scope_spans:
            around = resource.resource.SerializeToString(deterministic=True) + scope.scope.SerializeToString()
            for span in scope.spans:
                key = (span.trace_id.hex(), span.span_id.hex(), span.start_time_unix_nano)
                found.append((key, around + span.SerializeToString(deterministic=True)))
    return found


@dataclass(frozen=True)
class Stored:
    """A stored span, and whether its sender got an acknowledgement."""

    key: tuple[str, str, int]
    content: bytes
    is_acknowledged: bool


class Sink(HttpServer):
    """Stores spans. Each request gets the next of `faults`, then always `always`."""

    def __init__(self):
        self.stored: list[Stored] = []
        self.faults: list[str] = []
        self.always = "ok"
        super().__init__(self._meet)
        self.path = f"/{os.urandom(4).hex()}"  # a late worker of another world may use the same port
        self.url += self.path

    def _meet(self, connection, request):
        if not request.path.startswith(self.path):
            return connection.sendall(reply(503))
        with contextlib.suppress(IndexError):
            return FAULTS[self.faults.pop(0)](self, connection, request)
        return FAULTS[self.always](self, connection, request)

    def keep(self, request, *, is_acknowledged=True):
        """Store the spans of a request."""
        self.stored += [Stored(key, content, is_acknowledged) for key, content in spans_in(request.body)]


def stores(answer):
    """Store the spans and acknowledge them with this response."""

    def act(sink, connection, request):
        sink.keep(request)
        connection.sendall(answer)

    return act


def refuses(answer):
    """Store nothing, and send this response."""
    return lambda _sink, connection, _request: connection.sendall(answer)


def store_then_reset(sink, connection, request):
    """Store the spans, and reset the connection before acknowledging them."""
    sink.keep(request, is_acknowledged=False)
    reset(connection)


def store_then_half_an_answer(sink, connection, request):
    """Store the spans, and close the connection in the middle of the status line."""
    sink.keep(request, is_acknowledged=False)
    connection.sendall(OK[:9])
    connection.close()


def hang(sink, _connection, _request):
    """Never respond."""
    sink.closing.wait(5)


def drip(sink, connection, _request):
    """Respond one byte at a time, without end."""
    with contextlib.suppress(OSError):
        for byte in b"HTTP/1.1 200 OK\r\nX-Slow: " + b"y" * 1000:
            connection.sendall(bytes([byte]))
            if sink.closing.wait(0.05):
                return


def endless(_sink, connection, _request):
    """Respond with status 500 and megabytes of content."""
    with contextlib.suppress(OSError):
        connection.sendall(b"HTTP/1.1 500 Oops\r\nContent-Length: 1000000000\r\n\r\n")
        for _ in range(200):
            connection.sendall(b"x" * 65536)
    connection.close()


HTML = b"<!DOCTYPE html><html><body>Please sign in to the hotel's network.</body></html>"
FAULTS = {
    # acknowledgements, in all forms
    "ok": stores(OK),
    "ok 202": stores(reply(202)),
    "ok 204": stores(b"HTTP/1.1 204 No Content\r\n\r\n"),
    "ok json": stores(reply(200, b"{}", "application/json")),
    "ok with a warning": stores(reply(200, partial_success(0, "careful"), "application/x-protobuf")),
    # failures, which must not be taken for success
    "html with 200": refuses(reply(200, HTML, "text/html")),
    "html that says it is protobuf": refuses(reply(200, HTML, "application/x-protobuf")),
    "wrong protobuf": refuses(reply(200, b"\xff\xff\xff\xff", "application/x-protobuf")),
    "not http": refuses(b"SSH-2.0-OpenSSH_9.2\r\n"),
    "401": refuses(reply(401)),
    "403": refuses(reply(403)),
    "404": refuses(reply(404)),
    "407": refuses(reply(407)),
    "408": refuses(reply(408)),
    "429": refuses(reply(429)),
    "429 with a time": refuses(reply(429, Retry_After="7")),
    "429 with a date": refuses(reply(429, Retry_After="Wed, 21 Oct 2037 07:28:00 GMT")),
    "429 with nonsense": refuses(reply(429, Retry_After="soon")),
    "429 for ever": refuses(reply(429, Retry_After="1000000000")),
    "400": refuses(reply(400)),
    "413": refuses(reply(413)),
    "422": refuses(reply(422)),
    "500": refuses(reply(500)),
    "502": refuses(reply(502, HTML, "text/html")),
    "503": refuses(reply(503)),
    "504": refuses(reply(504)),
    "reset before it is kept": lambda _sink, connection, _request: reset(connection),
    "closed without a word": lambda _sink, connection, _request: connection.close(),
    "hang": hang,
    "drip": drip,
    "endless answer": endless,
    # stored without an acknowledgement: a retry must send the same bytes
    "reset after it is kept": store_then_reset,
    "half an answer": store_then_half_an_answer,
}
UNSAID = {"reset after it is kept", "half an answer"}


class Proxy:
    """A TCP proxy that cuts or delays connections as `plans` says, one plan for each connection.

    A plan is (bytes of the request, bytes of the response, seconds of delay); after that many bytes the connection is cut.
    """

    def __init__(self, port):
        self.plans: list[tuple[int | None, int | None, float]] = []
        self.connections = 0
        self._to = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._closing = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._closing.set()
        for one in (self._listener, *self._open):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _accept(self):
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            plan = self.plans.pop(0) if self.plans else (None, None, 0.0)
            server = socket.create_connection(("127.0.0.1", self._to))
            self._open += [client, server]
            for source, target, limit in ((client, server, plan[0]), (server, client, plan[1])):
                threading.Thread(target=self._pump, args=(source, target, limit, plan[2]), daemon=True).start()

    def _pump(self, source, target, limit, delay):
        passed = 0
        with contextlib.suppress(OSError):
            while data := source.recv(4096):
                time.sleep(delay)  # a slow proxy; the test itself does not sleep
                rest = data if limit is None else data[: max(0, limit - passed)]
                target.sendall(rest)
                passed += len(rest)
                if limit is not None and passed >= limit:
                    for one in (source, target):
                        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                        one.shutdown(socket.SHUT_RDWR)  # the other thread still reads from it
                        one.close()
                    return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)
