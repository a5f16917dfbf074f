"""Reads the complete lines of a growing file, each with its place.

Rules:

- A line is complete when it ends with a newline. An incomplete line is left for the next reading. The last line of a
  restored file may have lost its newline: `is_complete` says whether it is a complete record all the same.
- Only regular files are read: a FIFO, a device or a directory is refused before it can block.
- A line longer than `MAX_LINE_BYTES` is skipped without keeping it in memory, and reported as such.
- Memory does not grow with the file.
"""

from __future__ import annotations

import errno
import os
import stat
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

MAX_LINE_BYTES: Final = 32 * 1024 * 1024
_CHUNK_BYTES: Final = 64 * 1024
_FINGERPRINT_BYTES: Final = 4096


class Line(msgspec.Struct, frozen=True, gc=False):
    """One complete line without its newline."""

    data: bytes | None  # None: too long
    number: int  # counted from 0
    offset: int  # of its first byte
    end: int  # the offset of the next line


class Chunk(msgspec.Struct, frozen=True, gc=False):
    """Some complete lines that follow each other, with their newlines."""

    data: bytes | None  # may end with the beginning of a further line; None: one line, too long
    number: int  # of the first line
    offset: int  # of its first byte
    ends: list[int]  # of the lines, from the first byte on


def open_regular(path: Path) -> int:
    """Return a descriptor of a regular file, or raise TranscriptError."""
    # O_NONBLOCK: opening a FIFO without a writer would otherwise block.
    flags = os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        descriptor = os.open(path, flags)
    except (OSError, ValueError) as error:
        raise TranscriptError(_why_not(path, error)) from error
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError as error:
        os.close(descriptor)
        raise TranscriptError(_why_not(path, error)) from error
    if not stat.S_ISREG(mode):
        os.close(descriptor)
        what = "a directory" if stat.S_ISDIR(mode) else "not a regular file"
        raise TranscriptError(f"{str(path)!r} is {what}", hint="give the path of a transcript, a .jsonl file")
    return descriptor


def _why_not(path: Path, error: OSError | ValueError) -> str:
    reasons = {
        errno.ENOENT: "no such file",
        errno.EACCES: "permission denied",
        errno.EPERM: "permission denied",
        errno.ENXIO: "it is not a regular file",
        errno.ELOOP: "it is a symlink loop",
        errno.ENAMETOOLONG: "its name is too long",
    }
    number = error.errno if isinstance(error, OSError) else None
    return f"cannot read {str(path)!r}: {reasons.get(number or 0, str(error))}"


def complete_chunks(
    descriptor: int,
    offset: int = 0,
    number: int = 0,
    *,
    until: int | None = None,
    is_complete: Callable[[bytes], bool] = lambda _last: False,
) -> Iterator[Chunk]:
    """Yield the complete lines from a byte offset on, some at a time; `number` is that of the line that begins there.

    The size is read once, at the start: what is written meanwhile is left for the next reading.
    """
    size = os.fstat(descriptor).st_size if until is None else until
    pending: list[bytes] = []  # the beginning of a line whose newline has not been read yet
    pending_bytes = 0
    position = start = offset
    while position < size:
        read = read_at(descriptor, min(_CHUNK_BYTES, size - position), position)
        if not read:
            return  # truncated meanwhile
        position += len(read)
        if b"\n" not in read:
            pending_bytes += len(read)
            if pending_bytes > MAX_LINE_BYTES:
                pending = []
            else:
                pending.append(read)
            continue
        length = pending_bytes + read.find(b"\n")
        if length > MAX_LINE_BYTES:
            ends = [length + 1]
            yield Chunk(None, number, start, ends)
        else:
            data = b"".join((*pending, read)) if pending else read
            ends = _line_ends(data)
            yield Chunk(data, number, start, ends)
        number, start = number + len(ends), start + ends[-1]
        position = start  # the beginning of the next line is read again: to copy all lines without it takes longer
        pending, pending_bytes = [], 0
    if pending and is_complete(last := b"".join(pending)):
        yield Chunk(last, number, start, [len(last)])


def _line_ends(data: bytes) -> list[int]:
    found, find = [], data.find
    end = find(b"\n") + 1  # memchr; `split` is slower, `count` much slower
    while end:
        found.append(end)
        end = find(b"\n", end) + 1
    return found


def complete_lines(
    descriptor: int,
    offset: int = 0,
    number: int = 0,
    *,
    until: int | None = None,
    is_complete: Callable[[bytes], bool] = lambda _last: False,
) -> Iterator[Line]:
    """Yield the complete lines from a byte offset on, as `complete_chunks` does, one by one."""
    for chunk in complete_chunks(descriptor, offset, number, until=until, is_complete=is_complete):
        yield from lines_in(chunk)


def lines_in(chunk: Chunk) -> Iterator[Line]:
    """Yield the lines of a chunk one by one."""
    begin = 0
    for number, end in enumerate(chunk.ends, chunk.number):
        data = chunk.data[begin:end].removesuffix(b"\n") if chunk.data is not None else None
        yield Line(data, number, chunk.offset + begin, chunk.offset + end)
        begin = end


def read_at(descriptor: int, count: int, position: int) -> bytes:
    """Return bytes from any position of an open file."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, count)


def read_line_at(descriptor: int, offset: int, length: int) -> bytes:
    """Return the bytes of a line whose place is known."""
    return read_at(descriptor, min(length, MAX_LINE_BYTES), offset)


def fingerprint(descriptor: int, offset: int) -> str:
    """Return a digest of the bytes before an offset: it differs if the file was rewritten, not if it has grown.

    The first bytes and the last ones before the offset are enough: an appended file keeps both.
    """
    digest = blake2b(offset.to_bytes(8, "big"), digest_size=12)
    digest.update(read_at(descriptor, min(_FINGERPRINT_BYTES, offset), 0))
    tail = min(_FINGERPRINT_BYTES, offset)
    digest.update(read_at(descriptor, tail, offset - tail))
    return digest.hexdigest()
