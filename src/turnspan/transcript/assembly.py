"""Assembles turns: what each conversation row adds to the turns that are open, and which rows seal them.

A conversation is in one of four states. "Answered" is `Turn.has_answer`: no call is pending and the last response is
text, or the user interrupted, or the client gave up with an API error.

    EMPTY       no turn yet
    RUNNING     a turn is open, and the model is at work
    ANSWERED    a turn is open, and nothing more is expected
    SEALED      no turn is open; the last ones can be exported, and are remembered as a `Carry`

`Grouper` hands over conversation rows one by one, each with the rows between it and the one before (its `Gap`). The
table says what they do. "Seal" means: return the open turns as `Sealed`, and take nothing of the row. `Grouper` then
feeds all rows after the sealed turn again, and the row arrives in state SEALED. A later process that has only the
`Carry` does the same, so a file gives the same turns in however many pieces it is read.

    state     prompt     response to        other new          further line of     tool result        interruption
                         a command          response           a response
    --------  ---------  -----------------  -----------------  ------------------  -----------------  ----------------
    EMPTY     open turn  open turn          open turn (1)      -                   open turn (2)      skip
    RUNNING   seal       seal               add to turn (3)    merge               complete call (6)  mark → ANSWERED
    ANSWERED  seal       seal               add to turn, or    merge               complete call (6)  mark
                                            seal (3) (4) (5)
    SEALED    open turn  open turn          further part, or   further part (7)    further part (6)   further part
                                            open turn (4)

1.  Its origin is "unknown": the file begins in the middle of a conversation (a truncated or restored file).
2.  Likewise; it has an empty prompt.
3.  Unless its parent belongs to a sealed turn that is still remembered: then it is a further part of that turn. Two
    terminals can write to one file, and their turns alternate.
4.  Up to 2.1.12, words typed while the model worked were answered after the turn, often without a row for them: a
    second final answer in a row is a turn of origin "queued". Not after an API error (the client tries again), nor
    after the feedback of a hook that blocked the stop.
5.  The gap records a stop, or a hook's feedback: the turn has ended, and the response is a further part of it. An event
    may have exported the turn at that stop; sealing it here gives the same two parts in one reading.
6.  A result whose call is not open becomes the event "late_result": in the turn that was sealed while the call was
    pending, else in the turn of the row's parent.
7.  The lines of a response can be split by a prompt or by another response (1.0.120). So a row that would seal a turn
    whose last response has no stop reason waits (`Wait`): further lines of that response, and results of its calls,
    are taken first. It waits for some further rows, until the next prompt after an answer, or an event. If an event
    sealed the turn between the lines, the later ones are a response that `is_repeat`: its usage was exported with the
    first ones.

A **further part** is a `Turn` with the same key and number, `part` > 0, and only new responses. There can be several at
a time, of different turns, beside an open turn; all of them are sealed together.

Other rules, and the clients that made them necessary:

    a command or `!` line (`<bash-input>`) starts a turn only if it gets a response     all; `!` from 2.1.207 on
    so does what looks like the client's reply to an unknown command                    2.0.x
    words taken from the queue joined the turn, unless a second answer follows          up to 2.1.12
    a command directly after the result of a Skill call was run by the model            2.0.36
    sidechain rows are a subagent's, grouped by `InlineAgents`                          before 2.0.28
    sidechains that begin with "Warmup" belong to no turn                               2.0.x
    a subagent's file can begin with a copy of the message that launched it             2.1.x, `fork-context-ref`
    rows that name a copied row of the last turns as their origin are turns of their own   SDK forks
    typed-ahead words are attachments; a queue operation repeats them                   2.1.98 on

Order is position in the file; timestamps only give times. Memory is bounded: a `Carry` is small and holds no content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import Carry, known_as
from turnspan.transcript.context import ContextState, SessionContext
from turnspan.transcript.gaps import NO_GAP, Gap
from turnspan.transcript.inline import Warmups, prompts_of
from turnspan.transcript.memory import NO_TURN, Memory, OpenCall, OpenResponse, OpenTurns, Request, RowMemory
from turnspan.transcript.responses import add_line, new_response, new_result, repeats
from turnspan.transcript.rows import Place, answers_queued, is_warmup, key_of, origin_of
from turnspan.transcript.sealing import Sealed, Wait, carry_after
from turnspan.transcript.selection import Choice, choose, is_after_copy, is_models_own_command
from turnspan.transcript.settling import add_words, joined_at_end, settle
from turnspan.transcript.turns import (
    Happening,
    Prompt,
    Turn,
    add_surroundings,
    command_prompt,
    further_part,
    new_turn,
    several,
    user_event,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.transcript.carry import TurnRef
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.inline import InlineAgents
    from turnspan.transcript.rows import Row, UserRow


class Assembly:
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
        self._session_id = session_id
        self._is_agent = is_agent
        self._inline = inline
        self._context = SessionContext(ContextState(past.context, past.queued, past.taken), recall)
        self.can_wait = not is_agent  # for further lines of a response
        self._is_fork = False  # the file says that it begins with a copied message
        self.memory = Memory(past, RowMemory(past.owners), OpenTurns(), past.input_ns)
        self.warmups = Warmups()
        self.end = Place(0, 0, 0)  # of the last row that was taken

    def take(self, row: Row, between: list[Row]) -> Sealed | Wait | None:
        """Take a conversation row and the rows before it; or return what it seals, and take nothing.

        If the row would seal a turn whose last response may be incomplete, and `can_wait`, return `Wait` instead.
        """
        memory, said = self.memory, row.said
        # Without any turn before it, a result begins one: the file has lost its beginning.
        is_prompt = said is not None and not (said.is_interruption or (said.results and memory.has_begun))
        if is_prompt and (sealed := self._seal_or_wait()) is not None:
            return sealed  # the gap is not read yet: it is read again with the row
        gap = self._gap_of(between) if between else NO_GAP
        if said is not None:
            (self._take_prompt if is_prompt else self._take_reply)(row, said, gap)
        elif row.entry.is_sidechain and not self._is_agent:
            self._take_sidechain(row)
        elif (sealed := self._take_response_line(row, gap)) is not None:
            if sealed is Wait.FOR_LINES:
                memory.rows.undo()
                self._context.undo()
            return sealed
        if row.place.offset >= self.end.offset:  # a row that was held back is taken after later ones
            self.end = row.place
        if between:
            if gap.input_ns is not None and memory.input_ns is None:
                memory.input_ns = gap.input_ns
            self._context.commit()
            memory.rows.commit()
        return None

    def take_ahead(self, row: Row) -> bool:
        """Take a row after the one that waits if it completes a response or a call of the open turn; else do nothing.

        The end of what was taken does not move: the rows before it are read again, and this one is known then.
        """
        memory, said, message = self.memory, row.said, row.entry.message
        if said is None:
            known = memory.open.responses.get(row.response)
            if known is None or message is None or repeats(known.response, message):
                return False
            if not memory.is_by_open_session(row.entry):
                return False
            self._take_response_line(row, NO_GAP)
        else:
            for block in said.results:
                known_call = memory.open.call(block.tool_use_id)
                if known_call is None or known_call.call.result is not None:
                    return False
            if not said.results or not memory.is_by_open_session(row.entry):
                return False
            self._take_results(row, said, NO_GAP)
        memory.rows.commit()
        return True

    def _seal_or_wait(self) -> Sealed | Wait | None:
        turn = self.memory.open.turn
        if self.can_wait and turn is not None and turn.may_be_cut:
            return Wait.FOR_LINES
        return self.seal()

    def seal(self) -> Sealed | None:
        """Seal what is open: a later row or an event shows that it has ended."""
        memory, turns = self.memory, self.memory.open.turns
        if not turns:
            return None
        rows, context = memory.rows.roll_back(), self._context.roll_back()
        are_answered = is_answered = True
        for turn in turns:
            self._finish(turn)
            has_answer = turn.has_answer
            are_answered = are_answered and has_answer
            # Further parts of earlier turns do not say whether the next response is a second answer.
            if memory.open.turn is None or memory.open.turn is turn:
                is_answered = is_answered and has_answer and not turn.has_failed
        if are_answered:
            memory.input_ns = None
        past = memory.past
        memory.past = carry_after(
            past, turns, rows=rows, is_answered=is_answered, input_ns=memory.input_ns, context=context
        )
        if context.taken or context.queued:
            memory.past = msgspec.structs.replace(memory.past, last=(self.end.offset, self.end.end - self.end.offset))
        if memory.past.pending and (launches := prompts_of([c for turn in turns for c in turn.pending_calls])):
            agents = self._inline.remembered(past)
            memory.past = msgspec.structs.replace(memory.past, agents=agents, prompts=launches)
        memory.open = OpenTurns()
        self._inline.forget()
        return Sealed(turns, self.end, memory.past)

    def seal_words(self, between: list[Row]) -> Sealed | None:
        """Seal the words that joined the last turn: the session is over, so they get no answer of their own.

        The rows since that turn are read again if the session is resumed.
        """
        if self.memory.open.turns or not self.memory.past.recent:
            return None
        turn = joined_at_end(self.memory, self._context, between)
        if turn is None:
            return None
        self._context.describe(turn)
        return Sealed([turn], self.end, self.memory.past)

    def _finish(self, turn: Turn) -> None:
        self._inline.finish(turn)
        turn.is_repeat_suspect = bool(turn.times) and min(turn.times) <= self.memory.past.high_water_ns
        self._context.describe(turn)

    # ---- the rows between two conversation rows

    def _gap_of(self, between: list[Row]) -> Gap:
        gap = Gap()
        self.memory.rows.begin()
        self._context.begin()
        for row in between:
            if self._context.take(row):
                if self._context.leaf is not None:
                    self._context.claim(*self.memory.rows.latest(), *(other.entry.uuid for other in between))
            else:
                self._take_between(row, gap)
            gap.own(row.entry, self.memory.rows)
        return gap

    def _take_between(self, row: Row, gap: Gap) -> None:
        entry = row.entry
        if entry.type == "api-request":
            if entry.id:
                self.memory.open.requests[entry.id] = Request(row.time_ns, entry.params)
        elif entry.type == "attachment":
            gap.take_attachment(row)
        elif entry.type == "system":
            gap.take_system(row)
        elif entry.type == "fork-context-ref":
            self._is_fork = True
        elif row.said is not None:
            gap.take_user(row, row.said, is_models_own=is_models_own_command(self.memory, entry))

    # ---- user rows

    def _take_reply(self, row: Row, said: UserRow, gap: Gap) -> None:
        """Take what is not a prompt: results, or an interruption."""
        if said.is_interruption and not self.memory.has_begun:
            return  # nothing to interrupt
        if said.results:
            self._take_results(row, said, gap)
        else:
            turn = self.memory.open.turn or self._part_of(self.memory.earlier_turn(row.entry), row)
            settle(turn, gap, self._context, self.memory.rows)
            self._interrupt(turn, row, said)

    def _take_prompt(self, row: Row, said: UserRow, gap: Gap) -> None:
        self._context.dequeue(said.text, gap.local_commands)
        self._settle_joined(row, said.text)
        typed, ide = e.without_ide_tags(said.text)
        media = tuple([e.media(block.source) for block in said.blocks if block.type in {"image", "document"}])
        turn = self._new_turn(row, origin_of(row.entry, said.text))
        turn.prompt = Prompt(typed, row.time_ns, media, ide, blocks=(several(said.texts),))
        if turn.origin == "task_notification":
            turn.answers_call = e.tool_notified(said.text)
        if row.entry.plan_content is not None:
            turn.previous_session = e.session_named_in(said.text)
        if gap.expansion:
            gap.expansion, gap.expansion_blocks = [], []  # what is written before the prompt is not its expansion
        settle(turn, gap, self._context, self.memory.rows)
        self._context.clear_taken()
        self.memory.input_ns = row.time_ns

    def _take_results(self, row: Row, said: UserRow, gap: Gap) -> None:
        outcome = e.outcome(row.entry)
        for block in said.results:
            turn = self._take_result(row, block, outcome)
            self._add_row(turn, row)
        if gap is not NO_GAP or self._context.state.taken:
            settle(turn, gap, self._context, self.memory.rows)
        if not said.text:
            pass  # the usual case
        elif said.is_interruption:
            self._interrupt(turn, row, said)
        elif said.text.strip() and not said.text.lstrip().startswith("<system-reminder>"):
            turn.happenings.append(user_event("steering", row, said.texts))
        if row.time_ns is not None and row.time_ns > (self.memory.input_ns or 0):
            self.memory.input_ns = row.time_ns

    def _take_result(self, row: Row, block: e.Block, outcome: e.Outcome) -> Turn:
        """Complete the call that a result belongs to, or record a late result; return its turn."""
        texts = e.inner_texts(block.content)
        known = self.memory.open.call(block.tool_use_id)
        if known is None:
            return self._take_late_result(row, known_as(block.tool_use_id) or "", texts)
        if known.call.result is None:
            known.call.result = new_result(known.call.name, texts, block, row, outcome)
        return known.turn

    def _take_late_result(self, row: Row, call_id: str, texts: list[str]) -> Turn:
        memory, entry = self.memory, row.entry
        ref = memory.turn_waiting_for(call_id)
        turn = memory.open.turn if ref is None and memory.is_of_open_turn(entry) else None
        turn = turn or self._part_of(ref or memory.earlier_turn(entry), row)
        fact = "tool_call_id" if ref is not None else "unknown_call_id"
        key = f"{key_of(entry)}/{call_id}"
        turn.happenings.append(
            Happening("late_result", key, row.time_ns, "\n".join(texts), {fact: call_id}, several(texts))
        )
        return turn

    def _interrupt(self, turn: Turn, row: Row, said: UserRow) -> None:
        turn.is_interrupted = True
        self._add_row(turn, row)
        turn.happenings.append(user_event("interruption", row, said.texts))

    # ---- assistant rows

    def _take_response_line(self, row: Row, gap: Gap) -> Sealed | Wait | None:
        message = row.entry.message
        assert message is not None
        memory = self.memory
        known = memory.open.responses.get(row.response)
        if known is None:
            if self._is_agent and self._is_fork and not memory.has_begun:
                return None  # a copy of the message that launched the agent
            turn = self._turn_for(row, gap)
            if not isinstance(turn, Turn):
                return turn
            if gap is not NO_GAP or self._context.state.taken:
                settle(turn, gap, self._context, memory.rows)
            known = self._add_response(turn, row, message, gap)
        turn = known.turn
        self._add_row(turn, row)
        exported = memory.past.calls if turn.part or self._is_agent else ()
        for call in add_line(known.response, row, message, exported):
            memory.open.calls[call.id] = OpenCall(turn, call)
        return None

    def _turn_for(self, row: Row, gap: Gap) -> Turn | Sealed | Wait:
        """Return the turn that a new response belongs to, or what it seals."""
        memory, entry = self.memory, row.entry
        choice = choose(memory, row, gap, is_agent=self._is_agent)
        if choice is Choice.OPEN_TURN and memory.open.turn is not None:
            turn = memory.open.turn
            is_copied = turn.session_id != self._session_id and is_after_copy(turn, entry, self._session_id)
            return (self.seal() if is_copied else None) or turn
        if choice is Choice.EARLIER_TURN:
            return self._part_of(memory.earlier_turn(entry), row)
        if (sealed := self._seal_or_wait()) is not None:
            return sealed
        if choice is Choice.COMMAND and gap.command is not None:
            return self._command_turn(gap.command, gap)
        if choice is Choice.QUEUED_WORDS:
            return self._queued_turn(row, gap)
        return self._new_turn(row, "unknown")

    def _add_response(self, turn: Turn, row: Row, message: e.Message, gap: Gap) -> OpenResponse:
        memory, key = self.memory, row.response
        if turn.has_answer:
            memory.input_ns = None  # nothing says what made the model continue
        ref = row.entry.request_ref
        request = memory.open.requests.get(ref) if ref else None
        response = new_response(key, row, message, request, gap.input_ns or memory.input_ns)
        if key in memory.past.responses and (turn.part or self._is_agent):
            response.is_repeat = True  # spans of the same trace were sealed before
        turn.responses.append(response)
        found = memory.open.responses[key] = OpenResponse(turn, response)
        return found

    # ---- turns and their parts

    def _new_turn(self, row: Row, origin: str) -> Turn:
        turn = new_turn(self.memory, row, origin, self._session_id)
        self.memory.open.turn = turn
        self._add_row(turn, row)
        return turn

    def _command_turn(self, row: Row, gap: Gap) -> Turn:
        """Open the turn of a command or `!` line that got a response."""
        prompt, origin = command_prompt(row)
        turn = self._new_turn(row, origin)
        turn.prompt = prompt
        for uuid in gap.command_rows:
            self.memory.rows.own(uuid, turn.number)
        if prompt.command is not None:
            del gap.local_commands[-1:]  # it is not a local command
        self._context.clear_taken()
        return turn

    def _queued_turn(self, row: Row, gap: Gap) -> Turn:
        """Open the turn of words typed while the last one ran, which have no row of their own."""
        trigger_ns = gap.stopped_ns or self.memory.past.high_water_ns or None
        turn = self._new_turn(row, "queued")
        texts = self._context.answer_queued()
        turn.prompt = Prompt("\n".join(texts), trigger_ns, blocks=(several(texts),))  # begins when that has ended
        self.memory.input_ns = trigger_ns
        return turn

    def _part_of(self, ref: TurnRef, row: Row) -> Turn:
        """Return the further part of a sealed turn that is open, or open one."""
        turn = self.memory.open.parts.get(ref.number)
        if turn is None:
            turn = further_part(ref, row, self._session_id)
            self.memory.open.parts[ref.number] = turn
            self._add_row(turn, row)
        return turn

    def _add_row(self, turn: Turn, row: Row) -> None:
        """Add a conversation row to a turn: its place, its time, what it says about the session."""
        turn.end, entry = row.place, row.entry
        if row.time_ns is not None:
            turn.times.append(row.time_ns)
        add_surroundings(turn, entry)
        self.memory.rows.own(entry.uuid or key_of(entry), turn.number)
        if self._context.leaf is not None:
            self._context.claim(entry.uuid, entry.parent_uuid)

    def _settle_joined(self, row: Row, prompt: str) -> None:
        """Add words without an answer to the turn before, which they joined, as a further part of it (up to 2.1.12)."""
        if self._context.state.taken and self.memory.past.recent and answers_queued(row.entry.version):
            joined = self._context.words_taken({prompt}, self.memory.rows.owner)
            if joined:
                add_words(self._part_of(self.memory.past.recent[-1], row), joined, self.memory.rows)

    # ---- subagents inside the file

    def _take_sidechain(self, row: Row) -> None:
        entry, rows = row.entry, self.memory.rows
        if is_warmup(entry) or rows.owner.get(entry.parent_uuid or "") == NO_TURN:
            rows.own(entry.uuid or key_of(entry), NO_TURN)  # its answer may come in another turn
            self.warmups.take(row)
        elif self.memory.has_begun:
            turn = self.memory.turn_at_work(entry) or self._part_of(self.memory.earlier_turn(entry), row)
            self._inline.take(row, turn, self.memory.past)
