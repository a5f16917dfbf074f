"""Any OTLP endpoint: Jaeger, Tempo, Phoenix, a collector; over HTTP/protobuf or gRPC.

Settings: `endpoint` (a base URL; `/v1/traces` is added over HTTP), `protocol` ("http/protobuf" or "grpc"), `headers`,
`certificate` (a CA file), `client_certificate`, `client_key`, `proxy`, `proxy_from_env`, `timeout_s`, `compression`
("gzip" or "none"), and what every destination knows: `attribute_max_bytes`, `max_request_bytes`, `user_id`,
`environment`, `tags`. Variables named OTEL_* change nothing: a shell may have them set for quite another program.
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
from turnspan.backends.protobuf import encode_request
from turnspan.backends.settings import COMMON, TRANSPORT, Server, Settings

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from turnspan.backends import Probe
    from turnspan.backends.naming import Spelling
    from turnspan.backends.settings import Endpoint
    from turnspan.trace.model import Trace

KNOWN = COMMON | TRANSPORT | {"endpoint", "protocol", "query_url"}
_PATH = "/v1/traces"


class Transport(Protocol):
    """A way for bytes to reach a destination."""

    def send(self, body: bytes) -> Verdict:
        """Deliver one request body."""

    def close(self) -> None:
        """Let go of connections."""


class OtlpBackend:
    """Traces as OTLP/protobuf, in one spelling, over one transport."""

    def __init__(
        self,
        name: str,
        spelling: Spelling,
        transport: Transport,
        max_request_bytes: int,
        server: Server | None = None,
    ) -> None:
        self.name = name
        self.max_request_bytes = max_request_bytes
        self._spelling = spelling
        self._transport = transport
        self._server = server  # what a probe must know; None: it only sends an empty request

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """All spans of these traces as one ExportTraceServiceRequest."""
        return encode_request(traces, self._spelling)

    def send(self, body: bytes) -> Verdict:
        """Deliver one request; one that is too long does not leave at all."""
        if len(body) > self.max_request_bytes:
            reason = f"{len(body)} bytes are more than the {self.max_request_bytes} a request may have"
            return Verdict(Answer.TOO_LARGE, reason)
        return self._transport.send(body)

    def close(self) -> None:
        """Let go of connections."""
        self._transport.close()

    def probe(self) -> Probe:
        """Check whether the server can be reached and accepts OTLP and the credentials."""
        if self._server is None:
            return probe_by_sending(self)
        from turnspan.backends.probing import probe_server  # noqa: PLC0415 - no event needs it

        return probe_server(self, self._server)


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> OtlpBackend:  # noqa: ARG001 - the entry point's signature
    """An OTLP destination. Raises ConfigError when a setting is wrong."""
    read = Settings(settings, name=name, known=KNOWN)
    endpoint = read.endpoint("endpoint")
    protocol = read.choice("protocol", ("http/protobuf", "grpc"))
    base = endpoint.path.rstrip("/")
    if protocol == "grpc":
        if base:
            raise read.wrong("endpoint", "a URL without a path when the protocol is grpc")
    elif not base.endswith(_PATH):
        base += _PATH
    transport = open_transport(read, msgspec.structs.replace(endpoint, path=base), read.headers(), protocol)
    max_request_bytes = read.whole("max_request_bytes", 3_500_000, least=10_000)
    server = Server(endpoint, read, is_grpc=protocol == "grpc", has_credentials=bool(read.headers()))
    if not settings.get("query_url"):
        return OtlpBackend(name, GenAI(read.capture()), transport, max_request_bytes, server)
    from turnspan.backends.jaeger import JaegerBackend  # noqa: PLC0415 - only with `query_url`

    query = read.endpoint("query_url")
    return JaegerBackend(name, GenAI(read.capture()), transport, max_request_bytes, server, query=query)


def open_transport(
    read: Settings,
    endpoint: Endpoint,
    headers: dict[str, str],
    protocol: str,
    *,
    max_body_bytes: int = MAX_BODY_BYTES,
) -> Transport:
    """The transport these settings describe; nothing is connected yet."""
    tls = Tls(read.file("certificate"), read.file("client_certificate"), read.file("client_key"))
    timeout_s = read.seconds("timeout_s", 10.0, most=600.0)
    is_gzip = read.choice("compression", ("gzip", "none")) == "gzip"
    proxy = read.proxy(endpoint)
    secrets = secrets_in(headers, proxy)
    if protocol == "grpc":
        # Its core writes to stderr, which belongs to Claude Code or to a person; what it knows is in the verdict.
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")
        from turnspan.backends.grpc_transport import GrpcTransport  # noqa: PLC0415 - costs 240 ms of CPU

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
    """Every text that must not appear in a reason: header values, their words, what Basic credentials stand for."""
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
    # Short words ("1", "true") are no credentials, and taking them out would make every reason unreadable.
    return tuple(sorted(text for text in texts if len(text) >= 6))
