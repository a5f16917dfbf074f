"""A session's new lines become traces: from a place in the files to the traces that may leave, and the next place.

Rules:

- `read_session` reads and builds; it sends nothing and writes nothing. `ship` walks over its pieces and commits each once
  it is acknowledged; `show` only looks at them.
- The place never passes an unsealed turn. Reading from any committed place gives what one reading from the start gives.
- A foreground agent leaves with the turn that launched it. A background agent leaves when it has finished, as new spans
  of that turn's trace. An agent that nobody launched is a trace of its own.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import sessions, tail
from turnspan.errors import TranscriptError
from turnspan.trace import ids
from turnspan.trace.build import AGENT_TOOLS, Agent, Launch, agent_prompt, build_agent, build_turn
from turnspan.trace.model import Kind
from turnspan.transcript import entries
from turnspan.transcript.grouping import Carry, Grouper
from turnspan.transcript.turns import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from turnspan.sessions import AgentFile, SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.trace.model import Trace
    from turnspan.transcript.turns import Call, Turn

IDLE_NS: Final = 10 * 60 * 10**9
IDLE_WHILE_PENDING_NS: Final = 60 * 60 * 10**9  # a call without a result may be a long build, or a person at lunch
_MAX_DEPTH: Final = 12


class Position(msgspec.Struct, frozen=True):
    """How far one file has been read, and what is to be remembered there."""

    line: int = 0
    offset: int = 0
    fingerprint: str = ""
    carry: Carry = Carry()


class Launched(msgspec.Struct, frozen=True, array_like=True):
    """Where a background agent's spans will hang."""

    trace_id: str
    span_id: str
    name: str
    depth: int | None = None


class Progress(msgspec.Struct, frozen=True):
    """How far a session has been read: its own file and its agents'."""

    main: Position = Position()
    is_own: bool = False  # a turn of its own was met: nothing after it is copied
    agents: dict[str, Position] = {}
    launched: dict[str, Launched] = {}


class Ending(msgspec.Struct, frozen=True):
    """What is known about the end of what is open: it says when a turn may leave, never what is in it."""

    is_over: bool = False  # the session has ended: everything may leave
    is_stopped: bool = False  # the client says that the turn has ended
    last_message: str | None = None  # … with these words
    now_ns: int | None = None  # to tell an idle session
    finished_agent: str | None = None


class Piece(msgspec.Struct, frozen=True):
    """Traces that leave together, and the progress to commit once they are acknowledged."""

    traces: list[Trace]
    progress: Progress
    turns: int = 0
    copied: int = 0


class Reading:
    """One walk over a session. After it: what was noticed, and whether the file was rewritten or an answer is missing."""

    def __init__(self, session: SessionFile, progress: Progress, ending: Ending, prices: Prices | None = None) -> None:
        self.session = session
        self.noticed = entries.Noticed()
        self.is_rewritten = False
        self.is_answer_missing = False
        self.has_unsealed = False
        self.warmups = 0
        self._progress = progress
        self._ending = ending
        self._prices = prices
        self._agents: dict[str, AgentFile] | None = None

    # ---- the session's own file

    def pieces(self) -> Iterator[Piece]:
        """The traces that may leave, in the order of the transcript, then those of agents that have finished."""
        descriptor = tail.open_regular(self.session.path)
        try:
            position = self._checked(descriptor, self._progress.main)
            if position != self._progress.main:
                self.is_rewritten = True
                self._progress = Progress()
            grouper = Grouper(self.session.session_id, position.carry, _recall(descriptor))
            for place, entry in self._entries(descriptor, position):
                for sealed in grouper.feed(entry, place):
                    yield self._piece(descriptor, sealed.turns, sealed.end, sealed.carry)
            if grouper.unsealed:
                last = grouper.seal() if self._may_leave(grouper) else None
                if last is not None:
                    yield self._piece(descriptor, last.turns, last.end, last.carry)
                else:
                    self.has_unsealed = True
        finally:
            os.close(descriptor)
        yield from self._agent_pieces()

    def _checked(self, descriptor: int, position: Position) -> Position:
        """The position, if the file still is the one it was taken in; else its beginning."""
        if position.offset == 0:
            return position
        if position.offset > os.fstat(descriptor).st_size:
            return Position()
        return position if tail.fingerprint(descriptor, position.offset) == position.fingerprint else Position()

    def _entries(self, descriptor: int, position: Position) -> Iterator[tuple[Place, entries.Entry]]:
        for line in tail.complete_lines(descriptor, position.offset, position.line):
            if line.data is None:
                self.noticed.oversized += 1
                continue
            place = Place(line.number, line.offset, line.end)
            for entry in entries.parse(line.data, self.noticed):
                yield place, entry

    def _may_leave(self, grouper: Grouper) -> bool:
        ending = self._ending
        if ending.is_over:
            return True
        if ending.is_stopped and grouper.is_answered:
            wanted = (ending.last_message or "").strip()
            said = grouper.unsealed[-1].last_text.strip()
            if not wanted or wanted in said or said in wanted:
                return bool(said) or not wanted
            self.is_answer_missing = True
        elif ending.is_stopped and ending.last_message:
            self.is_answer_missing = True
        if ending.now_ns is not None:
            last = max([self._last_agent_write(), *(time for turn in grouper.unsealed for time in turn.times)])
            is_waiting = any(turn.pending_calls for turn in grouper.unsealed)
            return ending.now_ns - last > (IDLE_WHILE_PENDING_NS if is_waiting else IDLE_NS)
        return False

    def _last_agent_write(self) -> int:
        """The last time any of the session's agents said something, as far as the ends of their files show."""
        latest = 0
        for agent in self._known_agents().values():
            latest = max(latest, sessions.last_time_ns(agent.path) or 0)
        return latest

    def _piece(self, descriptor: int, turns: Sequence[Turn], end: Place, carry: Carry) -> Piece:
        traces: list[Trace] = []
        agents_read = dict(self._progress.agents)
        launched = dict(self._progress.launched)
        is_own = self._progress.is_own
        copied = 0
        for turn in turns:
            if not is_own and turn.part == 0:
                if sessions.is_copied(turn, self.session):
                    copied += 1
                    continue
                is_own = True
            if sessions.repeats_itself(turn, self.session):
                copied += 1
                continue
            trace_id = ids.trace_id(turn.session_id, turn.key)
            found = self._launched_by(turn, trace_id, f"Turn {turn.number}", agents_read, launched)
            traces.append(build_turn(turn, found, prices=self._prices))
        fingerprint = tail.fingerprint(descriptor, end.end)
        self._progress = Progress(
            Position(end.line + 1, end.end, fingerprint, carry), is_own, agents_read, launched
        )
        return Piece(traces, self._progress, sum(turn.part == 0 for turn in turns) - copied, copied)

    # ---- agents

    def _known_agents(self) -> dict[str, AgentFile]:
        if self._agents is None:
            self._agents = sessions.agent_files(self.session)
        return self._agents

    def _launched_by(
        self,
        turn: Turn,
        trace_id: bytes,
        name: str,
        agents_read: dict[str, Position],
        launched: dict[str, Launched],
        depth: int = 1,
    ) -> dict[str, list[Agent]]:
        """The finished foreground agents of a turn, by their call; background ones are noted down in `launched`."""
        found: dict[str, list[Agent]] = {}
        if depth > _MAX_DEPTH:
            return found
        for response in turn.responses:
            for call in response.calls:
                if call.name not in AGENT_TOOLS and (call.result is None or call.result.agent_id is None):
                    continue
                for file in self._files_of(call, turn, agents_read, launched):
                    if call.result is not None and call.result.is_background:
                        span = ids.span_id(trace_id, Kind.TOOL, call.id)
                        launched[file.agent_id] = Launched(trace_id.hex(), span.hex(), name, file.depth)
                        continue
                    turns, position, _ = self._agent_turns(file, agents_read.get(file.agent_id, Position()), is_over=True)
                    agents_read[file.agent_id] = position
                    for own in turns:
                        found |= self._launched_by(own, trace_id, name, agents_read, launched, depth + 1)
                    found.setdefault(call.id, []).append(_agent(file, turns, call, is_background=False))
        return found

    def _files_of(
        self, call: Call, turn: Turn, agents_read: dict[str, Position], launched: dict[str, Launched]
    ) -> list[AgentFile]:
        """The agents a call launched, by the first of the four ways that tells."""
        known = self._known_agents()
        named = [file for file in known.values() if file.tool_use_id == call.id]
        if named:
            return named
        agent_id = call.result.agent_id if call.result is not None else None
        if agent_id is not None and sessions.SAFE_ID.fullmatch(agent_id):
            file = known.get(agent_id) or sessions.flat_agent_file(self.session, agent_id)
            if file is not None:
                return [file]
        prompt = agent_prompt(call).strip()
        if not prompt:
            return []
        others = [f for f in known.values() if f.tool_use_id is None and not sessions.label_of(f.agent_id)]
        if not known and turn.times:
            others = list(sessions.flat_agent_files(self.session, min(turn.times)))
        for file in others:
            if file.agent_id not in agents_read and file.agent_id not in launched and _first_prompt(file) == prompt:
                return [file]
        return []

    def _agent_turns(self, file: AgentFile, position: Position, *, is_over: bool) -> tuple[list[Turn], Position, bool]:
        """An agent's new turns, the position behind them, and whether something stays unsealed."""
        turns: list[Turn] = []
        try:
            descriptor = tail.open_regular(file.path)
        except TranscriptError:
            return turns, position, False
        try:
            position = self._checked(descriptor, position)
            grouper = Grouper(self.session.session_id, position.carry, _recall(descriptor), is_agent=True)
            sealed = []
            for place, entry in self._entries(descriptor, position):
                sealed += grouper.feed(entry, place)
            last = grouper.seal() if is_over or grouper.is_answered else None
            sealed += [last] if last is not None else []
            for group in sealed:
                turns += group.turns
                position = Position(
                    group.end.line + 1, group.end.end, tail.fingerprint(descriptor, group.end.end), group.carry
                )
            return turns, position, bool(grouper.unsealed)
        finally:
            os.close(descriptor)

    def _agent_pieces(self) -> Iterator[Piece]:
        """Agents that left their turn behind: background ones, late rows, and those that nobody launched."""
        for agent_id, file in self._all_agents().items():
            position = self._progress.agents.get(agent_id, Position())
            launched = self._progress.launched.get(agent_id)
            if _size(file.path) <= position.offset:
                continue
            if position.offset == 0 and launched is None and not self._is_nobodys(file):
                continue
            if not self._has_finished(file, launched):
                self.has_unsealed = True
                continue
            turns, after, _ = self._agent_turns(file, position, is_over=True)
            if not turns:
                continue
            agents_read = {**self._progress.agents, agent_id: after}
            all_launched = dict(self._progress.launched)
            traces: list[Trace] = []
            if not _is_warmup(turns):
                launch = None
                if launched is not None:
                    trace_id, span_id = bytes.fromhex(launched.trace_id), bytes.fromhex(launched.span_id)
                    launch = Launch(trace_id, span_id, launched.name)
                agent = _agent(file, turns, None, is_background=launched is not None)
                trace_id = launch.trace_id if launch is not None else ids.trace_id(
                    turns[0].session_id, f"agent:{agent_id}"
                )
                name = launch.name if launch is not None else agent.type or "agent"
                for turn in turns:
                    found = self._launched_by(turn, trace_id, name, agents_read, all_launched)
                    traces.append(build_agent(agent, turn, launch, found, prices=self._prices))
            else:
                self.warmups += 1
            self._progress = Progress(self._progress.main, self._progress.is_own, agents_read, all_launched)
            yield Piece(traces, self._progress)

    def _all_agents(self) -> dict[str, AgentFile]:
        found = dict(self._known_agents())
        for agent_id in self._progress.launched:
            if agent_id not in found:
                file = sessions.flat_agent_file(self.session, agent_id)
                if file is not None:
                    found[agent_id] = file
        return found

    def _is_nobodys(self, file: AgentFile) -> bool:
        """Whether no call will ever claim an agent: its id says what it is for, or the session is over."""
        if sessions.label_of(file.agent_id):
            return True
        return not self.has_unsealed and (self._ending.is_over or self._is_idle(file))

    def _is_idle(self, file: AgentFile) -> bool:
        now = self._ending.now_ns
        return now is not None and now - (sessions.last_time_ns(file.path) or now) > IDLE_NS

    def _has_finished(self, file: AgentFile, launched: Launched | None) -> bool:
        if self._ending.is_over or self._is_idle(file) or file.agent_id == self._ending.finished_agent:
            return True
        return file.is_finished and (launched is not None or bool(sessions.label_of(file.agent_id)))


def _agent(file: AgentFile, turns: Sequence[Turn], call: Call | None, *, is_background: bool) -> Agent:
    kind = file.type or sessions.label_of(file.agent_id)
    return Agent(
        file.agent_id, kind, tuple(turns), call.id if call is not None else file.tool_use_id, file.description,
        file.depth, is_background,
    )  # fmt: skip


def _is_warmup(turns: Sequence[Turn]) -> bool:
    """2.0.x starts agents that nobody asked for."""
    return len(turns) == 1 and turns[0].prompt is not None and turns[0].prompt.text.strip() == "Warmup"


def _first_prompt(file: AgentFile) -> str:
    noticed = entries.Noticed()
    try:
        descriptor = tail.open_regular(file.path)
    except TranscriptError:
        return ""
    try:
        for line in tail.complete_lines(descriptor):
            for entry in entries.parse(line.data or b"", noticed):
                if entry.type == "user" and entry.message is not None:
                    return entries.plain_text(entries.blocks(entry.message)).strip()
            if line.number > 50:
                break
    finally:
        os.close(descriptor)
    return ""


def _recall(descriptor: int) -> Callable[[int, int], entries.Entry | None]:
    def recall(offset: int, length: int) -> entries.Entry | None:
        found = entries.parse(tail.read_line_at(descriptor, offset, length).rstrip(b"\r\n"), entries.Noticed())
        return found[0] if found else None

    return recall


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def read_traces(path: Path, prices: Prices | None = None) -> Iterator[Trace]:
    """All traces of a transcript, as if its session were over."""
    session = sessions.SessionFile(path.stem, path)
    for piece in Reading(session, Progress(), Ending(is_over=True), prices).pieces():
        yield from piece.traces
