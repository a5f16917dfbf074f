"""Any span exporter of the OpenTelemetry SDK that is installed: console, Zipkin, Azure Monitor, Google Cloud Trace, ….

Settings: `exporter` (a name in the entry-point group `opentelemetry_traces_exporter`; `otlp` unless set), and
those of every destination.

Rules:

- The exporter is configured by its own environment variables, mostly OTEL_*, as OpenTelemetry documents; turnspan sets
  none of them. Its deadline, retries and TLS are its own, too.
- `encode` gives the OTLP request that the `otlp` backend would send, which is pure. `send` decodes it into the SDK's
  ReadableSpans and exports those.
- The verdict is the exporter's word: SUCCESS is acknowledged; FAILURE means "later", and the server may have stored the
  spans. Exporters do not report more, so a wrong password is retried like an outage.
- An exception's text may hold credentials, so only its type is reported.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

from turnspan.backends import Answer, Finding, Outcome, Probe, Verdict
from turnspan.backends.genai import GenAI
from turnspan.backends.naming import REMOTE_FLAGS
from turnspan.backends.otlp import OtlpBackend
from turnspan.backends.settings import COMMON, DestinationSettings
from turnspan.errors import ConfigError
from turnspan.settings.options import OPTION

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from importlib.metadata import EntryPoint
    from pathlib import Path

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1.trace_pb2 import Span
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Link, SpanContext
    from opentelemetry.util.types import AttributeValue

KNOWN = COMMON | {"exporter"}
_GROUP: Final = "opentelemetry_traces_exporter"


class ExporterTransport:
    """Hands requests to a span exporter, which is created with the first one."""

    def __init__(self, found: EntryPoint) -> None:
        self._found = found

    @cached_property
    def _exporter(self) -> SpanExporter:
        exporter: SpanExporter = self._found.load()()
        return exporter

    def send(self, body: bytes) -> Verdict:
        """Export one request; the verdict is what the exporter reports."""
        from opentelemetry.sdk.trace.export import SpanExportResult  # noqa: PLC0415 - only for this backend

        name = self._found.name
        try:
            exporter = self._exporter
        except Exception as error:  # noqa: BLE001 - an exporter may raise anything for its own configuration
            reason = (
                f"the exporter {name!r} cannot be created ({type(error).__name__}); check its environment variables"
            )
            return Verdict(Answer.CONFIGURATION, reason)
        try:
            is_exported = exporter.export(list(readable_spans(body))) is SpanExportResult.SUCCESS
            is_flushed = is_exported and exporter.force_flush()
        except Exception as error:  # noqa: BLE001 - likewise for a network
            return Verdict(Answer.LATER, f"the exporter {name!r} raised {type(error).__name__}", is_unknown=True)
        if is_flushed:
            return Verdict(Answer.ACKNOWLEDGED)
        return Verdict(Answer.LATER, f"the exporter {name!r} reported a failure", is_unknown=True)

    def close(self) -> None:
        """Shut the exporter down."""
        exporter: SpanExporter | None = self.__dict__.pop("_exporter", None)
        if exporter is not None:
            with suppress(Exception):  # everything was exported and flushed before
                exporter.shutdown()


class SdkBackend(OtlpBackend):
    """Traces for an installed span exporter."""

    def __init__(self, name: str, naming: GenAI, found: EntryPoint, max_request_bytes: int) -> None:
        super().__init__(name, naming, ExporterTransport(found), max_request_bytes)
        self._found = found

    def probe(self) -> Probe:
        """Report which exporter is used; only a trace shows whether it delivers."""
        package = self._found.dist
        of = f" of {package.name} {package.version}" if package is not None else ""
        says = (
            f"the exporter {self._found.name!r}{of} is installed; whether it delivers is unknown until a trace is sent"
        )
        return Probe(Answer.ACKNOWLEDGED, says, findings=(Finding(Outcome.GOOD, says),))


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> SdkBackend:  # noqa: ARG001 - the entry point's signature
    """Open an installed span exporter. Raises ConfigError for a wrong setting."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - only for this backend

    read = DestinationSettings(settings, name=name, known=KNOWN)
    wanted = read.text("exporter", str(OPTION["exporter"].default))
    installed = entry_points(group=_GROUP)
    if wanted not in installed.names:
        available = ", ".join(sorted(installed.names)) or "none; install the package of an exporter"
        raise ConfigError(f"destination {name}: unknown exporter {wanted!r}", hint=f"installed: {available}")
    limit = read.integer("max_request_bytes")
    return SdkBackend(name, GenAI(read.capture()), installed[wanted], limit)


# ---- an OTLP request as the SDK's spans


def readable_spans(body: bytes) -> Iterator[ReadableSpan]:
    """Yield the spans of an ExportTraceServiceRequest."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest  # noqa: PLC0415
    from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope  # noqa: PLC0415

    for resource_spans in ExportTraceServiceRequest.FromString(body).resource_spans:
        # The constructor, not `create`: that would add what OTEL_RESOURCE_ATTRIBUTES says about this process.
        resource = Resource(_attributes(resource_spans.resource.attributes))
        for scope_spans in resource_spans.scope_spans:
            scope = InstrumentationScope(scope_spans.scope.name, scope_spans.scope.version)
            for span in scope_spans.spans:
                yield _readable_span(span, resource, scope)


def _readable_span(span: Span, resource: Resource, scope: InstrumentationScope) -> ReadableSpan:
    from opentelemetry.sdk.trace import ReadableSpan  # noqa: PLC0415
    from opentelemetry.trace import SpanKind, Status, StatusCode  # noqa: PLC0415

    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_span_id) if span.parent_span_id else None,
        resource=resource,
        attributes=_attributes(span.attributes),
        links=[_link(link) for link in span.links],
        kind=SpanKind(span.kind - 1),  # OTLP counts from 1
        status=Status(StatusCode(span.status.code), span.status.message or None),
        start_time=span.start_time_unix_nano,
        end_time=span.end_time_unix_nano,
        instrumentation_scope=scope,
    )


def _link(link: Span.Link) -> Link:
    from opentelemetry.trace import Link  # noqa: PLC0415

    context = _context(link.trace_id, link.span_id, is_remote=link.flags == REMOTE_FLAGS)
    return Link(context, _attributes(link.attributes))


def _context(trace_id: bytes, span_id: bytes, *, is_remote: bool = False) -> SpanContext:
    from opentelemetry.trace import SpanContext, TraceFlags  # noqa: PLC0415

    flags = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int.from_bytes(trace_id), int.from_bytes(span_id), is_remote=is_remote, trace_flags=flags)


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, AttributeValue]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> AttributeValue:
    if value.HasField("array_value"):
        return cast("AttributeValue", [_value(item) for item in value.array_value.values])
    found: AttributeValue = getattr(value, value.WhichOneof("value") or "string_value")
    return found
