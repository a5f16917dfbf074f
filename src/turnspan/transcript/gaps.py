"""What stands between two conversation rows, and what of it outlives the gap.

Rules:

- A `Gap` is read together with the row behind it: commands, expansions, retries, compactions, recorded requests.
- `Surroundings` hold for the turns that follow: titles, tags, the permission mode, words in the client's queue. They
  are kept as places in the file, so that what is remembered between two events holds no content.
- A summary names the conversation it was made of. Clients up to 2.0.x write those of other sessions into whichever file
  is open, so one counts from where a row of this file is the one it names, or follows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.classify import BASH, FEEDBACK, HOOKS, LOCAL, is_notification, key_of
from turnspan.transcript.resume import known_as
from turnspan.transcript.turns import Happening, Place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnspan.transcript.resume import Words

Request = tuple[int | None, e.RequestParams | None]  # when it was sent, and with which parameters

_REMEMBERED_WORDS: Final = 16
_CONTEXT: Final = {
    "custom-title": "custom_title", "ai-title": "ai_title", "summary": "summary", "tag": "tag", "pr-link": "pr_url",
    "permission-mode": "permission_mode",
}  # fmt: skip
_UNCLAIMED: Final = "summary-unclaimed"  # the last summary of which no row has been seen


class Gap(msgspec.Struct):
    """What stands between two conversation rows."""

    happenings: list[Happening] = []
    requests: dict[str, Request] = {}
    commands: list[str] = []
    expansion: list[str] = []
    boundary: str = ""  # "feedback": a hook sent the model on; "stopped": the client recorded a stop
    stopped_ns: int | None = None
    input_ns: int | None = None
    tentative: tuple[e.Entry, Place] | None = None  # a command: a turn, if it gets a reply
    tentative_rows: dict[str, None] = {}  # in order

    def take_request(self, entry: e.Entry) -> None:
        """A request that the client recorded."""
        if entry.id:
            self.requests[entry.id] = (e.time_ns(entry), entry.params)

    def take_attachment(self, entry: e.Entry) -> None:
        """What the client slipped in: words typed meanwhile, and tasks that ended meanwhile (2.1.98 on), are told."""
        added = entry.attachment
        if added is None or added.type != "queued_command":
            return
        text = e.plain_text(e.blocks(e.Message(content=added.prompt)))
        is_task = added.command_mode == "task-notification" or is_notification(text)
        facts = _known(answers_call=e.tool_notified(text)) if is_task else {}
        kind = "task_notification" if is_task else "steering"
        self.happenings.append(Happening(kind, key_of(entry), e.time_ns(entry), text, facts))

    def take_system(self, entry: e.Entry) -> None:
        """What the client notes about its own doing."""
        if entry.subtype == "compact_boundary":
            meta = entry.compact_metadata or e.CompactMetadata()
            facts = _known(trigger=meta.trigger, tokens_before=meta.pre_tokens, tokens_after=meta.post_tokens)
            self.happenings.append(Happening("compaction", key_of(entry), e.time_ns(entry), "", facts))
        elif entry.subtype == "api_error":
            facts = _known(attempt=entry.retry_attempt, retry_in_ms=entry.retry_in_ms)
            text = e.raw_text(entry.error)
            self.happenings.append(Happening("retry", key_of(entry), e.time_ns(entry), text, facts))
        elif entry.subtype == "local_command":  # 2.1.282 writes here what earlier clients wrote as a user's line
            command = e.command_of(e.system_text(entry))
            if command is not None:
                self.commands.append(command[0])
        elif entry.subtype == "stop_hook_summary":
            self.boundary = self.boundary or "stopped"
            self.stopped_ns = e.time_ns(entry)

    def take_quiet_user(self, entry: e.Entry, message: e.Message, place: Place, *, is_models_own: bool) -> None:
        """A user line that is not the conversation: a command, feedback of a hook, an expansion, a summary.

        `is_models_own`: if it is a command, the model ran it.
        """
        if entry.is_compact_summary or entry.is_visible_in_transcript_only:
            self.input_ns = e.time_ns(entry)  # the model goes on from the summary: compacting is not its time
            return
        text = e.plain_text(e.blocks(message))
        start = text.lstrip()
        if start.startswith(FEEDBACK):
            self.boundary = "feedback"
            self.input_ns = e.time_ns(entry)
        elif is_models_own or start.startswith(HOOKS):  # what a hook adds is a row of its own in 1.0.128
            self.input_ns = e.time_ns(entry)
        elif start.startswith(BASH) or (not entry.is_meta and e.command_of(start) is not None):
            self.tentative = (entry, place)
            self.tentative_rows = {entry.uuid: None} if entry.uuid else {}
            self.expansion = []
            self.input_ns = e.time_ns(entry)
            command = e.command_of(start)
            self.commands.append(command[0] if command else "!" + start[len(BASH) :].partition("</")[0])
        elif start.startswith(LOCAL):
            if start.startswith("<local-command-std") and entry.turn_origin is None:
                self.tentative, self.tentative_rows = None, {}  # a local command that has printed its own answer
            elif start.startswith("<bash-"):
                self._expand(entry, text)
        elif entry.is_meta:
            self._expand(entry, text)

    def _expand(self, entry: e.Entry, text: str) -> None:
        self.expansion.append(text)
        self.input_ns = e.time_ns(entry) or self.input_ns


NO_GAP: Final = Gap()  # mostly nothing stands between two rows; nothing is ever put into this one


def _known(**facts: str | float | None) -> dict[str, str | int | float]:
    return {name: value for name, value in facts.items() if value is not None}


class Surroundings:
    """What holds around turns. `recall` gives the entry at a place again."""

    def __init__(
        self,
        context: dict[str, Words],
        queued: tuple[Words, ...],
        taken: tuple[Words, ...],
        recall: Callable[[int, int], e.Entry | None],
    ) -> None:
        self.context = context  # kind → the line that says it
        self.queued = queued  # typed and not yet taken
        self.taken = taken  # taken from the queue, and no line has repeated them yet
        self._recall = recall
        self._said: dict[Words, e.Entry] = {}  # lines already at hand, so that they need not be recalled
        self._leaf = self._unclaimed_leaf()

    def take(self, entry: e.Entry, place: Place) -> bool:
        """Take a row that says something of the kind; False if it does not."""
        if entry.type == "queue-operation":
            self._take_queue_operation(entry, place)
        elif entry.type == "summary" and entry.leaf_uuid:
            self.context = {**self.context, _UNCLAIMED: self._remember(entry, place)}
            self._leaf = known_as(entry.leaf_uuid)
        elif entry.type in _CONTEXT:
            self.context = {**self.context, entry.type: self._remember(entry, place)}
        else:
            return False
        return True

    @property
    def is_unclaimed(self) -> bool:
        """Whether there is a summary that may be another session's."""
        return self._leaf is not None

    def claim(self, *rows: str | None) -> None:
        """Rows of this file, or what they follow: a summary that was made of one of them is this session's."""
        if self._leaf is not None and self._leaf in rows:
            self.context = {**self.context, "summary": self.context[_UNCLAIMED]}
            del self.context[_UNCLAIMED]
            self._leaf = None

    def _take_queue_operation(self, entry: e.Entry, place: Place) -> None:
        text = e.system_text(entry)
        if entry.operation == "enqueue":
            if text:
                self.queued = (*self.queued, self._remember(entry, place))[-_REMEMBERED_WORDS:]
        elif entry.operation == "dequeue":
            self.queued = self.queued[1:]
        elif entry.operation in {"remove", "popAll"}:
            words = (self._remember(entry, place),) if text else self.queued[:1]
            self.queued = self.queued[1:]
            self.taken = (*self.taken, *words)[-_REMEMBERED_WORDS:]

    def _remember(self, entry: e.Entry, place: Place) -> Words:
        at = (place.offset, place.end - place.offset)
        self._said[at] = entry
        return at

    def words(self, at: Words) -> tuple[str, int | None]:
        """What a queue operation's line says, and when; notifications are not a person's words."""
        entry = self._said.get(at) or self._recall(*at)
        text = e.system_text(entry) if entry is not None else ""
        return ("", None) if entry is None or is_notification(text) else (text, e.time_ns(entry))

    def values(self, context: dict[str, Words]) -> Iterator[tuple[str, str]]:
        """What titles, tags and the like said."""
        for kind, at in context.items():
            entry = (self._said.get(at) or self._recall(*at)) if kind in _CONTEXT else None
            if entry is not None:
                self._said[at] = entry
                yield kind, str(getattr(entry, _CONTEXT[kind]) or "")

    def go_back(self, context: dict[str, Words], queued: tuple[Words, ...], taken: tuple[Words, ...]) -> None:
        """Let what held then be what holds, and let go of lines that nobody needs any more."""
        self.context, self.queued, self.taken = context, queued, taken
        if self._said:
            needed = {*context.values(), *queued, *taken}
            self._said = {at: entry for at, entry in self._said.items() if at in needed}
        self._leaf = self._unclaimed_leaf()

    def _unclaimed_leaf(self) -> str | None:
        at = self.context.get(_UNCLAIMED)
        entry = (self._said.get(at) or self._recall(*at)) if at is not None else None
        return known_as(entry.leaf_uuid) if entry is not None else None
