"""The index: sessions, turns, responses, tool calls and texts in SQLite, for everything that people look at.

    with opened(config) as index:
        rows = index.connection.execute("SELECT title, cost_usd FROM session ORDER BY last_ns DESC")

It is derived from transcripts, brought up to date when a command opens it, and never written by a hook.
"""

from turnspan.index.changes import Scope
from turnspan.index.listing import Filter, SessionRow, count_sessions, list_sessions
from turnspan.index.store import NAME, Index, forget, is_stored, opened, stored_as_it_is

__all__ = [
    "NAME", "Filter", "Index", "Scope", "SessionRow", "count_sessions", "forget", "is_stored", "list_sessions",
    "opened", "stored_as_it_is",
]  # fmt: skip
