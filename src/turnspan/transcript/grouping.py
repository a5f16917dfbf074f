"""Entries become turns: what starts a turn, what belongs to it, what ends it.

Rules:

- A turn starts at a line that asked the model to work: a prompt, a task notification, a plan carried over, or a command
  or `!` line that got a reply. A later start seals the turn before it.
- **What stands between two conversation rows is read together with the second one** (`Gap`). Titles, attachments,
  queue operations and system lines never end a turn, so a turn that was sealed early and one that was sealed late are
  the same.
- An event (Stop, SessionEnd, idleness) only says *when* a turn may leave, never *what* is in it. What comes after a
  sealed turn and belongs to it is a further **part** of the same turn, with new responses only.
- Responses are merged by message id, even when tool results stand between their lines. Order is position in the file;
  timestamps only give times.
- Memory is bounded: what must be remembered of the past is a `Carry`, small and without content.
- **What seals a turn is read again from its `Carry`**, with all that stands behind the turn, as by a later reading that
  has nothing else. So in any pieces the same file gives the same turns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.between import NO_GAP, Gap, Request, Surroundings
from turnspan.transcript.carry import Carry, TurnRef, known_as, words_digest
from turnspan.transcript.kinds import (
    answers_queued,
    copies_anew,
    is_conversation,
    is_interruption,
    is_placeholder,
    is_warmup,
    key_of,
    origin_of,
    response_key,
    results_of,
)
from turnspan.transcript.launches import agent_of
from turnspan.transcript.merging import add_line
from turnspan.transcript.turns import (
    Call,
    Happening,
    InlineAgent,
    Place,
    Prompt,
    Response,
    Result,
    Turn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.transcript.entries import Entry

_MAX_EARLY: Final = 48  # rows that wait for their prompt
_REMEMBERED_ROWS: Final = 48
_REMEMBERED_TURNS: Final = 4
_REMEMBERED_RESPONSES: Final = 8
_REMEMBERED_CALLS: Final = 32

_NOBODY: Final = 0  # in the place of a turn's number: rows that nobody asked for
_TOLD: Final = frozenset({"user", "assistant", "system", "attachment"})  # rows of which a turn may tell
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


_NONE_SEALED: Final[tuple[Sealed, ...]] = ()


class Grouper:
    """Groups entries into turns, one entry at a time. `recall` gives the entry at a place again."""

    def __init__(
        self,
        session_id: str,
        carry: Carry | None = None,
        recall: Callable[[int, int], Entry | None] = lambda _offset, _length: None,
        *,
        is_agent: bool = False,
    ) -> None:
        self._session_id = session_id
        self._is_agent = is_agent
        self._past = carry or Carry()
        self._open: Turn | None = None
        self._late: dict[int, Turn] = {}
        self._between: list[tuple[Entry, Place]] = []
        self._early: list[tuple[Entry, Place]] = []
        self._behind: list[tuple[Entry, Place]] = []  # whatever stands behind `_end`: a later reading begins there
        self._gap = NO_GAP
        self._end = Place(0, 0, 0)
        self._requests: dict[str, Request] = {}
        self._input_ns = self._past.input_ns
        self._responses: dict[str, tuple[Turn, Response]] = {}  # in what is open, by message id
        self._calls: dict[str, tuple[Turn, Call]] = {}  # likewise
        self._inline: dict[str, tuple[InlineAgent, Grouper]] = {}
        self._inline_rows: dict[str, str] = {}
        self._is_fork_context = False
        self._owners: dict[str, int] = dict(self._past.owners)
        self._rows: list[tuple[str, int]] = list(self._past.owners)
        self._around = Surroundings(self._past.context, self._past.queued, self._past.taken, recall)
        self._marked = (len(self._rows), self._past.context, self._past.queued, self._past.taken)

    # ---- what a caller sees

    @property
    def unsealed(self) -> list[Turn]:
        """What is open: at most one turn, and later parts of earlier ones."""
        turns = [self._open] if self._open is not None else []
        return sorted([*turns, *self._late.values()], key=_start_offset) if self._late else turns

    @property
    def is_answered(self) -> bool:
        """Whether what is open has come to an end, so that an event may seal it."""
        return bool(self.unsealed) and all(turn.has_answer for turn in self.unsealed)

    def feed(self, entry: Entry, place: Place) -> Sequence[Sealed]:
        """Take one entry; what it seals."""
        if is_placeholder(entry):
            return _NONE_SEALED
        entry.uuid, entry.parent_uuid = known_as(entry.uuid), known_as(entry.parent_uuid)
        self._behind.append((entry, place))
        if self._is_known(entry):
            return _NONE_SEALED
        if not is_conversation(entry, is_agent=self._is_agent):
            (self._early or self._between).append((entry, place))
            return _NONE_SEALED
        if entry.request_id is None and self._is_retold(entry):
            self._own(key_of(entry), _NOBODY)
            return _NONE_SEALED
        if entry.parent_uuid not in self._owners and self._is_early(entry) and len(self._early) < _MAX_EARLY:
            self._early.append((entry, place))
            return _NONE_SEALED
        if not self._early:
            sealed = self._take(entry, place)
            if sealed is not None:
                return self._again(sealed)
            self._behind.clear()
            return _NONE_SEALED
        if self._is_late_prompt(entry):
            rest = [row for row in self._early if not is_conversation(row[0], is_agent=self._is_agent)]
            answers = [row for row in self._early if is_conversation(row[0], is_agent=self._is_agent)]
            return self._release([*rest, (entry, place), *answers])
        return self._release([*self._early, (entry, place)])

    def flush(self) -> list[Sealed]:
        """Take rows that were held back for a prompt that did not come."""
        sealed: list[Sealed] = []
        while self._early:
            sealed += self._release(self._early)
        return sealed

    def _release(self, rows: list[tuple[Entry, Place]]) -> list[Sealed]:
        """Take rows that were held back, each with what stands before it: a later reading may begin at any of them."""
        self._early = []
        for entry, place in rows:
            if self._is_known(entry):
                continue
            if not is_conversation(entry, is_agent=self._is_agent):
                self._between.append((entry, place))
            elif (sealed := self._take(entry, place)) is not None:
                return self._again(sealed)
        self._behind = [row for row in self._behind if row[1].offset >= self._end.end]
        return []

    def _again(self, sealed: Sealed) -> list[Sealed]:
        """What was sealed, and what is sealed when the rows behind it are read again."""
        rows = [row for row in self._behind if row[1].offset >= sealed.end.end]
        self._between, self._early, self._behind = [], [], []
        found = [sealed]
        for entry, place in rows:
            found += self.feed(entry, place)
        return found

    def _is_known(self, entry: Entry) -> bool:
        """Whether a row stands there twice: its uuid tells, or what it says."""
        if entry.uuid is not None:
            return entry.uuid in self._owners
        return entry.type in _TOLD and key_of(entry) in self._owners

    def _is_retold(self, entry: Entry) -> bool:
        """Whether an old client repeats its answers before the next prompt of a stream, and no prompt (1.0.44)."""
        if self._is_agent or entry.is_sidechain or not copies_anew(entry.version or ""):
            return False
        if entry.type == "assistant" and entry.parent_uuid is None and not entry.is_api_error_message:
            return self._open is not None or bool(self._past.recent)  # it hangs on nothing, and is not the first
        is_below = self._owners.get(entry.parent_uuid or "") == _NOBODY
        return is_below and (entry.type == "assistant" or bool(results_of(entry)))

    def _is_late_prompt(self, entry: Entry) -> bool:
        """Whether a row is the prompt of the one response that was written before it, and of its results.

        Of one only: a second one could seal the turn, and reading would go on behind the prompt, past that response.
        """
        if entry.type != "user" or entry.is_sidechain or entry.message is None or results_of(entry):
            return False
        if is_interruption(e.plain_text(e.blocks(entry.message))):
            return False
        answers = [other for other, _ in self._early if other.type == "assistant"]
        if len(set(map(response_key, answers))) > 1:
            return False
        return entry.uuid == answers[0].parent_uuid or (e.time_ns(entry) or 0) <= (e.time_ns(answers[0]) or 0)

    @property
    def early_ns(self) -> int | None:
        """When the last row was written that is held back for its prompt; 0 if none of them says."""
        return max([e.time_ns(entry) or 0 for entry, _ in self._early], default=None)

    def _is_early(self, entry: Entry) -> bool:
        """Whether an answer stands before its own prompt (2.1.45, 2.1.128), or a result behind such an answer."""
        parent = entry.parent_uuid
        if self._is_agent or parent is None or parent in self._owners or entry.is_sidechain:
            return False
        if entry.type == "user":
            return bool(results_of(entry)) and any(other.uuid == parent for other, _ in self._early)
        if entry.type != "assistant" or any(not turn.has_answer for turn in self.unsealed):
            return False  # something runs: it belongs there
        return all(other.uuid != parent for other, _ in (*self._between, *self._early) if other.type != "assistant")

    def _take(self, entry: Entry, place: Place) -> Sealed | None:
        """Take a conversation row; or what has to be sealed before it, and nothing of the row is taken."""
        sealed, self._gap = None, NO_GAP
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
        if self._between:
            self._between = []
        if gap.requests:
            self._requests.update(gap.requests)
        if gap.input_ns is not None and self._input_ns is None:
            self._input_ns = gap.input_ns
        if place.offset >= self._end.offset:  # a row that was held back may come after a later one
            self._end = place
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
        self._owners = dict(self._rows)
        self._around.go_back(context, queued, taken)
        self._marked = (len(self._rows), context, queued, taken)
        self._open, self._late, self._inline, self._inline_rows = None, {}, {}, {}
        self._requests, self._responses, self._calls = {}, {}, {}
        return Sealed(turns, self._end, self._past)

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
            elif entry.uuid not in gap.tentative_rows and entry.parent_uuid in self._owners:
                self._own(entry.uuid, self._owners[entry.parent_uuid])

    def _claim_before(self) -> None:
        if self._around.is_unclaimed:
            before = [uuid for uuid, _ in self._rows[-_REMEMBERED_ROWS:]]
            self._around.claim(*before, *(other.uuid for other, _ in self._between))

    def _own(self, uuid: str, number: int) -> None:
        """Remember whose row this is."""
        self._owners[uuid] = number
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
        number = self._owners.get(entry.parent_uuid or "")
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
            self._own(row, turn.number)
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
        number = self._owners.get(entry.parent_uuid or "")
        return self._open is not None and (
            number is None or number == self._open.number or all(ref.number != number for ref in self._past.recent)
        )

    def _ref(self, entry: Entry) -> TurnRef:
        """The earlier turn that a late row belongs to: its parent's, else the last one."""
        number = self._owners.get(entry.parent_uuid or "")
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
        self._own(entry.uuid or key_of(entry), turn.number)
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
                if happening.key not in self._owners:
                    self._own(happening.key, turn.number)  # should it stand there twice: a compaction has no parent
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
                if text and text not in said and key not in self._owners:
                    turn.happenings.append(Happening("steering", key, moment, text))
                    self._own(key, turn.number)
            self._around.taken = ()

    # ---- agents inside the file

    def _take_sidechain(self, entry: Entry, place: Place) -> None:
        if is_warmup(entry) or self._owners.get(entry.parent_uuid or "") == _NOBODY:
            self._own(entry.uuid or key_of(entry), _NOBODY)  # remembered: its answer may come in another turn
            return
        if self._open is None:
            return
        root = self._inline_rows.get(entry.parent_uuid or "")
        if root is None or root not in self._inline:
            text = e.plain_text(e.blocks(entry.message)) if entry.message is not None else ""
            root = entry.uuid or key_of(entry)
            agent = InlineAgent(root, text)
            self._inline[root] = (agent, Grouper(self._session_id, is_agent=True))
            self._open.agents.append(agent)
        if entry.uuid is not None:
            self._inline_rows[entry.uuid] = root
        agent, grouper = self._inline[root]
        for sealed in grouper.feed(entry, place):
            agent.turns += sealed.turns
        self._open.end = place

    # ---- sealing

    def _finish(self, turn: Turn) -> None:
        for agent, grouper in self._inline.values():
            sealed = grouper.seal() if agent in turn.agents else None
            if sealed is not None:
                agent.turns += sealed.turns
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
