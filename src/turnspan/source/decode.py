"""Decodes the rows of one file, each with its place, and finds positions again in files that have changed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from turnspan.errors import TranscriptError
from turnspan.source import tail
from turnspan.source.progress import Position
from turnspan.transcript import entries, lines
from turnspan.transcript.rows import LinePlace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from turnspan.transcript.memory import Sealed


def entries_from(
    descriptor: int, position: Position, anomalies: lines.Anomalies, until: int | None = None
) -> Iterator[list[tuple[LinePlace, entries.Entry]]]:
    """Yield the entries of a file from a position on, each with its place, some at a time."""
    for chunk in tail.complete_chunks(
        descriptor, position.offset, position.line, until=until, is_complete=lines.is_record
    ):
        yield [pair for line in tail.lines_in(chunk) for pair in _entries_on(descriptor, line, anomalies)]


def _entries_on(
    descriptor: int, line: tail.Line, anomalies: lines.Anomalies
) -> Iterator[tuple[LinePlace, entries.Entry]]:
    """Yield the entries of one line, which may be damaged: mostly one, sometimes none or several."""
    if line.data is None:
        anomalies.oversized += 1
        return
    before = anomalies.unreadable
    found = lines.parse(line.data, anomalies)
    if anomalies.unreadable != before:
        place = (os.fstat(descriptor).st_ino, line.offset)
        anomalies.unreadable = before + (place not in anomalies.places)
        anomalies.places.add(place)
    if len(found) > 1:
        yield from _glued(line, line.data)
    elif found:
        yield LinePlace(line.number, line.offset, line.end), found[0]


def _glued(line: tail.Line, data: bytes) -> Iterator[tuple[LinePlace, entries.Entry]]:
    """Yield the records of a line that lost its newline, each with its own place: a turn can end between them."""
    found = lines.records(data)
    for start, end in found:
        is_last = (start, end) == found[-1]
        place = LinePlace(line.number, line.offset + start, line.end if is_last else line.offset + end)
        for entry in lines.parse(data[start:end], lines.Anomalies()):
            yield place, entry


def recall_from(descriptor: int) -> Callable[[int, int], entries.Entry | None]:
    """Return a function that decodes the entry at a given place again."""

    def recall(offset: int, length: int) -> entries.Entry | None:
        found = lines.parse(tail.read_line_at(descriptor, offset, length).rstrip(b"\r\n"), lines.Anomalies())
        return found[0] if found else None

    return recall


def position_behind(descriptor: int, sealed: Sealed, *, with_carry: bool = True) -> Position:
    """Return the position after what was sealed, with its carry."""
    end = sealed.end
    place = (end.line + 1, end.end, tail.fingerprint(descriptor, end.end))
    return Position(*place, sealed.carry) if with_carry else Position(*place)


def found_again(descriptor: int, position: Position) -> Position:
    """Return the position if the file before it is unchanged, else the beginning of the file."""
    if position.offset == 0:
        return position
    if position.offset > os.fstat(descriptor).st_size:
        return Position()
    return position if tail.fingerprint(descriptor, position.offset) == position.fingerprint else Position()


def first_prompt(path: Path) -> str:
    """Return the text of the first user row; empty if there is none among the first rows."""
    anomalies = lines.Anomalies()
    try:
        descriptor = tail.open_regular(path)
    except TranscriptError:
        return ""
    try:
        for line in tail.complete_lines(descriptor, is_complete=lines.is_record):
            for entry in lines.parse(line.data or b"", anomalies):
                if entry.type == "user" and entry.message is not None:
                    return entries.plain_text(entries.blocks(entry.message)).strip()
            if line.number > 50:
                break
    finally:
        os.close(descriptor)
    return ""
