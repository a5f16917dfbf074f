"""Files on disk: OTLP/JSON lines that a collector's file receiver can replay into any backend.

Settings: `directory` (`traces` below our home unless set), `max_file_bytes` (64 MiB), `max_files` (unset: no file is
deleted), and those of every destination.

Rules:

- One line is one trace. Files are numbered, `traces-000001.jsonl` and so on, and only the last one grows: a collector
  can follow them in order.
- A line is acknowledged when it is synced. A crash may leave half a line; the next line starts on its own, and readers
  skip incomplete lines.
- A span is in the files once. A worker killed between the sync and its commit sends the same trace again, perhaps days
  later; after lost state all traces are sent again. So each file has an index with a record of 24 bytes for each line:
  the trace id and the offset where the line begins. The record is written *before* the line and counts only if the line
  is really there, so the next writer knows what is on disk whenever the machine stops. The tail of the file is not
  enough: other traces may have been written after it. A record for each span would be a twentieth of the data, this one
  is a thousandth. Readers drop repeats all the same: an index can be lost.
- Only the owner can read the files.
"""

from __future__ import annotations

import errno
import os
from typing import TYPE_CHECKING

from turnspan.backends import Answer, Erased, Finding, Outcome, Probe, Verdict
from turnspan.backends.genai import GenAI
from turnspan.backends.local_files import (
    APPEND,
    LOCK_WAIT_S,
    LineIndex,
    StoredSpans,
    data_path,
    file_numbers,
    index_path,
    lines_in,
    read_spans,
    sync_directory,
    write_all,
)
from turnspan.backends.otlp_json import encode_lines
from turnspan.backends.settings import COMMON, DestinationSettings
from turnspan.errors import StateError
from turnspan.files import Busy, can_write, kernel_lock, nearest_existing

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

    from turnspan.backends.local_files import Lines
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Trace

__all__ = ["KNOWN", "LocalBackend", "open_backend", "read_spans"]

KNOWN = COMMON | {"directory", "max_file_bytes", "max_files"}
_TRANSIENT = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EFBIG}


class LocalBackend:
    """Traces as lines of numbered files in one directory."""

    def __init__(
        self,
        name: str,
        directory: Path,
        capture: Capture,
        *,
        max_request_bytes: int,
        max_file_bytes: int,
        max_files: int | None,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> None:
        self.name = name
        self.max_request_bytes = max_request_bytes
        self.silence = ""  # why `stored` had no answer
        self._directory = directory
        self._naming = GenAI(capture)
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._lock_wait_s = lock_wait_s
        self._index = LineIndex(directory)
        self._stored = StoredSpans(directory)

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """Encode each trace as one line."""
        return encode_lines(traces, self._naming)

    def send(self, body: bytes) -> Verdict:
        """Append the lines that are not stored yet, and sync them."""
        if len(body) > self.max_request_bytes:
            reason = f"{len(body)} bytes are more than the {self.max_request_bytes} a request may have"
            return Verdict(Answer.TOO_LARGE, reason)
        return self.send_all([body])

    def send_all(self, bodies: Sequence[bytes]) -> Verdict:
        """Append the lines of several requests that are not stored yet, with one sync for all of them."""
        try:
            if not self._directory.is_dir():
                self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with kernel_lock(self._directory / ".lock", self._lock_wait_s):
                self._append(bodies)
        except Busy:
            return Verdict(Answer.LATER, f"another process is writing to {self._directory}")
        except OSError as error:
            return Verdict(_answer_for(error), f"cannot write to {self._directory}: {error.strerror or error}")
        except StateError as error:
            return Verdict(_answer_for(error.__cause__), str(error))
        return Verdict(Answer.ACKNOWLEDGED)

    def close(self) -> None:
        """Do nothing: no file is kept open."""

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return the ids of the spans of a trace that are in the files; None if they cannot be read."""
        try:
            return self._stored.of_trace(trace_id)
        except OSError as error:
            self.silence = f"cannot read {error.filename or self._directory}: {error.strerror or error}"
            return None

    def erase(self, session_id: str, trace_ids: Collection[bytes]) -> Erased:
        """Delete a session and these traces from the files. Raises StateError."""
        from turnspan.backends.local_erase import erase  # noqa: PLC0415  only `forget` deletes

        return Erased(erase(self._directory, session_id, trace_ids), "line")

    def probe(self) -> Probe:
        """Check that the directory can be written to, and report the size of the files."""
        existing = nearest_existing(self._directory)
        if not can_write(existing):
            hint = "make it writable, or set `directory` to one that is"
            return Probe(Answer.CONFIGURATION, f"cannot write to {existing}", hint)
        try:
            files = [data_path(self._directory, number) for number in file_numbers(self._directory)]
            size = sum(path.stat().st_size for path in files)
        except OSError as error:
            return Probe(_answer_for(error), f"cannot read {self._directory}: {error.strerror or error}", "try again")
        plural = "" if len(files) == 1 else "s"
        says = f"{len(files):,} file{plural} with {size / 1e6:.1f} MB of traces" if files else "will be created"
        return Probe(Answer.ACKNOWLEDGED, says, findings=(Finding(Outcome.GOOD, says),))

    def _append(self, bodies: Sequence[bytes]) -> None:
        """Write the new lines, under the lock. Bodies are not split: a group of a backfill is large."""
        numbers = file_numbers(self._directory)
        self._index.catch_up(numbers)
        requests = list(map(lines_in, bodies))
        new = [rest for each in requests if (rest := self._index.without_known(each, numbers)).lines]
        number = numbers[-1] if numbers else 1
        is_full = bool(numbers) and data_path(self._directory, number).stat().st_size >= self._max_file_bytes
        if numbers and (is_full or new != requests):
            # The writer of these lines may have been killed before it synced them.
            with data_path(self._directory, number).open("rb+") as file:
                os.fsync(file)
        if not new:
            return
        number += is_full
        handle = os.open(data_path(self._directory, number), APPEND, 0o600)
        try:
            self._write(handle, number, new)
        finally:
            os.close(handle)
        if number not in numbers:
            self._prune([*numbers, number])

    def _write(self, file: int, number: int, requests: list[Lines]) -> None:
        """Write all of these lines, or none."""
        size = os.lseek(file, 0, os.SEEK_END)
        # After half a line of a killed writer, ours begins on a new line.
        opening = b"\n" if size and not _ends_a_line(file, size) else b""
        self._index.announce(number, requests, size + len(opening))
        if size == 0:
            sync_directory(self._directory)
            sync_directory(self._directory.parent)
        try:
            write_all(file, opening, *(request.body for request in requests))
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise

    def _prune(self, numbers: list[int]) -> None:
        """Delete the oldest files, if `max_files` is set."""
        if self._max_files is None:
            return
        for number in numbers[: -self._max_files]:
            data_path(self._directory, number).unlink(missing_ok=True)
            index_path(self._directory, number).unlink(missing_ok=True)


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> LocalBackend:
    """Open a directory of traces. Raises ConfigError for a wrong setting."""
    read = DestinationSettings(settings, name=name, known=KNOWN)
    return LocalBackend(
        name,
        read.directory("directory", home / "traces"),
        read.capture(),
        max_request_bytes=read.integer("max_request_bytes"),
        max_file_bytes=read.integer("max_file_bytes"),
        max_files=None if settings.get("max_files") is None else read.integer("max_files"),
    )


def _answer_for(cause: BaseException | None) -> Answer:
    """Return LATER for what is transient, like a full disk, and CONFIGURATION for what the user must change."""
    return Answer.LATER if isinstance(cause, OSError) and cause.errno in _TRANSIENT else Answer.CONFIGURATION


def _ends_a_line(file: int, size: int) -> bool:
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) == b"\n"
