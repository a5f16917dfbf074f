"""Where transcripts lie: sessions, their subagents, and history that was copied from elsewhere.

Rules:

- Ids that become paths are checked; only regular files below the projects directory are opened, links resolved.
- The slug of a project is never computed: directories are listed.
- A copied turn belongs to its origin. The newest clients leave no mark on copies: that a prompt's uuid stands in an older
  transcript of the same project is all that tells.
"""

from __future__ import annotations

import json
import mmap
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError
from turnspan.tail import open_regular
from turnspan.transcript.entries import parse_time
from turnspan.transcript.turns import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from turnspan.transcript.turns import Turn

SAFE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_STAMP: Final = re.compile(rb'"timestamp":"([^"]{10,40})"')
_HEAD_BYTES: Final = 65536
_TIMES_REWRITTEN_UNTIL: Final = (2, 0, 0)  # copies made by these clients carry new timestamps


class SessionFile(msgspec.Struct, frozen=True):
    """A session's transcript on disk."""

    session_id: str
    path: Path

    @property
    def project(self) -> str:
        """The name of the project directory it lies in."""
        return self.path.parent.name


class AgentFile(msgspec.Struct, frozen=True):
    """A subagent's transcript on disk, with what its `meta.json` says."""

    agent_id: str
    path: Path
    type: str = ""
    description: str = ""
    tool_use_id: str | None = None
    depth: int | None = None
    is_finished: bool = False


class _Meta(msgspec.Struct, rename="camel"):
    agent_type: str | None = None
    description: str | None = None
    tool_use_id: str | None = None
    spawn_depth: int | None = None
    finished: bool | None = None


def projects_dir(claude_home: Path) -> Path:
    """Where Claude Code keeps its transcripts."""
    return claude_home / "projects"


def session_at(path: Path) -> SessionFile:
    """The session that a transcript's path names."""
    if not SAFE_ID.fullmatch(path.stem):
        raise TranscriptError(f"{path.name!r} is not named after a session", hint="name a file that ends in .jsonl")
    return SessionFile(path.stem, path)


def sessions_in(directory: Path) -> Iterator[SessionFile]:
    """The sessions directly inside one project directory, in the order of their names."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.name.endswith(".jsonl"))
    except OSError:
        return
    for name in names:
        if not name.startswith("agent-") and SAFE_ID.fullmatch(name[:-6]):
            yield SessionFile(name[:-6], directory / name)


def all_sessions(projects: Path) -> Iterator[SessionFile]:
    """The sessions of every project."""
    try:
        names = sorted(entry.name for entry in os.scandir(projects) if entry.is_dir())
    except OSError:
        return
    for name in names:
        yield from sessions_in(projects / name)


def is_below(path: Path, root: Path) -> bool:
    """Whether a path, its links resolved, lies below a directory."""
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError, ValueError):
        return False


# ---- subagents


def agent_files(session: SessionFile) -> dict[str, AgentFile]:
    """The subagents that lie in the session's own directory (since 2.1.2), workflows included."""
    found: dict[str, AgentFile] = {}
    root = session.path.parent / session.session_id / "subagents"
    for directory, _, names in os.walk(root):
        for name in sorted(names):
            agent_id = name[6:-6]
            if name.startswith("agent-") and name.endswith(".jsonl") and SAFE_ID.fullmatch(agent_id):
                found[agent_id] = _agent_at(agent_id, Path(directory) / name)
    return found


def flat_agent_file(session: SessionFile, agent_id: str) -> AgentFile | None:
    """A subagent that lies next to its session (2.0.28 to 2.1.1)."""
    if not SAFE_ID.fullmatch(agent_id):
        return None
    path = session.path.parent / f"agent-{agent_id}.jsonl"
    return _agent_at(agent_id, path) if path.is_file() else None


def flat_agent_files(session: SessionFile, since_ns: int) -> Iterator[AgentFile]:
    """The subagents next to a session that were written to since a time and name the session."""
    try:
        entries = sorted(os.scandir(session.path.parent), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        agent_id = entry.name[6:-6]
        if not (entry.name.startswith("agent-") and entry.name.endswith(".jsonl") and SAFE_ID.fullmatch(agent_id)):
            continue
        try:
            if entry.stat().st_mtime_ns < since_ns or not entry.is_file():
                continue
            with open(entry.path, "rb") as file:
                head = file.read(4096)
        except OSError:
            continue
        if session.session_id.encode() in head:
            yield AgentFile(agent_id, Path(entry.path))


def _agent_at(agent_id: str, path: Path) -> AgentFile:
    meta = _Meta()
    try:
        raw = path.with_suffix(".meta.json").read_bytes()[:_HEAD_BYTES]
        meta = msgspec.json.decode(raw, type=_Meta)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # before 2.1.2 there is none; half a file is as good as none
    return AgentFile(
        agent_id, path, meta.agent_type or "", meta.description or "", meta.tool_use_id, meta.spawn_depth,
        bool(meta.finished),
    )  # fmt: skip


def label_of(agent_id: str) -> str:
    """What an agent that no call launched is for, from its id (`acompact-…`, `aprompt_suggestion-…`); else empty."""
    label, dash, _ = agent_id.rpartition("-")
    return label.removeprefix("a").replace("_", " ") if dash else ""


# ---- copied history


def is_copied(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn was copied into this file from another one, where it belongs."""
    if turn.forked_from is not None and turn.forked_from != session.session_id:
        return True
    if not turn.prompt_uuid:
        return False
    if turn.session_id != session.session_id:
        # Up to 2.1.63 copies keep the session they come from. The one exception is 1.0.x `--continue`, which writes new
        # turns into a new file under the old id: then the old file does not hold them.
        if not SAFE_ID.fullmatch(turn.session_id):
            return True
        origin = session.path.parent / f"{turn.session_id}.jsonl"
        return not origin.is_file() or _stands_in(origin, turn.prompt_uuid)
    return any(
        _stands_in(other.path, turn.prompt_uuid) and _is_older(other.path, turn, session)
        for other in _overlapping(turn, session)
    )


def repeats_itself(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn stands in the same file once more (VS Code resume, 2.1.11: new uuids, old message ids)."""
    if not turn.is_repeat_suspect or not turn.responses:
        return False
    return all(_stands_in(session.path, r.key, key=b'"id":"', before=turn.start.offset) for r in turn.responses)


def _overlapping(turn: Turn, session: SessionFile) -> Iterator[SessionFile]:
    """The other sessions of the project that were being written when the prompt was."""
    prompt_ns = turn.prompt.time_ns if turn.prompt is not None else None
    are_times_kept = version_of(turn.version) > _TIMES_REWRITTEN_UNTIL
    for other in sessions_in(session.path.parent):
        if other.session_id == session.session_id:
            continue
        try:
            status = other.path.stat()
        except OSError:
            continue
        if prompt_ns is not None and are_times_kept:
            if status.st_mtime_ns < prompt_ns:
                continue
            first, last = _time_range(other.path, status.st_size)
            if first is not None and last is not None and not first <= prompt_ns <= last:
                continue
        yield other


def _time_range(path: Path, size: int) -> tuple[int | None, int | None]:
    """The first and the last time that a transcript's ends show."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
            file.seek(max(0, size - _HEAD_BYTES))
            tail = file.read(_HEAD_BYTES)
    except OSError:
        return None, None
    times = [t for t in (parse_time(s.decode("ascii", "replace")) for s in _STAMP.findall(head + tail)) if t is not None]
    return min(times, default=None), max(times, default=None)


def last_time_ns(path: Path) -> int | None:
    """The last time that the end of a transcript shows."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _HEAD_BYTES))
            stamps = _STAMP.findall(file.read(_HEAD_BYTES))
    except OSError:
        return None
    return max(filter(None, (parse_time(stamp.decode("ascii", "replace")) for stamp in stamps)), default=None)


def _stands_in(path: Path, needle: str, *, key: bytes = b'"uuid":"', before: int | None = None) -> bool:
    try:
        descriptor = open_regular(path)
    except TranscriptError:
        return False
    try:
        size = os.fstat(descriptor).st_size
        if size == 0:
            return False
        with mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ) as data:
            end = size if before is None else min(before, size)
            return data.find(key + needle.encode() + b'"', 0, end) >= 0
    except (OSError, ValueError):
        return False
    finally:
        os.close(descriptor)


def _is_older(other: Path, turn: Turn, session: SessionFile) -> bool:
    """Which of two files that hold the same prompt had it first? True if it was `other`."""
    if any(response.has_request_elsewhere for response in turn.responses):
        return True  # 2.1.325 on: the recorded requests are not copied
    if any(response.request_ns is not None for response in turn.responses):
        return False
    ours, theirs = (_prompt_time(path, turn.prompt_uuid) for path in (session.path, other))
    if ours is not None and theirs is not None and ours != theirs:
        return theirs < ours  # 1.0.x and 2.0.0 rewrite the times of copies
    born, other_born = (_first_time(path) for path in (session.path, other))
    if born is not None and other_born is not None and born != other_born:
        return other_born < born  # what a client writes first in a new file is not copied
    try:
        return (other.stat().st_mtime_ns, other.name) < (session.path.stat().st_mtime_ns, session.path.name)
    except OSError:
        return False


def _prompt_time(path: Path, uuid: str) -> int | None:
    for line in _lines(path, 64 * 1024 * 1024):
        if uuid.encode() in line and (b'"uuid":"' + uuid.encode()) in line:
            stamp = _STAMP.search(line)
            return parse_time(stamp[1].decode("ascii", "replace")) if stamp else None
    return None


def _first_time(path: Path) -> int | None:
    """The time of the first line that has one."""
    for line in _lines(path, _HEAD_BYTES * 4):
        stamp = _STAMP.search(line)
        if stamp is not None:
            return parse_time(stamp[1].decode("ascii", "replace"))
    return None


def _lines(path: Path, limit: int) -> Iterator[bytes]:
    try:
        with path.open("rb") as file:
            while file.tell() < limit and (line := file.readline(limit)):
                yield line
    except OSError:
        return


# ---- what people call a session


def find_session(projects: Path, name: str | None, cwd: Path | None = None) -> SessionFile:
    """A session by path, id or prefix of an id; without a name the latest one of the project in `cwd`, or of all."""
    if name is None:
        return _latest(projects, cwd)
    path = Path(name).expanduser()
    if name.endswith(".jsonl") or os.sep in name or path.exists():
        if path.is_dir():
            raise TranscriptError(f"{name!r} is a directory", hint="name a transcript, a file that ends in .jsonl")
        return SessionFile(path.stem, path)
    matches = [session for session in all_sessions(projects) if session.session_id.startswith(name)]
    if not matches:
        raise TranscriptError(f"no session {name!r} below {projects}", hint="`turnspan sessions` lists them")
    if len({match.session_id for match in matches}) > 1:
        some = ", ".join(sorted(match.session_id for match in matches)[:4])
        raise TranscriptError(f"{len(matches)} sessions begin with {name!r}: {some}", hint="give more of the id")
    return matches[0]


def _latest(projects: Path, cwd: Path | None) -> SessionFile:
    candidates = sorted(all_sessions(projects), key=lambda s: _mtime(s.path), reverse=True)
    if not candidates:
        raise TranscriptError(f"there are no transcripts below {projects}", hint="name a transcript's path")
    if cwd is not None:
        for session in candidates:
            if _head_names(session.path, cwd):
                return session
    return candidates[0]


def _head_names(path: Path, cwd: Path) -> bool:
    needle = b'"cwd":' + json.dumps(str(cwd), ensure_ascii=False).encode()
    return any(needle in line for line in _lines(path, _HEAD_BYTES))


def _mtime(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


class _IndexEntry(msgspec.Struct, rename="camel"):
    session_id: str = ""
    summary: str | None = None
    first_prompt: str | None = None


class _Index(msgspec.Struct):
    entries: list[_IndexEntry] = []


def indexed_titles(project: Path) -> Mapping[str, str]:
    """Titles from `sessions-index.json`, by session."""
    try:
        index = msgspec.json.decode((project / "sessions-index.json").read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {entry.session_id: entry.summary for entry in index.entries if entry.summary}
