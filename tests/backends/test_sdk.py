"""Backend `sdk`: traces for any installed OpenTelemetry exporter, and what its answers mean."""

import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from backends.samples import TRACE, sdk_spans, small_trace
from backends.servers import OK, GrpcServer, HttpServer, reply
from turnspan import __version__
from turnspan.backends import Answer, Outcome, otlp, probe
from turnspan.backends.genai import GenAI
from turnspan.backends.sdk import open_backend, readable_spans
from turnspan.backends.settings import Capture
from turnspan.errors import ConfigError

EXPORTERS = """
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

class Failing(SpanExporter):
    def export(self, spans):
        return SpanExportResult.FAILURE

class Raising(SpanExporter):
    def export(self, spans):
        raise RuntimeError("sk-secret in a URL")

class Unflushed(SpanExporter):
    def export(self, spans):
        return SpanExportResult.SUCCESS
    def force_flush(self, timeout_millis=30000):
        return False

class Misconfigured(SpanExporter):
    def __init__(self):
        raise ValueError("OTEL_LOOM_KEY=sk-secret")
"""
ENTRY_POINTS = """[opentelemetry_traces_exporter]
failing = loom_exporters:Failing
raising = loom_exporters:Raising
unflushed = loom_exporters:Unflushed
misconfigured = loom_exporters:Misconfigured
broken = no_such_module:Exporter
"""


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with exporters that fail in several ways, found by its entry points."""
    site = tmp_path / "site"
    info = site / "loom_exporters-1.0.dist-info"
    info.mkdir(parents=True)
    (site / "loom_exporters.py").write_text(EXPORTERS)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loom-exporters\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(ENTRY_POINTS)
    monkeypatch.syspath_prepend(str(site))
    return site


def opened(exporter, **settings):
    """Open the backend with an exporter."""
    return open_backend({"exporter": exporter, **settings}, name="there", home=None)


def test_the_console_exporter_prints_every_span():
    """The real exporter, in a process of its own: what it prints is the trace."""
    program = """
    import sys
    sys.path.insert(0, sys.argv[1])
    from backends.samples import TRACE
    from turnspan.backends.sdk import open_backend
    backend = open_backend({"exporter": "console"}, name="there", home=None)
    print(backend.send(backend.encode([TRACE])).answer, file=sys.stderr)
    backend.close()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program), str(Path(__file__).parents[1])],
        env={**os.environ, "OTEL_RESOURCE_ATTRIBUTES": "service.name=evil"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    decoder, text, printed = json.JSONDecoder(), done.stdout.strip(), []
    while text:
        span, end = decoder.raw_decode(text)
        printed.append(span)
        text = text[end:].strip()

    assert done.stderr.strip() == "acknowledged"
    assert [span["name"] for span in printed] == [span.name for span in TRACE.spans]
    for span, ours in zip(printed, TRACE.spans, strict=True):
        assert span["context"]["trace_id"] == f"0x{TRACE.trace_id.hex()}"
        assert span["context"]["span_id"] == f"0x{ours.span_id.hex()}"
        assert span["parent_id"] == (f"0x{ours.parent_id.hex()}" if ours.parent_id else None)
        assert span["resource"]["attributes"]["service.name"] == "claude-code"
        assert (span["status"]["status_code"] == "ERROR") == (ours.error is not None)


def test_the_spans_are_those_that_the_sdk_would_make():
    """Resource, scope, ids, times, kind, attributes, links and status, compared with spans made by other code."""
    body = opened("console").encode([TRACE, small_trace(1)])
    ours = list(readable_spans(body))
    theirs = sdk_spans([TRACE, small_trace(1)], GenAI(Capture()))

    assert [span.to_json() for span in ours] == [span.to_json() for span in theirs]
    assert {(s.instrumentation_scope.name, s.instrumentation_scope.version) for s in ours} == {
        ("turnspan", __version__)
    }


def test_the_otlp_exporter_of_the_sdk_sends_what_our_otlp_backend_sends(monkeypatch):
    """Over the real OTLP/HTTP exporter the same ids, times, attributes, links and status arrive."""
    with HttpServer() as theirs, HttpServer() as ours:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", theirs.url)
        backend = opened("otlp_proto_http")
        direct = otlp.open_backend({"endpoint": ours.url}, name="x", home=None)
        for each in (backend, direct):
            assert each.send(each.encode([TRACE, small_trace(1)])).answer is Answer.ACKNOWLEDGED
            each.close()
        [by_sdk], [by_us] = theirs.requests, ours.requests

    assert by_sdk.spans == by_us.spans


def test_without_a_name_the_otlp_exporter_is_used(monkeypatch):
    """As in the SDK, the default is `otlp`; the package that declares it sends over gRPC."""
    with GrpcServer() as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        backend = open_backend({}, name="there", home=None)
        assert backend.send(backend.encode([TRACE])).answer is Answer.ACKNOWLEDGED
        backend.close()
        [request] = server.requests

    spans = request.resource_spans[0].scope_spans[0].spans
    assert [span.span_id for span in spans] == [span.span_id for span in TRACE.spans]


def test_what_an_exporter_cannot_send_is_sent_later(monkeypatch):
    """The real exporter gets HTTP 400, then a server that works: FAILURE is "later", never lost."""
    with HttpServer(reply(400), OK) as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)
        backend = opened("otlp_proto_http")
        body = backend.encode([TRACE])
        first, second = backend.send(body), backend.send(body)
        backend.close()

    assert (first.answer, first.is_unknown) == (Answer.LATER, True)
    assert first.reason == "the exporter 'otlp_proto_http' reported a failure"
    assert second.answer is Answer.ACKNOWLEDGED


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("exporter", "answer", "words"),
    [
        ("failing", Answer.LATER, "reported a failure"),
        ("unflushed", Answer.LATER, "reported a failure"),
        ("raising", Answer.LATER, "raised RuntimeError"),
        ("misconfigured", Answer.CONFIGURATION, "cannot be created (ValueError); check its environment variables"),
        ("broken", Answer.CONFIGURATION, "cannot be created (ModuleNotFoundError)"),
    ],
)
def test_an_exporter_that_fails_is_a_verdict(exporter, answer, words):
    """Nothing is raised, and no text of an exception, which may hold credentials, is repeated."""
    backend = opened(exporter)
    verdict = backend.send(backend.encode([TRACE]))
    backend.close()
    backend.close()

    assert verdict.answer is answer
    assert words in verdict.reason
    assert "secret" not in verdict.reason


@pytest.mark.usefixtures("installed")
def test_an_unknown_exporter_is_named_with_what_is_installed():
    """A misspelt name is an error."""
    with pytest.raises(
        ConfigError, match=r"unknown exporter 'zipkinn'; installed: .*console, failing, .*otlp_proto_http"
    ):
        opened("zipkinn")


@pytest.mark.usefixtures("installed")
def test_a_probe_names_the_exporter_and_sends_nothing():
    """Only a trace shows whether it delivers."""
    found = probe(opened("misconfigured"))

    assert found.outcome is Outcome.GOOD
    assert found.says.startswith("the exporter 'misconfigured' of loom-exporters 1.0 is installed")


def test_opening_loads_no_sdk():
    """An event without anything to send pays nothing for the exporter."""
    program = """
    import sys
    from turnspan.backends.sdk import open_backend
    open_backend({"exporter": "console"}, name="there", home=None).close()
    print(sorted({"opentelemetry.sdk", "grpc", "requests"} & set(sys.modules)))
    """
    command = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
