import base64
import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import msgspec
import pytest

from backends.langfuse_records import observation
from backends.samples import AGENT, EVENT, GENERATION, SESSION, TOOL, TRACE, TURN, small_trace
from backends.servers import OK, Certificates, HttpServer, reply
from turnspan.backends import Answer, langfuse_api
from turnspan.backends.langfuse import LangfuseNaming, open_backend
from turnspan.backends.settings import Capture
from turnspan.errors import BackendError, ConfigError
from turnspan.settings.options import LANGFUSE_REGIONS
from turnspan.trace.model import Usage

KEYS = {"public_key": "pk-lf-1234", "secret_key": "sk-lf-very-secret"}
SPELLING = LangfuseNaming(Capture(user_id="me", environment="dev", tags=("t" * 300,)), "v1.2")


def of(span):
    """Return all attributes of one span."""
    return {**SPELLING.of_trace(TRACE), **SPELLING.of_span(TRACE, span)}


def test_attributes_of_the_trace_are_on_every_span():
    """Name, session, user, tags, environment, release, version and metadata, flat."""
    for span in TRACE.spans:
        attributes = of(span)

        assert attributes["langfuse.trace.name"] == "Turn 3"
        assert attributes["langfuse.session.id"] == attributes["session.id"] == SESSION
        assert attributes["langfuse.user.id"] == attributes["user.id"] == "me"
        assert attributes["langfuse.trace.tags"] == ("work", "t" * 200)
        assert attributes["langfuse.environment"] == "dev"
        assert attributes["langfuse.release"] == "v1.2"
        assert attributes["langfuse.version"] == "2.1.325"
        assert attributes["langfuse.trace.metadata.git_branch"] == "main"


def test_every_kind_has_its_type():
    """Langfuse shows each kind with its own icon."""
    types = [of(span)["langfuse.observation.type"] for span in TRACE.spans]

    assert types == ["agent", "generation", "tool", "agent", "event"]


def test_a_generation_has_model_usage_cost_and_first_token():
    """No token is counted under two keys; the model is named as the price list knows it."""
    attributes = of(GENERATION)

    assert attributes["langfuse.observation.model.name"] == "claude-sonnet-4-5"
    assert json.loads(attributes["langfuse.observation.model.parameters"]) == {"max_tokens": 32000, "effort": "high"}
    assert json.loads(attributes["langfuse.observation.usage_details"]) == {
        "input": 3,
        "output": 70,
        "cache_read_input_tokens": 1000,
        "input_cache_creation_5m": 200,
        "input_cache_creation_1h": 50,
    }
    assert json.loads(attributes["langfuse.observation.cost_details"]) == {"total": 0.0625}
    assert attributes["langfuse.observation.completion_start_time"] == "2025-10-09T08:53:21.250000Z"
    assert attributes["gen_ai.response.id"] == "msg_1"
    assert attributes["langfuse.observation.metadata.request_id"] == "req_1"
    assert attributes["langfuse.observation.metadata.time_inferred"] == "start"
    assert json.loads(attributes["langfuse.observation.output"])["tool_calls"][0]["id"] == "toolu_1"
    assert not any(key.startswith("gen_ai.usage.") for key in attributes)


def test_a_generation_without_cost_has_none():
    """An unknown model has no cost, never a wrong one."""
    attributes = of(msgspec.structs.replace(GENERATION, cost_usd=None, usage=None, first_token_ns=None, model=None))

    assert not any("cost" in key or "usage" in key or "completion" in key or "model.name" in key for key in attributes)


def test_incomplete_usage_is_marked():
    """A placeholder is not passed off as a count."""
    attributes = of(msgspec.structs.replace(GENERATION, usage=Usage(1, 2, web_searches=3, is_incomplete=True)))

    assert attributes["langfuse.observation.metadata.usage_incomplete"] is True
    assert attributes["langfuse.observation.metadata.usage_web_searches"] == 3


def test_a_tool_call_has_its_arguments_and_its_plain_result():
    """Arguments as they were, the result as text, which lists show as it is, the error as level and message."""
    attributes = of(TOOL)

    assert json.loads(attributes["langfuse.observation.input"]) == {"command": "ls"}
    assert attributes["langfuse.observation.output"] == "a.txt\nb.txt"
    assert attributes["gen_ai.tool.call.id"] == "toolu_1"
    assert attributes["langfuse.observation.level"] == "ERROR"
    assert attributes["langfuse.observation.status_message"] == "exit code 1"
    assert "gen_ai.tool.name" not in attributes


def test_the_root_has_the_question_and_the_answer():
    """Langfuse takes a trace's input and output from its root, and its lists show them as they are: plain text."""
    attributes = of(TURN)

    assert attributes["langfuse.observation.input"] == "List the files, please."
    assert attributes["langfuse.observation.output"] == "There are two files."
    assert attributes["langfuse.observation.metadata.usage_output"] == 200
    assert attributes["langfuse.observation.metadata.cost_usd"] == 0.125
    assert "langfuse.observation.usage_details" not in attributes


def test_an_agent_and_an_event_have_their_facts():
    """Everything else is metadata."""
    assert of(AGENT)["langfuse.observation.metadata.agent_id"] == "agent-7"
    assert of(EVENT)["langfuse.observation.metadata.trigger"] == "auto"


def test_the_request_is_what_langfuse_documents():
    """Path, basic authentication and the ingestion version."""
    with HttpServer(OK) as server:
        settings = {"base_url": f"{server.url}/sub/", "compression": "gzip", **KEYS}
        backend = open_backend(settings, name="lf", home=None)
        assert backend.send(backend.encode([TRACE])).answer is Answer.ACKNOWLEDGED
        backend.close()
        [request] = server.requests

    assert request.path == "/sub/api/public/otel/v1/traces"
    assert request.headers["authorization"] == "Basic " + base64.b64encode(b"pk-lf-1234:sk-lf-very-secret").decode()
    assert request.headers["x-langfuse-ingestion-version"] == "4"
    assert request.headers["content-encoding"] == "gzip"
    assert [span["span_id"] for span in request.spans] == [span.span_id.hex() for span in TRACE.spans]


def test_an_echoed_key_is_not_quoted():
    """Neither half of the credentials gets into a reason, in clear or encoded."""
    pair = base64.b64encode(b"pk-lf-1234:sk-lf-very-secret").decode()
    body = f"pk-lf-1234 sk-lf-very-secret {pair}".encode()
    with HttpServer(reply(401, body, "text/plain")) as server:
        backend = open_backend({"base_url": server.url, **KEYS}, name="lf", home=None)
        verdict = backend.send(b"")
        backend.close()

    assert verdict.answer is Answer.CREDENTIALS
    assert verdict.reason.endswith("*** *** ***")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"public_key": "pk"}, "'secret_key' is missing"),
        ({"secret_key": "sk"}, "'public_key' is missing"),
        ({**KEYS, "secret_key": "sk\n"}, "'secret_key' is a value that is not shown"),
        ({**KEYS, "environment": "Prod!"}, "'environment' is 'Prod!'"),
        ({**KEYS, "environment": "langfuse-x"}, "'environment'"),
        ({**KEYS, "headers": {"authorization": "x"}}, "without Authorization"),
        ({**KEYS, "base_url": "http://langfuse.example"}, "insecure endpoint"),
        ({**KEYS, "max_request_bytes": 5_000_000}, "max_request_bytes"),
        ({**KEYS, "endpoint": "https://x"}, "unknown setting 'endpoint'"),
    ],
)
def test_wrong_settings_are_sentences(settings, words):
    """Each says which setting, and what it must be; no key is shown."""
    with pytest.raises(ConfigError) as caught:
        open_backend(settings, name="lf", home=None)

    assert words in str(caught.value)
    assert "very-secret" not in str(caught.value)


def _page(*ids, **meta):
    return reply(200, json.dumps({"data": [observation(i) for i in ids], "meta": meta}).encode())


def _stored(*answers):
    with HttpServer(*answers) as server:
        backend = open_backend({"base_url": server.url, **KEYS, "timeout_s": 2}, name="lf", home=None)
        found = backend.stored(small_trace(1).trace_id)
        backend.close()
        return found, [request.path for request in server.requests]


def test_stored_reads_all_pages():
    """After a lost response only the missing spans need to be sent; ids that are not ours are ignored."""
    found, paths = _stored(_page("00" * 8, cursor="a+/="), _page("11" * 8, "not-ours"))

    assert found == {bytes(8), b"\x11" * 8}
    trace_id = small_trace(1).trace_id.hex()
    assert paths == [
        f"/api/public/v2/observations?fields=core&limit=1000&traceId={trace_id}",
        f"/api/public/v2/observations?fields=core&limit=1000&cursor=a%2B%2F%3D&traceId={trace_id}",
    ]


def test_a_server_before_v4_is_asked_at_its_own_paths():
    """Version 3 answers the new path with 404."""
    found, paths = _stored(reply(404), _page("00" * 8, totalPages=2), _page("11" * 8, totalPages=2))

    assert found == {bytes(8), b"\x11" * 8}
    assert [path.partition("?")[0] for path in paths[1:]] == ["/api/public/observations"] * 2
    assert paths[2].endswith("&page=2")


def _hang(_connection, _request):
    threading.Event().wait(5)


def _drip(connection, _request):
    connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
    for _ in range(200):
        connection.sendall(b" ")
        threading.Event().wait(0.05)


UNUSABLE = {
    "server error": (reply(500), "HTTP 500"),
    "echoed key": (reply(401, b"sk-lf-very-secret"), "HTTP 401: the server refused the credentials: ***"),
    "not there": (reply(404), "HTTP 404: the Langfuse API is not there"),
    "redirect": (reply(302, Location="https://elsewhere.example/x?token=1"), "redirects are not followed"),
    "page": (reply(200, b"<html>", "text/html"), "the response of Langfuse cannot be read"),
    "nothing": (reply(200), "the response of Langfuse cannot be read"),
    "list": (reply(200, b"[]"), "the response of Langfuse cannot be read"),
    "wrong types": (reply(200, b'{"data":[{"id":1}]}'), "the response of Langfuse cannot be read"),
    "not text": (reply(200, b'{"data":[{"id":"\xff"}]}'), "the response of Langfuse cannot be read"),
    "deep": (reply(200, b"[" * 100_000), "the response of Langfuse cannot be read"),
    "cut off": (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{}", "HTTP 200"),
    "hangs": (_hang, "no answer from"),
    "drips": (_drip, "HTTP 200"),
}


@pytest.mark.parametrize(("answer", "words"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_response_is_unknown(answer, words):
    """No usable response is not an empty one: within the deadline there is a reason, without any secret."""
    started = time.monotonic()
    with HttpServer(answer) as server:
        backend = open_backend({"base_url": server.url, **KEYS, "timeout_s": 0.5}, name="lf", home=None)
        assert backend.stored(small_trace(1).trace_id) is None
        with pytest.raises(BackendError) as caught:
            backend.erase("a-session", [])
        probe = backend.probe()
        backend.close()

    assert time.monotonic() - started < 8
    assert words in backend.silence
    assert words in str(caught.value)
    assert probe.answer is not Answer.ACKNOWLEDGED or words == "the response of Langfuse cannot be read"
    assert "very-secret" not in f"{backend.silence} {caught.value} {probe}"
    assert "token" not in f"{backend.silence} {caught.value} {probe}"


@pytest.mark.parametrize("meta", [{"cursor": "again"}, {"totalPages": 10**9}], ids=["v4", "v3"])
def test_pages_without_an_end_end(meta, monkeypatch):
    """A server that always names another page is not asked forever."""
    monkeypatch.setattr(langfuse_api, "_MAX_PAGES", 7)
    first = [reply(404)] if "totalPages" in meta else []
    found, paths = _stored(*first, _page("00" * 8, **meta))

    assert found is None
    assert len(paths) == 7 + len(first)


def test_a_certificate_and_a_proxy_are_used_for_the_api_too(tmp_path):
    """API requests use the same certificates and the same proxy as traces."""
    certificates = Certificates(tmp_path)
    pair = certificates.sign("langfuse-api")
    with HttpServer(_page("00" * 8), tls=certificates.server_context(*pair)) as server:
        settings = {"base_url": server.url, **KEYS, "timeout_s": 2}
        untrusted = open_backend(settings, name="lf", home=None)
        assert untrusted.stored(small_trace(1).trace_id) is None
        assert "TLS with localhost" in untrusted.silence
        backend = open_backend({**settings, "certificate": certificates.ca}, name="lf", home=None)
        assert backend.stored(small_trace(1).trace_id) == {bytes(8)}
        untrusted.close()
        backend.close()
    with HttpServer(_page("00" * 8)) as proxy:
        settings = {"base_url": "http://127.0.0.1:9", "proxy": f"http://127.0.0.1:{proxy.port}", **KEYS}
        backend = open_backend(settings, name="lf", home=None)
        assert backend.stored(small_trace(1).trace_id) == {bytes(8)}
        backend.close()
        assert proxy.requests[0].path.startswith("http://127.0.0.1:9/api/public/v2/observations?")


def test_the_environment_changes_nothing(monkeypatch, tmp_path):
    """Neither a proxy nor a netrc file nor Langfuse's own variables change an API request."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login eve password evil\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "LANGFUSE_BASE_URL", "LANGFUSE_HOST"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-other")
    with HttpServer(_page("00" * 8)) as server:
        backend = open_backend({"base_url": server.url, **KEYS, "headers": {"x-team": "loom"}}, name="lf", home=None)
        assert backend.stored(small_trace(1).trace_id) == {bytes(8)}
        backend.close()
        [request] = server.requests

    pair = base64.b64encode(f"{KEYS['public_key']}:{KEYS['secret_key']}".encode()).decode()
    assert request.headers["authorization"] == f"Basic {pair}"
    assert request.headers["x-team"] == "loom"
    assert request.headers["user-agent"].startswith("turnspan/")


def test_asking_langfuse_starts_no_thread_and_sets_up_no_telemetry():
    """Only the generated client of the package is used."""
    program = """
import json, sys, threading
sys.path.insert(0, sys.argv[1])
from backends.servers import HttpServer, reply
from turnspan.backends.langfuse import open_backend
with HttpServer(reply(200, json.dumps({"data": [], "meta": {}}).encode())) as server:
    before = threading.active_count()
    keys = {"public_key": "pk-lf-1234", "secret_key": "sk-lf-very-secret"}
    backend = open_backend({"base_url": server.url, **keys}, name="lf", home=None)
    loaded = "langfuse" in sys.modules
    assert backend.stored(bytes(16)) == frozenset()
    names = sorted(thread.name for thread in threading.enumerate() if not thread.daemon)
from opentelemetry import trace
print(loaded, names, type(trace.get_tracer_provider()).__name__)
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(__file__).parents[1])],
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip

    assert done.stdout.strip() == "False ['MainThread'] ProxyTracerProvider"


def test_an_unknown_trace_is_empty():
    """Nothing stored is an answer."""
    assert _stored(_page())[0] == frozenset()


@pytest.mark.parametrize(("name", "url"), LANGFUSE_REGIONS)
def test_the_hint_about_unknown_keys_names_every_other_region(name, url):
    """Keys of Japan are unknown in Europe: the hint has the address to set, and not the one that is set."""
    hint = langfuse_api.wrong_keys_hint(url)

    assert hint.endswith(f"({', '.join(other for region, other in LANGFUSE_REGIONS if region != name)})")
