"""HTTP and gRPC servers on loopback whose responses a test chooses, and certificates for them."""

from __future__ import annotations

import contextlib
import gzip
import shutil
import socket
import ssl
import struct
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import grpc
import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)

OK = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"


def reply(status: int, body: bytes = b"", content_type: str = "", **headers: str) -> bytes:
    """Return an HTTP response as bytes; an underscore in a header name becomes a hyphen."""
    lines = [f"HTTP/1.1 {status} Whatever", f"Content-Length: {len(body)}"]
    if content_type:
        lines.append(f"Content-Type: {content_type}")
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def partial_success(rejected: int, message: str = "") -> bytes:
    """Return the body of an OTLP response."""
    answer = ExportTraceServiceResponse()
    answer.partial_success.rejected_spans = rejected
    answer.partial_success.error_message = message
    return answer.SerializeToString()


@dataclass
class Request:
    """A request that a server received."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    connection: int = 0

    @property
    def spans(self):
        return spans_in(ExportTraceServiceRequest.FromString(self.body))


def spans_in(request):
    """Return the spans of a decoded request as dicts."""
    return [
        {
            "trace_id": span.trace_id.hex(),
            "span_id": span.span_id.hex(),
            "parent_span_id": span.parent_span_id.hex(),
            "name": span.name,
            "kind": span.kind,
            "start_ns": span.start_time_unix_nano,
            "end_ns": span.end_time_unix_nano,
            "status": span.status.code,
            "status_message": span.status.message,
            "attributes": {a.key: _plain(a.value) for a in span.attributes},
            "links": [
                {
                    "trace_id": link.trace_id.hex(),
                    "span_id": link.span_id.hex(),
                    "attributes": {a.key: _plain(a.value) for a in link.attributes},
                }
                for link in span.links
            ],
            "resource": {a.key: _plain(a.value) for a in rs.resource.attributes},
        }
        for rs in request.resource_spans
        for ss in rs.scope_spans
        for span in ss.spans
    ]


def _plain(value):
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    return getattr(value, kind)


class HttpServer:
    """Answers each request with the next of `answers`, and repeats the last.

    An answer is bytes, or a function of the connection and the request.
    """

    def __init__(self, *answers, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.answers = list(answers) or [OK]
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._tls = tls
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._listener = socket.create_server((host, 0), family=family)
        self.port = self._listener.getsockname()[1]
        self.url = f"{'https' if tls else 'http'}://{'localhost' if tls else host}:{self.port}"
        self._connections: list[socket.socket] = []
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.closing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def wait_for_close(self, number: int) -> None:
        """Wait until the server has closed its n-th connection."""
        deadline = time.monotonic() + 5
        while self._connections[number].fileno() != -1:
            assert time.monotonic() < deadline

    def _accept(self):
        while not self.closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self._connections.append(connection)
            threading.Thread(target=self._serve, args=(connection, len(self._connections)), daemon=True).start()

    def _serve(self, connection, number):
        try:
            if self._tls is not None:
                connection = self._tls.wrap_socket(connection, server_side=True)
                self._connections.append(connection)
            stream = _Stream(connection)
            while (request := _read_request(stream)) is not None:
                request.connection = number
                with self._lock:
                    self.requests.append(request)
                    answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if callable(answer):
                    answer(connection, request)
                else:
                    connection.sendall(answer)
        except (OSError, ValueError):
            pass
        finally:
            connection.close()


class _Stream:
    """Lines and bytes of a connection. `makefile` would keep the socket open after `close`."""

    def __init__(self, connection) -> None:
        self._connection = connection
        self._buffer = b""

    def readline(self) -> bytes:
        while b"\n" not in self._buffer:
            if not (data := self._connection.recv(65536)):
                return b""
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line + b"\n"

    def read(self, size: int) -> bytes:
        while len(self._buffer) < size:
            if not (data := self._connection.recv(65536)):
                raise ValueError("the client closed the connection")
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data


def _read_request(stream) -> Request | None:
    line = stream.readline()
    if not line:
        return None
    method, path, _ = line.decode().split(" ", 2)
    headers = {}
    while (line := stream.readline().strip()) != b"":
        name, _, value = line.decode().partition(":")
        headers[name.lower()] = value.strip()
    body = stream.read(int(headers.get("content-length", 0)))
    if headers.get("content-encoding") == "gzip":
        body = gzip.decompress(body)
    return Request(method, path, headers, body)


def reset(connection, _request=None):
    """Close the connection with a reset, like a crashed server."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@dataclass
class GrpcServer(TraceServiceServicer):
    """Answers each export with the next of `answers`: (rejected, message), or a function of the call's context."""

    answers: list = field(default_factory=lambda: [(0, "")])
    credentials: grpc.ServerCredentials | None = None
    options: tuple = ()
    requests: list = field(default_factory=list)
    metadata: list = field(default_factory=list)

    def __enter__(self):
        self._server = grpc.server(ThreadPoolExecutor(2), options=self.options)
        add_TraceServiceServicer_to_server(self, self._server)
        if self.credentials is None:
            self.port = self._server.add_insecure_port("127.0.0.1:0")
            self.url = f"http://127.0.0.1:{self.port}"
        else:
            self.port = self._server.add_secure_port("localhost:0", self.credentials)
            self.url = f"https://localhost:{self.port}"
        self._server.start()
        return self

    def __exit__(self, *_):
        self._server.stop(None).wait(5)

    def Export(self, request, context):  # noqa: N802 - the name in the service definition
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return answer(context)
        response = ExportTraceServiceResponse()
        if any(answer):
            response.partial_success.rejected_spans, response.partial_success.error_message = answer
        return response


class Certificates:
    """A private CA and the certificates it signed, created with the openssl command."""

    def __init__(self, directory) -> None:
        if shutil.which("openssl") is None:
            pytest.skip("needs the openssl command")
        self._directory = directory
        self.ca = self._path("ca.pem")
        self._run(
            "req", "-x509", *_NEW_KEY, self._path("ca.key"), "-out", self.ca, "-days", "30", "-subj", "/CN=test ca"
        )

    def _path(self, name: str) -> str:
        return str(self._directory / name)

    def _run(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=30)

    def sign(self, name: str, *, host: str = "localhost", days: int = 30) -> tuple[str, str]:
        """Return the paths of a certificate for `host` and of its key."""
        key, request, certificate = (self._path(f"{name}{ext}") for ext in (".key", ".csr", ".pem"))
        self._run("req", "-new", *_NEW_KEY, key, "-out", request, "-subj", f"/CN={host}")
        extensions = self._directory / f"{name}.ext"
        extensions.write_text(f"subjectAltName=DNS:{host}\n")
        self._run(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._path("ca.key"), "-CAcreateserial"),
            *("-out", certificate, "-extfile", str(extensions), "-days", str(days)),
        )
        return certificate, key

    def server_context(self, certificate: str, key: str) -> ssl.SSLContext:
        """Return the context of a server with this certificate."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        return context


_NEW_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout")
