"""What Claude Code is going to delete soon, of which something has not been sent.

Rules:

- Claude Code deletes a transcript that was not written to for `cleanupPeriodDays` (30 unless its settings say
  otherwise), when it starts. It merges the settings of the directory it starts in and sweeps every project by them
  (anthropics/claude-code#90148): the shortest time that any project asks for is what all transcripts have.
- A session is safe when every destination has acknowledged all of it. Only those that are about to go are read.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.bulk.plan import is_outdated_copy, peek
from turnspan.claude.cleanup import Period, shortest_period
from turnspan.delivery.destinations import identity_of
from turnspan.errors import TranscriptError
from turnspan.source import sessions
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.source.scan import modified_ns, size_of
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile

_DAY_NS: Final = 86400 * 10**9


class Expiring(msgspec.Struct, frozen=True):
    """A session that goes soon, and what would be lost with it."""

    session: SessionFile
    project: str
    days_left: float  # below 0: at the next start
    unsent: dict[str, Tally]  # by destination


def cleanup_period(claude_home: Path, managed: Sequence[Path] | None = None) -> Period:
    """How long transcripts live. What an organisation says overrules all; else the shortest time counts."""
    return shortest_period(claude_home, _directories(claude_home), managed)


def _directories(claude_home: Path) -> set[Path]:
    """Where the projects lie that have transcripts."""
    found: dict[str, Path] = {}
    for session in sessions.all_sessions(sessions.projects_dir(claude_home), {}):
        if session.project not in found and (cwd := Path(sessions.cwd_of(session.path))).is_absolute():
            found[session.project] = cwd
    return set(found.values())


def expiring(
    config: Config, destinations: Sequence[Destination], within_days: float, now_ns: int, unread: dict[str, str]
) -> Iterator[Expiring]:
    """The sessions that go within some days and are not sent, the first to go first; `unread` hears what stays unknown.

    A session that cannot be read cannot be sent either, and goes all the same.
    """
    days = cleanup_period(config.claude_home).days
    found = sessions.all_sessions(sessions.projects_dir(config.claude_home), unread)
    dated = sorted(((modified_ns(session.path), session) for session in found), key=lambda pair: pair[0])
    for written, session in dated:
        if not written:
            continue  # gone already
        days_left = days - (now_ns - written) / _DAY_NS
        if days_left > within_days:
            return
        try:
            project, unsent = _unsent(session, config, destinations, now_ns)
        except TranscriptError as error:
            unread[session.session_id] = str(error)
            continue
        if unsent:
            yield Expiring(session, project, days_left, unsent)


def _unsent(
    session: SessionFile, config: Config, destinations: Sequence[Destination], now_ns: int
) -> tuple[str, dict[str, Tally]]:
    known = peek(config.home, session.session_id)
    size = size_of(session.path)
    unsent: dict[str, Tally] = {}
    project = ""
    for destination in destinations:
        cursor = known.destinations.get(identity_of(destination))
        if known.is_off or (cursor is not None and cursor.seen_bytes == size):
            continue
        if is_outdated_copy(session, known, cursor):
            continue
        tally = Tally()
        progress = cursor.progress if cursor is not None else Progress()
        for piece in Reading(session, progress, Ending(now_ns=now_ns)).pieces():
            for trace in piece.traces:
                cwd = str(trace.facts.get("cwd", ""))
                project = project or cwd
                if not config.narrowing(cwd).is_off:
                    tally += tally_of(trace)
        if tally != Tally():
            unsent[destination.name] = tally
    return project or session.project, unsent
