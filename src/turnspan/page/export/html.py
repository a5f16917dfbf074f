"""A session as a self-contained page: each turn as a conversation, with its waterfall."""

from __future__ import annotations

import base64
import hashlib
import re
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan.page.content import conversation, sections
from turnspan.page.content.markup import attribute, shown, tag
from turnspan.page.export.parts import DocumentForm, parts
from turnspan.page.tree import (
    NOT_IN_TOTALS,
    Layout,
    badges_of,
    by_parent,
    figures_of,
    name_of,
    time_of_day,
    turn_name,
)
from turnspan.text import duration
from turnspan.trace.model import Kind
from turnspan.trace.one_liner import gist_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from turnspan.page.content import Section
    from turnspan.page.preview import PreviewedTrace
    from turnspan.trace.model import Span, Trace

    Below = Mapping[bytes | None, Sequence[Span]]

_PAGE: Final = Path(__file__).parents[1] / "web" / "css"
_VARIABLES: Final = re.compile(r"(?:@media[^{}]*\{\s*)?:root\s*\{[^}]*\}(?:\s*\})?")
_FIGURES: Final = ("{} in", "{} out", "{}", "{}")
_DEEPEST: Final = 12  # levels of the waterfall that are indented
_WIDTH: Final = 1000  # units of a lane


def pieces(traces: Iterable[PreviewedTrace], path: str, layout: Layout) -> Iterator[str]:
    """Yield the page, each turn as soon as it is read. `path` is the transcript's."""
    return parts(traces, path, layout, DocumentForm(_head, _turn, _foot))


@cache
def _style() -> str:
    variables = _VARIABLES.findall((_PAGE / "base.css").read_text(encoding="utf-8"))
    content = (_PAGE / "content.css").read_text(encoding="utf-8")
    return "\n".join((*variables, content, Path(__file__).with_name("export.css").read_text(encoding="utf-8")))


def _head(title: str, facts: dict[str, str]) -> str:
    style = _style()
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    rows = "".join(f"<dt>{shown(name)}</dt><dd>{shown(value)}</dd>" for name, value in facts.items())
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="referrer" content="no-referrer"><meta name="color-scheme" content="light dark">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{attribute(title)}</title><style>{style}</style></head>\n<body><main>\n"
    ) + tag("header", tag("h1", shown(title)) + tag("dl", rows), "e-head")


def _foot(lines: list[str]) -> str:
    """Return the totals, which are known last and displayed first."""
    return tag("section", "".join(tag("p", shown(line)) for line in lines), "e-totals") + "</main></body></html>\n"


# ---- a turn as a conversation


def _turn(trace: Trace, layout: Layout) -> Iterator[str]:
    below = by_parent(trace)
    tops = below.get(None, ())
    first = trace.spans[0]
    when = tag("span", shown(f"{_date(first, layout)} {time_of_day(first.start_ns, layout)}"), "c-faint")
    is_later = first.parent_id is not None
    badges = [NOT_IN_TOTALS] if is_later else list(badges_of(first))
    labels = "".join(tag("span", shown(badge), "c-option") for badge in badges)
    figures = _figures(first) if not is_later else ""
    yield f'<article id="s{first.span_id.hex()}">' + tag("h2", f"{shown(turn_name(trace))} {when} {labels}{figures}")
    for span in tops:
        if span.kind is Kind.TURN:
            yield from _speech(span, "e-user", has_children=bool(below.get(span.span_id)))
            yield from _children(span, below)
        else:
            yield from _span(span, below)
    yield from _waterfall(trace, below)
    yield "</article>\n"


def _date(span: Span, layout: Layout) -> str:
    return f"{datetime.fromtimestamp(span.start_ns / 1e9, layout.zone).astimezone(layout.zone):%Y-%m-%d}"


def _children(span: Span, below: Below) -> Iterator[str]:
    for child in below.get(span.span_id, ()):
        yield from _span(child, below)


def _span(span: Span, below: Below) -> Iterator[str]:
    match span.kind:
        case Kind.GENERATION:
            yield f'<div id="s{span.span_id.hex()}" class="e-response">'
            yield tag("div", f"{tag('b', shown(name_of(span)))}{_badges(span)}{_figures(span)}", "e-line")
            yield from _speech(span, "e-model")
            yield "</div>"
            yield from _children(span, below)
        case Kind.EVENT:
            words = f"{tag('b', shown(name_of(span)))} {shown(gist_of(span, is_parent=False))}"
            yield f'<div id="s{span.span_id.hex()}" class="e-event">{words}</div>'
        case _:
            children = below.get(span.span_id, ())
            summary = tag("b", shown(name_of(span)), f"e-k-{span.kind.value}")
            summary += tag("span", shown(gist_of(span, is_parent=True)), "e-gist")
            summary += _badges(span) + _figures(span, children)
            css = "e-call e-failed" if span.error is not None else "e-call"
            yield f'<details id="s{span.span_id.hex()}" class="{css}"><summary>{summary}</summary>'
            yield from _speech(span, "e-content", has_children=bool(children) and span.kind is not Kind.TOOL)
            yield from _children(span, below)
            yield "</details>"


def _speech(span: Span, css: str, *, has_children: bool = False) -> Iterator[str]:
    """Yield what was said in a span; its children, if it has any, contain the answer."""
    made = sections(conversation(span, has_children=has_children), is_full=True)
    body = "".join(_section(each, is_first=not number) for number, each in enumerate(made))
    if body:
        yield tag("div", body, css)


def _section(section: Section, *, is_first: bool) -> str:
    if section.is_folded:
        return tag("details", tag("summary", shown(section.label)) + section.html, "e-fold")
    if is_first or section.label == "Answer":  # its line says what it is
        return section.html
    return tag("h3", shown(section.label)) + section.html


def _badges(span: Span) -> str:
    error = tag("span", shown(span.error.replace("_", " ")), "c-option e-k-bad") if span.error is not None else ""
    return error + "".join(tag("span", shown(badge), "c-option") for badge in badges_of(span))


def _figures(span: Span, children: Sequence[Span] = ()) -> str:
    words = [form.format(figure) for form, figure in zip(_FIGURES, figures_of(span, children), strict=False) if figure]
    return tag("span", shown(" · ".join(words)), "e-figures") if words else ""


# ---- the waterfall


def _waterfall(trace: Trace, below: Below) -> Iterator[str]:
    if len(trace.spans) < 2:
        return
    began = min(span.start_ns for span in trace.spans)
    length = max(max(span.end_ns for span in trace.spans) - began, 1)
    yield f'<details class="e-waterfall"><summary>Waterfall, {duration(length)}</summary>'
    yield from _rows(below.get(None, ()), below, (began, length), 0)
    yield "</details>"


def _rows(spans: Sequence[Span], below: Below, scale: tuple[int, int], depth: int) -> Iterator[str]:
    began, length = scale
    for span in spans:
        width = max((span.end_ns - span.start_ns) * _WIDTH / length, 2)
        x = min((span.start_ns - began) * _WIDTH / length, _WIDTH - width)
        css = f"e-k-{'bad' if span.error is not None else span.kind.value}"
        yield (
            f'<a href="#s{span.span_id.hex()}" class="e-row"><span class="e-d{min(depth, _DEEPEST)}">'
            f'<b class="{css}">{shown(name_of(span))}</b> {shown(gist_of(span, is_parent=True))}</span>'
            f'<svg class="{css}" viewBox="0 0 {_WIDTH} 10" preserveAspectRatio="none" aria-hidden="true">'
            f'<rect x="{x:.1f}" width="{width:.1f}" height="10" rx="2"/></svg>'
            f"<span>{shown((figures_of(span) or [''])[-1])}</span></a>"
        )
        yield from _rows(below.get(span.span_id, ()), below, scale, depth + 1)
