"""Walks over every string of a trace, to read or to replace it.

Rules:

- Reading and replacing use the same walk, so that every string that is scanned can be masked and the other way round.
- Neighbouring texts of a message are also visited joined: no rule recognises half a secret.
- A value without changes is returned itself, not a copy.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

import msgspec

from turnspan.trace.model import Json, Media, Message, Reasoning, Text, ToolCall, ToolResult, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.trace.model import Content, Facts, Part, Span

T = TypeVar("T")
TEXTS: Final = (Text, Reasoning)  # `Text | Reasoning` would be built again with each test


class Strings(Protocol):
    """A visitor: gets each string of a trace and returns its replacement."""

    def text(self, text: str) -> str:
        """Replace text, a name or an id."""

    def document(self, text: str) -> str:
        """Replace JSON text."""

    def facts(self, facts: Facts) -> Facts:
        """Replace the names and values of facts."""

    def joined(self, parts: list[str]) -> str | None:
        """Return one text that replaces these neighbouring texts, or None to replace each of them by `text`."""


def walk(trace: Trace, strings: Strings) -> Trace:
    """Return the trace with every string replaced by `strings`."""
    text = strings.text
    return Trace(
        trace_id=trace.trace_id,
        name=text(trace.name),
        session_id=text(trace.session_id),
        client_version=text(trace.client_version),
        tags=tuple([text(tag) for tag in trace.tags]),
        facts=strings.facts(trace.facts),
        spans=tuple([_walk_span(span, strings) for span in trace.spans]),
    )


def _walk_span(span: Span, strings: Strings) -> Span:
    text = strings.text
    name = text(span.name)
    model = span.model and text(span.model)
    error = span.error and text(span.error)
    message = span.error_message and text(span.error_message)
    facts = strings.facts(span.facts)
    inputs, outputs = _walk_content(span.input, strings), _walk_content(span.output, strings)
    if outputs is not span.output and isinstance(span.output, str) and span.output.startswith(span.error_message):
        # The message is the truncated output; the cut may be inside a secret.
        message = str(outputs)[: len(span.error_message)]
    if (
        inputs is span.input and outputs is span.output and facts is span.facts
        and name is span.name and model is span.model and error is span.error and message is span.error_message
    ):  # fmt: skip
        return span
    return msgspec.structs.replace(
        span, name=name, model=model, error=error, error_message=message, facts=facts, input=inputs, output=outputs
    )


def _walk_content(content: Content | None, strings: Strings) -> Content | None:
    if content is None:
        return None
    if isinstance(content, str):
        return strings.text(content)
    if isinstance(content, Json):
        text = strings.document(content.text)
        return content if text is content.text else Json(text)
    return map_messages(content, partial(_walk_message, strings))


def map_messages(content: Content, change: Callable[[Message], Message]) -> Content:
    """Return the content with each message changed; text and JSON stay as they are."""
    return content if isinstance(content, str | Json) else _same(content, tuple(map(change, content)))


def _walk_message(strings: Strings, message: Message) -> Message:
    parts = message.parts
    if len(parts) > 1:
        parts = tuple(_walk_neighbours(parts, strings))
    else:
        parts = tuple([map_text(part, strings.text, strings.document) for part in parts])
    parts = _same(message.parts, parts)
    role = strings.text(message.role)
    reason = message.finish_reason and strings.text(message.finish_reason)
    if parts is message.parts and role is message.role and reason is message.finish_reason:
        return message
    return Message(role, parts, reason)


def map_text(part: Part, text: Callable[[str], str], document: Callable[[str], str]) -> Part:
    """Return a part with every string replaced: JSON by `document`, ids, names and all other text by `text`."""
    if isinstance(part, TEXTS):
        changed = text(part.text)
        return part if changed is part.text else type(part)(changed)
    if isinstance(part, ToolResult):
        return _same(part, ToolResult(text(part.id), text(part.result)))
    if isinstance(part, ToolCall):
        return _same(part, ToolCall(text(part.id), text(part.name), document(part.arguments)))
    return _same(part, Media(text(part.mime), part.bytes))


def _same(old: T, new: T) -> T:
    """Return the old value if the new one is equal, so that callers can compare by identity."""
    return old if new == old else new


def neighbouring(parts: tuple[Part, ...]) -> Iterable[list[str]]:
    """Yield the texts of neighbouring parts that `walk` also visits joined."""
    at = 0
    while at < len(parts):
        end = _end_of_neighbours(parts, at)
        if end - at > 1:
            yield [part.text for part in parts[at:end] if isinstance(part, TEXTS)]
        at = end


def _end_of_neighbours(parts: tuple[Part, ...], at: int) -> int:
    """Return where the texts of one kind that begin at a place end."""
    end = at + 1
    if isinstance(parts[at], TEXTS):
        while end < len(parts) and type(parts[end]) is type(parts[at]):
            end += 1
    return end


def _walk_neighbours(parts: tuple[Part, ...], strings: Strings) -> Iterable[Part]:
    """Yield the replaced parts, with neighbouring texts merged where `strings.joined` returns a replacement."""
    at = 0
    while at < len(parts):
        first, end = parts[at], _end_of_neighbours(parts, at)
        if end - at > 1:
            merged = strings.joined([part.text for part in parts[at:end] if isinstance(part, TEXTS)])
            if merged is not None:
                yield Text(merged) if isinstance(first, Text) else Reasoning(merged)
                at = end
                continue
        yield from (map_text(part, strings.text, strings.document) for part in parts[at:end])
        at = end
