"""What holds around turns: titles, tags, the permission mode, and words in the client's queue.

Rules:

- All of it is kept as places in the file, and read again when needed: what is remembered between two events holds no
  content.
- A queue operation rarely says which words it concerns, and the queue is not first in, first out: words are taken
  before notices of tasks, which are not kept here. `remove` takes the words that it names, else the first ones.
  `dequeue` takes the command after it, or the words that the next prompt repeats; else, if that comes, the first ones.
- A summary names the conversation it was made of. Clients up to 2.0.x write summaries of other sessions into whichever
  file is open, so a summary counts only once a row of this file has the uuid it names, or has that uuid as its parent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import Words, known_as, words_digest
from turnspan.transcript.rows import is_exit, is_task_notice
from turnspan.transcript.turns import Happening, several

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable

    from turnspan.transcript.rows import TranscriptRow
    from turnspan.transcript.turns import Turn

_REMEMBERED_WORDS: Final = 16
_CACHED_ENTRIES: Final = 8
_FIELDS: Final = {
    "custom-title": "custom_title", "ai-title": "ai_title", "summary": "summary", "tag": "tag", "pr-link": "pr_url",
    "permission-mode": "permission_mode", "agent-setting": "agent_setting",
}  # fmt: skip
_TITLES: Final = frozenset({"custom-title", "ai-title", "summary"})
_UNCLAIMED: Final = "summary-unclaimed"  # the last summary that may belong to another session


class ContextState(msgspec.Struct, frozen=True):
    """The context at one moment, as places in the file."""

    lines: dict[str, Words] = {}  # row type → the last line of that type
    queued: tuple[Words, ...] = ()  # typed while the model worked, not yet taken from the queue
    taken: tuple[Words, ...] = ()  # taken from the queue, and not yet repeated by another row


class SessionContext:
    """The context of a session. `recall` returns the entry at a place."""

    def __init__(self, state: ContextState, recall: Callable[[int, int], e.Entry | None]) -> None:
        self.state = state
        self._recall = recall
        self._cached: dict[Words, e.Entry] = {}  # entries already decoded, so that they need not be recalled
        self.leaf = self._unclaimed_leaf()  # the row that an unclaimed summary names, one that may be another session's
        self.dequeued = 0  # words taken from the queue since the last row of the conversation

    def take(self, row: TranscriptRow) -> bool:
        """Take a row that is part of the context; return False if it is not."""
        entry = row.entry
        if entry.type == "queue-operation":
            self._take_queue_operation(row)
        elif entry.type == "summary" and entry.leaf_uuid:
            self._set_line(_UNCLAIMED, self._remember(row))
            self.leaf = known_as(entry.leaf_uuid)
        elif entry.type in _FIELDS:
            self._set_line(entry.type, self._remember(row))
        else:
            return False
        return True

    def claim(self, uuids: Container[str | None]) -> None:
        """Accept the unclaimed summary if it names one of these rows of this file, or their parents."""
        if self.leaf in uuids:
            lines = {**self.state.lines, "summary": self.state.lines[_UNCLAIMED]}
            del lines[_UNCLAIMED]
            self.state = msgspec.structs.replace(self.state, lines=lines)
            self.leaf = None

    def clear_taken(self) -> None:
        """Forget the words taken from the queue: a row has repeated them, or they belong to a turn."""
        if self.state.taken:
            self.state = msgspec.structs.replace(self.state, taken=())

    def dequeue_commands(self, names: Iterable[str]) -> None:
        """Take these commands from the queue, if the client took something from it: they are no words for a turn."""
        for name in names:
            self._dequeue(next((at for at in self.state.queued if self._queued_text(at).split()[:1] == [name]), None))

    def dequeue(self, text: str) -> None:
        """Take from the queue what a prompt repeats, else its first words, if the client took something from it."""
        if self.dequeued and self.state.queued and not is_task_notice(text):
            same = (at for at in self.state.queued if self._queued_text(at) == text.strip())
            self._dequeue(next(same, self.state.queued[0]))

    def _dequeue(self, taken: Words | None) -> None:
        if self.dequeued and taken is not None:
            self.dequeued -= 1
            queued = tuple(at for at in self.state.queued if at != taken)
            self.state = msgspec.structs.replace(self.state, queued=queued)

    def answer_queued(self) -> list[str]:
        """Take the words that have an answer but no row: those taken last, else the first of the queue."""
        queued, taken = self.state.queued, self.state.taken
        words = taken[-1:] or queued[:1]
        self.state = msgspec.structs.replace(self.state, taken=(), queued=queued if taken else queued[1:])
        self.dequeued = 0
        return self._queued_texts(words[0])[0] if words else []

    def restore(self, state: ContextState) -> None:
        """Return to the context of an earlier moment; if many entries are cached, drop those that it does not need."""
        if len(self._cached) > _CACHED_ENTRIES:
            needed = {*state.lines.values(), *state.queued, *state.taken}
            self._cached = {at: entry for at, entry in self._cached.items() if at in needed}
        self.dequeued = 0
        if state is not self.state:
            self.state = state
            self.leaf = self._unclaimed_leaf()

    def words_taken(self, said: Container[str], known: Container[str]) -> list[Happening]:
        """Return words taken from the queue as events, except those `said` in other rows, or whose key is `known`.

        A queue operation has no id. If one is repeated, with the same time and words, it is the same event.
        """
        found: dict[str, Happening] = {}
        for at in self.state.taken:
            texts, time_ns = self._queued_texts(at)
            text = "\n".join(texts)
            key = f"queue:{time_ns}:{words_digest(text)}"
            words = Happening("steering", key, time_ns, text, blocks=several(texts))
            if text and text not in said and words.key not in known and not is_exit(text):
                found.setdefault(words.key, words)
        return list(found.values())

    def _queued_texts(self, at: Words) -> tuple[list[str], int | None]:
        """Return the texts of a queue operation's line and its time; empty for notifications, which no user typed."""
        entry = self.entry_at(at)
        texts = e.system_texts(entry) if entry is not None else []
        return ([], None) if entry is None or is_task_notice("\n".join(texts)) else (texts, e.time_ns(entry))

    def _queued_text(self, at: Words) -> str:
        return "\n".join(self._queued_texts(at)[0]).strip()

    def describe(self, turn: Turn) -> None:
        """Add titles, tags and the like to a turn that ends."""
        for kind, at in self.state.lines.items():
            entry = self.entry_at(at) if kind in _FIELDS else None
            if entry is None:
                continue
            self._cached[at] = entry
            value = str(getattr(entry, _FIELDS[kind]) or "")
            if kind in _TITLES:
                turn.titles[kind] = value
            elif kind == "tag":
                turn.tag = value
            elif kind == "pr-link":
                turn.pull_request = value
            elif kind == "agent-setting":
                turn.agent = value
            elif not turn.permission_mode:
                turn.permission_mode = value

    def _take_queue_operation(self, row: TranscriptRow) -> None:
        queued, taken = self.state.queued, self.state.taken
        text = e.system_text(row.entry)
        if is_task_notice(text):
            return
        if row.entry.operation == "enqueue":
            if text:
                queued = (*queued, self._remember(row))[-_REMEMBERED_WORDS:]
        elif row.entry.operation == "dequeue":
            self.dequeued += 1
        elif row.entry.operation == "popAll":
            queued = ()  # the words are back in the editor: they joined no turn
        elif row.entry.operation == "remove":
            named = next((at for at in queued if text and self._queued_text(at) == text.strip()), None)
            gone = queued[:1] if not text else (named,)
            words = (self._remember(row),) if text else queued[:1]
            queued = tuple(at for at in queued if at not in gone)
            taken = (*taken, *words)[-_REMEMBERED_WORDS:]
        self.state = ContextState(self.state.lines, queued, taken)

    def _set_line(self, kind: str, at: Words) -> None:
        self.state = msgspec.structs.replace(self.state, lines={**self.state.lines, kind: at})

    def _remember(self, row: TranscriptRow) -> Words:
        at = (row.place.offset, row.place.end - row.place.offset)
        self._cached[at] = row.entry
        return at

    def entry_at(self, at: Words) -> e.Entry | None:
        """Return the entry at a place; None if there is none."""
        return self._cached.get(at) or (self._recall(*at) if at[1] else None)

    def _unclaimed_leaf(self) -> str | None:
        at = self.state.lines.get(_UNCLAIMED)
        entry = self.entry_at(at) if at is not None else None
        return known_as(entry.leaf_uuid) if entry is not None else None
