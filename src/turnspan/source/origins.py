"""Which of two files that contain the same prompt is its origin: what clients do not copy decides (`source.forks`)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.scan import first_time_ns, lines, modified_ns, row_as
from turnspan.transcript.carry import parse_time
from turnspan.transcript.entries import ForkedFrom  # noqa: TC001  a field of a decoded row

if TYPE_CHECKING:
    from pathlib import Path

    from turnspan.source.sessions import SessionFile

COMPARED_BYTES: Final = 64 * 1024 * 1024


class OriginRow(msgspec.Struct, rename="camel"):
    """The session of a row, and when it was written."""

    uuid: str = ""
    session_id: str = ""
    timestamp: str = ""
    forked_from: ForkedFrom | None = None


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
    extra, other_extra = _rows_between(one.path, other.path)
    if extra != other_extra:
        return extra > other_extra  # only the conversation is copied: the origin has other rows between
    return (modified_ns(one.path), one.path.name) < (modified_ns(other.path), other.path.name)


def _rows_between(*paths: Path) -> list[int]:
    """Return how many rows of its own each file has between those that all of them contain."""
    files = [[row_as(line, _Named).uuid for line in lines(path, COMPARED_BYTES)] for path in paths]
    common = set[str].intersection(*({uuid for uuid in uuids if uuid} for uuids in files))
    found = []
    for uuids in files:
        shared = [number for number, uuid in enumerate(uuids) if uuid in common]
        found.append(shared[-1] - shared[0] + 1 - len(shared) if shared else 0)
    return found


class _Named(msgspec.Struct):
    uuid: str = ""


def _row_of(path: Path, uuid: str) -> OriginRow:
    needle = b'"' + uuid.encode() + b'"'
    for line in lines(path, COMPARED_BYTES):
        if needle in line and (row := row_as(line, OriginRow)).uuid == uuid:
            return row
    return OriginRow()


def _records_request(path: Path, uuid: str) -> bool:
    """Whether a request is recorded between a prompt and its first response."""
    is_found = False
    for line in lines(path, COMPARED_BYTES):
        row = row_as(line, _Typed)
        if is_found and row.type in {"api-request", "assistant"}:
            return row.type == "api-request"
        is_found |= row.uuid == uuid
    return False


class _Typed(msgspec.Struct):
    type: str = ""
    uuid: str = ""
