"""The sessions on this machine, newest first: what each amounts to, and how much of it has arrived.

A title is often the first words of a prompt: it is masked like everything that would leave.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import msgspec

from turnspan.bulk.pending import sent_word
from turnspan.delivery import state
from turnspan.delivery.destinations import identity_of, prices_of
from turnspan.delivery.policy import rules_of
from turnspan.errors import TranscriptError
from turnspan.secrets.replace import mask
from turnspan.source.reader import all_traces
from turnspan.source.scan import modified_ns
from turnspan.source.sessions import indexed_titles, newest_sessions, projects_dir
from turnspan.view.sessions_table import summarise

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.settings.config import Config
    from turnspan.view.sessions_table import Summary


def overview(
    config: Config, *, limit: int, project: str | None = None, unread: dict[str, str]
) -> Iterator[tuple[Summary, str]]:
    """Sessions, each as soon as it was read, with a word for how much of it has arrived.

    `unread` hears of those that cannot be read, and of projects that cannot be listed.
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
        is_off = not config.is_enabled or config.narrowing(summary.project).is_off
        known = state.peek(config.home, session.session_id)
        shown = msgspec.structs.replace(summary, title=mask(summary.title, rules=rules).text)
        yield shown, sent_word(known, identities, summary.tally.turns, is_off=is_off)
