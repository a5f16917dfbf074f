"""A session's new lines become traces: from a place in the files to the traces that may leave, and the next place.

Rules:

- A `Reading` reads and builds; it sends nothing and writes nothing. `ship` walks over its pieces and commits each once
  it is acknowledged; `show` only looks at them.
- The place never passes an unsealed turn. Reading from any committed place gives what one reading from the start gives.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from turnspan.errors import TranscriptError
from turnspan.source import forks, tail
from turnspan.source.decode import entries_from, found_again, recall_from
from turnspan.source.draft import begun
from turnspan.source.progress import IDLE_NS, IDLE_WHILE_PENDING_NS, Ending, Progress
from turnspan.source.subagents import Agents, started_ns
from turnspan.trace import ids
from turnspan.trace.build import build_turn
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Noticed

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.source.progress import Piece
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.trace.model import Trace
    from turnspan.transcript.sealing import Sealed

PIECE_SPANS: Final = 400  # what makes a request worth its while
_REMEMBERED_LEFT_OUT: Final = 8


class Reading:
    """One walk over a session. After it: what was noticed, and whether the file was rewritten or an answer misses."""

    def __init__(self, session: SessionFile, progress: Progress, ending: Ending, prices: Prices | None = None) -> None:
        self.session = session
        self.noticed = Noticed()
        self.is_rewritten = False
        self.is_finished = False
        self.size = 0  # of the session's file, when it was read
        self._ending = ending
        self._prices = prices
        self._is_cut = False  # the file ends in half a line: somebody may be at work there
        self._begin(progress)

    def _begin(self, progress: Progress) -> None:
        self._draft = begun(progress)
        self._agents = Agents(self.session, self._draft, self._ending, self.noticed, self._prices)

    @property
    def has_unsealed(self) -> bool:
        """Whether a turn or an agent has not come to its end."""
        return self._draft.has_unsealed

    @property
    def is_answer_missing(self) -> bool:
        """Whether the client says that something has ended, and the files do not show it yet."""
        return self._draft.is_answer_missing

    @property
    def warmups(self) -> int:
        """How many agents were left out that nobody asked for."""
        return self._draft.warmups

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
                    yield self._draft.piece(descriptor)
            self.is_finished = True
            if self._draft.is_changed:
                yield self._draft.piece(descriptor)
        except OSError:
            if self._draft.is_changed and not self._draft.is_half:  # what stands before the spot that cannot be read
                yield self._draft.piece(descriptor)
            raise
        finally:
            os.close(descriptor)

    def _steps(self, descriptor: int) -> Iterator[None]:
        """Draft what may leave, a turn or an agent at a time."""
        self.size = os.fstat(descriptor).st_size
        self._is_cut = self.size > 0 and tail.read_at(descriptor, 1, self.size - 1) != b"\n"
        position = found_again(descriptor, self._draft.main)
        if position != self._draft.main:
            self.is_rewritten = True
            self._begin(Progress())
        grouper = Grouper(self.session.session_id, position.carry, recall_from(descriptor))
        for place, entry in entries_from(descriptor, position, self.noticed):
            for sealed in grouper.feed(entry, place):
                self._add(sealed)
                yield
        if grouper.early_ns is not None:
            self._draft.has_unsealed = True
            patience_ns = IDLE_WHILE_PENDING_NS if self._is_cut else IDLE_NS
            if self._ending.is_over or self._ending.is_idle(grouper.early_ns, patience_ns):
                for sealed in grouper.flush():
                    self._add(sealed)
        if grouper.unsealed:
            last = grouper.seal() if self._may_leave(grouper) else None
            if last is not None:
                self._add(last)
            else:
                self._draft.has_unsealed = True
                self._draft.open_ns = min(map(started_ns, grouper.unsealed))
        yield
        yield from self._agents.left()

    def _may_leave(self, grouper: Grouper) -> bool:
        ending = self._ending
        if ending.is_over:
            return True
        if ending.is_stopped and not self._began_later(grouper):
            words = ending.last_words
            if grouper.is_answered and (words is None or words in grouper.unsealed[-1].last_words):
                return True
            # The stop may have been an earlier turn's: then its words have left already.
            self._draft.is_answer_missing = words not in self._draft.carry.words
        if grouper.is_answered and all(turn.session_id == ending.stopped_session for turn in grouper.unsealed):
            return True  # 1.0.128 `--continue`: the stop names the old file, the turn stands in a new one
        if ending.now_ns is None:
            return False
        last_ns = max([self._agents.last_write_ns(), *(time for turn in grouper.unsealed for time in turn.times)])
        is_waiting = self._is_cut or any(turn.pending_calls for turn in grouper.unsealed)
        return ending.is_idle(last_ns, IDLE_WHILE_PENDING_NS if is_waiting else IDLE_NS)

    def _began_later(self, grouper: Grouper) -> bool:
        """Whether what is open began after the stop: clients before 2.1.47 do not say what the last words were."""
        stopped_ns = self._ending.stopped_ns
        return stopped_ns is not None and min(map(started_ns, grouper.unsealed)) > stopped_ns

    def _add(self, sealed: Sealed) -> None:
        """Build what was sealed, less what was copied."""
        draft = self._draft
        draft.last, draft.is_changed, draft.is_half = sealed, True, True
        for turn in sealed.turns:
            if turn.part > 0 and turn.number in draft.left_out:
                continue
            is_copied = not draft.is_own and forks.is_copied(turn, self.session)
            if is_copied or forks.repeats_itself(turn, self.session):
                draft.copied += turn.part == 0
                draft.left_out = (*draft.left_out, turn.number)[-_REMEMBERED_LEFT_OUT:]
                continue
            if turn.previous is not None and turn.previous.number in draft.left_out:
                turn.previous = forks.original_ref(turn.previous, self.session)
            draft.is_own = True
            draft.turns += turn.part == 0
            trace_id = ids.trace_id(turn.session_id, turn.key)
            found = self._agents.launched_by(turn, trace_id, f"Turn {turn.number}")
            draft.add(build_turn(turn, found, prices=self._prices))
        draft.is_half = False


def all_traces(session: SessionFile, prices: Prices | None = None) -> Iterator[Trace]:
    """All traces of a session, as they were built: nothing is masked."""
    for piece in Reading(session, Progress(), Ending(is_over=True), prices).pieces():
        yield from piece.traces
