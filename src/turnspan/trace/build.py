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
from turnspan.trace.facts import (
    agent_arguments,
    failure_of,
    finish_reason,
    generation_facts,
    model_facts,
    session_facts,
    tool_facts,
    turn_facts,
)
from turnspan.trace.messages import answer_messages, prompt_messages, said
from turnspan.trace.model import Facts, Json, Kind, Link, Message, Span, Text, ToolResult, Trace, Usage
from turnspan.trace.times import active_ms, bounds, lasting, request_times, start_of
from turnspan.trace.usage import Costs, cost_of, usage_of
from turnspan.transcript.rows import SYNTHETIC
from turnspan.transcript.turns import AGENT_TOOLS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.trace.cost import Prices
    from turnspan.transcript.carry import TurnRef
    from turnspan.transcript.turns import Happening, ModelResponse, Result, Turn, TurnCall

_LATER_NS: Final = 1_000  # from the row that triggered a response to its start, if that was not recorded
_USD_DIGITS: Final = 12  # a token costs at least a hundred-millionth of a cent


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


class _Level(msgspec.Struct):
    """The turn whose spans are being added, what they are below, and what they add up to."""

    turn: Turn
    parent: bytes
    began_ns: int
    blocks: list[tuple[str, ...]]  # see `Trace.blocks`
    costs: Costs
    totals: Usage = Usage()


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
        self._is_partial = False  # the work of an agent is in no file
        if launch is not None:
            self._trace_id = launch.trace_id
        elif agent is not None:
            self._trace_id = trace_of_agent(agent.agent_id, turn)
        else:
            self._trace_id = ids.trace_id(turn.session_id, turn.key)
        self._ids = ids.SpanIds(self._trace_id)

    def trace(self) -> Trace:
        turn = self._turn
        if self._agent is not None:
            name = self._launch.name if self._launch is not None else self._agent.type or "agent"
            self._add_agent(self._agent, turn, self._launch.span_id if self._launch is not None else None)
        else:
            name = f"Turn {turn.number}"
            root, prompt = root_of(self._trace_id), prompt_messages(turn)
            totals, cost = self._add_below(turn, root, prompt)
            if turn.part == 0:
                self._spans.insert(0, self._turn_span(turn, root, prompt, totals, cost))
        return Trace(
            trace_id=self._trace_id,
            name=name,
            session_id=turn.session_id,
            client_version=turn.version,
            tags=tuple(filter(None, (turn.tag,))),
            facts=self._marked(session_facts(turn)),
            spans=tuple(self._spans),
            blocks=tuple(self._blocks),
        )

    def _marked(self, facts: Facts) -> Facts:
        if self._is_partial:
            facts["partial"] = True
        return facts

    def _turn_span(
        self, turn: Turn, root: bytes, prompt: tuple[Message, ...] | None, totals: Usage, cost: float | None
    ) -> Span:
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
            name=f"Turn {turn.number}",
            start_ns=start,
            end_ns=lasting(start, end),
            input=prompt,
            output=answer_messages(turn),
            totals=totals,
            totals_cost_usd=_rounded(cost),
            error="api_error" if failed is not None else None,
            error_message=(failed.error or "") if failed is not None else "",
            facts=self._marked(turn_facts(turn) | model_facts(turn) | self._activity()),
            links=links,
        )

    def _activity(self) -> Facts:
        """Return the active time of the spans below a turn; it is inferred (see `times`)."""
        active = active_ms(self._spans)
        return {"duration.active_ms": active, "time.inferred": "active"} if active else {}

    # ---- below a turn or an agent

    def _add_below(self, turn: Turn, parent: bytes, prompt: tuple[Message, ...] | None) -> tuple[Usage, float | None]:
        """Add generations, tools, agents and events of a turn; return their total usage and cost."""
        level = _Level(turn, parent, start_of(turn), list(turn.prompt.blocks) if turn.prompt else [], Costs())
        place = len(self._blocks)
        asked: Sequence[Message] = (prompt or ()) if turn.part == 0 else ()
        for response in turn.responses:
            asked = self._add_response(level, response, asked)
        for happening in turn.happenings:
            level.blocks.append(happening.blocks)
            self._add_happening(turn, happening, parent)
        for agent in turn.agents:
            if agent.root not in self._built:  # inline, and no call claims it
                self._built.add(agent.root)
                above = ids.span_id(self._trace_id, Kind.TOOL, agent.call_id) if agent.call_id else parent
                self._add_agent_turns(Agent(agent.root, "", tuple(agent.turns)), above, level)
        self._blocks[place:place] = filter(None, level.blocks)
        return level.totals, level.costs.value

    def _add_response(self, level: _Level, response: ModelResponse, asked: Sequence[Message]) -> list[Message]:
        """Add a response with its tools and their agents; return the results, which the next response is asked with."""
        times = _after_trigger(request_times(level.turn, response, level.began_ns), response)
        span = self._generation(level, response, asked, times)
        self._spans.append(span)
        if span.usage is not None:
            level.totals += span.usage
            level.costs.add(span.cost_usd, span.usage)
        results: list[Message] = []
        for call in response.calls:
            result = call.result
            is_agent = call.name in AGENT_TOOLS
            agents = self._agents_of(call) if is_agent or call.id in self._agents else ()
            is_partial = is_agent and _is_partial(result, agents)
            tool = self._add_tool(call, span, asked_ns=times[1], is_partial=is_partial)
            for launched in agents:
                self._add_agent_turns(launched, tool, level)
            if result is not None:
                if result.blocks:
                    level.blocks.append(result.blocks)
                results.append(Message("tool", (ToolResult(call.id, result.text),)))
                if result.is_background and (is_agent or result.agent_id is not None):  # it was launched or resumed
                    level.totals = msgspec.structs.replace(level.totals, is_incomplete=True)
        return results

    def _generation(
        self, level: _Level, response: ModelResponse, asked: Sequence[Message], times: tuple[int, int]
    ) -> Span:
        start, end = times
        finish = finish_reason(response)
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
        facts = generation_facts(level.turn, response, finish)
        if level.turn.part:
            facts["part"] = level.turn.part
        return Span(
            span_id=self._ids.next(Kind.GENERATION, key),
            parent_id=level.parent,
            kind=Kind.GENERATION,
            name="API error" if response.model == SYNTHETIC else response.model or "model",
            start_ns=start,
            end_ns=lasting(start, end),
            input=tuple(asked) or None,
            output=(said(response, finish, level.blocks),),
            model=response.model if response.model and response.model != SYNTHETIC else None,
            usage=usage,
            cost_usd=_rounded(cost),
            first_token_ns=first_token,
            error="api_error" if response.error is not None else None,
            error_message=response.error or "",
            facts=facts,
        )

    def _add_tool(self, call: TurnCall, generation: Span, *, asked_ns: int, is_partial: bool) -> bytes:
        """Add a tool call; return the id of its span."""
        self._is_partial |= is_partial
        start = end = call.time_ns if call.time_ns is not None else asked_ns
        result = call.result
        if result is not None and result.time_ns is not None:
            end = max(start, result.time_ns)
        facts = tool_facts(call)
        if is_partial:
            facts["partial"] = True
        span_id = self._ids.next(Kind.TOOL, call.id)
        span = Span(
            span_id=span_id,
            parent_id=generation.span_id,
            asker_id=generation.parent_id,
            kind=Kind.TOOL,
            name=call.name,
            start_ns=start,
            end_ns=lasting(start, end),
            input=Json(call.arguments),
            output=result.text if result is not None else None,
            error=failure_of(result) if result is not None else None,
            error_message=result.text[:500] if result is not None and result.is_error else "",
            facts=facts,
        )
        self._spans.append(span)
        return span_id

    def _agents_of(self, call: TurnCall) -> list[Agent]:
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

    def _add_agent_turns(self, agent: Agent, parent: bytes, above: _Level) -> None:
        """Add an agent's spans; add its usage and cost to those of the turn above, unless it ran in the background."""
        costs = Costs()
        for turn in agent.turns:
            below, cost = self._add_agent(agent, turn, parent)
            if not agent.is_background:
                above.totals += below
                costs.add(cost, below)
        above.costs.merge(costs)

    def _add_agent(self, agent: Agent, turn: Turn, parent: bytes | None) -> tuple[Usage, float | None]:
        # An agent that continues later gets another span: what was sent does not change.
        key = _run_key(agent.agent_id, turn)
        own_id, prompt = ids.span_id(self._trace_id, Kind.AGENT, key), prompt_messages(turn)
        if turn.part > 0:
            return self._add_below(turn, own_id, prompt)
        at = len(self._spans)
        totals, cost = self._add_below(turn, own_id, prompt)
        start, end = bounds(turn)
        facts: Facts = {"agent_id": agent.agent_id, "background": agent.is_background, **model_facts(turn)}
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
            end_ns=lasting(start, end),
            input=prompt,
            output=answer_messages(turn),
            totals=totals,
            totals_cost_usd=_rounded(cost),
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
                span_id=self._ids.next(Kind.EVENT, f"{happening.kind}:{happening.key}"),
                parent_id=parent,
                kind=Kind.EVENT,
                name=happening.kind.replace("_", " "),
                start_ns=start,
                end_ns=lasting(start, start),
                input=(Message("user", (Text(happening.text),)),) if happening.kind == "steering" else None,
                output=happening.text if happening.text and happening.kind != "steering" else None,
                facts=facts,
            )
        )


def _is_partial(result: Result | None, agents: Sequence[Agent]) -> bool:
    """Whether work that an Agent call launched, and that has ended, is in no file."""
    if result is None or result.is_error or result.is_background:
        return False
    return not agents or any(agent.is_partial for agent in agents)


def _after_trigger(times: tuple[int, int], response: ModelResponse) -> tuple[int, int]:
    """Return the times of a response; one whose start is inferred starts after the row that triggered it.

    A turn and its first response would start at the same time, and some backends sort by start and id. Whether it is
    the first is not asked: a further part of a turn does not know it.
    """
    start, end = times
    is_inferred = response.request_ns is None and response.trigger_ns is not None
    return (start + _LATER_NS, end) if is_inferred and start + _LATER_NS <= end else times


def _rounded(cost: float | None) -> float | None:
    return cost if cost is None else round(cost, _USD_DIGITS)
