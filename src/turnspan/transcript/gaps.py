"""What is written between two conversation rows, collected into a `Gap` and read together with the second one.

Commands, expansions, feedback of hooks, retries, compactions and typed-ahead words belong to the turn of the row that
follows them. Titles, tags and the queue outlive a gap: see `context`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.responses import RecordedRequest
from turnspan.transcript.rows import (
    BASH,
    FEEDBACK,
    HOOKS,
    LOCAL,
    REPLIES,
    LinePlace,
    TranscriptRow,
    answers_queued,
    is_exit,
    is_meta,
    is_notification,
)
from turnspan.transcript.turns import Happening, add_surroundings, event_of, further_part, several

if TYPE_CHECKING:
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.memory import Memory, RowMemory
    from turnspan.transcript.rows import UserRow
    from turnspan.transcript.turns import Turn

_COMMAND_TOOLS: Final = frozenset({"Skill", "SlashCommand"})  # how the model runs a command


class Gap(msgspec.Struct):
    """What is written between two conversation rows."""

    happenings: list[Happening] = []
    local_commands: list[str] = []
    expansion: list[str] = []  # what a command or skill was expanded to
    expansion_blocks: list[tuple[str, ...]] = []
    boundary: str = ""  # "feedback": a hook blocked the stop; "stopped": the client recorded a stop
    stopped_ns: int | None = None
    input_ns: int | None = None  # the row that made the client send the next request
    command: TranscriptRow | None = (
        None  # a command, a `!` line, or the client's reply: it starts a turn if the model answers
    )
    command_rows: dict[str, None] = {}  # the command's row and those below it, in order

    def take(self, row: TranscriptRow, memory: Memory) -> None:
        """Add a row; `memory` is of the rows before it."""
        entry = row.entry
        if entry.type == "api-request":
            if entry.id:
                memory.open.requests[entry.id] = RecordedRequest(row.time_ns, entry.params)
        elif entry.type == "attachment":
            self._take_attachment(row)
        elif entry.type == "system":
            self._take_system(row)
        elif entry.type == "fork-context-ref":
            memory.is_fork = True
        elif row.said is not None:
            self._take_user(row, row.said, is_models_own=_is_models_own(memory, entry))

    def _take_attachment(self, row: TranscriptRow) -> None:
        """Add words typed, and tasks that ended, while the model worked (2.1.98 on); other attachments are skipped."""
        added = row.entry.attachment
        if added is None or added.type != "queued_command":
            return
        texts = e.plain_texts(e.blocks(e.ApiMessage(content=added.prompt)))
        text = "\n".join(texts)
        if is_exit(text):
            return
        is_task = added.command_mode == "task-notification" or is_notification(text)
        answers_call = e.tool_notified(text) if is_task else None
        kind = "task_notification" if is_task else "steering"
        self.happenings.append(event_of(kind, row, texts, answers_call=answers_call))

    def _take_system(self, row: TranscriptRow) -> None:
        """Add what the client records about itself."""
        entry = row.entry
        if entry.subtype == "compact_boundary":
            meta = entry.compact_metadata or e.CompactMetadata()
            facts = {"trigger": meta.trigger, "tokens_before": meta.pre_tokens, "tokens_after": meta.post_tokens}
            self.happenings.append(event_of("compaction", row, [], **facts))
        elif entry.subtype == "api_error":
            texts = [e.raw_text(entry.error)]
            event = event_of("retry", row, texts, attempt=entry.retry_attempt, retry_in_ms=entry.retry_in_ms)
            self.happenings.append(event)
        elif entry.subtype == "local_command":  # since 2.1.282; earlier clients write a user row
            command = e.command_of(e.system_text(entry))
            if command is not None:
                self.local_commands.append(command[0])
        elif entry.subtype == "stop_hook_summary":
            self.boundary = self.boundary or "stopped"
            self.stopped_ns = row.time_ns

    def _take_user(self, row: TranscriptRow, said: UserRow, *, is_models_own: bool) -> None:
        """Add a user row that is not part of the conversation: a command, hook feedback, an expansion, a summary.

        `is_models_own`: if it is a command, the model ran it, not the user.
        """
        entry = row.entry
        if entry.is_compact_summary or entry.is_visible_in_transcript_only:
            self.input_ns = row.time_ns  # the model continues from the summary: compacting is not its time
            return
        start = said.text.lstrip()
        if start.startswith(FEEDBACK):
            self.boundary = "feedback"
            self.input_ns = row.time_ns
        elif is_models_own or start.startswith(HOOKS):  # 1.0.128 writes what a hook adds as a row of its own
            self.input_ns = row.time_ns
        elif start.startswith(BASH) or (not is_meta(entry) and e.command_of(start) is not None):
            self._take_command(row, start)
        elif start.startswith(REPLIES) and not is_meta(entry):
            self._await_answer(row)  # a user can also have typed it
        elif start.startswith(LOCAL):
            if start.startswith("<local-command-std") and entry.turn_origin is None:
                self.command, self.command_rows = None, {}  # a local command that printed its own answer
            elif start.startswith("<bash-"):
                self._expand(row, said)
        elif entry.is_meta:
            self._expand(row, said)

    def own(self, entry: Entry, rows: RowMemory) -> None:
        """Record the turn of a row: its parent's, or that of the command, if the row is below it and it starts one."""
        if entry.uuid is None or entry.parent_uuid is None:
            return
        if entry.parent_uuid in self.command_rows:
            self.command_rows[entry.uuid] = None
        elif entry.uuid not in self.command_rows and (number := rows.owner.get(entry.parent_uuid)) is not None:
            rows.own(entry.uuid, number)

    def _await_answer(self, row: TranscriptRow) -> None:
        self.command = row
        self.command_rows = {row.entry.uuid: None} if row.entry.uuid else {}
        self.expansion, self.expansion_blocks = [], []
        self.input_ns = row.time_ns

    def _take_command(self, row: TranscriptRow, start: str) -> None:
        self._await_answer(row)
        command = e.command_of(start)
        self.local_commands.append(command[0] if command else "!" + start[len(BASH) :].partition("</")[0])

    def _expand(self, row: TranscriptRow, said: UserRow) -> None:
        self.expansion.append(said.text)
        self.expansion_blocks.append(several(said.texts))
        self.input_ns = row.time_ns or self.input_ns


NO_GAP: Final = Gap()  # the usual case, shared: nothing is ever added to it


def gap_of(between: list[TranscriptRow], memory: Memory) -> Gap:
    """Return what is written between two conversation rows; what is remembered of it can be undone."""
    gap, context = Gap(), memory.context
    memory.begin()
    uuids = {row.entry.uuid for row in between}
    for row in between:
        if context.take(row):
            if context.leaf is not None:
                context.claim(uuids)
                context.claim(dict(memory.rows.latest()))
        else:
            gap.take(row, memory)
        gap.own(row.entry, memory.rows)
    context.dequeue_commands(gap.local_commands)
    return gap


def _is_models_own(memory: Memory, entry: Entry) -> bool:
    """Whether the model ran a command: 2.0.36 writes a skill after its call as if the user had typed it."""
    turn = memory.open.turn
    if is_meta(entry) or turn is None or not turn.responses or turn.has_answer:
        return False
    if not memory.is_of_open_turn(entry):
        return False
    return any(call.name in _COMMAND_TOOLS and call.result is not None for call in turn.responses[-1].calls)


# ---- to the turn of the row after it


def settle(turn: Turn, gap: Gap, memory: Memory) -> None:
    """Add what was written before a row to the row's turn."""
    context, rows = memory.context, memory.rows
    if gap.happenings:
        # Words taken from the queue are mostly repeated by an attachment, before or after.
        said = _steering(turn)
        for happening in gap.happenings:
            if happening.kind != "steering" or happening.text not in said:
                turn.happenings.append(happening)
            if happening.key not in rows.owner:
                rows.own(happening.key, turn.number)  # in case the row is repeated: a compaction has no parent
    if gap.local_commands:
        turn.local_commands += tuple(gap.local_commands)
    if gap.expansion and turn.prompt is not None and not turn.responses:
        turn.prompt.expansion = "\n".join(filter(None, (turn.prompt.expansion, *gap.expansion)))
        turn.prompt.blocks += tuple(gap.expansion_blocks)
    if context.state.taken and not answers_queued(turn.version):
        _add_words(turn, context.words_taken(_steering(turn), rows.owner), rows)  # unless another row repeats them
        context.clear_taken()


def _add_words(turn: Turn, words: list[Happening], rows: RowMemory) -> None:
    """Add words taken from the queue to a turn, and remember that they are in one."""
    turn.happenings += words
    for happening in words:
        rows.own(happening.key, turn.number)


def add_joined_words(memory: Memory, row: TranscriptRow, prompt: str) -> None:
    """Add words without an answer to the turn before, which they joined, as a further part of it (up to 2.1.12)."""
    if memory.context.state.taken and memory.past.recent and answers_queued(row.entry.version):
        joined = memory.context.words_taken({prompt}, memory.rows.owner)
        if joined:
            _add_words(memory.part_of(memory.past.recent[-1], row), joined, memory.rows)


def joined_at_end(memory: Memory, between: list[TranscriptRow]) -> Turn | None:
    """Return a further part of the last turn with the words that joined it, if there are any (up to 2.1.12).

    `between` are the rows since that turn. Nothing is kept of them but that the words are in a turn.
    """
    ref, context = memory.past.recent[-1], memory.context
    last = context.entry_at(memory.past.last)
    if last is None or not answers_queued(last.version or ""):
        return None
    turn = further_part(ref, LinePlace(0, *memory.past.last))
    add_surroundings(turn, last)
    before = context.state
    for row in between:
        if row.entry.type == "queue-operation":
            context.take(row)
    _add_words(turn, context.words_taken((), memory.rows.owner), memory.rows)
    context.restore(before)
    if not turn.happenings:
        return None
    turn.times = [words.time_ns for words in turn.happenings if words.time_ns is not None]
    memory.commit()
    recent, owners = (*memory.past.recent[:-1], turn.ref), tuple(memory.rows.latest())
    memory.past = msgspec.structs.replace(memory.past, recent=recent, owners=owners)
    return turn


def _steering(turn: Turn) -> set[str]:
    return {happening.text for happening in turn.happenings if happening.kind == "steering"}
