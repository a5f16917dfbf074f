"""HTTP requests to one endpoint, over the standard library's http.client, within a deadline.

http.client limits each read, not the exchange: a server that sends a byte a second would hold it for hours. So a
watchdog (see `connect`) shuts the socket down when the deadline of the exchange is over.

Rules:

- The deadline covers the name lookup, connecting, the proxy, the TLS handshake, sending and reading.
- Nothing in the environment or the home directory changes where a request goes or what it carries.
- A connection is kept for the next request, and replaced if the server has closed it in the meantime. A request that
  may have been received is never sent again from here: the caller decides.
- A response is read up to 4 MiB. Redirects are never followed.
"""

from __future__ import annotations

import base64
import http.client
import io
import time
import zlib
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

from turnspan import __version__
from turnspan.backends import Answer, Verdict
from turnspan.backends.connect import Tls, Watchdog, is_readable, is_tls_refusal, look_up, open_socket, tls_context
from turnspan.backends.verdicts import HttpResponse, read_verdict

if TYPE_CHECKING:
    import socket
    import ssl

    from turnspan.backends.settings import Endpoint

MAX_BODY_BYTES = 4 * 1024 * 1024
# Level 1 is more than twice as fast as level 6 on traces, for a quarter more bytes.
_GZIP_LEVEL, _GZIP_FORMAT = 1, 31
_FAST_FROM_BYTES = 64 * 1024  # an event sends less, and does not import another library for it
_WAITING = "waiting for its answer"


def packed(body: bytes) -> bytes:
    """Return a body compressed with gzip: if it is large and `turnspan[fast]` is installed, by ISA-L."""
    library = _fast_zlib() if len(body) > _FAST_FROM_BYTES else zlib
    packer = library.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_FORMAT)
    packed: bytes = packer.compress(body) + packer.flush()
    return packed


@cache
def _fast_zlib() -> Any:  # noqa: ANN401  a module with the functions of zlib
    """Return ISA-L's zlib, which takes a quarter of the time for about the same size; else the standard library's."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


class NoAnswerError(Exception):
    """There was no response; the verdict says what that means."""

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
        self._connection = _Connection(endpoint.host, endpoint.port)
        self._step = ""  # of the exchange, for the reason of a timeout

    def send(self, body: bytes) -> Verdict:
        """Post one OTLP request and return the verdict on the response."""
        headers = {"Content-Type": "application/x-protobuf"}
        if self._is_gzip:
            body = packed(body)
            headers["Content-Encoding"] = "gzip"
        try:
            response = self.exchange("POST", self._endpoint.path, headers, body)
        except NoAnswerError as failure:
            return failure.verdict
        return read_verdict(response, now_s=time.time(), secrets=self._secrets)

    def exchange(self, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> HttpResponse:
        """Send one request and return its response. Raises NoAnswerError."""
        watchdog = Watchdog(self._timeout_s)
        try:
            with watchdog:
                if not self._is_open():
                    self._open(watchdog)
                assert self._connection.sock is not None
                watchdog.watch(self._connection.sock)
                self._send(method, path, headers, body)
                return self._read(watchdog)
        except (OSError, http.client.HTTPException) as exc:
            self.close()
            failure = TimeoutError("the deadline is over") if watchdog.is_over else exc
            raise NoAnswerError(self._explain(failure)) from failure
        except BaseException:  # the proxy refused; or an interrupt: what is left of the response is not the next one's
            self.close()
            raise

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _is_open(self) -> bool:
        if self._connection.sock is not None and is_readable(self._connection.sock):
            self.close()  # no request is under way: there is nothing to read but the end
        return self._connection.sock is not None

    def _open(self, watchdog: Watchdog) -> None:
        first = self._proxy or self._endpoint
        self._step = "looking up its name"
        addresses = look_up(first.host, first.port, watchdog)
        self._step = "connecting"
        self._connection.sock = sock = open_socket(addresses, watchdog)
        sock.settimeout(self._timeout_s)  # a second limit, for systems where a shutdown does not wake a reader
        watchdog.watch(sock)
        if not self._endpoint.is_tls:
            return
        if self._proxy is not None:
            self._step = "waiting for the proxy"
            self._tunnel(sock, self._proxy)
        self._step = "in the TLS handshake"
        if self._tls_context is None:
            self._tls_context = tls_context(self._tls)
        self._connection.sock = encrypted = self._tls_context.wrap_socket(
            sock, server_hostname=self._endpoint.host, do_handshake_on_connect=False
        )
        watchdog.watch(encrypted)
        encrypted.do_handshake()

    def _tunnel(self, sock: socket.socket, proxy: Endpoint) -> None:
        """Ask the proxy for a tunnel. Not with `set_tunnel`, which gives the status only as text."""
        host = f"[{self._endpoint.host}]" if ":" in self._endpoint.host else self._endpoint.host
        target = f"{host}:{self._endpoint.port}"
        connection = _Connection(proxy.host, proxy.port)
        connection.sock = sock
        connection.request("CONNECT", target, headers={"Host": target, **_proxy_authorization(proxy)})
        with _Response(sock, method="CONNECT") as response:
            response.begin()
        status = response.status
        if 200 <= status < 300:
            return
        if status >= 500:
            raise NoAnswerError(Verdict(Answer.LATER, f"the proxy {proxy.authority} answered HTTP {status}"))
        answer = Answer.CREDENTIALS if status in (401, 403, 407) else Answer.CONFIGURATION
        raise NoAnswerError(Verdict(answer, f"the proxy {proxy.authority} refused with HTTP {status}"))

    def _send(self, method: str, path: str, headers: dict[str, str], body: bytes) -> None:
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
        self._step = "sending"
        try:
            self._connection.request(method, target, body or None, lines)
        except ConnectionError:
            # The server may have answered before it stopped reading: 413, 401.
            if self._connection.sock is None or not is_readable(self._connection.sock):
                raise
        else:
            self._step = _WAITING

    def _read(self, watchdog: Watchdog) -> HttpResponse:
        with self._connection.getresponse() as response:
            body = bytearray()
            try:
                while len(body) <= self._max_body_bytes and (data := response.read1(64 * 1024)):
                    body += data
                is_complete = len(body) <= self._max_body_bytes and not response.length
            except (OSError, http.client.HTTPException):
                is_complete = False  # the status is valid all the same: a 401 is a 401 even if its page hangs
            is_complete = is_complete and not watchdog.is_over  # or the end is the watchdog's
            headers = {name.lower(): value.strip() for name, value in response.getheaders()}
        if not is_complete:
            self.close()
        return HttpResponse(response.status, headers, bytes(body), is_complete)

    def _where(self) -> str:
        via = "" if self._proxy is None else f" through the proxy {self._proxy.authority}"
        return f"{self._endpoint.authority}{via}"

    def _explain(self, failure: OSError | http.client.HTTPException) -> Verdict:
        if not isinstance(failure, OSError):
            reason = f"{self._where()} does not speak HTTP/1.1; if it is a gRPC port, set the protocol to grpc"
            return Verdict(Answer.CONFIGURATION, reason)
        if self._endpoint.is_tls and is_tls_refusal(failure):
            return Verdict(Answer.CONFIGURATION, f"TLS with {self._where()} failed: {_tls_reason(failure)}")
        if failure.filename is not None:
            return Verdict(Answer.CONFIGURATION, f"the certificate file {failure.filename} cannot be read")
        is_sent = self._step == _WAITING
        if isinstance(failure, TimeoutError):
            reason = f"no answer from {self._where()} within {self._timeout_s:g} s, still {self._step}"
        elif is_sent:
            reason = f"no answer from {self._where()}: {failure.strerror or failure}"
        else:
            reason = f"{self._where()} cannot be reached: {failure.strerror or failure}"
        return Verdict(Answer.LATER, reason, is_unknown=is_sent)


def _proxy_authorization(proxy: Endpoint) -> dict[str, str]:
    return {"Proxy-Authorization": f"Basic {base64.b64encode(proxy.user.encode()).decode()}"} if proxy.user else {}


def _tls_reason(failure: OSError) -> str:
    """Return OpenSSL's reason: a sentence about a certificate, or the name of the error."""
    return str(getattr(failure, "verify_message", "") or getattr(failure, "reason", "") or "unknown reason")


class _Stream(io.BufferedReader):
    """A response's bytes. http.client takes a head that breaks off for a complete one; here that is an error."""

    def readline(self, size: int | None = -1, /) -> bytes:
        line = super().readline(size)
        if not line.endswith(b"\n") and len(line) != size:
            raise ConnectionError("it closed the connection in the middle of its answer")
        return line


class _Response(http.client.HTTPResponse):
    """A response that is refused at its first byte if it is not HTTP: a gRPC server sends no line to wait for."""

    def __init__(self, sock: socket.socket, debuglevel: int = 0, method: str | None = None) -> None:
        super().__init__(sock, debuglevel, method)
        self.fp = _Stream(self.fp.detach())

    def begin(self) -> None:
        start = self.fp.peek(5)[:5]
        if not start:
            raise ConnectionError("it closed the connection")
        if not b"HTTP/".startswith(start):
            raise http.client.BadStatusLine(repr(start))
        super().begin()
        while self.status < 200:  # http.client itself skips 100 alone
            self.headers = self.msg = None  # type: ignore[assignment]  # as before the first line
            super().begin()


class _Connection(http.client.HTTPConnection):
    """A connection whose socket is opened here, never by http.client: that would know no TLS and no deadline."""

    auto_open = 0
    response_class = _Response
