import base64
import json

import msgspec
import pytest

from backends.langfuse_records import observation
from backends.samples import AGENT, EVENT, GENERATION, SESSION, TOOL, TRACE, TURN, small_trace
from backends.servers import OK, HttpServer, reply
from turnspan.backends import Answer
from turnspan.backends.langfuse import LangfuseSpelling, open_backend
from turnspan.backends.settings import Capture
from turnspan.errors import ConfigError
from turnspan.trace.model import Usage

KEYS = {"public_key": "pk-lf-1234", "secret_key": "sk-lf-very-secret"}
SPELLING = LangfuseSpelling(Capture(user_id="me", environment="dev", tags=("t" * 300,)), "v1.2")


def of(span):
    """All attributes of one span."""
    return {**SPELLING.of_trace(TRACE), **SPELLING.of_span(TRACE, span)}


def test_what_describes_the_trace_is_on_every_span():
    """Name, session, person, tags, environment, release, version and metadata, flat."""
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
    """Langfuse draws each kind with its own sign."""
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


def test_a_tool_call_has_json_on_both_sides():
    """Arguments as they were, the result as a JSON string, the error as level and message."""
    attributes = of(TOOL)

    assert json.loads(attributes["langfuse.observation.input"]) == {"command": "ls"}
    assert json.loads(attributes["langfuse.observation.output"]) == "a.txt\nb.txt"
    assert attributes["gen_ai.tool.call.id"] == "toolu_1"
    assert attributes["langfuse.observation.level"] == "ERROR"
    assert attributes["langfuse.observation.status_message"] == "exit code 1"
    assert "gen_ai.tool.name" not in attributes


def test_the_root_carries_what_was_asked_and_answered():
    """Langfuse takes a trace's input and output from its root."""
    attributes = of(TURN)

    assert json.loads(attributes["langfuse.observation.input"]) == [
        {"role": "user", "content": "List the files, please."}
    ]
    assert json.loads(attributes["langfuse.observation.output"]) == {
        "role": "assistant",
        "content": "There are two files.",
    }
    assert attributes["langfuse.observation.metadata.usage_output"] == 200
    assert attributes["langfuse.observation.metadata.cost_usd"] == 0.125
    assert "langfuse.observation.usage_details" not in attributes


def test_an_agent_and_an_event_have_their_facts():
    """Everything else is metadata."""
    assert of(AGENT)["langfuse.observation.metadata.agent_id"] == "agent-7"
    assert of(EVENT)["langfuse.observation.metadata.trigger"] == "auto"


def test_the_request_is_what_langfuse_asks_for():
    """Path, basic authentication and the ingestion version."""
    with HttpServer(OK) as server:
        backend = open_backend({"base_url": f"{server.url}/sub/", **KEYS}, name="lf", home=None)
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


def test_what_langfuse_holds_can_be_asked():
    """After a lost answer only what is missing need be sent; all pages are read."""
    found, paths = _stored(_page("00" * 8, cursor="a+/="), _page("11" * 8, "not-ours"))

    assert found == {bytes(8), b"\x11" * 8}
    trace_id = small_trace(1).trace_id.hex()
    assert paths == [
        f"/api/public/v2/observations?fields=core&limit=1000&traceId={trace_id}",
        f"/api/public/v2/observations?fields=core&limit=1000&cursor=a%2B%2F%3D&traceId={trace_id}",
    ]


def test_an_older_langfuse_is_asked_its_own_way():
    """Version 3 does not know the new path."""
    found, paths = _stored(reply(404), _page("00" * 8, totalPages=2), _page("11" * 8, totalPages=2))

    assert found == {bytes(8), b"\x11" * 8}
    assert [path.partition("?")[0] for path in paths[1:]] == ["/api/public/observations"] * 2
    assert paths[2].endswith("&page=2")


@pytest.mark.parametrize("answer", [reply(500), reply(200, b"<html>"), reply(200, b'{"data":[{"id":1}]}')])
def test_what_langfuse_cannot_say_is_unknown(answer):
    """No answer is not the same as an empty one."""
    assert _stored(answer)[0] is None


def test_a_trace_langfuse_does_not_hold_is_empty():
    """Nothing stored is an answer."""
    assert _stored(_page())[0] == frozenset()
