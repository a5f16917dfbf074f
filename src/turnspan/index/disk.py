"""One listing of all transcripts and checkpoints: which files exist, how long they are, and when they were written.

`source.tree` walks over the transcripts. A file is opened only to find out whose file a new one is: a transcript that
is not named after its session, or a subagent's file next to its session (2.0.28 to 2.1.1).
"""

from __future__ import annotations

import os
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source.beside import forget
from turnspan.source.owners import UUID, counting_file, owner_of, sessions_named
from turnspan.source.scan import stamp_of
from turnspan.source.sessions import lost_sessions
from turnspan.source.tree import Folder, Stamp, folder_of, project_names

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


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
    flat: dict[str, tuple[Stamp, str]] = {}  # subagents' files next to their session: stamp and sessions
    unlisted: dict[str, str] = {}  # project directories, with the reason


class Walk(msgspec.Struct):
    """What is on disk: names, sizes and times."""

    projects: dict[str, Folder] = {}
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
    forget()
    for name in project_names(projects):
        try:
            walk.projects[name] = folder_of(projects / name)
        except TranscriptError as error:
            walk.unlisted[name] = str(error)
    with suppress(OSError), os.scandir(states) as entries:  # there are none before something was sent
        for entry in entries:
            if entry.name.endswith(".json") and not entry.name.startswith("."):
                found = entry.stat(follow_symlinks=False)
                walk.states[entry.name.removesuffix(".json")] = found.st_size, found.st_mtime_ns
    return walk


def listed(walk: Walk, known_flat: Mapping[str, tuple[Stamp, str]]) -> Listing:
    """Return all transcripts. What is known of a subagent's file holds as long as its size and time are the same."""
    found = Listing(unlisted=dict(walk.unlisted))
    each: list[Transcript] = []
    for name, folder in walk.projects.items():
        try:
            each += _in_project(name, folder, known_flat, found)
        except TranscriptError as error:
            found.unlisted[name] = str(error)
    for transcript in _each_once(each):
        found.transcripts[transcript.path] = transcript
    return found


def _in_project(
    name: str, folder: Folder, known_flat: Mapping[str, tuple[Stamp, str]], found: Listing
) -> Iterator[Transcript]:
    transcripts: list[Transcript] = []
    flat: dict[str, dict[str, Stamp]] = {}
    if folder.titles is not None:
        found.titles[name] = folder.titles
    for file, stamp in folder.files.items():
        path = folder.path + os.sep + file
        if file.startswith("agent-"):
            known = known_flat.get(path)
            named = known[1] if known is not None and known[0] == stamp else " ".join(sessions_named(Path(path)))
            found.flat[path] = stamp, named
            for session_id in named.split():
                flat.setdefault(session_id, {})[file[6:-6]] = stamp
        else:
            session_id = file[:-6] if UUID.fullmatch(file[:-6]) else owner_of(Path(path))
            transcripts.append(Transcript(session_id, path, name, stamp))
    ids = {transcript.session_id for transcript in transcripts}
    if not flat.keys() | folder.agents.keys() <= ids:
        transcripts += [
            Transcript(lost.session_id, str(lost.path), name, stamp_of(str(lost.path)))
            for lost in lost_sessions(Path(folder.path), ids)
        ]
    for transcript in transcripts:
        session_id = transcript.session_id
        transcript.agents = {**flat.get(session_id, {}), **folder.agents.get(session_id, {})}
        yield transcript


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
