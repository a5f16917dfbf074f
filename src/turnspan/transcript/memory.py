"""What the assembly of turns remembers: what is open, what was sealed, and which turn each row belongs to.

These values answer questions and record facts; the decisions are made in `selection` and `assembly`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript.carry import known_as

if TYPE_CHECKING:
    from turnspan.transcript.carry import Carry, TurnRef
    from turnspan.transcript.entries import Entry, RequestParams
    from turnspan.transcript.turns import Call, Response, Turn

NO_TURN: Final = 0  # the owner of rows that belong to no turn; turns are numbered from 1
REMEMBERED_ROWS: Final = 48


class Request(msgspec.Struct, frozen=True):
    """A request that the client recorded (2.1.325): when it was sent, and with which parameters."""

    time_ns: int | None
    params: RequestParams | None


class OpenResponse(msgspec.Struct, frozen=True):
    """A response whose further lines are expected, and its turn."""

    turn: Turn
    response: Response


class OpenCall(msgspec.Struct, frozen=True):
    """A tool call of an open turn."""

    turn: Turn
    call: Call


class OpenTurns(msgspec.Struct):
    """What is not sealed yet, and an index into it."""

    turn: Turn | None = None
    parts: dict[int, Turn] = {}  # later parts of sealed turns, by turn number
    responses: dict[str, OpenResponse] = {}  # by response key
    calls: dict[str, OpenCall] = {}  # by tool_use_id
    requests: dict[str, Request] = {}  # by the id that response lines name

    @property
    def turns(self) -> list[Turn]:
        """The open turn and the later parts, in the order of the file."""
        turns = [self.turn] if self.turn is not None else []
        return sorted([*turns, *self.parts.values()], key=_start_offset) if self.parts else turns

    def call(self, call_id: str | None) -> OpenCall | None:
        """Return the open call with an id, as a row names it."""
        return self.calls.get(call_id or "") or self.calls.get(known_as(call_id) or "")


class RowMemory:
    """Which turn each row belongs to, by uuid: the last rows of sealed turns, and all rows of open ones.

    Rows recorded between `begin` and `commit` are forgotten by `roll_back`: the row that seals a turn is read again
    later, together with everything before it that follows the sealed turn.
    """

    def __init__(self, remembered: tuple[tuple[str, int], ...]) -> None:
        self.owner: dict[str, int] = dict(remembered)  # uuid → turn number, or NO_TURN
        self._order: list[tuple[str, int]] = list(remembered)
        self._committed: int | None = None  # how many of them are certain, if not all

    def own(self, uuid: str, number: int) -> None:
        """Record the turn that a row belongs to."""
        self.owner[uuid] = number
        self._order.append((uuid, number))

    def begin(self) -> None:
        """Record rows that may have to be forgotten again."""
        if self._committed is None:
            self._committed = len(self._order)

    def commit(self) -> None:
        """Keep the rows recorded so far."""
        self._committed = None

    def roll_back(self) -> tuple[tuple[str, int], ...]:
        """Return the last committed rows, and forget all others."""
        if self._committed is not None:
            del self._order[self._committed :]
            self._committed = None
            self.owner = dict(self._order)
        if len(self._order) > REMEMBERED_ROWS:
            self._forget(self._order[:-REMEMBERED_ROWS])
        return tuple(self._order)

    def _forget(self, rows: list[tuple[str, int]]) -> None:
        """Forget these rows, the first ones."""
        is_each_once = len(self.owner) == len(self._order)
        del self._order[: len(rows)]
        if is_each_once:
            for uuid, _ in rows:
                del self.owner[uuid]
        else:
            self.owner = dict(self._order)

    def undo(self) -> None:
        """Forget the rows recorded since `begin`, and no others."""
        if self._committed is not None and len(self._order) > self._committed:
            del self._order[self._committed :]
            self.owner = dict(self._order)
        self._committed = None

    def latest(self) -> list[str]:
        """Return the uuids of the last rows."""
        return [uuid for uuid, _ in self._order[-REMEMBERED_ROWS:]]


class Memory(msgspec.Struct):
    """Everything that is remembered of a conversation while its rows are taken."""

    past: Carry  # of sealed turns; small, and without content
    rows: RowMemory
    open: OpenTurns
    input_ns: int | None  # the row that made the client send the next request

    @property
    def has_begun(self) -> bool:
        """Whether a turn is open or was sealed."""
        return self.open.turn is not None or bool(self.past.recent)

    def is_of_open_turn(self, entry: Entry) -> bool:
        """Whether a row belongs to the open turn: unless its parent belongs to an earlier one that is remembered."""
        if self.open.turn is None:
            return False
        number = self.rows.owner.get(entry.parent_uuid or "")
        if number is None or number == self.open.turn.number:
            return True
        return all(ref.number != number for ref in self.past.recent)

    def is_by_open_session(self, entry: Entry) -> bool:
        """Whether a row can complete the open turn: it names no session that wrote none of the turn's responses."""
        responses = self.open.turn.responses if self.open.turn is not None else []
        return not entry.session_id or {"", entry.session_id}.intersection(r.session_id for r in responses) != set()

    def turn_at_work(self, entry: Entry) -> Turn | None:
        """Return the open turn, unless a row is of an agent inside the file that works for a sealed one."""
        return self.open.turn if self._turn_of_agent(entry) is None else None

    def _turn_of_agent(self, entry: Entry) -> TurnRef | None:
        """Return the turn that was sealed while the agent of this row, inside the file, was at work."""
        past, parent = self.past, entry.parent_uuid
        if not past.agents or not any(parent in dict(carry.owners) for carry in past.agents.values()):
            return None
        launches = {call_id for _, call_id in past.prompts}
        numbers = {number for call_id, number in past.pending if call_id in launches}
        return next((ref for ref in reversed(past.recent) if ref.number in numbers), None)

    def earlier_turn(self, entry: Entry) -> TurnRef:
        """Return the sealed turn that a late row belongs to: its agent's, its parent's, else the last one."""
        if entry.is_sidechain and (ref := self._turn_of_agent(entry)) is not None:
            return ref
        number, recent = self.rows.owner.get(entry.parent_uuid or ""), self.past.recent
        return recent[-1] if number is None else next((ref for ref in recent if ref.number == number), recent[-1])

    def turn_waiting_for(self, call_id: str) -> TurnRef | None:
        """Return the turn that was sealed while this call had no result."""
        number = dict(self.past.pending).get(call_id)
        return next((ref for ref in self.past.recent if ref.number == number), None)


def _start_offset(turn: Turn) -> int:
    return turn.start.offset
