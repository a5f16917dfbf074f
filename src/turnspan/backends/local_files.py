"""The numbered files of the `local` backend and their indexes: names, reading, low-level writing.

`traces-000001.jsonl` holds one trace a line. `traces-000001.index` beside it holds a record of 24 bytes for each line:
the trace id and the offset where the line begins.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from turnspan.backends.otlp_json import decode_line

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK_WAIT_S: Final = 10.0
APPEND: Final = (
    os.O_RDWR | os.O_APPEND | os.O_CREAT
    | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)  # fmt: skip
_NAME: Final = re.compile(r"traces-([0-9]{6,})\.jsonl")
_RECORD_BYTES: Final = 24
_SPAN_BYTES: Final = 8
_MOST_PARTS: Final = 1000  # that `writev` takes; POSIX allows 16 at least, every system of ours 1024


def file_numbers(directory: Path) -> list[int]:
    """Return the numbers of the files in a directory, in order."""
    try:
        return sorted(int(match[1]) for name in os.listdir(directory) if (match := _NAME.fullmatch(name)))  # noqa: PTH208
    except FileNotFoundError:
        return []


def data_path(directory: Path, number: int) -> Path:
    """Return the path of a file of lines."""
    return directory / f"traces-{number:06d}.jsonl"


def index_path(directory: Path, number: int) -> Path:
    """Return the path of the index beside it."""
    return directory / f"traces-{number:06d}.index"


class StoredLine(NamedTuple):
    """A line of a request body."""

    trace_id: bytes
    start: int
    end: int


class Lines(NamedTuple):
    """A request body, and where its lines are."""

    body: bytes
    lines: list[StoredLine]


def lines_in(body: bytes) -> Lines:
    """Return the lines of a request body. JSON escapes all other line ends; `splitlines` looks for them."""
    lines: list[StoredLine] = []
    start = 0
    while end := body.find(b"\n", start) + 1:
        lines.append(StoredLine(trace_id_in(body, start, end), start, end))
        start = end
    return Lines(body, lines)


def trace_id_in(lines: bytes, start: int = 0, end: int | None = None) -> bytes:
    """Return the trace id of the line between these offsets. Raises ValueError for a line without one.

    The first id in a line is a span's own: quotes in texts are escaped, and links come after it.
    """
    at = lines.index(b'"traceId":"', start, len(lines) if end is None else end) + len(b'"traceId":"')
    return bytes.fromhex(lines[at : at + 32].decode())


def index_record(trace_id: bytes, at: int) -> bytes:
    """Return the index record of a line that begins at this offset."""
    return trace_id + at.to_bytes(8, "little")


def write_all(file: int, *parts: bytes) -> None:
    """Write everything to a descriptor, in one call if the system can."""
    written = os.writev(file, parts[:_MOST_PARTS]) if len(parts) > 1 and hasattr(os, "writev") else 0
    for part in parts:
        rest = memoryview(part)[written:]
        written = max(0, written - len(part))
        while rest:
            rest = rest[os.write(file, rest) :]


def sync_directory(directory: Path) -> None:
    """Make new and renamed entries of a directory durable."""
    if os.name == "nt":
        return  # a directory cannot be opened there, and its entries are journalled
    file = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def read_spans(directory: Path) -> Iterator[dict[str, object]]:
    """Yield every span in the files of a directory, each once, in the order of writing.

    A span is a dict with trace_id, span_id and parent_span_id (hexadecimal), name, kind, start_ns, end_ns, attributes,
    status, status_message, links and resource.
    """
    seen: set[tuple[object, object, object]] = set()
    for number in file_numbers(directory):
        try:
            with data_path(directory, number).open("rb") as lines:
                for line in lines:
                    for span in decode_line(line):
                        key = (span["trace_id"], span["span_id"], span["start_ns"])
                        if key not in seen:
                            seen.add(key)
                            yield span
        except FileNotFoundError:
            continue  # deleted meanwhile


class StoredSpans:
    """The span ids of every trace in the files.

    The files are read, not their indexes: `verify` must find what an editor or a broken disk removed. Each file is read
    once; later calls read only what was added, or all of a file that was replaced or shortened.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read: dict[int, _ReadFile] = {}
        self._seen: tuple[int, ...] = ()

    def of_trace(self, trace_id: bytes) -> frozenset[bytes]:
        """Return the span ids of a trace. Raises OSError."""
        self._catch_up()
        found = b"".join([file.spans.get(trace_id, b"") for file in self._read.values()])
        return frozenset([found[at : at + _SPAN_BYTES] for at in range(0, len(found), _SPAN_BYTES)])

    def _catch_up(self) -> None:
        """Read what was written since the last time. Only the last file grows; others can only be replaced."""
        last = max(self._read, default=None)
        seen = _stamp(self._directory) + (_stamp(data_path(self._directory, last)) if last is not None else ())
        if seen and seen == self._seen:
            return
        numbers = file_numbers(self._directory)
        self._read = {number: self._read.get(number) or _ReadFile() for number in numbers}
        for number, file in self._read.items():
            file.catch_up(data_path(self._directory, number))
        self._seen = seen if last == max(numbers, default=None) else ()


class _ReadFile:
    """What was read of one file so far: the span ids of each trace, one after the other, which is compact."""

    def __init__(self) -> None:
        self.spans: dict[bytes, bytes] = {}
        self._inode = self._offset = self._modified_ns = 0

    def catch_up(self, path: Path) -> None:
        try:
            with path.open("rb") as lines:
                now = os.fstat(lines.fileno())
                is_same = now.st_ino == self._inode
                if is_same and now.st_size == self._offset and now.st_mtime_ns == self._modified_ns:
                    return
                if not is_same or now.st_size <= self._offset:
                    self.spans, self._offset = {}, 0
                lines.seek(self._offset)
                for line in lines:
                    for trace_id, span_ids in _ids_in(line).items():
                        self.spans[trace_id] = self.spans.get(trace_id, b"") + span_ids
                    if line.endswith(b"\n"):
                        self._offset += len(line)
                self._inode, self._modified_ns = now.st_ino, now.st_mtime_ns
        except FileNotFoundError:
            self.spans, self._offset = {}, 0


class _SpanIds(msgspec.Struct, rename="camel"):
    """The ids of a span. The times are decoded because a line with invalid ones does not count."""

    trace_id: str
    span_id: str
    start_time_unix_nano: str = "0"
    end_time_unix_nano: str = "0"


class _ScopeIds(msgspec.Struct, rename="camel"):
    spans: list[_SpanIds] = []


class _ResourceIds(msgspec.Struct, rename="camel"):
    scope_spans: list[_ScopeIds] = []


class _LineIds(msgspec.Struct, rename="camel"):
    resource_spans: list[_ResourceIds] = []


def _ids_in(line: bytes) -> dict[bytes, bytes]:
    """Return the span ids of each trace in a line; none if the line is incomplete or has an invalid id or time.

    It decodes nothing else: `verify` reads every line, and the content is most of it.
    """
    found: dict[bytes, bytes] = {}
    try:
        for resource in _decode_ids(line).resource_spans:
            for scope in resource.scope_spans:
                for span in scope.spans:
                    trace_id, span_id = bytes.fromhex(span.trace_id), bytes.fromhex(span.span_id)
                    int(span.start_time_unix_nano), int(span.end_time_unix_nano)
                    if (len(trace_id), len(span_id)) != (16, _SPAN_BYTES):
                        return {}
                    found[trace_id] = found.get(trace_id, b"") + span_id
    except (ValueError, RecursionError):  # every error of msgspec's is a ValueError
        return {}
    return found


_decode_ids: Final = msgspec.json.Decoder(_LineIds).decode


def _stamp(path: Path) -> tuple[int, ...]:
    """Return what changes when a file or the entries of a directory change; empty if it does not exist."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return ()
    return found.st_ino, found.st_size, found.st_mtime_ns


class LineIndex:
    """Which traces have lines, and where: the index files of a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._read_to: dict[int, int] = {}  # how far each index file was read
        # Half of each trace id: whether a line may be there. It takes 80 bytes a trace in memory, a full entry 200.
        self._seen: set[int] = set()

    def catch_up(self, numbers: list[int]) -> None:
        """Read what was written since the last time."""
        last_read = max(self._read_to, default=0)
        for number in numbers:
            if number < last_read:
                continue  # only the last file grows
            start = self._read_to.get(number, 0)
            records = _read_from(index_path(self._directory, number), start)
            complete = len(records) - len(records) % _RECORD_BYTES
            self._seen.update(memoryview(records)[:complete].cast("Q").tolist()[::3])
            self._read_to[number] = start + complete

    def without_known(self, request: Lines, numbers: list[int]) -> Lines:
        """Return the lines without the spans that are on disk: the same ones if none is, none if all are."""
        if not any(self._may_have(line.trace_id) for line in request.lines):
            return request
        body = request.body
        return lines_in(b"".join([self._unknown(body[line.start : line.end], numbers) for line in request.lines]))

    def _may_have(self, trace_id: bytes) -> bool:
        return memoryview(trace_id).cast("Q")[0] in self._seen

    def _unknown(self, line: bytes, numbers: list[int]) -> bytes:
        """Return a line without the spans that are on disk; empty if all of them are."""
        trace_id = trace_id_in(line)
        if not self._may_have(trace_id):
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

    def announce(self, number: int, requests: list[Lines], at: int) -> None:
        """Write where each line is going to begin, if the first one begins at `at`."""
        file = os.open(index_path(self._directory, number), APPEND, 0o600)
        try:
            torn = os.lseek(file, 0, os.SEEK_END) % _RECORD_BYTES
            records = [bytes(_RECORD_BYTES - torn)] if torn else []
            for body, lines in requests:
                records += [index_record(line.trace_id, at + line.start) for line in lines]
                at += len(body)
            write_all(file, b"".join(records))
            os.fsync(file)
        finally:
            os.close(file)

    def _spans_on_disk(self, number: int, trace_id: bytes) -> Iterator[tuple[str, str]]:
        """Yield the span ids and start times of this trace in one file."""
        records = _read_from(index_path(self._directory, number), 0)
        found = records.find(trace_id)
        while found >= 0:
            if found % _RECORD_BYTES == 0:
                offset = int.from_bytes(records[found + 16 : found + _RECORD_BYTES], "little")
                for span in decode_line(_read_from(data_path(self._directory, number), offset, is_line=True)):
                    if span["trace_id"] == trace_id.hex():
                        yield str(span["span_id"]), str(span["start_ns"])
            found = records.find(trace_id, found + 1)


def _read_from(path: Path, offset: int, *, is_line: bool = False) -> bytes:
    """Return the rest of a file, or one line of it."""
    try:
        with path.open("rb") as file:
            file.seek(offset)
            return file.readline() if is_line else file.read()
    except FileNotFoundError:
        return b""
