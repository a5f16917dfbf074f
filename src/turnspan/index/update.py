"""Brings the index up to date with the transcripts: reads what has changed, and writes it in transactions.

A transaction holds some small sessions or one large one. If the process is killed, the last of them is lost, and read
again by the next command.
"""

from __future__ import annotations

import time
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import msgspec

from turnspan.delivery.policy import rules_of
from turnspan.index.changes import Change, Changes, checkpoint_of, restriction_of
from turnspan.index.disk import as_text
from turnspan.index.places import Place
from turnspan.index.pool import read_jobs
from turnspan.index.reading import Finish, Part, ReadJob, Stage
from turnspan.index.rows import label
from turnspan.index.write import PURGE, Writer
from turnspan.secrets.replace import mask
from turnspan.source.scan import first_time_ns
from turnspan.source.sessions import SessionFile, agent_files, flat_agent_file, indexed_titles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from sqlite3 import Connection

    from turnspan.index.disk import Transcript
    from turnspan.secrets.replace import RuleSet
    from turnspan.settings.config import Config, Destination

    Watch = Callable[[int, int | None, float, str], None]
    ShowProgress = Callable[[int, int], AbstractContextManager[Watch]]

_SHOWN_AFTER_S: Final = 1.0
_SHOWN_BYTES: Final = 4 << 20  # less takes long only on a machine that is very busy
_GROUP_BYTES: Final = 32 << 20  # read and committed together: half a second of work
_GROUP: Final = 256


class UpdatePlan(msgspec.Struct, frozen=True):
    """Where the reading of a session begins."""

    change: Change
    job: ReadJob
    place: Place


class _Bar:
    """Shows progress once it has taken a while."""

    def __init__(self, show: ShowProgress | None, sessions: int, size: int) -> None:
        self._show = show if size >= _SHOWN_BYTES else None
        self._total = sessions, size
        self._stack = ExitStack()
        self._watch: Watch | None = None
        self._began_s = time.monotonic()
        self._sessions = self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def done(self, size: int) -> None:
        """Count a session that was read."""
        self._sessions += 1
        self._bytes += size
        self.reached(0)

    def reached(self, size: int) -> None:
        """Show how far the current session was read."""
        if self._show is not None and self._watch is None and time.monotonic() - self._began_s > _SHOWN_AFTER_S:
            self._watch = self._stack.enter_context(self._show(*self._total))
        if self._watch is not None:
            self._watch(self._sessions, None, self._bytes + size, "indexing")


class Updater:
    """Applies changes, a session a transaction."""

    def __init__(
        self, connection: Connection, config: Config, destination: Destination, show: ShowProgress | None = None
    ) -> None:
        self._connection = connection
        self._config = config
        self._destination = destination
        self._show = show
        self._bar = _Bar(None, 0, 0)
        self._writer = Writer(connection)

    def apply(self, changes: Changes) -> None:
        """Bring the index up to date."""
        with self._transaction():
            for session in changes.delete:
                self._writer.delete(session)
        jobs = {change.transcript.path: self._planned(change) for change in changes.read}
        with _Bar(self._show, len(jobs), sum(plan.job.size for plan in jobs.values())) as self._bar:
            results = read_jobs([plan.job for plan in jobs.values()], self._config, self._destination)
            for group in self._grouped(results, jobs):
                with self._transaction():
                    for path, parts in group:
                        self._write(jobs[path], parts)
                        self._bar.done(jobs[path].job.size)
        with self._transaction():
            self._store_checkpoints(changes)
            self._store_titles(changes)
            self._store_flat(changes)
            if changes.is_purging:
                self._connection.execute(PURGE)
            if changes.signature:
                self._connection.execute("INSERT OR REPLACE INTO meta VALUES ('signature', ?)", (changes.signature,))

    def _grouped(
        self, results: Iterator[tuple[str, Iterable[Part | Finish]]], jobs: Mapping[str, UpdatePlan]
    ) -> Iterator[Iterator[tuple[str, Iterable[Part | Finish]]]]:
        """Yield the sessions that are committed together: some that are small, or one that is large."""
        for first in results:
            sizes = [jobs[first[0]].job.size]

            def group(first: tuple[str, Iterable[Part | Finish]] = first, sizes: list[int] = sizes) -> Any:  # noqa: ANN401
                yield first
                while sum(sizes) < _GROUP_BYTES and len(sizes) < _GROUP and (result := next(results, None)) is not None:
                    sizes.append(jobs[result[0]].job.size)
                    yield result

            yield group()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            self._writer.begin()
            yield
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def _planned(self, change: Change) -> UpdatePlan:
        """Return where to begin to read: behind the settled turns that stay."""
        transcript, place = change.transcript, Place()
        if change.session is not None and not change.is_anew:
            changed = self._changed_agents(change.session, transcript)
            if changed is not None:
                place = self._before_agents(change, self._writer.place(change.session), changed)
        progress = place.progress
        size = transcript.size - progress.main.offset - sum(each.offset for each in progress.agents.values())
        job = ReadJob(transcript.session_id, transcript.path, progress, change.restriction, max(0, size))
        return UpdatePlan(change, job, place)

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
        """Return the last place before which none of these subagents was read with a turn, or could have been."""
        session = change.session
        assert session is not None
        unread = changed - place.progress.agents.keys() - self._writer.late_agents(session)
        began_ns = self._began_ns(change.transcript, unread - place.progress.launched.keys())
        piece = place.piece
        while (
            changed & place.progress.agents.keys()
            or unread & place.progress.launched.keys()
            or (began_ns is not None and self._ended_after(session, place, began_ns))
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

    def _write(self, plan: UpdatePlan, parts: Iterable[Part | Finish]) -> None:
        writer, change, place = self._writer, plan.change, plan.place
        session = writer.start(change.transcript)
        if change.session is not None:
            writer.cut(session, place)
            if not place.position:
                self._connection.execute("DELETE FROM policy WHERE session = ?", (session,))
        for part in parts:
            if isinstance(part, Finish):
                self._finish(session, change, place, part)
                continue
            if part.is_anew:
                place = Place()
                writer.cut(session, place)
            match part.stage:
                case Stage.SETTLED:
                    writer.add_settled(session, place, part)
                    self._bar.reached(part.change.main.offset - plan.job.progress.main.offset)
                case Stage.END:
                    writer.add_end(session, place, part)
                case Stage.LATE:
                    writer.add_late(session, part)

    def _finish(self, session: int, change: Change, place: Place, finish: Finish) -> None:
        if finish.problem:
            place = Place()
            self._writer.cut(session, place)
        self._writer.finish(session, place, change.transcript, finish, change.restriction)
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
                if row is not None:  # else it is not read yet
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
            checkpoint, problem = checkpoint_of(self._config, session_id)
            values = (session_id, *stamp, restriction_of(checkpoint), problem)
            execute("INSERT INTO checkpoint VALUES (?, ?, ?, ?, ?)", values)
            cursors = checkpoint.destinations.items()
            passed = [(row[0], name, each.last_turn) for name, each in cursors if each.last_turn or each.sent_spans]
            many("INSERT INTO sent VALUES (?, ?, ?)", passed)

    def _store_flat(self, changes: Changes) -> None:
        if changes.flat:
            self._connection.execute("DELETE FROM flat_file")
            rows = [(as_text(path), *stamp, owner) for path, (stamp, owner) in changes.listing.flat.items()]
            self._connection.executemany("INSERT INTO flat_file VALUES (?, ?, ?, ?)", rows)
