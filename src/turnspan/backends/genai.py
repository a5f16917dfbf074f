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

from typing import TYPE_CHECKING

from turnspan.backends import content, naming
from turnspan.backends.attributes import Attributes
from turnspan.trace.model import Json, Kind

if TYPE_CHECKING:
    from turnspan.backends.naming import Resource
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Content, Span, Trace, Usage

AGENT_NAME = "claude-code"  # of a turn: the agent that the user talks to

_KINDS = {  # operation, OpenInference's kind
    Kind.TURN: ("invoke_agent", "AGENT"),
    Kind.GENERATION: ("chat", "LLM"),
    Kind.TOOL: ("execute_tool", "TOOL"),
    Kind.AGENT: ("invoke_agent", "AGENT"),
    Kind.EVENT: ("event", "CHAIN"),  # not in the conventions: an event is neither a call nor a tool nor an agent
}
_TOOL_CONTENT = {"input": "gen_ai.tool.call.arguments", "output": "gen_ai.tool.call.result"}
# The newest conventions call it `gen_ai.usage.cache_write.input_tokens`. Langfuse 4.16 would count both, and neither
# Langfuse nor Phoenix reads the new name yet.
_CACHE_WRITE = "gen_ai.usage.cache_creation.input_tokens"
_PROVIDER = "gen_ai.provider.name"
_REQUEST_MODEL = "gen_ai.request.model"
_FINISH_REASONS = "gen_ai.response.finish_reasons"
# Facts that the conventions know as well, next to our own name.
_ALSO: dict[Kind, dict[str, str]] = {
    Kind.GENERATION: {"effort": "gen_ai.request.reasoning.level"},
    Kind.TOOL: {"skill": "gen_ai.skill.name"},  # a proposal, not in the conventions yet
}
_KNOWN_FACTS: dict[Kind, dict[str, str]] = {
    Kind.TURN: {"provider": _PROVIDER, "request_model": _REQUEST_MODEL},
    Kind.GENERATION: {
        "provider": _PROVIDER,
        "compacted": "gen_ai.conversation.compacted",
        "response_id": "gen_ai.response.id",
        "request_model": _REQUEST_MODEL,
        "request_id": "anthropic.request.id",
        "max_tokens": "gen_ai.request.max_tokens",
        "finish_reason": _FINISH_REASONS,
    },
    Kind.TOOL: {"tool_call_id": "gen_ai.tool.call.id"},
    Kind.AGENT: {
        "provider": _PROVIDER,
        "request_model": _REQUEST_MODEL,
        "agent_id": "gen_ai.agent.id",
        "agent_description": "gen_ai.agent.description",
    },
    Kind.EVENT: {},
}


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

    def place(self, span: Span) -> tuple[str, bytes | None]:
        """Return the name of a span, and the id of its parent."""
        return naming.place(span, self._capture)

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
        out["gen_ai.operation.name"], out["openinference.span.kind"] = _KINDS[kind]
        if kind is Kind.GENERATION:
            _put_generation(out, span)
        elif kind is Kind.TOOL:
            out.put("gen_ai.tool.name", span.name)
            out["gen_ai.tool.type"] = "function"
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
            out["turnspan.cost.usd"] = cost
        if span.error is not None:
            out.put("error.type", span.error)
        _put_facts(out, trace, span)
        return out


def _put_generation(out: Attributes, span: Span) -> None:
    out[_PROVIDER] = "anthropic"  # unless the id of the response says otherwise
    if span.model is not None:
        out.put("gen_ai.response.model", span.model)
    if span.first_token_ns is not None and span.first_token_ns >= span.start_ns:
        out["gen_ai.request.stream"] = True  # the client recorded when blocks began
        out["gen_ai.response.time_to_first_chunk"] = (span.first_token_ns - span.start_ns) / 1e9
    if (usage := span.usage) is None:
        return
    out.put("gen_ai.usage.input_tokens", usage.input + usage.cache_read + usage.cache_write)
    out.put("gen_ai.usage.output_tokens", usage.output)
    out.put("gen_ai.usage.cache_read.input_tokens", usage.cache_read)
    out.put(_CACHE_WRITE, usage.cache_write)
    _put_rest_of_usage(out, usage)
    if span.cost_usd is not None:
        # Not in the conventions: Langfuse behind a collector reads it, and has no price for models it does not know.
        out["gen_ai.usage.cost"] = span.cost_usd


def _put_totals(out: Attributes, totals: Usage) -> None:
    out.put("turnspan.usage.input", totals.input)
    out.put("turnspan.usage.output", totals.output)
    out.put("turnspan.usage.cache_read", totals.cache_read)
    _put_rest_of_usage(out, totals)


def _put_rest_of_usage(out: Attributes, usage: Usage) -> None:
    out.put("turnspan.usage.cache_creation_5m", usage.cache_write_5m)
    out.put("turnspan.usage.cache_creation_1h", usage.cache_write_1h)
    if usage.web_searches:
        out.put("turnspan.usage.web_searches", usage.web_searches)
    if usage.is_incomplete:
        out["turnspan.usage.incomplete"] = True


def _put_content(out: Attributes, kind: Kind, value: Content, direction: str) -> None:
    messages = f"gen_ai.{direction}.messages"
    if kind is Kind.GENERATION:
        text, is_json = content.genai_messages(value, direction), True
        out.text(messages, text, is_json=True)
    else:
        # The content of a turn or an agent is read as text, all other content as it is.
        plain = content.words(value) if kind is not Kind.TOOL or isinstance(value, str) else None
        is_json = plain is None and (not isinstance(value, Json) or content.is_json(value.text))
        text = content.as_text(value, direction) if plain is None else plain
    out.text(f"{direction}.value", text, is_json=is_json)
    out[f"{direction}.mime_type"] = "application/json" if is_json else "text/plain"
    if kind is Kind.TOOL:
        out.text(_TOOL_CONTENT[direction], text, is_json=is_json)
    elif kind is Kind.TURN:
        out.text(messages, content.genai_messages(value, direction), is_json=True)


def _put_facts(out: Attributes, trace: Trace, span: Span) -> None:
    known, also = _KNOWN_FACTS[span.kind], _ALSO.get(span.kind, {})
    for fact, value in ({**trace.facts, **span.facts} if span.kind is Kind.TURN else span.facts).items():
        name = known.get(fact) or f"turnspan.{fact}"
        out.put(name, (str(value),) if name == _FINISH_REASONS and not isinstance(value, tuple) else value)
        if fact in also:
            out.put(also[fact], value)
    if span.kind is Kind.TOOL and "mcp_server" in span.facts:
        out["mcp.method.name"] = "tools/call"
