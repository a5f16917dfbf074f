"""Attributes by OpenTelemetry's GenAI conventions, with those that OpenInference needs to display them.

Rules:

- Every span has its session, its operation and its kind, and its content as `input.value` and `output.value`.
- `gen_ai.usage.input_tokens` includes cached tokens, as the conventions say; our own `turnspan.usage.*` do not.
- `gen_ai.usage.*` is on generations only, because backends add it up. Sums on turns and agents are `turnspan.usage.*`.
- A fact that the conventions know gets their name on the kind of span it belongs to; any other fact `k` is
  `turnspan.k`. Facts of the trace are on the turn's span only.
- A value longer than `attribute_max_bytes` is cut inside (see `content`), and `turnspan.truncated.<name>` is its
  original length in bytes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from turnspan.backends import content, naming
from turnspan.trace.model import Json, Kind

if TYPE_CHECKING:
    from turnspan.backends.naming import Attributes, Value
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Content, Span, Trace, Usage

AGENT_NAME = "claude-code"  # of a turn: the agent that the user talks to

_OPERATION = {
    Kind.TURN: "invoke_agent",
    Kind.GENERATION: "chat",
    Kind.TOOL: "execute_tool",
    Kind.AGENT: "invoke_agent",
    Kind.EVENT: "event",  # not in the conventions: an event is neither a call nor a tool nor an agent
}
_OPENINFERENCE = {
    Kind.TURN: "AGENT",
    Kind.GENERATION: "LLM",
    Kind.TOOL: "TOOL",
    Kind.AGENT: "AGENT",
    Kind.EVENT: "CHAIN",
}
_KNOWN_FACTS: dict[Kind, dict[str, str]] = {
    Kind.TURN: {},
    Kind.GENERATION: {
        "response_id": "gen_ai.response.id",
        "request_model": "gen_ai.request.model",
        "request_id": "anthropic.request.id",
        "max_tokens": "gen_ai.request.max_tokens",
        "finish_reason": "gen_ai.response.finish_reasons",
    },
    Kind.TOOL: {"tool_call_id": "gen_ai.tool.call.id"},
    Kind.AGENT: {"agent_id": "gen_ai.agent.id", "agent_description": "gen_ai.agent.description"},
    Kind.EVENT: {},
}


class Bounded:
    """Attributes with a limit to the bytes of each."""

    def __init__(self, limit: int) -> None:
        self.attributes: Attributes = {}
        self._limit = limit
        self._cut: dict[str, int] = {}  # attributes that were cut, and their original lengths

    def put(self, key: str, value: Value) -> None:
        """Set one attribute; a long string is cut as plain text."""
        if isinstance(value, str):
            if len(value) * 4 > self._limit:
                self.text(key, value, is_json=False)
            else:
                self.attributes[key] = value
        elif isinstance(value, tuple):
            self.attributes[key] = tuple(content.fit(item, self._limit, is_json=False) for item in value)
        else:
            self.attributes[key] = value

    def text(self, key: str, text: str, *, is_json: bool) -> None:
        """Set one attribute to a text that may be long."""
        # A character is at most four bytes, so most texts need not be encoded to be measured.
        if len(text) * 4 > self._limit and (size := len(text.encode())) > self._limit:
            self.attributes[key] = content.fit(text, self._limit, is_json=is_json)
            self.attributes[f"turnspan.truncated.{key}"] = self._cut[key] = size
        else:
            self.attributes[key] = text

    def copy(self, key: str, source: str) -> None:
        """Set one attribute to the value of another, cut or not."""
        self.attributes[key] = self.attributes[source]
        if source in self._cut:
            self.attributes[f"turnspan.truncated.{key}"] = self._cut[source]


class GenAI:
    """The naming of OTLP destinations and local files."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def resource(self, trace: Trace) -> Attributes:
        """Return the attributes of the resource, with the environment."""
        out = naming.resource(trace, self._capture)
        if self._capture.environment:
            out["deployment.environment.name"] = self._capture.environment
        return out

    def of_trace(self, trace: Trace) -> Attributes:
        """Return the session, the user and the tags."""
        out: Attributes = {"session.id": trace.session_id, "gen_ai.conversation.id": trace.session_id}
        if self._capture.user_id:
            out["user.id"] = self._capture.user_id
        if tags := naming.tags_of(trace, self._capture):
            out["tag.tags"] = tags
        return out

    def of_span(self, trace: Trace, span: Span) -> Attributes:
        """Return the other attributes of one span."""
        kind = span.kind
        out = Bounded(self._capture.attribute_max_bytes)
        out.attributes["gen_ai.operation.name"] = _OPERATION[kind]
        out.attributes["openinference.span.kind"] = _OPENINFERENCE[kind]
        if kind is Kind.GENERATION:
            _put_generation(out, span)
        elif kind is Kind.TOOL:
            out.put("gen_ai.tool.name", span.name)
            out.attributes["gen_ai.tool.type"] = "function"
        elif kind is Kind.TURN:
            out.put("gen_ai.agent.name", str(trace.facts.get("agent") or AGENT_NAME))
        elif kind is Kind.AGENT:
            out.put("gen_ai.agent.name", span.name)
        if span.input is not None:
            _put_content(out, kind, span.input, "input")
        if span.output is not None:
            _put_content(out, kind, span.output, "output")
        if span.totals is not None:
            _put_totals(out, span.totals)
        cost = span.cost_usd if span.cost_usd is not None else span.totals_cost_usd
        if cost is not None:
            out.attributes["turnspan.cost.usd"] = cost
        if span.error is not None:
            out.put("error.type", span.error)
        _put_facts(out, trace, span)
        return out.attributes


def _put_generation(out: Bounded, span: Span) -> None:
    out.attributes["gen_ai.provider.name"] = "anthropic"
    if span.model is not None:
        out.put("gen_ai.response.model", span.model)
    if span.first_token_ns is not None and span.first_token_ns >= span.start_ns:
        out.attributes["gen_ai.response.time_to_first_chunk"] = (span.first_token_ns - span.start_ns) / 1e9
    if (usage := span.usage) is None:
        return
    out.attributes |= {
        "gen_ai.usage.input_tokens": usage.input + usage.cache_read + usage.cache_write,
        "gen_ai.usage.output_tokens": usage.output,
        "gen_ai.usage.cache_read.input_tokens": usage.cache_read,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_write,
        "turnspan.usage.cache_creation_5m": usage.cache_write_5m,
        "turnspan.usage.cache_creation_1h": usage.cache_write_1h,
    }
    _put_rare(out, usage)
    if span.cost_usd is not None:
        # Not in the conventions: Langfuse behind a collector reads it, and has no price for models it does not know.
        out.attributes["gen_ai.usage.cost"] = span.cost_usd


def _put_totals(out: Bounded, totals: Usage) -> None:
    out.attributes |= {
        "turnspan.usage.input": totals.input,
        "turnspan.usage.output": totals.output,
        "turnspan.usage.cache_read": totals.cache_read,
        "turnspan.usage.cache_creation_5m": totals.cache_write_5m,
        "turnspan.usage.cache_creation_1h": totals.cache_write_1h,
    }
    _put_rare(out, totals)


def _put_rare(out: Bounded, usage: Usage) -> None:
    if usage.web_searches:
        out.attributes["turnspan.usage.web_searches"] = usage.web_searches
    if usage.is_incomplete:
        out.attributes["turnspan.usage.incomplete"] = True


_CONTENT_KEYS = {way: (f"{way}.value", f"{way}.mime_type", f"gen_ai.{way}.messages") for way in ("input", "output")}


def _put_content(out: Bounded, kind: Kind, value: Content, direction: str) -> None:
    key, mime_type, messages = _CONTENT_KEYS[direction]
    if kind is Kind.GENERATION:
        out.text(messages, content.genai_messages(value, direction), is_json=True)
        out.copy(key, messages)
        out.attributes[mime_type] = "application/json"
        return
    # The content of a turn or an agent is read as text, all other content as it is.
    plain = content.words(value) if kind is not Kind.TOOL or isinstance(value, str) else None
    is_json = plain is None and (not isinstance(value, Json) or content.is_json(value.text))
    out.text(key, content.as_text(value, direction) if plain is None else plain, is_json=is_json)
    out.attributes[mime_type] = "application/json" if is_json else "text/plain"
    if kind is Kind.TOOL:
        out.copy("gen_ai.tool.call.arguments" if direction == "input" else "gen_ai.tool.call.result", key)
    elif kind is Kind.TURN:
        out.text(messages, content.genai_messages(value, direction), is_json=True)


@lru_cache(maxsize=1_000)  # the same few names on every span, whose hashes need not be computed again
def _own_name(fact: str) -> str:
    return f"turnspan.{fact}"


def _put_facts(out: Bounded, trace: Trace, span: Span) -> None:
    known = _KNOWN_FACTS[span.kind]
    facts = {**trace.facts, **span.facts} if span.kind is Kind.TURN else span.facts
    for name, value in facts.items():
        key = known.get(name)
        if key is None:
            out.put(_own_name(name), value)
        elif name == "finish_reason":
            out.put(key, value if isinstance(value, tuple) else (str(value),))
        else:
            out.put(key, value)
