"""Text as safe markup: the one place where content becomes HTML.

Rules:

- `&`, `<`, `>` and quotes are escaped.
- Control characters are visible: those of ASCII as their symbols (␛), all others and direction marks as U+202E.
- A masked part, `[redacted:…]` or `[withheld: …]`, is a `<mark>`, even where a highlighter would split it.
- Names of tags and classes come from our code and are not escaped.
- Markup is a few times as long as the text, not a hundred times: long texts have no element for each line or character.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    Run = tuple[int, int, str]  # start and end in a text, and the class of that part; "" has none

MASK: Final = re.compile(r"\[redacted:[^\]\s]{1,60}\]|\[withheld: [^\]\n]{1,60}\]")
_NEWLINE: Final = re.compile("\r\n?")
_SPECIAL: Final = re.compile(
    "[&<>\"'\x00-\x08\x0b-\x1f\x7f-\x9f"  # markup, and controls except tab and newline
    "\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff\U000e0000-\U000e007f]"
)
MOST_ROWS: Final = 20_000  # lines that are elements of their own; longer texts are one block
_MOST_MARKED: Final = 1_000_000  # characters of a text in which control characters have an element
_ESCAPES: Final = {"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#39;"}


def tag(name: str, body: str, css: str = "") -> str:
    """Return an element around markup."""
    return f'<{name} class="{css}">{body}</{name}>' if css else f"<{name}>{body}</{name}>"


def clean(text: str) -> str:
    """Return a text with one kind of line ends."""
    return _NEWLINE.sub("\n", text) if "\r" in text else text


def shown(text: str) -> str:
    """Return a text as markup."""
    if "[" not in text:
        return _escaped(text)
    pieces: list[str] = []
    at = 0
    for mask in MASK.finditer(text):
        pieces += (_escaped(text[at : mask.start()]), _marked(mask[0]))
        at = mask.end()
    pieces.append(_escaped(text[at:]))
    return "".join(pieces)


def attribute(text: str) -> str:
    """Return a text as the value of an attribute in double quotes."""
    return text.translate(_table()) if _SPECIAL.search(text) else text


@cache
def _table() -> dict[int, str]:
    """Return what each special character becomes: with ten million of them, eight times as fast as a function."""
    planes = (range(0xA0), range(0x600, 0x700), range(0x2000, 0x2100), range(0xD800, 0xE000), range(0xFE00, 0x10000))
    codes = (code for plane in (*planes, range(0xE0000, 0xE0100)) for code in plane if _SPECIAL.match(chr(code)))
    return {code: visible(chr(code)) for code in codes} | {
        ord(character): escape for character, escape in _ESCAPES.items()
    }


def visible(character: str) -> str:
    """Return a name for a character that has no glyph: ␛, or U+202E."""
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    return "␡" if code == 0x7F else f"U+{code:04X}"


def _escaped(text: str) -> str:
    return _SPECIAL.sub(_escape, text) if len(text) <= _MOST_MARKED else attribute(text)


def _escape(found: re.Match[str]) -> str:
    return _ESCAPES.get(found[0]) or f'<span class="c-ctl">{visible(found[0])}</span>'


def _marked(mask: str) -> str:
    return f"<mark>{_escaped(mask)}</mark>"


# ---- text in several colours


def painted(text: str, runs: Iterable[Run], changed: Sequence[tuple[int, int]] = ()) -> list[str]:
    """Return the lines of a text as markup, each run in its class; `changed` ranges are emphasised.

    Runs are in order. Parts of the text that no run covers have no class, so that the text is always complete.
    """
    lines: list[list[str]] = [[]]
    for start, end, css, is_changed in _marked_runs(text, _covering(text, runs), changed):
        first, *rest = text[start:end].split("\n")
        for number, part in enumerate((first, *rest)):
            if number:
                lines.append([])
            if part:
                lines[-1].append(_painted_part(part, css, is_changed=is_changed))
    return ["".join(line) for line in lines]


def _painted_part(part: str, css: str, *, is_changed: bool) -> str:
    if css == "mark":
        return _marked(part)
    body = f'<span class="{css}">{_escaped(part)}</span>' if css else _escaped(part)
    return f"<b>{body}</b>" if is_changed else body


def _covering(text: str, runs: Iterable[Run]) -> Iterator[Run]:
    """Yield the runs without overlaps, with the gaps between them, and with each masked part as one run."""
    masks = MASK.finditer(text) if "[" in text else iter(())
    mask = next(masks, None)
    at = 0
    for start, end, css in (*runs, (len(text), len(text), "")):
        pieces = ((at, start, ""), (start, end, css))
        for first, last, colour in pieces:
            begin = max(first, at)
            while mask is not None and mask.start() < last:
                if mask.start() > begin:
                    yield begin, mask.start(), colour
                if mask.start() >= at:
                    yield mask.start(), mask.end(), "mark"
                    at = mask.end()
                begin = max(begin, at)
                mask = next(masks, None)
            if begin < last:
                yield begin, last, colour
                at = last


def _marked_runs(
    text: str, runs: Iterable[Run], changed: Sequence[tuple[int, int]]
) -> Iterator[tuple[int, int, str, bool]]:
    """Yield the runs, split where a changed range begins or ends."""
    ranges = iter((*changed, (len(text) + 1, len(text) + 1)))
    first, last = next(ranges)
    for start, end, css in runs:
        at = start
        while at < end:
            while last <= at:
                first, last = next(ranges)
            is_changed = first <= at
            stop = min(end, last if is_changed else first)
            yield at, stop, css, is_changed
            at = stop
