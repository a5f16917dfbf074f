import json

import msgspec
import pytest
from opentelemetry.semconv._incubating.attributes import gen_ai_attributes

from backends.samples import AGENT, EVENT, GENERATION, SESSION, TOOL, TRACE, TURN
from turnspan.backends.genai import GenAI
from turnspan.backends.otlp_json import decode_line, encode_lines
from turnspan.backends.settings import Capture
from turnspan.trace.model import Json, Message, Reasoning, Text, ToolCall, Usage

PLAIN = GenAI(Capture())
CONFIGURED = GenAI(Capture(user_id="me@example.org", environment="staging", tags=("team-a", "work")))


def of(span, naming=PLAIN):
    """Return all attributes of one span."""
    return {**naming.of_trace(TRACE), **naming.of_span(TRACE, span)}


def test_every_span_has_its_session_and_kind():
    """Each span has session, conversation, operation and kind, and the user and tags if configured."""
    operations = {
        span.kind: (of(span)["gen_ai.operation.name"], of(span)["openinference.span.kind"]) for span in TRACE.spans
    }

    assert operations == {
        "turn": ("invoke_agent", "AGENT"),
        "generation": ("chat", "LLM"),
        "tool": ("execute_tool", "TOOL"),
        "agent": ("invoke_agent", "AGENT"),
        "event": ("event", "CHAIN"),
    }
    for span in TRACE.spans:
        assert of(span)["session.id"] == of(span)["gen_ai.conversation.id"] == SESSION
        assert "user.id" not in of(span)
        assert of(span, CONFIGURED)["user.id"] == "me@example.org"
        assert of(span, CONFIGURED)["tag.tags"] == ("work", "team-a")
    assert CONFIGURED.resource(TRACE)["deployment.environment.name"] == "staging"


def test_a_generation_follows_the_conventions():
    """Model, ids, usage with cached tokens included, finish reasons, time to first token, cost."""
    attributes = of(GENERATION)

    assert attributes["gen_ai.provider.name"] == "anthropic"
    assert attributes["gen_ai.request.model"] == "claude-sonnet-4-5"
    assert attributes["gen_ai.response.model"] == "claude-sonnet-4-5[1m]"
    assert attributes["gen_ai.response.id"] == "msg_1"
    assert attributes["anthropic.request.id"] == "req_1"
    assert attributes["gen_ai.request.max_tokens"] == 32000
    assert attributes["gen_ai.response.finish_reasons"] == ("tool_call",)
    assert attributes["gen_ai.usage.input_tokens"] == 3 + 1000 + 200 + 50
    assert attributes["gen_ai.usage.output_tokens"] == 70
    assert attributes["gen_ai.usage.cache_read.input_tokens"] == 1000
    assert attributes["gen_ai.usage.cache_creation.input_tokens"] == 250
    assert attributes["turnspan.usage.cache_creation_5m"] == 200
    assert attributes["turnspan.usage.cache_creation_1h"] == 50
    assert attributes["gen_ai.response.time_to_first_chunk"] == 0.25
    assert attributes["turnspan.cost.usd"] == 0.0625
    assert attributes["turnspan.effort"] == "high"
    assert attributes["turnspan.time.inferred"] == "start"
    assert attributes["input.value"] == attributes["gen_ai.input.messages"]
    assert attributes["output.mime_type"] == "application/json"
    assert "turnspan.usage.incomplete" not in attributes
    assert "gen_ai.tool.name" not in attributes


def test_incomplete_usage_is_marked():
    """Usage that the client never completed is marked as such."""
    span = msgspec.structs.replace(GENERATION, usage=Usage(1, 1, is_incomplete=True, web_searches=2))

    assert of(span)["turnspan.usage.incomplete"] is True
    assert of(span)["turnspan.usage.web_searches"] == 2


def test_a_tool_call_has_its_arguments_and_its_result():
    """A tool span has its name, id, arguments as JSON, result as text, and the type of its error."""
    attributes = of(TOOL)

    assert attributes["gen_ai.tool.name"] == "Bash"
    assert attributes["gen_ai.tool.type"] == "function"
    assert attributes["gen_ai.tool.call.id"] == "toolu_1"
    assert attributes["gen_ai.tool.call.arguments"] == attributes["input.value"] == '{"command":"ls"}'
    assert attributes["gen_ai.tool.call.result"] == attributes["output.value"] == "a.txt\nb.txt"
    assert (attributes["input.mime_type"], attributes["output.mime_type"]) == ("application/json", "text/plain")
    assert attributes["error.type"] == "tool_error"
    assert attributes["turnspan.exit_code"] == 1


def test_arguments_that_are_not_json_are_plain_text():
    """The MIME type of invalid JSON is text/plain."""
    assert of(msgspec.structs.replace(TOOL, input=Json("{oops")))["input.mime_type"] == "text/plain"


def test_a_turn_has_text_messages_sums_and_the_facts_of_its_trace():
    """Sums have names of our own, so that no backend adds them up again."""
    attributes = of(TURN)

    assert attributes["gen_ai.agent.name"] == "claude-code"
    assert attributes["input.value"] == "List the files, please."
    assert attributes["input.mime_type"] == "text/plain"
    assert json.loads(attributes["gen_ai.input.messages"]) == [
        {"role": "user", "parts": [{"type": "text", "content": "List the files, please."}]}
    ]
    [answer] = json.loads(attributes["gen_ai.output.messages"])
    assert answer["finish_reason"] == "stop"
    assert attributes["turnspan.usage.input"] == 30
    assert attributes["turnspan.usage.cache_read"] == 4000
    assert attributes["turnspan.cost.usd"] == 0.125
    assert attributes["turnspan.cwd"] == "/home/me/project"
    assert attributes["turnspan.interrupted"] is True
    assert "error.type" not in attributes
    assert not any(key.startswith("gen_ai.usage.") for key in attributes)


def test_facts_of_the_trace_are_on_the_turn_only():
    """They are not repeated on other spans."""
    for span in (GENERATION, TOOL, AGENT, EVENT):
        assert "turnspan.cwd" not in of(span)


def test_a_subagent_has_its_own_name_id_and_sums():
    """A subagent is distinguished from the agent of the turn."""
    attributes = of(AGENT)

    assert attributes["gen_ai.agent.name"] == "Explore"
    assert attributes["gen_ai.agent.id"] == "agent-7"
    assert attributes["gen_ai.agent.description"] == "finds things"
    assert attributes["turnspan.depth"] == 1
    assert attributes["turnspan.usage.cache_creation_1h"] == 5
    assert attributes["turnspan.usage.incomplete"] is True
    assert not any(key.startswith("gen_ai.usage.") for key in attributes)


def test_an_event_is_not_a_call_a_tool_or_an_agent():
    """A compaction is not counted as a call of the model."""
    assert of(EVENT)["gen_ai.operation.name"] not in ("chat", "execute_tool", "invoke_agent")


def test_a_known_fact_on_another_kind_of_span_has_our_own_name():
    """The agent id of a tool call is the agent it started, so it is not gen_ai.agent.id."""
    span = msgspec.structs.replace(TOOL, facts={"agent_id": "a1", "response_id": "m"})

    assert of(span)["turnspan.agent_id"] == "a1"
    assert "gen_ai.agent.id" not in of(span)
    assert of(span)["turnspan.response_id"] == "m"


def test_content_of_a_turn_that_is_more_than_text_is_json():
    """Text is exported as text, thinking and calls as messages."""
    words = (Message("user", (Text("one"), Text("two"))),)
    more = (Message("assistant", (Reasoning("hm"), Text("two"))),)

    assert of(msgspec.structs.replace(TURN, input=words))["input.value"] == "one\n\ntwo"
    attributes = of(msgspec.structs.replace(TURN, output=more))
    assert attributes["output.mime_type"] == "application/json"
    assert json.loads(attributes["output.value"])[0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("pattern", "cwd", "name"),
    [
        ("", "/home/ada/loom", "claude-code"),
        ("agents", "/home/ada/loom", "agents"),
        ("{project}", "/home/ada/loom/", "loom"),
        ("claude/{project}", "C:\\ada\\loom", "claude/loom"),
        ("{project}", "", "claude-code"),
    ],
)
def test_the_service_can_be_named_after_the_project(pattern, cwd, name):
    """Jaeger lists services. Without a known directory, as in `metadata` mode, the default is used."""
    trace = msgspec.structs.replace(TRACE, facts={"cwd": cwd})

    assert GenAI(Capture(service_name=pattern)).resource(trace)["service.name"] == name


def test_a_host_is_a_resource_attribute_and_a_tag():
    """Without the setting nothing names the machine, and `host.id` is the same everywhere."""
    named, unnamed = GenAI(Capture(host="laptop")), GenAI(Capture())

    assert named.resource(TRACE)["host.name"] == "laptop"
    assert "host:laptop" in named.of_trace(TRACE)["tag.tags"]
    assert "host.name" not in unnamed.resource(TRACE)
    assert named.resource(TRACE)["host.id"] == unnamed.resource(TRACE)["host.id"] == "turnspan"


def test_the_cost_of_a_generation_has_the_name_that_langfuse_reads():
    """Behind a collector Langfuse has no other cost for models that it does not know; sums are not repeated."""
    naming = GenAI(Capture())

    assert naming.of_span(TRACE, GENERATION)["gen_ai.usage.cost"] == GENERATION.cost_usd
    assert not any(
        "gen_ai.usage.cost" in naming.of_span(TRACE, s) for s in TRACE.spans if s.kind is not s.kind.GENERATION
    )


def test_a_name_that_occurs_twice_has_the_later_value():
    """A fact with the name of an attribute replaces it, at its place."""
    span = msgspec.structs.replace(GENERATION, facts={"cost.usd": 7, "a": "b"})
    names = list(PLAIN.of_span(TRACE, span))

    assert of(span)["turnspan.cost.usd"] == 7
    assert len(set(names)) == len(names)
    assert names.index("turnspan.cost.usd") < names.index("turnspan.a")


def test_counts_that_are_too_large_are_text():
    """Counts past 63 bits do not make the request invalid."""
    span = msgspec.structs.replace(GENERATION, usage=Usage(input=2**63, output=5))

    assert of(span)["gen_ai.usage.input_tokens"] == str(2**63)
    assert of(span)["gen_ai.usage.output_tokens"] == 5


@pytest.mark.parametrize("space", ["", " ", "\t", "\n", "\r", "\r\n\t"])
def test_messages_arrive_in_local_files_as_they_were_encoded(space):
    """Quotes, backslashes and the spaces of embedded arguments are escaped in a line of JSON."""
    call = ToolCall("t", "Bash", f'{{{space}"command":{space}"echo \\"é\\\\n\\""}}')
    span = msgspec.structs.replace(GENERATION, output=(Message("assistant", (Text('a "b"\n\\ \x7f'), call)),))
    trace = msgspec.structs.replace(TRACE, spans=(span,))
    [arrived] = decode_line(encode_lines([trace], PLAIN))

    assert arrived["attributes"]["gen_ai.output.messages"] == of(span)["gen_ai.output.messages"]
    assert json.loads(of(span)["output.value"])[0]["parts"][1]["arguments"] == {"command": 'echo "é\\n"'}


# ---- the newest conventions


def with_facts(span, **facts):
    """Return a span with more facts."""
    return msgspec.structs.replace(span, facts={**span.facts, **facts})


def test_the_provider_is_known_by_the_id_of_a_response():
    """Generations, turns and agents have it, and turns and agents the model that was asked for."""
    assert of(GENERATION)["gen_ai.provider.name"] == "anthropic"
    for span in (GENERATION, TURN, AGENT):
        attributes = of(with_facts(span, provider="aws.bedrock", request_model="claude-opus-4-5"))
        assert attributes["gen_ai.provider.name"] == "aws.bedrock"
        assert attributes["gen_ai.request.model"] == "claude-opus-4-5"


def test_facts_that_the_conventions_know_have_their_name_as_well():
    """The reasoning level, the skill, the method of MCP, streaming and compaction."""
    assert of(GENERATION)["gen_ai.request.stream"] is True
    assert "gen_ai.request.stream" not in of(msgspec.structs.replace(GENERATION, first_token_ns=None))
    said = of(with_facts(GENERATION, effort="high", compacted=True))
    assert (said["gen_ai.request.reasoning.level"], said["turnspan.effort"]) == ("high", "high")
    assert said["gen_ai.conversation.compacted"] is True
    tool = of(with_facts(TOOL, skill="pdf", mcp_server="github"))
    assert (tool["gen_ai.skill.name"], tool["turnspan.skill"]) == ("pdf", "pdf")
    assert (tool["mcp.method.name"], tool["turnspan.mcp_server"]) == ("tools/call", "github")
    assert not {"mcp.method.name", "gen_ai.skill.name"} & of(TOOL).keys()


def test_cache_writes_have_the_name_of_the_installed_conventions():
    """If this fails, the conventions have renamed it: see `_CACHE_WRITE` for who must read the new name first."""
    known = {value for name, value in vars(gen_ai_attributes).items() if name.startswith("GEN_AI_USAGE_CACHE")}

    assert {name for name in of(GENERATION) if name.startswith("gen_ai.usage.cache_")} == known
