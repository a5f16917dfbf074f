"""Walks over every string of a trace, to read or to replace it.

Rules:

- Reading and replacing are the same walk, so that every string that is scanned can be masked and the other way round.
- Neighbouring texts of a message are also visited joined: no rule recognises half a secret.
- A value without changes is returned itself, not a copy.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Protocol

import msgspec

from turnspan.trace.model import Reasoning, Text, Trace, map_content, with_parts

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.trace.model import Content, Facts, Message, Part, Span


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
    merged = with_parts(content, partial(_merged, strings))
    return map_content(merged, strings.text, strings.document, strings.text)


def _merged(strings: Strings, message: Message) -> Iterable[Part]:
    """Yield the parts of a message, with neighbouring texts merged where `strings.joined` returns a replacement."""
    if len(message.parts) == 1:
        return message.parts
    merged: list[Part] = []
    for kind, group in groupby(message.parts, type):
        parts = list(group)
        texts = [part.text for part in parts if isinstance(part, Text | Reasoning)]
        text = strings.joined(texts) if len(texts) > 1 else None
        if text is None:
            merged += parts
        else:
            merged.append(Text(text) if kind is Text else Reasoning(text))
    return merged
