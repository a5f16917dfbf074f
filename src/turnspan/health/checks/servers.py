"""Whether a server can be reached, knows us, and speaks what we speak.

Rules:

- One step after the other: name, connection, TLS, credentials, protocol. The first that fails is the one that is told,
  with what to do; what comes after it cannot be known.
- A server that is only looked at gets no credentials. They go out with the empty request that tries them.
"""

from __future__ import annotations

import os
import ssl
from email.utils import mktime_tz, parsedate_tz
from typing import TYPE_CHECKING, Final

from turnspan.backends import Answer
from turnspan.backends.http_transport import HttpTransport, NoAnswerError
from turnspan.backends.langfuse_api import REGIONS, LangfuseApi, read_health
from turnspan.backends.otlp import open_transport
from turnspan.backends.settings import Settings, is_loopback, proxy_from_environment
from turnspan.errors import BackendError
from turnspan.settings.options import OPTIONS
from turnspan.terminal import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.backends import Verdict
    from turnspan.backends.settings import Endpoint
    from turnspan.backends.verdicts import Response
    from turnspan.delivery.destinations import Target
    from turnspan.health.checks import Check, Group
    from turnspan.settings.config import Destination

_MOST_SKEW_S: Final = 60.0
_OLDEST_LANGFUSE: Final = (3, 22)  # the first with an OTLP endpoint
# What OpenSSL calls the ways in which a certificate can fail (X509_V_ERR_…).
_EXPIRED: Final = {10}
_NOT_YET: Final = {9}
_UNKNOWN: Final = {18, 19, 20, 21}
_OTHER_HOST: Final = {62, 63, 64}


def server_checks(group: Group, destination: Destination, target: Target, now_s: float) -> Iterator[Check]:
    """One server, step by step."""
    read = _settings(destination)
    endpoint = read.endpoint(*(("base_url", _default_url()) if destination.type == "langfuse" else ("endpoint",)))
    try:
        response = _look(destination, read, endpoint)
    except NoAnswerError as failure:
        if not _is_grpc(destination) or _is_out_of_reach(failure):
            yield group.bad(*_unreachable(failure, destination, endpoint))
            return
        response = None  # a gRPC server does not speak HTTP/1: that it is there is enough
    yield group.good(f"{endpoint.authority} can be reached, {'TLS verified' if endpoint.is_tls else 'on this machine'}")
    if response is not None:
        yield from _clock(group, response, now_s)
    if destination.type == "langfuse" and response is not None:
        yield from _langfuse_version(group, response, endpoint)
    verdict = target.backend.send(target.backend.encode([]))
    if verdict.answer in {Answer.ACKNOWLEDGED, Answer.PARTIAL, Answer.INVALID}:
        yield group.good("it takes OTLP and our credentials" if _has_credentials(destination) else "it takes OTLP")
        if destination.type == "langfuse":
            yield from _project(group, destination)
    else:
        makes = group.doubt if verdict.answer is Answer.LATER else group.bad
        yield makes(*_refused(verdict, destination, endpoint))


def _settings(destination: Destination) -> Settings:
    """The settings of a destination that have been found right."""
    known = frozenset(option.name for option in OPTIONS[destination.type])
    return Settings({k: v for k, v in destination.options.items() if k in known}, name=destination.name, known=known)


def _default_url() -> str:
    return next(str(option.default) for option in OPTIONS["langfuse"] if option.name == "base_url")


def _is_grpc(destination: Destination) -> bool:
    return destination.options.get("protocol") == "grpc"


def _has_credentials(destination: Destination) -> bool:
    return bool(destination.options.get("headers") or destination.options.get("secret_key"))


def _look(destination: Destination, read: Settings, endpoint: Endpoint) -> Response:
    """The answer to a request that asks for nothing much. Raises NoAnswerError."""
    if destination.type == "langfuse":
        api = LangfuseApi(destination)
        try:
            return api.ask_health()
        finally:
            api.close()
    transport = open_transport(read, endpoint, {}, "http/protobuf")
    assert isinstance(transport, HttpTransport)
    try:
        return transport.exchange("GET", endpoint.path or "/", {})
    finally:
        transport.close()


def _is_out_of_reach(failure: NoAnswerError) -> bool:
    cause = failure.__cause__
    return (
        failure.verdict.answer is Answer.CREDENTIALS
        or isinstance(cause, ssl.SSLCertVerificationError | ConnectionRefusedError | TimeoutError)
        or (isinstance(cause, OSError) and not isinstance(cause, ConnectionError | ssl.SSLError))
    )


def _unreachable(failure: NoAnswerError, destination: Destination, endpoint: Endpoint) -> tuple[str, str]:
    """What keeps us from the server, and what to do about it."""
    says, cause = str(failure), failure.__cause__
    if isinstance(cause, ssl.SSLCertVerificationError):
        return says, _todo_for_certificate(cause.verify_code, endpoint)
    if isinstance(cause, ssl.SSLError):
        return says, f"check that {endpoint.authority} speaks https; plain http is for this machine only"
    if "proxy" in says:
        return says, "check `proxy` and its user and password; without `proxy` and `proxy_from_env` none is used"
    if not isinstance(cause, OSError):
        return says, 'check the endpoint; a gRPC port wants `protocol = "grpc"`'
    todo = (
        "start the server, or correct the port" if is_loopback(endpoint.host) else "correct the endpoint, or try later"
    )
    if isinstance(cause, TimeoutError):
        todo = "check the host, a firewall or a VPN in between; `timeout_s` gives it more time"
    elif "resolved" in says:
        todo = "correct the name of the host, or connect to the network that knows it"
    named = proxy_from_environment(endpoint, os.environ)
    if named and not destination.options.get("proxy") and not destination.options.get("proxy_from_env"):
        todo += "; your environment names a proxy, which `proxy_from_env = true` would use"
    return says, todo


def _todo_for_certificate(code: int, endpoint: Endpoint) -> str:
    if code in _EXPIRED:
        return "the certificate has expired: renew it on the server, and check the date of this machine"
    if code in _NOT_YET:
        return "the certificate is not valid yet: check the date of this machine"
    if code in _UNKNOWN:
        return "it is signed by itself or by an authority unknown here: set `certificate` to the file of that authority"
    if code in _OTHER_HOST:
        return f"the certificate is for another host than {endpoint.host}: use the name it was made for"
    return "set `certificate` to the file of the authority that signed it"


def _clock(group: Group, response: Response, now_s: float) -> Iterator[Check]:
    try:
        date = parsedate_tz(response.headers.get("date", ""))
        ahead_s = None if date is None else now_s - mktime_tz(date)
    except (ValueError, OverflowError):
        ahead_s = None
    if ahead_s is None:
        return
    if abs(ahead_s) > _MOST_SKEW_S:
        way = "ahead of" if ahead_s > 0 else "behind"
        yield group.doubt(
            f"the clock of this machine is {abs(ahead_s):.0f} s {way} the server's",
            "set the clock: traces carry this machine's times",
        )
    else:
        yield group.good("its clock and ours agree")


def _refused(verdict: Verdict, destination: Destination, endpoint: Endpoint) -> tuple[str, str]:
    """Why it does not take what we send, and what to do about it."""
    match verdict.answer:
        case Answer.CREDENTIALS if destination.type == "langfuse":
            others = ", ".join(url for url in REGIONS if endpoint.host not in url)
            todo = f"check both keys; keys of another region or server are unknown here: set `base_url` ({others})"
        case Answer.CREDENTIALS if "proxy" in verdict.reason:
            todo = "check the user and password in `proxy`"
        case Answer.CREDENTIALS:
            todo = "check `headers` (TURNSPAN_OTLP_HEADERS)"
        case Answer.CONFIGURATION if "redirect" in verdict.reason:
            todo = "set the URL that it leads to, if you trust it; keys are never sent after a redirect"
        case Answer.CONFIGURATION if "web page" in verdict.reason:
            todo = "this is the port of a web page: OTLP over HTTP is usually at 4318"
        case Answer.CONFIGURATION if "HTTP/1.1" in verdict.reason:
            todo = 'this is probably a gRPC port: set `protocol = "grpc"`, or use the HTTP port, usually 4318'
        case Answer.CONFIGURATION:
            todo = "correct the URL: it is a base URL, the path of the OTLP endpoint is added to it"
        case Answer.TOO_LARGE:
            todo = "set `max_request_bytes` to less"
        case _:
            todo = "it will pass; what is not sent is kept and sent later"
    return verdict.reason, todo


# ---- Langfuse


def _langfuse_version(group: Group, response: Response, endpoint: Endpoint) -> Iterator[Check]:
    health = read_health(response)
    if health is None:
        yield group.doubt(
            f"{endpoint.authority} does not answer like Langfuse (HTTP {response.status})", "check `base_url`"
        )
        return
    parts = tuple(int(part) for part in health.version.split(".")[:2] if part.isdecimal())
    if parts and parts < _OLDEST_LANGFUSE:
        yield group.bad(f"Langfuse {health.version} does not take OTLP yet", "update it to 3.22 or newer")
    else:
        yield group.good(f"Langfuse {health.version}")


def _project(group: Group, destination: Destination) -> Iterator[Check]:
    api = LangfuseApi(destination)
    try:
        project = api.project()
    except BackendError as error:
        yield group.doubt(f"it does not say whose project this is: {error}", "check the keys")
        return
    finally:
        api.close()
    kept = f", which keeps traces {count(project.retention_days, 'day')}" if project.retention_days else ""
    yield group.good(f"the keys are those of the project {project.name or project.id}{kept}")
