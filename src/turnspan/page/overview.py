"""The sessions on this machine, newest first, each with its totals and how much of it has arrived: from the index."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from turnspan.delivery import state, unsent
from turnspan.delivery.destinations import Target, identity_of
from turnspan.errors import StateError, TranscriptError
from turnspan.index import Filter, Scope, list_sessions, opened
from turnspan.page.sessions_table import Summary
from turnspan.source.sessions import SessionFile

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.index import SessionRow
    from turnspan.index.update import ShowProgress
    from turnspan.settings.config import Config


def overview(
    config: Config,
    *,
    limit: int,
    project: str | None = None,
    unread: dict[str, str],
    remarks: list[str] | None = None,
    show: ShowProgress | None = None,
) -> Iterator[tuple[Summary, str]]:
    """Yield each session with how much of it has arrived: all, 3/5, no, off, or ? if unknown.

    Sessions that cannot be read, and projects that cannot be listed, are added to `unread`, each with the reason.
    `remarks` gets sentences about the index, `show` shows the progress of its update.
    """
    with opened(config, scope=Scope(newest=limit, project=project), show=show) as index:
        # The last written ones; then by the transcript's own times, because copied files have a new modification time.
        rows = list_sessions(index, Filter(project=project), sort="-written", limit=limit)
        unread |= index.unreadable
        if remarks is not None:
            remarks += index.remarks
    identities = [identity_of(destination) for destination in config.destinations]
    for row in sorted(rows, key=lambda row: row.last_row_ns, reverse=True):
        if row.why_unknown:
            unread[row.session_id] = row.why_unknown
        sent = sent_of(row, identities, is_enabled=config.is_enabled)
        if sent == "all" and _is_something_unsent(SessionFile(row.session_id, row.path), config):
            sent = f"{row.tally.turns - 1}/{row.tally.turns}" if row.tally.turns else "no"
        yield _summary(row), sent


def _is_something_unsent(session: SessionFile, config: Config) -> bool:
    """Return whether a destination lacks something, though it has as many turns: the file was rewritten."""
    try:
        checkpoint = state.known(config.home, session.session_id)
        targets = [Target(destination, config) for destination in config.destinations]
        return any(
            unsent.may_have_more(session, checkpoint, target.identity)
            and unsent.has_unsent(session, target, time.time_ns())
            for target in targets
        )
    except (StateError, TranscriptError):
        return False


def _summary(row: SessionRow) -> Summary:
    return Summary(row.session_id, row.path, row.title, row.project, row.tally, row.last_ns, row.client)


def sent_of(row: SessionRow, identities: Sequence[str], *, is_enabled: bool) -> str:
    """Return how much of a session has arrived: all, 3/5, no, off, or ? if unknown."""
    if row.why_unknown:
        return "?"
    return "off" if row.is_off or not is_enabled else _least(row.sent, identities, row.tally.turns)


def _least(sent: Mapping[str, int], identities: Sequence[str], turns: int) -> str:
    """Return how much of a session the destination has that has the least of it: all, 3/5 or no."""
    if not identities or any(each not in sent for each in identities):
        return "no"
    least = min(sent[each] for each in identities)  # of 0 turns: only subagents are left of it, or it is all copied
    return "all" if least >= turns else f"{least}/{turns}" if least else "no"
