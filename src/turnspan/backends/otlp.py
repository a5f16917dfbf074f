"""The OTLP backend: Jaeger, Tempo, Phoenix or a collector, over HTTP/protobuf or gRPC.

Settings: `endpoint` (a base URL; `/v1/traces` is added over HTTP), `protocol` ("http/protobuf" or "grpc"), `headers`,
`certificate` (a CA file), `client_certificate`, `client_key`, `proxy`, `proxy_from_env`, `timeout_s`, `compression`
("gzip", "none", or "auto": gzip unless the server runs on this machine), and those of every destination:
`attribute_max_bytes`, `max_request_bytes`, `user_id`, `environment`, `tags`. OTEL_* variables are ignored: a shell may
have them set for another program.
"""

from __future__ import annotations

import base64
import os
from typing import TYPE_CHECKING, Protocol

import msgspec

from turnspan.backends import Answer, Verdict, probe_by_sending
from turnspan.backends.connect import Tls
from turnspan.backends.genai import GenAI
from turnspan.backends.http_transport import MAX_BODY_BYTES, HttpTransport
from turnspan.backends.otlp_messages import encode_request
from turnspan.backends.settings import COMMON, TRANSPORT, DestinationSettings, Server
from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from turnspan.backends import Probe
    from turnspan.backends.naming import Naming
    from turnspan.backends.settings import Endpoint
    from turnspan.trace.model import Trace

KNOWN = COMMON | TRANSPORT | {"endpoint", "protocol", "query_url"}
_PATH = "/v1/traces"


class Transport(Protocol):
    """A connection to a destination."""

    def send(self, body: bytes) -> Verdict:
        """Send one request body and return the verdict."""

    def close(self) -> None:
        """Close the connections."""


class OtlpBackend:
    """Sends traces as OTLP/protobuf, with the names of one naming, over one transport."""

    # What becomes of a span that is sent again; empty if it is kept once.
    repeats = "some servers, such as Tempo, show a span twice that is sent again; Jaeger and Phoenix show it once"

    def __init__(
        self,
        name: str,
        naming: Naming,
        transport: Transport,
        max_request_bytes: int,
        server: Server | None = None,
    ) -> None:
        self.name = name
        self.max_request_bytes = max_request_bytes
        self._naming = naming
        self._transport = transport
        self._server = server  # what a probe must know; None: it only sends an empty request

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """Return all spans of these traces as one ExportTraceServiceRequest."""
        return encode_request(traces, self._naming)

    def send(self, body: bytes) -> Verdict:
        """Send one request and return the verdict; one over the limit is not sent."""
        if len(body) > self.max_request_bytes:
            reason = f"a request of {len(body)} bytes exceeds max_request_bytes ({self.max_request_bytes})"
            return Verdict(Answer.TOO_LARGE, reason)
        return self._transport.send(body)

    def close(self) -> None:
        """Close the connections."""
        self._transport.close()

    def probe(self) -> Probe:
        """Check whether the server can be reached and accepts OTLP and the credentials."""
        if self._server is None:
            return probe_by_sending(self)
        from turnspan.backends.probing import probe_server  # noqa: PLC0415 - no event needs it

        return probe_server(self, self._server)


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> OtlpBackend:  # noqa: ARG001 - the entry point's signature
    """Return the backend for these settings. Raises ConfigError for a wrong one."""
    read = DestinationSettings(settings, name=name, known=KNOWN)
    endpoint = read.endpoint("endpoint")
    protocol = read.choice("protocol")
    base = endpoint.path.rstrip("/")
    if protocol == "grpc":
        if base:
            raise read.wrong("endpoint", "a URL without a path when the protocol is grpc")
    elif not base.endswith(_PATH):
        base += _PATH
    transport = open_transport(read, msgspec.structs.replace(endpoint, path=base), read.headers(), protocol)
    max_request_bytes = read.integer("max_request_bytes")
    server = Server(endpoint, read, is_grpc=protocol == "grpc", has_credentials=bool(read.headers()))
    if not settings.get("query_url"):
        return OtlpBackend(name, GenAI(read.capture()), transport, max_request_bytes, server)
    from turnspan.backends.jaeger import JaegerBackend  # noqa: PLC0415 - only with `query_url`

    query = read.endpoint("query_url")
    return JaegerBackend(name, GenAI(read.capture()), transport, max_request_bytes, server, query=query)


def open_transport(
    read: DestinationSettings,
    endpoint: Endpoint,
    headers: dict[str, str],
    protocol: str,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Transport:
    """Return the transport for these settings, not connected yet. Raises ConfigError."""
    tls = Tls(read.file("certificate"), read.file("client_certificate"), read.file("client_key"))
    timeout_s = read.seconds("timeout_s")
    proxy = read.proxy(endpoint)
    is_gzip = read.is_gzip(endpoint, proxy)
    secrets = secrets_in(headers, proxy)
    if protocol == "grpc":
        # The core of grpc writes to stderr, which belongs to Claude Code or the terminal; the verdict has the reason.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        try:
            from turnspan.backends.grpc_transport import GrpcTransport  # noqa: PLC0415 - costs 240 ms of CPU
        except (ImportError, AttributeError, RuntimeError) as exc:  # missing, incomplete, of another version
            raise ConfigError(
                f"cannot use gRPC for {endpoint.authority}: the Python package grpcio is missing or broken ({exc})",
                hint='reinstall turnspan, or set protocol = "http/protobuf"',
            ) from exc
        return GrpcTransport(
            endpoint, headers=headers, timeout_s=timeout_s, is_gzip=is_gzip, proxy=proxy, tls=tls, secrets=secrets
        )
    return HttpTransport(
        endpoint,
        headers=headers,
        timeout_s=timeout_s,
        is_gzip=is_gzip,
        proxy=proxy,
        tls=tls,
        secrets=secrets,
        max_body_bytes=max_body_bytes,
    )


def secrets_in(headers: dict[str, str], proxy: Endpoint | None = None) -> tuple[str, ...]:
    """Return every text that must not appear in a reason: header values, tokens, decoded Basic credentials."""
    texts = set(headers.values())
    for value in headers.values():
        scheme, _, token = value.partition(" ")
        texts.add(token)
        if scheme.lower() == "basic":
            try:
                pair = base64.b64decode(token, validate=True).decode()
            except ValueError:
                continue
            texts |= {pair, *pair.split(":", 1)}
    if proxy is not None and proxy.user:
        texts |= {proxy.user, *proxy.user.split(":", 1), base64.b64encode(proxy.user.encode()).decode()}
    # Short words ("1", "true") are not credentials, and removing them would make reasons unreadable.
    return tuple(sorted(text for text in texts if len(text) >= 6))
