"""Turns in the making: what a conversation row adds to what is open, and what it seals.

Rules:

- A turn starts at a line that asked the model to work: a prompt, a task notification, a plan carried over, or a command
  or `!` line that got a reply. A later start seals the turn before it.
- What comes after a sealed turn and belongs to it is a further **part** of the same turn, with new responses only.
- Responses are merged by message id, even when tool results stand between their lines. Order is position in the file;
  timestamps only give times.
- Memory is bounded: what must be remembered of the past is a `Carry`, small and without content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.classify import answers_queued, is_interruption, is_warmup, key_of, origin_of, response_key
from turnspan.transcript.gaps import NO_GAP, Gap, Request, Surroundings
from turnspan.transcript.launches import agent_of
from turnspan.transcript.responses import add_line
from turnspan.transcript.resume import Carry, TurnRef, known_as, words_digest
from turnspan.transcript.turns import Call, Happening, Place, Prompt, Response, Result, Turn

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.transcript.entries import Entry
    from turnspan.transcript.inline import InlineAgents

NOBODY: Final = 0  # in the place of a turn's number: rows that nobody asked for
_REMEMBERED_ROWS: Final = 48
_REMEMBERED_TURNS: Final = 4
_REMEMBERED_RESPONSES: Final = 8
_REMEMBERED_CALLS: Final = 32
_COMMAND_TOOLS: Final = frozenset({"Skill", "SlashCommand"})  # the model's own way to run a command


class Sealed(msgspec.Struct, frozen=True):
    """Turns that may leave, and what to remember once they have: reading goes on at `end`."""

    turns: list[Turn]
    end: Place
    past: Carry  # all of it but the words, whose digests take time and of which only the last are asked for

    @property
    def carry(self) -> Carry:
        """What to remember."""
        return msgspec.structs.replace(self.past, words=self.turns[-1].last_words)


class Making:
    """What is open of a conversation, and what is remembered of what was sealed. Rows are taken one by one."""

    def __init__(
        self,
        session_id: str,
        carry: Carry | None,
        recall: Callable[[int, int], Entry | None],
        inline: InlineAgents,
        *,
        is_agent: bool,
    ) -> None:
        self._session_id = session_id
        self._is_agent = is_agent
        self._inline = inline
        self._past = carry or Carry()
        self._open: Turn | None = None
        self._late: dict[int, Turn] = {}
        self._between: list[tuple[Entry, Place]] = []
        self._gap = NO_GAP
        self.end = Place(0, 0, 0)  # of the last row that was taken
        self._requests: dict[str, Request] = {}
        self._input_ns = self._past.input_ns
        self._responses: dict[str, tuple[Turn, Response]] = {}  # in what is open, by message id
        self._calls: dict[str, tuple[Turn, Call]] = {}  # likewise
        self._is_fork_context = False
        self.owners: dict[str, int] = dict(self._past.owners)  # rows, and the number of their turn
        self._rows: list[tuple[str, int]] = list(self._past.owners)
        self._around = Surroundings(self._past.context, self._past.queued, self._past.taken, recall)
        self._marked = (len(self._rows), self._past.context, self._past.queued, self._past.taken)

    @property
    def unsealed(self) -> list[Turn]:
        """What is open: at most one turn, and later parts of earlier ones."""
        turns = [self._open] if self._open is not None else []
        return sorted([*turns, *self._late.values()], key=_start_offset) if self._late else turns

    @property
    def has_begun(self) -> bool:
        """Whether there has been a turn."""
        return self._open is not None or bool(self._past.recent)

    def take(self, entry: Entry, place: Place, between: list[tuple[Entry, Place]]) -> Sealed | None:
        """Take a conversation row and what stands before it; or what has to be sealed first, and then nothing of it."""
        sealed, self._gap, self._between = None, NO_GAP, between
        if entry.is_sidechain and not self._is_agent:
            if self._between:
                self._take_gap()
            self._take_sidechain(entry, place)
        elif entry.type == "assistant":
            if self._between:
                self._take_gap()
            sealed = self._take_assistant(entry, place, e.time_ns(entry))
        else:
            sealed = self._take_user(entry, place, e.time_ns(entry))
        if sealed is not None:
            return sealed
        gap = self._gap
        if gap.requests:
            self._requests.update(gap.requests)
        if gap.input_ns is not None and self._input_ns is None:
            self._input_ns = gap.input_ns
        if place.offset >= self.end.offset:  # a row that was held back may come after a later one
            self.end = place
        around = self._around
        self._marked = (len(self._rows), around.context, around.queued, around.taken)
        return None

    def seal(self) -> Sealed | None:
        """What is open, sealed: a later start or an event says that it has ended."""
        if self._open is None and not self._late:
            return None
        turns = self.unsealed
        for turn in turns:
            self._finish(turn)
        rows, context, queued, taken = self._marked
        responses = [response for turn in turns for response in turn.responses]
        calls = [call.id for response in responses for call in response.calls]
        pending = [*self._past.pending, *((call.id, turn.number) for turn in turns for call in turn.pending_calls)]
        past = self._past
        if all(turn.has_answer for turn in turns):
            self._input_ns = None
        running = turns if self._open is None else [self._open]  # late parts do not say whether the next answer is new
        numbers = {turn.number for turn in turns}
        kept = [ref for ref in past.recent if ref.number not in numbers]
        self._rows = self._rows[max(0, rows - _REMEMBERED_ROWS) : rows]
        self._past = Carry(
            turns=max([past.turns, *numbers]),
            recent=tuple([*kept, *(turn.ref for turn in turns)][-_REMEMBERED_TURNS:]),
            owners=tuple(self._rows),
            responses=tuple([*past.responses, *(response.key for response in responses)][-_REMEMBERED_RESPONSES:]),
            calls=tuple([*past.calls, *calls][-_REMEMBERED_CALLS:]),
            pending=tuple(pending[-_REMEMBERED_CALLS:]),
            is_answered=all(turn.has_answer and not turn.has_failed for turn in running),
            high_water_ns=max([past.high_water_ns, *(time for turn in turns for time in turn.times)]),
            input_ns=self._input_ns,
            context=context,
            queued=queued,
            taken=taken,
        )
        self.owners = dict(self._rows)
        self._around.go_back(context, queued, taken)
        self._marked = (len(self._rows), context, queued, taken)
        self._open, self._late = None, {}
        self._inline.forget()
        self._requests, self._responses, self._calls = {}, {}, {}
        return Sealed(turns, self.end, self._past)

    # ---- what stands between

    def _take_gap(self) -> None:
        self._gap = Gap()
        for entry, place in self._between:
            self._take_between(entry, place)

    def _take_between(self, entry: Entry, place: Place) -> None:
        gap = self._gap
        if self._around.take(entry, place):
            self._claim_before()
        elif entry.type == "api-request":
            gap.take_request(entry)
        elif entry.type == "attachment":
            gap.take_attachment(entry)
        elif entry.type == "system":
            gap.take_system(entry)
        elif entry.type == "fork-context-ref":
            self._is_fork_context = True
        elif entry.type == "user" and entry.message is not None:
            gap.take_quiet_user(entry, entry.message, place, is_models_own=self._is_within_turn(entry))
        if entry.uuid is not None and entry.parent_uuid is not None:
            if entry.parent_uuid in gap.tentative_rows:
                gap.tentative_rows[entry.uuid] = None
            elif entry.uuid not in gap.tentative_rows and entry.parent_uuid in self.owners:
                self.own(entry.uuid, self.owners[entry.parent_uuid])

    def _claim_before(self) -> None:
        if self._around.is_unclaimed:
            before = [uuid for uuid, _ in self._rows[-_REMEMBERED_ROWS:]]
            self._around.claim(*before, *(other.uuid for other, _ in self._between))

    def own(self, uuid: str, number: int) -> None:
        """Remember whose row this is."""
        self.owners[uuid] = number
        self._rows.append((uuid, number))

    def _is_within_turn(self, entry: Entry) -> bool:
        """Whether the model ran a command: 2.0.36 writes a skill behind its call as if it had been typed."""
        turn = self._open
        if entry.is_meta or turn is None or not turn.responses or turn.has_answer or not self._is_own(entry):
            return False
        return any(call.name in _COMMAND_TOOLS and call.result is not None for call in turn.responses[-1].calls)

    # ---- user rows

    def _take_user(self, entry: Entry, place: Place, moment: int | None) -> Sealed | None:
        assert entry.message is not None
        found = e.blocks(entry.message)
        results = [block for block in found if block.type == "tool_result"]
        text = e.plain_text(found)
        is_result = bool(results and (self._open is not None or self._late or self._past.recent))
        is_prompt = not is_result and not is_interruption(text)
        if is_prompt and (sealed := self.seal()) is not None:
            return sealed  # whatever stands between: it need not be read twice
        if self._between:
            self._take_gap()
        if is_result:
            self._take_results(entry, place, moment, results, text)
            return None
        if not is_prompt:
            if self._open is not None or self._past.recent:
                turn = self._open or self._part_of(self._ref(entry), entry, place)
                self._settle(turn)
                self._interrupt(turn, entry, place, moment, text)
            return None
        typed, ide = e.without_ide_tags(text)
        media = tuple(e.media(block.source) for block in found if block.type in {"image", "document"})
        turn = self._new_turn(entry, place, origin_of(entry, text))
        turn.prompt = Prompt(typed, moment, media, ide)
        turn.answers_call = e.tool_notified(text) if turn.origin == "task_notification" else None
        if entry.plan_content is not None:
            turn.previous_session = e.session_named_in(text)
        self._gap.expansion = []  # what came before the prompt is not its expansion
        self._settle(turn)
        self._around.taken = ()
        self._input_ns = moment
        return None

    def _interrupt(self, turn: Turn, entry: Entry, place: Place, moment: int | None, text: str) -> None:
        turn.is_interrupted = True
        self._row(turn, entry, place, moment)
        turn.happenings.append(Happening("interruption", key_of(entry), moment, text))

    def _take_results(self, entry: Entry, place: Place, moment: int | None, results: list[e.Block], text: str) -> None:
        known = e.outcome(entry)
        turn: Turn | None = None
        for block in results:
            answer = e.inner_text(block.content)
            call_id = known_as(block.tool_use_id) or ""
            turn, call = self._calls.get(call_id, (None, None))
            if turn is None or call is None:
                ref = self._waiting(call_id)
                turn = self._open if ref is None and self._is_own(entry) else None
                turn = turn or self._part_of(ref or self._ref(entry), entry, place)
                key = f"{key_of(entry)}/{call_id}"
                fact = "tool_call_id" if ref is not None else "unknown_call_id"
                turn.happenings.append(Happening("late_result", key, moment, answer, {fact: call_id}))
            elif call.result is None:
                call.result = Result(
                    answer,
                    bool(block.is_error),
                    moment,
                    entry.tool_denial_kind,
                    known.duration_ms,
                    *agent_of(call.name, answer, known),
                    known.interrupted,
                )
            self._row(turn, entry, place, moment)
        assert turn is not None
        self._settle(turn)
        if is_interruption(text):
            self._interrupt(turn, entry, place, moment, text)
        elif text.strip() and not text.lstrip().startswith("<system-reminder>"):
            turn.happenings.append(Happening("steering", key_of(entry), moment, text))
        self._input_ns = max(moment or 0, self._input_ns or 0) or None

    def _waiting(self, tool_use_id: str) -> TurnRef | None:
        """The earlier turn that left while this call had no result."""
        number = dict(self._past.pending).get(tool_use_id)
        return next((ref for ref in self._past.recent if ref.number == number), None)

    # ---- assistant rows

    def _take_assistant(self, entry: Entry, place: Place, moment: int | None) -> Sealed | None:
        assert entry.message is not None
        message = entry.message
        is_synthetic = message.model == "<synthetic>"
        key = response_key(entry)
        turn, response = self._responses.get(key, (None, None))
        if turn is None or response is None:
            if self._is_agent and self._is_fork_context and self._open is None and not self._past.recent:
                return None  # a forked agent begins with a copy of the message that launched it
            found = self._turn_for(entry, place, is_synthetic=is_synthetic)
            if isinstance(found, Sealed):
                return found
            turn = found
            self._settle(turn)
            if turn.has_answer:
                self._input_ns = None  # what made it go on is not known
            response = self._new_response(key, entry, message, moment)
            response.is_repeat = (turn.part > 0 or self._is_agent) and key in self._past.responses
            turn.responses.append(response)
            self._responses[key] = (turn, response)
        self._row(turn, entry, place, moment)
        told = self._past.calls if turn.part > 0 or self._is_agent else ()  # in the same trace
        for call in add_line(response, entry, message, moment, told):
            self._calls[call.id] = (turn, call)
        return None

    def _turn_for(self, entry: Entry, place: Place, *, is_synthetic: bool) -> Turn | Sealed:
        """The turn that a new response belongs to, or what its coming seals."""
        gap, turn = self._gap, self._open
        is_reply_to_command = entry.parent_uuid in gap.tentative_rows
        number = self.owners.get(entry.parent_uuid or "")
        running = turn or self._late.get(number if number is not None else 0)

        def is_ended() -> bool:  # asked only where it matters: it looks through the whole turn
            return running.has_answer if running is not None else self._past.is_answered

        if gap.tentative is not None and (is_reply_to_command or (number is None and (turn is None or is_ended()))):
            return self._confirm(*gap.tentative)
        if turn is None and not self._past.recent:
            return self._new_turn(entry, place, "unknown")
        if turn is not None and not self._is_own(entry):
            return self._part_of(self._ref(entry), entry, place)
        if is_synthetic:
            return turn or self._part_of(self._ref(entry), entry, place)
        is_new = response_key(entry) not in self._past.responses
        if is_new and answers_queued(entry.version or "") and not self._is_agent and gap.boundary != "feedback":
            has_failed = running is not None and running.has_failed
            if not has_failed and is_ended():
                return self._answer_to_queued(entry, place)
        if turn is None:
            return self._part_of(self._ref(entry), entry, place)
        if gap.boundary and is_ended():
            return self.seal() or turn
        return turn

    def _confirm(self, entry: Entry, place: Place) -> Turn | Sealed:
        """A command or `!` line got a reply: it started a turn."""
        if (sealed := self.seal()) is not None:
            return sealed
        assert entry.message is not None
        text = e.plain_text(e.blocks(entry.message))
        command = e.command_of(text)
        turn = self._new_turn(entry, place, origin_of(entry, text) if command is not None else "bash")
        words = f"{command[0]} {command[1]}".strip() if command is not None else text
        turn.prompt = Prompt(words, e.time_ns(entry), command=command[0] if command is not None else "!")
        for row in self._gap.tentative_rows:
            self.own(row, turn.number)
        del self._gap.commands[-1:]
        self._around.taken = ()
        return turn

    def _answer_to_queued(self, entry: Entry, place: Place) -> Turn | Sealed:
        """Old clients answered words typed meanwhile without writing a line for them: a second final answer."""
        if (sealed := self.seal()) is not None:
            return sealed
        trigger = self._gap.stopped_ns or self._past.high_water_ns or None
        words = self._around.taken[-1:] or self._around.queued[:1]
        turn = self._new_turn(entry, place, "queued")
        text = self._around.words(words[0])[0] if words else ""
        turn.prompt = Prompt(text, trigger) if text else None
        self._around.taken = ()
        self._input_ns = trigger
        return turn

    def _new_response(self, key: str, entry: Entry, message: e.Message, moment: int | None) -> Response:
        asked = self._gap.requests.get(entry.request_ref or "") or self._requests.get(entry.request_ref or "")
        params = asked[1] if asked is not None else None
        return Response(
            key=key,
            uuid=key_of(entry),
            model=message.model or "",
            version=entry.version or "",
            request_id=entry.request_id,
            requested_model=entry.requested_model or (params.model if params is not None else None),
            effort=entry.effort,
            max_tokens=params.max_tokens if params is not None else None,
            trigger_ns=self._gap.input_ns or self._input_ns,
            request_ns=asked[0] if asked is not None else None,
            has_request_elsewhere=entry.request_ref is not None and asked is None,
            first_ns=moment,
            first_block_ms=entry.thinking_duration_ms or entry.tool_input_stream_ms,
        )

    # ---- turns and their parts

    def _new_turn(self, entry: Entry, place: Place, origin: str) -> Turn:
        fork = entry.forked_from or e.ForkedFrom()
        key = known_as(fork.message_uuid) or entry.uuid or known_as(entry.prompt_id) or key_of(entry)
        if any(ref.key == key for ref in self._past.recent):
            key = f"{key}/{key_of(entry)}"  # a row that says it is a copy of one next to it: still a turn of its own
        self._open = Turn(
            session_id=known_as(fork.session_id) or known_as(entry.session_id) or self._session_id,
            key=key,
            number=self._past.turns + 1,
            part=0,
            origin=origin,
            start=place,
            end=place,
            previous=self._ref(entry) if self._past.recent else None,
            forked_from=fork.session_id,
            prompt_uuid=entry.uuid or "",
            prompt_id=entry.prompt_id or "",
            permission_mode=entry.permission_mode or "",
        )
        self._row(self._open, entry, place, e.time_ns(entry))
        return self._open

    def _is_own(self, entry: Entry) -> bool:
        """Whether a row belongs to the open turn, as far as its parent tells."""
        number = self.owners.get(entry.parent_uuid or "")
        return self._open is not None and (
            number is None or number == self._open.number or all(ref.number != number for ref in self._past.recent)
        )

    def _ref(self, entry: Entry) -> TurnRef:
        """The earlier turn that a late row belongs to: its parent's, else the last one."""
        number = self.owners.get(entry.parent_uuid or "")
        return next((ref for ref in self._past.recent if ref.number == number), self._past.recent[-1])

    def _part_of(self, ref: TurnRef, entry: Entry, place: Place) -> Turn:
        turn = self._late.get(ref.number)
        if turn is None:
            turn = Turn(
                session_id=ref.session_id, key=ref.key, number=ref.number, part=ref.parts, origin="continued",
                start=place, end=place,
            )  # fmt: skip
            self._late[ref.number] = turn
            self._row(turn, entry, place, e.time_ns(entry))
        return turn

    def _row(self, turn: Turn, entry: Entry, place: Place, moment: int | None) -> None:
        """A conversation row belongs to a turn: its place, its time, what it says about the session."""
        turn.end = place
        if moment is not None:
            turn.times.append(moment)
        turn.version = entry.version or turn.version
        turn.cwd = entry.cwd or turn.cwd
        turn.git_branch = entry.git_branch or turn.git_branch
        turn.slug = entry.slug or turn.slug
        turn.entrypoint = entry.entrypoint or turn.entrypoint
        self.own(entry.uuid or key_of(entry), turn.number)
        if self._around.is_unclaimed:
            self._around.claim(entry.uuid, entry.parent_uuid)

    def _settle(self, turn: Turn) -> None:
        """What stood before this row belongs to this turn."""
        gap = self._gap
        if gap.happenings:
            # Words taken from the queue are mostly repeated by an attachment, before or after.
            said = {happening.text for happening in turn.happenings if happening.kind == "steering"}
            for happening in gap.happenings:
                if happening.kind != "steering" or happening.text not in said:
                    turn.happenings.append(happening)
                if happening.key not in self.owners:
                    self.own(happening.key, turn.number)  # should it stand there twice: a compaction has no parent
        if gap.commands:
            turn.local_commands += tuple(gap.commands)
        if gap.expansion and turn.prompt is not None and not turn.responses:
            turn.prompt.expansion = "\n".join(filter(None, (turn.prompt.expansion, *gap.expansion)))
        gap.happenings, gap.commands, gap.expansion = [], [], []
        if self._around.taken and not answers_queued(turn.version):
            said = {happening.text for happening in turn.happenings if happening.kind == "steering"}
            for at in self._around.taken:
                text, moment = self._around.words(at)
                key = f"queue:{moment}:{words_digest(text)}"
                if text and text not in said and key not in self.owners:
                    turn.happenings.append(Happening("steering", key, moment, text))
                    self.own(key, turn.number)
            self._around.taken = ()

    # ---- agents inside the file

    def _take_sidechain(self, entry: Entry, place: Place) -> None:
        if is_warmup(entry) or self.owners.get(entry.parent_uuid or "") == NOBODY:
            self.own(entry.uuid or key_of(entry), NOBODY)  # remembered: its answer may come in another turn
        elif self._open is not None:
            self._inline.take(entry, place, self._open)

    # ---- sealing

    def _finish(self, turn: Turn) -> None:
        self._inline.finish(turn)
        turn.is_repeat_suspect = bool(turn.times) and max(turn.times) <= self._past.high_water_ns
        for kind, value in self._around.values(self._marked[1]):
            if kind in {"custom-title", "ai-title", "summary"}:
                turn.titles[kind] = value
            elif kind == "tag":
                turn.tag = value
            elif kind == "pr-link":
                turn.pull_request = value
            elif not turn.permission_mode:
                turn.permission_mode = value


def _start_offset(turn: Turn) -> int:
    return turn.start.offset
