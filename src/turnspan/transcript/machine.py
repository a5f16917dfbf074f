"""The state machine that makes turns of rows. Everything that decides which turn a row belongs to is in this file.

`Grouper` hands over the rows of a conversation one by one, each with the rows between it and the one before, its
`Gap`. `TRANSITIONS` says what each row does: it has an action for every state and every kind of row, or several, of
which the first counts whose predicate is true. Predicates and actions are the methods below, by name.
docs/dev/architecture.md shows the same table, printed from this one.

The states:

    EMPTY       no turn yet
    OPEN        a turn is open; further parts of sealed turns can be open beside it
    CONTINUED   no turn is open, but further parts of sealed ones are
    SEALED      nothing is open; the last turns are remembered as a `Carry`

**Seal** means: return what is open as `Sealed`, and take nothing of the row. `Grouper` then feeds all rows after the
sealed turn again, and the row arrives in state SEALED. A later process that has only the `Carry` does the same, so a
file gives the same turns in however many pieces it is read.

A **further part** is a `Turn` with the same key and number, `part` > 0, and only new responses. There can be several at
a time, of different turns; all of them are sealed together.

A turn is **answered** (`Turn.has_answer`) if no call is pending and the last response is text, or the user interrupted,
or the client gave up with an API error. That does not seal it: the next prompt does, or an event.

A row can **wait** before it seals. The lines of a response can be split by a prompt or by another response (1.0.120).
So if the last response has no stop reason, `Wait` is returned instead: further lines of that response, and results of
its calls, are taken first. The row waits for some further rows, until the next prompt after an answer, or an event. If
an event sealed the turn between the lines, the later ones are a response that `is_repeat`: its usage was exported with
the first ones.

Other rules, and the clients that made them necessary:

    a command or `!` line (`<bash-input>`) starts a turn only if it gets a response     all; `!` from 2.1.207 on
    so does what looks like the client's reply to an unknown command                    2.0.x
    words taken from the queue joined the turn, unless a second answer follows          up to 2.1.12
    a scheduled prompt starts a turn, though it is marked as meta                       2.1.325 on
    a command directly after the result of a Skill call was run by the model            2.0.36
    sidechain rows are a subagent's, grouped by `InlineAgents`                          before 2.0.28
    sidechains that begin with "Warmup" belong to no turn                               2.0.x
    a subagent's file can begin with a copy of the message that launched it             2.1.x, `fork-context-ref`
    rows that name a copied row of the last turns as their origin are turns of their own   SDK forks
    typed-ahead words are attachments; a queue operation repeats them                   2.1.98 on

Order is position in the file; timestamps only give times. Memory is bounded: a `Carry` is small and holds no content.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final

from turnspan.transcript import entries as e
from turnspan.transcript.carry import Carry
from turnspan.transcript.context import ContextState, SessionContext
from turnspan.transcript.gaps import NO_GAP, add_joined_words, gap_of, joined_at_end, settle
from turnspan.transcript.inline import Warmups
from turnspan.transcript.memory import NO_TURN, Memory, Sealed, Wait
from turnspan.transcript.responses import repeats
from turnspan.transcript.rows import (
    LinePlace,
    answers_queued,
    is_own_row,
    is_synthetic,
    is_warmup,
    key_of,
    message_in,
    origin_of,
    said_in,
)
from turnspan.transcript.turns import Prompt, add_prompt, command_prompt, event_of, several

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.transcript.entries import Entry
    from turnspan.transcript.gaps import Gap
    from turnspan.transcript.inline import InlineAgents
    from turnspan.transcript.rows import TranscriptRow


class State(StrEnum):
    """What is open."""

    EMPTY = "EMPTY"
    OPEN = "OPEN"
    CONTINUED = "CONTINUED"
    SEALED = "SEALED"


class RowKind(StrEnum):
    """What a row of the conversation is to the turns."""

    PROMPT = "prompt"
    RESPONSE = "first line of a response"
    LINE = "further line of a response"
    RESULT = "tool result"
    INTERRUPTION = "interruption"
    SIDECHAIN = "row of an agent inside the file"


_LATER: Final[dict[RowKind, str | dict[str, str]]] = {  # once there was a turn
    RowKind.RESULT: "complete_calls",
    RowKind.INTERRUPTION: "interrupt",
    RowKind.SIDECHAIN: {"is_of_warmup": "count_warmup", "otherwise": "add_to_agent"},
}
# Without a cell: a line is a further one only while its response is open.
TRANSITIONS: Final[dict[State, dict[RowKind, str | dict[str, str]]]] = {
    State.EMPTY: {
        RowKind.PROMPT: "open_turn",
        RowKind.RESPONSE: {
            "is_copied_launch": "skip",
            "answers_command": "open_command_turn",
            "otherwise": "open_unknown_turn",
        },
        RowKind.RESULT: {"is_interruption": "skip", "otherwise": "open_turn"},
        RowKind.INTERRUPTION: "skip",
        RowKind.SIDECHAIN: {"is_of_warmup": "count_warmup", "otherwise": "skip"},
    },
    State.OPEN: {
        RowKind.PROMPT: {"follows_foreign_prompt": "replace_turn", "otherwise": "seal"},
        RowKind.RESPONSE: {
            "answers_command": "seal",
            "answers_sealed_turn": "continue_sealed_turn",
            "answers_queued_words": "seal",
            "follows_stop": "seal",
            "continues_copy": "seal_at_once",
            "answers_copied_prompt": "adopt_turn",
            "otherwise": "add_response",
        },
        RowKind.LINE: "add_line",
        **_LATER,
    },
    State.CONTINUED: {
        RowKind.PROMPT: "seal",
        RowKind.RESPONSE: {
            "answers_command": "seal",
            "answers_queued_words": "seal",
            "otherwise": "continue_sealed_turn",
        },
        RowKind.LINE: "add_line",
        **_LATER,
    },
    State.SEALED: {
        RowKind.PROMPT: "open_turn",
        RowKind.RESPONSE: {
            "answers_command": "open_command_turn",
            "answers_queued_words": "open_queued_turn",
            "otherwise": "continue_sealed_turn",
        },
        **_LATER,
    },
}


class Machine:
    """The turns of one conversation in the making."""

    def __init__(
        self,
        session_id: str,
        carry: Carry | None,
        recall: Callable[[int, int], Entry | None],
        inline: InlineAgents,
        *,
        is_agent: bool,
    ) -> None:
        past = carry or Carry()
        self._context = SessionContext(ContextState(past.context, past.queued, past.taken), recall)
        self._inline = inline
        self._is_agent = is_agent
        self.can_wait = not is_agent  # for further lines of a response
        self.memory = Memory(past, self._context, session_id, is_agent=is_agent)
        self.warmups = Warmups()
        self.end = LinePlace(0, 0, 0)  # of the last row that was taken

    @property
    def state(self) -> State:
        """What is open now."""
        memory = self.memory
        if memory.open.turn is not None:
            return State.OPEN
        if memory.open.parts:
            return State.CONTINUED
        return State.SEALED if memory.past.recent else State.EMPTY

    def kind_of(self, row: TranscriptRow) -> RowKind:
        """Return what a row of the conversation is to the turns that are open."""
        said = row.said
        if said is not None:
            return RowKind.RESULT if said.results else RowKind.INTERRUPTION if said.is_interruption else RowKind.PROMPT
        if row.entry.is_sidechain and not self._is_agent:
            return RowKind.SIDECHAIN
        return RowKind.LINE if self.memory.is_line(row) else RowKind.RESPONSE

    def take(self, row: TranscriptRow, between: list[TranscriptRow]) -> Sealed | Wait | None:
        """Take a conversation row and the rows before it; or return what it seals, and take nothing.

        If the row would seal a turn whose last response may be incomplete, and `can_wait`, return `Wait` instead.
        """
        memory, kind = self.memory, self.kind_of(row)
        if kind is RowKind.PROMPT and self._action_for(kind, row, NO_GAP) == "seal":
            return self.seal(row, NO_GAP)  # the gap is not read yet: it is read again with the row
        gap = gap_of(between, memory) if between else NO_GAP
        sealed: Sealed | Wait | None = getattr(self, self._action_for(kind, row, gap))(row, gap)
        if sealed is not None:
            if sealed is Wait.FOR_LINES:
                memory.undo()
            return sealed
        if row.place.offset >= self.end.offset:  # a row that was held back is taken after later ones
            self.end = row.place
        if between:
            if gap.input_ns is not None and memory.input_ns is None:
                memory.input_ns = gap.input_ns
            memory.commit()
        return None

    def _action_for(self, kind: RowKind, row: TranscriptRow, gap: Gap) -> str:
        cell = TRANSITIONS[self.state][kind]
        if isinstance(cell, str):
            return cell
        return next(action for predicate, action in cell.items() if getattr(self, predicate)(row, gap))

    def take_ahead(self, row: TranscriptRow) -> bool:
        """Take a row after the one that waits if it completes a response or a call of the open turn; else do nothing.

        The end of what was taken does not move: the rows before it are read again, and this one is known then.
        """
        memory, said = self.memory, row.said
        if not memory.is_by_open_session(row.entry):
            return False
        if said is None:
            known = memory.open.responses.get(row.response)
            if known is None or repeats(known[1], message_in(row)):
                return False
            self.add_line(row, NO_GAP)
        else:
            calls = [memory.open.call(block.tool_use_id) for block in said.results]
            if not calls or any(known is None or known[1].result is not None for known in calls):
                return False
            self.complete_calls(row, NO_GAP)
        memory.commit()
        return True

    def seal_all(self) -> Sealed | None:
        """Seal what is open: a later row or an event shows that it has ended."""
        memory, turns = self.memory, self.memory.open.turns
        if not turns:
            return None
        memory.undo()
        for turn in turns:
            self._inline.finish(turn)
            turn.is_repeat_suspect = bool(turn.times) and min(turn.times) <= memory.past.high_water_ns
            self._context.describe(turn)
        memory.seal(turns, self.end, self._inline)
        self._inline.forget()
        return Sealed(turns, self.end, memory.past)

    def seal_words(self, between: list[TranscriptRow]) -> Sealed | None:
        """Seal the words that joined the last turn: the session is over, so they get no answer of their own.

        The rows since that turn are read again if the session is resumed.
        """
        if self.state is not State.SEALED:
            return None
        turn = joined_at_end(self.memory, between)
        if turn is None:
            return None
        self._context.describe(turn)
        return Sealed([turn], self.end, self.memory.past)

    # ---- predicates

    def otherwise(self, _row: TranscriptRow, _gap: Gap) -> bool:
        """In all other cases."""
        return True

    def is_interruption(self, row: TranscriptRow, _gap: Gap) -> bool:
        """The user interrupted a tool: there is nothing to interrupt."""
        return row.said is not None and row.said.is_interruption

    def follows_foreign_prompt(self, row: TranscriptRow, _gap: Gap) -> bool:
        """The open turn is the file's first, and only a prompt of another session, which has it, too."""
        memory, turn = self.memory, self.memory.turn
        if memory.past.turns or turn.responses or turn.happenings or turn.forked_from is not None:
            return False
        return turn.session_id != memory.session_id == row.entry.session_id

    def is_copied_launch(self, _row: TranscriptRow, _gap: Gap) -> bool:
        """The file is a forked agent's, and begins with a copy of the message that launched it."""
        return self._is_agent and self.memory.is_fork

    def answers_command(self, row: TranscriptRow, gap: Gap) -> bool:
        """It is below a command or `!` line, or its parent is not known and nothing else can have asked for it."""
        if gap.command is None or row.entry.parent_uuid in gap.command_rows:
            return gap.command is not None
        turn = self.memory.open.turn
        return row.entry.parent_uuid not in self.memory.rows.owner and (turn is None or turn.has_answer)

    def answers_sealed_turn(self, row: TranscriptRow, _gap: Gap) -> bool:
        """The parent belongs to a sealed turn: two terminals can write to one file, and their turns alternate."""
        return not self.memory.is_of_open_turn(row.entry)

    def answers_queued_words(self, row: TranscriptRow, gap: Gap) -> bool:
        """It is a second final answer: up to 2.1.12, words typed while a turn ran were answered without a row for them.

        Not after an API error (the client tries again), nor after the feedback of a hook that blocked the stop.
        """
        memory, entry = self.memory, row.entry
        if gap.boundary == "feedback" or self._is_agent or not answers_queued(entry.version):
            return False
        if is_synthetic(entry) or row.response in memory.past.responses:
            return False
        number = memory.rows.owner.get(entry.parent_uuid or "")
        turn = memory.open.turn or (memory.open.parts.get(number) if number is not None else None)
        return memory.past.is_answered if turn is None else turn.has_answer and not turn.has_failed

    def follows_stop(self, row: TranscriptRow, gap: Gap) -> bool:
        """The turn was answered, and the client recorded a stop, or feedback of a hook that blocked it.

        An event may have exported the turn at that stop: sealing it here gives the same two parts in one reading.
        """
        return bool(gap.boundary) and self.memory.turn.has_answer and not is_synthetic(row.entry)

    def continues_copy(self, row: TranscriptRow, _gap: Gap) -> bool:
        """The session's own response continues a turn that was copied from another session, with its responses."""
        return bool(self.memory.turn.responses) and self.answers_copied_prompt(row, NO_GAP)

    def answers_copied_prompt(self, row: TranscriptRow, _gap: Gap) -> bool:
        """The session's own response answers a prompt that was carried over from another session (2.1.12)."""
        turn, own = self.memory.turn, self.memory.session_id
        return turn.session_id != own and turn.forked_from is None and is_own_row(row.entry, own)

    def is_of_warmup(self, row: TranscriptRow, _gap: Gap) -> bool:
        """The row is of an agent that the client started by itself, to warm up (2.0.x)."""
        return is_warmup(row.entry) or self.memory.rows.owner.get(row.entry.parent_uuid or "") == NO_TURN

    # ---- actions

    def skip(self, _row: TranscriptRow, _gap: Gap) -> None:
        """Ignore the row."""

    def seal(self, _row: TranscriptRow, _gap: Gap) -> Sealed | Wait | None:
        """Seal what is open; if further lines of the last response may follow, wait for them first."""
        turn = self.memory.open.turn
        if self.can_wait and turn is not None and turn.may_be_cut:
            return Wait.FOR_LINES
        return self.seal_all()

    def seal_at_once(self, _row: TranscriptRow, _gap: Gap) -> Sealed | None:
        """Seal what is open."""
        return self.seal_all()

    def open_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Open a turn with the row as its prompt; a result that begins a truncated file gives it an empty one."""
        memory, said = self.memory, said_in(row)
        self._context.dequeue(said.text)
        add_joined_words(memory, row, said.text)
        turn = memory.open_turn(row, origin_of(row.entry, said.text))
        add_prompt(turn, row, said)
        if gap.expansion:
            gap.expansion, gap.expansion_blocks = [], []  # what is written before the prompt is not its expansion
        settle(turn, gap, memory)
        self._context.clear_taken()
        memory.input_ns = row.time_ns

    def replace_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Forget the open turn, and open one with the row as its prompt."""
        self.memory.open.turn = None
        self.open_turn(row, gap)

    def open_command_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Open the turn of the command or `!` line, and add the response."""
        assert gap.command is not None
        prompt, origin = command_prompt(gap.command)
        turn = self.memory.open_turn(gap.command, origin)
        turn.prompt = prompt
        for uuid in gap.command_rows:
            self.memory.rows.own(uuid, turn.number)
        if prompt.command is not None:
            del gap.local_commands[-1:]  # it is not a local command
        self._context.clear_taken()
        self.memory.add_response(turn, row, gap)

    def open_queued_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Open the turn of words typed while the last one ran, which begins when that has ended; add the response."""
        memory = self.memory
        trigger_ns = gap.stopped_ns or memory.past.high_water_ns or None
        turn = memory.open_turn(row, "queued")
        texts = self._context.answer_queued()
        turn.prompt = Prompt("\n".join(texts), trigger_ns, blocks=(several(texts),))
        memory.input_ns = trigger_ns
        memory.add_response(turn, row, gap)

    def open_unknown_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Open a turn without a prompt, and add the response: the file begins in the middle of a conversation."""
        self.memory.add_response(self.memory.open_turn(row, "unknown"), row, gap)

    def adopt_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Make the open turn this session's own, and add the response."""
        self.memory.turn.session_id = self.memory.session_id
        self.add_response(row, gap)

    def add_response(self, row: TranscriptRow, gap: Gap) -> None:
        """Add the response to the open turn."""
        self.memory.add_response(self.memory.turn, row, gap)

    def continue_sealed_turn(self, row: TranscriptRow, gap: Gap) -> None:
        """Add the response to a further part of its parent's turn; if that is not known, of the last one."""
        self.memory.add_response(self.memory.part_of_earlier(row), row, gap)

    def add_line(self, row: TranscriptRow, _gap: Gap) -> None:
        """Merge the line into its response."""
        self.memory.add_line(row)

    def complete_calls(self, row: TranscriptRow, gap: Gap) -> None:
        """Add each result to its call; without an open call it is the event "late_result", until the call comes.

        That event is in the turn that was sealed while the call was pending, else in the turn of the row's parent.
        """
        memory, said, outcome = self.memory, said_in(row), e.outcome(row.entry)
        for block in said.results:
            turn = memory.add_result(row, block, outcome)
        if gap is not NO_GAP or self._context.state.taken:
            settle(turn, gap, memory)
        if not said.text:
            pass  # the usual case
        elif said.is_interruption:
            memory.interrupt(turn, row, said)
        elif said.text.strip() and not said.text.lstrip().startswith("<system-reminder>"):
            turn.happenings.append(event_of("steering", row, said.texts))

    def interrupt(self, row: TranscriptRow, gap: Gap) -> None:
        """Mark the open turn as interrupted; without one, a further part of the parent's turn."""
        turn = self.memory.open.turn or self.memory.part_of_earlier(row)
        settle(turn, gap, self.memory)
        self.memory.interrupt(turn, row, said_in(row))

    def count_warmup(self, row: TranscriptRow, _gap: Gap) -> None:
        """Count the agent, which belongs to no turn; its answer may come in another one."""
        self.memory.rows.own(row.entry.uuid or key_of(row.entry), NO_TURN)
        self.warmups.take(row)

    def add_to_agent(self, row: TranscriptRow, _gap: Gap) -> None:
        """Add the row to its agent, in the turn that the agent works for."""
        turn = self.memory.turn_at_work(row.entry) or self.memory.part_of_earlier(row)
        self._inline.take(row, turn, self.memory.past)
