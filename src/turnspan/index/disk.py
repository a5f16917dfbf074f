"""One listing of all transcripts: which files exist, how long they are, and when they were written.

No file is opened, except to find out whose file a new one is: a transcript that is not named after its session, or a
subagent's file next to its session (2.0.28 to 2.1.1).
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import lazy
from turnspan.errors import TranscriptError
from turnspan.source.owners import UUID, counting_file, owner_of
from turnspan.source.scan import ends, stamp_of
from turnspan.source.sessions import is_safe_id, lost_sessions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Stamp = tuple[int, int]  # size and modification time

_TITLES: Final = "sessions-index.json"
_HEAD_BYTES: Final = 4096
_SESSION_ID: Final = lazy.pattern(rb'"sessionId"\s*:\s*"([A-Za-z0-9_-]{1,128})"')


class Transcript(msgspec.Struct):
    """A session's transcript, and its subagents' files."""

    session_id: str
    path: str
    directory: str  # the name of its project directory
    stamp: Stamp
    agents: dict[str, Stamp] = {}

    @property
    def digest(self) -> str:
        """A digest of the names, sizes and times of its subagents' files; empty if there are none."""
        if not self.agents:
            return ""
        words = "\n".join(f"{name} {size} {when}" for name, (size, when) in sorted(self.agents.items()))
        return blake2b(words.encode("utf-8", "surrogateescape"), digest_size=12).hexdigest()

    @property
    def size(self) -> int:
        """The size of all its files."""
        return self.stamp[0] + sum(size for size, _ in self.agents.values())


class Listing(msgspec.Struct):
    """All transcripts, by path, and what could not be listed."""

    transcripts: dict[str, Transcript] = {}
    titles: dict[str, Stamp] = {}  # by project directory
    flat: dict[str, tuple[Stamp, str]] = {}  # subagents' files next to their session: stamp and session
    unlisted: dict[str, str] = {}  # project directories, with the reason


class Directory(msgspec.Struct):
    """The files of a project, each with its stamp."""

    path: str
    files: dict[str, Stamp] = {}  # transcripts, by name
    agents: dict[str, dict[str, Stamp]] = {}  # subagents' files, by the directory of their session
    titles: Stamp | None = None


class Walk(msgspec.Struct):
    """What is on disk: names, sizes and times."""

    directories: dict[str, Directory] = {}
    unlisted: dict[str, str] = {}
    states: dict[str, Stamp] = {}  # checkpoints, by session

    @property
    def signature(self) -> str:
        """A digest of everything: as long as it is the same, nothing has changed."""
        try:
            raw = msgspec.msgpack.encode(self)
        except UnicodeEncodeError:  # a name that is not UTF-8
            raw = repr(self).encode("utf-8", "backslashreplace")
        return blake2b(raw, digest_size=16).hexdigest()


def walked(projects: Path, states: Path) -> Walk:
    """Walk over all transcripts and checkpoints, without opening any."""
    walk = Walk()
    try:
        names = sorted(entry.name for entry in os.scandir(projects) if _may_be_directory(entry))
    except (FileNotFoundError, NotADirectoryError):
        names = []
    except OSError as error:
        raise TranscriptError(f"cannot list {str(projects)!r}: {error.strerror}") from error
    for name in names:
        try:
            walk.directories[name] = _directory(str(projects / name))
        except OSError as error:
            walk.unlisted[name] = f"cannot list {str(projects / name)!r}: {error.strerror}"
    with suppress(OSError), os.scandir(states) as entries:  # there are none before something was sent
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                found = entry.stat(follow_symlinks=False)
                walk.states[entry.name.removesuffix(".json")] = found.st_size, found.st_mtime_ns
    return walk


def _may_be_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symlink loop, or no permission: listing it will raise the error
        return True


def _directory(path: str) -> Directory:
    found = Directory(path)
    with os.scandir(path) as entries:
        for entry in entries:
            name = entry.name
            if name.endswith(".jsonl"):
                if (stamp := _stamp(entry)) is not None:
                    found.files[name] = stamp
            elif name == _TITLES:
                found.titles = _stamp(entry)
            elif entry.is_dir() and (agents := _agents(f"{path}{os.sep}{name}{os.sep}subagents")):
                found.agents[name] = agents
    return found


def listed(walk: Walk, known_flat: Mapping[str, tuple[Stamp, str]]) -> Listing:
    """Return all transcripts. What is known of a subagent's file holds as long as its size and time are the same."""
    found = Listing(unlisted=dict(walk.unlisted))
    each: list[Transcript] = []
    for name, directory in walk.directories.items():
        try:
            each += _in_project(name, directory, known_flat, found)
        except TranscriptError as error:
            found.unlisted[name] = str(error)
    for transcript in _each_once(each):
        found.transcripts[transcript.path] = transcript
    return found


def _in_project(
    name: str, directory: Directory, known_flat: Mapping[str, tuple[Stamp, str]], found: Listing
) -> Iterator[Transcript]:
    transcripts: list[Transcript] = []
    flat: dict[str, dict[str, Stamp]] = {}
    if directory.titles is not None:
        found.titles[name] = directory.titles
    for file, stamp in directory.files.items():
        path = directory.path + os.sep + file
        is_agent = file.startswith("agent-")
        stem = file[6:-6] if is_agent else file[:-6]
        if not is_safe_id(stem):
            continue
        if is_agent:
            session_id = _owner(path, stamp, known_flat)
            found.flat[path] = stamp, session_id
            flat.setdefault(session_id, {})[stem] = stamp
        else:
            session_id = stem if UUID.fullmatch(stem) else owner_of(Path(path))
            transcripts.append(Transcript(session_id, path, name, stamp))
    known = {transcript.session_id for transcript in transcripts}
    if not flat.keys() | directory.agents.keys() <= known | {""}:
        transcripts += [
            Transcript(lost.session_id, str(lost.path), name, stamp_of(str(lost.path)))
            for lost in lost_sessions(Path(directory.path), known)
        ]
    for transcript in transcripts:
        session_id = transcript.session_id
        transcript.agents = {**flat.get(session_id, {}), **directory.agents.get(session_id, {})}
        yield transcript


def _stamp(entry: os.DirEntry[str]) -> Stamp | None:
    """Return size and time of a regular file; None if it is not one."""
    try:
        found = entry.stat()
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None


def _owner(path: str, stamp: Stamp, known_flat: Mapping[str, tuple[Stamp, str]]) -> str:
    """Return the session that a subagent's file names."""
    known = known_flat.get(path)
    if known is not None and known[0] == stamp:
        return known[1]
    match = _SESSION_ID.search(ends(Path(path), _HEAD_BYTES))
    return match[1].decode() if match is not None else ""


def _agents(directory: str) -> dict[str, Stamp]:
    """Return the subagents in a session's own directory (since 2.1.2), workflows included."""
    agents: dict[str, Stamp] = {}
    waiting = [directory]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    name = entry.name
                    if name.endswith(".jsonl"):
                        if name.startswith("agent-") and (stamp := _stamp(entry)) is not None:
                            agents[name[6:-6]] = stamp
                    elif name.endswith(".json"):
                        # Its fields that matter do not change: when it appears is enough.
                        agents[name] = 0, 0
                    else:
                        with suppress(OSError):
                            if entry.is_dir(follow_symlinks=False):
                                waiting.append(entry.path)
        except OSError:  # missing, or not a directory
            continue
    return agents


def _each_once(found: list[Transcript]) -> Iterator[Transcript]:
    """Yield one file for each session: the one that counts."""
    files: dict[str, list[Transcript]] = {}
    for each in found:
        files.setdefault(each.session_id, []).append(each)
    for session_id, several in files.items():
        if len(several) == 1:
            yield several[0]
        else:
            by_path = {Path(each.path): each for each in several}
            yield by_path[counting_file(by_path, session_id)]


def as_text(path: str) -> str:
    """Return a path as text that SQLite can store, also if it is not UTF-8."""
    return path if path.isascii() else path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
