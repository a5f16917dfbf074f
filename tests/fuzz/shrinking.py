"""Shrinks a crash: rows and fields are removed as long as it stays the same crash."""

from __future__ import annotations

import json
import traceback
from typing import TYPE_CHECKING, Any

from . import targets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def every_cut(content: bytes) -> Iterator[list[int]]:
    """Return cuts after each row, after a single row, and in the middle of a row."""
    ends = [at + 1 for at, byte in enumerate(content) if byte == 10]
    yield ends
    yield from ([end] for end in ends)
    starts = [0, *ends]
    yield [(start + end) // 2 for start, end in zip(starts, ends, strict=False)]


CHECKS: dict[str, Callable[[bytes], object]] = {
    "lines": targets.check_lines,
    "path": lambda case: targets.check_path(case, every_cut),
}


def crash_of(target: str, case: bytes) -> str | None:
    """Return where a case crashes, if it does: the error and the last place in the code."""
    try:
        CHECKS[target](case)
    except Exception as error:  # noqa: BLE001  any exception is a crash
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return f"{type(error).__name__} in {frame.filename}:{frame.lineno}"
    return None


def shrunk(target: str, case: bytes) -> bytes:
    """Return the smallest case found with the same crash."""
    wanted = crash_of(target, case)
    assert wanted is not None, "it does not crash"

    def is_same(other: bytes) -> bool:
        return crash_of(target, other) == wanted

    before = b""
    while before != case:
        before = case
        case = fewer_rows(case, is_same)
        case = _fewer_fields(case, is_same)
    return case


def fewer_rows(case: bytes, is_same: Callable[[bytes], bool]) -> bytes:
    """Remove rows, many at once and then one by one, as long as it stays the same."""
    rows = case.splitlines(keepends=True)
    size = max(1, len(rows) // 2)
    while size:
        at = 0
        while at < len(rows):
            fewer = rows[:at] + rows[at + size :]
            if is_same(b"".join(fewer)):
                rows = fewer
            else:
                at += size
        size //= 2
    return b"".join(rows)


def _fewer_fields(case: bytes, is_same: Callable[[bytes], bool]) -> bytes:
    rows = case.splitlines(keepends=True)
    for number, row in enumerate(rows):
        try:
            value = json.loads(row)
        except ValueError:
            continue
        places = list(_places(value))
        for holder, key in reversed(places):
            kept = holder[key]
            rest = list(holder.items()) if isinstance(holder, dict) else None
            del holder[key]
            smaller = json.dumps(value, separators=(",", ":")).encode() + b"\n"
            if is_same(b"".join((*rows[:number], smaller, *rows[number + 1 :]))):
                rows[number] = smaller
            elif rest is not None:
                holder.clear()
                holder.update(rest)
            else:
                holder.insert(key, kept)
    return b"".join(rows)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield value, key
        yield from _places(item)
