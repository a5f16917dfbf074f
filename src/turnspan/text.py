"""Text for a terminal: without control sequences, cut to a width, with short figures.

Rules:

- Text from a transcript, a path or a server goes through `plain` or `one_line`: no escape sequence, control character
  or change of direction reaches the screen.
- Widths are counted in cells: a Chinese character takes two.
- A figure that is not measured is marked: `~` inferred, `≥` at least, `?` unknown.
"""

from __future__ import annotations

import io
import re
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Final

import click
from rich.cells import get_character_cell_size

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import Console
    from rich.table import Table

_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC…: titles, clipboard
    r"|\x1b[ -/]*[0-~]"  # all other sequences
)
_NEWLINE: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f"  # controls except tab and newline
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction marks, no width
    "\U000e0000-\U000e007f]"
)
# Characters that join or colour emoji: terminals disagree about the width of the result, which breaks columns.
_EMOJI_STYLE: Final = re.compile("[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]")
_EMOJI_GLUE: Final = re.compile(f"{_EMOJI_STYLE.pattern}|(?<=[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])\u200d")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ASCII: Final = str.maketrans(
    {
        "├": "|", "└": "`", "│": "|", "─": "-", "●": "*", "◆": "o", "▸": ">", "◉": "@", "○": "*", "✗": "x", "✓": "+",
        "→": ">", "←": "<", "≥": ">", "…": ".", "·": "-",
        "█": "#", "▉": "#", "▊": "#", "▋": "#", "▌": "#", "▍": "-", "▎": "-", "▏": "-",
    }
)  # fmt: skip
_AT_LEAST: Final = "≥"
_LONGEST_LINE: Final = 1000  # characters used for one line; no screen is wider


def plain(text: str) -> str:
    """Return the text without control sequences; newlines and tabs are kept."""
    text = _NEWLINE.sub("\n", _SEQUENCE.sub("", text))
    return _SURROGATE.sub("\ufffd", _UNSEEN.sub("", text))


def one_line(text: str) -> str:
    """Return the beginning of a text as one line that has the same width in every terminal."""
    line = " ".join(text[:_LONGEST_LINE].split())
    if line.isprintable():  # without anything that `plain` removes, and without joiners
        return line if line.isascii() else _EMOJI_STYLE.sub("", line)
    return _EMOJI_GLUE.sub("", " ".join(plain(line).split()))


def in_ascii(text: str) -> str:
    """Replace our own symbols by ASCII ones of the same width."""
    return text.translate(_ASCII)


def cells(text: str) -> int:
    """Return the number of columns a text takes."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def fit(text: str, width: int) -> str:
    """Cut text to a width, with an ellipsis."""
    if len(text) <= width and cells(text) <= width:
        return text
    return text[: _beginning(text, width - 1)].rstrip() + "…" if width > 0 else ""


def _beginning(text: str, width: int) -> int:
    """Return the number of characters that fit a width."""
    for number, character in enumerate(text):
        width -= get_character_cell_size(character)
        if width < 0:
            return number
    return len(text)


def broken(text: str, width: int) -> Iterator[str]:
    """Break a line into pieces of at most a width."""
    while (length := _beginning(text, width)) < len(text):
        yield text[: max(length, 1)]
        text = text[max(length, 1) :]
    yield text


def paint(text: str, fg: str | None = None, *, is_bold: bool = False) -> str:
    """Return the text in a colour; `click.echo` removes it where colour is not wanted."""
    return click.style(text, fg=fg, bold=is_bold or None) if text and (fg or is_bold) else text


def unstyled(text: str) -> str:
    """Return the text without its colours."""
    return click.unstyle(text)


def last_part(path: str) -> str:
    """Return the last part of a path of any system."""
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


def short_model(model: str) -> str:
    """Return the name of a model without its maker and date: opus-4-5."""
    return re.sub(r"-20\d{6}$", "", one_line(model)).removeprefix("claude-")


def drawn(table: Table, width: int) -> Iterator[str]:
    """Yield the lines of a table, without colours."""
    console = _console(width)
    with console.capture() as captured:
        console.print(table)
    yield from map(str.rstrip, captured.get().splitlines())


@cache
def _console(width: int) -> Console:
    from rich.console import Console  # noqa: PLC0415 - slow to import, and only tables need it

    return Console(file=io.StringIO(), width=width, height=25, color_system=None, legacy_windows=False)


# ---- figures


def duration(ns: int) -> str:
    """Format a duration in at most six characters."""
    ms = (ns + 500_000) // 1_000_000
    if ms < 1000:
        return f"{ms}ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f}s"
    seconds = (ms + 500) // 1000
    for unit, below, length in (("m", "s", 60), ("h", "m", 3600)):
        if seconds < length * (60 if unit == "m" else 24):
            return f"{seconds // length}{unit}{seconds % length // (length // 60):02d}{below}"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"


def tokens(count: int, *, is_partial: bool = False) -> str:
    """Format a number of tokens in at most five characters; a partial one has a mark before it: ≥."""
    at_least = _AT_LEAST if is_partial else ""
    for size, unit in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (1000, "k")):
        if count >= size:
            value = count / size
            return f"{at_least}{value:.1f}{unit}" if value < 99.95 else f"{at_least}{value:.0f}{unit}"
    return f"{at_least}{count}"


def usd(amount: float, *, is_partial: bool = False) -> str:
    """Format a cost, below a dollar to the hundredth of a cent; a partial one has a mark before it: ≥; ? is unknown."""
    if is_partial and not amount:
        return "?"
    if amount and amount < 0.00005 and not is_partial:
        return "<$0.0001"
    figure = f"${amount:.4f}" if amount < 1 else f"${amount:.2f}" if amount < 1000 else f"${amount:,.0f}"
    return f"{_AT_LEAST}{figure}" if is_partial else figure


def age(seconds: float) -> str:
    """Format the age of something."""
    for length, unit in ((86400 * 365, "y"), (86400 * 7, "w"), (86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length * (2 if unit == "w" else 1):
            return f"{seconds / length:.0f}{unit}" if unit != "y" else f"{seconds / length:.1f}y"
    return "now"


def iso_time(at_ns: int) -> str:
    """Format a time for machines: UTC, to the nanosecond."""
    seconds, ns = divmod(at_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def count(number: int, word: str, words: str = "") -> str:
    """Format a number with its noun: 1 turn, 2 turns."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"
