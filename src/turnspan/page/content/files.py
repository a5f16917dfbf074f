"""Files as tools show them: with line numbers (Read), as lists (Glob), as lines that were found (Grep)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from turnspan.page.content.code import highlighted, language_of
from turnspan.page.content.markup import MOST_ROWS, clean, shown, tag

if TYPE_CHECKING:
    from turnspan.page.content.section import Budget

_NUMBERED: Final = re.compile(r" {0,8}(\d{1,9})[→\t](.*)")  # an arrow up to 2.1.30 or so, then a tab
_FOUND: Final = re.compile(r"((?:[A-Za-z]:)?[^:\n]{1,500}):(\d{1,9})([:-])(.*)")
_PATH: Final = re.compile(r"(?:[A-Za-z]:)?[\w.@~+/\\() \[\]-]{1,500}")


def numbered(text: str, file: str, budget: Budget) -> str | None:
    """Return the numbered lines of a file as markup, in the colours of its language; None if there are none."""
    numbers: list[str] = []
    code: list[str] = []
    lines = clean(text).split("\n")
    if len(lines) > MOST_ROWS:
        return None
    for at, line in enumerate(lines):
        found = _NUMBERED.fullmatch(line)
        if found is None:
            rest = lines[at:]
            break
        numbers.append(found[1])
        code.append(found[2])
    else:
        rest = []
    if not numbers:
        return None
    html = rows(numbers, highlighted("\n".join(code), language_of(file), budget))
    remark = "\n".join(rest).strip("\n")
    return html + tag("pre", shown(remark), "c-text c-faint") if remark else html


def rows(numbers: list[str], lines: list[str]) -> str:
    """Return lines as markup, each with a number."""
    pairs = zip(numbers, lines, strict=True)
    return tag("div", "".join(f"<div><s>{shown(n)}</s><span>{line}</span></div>" for n, line in pairs), "c-file")


def found(text: str, budget: Budget) -> str:
    """Return a list of files, or of lines in files, as markup; any other line as text."""
    if text.count("\n") > MOST_ROWS:
        return tag("pre", shown(clean(text)), "c-text")
    pieces: list[str] = []
    file = ""
    numbers: list[str] = []
    code: list[str] = []

    def flush() -> None:
        if numbers:
            pieces.append(rows(numbers, highlighted("\n".join(code), language_of(file), budget)))
            numbers.clear()
            code.clear()

    for line in clean(text).strip("\n").split("\n"):
        match = _FOUND.fullmatch(line)
        if match is not None:
            if match[1] != file:
                flush()
                file = match[1]
                pieces.append(path(file))
            numbers.append(match[2])
            code.append(match[4])
            continue
        flush()
        file = ""
        is_path = ("/" in line or "\\" in line) and _PATH.fullmatch(line) is not None
        pieces.append(path(line) if is_path else tag("div", shown(line), "c-faint"))
    flush()
    return tag("div", "".join(pieces), "c-found")


def path(file: str) -> str:
    """Return a path as markup: its directory faint, its name strong."""
    at = max(file.rfind("/"), file.rfind("\\")) + 1
    return tag("div", tag("span", shown(file[:at]), "c-faint") + tag("b", shown(file[at:])), "c-path")
