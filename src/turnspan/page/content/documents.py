"""Sections of single texts: prose, code, JSON, output of programs, lists of tasks, images that are not shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.page.content.code import highlighted
from turnspan.page.content.console import ansi
from turnspan.page.content.markdown import markdown, plain
from turnspan.page.content.markup import shown, tag
from turnspan.page.content.section import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.page.content.section import Budget

_FOLDED_LINES: Final = 15  # longer JSON is folded
_MEDIA: Final = re.compile(r"\[([\w.+-]{1,40}(?:/[\w.+-]{1,60})?), (\d{1,15}) bytes\]")
_BOXES: Final = {"completed": "☑", "in_progress": "▣", "pending": "☐", "deleted": "☒", "cancelled": "☒"}


def section(label: str, kind: str, text: str, render: Callable[[str], str], budget: Budget) -> Section:
    """Return a section of a text, or of its beginning."""
    beginning, is_cut = budget.beginning(text)
    return Section(label, kind, render(beginning), size=len(text), is_cut=is_cut)


def folded(shown_section: Section) -> Section:
    """Return a section that is folded."""
    return msgspec.structs.replace(shown_section, is_folded=True)


def prose(label: str, text: str, budget: Budget, *, is_typed: bool = False) -> Section:
    """Return Markdown. `is_typed`: a user wrote it."""
    return section(label, "markdown", text, lambda part: markdown(part, budget, is_typed=is_typed), budget)


def thinking(text: str, budget: Budget) -> Section:
    """Return the model's thinking, folded."""
    return folded(section("Thinking", "thinking", text, lambda part: markdown(part, budget), budget))


def error(label: str, text: str, budget: Budget) -> Section:
    """Return the message of an error."""
    return section(label, "error", text, lambda part: tag("pre", ansi(part), "c-text c-error"), budget)


def output(label: str, text: str, budget: Budget) -> Section:
    """Return the text that a tool returned: an image that is not shown, JSON, or anything else."""
    media = _MEDIA.fullmatch(text.strip())
    if media is not None:
        return image(media[1], int(media[2]))
    return json_value(label, text, budget) or section(
        label, "text", text, lambda part: tag("pre", ansi(part.strip("\r\n")), "c-text"), budget
    )


def json_value(label: str, text: str, budget: Budget) -> Section | None:
    """Return JSON, indented; None if the text is not an object or a list."""
    if not text.lstrip().startswith(("{", "[")):
        return None
    try:
        msgspec.json.decode(text)
        pretty = msgspec.json.format(text, indent=2)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return None
    made = section(label, "json", pretty, lambda part: _json(part, budget), budget)
    return folded(made) if pretty.count("\n") > _FOLDED_LINES else made


def arguments(label: str, text: str, budget: Budget) -> Section:
    """Return the arguments of a call: JSON, or text where they were cut or withheld."""
    return json_value(label, text, budget) or section(label, "text", text, plain, budget)


def _json(text: str, budget: Budget) -> str:
    return tag("pre", "\n".join(highlighted(text, "json", budget)), "c-code")


def image(mime: str, size: int) -> Section:
    """Return a placeholder: the bytes of an image or a document are not part of a trace."""
    amount = f"{size / 1e6:.1f} MB" if size >= 1_000_000 else f"{size / 1000:.1f} kB" if size >= 1000 else f"{size} B"
    hint = tag("span", f"{amount}, content not exported", "c-faint")
    label = "Image" if mime.startswith("image") else "Document"
    return Section(label, "image", tag("div", f"{shown(mime)} {hint}", "c-media"), size=size)


def check_list(items: Iterable[tuple[str, str]]) -> str:
    """Return (status, text) pairs as a check list."""
    rows = []
    for status, text in items:
        css = f"c-{status.replace('_', '-')}" if status in _BOXES else ""
        word = tag("span", shown(status.replace("_", " ")), "c-faint")
        rows.append(tag("li", f"{tag('i', _BOXES.get(status, '☐'))} {tag('span', shown(text))} {word}", css))
    return tag("ul", "".join(rows), "c-todos")
