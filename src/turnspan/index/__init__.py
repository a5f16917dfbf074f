"""The index: sessions, turns, responses, tool calls and texts in SQLite, for everything that people look at.

    with opened(config) as index:
        rows = index.connection.execute("SELECT title, cost_usd FROM session ORDER BY last_ns DESC")

It is derived from transcripts, brought up to date when a command opens it, and never written by a hook.
"""

from turnspan.index.listing import Filter, SessionRow, count_sessions, list_sessions
from turnspan.index.store import NAME, Index, opened

__all__ = ["NAME", "Filter", "Index", "SessionRow", "count_sessions", "list_sessions", "opened"]
