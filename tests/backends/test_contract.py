"""The contract of backends and their abilities, for each backend against a real destination."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest

from backends.langfuse_records import Store
from backends.samples import EVENT, GENERATION, TOOL, TRACE, TURN, small_trace
from backends.servers import GrpcServer, HttpServer, reply, spans_in
from turnspan.backends import (
    Answer,
    Erasable,
    Linkable,
    Outcome,
    Probeable,
    Readable,
    Verdict,
    langfuse,
    local,
    otlp,
    probe,
    reader_of,
    sdk,
)
from turnspan.errors import ConfigError, TurnspanError
from turnspan.trace.model import Kind

ALL = ("otlp", "otlp-grpc", "jaeger", "langfuse", "local", "sdk")
ABILITIES = {
    "otlp": {Probeable},
    "otlp-grpc": {Probeable},
    "jaeger": {Probeable, Readable, Linkable},
    "langfuse": {Probeable, Readable, Linkable, Erasable},
    "local": {Probeable, Readable, Erasable},
    "sdk": {Probeable},
}


@dataclass
class Destination:
    """A backend, and the spans that have arrived at its destination."""

    backend: Any
    arrived: Any
    reopen: Any
    disappear: Any = None  # makes the destination unusable


@pytest.fixture(params=ALL)
def kind(request):
    """Return the name of each backend in turn."""
    return request.param


@pytest.fixture
def destination(kind, tmp_path, monkeypatch):
    """Return a backend of this kind with a real destination."""
    if kind == "local":

        def reopen(**settings):
            return local.open_backend(settings, name="here", home=tmp_path)

        backend = reopen()

        def disappear():
            shutil.rmtree(tmp_path / "traces", ignore_errors=True)
            (tmp_path / "traces").write_text("a file where the directory should be")

        yield Destination(backend, lambda: list(local.read_spans(tmp_path / "traces")), reopen, disappear)
        backend.close()
        return
    opened = GrpcServer() if kind == "otlp-grpc" else HttpServer(Store())
    with opened as server:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", server.url)  # only the exporter of `sdk` reads it

        def reopen(**settings):
            if kind == "langfuse":
                given = {"base_url": server.url, "public_key": "pk-1", "secret_key": "sk-1", **settings}
                return langfuse.open_backend(given, name="here", home=tmp_path)
            if kind == "sdk":
                return sdk.open_backend({"exporter": "otlp_proto_http", **settings}, name="here", home=tmp_path)
            protocol = "grpc" if kind == "otlp-grpc" else "http/protobuf"
            if kind == "jaeger":
                settings["query_url"] = server.url
            return otlp.open_backend(
                {"endpoint": server.url, "protocol": protocol, **settings}, name="here", home=tmp_path
            )

        def arrived():
            if kind == "otlp-grpc":
                return [span for request in server.requests for span in spans_in(request)]
            return [span for request in server.requests if request.method == "POST" for span in request.spans]

        backend = reopen()
        yield Destination(backend, arrived, reopen, server.__exit__)
        backend.close()


def test_a_trace_arrives_as_it_was(destination):
    """Ids, parents, times, kinds, status and links of every span."""
    backend = destination.backend
    assert backend.name == "here"
    assert backend.send(backend.encode([TRACE])) == Verdict(Answer.ACKNOWLEDGED)
    spans = destination.arrived()

    assert [span["trace_id"] for span in spans] == [TRACE.trace_id.hex()] * len(TRACE.spans)
    for arrived, span in zip(spans, TRACE.spans, strict=True):
        assert arrived["span_id"] == span.span_id.hex()
        assert arrived["parent_span_id"] == (span.parent_id or b"").hex()
        assert (arrived["start_ns"], arrived["end_ns"]) == (span.start_ns, span.end_ns)
        assert arrived["name"] == span.name
        assert arrived["kind"] == (3 if span.kind is Kind.GENERATION else 1)
        assert arrived["status"] == (2 if span.error else 0)
        assert arrived["status_message"] == span.error_message
        assert arrived["resource"]["service.name"] == "claude-code"
        assert arrived["resource"]["service.version"] == TRACE.client_version
        assert [
            (link["trace_id"], link["span_id"], link["attributes"]["turnspan.link.relation"])
            for link in arrived["links"]
        ] == [(link.trace_id.hex(), link.span_id.hex(), link.relation) for link in span.links]


def test_ids_and_content_can_be_searched_for(destination):
    """Session, response and tool call have their ids at every destination, and the content is there."""
    backend = destination.backend
    backend.send(backend.encode([TRACE]))
    turn, generation, tool, *_ = (span["attributes"] for span in destination.arrived())

    assert turn["session.id"] == generation["session.id"] == tool["session.id"] == TRACE.session_id
    assert generation["gen_ai.response.id"] == "msg_1"
    assert tool["gen_ai.tool.call.id"] == "toolu_1"
    assert tool["error.type"] == "tool_error"
    assert "List the files, please." in json.dumps(turn)
    assert "There are two files." in json.dumps(turn)
    assert "a.txt" in json.dumps(tool)


def test_the_same_traces_are_the_same_bytes(destination):
    """Another backend object, another order of creation, the same bytes."""
    traces = [TRACE, small_trace(1), small_trace(2, version="2.0.0")]
    first = destination.backend.encode(traces)

    assert destination.reopen().encode(traces) == first
    assert destination.backend.encode(list(traces)) == first
    assert destination.backend.encode([*reversed(traces)]) != first


def test_another_process_makes_the_same_bytes(destination, kind):
    """Not the hash seed, nor the locale, nor the time zone: live, retry and backfill give the same bytes."""
    module = {"otlp-grpc": "otlp", "jaeger": "otlp"}.get(kind, kind)
    settings = {
        "otlp": {"endpoint": "http://127.0.0.1:1"},
        "langfuse": {"base_url": "http://127.0.0.1:1", "public_key": "pk", "secret_key": "sk"},
        "local": {},
        "sdk": {"exporter": "console"},
    }[module]
    program = f"""
import hashlib, pathlib, sys
sys.path.insert(0, {str(Path(__file__).parents[1])!r})
from backends.langfuse_records import Store
from backends.samples import TRACE
from turnspan.backends.{module} import open_backend
backend = open_backend({settings!r}, name="there", home=pathlib.Path("."))
print(hashlib.sha256(backend.encode([TRACE])).hexdigest())
"""
    ours = hashlib.sha256(destination.backend.encode([TRACE])).hexdigest()
    env = {**os.environ, "PYTHONHASHSEED": "7", "LC_ALL": "C", "TZ": "Asia/Kathmandu", "OTEL_SERVICE_NAME": "evil"}
    theirs = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, timeout=60, check=True
    )

    assert theirs.stdout.strip() == ours


def test_traces_of_several_versions_go_in_one_request(destination):
    """Each span says which client wrote it."""
    backend = destination.backend
    traces = [small_trace(1, version="1.0.0"), small_trace(2, version="2.0.0"), small_trace(3, version="1.0.0")]
    assert backend.send(backend.encode(traces)).answer is Answer.ACKNOWLEDGED
    versions = {span["name"]: span["resource"]["service.version"] for span in destination.arrived()}

    assert versions == {"Turn 1": "1.0.0", "Turn 2": "2.0.0", "Turn 3": "1.0.0"}


def test_lone_surrogates_are_replaced(destination):
    """A lone surrogate in a name, a key, an attribute, a message or an error loses one character, not a span."""
    backend = destination.backend
    bad = "a\ud800b"
    span = msgspec.structs.replace(
        TOOL, name=bad, output=bad, error_message=bad, facts={"tool_call_id": bad, bad: bad, "list": (bad,)}
    )
    trace = msgspec.structs.replace(
        TRACE, name=bad, session_id=bad, facts={bad: bad}, tags=(bad,), spans=(TURN, GENERATION, span)
    )
    assert backend.send(backend.encode([trace, small_trace(1)])).answer is Answer.ACKNOWLEDGED
    spans = destination.arrived()

    assert [s["name"] for s in spans] == ["Turn 3", "claude-sonnet-4-5", "a\ufffdb", "Turn 1"]
    assert spans[2]["attributes"]["gen_ai.tool.call.id"] == "a\ufffdb"
    assert spans[2]["status_message"] == "a\ufffdb"
    assert spans[0]["attributes"]["session.id"] == "a\ufffdb"


def test_integers_past_63_bits_arrive_as_text(destination):
    """They are not dropped."""
    backend = destination.backend
    trace = msgspec.structs.replace(TRACE, spans=(msgspec.structs.replace(EVENT, facts={"big": 2**64, "ok": 2**62}),))
    assert backend.send(backend.encode([trace])).answer is Answer.ACKNOWLEDGED
    [span] = destination.arrived()
    values = {key.rpartition(".")[2]: value for key, value in span["attributes"].items()}

    assert values["big"] == str(2**64)
    assert values["ok"] == 2**62


def test_long_content_is_cut_to_the_limit_of_the_destination(destination):
    """Each attribute has at most attribute_max_bytes, is still valid JSON, and its original length is recorded."""
    backend = destination.reopen(attribute_max_bytes=2_000)
    span = msgspec.structs.replace(GENERATION, input="x" * 50_000)
    assert backend.send(backend.encode([msgspec.structs.replace(TRACE, spans=(span,))])).answer is Answer.ACKNOWLEDGED
    backend.close()
    [arrived] = destination.arrived()
    cut = {key.removeprefix("turnspan.truncated.") for key in arrived["attributes"] if "truncated" in key}

    assert cut
    for key in cut:
        assert 1_900 < len(arrived["attributes"][key]) <= 2_000
        json.loads(arrived["attributes"][key])
        assert arrived["attributes"][f"turnspan.truncated.{key}"] > 50_000


def test_a_request_over_the_limit_is_too_large(destination):
    """It is not sent: the caller splits it."""
    backend = destination.reopen(max_request_bytes=10_000)
    verdict = backend.send(b"\0" * 10_001)
    backend.close()

    assert backend.max_request_bytes == 10_000
    assert verdict.answer is Answer.TOO_LARGE
    assert destination.arrived() == []


def test_sending_again_sends_the_same_identities(destination):
    """After an unknown outcome a retry repeats ids and start times: a store keeps one of each."""
    backend = destination.backend
    body = backend.encode([TRACE])
    for _ in range(3):
        assert backend.send(body).answer is Answer.ACKNOWLEDGED
    keys = {(span["trace_id"], span["span_id"], span["start_ns"]) for span in destination.arrived()}

    assert len(keys) == len(TRACE.spans)


def test_a_backend_can_be_closed_twice_and_is_opened_without_connecting(destination):
    """Opening makes no connection; closing is always safe."""
    other = destination.reopen()
    other.close()
    other.close()

    assert destination.arrived() == []


def test_times_are_the_transcripts(destination):
    """An old turn arrives with its original times."""
    backend = destination.backend
    span = msgspec.structs.replace(TURN, start_ns=1, end_ns=2, links=())
    assert backend.send(backend.encode([msgspec.structs.replace(TRACE, spans=(span,))])).answer is Answer.ACKNOWLEDGED
    [arrived] = destination.arrived()

    assert (arrived["start_ns"], arrived["end_ns"]) == (1, 2)


def test_unknown_settings_are_errors(destination):
    """A misspelt setting is not silently the default."""
    with pytest.raises(ConfigError, match="unknown setting 'atribute_max_bytes'"):
        destination.reopen(atribute_max_bytes=1000)


# ---- abilities


@pytest.fixture
def able(destination, kind):
    """Skip what the backend cannot do."""

    def need(ability):
        if ability not in ABILITIES[kind]:
            pytest.skip(f"{kind} does not have this ability")
        return destination.backend

    return need


def test_abilities_are_found_by_isinstance(destination, kind):
    """A command asks the object; nothing depends on the name of its type."""
    found = {
        ability for ability in (Probeable, Readable, Linkable, Erasable) if isinstance(destination.backend, ability)
    }

    assert found == ABILITIES[kind]


def test_stored_is_what_was_sent(destination, able):
    """Exactly the spans of the trace; an unknown trace has none, which is not the same as no answer."""
    backend = able(Readable)
    assert backend.stored(TRACE.trace_id) == frozenset()
    backend.send(backend.encode([TRACE, small_trace(1)]))

    assert backend.stored(TRACE.trace_id) == {span.span_id for span in TRACE.spans}
    assert backend.stored(small_trace(1).trace_id) == {small_trace(1).spans[0].span_id}
    assert backend.stored(small_trace(2).trace_id) == frozenset()
    destination.reopen().send(backend.encode([small_trace(2)]))  # by another process
    assert backend.stored(small_trace(2).trace_id) == {small_trace(2).spans[0].span_id}


def test_no_answer_is_none_with_a_reason_and_is_not_asked_for_forever(destination, able):
    """A destination that cannot be read is unknown, not empty."""
    backend = able(Readable)
    destination.disappear()
    pauses = []
    reader = reader_of(backend, pauses.append)

    assert [reader.stored(small_trace(n).trace_id) for n in range(20)] == [None] * 20
    assert reader.silence
    assert len(pauses) < 20


def test_erase_deletes_the_session_and_nothing_else(able):
    """By the ids that are known here, and by the session; a second time there is nothing to delete."""
    backend = able(Erasable)
    other = msgspec.structs.replace(small_trace(1), session_id="another-session")
    backend.send(backend.encode([TRACE, small_trace(2), other]))
    erased = backend.erase(TRACE.session_id, [TRACE.trace_id])

    assert (erased.number, erased.is_complete) == (2, True)
    assert backend.stored(TRACE.trace_id) == backend.stored(small_trace(2).trace_id) == frozenset()
    assert backend.stored(other.trace_id)
    assert backend.erase(TRACE.session_id, []).number == 0


def test_erase_of_a_destination_that_is_down_is_an_error(destination, able):
    """One of ours, with a sentence."""
    backend = able(Erasable)
    destination.disappear()

    with pytest.raises(TurnspanError):
        backend.erase(TRACE.session_id, [TRACE.trace_id])


def test_a_probe_says_whether_it_can_be_used_and_stores_nothing(destination, kind):
    """Good with a sentence; without the destination not good, with what to do. An SDK exporter knows only by sending."""
    backend = destination.backend
    found = probe(backend)
    assert (found.outcome, found.answer) == (Outcome.GOOD, Answer.ACKNOWLEDGED)
    assert found.says
    assert {finding.outcome for finding in found.findings} == {Outcome.GOOD}
    assert (found.version, found.project) == (("4.1.0", "loom") if kind == "langfuse" else ("", ""))
    assert destination.arrived() == []
    if kind == "sdk":
        return
    destination.disappear()
    found = probe(backend)
    assert found.outcome is not Outcome.GOOD
    assert found.says
    assert found.hint


def test_a_link_is_a_url_and_needs_no_request(destination, able, kind):
    """It names the trace. Langfuse's contains the project, which a probe asks for once and which is remembered."""
    backend = able(Linkable)
    path = "/trace/"
    if kind == "langfuse":
        assert backend.link(TRACE.trace_id) is None
        assert probe(backend).outcome is Outcome.GOOD
        backend, path = destination.reopen(), "/project/p1/traces/"
    destination.disappear()
    link = backend.link(TRACE.trace_id)

    assert link.startswith("http://127.0.0.1:")
    assert link.endswith(f"{path}{TRACE.trace_id.hex()}")
    assert destination.arrived() == []


@pytest.mark.parametrize(
    ("answer", "stored", "silence"),
    [
        (reply(404, b'{"data":null,"errors":[{"code":404,"msg":"trace not found"}]}'), frozenset(), ""),
        (reply(404, b"<html>not found</html>", "text/html"), None, "check `query_url`"),
        (reply(404, b"{}"), None, "check `query_url`"),
        (reply(404, b"404 page not found"), None, "check `query_url`"),
    ],
)
def test_a_404_that_is_not_jaegers_is_a_wrong_url(answer, stored, silence, tmp_path):
    """Only Jaeger's own answer says that a trace is not there; any other 404 says nothing about it."""
    with HttpServer(answer) as server:
        settings = {"endpoint": "http://127.0.0.1:1", "query_url": server.url}
        backend = otlp.open_backend(settings, name="here", home=tmp_path)
        assert backend.stored(TRACE.trace_id) == stored
        assert silence in backend.silence
        backend.close()


def test_a_probe_says_that_query_url_is_wrong(tmp_path):
    """Traces can be sent without the query service, so that is a warning with what to check."""
    with HttpServer(Store()) as server, HttpServer(reply(404)) as other:
        settings = {"endpoint": server.url, "query_url": other.url}
        backend = otlp.open_backend(settings, name="here", home=tmp_path)
        found = probe(backend)
        backend.close()
    assert found.outcome is Outcome.GOOD
    assert found.findings[-1].outcome is Outcome.UNKNOWN
    assert "HTTP 404" in found.findings[-1].says
    assert "query_url" in found.findings[-1].hint


def test_a_jaeger_trace_of_many_megabytes_is_read(tmp_path):
    """Jaeger returns a trace with all its content, which may be more than a response to an export can be."""
    span = {"spanID": TURN.span_id.hex(), "tags": [{"value": "x" * 6_000_000}]}
    answer = reply(200, json.dumps({"data": [{"spans": [span]}]}).encode())
    with HttpServer(answer) as server:
        settings = {"endpoint": server.url, "query_url": f"{server.url}/jaeger/"}
        backend = otlp.open_backend(settings, name="here", home=tmp_path)
        assert backend.stored(TRACE.trace_id) == {TURN.span_id}
        backend.close()
        assert server.requests[0].path == f"/jaeger/api/traces/{TRACE.trace_id.hex()}"


def test_the_http_path_imports_no_sdk():
    """Sending over HTTP loads the OTLP messages and the standard library, not the SDK, requests or grpc."""
    program = """
import pathlib, sys
from turnspan.backends.langfuse import open_backend
from turnspan.backends.otlp import open_backend
backend = open_backend({"endpoint": "http://127.0.0.1:1"}, name="x", home=pathlib.Path("."))
backend.send(b"x")
heavy = {"opentelemetry.sdk", "opentelemetry.exporter", "requests", "httpx", "grpc", "langfuse", "asyncio"}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "[]"
