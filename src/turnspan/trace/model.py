"""Traces as plain values, independent of any vendor.

Rules:

- A `Trace` is what is exported for a turn at one time. Most turns give one. What is written after a turn was sealed (a
  blocked stop, a background agent) gives another `Trace` with the same `trace_id` and only the new spans.
- Spans are a flat list, parents before children. A parent is missing only if an earlier `Trace` of the same id contains
  it.
- Everything is derived from the transcript. The same span is always built the same.
- Content is text or messages; `facts` are small scalar details under our own names, which each backend translates.
- All strings of a content are visited by one walk, `map_content`: to change them, to collect them, to measure them.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Scalar: TypeAlias = "str | int | float | bool | tuple[str, ...]"
Facts: TypeAlias = "dict[str, Scalar]"


class Kind(StrEnum):
    """What a span represents."""

    TURN = "turn"  # one prompt and everything that answered it
    GENERATION = "generation"  # one API response
    TOOL = "tool"  # one tool call
    AGENT = "agent"  # one subagent
    EVENT = "event"  # a compaction, a retry, words typed while the turn ran, …


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one response, or the sum of several. `input` never includes cached tokens."""

    input: int = 0
    output: int = 0
    cache_read: int = 0
    cache_write_5m: int = 0
    cache_write_1h: int = 0
    web_searches: int = 0
    is_incomplete: bool = False  # a count is too low: a streaming placeholder; in totals, also work that continued

    @property
    def cache_write(self) -> int:
        """All tokens written to the cache."""
        return self.cache_write_5m + self.cache_write_1h

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input + other.input,
            self.output + other.output,
            self.cache_read + other.cache_read,
            self.cache_write_5m + other.cache_write_5m,
            self.cache_write_1h + other.cache_write_1h,
            self.web_searches + other.web_searches,
            self.is_incomplete or other.is_incomplete,
        )


class Text(msgspec.Struct, frozen=True, tag="text"):
    """Text."""

    text: str


class Reasoning(msgspec.Struct, frozen=True, tag="reasoning"):
    """The model's thinking, if the client recorded it."""

    text: str


class ToolCall(msgspec.Struct, frozen=True, tag="tool_call"):
    """A call the model asked for; `arguments` is JSON text."""

    id: str
    name: str
    arguments: str


class ToolResult(msgspec.Struct, frozen=True, tag="tool_call_response"):
    """The result of a call."""

    id: str
    result: str


class Media(msgspec.Struct, frozen=True, tag="media"):
    """An image or a document, by its description; the bytes are not part of the model."""

    mime: str
    bytes: int


Part: TypeAlias = Text | Reasoning | ToolCall | ToolResult | Media


class Message(msgspec.Struct, frozen=True):
    """One message to or from the model."""

    role: str  # "user", "assistant", "tool", "system"
    parts: tuple[Part, ...]
    finish_reason: str | None = None  # "stop", "length", "tool_call", … on output


class Json(msgspec.Struct, frozen=True):
    """A value as JSON text, for instance a tool's arguments."""

    text: str


Content: TypeAlias = "tuple[Message, ...] | Json | str"

CALLER: Final = "caller"  # the relation of a link to a span of the program that ran Claude Code


class Link(msgspec.Struct, frozen=True):
    """A pointer to a span of another trace."""

    trace_id: bytes
    span_id: bytes
    relation: str  # "previous_turn", or CALLER


class Span(msgspec.Struct, frozen=True, kw_only=True):
    """A span, with a start and an end."""

    span_id: bytes  # 8 bytes
    parent_id: bytes | None
    asker_id: bytes | None = None  # tools: the turn or agent whose response, their parent, asked for them
    kind: Kind
    name: str
    start_ns: int
    end_ns: int
    input: Content | None = None
    output: Content | None = None
    model: str | None = None  # generations: the model that answered
    usage: Usage | None = None  # generations only; sums live in `totals`
    cost_usd: float | None = None  # generations only
    first_token_ns: int | None = None
    totals: Usage | None = None  # turns and agents: the sum of what is below, never to be added up again
    totals_cost_usd: float | None = None
    error: str | None = None  # an error type: "api_error", "tool_error", "permission_denied", "interrupted"
    error_message: str = ""
    facts: Facts = {}
    links: tuple[Link, ...] = ()


class Trace(msgspec.Struct, frozen=True, kw_only=True):
    """The spans that are exported for one turn at one time."""

    trace_id: bytes  # 16 bytes
    name: str  # "Turn 3"
    session_id: str
    client_version: str
    tags: tuple[str, ...] = ()
    facts: Facts = {}  # of the session and the turn: title, cwd, git branch, …
    spans: tuple[Span, ...] = ()
    # The texts of several blocks that the spans hold as one, joined with line breaks. Only masking reads them: a secret
    # can be split over two blocks. They are empty in a trace that is exported.
    blocks: tuple[tuple[str, ...], ...] = ()

    @property
    def cwd(self) -> str:
        """The working directory; "" if the transcript does not say."""
        return str(self.facts.get("cwd") or "")


# ---- the strings of a content

_T = TypeVar("_T")
_P = TypeVar("_P", bound=Part)


def map_content(
    content: Content, text: Callable[[str], str], json: Callable[[str], str], label: Callable[[str], str] = str
) -> Content:
    """Return content with its strings changed: text by `text`, JSON by `json`, ids, names and roles by `label`.

    Content without changes is returned itself.
    """
    if isinstance(content, str):
        return text(content)
    if isinstance(content, Json):
        return _same(content, Json(json(content.text)))

    def map_part(part: Part) -> Part:
        if isinstance(part, ToolResult):
            return ToolResult(label(part.id), text(part.result))
        if isinstance(part, ToolCall):
            return ToolCall(label(part.id), label(part.name), json(part.arguments))
        if isinstance(part, Media):
            return Media(label(part.mime), part.bytes)
        return type(part)(text(part.text))

    def map_message(message: Message) -> Message:
        reason = message.finish_reason
        return Message(label(message.role), tuple(map(map_part, message.parts)), reason and label(reason))

    return _same(content, tuple(map(map_message, content)))


def texts_of(content: Content) -> list[str]:
    """Return the texts and the JSON of a content, without ids, names and roles."""
    found: list[str] = []

    def keep(text: str) -> str:
        found.append(text)
        return text

    map_content(content, keep, keep)
    return found


def parts_of(content: Content | None, kind: type[_P]) -> list[_P]:
    """Return the parts of one kind; none if the content is not messages."""
    if not isinstance(content, tuple):
        return []
    return [part for message in content for part in message.parts if isinstance(part, kind)]


def with_parts(content: Content, parts: Callable[[Message], Iterable[Part]]) -> Content:
    """Return messages with other parts, which `parts` returns for each; text and JSON as they are."""
    if not isinstance(content, tuple):
        return content
    changed = [Message(message.role, tuple(parts(message)), message.finish_reason) for message in content]
    return _same(content, tuple(changed))


def _same(old: _T, new: _T) -> _T:
    """Return the old value if the new one is equal, so that callers can compare by identity."""
    return old if new == old else new
