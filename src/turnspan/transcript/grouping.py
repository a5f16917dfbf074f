"""Groups entries into turns: which rows count, in which order they are taken, and where a later reading continues.

Rules:

- **The rows between two conversation rows are read together with the second one** (`gaps`). Titles, attachments, queue
  operations and system rows never end a turn, so a turn is the same whether it was sealed early or late.
- An event (Stop, SessionEnd, idleness) only decides *when* a turn can be exported, never *what* is in it.
- **The row that seals a turn is fed again**, with all rows after the turn, from the turn's `Carry`, as a later process
  would do. So a file gives the same turns in however many pieces it is read.
- A row that occurs twice is taken once. A response before its prompt waits for the prompt, with a few other rows.

What a row adds to a turn is decided in `machine`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.transcript.inline import InlineAgents
from turnspan.transcript.machine import Machine
from turnspan.transcript.memory import NO_TURN, Wait
from turnspan.transcript.rows import copies_anew, key_of, row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from turnspan.transcript.carry import Carry
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.inline import Warmups
    from turnspan.transcript.memory import Sealed
    from turnspan.transcript.rows import LinePlace, TranscriptRow
    from turnspan.transcript.turns import Turn

_MAX_EARLY: Final = 48  # rows that wait for their prompt
_MAX_WAITED: Final = 16  # conversation rows in which the rest of a response can follow
_CAN_REPEAT: Final = frozenset({"user", "assistant", "system", "attachment"})  # rows that add something to a turn
_CLOSING: Final = frozenset({"stop_hook_summary", "turn_duration"})
_NONE_SEALED: Final[tuple[Sealed, ...]] = ()


class Grouper:
    """Groups entries into turns, one entry at a time. `recall` returns the entry at an offset of a given length."""

    def __init__(
        self,
        session_id: str,
        carry: Carry | None = None,
        recall: Callable[[int, int], Entry | None] = lambda _offset, _length: None,
        *,
        is_agent: bool = False,
    ) -> None:
        self._is_agent = is_agent
        self._between: list[TranscriptRow] = []  # rows since the last conversation row
        self._early: list[TranscriptRow] = []  # rows that wait for their prompt, and all rows after the first of them
        self._untaken: list[TranscriptRow] = []  # all rows after the last one that was taken
        self._waiting: TranscriptRow | None = None  # it waits for further lines of the last response
        self._waited = 0  # conversation rows since
        self._waiting_uuids: set[str | None] = set()  # of `_untaken`, while a row waits
        self._has_next = False  # a response of a later turn is among them
        inline = InlineAgents(lambda carry: Grouper(session_id, carry, is_agent=True))
        self._machine = Machine(session_id, carry, recall, inline, is_agent=is_agent)
        self._memory = self._machine.memory

    # ---- what a caller sees

    @property
    def unsealed(self) -> list[Turn]:
        """The open turn, if any, and open parts of earlier turns."""
        return self._memory.open.turns

    @property
    def is_answered(self) -> bool:
        """Whether everything that is open has its final answer, so that an event can seal it."""
        return bool(self.unsealed) and all(turn.has_answer for turn in self.unsealed)

    @property
    def is_closed(self) -> bool:
        """Whether what is open is followed by a row that the client writes when a turn has ended."""
        return any(row.entry.type == "system" and row.entry.subtype in _CLOSING for row in self._between)

    @property
    def end(self) -> int:
        """The offset after the last row of a turn."""
        return self._machine.end.end

    @property
    def carry(self) -> Carry:
        """What is remembered of the turns that were sealed."""
        return self._memory.past

    @property
    def warmups(self) -> Warmups:
        """The agents inside the file that the client started by itself."""
        return self._machine.warmups

    @property
    def early_ns(self) -> int | None:
        """The time of the last row that waits for its prompt; 0 if none of them has a time, None if none waits."""
        return max([row.time_ns or 0 for row in self._early], default=None)

    @property
    def is_waiting(self) -> bool:
        """Whether a row that seals the open turn waits for further lines of its last response."""
        return self._waiting is not None

    def feed(self, entry: Entry, place: LinePlace) -> Sequence[Sealed]:
        """Take one entry; return what it seals."""
        row = row_of(entry, place, is_agent=self._is_agent)
        return self._feed(row) if row is not None else _NONE_SEALED

    def feed_all(self, entries: Iterable[tuple[LinePlace, Entry]]) -> Iterator[Sealed]:
        """Take entries; yield what each seals."""
        for place, entry in entries:
            yield from self.feed(entry, place)

    def flush(self) -> list[Sealed]:
        """Take the rows that wait: for a prompt, or for further lines of a response, that did not come."""
        sealed: list[Sealed] = []
        while self._early or self.is_waiting:
            sealed += self.release() if self.is_waiting else self._take_all(self._early)
        return sealed

    def release(self) -> list[Sealed]:
        """Take the row that waits for further lines of the last response, and the rows after it."""
        row, self._waiting = self._waiting, None
        if row is None:
            return []
        sealed = self._take(row)
        if sealed is not None:
            return self._feed_again(sealed)
        rows = [later for later in self._untaken if later.place.offset > row.place.offset]
        self._untaken = []
        return [found for later in rows for found in self._feed(later)]

    def seal(self) -> Sealed | None:
        """Seal what is open: an event says that it has ended."""
        return self._machine.seal_all()

    def seal_words(self) -> Sealed | None:
        """Seal words that joined the last turn and got no answer of their own: the session is over."""
        return self._machine.seal_words(self._between)

    # ---- the order of rows

    def _feed(self, row: TranscriptRow) -> Sequence[Sealed]:
        if self._waiting is not None:
            self._untaken.append(row)
            return self.release() if self._ends_waiting(row) else _NONE_SEALED
        if self._is_put_aside(row):
            self._untaken.append(row)
            return _NONE_SEALED
        if self._early:
            self._untaken.append(row)
            return self._take_all(self._in_order(row))
        sealed = self._machine.take(row, self._between)
        if sealed is None:
            if self._between:
                self._between = []
            if self._untaken:
                self._untaken = []
                self._memory.commit()
            return _NONE_SEALED
        self._untaken.append(row)
        if sealed is Wait.FOR_LINES:
            self._waiting, self._waited, self._has_next = row, 0, row.said is None
            self._waiting_uuids = {other.entry.uuid for other in self._untaken}
            return _NONE_SEALED
        return self._feed_again(sealed)

    def _ends_waiting(self, row: TranscriptRow) -> bool:
        """Take a row that completes the open turn; else return whether no further lines of it are expected."""
        entry, uuids = row.entry, self._waiting_uuids
        is_repeated = entry.uuid is not None and entry.uuid in uuids
        uuids.add(entry.uuid)
        if is_repeated or not row.is_conversation or entry.is_sidechain:
            return False
        if self._is_known(entry) or self._machine.take_ahead(row):
            return False
        self._waited += 1
        if row.said is None:
            self._has_next = True  # a response
        return self._waited >= _MAX_WAITED or (self._has_next and _is_prompt(row))

    def _is_put_aside(self, row: TranscriptRow) -> bool:
        """Keep a row that is read with a later one, and ignore repeated rows; return False if it is to be taken."""
        entry, owner = row.entry, self._memory.rows.owner
        if entry.uuid in owner or (entry.uuid is None and self._is_known(entry)):
            pass
        elif not row.is_conversation:
            (self._early or self._between).append(row)
        elif entry.request_id is None and copies_anew(entry.version) and self._is_repeated_answer(row):
            self._memory.begin()
            self._memory.rows.own(key_of(entry), NO_TURN)
        elif entry.parent_uuid not in owner and self._is_early(row):
            self._early.append(row)
        else:
            return False
        return True

    def _in_order(self, row: TranscriptRow) -> list[TranscriptRow]:
        """Return the rows that waited and the one that ends the waiting; if it is their prompt, before the answers."""
        if not self._is_late_prompt(row):
            return [*self._early, row]
        answers = [early for early in self._early if early.is_conversation]
        rest = [early for early in self._early if not early.is_conversation]
        return [*rest, row, *answers]

    def _take(self, row: TranscriptRow) -> Sealed | None:
        """Take a row that has waited, with the rows before it; or return what it seals, and take nothing."""
        self._machine.can_wait = False
        sealed = self._machine.take(row, self._between)
        self._machine.can_wait = not self._is_agent
        assert sealed is not Wait.FOR_LINES
        if sealed is None:
            self._between = []
            self._memory.commit()
        return sealed

    def _take_all(self, rows: list[TranscriptRow]) -> list[Sealed]:
        """Take rows that waited, each with the rows before it: a later reading can begin at any of them."""
        self._early = []
        for row in rows:
            if self._is_known(row.entry):
                continue
            if not row.is_conversation:
                self._between.append(row)
            elif (sealed := self._take(row)) is not None:
                return self._feed_again(sealed)
        self._untaken = [row for row in self._untaken if row.place.offset >= self._machine.end.end]
        return []

    def _feed_again(self, sealed: Sealed) -> list[Sealed]:
        """Return what was sealed, and what is sealed when the rows after it are fed again."""
        rows = [row for row in self._untaken if row.place.offset >= sealed.end.end]
        self._between, self._early, self._untaken, self._waiting = [], [], [], None
        found = [sealed]
        for row in rows:
            found += self._feed(row)
        return found

    def _is_known(self, entry: Entry) -> bool:
        """Whether a row was taken before: by its uuid, or, without one, by its content."""
        if entry.uuid is not None:
            return entry.uuid in self._memory.rows.owner
        return entry.type in _CAN_REPEAT and key_of(entry) in self._memory.rows.owner

    def _is_repeated_answer(self, row: TranscriptRow) -> bool:
        """Whether an old client repeats an answer before the next prompt of a stream, without its prompt (1.0.44)."""
        entry = row.entry
        if self._is_agent or entry.is_sidechain:
            return False
        if entry.type == "assistant" and entry.parent_uuid is None and not entry.is_api_error_message:
            return self._memory.has_begun  # it has no parent, and is not the first row
        is_below = self._memory.rows.owner.get(entry.parent_uuid or "") == NO_TURN
        return is_below and (row.said is None or bool(row.said.results))

    # ---- responses before their prompts

    def _is_early(self, row: TranscriptRow) -> bool:
        """Whether a response precedes its own prompt (2.1.45, 2.1.128), or a result follows such a response.

        Its parent is not known.
        """
        entry, parent = row.entry, row.entry.parent_uuid
        if parent is None or self._is_agent or entry.is_sidechain or len(self._early) >= _MAX_EARLY:
            return False
        if row.said is not None:
            return bool(row.said.results) and any(early.entry.uuid == parent for early in self._early)
        if any(not turn.has_answer for turn in self.unsealed):
            return False  # a turn is running: it belongs there
        others = (other.entry for other in (*self._between, *self._early))
        return all(other.uuid != parent for other in others if other.type != "assistant")

    def _is_late_prompt(self, row: TranscriptRow) -> bool:
        """Whether a row is the prompt of the one response that was written before it, and of its results.

        With several responses, the second could seal the turn, and reading would continue after the prompt, past it.
        """
        if not _is_prompt(row):
            return False
        answers = [early for early in self._early if early.entry.type == "assistant"]
        if len({answer.response for answer in answers}) > 1:
            return False
        first = answers[0]
        return row.entry.uuid == first.entry.parent_uuid or (row.time_ns or 0) <= (first.time_ns or 0)


def _is_prompt(row: TranscriptRow) -> bool:
    """Whether a conversation row is a prompt of the session's own."""
    said = row.said
    return said is not None and not (row.entry.is_sidechain or said.results or said.is_interruption)
