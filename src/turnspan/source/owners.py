"""Which session a transcript belongs to: the one in its name, or, if it was renamed, one that its rows name.

Renamed files are backups, mostly: as a transcript is, as it once was, with other rows appended, or all that is left of
it. Rules:

- The last row of a renamed file names its session. But a file that begins another one, byte for byte, is an earlier
  state of that one: of the rows of several sessions in it, the last ones need not be its own.
- Of several files of a session one counts: the one named after the session, unless it lacks a response of the session
  that another has; then the longest that has all of them, and does not begin with rows of another session. The others
  belong to the same session, and are ignored.
- A renamed file that has a response which that one lacks is not ignored. It is a file of its own, under its name, with
  turns of another session: `source.forks` exports what only it has (1.0.128, `--continue`: the new turns are in a new
  file, and their rows name the old session).
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import lazy
from turnspan.source.scan import (
    END_BYTES,
    contains_id,
    ends,
    is_beginning,
    last_glued,
    lines,
    row_as,
    stamp_of,
)
from turnspan.source.tree import directory_stamp, is_safe_id, names_in

if TYPE_CHECKING:
    from collections.abc import Collection

_HEAD_BYTES: Final = 4096
_COMPARED_BYTES: Final = 256 * 1024 * 1024
_SESSION: Final = lazy.pattern(rb'"sessionId"\s*:\s*"([^"\\]+)"')
UUID: Final = lazy.pattern(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


def owner_of(path: Path) -> str:
    """Return the session that a transcript belongs to; its name if none of its rows names one."""
    if UUID.fullmatch(path.stem):
        return path.stem
    if path.name.startswith("agent-"):
        return _last_named(path) or path.stem
    session_id = _begun_session(path)
    if session_id is not None:
        return session_id
    session_id = _last_named(path)
    if session_id is None:
        return path.stem
    counting = _counting_beside(path, session_id)
    is_file_of_its_own = counting != path and is_safe_id(path.stem) and not _has_all_of(counting, path)
    return path.stem if is_file_of_its_own else session_id


def sessions_named(path: Path) -> tuple[str, ...]:
    """Return the sessions that the beginning of a subagent's file names: it can belong to any of them."""
    named = dict.fromkeys(raw.decode("ascii", "replace") for raw in _SESSION.findall(ends(path, _HEAD_BYTES)))
    return tuple(filter(is_safe_id, named))


def counting_file(paths: Collection[Path], session_id: str) -> Path:
    """Return the one of several files of a session that counts; a subagent's only if there is no other."""
    if len(paths) == 1:
        return next(iter(paths))
    ranked = sorted(paths, key=lambda path: _rank(path, session_id))
    complete = (path for path in ranked if all(_has_all_of(path, other, session_id) for other in ranked))
    return next(complete, ranked[0])


def _rank(path: Path, session_id: str) -> tuple[bool, bool, bool, int, str]:
    """Return the order of the files of a session; one that begins with rows of another session can be two files."""
    first = _SESSION.search(ends(path, END_BYTES))
    is_other = first is not None and first[1] != session_id.encode()
    return path.name.startswith("agent-"), path.stem != session_id, is_other, -stamp_of(str(path))[0], str(path)


# ---- what the rows of a renamed file say


class _SessionId(msgspec.Struct, rename="camel"):
    session_id: str = ""


def _begun_session(path: Path) -> str | None:
    """Return the session of the file that a renamed one begins."""
    for name in _beginning_with(path):
        if contains_id(path, name[:-6], key="sessionId") and is_beginning(path, path.parent / name):
            return name[:-6]
    return None


def _last_named(path: Path) -> str | None:
    """Return the session that the last row names, of those that name one."""
    for count in (END_BYTES, 16 * END_BYTES, 512 * END_BYTES):  # the last row can be a pasted image
        data = ends(path, count, from_end=True)
        for line in reversed(data.splitlines()):
            session_id = row_as(line, _SessionId).session_id or last_glued(line, _SessionId).session_id
            if is_safe_id(session_id):
                return session_id
        if len(data) < count:
            break
    return None


def _beginning_with(path: Path) -> list[str]:
    """Return the files next to a renamed one that are named after a session and have the same first line."""
    try:
        stamp = directory_stamp(path.parent)
        return _transcripts(str(path.parent), stamp).by_first_line.get(_first_line(path), [])
    except OSError:
        return []


def _first_line(path: Path) -> bytes:
    """Return a digest of the first line."""
    return blake2b(ends(path, _HEAD_BYTES).partition(b"\n")[0], digest_size=16).digest()


def _counting_beside(path: Path, session_id: str) -> Path:
    """Return the file that counts of those in a directory that belong to the same session as a renamed one."""
    try:
        changed_ns = directory_stamp(path.parent)
    except OSError:
        return path
    named = stamp_of(str(path.parent / f"{session_id}.jsonl"))
    return _counting_in(str(path.parent), changed_ns, session_id, named) or path


@lru_cache(maxsize=256)  # asked for every backup of a session
def _counting_in(directory: str, changed_ns: int, session_id: str, _named: tuple[int, int]) -> Path | None:
    found = _transcripts(directory, changed_ns)
    renamed = [Path(directory, name) for name in found.renamed_by_session.get(session_id.encode(), ())]
    files = [path for path in renamed if (_begun_session(path) or _last_named(path)) == session_id]
    if f"{session_id}.jsonl" in found.named:
        files.append(Path(directory, f"{session_id}.jsonl"))
    return counting_file(files, session_id) if files else None


class _Transcripts(msgspec.Struct, frozen=True):
    """The transcripts in a directory that has renamed ones."""

    named: frozenset[str]
    by_first_line: dict[bytes, list[str]]  # those named after a session
    renamed_by_session: dict[bytes, list[str]]  # those that name a session in one of their last rows


@lru_cache(maxsize=64)
def _transcripts(directory: str, _changed_ns: int) -> _Transcripts:
    names = names_in(Path(directory)).sessions
    found = _Transcripts(frozenset(name for name in names if UUID.fullmatch(name[:-6])), {}, {})
    for name in names:
        path = Path(directory, name)
        if name in found.named:
            found.by_first_line.setdefault(_first_line(path), []).append(name)
        else:
            for session_id in set(_SESSION.findall(ends(path, END_BYTES, from_end=True))):
                found.renamed_by_session.setdefault(session_id, []).append(name)
    return found


# ---- what a file has


def _has_all_of(one: Path, other: Path, session_id: str = "") -> bool:
    """Whether a file has all responses that another one has; of the rows of one session, if it is given."""
    if is_beginning(other, one):
        return True
    return _responses(str(other), stamp_of(str(other)), session_id) <= _responses(
        str(one), stamp_of(str(one)), session_id
    )


@lru_cache(maxsize=1 << 10)
def _responses(path: str, _stamp: tuple[int, int], session_id: str) -> frozenset[str]:
    """Return the keys of the responses in a file; of the rows of one session, if it is given."""
    from turnspan.transcript.lines import Anomalies, parse  # noqa: PLC0415
    from turnspan.transcript.rows import response_key  # noqa: PLC0415  few sessions have several files

    rows = (entry for line in lines(Path(path), _COMPARED_BYTES) for entry in parse(line, Anomalies()))
    said = (row for row in rows if row.type == "assistant" and row.message is not None)
    return frozenset(response_key(row) for row in said if not session_id or row.session_id in {None, session_id})
