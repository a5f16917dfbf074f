"""Estimates how long a regular expression of the user can take in the worst case, before it is used.

`re` has no limit on its steps, and a limit in seconds would make the result depend on the machine. So the parsed
expression is examined: parts that can match the same characters in several ways multiply, `a*a*` as well as `a?a?`. The
estimate is an upper bound of the ways to match one piece of text; the search may start at each character of it.
"""

from __future__ import annotations

import re
from functools import cache
from math import inf
from re import _constants as c  # type: ignore[attr-defined]  # as stable as the syntax since Python 3.11
from re import _parser  # type: ignore[attr-defined]
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_OTHER: Final = 128  # all characters beyond ASCII
_ALL: Final = frozenset(range(_OTHER + 1))
_CATEGORIES: Final = {
    c.CATEGORY_DIGIT: r"\d", c.CATEGORY_SPACE: r"\s", c.CATEGORY_WORD: r"\w",
    c.CATEGORY_NOT_DIGIT: r"\D", c.CATEGORY_NOT_SPACE: r"\S", c.CATEGORY_NOT_WORD: r"\W",
}  # fmt: skip
_MOST_REPEATS: Final = 60


class _Atom(NamedTuple):
    """A part of an expression: its characters, the number of ways it can match, and whether it must match."""

    chars: frozenset[int]
    ways: float
    is_needed: bool


def worst_case(source: str, length: int) -> float:
    """Return an upper bound of the ways to match an expression somewhere in a text of this length."""
    atoms = list(_atoms(_parser.parse(source), length))
    worst = float(length)
    for first, atom in enumerate(atoms):
        if atom.ways > 1:
            pumped, ways = atom.chars, atom.ways
            for later in atoms[first + 1 :]:
                if later.chars.isdisjoint(pumped):
                    if later.is_needed:
                        break
                elif later.ways > 1:
                    pumped, ways = pumped & later.chars, ways * later.ways
            is_start_fixed = any(one.is_needed and one.chars.isdisjoint(pumped) for one in atoms[:first])
            worst = max(worst, ways * (1 if is_start_fixed else length))
    return worst


def _atoms(parsed: Iterable[tuple[Any, Any]], length: int) -> Iterator[_Atom]:
    for op, value in parsed:
        if op is c.SUBPATTERN:
            yield from _atoms(value[3], length)
        elif op in {c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT}:
            yield _repeat(
                value[0], value[1], list(_atoms(value[2], length)), length, is_final=op is c.POSSESSIVE_REPEAT
            )
        elif op is c.ATOMIC_GROUP:
            yield _Atom(_chars(_atoms(value, length)), 1, is_needed=True)
        elif op is c.BRANCH:
            yield _choice([list(_atoms(branch, length)) for branch in value[1]])
        elif op in {c.ASSERT, c.ASSERT_NOT}:
            yield _Atom(_ALL, _ways(_atoms(value[1], length)), is_needed=False)
        elif op in {c.GROUPREF, c.GROUPREF_IGNORE, c.GROUPREF_EXISTS}:
            yield _Atom(_ALL, length, is_needed=False)
        elif op is not c.AT:
            yield _Atom(_set(op, value), 1, is_needed=True)


def _repeat(least: int, most: int, body: list[_Atom], length: int, *, is_final: bool) -> _Atom:
    spread = min(int(most), length) - min(least, length) + 1
    try:
        ways = spread * _ways(body) ** min(int(most), _MOST_REPEATS)
    except OverflowError:  # more than a float can hold
        ways = inf
    return _Atom(_chars(body), 1 if is_final else ways, is_needed=least > 0)


def _choice(branches: list[list[_Atom]]) -> _Atom:
    firsts = [branch[0].chars for branch in branches if branch]
    is_clear = sum(map(len, firsts)) == len(frozenset[int]().union(*firsts)) and len(firsts) == len(branches)
    ways = max(map(_ways, branches)) * (1 if is_clear else len(branches))
    return _Atom(_chars(atom for branch in branches for atom in branch), ways, is_needed=all(branches))


def _ways(atoms: Iterable[_Atom]) -> float:
    ways = 1.0
    for atom in atoms:
        ways = min(ways * atom.ways, 1e300)
    return ways


def _chars(atoms: Iterable[_Atom]) -> frozenset[int]:
    return frozenset[int]().union(*(atom.chars for atom in atoms))


def _set(op: Any, value: Any) -> frozenset[int]:  # noqa: ANN401 - as the parser has them
    if op is c.LITERAL:
        return _both_cases({min(value, _OTHER)})
    if op is c.NOT_LITERAL:
        return _ALL - ({value} - {_OTHER})
    if op is c.RANGE:
        return _both_cases({min(char, _OTHER) for char in range(value[0], min(value[1], _OTHER) + 1)} or {_OTHER})
    if op is c.CATEGORY:
        return _category(_CATEGORIES.get(value, ""))
    if op is c.IN:
        found = frozenset[int]().union(*(_set(*item) for item in value if item[0] is not c.NEGATE))
        return (_ALL - (found - {_OTHER})) if value[0][0] is c.NEGATE else found
    return _ALL - {ord("\n")} if op is c.ANY else _ALL


def _both_cases(chars: set[int]) -> frozenset[int]:
    """The characters in both cases: the expression may ignore case."""
    return frozenset(chars | {ord(chr(char).swapcase()) for char in chars if char < _OTHER})


@cache
def _category(source: str) -> frozenset[int]:
    return frozenset({_OTHER, *(char for char in range(_OTHER) if re.match(source, chr(char)))})
