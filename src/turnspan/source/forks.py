"""Forks: turns that were copied into a transcript from another one. They are exported from their origin only.

Claude Code copies history when a session is resumed into a new file, forked or branched. What a copy keeps:

| client, action | uuid | session id | times | recorded requests | how a copy is recognised |
|---|---|---|---|---|---|
| before 1.0.86, resume | new | new | new | - | 1: another file had the same response ids, or words, earlier |
| some up to 2.1.63, resume or fork | same | **old** | new before 2.0.30 | - | 2: the old session's file has the uuid |
| `/branch`, SDK fork | same / new | new | same | - | 3: `forkedFrom` names another session |
| later forks without a mark | same | new | same | - | 4: another file had the uuid first |
| 2.1.325, `--fork-session` | same | new | same | not copied | 4; its responses name requests of another file |
| in place: VS Code resume (2.1.11) | new | same | same | - | 5: the same response ids, or prompt, earlier in the file |
| in place: streams before 1.0.86 | new | same | new | - | 5 |

`is_copied` tries 3, 2, 1 and 4 in this order; `repeats_itself` is 5. The rules behind them:

- Rows that carry the file's own session id belong to its session, even if their prompt carries another one (2.0.36,
  forks; 2.1.12, a plan with cleared context): `transcript.assembly` gives such a turn the file's session. It is a copy
  only if the other file has its responses too.
- Some turns cannot be copies: those whose requests are recorded in this file (2.1.325). For 1 and 4, `Reading` asks
  only until it has met a turn of the session's own: history is copied to the beginning of a file.
- **A copy whose origin is not on disk, and was never sent, is the only one there is: it is exported, under the origin's
  identity where the copy names it (2, 3).** Of several such copies, the file that became a session of its own first
  exports it.
- 2 has one more exception: 1.0.x `--continue` writes new turns into a new file under the old session's id. Then the old
  file does not contain them.
- For 4, only files that were being written when the prompt was are searched, as far as their times are trustworthy
  (2.0.30 on). If both have the prompt, `_is_origin` decides, by what clients do not copy.
- A transcript can be cut off in the middle of a turn that was copied before: what only the copy has is exported from
  there, as a further part of the original turn (`keep_rest`).
- A turn after skipped copies links to its predecessor in the origin: `original_ref`.
"""

from __future__ import annotations

from bisect import bisect_right
from datetime import UTC, datetime
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.scan import (
    contains_id,
    first_row_time_ns,
    first_time_ns,
    lines,
    modified_ns,
    row_as,
    rows_with,
    stamp_of,
    time_range,
)
from turnspan.source.sessions import SessionFile, is_safe_id, session_names, session_of, sessions_in
from turnspan.transcript.classify import SYNTHETIC, copies_anew
from turnspan.transcript.entries import ForkedFrom, blocks, plain_text
from turnspan.transcript.lines import Anomalies, parse
from turnspan.transcript.resume import TurnRef
from turnspan.transcript.times import parse_time
from turnspan.transcript.turns import Happening, version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnspan.transcript.turns import Turn

_COMPARED_BYTES: Final = 64 * 1024 * 1024
_TIMES_KEPT_FROM: Final = (2, 0, 30)  # copies made by earlier clients carry new timestamps


def is_foreign(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn names another session as its own."""
    return turn.session_id != session.session_id


def is_copied(turn: Turn, session: SessionFile, was_sent: Callable[[str], bool]) -> bool:
    """Whether a turn was copied into this file from another one, from which it is exported.

    `was_sent` says whether a session that is no longer on disk was exported before.
    """
    if not is_looked_up(turn, session):
        return False
    if is_foreign(turn, session) and _is_exported_elsewhere(turn, session, was_sent):
        return True
    if _may_have_new_uuids(turn):
        return _was_written_earlier(turn, session)
    return not is_foreign(turn, session) and _has_origin(turn, session)


def is_looked_up(turn: Turn, session: SessionFile) -> bool:
    """Whether other transcripts decide if a turn was copied."""
    if is_foreign(turn, session):
        return True
    return bool(turn.prompt_uuid) and (_may_have_new_uuids(turn) or not _has_own_requests(turn))


def _is_exported_elsewhere(turn: Turn, session: SessionFile, was_sent: Callable[[str], bool]) -> bool:
    """Whether a turn of another session is exported from that session's file, or from an earlier copy."""
    origins = list(_files_of(turn.session_id, session))
    if any(contains_id(path, turn.key) and _has_response(path, turn) for path in origins):
        return True
    if not origins and is_safe_id(turn.session_id) and was_sent(turn.session_id):
        return True
    if not turn.prompt_uuid:
        return False
    copies = [other for other in _others(session) if other.path not in origins]
    return any(
        (contains_id(other.path, turn.key) or contains_id(other.path, turn.key, key="messageUuid"))
        and _has_response(other.path, turn)
        and _became_own(other) < _became_own(session)
        for other in copies
    )


def _has_response(path: Path, turn: Turn) -> bool:
    """Whether a transcript has a response of the turn too, if there is any: a prompt alone can be carried over."""
    keys = [response.key for response in reversed(turn.responses)]  # mostly it has all of them
    return not keys or any(_contains_response(path, key) for key in keys)


def _contains_response(path: Path, key: str) -> bool:
    return any(contains_id(path, key, key=name) for name in ("id", "requestId", "uuid"))


def keep_rest(turn: Turn, session: SessionFile) -> bool:
    """Reduce a copied turn to the responses that no earlier transcript has; return whether there are any.

    They are a further part of the original turn: its transcript was cut off in the middle of it. Of several copies that
    have the rest, one keeps it.
    """
    files = list(_files_before(turn, session))
    responses = [response for response in turn.responses if response.model != SYNTHETIC]
    if not responses or not files or any(_contains_response(path, responses[-1].key) for path in files):
        return False  # the usual case: the original turn is complete; or it was sent before its file was deleted
    turn.responses = [
        response
        for response in responses
        if not _is_before(turn, session, response.key)
        and not any(_contains_response(path, response.key) for path in files)
    ]
    turn.happenings = []
    if not _may_have_new_uuids(turn):
        ref = original_ref(turn.ref, session)
        turn.session_id = ref.session_id if ref is not None else turn.session_id
        turn.part = max(1, turn.part)
    return bool(turn.responses)


def _files_before(turn: Turn, session: SessionFile) -> Iterator[Path]:
    """Yield the transcripts that a copied turn is exported from, if they have it: its origin, and earlier copies."""
    if is_foreign(turn, session):
        origins = list(_files_of(turn.session_id, session))
        yield from origins
        born = _became_own(session)
        yield from (o.path for o in _others(session) if o.path not in origins and _became_own(o) < born)
    elif _may_have_new_uuids(turn):
        fields = [("id", b'"%b"' % response.key.encode()) for response in turn.responses]
        for other in _others(session):
            first_ns = first_row_time_ns(other.path, *fields)
            if first_ns is not None and first_ns < min(turn.times, default=0):
                yield other.path
    else:
        for other in _others(session):
            if contains_id(other.path, turn.key) and _is_origin(other, session, turn.key):
                yield other.path


def _files_of(session_id: str, beside: SessionFile) -> Iterator[Path]:
    """Yield the transcripts of a session in the project of another one, renamed ones too, and in other projects."""
    directory = beside.path.parent
    for other in sessions_in(directory):
        if other.path != beside.path and _session_in(other.path) == session_id:
            yield other.path
    if directory.parent.name == "projects" and is_safe_id(session_id):
        for project in sorted(directory.parent.iterdir()):
            path = project / f"{session_id}.jsonl"
            if project != directory and path.is_file():
                yield path


def _became_own(session: SessionFile) -> tuple[int, str]:
    """Return when the first row was written that was not copied into a file, and the file's name."""
    session_id = session_of(session.path).session_id
    for line in lines(session.path, _COMPARED_BYTES):
        row = row_as(line, _Row)
        if row.session_id == session_id and row.forked_from is None and (born := parse_time(row.timestamp)) is not None:
            return born, session.path.name
    return 2**63, session.path.name


def _may_have_new_uuids(turn: Turn) -> bool:
    """Whether an old client may have copied this turn with new uuids and times: such copies do not name requests."""
    return copies_anew(turn.version) and not any(response.request_id for response in turn.responses)


def _was_written_earlier(turn: Turn, session: SessionFile) -> bool:
    """Whether another transcript had the same responses earlier, or, if there are none, the same prompt."""
    fields = [("id", b'"%b"' % response.key.encode()) for response in turn.responses]
    if not fields and turn.prompt is not None and turn.prompt.text:
        words = msgspec.json.encode(turn.prompt.text)
        fields = [("content", words), ("text", words)]
    written = (first_row_time_ns(other.path, *fields) for other in _others(session))
    return any(first_ns is not None and first_ns < min(turn.times, default=0) for first_ns in written)


def _has_own_requests(turn: Turn) -> bool:
    """Whether its requests are recorded in this file, and none elsewhere: they are not copied (2.1.325)."""
    responses = turn.responses
    return any(r.request_ns is not None for r in responses) and not any(r.has_request_elsewhere for r in responses)


def _has_origin(turn: Turn, session: SessionFile) -> bool:
    """Whether another transcript of the project had the prompt first."""
    uuid = turn.prompt_uuid
    is_surely_copied = any(response.has_request_elsewhere for response in turn.responses)
    return any(
        contains_id(other.path, uuid)
        and (is_surely_copied or (_has_response(other.path, turn) and _is_origin(other, session, uuid)))
        for other in _overlapping(turn, session)
    )


def _others(session: SessionFile) -> Iterator[SessionFile]:
    return (
        other
        for other in sessions_in(session.path.parent)
        if other.path != session.path and _session_in(other.path) != session.session_id
    )


def _session_in(path: Path) -> str:
    """Return the session that a transcript belongs to: a backup beside it is not another session."""
    return path.stem if len(path.stem) == 36 else _session_named_in(str(path), stamp_of(str(path)))


@lru_cache(maxsize=1 << 9)  # asked with every turn
def _session_named_in(path: str, _stamp: tuple[int, int]) -> str:
    return session_of(Path(path)).session_id


def original_ref(ref: TurnRef, session: SessionFile) -> TurnRef | None:
    """Return the identity of a copied turn in its origin, which unmarked copies do not name.

    None if no other transcript has its uuid: it was copied with a new one.
    """
    if ref.session_id != session.session_id:
        return ref
    origin: SessionFile | None = None
    for other in (other for other in _others(session) if contains_id(other.path, ref.key)):
        if origin is None or _is_origin(other, origin, ref.key):
            origin = other
    return TurnRef(origin.session_id, ref.key, ref.number, ref.parts) if origin is not None else None


def repeats_itself(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn is in the same file twice, and this is the second: with new uuids and the old message ids.

    VS Code wrote such copies when it resumed a session (2.1.11), with the old times; clients before 1.0.86 with every
    further prompt of a stream, with new times.
    """
    if not turn.is_repeat_suspect and not _may_have_new_uuids(turn):
        return False
    if turn.prompt_uuid and contains_id(session.path, turn.prompt_uuid, before=turn.start.offset):
        return True
    if turn.responses:
        return all(_is_before(turn, session, response.key) for response in turn.responses)
    return turn.is_repeat_suspect and _has_prompt_before(turn, session.path)


def drop_repeated(turn: Turn, session: SessionFile) -> None:
    """Remove the responses that are in the same file before: the turn was running when the history was repeated.

    The results of their calls are kept as late ones, unless they are in the file before as well.
    """
    if not turn.is_repeat_suspect or turn.part > 0:
        return
    repeated = [response for response in turn.responses if _is_before(turn, session, response.key)]
    turn.responses = [response for response in turn.responses if response not in repeated]
    for call in (call for response in repeated for call in response.calls):
        if call.result is not None and not _is_before(turn, session, call.id, key="tool_use_id"):
            fact: dict[str, str | int | float] = {"unknown_call_id": call.id}
            late = Happening("late_result", call.id, call.result.time_ns, call.result.text, fact, call.result.blocks)
            turn.happenings.append(late)


def _is_before(turn: Turn, session: SessionFile, needle: str, key: str = "id") -> bool:
    return contains_id(session.path, needle, key=key, before=turn.start.offset)


def _has_prompt_before(turn: Turn, path: Path) -> bool:
    """Whether a prompt is in the file before, with the same time: VS Code repeats a prompt in a row for each block."""
    prompt = turn.prompt
    if prompt is None or prompt.time_ns is None:
        return False
    when = datetime.fromtimestamp(prompt.time_ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")
    for line in rows_with(path, when.replace("+00:00", "Z").encode(), 0, turn.start.offset):
        for entry in parse(line, Anomalies()):
            if entry.type == "user" and entry.message is not None and prompt.text in plain_text(blocks(entry.message)):
                return True
    return False


def _overlapping(turn: Turn, session: SessionFile) -> Iterator[SessionFile]:
    """Yield the other sessions of the project that were being written when the prompt was, by their own times."""
    prompt_ns = turn.prompt.time_ns if turn.prompt is not None else None
    if prompt_ns is None or version_of(turn.version) < _TIMES_KEPT_FROM:
        yield from _others(session)
        return
    directory = session.path.parent
    names = session_names(directory)
    if _lifetimes_in(directory, names).sizes.get(session.path.name, 0) < turn.end.end:
        _lifetimes_in.cache_clear()  # the turn was written since, and so may its origin have been
    for name in sorted(_lifetimes_in(directory, names).at(prompt_ns)):
        path = directory / name
        if path != session.path and _session_in(path) != session.session_id:
            yield SessionFile(name[:-6], path)


class _Lifetimes(msgspec.Struct, frozen=True):
    """When the transcripts of a project were written, in the order of their first times, and their sizes then."""

    sizes: dict[str, int]
    names: list[str]
    first_ns: list[int]  # 0 if the beginning of the file does not show a time
    last_ns: list[int]  # far in the future if the end does not show one
    reach_ns: list[int]  # the latest of all `last_ns` so far: nothing before it was written at a later time

    def at(self, time_ns: int) -> Iterator[str]:
        """Yield the names of the files that were being written at a time."""
        place = bisect_right(self.first_ns, time_ns) - 1
        while place >= 0 and self.reach_ns[place] >= time_ns:
            if self.last_ns[place] >= time_ns:
                yield self.names[place]
            place -= 1


@lru_cache(maxsize=1 << 9)  # a backfill asks for the same neighbours with every session
def _lifetimes_in(directory: Path, names: tuple[str, ...]) -> _Lifetimes:
    found = []
    sizes = {}
    for name in names:
        path = directory / name
        sizes[name] = stamp_of(str(path))[0]
        first_ns, last_ns = time_range(path)
        found.append((first_ns or 0, last_ns if last_ns is not None else 2**63, name))
    found.sort()
    last = [last_ns for _, last_ns, _ in found]
    return _Lifetimes(
        sizes, [name for _, _, name in found], [first for first, _, _ in found], last, list(accumulate(last, max))
    )


def _is_origin(one: SessionFile, other: SessionFile, uuid: str) -> bool:
    """Whether the first of two files that contain the same prompt is its origin."""
    row, other_row = (_row_of(session.path, uuid) for session in (one, other))
    if other.session_id in {row.session_id, row.forked_from and row.forked_from.session_id}:
        return False  # up to 2.1.63, and with a mark, a copy names its origin
    written, other_written = parse_time(row.timestamp), parse_time(other_row.timestamp)
    if written is not None and other_written is not None and written != other_written:
        return written < other_written  # clients before 2.0.30 rewrite the times of copies
    born, other_born = first_time_ns(one.path), first_time_ns(other.path)
    if born is not None and other_born is not None and born != other_born:
        return born < other_born  # the first rows of a new file are not copied
    extra, other_extra = _rows_between(one.path, other.path)
    if extra != other_extra:
        return extra > other_extra  # only the conversation is copied: the origin has other rows between
    return (modified_ns(one.path), one.path.name) < (modified_ns(other.path), other.path.name)


def _rows_between(*paths: Path) -> list[int]:
    """Return how many rows of its own each file has between those that all of them contain."""
    files = [[row_as(line, _Named).uuid for line in lines(path, _COMPARED_BYTES)] for path in paths]
    common = set[str].intersection(*({uuid for uuid in uuids if uuid} for uuids in files))
    found = []
    for uuids in files:
        shared = [number for number, uuid in enumerate(uuids) if uuid in common]
        found.append(shared[-1] - shared[0] + 1 - len(shared) if shared else 0)
    return found


class _Named(msgspec.Struct):
    uuid: str = ""


class _Row(msgspec.Struct, rename="camel"):
    """The session of a row, and when it was written."""

    uuid: str = ""
    session_id: str = ""
    timestamp: str = ""
    forked_from: ForkedFrom | None = None


def _row_of(path: Path, uuid: str) -> _Row:
    needle = b'"' + uuid.encode() + b'"'
    for line in lines(path, _COMPARED_BYTES):
        if needle in line and (row := row_as(line, _Row)).uuid == uuid:
            return row
    return _Row()
