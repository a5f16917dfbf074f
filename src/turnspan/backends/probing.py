"""Probes a server step by step: name, connection, TLS, clock, credentials, protocol.

Rules:

- The first step that fails is reported, with what to do about it; the steps after it are unknown.
- The first request carries no credentials. Only the empty request that tests them does.
"""

from __future__ import annotations

import os
import ssl
import time
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Answer, Finding, Outcome, Probe, probe_by_sending
from turnspan.backends.http_transport import HttpTransport, NoAnswerError
from turnspan.backends.otlp import open_transport
from turnspan.backends.settings import is_loopback, proxy_from_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends import Backend
    from turnspan.backends.settings import Endpoint, Server
    from turnspan.backends.verdicts import HttpResponse

_MAX_SKEW_S: Final = 60.0
# OpenSSL's codes for an invalid certificate (X509_V_ERR_…).
_EXPIRED: Final = {10}
_NOT_YET_VALID: Final = {9}
_UNKNOWN_AUTHORITY: Final = {18, 19, 20, 21}
_OTHER_HOST: Final = {62, 63, 64}
_TRY_LATER: Final = "it is transient: unsent turns are kept and sent later"
# What to do about a verdict: the answer, a word in its reason, and the hint. The first that fits.
_HINTS: Final = (
    (Answer.CREDENTIALS, "proxy", "check the user and password in `proxy`"),
    (Answer.CREDENTIALS, "", "check `headers` (TURNSPAN_OTLP_HEADERS)"),
    (Answer.CONFIGURATION, "redirect", "set the URL of the redirect if you trust it; keys are never sent there"),
    (Answer.CONFIGURATION, "web page", "this port serves web pages: OTLP over HTTP is usually at 4318"),
    (
        Answer.CONFIGURATION, "HTTP/1.1",
        'this is probably a gRPC port: set `protocol = "grpc"`, or use the HTTP port, usually 4318',
    ),
    (Answer.CONFIGURATION, "", "correct the URL: it is a base URL, and the path of the OTLP endpoint is added to it"),
    (Answer.TOO_LARGE, "", "set `max_request_bytes` to less"),
    (Answer.LATER, "", _TRY_LATER),
)  # fmt: skip


class Look(msgspec.Struct, frozen=True):
    """The result of the first request, which carries no credentials."""

    findings: tuple[Finding, ...]
    response: HttpResponse | None = None  # None: a gRPC server, which does not speak HTTP/1.1
    failed: Probe | None = None  # it cannot be reached


def probe_server(backend: Backend, server: Server) -> Probe:
    """Probe an OTLP server."""
    found = look_at(server, lambda: _get(server))
    return found.failed or send_empty(backend, server, found.findings)


def look_at(server: Server, ask: Callable[[], HttpResponse]) -> Look:
    """Check whether a server can be reached, with a request that may raise NoAnswerError."""
    response = None
    try:
        response = ask()
    except NoAnswerError as failure:
        if not server.is_grpc or _is_unreachable(failure):
            says, hint = _unreachable(failure, server)
            bad = Finding(Outcome.BAD, says, hint)
            return Look((bad,), failed=Probe(failure.verdict.answer, says, hint, findings=(bad,)))
    how = "TLS verified" if server.endpoint.is_tls else "on this machine"
    reached = Finding(Outcome.GOOD, f"{server.endpoint.authority} can be reached, {how}")
    return Look((reached, *(_clock(response, time.time()) if response is not None else ())), response)


def send_empty(backend: Backend, server: Server, findings: tuple[Finding, ...], credentials_hint: str = "") -> Probe:
    """Test credentials and protocol with an empty request, and conclude the probe."""
    tried = probe_by_sending(backend)
    if tried.outcome is Outcome.GOOD:
        says = "it accepts OTLP and our credentials" if server.has_credentials else "it accepts OTLP"
        return Probe(tried.answer, says, findings=(*findings, Finding(Outcome.GOOD, says)))
    hint = next(hint for answer, word, hint in _HINTS if answer is tried.answer and word in tried.says)
    if tried.answer is Answer.CREDENTIALS and credentials_hint:
        hint = credentials_hint
    return Probe(tried.answer, tried.says, hint, findings=(*findings, Finding(tried.outcome, tried.says, hint)))


def _get(server: Server) -> HttpResponse:
    transport = open_transport(server.settings, server.endpoint, {}, "http/protobuf")
    assert isinstance(transport, HttpTransport)
    try:
        return transport.exchange("GET", server.endpoint.path or "/", {})
    finally:
        transport.close()


def _is_unreachable(failure: NoAnswerError) -> bool:
    """Whether the failure says more than that a gRPC server does not speak HTTP/1.1."""
    cause = failure.__cause__
    return (
        failure.verdict.answer is Answer.CREDENTIALS
        or isinstance(cause, ssl.SSLCertVerificationError | ConnectionRefusedError | TimeoutError)
        or (isinstance(cause, OSError) and not isinstance(cause, ConnectionError | ssl.SSLError))
    )


def _unreachable(failure: NoAnswerError, server: Server) -> tuple[str, str]:
    """Return why the server cannot be reached, and what to do about it."""
    says, cause, endpoint = str(failure), failure.__cause__, server.endpoint
    if isinstance(cause, ssl.SSLCertVerificationError):
        return says, _certificate_hint(cause.verify_code, endpoint)
    if isinstance(cause, ssl.SSLError):
        return says, f"check that {endpoint.authority} speaks https; plain http works only on this machine"
    if "proxy" in says:
        return says, "check `proxy` and its user and password; without `proxy` and `proxy_from_env` none is used"
    if not isinstance(cause, OSError):
        return says, 'check the endpoint; a gRPC port needs `protocol = "grpc"`'
    hint = "start the server, or correct the port" if is_loopback(endpoint.host) else "correct the endpoint, or retry"
    if isinstance(cause, TimeoutError):
        hint = "check the host, and a firewall or VPN in between; `timeout_s` gives it more time"
    elif "resolved" in says:
        hint = "correct the host name, or connect to the network that knows it"
    has_setting = server.settings.text("proxy", is_secret=True) or server.settings.flag("proxy_from_env")
    if not has_setting and proxy_from_environment(endpoint, os.environ):
        hint += "; your environment names a proxy, which `proxy_from_env = true` would use"
    return says, hint


def _certificate_hint(code: int, endpoint: Endpoint) -> str:
    if code in _EXPIRED:
        return "the certificate has expired: renew it on the server, and check the date of this machine"
    if code in _NOT_YET_VALID:
        return "the certificate is not valid yet: check the date of this machine"
    if code in _UNKNOWN_AUTHORITY:
        return "it is self-signed or its authority is unknown here: set `certificate` to the file of that authority"
    if code in _OTHER_HOST:
        return f"the certificate is for another host than {endpoint.host}: use the name it was issued for"
    return "set `certificate` to the file of the authority that signed it"


def _clock(response: HttpResponse, now_s: float) -> tuple[Finding, ...]:
    """Compare the clocks, if the server sent its time."""
    try:
        date = parsedate_tz(response.headers.get("date", ""))
        ahead_s = None if date is None else now_s - mktime_tz(date)
    except (ValueError, OverflowError):
        ahead_s = None
    if ahead_s is None:
        return ()
    if abs(ahead_s) <= _MAX_SKEW_S:
        return (Finding(Outcome.GOOD, "its clock and ours agree"),)
    way = "ahead of" if ahead_s > 0 else "behind"
    says = f"the clock of this machine is {abs(ahead_s):.0f} s {way} the server's"
    return (Finding(Outcome.UNKNOWN, says, "set the clock: traces carry this machine's times"),)
