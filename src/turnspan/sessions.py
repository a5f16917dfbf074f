"""Where transcripts lie: sessions, their subagents, and history that was copied from elsewhere.

Rules:

- Ids that become paths are checked; only regular files below the projects directory are opened, links resolved.
- The slug of a project is never computed: directories are listed.
- A copied turn belongs to its origin. The newest clients leave no mark on copies: that a prompt's uuid stands in an
  older transcript of the same project is all that tells.
"""

from __future__ import annotations

import mmap
import os
import re
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import late
from turnspan.errors import TranscriptError
from turnspan.tail import open_regular, read_at
from turnspan.transcript.entries import ForkedFrom, parse_time
from turnspan.transcript.turns import TurnRef, version_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from turnspan.transcript.turns import Turn

SAFE_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,127}")
_STAMP: Final = late.pattern(rb'"timestamp":"([^"]{10,40})"')
_HEAD_BYTES: Final = 65536
_AGENT_HEAD_BYTES: Final = 4096
_WHOLE_BYTES: Final = 64 * 1024 * 1024  # as much of a transcript as is compared
_TIMES_REWRITTEN_UNTIL: Final = (2, 0, 0)  # copies made by these clients carry new timestamps


class SessionFile(msgspec.Struct, frozen=True):
    """A session's transcript on disk."""

    session_id: str
    path: Path

    @property
    def project(self) -> str:
        """The name of the project directory it lies in."""
        return self.path.parent.name


class AgentFile:
    """A subagent's transcript on disk, and what its `meta.json` says.

    That is read when it is asked for: a long session has a thousand agents, and an event is about one of them.
    """

    def __init__(self, agent_id: str, name: str) -> None:
        self.agent_id = agent_id
        self._name = name

    @cached_property
    def path(self) -> Path:
        """Where it lies."""
        return Path(self._name)

    @property
    def size(self) -> int:
        """How many bytes it has now."""
        return _stamp_of(self._name)[0]

    @property
    def head(self) -> bytes:
        """How it begins."""
        return _head_of(self._name, *_stamp_of(self._name))

    @property
    def type(self) -> str:
        """What kind of agent it is; empty where that is not said."""
        return self._meta.agent_type or ""

    @property
    def description(self) -> str:
        """What it was launched for, in a few words."""
        return self._meta.description or ""

    @property
    def tool_use_id(self) -> str | None:
        """The call that launched it."""
        return self._meta.tool_use_id

    @property
    def depth(self) -> int | None:
        """How many agents stand between it and the session."""
        return self._meta.spawn_depth

    @property
    def is_finished(self) -> bool:
        """Whether the client says that it has come to its end."""
        return bool(self._meta.finished)

    @cached_property
    def _meta(self) -> _Meta:
        return _meta(_read(self.path.with_suffix(".meta.json"), _HEAD_BYTES))


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
    for name in _session_names(directory):
        yield SessionFile(name[:-6], directory / name)


def _session_names(directory: Path) -> list[str]:
    """What a project holds. A directory that cannot be listed is an error: "there is no other" would be a guess."""
    try:
        names = sorted(entry.name for entry in os.scandir(directory) if entry.name.endswith(".jsonl"))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise TranscriptError(f"cannot list {str(directory)!r}: {error.strerror}") from error
    return [name for name in names if not name.startswith("agent-") and SAFE_ID.fullmatch(name[:-6])]


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
                found[agent_id] = AgentFile(agent_id, directory + os.sep + name)
    return found


def flat_agent_file(session: SessionFile, agent_id: str) -> AgentFile | None:
    """A subagent that lies next to its session (2.0.28 to 2.1.1)."""
    if not SAFE_ID.fullmatch(agent_id):
        return None
    path = session.path.parent / f"agent-{agent_id}.jsonl"
    return AgentFile(agent_id, str(path)) if path.is_file() else None


def flat_agent_files(session: SessionFile, since_ns: int = 0) -> Iterator[AgentFile]:
    """The subagents next to a session that name it and were written to since a time."""
    try:
        names = sorted(entry.name for entry in os.scandir(session.path.parent))
    except OSError:
        return
    for name in names:
        agent_id = name[6:-6]
        if not (name.startswith("agent-") and name.endswith(".jsonl") and SAFE_ID.fullmatch(agent_id)):
            continue
        file = AgentFile(agent_id, str(session.path.parent) + os.sep + name)
        is_its_own = session.session_id.encode() in file.head
        if is_its_own and (not since_ns or (last_time_ns(file.path) or since_ns) >= since_ns):
            yield file


def _meta(raw: bytes) -> _Meta:
    """What `meta.json` says (since 2.1.2). It is written anew when the agent ends: of half of it, the whole fields."""
    for text in (raw, raw[: max(0, raw.rfind(b","))] + b"}"):
        try:
            return msgspec.json.decode(text, type=_Meta)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return _Meta()


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
    if _has_own_requests(turn):
        return False
    return any(
        _stands_in(other.path, turn.prompt_uuid) and _is_older(other.path, turn, session)
        for other in _overlapping(turn, session)
    )


def _has_own_requests(turn: Turn) -> bool:
    """Whether requests were recorded in this file, and none elsewhere: copies do not hold them (2.1.325 on)."""
    responses = turn.responses
    return any(r.request_ns is not None for r in responses) and not any(r.has_request_elsewhere for r in responses)


def original_ref(ref: TurnRef, session: SessionFile) -> TurnRef:
    """A copied turn by its identity in the transcript it comes from, which unmarked copies do not name."""
    if ref.session_id != session.session_id:
        return ref
    others = (other for other in sessions_in(session.path.parent) if other.session_id != session.session_id)
    holders = [other for other in others if _stands_in(other.path, ref.key)]
    first = min(holders, key=lambda other: (_first_time(other.path) or 0, _mtime(other.path)), default=session)
    return TurnRef(first.session_id, ref.key, ref.number, ref.parts)


def repeats_itself(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn stands in the same file once more (VS Code resume, 2.1.11: new uuids, old message ids)."""
    if not turn.is_repeat_suspect:
        return False
    if turn.prompt_uuid and _stands_in(session.path, turn.prompt_uuid, before=turn.start.offset):
        return True
    ids = [response.key for response in turn.responses]
    return bool(ids) and all(_stands_in(session.path, key, key=b'"id":"', before=turn.start.offset) for key in ids)


def _overlapping(turn: Turn, session: SessionFile) -> Iterator[SessionFile]:
    """The other sessions of the project that were being written when the prompt was, as their own times tell."""
    prompt_ns = turn.prompt.time_ns if turn.prompt is not None else None
    if prompt_ns is None or version_of(turn.version) <= _TIMES_REWRITTEN_UNTIL:
        yield from (other for other in sessions_in(session.path.parent) if other.session_id != session.session_id)
        return
    for name in _session_names(session.path.parent):
        path = os.path.join(session.path.parent, name)  # noqa: PTH118  a Path for each of a thousand takes its time
        first, last = _time_range(path, *_stamp_of(path))
        is_before = first is not None and prompt_ns < first
        if name[:-6] != session.session_id and not is_before and not (last is not None and last < prompt_ns):
            yield SessionFile(name[:-6], Path(path))


def _stamp_of(path: str) -> tuple[int, int]:
    """Size and time of a file: what was read of it is right as long as they are the same."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


@lru_cache(maxsize=1 << 11)  # a backfill asks with every session next to which it lies
def _head_of(path: str, _size: int, _written_ns: int) -> bytes:
    return _read(Path(path), _AGENT_HEAD_BYTES)


@lru_cache(maxsize=1 << 15)  # a backfill asks for every session's neighbours
def _time_range(path: str, _size: int, _written_ns: int) -> tuple[int | None, int | None]:
    """The first and the last time that a transcript's ends show. A long line may hide either: then it is not known."""
    return min(_times(_read(Path(path), _HEAD_BYTES)), default=None), last_time_ns(Path(path))


def last_time_ns(path: Path) -> int | None:
    """The last time that the end of a transcript shows."""
    return max(_times(_read(path, _HEAD_BYTES, from_end=True)), default=None)


def _times(data: bytes) -> list[int]:
    stamps = (parse_time(stamp.decode("ascii", "replace")) for stamp in _STAMP.findall(data))
    return [stamp for stamp in stamps if stamp is not None]


def _read(path: Path, count: int, *, from_end: bool = False) -> bytes:
    """The first or last bytes of a regular file; nothing of what is not one, or cannot be read."""
    try:
        descriptor = open_regular(path)
    except TranscriptError:
        return b""
    try:
        return read_at(descriptor, count, max(0, os.fstat(descriptor).st_size - count) if from_end else 0)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


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
    ours, theirs = (_row_of(path, turn.prompt_uuid) for path in (session.path, other))
    if session.session_id in {theirs.session_id, theirs.forked_from and theirs.forked_from.session_id}:
        return False  # up to 2.1.63, and with a mark, a copy names the session it comes from: ours
    our_time, their_time = parse_time(ours.timestamp), parse_time(theirs.timestamp)
    if our_time is not None and their_time is not None and our_time != their_time:
        return their_time < our_time  # 1.0.x and 2.0.0 rewrite the times of copies
    born, other_born = (_first_time(path) for path in (session.path, other))
    if born is not None and other_born is not None and born != other_born:
        return other_born < born  # what a client writes first in a new file is not copied
    extra, other_extra = _rows_between(session.path, other)
    if extra != other_extra:
        return other_extra > extra  # only the conversation is copied: more than that stands in the origin
    return (_mtime(other), other.name) < (_mtime(session.path), session.path.name)


def _rows_between(*paths: Path) -> list[int]:
    """How many rows of its own each of these files has between those that all of them hold."""
    files = [[_uuid_of(line) for line in _lines(path, _WHOLE_BYTES)] for path in paths]
    common = set[str].intersection(*({uuid for uuid in uuids if uuid} for uuids in files))
    found = []
    for uuids in files:
        shared = [number for number, uuid in enumerate(uuids) if uuid in common]
        found.append(shared[-1] - shared[0] + 1 - len(shared) if shared else 0)
    return found


class _Named(msgspec.Struct):
    uuid: str = ""


def _uuid_of(line: bytes) -> str:
    try:
        return msgspec.json.decode(line, type=_Named).uuid
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


class _Row(msgspec.Struct, rename="camel"):
    """Whose row it is, and when it was written."""

    session_id: str = ""
    timestamp: str = ""
    forked_from: ForkedFrom | None = None


def _row_of(path: Path, uuid: str) -> _Row:
    needle = b'"uuid":"' + uuid.encode() + b'"'
    for line in _lines(path, _WHOLE_BYTES):
        if needle in line:
            try:
                return msgspec.json.decode(line, type=_Row)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                break
    return _Row()


def _first_time(path: Path) -> int | None:
    """The time of the first line that has one."""
    for line in _lines(path, _HEAD_BYTES * 4):
        stamp = _STAMP.search(line)
        if stamp is not None:
            return parse_time(stamp[1].decode("ascii", "replace"))
    return None


def _lines(path: Path, limit: int) -> Iterator[bytes]:
    """The lines in the first bytes of a regular file."""
    try:
        descriptor = open_regular(path)
    except TranscriptError:
        return
    with os.fdopen(descriptor, "rb") as file:
        try:
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
    needle = b'"cwd":' + msgspec.json.encode(str(cwd))
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
