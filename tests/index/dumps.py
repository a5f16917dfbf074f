"""Reads all rows of an index, in a form that does not depend on how it came about."""

from __future__ import annotations

from turnspan.index import opened

# Ids, and where a session was cut into pieces, depend on when it was read.
_SESSION = "session_id, path, directory, project, branch, title, client, first_ns, last_ns, active_ns, turns, generations, tools, agents, errors, interruptions, compactions, input, output, cache_read, cache_write_5m, cache_write_1h, web_searches, round(cost_usd, 9), cut_off, incomplete, unpriced, is_off, capture"
_TURN = "position, trace_id, number, is_later, origin, name, prompt, turn.title, turn.project, turn.branch, turn.client, start_ns, end_ns, turn.active_ns, turn.generations, turn.tools, turn.agents, turn.errors, turn.interruptions, turn.compactions, turn.input, turn.output, turn.cache_read, turn.cache_write_5m, turn.cache_write_1h, turn.web_searches, round(turn.cost_usd, 9), turn.cut_off, turn.incomplete, turn.unpriced"
_CHILDREN = {
    "response": "span_id, agent, model, start_ns, end_ns, first_token_ns, input, output, cache_read, cache_write_5m, cache_write_1h, web_searches, cost_usd, error, is_incomplete, is_aborted, has_inferred_time",
    "tool_call": "span_id, agent, name, hint, start_ns, end_ns, status, error",
    "subagent": "span_id, name, hint, start_ns, end_ns, status, generations, tools, input, output, cache_read, cost_usd",
    "event": "span_id, name, start_ns, end_ns, hint",
    "text": "span_id, kind, body",
}


def dump(config, **options):
    """Bring the index up to date and return its content."""
    with opened(config, **options) as index:
        return content(index.connection)


def content(connection):
    """Return the content of an index: sessions, and the rows of their turns, in order."""
    found = {}
    for session, *values in connection.execute(f"SELECT id, {_SESSION} FROM session ORDER BY path").fetchall():
        turns = []
        query = f"SELECT turn.id, {_TURN} FROM turn WHERE session = ? ORDER BY position"
        for turn, *row in connection.execute(query, (session,)).fetchall():
            below = {
                table: connection.execute(
                    f"SELECT {columns} FROM {table} WHERE turn = ? ORDER BY rowid", (turn,)
                ).fetchall()
                for table, columns in _CHILDREN.items()
            }
            turns.append((row, below))
        found[values[1]] = values, turns
    return found
