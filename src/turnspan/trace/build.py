"""A turn and its subagents become a trace.

Rules:

- One turn is one trace: the turn, below it a generation for each response, below that its tool calls, below an Agent
  call the subagent with its own generations, to any depth.
- A later part of a turn gives the same trace id and only new spans; its generations hang below the turn's span, which
  was sent before.
- Times are the transcript's own. A start that had to be inferred says so; an end never precedes its start.
- Background agents are not in their turn's totals: the turn leaves before they have finished.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.trace import ids
from turnspan.trace.cost import cost_usd
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
from turnspan.transcript.entries import exit_code_of
from turnspan.transcript.turns import AGENT_TOOLS, Call, version_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.trace.cost import Prices
    from turnspan.transcript import entries as e
    from turnspan.transcript.turns import Happening, Response, Turn, TurnRef

FINISH_REASONS: Final = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_call",
    "refusal": "content_filter",
}  # fmt: skip
# From this version on a response without a stop reason has a streaming placeholder for its output count; before, any
# response may have one.
_PLACEHOLDER_FROM: Final = (2, 1, 20)
_CHARACTERS_PER_TOKEN: Final = 12  # generous: a response with more text than this a token was not counted to its end
_PLACEHOLDER_TOKENS: Final = 8  # what a stream announces before it has begun


class Agent(msgspec.Struct, frozen=True):
    """A subagent: who launched it, what it is, and what it did."""

    agent_id: str
    type: str
    turns: tuple[Turn, ...]
    launched_by: str | None = None  # the tool use id
    description: str = ""
    depth: int | None = None
    is_background: bool = False


class Launch(msgspec.Struct, frozen=True):
    """Where an agent hangs: the trace and the span of the call that launched it."""

    trace_id: bytes
    span_id: bytes
    name: str


def build_turn(
    turn: Turn, agents: Mapping[str, Sequence[Agent]] | None = None, *, prices: Prices | None = None
) -> Trace:
    """The spans of a turn, or of a later part of it. `agents` are the finished ones, by the call that launched them."""
    builder = _Builder(turn, agents or {}, prices)
    return builder.trace()


def build_agent(agent: Agent, turn: Turn, launch: Launch | None, agents: Mapping[str, Sequence[Agent]] | None = None,
                *, prices: Prices | None = None) -> Trace:  # fmt: skip
    """An agent's spans on their own: one that ran in the background, or one that no call launched.

    `turn` is the agent's own; with a `launch` its spans join that trace, without one they are a trace of their own.
    """
    builder = _Builder(turn, agents or {}, prices, launch=launch, agent=agent)
    return builder.trace()


def trace_of(ref: TurnRef) -> bytes:
    """The trace id of a turn known only by its identity."""
    return ids.trace_id(ref.session_id, ref.key)


def root_of(trace: bytes) -> bytes:
    """The span id of a trace's turn."""
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
        self._built: set[str] = set()
        self._taken: set[bytes] = set()
        if launch is not None:
            self._trace_id = launch.trace_id
        elif agent is not None:
            self._trace_id = ids.trace_id(turn.session_id, f"agent:{agent.agent_id}")
        else:
            self._trace_id = ids.trace_id(turn.session_id, turn.key)

    def trace(self) -> Trace:
        turn = self._turn
        if self._agent is not None:
            name = self._launch.name if self._launch is not None else self._agent.type or "agent"
            self._add_agent(self._agent, turn, self._launch.span_id if self._launch is not None else None)
        else:
            name = f"Turn {turn.number}"
            root = root_of(self._trace_id)
            if turn.part == 0:
                at = len(self._spans)
                totals, cost = self._add_below(turn, root)
                self._spans.insert(at, self._turn_span(turn, root, name, totals, cost))
            else:
                self._add_below(turn, root)
        return Trace(
            trace_id=self._trace_id,
            name=name,
            session_id=turn.session_id,
            client_version=turn.version,
            tags=tuple(filter(None, (turn.tag,))),
            facts=_session_facts(turn),
            spans=tuple(self._spans),
        )

    def _turn_span(self, turn: Turn, root: bytes, name: str, totals: Usage, cost: float | None) -> Span:
        start, end = _bounds(turn)
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
            facts=_turn_facts(turn),
            links=links,
        )

    # ---- what hangs below a turn or an agent

    def _add_below(self, turn: Turn, parent: bytes) -> tuple[Usage, float | None]:
        """Generations, tools, agents and events of a turn; their usage and cost in sum."""
        totals, costs = Usage(), _Costs()
        asked: list[Message] = list(_prompt_messages(turn) or ()) if turn.part == 0 else []
        for response in turn.responses:
            span = self._generation(turn, response, parent, tuple(asked))
            self._spans.append(span)
            if span.usage is not None:
                totals += span.usage
                costs.add(span.cost_usd, span.usage)
            asked = []
            for call in response.calls:
                tool = self._add_tool(call, span)
                for launched in (*self._launched(call), *self._inline(call)):
                    totals += self._add_agent_turns(launched, tool.span_id, costs)
                if call.result is not None:
                    asked.append(Message("tool", (ToolResult(call.id, call.result.text),)))
        for happening in turn.happenings:
            self._add_happening(turn, happening, parent)
        for agent in turn.agents:
            if agent.root not in self._built:  # inline, and no call claims it
                self._built.add(agent.root)
                totals += self._add_agent_turns(Agent(agent.root, "", tuple(agent.turns)), parent, costs)
        return totals, costs.value

    def _generation(self, turn: Turn, response: Response, parent: bytes, asked: tuple[Message, ...]) -> Span:
        first = response.first_ns if response.first_ns is not None else _bounds(turn)[0]
        recorded = response.request_ns
        trigger = response.trigger_ns
        start = recorded if recorded is not None else trigger if trigger is not None else first
        end = response.last_ns if response.last_ns is not None else first
        if recorded is None and start > end:
            start = min(first, end)
        end = max(start, end)
        used = response.usage
        finish = FINISH_REASONS.get(response.stop_reason or "", response.stop_reason or "")
        if not finish:
            finish = "tool_call" if response.calls else "stop"
        usage = cost = first_token = None
        if response.error is None:
            if used is not None and not response.is_repeat:
                usage = _usage(response, used)
                cost = self._cost(response, used, usage, end)
            if response.first_ns is not None:
                first_token = response.first_ns - int((response.first_block_ms or 0) * 1_000_000)
                first_token = min(max(first_token, start), end)
        key = response.key + "#" + response.uuid if response.is_repeat else response.key
        return Span(
            span_id=self._unique(Kind.GENERATION, key),
            parent_id=parent,
            kind=Kind.GENERATION,
            name=response.model or "model",
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
            facts=_generation_facts(response, finish),
        )

    def _cost(self, response: Response, recorded: e.Usage, usage: Usage, end_ns: int) -> float | None:
        """What a response cost, the way the client counts it: by the model asked for, an advisor's tokens on top."""
        if response.is_aborted:
            return None  # the client counts it as nothing, and the count is a placeholder
        model = response.requested_model or response.model
        cost = cost_usd(
            model, usage, speed=recorded.speed, geo=recorded.inference_geo, prices=self._prices, at_ns=end_ns
        )
        for advice in recorded.iterations or ():
            if advice.type == "advisor_message" and cost is not None:
                used = Usage(
                    _count(advice.input_tokens), _count(advice.output_tokens), _count(advice.cache_read_input_tokens),
                    _count(advice.cache_creation_input_tokens),
                )  # fmt: skip
                extra = cost_usd(advice.model or model, used, prices=self._prices, at_ns=end_ns)
                cost = None if extra is None else cost + extra
        return cost

    def _add_tool(self, call: Call, generation: Span) -> Span:
        start = call.time_ns if call.time_ns is not None else generation.end_ns
        result = call.result
        end = start
        facts: Facts = {"tool_call_id": call.id}
        error, message = None, ""
        if result is None:
            facts["incomplete"] = True
        else:
            end = result.time_ns if result.time_ns is not None else start
            if result.duration_ms is not None:
                facts["duration_ms"] = result.duration_ms
            if result.denial is not None:
                facts["denial"] = result.denial
            if result.is_background:
                facts["background"] = True
            if result.is_error:
                error = "tool_error"
                if result.denial is not None or result.text.startswith(_REJECTED):
                    error = "permission_denied"
                if result.was_interrupted or result.denial == "interrupted" or _CUT_SHORT in result.text[:400]:
                    error = "interrupted"
                message = result.text[:500]
                code = exit_code_of(result.text)
                if code is not None:
                    facts["exit_code"] = code
        if call.name.startswith("mcp__"):
            facts["mcp_server"] = call.name.split("__")[1]
        self._add_argument_facts(call, facts)
        span = Span(
            span_id=self._unique(Kind.TOOL, call.id),
            parent_id=generation.span_id,
            kind=Kind.TOOL,
            name=call.name,
            start_ns=start,
            end_ns=max(start, end),
            input=Json(call.arguments),
            output=result.text if result is not None else None,
            error=error,
            error_message=message,
            facts=facts,
        )
        self._spans.append(span)
        return span

    def _add_argument_facts(self, call: Call, facts: Facts) -> None:
        if call.name not in _ARGUMENT_FACTS or len(call.arguments) > 1_000_000:
            return
        key, name = _ARGUMENT_FACTS[call.name]
        try:
            facts[name] = _decode_text(getattr(_decode_arguments(call.arguments), key))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return

    def _launched(self, call: Call) -> Sequence[Agent]:
        """The agents that a call launched, once: in a broken file an agent may hold its own call."""
        name = f"agents of {call.id}"
        agents = self._agents.get(call.id, ()) if name not in self._built else ()
        self._built.add(name)
        return agents

    def _inline(self, call: Call) -> list[Agent]:
        """Agents inside the parent's file: the root's text is the call's prompt."""
        if call.name not in AGENT_TOOLS or not self._turn.agents:
            return []
        found = []
        prompt, kind, description = _agent_arguments(call)
        for agent in self._turn.agents:
            if agent.root not in self._built and agent.prompt.strip() == prompt.strip():
                self._built.add(agent.root)
                found.append(Agent(agent.root, kind, tuple(agent.turns), call.id, description))
                break
        return found

    def _add_agent_turns(self, agent: Agent, parent: bytes, costs: _Costs) -> Usage:
        """An agent's spans; its usage, and its cost added to others. One in the background counts for itself."""
        totals, own = Usage(), _Costs()
        for turn in agent.turns:
            below, cost = self._add_agent(agent, turn, parent)
            if not agent.is_background:
                totals += below
                own.add(cost, below)
        costs.merge(own)
        return totals

    def _add_agent(self, agent: Agent, turn: Turn, parent: bytes | None) -> tuple[Usage, float | None]:
        # An agent that is written to again later gets another span: what was sent stays as it was.
        key = agent.agent_id if turn.number == 1 else f"{agent.agent_id}/{turn.key}"
        own_id = ids.span_id(self._trace_id, Kind.AGENT, key)
        if turn.part > 0:
            return self._add_below(turn, own_id)
        at = len(self._spans)
        totals, cost = self._add_below(turn, own_id)
        start, end = _bounds(turn)
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
        start = happening.time_ns if happening.time_ns is not None else _bounds(turn)[0]
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
        """The id of a span; should a broken file hold a key twice in one trace, the second gets another id."""
        span_id, number = ids.span_id(self._trace_id, kind, key), 1
        while span_id in self._taken:
            number += 1
            span_id = ids.span_id(self._trace_id, kind, f"{key}~{number}")
        self._taken.add(span_id)
        return span_id


class _Costs:
    """A sum that is unknown as soon as one of its parts is."""

    def __init__(self) -> None:
        self.total = 0.0
        self.is_known = True

    def add(self, cost: float | None, usage: Usage) -> None:
        if cost is not None:
            self.total += cost
        elif usage.input or usage.output or usage.cache_read or usage.cache_write:
            self.is_known = False

    def merge(self, other: _Costs) -> None:
        self.total += other.total
        self.is_known = self.is_known and other.is_known

    @property
    def value(self) -> float | None:
        return self.total if self.is_known else None


_REJECTED: Final = ("The user doesn't want to proceed", "Permission to use", "Claude requested permissions")
_CUT_SHORT: Final = "[Request interrupted by user"
_ARGUMENT_FACTS: Final = {
    "Read": ("file_path", "file_path"), "Write": ("file_path", "file_path"), "Edit": ("file_path", "file_path"),
    "MultiEdit": ("file_path", "file_path"), "NotebookEdit": ("notebook_path", "file_path"),
    "Skill": ("skill", "skill"),
}  # fmt: skip


class _FileArguments(msgspec.Struct):
    """Raw, because one that is no text must not hide another."""

    file_path: msgspec.Raw = msgspec.Raw()
    notebook_path: msgspec.Raw = msgspec.Raw()
    skill: msgspec.Raw = msgspec.Raw()


_decode_arguments: Final = msgspec.json.Decoder(_FileArguments).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


class _AgentArguments(msgspec.Struct):
    prompt: str | None = None
    subagent_type: str | None = None
    description: str | None = None


def _agent_arguments(call: Call) -> tuple[str, str, str]:
    try:
        known = msgspec.json.decode(call.arguments, type=_AgentArguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        known = _AgentArguments()
    return known.prompt or "", known.subagent_type or "", known.description or ""


def agent_prompt(call: Call) -> str:
    """The prompt an Agent call gives to its agent."""
    return _agent_arguments(call)[0]


def agent_type(call: Call) -> str:
    """The kind of agent that a call asks for; empty where it does not say."""
    return _agent_arguments(call)[1]


def _bounds(turn: Turn) -> tuple[int, int]:
    """Start and end of a turn: the prompt's time where there is one, else the first; never the clock."""
    times = turn.times
    start = turn.prompt.time_ns if turn.prompt is not None and turn.prompt.time_ns is not None else None
    if start is None:
        start = min(times, default=0)
    return start, max([start, *times])


def _usage(response: Response, used: e.Usage) -> Usage:
    split = used.cache_creation
    five = _count(split.ephemeral_5m_input_tokens) if split is not None else 0
    hour = _count(split.ephemeral_1h_input_tokens) if split is not None else 0
    written = _count(used.cache_creation_input_tokens)
    five = max(written, five + hour) - hour  # no split, or half of one: the rest has the default lifetime
    return Usage(
        _count(used.input_tokens),
        _count(used.output_tokens),
        _count(used.cache_read_input_tokens),
        five,
        hour,
        _count(used.server_tool_use.web_search_requests) if used.server_tool_use is not None else 0,
        _is_incomplete(response),
    )


def _count(value: int | None) -> int:
    return value if value is not None and 0 < value < 2**53 else 0


def _is_incomplete(response: Response) -> bool:
    """Whether the output count is a streaming placeholder (docs/decisions.md has the versions)."""
    if response.stop_reason is not None:
        return False
    version = version_of(response.version)
    if response.is_aborted or not version or version >= _PLACEHOLDER_FROM:
        return True
    characters = sum(len(part.arguments if isinstance(part, Call) else part.text) for part in response.parts)
    counted = _count(response.usage.output_tokens) if response.usage is not None else 0
    return counted <= _PLACEHOLDER_TOKENS or characters > _CHARACTERS_PER_TOKEN * counted


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


def _generation_facts(response: Response, finish: str) -> Facts:
    used = response.usage
    facts: Facts = {
        name: value
        for name, value in (
            ("response_id", response.key), ("request_id", response.request_id),
            ("request_model", response.requested_model or response.model or None), ("effort", response.effort),
            ("max_tokens", response.max_tokens), ("stop_reason", response.stop_reason),
            ("service_tier", used.service_tier if used is not None else None),
            ("speed", used.speed if used is not None else None), ("error_status", response.error_status),
            ("thinking_ms", response.thinking_ms), ("finish_reason", finish),
        )
        if value is not None
    }  # fmt: skip
    if response.request_ns is None:
        facts["time.inferred"] = "start"
    if response.is_aborted:
        facts["aborted"] = True
    return facts


def _turn_facts(turn: Turn) -> Facts:
    facts: Facts = {"turn_number": turn.number, "origin": turn.origin}
    for name, value in (
        ("prompt_id", turn.prompt_id), ("permission_mode", turn.permission_mode),
        ("command", turn.prompt.command if turn.prompt is not None else None),
        ("local_commands", turn.local_commands), ("answers_call", turn.answers_call),
    ):  # fmt: skip
        if value:
            facts[name] = value
    if turn.is_interrupted:
        facts["interrupted"] = True
    elif not turn.has_answer:
        facts["incomplete"] = True
    return facts


def _session_facts(turn: Turn) -> Facts:
    titles = turn.titles
    title = titles.get("custom-title") or titles.get("ai-title") or titles.get("summary")
    facts: Facts = {}
    for name, value in (
        ("title", title), ("cwd", turn.cwd), ("git_branch", turn.git_branch), ("slug", turn.slug),
        ("entrypoint", turn.entrypoint), ("client_version", turn.version),
        ("previous_session", turn.previous_session), ("pull_request", turn.pull_request),
    ):  # fmt: skip
        if value:
            facts[name] = value
    return facts
