"""History that was copied into a transcript from another one, where it belongs.

Rules:

- A copied turn belongs to its origin: it is told there, and here it is left out.
- Some clients mark copies, or leave the old session's id on them. Where nothing tells, that a prompt's uuid stands in
  another transcript of the same project does; which of the two is the origin is asked of what clients do not copy.
- The oldest clients give everything a new uuid and a new time. There the ids of responses tell, and who had them first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.scan import (
    first_row_time_ns,
    first_time_ns,
    lines,
    modified_ns,
    row_as,
    stamp_of,
    stands_in,
    time_range,
)
from turnspan.source.sessions import SessionFile, is_safe_id, session_names, sessions_in
from turnspan.transcript.classify import copies_anew
from turnspan.transcript.entries import ForkedFrom  # noqa: TC001  msgspec resolves field types when a struct is made
from turnspan.transcript.resume import TurnRef
from turnspan.transcript.times import parse_time
from turnspan.transcript.turns import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.transcript.turns import Turn

_WHOLE_BYTES: Final = 64 * 1024 * 1024  # as much of a transcript as is compared
_TIMES_KEPT_FROM: Final = (2, 0, 30)  # copies made by earlier clients carry new timestamps


def is_copied(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn was copied into this file from another one, where it belongs."""
    if turn.forked_from is not None and turn.forked_from != session.session_id:
        return True
    if not turn.prompt_uuid:
        return False
    if turn.session_id != session.session_id:
        # Up to 2.1.63 copies keep the session they come from. The one exception is 1.0.x `--continue`, which writes new
        # turns into a new file under the old id: then the old file does not hold them.
        if not is_safe_id(turn.session_id):
            return True
        origin = session.path.parent / f"{turn.session_id}.jsonl"
        return not origin.is_file() or stands_in(origin, turn.prompt_uuid)
    if _may_be_retold(turn):
        return _is_retold(turn, session)
    if _has_own_requests(turn):
        return False
    is_marked = any(response.has_request_elsewhere for response in turn.responses)  # 2.1.325 on: they are not copied
    return any(
        stands_in(other.path, turn.prompt_uuid) and (is_marked or _is_origin(other, session, turn.prompt_uuid))
        for other in _overlapping(turn, session)
    )


def _may_be_retold(turn: Turn) -> bool:
    """Whether an old client may have copied this turn, uuids and times aside: copies do not name their requests."""
    return copies_anew(turn.version) and not any(response.request_id for response in turn.responses)


def _is_retold(turn: Turn, session: SessionFile) -> bool:
    """Whether another transcript had the same answers earlier, or the words that got none."""
    needles = [b'"id":"%b"' % response.key.encode() for response in turn.responses]
    if not needles and turn.prompt is not None and turn.prompt.text:
        words = msgspec.json.encode(turn.prompt.text)
        needles = [b'"content":' + words, b'"text":' + words]
    written = (first_row_time_ns(other.path, *needles) for other in _others(session))
    return any(first_ns is not None and first_ns < min(turn.times, default=0) for first_ns in written)


def _others(session: SessionFile) -> Iterator[SessionFile]:
    return (other for other in sessions_in(session.path.parent) if other.session_id != session.session_id)


def _has_own_requests(turn: Turn) -> bool:
    """Whether requests were recorded in this file, and none elsewhere: copies do not hold them (2.1.325 on)."""
    responses = turn.responses
    return any(r.request_ns is not None for r in responses) and not any(r.has_request_elsewhere for r in responses)


def original_ref(ref: TurnRef, session: SessionFile) -> TurnRef | None:
    """A copied turn by its identity in the transcript it comes from, which unmarked copies do not name.

    None where none has it under this uuid: what was copied with new uuids cannot be told by them.
    """
    if ref.session_id != session.session_id:
        return ref
    origin: SessionFile | None = None
    for other in (other for other in _others(session) if stands_in(other.path, ref.key)):
        if origin is None or _is_origin(other, origin, ref.key):
            origin = other
    return TurnRef(origin.session_id, ref.key, ref.number, ref.parts) if origin is not None else None


def repeats_itself(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn stands in the same file once more, with new uuids and old message ids.

    VS Code wrote it so when it resumed (2.1.11), with the old times; clients before 1.0.86 with every further prompt of
    a stream, with new ones.
    """
    if not turn.is_repeat_suspect and not _may_be_retold(turn):
        return False
    if turn.prompt_uuid and stands_in(session.path, turn.prompt_uuid, before=turn.start.offset):
        return True
    ids = [response.key for response in turn.responses]
    return bool(ids) and all(stands_in(session.path, key, key=b'"id":"', before=turn.start.offset) for key in ids)


def _overlapping(turn: Turn, session: SessionFile) -> Iterator[SessionFile]:
    """The other sessions of the project that were being written when the prompt was, as their own times tell."""
    prompt_ns = turn.prompt.time_ns if turn.prompt is not None else None
    if prompt_ns is None or version_of(turn.version) < _TIMES_KEPT_FROM:
        yield from _others(session)
        return
    directory = session.path.parent
    names = session_names(directory)
    own = _lifetimes_in(directory, names).get(session.path.name)
    if own is None or own.size < turn.end.end:
        _lifetimes_in.cache_clear()  # the turn was written since; whoever had it before has it by now
    for name, life in _lifetimes_in(directory, names).items():
        if life.first_ns <= prompt_ns <= life.last_ns and name[:-6] != session.session_id:
            yield SessionFile(name[:-6], directory / name)


class _Lifetime(msgspec.Struct, frozen=True):
    """When a transcript was written, and how much of it was there; always, where its ends do not tell."""

    size: int
    first_ns: int
    last_ns: int


@lru_cache(maxsize=1 << 9)  # a backfill asks with every session for all that lies next to it
def _lifetimes_in(directory: Path, names: tuple[str, ...]) -> dict[str, _Lifetime]:
    found = {}
    for name in names:
        path = directory / name
        size = stamp_of(str(path))[0]
        first_ns, last_ns = time_range(path)
        found[name] = _Lifetime(size, first_ns or 0, last_ns if last_ns is not None else 2**63)
    return found


def _is_origin(one: SessionFile, other: SessionFile, uuid: str) -> bool:
    """Of two files that hold the same prompt, whether the first had it first."""
    row, other_row = (_row_of(session.path, uuid) for session in (one, other))
    if other.session_id in {row.session_id, row.forked_from and row.forked_from.session_id}:
        return False  # up to 2.1.63, and with a mark, a copy names the session it comes from
    written, other_written = parse_time(row.timestamp), parse_time(other_row.timestamp)
    if written is not None and other_written is not None and written != other_written:
        return written < other_written  # clients before 2.0.30 rewrite the times of copies
    born, other_born = first_time_ns(one.path), first_time_ns(other.path)
    if born is not None and other_born is not None and born != other_born:
        return born < other_born  # what a client writes first in a new file is not copied
    extra, other_extra = _rows_between(one.path, other.path)
    if extra != other_extra:
        return extra > other_extra  # only the conversation is copied: more than that stands in the origin
    return (modified_ns(one.path), one.path.name) < (modified_ns(other.path), other.path.name)


def _rows_between(*paths: Path) -> list[int]:
    """How many rows of its own each of these files has between those that all of them hold."""
    files = [[row_as(line, _Named).uuid for line in lines(path, _WHOLE_BYTES)] for path in paths]
    common = set[str].intersection(*({uuid for uuid in uuids if uuid} for uuids in files))
    found = []
    for uuids in files:
        shared = [number for number, uuid in enumerate(uuids) if uuid in common]
        found.append(shared[-1] - shared[0] + 1 - len(shared) if shared else 0)
    return found


class _Named(msgspec.Struct):
    uuid: str = ""


class _Row(msgspec.Struct, rename="camel"):
    """Whose row it is, and when it was written."""

    session_id: str = ""
    timestamp: str = ""
    forked_from: ForkedFrom | None = None


def _row_of(path: Path, uuid: str) -> _Row:
    needle = b'"uuid":"' + uuid.encode() + b'"'
    for line in lines(path, _WHOLE_BYTES):
        if needle in line:
            return row_as(line, _Row)
    return _Row()
