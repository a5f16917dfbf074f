"""What a turn is: one prompt and all that answered it, as plain values.

`making` makes them of entries; `turnspan.trace.build` makes traces of them. Nothing here reads a file or decides when
a turn is sealed.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import msgspec

from turnspan.transcript import entries as e  # noqa: TC001  msgspec resolves field types when a struct is made
from turnspan.transcript.resume import TurnRef, words_digest

AGENT_TOOLS: Final = frozenset({"Agent", "Task"})  # `Task` up to 2.1.47


class Place(msgspec.Struct, frozen=True, array_like=True):
    """Where a line stands."""

    line: int
    offset: int
    end: int


class Row(msgspec.Struct, frozen=True):
    """An entry and its place in the file."""

    entry: e.Entry
    place: Place
    time_ns: int | None


class Result(msgspec.Struct, frozen=True):
    """What a tool call gave back."""

    text: str
    is_error: bool
    time_ns: int | None
    denial: str | None = None
    duration_ms: float | None = None
    agent_id: str | None = None
    is_background: bool = False
    was_interrupted: bool = False


class Call(msgspec.Struct):
    """A tool call, and its result once it is there."""

    id: str
    name: str
    arguments: str  # JSON text
    time_ns: int | None
    result: Result | None = None


class Said(msgspec.Struct, frozen=True):
    """Words, thinking, or a tool the API ran by itself."""

    kind: str  # "text", "thinking", "server_tool"
    text: str


class Response(msgspec.Struct):
    """One API response, merged from its lines."""

    key: str
    uuid: str
    model: str
    version: str
    request_id: str | None = None
    requested_model: str | None = None
    effort: str | None = None
    max_tokens: int | None = None
    parts: list[Said | Call] = []
    calls: list[Call] = []  # those of its parts that are tool calls
    usage: e.Usage | None = None
    stop_reason: str | None = None
    trigger_ns: int | None = None  # the row that made the client ask
    request_ns: int | None = None  # when it asked, where that was recorded
    first_ns: int | None = None
    first_block_ms: float | None = None
    thinking_ms: float | None = None
    last_ns: int | None = None
    error: str | None = None
    error_status: int | None = None
    is_aborted: bool = False
    is_repeat: bool = False  # an earlier part of the turn holds the beginning of this response
    has_request_elsewhere: bool = False  # it names a recorded request that is not in this file


class Happening(msgspec.Struct, frozen=True):
    """Something that happened in a turn and is neither a response nor a tool call."""

    kind: str  # "compaction", "retry", "steering", "task_notification", "interruption", "late_result"
    key: str
    time_ns: int | None
    text: str = ""
    facts: dict[str, str | int | float] = {}


class Prompt(msgspec.Struct):
    """What asked the model to work."""

    text: str
    time_ns: int | None
    media: tuple[tuple[str, int], ...] = ()
    ide: tuple[str, ...] = ()
    command: str | None = None
    expansion: str = ""  # what a command or skill was expanded to


class Turn(msgspec.Struct):
    """One prompt and all that answered it, or a later part of that."""

    session_id: str  # where it happened first
    key: str  # the prompt's original uuid
    number: int
    part: int
    origin: str
    start: Place
    end: Place
    prompt: Prompt | None = None
    responses: list[Response] = []
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
    prompt_uuid: str = ""  # as it stands in this file; `key` may be older
    titles: dict[str, str] = {}
    pull_request: str = ""
    tag: str = ""
    local_commands: tuple[str, ...] = ()
    is_interrupted: bool = False
    is_repeat_suspect: bool = False  # all its times lie before what was seen already
    times: list[int] = []

    @property
    def ref(self) -> TurnRef:
        """Its identity."""
        return TurnRef(self.session_id, self.key, self.number, self.part + 1)

    @property
    def has_answer(self) -> bool:
        """Whether the model has come to an end: nothing is pending and the last response was not cut off."""
        if self.is_interrupted:
            return True
        if not self.responses:
            return False
        last = self.responses[-1]
        if any(response.error is not None for response in self.responses):
            return True  # the client gives up; 2.0.36 may write a cut response behind the error
        if last.calls or last.stop_reason in {"max_tokens", "pause_turn", "tool_use"}:
            return False
        if not any(isinstance(part, Said) and part.kind == "text" for part in last.parts):
            return False
        return not self.pending_calls

    @property
    def has_failed(self) -> bool:
        """Whether the last thing that came was an API error instead of an answer."""
        return bool(self.responses) and self.responses[-1].error is not None

    @property
    def pending_calls(self) -> list[Call]:
        """Calls whose result has not come."""
        return [call for response in self.responses for call in response.calls if call.result is None]

    @property
    def last_text(self) -> str:
        """The last words of the model."""
        for response in reversed(self.responses):
            text = "\n".join(part.text for part in response.parts if isinstance(part, Said) and part.kind == "text")
            if text:
                return text
        return ""

    @property
    def last_words(self) -> tuple[str, ...]:
        """Digests of what a client may call the last message: the last response's words, or its last block."""
        if not self.responses:
            return ()
        last = self.responses[-1]
        texts = [part.text for part in last.parts if isinstance(part, Said) and part.kind == "text"]
        texts = texts or [last.error or self.last_text]
        texts = list(dict.fromkeys((texts[-1], "\n".join(texts), "".join(texts))))  # mostly it is the same text
        return tuple(dict.fromkeys(map(words_digest, texts)))


class InlineAgent(msgspec.Struct):
    """A subagent whose rows stand in the parent's file (before 2.0.28)."""

    root: str
    prompt: str
    turns: list[Turn] = []


@lru_cache(maxsize=64)
def version_of(text: str | None) -> tuple[int, ...]:
    """A client version as numbers; empty if it is not one."""
    parts = (text or "").split("-")[0].split(".")
    return tuple(int(part) for part in parts) if parts and all(part.isdecimal() for part in parts) else ()
