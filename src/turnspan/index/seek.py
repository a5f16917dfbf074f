"""Where a turn is read again: the places in a transcript from which only a few spans are read to reach it.

An `Outline` has these places for all settled turns of a session, from an index that is taken as it is: it may lack the
last turns. It is not used if the transcript is not a continuation of the one that was read, or if other content is
allowed now. A reader checks the id of every trace that it finds at a place.
"""

from __future__ import annotations

import sqlite3
from itertools import takewhile
from typing import TYPE_CHECKING, Annotated

import msgspec

from turnspan.index.changes import checkpoint_of, narrowing_digest, restriction_of
from turnspan.index.disk import as_text
from turnspan.index.places import decode, merged, with_late
from turnspan.index.write import progress_of_piece
from turnspan.source.progress import Progress
from turnspan.source.scan import stamp_of

if TYPE_CHECKING:
    from pathlib import Path
    from sqlite3 import Connection

    from turnspan.index.store import Index
    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile


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


# ---- all turns of a session


class SettledTurn(msgspec.Struct, frozen=True, array_like=True):
    """A turn, or a later part of one, that no later row can change."""

    trace_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9a-f]{32}\Z")]
    name: str
    prompt: str
    start_ns: int
    piece: int


class Outline(msgspec.Struct, frozen=True):
    """The settled turns of a session, in their order, and where their pieces begin."""

    turns: list[SettledTurn]
    changes: list[tuple[int, Progress]]  # the number of each piece, and its progress as a difference

    def progress(self, piece: int) -> Progress:
        """Return where a piece begins."""
        progress = Progress()
        for _, change in takewhile(lambda one: one[0] <= piece, self.changes):
            progress = merged(progress, change)
        return progress


def outline_of(connection: Connection, config: Config, session: SessionFile) -> Outline | None:
    """Return the outline of a session; None if the index does not have it, or not as it is now."""
    try:
        return _outline_of(connection, config, session)
    except (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError, TypeError):  # damaged
        return None


def _outline_of(connection: Connection, config: Config, session: SessionFile) -> Outline | None:
    execute = connection.execute
    path = str(session.path)
    row = execute(
        "SELECT id, size, modified_ns, restriction, position FROM session JOIN file ON file.session = id "
        "WHERE path = ? AND session_id = ? AND problem = ''",
        (as_text(path), session.session_id),
    ).fetchone()
    if row is None:
        return None
    number, size, modified_ns, restriction, end = row
    now = stamp_of(path)
    is_same = now[0] > size or now == (size, modified_ns)
    policies = execute("SELECT cwd, narrowing FROM policy WHERE session = ?", (number,))
    is_allowed = all(narrowing_digest(config, cwd) == digest for cwd, digest in policies)
    if not is_same or not is_allowed or restriction_of(checkpoint_of(config, session.session_id)[0]) != restriction:
        return None
    turns = execute(
        "SELECT trace_id, name, prompt, start_ns, piece FROM turn "
        "WHERE session = ? AND position < ? AND piece >= 0 ORDER BY position",
        (number, end),
    )
    changes = execute("SELECT piece, progress FROM piece WHERE session = ? ORDER BY piece", (number,))
    return Outline(
        msgspec.convert(turns.fetchall(), list[SettledTurn]),
        [(number, decode(change)) for number, change in changes],
    )
