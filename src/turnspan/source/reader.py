"""Turns a session's new lines into traces: from a position in its files to the traces that can be exported.

Rules:

- Everybody who reads a session asks a `Reader`: `ship`, `unsent`, the index, the page, `verify`, `show`, `export`.
- A `Reading` reads and builds; it sends nothing and writes nothing. `ship` goes through its pieces and commits each one
  when it is acknowledged; `show` only displays them.
- A position never passes an unsealed turn. Reading from any committed position gives what one reading from the start
  gives.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source import forks, tail
from turnspan.source.agent_links import ParentSpan
from turnspan.source.agent_runs import identities, started_ns
from turnspan.source.decode import entries_from, found_again, position_behind, recall_from
from turnspan.source.ending import IDLE, PENDING, Ending
from turnspan.source.forks import Neighbours
from turnspan.source.progress import Counts, Piece, Position, Progress
from turnspan.source.subagents import Agents
from turnspan.trace import ids
from turnspan.trace.build import build_turn
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Anomalies
from turnspan.transcript.rows import LinePlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnspan.source.sessions import SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.trace.model import Trace
    from turnspan.transcript.carry import Carry
    from turnspan.transcript.memory import Sealed
    from turnspan.transcript.turns import Turn

PIECE_SPANS: Final = 400  # enough to make a request worthwhile
_REMEMBERED_LEFT_OUT: Final = 8


class _Draft(msgspec.Struct):
    """The next piece in the making: its traces, and how far the session's file was read for them."""

    main: Position
    is_own: bool
    left_out: tuple[int, ...]
    last: Sealed | None = None  # the last turns that were sealed since `main`
    is_changed: bool = False  # there is progress to commit
    is_adding: bool = False  # a turn is being added: progress made with it must not be stored
    traces: list[Trace] = []
    spans: int = 0
    turns: int = 0
    counts: Counts = Counts()
    warmups: int = 0  # of all pieces, in files of their own
    inline: set[int] = set()  # where warm-ups begin in the session's own file

    @property
    def carry(self) -> Carry:
        """What is remembered after the last turn that was sealed."""
        return self.last.carry if self.last is not None else self.main.carry

    def add(self, *traces: Trace) -> None:
        """Add traces to the piece."""
        self.traces += traces
        self.spans += sum(len(trace.spans) for trace in traces)

    def leave_out(self, turn: Turn, *, is_copied: bool) -> None:
        """Count a turn that is copied, or else repeated in the file; its later parts are skipped as well."""
        if turn.part == 0:
            self.counts += Counts(copied=is_copied, repeated=not is_copied)
        self.left_out = (*self.left_out, turn.number)[-_REMEMBERED_LEFT_OUT:]

    def finish(self, descriptor: int, agents: Agents) -> Piece:
        """Return the piece; the next one begins where it ends."""
        warmups, before = agents.warmups - self.warmups, self.main.offset
        if self.last is not None:
            self.main = position_behind(descriptor, self.last)
        warmups += sum(before <= place < self.main.offset for place in self.inline)
        positions, launched = agents.links.snapshot()
        progress = Progress(self.main, self.is_own, positions, launched, self.left_out)
        piece = Piece(self.traces, progress, self.turns, self.counts + Counts(warmups=warmups))
        self.last, self.is_changed, self.warmups = None, False, agents.warmups
        self.traces, self.spans, self.turns, self.counts = [], 0, 0, Counts()
        return piece


class Reader(msgspec.Struct, frozen=True):
    """Reads sessions for one purpose: what decides about their traces, besides their files. The only way to read."""

    prices: Prices | None  # the user's own, if there are any
    was_sent: Callable[[str], bool]  # whether a session that is no longer on disk was exported before

    @classmethod
    def for_people(cls, prices: Prices | None = None) -> Reader:
        """Return one for what people look at: a copied turn is read from here if its origin is not on disk."""
        return cls(prices, lambda _session_id: False)

    def read(self, session: SessionFile, since: Progress, ending: Ending) -> Reading:
        """Begin to read a session, from a place on."""
        return Reading(self, session, since, ending)

    def traces(self, session: SessionFile) -> Iterator[Trace]:
        """Yield all traces of a session as they were built: nothing is masked."""
        for piece in self.read(session, Progress(), Ending(is_over=True)).pieces():
            yield from piece.traces


class Reading:
    """One pass over a session. After it: what was skipped, whether the file was rewritten, or an answer is missing."""

    def __init__(self, reader: Reader, session: SessionFile, progress: Progress, ending: Ending) -> None:
        self.session = session
        self.anomalies = Anomalies()
        self.is_rewritten = False
        self.is_finished = False
        self.is_at_end = False  # the turns that follow may change when the file grows: only the end has sealed them
        self.is_behind_end = False  # what follows are the traces of agents that were not exported with a turn
        self.size = 0  # of the session's file, when it was read
        self.neighbours = Neighbours()  # the files that decided which turns are copies
        self._ending = ending
        self._prices = reader.prices
        self._was_sent = reader.was_sent
        self._is_cut = False  # the file ends in an incomplete line: the client may be writing it
        self._is_late = False  # … and will: an event precedes the rest of the line
        self._has_gap = False  # a row since the last sealed turn is over the size limit
        self._ends_in_gap = False  # … and no row of the conversation follows it
        self._has_unsealed = False
        self._is_answer_missing = False
        self._skipped: set[str] = set()
        self._inline_skipped: set[str] = set()  # by warm-ups in the session's own file
        self._begin(progress)

    def _begin(self, progress: Progress) -> None:
        self._draft = _Draft(progress.main, progress.is_own, progress.left_out)
        self._agents = Agents(self.session, progress, self._ending, self.anomalies, self._prices)

    @property
    def has_unsealed(self) -> bool:
        """Whether a turn or an agent is still running."""
        return self._has_unsealed or self._agents.has_unsealed

    @property
    def is_answer_missing(self) -> bool:
        """Whether the client says that something has ended, and the files do not show it yet."""
        return self._is_answer_missing or self._agents.is_answer_missing

    @property
    def warmups(self) -> int:
        """How many warm-up agents were skipped (2.0.x)."""
        return self._agents.warmups + len(self._draft.inline)

    @property
    def skipped(self) -> set[str]:
        """The ids of responses and tool calls that are not exported from here: copied turns and warm-ups."""
        return self._skipped | self._inline_skipped | self._agents.skipped

    def pieces(self, *, is_end_apart: bool = False) -> Iterator[Piece]:
        """Yield the traces that can be exported, in the order of the transcript, then those of finished agents.

        `is_end_apart`: end a piece before the turns that only the end seals (`is_at_end`), and after them.
        Raises TranscriptError, also if the disk fails midway: nothing is assumed about what was not read.
        """
        try:
            yield from self._pieces(is_end_apart=is_end_apart)
        except OSError as error:
            raise TranscriptError(f"cannot read {str(self.session.path)!r}: {error.strerror or error}") from error

    def _pieces(self, *, is_end_apart: bool) -> Iterator[Piece]:
        descriptor = tail.open_regular(self.session.path)
        try:
            for is_end in self._steps(descriptor):
                if self._draft.spans >= PIECE_SPANS or (is_end and is_end_apart and self._draft.is_changed):
                    yield self._draft.finish(descriptor, self._agents)
            self.is_finished = True
            if self._draft.is_changed:
                yield self._draft.finish(descriptor, self._agents)
        except OSError:
            is_adding = self._draft.is_adding or self._agents.is_adding
            if self._draft.is_changed and not is_adding:  # what precedes the spot that cannot be read
                yield self._draft.finish(descriptor, self._agents)
            raise
        finally:
            os.close(descriptor)

    def _steps(self, descriptor: int) -> Iterator[bool]:
        """Add what can be exported to the draft, one turn or agent at a time; yield True before and after the end."""
        self.size = os.fstat(descriptor).st_size
        self._is_cut = self.size > 0 and tail.read_at(descriptor, 1, self.size - 1) != b"\n"
        self._is_late = self._is_cut and self._is_written_to(descriptor)
        if self.session.is_lost:
            self.is_at_end = self.is_behind_end = True
            yield from self._remaining(open_ns=None)
            return
        position = found_again(descriptor, self._draft.main)
        if position != self._draft.main:
            self.is_rewritten = True
            self._begin(Progress())
        grouper = Grouper(self.session.session_id, position.carry, recall_from(descriptor))
        self._draft.inline, self._inline_skipped = grouper.warmups.places, grouper.warmups.skipped
        oversized = self.anomalies.oversized
        for entries in entries_from(descriptor, position, self.anomalies):
            if self.anomalies.oversized > oversized:
                self._has_gap = self._ends_in_gap = True
            elif any(entry.type in {"user", "assistant"} for _, entry in entries):
                self._ends_in_gap = False
            for sealed in grouper.feed_all(entries):
                self._has_gap = False
                self._add(sealed)
                yield False
            oversized = self.anomalies.oversized  # also of agents
        yield True
        self.is_at_end = True
        open_ns = self._end(grouper)
        yield True
        self.is_behind_end = True
        yield from self._remaining(open_ns)

    def _remaining(self, open_ns: int | None) -> Iterator[bool]:
        """Add agents that were not exported with a turn."""
        for traces in self._agents.remaining(open_ns=open_ns, has_unsealed=self._has_unsealed):
            self._draft.is_changed = True
            self._draft.add(*traces)
            yield False

    def _end(self, grouper: Grouper) -> int | None:
        """Add what is open at the end of the file if it has ended; else return when it began."""
        while grouper.is_waiting and (self._ending.is_stopped or self._has_ended(grouper)):
            for sealed in grouper.release():
                self._add(sealed)
        if grouper.early_ns is not None:
            self._has_unsealed = True
            when = PENDING if self._is_cut else IDLE
            if self._ending.is_over or self._ending.is_idle(grouper.early_ns, when):
                for sealed in grouper.flush():
                    self._add(sealed)
        last = grouper.seal() if grouper.unsealed and self._has_ended(grouper) else None
        if last is not None:
            self._add(last)
        if not grouper.unsealed:
            self._add_words(grouper)
            return None
        self._has_unsealed = True
        return min(map(started_ns, grouper.unsealed))

    def _add_words(self, grouper: Grouper) -> None:
        """Add words that joined the last turn, if the session is over: after a stop, their answer may still come."""
        ending = self._ending
        is_over = ending.is_over and not self._is_late
        words = grouper.seal_words() if is_over or ending.is_idle(grouper.carry.high_water_ns) else None
        if words is not None:
            main = self._draft.main
            at_start = LinePlace(main.line - 1, main.offset, main.offset)
            self._add(words if words.end.end else msgspec.structs.replace(words, end=at_start))

    def _has_ended(self, grouper: Grouper) -> bool:
        """Whether what is open can be exported."""
        ending, turns = self._ending, grouper.unsealed
        if grouper.end <= ending.acknowledged or (ending.is_asked and grouper.is_closed):
            return True
        if ending.is_over:
            self._is_answer_missing |= self._is_late
            return not self._is_late
        if ending.is_stopped and not self._began_later(turns):
            words = ending.words
            if grouper.is_answered and (not self._is_late if words is None else words in turns[-1].last_words):
                return True
            if (
                self._has_gap
                and not self._is_late
                and (self._ends_in_gap or words is None or words in turns[-1].last_words)
            ):
                return True  # what is missing is in a row over the size limit, which is never read
            # The stop may belong to an earlier turn, whose last message was exported already.
            self._is_answer_missing = words not in self._draft.carry.words
        if not self._is_late and grouper.is_answered and all(t.session_id == ending.stopped_session for t in turns):
            return True  # 1.0.128 `--continue`: the stop names the old file, the turn is in a new one
        return ending.now_ns is not None and self._is_idle(turns)

    def _is_written_to(self, descriptor: int) -> bool:
        """Whether the last line, which is incomplete, was written to so recently that its rest is expected."""
        since_ns = self._ending.late_since_ns
        return since_ns is not None and os.fstat(descriptor).st_mtime_ns >= since_ns

    def _is_idle(self, turns: list[Turn]) -> bool:
        """Whether nothing was written for so long that the client must have ended."""
        last_ns = max([self._agents.last_write_ns(), *(time_ns for turn in turns for time_ns in turn.times)])
        is_waiting = self._is_cut or any(turn.pending_calls for turn in turns)
        return self._ending.is_idle(last_ns, PENDING if is_waiting else IDLE)

    def _began_later(self, turns: list[Turn]) -> bool:
        """Whether what is open began after the stop: clients before 2.1.47 do not name the last message."""
        stopped_ns, stopped_bytes = self._ending.stopped_ns, self._ending.stopped_bytes
        if stopped_bytes is not None and min(turn.start.offset for turn in turns) >= stopped_bytes:
            return True
        return stopped_ns is not None and min(map(started_ns, turns)) > stopped_ns

    def _add(self, sealed: Sealed) -> None:
        """Build the turns that were sealed, except copies."""
        draft = self._draft
        draft.last, draft.is_changed, draft.is_adding = sealed, True, True
        for turn in sealed.turns:
            if turn.part > 0 and turn.number in draft.left_out and not turn.is_own:
                self.neighbours = self.neighbours.and_turn(turn, self.session, is_copied=True)
                self._skip(turn)
                continue
            may_be_copied = turn.part == 0 and (not draft.is_own or forks.is_foreign(turn, self.session))
            rule = forks.recognised(turn, self.session, self._was_sent, may_be_from_elsewhere=may_be_copied)
            is_copied = rule is not None and not rule.is_in_place
            if may_be_copied:
                self.neighbours = self.neighbours.and_turn(turn, self.session, is_copied=is_copied)
            if rule is not None:
                draft.leave_out(turn, is_copied=is_copied)
                self._skip(turn)
                continue
            left = forks.without_repeated(turn, self.session)
            if left.previous is not None and left.previous.number in draft.left_out:
                left = msgspec.structs.replace(left, previous=forks.original_ref(left.previous, self.session))
            draft.is_own |= turn.is_own or not forks.is_foreign(turn, self.session)
            draft.turns += turn.part == 0
            self._build(left)
        draft.is_adding = False

    def _skip(self, turn: Turn) -> None:
        """Skip a copied turn, except for responses that only this file has."""
        rest = forks.rest_of(turn, self.session)
        if rest is not None:
            self._build(rest)
        self._skipped |= identities(turn) - (identities(rest) if rest is not None else set())

    def _build(self, turn: Turn) -> None:
        """Add the trace of a turn, with its foreground agents."""
        parent = ParentSpan(ids.trace_id(turn.session_id, turn.key), f"Turn {turn.number}")
        collected = self._agents.collect(turn, parent)
        self._draft.add(*collected.earlier, build_turn(turn, collected.agents, prices=self._prices))
