"""Looks into files without decoding all of them: their ends, their times, whether they contain something.

Rules:

- A file that does not exist or is not readable has no times and contains nothing. A transient failure is an error:
  nothing is assumed about what was not read.
- Other tools re-write transcripts: keys in any order, spaces after colons, rows of any length. A search for a field
  (`field`, `contains_id`) finds it in all of these forms.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from codecs import BOM_UTF8
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from turnspan import lazy
from turnspan.errors import TranscriptError
from turnspan.source.tail import open_regular, read_at
from turnspan.transcript.carry import parse_time

if TYPE_CHECKING:
    import re
    from collections.abc import Iterable, Iterator
    from pathlib import Path

T = TypeVar("T")

END_BYTES: Final = 65536
_TRANSIENT: Final = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EINTR, errno.EAGAIN}
_STAMP: Final = lazy.pattern(rb'"timestamp"\s*:\s*"([^"]{10,40})"')
_USUAL_STAMP: Final = len("2026-03-01T09:00:00.000Z")
_ID_KEYS: Final = frozenset({"uuid", "id", "requestId", "messageUuid", "tool_use_id"})
_ID: Final = lazy.pattern(rb'"(?:%b)"\s*:\s*"([^"\\]{1,128})"' % "|".join(sorted(_ID_KEYS)).encode())
_SEARCHES: Final = 8  # of one file, before the places of its ids are remembered: to find them takes as long as a few
_FIELD_BYTES: Final = 64  # a key, a colon and spaces


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Yield a descriptor of a regular file; None if it cannot be opened. A transient failure is an error."""
    try:
        descriptor = open_regular(path)
    except TranscriptError as error:
        if _is_transient(error.__cause__):
            raise
        yield None
        return
    try:
        yield descriptor
    except OSError as error:
        if _is_transient(error):
            raise _unread(path, error) from error
    finally:
        with suppress(OSError):  # opened for reading only
            os.close(descriptor)


def _is_transient(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and cause.errno in _TRANSIENT


def _unread(path: Path | str, error: OSError) -> TranscriptError:
    return TranscriptError(f"cannot read {str(path)!r}: {error.strerror or error}")


def stamp_of(path: str) -> tuple[int, int]:
    """Return the size and modification time of a file; as long as they are the same, cached content is valid."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        if _is_transient(error):
            raise _unread(path, error) from error
        return 0, 0
    return found.st_size, found.st_mtime_ns


def size_of(path: Path) -> int:
    """Return the size of a file; 0 if it does not exist or cannot be accessed."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def modified_ns(path: Path) -> int:
    """Return when a regular file was last written; 0 if it does not exist or is not a regular file."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0


def time_range(path: Path) -> tuple[int | None, int | None]:
    """Return the first and last time in the ends of a transcript; None where a long line hides it."""
    with _opened(path) as descriptor:
        if descriptor is not None:
            begin = read_at(descriptor, END_BYTES, 0)
            times = _times(begin)
            first_ns = min(times, default=None)
            if len(begin) < END_BYTES:  # that is all of it
                return first_ns, max(times, default=None)
            return first_ns, _last_time_in(descriptor)
    return None, None


def last_time_ns(path: Path) -> int | None:
    """Return the last time in the end of a transcript; of its last rows, however long they are."""
    with _opened(path) as descriptor:
        if descriptor is not None:
            return _last_time_in(descriptor)
    return None


def _last_time_in(descriptor: int) -> int | None:
    for count in (END_BYTES, 16 * END_BYTES, 512 * END_BYTES):
        data = _end_of(descriptor, count)
        if times := _times(data):
            return max(times)
        if len(data) < count:
            break
    return None


def _times(data: bytes) -> list[int]:
    """Return times in some bytes, the first and the last one among them.

    Clients write all times in one form, whose order is that of its bytes: of these only the first and last are parsed.
    """
    stamps = set(_STAMP.findall(data))
    usual = [stamp for stamp in stamps if len(stamp) == _USUAL_STAMP and stamp.endswith(b"Z")]
    if len(usual) > 2:
        first, last = (
            parse_time(min(usual).decode("ascii", "replace")),
            parse_time(max(usual).decode("ascii", "replace")),
        )
        if first is not None and last is not None:
            return [first, last, *_parsed(stamps.difference(usual))]
    return _parsed(stamps)


def _parsed(stamps: Iterable[bytes]) -> list[int]:
    times = (parse_time(stamp.decode("ascii", "replace")) for stamp in stamps)
    return [time_ns for time_ns in times if time_ns is not None]


def ends(path: Path, count: int, *, from_end: bool = False) -> bytes:
    """Return the first or last bytes of a regular file; empty if it is not one."""
    with _opened(path) as descriptor:
        if descriptor is not None:
            return _end_of(descriptor, count) if from_end else read_at(descriptor, count, 0)
    return b""


def _end_of(descriptor: int, count: int) -> bytes:
    return read_at(descriptor, count, max(0, os.fstat(descriptor).st_size - count))


def contains_id(path: Path, needle: str, *, key: str = "uuid", before: int | None = None) -> bool:
    """Whether a transcript contains this uuid, or another id, before an offset; a torn row contains nothing."""
    value = b'"%b"' % needle.encode()
    start = _first_place(path, key, value)
    if start is None or (before is not None and start >= before):
        return False
    with _mapped(path) as data:
        end = len(data) if before is None else min(before, len(data))
        return _find(data, key.encode(), value, end, start) >= 0
    return False


def first_row_time_ns(path: Path, *fields: tuple[str, bytes]) -> int | None:
    """Return the time of the first row that contains one of these keys with this JSON value; None if there is none."""
    found = [row for field in fields if (row := next(rows_with_field(path, *field), None)) is not None]
    return max(_times(min(found)[1]), default=None) if found else None


def earliest_row_time_ns(path: Path, *fields: tuple[str, bytes], start: int = 0) -> int | None:
    """Return the earliest time of the rows, from an offset on, that contain one of these keys with this JSON value."""
    rows = (row for field in fields for at, row in rows_with_field(path, *field) if at >= start)
    return min((max(times) for row in rows if (times := _times(row))), default=None)


def rows_with_field(path: Path, key: str, value: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield the rows that contain a key with a JSON value, each with its offset."""
    first = _first_place(path, key, value)
    if first is None:
        return
    with _mapped(path) as data:
        at = _find(data, key.encode(), value, len(data), first)
        while at >= 0:
            start, end = _row_at(data, at)
            yield start, bytes(data[start:end])
            at = _find(data, key.encode(), value, len(data), end)


def _find(data: mmap.mmap | bytes, key: bytes, value: bytes, end: int, start: int = 0) -> int:
    """Return where a JSON value follows a key, with or without spaces; -1 if it does not. Torn rows are skipped."""
    at = data.find(value, start, end)
    while at >= 0:
        before = data[max(0, at - _FIELD_BYTES) : at].rstrip()
        if before.endswith(b":") and before[:-1].rstrip().endswith(b'"' + key + b'"') and _is_in_record(data, at):
            return at
        at = data.find(value, at + 1, end)
    return -1


def _row_at(data: mmap.mmap | bytes, at: int) -> tuple[int, int]:
    """Return where the row around a place begins and ends."""
    end = data.find(b"\n", at)
    return data.rfind(b"\n", 0, at) + 1, end if end >= 0 else len(data)


def _is_in_record(data: mmap.mmap | bytes, at: int) -> bool:
    """Whether a place is in a record that can be read: not in a torn one, which another can be glued to."""
    start, end = _row_at(data, at)
    line = bytes(data[start:end])
    try:
        msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        from turnspan.transcript.lines import Anomalies, parse, records  # noqa: PLC0415  few lines are broken

        inside = [(first, last) for first, last in records(line) if first <= at - start < last]
        return any(parse(line[first:last], Anomalies()) for first, last in inside)
    return True


def is_id(text: str) -> bool:
    """Whether a text has the form of the ids that `ids_in` finds."""
    return _ID.fullmatch(b'"id":"%b"' % text.encode("utf-8", "surrogatepass")) is not None


def ids_in(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yield the ids in a file, each with its place."""
    with _mapped(path) as data:
        for found in _ID.finditer(data):
            yield found[1], found.start(1) - 1


class _Searched:
    """A file that is searched, and where each of its ids is first, if that is known."""

    def __init__(self) -> None:
        self.searches = 0
        self.places: dict[bytes, int] | None = None


@lru_cache(maxsize=16)
def _searched(_path: str, _stamp: tuple[int, int]) -> _Searched:
    return _Searched()


def _first_place(path: Path, key: str, value: bytes) -> int | None:
    """Return an offset before which a file does not have a field; None if it does not have it at all.

    Each turn of a long session that was copied is searched in the same few files: without their ids, time would grow
    with the square of its length.
    """
    if key not in _ID_KEYS or not is_id(value[1:-1].decode()):
        return 0
    known = _searched(str(path), stamp_of(str(path)))
    known.searches += 1
    if known.searches == _SEARCHES:
        places: dict[bytes, int] = {}
        for found, place in ids_in(path):
            places.setdefault(found, place)
        known.places = places
    return 0 if known.places is None else known.places.get(value[1:-1])


def rows_with(path: Path, needle: bytes, start: int = 0, end: int | None = None) -> list[bytes]:
    """Return the rows of a part of a file that contain some bytes."""
    found = []
    with _mapped(path) as data:
        stop = len(data) if end is None else min(end, len(data))
        at = data.find(needle, start, stop)
        while at >= 0:
            begin, after = data.rfind(b"\n", 0, at) + 1, data.find(b"\n", at)
            after = len(data) if after < 0 else after
            found.append(bytes(data[begin:after]))
            at = data.find(needle, after, stop)
    return found


def is_beginning(path: Path, other: Path) -> bool:
    """Whether another file begins with a file, as far as the ends of the shorter one show."""
    with _mapped(path) as data, _mapped(other) as longer:
        end = len(data)
        ranges = ((0, min(END_BYTES, end)), (max(0, end - END_BYTES), end))
        return end <= len(longer) and all(data[a:b] == longer[a:b] for a, b in ranges)
    return False


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """Yield all bytes of a file, without copying them."""
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size if descriptor is not None else 0
        if descriptor is None or not size:
            yield b""
            return
        try:
            data = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except ValueError:  # truncated since
            yield b""
            return
        with data:
            yield data


def first_time_ns(path: Path) -> int | None:
    """Return the first time in a transcript."""
    stamp = first_in(path, _STAMP)
    return parse_time(stamp.decode("ascii", "replace")) if stamp is not None else None


def earliest_ns(path: Path, after: int = 0) -> int | None:
    """Return the earliest time near the beginning of a transcript; with `after`, of what was added to so many bytes."""
    with _mapped(path) as data:
        start = data.rfind(b"\n", 0, after) + 1  # the last row was incomplete, perhaps
        times = _times(bytes(data[start : max(start, after) + END_BYTES]))
        if not times and (found := _STAMP.search(data, start)) is not None:
            times = _times(found[0])
        return min(times, default=None)
    return None


def first_in(path: Path, pattern: re.Pattern[bytes]) -> bytes | None:
    """Return the first match in a file; megabytes of pasted text or images can precede it."""
    with _mapped(path) as data:
        found = pattern.search(data)
        return bytes(found[1]) if found is not None else None
    return None


def row_as(line: bytes, kind: type[T]) -> T:
    """Return a few fields of a row; their defaults if it cannot be decoded."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return row_as(line[3:], kind) if line.startswith(BOM_UTF8) else kind()


def last_glued(line: bytes, kind: type[T]) -> T:
    """Return a few fields of the last record of a line, if several are glued together, or one to a torn one."""
    from turnspan.transcript.lines import records  # noqa: PLC0415  only for the lines of renamed files

    start, end = records(line)[-1]
    return row_as(line[start:end], kind)


def lines(path: Path, limit: int, start: int = 0) -> Iterator[bytes]:
    """Yield the lines in the first bytes of a regular file, from an offset on."""
    with _opened(path) as descriptor:
        if descriptor is not None:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                file.seek(start)
                while file.tell() < limit and (line := file.readline(limit)):
                    yield line
