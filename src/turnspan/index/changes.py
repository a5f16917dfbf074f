"""How the transcripts differ from the index, decided from one listing of sizes and times: nothing is written.

What is read again:

| what changed since the session was read | what is read |
|---|---|
| nothing | nothing |
| the transcript has grown | from the last turn that was sealed |
| a subagent's file has grown, or is new | from the piece before it was first read with a turn, or could have been |
| the transcript is shorter, was written without growing, or its beginning has changed | all of it |
| a subagent's file was deleted | all of it |
| what its project allows, or whether the user disabled or restricted it | all of it |
| the transcript was deleted | nothing: its rows are deleted |
| another transcript that decided which turns are copies (`source.forks`) | all of it |
"""

from __future__ import annotations

from collections import Counter
from hashlib import blake2b
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.delivery import state
from turnspan.errors import StateError, TranscriptError
from turnspan.index.disk import Listing, Transcript, Walk, as_text, listed, walked
from turnspan.index.places import decode_neighbours, encode
from turnspan.source.forks import Neighbours
from turnspan.source.scan import earliest_ns
from turnspan.source.sessions import SessionFile, is_of, projects_dir

if TYPE_CHECKING:
    from collections.abc import Mapping
    from sqlite3 import Connection

    from turnspan.settings.config import Config
    from turnspan.source.tree import Stamp


DISABLED: Final = "off"
NEVER_NS: Final = 2**63 - 1
_NONE: Final = encode(Neighbours())


class Known(msgspec.Struct, frozen=True):
    """What the index has of a session."""

    session: int
    session_id: str
    path: str
    directory: str
    stamp: Stamp
    agents: str
    restriction: str
    problem: str
    neighbours: Neighbours
    first_row_ns: int


class Change(msgspec.Struct, frozen=True):
    """A session to read."""

    transcript: Transcript
    restriction: str  # see `restriction_of`
    session: int | None = None
    is_anew: bool = True


class Scope(msgspec.Struct, frozen=True):
    """The sessions that a command needs; empty: all."""

    path: str = ""  # one transcript
    newest: int | None = None  # so many, the last written first; only for an index in memory
    project: str | None = None  # with `newest`

    def restrict(self, changes: Changes, *, is_in_memory: bool) -> None:
        """Remove sessions that are not needed."""
        if self.path:
            changes.read = [change for change in changes.read if change.transcript.path == self.path]
            changes.signature = ""  # what is not read now is not in the index
        elif is_in_memory and self.newest is not None:
            wanted = (change for change in changes.read if self.project is None or is_of(_file(change), self.project))
            changes.read = list(islice(wanted, self.newest))


def _file(change: Change) -> SessionFile:
    return SessionFile(change.transcript.session_id, Path(change.transcript.path))


class Changes(msgspec.Struct):
    """How the transcripts differ from the index."""

    listing: Listing
    read: list[Change] = []
    delete: list[int] = []
    checkpoints: dict[str, Stamp | None] = {}
    titles: dict[str, Stamp] = {}  # by project directory
    flat: bool = False
    is_purging: bool = False  # texts that are no longer allowed must be removed from the file, too
    signature: str = ""  # of what is on disk, if it is not the index's

    @property
    def is_empty(self) -> bool:
        """Whether the index is up to date."""
        return not (self.read or self.delete or self.checkpoints or self.titles or self.flat or self.signature)


def find_changes(connection: Connection, config: Config) -> Changes:
    """Compare the index with what is on disk; nothing is written."""
    walk = walked(projects_dir(config.claude_home), config.home / "state")
    restricted = _restricted(connection, config)
    signature = walk.signature
    if not restricted and _is_same(connection, signature):
        return Changes(Listing(unlisted=walk.unlisted))
    changes = _compared(connection, config, walk, restricted)
    changes.signature = signature
    return changes


def _is_same(connection: Connection, signature: str) -> bool:
    """Return whether the index is complete and of what is on disk now."""
    known = connection.execute("SELECT value FROM meta WHERE key = 'signature'").fetchone()
    return known == (signature,) and not connection.execute("SELECT 1 FROM file WHERE problem <> ''").fetchone()


def _compared(connection: Connection, config: Config, walk: Walk, restricted: set[int]) -> Changes:
    rows = connection.execute(
        "SELECT id, session_id, path, directory, size, modified_ns, agent_digest, restriction, problem, neighbours, "
        "first_row_ns FROM session JOIN file ON file.session = session.id"
    )
    known = {
        row[2]: Known(
            row[0], row[1], row[2], row[3], (row[4], row[5]), row[6], row[7] or "", row[8] or "",
            decode_neighbours(row[9] or _NONE), row[10] or 0,
        )
        for row in rows
    }  # fmt: skip
    flat = {
        path: ((size, when), session_id)
        for path, size, when, session_id in connection.execute("SELECT * FROM flat_file")
    }
    listing = listed(walk, flat)
    changes = Changes(listing)
    changes.flat = {as_text(path): found for path, found in listing.flat.items()} != flat
    _find_checkpoints(connection, walk, changes)
    restrictions = _restrictions(connection, config, changes)
    found = {as_text(path): transcript for path, transcript in listing.transcripts.items()}
    gone = {path: each for path, each in known.items() if path not in found and each.directory not in listing.unlisted}
    changes.delete = [each.session for each in gone.values()]
    projects = _project_changes(known, found, gone)
    for path, transcript in found.items():
        each = known.get(path)
        restriction = restrictions.get(transcript.session_id, "")
        if each is None or each.session_id != transcript.session_id:
            changes.read.append(Change(transcript, restriction, each.session if each is not None else None))
            continue
        is_other_policy = each.restriction != restriction or each.session in restricted
        changes.is_purging |= is_other_policy
        is_anew = (
            is_other_policy
            or bool(each.problem)
            or transcript.stamp[0] < each.stamp[0]
            or (transcript.stamp[0] == each.stamp[0] and transcript.stamp[1] != each.stamp[1])
            or any(project.concerns(each) for project in projects)
        )
        if is_anew or transcript.stamp != each.stamp or transcript.digest != each.agents:
            changes.read.append(Change(transcript, restriction, each.session, is_anew))
    changes.read.sort(key=lambda change: change.transcript.stamp[1], reverse=True)  # the newest are read first
    stamps = {row[0]: row[1:] for row in connection.execute("SELECT * FROM title_file")}
    changes.titles = {name: stamp for name, stamp in listing.titles.items() if stamps.get(as_text(name)) != stamp}
    return changes


class _ProjectChanges(msgspec.Struct):
    """What was done to the transcripts of a project."""

    directory: str
    grown_ns: int = NEVER_NS  # the first time in rows that were added
    new_ns: int = NEVER_NS  # the first time in new transcripts
    twins: set[int] = set()  # the first time of transcripts that have grown, and begin as another one does
    is_rewritten: bool = False
    is_deleted: bool = False

    def concerns(self, each: Known) -> bool:
        """Return whether one of them decided which turns of a session are copies, or would now."""
        known = each.neighbours
        if known.until_ns < 0 or (each.directory != self.directory and not known.is_everywhere):
            return False
        if self.is_rewritten or (self.is_deleted and known.has_copies) or each.first_row_ns in self.twins:
            return True
        new_until_ns = known.until_ns if known.has_own else NEVER_NS - 1
        return self.grown_ns <= known.until_ns or self.new_ns <= new_until_ns


def _project_changes(
    known: Mapping[str, Known], found: Mapping[str, Transcript], gone: Mapping[str, Known]
) -> list[_ProjectChanges]:
    """Return what was done to the transcripts of each project."""
    projects = {each.directory: _ProjectChanges(each.directory, is_deleted=True) for each in gone.values()}
    beginnings = Counter((each.directory, each.first_row_ns) for each in known.values())
    for path, transcript in found.items() if known else ():
        each = known.get(path)
        if each is not None and transcript.stamp == each.stamp:
            continue
        directory = as_text(transcript.directory)
        project = projects.setdefault(directory, _ProjectChanges(directory))
        if each is None:
            project.new_ns = min(project.new_ns, _added_ns(transcript, 0) or 0)
        elif transcript.stamp[0] > each.stamp[0]:
            added_ns = _added_ns(transcript, each.stamp[0])
            project.grown_ns = min(project.grown_ns, NEVER_NS if added_ns is None else added_ns)
            if beginnings[directory, each.first_row_ns] > 1:
                project.twins.add(each.first_row_ns)
        else:
            project.is_rewritten = True
    return list(projects.values())


def _added_ns(transcript: Transcript, size: int) -> int | None:
    """Return the earliest time in what was added to a transcript; 0 if it cannot be read now."""
    try:
        return earliest_ns(Path(transcript.path), size)
    except TranscriptError:
        return 0


def _find_checkpoints(connection: Connection, walk: Walk, changes: Changes) -> None:
    """Find the sessions whose checkpoint has changed."""
    known = {row[0]: row[1:] for row in connection.execute("SELECT session_id, size, modified_ns FROM checkpoint")}
    for transcript in changes.listing.transcripts.values():
        stamp = walk.states.get(transcript.session_id)
        if known.get(transcript.session_id) != stamp:
            changes.checkpoints[transcript.session_id] = stamp


def _restrictions(connection: Connection, config: Config, changes: Changes) -> dict[str, str]:
    """Return the sessions that the user disabled or restricted."""
    found = dict(
        connection.execute("SELECT session_id, restriction FROM checkpoint WHERE restriction <> ''").fetchall()
    )
    for session_id, stamp in changes.checkpoints.items():
        found.pop(session_id, None)
        if stamp is not None:
            found[session_id] = restriction_of(checkpoint_of(config, session_id)[0])
    return found


def restriction_of(checkpoint: state.Checkpoint) -> str:
    """Return how the user restricted a session: "off", a capture mode, or ""."""
    return DISABLED if checkpoint.is_off else checkpoint.capture


def checkpoint_of(config: Config, session_id: str) -> tuple[state.Checkpoint, str]:
    """Return a session's checkpoint, and why it cannot be read."""
    try:
        return state.known(config.home, session_id), ""
    except StateError as error:
        return state.Checkpoint(session_id=session_id), str(error)


def _restricted(connection: Connection, config: Config) -> set[int]:
    """Return the sessions of directories in which something else is allowed than when they were read."""
    stored = connection.execute("SELECT DISTINCT cwd, narrowing FROM policy").fetchall()
    digests = {cwd: narrowing_digest(config, cwd) for cwd in {cwd for cwd, _ in stored}}
    changed = [(cwd, digest) for cwd, digest in stored if digests[cwd] != digest]
    found: set[int] = set()
    for pair in changed:
        rows = connection.execute("SELECT session FROM policy WHERE cwd = ? AND narrowing = ?", pair)
        found |= {row[0] for row in rows}
    return found


def narrowing_digest(config: Config, cwd: str) -> str:
    """Return a digest of what the user's settings and the project's files restrict in a working directory."""
    found = config.narrowing(cwd)
    what: Any = (found.is_off, found.capture, found.withheld)
    return blake2b(repr(what).encode(), digest_size=8).hexdigest()
