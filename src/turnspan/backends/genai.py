"""Attributes by OpenTelemetry's GenAI conventions, with those that OpenInference needs to display them.

Rules:

- Every span has its session, its operation and its kind, and its content as `input.value` and `output.value`.
- `gen_ai.usage.input_tokens` includes cached tokens, as the conventions say; our own `turnspan.usage.*` do not.
- `gen_ai.usage.*` is on generations only, because backends add it up. Sums on turns and agents are `turnspan.usage.*`.
- A fact that the conventions know gets their name on the kind of span it belongs to; any other fact `k` is
  `turnspan.k`. Facts of the trace are on the turn's span only.
- A value longer than `attribute_max_bytes` is cut (see `attributes`).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from turnspan.backends import content, naming
from turnspan.backends.attributes import Attributes, Group, Slot, TextGroup, integers
from turnspan.trace.model import Json, Kind

if TYPE_CHECKING:
    from turnspan.backends.naming import Resource
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Content, Span, Trace, Usage

AGENT_NAME = "claude-code"  # of a turn: the agent that the user talks to

_KINDS = {
    Kind.TURN: Group({"gen_ai.operation.name": "invoke_agent", "openinference.span.kind": "AGENT"}),
    Kind.GENERATION: Group(
        {
            "gen_ai.operation.name": "chat",
            "openinference.span.kind": "LLM",
            "gen_ai.provider.name": "anthropic",
        }
    ),
    Kind.TOOL: Group({"gen_ai.operation.name": "execute_tool", "openinference.span.kind": "TOOL"}),
    Kind.AGENT: Group({"gen_ai.operation.name": "invoke_agent", "openinference.span.kind": "AGENT"}),
    # Not in the conventions: an event is neither a call nor a tool nor an agent.
    Kind.EVENT: Group({"gen_ai.operation.name": "event", "openinference.span.kind": "CHAIN"}),
}
_TOOL_TYPE = Group({"gen_ai.tool.type": "function"})
_USAGE = integers(
    "gen_ai.usage.input_tokens",
    "gen_ai.usage.output_tokens",
    "gen_ai.usage.cache_read.input_tokens",
    "gen_ai.usage.cache_creation.input_tokens",
    "turnspan.usage.cache_creation_5m",
    "turnspan.usage.cache_creation_1h",
)
_TOTALS = integers(
    "turnspan.usage.input",
    "turnspan.usage.output",
    "turnspan.usage.cache_read",
    "turnspan.usage.cache_creation_5m",
    "turnspan.usage.cache_creation_1h",
)
_MODEL = Slot("gen_ai.response.model", is_repeated=True)
_FINISH_REASONS = Slot("gen_ai.response.finish_reasons", is_repeated=True)
_COST = Slot("turnspan.cost.usd")
_USAGE_COST = Slot("gen_ai.usage.cost")
_TOOL_NAME = Slot("gen_ai.tool.name")
_INCOMPLETE = Group({"turnspan.usage.incomplete": True})

_TEXT, _JSON = "text/plain", "application/json"


class _Names:
    """The groups for the input, or the output, of a span."""

    def __init__(self, direction: str, of_tool: str) -> None:
        value, mime_type, messages = f"{direction}.value", f"{direction}.mime_type", f"gen_ai.{direction}.messages"
        self.generation = TextGroup({messages: None, value: None, mime_type: _JSON})
        self.tool = {mime: TextGroup({value: None, mime_type: mime, of_tool: None}) for mime in (_TEXT, _JSON)}
        self.other = {mime: TextGroup({value: None, mime_type: mime}) for mime in (_TEXT, _JSON)}
        self.messages = TextGroup({messages: None})


_NAMES = {
    "input": _Names("input", "gen_ai.tool.call.arguments"),
    "output": _Names("output", "gen_ai.tool.call.result"),
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
# Facts that have only a few different values.
_REPEATED_FACTS = frozenset(
    {
        "request_model",
        "effort",
        "stop_reason",
        "service_tier",
        "speed",
        "time.inferred",
        "origin",
        "permission_mode",
    }
)


class GenAI:
    """The naming of OTLP destinations and local files."""

    def __init__(self, capture: Capture) -> None:
        self._capture = capture

    def resource(self, trace: Trace) -> Resource:
        """Return the attributes of the resource, with the environment."""
        out = naming.resource(trace, self._capture)
        if self._capture.environment:
            out["deployment.environment.name"] = self._capture.environment
        return out

    def of_trace(self, trace: Trace) -> Attributes:
        """Return the session, the user and the tags."""
        out = Attributes()
        out.put("session.id", trace.session_id)
        out.put("gen_ai.conversation.id", trace.session_id)
        if self._capture.user_id:
            out.put("user.id", self._capture.user_id)
        if tags := naming.tags_of(trace, self._capture):
            out.put("tag.tags", tags)
        return out

    def of_span(self, trace: Trace, span: Span) -> Attributes:
        """Return the other attributes of one span."""
        kind = span.kind
        out = Attributes(self._capture.attribute_max_bytes)
        out.add(_KINDS[kind])
        if kind is Kind.GENERATION:
            _put_generation(out, span)
        elif kind is Kind.TOOL:
            out.fill(_TOOL_NAME, span.name)
            out.add(_TOOL_TYPE)
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
            out.fill(_COST, cost)
        if span.error is not None:
            out.put("error.type", span.error)
        _put_facts(out, trace, span)
        return out


def _put_generation(out: Attributes, span: Span) -> None:
    if span.model is not None:
        out.fill(_MODEL, span.model)
    if span.first_token_ns is not None and span.first_token_ns >= span.start_ns:
        out.put("gen_ai.response.time_to_first_chunk", (span.first_token_ns - span.start_ns) / 1e9)
    if (usage := span.usage) is None:
        return
    five, hour = usage.cache_write_5m, usage.cache_write_1h
    written = five + hour
    read = usage.cache_read
    out.integers(_USAGE, (usage.input + read + written, usage.output, read, written, five, hour))
    _put_rare(out, usage)
    if span.cost_usd is not None:
        # Not in the conventions: Langfuse behind a collector reads it, and has no price for models it does not know.
        out.fill(_USAGE_COST, span.cost_usd)


def _put_totals(out: Attributes, totals: Usage) -> None:
    five, hour = totals.cache_write_5m, totals.cache_write_1h
    out.integers(_TOTALS, (totals.input, totals.output, totals.cache_read, five, hour))
    _put_rare(out, totals)


def _put_rare(out: Attributes, usage: Usage) -> None:
    if usage.web_searches:
        out.put("turnspan.usage.web_searches", usage.web_searches)
    if usage.is_incomplete:
        out.add(_INCOMPLETE)


def _put_content(out: Attributes, kind: Kind, value: Content, direction: str) -> None:
    names = _NAMES[direction]
    if kind is Kind.GENERATION:
        out.text(names.generation, content.genai_messages(value, direction), is_json=True)
        return
    # The content of a turn or an agent is read as text, all other content as it is.
    plain = content.words(value) if kind is not Kind.TOOL or isinstance(value, str) else None
    is_json = plain is None and (not isinstance(value, Json) or content.is_json(value.text))
    groups = names.tool if kind is Kind.TOOL else names.other
    text = content.as_text(value, direction) if plain is None else plain
    out.text(groups[_JSON if is_json else _TEXT], text, is_json=is_json)
    if kind is Kind.TURN:
        out.text(names.messages, content.genai_messages(value, direction), is_json=True)


def _put_facts(out: Attributes, trace: Trace, span: Span) -> None:
    facts = {**trace.facts, **span.facts} if span.kind is Kind.TURN else span.facts
    for slot, value in zip(_slots(span.kind, tuple(facts)), facts.values(), strict=True):
        if slot is _FINISH_REASONS and not isinstance(value, tuple):
            out.fill(slot, (str(value),))
        else:
            out.fill(slot, value)


@lru_cache(maxsize=1_000)  # spans of a kind have the same few facts
def _slots(kind: Kind, facts: tuple[str, ...]) -> tuple[Slot, ...]:
    return tuple(_slot(kind, fact) for fact in facts)


@lru_cache(maxsize=1_000)
def _slot(kind: Kind, fact: str) -> Slot:
    name = _KNOWN_FACTS[kind].get(fact) or f"turnspan.{fact}"
    return _FINISH_REASONS if name == _FINISH_REASONS.name else Slot(name, is_repeated=fact in _REPEATED_FACTS)
