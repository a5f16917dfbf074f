"""Brings the index up to date with the transcripts.

What is read again, decided from one listing of sizes and times:

| what changed since the session was read | what is read |
|---|---|
| nothing | nothing |
| the transcript has grown | from the last turn that was sealed |
| a subagent's file has grown, or is new | from the piece before it was first read with a turn, or could have been |
| the transcript is shorter, was written without growing, or its beginning has changed | all of it |
| a subagent's file was deleted | all of it |
| what its project allows, or whether the user disabled it | all of it |
| the transcript was deleted | nothing: its rows are deleted |
| a transcript of the same project was deleted, and turns were copied from another session | all of it |
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery import state
from turnspan.delivery.policy import rules_of
from turnspan.errors import StateError
from turnspan.index.disk import Listing, Stamp, Transcript, listed
from turnspan.index.places import Place, can_stay, continues, with_late
from turnspan.index.pool import read_jobs
from turnspan.index.reading import Finish, Job, Part, Stage, narrowing_digest
from turnspan.index.rows import label
from turnspan.index.write import Writer, as_text
from turnspan.secrets.replace import mask
from turnspan.source.progress import Progress
from turnspan.source.scan import first_time_ns
from turnspan.source.sessions import SessionFile, agent_files, flat_agent_file, indexed_titles, projects_dir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from sqlite3 import Connection

    from turnspan.secrets.replace import RuleSet
    from turnspan.settings.config import Config, Destination

    Watch = Callable[[int, int | None, float, str], None]
    ShowProgress = Callable[[int, int], AbstractContextManager[Watch]]

_SHOWN_AFTER_S: Final = 1.0


class Known(msgspec.Struct, frozen=True):
    """What the index has of a session."""

    session: int
    session_id: str
    path: str
    directory: str
    stamp: Stamp
    agents: str
    is_disabled: bool
    copied: int
    problem: str


class Change(msgspec.Struct, frozen=True):
    """A session to read."""

    transcript: Transcript
    is_disabled: bool
    session: int | None = None
    is_anew: bool = True


class Plan(msgspec.Struct, frozen=True):
    """Where the reading of a session begins, and the late groups whose rows stay."""

    change: Change
    job: Job
    place: Place
    groups: dict[int, Progress]


class _Continued(Exception):  # noqa: N818 - a result, not an error
    """A later turn continued a subagent of a late group, whose rows therefore do not stay."""


class Changes(msgspec.Struct):
    """How the transcripts differ from the index."""

    listing: Listing
    read: list[Change] = []
    delete: list[int] = []
    checkpoints: dict[str, Stamp | None] = {}
    titles: dict[str, Stamp] = {}  # by project directory
    flat: bool = False

    @property
    def is_empty(self) -> bool:
        """Whether the index is up to date."""
        return not (self.read or self.delete or self.checkpoints or self.titles or self.flat)


def find_changes(connection: Connection, config: Config) -> Changes:
    """Compare the index with a listing of the transcripts; nothing is written."""
    rows = connection.execute(
        "SELECT id, session_id, path, directory, size, modified_ns, agent_digest, is_disabled, copied, problem "
        "FROM session JOIN file ON file.session = session.id"
    )
    known = {
        row[2]: Known(row[0], row[1], row[2], row[3], (row[4], row[5]), row[6], bool(row[7]), row[8] or 0, row[9] or "")
        for row in rows
    }
    flat = {
        path: ((size, when), session_id)
        for path, size, when, session_id in connection.execute("SELECT * FROM flat_file")
    }
    ids = {each.path: (each.session_id, each.stamp) for each in known.values()}
    listing = listed(projects_dir(config.claude_home), ids, flat)
    changes = Changes(listing)
    changes.flat = {as_text(path): found for path, found in listing.flat.items()} != flat
    _find_checkpoints(connection, config, changes)
    disabled = _disabled(connection, config, changes)
    found = {as_text(path): transcript for path, transcript in listing.transcripts.items()}
    gone = {path: each for path, each in known.items() if path not in found and each.directory not in listing.unlisted}
    changes.delete = [each.session for each in gone.values()]
    emptied = {each.directory for each in gone.values()}
    restricted = _restricted(connection, config)
    for path, transcript in found.items():
        each = known.get(path)
        is_disabled = transcript.session_id in disabled
        if each is None or each.session_id != transcript.session_id:
            changes.read.append(Change(transcript, is_disabled, each.session if each is not None else None))
            continue
        is_anew = (
            each.is_disabled != is_disabled or each.session in restricted or bool(each.problem)
            or transcript.stamp[0] < each.stamp[0]
            or (transcript.stamp[0] == each.stamp[0] and transcript.stamp[1] != each.stamp[1])
            or (each.copied > 0 and each.directory in emptied)
        )  # fmt: skip
        if is_anew or transcript.stamp != each.stamp or transcript.digest != each.agents:
            changes.read.append(Change(transcript, is_disabled, each.session, is_anew))
    stamps = {row[0]: row[1:] for row in connection.execute("SELECT * FROM title_file")}
    changes.titles = {name: stamp for name, stamp in listing.titles.items() if stamps.get(as_text(name)) != stamp}
    return changes


def _find_checkpoints(connection: Connection, config: Config, changes: Changes) -> None:
    """Find the sessions whose checkpoint has changed, from one listing."""
    stamps: dict[str, Stamp] = {}
    try:
        with os.scandir(config.home / "state") as entries:
            for entry in entries:
                if entry.name.endswith(".json") and not entry.name.startswith("."):
                    found = entry.stat()
                    stamps[entry.name.removesuffix(".json")] = found.st_size, found.st_mtime_ns
    except OSError:  # nothing was sent yet
        pass
    known = {row[0]: row[1:] for row in connection.execute("SELECT session_id, size, modified_ns FROM checkpoint")}
    for transcript in changes.listing.transcripts.values():
        stamp = stamps.get(transcript.session_id)
        if known.get(transcript.session_id) != stamp:
            changes.checkpoints[transcript.session_id] = stamp


def _disabled(connection: Connection, config: Config, changes: Changes) -> set[str]:
    """Return the sessions that the user disabled."""
    found = {row[0] for row in connection.execute("SELECT session_id FROM checkpoint WHERE is_off")}
    for session_id, stamp in changes.checkpoints.items():
        found.discard(session_id)
        if stamp is not None and _checkpoint(config, session_id)[0].is_off:
            found.add(session_id)
    return found


def _checkpoint(config: Config, session_id: str) -> tuple[state.Checkpoint, str]:
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


# ---- applying


class Updater:
    """Applies changes, a session a transaction."""

    def __init__(
        self, connection: Connection, config: Config, destination: Destination, show: ShowProgress | None = None
    ) -> None:
        self._connection = connection
        self._config = config
        self._destination = destination
        self._show = show
        self._writer = Writer(connection)

    def apply(self, changes: Changes) -> None:
        """Bring the index up to date."""
        with self._transaction():
            for session in changes.delete:
                self._writer.delete(session)
        jobs = {change.transcript.path: self._planned(change) for change in changes.read}
        results = read_jobs([plan.job for plan in jobs.values()], self._config, self._destination)
        for path, parts in self._watched(results, jobs):
            self._write(jobs[path], parts)
        with self._transaction():
            self._store_checkpoints(changes)
            self._store_titles(changes)
            self._store_flat(changes)

    def _write(self, plan: Plan, parts: Iterable[Part | Finish]) -> None:
        try:
            with self._transaction():
                self._write_parts(plan, parts)
        except _Continued:
            again = self._planned(plan.change, can_late_stay=False)
            for _, read_again in read_jobs([again.job], self._config, self._destination):
                with self._transaction():
                    self._write_parts(again, read_again)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _watched(
        self, results: Iterator[tuple[str, Iterable[Part | Finish]]], jobs: Mapping[str, Plan]
    ) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
        """Show progress once it has taken a while."""
        began_s, done, size = time.monotonic(), 0, 0
        total = sum(plan.job.size for plan in jobs.values())
        for path, parts in results:
            yield path, parts
            done, size = done + 1, size + jobs[path].job.size
            if self._show is not None and time.monotonic() - began_s > _SHOWN_AFTER_S:
                with self._show(len(jobs), total) as watch:
                    watch(done, None, size, "indexing")
                    for again, more in results:
                        yield again, more
                        done, size = done + 1, size + jobs[again].job.size
                        watch(done, None, size, "indexing")

    def _planned(self, change: Change, *, can_late_stay: bool = True) -> Plan:
        """Return where to begin to read, and which late groups stay."""
        transcript = change.transcript
        place, groups = Place(), dict[int, Progress]()
        if change.session is not None and not change.is_anew:
            changed = self._changed_agents(change.session, transcript)
            if changed is not None:
                place = self._before_agents(change, self._writer.place(change.session), changed)
                found = self._writer.late_groups(change.session) if can_late_stay and place.position else {}
                groups = {piece: group for piece, group in found.items() if can_stay(group, place.progress, changed)}
        progress = with_late(place.progress, groups.values())
        size = transcript.size - progress.main.offset - sum(each.offset for each in progress.agents.values())
        job = Job(transcript.session_id, transcript.path, progress, change.is_disabled, max(0, size))
        return Plan(change, job, place, groups)

    def _changed_agents(self, session: int, transcript: Transcript) -> set[str] | None:
        """Return the subagents whose files have changed or are new; None if one was deleted."""
        rows = self._connection.execute(
            "SELECT agent_id, size, modified_ns FROM agent_file WHERE session = ?", (session,)
        )
        before = {row[0]: row[1:] for row in rows}
        after = {as_text(name): stamp for name, stamp in transcript.agents.items()}
        if before.keys() - after.keys():
            return None
        names = [name for name, stamp in after.items() if before.get(name) != stamp]
        return {name.removesuffix(".meta.json").removeprefix("agent-") for name in names}

    def _before_agents(self, change: Change, place: Place, changed: set[str]) -> Place:
        """Return the last place before which none of these subagents was read, or can have been launched."""
        session = change.session
        assert session is not None
        known = place.progress.agents.keys() | place.progress.launched.keys()
        began_ns = self._began_ns(change.transcript, changed - known)
        piece = place.piece
        while changed & place.progress.agents.keys() or (
            began_ns is not None and self._ended_after(session, place, began_ns)
        ):
            place = self._writer.place_of_piece(session, piece) if piece > 0 else Place()
            piece -= 1
        return place

    def _ended_after(self, session: int, place: Place, time_ns: int) -> bool:
        """Whether the turn before a place ended after a time: it may have launched an agent that began then."""
        if not place.position:
            return False
        found = self._connection.execute(
            "SELECT max(end_ns) FROM turn WHERE session = ? AND position < ?", (session, place.position)
        ).fetchone()
        return found[0] is None or found[0] >= time_ns

    def _began_ns(self, transcript: Transcript, agents: set[str]) -> int | None:
        """Return when the first of some subagents began."""
        if not agents:
            return None
        session = SessionFile(transcript.session_id, Path(transcript.path))
        files = agent_files(session)
        times = []
        for agent_id in agents:
            file = files.get(agent_id) or flat_agent_file(session, agent_id)
            if file is not None:
                times.append(first_time_ns(file.path) or 0)
        return min(times, default=0)

    def _write_parts(self, plan: Plan, parts: Iterable[Part | Finish]) -> None:
        writer, change, place = self._writer, plan.change, plan.place
        session = writer.start(change.transcript)
        writer.cut(session, place, plan.groups)
        if not place.position:
            self._connection.execute("DELETE FROM policy WHERE session = ?", (session,))
        for part in parts:
            if isinstance(part, Finish):
                if part.problem:
                    place = Place()
                    writer.cut(session, place)
                writer.settle(session, place)
                writer.finish(session, change.transcript, part, is_disabled=change.is_disabled)
                continue
            if part.is_anew:
                place = Place()
                writer.cut(session, place)
            elif plan.groups and continues(part.change, plan.groups.values()):
                raise _Continued
            match part.stage:
                case Stage.SETTLED:
                    writer.add_settled(session, place, part)
                case Stage.END:
                    writer.add_end(session, place, part)
                case Stage.LATE:
                    writer.add_late(session, part)
        self._title(session, change.transcript)

    # ---- titles, checkpoints, subagents next to their session

    @cached_property
    def _titles(self) -> dict[str, Mapping[str, str]]:
        return {}

    def _title(self, session: int, transcript: Transcript) -> None:
        self._set_title(session, transcript.session_id, str(Path(transcript.path).parent))

    def _set_title(self, session: int, session_id: str, directory: str) -> None:
        if directory not in self._titles:
            self._titles[directory] = indexed_titles(Path(directory))
        indexed = self._titles[directory].get(session_id, "")
        if indexed:
            is_off, capture = self._connection.execute(
                "SELECT is_off, capture FROM session WHERE id = ?", (session,)
            ).fetchone()
            indexed = "" if is_off or capture == "metadata" else label(mask(indexed, rules=self._rules).text)
        self._writer.title(session, indexed)

    @cached_property
    def _rules(self) -> RuleSet:
        return rules_of(self._config)

    def _store_titles(self, changes: Changes) -> None:
        just_read = {change.transcript.path for change in changes.read}
        for transcript in changes.listing.transcripts.values():
            if transcript.directory in changes.titles and transcript.path not in just_read:
                row = self._connection.execute(
                    "SELECT id FROM session WHERE path = ?", (as_text(transcript.path),)
                ).fetchone()
                self._title(row[0], transcript)
        rows = [(as_text(name), *stamp) for name, stamp in changes.titles.items()]
        self._connection.executemany("INSERT OR REPLACE INTO title_file VALUES (?, ?, ?)", rows)

    def _store_checkpoints(self, changes: Changes) -> None:
        execute, many = self._connection.execute, self._connection.executemany
        for session_id, stamp in changes.checkpoints.items():
            row = execute("SELECT id FROM session WHERE session_id = ?", (session_id,)).fetchone()
            if row is None:
                continue
            execute("DELETE FROM sent WHERE session = ?", row)
            execute("DELETE FROM checkpoint WHERE session_id = ?", (session_id,))
            if stamp is None:
                continue
            checkpoint, problem = _checkpoint(self._config, session_id)
            values = (session_id, *stamp, checkpoint.is_off, problem)
            execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?)", values)
            sent = [(row[0], identity, cursor.sent_turns) for identity, cursor in checkpoint.destinations.items()]
            many("INSERT INTO sent VALUES (?, ?, ?)", sent)

    def _store_flat(self, changes: Changes) -> None:
        if changes.flat:
            self._connection.execute("DELETE FROM flat_file")
            rows = [(as_text(path), *stamp, owner) for path, (stamp, owner) in changes.listing.flat.items()]
            self._connection.executemany("INSERT INTO flat_file VALUES (?, ?, ?, ?)", rows)
