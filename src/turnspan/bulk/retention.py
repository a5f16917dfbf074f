"""Transcripts that Claude Code deletes soon and that are not completely sent.

Rules:

- Claude Code deletes a transcript that was not written to for `cleanupPeriodDays` (30 unless its settings say
  otherwise), when it starts. It merges the settings of the directory it starts in and sweeps every project by them
  (anthropics/claude-code#90148): the shortest time that any project asks for is what all transcripts have.
- A session is safe when every destination has acknowledged all of it. Only sessions that expire soon are read, and only
  if a destination has a part of them, or the index does not have them as they are now.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.claude.cleanup import Period, shortest_period
from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.delivery.unsent import may_have_more, read_unsent
from turnspan.errors import StateError, TranscriptError
from turnspan.index.totals import KnownTotals
from turnspan.source import sessions
from turnspan.source.scan import modified_ns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.tally import Tally

_DAY_NS: Final = 86400 * 10**9


class Expiring(msgspec.Struct, frozen=True):
    """A session that is deleted soon, and what is unsent of it."""

    session: SessionFile
    project: str
    days_left: float  # below 0: deleted at Claude Code's next start
    unsent: dict[str, Tally]  # by destination


def cleanup_period(claude_home: Path, managed: Sequence[Path] | None = None) -> Period:
    """Return how long transcripts are kept: as managed settings say, else the shortest time in any settings file."""
    return shortest_period(claude_home, _directories(claude_home), managed)


def _directories(claude_home: Path) -> set[Path]:
    """Return the working directories of the projects that have transcripts."""
    found: dict[str, Path] = {}
    for session in sessions.all_sessions(sessions.projects_dir(claude_home), {}):
        if session.project not in found and (cwd := Path(sessions.cwd_of(session.path))).is_absolute():
            found[session.project] = cwd
    return set(found.values())


def expiring(
    config: Config, destinations: Sequence[Destination], within_days: float, now_ns: int, unread: dict[str, str]
) -> Iterator[Expiring]:
    """Yield the sessions that are deleted within some days and not completely sent, the first to be deleted first.

    Sessions that cannot be read are added to `unread`, with the reason: they cannot be sent, and are deleted all the
    same.
    """
    days = cleanup_period(config.claude_home).days
    targets = [Target(destination, config) for destination in destinations]
    found = sessions.all_sessions(sessions.projects_dir(config.claude_home), unread)
    dated = sorted(((modified_ns(session.path), session) for session in found), key=lambda pair: pair[0])
    with closing(KnownTotals(config)) as totals:
        for written, session in dated:
            if not written:
                continue  # deleted already
            days_left = days - (now_ns - written) / _DAY_NS
            if days_left > within_days:
                return
            try:
                project, unsent = _unsent(session, targets, now_ns, totals)
            except (TranscriptError, StateError) as error:
                unread[session.session_id] = str(error)
                continue
            if unsent:
                yield Expiring(session, project, days_left, unsent)


def _unsent(
    session: SessionFile, targets: Sequence[Target], now_ns: int, totals: KnownTotals
) -> tuple[str, dict[str, Tally]]:
    unsent: dict[str, Tally] = {}
    project = ""
    for target in targets:
        if may_have_more(session, state.known(target.home, session.session_id), target.identity):
            cwd, tally = _counted(session, target, now_ns, totals)
            project = project or cwd
            if tally is not None:
                unsent[target.destination.name] = tally
    return project or session.project, unsent


def _counted(session: SessionFile, target: Target, now_ns: int, totals: KnownTotals) -> tuple[str, Tally | None]:
    """Return the working directory of a session, and what a destination does not have of it; None: it has everything.

    Raises TranscriptError, StateError.
    """
    if (all_of_it := totals.if_unsent(session, target, now_ns)) is not None:
        return all_of_it.cwd, all_of_it.tally if all_of_it.has_spans else None
    found = read_unsent(session, target, now_ns)
    return found.cwd, found.tally if found.spans else None
