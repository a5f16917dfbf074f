"""OTLP exports over gRPC, through OpenTelemetry's TraceServiceStub.

Imported only for a destination that uses gRPC: importing grpc costs more CPU than the rest of an event.

Rules:

- grpc never retries, never takes a proxy from the environment, and never waits for a server to start.
- Verdicts mean the same as over HTTP. Where one gRPC status has two meanings, its details decide.
"""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from google.protobuf.message import DecodeError  # type: ignore[import-untyped, unused-ignore]  # has no stubs
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped, unused-ignore]
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped, unused-ignore]
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import TraceServiceStub

from turnspan import __version__
from turnspan.backends import Answer, Verdict
from turnspan.backends.otlp_messages import NotOtlpError, read_response
from turnspan.backends.verdicts import MAX_WAIT_S, one_line, partial

if TYPE_CHECKING:
    from turnspan.backends.connect import Tls
    from turnspan.backends.settings import Endpoint


_CREDENTIALS = {grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED}
_CONFIGURATION = {grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.NOT_FOUND, grpc.StatusCode.FAILED_PRECONDITION}
# Words in the details of a permanent misconfiguration: wrong certificates, a web server, a redirect.
_NOT_GRPC = ("certificate", "verification", "ssl_error_ssl", "wrong_version", "http1.x", "status: 3", "status: 404")
_NEVER_CONNECTED = ("failed to connect", "dns resolution failed", "connection refused")


class GrpcTransport:
    """A channel to one endpoint."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        headers: dict[str, str],
        timeout_s: float,
        is_gzip: bool,
        proxy: Endpoint | None,
        tls: Tls,
        secrets: tuple[str, ...],
    ) -> None:
        self._metadata = tuple((name.lower(), value) for name, value in headers.items())
        self._timeout_s = timeout_s
        self._where = endpoint.authority
        self._secrets = secrets
        options: list[tuple[str, str | int]] = [
            ("grpc.enable_retries", 0),
            ("grpc.primary_user_agent", f"turnspan/{__version__}"),
            ("grpc.max_receive_message_length", 4 * 1024 * 1024),
            ("grpc.max_send_message_length", -1),
            ("grpc.enable_http_proxy", 0 if proxy is None else 1),
        ]
        if proxy is not None:
            user = f"{proxy.user}@" if proxy.user else ""
            options.append(("grpc.http_proxy", f"http://{user}{proxy.authority}"))
        compression = grpc.Compression.Gzip if is_gzip else grpc.Compression.NoCompression
        host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
        target = f"{host}:{endpoint.port}"
        if endpoint.is_tls:
            self._channel = grpc.secure_channel(target, _credentials(tls), options, compression)
        else:
            self._channel = grpc.insecure_channel(target, options, compression)
        stub = TraceServiceStub(_BytesChannel(self._channel))  # type: ignore[no-untyped-call]  # generated code
        self._export: grpc.UnaryUnaryMultiCallable[bytes, bytes] = stub.Export

    def send(self, body: bytes) -> Verdict:
        """Export one request and return the verdict on the response."""
        try:
            answer = self._export(body, timeout=self._timeout_s, metadata=self._metadata)
        except grpc.RpcError as failure:
            details = failure.details() or ""
            if failure.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                details = f"no answer from {self._where} within {self._timeout_s:g} s: {details}"
            return read_status(
                failure.code(),
                details,
                retry_delay_s(_details_of(failure)),
                self._secrets,
            )
        try:
            return partial(*read_response(answer), self._secrets)
        except NotOtlpError:
            return Verdict(Answer.LATER, "unreadable response", is_unknown=True)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()


class _BytesChannel:
    """A channel for a stub whose requests and responses are bytes.

    The stub would serialise messages. Requests are encoded before they are sent, because their size decides how they
    are split; parsing them for the stub would cost 18 µs a span. Responses are read as over HTTP.
    """

    def __init__(self, channel: grpc.Channel) -> None:
        self._channel = channel

    def unary_unary(self, method: str, **_serializers: object) -> grpc.UnaryUnaryMultiCallable[bytes, bytes]:
        return self._channel.unary_unary(method)


def read_status(code: grpc.StatusCode, details: str, wait_s: float | None, secrets: tuple[str, ...]) -> Verdict:
    """Return the verdict on a call that failed with this status."""
    reason = f"gRPC {code.name}: {one_line(details, secrets)}"
    words = details.lower()
    if code in _CREDENTIALS:
        return Verdict(Answer.CREDENTIALS, reason)
    if code in _CONFIGURATION:
        return Verdict(Answer.CONFIGURATION, reason)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return Verdict(Answer.INVALID, reason)
    if "larger than max" in words or "status: 413" in words:
        return Verdict(Answer.TOO_LARGE, reason)
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNKNOWN) and any(sign in words for sign in _NOT_GRPC):
        return Verdict(Answer.CONFIGURATION, reason)
    is_unknown = code is not grpc.StatusCode.RESOURCE_EXHAUSTED and not any(w in words for w in _NEVER_CONNECTED)
    return Verdict(Answer.LATER, reason, wait_s, is_unknown=is_unknown)


def retry_delay_s(status: bytes) -> float | None:
    """Return the delay of the RetryInfo in a google.rpc.Status, at most an hour; None if there is none."""
    info = RetryInfo()
    try:
        for detail in Status.FromString(status).details:
            if detail.Unpack(info):  # False for any other kind of detail
                delay = info.retry_delay
                return float(min(max(delay.seconds + delay.nanos / 1e9, 0.0), MAX_WAIT_S))
    except DecodeError:
        return None
    return None


def _details_of(failure: grpc.RpcError) -> bytes:
    for item in failure.trailing_metadata() or ():
        if item.key == "grpc-status-details-bin" and isinstance(item.value, bytes):
            return item.value
    return b""


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Return credentials that trust the given CA or the system's; grpc's own list if there is neither."""
    system = ssl.get_default_verify_paths()
    bundles = (
        [tls.certificate]
        if tls.certificate
        else [
            system.openssl_cafile,
            f"{system.openssl_capath}/ca-certificates.crt",
        ]
    )
    roots = next((Path(path).read_bytes() for path in bundles if Path(path).is_file()), None)
    key = tls.client_key or tls.client_certificate
    return grpc.ssl_channel_credentials(
        roots,
        Path(key).read_bytes() if key else None,
        Path(tls.client_certificate).read_bytes() if tls.client_certificate else None,
    )
