"""The edits of a tool call as a coloured diff.

Rules:

- Every line of the old and the new text is shown, with its sign; long parts without changes are folded.
- Lines that were replaced by as many others have the changed words emphasised.
- `difflib` takes quadratic time. Beyond a budget the old lines are shown before the new ones.
"""

from __future__ import annotations

import re
from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.page.content.code import highlighted
from turnspan.page.content.markup import MOST_ROWS, clean, shown, tag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.page.content.section import Budget

_MOST_PAIRS: Final = 250_000  # lines of both sides, multiplied; 0.4 s in the worst case
_MOST_WORDS: Final = 40_000  # likewise, words of a pair of lines
_CONTEXT: Final = 3  # lines around a change that are not folded
_LEAST_FOLDED: Final = 4
_WORD: Final = re.compile(r"\w+|\s+|.", re.DOTALL)
_SIGNS: Final = {" ": "", "-": "c-del", "+": "c-ins"}


class DiffLine(msgspec.Struct, frozen=True):
    """A line of a diff: its sign, and its number in the old or the new text."""

    sign: str  # " ", "-", "+"
    number: int


def diff(old: str, new: str, language: str, budget: Budget) -> str:
    """Return the change of a text as markup."""
    old, new = clean(old), clean(new)
    before, after = old.split("\n") if old else [], new.split("\n") if new else []
    if before and after and not before[-1] and not after[-1]:
        before, after = before[:-1], after[:-1]  # both end with a line end
    elif not before and after and not after[-1]:
        after = after[:-1]
    rows = _rows(before, after)
    if len(rows) > MOST_ROWS:
        return tag("pre", shown(_text(rows, before, after)), "c-text")
    changed = _changed_words(rows, before, after)
    lines = {
        "-": highlighted("\n".join(before), language, budget, changed[0]),
        "+": highlighted("\n".join(after), language, budget, changed[1]),
    }
    lines[" "] = lines["-"]
    made = [_line(row, lines[row.sign][row.number]) for row in rows]
    return tag("div", "".join(_folded(rows, made)), "c-diff")


def added(text: str, language: str, budget: Budget) -> str:
    """Return a new file as markup, with line numbers."""
    text = clean(text).removesuffix("\n")
    if text.count("\n") > MOST_ROWS:
        return tag("pre", shown(text), "c-text")
    lines = highlighted(text, language, budget)
    rows = (tag("div", _number(n) + _sign("+") + tag("span", line), "c-ins") for n, line in enumerate(lines, 1))
    return tag("div", "".join(rows), "c-diff c-new")


def diff_text(old: str, new: str) -> str:
    """Return the change of a text as lines with signs."""
    before, after = clean(old).split("\n") if old else [], clean(new).split("\n") if new else []
    return _text(_rows(before, after), before, after)


def _text(rows: Sequence[DiffLine], before: Sequence[str], after: Sequence[str]) -> str:
    sides = {" ": before, "-": before, "+": after}
    return "\n".join(f"{row.sign}{sides[row.sign][row.number]}" for row in rows)


def _line(row: DiffLine, html: str) -> str:
    return tag("div", _sign(row.sign) + tag("span", html), _SIGNS[row.sign])


def _sign(sign: str) -> str:
    return tag("i", sign)


def _number(number: int) -> str:
    return f"<s>{number}</s>"


def _folded(rows: Sequence[DiffLine], made: Sequence[str]) -> Iterator[str]:
    """Yield the lines, those far from any change inside a fold."""
    at = 0
    while at < len(rows):
        end = at
        while end < len(rows) and rows[end].sign == " ":
            end += 1
        first = at + (_CONTEXT if at else 0)
        last = end - (_CONTEXT if end < len(rows) else 0)
        if last - first >= _LEAST_FOLDED:
            yield from made[at:first]
            head = tag("summary", f"{last - first} unchanged lines")
            yield tag("details", head + "".join(made[first:last]))
            yield from made[last:end]
        else:
            yield from made[at:end]
        at = end
        while at < len(rows) and rows[at].sign != " ":
            yield made[at]
            at += 1


def _rows(before: Sequence[str], after: Sequence[str]) -> list[DiffLine]:
    """Return the lines of both texts in the order of a diff."""
    head = 0
    while head < min(len(before), len(after)) and before[head] == after[head]:
        head += 1
    tail = 0
    while tail < min(len(before), len(after)) - head and before[-1 - tail] == after[-1 - tail]:
        tail += 1
    rows = [DiffLine(" ", number) for number in range(head)]
    last, last_new = len(before) - tail, len(after) - tail
    if (last - head) * (last_new - head) <= _MOST_PAIRS:
        matcher = SequenceMatcher(None, before[head:last], after[head:last_new], autojunk=False)
        blocks = [(a + head, b + head, size) for a, b, size in matcher.get_matching_blocks()]
    else:
        blocks = [(last, last_new, 0)]
    old = new = head
    for a, b, size in blocks:
        rows += [DiffLine("-", number) for number in range(old, a)]
        rows += [DiffLine("+", number) for number in range(new, b)]
        rows += [DiffLine(" ", number) for number in range(a, a + size)]
        old, new = a + size, b + size
    return [*rows, *(DiffLine(" ", number) for number in range(last, len(before)))]


# ---- words


def _changed_words(
    rows: Sequence[DiffLine], before: Sequence[str], after: Sequence[str]
) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges of both texts that changed within lines."""
    changed: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    starts = (_starts(before), _starts(after))
    for removed, added_rows in _replacements(rows):
        for one, other in zip(removed, added_rows, strict=True):
            ranges = _word_ranges(before[one], after[other])
            for side, number in enumerate((one, other)):
                start = starts[side][number]
                changed[side].extend((start + first, start + last) for first, last in ranges[side])
    return changed


def _starts(lines: Sequence[str]) -> list[int]:
    starts, at = [], 0
    for line in lines:
        starts.append(at)
        at += len(line) + 1
    return starts


def _replacements(rows: Sequence[DiffLine]) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the numbers of lines that were replaced by as many others."""
    removed: list[int] = []
    added_rows: list[int] = []
    for row in (*rows, DiffLine(" ", 0)):
        if row.sign == "-" and not added_rows:
            removed.append(row.number)
        elif row.sign == "+":
            added_rows.append(row.number)
        else:
            if removed and len(removed) == len(added_rows):
                yield removed, added_rows
            removed, added_rows = ([row.number] if row.sign == "-" else []), []


def _word_ranges(old: str, new: str) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return the ranges that differ; none where the lines have little in common."""
    words, others = _WORD.findall(old), _WORD.findall(new)
    if len(words) * len(others) > _MOST_WORDS:
        return [], []
    matcher = SequenceMatcher(None, words, others, autojunk=False)
    if matcher.ratio() < 0.5:
        return [], []
    ranges: tuple[list[tuple[int, int]], list[tuple[int, int]]] = ([], [])
    starts = ([0], [0])
    for side, found in enumerate((words, others)):
        for word in found:
            starts[side].append(starts[side][-1] + len(word))
    for kind, a, b, c, d in matcher.get_opcodes():
        if kind != "equal":
            ranges[0].extend([(starts[0][a], starts[0][b])] if b > a else [])
            ranges[1].extend([(starts[1][c], starts[1][d])] if d > c else [])
    return ranges
