"""Writes the rows of one session: adds, replaces and deletes them, and sums them up.

The caller opens and commits the transaction. It never ends within a session: after a crash, the rows of a session are
those before an update or those after it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.index.disk import as_text
from turnspan.index.places import Place, decode, decode_neighbours, encode, merged
from turnspan.index.rows import clean
from turnspan.index.schema import COUNTED, USAGE
from turnspan.source.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Sequence
    from sqlite3 import Connection

    from turnspan.index.disk import Transcript
    from turnspan.index.reading import Finish, Part
    from turnspan.index.rows import TraceRows

PIECE_SPANS: Final = 400  # `show --turn` reads at most about this many spans before the one it wants
_TOTALS: Final = ("active_ns", *COUNTED, *USAGE, "cost_usd", "cut_off", "incomplete")
_LATE_POSITION: Final = 1 << 40  # until `order`
_OF_LAST_TURN: Final = ("project", "branch", "client")
_CHILDREN: Final = ("response", "tool_call", "subagent", "event")
# Words of deleted texts stay in the full-text index until its segments are merged.
PURGE: Final = "INSERT INTO text(text) VALUES ('optimize')"
_INSERT_TEXT: Final = "INSERT INTO text(rowid, turn, span_id, kind, body) VALUES (?, ?, ?, ?, ?)"


class Writer:
    """Writes sessions through one connection."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._next_turn = self._next_text = 0

    def begin(self) -> None:
        """Find the next free ids; call this when a transaction has begun."""
        execute = self._connection.execute
        self._next_turn = execute("SELECT coalesce(max(id), 0) + 1 FROM turn").fetchone()[0]
        last = execute("SELECT rowid FROM text ORDER BY rowid DESC LIMIT 1").fetchone()  # max() would read all rows
        self._next_text = last[0] + 1 if last is not None else 1

    def start(self, transcript: Transcript) -> int:
        """Return the row of a session, a new one if there is none."""
        execute = self._connection.execute
        path = as_text(transcript.path)
        found = execute("SELECT id FROM session WHERE path = ?", (path,)).fetchone()
        if found is not None:
            execute("UPDATE session SET session_id = ? WHERE id = ?", (transcript.session_id, found[0]))
            return int(found[0])
        values = (transcript.session_id, path, as_text(transcript.directory))
        cursor = execute("INSERT INTO session(session_id, path, directory) VALUES (?, ?, ?)", values)
        session = cursor.lastrowid
        assert session is not None
        execute("INSERT INTO file(session) VALUES (?)", (session,))
        return session

    # ---- deleting

    def delete(self, session: int) -> None:
        """Delete all rows of a session."""
        self.cut(session, Place())
        execute = self._connection.execute
        found = execute("SELECT session_id, title_text FROM session JOIN file ON file.session = session.id "
                        "WHERE session.id = ?", (session,)).fetchone()  # fmt: skip
        if found is not None:
            execute("DELETE FROM checkpoint WHERE session_id = ?", found[:1])
            execute("DELETE FROM text WHERE rowid = ?", found[1:])
        for table in ("sent", "file", "agent_file", "policy", "late", "piece"):
            execute(f"DELETE FROM {table} WHERE session = ?", (session,))  # noqa: S608 - names of ours
        execute("DELETE FROM session WHERE id = ?", (session,))

    def cut(self, session: int, place: Place) -> None:
        """Delete what follows a place."""
        execute = self._connection.execute
        wanted = "FROM turn WHERE session = ? AND position >= ?"
        values = (session, place.position)
        for first, number in execute(f"SELECT first_text, texts {wanted} AND texts > 0", values).fetchall():
            execute("DELETE FROM text WHERE rowid >= ? AND rowid < ?", (first, first + number))
        for table in _CHILDREN:
            execute(f"DELETE FROM {table} WHERE turn IN (SELECT id {wanted})", values)  # noqa: S608 - names of ours
        execute(f"DELETE {wanted}", values)
        last = place.piece if place.in_piece else place.piece - 1
        execute("DELETE FROM piece WHERE session = ? AND piece > ?", (session, last))
        execute("DELETE FROM late WHERE session = ?", (session,))

    # ---- adding

    def add_settled(self, session: int, place: Place, part: Part) -> None:
        """Add settled turns, and move the place behind them."""
        if place.in_piece and place.spans >= PIECE_SPANS:
            place.piece, place.in_piece, place.spans = place.piece + 1, 0, 0
        if part.rows and not place.in_piece:
            values = (session, place.piece, encode(place.since_piece))
            self._connection.execute("INSERT OR REPLACE INTO piece VALUES (?, ?, ?)", values)
            place.since_piece = Progress()
        self._add(session, part.rows, place.position, place.piece, place.in_piece)
        place.position += len(part.rows)
        place.in_piece += len(part.rows)
        place.spans += sum(rows.spans for rows in part.rows)
        place.progress = merged(place.progress, part.change)
        place.since_piece = merged(place.since_piece, part.change)

    def add_end(self, session: int, place: Place, part: Part) -> None:
        """Add turns that only the end has sealed, behind a place that does not move."""
        found = self._connection.execute(
            "SELECT count(*) FROM turn WHERE session = ? AND position >= ? AND piece >= 0", (session, place.position)
        ).fetchone()
        in_piece = place.in_piece + found[0]
        if not place.in_piece and not found[0]:
            values = (session, place.piece, encode(place.since_piece))
            self._connection.execute("INSERT OR REPLACE INTO piece VALUES (?, ?, ?)", values)
        self._add(session, part.rows, place.position + found[0], place.piece, in_piece)
        self._add_late_progress(session, 0, part.change)

    def add_late(self, session: int, part: Part) -> None:
        """Add a late group."""
        found = self._connection.execute(
            "SELECT min(0, coalesce(min(piece), 0)) - 1 FROM late WHERE session = ?", (session,)
        ).fetchone()
        self._add(session, part.rows, _LATE_POSITION, found[0], 0)
        self._add_late_progress(session, found[0], part.change)

    def _add_late_progress(self, session: int, piece: int, change: Progress) -> None:
        execute = self._connection.execute
        known = execute("SELECT progress FROM late WHERE session = ? AND piece = ?", (session, piece)).fetchone()
        progress = merged(decode(known[0]), change) if known is not None else change
        execute("INSERT OR REPLACE INTO late VALUES (?, ?, ?)", (session, piece, encode(progress)))

    def _add(self, session: int, found: Sequence[TraceRows], position: int, piece: int, in_piece: int) -> None:
        execute, many = self._connection.execute, self._connection.executemany
        turns = []
        texts: list[tuple[object, ...]] = []
        children: dict[str, list[tuple[object, ...]]] = {table: [] for table in _CHILDREN}
        for number, rows in enumerate(found):
            turn = self._next_turn
            where = (piece, in_piece + number, self._next_text, len(rows.texts))
            turns.append((turn, session, position + number, *rows.turn, *where))
            for table, below in zip(_CHILDREN, (rows.responses, rows.tools, rows.agents, rows.events), strict=True):
                children[table] += [(None, turn, *row) for row in below]
            texts += [(self._next_text + at, turn, *row) for at, row in enumerate(rows.texts)]
            self._next_turn += 1
            self._next_text += len(rows.texts)
        if turns:
            many(f"INSERT INTO turn VALUES ({_marks(len(turns[0]))})", turns)  # noqa: S608
        for table, below in children.items():
            if below:
                many(f"INSERT INTO {table} VALUES ({_marks(len(below[0]))})", below)  # noqa: S608
        try:
            many(_INSERT_TEXT, texts)
        except UnicodeEncodeError:  # half a character; checking every text would take as long as all other checks
            execute("DELETE FROM text WHERE rowid >= ?", texts[0][:1])
            many(_INSERT_TEXT, [(*text[:-1], clean(str(text[-1]))) for text in texts])

    # ---- places

    def place(self, session: int) -> Place:
        """Return where the settled rows of a session end."""
        columns = "progress, since_piece, position, piece, in_piece, spans"
        row = self._connection.execute(f"SELECT {columns} FROM file WHERE session = ?", (session,)).fetchone()  # noqa: S608
        if row is None or row[0] is None:
            return Place()
        return Place(decode(row[0]), decode(row[1]), *row[2:])

    def place_of_piece(self, session: int, piece: int) -> Place:
        """Return where a piece begins."""
        execute = self._connection.execute
        first = execute("SELECT min(position) FROM turn WHERE session = ? AND piece = ?", (session, piece)).fetchone()
        if first[0] is None:
            return Place()
        progress = progress_of_piece(self._connection, session, piece)
        row = execute("SELECT progress FROM piece WHERE session = ? AND piece = ?", (session, piece)).fetchone()
        return Place(progress, decode(row[0]), first[0], piece)

    def late_agents(self, session: int) -> set[str]:
        """Return the subagents of a session that were not exported with a turn."""
        rows = self._connection.execute("SELECT progress FROM late WHERE session = ? AND piece < 0", (session,))
        return {name for (progress,) in rows for name in decode(progress).agents}

    def order(self, session: int) -> None:
        """Number the late rows: behind all turns, in the order in which they began."""
        execute = self._connection.execute
        if execute("SELECT 1 FROM late WHERE session = ? AND piece < 0", (session,)).fetchone() is None:
            return
        first = execute("SELECT count(*) FROM turn WHERE session = ? AND piece >= 0", (session,)).fetchone()[0]
        late = execute(
            "SELECT id, position FROM turn WHERE session = ? AND piece < 0 ORDER BY start_ns, end_ns, trace_id, id",
            (session,),
        ).fetchall()
        moved = [(first + at, turn) for at, (turn, position) in enumerate(late) if position != first + at]
        self._connection.executemany("UPDATE turn SET position = ? WHERE id = ?", moved)

    # ---- finishing

    def finish(self, session: int, place: Place, transcript: Transcript, finish: Finish, restriction: str) -> None:
        """Store what the rows depend on, and where the settled ones end: the next update begins there. Sum them up."""
        execute, many = self._connection.execute, self._connection.executemany
        neighbours = finish.neighbours
        if not finish.is_from_start:
            (stored,) = execute("SELECT neighbours FROM file WHERE session = ?", (session,)).fetchone()
            neighbours = decode_neighbours(stored).and_later(neighbours)
        execute(
            "UPDATE file SET size = ?, modified_ns = ?, agent_digest = ?, first_row_ns = ?, last_row_ns = ?, cwd = ?, "
            "restriction = ?, problem = ?, neighbours = ?, "
            "progress = ?, since_piece = ?, position = ?, piece = ?, in_piece = ?, spans = ? WHERE session = ?",
            (
                *transcript.stamp, transcript.digest, finish.first_row_ns, finish.last_row_ns, as_text(finish.cwd),
                restriction, finish.problem, encode(neighbours), encode(place.progress), encode(place.since_piece),
                place.position, place.piece, place.in_piece, place.spans, session,
            ),
        )  # fmt: skip
        execute("DELETE FROM agent_file WHERE session = ?", (session,))
        agents = [(session, as_text(name), *stamp) for name, stamp in transcript.agents.items()]
        many("INSERT INTO agent_file VALUES (?, ?, ?, ?)", agents)
        self.order(session)
        narrowings = [(session, as_text(cwd), digest) for cwd, digest in finish.narrowings.items()]
        many("INSERT OR REPLACE INTO policy VALUES (?, ?, ?)", narrowings)
        self._sum_up(session, transcript, finish)

    def _sum_up(self, session: int, transcript: Transcript, finish: Finish) -> None:
        execute = self._connection.execute
        sums = ", ".join(f"sum({name})" for name in _TOTALS)
        found = execute(
            f"SELECT min(start_ns), max(end_ns), count(*) FILTER (WHERE NOT is_later), max(unpriced), {sums} "  # noqa: S608
            "FROM turn WHERE session = ?",
            (session,),
        ).fetchone()
        models: list[str] = []
        if found[3]:
            unpriced = execute("SELECT DISTINCT unpriced FROM turn WHERE session = ? AND unpriced <> ''", (session,))
            models = sorted({model for (models,) in unpriced for model in models.split(", ")})
        values = {
            "first_ns": found[0], "last_ns": found[1] or transcript.stamp[1], "turns": found[2],
            **{name: value or 0 for name, value in zip(_TOTALS, found[4:], strict=True)},
            "unpriced": ", ".join(models),
            **self._last(session),
            "is_off": int(finish.is_off), "capture": finish.capture,
        }  # fmt: skip
        values["project"] = values["project"] or as_text(transcript.directory)
        assignments = ", ".join(f"{name} = ?" for name in values)
        execute(f"UPDATE session SET {assignments} WHERE id = ?", (*values.values(), session))  # noqa: S608

    def _last(self, session: int) -> dict[str, str]:
        """Return the last project, branch and client of a session: those of its last turn, if that has them."""
        execute = self._connection.execute
        query = "SELECT {0} FROM turn WHERE session = ? AND {1} ORDER BY position DESC LIMIT 1"
        row = execute(query.format(", ".join(_OF_LAST_TURN), 1), (session,)).fetchone()
        found = dict(zip(_OF_LAST_TURN, row or ("",) * len(_OF_LAST_TURN), strict=True))
        for name in [name for name, value in found.items() if row is not None and not value]:
            earlier = execute(query.format(name, f"{name} <> ''"), (session,)).fetchone()
            found[name] = earlier[0] if earlier is not None else ""
        return found

    def title(self, session: int, indexed: str) -> None:
        """Set the title of a session: its own, else the one in the client's index, else its first prompt."""
        execute = self._connection.execute
        own = execute(
            "SELECT title FROM turn WHERE session = ? AND title <> '' ORDER BY position DESC LIMIT 1", (session,)
        ).fetchone()
        first = execute(
            "SELECT id, prompt FROM turn WHERE session = ? AND prompt <> '' ORDER BY position LIMIT 1", (session,)
        ).fetchone()
        title = (own[0] if own is not None else "") or indexed
        execute(
            "UPDATE session SET title = ? WHERE id = ?", (title or (first[1] if first is not None else ""), session)
        )
        (text,) = execute("SELECT title_text FROM file WHERE session = ?", (session,)).fetchone()
        if text is None and not title:
            return
        if text is not None:
            execute("DELETE FROM text WHERE rowid = ?", (text,))
        text = None
        if title and first is not None:
            text = self._next_text
            self._next_text += 1
            execute(_INSERT_TEXT, (text, first[0], "", "title", title))
        execute("UPDATE file SET title_text = ? WHERE session = ?", (text, session))


def progress_of_piece(connection: Connection, session: int, piece: int) -> Progress:
    """Return the progress at which a piece of a session begins."""
    progress = Progress()
    rows = connection.execute(
        "SELECT progress FROM piece WHERE session = ? AND piece <= ? ORDER BY piece", (session, piece)
    )
    for (change,) in rows:
        progress = merged(progress, decode(change))
    return progress


def _marks(number: int) -> str:
    return ", ".join("?" * number)
