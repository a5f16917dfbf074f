"""Where a turn is read again: the places in a transcript from which only a few spans are read to reach it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.index.disk import as_text
from turnspan.index.places import decode, with_late
from turnspan.index.write import progress_of_piece
from turnspan.source.progress import Progress

if TYPE_CHECKING:
    from pathlib import Path
    from sqlite3 import Connection

    from turnspan.index.store import Index


class Spot(msgspec.Struct, frozen=True):
    """A place to read from, and how many traces with spans to read there."""

    progress: Progress
    traces: int


def spots_of(index: Index, path: Path, number: int) -> list[Spot] | None:
    """Return where the traces of a turn are read again, in their order; None if the index does not have the session."""
    execute = index.connection.execute
    row = execute(
        "SELECT id FROM session JOIN file ON file.session = id WHERE path = ? AND problem = ''", (as_text(str(path)),)
    ).fetchone()
    if row is None:
        return None
    pieces = execute(
        "SELECT piece, max(in_piece) FROM turn WHERE session = ? AND number = ? GROUP BY piece ORDER BY min(position)",
        (row[0], number),
    ).fetchall()
    return [Spot(progress_at(index.connection, row[0], piece), last + 1) for piece, last in pieces]


def progress_at(connection: Connection, session: int, piece: int) -> Progress:
    """Return where the piece of a turn begins (`turn.piece`): its `in_piece` counts the traces from there."""
    if piece >= 0:
        return progress_of_piece(connection, session, piece)
    # A late group: as if all of the session had been read except the subagents of this group.
    settled = decode(connection.execute("SELECT progress FROM file WHERE session = ?", (session,)).fetchone()[0])
    rows = connection.execute("SELECT piece, progress FROM late WHERE session = ?", (session,)).fetchall()
    late = {number: decode(progress) for number, progress in rows}
    others = [progress for number, progress in late.items() if number != piece]
    end = late.get(0, settled)
    read = with_late(settled, others)
    return Progress(end.main, end.is_own, read.agents, read.launched, end.left_out)
