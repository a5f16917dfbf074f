"""Sessions as rows of a table with columns of a fixed width.

Not a table of `rich`: importing and drawing it takes four times as long as everything else of a list that comes from
the index, and these columns need no layout.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.index.measures import text_of
from turnspan.text import age, cells, fit, last_part, one_line

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from turnspan.trace.tally import Tally

_COLUMNS: Final = ("AGE", "SESSION", "TURNS", "TOKENS", "COST", "SENT", "PROJECT", "TITLE")
_WIDTHS: Final = {"AGE": 4, "SESSION": 8, "TURNS": 5, "TOKENS": 7, "COST": 9, "SENT": 7}
_LEFT_ALIGNED: Final = {"SESSION", "PROJECT", "TITLE"}
_GAP: Final = "  "
_NEEDS_WIDTH: Final = {"TOKENS": 80, "PROJECT": 70}  # columns that a narrower terminal does not show


class Summary(msgspec.Struct, frozen=True):
    """A session in one row."""

    session_id: str
    path: Path
    title: str
    project: str  # the working directory; before the first turn the name of the transcript's directory
    tally: Tally
    last_ns: int  # the time of the last activity
    client_version: str = ""


def table_head(width: int) -> str:
    """Return the names of the columns."""
    return _row(_COLUMNS, width)


def table_row(summary: Summary, width: int, *, now_ns: int, sent: str) -> str:
    """Return a session as one line. `sent` says how much of it was acknowledged."""
    return _row(columns_of(summary, now_ns=now_ns, sent=sent), width)


def columns_of(summary: Summary, *, now_ns: int, sent: str) -> tuple[str, ...]:
    """Return age, id, turns, tokens, cost, how much was sent, project and title of a session, formatted."""
    total = summary.tally
    return (
        age((now_ns - summary.last_ns) / 1e9) if summary.last_ns else "",
        summary.session_id[:8],
        text_of("turns", total),
        text_of("tokens", total),
        text_of("cost_usd", total),
        sent,
        one_line(last_part(summary.project)),
        summary.title if total.turns or summary.title else "(no turn yet)",
    )


def _row(cells_: Sequence[str], width: int) -> str:
    shown = [(name, cell) for name, cell in zip(_COLUMNS, cells_, strict=True) if width >= _NEEDS_WIDTH.get(name, 0)]
    widths = {**_WIDTHS, "PROJECT": min(20, width // 8)}
    taken = sum(widths[name] + len(_GAP) for name, _ in shown if name != "TITLE")
    widths["TITLE"] = max(1, width - taken)  # the title takes the rest
    padded = [_padded(name, fit(cell, widths[name]), widths[name]) for name, cell in shown]
    return fit(_GAP.join(padded).rstrip(), width)


def _padded(name: str, cell: str, width: int) -> str:
    space = " " * (width - cells(cell))
    return cell + space if name in _LEFT_ALIGNED else space + cell
