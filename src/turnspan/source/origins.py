"""Which of two files that contain the same prompt is its origin: what clients do not copy decides (`source.forks`)."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.beside import session_in
from turnspan.source.scan import first_time_ns, lines, modified_ns, row_as, rows_with_field, stamp_of
from turnspan.transcript.carry import parse_time
from turnspan.transcript.entries import ForkedFrom  # noqa: TC001  a field of a decoded row

if TYPE_CHECKING:
    from pathlib import Path

    from turnspan.source.sessions import SessionFile
    from turnspan.source.tree import Stamp

COMPARED_BYTES: Final = 64 * 1024 * 1024


class OriginRow(msgspec.Struct, rename="camel"):
    """The session of a row, and when it was written."""

    uuid: str = ""
    session_id: str = ""
    timestamp: str = ""
    forked_from: ForkedFrom | None = None

    def is_of(self, session_id: str) -> bool:
        """Whether it names a session as the one that wrote it."""
        return self.session_id == session_id and self.forked_from is None


def is_origin(one: SessionFile, other: SessionFile, uuid: str) -> bool:
    """Whether the first of two files that contain the same prompt is its origin."""
    row, other_row = (_row_of(session.path, uuid) for session in (one, other))
    if other.session_id in {row.session_id, row.forked_from and row.forked_from.session_id}:
        return False  # up to 2.1.63, and with a mark, a copy names its origin
    written, other_written = parse_time(row.timestamp), parse_time(other_row.timestamp)
    if written is not None and other_written is not None and written != other_written:
        return written < other_written  # clients before 2.0.30 rewrite the times of copies
    asked, other_asked = (_records_request(session.path, uuid) for session in (one, other))
    if asked != other_asked:
        return asked  # recorded requests are not copied (2.1.325)
    born, other_born = first_time_ns(one.path), first_time_ns(other.path)
    if born is not None and other_born is not None and born != other_born:
        return born < other_born  # the first rows of a new file are not copied
    extra, other_extra = _rows_between(*((path, stamp_of(str(path))) for path in (one.path, other.path)))
    if extra != other_extra:
        return extra > other_extra  # only the conversation is copied: the origin has other rows between
    return (modified_ns(one.path), one.path.name) < (modified_ns(other.path), other.path.name)


@lru_cache(maxsize=1 << 8)  # asked with every turn
def _rows_between(*paths: tuple[Path, Stamp]) -> list[int]:
    """Return how many rows of its own each file has between those that all of them contain."""
    files = [[row_as(line, _Typed).uuid for line in lines(path, COMPARED_BYTES)] for path, _ in paths]
    common = set[str].intersection(*({uuid for uuid in uuids if uuid} for uuids in files))
    found = []
    for uuids in files:
        shared = [number for number, uuid in enumerate(uuids) if uuid in common]
        found.append(shared[-1] - shared[0] + 1 - len(shared) if shared else 0)
    return found


def _row_of(path: Path, uuid: str) -> OriginRow:
    rows = (row_as(line, OriginRow) for _, line in rows_with_field(path, "uuid", b'"%b"' % uuid.encode()))
    return next((row for row in rows if row.uuid == uuid), OriginRow())


def _records_request(path: Path, uuid: str) -> bool:
    """Whether a request is recorded between a prompt and its first response."""
    for start, line in rows_with_field(path, "uuid", b'"%b"' % uuid.encode()):
        if row_as(line, _Typed).uuid == uuid:
            rows = (row_as(later, _Typed) for later in lines(path, COMPARED_BYTES, start + len(line) + 1))
            return next((row.type for row in rows if row.type in {"api-request", "assistant"}), "") == "api-request"
    return False


class _Typed(msgspec.Struct):
    type: str = ""
    uuid: str = ""


def became_own(session: SessionFile) -> tuple[int, str]:
    """Return when the first row was written that was not copied into a file, and the file's name."""
    return _first_own_ns(session.path, stamp_of(str(session.path)), session_in(session.path)), session.path.name


@lru_cache(maxsize=1 << 10)  # asked with every turn
def _first_own_ns(path: Path, _stamp: Stamp, session_id: str) -> int:
    for line in lines(path, COMPARED_BYTES):
        row = row_as(line, OriginRow)
        if row.is_of(session_id) and (born := parse_time(row.timestamp)) is not None:
            return born
    return 2**63
