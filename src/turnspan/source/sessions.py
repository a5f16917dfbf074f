"""Where transcripts lie: sessions and their subagents.

Rules:

- Ids that become paths are checked; only regular files below the projects directory are opened, links resolved.
- The slug of a project is never computed: directories are listed.
- A file that a person gave another name is still its session's, as its rows say, for whoever asks for all sessions.
- One project that cannot be listed hides no other: whoever asks for all of them hears of it (`unread`).
"""

from __future__ import annotations

import os
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import lazy
from turnspan.errors import TranscriptError
from turnspan.source.scan import END_BYTES, ends, first_in, head_of, last_time_ns, lines, modified_ns, row_as, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_LONGEST_ID: Final = 128
_PORTS: Final = {f"{port}{number}" for port in ("com", "lpt") for number in range(10)}
_NO_FILES: Final = {"con", "prn", "aux", "nul", *_PORTS}  # on Windows
_NO_DIRECTORIES: Final = frozenset({"jsonl", ".json"})  # how names end that are files: transcripts, and `meta.json`
_CWD: Final = lazy.pattern(rb'"cwd":("(?:[^"\\]|\\.)*")')
_CLIENTS_NAME: Final = lazy.pattern(r"[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}")


class SessionFile(msgspec.Struct, frozen=True):
    """A session's transcript on disk."""

    session_id: str
    path: Path

    @property
    def project(self) -> str:
        """The name of the project directory it lies in."""
        return self.path.parent.name


def is_safe_id(text: str) -> bool:
    """Whether an id can be the name of a file, on Windows too, and can be nothing but that."""
    if not text.isalnum() and not (text[:1].isalnum() and text.replace("-", "").replace("_", "").isalnum()):
        return False
    return text.isascii() and len(text) <= _LONGEST_ID and (len(text) > 4 or text.lower() not in _NO_FILES)


class AgentFile(msgspec.Struct, frozen=True, dict=True):
    """A subagent's transcript on disk, and what its `meta.json` says.

    That is read when it is asked for: a long session has a thousand agents, and an event is about one of them.
    """

    agent_id: str
    name: str  # the whole path

    @cached_property
    def path(self) -> Path:
        """Where it lies."""
        return Path(self.name)

    @property
    def size(self) -> int:
        """How many bytes it has now."""
        return stamp_of(self.name)[0]

    @property
    def head(self) -> bytes:
        """How it begins."""
        return head_of(self.name, *stamp_of(self.name))

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
        return _meta(ends(self.path.with_suffix(".meta.json"), END_BYTES))


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
    if not is_safe_id(path.stem):
        raise TranscriptError(f"{path.name!r} is not named after a session", hint="name a file that ends in .jsonl")
    return SessionFile(path.stem, path)


def sessions_in(directory: Path) -> Iterator[SessionFile]:
    """The sessions directly inside one project directory, in the order of their names."""
    for name in session_names(directory):
        yield SessionFile(name[:-6], directory / name)


def session_names(directory: Path) -> tuple[str, ...]:
    """What a project holds. A directory that cannot be listed is an error: "there is no other" would be a guess."""
    try:
        return _listed(directory)[0]
    except (FileNotFoundError, NotADirectoryError):
        return ()
    except OSError as error:
        raise TranscriptError(f"cannot list {str(directory)!r}: {error.strerror}") from error


def _listed(directory: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The transcripts in a directory, of sessions and of agents. It is read anew when it has changed."""
    return _listing(str(directory), directory.stat().st_mtime_ns)


@lru_cache(maxsize=1 << 9)  # a backfill asks with every session for all that lies next to it
def _listing(directory: str, _changed_ns: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    names = sorted(name for name in os.listdir(directory) if name.endswith(".jsonl"))  # noqa: PTH208
    agents = tuple(name for name in names if name.startswith("agent-") and is_safe_id(name[6:-6]))
    return tuple(name for name in names if not name.startswith("agent-") and is_safe_id(name[:-6])), agents


def all_sessions(projects: Path, unread: dict[str, str] | None = None) -> Iterator[SessionFile]:
    """The sessions of every project; `unread` hears which could not be listed, and why. Without it that is an error."""
    try:
        names = sorted(entry.name for entry in os.scandir(projects) if _may_be_project(entry))
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise TranscriptError(f"cannot list {str(projects)!r}: {error.strerror}") from error
    for name in names:
        try:
            yield from (session_of(session.path) for session in sessions_in(projects / name))
        except TranscriptError as error:
            if unread is None:
                raise
            unread[name] = str(error)


def _may_be_project(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link that goes in a circle, or where nobody may look: listing it will say so
        return True


def each_once(found: Iterable[SessionFile]) -> list[SessionFile]:
    """One file for each session: of several the longest, and of equals the one that bears its name."""
    once: dict[str, tuple[tuple[int, bool], SessionFile]] = {}
    for session in found:
        rank = stamp_of(str(session.path))[0], session.path.stem == session.session_id
        if session.session_id not in once or once[session.session_id][0] < rank:
            once[session.session_id] = rank, session
    return [session for _, session in once.values()]


def newest_sessions(
    projects: Path, *, limit: int, project: str | None = None, unread: dict[str, str] | None = None
) -> list[SessionFile]:
    """The sessions written to last, newest first; those of one project if one is named."""
    found = each_once(all_sessions(projects, unread))
    dated = [(modified_ns(session.path), session) for session in found]
    dated.sort(key=lambda pair: pair[0], reverse=True)
    wanted = (session for when, session in dated if when and (project is None or is_of(session, project)))
    newest = [session for _, session in zip(range(limit), wanted, strict=False)]
    # Files that were copied have a new date: among the few that are shown, the transcript's own times decide.
    return sorted(newest, key=lambda s: last_time_ns(s.path) or modified_ns(s.path), reverse=True)


def is_below(path: Path, root: Path) -> bool:
    """Whether a path, its links resolved, lies below a directory."""
    try:
        target = path.resolve()
        # Links that go in a circle raise an error up to Python 3.12, and after that lead to one of them.
        return target.is_relative_to(root.resolve()) and not target.is_symlink()
    except (OSError, RuntimeError, ValueError):
        return False


# ---- subagents


def agent_files(session: SessionFile) -> dict[str, AgentFile]:
    """The subagents that lie in the session's own directory (since 2.1.2), workflows included.

    Every event asks for them, and there may be a thousand: a name is looked at twice, and as little as possible.
    """
    found: dict[str, AgentFile] = {}
    waiting = [str(session.path.parent / session.session_id / "subagents")]
    while waiting:
        directory = waiting.pop()
        try:
            names = os.listdir(directory)  # noqa: PTH208  a path for each would take longer than all the rest
        except OSError:  # not there, or no directory
            continue
        for name in sorted([name for name in names if name[-6:] == ".jsonl" and name[:6] == "agent-"]):
            agent_id = name[6:-6]
            if is_safe_id(agent_id):
                found[agent_id] = AgentFile(agent_id, directory + os.sep + name)
        inner = [directory + os.sep + name for name in names if name[-5:] not in _NO_DIRECTORIES]
        waiting += [path for path in sorted(inner, reverse=True) if not os.path.islink(path)]  # noqa: PTH114
    return found


def flat_agent_file(session: SessionFile, agent_id: str) -> AgentFile | None:
    """A subagent that lies next to its session (2.0.28 to 2.1.1)."""
    if not is_safe_id(agent_id):
        return None
    path = session.path.parent / f"agent-{agent_id}.jsonl"
    return AgentFile(agent_id, str(path)) if path.is_file() else None


def flat_agent_files(session: SessionFile, since_ns: int = 0) -> Iterator[AgentFile]:
    """The subagents next to a session that name it and were written to since a time."""
    try:
        names = _listed(session.path.parent)[1]
    except OSError:
        return
    for name in names:
        file = AgentFile(name[6:-6], str(session.path.parent) + os.sep + name)
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


# ---- what people call a session


def path_named(text: str) -> Path:
    """A path as people write it. A `~` that is nobody's home stays one, as in a shell."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path's own fails where there is no such user


def is_of(session: SessionFile, project: str) -> bool:
    """Whether a session belongs to a project, named by a directory, or by a part of its path."""
    cwd = cwd_of(session.path)
    directory = path_named(project)
    if directory.is_dir():
        return bool(cwd) and Path(cwd).is_relative_to(directory.resolve())
    part = project.rstrip("/\\").lower()  # a shell completes a directory with a slash behind it
    return part in cwd.lower() or part in session.project.lower()


def cwd_of(path: Path) -> str:
    """Where a session began to work, as its file tells; empty if it does not."""
    found = first_in(path, _CWD)
    try:
        return msgspec.json.decode(found, type=str) if found is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def find_session(
    projects: Path, name: str | None, cwd: Path | None = None, unread: dict[str, str] | None = None
) -> SessionFile:
    """A session by path, id or prefix of an id; without a name the latest one of the project in `cwd`, or of all."""
    if name is None:
        return _latest(projects, cwd, unread)
    path = path_named(name)
    if name.endswith(".jsonl") or os.sep in name or path.exists():
        if path.is_dir():
            raise TranscriptError(f"{name!r} is a directory", hint="name a transcript, a file that ends in .jsonl")
        return session_of(path)
    matches = each_once(s for s in all_sessions(projects, unread) if s.session_id.startswith(name))
    if not matches:
        raise TranscriptError(f"no session {name!r} below {projects}", hint="`turnspan sessions` lists them")
    if len(matches) > 1:
        some = ", ".join(sorted(match.session_id for match in matches)[:4])
        raise TranscriptError(f"{len(matches)} sessions begin with {name!r}: {some}", hint="give more of the id")
    return matches[0]


class _Whose(msgspec.Struct, rename="camel"):
    session_id: str = ""


def session_of(path: Path) -> SessionFile:
    """Whose transcript a file is: its name says so, or, where somebody gave it another one, its last row."""
    if not _CLIENTS_NAME.fullmatch(path.stem):
        for line in reversed(ends(path, END_BYTES, from_end=True).splitlines()):
            session_id = row_as(line, _Whose).session_id
            if is_safe_id(session_id):
                return SessionFile(session_id, path)
    return SessionFile(path.stem, path)


def _latest(projects: Path, cwd: Path | None, unread: dict[str, str] | None) -> SessionFile:
    candidates = sorted(all_sessions(projects, unread), key=lambda s: modified_ns(s.path), reverse=True)
    if not candidates:
        raise TranscriptError(f"there are no transcripts below {projects}", hint="name a transcript's path")
    if cwd is not None:
        for session in candidates:
            if _head_names(session.path, cwd):
                return session
    return candidates[0]


def _head_names(path: Path, cwd: Path) -> bool:
    needle = b'"cwd":' + msgspec.json.encode(str(cwd))
    return any(needle in line for line in lines(path, END_BYTES))


class _IndexEntry(msgspec.Struct, rename="camel"):
    session_id: str = ""
    summary: str | None = None


class _Index(msgspec.Struct):
    entries: list[_IndexEntry] = []


def indexed_titles(project: Path) -> Mapping[str, str]:
    """Titles from `sessions-index.json`, by session."""
    try:
        index = msgspec.json.decode((project / "sessions-index.json").read_bytes(), type=_Index)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {entry.session_id: entry.summary for entry in index.entries if entry.summary}
