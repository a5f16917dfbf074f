"""Every string of a trace, in one walk: to be looked at, or to be replaced.

Rules:

- Who looks and who replaces walk the same way, so that no string is looked at but not replaced, or the other way round.
- Words that stand next to each other in one message are also shown together: half a secret is no secret to any rule.
- What does not change is not built again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from turnspan.trace.model import Json, Media, Message, Reasoning, Text, ToolCall, ToolResult, Trace

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.trace.model import Content, Facts, Part, Span

T = TypeVar("T")


class Strings(Protocol):
    """What is done with each string of a trace."""

    def text(self, text: str) -> str:
        """Words, a name, an id."""

    def document(self, text: str) -> str:
        """JSON."""

    def facts(self, facts: Facts) -> Facts:
        """Names and values of details."""

    def joined(self, parts: list[str]) -> str | None:
        """Texts that stand next to each other; an answer replaces all of them."""


def walk(trace: Trace, strings: Strings) -> Trace:
    """The trace with every string replaced by what `strings` makes of it."""
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
    went_in, came_out = _walk_content(span.input, strings), _walk_content(span.output, strings)
    if came_out is not span.output and isinstance(span.output, str) and span.output.startswith(span.error_message):
        # The message is the beginning of the output, cut somewhere: perhaps inside a secret.
        message = str(came_out)[: len(span.error_message)]
    if (
        went_in is span.input and came_out is span.output and facts is span.facts
        and name is span.name and model is span.model and error is span.error and message is span.error_message
    ):  # fmt: skip
        return span
    return msgspec.structs.replace(
        span, name=name, model=model, error=error, error_message=message, facts=facts, input=went_in, output=came_out
    )


def _walk_content(content: Content | None, strings: Strings) -> Content | None:
    if content is None:
        return None
    if isinstance(content, str):
        return strings.text(content)
    if isinstance(content, Json):
        text = strings.document(content.text)
        return content if text is content.text else Json(text)
    return _same(content, tuple([_walk_message(message, strings) for message in content]))


def _walk_message(message: Message, strings: Strings) -> Message:
    parts = _same(message.parts, tuple([_walk_part(part, strings) for part in message.parts]))
    if len(parts) > 1:
        parts = _same(parts, tuple(_walk_neighbours(parts, strings)))
    role = strings.text(message.role)
    reason = message.finish_reason and strings.text(message.finish_reason)
    if parts is message.parts and role is message.role and reason is message.finish_reason:
        return message
    return Message(role, parts, reason)


def _walk_part(part: Part, strings: Strings) -> Part:
    text = strings.text
    if isinstance(part, Text | Reasoning):
        words = text(part.text)
        return part if words is part.text else type(part)(words)
    if isinstance(part, ToolResult):
        return _same(part, ToolResult(text(part.id), text(part.result)))
    if isinstance(part, ToolCall):
        return _same(part, ToolCall(text(part.id), text(part.name), strings.document(part.arguments)))
    return _same(part, Media(text(part.mime), part.bytes))


def _same(old: T, new: T) -> T:
    """The old value if the new one is equal: what did not change is not built again."""
    return old if new == old else new


def _walk_neighbours(parts: tuple[Part, ...], strings: Strings) -> Iterable[Part]:
    """Words that were cut into several parts, also together."""
    at = 0
    while at < len(parts):
        end = at + 1
        first = parts[at]
        if isinstance(first, Text | Reasoning):
            while end < len(parts) and type(parts[end]) is type(first):
                end += 1
        if end - at > 1:
            whole = strings.joined([part.text for part in parts[at:end] if isinstance(part, Text | Reasoning)])
            if whole is not None:
                yield Text(whole) if isinstance(first, Text) else Reasoning(whole)
                at = end
                continue
        yield from parts[at:end]
        at = end
