"""A look at a file without reading all of it: its ends, its times, whether something stands in it.

A file that is not there, or nobody's to read, has no times and holds nothing. One that could not be read for the moment
is an error: nothing is concluded about what was not read.
"""

from __future__ import annotations

import errno
import mmap
import os
import stat
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from turnspan import lazy
from turnspan.errors import TranscriptError
from turnspan.source.tail import open_regular, read_at
from turnspan.transcript.times import parse_time

if TYPE_CHECKING:
    import re
    from collections.abc import Iterator

T = TypeVar("T")

END_BYTES: Final = 65536
_AGENT_HEAD_BYTES: Final = 4096
_PASSING: Final = {errno.EIO, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ESTALE, errno.EINTR, errno.EAGAIN}
_STAMP: Final = lazy.pattern(rb'"timestamp":"([^"]{10,40})"')


@contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """A descriptor on a regular file; None where there is none for us. What fails for the moment is an error."""
    try:
        descriptor = open_regular(path)
    except TranscriptError as error:
        if _is_passing(error.__cause__):
            raise
        yield None
        return
    try:
        yield descriptor
    except OSError as error:
        if _is_passing(error):
            raise _unread(path, error) from error
    finally:
        with suppress(OSError):  # it was only read
            os.close(descriptor)


def _is_passing(cause: BaseException | None) -> bool:
    return isinstance(cause, OSError) and cause.errno in _PASSING


def _unread(path: Path | str, error: OSError) -> TranscriptError:
    return TranscriptError(f"cannot read {str(path)!r}: {error.strerror or error}")


def stamp_of(path: str) -> tuple[int, int]:
    """Size and time of a file: what was read of it is right as long as they are the same."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError as error:
        if _is_passing(error):
            raise _unread(path, error) from error
        return 0, 0
    return found.st_size, found.st_mtime_ns


def size_of(path: Path) -> int:
    """The size of a file; 0 if it does not exist or cannot be looked at."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def modified_ns(path: Path) -> int:
    """When a regular file was last written; 0 if it does not exist or is not a regular file."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0


@lru_cache(maxsize=1 << 11)  # a backfill asks with every session next to which it lies
def head_of(path: str, _size: int, _written_ns: int) -> bytes:
    """How a file begins."""
    return ends(Path(path), _AGENT_HEAD_BYTES)


def time_range(path: Path) -> tuple[int | None, int | None]:
    """The first and the last time that a transcript's ends show. A long line may hide either: then it is not known."""
    return min(_times(ends(path, END_BYTES)), default=None), last_time_ns(path)


def last_time_ns(path: Path) -> int | None:
    """The last time that the end of a transcript shows."""
    return max(_times(ends(path, END_BYTES, from_end=True)), default=None)


def _times(data: bytes) -> list[int]:
    stamps = (parse_time(stamp.decode("ascii", "replace")) for stamp in _STAMP.findall(data))
    return [stamp for stamp in stamps if stamp is not None]


def ends(path: Path, count: int, *, from_end: bool = False) -> bytes:
    """The first or last bytes of a regular file; nothing of what is not one."""
    with _opened(path) as descriptor:
        if descriptor is not None:
            return read_at(descriptor, count, max(0, os.fstat(descriptor).st_size - count) if from_end else 0)
    return b""


def contains_id(path: Path, needle: str, *, key: bytes = b'"uuid":"', before: int | None = None) -> bool:
    """Whether a row of a transcript has this uuid, or another id, before some offset."""
    with _mapped(path) as data:
        end = len(data) if before is None else min(before, len(data))
        return data.find(key + needle.encode() + b'"', 0, end) >= 0
    return False


def first_row_time_ns(path: Path, *needles: bytes) -> int | None:
    """When a transcript's first row was written that holds one of these; None if there is none."""
    with _mapped(path) as data:
        found = [at for needle in needles if (at := data.find(needle)) >= 0]
        if found:
            start, end = data.rfind(b"\n", 0, min(found)) + 1, data.find(b"\n", min(found))
            return max(_times(data[start : end if end >= 0 else len(data)]), default=None)
    return None


@contextmanager
def _mapped(path: Path) -> Iterator[mmap.mmap | bytes]:
    """All of a file, to look for something in it."""
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size if descriptor is not None else 0
        if descriptor is None or not size:
            yield b""
            return
        try:
            data = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
        except ValueError:  # it was truncated since
            yield b""
            return
        with data:
            yield data


def first_time_ns(path: Path) -> int | None:
    """The first time that a transcript tells."""
    stamp = first_in(path, _STAMP)
    return parse_time(stamp.decode("ascii", "replace")) if stamp is not None else None


def first_in(path: Path, pattern: re.Pattern[bytes]) -> bytes | None:
    """The first thing of a kind in a file. A pasted text or an image of megabytes may stand before it."""
    with _mapped(path) as data:
        found = pattern.search(data)
        return bytes(found[1]) if found is not None else None
    return None


def row_as(line: bytes, kind: type[T]) -> T:
    """A few fields of a row; nothing but their defaults where it cannot be read."""
    try:
        return msgspec.json.decode(line, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return kind()


def lines(path: Path, limit: int) -> Iterator[bytes]:
    """The lines in the first bytes of a regular file."""
    with _opened(path) as descriptor:
        if descriptor is not None:
            with os.fdopen(descriptor, "rb", closefd=False) as file:
                while file.tell() < limit and (line := file.readline(limit)):
                    yield line
