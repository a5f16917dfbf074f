"""Rows: an entry, its place in the file, and what it is: a message, a result, an interruption, a notice, a command.

A row that seals a turn is taken two or three times, and so are the rows after one that waits: what each needs to know
about itself is found out once.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import known_as, version_of, words_digest

if TYPE_CHECKING:
    from turnspan.transcript.entries import Entry

UUIDS_KEPT_FROM: Final = (1, 0, 86)
QUEUED_OWN_ANSWER_UNTIL: Final = (2, 1, 12)  # words typed while a turn ran got an answer of their own
FEEDBACK: Final = "Stop hook feedback:"
BASH: Final = "<bash-input>"
LOCAL: Final = (
    "<local-command-stdout>", "<local-command-stderr>", "<local-command-caveat>", "Caveat: The messages below were",
    "<bash-stdout>", "<bash-stderr>",
)  # fmt: skip
WARMUP: Final = "Warmup"
SYNTHETIC: Final = "<synthetic>"  # the model of messages that the client wrote itself
HOOKS: Final = ("<session-start-hook>", "<user-prompt-submit-hook>", "<pre-tool-use-hook>", "<post-tool-use-hook>")
REPLIES: Final = (
    "Unknown slash command: ", "Unknown skill: ", "This slash command can only be invoked by Claude",
)  # the client's own, to a command that cannot run  # fmt: skip
QUIET: Final = (*LOCAL, *HOOKS, *REPLIES, FEEDBACK, BASH)
_INTERRUPTED: Final = "[Request interrupted by user"
SENDS_ON: Final = frozenset({"coordinator", "task-notification"})  # a message, or the end of the agent's own command
_NOTIFICATIONS: Final = ("<task-notification>", "<agent-notification>")
_TASK_NOTICE: Final = '{"task_id"'  # in the queue (2.1.47)
_SCHEDULED: Final = "scheduled"  # by CronCreate, ScheduleWakeup or `/loop`: a prompt that was not typed
_TEAMMATE: Final = "<teammate-message"


class LinePlace(msgspec.Struct, frozen=True, array_like=True):
    """Where a line is in the file."""

    line: int
    offset: int
    end: int


class UserRow(msgspec.Struct, frozen=True):
    """The content of a user row; without results and interruption it is a prompt."""

    blocks: list[e.ContentBlock]
    results: list[e.ContentBlock]
    texts: list[str]
    text: str
    is_interruption: bool


class TranscriptRow(msgspec.Struct, frozen=True):
    """An entry, its place in the file, and what is found out about it once, though it can be taken several times."""

    entry: e.Entry
    place: LinePlace
    time_ns: int | None
    is_conversation: bool = False  # a message of the user, the model or a tool; see `rows`
    response: str = ""  # of the model: what identifies the response that it is a line of
    said: UserRow | None = None  # of the user; None in a sidechain that is not this file's own


def row_of(entry: Entry, place: LinePlace, *, is_agent: bool) -> TranscriptRow | None:
    """Return an entry as a row; None if the client wrote it in place of an answer ("No response requested.")."""
    if (uuid := known_as(entry.uuid)) is not entry.uuid:
        entry.uuid = uuid
    if (parent := known_as(entry.parent_uuid)) is not entry.parent_uuid:
        entry.parent_uuid = parent
    if entry.message is None and entry.type == "user":
        entry.message = e.own_message(entry)
    kind, message, time_ns = entry.type, entry.message, e.time_ns(entry)
    if message is None:
        return TranscriptRow(entry, place, time_ns)
    if kind == "assistant":
        if message.model == SYNTHETIC and not entry.is_api_error_message:
            return None
        if entry.is_meta and message.usage is None:
            return None  # no request was made
        return TranscriptRow(entry, place, time_ns, True, response_key(entry))
    if kind != "user":
        return TranscriptRow(entry, place, time_ns)
    if entry.is_sidechain and not is_agent:
        return TranscriptRow(entry, place, time_ns, True)
    said = _user_row(message)
    is_conversation = bool(said.results) or _is_message(entry, said, is_agent=is_agent)
    return TranscriptRow(entry, place, time_ns, is_conversation, "", said)


def message_in(row: TranscriptRow) -> e.ApiMessage:
    """Return the message of a row that is known to have one."""
    assert row.entry.message is not None
    return row.entry.message


def said_in(row: TranscriptRow) -> UserRow:
    """Return the content of a row that is known to be the user's."""
    assert row.said is not None
    return row.said


def _user_row(message: e.ApiMessage) -> UserRow:
    blocks = e.blocks(message)
    results = [block for block in blocks if block.type == "tool_result"]
    if len(results) == len(blocks):
        return UserRow(blocks, results, [], "", is_interruption=False)
    texts = e.plain_texts(blocks)
    text = "\n".join(texts)
    return UserRow(blocks, results, texts, text, is_interruption(text))


def _is_message(entry: Entry, said: UserRow, *, is_agent: bool) -> bool:
    """Whether a user row without results is a message of the user; all others are read with the next such row."""
    if is_agent and entry.origin is not None and entry.origin.kind in SENDS_ON:
        return True  # marked as meta since 2.1.207, but it starts what the agent does next
    if is_meta(entry) or entry.is_compact_summary or entry.is_visible_in_transcript_only:
        return False
    text = said.text.lstrip()
    return not text.startswith(QUIET) and e.command_of(text) is None


def key_of(entry: Entry) -> str:
    """Return what identifies a row: its uuid, else a digest of its content; never its position."""
    return entry.uuid or "row:" + words_digest(msgspec.json.encode(entry).decode("utf-8", "replace"))


def response_key(entry: Entry) -> str:
    """Return what identifies the response that a row is a line of."""
    message = entry.message or e.ApiMessage()
    if message.model == SYNTHETIC:
        return key_of(entry)  # every copy invents new ids for these
    return known_as(message.id) or known_as(entry.request_id) or key_of(entry)


def is_unnamed(entry: Entry) -> bool:
    """Whether a row is of the model and has no id: nothing but its position says which response it is a line of."""
    message = entry.message
    if entry.type != "assistant" or message is None or message.model == SYNTHETIC:
        return False
    return message.id is None and entry.request_id is None


def is_synthetic(entry: Entry) -> bool:
    """Whether the client wrote the message itself, in place of a model."""
    return entry.message is not None and entry.message.model == SYNTHETIC


def is_interruption(text: str) -> bool:
    """Whether the client says that the user interrupted the model."""
    return text.lstrip().startswith(_INTERRUPTED)


def is_meta(entry: Entry) -> bool:
    """Whether the client added a row that asks for nothing. A scheduled prompt is marked as meta, too (2.1.325 on)."""
    return bool(entry.is_meta) and not (entry.turn_origin == _SCHEDULED and entry.prompt_id)


def is_warmup(entry: Entry) -> bool:
    """Whether a row begins an agent that the client starts by itself, to warm up (2.0.x)."""
    if entry.type != "user" or entry.message is None or entry.parent_uuid is not None:
        return False
    return e.plain_text(e.blocks(entry.message)).strip() == WARMUP


def is_notification(text: str) -> bool:
    """Whether the client notifies the model of a task; the user did not type this."""
    return text.lstrip().startswith(_NOTIFICATIONS)


def is_task_notice(text: str) -> bool:
    """Whether words in the queue are the client's notice of a task; the user did not type this."""
    return is_notification(text) or text.lstrip().startswith(_TASK_NOTICE)


def is_exit(text: str) -> bool:
    """Whether words in the queue leave the client: they tell the model nothing."""
    return text.strip() in {"/exit", "/quit"}


def origin_of(entry: Entry, text: str) -> str:
    """Return who asked for a turn: a user, a task notification, a teammate, a schedule, an SDK, a plan carried over."""
    kind = (entry.origin.kind if entry.origin is not None else None) or entry.turn_origin
    if kind:
        plain = kind.replace("-", "_")
        return plain if plain.isidentifier() and len(plain) <= 40 else "other"
    if is_notification(text):
        return "task_notification"
    if text.lstrip().startswith(_TEAMMATE):
        return "teammate"
    return "plan" if entry.plan_content is not None else "human"


@lru_cache(maxsize=64)  # asked with every row
def copies_anew(version: str | None) -> bool:
    """Whether this client copies rows with new uuids and times; response ids are kept, request ids are dropped."""
    numbers = version_of(version)
    return bool(numbers) and numbers < UUIDS_KEPT_FROM


@lru_cache(maxsize=64)
def answers_queued(version: str | None) -> bool:
    """Whether this client answers words typed while a turn ran in a turn of their own."""
    numbers = version_of(version)
    return bool(numbers) and numbers <= QUEUED_OWN_ANSWER_UNTIL


def is_own_row(entry: Entry, session_id: str) -> bool:
    """Whether a row was written by a session, not copied into its file: copies can name their origin."""
    return entry.session_id == session_id and entry.forked_from is None
