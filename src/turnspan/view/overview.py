"""The sessions on this machine, newest first, each with its totals and how much of it has arrived.

A title is often the first words of a prompt, so it is masked like everything that is exported.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

import msgspec

from turnspan import unsent
from turnspan.delivery import state
from turnspan.delivery.destinations import Target, identity_of, prices_of
from turnspan.delivery.policy import is_switched_off, rules_of
from turnspan.errors import StateError, TranscriptError
from turnspan.secrets.replace import mask
from turnspan.source.reader import all_traces
from turnspan.source.scan import modified_ns
from turnspan.source.sessions import indexed_titles, newest_sessions, projects_dir
from turnspan.view.sessions_table import summarise

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile
    from turnspan.view.sessions_table import Summary


def overview(
    config: Config, *, limit: int, project: str | None = None, unread: dict[str, str]
) -> Iterator[tuple[Summary, str]]:
    """Yield each session as soon as it was read, with how much of it has arrived: all, 3/5, no, off, or ? if unknown.

    Sessions that cannot be read, and projects that cannot be listed, are added to `unread`, each with the reason.
    """
    prices, rules = prices_of(config), rules_of(config)
    identities = [identity_of(destination) for destination in config.destinations]
    titles = cache(indexed_titles)
    for session in newest_sessions(projects_dir(config.claude_home), limit=limit, project=project, unread=unread):
        title = titles(session.path.parent).get(session.session_id, "")
        try:
            summary = summarise(session, all_traces(session, prices), title=title, written_ns=modified_ns(session.path))
        except TranscriptError as error:
            unread[session.session_id] = str(error)
            continue
        try:
            checkpoint = state.known(config.home, session.session_id)
            is_off = checkpoint.is_off or is_switched_off(config, summary.project)
            sent = "off" if is_off else _sent(checkpoint, identities, summary.tally.turns)
            if sent == "all" and _is_something_unsent(session, checkpoint, config):
                sent = f"{max(0, summary.tally.turns - 1)}/{summary.tally.turns}"
        except (StateError, TranscriptError) as error:
            unread[session.session_id] = str(error)
            sent = "?"
        yield msgspec.structs.replace(summary, title=mask(summary.title, rules=rules).text), sent


def _is_something_unsent(session: SessionFile, checkpoint: state.Checkpoint, config: Config) -> bool:
    """Return whether a destination lacks something, though it has as many turns: the file was rewritten."""
    targets = [Target(destination, config) for destination in config.destinations]
    return any(
        unsent.may_have_more(session, checkpoint, target.identity)
        and unsent.has_unsent(session, target, time.time_ns())
        for target in targets
    )


def _sent(checkpoint: state.Checkpoint, identities: Sequence[str], turns: int) -> str:
    """Return how much of a session the destination has that has the least of it: all, 3/5 or no."""
    cursors = (checkpoint.destinations.get(each, state.Cursor()) for each in identities)
    least = min((cursor.sent_turns for cursor in cursors), default=0)
    if not least:
        return "no"
    return "all" if least >= turns else f"{least}/{turns}"
