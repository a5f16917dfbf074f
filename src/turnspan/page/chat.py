"""A turn as a conversation: the prompt, what was answered, and between them the tools, folded.

A block is one of these, in the order of the transcript: what a user or a program asked (`prompt`), what the model said
or thought (`answer`), a call of a tool with what a subagent did below it (`tool`), and what else happened (`event`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.page.content import conversation, sections
from turnspan.page.images import sizes_in
from turnspan.page.tree import COMPACTION, badges_of, by_parent, figures_of, name_of
from turnspan.text import plain
from turnspan.trace.model import Kind
from turnspan.trace.one_liner import gist_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.page.turns import Record
    from turnspan.trace.model import Span, Trace

    Below = Mapping[bytes | None, Sequence[Span]]


def chat_record(trace: Trace, *, has_images: bool = False) -> Record:
    """Return the conversation of a trace; `has_images`: with what is needed to show those of the prompt."""
    below = by_parent(trace)
    tops = below.get(None, ())
    return {
        "trace": trace.trace_id.hex(),
        "blocks": [block for top in tops for block in _blocks(top, below)],
        "images": {top.span_id.hex(): found for top in tops if has_images and (found := sizes_in(top))},
    }


def _blocks(span: Span, below: Below) -> Iterator[Record]:
    """Yield a span and what is below it as blocks."""
    children = _as_said(below.get(span.span_id, ()))
    match span.kind:
        case Kind.TURN:
            before = [child for child in children if _is_before_prompt(child, span)]
            for child in before:
                yield from _blocks(child, below)
            yield _said(conversation(span, has_children=True), "prompt")
            for child in children:
                if child not in before:
                    yield from _blocks(child, below)
        case Kind.GENERATION:
            said = _words(span)
            if said is not None:
                yield said
            for child in children:
                yield from _blocks(child, below)
        case Kind.TOOL | Kind.AGENT:
            yield {
                **_named(span, "agent" if span.kind is Kind.AGENT else "tool", children),
                "blocks": [block for child in children for block in _blocks(child, below)],
            }
        case Kind.EVENT:
            yield _named(span, "event")


def _is_before_prompt(span: Span, turn: Span) -> bool:
    return span.facts.get("event") == COMPACTION and span.start_ns <= turn.start_ns


def _as_said(spans: Sequence[Span]) -> list[Span]:
    """Return spans in the order of reading: an event before the response that ended after it."""
    ordered = [span for span in spans if span.kind is not Kind.EVENT]
    for event in (span for span in spans if span.kind is Kind.EVENT):
        at = next((n for n, span in enumerate(ordered) if span.end_ns > event.start_ns), len(ordered))
        ordered.insert(at, event)
    return ordered


def _said(span: Span, what: str) -> Record:
    return {"is": what, "id": span.span_id.hex(), "sections": msgspec.to_builtins(sections(span))}


def _words(span: Span) -> Record | None:
    """Return what a response said and thought; its calls are blocks of their own."""
    said = _said(conversation(span), "answer")
    return {**said, "model": name_of(span), "error": span.error} if said["sections"] else None


def _named(span: Span, what: str, children: Sequence[Span] = ()) -> Record:
    return {
        "is": what,
        "id": span.span_id.hex(),
        "kind": span.kind.value,
        "name": name_of(span),
        "gist": gist_of(span, is_parent=bool(children)),
        "badges": list(badges_of(span)),
        "error": plain(span.error).replace("_", " ") if span.error is not None else None,
        "figures": figures_of(span, children),
    }
