"""A turn: one prompt and everything that answered it, as plain values, and what the row that starts one says about it.

`machine` fills them from rows; `turnspan.trace.build` makes traces from them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import TurnRef, known_as, words_digest
from turnspan.transcript.rows import REPLIES, LinePlace, key_of, origin_of, said_in

if TYPE_CHECKING:
    from turnspan.transcript.carry import Carry
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.rows import TranscriptRow, UserRow

AGENT_TOOLS: Final = frozenset({"Agent", "Task"})  # `Task` up to 2.1.47


class Result(msgspec.Struct, frozen=True):
    """The result of a tool call."""

    text: str  # its blocks, joined with line breaks
    is_error: bool
    time_ns: int | None
    denial: str | None = None
    duration_ms: float | None = None
    agent_id: str | None = None
    is_background: bool = False
    was_interrupted: bool = False
    is_user_modified: bool = False  # the user changed the edit before accepting it
    blocks: tuple[str, ...] = ()  # here and below: the texts, if there are several; a secret can be split over two


class TurnCall(msgspec.Struct):
    """A tool call, and its result if there is one yet."""

    id: str
    name: str
    arguments: str  # JSON text
    time_ns: int | None
    result: Result | None = None


class Said(msgspec.Struct, frozen=True):
    """Text, thinking, or a tool the API ran by itself."""

    kind: str  # "text", "thinking", "server_tool"
    text: str
    blocks: tuple[str, ...] = ()


class ModelResponse(msgspec.Struct):
    """One API response, merged from its lines."""

    key: str
    uuid: str
    model: str
    version: str
    request_id: str | None = None
    requested_model: str | None = None
    effort: str | None = None
    max_tokens: int | None = None
    parts: list[Said | TurnCall] = []
    calls: list[TurnCall] = []  # those of its parts that are tool calls
    call_ids: set[str] = set()
    texts: list[str] = []  # those of its parts that are text
    usage: e.ApiUsage | None = None
    stop_reason: str | None = None
    trigger_ns: int | None = None  # the row that made the client send the request
    request_ns: int | None = None  # when the request was sent, if that was recorded
    first_ns: int | None = None
    first_block_ms: float | None = None
    thinking_ms: float | None = None
    last_ns: int | None = None
    error: str | None = None
    error_status: int | None = None
    is_aborted: bool = False
    is_repeat: bool = False  # an earlier part of the turn contains the beginning of this response
    has_request_elsewhere: bool = False  # it names a recorded request that is not in this file
    session_id: str = ""  # of its first line


class Happening(msgspec.Struct, frozen=True):
    """An event in a turn that is neither a response nor a tool call."""

    kind: str  # "compaction", "retry", "steering", "task_notification", "interruption", "late_result"
    key: str
    time_ns: int | None
    text: str = ""
    facts: dict[str, str | int | float] = {}
    blocks: tuple[str, ...] = ()


class Prompt(msgspec.Struct):
    """The request that started a turn."""

    text: str
    time_ns: int | None
    media: tuple[tuple[str, int], ...] = ()
    ide: tuple[str, ...] = ()
    command: str | None = None
    expansion: str = ""  # what a command or skill was expanded to
    blocks: tuple[tuple[str, ...], ...] = ()  # of the prompt, and of each row of its expansion


class Turn(msgspec.Struct):
    """One prompt and everything that answered it, or a further part of that."""

    session_id: str  # of its origin, if it was copied
    key: str  # the prompt's original uuid
    number: int
    part: int
    origin: str
    start: LinePlace
    end: LinePlace
    prompt: Prompt | None = None
    responses: list[ModelResponse] = []
    happenings: list[Happening] = []
    agents: list[InlineAgent] = []
    previous: TurnRef | None = None
    previous_session: str | None = None
    answers_call: str | None = None  # a task notification: the call it answers
    forked_from: str | None = None
    version: str = ""
    cwd: str = ""
    git_branch: str = ""
    slug: str = ""
    entrypoint: str = ""
    permission_mode: str = ""
    prompt_id: str = ""
    prompt_uuid: str = ""  # in this file; `key` is that of the origin
    titles: dict[str, str] = {}
    pull_request: str = ""
    tag: str = ""
    agent: str = ""  # of the session (`--agent`); empty if it is the usual one
    local_commands: tuple[str, ...] = ()
    is_interrupted: bool = False
    is_own: bool = False  # a further part whose rows were written into this file, though its turn was copied
    is_repeat_suspect: bool = False  # it began before the end of an earlier turn
    times: list[int] = []

    @property
    def ref(self) -> TurnRef:
        """The turn's identity."""
        return TurnRef(self.session_id, self.key, self.number, self.part + 1)

    @property
    def has_answer(self) -> bool:
        """Whether the model has finished: no call is pending, and the last response was not cut off."""
        if self.is_interrupted:
            return True
        if not self.responses:
            return False
        last = self.responses[-1]
        for response in self.responses:
            if response.error is not None:
                return True  # the client gave up; 2.0.36 can write a truncated response after the error
        if last.calls or last.stop_reason in {"max_tokens", "pause_turn", "tool_use"}:
            return False
        return bool(last.texts) and not self.pending_calls

    @property
    def may_be_cut(self) -> bool:
        """Whether further lines of the last response may follow: it has no stop reason (old clients write none)."""
        if self.is_interrupted or not self.responses:
            return False
        last = self.responses[-1]
        return last.stop_reason is None and last.error is None and not last.is_aborted

    @property
    def has_failed(self) -> bool:
        """Whether the turn ends with an API error instead of an answer."""
        return bool(self.responses) and self.responses[-1].error is not None

    @property
    def pending_calls(self) -> list[TurnCall]:
        """Calls without a result."""
        return [call for response in self.responses for call in response.calls if call.result is None]

    @property
    def last_text(self) -> str:
        """The text of the last response that has any."""
        for response in reversed(self.responses):
            if text := "\n".join(response.texts):
                return text
        return ""

    @property
    def last_words(self) -> tuple[str, ...]:
        """Digests of what a client can report as the last message: the last response's text, or its last block."""
        if not self.responses:
            return ()
        last = self.responses[-1]
        texts = last.texts or [last.error or self.last_text]
        texts = list(dict.fromkeys((texts[-1], "\n".join(texts), "".join(texts))))  # mostly the same text
        return tuple(dict.fromkeys(map(words_digest, texts)))


class InlineAgent(msgspec.Struct):
    """A subagent whose rows are in the parent's file (before 2.0.28)."""

    root: str
    prompt: str
    turns: list[Turn] = []
    call_id: str = ""  # the call that launched it, if that was sealed before


def several(texts: list[str]) -> tuple[str, ...]:
    """Return the texts of several blocks; empty for one."""
    return tuple(texts) if len(texts) > 1 else ()


def new_turn(row: TranscriptRow, origin: str, past: Carry, previous: TurnRef | None, session_id: str) -> Turn:
    """Return the next turn, started by this row; `session_id` if the row does not name its session."""
    entry = row.entry
    fork = entry.forked_from or e.ForkedFrom()
    key = known_as(fork.message_uuid) or entry.uuid or known_as(entry.prompt_id) or key_of(entry)
    if key in [ref.key for ref in past.recent]:
        key = f"{key}/{key_of(entry)}"  # it says that it is a copy of a turn next to it: still a turn of its own
    return Turn(
        session_id=known_as(fork.session_id) or known_as(entry.session_id) or session_id,
        key=key,
        number=past.turns + 1,
        part=0,
        origin=origin,
        start=row.place,
        end=row.place,
        previous=previous,
        forked_from=fork.session_id,
        prompt_uuid=entry.uuid or "",
        prompt_id=entry.prompt_id or "",
        permission_mode=entry.permission_mode or "",
    )


def further_part(ref: TurnRef, place: LinePlace) -> Turn:
    """Return the next part of a sealed turn, which begins at this place."""
    return Turn(ref.session_id, ref.key, ref.number, part=ref.parts, origin="continued", start=place, end=place)


def add_surroundings(turn: Turn, entry: Entry) -> None:
    """Add where a row was written to its turn: the last one that says it counts."""
    turn.version = entry.version or turn.version
    turn.cwd = entry.cwd or turn.cwd
    turn.git_branch = entry.git_branch or turn.git_branch
    turn.slug = entry.slug or turn.slug
    turn.entrypoint = entry.entrypoint or turn.entrypoint


def add_prompt(turn: Turn, row: TranscriptRow, said: UserRow) -> None:
    """Add the prompt that a user row holds to its turn."""
    typed, ide = e.without_ide_tags(said.text)
    media = tuple([e.media(block.source) for block in said.blocks if block.type in {"image", "document"}])
    turn.prompt = Prompt(typed, row.time_ns, media, ide, blocks=(several(said.texts),))
    if turn.origin == "task_notification":
        turn.answers_call = e.tool_notified(said.text)
    if row.entry.plan_content is not None:
        turn.previous_session = e.session_named_in(said.text)


def command_prompt(row: TranscriptRow) -> tuple[Prompt, str]:
    """Return the prompt of a command or `!` line, and the origin of its turn."""
    said = said_in(row)
    text, blocks = said.text, (several(said.texts),)
    command = e.command_of(text)
    if text.lstrip().startswith(REPLIES):  # a prompt after all: the model answers it
        return Prompt(text, row.time_ns, blocks=blocks), origin_of(row.entry, text)
    if command is None:
        return Prompt(text, row.time_ns, command="!", blocks=blocks), "bash"
    name, arguments = command
    text_of_command = f"{name} {arguments}".strip()
    return Prompt(text_of_command, row.time_ns, command=name, blocks=blocks), origin_of(row.entry, text)


def event_of(kind: str, row: TranscriptRow, texts: list[str], **facts: str | float | None) -> Happening:
    """Return what a row adds to a turn besides responses and calls: typed words, a retry; with the facts it has."""
    known = {name: value for name, value in facts.items() if value is not None}
    return Happening(kind, key_of(row.entry), row.time_ns, "\n".join(texts), known, several(texts))
