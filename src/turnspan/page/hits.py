"""Hits of a search as lines for the terminal: where they are, a line of context, and how to open them."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final

from turnspan.text import cells, fit, last_part, one_line, paint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.index.search import Hit

_KINDS: Final = {"tool_input": "tool call", "tool_output": "tool result"}
_FAINT: Final = "bright_black"


def hit_lines(hit: Hit, session: str, width: int) -> Iterator[str]:
    """Yield a hit: its session and turn, the words in their context, and the commands that open it.

    `session` is the beginning of its id.
    """
    when = f"{datetime.fromtimestamp(hit.start_ns / 1e9).astimezone():%Y-%m-%d %H:%M}" if hit.start_ns else ""
    turn = f"turn {hit.turn}" if hit.turn is not None else ""
    about = "  ".join(filter(None, (when, last_part(one_line(hit.project)), turn)))
    title = fit(one_line(hit.title), max(width - cells(about) - 2, 0))
    yield paint(about, fg="yellow") + ("  " + paint(title, is_bold=True) if title else "")
    yield "  " + _context(hit, width - 2)
    number = f" --turn {hit.turn}" if hit.turn is not None else ""
    yield paint(f"  turnspan show {session}{number}    turnspan view {session}", fg=_FAINT)


def _context(hit: Hit, width: int) -> str:
    """Return the words around a match in one line, with the match in it whatever the width."""
    others = f" (+{hit.others})" if hit.others else ""
    kind = _KINDS.get(hit.kind, hit.kind)
    room = max(width - cells(kind) - 2 - len(others), 10)
    pieces = [(one_line_inside(text), is_match) for text, is_match in hit.context]
    if sum(cells(text) for text, _ in pieces[:2]) > room and not pieces[0][1]:  # the match is the second piece
        pieces[0] = ("…" + pieces[0][0][-(room // 3) :].lstrip(), False)
    line = paint(f"{kind}: ", fg="cyan")
    for text, is_match in pieces:
        if room <= 0:
            break
        shown = fit(text, room)
        room -= cells(shown)
        line += paint(shown, fg="red", is_bold=True) if is_match else shown
    return line + paint(others, fg=_FAINT)


def one_line_inside(text: str) -> str:
    """Return a part of a line; spaces at its ends separate it from the next one."""
    line = one_line(text)
    return (" " if text[:1].isspace() else "") + line + (" " if line and text[-1:].isspace() else "")
