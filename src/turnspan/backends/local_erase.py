"""Deletes traces from the files of the `local` backend.

Rules:

- A file without such lines is not touched. A file with some is rewritten without them, synced, and renamed over the old
  one; then its index. If the machine stops between the two renames, the index points to lines that are not there, which
  counts as "not stored".
- It runs under the writers' lock.
- A line is recognised by its trace id or its session id, also if it is torn: text that mentions them is escaped.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from turnspan.backends.local_files import (
    LOCK_WAIT_S,
    data_path,
    file_numbers,
    index_path,
    index_record,
    sync_directory,
    trace_id_in,
    write_all,
)
from turnspan.errors import StateError
from turnspan.files import Busy, disk_error, kernel_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def erase(directory: Path, session_id: str, trace_ids: Collection[bytes]) -> int:
    """Delete a session and these traces from the files; return the number of lines. Raises StateError."""
    needle = b'{"key":"session.id","value":{"stringValue":"' + session_id.encode() + b'"}}'

    def is_unwanted(line: bytes) -> bool:
        try:
            return needle in line or trace_id_in(line) in trace_ids
        except ValueError:  # torn before the trace id, or not ours
            return False

    try:
        if not file_numbers(directory):
            return 0
        with kernel_lock(directory / ".lock", LOCK_WAIT_S):
            return sum(_rewrite(directory, number, is_unwanted) for number in file_numbers(directory))
    except Busy:
        raise StateError(f"another process is writing to {directory}", hint="try again") from None
    except OSError as error:
        raise disk_error(error, directory) from error


def _rewrite(directory: Path, number: int, is_unwanted: Callable[[bytes], bool]) -> int:
    """Rewrite one file without some lines, under the lock."""
    path = data_path(directory, number)
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
                write_all(file, line)
                at += len(line)
            os.fsync(file)
        finally:
            os.close(file)
    staged.replace(path)
    _replace(index_path(directory, number), b"".join(records))
    sync_directory(directory)
    return erased


def _record(line: bytes, at: int) -> bytes:
    try:
        return index_record(trace_id_in(line), at)
    except ValueError:
        return b""


def _replace(path: Path, content: bytes) -> None:
    staged = path.with_name(f".{path.name}.tmp")
    file = os.open(staged, _NEW, 0o600)
    try:
        write_all(file, content)
        os.fsync(file)
    finally:
        os.close(file)
    staged.replace(path)
