"""What a terminal is given: text that cannot command it, cut to its width, and figures read at a glance.

Rules:

- Whatever comes from a transcript, a path or a server goes through `plain` or `one_line`: no escape sequence, control
  character or change of direction reaches the screen.
- Widths are counted in cells: a Chinese character takes two.
- A figure says how it is known: `~` it is inferred, `≥` it is at least that, `?` nobody knows.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import click
from rich.cells import get_character_cell_size

if TYPE_CHECKING:
    from collections.abc import Iterator

_SEQUENCE: Final = re.compile(
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor movements
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x80-\x9f]*(?:\x07|\x1b\\|\x9c)"  # OSC…: titles, clipboard
    r"|\x1b[ -/]*[0-~]"  # all others
)
_NEWLINE: Final = re.compile("\r\n?|[\x0b\x0c\x85\u2028\u2029]")
_UNSEEN: Final = re.compile(
    "[\x00-\x08\x0e-\x1f\x7f-\x9f"  # controls but tab and newline
    "\u061c\u200b\u200e\u200f\u202a-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb"  # direction, and what has no width
    "\U000e0000-\U000e007f]"
)
# Signs that join or colour emoji. Terminals disagree about the width of what they make, and columns would not stand.
_EMOJI_GLUE: Final = re.compile(
    "[\ufe0e\ufe0f\U0001f3fb-\U0001f3ff]|(?<=[\u2190-\u2bff\ufe0f\U0001f000-\U0001faff])\u200d"
)
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ASCII: Final = str.maketrans(
    {
        "├": "|", "└": "`", "│": "|", "─": "-", "●": "*", "◆": "o", "▸": ">", "◉": "@", "○": "*", "✗": "x", "✓": "+",
        "→": ">", "←": "<", "≥": ">", "…": ".", "·": "-",
    }
)  # fmt: skip
_LONGEST_LINE: Final = 1000  # characters looked at to make one line; no screen is wider


def plain(text: str) -> str:
    """Text without anything that a terminal would obey; newlines and tabs stay."""
    text = _NEWLINE.sub("\n", _SEQUENCE.sub("", text))
    return _SURROGATE.sub("\ufffd", _UNSEEN.sub("", text))


def one_line(text: str) -> str:
    """The beginning of a text as one line, as wide in one terminal as in another."""
    line = " ".join(text[:_LONGEST_LINE].split())
    if line.isascii() and line.isprintable():
        return line
    return _EMOJI_GLUE.sub("", " ".join(plain(line).split()))


def in_ascii(text: str) -> str:
    """Our own signs spelled for a terminal that knows no others, each as wide as before."""
    return text.translate(_ASCII)


def cells(text: str) -> int:
    """How many columns a text takes."""
    return len(text) if text.isascii() else sum(map(get_character_cell_size, text))


def fit(text: str, width: int) -> str:
    """Text cut to a width; what was cut off shows as an ellipsis."""
    if len(text) <= width and cells(text) <= width:
        return text
    return text[: _beginning(text, width - 1)].rstrip() + "…" if width > 0 else ""


def _beginning(text: str, width: int) -> int:
    """How many characters of a text there is room for."""
    for number, character in enumerate(text):
        width -= get_character_cell_size(character)
        if width < 0:
            return number
    return len(text)


def broken(text: str, width: int) -> Iterator[str]:
    """A line in pieces of at most a width."""
    while (length := _beginning(text, width)) < len(text):
        yield text[: max(length, 1)]
        text = text[max(length, 1) :]
    yield text


def pad(text: str, width: int) -> str:
    """Text cut or filled up to exactly a width."""
    shown = fit(text, width)
    return shown + " " * (width - cells(shown))


def paint(text: str, fg: str | None = None, *, is_bold: bool = False) -> str:
    """Text in a colour; `click.echo` takes it away again where none is wanted."""
    return click.style(text, fg=fg, bold=is_bold or None) if text and (fg or is_bold) else text


def unstyled(text: str) -> str:
    """Text as it was before it was painted."""
    return click.unstyle(text)


# ---- figures


def duration(ns: int) -> str:
    """How long something took, in at most six characters."""
    ms = ns // 1_000_000
    if ms < 1000:
        return f"{ms}ms"
    if ms < 59_950:
        return f"{ms / 1000:.1f}s"
    seconds = (ms + 500) // 1000
    for unit, below, length in (("m", "s", 60), ("h", "m", 3600)):
        if seconds < length * (60 if unit == "m" else 24):
            return f"{seconds // length}{unit}{seconds % length // (length // 60):02d}{below}"
    return f"{seconds // 86400}d{seconds % 86400 // 3600:02d}h"


def tokens(count: int) -> str:
    """A number of tokens, in at most five characters."""
    for size, unit in ((10**12, "T"), (10**9, "G"), (10**6, "M"), (1000, "k")):
        if count >= size:
            value = count / size
            return f"{value:.1f}{unit}" if value < 99.95 else f"{value:.0f}{unit}"
    return str(count)


def usd(amount: float) -> str:
    """A cost: to the hundredth of a cent while it is small."""
    if amount and amount < 0.00005:
        return "<$0.0001"
    return f"${amount:.4f}" if amount < 1 else f"${amount:.2f}" if amount < 1000 else f"${amount:,.0f}"


def age(seconds: float) -> str:
    """How long ago something was."""
    for length, unit in ((86400 * 365, "y"), (86400 * 7, "w"), (86400, "d"), (3600, "h"), (60, "m")):
        if seconds >= length * (2 if unit == "w" else 1):
            return f"{seconds / length:.0f}{unit}" if unit != "y" else f"{seconds / length:.1f}y"
    return "now"


def iso_time(at_ns: int) -> str:
    """A time for machines: UTC, to the nanosecond."""
    seconds, ns = divmod(at_ns, 10**9)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{ns:09d}Z"


def count(number: int, word: str, words: str = "") -> str:
    """A number and what it counts: 1 turn, 2 turns."""
    return f"{number:,} {word if number == 1 else words or word + 's'}"
