"""The tables of the index, as SQL. `docs/dev/index.md` describes them for people who open the file with other programs.

Rules:

- Times are integers, nanoseconds since 1970 in UTC. Costs are US dollars, NULL where they are not known. Ids are
  hexadecimal text.
- Everything is derived from transcripts. A file with another version of this schema is rebuilt, not migrated.
- Tables after `internal` are for `update`: how far each file was read, and what it depended on.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from sqlite3 import Connection

VERSION: Final = 1
APPLICATION_ID: Final = 0x7475726E  # "turn"
PAGE_BYTES: Final = 16_384  # of a new file: a row with a text needs fewer pages, and fewer are written
_HASH_BYTES: Final = 4 << 20  # of words that FTS5 collects before it writes them: fewer segments to merge

USAGE: Final = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "web_searches")
COUNTED: Final = ("generations", "tools", "agents", "errors", "interruptions", "compactions")
_USAGE_SQL: Final = ", ".join(f"{name} INTEGER" for name in USAGE)
_TOTALS_SQL: Final = (
    "active_ns INTEGER, " + ", ".join(f"{name} INTEGER" for name in COUNTED) + f", {_USAGE_SQL}, cost_usd REAL, "
    "cut_off INTEGER, incomplete INTEGER, unpriced TEXT"
)

_TABLES: Final = (
    f"""CREATE TABLE session(
        id INTEGER PRIMARY KEY, session_id TEXT, path TEXT UNIQUE, directory TEXT, project TEXT, branch TEXT,
        title TEXT, client TEXT, first_ns INTEGER, last_ns INTEGER, turns INTEGER, {_TOTALS_SQL},
        is_off INTEGER, capture TEXT)""",
    f"""CREATE TABLE turn(
        id INTEGER PRIMARY KEY, session INTEGER REFERENCES session, position INTEGER, trace_id TEXT, number INTEGER,
        is_later INTEGER, origin TEXT, name TEXT, prompt TEXT, title TEXT, project TEXT, branch TEXT, client TEXT,
        start_ns INTEGER, end_ns INTEGER, {_TOTALS_SQL},
        piece INTEGER, in_piece INTEGER, first_text INTEGER, texts INTEGER)""",
    f"""CREATE TABLE response(
        id INTEGER PRIMARY KEY, turn INTEGER REFERENCES turn, span_id TEXT, agent TEXT, model TEXT,
        start_ns INTEGER, end_ns INTEGER, first_token_ns INTEGER, {_USAGE_SQL}, cost_usd REAL,
        error TEXT, is_incomplete INTEGER, is_aborted INTEGER, has_inferred_time INTEGER)""",
    """CREATE TABLE tool_call(
        id INTEGER PRIMARY KEY, turn INTEGER REFERENCES turn, span_id TEXT, agent TEXT, name TEXT, hint TEXT,
        start_ns INTEGER, end_ns INTEGER, status TEXT, error TEXT)""",
    f"""CREATE TABLE subagent(
        id INTEGER PRIMARY KEY, turn INTEGER REFERENCES turn, span_id TEXT, name TEXT, hint TEXT,
        start_ns INTEGER, end_ns INTEGER, status TEXT, generations INTEGER, tools INTEGER,
        {_USAGE_SQL}, cost_usd REAL)""",
    """CREATE TABLE event(
        id INTEGER PRIMARY KEY, turn INTEGER REFERENCES turn, span_id TEXT, name TEXT, start_ns INTEGER,
        end_ns INTEGER, hint TEXT)""",
    """CREATE TABLE sent(
        session INTEGER REFERENCES session, destination TEXT, last_turn INTEGER,
        PRIMARY KEY(session, destination)) WITHOUT ROWID""",
    # internal
    "CREATE TABLE piece(session INTEGER, piece INTEGER, progress BLOB, PRIMARY KEY(session, piece))",
    "CREATE TABLE late(session INTEGER, piece INTEGER, progress BLOB, PRIMARY KEY(session, piece))",
    """CREATE TABLE file(
        session INTEGER PRIMARY KEY, size INTEGER, modified_ns INTEGER, agent_digest TEXT, last_row_ns INTEGER,
        cwd TEXT, problem TEXT, neighbours BLOB, first_row_ns INTEGER, restriction TEXT, title_text INTEGER,
        position INTEGER, piece INTEGER, in_piece INTEGER, spans INTEGER, since_piece BLOB, progress BLOB)""",
    """CREATE TABLE agent_file(
        session INTEGER, agent_id TEXT, size INTEGER, modified_ns INTEGER,
        PRIMARY KEY(session, agent_id)) WITHOUT ROWID""",
    """CREATE TABLE flat_file(
        path TEXT PRIMARY KEY, size INTEGER, modified_ns INTEGER, session_id TEXT) WITHOUT ROWID""",
    """CREATE TABLE policy(
        session INTEGER, cwd TEXT, narrowing TEXT, PRIMARY KEY(session, cwd)) WITHOUT ROWID""",
    """CREATE TABLE checkpoint(
        session_id TEXT PRIMARY KEY, size INTEGER, modified_ns INTEGER, restriction TEXT, problem TEXT)
        WITHOUT ROWID""",
    "CREATE TABLE title_file(directory TEXT PRIMARY KEY, size INTEGER, modified_ns INTEGER) WITHOUT ROWID",
    "CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID",
    "CREATE INDEX turn_by_session ON turn(session, position)",
    "CREATE INDEX turn_by_start ON turn(start_ns)",
    "CREATE INDEX session_by_id ON session(session_id)",
    "CREATE INDEX file_by_time ON file(modified_ns)",
    "CREATE INDEX file_with_problem ON file(problem) WHERE problem <> ''",
    *(f"CREATE INDEX {table}_by_turn ON {table}(turn)" for table in ("response", "tool_call", "subagent", "event")),
)  # fmt: skip
_TEXT: Final = "turn UNINDEXED, span_id UNINDEXED, kind UNINDEXED, body"
DIGEST: Final = blake2b("\n".join((*_TABLES, _TEXT)).encode(), digest_size=8).hexdigest()


def create(connection: Connection) -> None:
    """Create all tables, in the transaction that is open."""
    for statement in _TABLES:
        connection.execute(statement)
    connection.execute(f"CREATE VIRTUAL TABLE text USING fts5({_TEXT})")
    connection.execute("INSERT INTO text(text, rank) VALUES ('hashsize', ?)", (_HASH_BYTES,))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")


def drop(connection: Connection) -> None:
    """Drop all tables, in the transaction that is open."""
    connection.execute("DROP TABLE IF EXISTS text")
    names = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite_%'")
    for (name,) in names.fetchall():
        connection.execute(f'DROP TABLE IF EXISTS "{name}"')
