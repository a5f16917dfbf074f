"""Files on disk: OTLP/JSON lines that a collector's file receiver can replay into any backend, and `show` can read.

Settings: `directory` (`traces` below our home unless set), `max_file_bytes` (64 MiB), `max_files` (unset: nothing is
ever deleted unasked), and what every destination knows.

Rules:

- One line is one trace. Files are numbered, `traces-000001.jsonl` and on, and only the last one grows: a file that was
  left is never touched again, so a collector may follow them in order.
- A line is acknowledged when it is synced. A crash may leave half a line; the next one starts fresh, and readers skip
  what is not whole.
- A span stands in the files once. A worker killed between the sync and its commit sends the same trace again, perhaps
  days later; after lost state all of them come again. So next to each file lies an index with a record of 24 bytes for
  each line: the trace id and the offset where the line begins. The record is written *before* the line and believed
  only when the line is really there, so that whatever instant the machine stops at, the next writer knows what is on
  disk. Looking at the tail of the file instead would miss a trace that others have written behind; a record per span
  would be a twentieth of the data, this one is a thousandth. Readers drop repeats all the same: an index can be lost.
- Everything is readable by its owner alone.
"""

from __future__ import annotations

import errno
import os
import re
from typing import TYPE_CHECKING

import msgspec

from turnspan.backends import Answer, Verdict
from turnspan.backends.genai import GenAI
from turnspan.backends.otlp_json import decode_line, encode_lines
from turnspan.backends.settings import COMMON, Settings
from turnspan.errors import StateError
from turnspan.private_files import Busy, kernel_lock

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Trace

KNOWN = COMMON | {"directory", "max_file_bytes", "max_files"}
_NAME = re.compile(r"traces-([0-9]{6,})\.jsonl")
_RECORD_BYTES = 24
_LOCK_WAIT_S = 10.0
_APPEND = os.O_RDWR | os.O_APPEND | os.O_CREAT
_APPEND |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PASSING = {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE, errno.ESTALE, errno.EFBIG}


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
        lock_wait_s: float = _LOCK_WAIT_S,
    ) -> None:
        self.name = name
        self.max_request_bytes = max_request_bytes
        self._directory = directory
        self._spelling = GenAI(capture)
        self._max_file_bytes = max_file_bytes
        self._max_files = max_files
        self._lock_wait_s = lock_wait_s
        self._index = _Index(directory)

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """Each trace as one line."""
        return encode_lines(traces, self._spelling)

    def send(self, body: bytes) -> Verdict:
        """Append the lines that are not there yet, and wait until they are on the disk."""
        if len(body) > self.max_request_bytes:
            reason = f"{len(body)} bytes are more than the {self.max_request_bytes} a request may have"
            return Verdict(Answer.TOO_LARGE, reason)
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            with kernel_lock(self._directory / ".lock", self._lock_wait_s):
                self._append(body.splitlines(keepends=True))
        except Busy:
            return Verdict(Answer.LATER, f"another process is writing to {self._directory}")
        except OSError as error:
            return Verdict(_blame(error), f"cannot write to {self._directory}: {error.strerror or error}")
        except StateError as error:
            return Verdict(_blame(error.__cause__), str(error))
        return Verdict(Answer.ACKNOWLEDGED)

    def close(self) -> None:
        """Nothing is kept open."""

    def _append(self, lines: list[bytes]) -> None:
        """Write what is new. Under the lock."""
        numbers = _file_numbers(self._directory)
        self._index.catch_up(numbers)
        new = [rest for line in lines if (rest := self._index.without_known(line, numbers))]
        number = numbers[-1] if numbers else 1
        is_full = bool(numbers) and _data(self._directory, number).stat().st_size >= self._max_file_bytes
        if numbers and (is_full or new != lines):
            # Whoever wrote what is there may have been killed before it was synced.
            with _data(self._directory, number).open("rb+") as file:
                os.fsync(file)
        if not new:
            return
        number += is_full
        handle = os.open(_data(self._directory, number), _APPEND, 0o600)
        try:
            self._write(handle, number, new)
        finally:
            os.close(handle)
        if number not in numbers:
            self._prune([*numbers, number])

    def _write(self, file: int, number: int, lines: list[bytes]) -> None:
        """All of these lines, or none."""
        size = os.lseek(file, 0, os.SEEK_END)
        # Half a line of a writer that was killed: ours begins on a line of its own.
        opening = b"\n" if size and not _ends_a_line(file, size) else b""
        self._index.announce(number, lines, size + len(opening))
        if size == 0:
            _sync_directory(self._directory)
            _sync_directory(self._directory.parent)
        try:
            _write_all(file, b"".join((opening, *lines)))
            os.fsync(file)
        except OSError:
            os.ftruncate(file, size)
            raise

    def _prune(self, numbers: list[int]) -> None:
        """Delete the oldest files, if that was asked for."""
        if self._max_files is None:
            return
        for number in numbers[: -self._max_files]:
            _data(self._directory, number).unlink(missing_ok=True)
            _index(self._directory, number).unlink(missing_ok=True)


class _Index:
    """Which traces have lines, and where: a file of records next to each file of lines."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_to: dict[int, int] = {}  # how far each index file was read
        # Half of each trace id: whether a line may be there. In memory 80 bytes a trace, where a full entry takes 200.
        self._seen: set[int] = set()

    def catch_up(self, numbers: list[int]) -> None:
        """Read what was written since the last time."""
        last_read = max(self._read_to, default=0)
        for number in numbers:
            if number < last_read:
                continue  # a file that was left does not grow
            start = self._read_to.get(number, 0)
            records = _read_from(_index(self._directory, number), start)
            whole = len(records) - len(records) % _RECORD_BYTES
            self._seen.update(memoryview(records)[:whole].cast("Q").tolist()[::3])
            self._read_to[number] = start + whole

    def without_known(self, line: bytes, numbers: list[int]) -> bytes:
        """The line less the spans that are on disk; empty when all are."""
        trace_id = _trace_id(line)
        if memoryview(trace_id).cast("Q")[0] not in self._seen:
            return line
        known = {span for number in numbers for span in self._spans_on_disk(number, trace_id)}
        request = msgspec.json.decode(line)
        kept = 0
        for resource_spans in request["resourceSpans"]:
            for scope_spans in resource_spans["scopeSpans"]:
                spans = [s for s in scope_spans["spans"] if (s["spanId"], s["startTimeUnixNano"]) not in known]
                scope_spans["spans"] = spans
                kept += len(spans)
        return msgspec.json.encode(request) + b"\n" if kept else b""

    def announce(self, number: int, lines: list[bytes], at: int) -> None:
        """Write where each line is going to begin."""
        file = os.open(_index(self._directory, number), _APPEND, 0o600)
        try:
            torn = os.lseek(file, 0, os.SEEK_END) % _RECORD_BYTES
            records = [bytes(_RECORD_BYTES - torn)] if torn else []
            for line in lines:
                records.append(_trace_id(line) + at.to_bytes(8, "little"))
                at += len(line)
            _write_all(file, b"".join(records))
            os.fsync(file)
        finally:
            os.close(file)

    def _spans_on_disk(self, number: int, trace_id: bytes) -> Iterator[tuple[str, str]]:
        """Span ids and start times of this trace in one file."""
        records = _read_from(_index(self._directory, number), 0)
        found = records.find(trace_id)
        while found >= 0:
            if found % _RECORD_BYTES == 0:
                offset = int.from_bytes(records[found + 16 : found + _RECORD_BYTES], "little")
                for span in decode_line(_line_at(_data(self._directory, number), offset)):
                    if span["trace_id"] == trace_id.hex():
                        yield str(span["span_id"]), str(span["start_ns"])
            found = records.find(trace_id, found + 1)


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> LocalBackend:
    """A directory of traces. Raises ConfigError when a setting is wrong."""
    read = Settings(settings, name=name, known=KNOWN)
    return LocalBackend(
        name,
        read.directory("directory", home / "traces"),
        read.capture(),
        max_request_bytes=read.whole("max_request_bytes"),
        max_file_bytes=read.whole("max_file_bytes"),
        max_files=None if settings.get("max_files") is None else read.whole("max_files"),
    )


def read_spans(directory: Path) -> Iterator[dict[str, object]]:
    """Every span in the files of a directory, each once, in the order of writing.

    A span is a dict with trace_id, span_id and parent_span_id (hexadecimal), name, kind, start_ns, end_ns, attributes,
    status, status_message, links and resource.
    """
    seen: set[tuple[object, object, object]] = set()
    for number in _file_numbers(directory):
        try:
            with _data(directory, number).open("rb") as lines:
                for line in lines:
                    for span in decode_line(line):
                        key = (span["trace_id"], span["span_id"], span["start_ns"])
                        if key not in seen:
                            seen.add(key)
                            yield span
        except FileNotFoundError:
            continue  # deleted meanwhile


def _file_numbers(directory: Path) -> list[int]:
    try:
        return sorted(int(match[1]) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name)))
    except FileNotFoundError:
        return []


def _data(directory: Path, number: int) -> Path:
    return directory / f"traces-{number:06d}.jsonl"


def _index(directory: Path, number: int) -> Path:
    return directory / f"traces-{number:06d}.index"


def _trace_id(line: bytes) -> bytes:
    """The id of a line's trace. The first one is a span's own: quotes in texts are escaped, links come after it."""
    at = line.index(b'"traceId":"') + len(b'"traceId":"')
    return bytes.fromhex(line[at : at + 32].decode())


def _line_at(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.readline()
    except FileNotFoundError:
        return b""


def _read_from(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.read()
    except FileNotFoundError:
        return b""


def _blame(cause: BaseException | None) -> Answer:
    """Whether this passes by itself, like a full disk, or is for the person to mend."""
    return Answer.LATER if isinstance(cause, OSError) and cause.errno in _PASSING else Answer.CONFIGURATION


def _ends_a_line(file: int, size: int) -> bool:
    os.lseek(file, size - 1, os.SEEK_SET)
    return os.read(file, 1) == b"\n"


def _write_all(file: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_directory(directory: Path) -> None:
    if os.name == "nt":
        return  # a directory cannot be opened there, and its entries are journalled
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
