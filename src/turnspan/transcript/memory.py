"""What is remembered while turns are made: what is open, what was sealed, and which turn each row belongs to.

`Memory` answers questions and records facts; `machine` decides. Sealed turns become a `Carry`.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import NO_WORDS, Carry, known_as
from turnspan.transcript.gaps import NO_GAP, settle
from turnspan.transcript.inline import prompts_of
from turnspan.transcript.responses import RecordedRequest, merge_line, new_response, new_result
from turnspan.transcript.rows import is_own_row, is_unnamed, key_of, message_in
from turnspan.transcript.turns import Happening, add_surroundings, event_of, further_part, new_turn, several

if TYPE_CHECKING:
    from turnspan.transcript.carry import TurnRef
    from turnspan.transcript.context import ContextState, SessionContext
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.gaps import Gap
    from turnspan.transcript.inline import InlineAgents
    from turnspan.transcript.rows import LinePlace, TranscriptRow, UserRow
    from turnspan.transcript.turns import ModelResponse, Turn, TurnCall

NO_TURN: Final = 0  # the owner of rows that belong to no turn; turns are numbered from 1
REMEMBERED_ROWS: Final = 48
_REMEMBERED_TURNS: Final = 4
_REMEMBERED_RESPONSES: Final = 8
_REMEMBERED_CALLS: Final = 32


class EarlyResult(msgspec.Struct, frozen=True):
    """A result whose call is not known, and the event that stands for it until the call comes."""

    turn: Turn
    event: Happening
    row: TranscriptRow
    block: e.ContentBlock
    outcome: e.ToolOutcome


class OpenTurns(msgspec.Struct):
    """What is not sealed yet, and an index into it."""

    turn: Turn | None = None
    parts: dict[int, Turn] = {}  # later parts of sealed turns, by turn number
    responses: dict[str, tuple[Turn, ModelResponse]] = {}  # by response key: further lines can follow
    calls: dict[str, tuple[Turn, TurnCall]] = {}  # by tool_use_id
    requests: dict[str, RecordedRequest] = {}  # by the id that response lines name
    unnamed: str = ""  # the last response, if its lines have no id and the last row is one of them
    early: dict[str, EarlyResult] = {}  # results without a call yet, by tool_use_id

    @property
    def turns(self) -> list[Turn]:
        """The open turn and the later parts, in the order of the file."""
        turns = [self.turn] if self.turn is not None else []
        return sorted([*turns, *self.parts.values()], key=_start_offset) if self.parts else turns

    def call(self, call_id: str | None) -> tuple[Turn, TurnCall] | None:
        """Return the open call with an id, as a row names it."""
        return self.calls.get(call_id or "") or self.calls.get(known_as(call_id) or "")


class Wait(Enum):
    """Why a row is not taken yet."""

    FOR_LINES = "further lines of the last response may follow"


class Sealed(msgspec.Struct, frozen=True):
    """Turns that can be exported. Reading continues at `end`, from `carry`."""

    turns: list[Turn]
    end: LinePlace
    past: Carry  # without `words`: their digests are expensive, and only those of the last turn are needed

    @property
    def carry(self) -> Carry:
        """What the next reading must know."""
        return msgspec.structs.replace(self.past, words=self.turns[-1].last_words)


class RowMemory:
    """Which turn each row belongs to, by uuid: the last rows of sealed turns, and all rows of open ones."""

    def __init__(self, remembered: tuple[tuple[str, int], ...]) -> None:
        self.owner: dict[str, int] = dict(remembered)  # uuid → turn number, or NO_TURN
        self.order: list[tuple[str, int]] = list(remembered)

    def own(self, uuid: str, number: int) -> None:
        """Record the turn that a row belongs to."""
        self.owner[uuid] = number
        self.order.append((uuid, number))

    def keep(self, rows: list[tuple[str, int]]) -> None:
        """Forget all rows but these."""
        if len(rows) < len(self.order):
            self.order, self.owner = rows, dict(rows)

    def latest(self) -> list[tuple[str, int]]:
        """Return the last rows."""
        return self.order[-REMEMBERED_ROWS:]


class Memory:
    """Everything that is remembered of a conversation while its rows are taken. `session_id` is the file's own."""

    def __init__(self, past: Carry, context: SessionContext, session_id: str, *, is_agent: bool) -> None:
        self.past = past  # of sealed turns; small, and without content
        self.rows = RowMemory(past.owners)
        self.open = OpenTurns()
        self.input_ns = past.input_ns  # the row that made the client send the next request
        self.session_id = session_id
        self.is_fork = False  # the file says that it begins with a copied message
        self.context = context
        self._is_agent = is_agent
        self._before: tuple[int, ContextState] | None = None  # what is certain, if not all: rows, and the context

    # ---- questions

    @property
    def has_begun(self) -> bool:
        """Whether a turn is open or was sealed."""
        return self.open.turn is not None or bool(self.past.recent)

    @property
    def turn(self) -> Turn:
        """The open turn, where there must be one."""
        assert self.open.turn is not None
        return self.open.turn

    def is_of_open_turn(self, entry: Entry) -> bool:
        """Whether a row belongs to the open turn: unless its parent belongs to an earlier one that is remembered."""
        number = self.rows.owner.get(entry.parent_uuid or "")
        return all(ref.number != number for ref in self.past.recent)

    def is_line(self, row: TranscriptRow) -> bool:
        """Whether a row is a further line of an open response; without any id, of the one directly before it."""
        responses, last = self.open.responses, self.open.unnamed
        if last and row.response not in responses and is_unnamed(row.entry):
            responses[row.response] = responses[last]
        return row.response in responses

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

    # ---- what may have to be forgotten again: the row that seals a turn is read again later, with all rows before it

    def begin(self) -> None:
        """Record what `undo` forgets."""
        if self._before is None:
            self._before = (len(self.rows.order), self.context.state)

    def commit(self) -> None:
        """Keep what was recorded."""
        self._before = None
        self.context.dequeued = 0

    def undo(self) -> None:
        """Forget what was recorded since `begin`."""
        count, state = self._before or (len(self.rows.order), self.context.state)
        self.rows.keep(self.rows.order[:count])
        self.context.restore(state)
        self.commit()

    # ---- what rows add

    def open_turn(self, row: TranscriptRow, origin: str) -> Turn:
        """Open the turn that this row starts."""
        previous = self.earlier_turn(row.entry) if self.past.recent else None
        turn = self.open.turn = new_turn(row, origin, self.past, previous, self.session_id)
        self._add_row(turn, row)
        return turn

    def part_of(self, ref: TurnRef, row: TranscriptRow) -> Turn:
        """Return the further part of a sealed turn that is open, or open one."""
        turn = self.open.parts.get(ref.number)
        if turn is None:
            turn = self.open.parts[ref.number] = further_part(ref, row.place)
            turn.is_own = ref.session_id != self.session_id and is_own_row(row.entry, self.session_id)
            self._add_row(turn, row)
        return turn

    def part_of_earlier(self, row: TranscriptRow) -> Turn:
        """Return the further part of the sealed turn that a row belongs to."""
        return self.part_of(self.earlier_turn(row.entry), row)

    def add_response(self, turn: Turn, row: TranscriptRow, gap: Gap) -> None:
        """Add the response whose first line this is to a turn, after what is written before it."""
        if gap is not NO_GAP or self.context.state.taken:
            settle(turn, gap, self)
        if turn.has_answer:
            self.input_ns = None  # nothing says what made the model continue
        key, ref = row.response, row.entry.request_ref
        response = new_response(row, self.open.requests.get(ref) if ref else None, gap.input_ns or self.input_ns)
        if key in self.past.responses and (turn.part or self._is_agent):
            response.is_repeat = True  # spans of the same trace were sealed before
        turn.responses.append(response)
        self.open.responses[key] = (turn, response)
        self.add_line(row)

    def add_line(self, row: TranscriptRow) -> None:
        """Merge a line into its response, which is open."""
        turn, response = self.open.responses[row.response]
        self._add_row(turn, row)
        exported = self.past.calls if turn.part or self._is_agent else ()
        for call in merge_line(response, row, message_in(row), exported):
            self.open.calls[call.id] = (turn, call)
            if call.id in self.open.early:
                self._pair(call, self.open.early.pop(call.id))

    def add_result(self, row: TranscriptRow, block: e.ContentBlock, outcome: e.ToolOutcome) -> Turn:
        """Complete the call that a result belongs to, or record a late result; return its turn."""
        known = self.open.call(block.tool_use_id)
        if known is None:
            turn = self._add_result_alone(row, block, outcome)
        else:
            turn, call = known
            if call.result is None:
                call.result = new_result(call.name, block, row, outcome)
            self._asked_by(row)
        self._add_row(turn, row)
        return turn

    def _add_result_alone(self, row: TranscriptRow, block: e.ContentBlock, outcome: e.ToolOutcome) -> Turn:
        """Record a result without an open call: it was sealed, or comes one to four rows later (2.1.79 to 2.1.177)."""
        entry, call_id, texts = row.entry, known_as(block.tool_use_id) or "", e.inner_texts(block.content)
        ref = self.turn_waiting_for(call_id)
        turn = self.open.turn if ref is None and self.is_of_open_turn(entry) else None
        turn = turn or self.part_of(ref or self.earlier_turn(entry), row)
        fact = "tool_call_id" if ref is not None else "unknown_call_id"
        key = f"{key_of(entry)}/{call_id}"
        event = Happening("late_result", key, row.time_ns, "\n".join(texts), {fact: call_id}, several(texts))
        turn.happenings.append(event)
        if ref is None:
            self.open.early[call_id] = EarlyResult(turn, event, row, block, outcome)
        else:
            self._asked_by(row)
        return turn

    def _pair(self, call: TurnCall, early: EarlyResult) -> None:
        """Complete a call whose result was written before it."""
        early.turn.happenings.remove(early.event)
        call.result = new_result(call.name, early.block, early.row, early.outcome)
        self._asked_by(early.row)

    def _asked_by(self, row: TranscriptRow) -> None:
        if row.time_ns is not None and row.time_ns > (self.input_ns or 0):
            self.input_ns = row.time_ns

    def interrupt(self, turn: Turn, row: TranscriptRow, said: UserRow) -> None:
        """Add an interruption by the user to a turn."""
        turn.is_interrupted = True
        self._add_row(turn, row)
        turn.happenings.append(event_of("interruption", row, said.texts))

    def _add_row(self, turn: Turn, row: TranscriptRow) -> None:
        """Add a conversation row to a turn: its place, its time, what it says about the session."""
        turn.end, entry = row.place, row.entry
        if row.time_ns is not None:
            turn.times.append(row.time_ns)
        add_surroundings(turn, entry)
        self.rows.own(entry.uuid or key_of(entry), turn.number)
        self.open.unnamed = row.response if is_unnamed(entry) else ""
        if self.context.leaf is not None:
            self.context.claim((entry.uuid, entry.parent_uuid))

    # ---- what is kept of turns that are sealed

    def seal(self, turns: list[Turn], end: LinePlace, inline: InlineAgents) -> None:
        """Seal these turns, all that are open, up to `end`: `past` is then what later rows must know."""
        past, context = self.past, self.context.state
        self.rows.keep(self.rows.latest())
        # Further parts of earlier turns do not say whether the next response is a second answer.
        deciding = turns if self.open.turn is None else [self.open.turn]
        is_answered = all(turn.has_answer and not turn.has_failed for turn in deciding)
        if all(turn.has_answer for turn in turns):
            self.input_ns = None
        refs, responses, calls, pending = list(past.recent), list(past.responses), list(past.calls), list(past.pending)
        for turn in turns:
            refs = [*(ref for ref in refs if ref.number != turn.number), turn.ref]
            responses += [response.key for response in turn.responses]
            calls += [call.id for response in turn.responses for call in response.calls]
            pending += [(call.id, turn.number) for call in turn.pending_calls]
        prompts = prompts_of([call for turn in turns for call in turn.pending_calls]) if pending else ()
        self.past = Carry(
            turns=max(past.turns, *(turn.number for turn in turns)),
            recent=tuple(refs[-_REMEMBERED_TURNS:]),
            owners=tuple(self.rows.order),
            responses=tuple(responses[-_REMEMBERED_RESPONSES:]),
            calls=tuple(calls[-_REMEMBERED_CALLS:]),
            pending=tuple(pending[-_REMEMBERED_CALLS:]),
            is_answered=is_answered,
            high_water_ns=max([past.high_water_ns, *(time_ns for turn in turns for time_ns in turn.times)]),
            input_ns=self.input_ns,
            context=context.lines,
            queued=context.queued,
            taken=context.taken,
            last=(end.offset, end.end - end.offset) if context.taken or context.queued else NO_WORDS,
            agents=inline.remembered(past) if prompts else {},
            prompts=prompts,
        )
        self.open = OpenTurns()


def _start_offset(turn: Turn) -> int:
    return turn.start.offset
