"""One request over HTTP/1.1 on a plain socket, within a deadline that covers all of it.

The standard library's client limits each read, not the exchange, so that a server dripping a byte a second holds it for
hours; and importing it costs a fifth of what a whole event may. What an exporter needs of HTTP is a page.

Rules:

- The deadline covers name resolution, connecting, the handshake, sending and reading.
- Nothing in the environment or the home directory changes where a request goes or what it carries.
- A connection is kept for the next request, and a fresh one opened when the server has closed it meanwhile. A request
  that may have been received is never sent again from here: that is for the caller to decide.
- An answer is read up to 4 MiB.
"""

from __future__ import annotations

import base64
import re
import time
import zlib
from typing import TYPE_CHECKING

from turnspan import __version__
from turnspan.backends import Answer, Verdict
from turnspan.backends.connect import Deadline, Tls, is_readable, is_tls_refusal, open_socket, tls_context
from turnspan.backends.verdicts import Response, read_verdict

if TYPE_CHECKING:
    import socket
    import ssl

    from turnspan.backends.settings import Endpoint

MAX_HEAD_BYTES = 64 * 1024
MAX_BODY_BYTES = 4 * 1024 * 1024
_STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])(?: |\r?\n)")
# Level 1 is more than twice as fast as level 6 on traces, for a quarter more bytes.
_GZIP_LEVEL, _GZIP_FORMAT = 1, 31


class NoAnswerError(Exception):
    """No response came; the verdict says what that means."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.reason)
        self.verdict = verdict


class HttpTransport:
    """A kept connection to one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        headers: dict[str, str],
        timeout_s: float,
        is_gzip: bool = True,
        proxy: Endpoint | None = None,
        tls: Tls | None = None,
        secrets: tuple[str, ...] = (),
        max_body_bytes: int = MAX_BODY_BYTES,
    ) -> None:
        self._max_body_bytes = max_body_bytes
        self._endpoint = endpoint
        self._headers = headers
        self._timeout_s = timeout_s
        self._is_gzip = is_gzip
        self._proxy = proxy
        self._tls = tls or Tls()
        self._tls_context: ssl.SSLContext | None = None
        self._secrets = secrets
        self._socket: socket.socket | None = None
        self._doing = ""  # what a deadline would cut short

    def send(self, body: bytes) -> Verdict:
        """Post one OTLP request and read the verdict off the answer."""
        headers = {"Content-Type": "application/x-protobuf"}
        if self._is_gzip:
            packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
            body = packer.compress(body) + packer.flush()
            headers["Content-Encoding"] = "gzip"
        try:
            response = self.exchange("POST", self._endpoint.path, headers, body)
        except NoAnswerError as failure:
            return failure.verdict
        return read_verdict(response, now_s=time.time(), secrets=self._secrets)

    def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> Response:
        """One request and its response. Raises NoAnswerError."""
        deadline = Deadline(self._timeout_s)
        is_sent = False
        try:
            sock = self._kept() or self._open(deadline)
            self._doing = "sending"
            is_sent = _send(sock, self._request(method, path, headers, body), deadline)
            self._doing = "waiting for its answer"
            response, is_reusable = _read_response(sock, deadline, self._max_body_bytes)
        except OSError as failure:
            self.close()
            raise NoAnswerError(self._explain(failure, is_sent=is_sent)) from failure
        except _NotHttpError as failure:
            self.close()
            reason = f"{self._where()} does not speak HTTP/1.1; if it is a gRPC port, set the protocol to grpc"
            raise NoAnswerError(Verdict(Answer.CONFIGURATION, reason)) from failure
        except NoAnswerError:
            self.close()
            raise
        if not is_reusable:
            self.close()
        return response

    def close(self) -> None:
        """Let go of the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _request(self, method: str, path: str, headers: dict[str, str], body: bytes) -> bytes:
        target = path or "/"
        lines = {
            "Host": self._endpoint.authority,
            "User-Agent": f"turnspan/{__version__}",
            "Accept-Encoding": "identity",
            **headers,
            **self._headers,
        }
        if self._proxy is not None and not self._endpoint.is_tls:
            target = f"http://{self._endpoint.authority}{target}"
            lines |= _proxy_authorization(self._proxy)
        if method == "POST":
            lines["Content-Length"] = str(len(body))
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        return f"{method} {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body

    def _kept(self) -> socket.socket | None:
        if self._socket is not None and is_readable(self._socket):
            self.close()  # nothing was asked, so what can be read is the end
        return self._socket

    def _open(self, deadline: Deadline) -> socket.socket:
        first = self._proxy or self._endpoint
        self._doing = "connecting"
        self._socket = sock = open_socket(first.host, first.port, deadline)
        if self._endpoint.is_tls:
            if self._proxy is not None:
                self._doing = "waiting for the proxy"
                self._tunnel(sock, self._proxy, deadline)
            self._doing = "in the TLS handshake"
            if self._tls_context is None:
                self._tls_context = tls_context(self._tls)
            sock.settimeout(deadline.left_s())
            self._socket = sock = self._tls_context.wrap_socket(sock, server_hostname=self._endpoint.host)
        return sock

    def _tunnel(self, sock: socket.socket, proxy: Endpoint, deadline: Deadline) -> None:
        host = f"[{self._endpoint.host}]" if ":" in self._endpoint.host else self._endpoint.host
        target = f"{host}:{self._endpoint.port}"
        lines = {"Host": target, **_proxy_authorization(proxy)}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        _send(sock, f"CONNECT {target} HTTP/1.1\r\n{head}\r\n".encode("latin-1"), deadline)
        status, _, _ = _Reader(sock, deadline).head()
        if 200 <= status < 300:
            return
        if status >= 500:
            raise NoAnswerError(Verdict(Answer.LATER, f"the proxy {proxy.authority} answered HTTP {status}"))
        answer = Answer.CREDENTIALS if status in (401, 403, 407) else Answer.CONFIGURATION
        raise NoAnswerError(Verdict(answer, f"the proxy {proxy.authority} refused with HTTP {status}"))

    def _where(self) -> str:
        via = "" if self._proxy is None else f" through the proxy {self._proxy.authority}"
        return f"{self._endpoint.authority}{via}"

    def _explain(self, failure: OSError, *, is_sent: bool) -> Verdict:
        if self._endpoint.is_tls and is_tls_refusal(failure):
            return Verdict(Answer.CONFIGURATION, f"TLS with {self._where()} failed: {_tls_reason(failure)}")
        if failure.filename is not None:
            return Verdict(Answer.CONFIGURATION, f"the certificate file {failure.filename} cannot be read")
        if isinstance(failure, TimeoutError):
            reason = f"no answer from {self._where()} within {self._timeout_s:g} s, still {self._doing}"
        elif is_sent:
            reason = f"no answer from {self._where()}: {failure.strerror or failure}"
        else:
            reason = f"{self._where()} cannot be reached: {failure.strerror or failure}"
        return Verdict(Answer.LATER, reason, is_unknown=is_sent)


def _proxy_authorization(proxy: Endpoint) -> dict[str, str]:
    return {"Proxy-Authorization": f"Basic {base64.b64encode(proxy.user.encode()).decode()}"} if proxy.user else {}


def _tls_reason(failure: OSError) -> str:
    """What OpenSSL says is wrong: of a certificate in words, of the rest by its name."""
    return str(getattr(failure, "verify_message", "") or getattr(failure, "reason", "") or "unknown reason")


def _send(sock: socket.socket, request: bytes, deadline: Deadline) -> bool:
    """Send it all. False when the other side stopped listening: it may have answered before (413, 401)."""
    rest = memoryview(request)
    try:
        while rest:
            sock.settimeout(deadline.left_s())
            rest = rest[sock.send(rest[: 256 * 1024]) :]
    except ConnectionError:
        if not is_readable(sock):
            raise
        return False
    return True


class _NotHttpError(Exception):
    """The bytes that came are not an HTTP/1 response."""


class _Reader:
    """Bytes of a socket, as many as asked for."""

    def __init__(self, sock: socket.socket, deadline: Deadline) -> None:
        self._socket = sock
        self._deadline = deadline
        self.buffer = bytearray()

    def more(self) -> bool:
        """Read what has come; False at the end."""
        self._socket.settimeout(self._deadline.left_s())
        data = self._socket.recv(64 * 1024)
        self.buffer += data
        return bool(data)

    def line(self) -> bytes:
        """The next line, without its end. Raises ConnectionError when there is none."""
        while (end := self.buffer.find(b"\n")) < 0:
            if len(self.buffer) > MAX_HEAD_BYTES:
                raise _NotHttpError
            if not self.more():
                raise ConnectionError("it closed the connection in the middle of its answer")
        line = bytes(self.buffer[:end]).rstrip(b"\r")
        del self.buffer[: end + 1]
        return line

    def take(self, size: int) -> bytes:
        """The next `size` bytes. Raises ConnectionError when there are fewer."""
        while len(self.buffer) < size:
            if not self.more():
                raise ConnectionError("it closed the connection in the middle of its answer")
        data = bytes(self.buffer[:size])
        del self.buffer[:size]
        return data

    def head(self) -> tuple[int, dict[str, str], bool]:
        """Status, headers, and whether the connection stays open."""
        while len(self.buffer) < 5 or (b"\n" not in self.buffer and len(self.buffer) < 1024):
            if not b"HTTP/".startswith(self.buffer[:5]):
                raise _NotHttpError
            if not self.more():
                raise ConnectionError("it closed the connection")
        match = _STATUS_LINE.match(self.buffer)
        if match is None:
            raise _NotHttpError
        status = int(match[1])  # before the buffer changes under it
        is_kept = self.line().startswith(b"HTTP/1.1")
        headers: dict[str, str] = {}
        size = 0
        while line := self.line():
            size += len(line)
            if size > MAX_HEAD_BYTES:
                raise _NotHttpError
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.strip().lower()] = value.strip()
        return status, headers, is_kept and "close" not in headers.get("connection", "").lower()


def _read_response(sock: socket.socket, deadline: Deadline, limit: int) -> tuple[Response, bool]:
    """The response, and whether the connection can serve another request."""
    reader = _Reader(sock, deadline)
    status, headers, is_kept = reader.head()
    while 100 <= status < 200:
        status, headers, is_kept = reader.head()
    if status in (204, 304):
        return Response(status, headers, b""), is_kept
    body = bytearray()
    try:
        has_length = _read_body(reader, headers, body, limit)
    except (OSError, _NotHttpError, ValueError):
        # The status stands all the same: a 401 is a 401 even when its page hangs.
        return Response(status, headers, bytes(body or reader.buffer[:limit]), is_complete=False), False
    return Response(status, headers, bytes(body)), is_kept and has_length and not reader.buffer


def _read_body(reader: _Reader, headers: dict[str, str], body: bytearray, limit: int) -> bool:
    """Read the body into `body`; whether its end was marked. Raises ValueError when it is too long or nonsense."""
    if "chunked" in headers.get("transfer-encoding", "").lower():
        while size := int(reader.line().split(b";")[0], 16):
            if size < 0 or len(body) + size > limit:
                raise ValueError("too long")
            body += reader.take(size)
            reader.line()
        while reader.line():
            pass
        return True
    if "content-length" in headers:
        size = int(headers["content-length"])
        if not 0 <= size <= limit:
            body += reader.take(min(MAX_HEAD_BYTES, max(size, 0)))
            raise ValueError("too long")
        body += reader.take(size)
        return True
    while reader.more():
        if len(reader.buffer) > limit:
            raise ValueError("too long")
    body += reader.take(len(reader.buffer))
    return False
