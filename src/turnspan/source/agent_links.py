"""Which call launched a subagent: finding the link (`Links.find`) and recording it (`Links.record`).

Claude Code states the link in several ways, depending on its version. The first one that gives an answer counts:

| # | link | client versions |
|---|---|---|
| 1 | `toolUseId` in the agent's `meta.json` | about 2.1.172 on |
| 2 | `toolUseResult.agentId` of the result (`resumedAgentId` of a message) | 2.0.28 on, in a session's file |
| 3 | `agentId: …` in the text of the result (`"resumedAgentId"`) | where 2 is missing, see `transcript.responses` |
| 4 | the first prompt in the agent's file equals the call's `prompt` | all; the only one without a result |

Rules:

- An agent can be launched once, and sent on by later calls. So 1 and 4 only consider files that no call has claimed;
  2 and 3, which name the agent, can claim it again.
- 4 does not consider files that name another call (1), were read already, or whose id says what they are for
  (`acompact-…`): these were not launched by a call.
- Files next to the session (2.0.28 to 2.1.1) can belong to any session of the project: 4 considers those that contain
  this session's id and were written to since the turn began, and only if the session has no agents in its directory.
- Before 2.0.28 agents have no files: see `transcript.inline`.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeGuard

import msgspec

from turnspan.source import sessions
from turnspan.source.decode import first_prompt
from turnspan.source.progress import Launched, Position
from turnspan.trace import ids
from turnspan.trace.facts import agent_arguments
from turnspan.trace.model import Kind
from turnspan.transcript.turns import AGENT_TOOLS

if TYPE_CHECKING:
    from turnspan.source.progress import Progress
    from turnspan.source.sessions import AgentFile, SessionFile
    from turnspan.transcript.turns import Turn, TurnCall


class ParentSpan(msgspec.Struct, frozen=True):
    """What a turn's calls hang below: its trace, and the agent whose turn it is, if it is not the session's own."""

    trace_id: bytes
    name: str
    agent_id: str | None = None


class AgentLink(msgspec.Struct, frozen=True):
    """A call that launched agents or sent them on, and their files, as far as they exist."""

    call: TurnCall
    launched: Launched
    named: str | None  # the agent that the result names
    files: list[AgentFile]

    @property
    def until_ns(self) -> int | None:
        """When the result came: what the agent did later belongs to another call."""
        return self.call.result.time_ns if self.call.result is not None else None


class Links:
    """The agents of one session: how far each was read, and the calls that launched it."""

    def __init__(self, session: SessionFile, progress: Progress) -> None:
        self._session = session
        self.positions = dict(progress.agents)  # agent id → how far its file was read
        self.launched = dict(progress.launched)  # agent id → the calls that launched it or sent it on

    def snapshot(self) -> tuple[dict[str, Position], dict[str, tuple[Launched, ...]]]:
        """Return positions and launches as they are now; later changes do not affect them."""
        found = self.positions, self.launched
        self.positions, self.launched = dict(self.positions), dict(self.launched)
        return found

    # ---- queries

    @cached_property
    def files(self) -> dict[str, AgentFile]:
        """The agents in the session's own directory (since 2.1.2), by id."""
        return sessions.agent_files(self._session)

    def file_of(self, agent_id: str) -> AgentFile | None:
        """Return an agent's file, in the session's directory or next to the session."""
        return self.files.get(agent_id) or sessions.flat_agent_file(self._session, agent_id)

    def position_of(self, file: AgentFile) -> Position:
        """Return how far an agent was read."""
        return self.positions.get(file.agent_id, Position())

    def call_before(self, agent_id: str, time_ns: int) -> Launched | None:
        """Return the last call before a time that launched an agent or sent it on; without one, the first call."""
        calls = self.launched.get(agent_id, ())
        return next((call for call in reversed(calls) if call.since_ns <= time_ns), calls[0] if calls else None)

    def find(self, call: TurnCall, turn: Turn, parent: ParentSpan) -> AgentLink | None:
        """Return the agents that one of the `agent_calls` launched.

        None if an agent's own turn names the agent itself: it does not launch itself.
        """
        named = call.result.agent_id if call.result is not None else None
        if parent.agent_id is not None and parent.agent_id == named:
            return None
        files = [file for file in self._files_of(call, turn) if file.agent_id != parent.agent_id]
        return AgentLink(call, _launched(call, parent), named, files)

    def _files_of(self, call: TurnCall, turn: Turn) -> list[AgentFile]:
        found = [file for file in self._by_call.get(call.id, ()) if file.agent_id not in self.launched]
        if found:
            return found
        named = call.result.agent_id if call.result is not None else None
        file = self.file_of(named) if _is_safe(named) else None
        if file is None:
            file = self._file_with_prompt(agent_arguments(call)[0].strip(), turn)
        return [file] if file is not None else []

    @cached_property
    def _by_call(self) -> dict[str | None, list[AgentFile]]:
        """The files that no call has claimed yet, by the call that their `meta.json` names. Looked up by every call."""
        found: dict[str | None, list[AgentFile]] = {}
        for file in self.files.values():
            if file.agent_id not in self.launched:
                found.setdefault(file.tool_use_id, []).append(file)
        return found

    def _file_with_prompt(self, prompt: str, turn: Turn) -> AgentFile | None:
        if not prompt:
            return None
        others = [
            file
            for file in self._by_call.get(None, ())
            if file.agent_id not in self.launched and not sessions.label_of(file.agent_id)
        ]
        if not self.files and turn.times:
            others = list(sessions.flat_agent_files(self._session, min(turn.times)))
        known = self.positions.keys() | self.launched.keys()
        return next((file for file in others if file.agent_id not in known and first_prompt(file.path) == prompt), None)

    # ---- commands

    def record(self, agent_id: str, launched: Launched) -> None:
        """Record a call that launched an agent or sent it on."""
        self.launched[agent_id] = (*self.launched.get(agent_id, ()), launched)

    def record_missing(self, link: AgentLink) -> None:
        """Record a background launch whose file does not exist yet, or the file is later taken for unclaimed.

        The file is created a moment after the call returns (2.1.152).
        """
        if not link.files and link.launched.is_background and _is_safe(link.named):
            self.record(link.named, link.launched)


def agent_calls(turn: Turn) -> list[TurnCall]:
    """Return the calls of a turn that launch agents or send them on."""
    return [
        call
        for response in turn.responses
        for call in response.calls
        if call.name in AGENT_TOOLS or (call.result is not None and call.result.agent_id is not None)
    ]


def _launched(call: TurnCall, parent: ParentSpan) -> Launched:
    span_id = ids.span_id(parent.trace_id, Kind.TOOL, call.id)
    is_background = call.result is not None and call.result.is_background
    agent_type = agent_arguments(call)[1]
    return Launched(parent.trace_id.hex(), span_id.hex(), parent.name, agent_type, is_background, call.time_ns or 0)


def _is_safe(agent_id: str | None) -> TypeGuard[str]:
    return agent_id is not None and sessions.is_safe_id(agent_id)
