"""Commands and their output as a terminal block.

Colours of ANSI escape sequences become classes; all other sequences, which move the cursor or set a title, are removed.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from turnspan.page.content.code import highlighted
from turnspan.page.content.markup import clean, painted, shown, tag

if TYPE_CHECKING:
    from turnspan.page.content.markup import Run
    from turnspan.page.content.section import Budget

_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)([0-?]{0,64})[ -/]{0,8}([@-~])"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]{0,4096}(?:\x07|\x1b\\|\x9c)"
    r"|\x1b[ -/]{0,8}[0-~]"
)
_COLOURS: Final = {str(30 + n): f"c-a{n}" for n in range(8)} | {str(90 + n): f"c-a{n}" for n in range(8)}


def console(command: str, output: str | None, status: str, budget: Budget, *, is_bad: bool = False) -> str:
    """Return a command, what it printed, and how it ended."""
    lines = highlighted(clean(command).strip("\n"), "bash", budget)
    html = tag("pre", tag("i", "$ ") + "\n".join(lines), "c-cmd")
    if output and output.strip():
        html += tag("pre", ansi(output.strip("\r\n")), "c-out")
    if status:
        html += tag("div", shown(status), "c-exit c-bad" if is_bad else "c-exit")
    return tag("div", html, "c-term")


def ansi(text: str) -> str:
    """Return the output of a program as markup, in its colours."""
    text = clean(text)
    if not _SEQUENCE.search(text):
        return shown(text)
    pieces: list[str] = []
    runs: list[Run] = []
    length = at = begin = 0
    css = ""
    for found in _SEQUENCE.finditer(text):
        pieces.append(text[at : found.start()])
        length += found.start() - at
        at = found.end()
        if found[2] == "m":
            runs.append((begin, length, css))
            begin, css = length, _class_of(found[1], css)
    pieces.append(text[at:])
    runs.append((begin, length + len(text) - at, css))
    return "\n".join(painted("".join(pieces), runs))


def _class_of(codes: str, css: str) -> str:
    """Return the class after a sequence that sets colours: the last foreground colour, bold, faint."""
    names = [] if not codes else css.split()
    parts = iter(codes.split(";"))
    for code in parts:
        if code in {"", "0", "39", "22"}:
            names = [] if code in {"", "0"} else [n for n in names if (n in {"c-ab", "c-af"}) != (code == "22")]
        elif code in {"38", "48"}:  # a colour of 256 or of all: its numbers are not codes
            kind = next(parts, "")
            for _ in range(3 if kind == "2" else 1):
                next(parts, "")
        elif code == "1":
            names.append("c-ab")
        elif code == "2":
            names.append("c-af")
        elif code in _COLOURS:
            names = [n for n in names if n in {"c-ab", "c-af"}] + [_COLOURS[code]]
    return " ".join(dict.fromkeys(names))
