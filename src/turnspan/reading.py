"""A session's new lines become traces: from a place in the files to the traces that may leave, and the next place.

Rules:

- A `Reading` reads and builds; it sends nothing and writes nothing. `ship` walks over its pieces and commits each once
  it is acknowledged; `show` only looks at them.
- The place never passes an unsealed turn. Reading from any committed place gives what one reading from the start gives.
- A foreground agent leaves with the turn that launched it. A background agent leaves when it has finished, as new spans
  of that turn's trace. An agent that nobody launched is a trace of its own.
- An agent may be sent on by later calls. Each of its runs belongs to the last call before it, whenever it is read.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final, TypeGuard

import msgspec

from turnspan import copies, sessions, tail
from turnspan.errors import TranscriptError
from turnspan.glance import first_call_ns, last_time_ns
from turnspan.progress import Ending, Launched, Piece, Position, Progress
from turnspan.trace import ids
from turnspan.trace.build import Agent, Launch, build_agent, build_turn, trace_of_agent
from turnspan.trace.facts import agent_arguments
from turnspan.trace.model import Kind
from turnspan.transcript import entries, lines
from turnspan.transcript.grouping import Grouper, Sealed
from turnspan.transcript.kinds import WARMUP
from turnspan.transcript.turns import AGENT_TOOLS, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from turnspan.sessions import AgentFile, SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.trace.model import Trace
    from turnspan.transcript.turns import Call, Turn

PIECE_SPANS: Final = 400  # what makes a request worth its while
IDLE_NS: Final = 10 * 60 * 10**9
IDLE_WHILE_PENDING_NS: Final = 60 * 60 * 10**9  # a call without a result may be a long build, or a person at lunch
_MAX_DEPTH: Final = 12
_REMEMBERED_LEFT_OUT: Final = 8
_LATEST_AGENTS: Final = 32


class _Draft(msgspec.Struct):
    """A piece in the making: its traces, and how far everything has been read with it."""

    agents: dict[str, Position]
    launched: dict[str, tuple[Launched, ...]]
    is_own: bool
    left_out: tuple[int, ...]
    last: Sealed | None = None  # of the session's own file
    is_changed: bool = False  # something was read that is worth a commit
    is_half: bool = False  # a turn or an agent is being added: what there is of it must not leave
    traces: list[Trace] = []
    spans: int = 0
    turns: int = 0
    copied: int = 0

    def add(self, trace: Trace) -> None:
        """One more trace."""
        self.traces.append(trace)
        self.spans += len(trace.spans)


class Reading:
    """One walk over a session. After it: what was noticed, and whether the file was rewritten or an answer misses."""

    def __init__(self, session: SessionFile, progress: Progress, ending: Ending, prices: Prices | None = None) -> None:
        self.session = session
        self.noticed = lines.Noticed()
        self.is_rewritten = False
        self.is_answer_missing = False
        self.has_unsealed = False
        self.is_finished = False
        self.size = 0  # of the session's file, when it was read
        self.warmups = 0
        self._progress = progress
        self._draft = _begun(progress)
        self._ending = ending
        self._prices = prices
        self._agents: dict[str, AgentFile] | None = None
        self._is_cut = False  # the file ends in half a line: somebody may be at work there
        self._open_ns: int | None = None  # when the turn began that must not leave yet

    # ---- the session's own file

    def pieces(self) -> Iterator[Piece]:
        """The traces that may leave, in the order of the transcript, then those of agents that have finished.

        Raises TranscriptError, also when the disk fails in the middle: what was not read is not concluded about.
        """
        try:
            yield from self._pieces()
        except OSError as error:
            raise TranscriptError(f"cannot read {str(self.session.path)!r}: {error.strerror or error}") from error

    def _pieces(self) -> Iterator[Piece]:
        descriptor = tail.open_regular(self.session.path)
        try:
            for _ in self._steps(descriptor):
                if self._draft.spans >= PIECE_SPANS:
                    yield self._piece(descriptor)
            self.is_finished = True
            if self._draft.is_changed:
                yield self._piece(descriptor)
        except OSError:
            if self._draft.is_changed and not self._draft.is_half:  # what stands before the spot that cannot be read
                yield self._piece(descriptor)
            raise
        finally:
            os.close(descriptor)

    def _steps(self, descriptor: int) -> Iterator[None]:
        """Draft what may leave, a turn or an agent at a time."""
        self.size = os.fstat(descriptor).st_size
        self._is_cut = self.size > 0 and tail.read_at(descriptor, 1, self.size - 1) != b"\n"
        position = self._checked(descriptor, self._progress.main)
        if position != self._progress.main:
            self.is_rewritten = True
            self._progress = Progress()
            self._draft = _begun(self._progress)
        grouper = Grouper(self.session.session_id, position.carry, _recall(descriptor))
        for place, entry in _entries(descriptor, position, self.noticed):
            for sealed in grouper.feed(entry, place):
                self._add(sealed)
                yield
        if grouper.early_ns is not None:
            self.has_unsealed = True
            patience_ns = IDLE_WHILE_PENDING_NS if self._is_cut else IDLE_NS
            if self._ending.is_over or self._is_past(grouper.early_ns, patience_ns):
                for sealed in grouper.flush():
                    self._add(sealed)
        if grouper.unsealed:
            last = grouper.seal() if self._may_leave(grouper) else None
            if last is not None:
                self._add(last)
            else:
                self.has_unsealed = True
                self._open_ns = min(map(_started_ns, grouper.unsealed))
        yield
        yield from self._agents_left()

    def _piece(self, descriptor: int) -> Piece:
        """The draft as it is; another one is begun."""
        draft, position = self._draft, self._progress.main
        if draft.last is not None:
            end = draft.last.end
            position = Position(end.line + 1, end.end, tail.fingerprint(descriptor, end.end), draft.last.carry)
        self._progress = Progress(position, draft.is_own, draft.agents, draft.launched, draft.left_out)
        self._draft = _begun(self._progress)
        return Piece(draft.traces, self._progress, draft.turns, draft.copied)

    def _checked(self, descriptor: int, position: Position) -> Position:
        """The position, if the file still is the one it was taken in; else its beginning."""
        if position.offset == 0:
            return position
        if position.offset > os.fstat(descriptor).st_size:
            return Position()
        return position if tail.fingerprint(descriptor, position.offset) == position.fingerprint else Position()

    def _may_leave(self, grouper: Grouper) -> bool:
        ending = self._ending
        if ending.is_over:
            return True
        if ending.is_stopped and not self._began_later(grouper):
            words = ending.last_words
            if grouper.is_answered and (words is None or words in grouper.unsealed[-1].last_words):
                return True
            # The stop may have been an earlier turn's: then its words have left already.
            past = self._draft.last.carry if self._draft.last is not None else self._progress.main.carry
            self.is_answer_missing = words not in past.words
        if grouper.is_answered and all(turn.session_id == ending.stopped_session for turn in grouper.unsealed):
            return True  # 1.0.128 `--continue`: the stop names the old file, the turn stands in a new one
        if ending.now_ns is not None:
            last = max([self._last_agent_write(), *(time for turn in grouper.unsealed for time in turn.times)])
            is_waiting = self._is_cut or any(turn.pending_calls for turn in grouper.unsealed)
            return ending.now_ns - last > (IDLE_WHILE_PENDING_NS if is_waiting else IDLE_NS)
        return False

    def _is_past(self, moment_ns: int, patience_ns: int) -> bool:
        now_ns = self._ending.now_ns
        return now_ns is not None and now_ns - moment_ns > patience_ns

    def _began_later(self, grouper: Grouper) -> bool:
        """Whether what is open began after the stop: clients before 2.1.47 do not say what the last words were."""
        stopped_ns = self._ending.stopped_ns
        return stopped_ns is not None and min(_started_ns(turn) for turn in grouper.unsealed) > stopped_ns

    def _last_agent_write(self) -> int:
        """The last time any of the session's agents said something, as far as the ends of their files show."""
        latest = 0
        for agent in self._known_agents().values():
            latest = max(latest, last_time_ns(agent.path) or 0)
        return latest

    def _add(self, sealed: Sealed) -> None:
        """Build what was sealed, less what was copied."""
        draft = self._draft
        draft.last, draft.is_changed, draft.is_half = sealed, True, True
        for turn in sealed.turns:
            if turn.part > 0 and turn.number in draft.left_out:
                continue
            is_copied = not draft.is_own and copies.is_copied(turn, self.session)
            if is_copied or copies.repeats_itself(turn, self.session):
                draft.copied += turn.part == 0
                draft.left_out = (*draft.left_out, turn.number)[-_REMEMBERED_LEFT_OUT:]
                continue
            if not draft.is_own and turn.previous is not None:
                turn.previous = copies.original_ref(turn.previous, self.session)
            draft.is_own = True
            draft.turns += turn.part == 0
            trace_id = ids.trace_id(turn.session_id, turn.key)
            found = self._launched_by(turn, trace_id, f"Turn {turn.number}")
            draft.add(build_turn(turn, found, prices=self._prices))
        draft.is_half = False

    # ---- agents

    def _known_agents(self) -> dict[str, AgentFile]:
        if self._agents is None:
            self._agents = sessions.agent_files(self.session)
        return self._agents

    def _launched_by(self, turn: Turn, trace_id: bytes, name: str, depth: int = 1) -> dict[str, list[Agent]]:
        """The finished foreground agents of a turn, by their call; every launch is noted down.

        What such an agent did for an earlier call, and has not left yet, leaves now, as a trace before this one.
        """
        found: dict[str, list[Agent]] = {}
        draft = self._draft
        if depth > _MAX_DEPTH:
            return found
        for response in turn.responses:
            for call in response.calls:
                result = call.result
                if call.name not in AGENT_TOOLS and (result is None or result.agent_id is None):
                    continue
                span = ids.span_id(trace_id, Kind.TOOL, call.id)
                launch = Launched(
                    trace_id.hex(), span.hex(), name, agent_arguments(call)[1],
                    result is not None and result.is_background, call.time_ns or 0,
                )  # fmt: skip
                files = self._files_of(call, turn)
                if not files and result is not None and result.is_background and _is_safe(result.agent_id):
                    # Its file comes a moment after the call has returned (2.1.152); then it must not be nobody's.
                    draft.launched[result.agent_id] = (*draft.launched.get(result.agent_id, ()), launch)
                for file in files:
                    earlier = draft.launched.get(file.agent_id, ())
                    draft.launched[file.agent_id] = (*earlier, launch)
                    if launch.is_background:
                        continue
                    turns, position, _ = self._agent_turns(
                        file,
                        draft.agents.get(file.agent_id, Position()),
                        is_over=True,
                        since_ns=launch.since_ns if earlier else 0,
                        until_ns=result.time_ns if result is not None else None,
                    )
                    draft.agents[file.agent_id] = position
                    own = [run for run in turns if not earlier or _started_ns(run) >= launch.since_ns]
                    others = [run for run in turns if earlier and _started_ns(run) < launch.since_ns]
                    self._make_agent(file, others)
                    for run in own:
                        found |= self._launched_by(run, trace_id, name, depth + 1)
                    found.setdefault(call.id, []).append(_agent(file, own, launch))
        return found

    def _files_of(self, call: Call, turn: Turn) -> list[AgentFile]:
        """The agents a call launched, by the first of the four ways that tells."""
        known, draft = self._known_agents(), self._draft
        new = [file for file in known.values() if file.agent_id not in draft.launched]
        named = [file for file in new if file.tool_use_id == call.id]
        if named:
            return named
        agent_id = call.result.agent_id if call.result is not None else None
        if _is_safe(agent_id):
            file = known.get(agent_id) or sessions.flat_agent_file(self.session, agent_id)
            if file is not None:
                return [file]
        prompt = agent_arguments(call)[0].strip()
        if not prompt:
            return []
        others = [f for f in new if f.tool_use_id is None and not sessions.label_of(f.agent_id)]
        if not known and turn.times:
            others = list(sessions.flat_agent_files(self.session, min(turn.times)))
        for file in others:
            if not {file.agent_id} & (draft.agents.keys() | draft.launched.keys()) and _first_prompt(file) == prompt:
                return [file]
        return []

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
            position = self._checked(descriptor, position)
            grouper = self._agent_grouper(descriptor, position)
            sealed: list[Sealed] = []
            for place, entry in _entries(descriptor, position, self.noticed):
                sealed += grouper.feed(entry, place)
            is_over = is_over and all(_started_ns(turn) >= since_ns for turn in grouper.unsealed)
            last = grouper.seal() if is_over or grouper.is_answered else None
            sealed += [last] if last is not None else []
            for group in sealed:
                if until_ns is not None and min(map(_started_ns, group.turns)) > until_ns:
                    return turns, position, bool(grouper.unsealed)
                turns += group.turns
                position = Position(
                    group.end.line + 1, group.end.end, tail.fingerprint(descriptor, group.end.end), group.carry
                )
            if position.offset == os.fstat(descriptor).st_size:
                position = Position(position.line, position.offset, position.fingerprint)
            return turns, position, bool(grouper.unsealed)
        finally:
            os.close(descriptor)

    def _agent_grouper(self, descriptor: int, position: Position) -> Grouper:
        carry = position.carry
        if position.offset and not carry.turns:
            earlier = Grouper(self.session.session_id, None, _recall(descriptor), is_agent=True)
            for place, entry in _entries(descriptor, Position(), lines.Noticed(), until=position.offset):
                earlier.feed(entry, place)
            sealed = earlier.seal()
            carry = sealed.carry if sealed is not None else carry
        return Grouper(self.session.session_id, carry, _recall(descriptor), is_agent=True)

    def _agents_left(self) -> Iterator[None]:
        """Agents that left their turn behind: background ones, late rows, and those that nobody launched."""
        known = self._known_agents()
        done: set[str] = set()
        # Whoever was launched comes first: it may have launched others, which then are not nobody's.
        while launched := [agent_id for agent_id in self._draft.launched if agent_id not in done]:
            done.update(launched)
            for agent_id in self._worth_a_look(launched):
                file = known.get(agent_id) or sessions.flat_agent_file(self.session, agent_id)
                if file is not None:
                    self._add_agent(file)
                    yield
        others = dict(known)
        if not self.has_unsealed and (self._ending.is_over or self._is_idle(self.session.path)):
            others |= {file.agent_id: file for file in sessions.flat_agent_files(self.session)}
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
            self.has_unsealed = True
            return
        # What began in a turn that is still open may be the doing of one of its calls, which is not noted down yet.
        turns, after, is_open = self._agent_turns(file, position, is_over=is_over, until_ns=self._open_ns)
        if is_open:
            self.has_unsealed = True
            self.is_answer_missing |= file.agent_id in self._ending.finished_agents
        if not turns:
            return
        draft.agents[file.agent_id] = after
        draft.is_changed = draft.is_half = True
        if self._is_warmup(file, turns):
            self.warmups += 1
        else:
            self._make_agent(file, turns)
        draft.is_half = False

    def _make_agent(self, file: AgentFile, turns: Sequence[Turn]) -> None:
        """An agent's turns as traces of their own, each in the trace of the call that it was run for."""
        for turn in turns:
            calls = self._draft.launched.get(file.agent_id, ())
            call = next((c for c in reversed(calls) if c.since_ns <= _started_ns(turn)), calls[0] if calls else None)
            agent = _agent(file, turns, call, is_late=True)
            if call is not None:
                launch = Launch(bytes.fromhex(call.trace_id), bytes.fromhex(call.span_id), call.name)
                trace_id, name = launch.trace_id, launch.name
            else:
                launch = None
                trace_id, name = trace_of_agent(file.agent_id, turn), agent.type or "agent"
            found = self._launched_by(turn, trace_id, name)
            self._draft.add(build_agent(agent, turn, launch, found, prices=self._prices))

    def _is_nobodys(self, file: AgentFile) -> bool:
        """Whether no call will ever claim an agent: its id says what it is for, or the session is over."""
        if sessions.label_of(file.agent_id) and file.tool_use_id is None:
            return True
        return not self.has_unsealed and (self._ending.is_over or self._is_idle(file.path))

    def _is_warmup(self, file: AgentFile, turns: Sequence[Turn]) -> bool:
        """2.0.x starts agents that nobody asked for.

        2.0.55 writes no agent's prompt down. There it is one that answered before the session called any agent.
        """
        turn = turns[0]
        if len(turns) > 1 or turn.prompt is not None:
            return len(turns) == 1 and turn.prompt is not None and turn.prompt.text.strip() == WARMUP
        if not turn.version.startswith("2.0.") or file.agent_id in self._draft.launched:
            return False
        called_ns = first_call_ns(self.session.path, AGENT_TOOLS)
        return called_ns is None or max(turn.times, default=0) < called_ns

    def _is_idle(self, path: Path) -> bool:
        now = self._ending.now_ns
        return now is not None and now - (last_time_ns(path) or now) > IDLE_NS

    def _has_finished(self, file: AgentFile) -> bool:
        """Whether the client says that an agent has come to an end; its file may lag behind."""
        return file.agent_id in self._ending.finished_agents or file.is_finished


def _begun(now: Progress) -> _Draft:
    return _Draft(dict(now.agents), dict(now.launched), now.is_own, now.left_out)


def _agent(file: AgentFile, turns: Sequence[Turn], call: Launched | None, *, is_late: bool = False) -> Agent:
    """What is known of an agent; `is_late` if it leaves after the turn that launched it."""
    kind = (call.type if call is not None else "") or file.type or sessions.label_of(file.agent_id)
    return Agent(file.agent_id, kind, tuple(turns), file.description, file.depth, is_late and call is not None)


def _is_safe(agent_id: str | None) -> TypeGuard[str]:
    return agent_id is not None and sessions.SAFE_ID.fullmatch(agent_id) is not None


def _started_ns(turn: Turn) -> int:
    return min(turn.times, default=0)


def _first_prompt(file: AgentFile) -> str:
    noticed = lines.Noticed()
    try:
        descriptor = tail.open_regular(file.path)
    except TranscriptError:
        return ""
    try:
        for line in tail.complete_lines(descriptor, is_whole=lines.is_record):
            for entry in lines.parse(line.data or b"", noticed):
                if entry.type == "user" and entry.message is not None:
                    return entries.plain_text(entries.blocks(entry.message)).strip()
            if line.number > 50:
                break
    finally:
        os.close(descriptor)
    return ""


def _entries(
    descriptor: int, position: Position, noticed: lines.Noticed, until: int | None = None
) -> Iterator[tuple[Place, entries.Entry]]:
    """The entries of a file from a position on, each with its place."""
    place = position.offset, position.line
    for line in tail.complete_lines(descriptor, *place, until=until, is_whole=lines.is_record):
        if line.data is None:
            noticed.oversized += 1
            continue
        found = lines.parse(line.data, noticed)
        if len(found) > 1:
            yield from _glued(line, line.data)
        elif found:
            yield Place(line.number, line.offset, line.end), found[0]


def _glued(line: tail.Line, data: bytes) -> Iterator[tuple[Place, entries.Entry]]:
    """The records of a line that lost its newline, each in its own place: a turn may end between them."""
    found = lines.records(data)
    for start, end in found:
        is_last = (start, end) == found[-1]
        place = Place(line.number, line.offset + start, line.end if is_last else line.offset + end)
        for entry in lines.parse(data[start:end], lines.Noticed()):
            yield place, entry


def _recall(descriptor: int) -> Callable[[int, int], entries.Entry | None]:
    def recall(offset: int, length: int) -> entries.Entry | None:
        found = lines.parse(tail.read_line_at(descriptor, offset, length).rstrip(b"\r\n"), lines.Noticed())
        return found[0] if found else None

    return recall


def read_traces(path: Path, prices: Prices | None = None) -> Iterator[Trace]:
    """All traces of a transcript, as if its session were over."""
    session = sessions.SessionFile(path.stem, path)
    for piece in Reading(session, Progress(), Ending(is_over=True), prices).pieces():
        yield from piece.traces
