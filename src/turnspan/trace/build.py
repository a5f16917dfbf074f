"""Builds a trace from a turn and its subagents.

Rules:

- One turn is one trace: the turn, below it a generation for each response, below that its tool calls, below an Agent
  call the subagent with its own generations, to any depth.
- A further part of a turn has the same trace id and only new spans; their parent is the turn's span, which was sent
  before.
- Times are the transcript's own. A start that had to be inferred says so; an end never precedes its start, and a span
  of no length lasts 1 ns: Jaeger warns of a negative duration otherwise.
- Where the work of an agent is in no file, its call, the turn and the session say `partial`.
- Background agents are not in their turn's totals: the turn is exported before they finish. Such totals are marked as
  incomplete. What a further part adds is not in them either: its generations say `part`, and nothing that was sent
  before changes.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.trace import ids
from turnspan.trace.facts import agent_arguments, failure_of, generation_facts, session_facts, tool_facts, turn_facts
from turnspan.trace.model import (
    Facts,
    Json,
    Kind,
    Link,
    Media,
    Message,
    Part,
    Reasoning,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
)  # fmt: skip
from turnspan.trace.times import active_ns, bounds, lasting, request_times, start_of
from turnspan.trace.usage import Costs, cost_of, usage_of
from turnspan.transcript.classify import SYNTHETIC
from turnspan.transcript.turns import AGENT_TOOLS, Call

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.trace.cost import Prices
    from turnspan.transcript.resume import TurnRef
    from turnspan.transcript.turns import Happening, Response, Result, Turn

FINISH_REASONS: Final = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_call",
    "refusal": "content_filter",
}  # fmt: skip


class Agent(msgspec.Struct, frozen=True):
    """A subagent: its type, and what it did."""

    agent_id: str
    type: str
    turns: tuple[Turn, ...]
    description: str = ""
    depth: int | None = None
    is_background: bool = False
    is_partial: bool = False  # a part of its work is in no file


class Launch(msgspec.Struct, frozen=True):
    """The parent of an agent: the trace and the span of the call that launched it."""

    trace_id: bytes
    span_id: bytes
    name: str


def build_turn(
    turn: Turn, agents: Mapping[str, Sequence[Agent]] | None = None, *, prices: Prices | None = None
) -> Trace:
    """Return the trace of a turn, or of a further part of it. `agents`: its finished agents, by their call."""
    builder = _Builder(turn, agents or {}, prices)
    return builder.trace()


def build_agent(agent: Agent, turn: Turn, launch: Launch | None, agents: Mapping[str, Sequence[Agent]] | None = None,
                *, prices: Prices | None = None) -> Trace:  # fmt: skip
    """Return the trace of an agent that ran in the background, or that no call launched.

    `turn` is the agent's own; with a `launch` its spans join that trace, without one they are a trace of their own.
    """
    builder = _Builder(turn, agents or {}, prices, launch=launch, agent=agent)
    return builder.trace()


def trace_of(ref: TurnRef) -> bytes:
    """Return the trace id of a turn known only by its identity."""
    return ids.trace_id(ref.session_id, ref.key)


def trace_of_agent(agent_id: str, turn: Turn) -> bytes:
    """Return the trace id of a run of an agent that no call launched; each run has its own, and so one root."""
    return ids.trace_id(turn.session_id, f"agent:{_run_key(agent_id, turn)}")


def _run_key(agent_id: str, turn: Turn) -> str:
    return agent_id if turn.number == 1 else f"{agent_id}/{turn.key}"


@lru_cache(maxsize=16)  # the next turn links to it
def root_of(trace: bytes) -> bytes:
    """Return the span id of a trace's turn."""
    return ids.span_id(trace, Kind.TURN, "")


class _Builder:
    """Collects the spans of one trace, parents before children."""

    def __init__(
        self,
        turn: Turn,
        agents: Mapping[str, Sequence[Agent]],
        prices: Prices | None,
        launch: Launch | None = None,
        agent: Agent | None = None,
    ) -> None:
        self._turn = turn
        self._agents = agents
        self._prices = prices
        self._launch = launch
        self._agent = agent
        self._spans: list[Span] = []
        self._blocks: list[tuple[str, ...]] = []
        self._built: set[str] = set()
        self._taken: set[bytes] = set()
        self._is_partial = False  # the work of an agent is in no file
        if launch is not None:
            self._trace_id = launch.trace_id
        elif agent is not None:
            self._trace_id = trace_of_agent(agent.agent_id, turn)
        else:
            self._trace_id = ids.trace_id(turn.session_id, turn.key)

    def trace(self) -> Trace:
        turn = self._turn
        if self._agent is not None:
            name = self._launch.name if self._launch is not None else self._agent.type or "agent"
            self._add_agent(self._agent, turn, self._launch.span_id if self._launch is not None else None)
            self._spans = lasting(self._spans)
        else:
            name = f"Turn {turn.number}"
            root = root_of(self._trace_id)
            totals, cost = self._add_below(turn, root)
            self._spans = lasting(self._spans)
            if turn.part == 0:
                self._spans[:0] = lasting([self._turn_span(turn, root, name, totals, cost)])
        return Trace(
            trace_id=self._trace_id,
            name=name,
            session_id=turn.session_id,
            client_version=turn.version,
            tags=tuple(filter(None, (turn.tag,))),
            facts={**session_facts(turn), **({"partial": True} if self._is_partial else {})},
            spans=tuple(self._spans),
            blocks=tuple(self._blocks),
        )

    def _turn_span(self, turn: Turn, root: bytes, name: str, totals: Usage, cost: float | None) -> Span:
        start, end = bounds(turn)
        failed = turn.responses[-1] if turn.responses and turn.responses[-1].error is not None else None
        links: tuple[Link, ...] = ()
        if turn.previous is not None:
            previous = trace_of(turn.previous)
            links = (Link(previous, root_of(previous), "previous_turn"),)
        return Span(
            span_id=root,
            parent_id=None,
            kind=Kind.TURN,
            name=name,
            start_ns=start,
            end_ns=end,
            input=_prompt_messages(turn),
            output=_answer_messages(turn),
            totals=totals,
            totals_cost_usd=cost,
            error="api_error" if failed is not None else None,
            error_message=(failed.error or "") if failed is not None else "",
            facts={**turn_facts(turn), **self._activity(), **({"partial": True} if self._is_partial else {})},
            links=links,
        )

    def _activity(self) -> Facts:
        """Return the active time of the spans below a turn; it is inferred (see `times`)."""
        active_ms = round(active_ns(self._spans) / 1e6)
        return {"duration.active_ms": active_ms, "time.inferred": "active"} if active_ms else {}

    # ---- below a turn or an agent

    def _add_below(self, turn: Turn, parent: bytes) -> tuple[Usage, float | None]:
        """Add generations, tools, agents and events of a turn; return their total usage and cost."""
        self._blocks += turn.blocks
        totals, costs = Usage(), Costs()
        asked: list[Message] = list(_prompt_messages(turn) or ()) if turn.part == 0 else []
        for response in turn.responses:
            span = self._generation(turn, response, parent, tuple(asked))
            self._spans.append(span)
            if span.usage is not None:
                totals += span.usage
                costs.add(span.cost_usd, span.usage)
            asked = []
            for call in response.calls:
                result = call.result
                is_agent = call.name in AGENT_TOOLS
                agents = self._agents_of(call) if is_agent or call.id in self._agents else ()
                tool = self._add_tool(call, span, is_partial=is_agent and _is_partial(result, agents))
                for launched in agents:
                    totals += self._add_agent_turns(launched, tool.span_id, costs)
                if result is not None:
                    asked.append(Message("tool", (ToolResult(call.id, result.text),)))
                    if result.is_background and (is_agent or result.agent_id is not None):  # it was launched or resumed
                        totals = msgspec.structs.replace(totals, is_incomplete=True)
        for happening in turn.happenings:
            self._add_happening(turn, happening, parent)
        for agent in turn.agents:
            if agent.root not in self._built:  # inline, and no call claims it
                self._built.add(agent.root)
                above = ids.span_id(self._trace_id, Kind.TOOL, agent.call_id) if agent.call_id else parent
                totals += self._add_agent_turns(Agent(agent.root, "", tuple(agent.turns)), above, costs)
        return totals, costs.value

    def _generation(self, turn: Turn, response: Response, parent: bytes, asked: tuple[Message, ...]) -> Span:
        start, end = request_times(turn, response)
        finish = _finish_reason(response)
        used = response.usage
        usage = cost = first_token = None
        if response.error is None:
            if used is not None and not response.is_repeat:
                usage = usage_of(response, used)
                cost = cost_of(response, used, usage, self._prices, end)
            if response.first_ns is not None and response.first_block_ms is not None:
                # Otherwise only the end of the first block is known, which is not its first token.
                first_token = response.first_ns - int(response.first_block_ms * 1_000_000)
                first_token = min(max(first_token, start), end)
        key = response.key + "#" + response.uuid if response.is_repeat else response.key
        facts = generation_facts(response, finish)
        if turn.part:
            facts["part"] = turn.part
        return Span(
            span_id=self._unique(Kind.GENERATION, key),
            parent_id=parent,
            kind=Kind.GENERATION,
            name="API error" if response.model == SYNTHETIC else response.model or "model",
            start_ns=start,
            end_ns=end,
            input=asked or None,
            output=(_said(response, finish),),
            model=response.model or None,
            usage=usage,
            cost_usd=cost,
            first_token_ns=first_token,
            error="api_error" if response.error is not None else None,
            error_message=response.error or "",
            facts=facts,
        )

    def _add_tool(self, call: Call, generation: Span, *, is_partial: bool) -> Span:
        self._is_partial |= is_partial
        start = end = call.time_ns if call.time_ns is not None else generation.end_ns
        result = call.result
        if result is not None and result.time_ns is not None:
            end = max(start, result.time_ns)
        facts = tool_facts(call)
        if is_partial:
            facts["partial"] = True
        span = Span(
            span_id=self._unique(Kind.TOOL, call.id),
            parent_id=generation.span_id,
            kind=Kind.TOOL,
            name=call.name,
            start_ns=start,
            end_ns=end,
            input=Json(call.arguments),
            output=result.text if result is not None else None,
            error=failure_of(result) if result is not None else None,
            error_message=result.text[:500] if result is not None and result.is_error else "",
            facts=facts,
        )
        self._spans.append(span)
        return span

    def _agents_of(self, call: Call) -> list[Agent]:
        """Return the agents that a call launched, once: in a damaged file an agent can contain its own call.

        Of an agent inside the parent's file, the text of the first row is the call's prompt.
        """
        found: list[Agent] = []
        if (name := f"agents of {call.id}") not in self._built:
            self._built.add(name)
            found += self._agents.get(call.id, ())
        if call.name not in AGENT_TOOLS or not self._turn.agents:
            return found
        prompt, kind, description = agent_arguments(call)
        for agent in self._turn.agents:
            if agent.root not in self._built and agent.prompt.strip() == prompt.strip():
                self._built.add(agent.root)
                found.append(Agent(agent.root, kind, tuple(agent.turns), description))
                break
        return found

    def _add_agent_turns(self, agent: Agent, parent: bytes, costs: Costs) -> Usage:
        """Add an agent's spans; return its usage, and add its cost to `costs`, unless it ran in the background."""
        totals, own = Usage(), Costs()
        for turn in agent.turns:
            below, cost = self._add_agent(agent, turn, parent)
            if not agent.is_background:
                totals += below
                own.add(cost, below)
        costs.merge(own)
        return totals

    def _add_agent(self, agent: Agent, turn: Turn, parent: bytes | None) -> tuple[Usage, float | None]:
        # An agent that continues later gets another span: what was sent does not change.
        key = _run_key(agent.agent_id, turn)
        own_id = ids.span_id(self._trace_id, Kind.AGENT, key)
        if turn.part > 0:
            return self._add_below(turn, own_id)
        at = len(self._spans)
        totals, cost = self._add_below(turn, own_id)
        start, end = bounds(turn)
        facts: Facts = {"agent_id": agent.agent_id, "background": agent.is_background}
        if agent.description:
            facts["agent_description"] = agent.description
        if agent.depth is not None:
            facts["depth"] = agent.depth
        if turn.is_interrupted:
            facts["interrupted"] = True
        failed = turn.responses[-1].error if turn.responses else None
        span = Span(
            span_id=own_id,
            parent_id=parent,
            kind=Kind.AGENT,
            name=agent.type or "agent",
            start_ns=start,
            end_ns=end,
            input=_prompt_messages(turn),
            output=_answer_messages(turn),
            totals=totals,
            totals_cost_usd=cost,
            error="api_error" if failed is not None else None,
            error_message=failed or "",
            facts=facts,
        )
        self._spans.insert(at, span)
        return totals, cost

    def _add_happening(self, turn: Turn, happening: Happening, parent: bytes) -> None:
        start = max(happening.time_ns or 0, start_of(turn)) if turn.part == 0 else happening.time_ns or start_of(turn)
        facts: Facts = {"event": happening.kind, **happening.facts}
        if happening.kind == "late_result" and "tool_call_id" in happening.facts:
            parent = ids.span_id(self._trace_id, Kind.TOOL, str(happening.facts["tool_call_id"]))
        self._spans.append(
            Span(
                span_id=self._unique(Kind.EVENT, f"{happening.kind}:{happening.key}"),
                parent_id=parent,
                kind=Kind.EVENT,
                name=happening.kind.replace("_", " "),
                start_ns=start,
                end_ns=start,
                input=(Message("user", (Text(happening.text),)),) if happening.kind == "steering" else None,
                output=happening.text if happening.text and happening.kind != "steering" else None,
                facts=facts,
            )
        )

    def _unique(self, kind: Kind, key: str) -> bytes:
        """Return the id of a span; if a damaged file contains a key twice in one trace, the second gets another id."""
        span_id, number = ids.span_id(self._trace_id, kind, key), 1
        while span_id in self._taken:
            number += 1
            span_id = ids.span_id(self._trace_id, kind, f"{key}~{number}")
        self._taken.add(span_id)
        return span_id


def _is_partial(result: Result | None, agents: Sequence[Agent]) -> bool:
    """Whether work that an Agent call launched, and that has ended, is in no file."""
    if result is None or result.is_error or result.is_background:
        return False
    return not agents or any(agent.is_partial for agent in agents)


def _finish_reason(response: Response) -> str:
    """Return why the model stopped, in OpenTelemetry's terms; inferred if the client did not record it."""
    reason = response.stop_reason or ""
    return FINISH_REASONS.get(reason, reason) or ("tool_call" if response.calls else "stop")


def _prompt_messages(turn: Turn) -> tuple[Message, ...] | None:
    prompt = turn.prompt
    if prompt is None:
        return None
    parts: list[Part] = [Text(text) for text in (*prompt.ide, prompt.text, prompt.expansion) if text]
    parts += [Media(mime, size) for mime, size in prompt.media]
    return (Message("user", tuple(parts)),) if parts else None


def _answer_messages(turn: Turn) -> tuple[Message, ...] | None:
    text = turn.last_text
    return (Message("assistant", (Text(text),), "stop"),) if text else None


def _said(response: Response, finish: str) -> Message:
    parts: list[Part] = []
    for part in response.parts:
        if isinstance(part, Call):
            parts.append(ToolCall(part.id, part.name, part.arguments))
        elif part.kind == "thinking":
            if part.text:
                parts.append(Reasoning(part.text))
        elif part.text:
            parts.append(Text(part.text))
    return Message("assistant", tuple(parts), finish)
