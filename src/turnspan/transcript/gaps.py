"""What is written between two conversation rows, collected into a `Gap` and read together with the second one.

Commands, expansions, feedback of hooks, retries, compactions and typed-ahead words belong to the turn of the row that
follows them. Titles, tags and the queue outlive a gap: see `context`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.rows import BASH, FEEDBACK, HOOKS, LOCAL, REPLIES, Row, is_notification, key_of
from turnspan.transcript.turns import Happening, several

if TYPE_CHECKING:
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.memory import RowMemory
    from turnspan.transcript.rows import UserRow


class Gap(msgspec.Struct):
    """What is written between two conversation rows."""

    happenings: list[Happening] = []
    local_commands: list[str] = []
    expansion: list[str] = []  # what a command or skill was expanded to
    expansion_blocks: list[tuple[str, ...]] = []
    boundary: str = ""  # "feedback": a hook blocked the stop; "stopped": the client recorded a stop
    stopped_ns: int | None = None
    input_ns: int | None = None  # the row that made the client send the next request
    command: Row | None = None  # a command, a `!` line, or the client's reply: it starts a turn if the model answers
    command_rows: dict[str, None] = {}  # the command's row and those below it, in order

    def take_attachment(self, row: Row) -> None:
        """Add words typed, and tasks that ended, while the model worked (2.1.98 on); other attachments are skipped."""
        added = row.entry.attachment
        if added is None or added.type != "queued_command":
            return
        texts = e.plain_texts(e.blocks(e.Message(content=added.prompt)))
        text = "\n".join(texts)
        is_task = added.command_mode == "task-notification" or is_notification(text)
        facts = _known(answers_call=e.tool_notified(text)) if is_task else {}
        self._happened("task_notification" if is_task else "steering", row, texts, facts)

    def take_system(self, row: Row) -> None:
        """Add what the client records about itself."""
        entry = row.entry
        if entry.subtype == "compact_boundary":
            meta = entry.compact_metadata or e.CompactMetadata()
            facts = _known(trigger=meta.trigger, tokens_before=meta.pre_tokens, tokens_after=meta.post_tokens)
            self._happened("compaction", row, [], facts)
        elif entry.subtype == "api_error":
            facts = _known(attempt=entry.retry_attempt, retry_in_ms=entry.retry_in_ms)
            self._happened("retry", row, [e.raw_text(entry.error)], facts)
        elif entry.subtype == "local_command":  # since 2.1.282; earlier clients write a user row
            command = e.command_of(e.system_text(entry))
            if command is not None:
                self.local_commands.append(command[0])
        elif entry.subtype == "stop_hook_summary":
            self.boundary = self.boundary or "stopped"
            self.stopped_ns = row.time_ns

    def take_user(self, row: Row, said: UserRow, *, is_models_own: bool) -> None:
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
        elif start.startswith(BASH) or (not entry.is_meta and e.command_of(start) is not None):
            self._take_command(row, start)
        elif start.startswith(REPLIES) and not entry.is_meta:
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

    def _await_answer(self, row: Row) -> None:
        self.command = row
        self.command_rows = {row.entry.uuid: None} if row.entry.uuid else {}
        self.expansion, self.expansion_blocks = [], []
        self.input_ns = row.time_ns

    def _take_command(self, row: Row, start: str) -> None:
        self._await_answer(row)
        command = e.command_of(start)
        self.local_commands.append(command[0] if command else "!" + start[len(BASH) :].partition("</")[0])

    def _expand(self, row: Row, said: UserRow) -> None:
        self.expansion.append(said.text)
        self.expansion_blocks.append(several(said.texts))
        self.input_ns = row.time_ns or self.input_ns

    def _happened(self, kind: str, row: Row, texts: list[str], facts: dict[str, str | int | float]) -> None:
        happening = Happening(kind, key_of(row.entry), row.time_ns, "\n".join(texts), facts, several(texts))
        self.happenings.append(happening)


NO_GAP: Final = Gap()  # the usual case, shared: nothing is ever added to it


def _known(**facts: str | float | None) -> dict[str, str | int | float]:
    return {name: value for name, value in facts.items() if value is not None}
