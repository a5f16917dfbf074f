"""Takes traces out of the files of the `local` backend.

Rules:

- A file that holds nothing of it is not touched. One that does is written anew without those lines, synced, and renamed
  over the old one; then its index, which lies about the file only if the machine stops between the two. Then what it
  names is not found where it says, and counts as not there.
- Writers wait meanwhile: it is done under their lock.
- A line is known by its trace or by its session, whole or torn: text that only speaks of either is escaped in JSON.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from turnspan.backends.local import (
    _LOCK_WAIT_S,
    _data,
    _file_numbers,
    _index,
    _sync_directory,
    _trace_id,
    _write_all,
)
from turnspan.errors import StateError
from turnspan.private_files import Busy, disk_error, kernel_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def erase(directory: Path, session_id: str, trace_ids: Collection[bytes]) -> int:
    """Take a session and these traces out of the files; how many lines that were. Raises StateError."""
    if not _file_numbers(directory):
        return 0
    needle = b'{"key":"session.id","value":{"stringValue":"' + session_id.encode() + b'"}}'

    def is_unwanted(line: bytes) -> bool:
        try:
            return needle in line or _trace_id(line) in trace_ids
        except ValueError:  # torn before it says anything, or not ours
            return False

    try:
        with kernel_lock(directory / ".lock", _LOCK_WAIT_S):
            return sum(_rewrite(directory, number, is_unwanted) for number in _file_numbers(directory))
    except Busy:
        raise StateError(f"another process is writing to {directory}", hint="try again") from None
    except OSError as error:
        raise disk_error(error, directory) from error


def _rewrite(directory: Path, number: int, is_unwanted: Callable[[bytes], bool]) -> int:
    """One file without some lines. Under the lock."""
    path = _data(directory, number)
    with path.open("rb") as lines:
        erased = sum(map(is_unwanted, lines))
        if not erased:
            return 0
        lines.seek(0)
        records: list[bytes] = []
        staged = path.with_name(f".{path.name}.tmp")
        file = os.open(staged, _NEW, 0o600)
        try:
            at = 0
            for line in lines:
                if is_unwanted(line):
                    continue
                if b'"traceId":"' in line:
                    records.append(_record(line, at))
                _write_all(file, line)
                at += len(line)
            os.fsync(file)
        finally:
            os.close(file)
    staged.replace(path)
    _replace(_index(directory, number), b"".join(records))
    _sync_directory(directory)
    return erased


def _record(line: bytes, at: int) -> bytes:
    try:
        return _trace_id(line) + at.to_bytes(8, "little")
    except ValueError:
        return b""


def _replace(path: Path, content: bytes) -> None:
    staged = path.with_name(f".{path.name}.tmp")
    file = os.open(staged, _NEW, 0o600)
    try:
        _write_all(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    staged.replace(path)
