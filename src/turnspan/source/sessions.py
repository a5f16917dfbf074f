"""Finds transcripts: sessions and their subagents.

Rules:

- `source.tree` lists the directories, and says which symlinks are followed. Only regular files are opened.
- A renamed file still belongs to the session that its rows name, wherever all sessions are listed.
- A session whose own transcript is missing is found by its subagents' files: its path is that of one of them.
- A project that cannot be listed hides no other: the caller gets the reason in `unread`.
"""

from __future__ import annotations

import os
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import lazy
from turnspan.errors import TranscriptError
from turnspan.source.owners import UUID, counting_file, owner_of, sessions_named
from turnspan.source.scan import END_BYTES, ends, first_in, last_time_ns, modified_ns, stamp_of
from turnspan.source.tree import TITLES, agent_names, directory_stamp, names_in, project_names, stays_in
from turnspan.source.tree import is_below as is_below  # noqa: PLC0414  part of this module's interface
from turnspan.source.tree import is_safe_id as is_safe_id  # noqa: PLC0414
from turnspan.source.tree import projects_dir as projects_dir  # noqa: PLC0414

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_INDEX_BYTES: Final = 16 << 20
_CWD: Final = lazy.pattern(rb'"cwd"\s*:\s*("(?:[^"\\]|\\.)*")')


class SessionFile(msgspec.Struct, frozen=True):
    """A session's transcript on disk."""

    session_id: str
    path: Path

    @property
    def is_lost(self) -> bool:
        """Whether its own transcript is missing: the path is that of a subagent."""
        return self.path.name.startswith("agent-")

    @property
    def directory(self) -> Path:
        """Its project directory."""
        folders = self.path.parents if self.is_lost else ()
        return next((folder.parent for folder in folders if folder.name == self.session_id), self.path.parent)

    @property
    def project(self) -> str:
        """The name of its project directory."""
        return self.directory.name


class AgentFile(msgspec.Struct, frozen=True, dict=True):
    """A subagent's transcript on disk, and its `meta.json`.

    `meta.json` is read when needed: a long session has a thousand agents, and an event concerns one of them.
    """

    agent_id: str
    name: str  # the full path

    @cached_property
    def path(self) -> Path:
        """The path of its transcript."""
        return Path(self.name)

    @property
    def size(self) -> int:
        """Its current size in bytes."""
        return stamp_of(self.name)[0]

    @property
    def type(self) -> str:
        """The type of agent; empty if it is not recorded."""
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
        """Its nesting depth."""
        return self._meta.spawn_depth

    @property
    def is_finished(self) -> bool:
        """Whether the client says that it has finished."""
        return bool(self._meta.finished)

    @cached_property
    def _meta(self) -> _Meta:
        path = self.path.with_suffix(".meta.json")
        is_elsewhere = os.path.islink(path) and not is_below(path, self.path.resolve().parent)  # noqa: PTH114
        return _meta(b"" if is_elsewhere else ends(path, END_BYTES))


class _Meta(msgspec.Struct, rename="camel"):
    agent_type: str | None = None
    description: str | None = None
    tool_use_id: str | None = None
    spawn_depth: int | None = None
    finished: bool | None = None


def session_at(path: Path) -> SessionFile:
    """Return the session that a transcript's path names."""
    if not is_safe_id(path.stem):
        raise TranscriptError(f"{path.name!r} is not named after a session", hint="give the path of a .jsonl file")
    return SessionFile(path.stem, path)


def sessions_in(directory: Path) -> Iterator[SessionFile]:
    """Yield the sessions of one project directory, ordered by name."""
    for name in names_in(directory).sessions:
        yield SessionFile(name[:-6], directory / name)


def all_sessions(projects: Path, unread: dict[str, str] | None = None) -> Iterator[SessionFile]:
    """Yield the sessions of all projects; `unread` gets those that cannot be listed. Without it that is an error."""
    for name in project_names(projects):
        try:
            found = [session_of(session.path) for session in sessions_in(projects / name)]
            yield from found
            yield from lost_sessions(projects / name, {session.session_id for session in found})
        except TranscriptError as error:
            if unread is None:
                raise
            unread[name] = str(error)


def lost_sessions(directory: Path, known: set[str]) -> Iterator[SessionFile]:
    """Yield the sessions of a project of which only the files of subagents are left."""
    others, flat = names_in(directory).others, _flat_agents(directory).by_session
    found: dict[str, SessionFile] = {}
    for folder in sorted(name for name in others if len(name) == 36 and UUID.fullmatch(name)):
        if folder not in known:
            files = agent_files(SessionFile(folder, directory / f"{folder}.jsonl"))
            if files:
                found[folder] = SessionFile(folder, min(file.path for file in files.values()))
    taken = {name for session_id in known for name in flat.get(session_id, ())}
    for session_id, names in sorted(flat.items()):
        left = [name for name in names if name not in taken]
        if left and session_id not in known:
            found.setdefault(session_id, SessionFile(session_id, directory / left[0]))
    yield from found.values()


def is_independent(session: SessionFile) -> bool:
    """Whether a transcript is a session's own, or that of a subagent that names a session without a transcript."""
    if not session.is_lost:
        return True
    if session.session_id == session.path.stem:
        return False  # it names none
    return all(session_of(other.path).session_id != session.session_id for other in sessions_in(session.directory))


def each_once(found: Iterable[SessionFile]) -> list[SessionFile]:
    """Return one file for each session: the one that counts."""
    files: dict[str, dict[Path, SessionFile]] = {}
    for session in found:
        files.setdefault(session.session_id, {})[session.path] = session
    return [several[counting_file(several, session_id)] for session_id, several in files.items()]


def newest_sessions(projects: Path, *, limit: int, unread: dict[str, str] | None = None) -> list[SessionFile]:
    """Return the most recently written sessions, newest first."""
    found = each_once(all_sessions(projects, unread))
    dated = [(modified_ns(session.path), session) for session in found]
    dated.sort(key=lambda pair: pair[0], reverse=True)
    newest = [session for when, session in dated[:limit] if when]
    # Copied files have a new modification time: the few that are shown are ordered by the transcript's own times.
    return sorted(newest, key=lambda s: last_time_ns(s.path) or modified_ns(s.path), reverse=True)


# ---- subagents


def agent_files(session: SessionFile) -> dict[str, AgentFile]:
    """Return the subagents in the session's own directory (since 2.1.2), workflows included."""
    project = session.directory
    try:
        if session.session_id not in names_in(project).others:
            return {}  # most sessions have none
    except TranscriptError:  # the directory of its subagents may be readable all the same
        pass
    return {
        name[6:-6]: AgentFile(name[6:-6], directory + os.sep + name)
        for directory, names in agent_names(project, session.session_id)
        for name in names
        if name[-6:] == ".jsonl" and name[:6] == "agent-" and is_safe_id(name[6:-6])
    }


def flat_agent_file(session: SessionFile, agent_id: str) -> AgentFile | None:
    """Return a subagent's file next to its session (2.0.28 to 2.1.1)."""
    if not is_safe_id(agent_id):
        return None
    path = session.directory / f"agent-{agent_id}.jsonl"
    return AgentFile(agent_id, str(path)) if path.is_file() and stays_in(path, path.parent.parent) else None


def flat_agent_files(session: SessionFile, since_ns: int = 0) -> Iterator[AgentFile]:
    """Yield the subagents next to a session that name it and were written to since a time."""
    directory, session_id = session.directory, session.session_id
    found = _flat_agents(directory)
    young = [name for name in found.young if session_id in sessions_named(directory / name)]
    for name in sorted((*found.by_session.get(session_id, ()), *young)):
        file = AgentFile(name[6:-6], str(directory) + os.sep + name)
        if not since_ns or (last_time_ns(file.path) or since_ns) >= since_ns:
            yield file


class _FlatAgents(msgspec.Struct, frozen=True):
    """The subagents next to the sessions of a project, by the sessions that the beginning of each file names."""

    by_session: dict[str, list[str]] = {}
    young: list[str] = []  # files that name no session yet


def _flat_agents(directory: Path) -> _FlatAgents:
    try:
        return _flat_agents_in(directory, directory_stamp(directory)) if names_in(directory).agents else _FlatAgents()
    except (OSError, TranscriptError):
        return _FlatAgents()


@lru_cache(maxsize=1 << 9)  # a backfill asks for the same directories with every session
def _flat_agents_in(directory: Path, _changed_ns: int) -> _FlatAgents:
    found = _FlatAgents({}, [])
    for name in names_in(directory).agents:
        named = sessions_named(directory / name)
        if not named:
            found.young.append(name)
        for session_id in named:
            found.by_session.setdefault(session_id, []).append(name)
    return found


def _meta(raw: bytes) -> _Meta:
    """Decode `meta.json` (since 2.1.2); if it is being rewritten, take the complete fields of the first half."""
    for text in (raw, raw[: max(0, raw.rfind(b","))] + b"}"):
        try:
            return msgspec.json.decode(text, type=_Meta)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return _Meta()


def label_of(agent_id: str) -> str:
    """Return the purpose in the id of an agent that no call launched (`acompact-…`, `aprompt_suggestion-…`)."""
    label, dash, _ = agent_id.rpartition("-")
    return label.removeprefix("a").replace("_", " ") if dash else ""


# ---- sessions by name


def path_named(text: str) -> Path:
    """Return a path as typed by a user. `~name` without such a user is not expanded, as in a shell."""
    return Path(os.path.expanduser(text))  # noqa: PTH111  Path.expanduser raises if there is no such user


def is_of(session: SessionFile, project: str) -> bool:
    """Whether a session belongs to a project, given as a directory or as part of its path."""
    return is_project(project, cwd_of(session.path), session.project)


def is_project(project: str, cwd: str, slug: str = "") -> bool:
    """Whether a working directory belongs to a project, given as a directory or as part of its path."""
    directory = path_named(project)
    if directory.is_dir():
        return bool(cwd) and Path(cwd).is_relative_to(directory.resolve())
    part = project.rstrip("/\\").lower()  # shell completion adds a slash to directories
    return part in cwd.lower() or part in slug.lower()


def cwd_of(path: Path) -> str:
    """Return the working directory in which a session began; empty if it is not recorded."""
    found = first_in(path, _CWD)
    try:
        return msgspec.json.decode(found, type=str) if found is not None else ""
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ""


def session_of(path: Path) -> SessionFile:
    """Return the session of a transcript: from its name, or, if it was renamed, from its rows."""
    return SessionFile(owner_of(path), path)


class _IndexEntry(msgspec.Struct, rename="camel"):
    session_id: str = ""
    summary: str | None = None


class _Index(msgspec.Struct):
    entries: list[_IndexEntry] = []


def indexed_titles(project: Path) -> Mapping[str, str]:
    """Return the titles in `sessions-index.json`, by session."""
    path = project / TITLES
    try:
        index = msgspec.json.decode(ends(path, _INDEX_BYTES) if stays_in(path, project.parent) else b"", type=_Index)
    except (TranscriptError, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return {}
    return {entry.session_id: entry.summary for entry in index.entries if entry.summary}
