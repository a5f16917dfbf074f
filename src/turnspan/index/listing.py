"""The list of sessions: filtered, sorted and cut into pages by SQL, with their totals as a `Tally`.

`sort` is the name of a column of `SORTS`, with a `-` in front for the largest first.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.index.disk import as_text
from turnspan.index.schema import USAGE
from turnspan.index.stats import Slice, sessions_with
from turnspan.source.sessions import path_named
from turnspan.trace.model import Usage
from turnspan.trace.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Sequence
    from sqlite3 import Connection

    from turnspan.index.store import Index

SORTS: Final = {
    "last": "last_ns", "first": "first_ns", "written": "file.modified_ns", "turns": "turns", "cost": "cost_usd",
    "tokens": "input + output + cache_read + cache_write_5m + cache_write_1h", "errors": "errors",
    "active": "active_ns", "title": "title COLLATE NOCASE", "project": "project COLLATE NOCASE",
    "branch": "branch COLLATE NOCASE", "sent": "(SELECT min(last_turn) FROM sent WHERE session = session.id)",
}  # fmt: skip
_FROM: Final = "FROM session JOIN file ON file.session = session.id LEFT JOIN checkpoint USING (session_id)"
_NAMES: Final = (
    "id", "session_id", "path", "directory", "project", "branch", "title", "client", "first_ns", "last_ns", "active_ns",
    "turns", "generations", "tools", "agents", "errors", *USAGE, "cost_usd", "cut_off",
    "incomplete", "unpriced", "is_off", "capture", "last_row_ns", "why_unknown",
)  # fmt: skip
_COLUMNS: Final = ", ".join(
    {
        "id": "session.id", "is_off": "session.is_off", "why_unknown": "coalesce(checkpoint.problem, '')"
    }.get(name, name) for name in _NAMES
)  # fmt: skip
_TALLY: Final = ("turns", "generations", "tools", "agents", "errors", "cost_usd", "cut_off", "incomplete")


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions are wanted; an empty field does not restrict."""

    project: str | None = None  # a directory, or a part of its path
    model: str | None = None
    branch: str | None = None
    since_ns: int | None = None  # with activity since then
    until_ns: int | None = None  # that began before
    has_errors: bool = False
    words: str = ""  # in the title, the project or the id
    has_agents: bool = False
    turns: Slice | None = None  # with a turn that it selects


class SessionRow(msgspec.Struct, frozen=True, kw_only=True):
    """A session in the list."""

    id: int
    session_id: str
    path: Path
    directory: str
    project: str
    branch: str
    title: str
    client: str
    first_ns: int | None
    last_ns: int
    active_ns: int
    tally: Tally
    is_off: bool
    capture: str
    last_row_ns: int  # the last time in its file, or when that was written
    why_unknown: str  # why it is not known how much was sent
    sent: dict[str, int]  # turns by the identity of the destination


def count_sessions(index: Index, wanted: Filter) -> int:
    """Return how many sessions a filter lets through."""
    where, values = _where(wanted)
    found = index.connection.execute(f"SELECT count(*) {where}", values).fetchone()
    return int(found[0])


def list_sessions(
    index: Index, wanted: Filter, *, sort: str = "-last", limit: int = -1, offset: int = 0
) -> list[SessionRow]:
    """Return a page of the sessions. Raises ConfigError for a column that cannot be sorted by."""
    column = SORTS.get(sort.removeprefix("-"))
    if column is None:
        raise ConfigError(f"cannot sort by {sort!r}", hint=f"available: {', '.join(SORTS)}")
    direction = "DESC" if sort.startswith("-") else "ASC"
    where, values = _where(wanted)
    query = f"SELECT {_COLUMNS} {where} ORDER BY {column} {direction}, session_id LIMIT ? OFFSET ?"
    rows = index.connection.execute(query, (*values, limit, offset)).fetchall()
    return [_session(row, _sent(index, row[0])) for row in rows]


def session_row(connection: Connection, path: str) -> SessionRow | None:
    """Return the session of a transcript, without what was sent of it; None if it is not there, or cannot be read."""
    row = connection.execute(f"SELECT {_COLUMNS} {_FROM} WHERE path = ? AND file.problem = ''", (path,)).fetchone()
    return _session(row, {}) if row is not None else None


def _where(wanted: Filter) -> tuple[str, list[object]]:
    conditions, values = ["file.problem = ''"], list[object]()
    if wanted.project is not None:
        condition, more = _of_project(wanted.project)
        conditions.append(condition)
        values += more
    if wanted.model is not None:
        conditions.append(
            "EXISTS (SELECT 1 FROM turn JOIN response ON response.turn = turn.id "
            "WHERE turn.session = session.id AND model = ?)"
        )
        values.append(wanted.model)
    for condition, value in (
        ("branch = ?", wanted.branch), ("last_ns >= ?", wanted.since_ns), ("first_ns < ?", wanted.until_ns)
    ):  # fmt: skip
        if value is not None:
            conditions.append(condition)
            values.append(value)
    if wanted.has_errors:
        conditions.append("errors > 0")
    if wanted.has_agents:
        conditions.append("agents > 0")
    if wanted.words:
        conditions.append("instr(lower(title || ' ' || project || ' ' || session_id), ?)")
        values.append(wanted.words.lower())
    if wanted.turns is not None:
        condition, more = sessions_with(wanted.turns)
        conditions.append(condition)
        values += more
    return f"{_FROM} WHERE {' AND '.join(conditions)}", values


def _of_project(project: str) -> tuple[str, list[object]]:
    """Return the condition that a session belongs to a project, given as a directory or as part of its path."""
    directory = path_named(project)
    if directory.is_dir():
        path = as_text(str(directory.resolve()))
        below = path.rstrip(os.sep) + os.sep
        return "(cwd = ? OR substr(cwd, 1, ?) = ?)", [path, len(below), below]
    part = project.rstrip("/\\").lower()  # shell completion adds a slash to directories
    return "(instr(lower(cwd), ?) OR instr(lower(directory), ?))", [part, part]


def _sent(index: Index, session: int) -> dict[str, int]:
    """Return how many turns of a session each destination has, or has left out: those up to its last one."""
    rows: Sequence[tuple[str, int]] = index.connection.execute(
        "SELECT destination, (SELECT count(*) FROM turn WHERE turn.session = sent.session AND NOT is_later "
        "AND number <= last_turn) FROM sent WHERE session = ?", (session,)
    ).fetchall()  # fmt: skip
    return dict(rows)


def _session(row: Sequence[object], sent: dict[str, int]) -> SessionRow:
    named: dict[str, Any] = dict(zip(_NAMES, row, strict=True))
    used: dict[str, Any] = {name: named.pop(name) for name in USAGE}
    tally = Tally(
        **{name: named.pop(name) for name in _TALLY},
        usage=Usage(**used, is_incomplete=bool(row[_NAMES.index("incomplete")])),
        unpriced=frozenset(filter(None, str(named.pop("unpriced")).split(", "))),
    )  # fmt: skip
    named["path"] = Path(str(named["path"]))
    named["is_off"] = bool(named["is_off"])
    return SessionRow(**named, tally=tally, sent=sent)
