"""Finds the positions of secrets in a text, and reads only a small part of it in Python.

Hand-written because a scanner that runs about a hundred regular expressions one after the other costs a hundred times
as much as encoding the text; `benchmarks/masking.py` measures both.

**Token formats** (`formats`) have a prefix and many word characters. The text is reduced to "word character or not"
(one `bytes.translate`), and prefixes are searched only in runs of at least `formats.RUN` word characters.

**Everything else** (`names`, `forms`, `keys`) begins with a word of a table, and `words` searches for all of them.

**Encodings** that hide a secret are undone: base64 is decoded, and so are the escapes of JSON and the colours of a
terminal; a secret in the plain text is a hit at its place in the original.

Cost: a candidate that is not a secret costs a few hundred bytes of reading; a secret is read once. So the scan is
linear, and a `Meter` that counts steps bounds it.

Positions are bytes of UTF-8. Every hit begins and ends next to an ASCII character, so no character is torn.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import cache
from itertools import accumulate, compress
from typing import TYPE_CHECKING, Final

from turnspan import lazy
from turnspan.secrets import formats, forms, keys, names, values
from turnspan.secrets.words import searches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turnspan.secrets.words import Hit, Search, WordRow

OWN_CREDENTIAL: Final = "own-credential"
_ATTEMPT: Final = 400  # steps for one candidate; a step is one character of plain text
_BASE64_MIN, _BASE64_MAX = 40, 350_000  # characters of base64 that are decoded and scanned
_BASE64_DEPTH: Final = 2
_SMALL: Final = 8192  # bytes; in longer texts one search is faster than a look for each word or prefix


class OverBudget(Exception):  # noqa: N818  expected: the caller withholds the text
    """Scanning the text would exceed the budget."""


class Meter:
    """A budget of steps for a scan; `is_late`, if given, also ends it when its time is up."""

    def __init__(self, steps: int, is_late: Callable[[], bool] | None = None) -> None:
        self._left = steps
        self._is_late = is_late

    def spend(self, steps: int) -> None:
        """Use `steps` of the budget; raise `OverBudget` when it is used up."""
        self._left -= steps
        if self._left < 0 or (self._is_late is not None and self._is_late()):
            raise OverBudget


def find(
    data: bytes, credentials: Sequence[bytes], meter: Meter, *, has_builtin: bool = True, depth: int = 0
) -> list[Hit]:
    """Return every secret in `data`, in any order, possibly overlapping."""
    meter.spend(len(data) + 50)
    hits: list[Hit] = []
    for credential in credentials:
        at = data.find(credential)
        while at >= 0:
            hits.append((at, at + len(credential), OWN_CREDENTIAL))
            at = data.find(credential, at + len(credential))
    if not has_builtin or len(data) < 8:
        return hits
    if len(data) >= formats.RUN:
        _find_formats(data, credentials, hits, meter, depth)
    _find_words(data, hits, meter)
    if depth == 0:
        _find_hidden(data, credentials, hits, meter)
    return hits


@cache
def rows() -> tuple[WordRow, ...]:
    """Return the table of all words."""
    return (*names.rows(), *forms.rows(), *keys.rows())


@cache
def _searches() -> tuple[Search, ...]:
    return searches(rows())


def _find_words(data: bytes, hits: list[Hit], meter: Meter) -> None:
    lower = data.lower()
    done: dict[object, int] = {}
    for search in _searches():
        # Most events have no such word, and compiling a pattern takes a hundredth of an event.
        if _WORDS_FIRST.covers(len(lower)) and not search.may_find(lower):
            continue
        for row, at in search.candidates(lower):
            if at >= done.get(row, 0):
                meter.spend(_ATTEMPT)
                done[row] = row.look(data, at, hits)


# ---- escapes and colours

# Escapes of JSON for ASCII characters, and sequences that colour or clear, as they are or escaped.
_HIDING: Final = lazy.pattern(
    rb"\\u00(?P<code>[2-7][0-9a-fA-F])|(?:\x1b|\\u001[bB]|\\x1[bB]|\\033|\\e)\[[0-9;:]{0,20}[mK]"
)
# The same where it can hide something: a colour that has a name or a value on both sides.
_ESCAPED: Final = lazy.pattern(rb"\\(?:u00|x1[bB]\[|033\[|e\[)")
_COLOURED: Final = lazy.pattern(
    rb"""\x1b(?:(?<=[\w"'=:\]/+.-]\x1b)|(?<=[=:][ ]\x1b))(?:\[[0-9;:]{0,20}[mK](?:\x1b(?=\[))?)++(?=["'\w=:/+.-])"""
)
_NEAR: Final = 2_000  # bytes of a long line before and after an escape


def _find_hidden(data: bytes, credentials: Sequence[bytes], hits: list[Hit], meter: Meter) -> None:
    """Scan lines with escapes or colours without them; what is found is a hit at its place in the original."""
    regions = list(_lines_with_escapes(data))
    if not regions:
        return
    joined = b"\n\0\n".join(data[start:end] for start, end in regions)
    plain = _HIDING.sub(lambda found: bytes([int(found["code"], 16)]) if found["code"] else b"", joined)
    inside = find(plain, credentials, meter, depth=1) if plain != joined else []
    if not inside:
        return
    # For each byte of the plain text its place in the joined one, as runs of equal distance; then that in the text.
    begins, places, removed = [0], [0], 0
    for found in _HIDING.finditer(joined):
        removed += found.end() - found.start() - (found["code"] is not None)
        begins.append(found.end() - removed)
        places.append(found.end())
    offsets = list(accumulate((end - start + 3 for start, end in regions), initial=0))

    def place(at: int) -> int:
        run = bisect_right(begins, at) - 1
        is_escaped = run + 1 < len(begins) and at == begins[run + 1] - 1
        in_joined = places[run] + at - begins[run]
        if is_escaped and joined[in_joined : in_joined + 4] == b"\\u00":
            in_joined = places[run + 1] - 6
        region = bisect_right(offsets, in_joined) - 1
        return regions[region][0] + in_joined - offsets[region]

    for start, end, rule in inside:
        first, last = place(start), place(end - 1)
        is_escape = data[last : last + 4] == b"\\u00" and plain[end - 1 : end] != b"\\"
        hits.append((first, last + (6 if is_escape else 1), rule))


def _lines_with_escapes(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield the lines with an escape, start and end; of a long line what is near it."""
    end = 0
    coloured, escaped = _COLOURED.search(data), _ESCAPED.search(data)
    while coloured is not None or escaped is not None:
        at = min(found.start() for found in (coloured, escaped) if found is not None)
        start = max(data.rfind(b"\n", end, at) + 1, end, at - _NEAR)
        end = data.find(b"\n", at, at + _NEAR)
        end = end if end >= 0 else min(at + _NEAR, len(data))
        yield start, end
        coloured = _COLOURED.search(data, end) if coloured is not None else None
        escaped = _ESCAPED.search(data, end) if escaped is not None else None


# ---- formats

_WORD_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-%+/"
_IS_WORD: Final = bytes(ord("w" if code in _WORD_CHARACTERS else " ") for code in range(256))
_IDENTIFIER_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyz_-/"
_RUN: Final = b"w" * formats.RUN
_BASE64: Final = lazy.pattern(
    rb"[A-Za-z0-9+/_-]{40,}+(?:\r?\n[A-Za-z0-9+/]{40,}+)*+(?:\r?\n[A-Za-z0-9+/]{1,80}+(?![A-Za-z0-9+/]))?={0,2}"
)
_BASE64_BACKWARDS: Final = lazy.pattern(rb"[A-Za-z0-9+/]*+")


class _Allowance:
    """An amount of text that is searched for literals first; after that, compiling the patterns costs less."""

    def __init__(self, size: int) -> None:
        self._left = size

    def covers(self, size: int) -> bool:
        """Use some of the amount; return whether the text is short, and within the amount."""
        self._left -= size
        return size < _SMALL and self._left >= 0


_HEADS_FIRST: Final = _Allowance(8 * _SMALL)
_WORDS_FIRST: Final = _Allowance(8 * _SMALL)


def _find_formats(data: bytes, credentials: Sequence[bytes], hits: list[Hit], meter: Meter, depth: int) -> None:
    shape = data.translate(_IS_WORD)
    runs: list[tuple[int, int]] = []
    at = shape.find(_RUN)
    while at >= 0:
        end = shape.find(b" ", at)
        if end < 0:
            end = len(data)
        runs.append((at, end))
        at = shape.find(_RUN, end)
    # Only small letters: an identifier in code. Tokens have digits or capitals.
    others = b"\n".join([data[start:end] for start, end in runs]).translate(None, _IDENTIFIER_CHARACTERS)
    runs = list(compress(runs, others.split(b"\n")))
    _find_prefixes(data, runs, hits, meter)
    done = 0
    for start, end in runs:
        if end - start >= _BASE64_MIN and start >= done and depth < _BASE64_DEPTH:
            done = _look_inside_base64(data, start, hits, meter, credentials=credentials, depth=depth)


def _find_prefixes(data: bytes, runs: list[tuple[int, int]], hits: list[Hit], meter: Meter) -> None:
    """Search all runs at once, each with the few bytes before it, for prefixes of token formats."""
    starts = [max(start - formats.LOOK_BEHIND, 0) for start, _ in runs]
    joined = b"\n" + b"\n".join([data[start:end] for start, (_, end) in zip(starts, runs, strict=True)])
    # Most turns have no prefix, and compiling the patterns takes a twentieth of an event.
    has_prefix = not _HEADS_FIRST.covers(len(joined)) or any(head in joined for head in formats.HEADS)
    offsets: list[int] = []
    for pattern in (*(formats.PREFIX if has_prefix else ()), formats.ODD_PREFIX):
        done = 0
        found = pattern.search(joined)
        while found is not None:
            meter.spend(_ATTEMPT // 2)
            offsets = offsets or list(
                accumulate((end - start + 1 for start, (_, end) in zip(starts, runs, strict=True)), initial=1)
            )
            prefix = found.start("prefix")
            run = bisect_right(offsets, prefix) - 1
            at = starts[run] + prefix - offsets[run]
            next_start = prefix
            if at >= done and (hit := formats.format_at(data, at)) is not None:
                hits.append(hit)
                done = hit[1]
                next_start = max(prefix, min(offsets[run + 1] - 1, prefix + done - at - 1))
            found = pattern.search(joined, max(next_start, found.start() + 1))


def _look_inside_base64(
    data: bytes, at: int, hits: list[Hit], meter: Meter, *, credentials: Sequence[bytes], depth: int
) -> int:
    """Decode base64 and scan the result; with a secret inside, all of the base64 is a hit."""
    before = _BASE64_BACKWARDS.match(data[max(0, at - 256) : at][::-1])
    start = at - (before.end() if before is not None else 0)
    found = _BASE64.match(data, start)
    if found is None:
        return at
    beginning = values.from_base64(data[start : start + 16]) or b"\0"
    if found.end() - start > _BASE64_MAX or beginning.translate(None, _PRINTABLE):
        return found.end()
    plain = values.from_base64(found[0])
    if plain is not None and (inside := find(plain, credentials, meter, depth=depth + 1)):
        hits.append((start, found.end(), min(inside)[2]))
    return found.end()


_PRINTABLE: Final = bytes([*range(0x20, 0x7F), 9, 10, 13])


