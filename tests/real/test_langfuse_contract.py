"""How Langfuse's server reads our spans, attribute by attribute, for every story.

`Observation` reads a decoded OTLP span in the way that Langfuse documents (its OpenTelemetry page, "property mapping") and
its ingestion does: which attribute wins, what is parsed as JSON, what is dropped. What comes out is compared with the
spans themselves, so a name that Langfuse does not know, or a value in a form that it drops, is a difference.
"""

import json
import re
from collections import Counter
from datetime import datetime

import pytest
from backends.servers import spans_in
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from real.homes import STORIES, copy_stories
from turnspan.delivery.destinations import Target
from turnspan.settings.config import load_config
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions

TYPES = {"span", "generation", "event", "agent", "tool", "chain", "retriever", "embedding", "evaluator", "guardrail"}
TYPE_OF = {"turn": "agent", "generation": "generation", "tool": "tool", "agent": "agent", "event": "event"}
LEVELS = {"DEBUG", "DEFAULT", "WARNING", "ERROR"}
# The span's name gives way to these, wherever they come from.
RENAMING = ("gen_ai.tool.name", "logfire.msg", "ai.toolCall.name", "ai.operationId")
PRICED = {  # keys that the price list of Claude models on a Langfuse server knows
    "input", "output", "cache_read_input_tokens", "input_cache_creation_5m", "input_cache_creation_1h",
}  # fmt: skip


class Observation:
    """A span as Langfuse stores it."""

    def __init__(self, span):
        self.id, self.trace_id, self.parent_id = span["span_id"], span["trace_id"], span["parent_span_id"] or None
        self.attributes = span["attributes"]
        self.resource = span["resource"]
        self.start_ns, self.end_ns = span["start_ns"], span["end_ns"]
        self.name = self.first(*RENAMING) or span["name"]
        self.type = self.attributes.get("langfuse.observation.type", "span")
        self.level = self.attributes.get("langfuse.observation.level") or (
            "ERROR" if span["status"] == 2 else "DEFAULT"
        )
        self.status_message = self.attributes.get("langfuse.observation.status_message", span["status_message"])
        self.session_id = self.first("langfuse.session.id", "session.id", "gen_ai.conversation.id")
        self.user_id = self.first("langfuse.user.id", "user.id")
        self.trace_name = self.attributes.get("langfuse.trace.name")
        self.tags = self.attributes.get("langfuse.trace.tags", [])
        self.environment = self.first("langfuse.environment", "deployment.environment.name") or "default"
        self.version = self.attributes.get("langfuse.version", self.resource.get("service.version"))
        self.release = self.attributes.get("langfuse.release")
        self.model = self.first("langfuse.observation.model.name", "gen_ai.response.model", "gen_ai.request.model")
        self.parameters = self.parsed("langfuse.observation.model.parameters")
        self.usage = self.parsed("langfuse.observation.usage_details")
        self.cost = self.parsed("langfuse.observation.cost_details")
        self.completion_start = self.attributes.get("langfuse.observation.completion_start_time")
        self.input = self.attributes.get("langfuse.observation.input")
        self.output = self.attributes.get("langfuse.observation.output")
        self.of_observation = self.below("langfuse.observation.metadata.")
        self.of_trace = self.below("langfuse.trace.metadata.")

    def first(self, *names):
        """Return the first of some attributes that is not empty."""
        return next((self.attributes[name] for name in names if self.attributes.get(name)), None)

    def parsed(self, name):
        """Return the value of a JSON text; an empty dict if there is none."""
        return json.loads(self.attributes[name]) if name in self.attributes else {}

    def below(self, prefix):
        """Return the metadata under a prefix."""
        return {key.removeprefix(prefix): value for key, value in self.attributes.items() if key.startswith(prefix)}


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    """(trace, span, observation) of every story, encoded for Langfuse and decoded again."""
    base = tmp_path_factory.mktemp("langfuse")
    projects = base / "claude" / "projects"
    copy_stories(STORIES, projects)
    env = {
        "CLAUDE_CONFIG_DIR": str(base / "claude"), "HOME": str(base),
        "LANGFUSE_PUBLIC_KEY": "pk-lf-contract-0000", "LANGFUSE_SECRET_KEY": "sk-lf-contract-0000",
        "TURNSPAN_USER_ID": "ada", "TURNSPAN_TAGS": "loom,wool", "TURNSPAN_ENVIRONMENT": "attic",
    }  # fmt: skip
    config = load_config(env)
    target = Target(config.destinations[0], config)
    found = []
    for session in all_sessions(projects):
        for trace in Reader.for_people().traces(session):
            masked = target.mask(trace).trace
            request = ExportTraceServiceRequest.FromString(target.backend.encode([masked]))
            stored = {one["span_id"]: Observation(one) for one in spans_in(request)}
            assert len(stored) == len(masked.spans)
            found += [(masked, span, stored[span.span_id.hex()]) for span in masked.spans]
    target.close()
    assert {span.kind for _, span, _ in found} == set(TYPE_OF)
    return found


def test_every_observation_is_the_span_it_was(pairs):
    """Name, type, parent, trace, level and message; ids have full length and are not zero, else the request fails."""
    for trace, span, observation in pairs:
        assert re.fullmatch("[0-9a-f]{16}", observation.id)
        assert re.fullmatch("[0-9a-f]{32}", observation.trace_id)
        assert set(observation.id) != {"0"}
        assert set(observation.trace_id) != {"0"}
        assert observation.trace_id == trace.trace_id.hex()
        assert observation.parent_id == (None if span.parent_id is None else span.parent_id.hex())
        assert observation.name == span.name
        assert observation.type == TYPE_OF[span.kind]
        assert observation.type in TYPES
        assert observation.level in LEVELS
        assert (observation.level == "ERROR") == (span.error is not None)
        assert observation.status_message == (span.error_message or span.error or "")


def test_every_observation_has_the_attributes_of_its_trace(pairs):
    """Langfuse builds a trace from its observations: each has its name, session, user, tags, environment, version.

    A further part of a turn does not know the prompt and must not rename the trace.
    """
    for trace, _, observation in pairs:
        is_further_part = trace.name.startswith("Turn ") and all(span.parent_id for span in trace.spans)
        assert (observation.trace_name or None) == (None if is_further_part else trace.name)
        assert observation.session_id == trace.session_id
        assert len(trace.session_id) <= 200
        assert trace.session_id.isascii()
        assert observation.user_id == "ada"
        ours = [tag for tag in observation.tags if not tag.startswith(("skill:", "mcp:"))]
        assert ours[-2:] == ["loom", "wool"]
        assert all(isinstance(tag, str) and len(tag) <= 200 for tag in observation.tags)
        assert observation.environment == "attic"
        assert observation.version == trace.client_version
        assert observation.release is None


def test_tokens_are_counted_under_keys_that_have_a_price_and_under_one_each(pairs):
    """Langfuse adds all keys up to a total: they must come to what the response used. Only generations have usage."""
    total = Counter()
    for _, span, observation in pairs:
        if span.usage is None:
            assert observation.usage == {}
            continue
        assert observation.usage.keys() <= PRICED
        assert all(type(count) is int and count >= 0 for count in observation.usage.values())
        usage = span.usage
        used = usage.input + usage.output + usage.cache_read + usage.cache_write_5m + usage.cache_write_1h
        assert sum(observation.usage.values()) == used
        total[observation.type] += used
    assert total.keys() == {"generation"}
    assert not any(
        key.startswith(("gen_ai.usage.", "llm.token_count")) for _, _, one in pairs for key in one.attributes
    )


def test_cost_is_the_responses_own_and_nothing_else_has_any(pairs):
    """A total in US dollars on generations: Langfuse adds them up, so no turn and no agent may carry one."""
    priced = 0
    for _, span, observation in pairs:
        assert observation.cost == ({} if span.cost_usd is None else {"total": span.cost_usd})
        assert span.cost_usd is None or (observation.type == "generation" and span.cost_usd >= 0)
        assert "gen_ai.usage.cost" not in observation.attributes
        priced += span.cost_usd is not None
    assert priced > 50


def test_model_parameters_and_first_token_are_in_the_form_langfuse_takes(pairs):
    """A model on generations alone, parameters that are texts or numbers, a time within the response."""
    for _, span, observation in pairs:
        assert (observation.model is not None) == (span.kind == "generation" and span.model is not None)
        assert observation.model is None or observation.model == span.model.removesuffix("[1m]")
        assert all(isinstance(value, str | int | float) for value in observation.parameters.values())
        assert (observation.completion_start is not None) == (span.first_token_ns is not None)
        if observation.completion_start is not None:
            at = datetime.fromisoformat(observation.completion_start)
            assert at.tzinfo is not None
            assert abs(at.timestamp() - span.first_token_ns / 1e9) < 1e-5


def test_input_and_output_come_from_langfuses_own_names(pairs):
    """Where one of Langfuse's names is there, no other is looked at: both sides must be under them, or be missing."""
    roots = 0
    for _, span, observation in pairs:
        assert (observation.input is not None) == (span.input is not None)
        assert (observation.output is not None) == (span.output is not None)
        if span.kind in {"turn", "agent"}:  # plain text
            roots += span.kind == "turn" and observation.parent_id is None
            assert observation.input is None or not observation.input.startswith('[{"role"')
            continue
        if not isinstance(span.output, str):  # the result of a tool is plain text, too
            assert observation.output is None or json.loads(observation.output) is not None
        assert observation.input is None or json.loads(observation.input) is not None
        if span.kind == "generation" and observation.output is not None:
            _is_chatml(json.loads(observation.output))
    assert roots > 50


def _is_chatml(message):
    assert message["role"] == "assistant"
    assert isinstance(message["content"], str)
    for call in message.get("tool_calls", ()):
        assert call["type"] == "function"
        assert call["id"]
        assert call["function"]["name"]
        json.loads(call["function"]["arguments"])
    for thought in message.get("thinking", ()):
        assert thought["type"] == "thinking"
        assert isinstance(thought["content"], str)


def test_no_metadata_is_lost(pairs):
    """Every fact comes through under a name that nothing else has.

    Langfuse merges the metadata of trace and observation into one table, where the trace's wins, next to two names of
    its own; a dot would nest.
    """
    for trace, span, observation in pairs:
        both = observation.of_trace.keys() & observation.of_observation.keys()
        assert {key for key in both if observation.of_trace[key] != observation.of_observation[key]} == set()
        merged = {**observation.of_observation, **observation.of_trace}
        assert not merged.keys() & {"resourceAttributes", "scopeAttributes"}
        assert not any("." in key for key in merged)
        assert len(observation.of_trace) == len(trace.facts)
        known = {**observation.parameters, **observation.attributes, **merged}
        for name in span.facts:
            found = {name, name.replace(".", "_"), f"gen_ai.response.{name.removeprefix('response_')}"}
            assert found & known.keys() or name == "tool_call_id", f"{span.kind} {name}"
        if "tool_call_id" in span.facts:
            assert observation.attributes["gen_ai.tool.call.id"] == span.facts["tool_call_id"]
