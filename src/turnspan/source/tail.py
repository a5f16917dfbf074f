"""The complete lines of a growing file, each with its place.

Rules:

- A line is complete when its newline is there. Half a line stays for later, however long it stays. The last line of a
  restored file may have lost its newline: a caller who can tell a whole record says so (`is_whole`).
- Only regular files are read: a FIFO, a device or a directory is refused before it can block.
- A line longer than `MAX_LINE_BYTES` is passed over without being held, and reported as such.
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
_CHUNK_BYTES: Final = 256 * 1024
_FINGERPRINT_BYTES: Final = 4096


class Line(msgspec.Struct, frozen=True, gc=False):
    """One complete line without its newline."""

    data: bytes | None  # None: too long to hold
    number: int  # counted from 0
    offset: int  # where its first byte stands
    end: int  # where the next line begins


def open_regular(path: Path) -> int:
    """A descriptor on a regular file, or one clear sentence why not."""
    # O_NONBLOCK: opening a FIFO that nobody writes to would otherwise wait for ever.
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
        raise TranscriptError(f"{str(path)!r} is {what}", hint="name a transcript, a file that ends in .jsonl")
    return descriptor


def _why_not(path: Path, error: OSError | ValueError) -> str:
    reasons = {
        errno.ENOENT: "there is no such file",
        errno.EACCES: "this user may not read it",
        errno.EPERM: "this user may not read it",
        errno.ENXIO: "it is not a regular file",
        errno.ELOOP: "its links go in a circle",
        errno.ENAMETOOLONG: "its name is too long",
    }
    number = error.errno if isinstance(error, OSError) else None
    return f"cannot read {str(path)!r}: {reasons.get(number or 0, str(error))}"


def complete_lines(
    descriptor: int,
    offset: int = 0,
    number: int = 0,
    *,
    until: int | None = None,
    is_whole: Callable[[bytes], bool] = lambda _last: False,
) -> Iterator[Line]:
    """The complete lines from a byte offset on; `number` is the number of the line that begins there.

    The size is taken once, at the start: what is written meanwhile is for the next time.
    """
    size = os.fstat(descriptor).st_size if until is None else until
    pending: list[bytes] = []  # the pieces of a line whose newline has not come yet
    pending_bytes = 0
    position = start = offset
    while position < size:
        chunk = read_at(descriptor, min(_CHUNK_BYTES, size - position), position)
        if not chunk:
            return  # truncated while we read
        position += len(chunk)
        begin = 0
        while (newline := chunk.find(b"\n", begin)) >= 0:  # memchr; bytes.split looks at each byte by itself
            data: bytes | None = chunk[begin:newline]
            end = start + newline - begin + 1
            if pending_bytes:
                end += pending_bytes
                data = None if end - start - 1 > MAX_LINE_BYTES else b"".join((*pending, chunk[begin:newline]))
                pending, pending_bytes = [], 0
            yield Line(data, number, start, end)
            number += 1
            start, begin = end, newline + 1
        if begin < len(chunk):
            pending_bytes += len(chunk) - begin
            if pending_bytes > MAX_LINE_BYTES:
                pending = []
            else:
                pending.append(chunk[begin:])
    if pending and is_whole(last := b"".join(pending)):
        yield Line(last, number, start, position)


def read_at(descriptor: int, count: int, position: int) -> bytes:
    """Bytes from any place of an open file."""
    if hasattr(os, "pread"):
        return os.pread(descriptor, count, position)
    os.lseek(descriptor, position, os.SEEK_SET)
    return os.read(descriptor, count)


def read_line_at(descriptor: int, offset: int, length: int) -> bytes:
    """The bytes of one line whose place is known."""
    return read_at(descriptor, min(length, MAX_LINE_BYTES), offset)


def fingerprint(descriptor: int, offset: int) -> str:
    """A digest of the bytes that stand before an offset: it tells a grown file from a rewritten one.

    The beginning and the last bytes before the offset are enough: an appended file keeps both.
    """
    digest = blake2b(offset.to_bytes(8, "big"), digest_size=12)
    digest.update(read_at(descriptor, min(_FINGERPRINT_BYTES, offset), 0))
    tail = min(_FINGERPRINT_BYTES, offset)
    digest.update(read_at(descriptor, tail, offset - tail))
    return digest.hexdigest()
