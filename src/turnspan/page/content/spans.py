"""The content of a span as sections: what was said first, what was sent to the model last."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.page.content import documents
from turnspan.page.content.documents import folded
from turnspan.page.content.markdown import plain
from turnspan.page.content.markup import tag
from turnspan.page.content.section import Budget, Section
from turnspan.page.content.tools import Call, tool_sections
from turnspan.trace.model import Json, Kind, Media, Reasoning, Text, ToolCall, with_parts

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnspan.trace.model import Content, Message, Part, Span

_MOST: Final = 100  # sections of a span, where not all of its content was requested
_FROM_EDITOR: Final = re.compile(r"ide_[a-z_]+: ")
_LONG_ADDITION: Final = 2_000  # characters of a prompt's second text, for instance the instructions of a command


def sections(span: Span, *, is_full: bool = False) -> list[Section]:
    """Return the content of a span; without `is_full` only the beginning of long texts."""
    made = _sections(span, Budget(is_full=is_full))
    if is_full:
        return list(made)
    shown = list(islice(made, _MOST))
    missing = sum(1 for _ in made)
    if missing:
        note = tag("div", f"{missing:,} more", "c-faint")
        shown.append(Section("More", "text", note, size=missing, is_cut=True))
    return shown


def conversation(span: Span, *, has_children: bool = False) -> Span:
    """Return a span with only what was said in it: tool calls and their results are spans of their own.

    `has_children`: the answer of a turn or an agent is in one of the responses below it.
    """
    if span.kind is Kind.GENERATION:
        return msgspec.structs.replace(span, input=None, output=span.output and with_parts(span.output, _said))
    if has_children and span.kind in {Kind.TURN, Kind.AGENT}:
        return msgspec.structs.replace(span, output=None, error_message="")
    return span


def _said(message: Message) -> Iterator[Part]:
    return (part for part in message.parts if not isinstance(part, ToolCall))


def _sections(span: Span, budget: Budget) -> Iterator[Section]:
    match span.kind:
        case Kind.TOOL:
            yield from tool_sections(_call_of(span), budget)
        case Kind.GENERATION:
            yield from _error(span, budget)
            yield from _unfolded_if_alone(_content("Answer", span.output, span, budget))
            yield from (folded(each) for each in _content("Input", span.input, span, budget))
        case Kind.EVENT:
            yield from _error(span, budget)
            yield from _content("Message", span.input, span, budget)
            yield from _content("Message", span.output, span, budget)
        case _:
            yield from _content("Prompt" if span.kind is Kind.TURN else "Task", span.input, span, budget)
            yield from _error(span, budget)
            yield from _content("Answer" if span.kind is Kind.TURN else "Report", span.output, span, budget)


def _unfolded_if_alone(made: Iterable[Section]) -> Iterator[Section]:
    """Yield sections; if all of them are folded, the last one is shown: a response that only calls tools says that."""
    found = list(made)
    if found and all(section.is_folded for section in found):
        found[-1] = msgspec.structs.replace(found[-1], is_folded=False)
    yield from found


def _call_of(span: Span) -> Call:
    code = span.facts.get("exit_code")
    return Call(
        span.name,
        _text_of(span.input),
        _text_of(span.output) if span.output is not None else None,
        span.error,
        code if isinstance(code, int) else None,
        bool(span.facts.get("background")),
    )


def _text_of(content: Content | None) -> str:
    if isinstance(content, Json):
        return content.text
    return content if isinstance(content, str) else ""


def _error(span: Span, budget: Budget) -> Iterator[Section]:
    if span.error_message:
        yield documents.error("Error", span.error_message, budget)


def _content(label: str, content: Content | None, span: Span, budget: Budget) -> Iterator[Section]:
    """Yield the sections of a content; a text that only repeats the error is omitted."""
    if content is None:
        return
    if isinstance(content, Json):
        yield documents.arguments(label, content.text, budget)
    elif isinstance(content, str):
        if content != span.error_message:
            yield documents.json_value(label, content, budget) or documents.prose(label, content, budget)
    else:
        for message in content:
            yield from _message(label, message, span, budget)


def _message(label: str, message: Message, span: Span, budget: Budget) -> Iterator[Section]:
    is_typed = message.role == "user" and span.kind is not Kind.AGENT
    for number, part in enumerate(message.parts):
        if isinstance(part, Text) and part.text == span.error_message:
            continue
        made = list(_part(label, part, budget, is_typed=is_typed))
        is_addition = (
            isinstance(part, Text)
            and is_typed
            and (_FROM_EDITOR.match(part.text) is not None or (number > 0 and len(part.text) > _LONG_ADDITION))
        )
        yield from map(folded, made) if is_addition else made


def _part(label: str, part: Part, budget: Budget, *, is_typed: bool) -> Iterator[Section]:
    match part:
        case Text():
            if part.text.strip():
                yield documents.prose(label, part.text, budget, is_typed=is_typed)
        case Reasoning():
            yield documents.thinking(part.text, budget)
        case ToolCall():
            for each in tool_sections(Call(part.name, part.arguments), budget):
                yield _named(each, part.name)
        case Media():
            yield documents.image(part.mime, part.bytes)
        case _:
            yield documents.section(f"{label}: tool result", "text", part.result, plain, budget)


def _named(section: Section, name: str) -> Section:
    return folded(Section(name, section.kind, section.html, size=section.size, is_cut=section.is_cut))
