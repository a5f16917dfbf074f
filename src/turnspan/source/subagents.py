"""The agents of a session: the call that each was launched by, and what of them may leave.

Rules:

- A foreground agent leaves with the turn that launched it. A background agent leaves when it has finished, as new spans
  of that turn's trace. An agent that nobody launched is a trace of its own.
- An agent may be sent on by later calls. Each of its runs belongs to the last call before it, whenever it is read.
"""

from __future__ import annotations

import os
from functools import cached_property
from typing import TYPE_CHECKING, Final, TypeGuard

from turnspan.errors import TranscriptError
from turnspan.source import sessions, tail
from turnspan.source.decode import entries_from, first_prompt, found_again, position_behind, recall_from
from turnspan.source.progress import Launched, Position
from turnspan.source.scan import first_row_time_ns, last_time_ns
from turnspan.trace import ids
from turnspan.trace.build import Agent, Launch, build_agent, trace_of_agent
from turnspan.trace.facts import agent_arguments
from turnspan.trace.model import Kind
from turnspan.transcript.classify import WARMUP
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Noticed
from turnspan.transcript.turns import AGENT_TOOLS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from turnspan.source.draft import Draft
    from turnspan.source.progress import Ending
    from turnspan.source.sessions import AgentFile, SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.transcript.sealing import Sealed
    from turnspan.transcript.turns import Call, Turn

_MAX_DEPTH: Final = 12
_LATEST_AGENTS: Final = 32


class Agents:
    """The agents of one session, as a walk over it meets them."""

    def __init__(
        self, session: SessionFile, draft: Draft, ending: Ending, noticed: Noticed, prices: Prices | None
    ) -> None:
        self._session = session
        self._draft = draft
        self._ending = ending
        self._noticed = noticed
        self._prices = prices

    @cached_property
    def _known(self) -> dict[str, AgentFile]:
        return sessions.agent_files(self._session)

    def last_write_ns(self) -> int:
        """The last time any of them said something, as far as the ends of their files show."""
        return max((last_time_ns(agent.path) or 0 for agent in self._known.values()), default=0)

    def launched_by(
        self, turn: Turn, trace_id: bytes, name: str, of: AgentFile | None = None, depth: int = 1
    ) -> dict[str, list[Agent]]:
        """The finished foreground agents of a turn, by their call; every launch is noted down.

        What such an agent did for an earlier call, and has not left yet, leaves now, as a trace before this one. An
        agent launches others: a turn `of` one that names itself does not make it its own parent.
        """
        found: dict[str, list[Agent]] = {}
        launched = self._draft.launched
        if depth > _MAX_DEPTH:
            return found
        for call in (call for response in turn.responses for call in response.calls):
            result = call.result
            named = result.agent_id if result is not None else None
            if (call.name not in AGENT_TOOLS and named is None) or (of is not None and of.agent_id == named):
                continue
            launch = _launch(call, trace_id, name)
            files = [file for file in self._files_of(call, turn) if of is None or file.agent_id != of.agent_id]
            if not files and launch.is_background and _is_safe(named):
                # Its file comes a moment after the call has returned (2.1.152); then it must not be nobody's.
                launched[named] = (*launched.get(named, ()), launch)
            for file in files:
                is_sent_on = file.agent_id in launched
                launched[file.agent_id] = (*launched.get(file.agent_id, ()), launch)
                if launch.is_background:
                    continue
                until_ns = result.time_ns if result is not None else None
                runs = self._runs_for(file, launch.since_ns if is_sent_on else 0, until_ns)
                for run in runs:
                    found |= self.launched_by(run, trace_id, name, file, depth + 1)
                found.setdefault(call.id, []).append(_agent(file, runs, launch))
        return found

    def _runs_for(self, file: AgentFile, since_ns: int, until_ns: int | None) -> list[Turn]:
        """What an agent did for a call; what it had done before it, and has not left yet, leaves now."""
        agents = self._draft.agents
        turns, agents[file.agent_id], _ = self._agent_turns(
            file, agents.get(file.agent_id, Position()), is_over=True, since_ns=since_ns, until_ns=until_ns
        )
        self._make_agent(file, [run for run in turns if started_ns(run) < since_ns])
        return [run for run in turns if started_ns(run) >= since_ns]

    def _files_of(self, call: Call, turn: Turn) -> list[AgentFile]:
        """The agents a call launched, by the first of the four ways that tells."""
        known, draft = self._known, self._draft
        new = [file for file in known.values() if file.agent_id not in draft.launched]
        named = [file for file in new if file.tool_use_id == call.id]
        if named:
            return named
        agent_id = call.result.agent_id if call.result is not None else None
        if _is_safe(agent_id):
            file = known.get(agent_id) or sessions.flat_agent_file(self._session, agent_id)
            if file is not None:
                return [file]
        prompt = agent_arguments(call)[0].strip()
        if not prompt:
            return []
        others = [f for f in new if f.tool_use_id is None and not sessions.label_of(f.agent_id)]
        if not known and turn.times:
            others = list(sessions.flat_agent_files(self._session, min(turn.times)))
        read = draft.agents.keys() | draft.launched.keys()
        return next(([file] for file in others if file.agent_id not in read and first_prompt(file.path) == prompt), [])

    def _agent_turns(
        self, file: AgentFile, position: Position, *, is_over: bool, since_ns: int = 0, until_ns: int | None = None
    ) -> tuple[list[Turn], Position, bool]:
        """An agent's new turns, the position behind them, and whether something stays unsealed.

        What began after `until_ns` is left for later; what began before `since_ns` leaves only if it has ended.
        """
        turns: list[Turn] = []
        try:
            descriptor = tail.open_regular(file.path)
        except TranscriptError:
            return turns, position, False
        try:
            position = found_again(descriptor, position)
            grouper = self._agent_grouper(descriptor, position)
            sealed: list[Sealed] = []
            for place, entry in entries_from(descriptor, position, self._noticed):
                sealed += grouper.feed(entry, place)
            is_over = is_over and all(started_ns(turn) >= since_ns for turn in grouper.unsealed)
            last = grouper.seal() if is_over or grouper.is_answered else None
            sealed += [last] if last is not None else []
            for group in sealed:
                if until_ns is not None and min(map(started_ns, group.turns)) > until_ns:
                    return turns, position, bool(grouper.unsealed)
                turns += group.turns
                position = position_behind(descriptor, group)
            if position.offset == os.fstat(descriptor).st_size:
                position = Position(position.line, position.offset, position.fingerprint)
            return turns, position, bool(grouper.unsealed)
        finally:
            os.close(descriptor)

    def _agent_grouper(self, descriptor: int, position: Position) -> Grouper:
        carry = position.carry
        if position.offset and not carry.turns:
            earlier = Grouper(self._session.session_id, None, recall_from(descriptor), is_agent=True)
            for place, entry in entries_from(descriptor, Position(), Noticed(), until=position.offset):
                earlier.feed(entry, place)
            sealed = earlier.seal()
            carry = sealed.carry if sealed is not None else carry
        return Grouper(self._session.session_id, carry, recall_from(descriptor), is_agent=True)

    def left(self) -> Iterator[None]:
        """Agents that left their turn behind: background ones, late rows, and those that nobody launched."""
        known = self._known
        done: set[str] = set()
        # Whoever was launched comes first: it may have launched others, which then are not nobody's.
        while launched := [agent_id for agent_id in self._draft.launched if agent_id not in done]:
            done.update(launched)
            for agent_id in self._worth_a_look(launched):
                file = known.get(agent_id) or sessions.flat_agent_file(self._session, agent_id)
                if file is not None:
                    self._add_agent(file)
                    yield
        others = dict(known)
        if not self._draft.has_unsealed and (self._ending.is_over or self._is_idle(self._session.path)):
            others |= {file.agent_id: file for file in sessions.flat_agent_files(self._session)}
        for agent_id, file in others.items():
            if agent_id not in done and (agent_id in self._draft.agents or self._is_nobodys(file)):
                self._add_agent(file)
                yield

    def _worth_a_look(self, launched: list[str]) -> list[str]:
        """Agents that may have said something new.

        One that was read to its end rarely goes on without another call. So an event looks at the latest of what may be
        a thousand; the end of the session, recovery and backfill look at all.
        """
        ending, read = self._ending, self._draft.agents
        if ending.is_over or ending.now_ns is not None:
            return launched
        settled = {a for a in launched[:-_LATEST_AGENTS] if a in read and not read[a].carry.turns}
        settled -= {*ending.finished_agents}
        return [agent_id for agent_id in launched if agent_id not in settled]

    def _add_agent(self, file: AgentFile) -> None:
        """What an agent has done since it was last read, if it has finished."""
        draft = self._draft
        position = draft.agents.get(file.agent_id, Position())
        if file.size <= position.offset:
            return
        is_over = self._ending.is_over or self._is_idle(file.path)
        if not is_over and not self._has_finished(file):
            draft.has_unsealed = True
            return
        # What began in a turn that is still open may be the doing of one of its calls, which is not noted down yet.
        turns, after, is_open = self._agent_turns(file, position, is_over=is_over, until_ns=draft.open_ns)
        if is_open:
            draft.has_unsealed = True
            draft.is_answer_missing |= file.agent_id in self._ending.finished_agents
        if not turns:
            return
        draft.agents[file.agent_id] = after
        draft.is_changed = draft.is_half = True
        if self._is_warmup(file, turns):
            draft.warmups += 1
        else:
            self._make_agent(file, turns)
        draft.is_half = False

    def _make_agent(self, file: AgentFile, turns: Sequence[Turn]) -> None:
        """An agent's turns as traces of their own, each in the trace of the call that it was run for."""
        for turn in turns:
            calls = self._draft.launched.get(file.agent_id, ())
            call = next((c for c in reversed(calls) if c.since_ns <= started_ns(turn)), calls[0] if calls else None)
            agent = _agent(file, turns, call, is_late=True)
            if call is not None:
                launch = Launch(bytes.fromhex(call.trace_id), bytes.fromhex(call.span_id), call.name)
                trace_id, name = launch.trace_id, launch.name
            else:
                launch = None
                trace_id, name = trace_of_agent(file.agent_id, turn), agent.type or "agent"
            found = self.launched_by(turn, trace_id, name, file)
            self._draft.add(build_agent(agent, turn, launch, found, prices=self._prices))

    def _is_nobodys(self, file: AgentFile) -> bool:
        """Whether no call will ever claim an agent: its id says what it is for, or the session is over."""
        if sessions.label_of(file.agent_id) and file.tool_use_id is None:
            return True
        return not self._draft.has_unsealed and (self._ending.is_over or self._is_idle(file.path))

    def _is_warmup(self, file: AgentFile, turns: Sequence[Turn]) -> bool:
        """2.0.x starts agents that nobody asked for.

        2.0.55 writes no agent's prompt down. There it is one that answered before the session called any agent.
        """
        turn = turns[0]
        if len(turns) > 1 or turn.prompt is not None:
            return len(turns) == 1 and turn.prompt is not None and turn.prompt.text.strip() == WARMUP
        if not turn.version.startswith("2.0.") or file.agent_id in self._draft.launched:
            return False
        called_ns = first_row_time_ns(self._session.path, *(b'"name":"%b"' % name.encode() for name in AGENT_TOOLS))
        return called_ns is None or max(turn.times, default=0) < called_ns

    def _is_idle(self, path: Path) -> bool:
        if self._ending.now_ns is None:
            return False  # without a look at the file
        last_ns = last_time_ns(path)
        return last_ns is not None and self._ending.is_idle(last_ns)

    def _has_finished(self, file: AgentFile) -> bool:
        """Whether the client says that an agent has come to an end; its file may lag behind."""
        return file.agent_id in self._ending.finished_agents or file.is_finished


def _launch(call: Call, trace_id: bytes, name: str) -> Launched:
    span_id = ids.span_id(trace_id, Kind.TOOL, call.id)
    is_background = call.result is not None and call.result.is_background
    return Launched(trace_id.hex(), span_id.hex(), name, agent_arguments(call)[1], is_background, call.time_ns or 0)


def _agent(file: AgentFile, turns: Sequence[Turn], call: Launched | None, *, is_late: bool = False) -> Agent:
    """What is known of an agent; `is_late` if it leaves after the turn that launched it."""
    kind = (call.type if call is not None else "") or file.type or sessions.label_of(file.agent_id)
    return Agent(file.agent_id, kind, tuple(turns), file.description, file.depth, is_late and call is not None)


def _is_safe(agent_id: str | None) -> TypeGuard[str]:
    return agent_id is not None and sessions.is_safe_id(agent_id)


def started_ns(turn: Turn) -> int:
    """When a turn began."""
    return min(turn.times, default=0)
