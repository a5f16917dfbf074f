"""Searches a text for the words of a table, and reads only a small part of it in Python.

A table has a `WordRow` for every word, in small letters: what must follow the word, and the function that looks at
it. The plain way is to search the text for each word, one after the other (the tests do that). `re` finds a pattern
that begins with a literal character in a quarter of a nanosecond a byte, but not one that ignores case or begins with
a choice, and most of the cost is the places where that character occurs. So the search is derived from the table:

- `_literals` chooses a few infrequent characters, or parts that words have in common, so that each word holds one.
- The words with the same literal are one pattern: the literal, then what is before and after it in each word.
- A text in which no word occurs at all is not searched, as long as compiling the patterns would take longer.

What a pattern finds is only a candidate: the row's function reads the original text at that position and decides.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from turnspan import lazy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

Hit: TypeAlias = tuple[int, int, str]  # start, end, rule
# Appends the hits at the position of a word and returns where the search for this word continues.
Look: TypeAlias = "Callable[[bytes, int, list[Hit]], int]"

# About how often a character occurs in ten thousand bytes of code and prose in small letters; others are rare.
_FREQUENT: Final = {
    character: frequency
    for frequency, some in (
        (1000, b" e"), (500, b"atoinrs\n"), (250, b"lcd"), (190, b"umphf"), (120, b"gb_."), (90, b"y()=\"':,/\t"),
        (60, b"kvw-{}[]"), (30, b"x0123456789<>"),
    )
    for character in some
}  # fmt: skip
_RARE: Final = 15
_SEARCH: Final = 15  # the cost of one more search for a character, in the same unit
_SEARCH_STRING: Final = 150  # of one for several characters, which does not depend on how often the first occurs
_LONG: Final = 9  # a word of so many characters is found faster without `re`


class WordRow(NamedTuple):
    """A word in small letters, what looks at it, and the patterns of the rest of the word and of what follows.

    Rows with the same `follows` share it in the search.
    """

    word: bytes
    look: Look
    follows: bytes = b""
    rest: bytes = b""

    @property
    def pattern(self) -> bytes:
        """The pattern of the word and what must follow it."""
        return re.escape(self.word) + rb"(?=" + self.rest + self.follows + rb")"


class Search:
    """One search for all words that have a literal in common."""

    def __init__(self, literal: bytes, rows: Sequence[WordRow]) -> None:
        self.literal = literal
        self.words = {row.word for row in rows}
        self._rows = rows
        self._order: list[WordRow] = []
        # What is consumed after the literal does not hold it again, so that no candidate hides the next one.
        around = [_around(row, literal) for row in rows]
        self._pattern = lazy.pattern(re.escape(literal) + _choice(around, self._order))
        self._others: dict[int, list[tuple[WordRow, int, re.Pattern[bytes]]]] = {}

    def may_find(self, lower: bytes) -> bool:
        """Return whether one of the words is in the text."""
        return any(word in lower for word in self.words)

    def candidates(self, lower: bytes) -> Iterator[tuple[WordRow, int]]:
        """Yield the rows whose word is in the text with what follows it, and the position of the word."""
        for found in self._candidates(lower):
            number = (found.lastindex or 1) - 1
            row = self._order[number]
            yield row, found.start() - row.word.rindex(self.literal)
            if number not in self._others:
                self._others[number] = self._at_the_same_place(row)
            for other, distance, exact in self._others[number]:
                at = found.start() - distance
                if at >= 0 and exact.match(lower, at) is not None:
                    yield other, at

    def _at_the_same_place(self, row: WordRow) -> list[tuple[WordRow, int, re.Pattern[bytes]]]:
        """Return the other rows whose words can be where the word of a row was found, and how to find out."""
        others = [other for other in self._rows if _overlap(row, other, self.literal)]
        return [(other, other.word.rindex(self.literal), re.compile(other.pattern)) for other in others]

    def _candidates(self, lower: bytes) -> Iterator[re.Match[bytes]]:
        at = lower.find(self.literal)
        if len(self.literal) < _LONG and at >= 0:
            yield from self._pattern.finditer(lower, at)
            return
        while at >= 0:
            if (found := self._pattern.match(lower, at)) is not None:
                yield found
            at = lower.find(self.literal, at + 1)


def _overlap(row: WordRow, other: WordRow, literal: bytes) -> bool:
    """Return whether the words of two rows can be at one place, the last of their literals at the same position."""
    (before, _, after), (before_other, _, after_other) = row.word.rpartition(literal), other.word.rpartition(literal)
    return row is not other and (
        (before.endswith(before_other) or before_other.endswith(before))
        and (after.startswith(after_other) or after_other.startswith(after))
    )


_Around: TypeAlias = "tuple[bytes, bytes, WordRow]"


def _around(row: WordRow, literal: bytes) -> _Around:
    """Return what is after the literal in a word, and the pattern of the rest, where the word is around the literal."""
    before, _, after = row.word.rpartition(literal)
    return after, (rb"(?<=" + re.escape(row.word) + rb")" if before else b"") + row.rest + b"()", row


def _choice(some: Sequence[_Around], order: list[WordRow], depth: int = 0) -> bytes:
    """Return a pattern that tries words by their next character, as `re` does that fastest; appends the rows in order.

    After the first character, words that must be followed by the same are together, so that this is there once.
    """
    groups: dict[bytes, list[_Around]] = {}
    for after, rest, row in some:
        groups.setdefault(row.follows if depth == 1 else after[:1], []).append((after[depth != 1 :], rest, row))
    choices = []
    for key, group in groups.items():
        if depth == 1:
            choices.append(_choice(group, order, 2) + (rb"(?=" + key + rb")" if key else b""))
        elif key:
            choices.append(re.escape(key) + _choice(group, order, depth + 1))
        elif depth == 0:
            choices.append(_choice(group, order, 1))
        else:
            choices += [rest for _, rest, _ in group]
            order += [row for _, _, row in group]
    return choices[0] if len(choices) == 1 else rb"(?:" + b"|".join(choices) + rb")"


def searches(rows: Sequence[WordRow]) -> tuple[Search, ...]:
    """Return the searches that find all words of a table."""
    literals = _literals([row.word for row in rows])
    by_literal: dict[bytes, list[WordRow]] = {}
    for row in rows:
        own = [literal for literal in literals if literal in row.word]
        # The earlier the literal is in the word, the sooner `re` sees that the rest does not follow.
        by_literal.setdefault(min(own, key=row.word.rindex), []).append(row)
    return tuple(Search(literal, some) for literal, some in by_literal.items())


def _literals(words: Sequence[bytes]) -> list[bytes]:
    """Return few and infrequent characters, or parts of words, so that every word holds one of them."""
    left, literals = {word: _parts(word) for word in words}, list[bytes]()
    holders = Counter(part for parts in left.values() for part in parts)
    while left:
        best = min(holders, key=lambda part: (_cost(part) / holders[part], -len(part), part))
        for word in [word for word in left if best in word]:
            for part in left.pop(word):
                holders[part] -= 1
        holders = +holders
        literals.append(best)
    return literals


def _parts(word: bytes) -> set[bytes]:
    """Return the parts of a word by which it can be searched: characters, three of them, all of a long word."""
    parts = {word[at : at + size] for size in (1, 3) for at in range(len(word) - size + 1)}
    return parts | {word} if len(word) >= _LONG else parts


def _cost(literal: bytes) -> int:
    if len(literal) == 1:
        return _SEARCH + _FREQUENT.get(literal[0], _RARE)
    return _SEARCH_STRING if len(literal) < _LONG else _SEARCH_STRING // 2
