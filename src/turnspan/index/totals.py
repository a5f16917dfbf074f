"""Totals of sessions that have not changed since they were read for the index, which is taken as it is.

`retention` and `status` ask for them before they read a session: it can be long. They are what a destination does not
have if it has nothing of the session, which `unsent` decides. Nothing is brought up to date or written for that. There
are none, and the session is read, if

- one of its files, or another one that decided which of its turns are copies, has changed;
- a turn of it names another session: whether that one was sent before decides if the turn is a copy;
- the name of a working directory has a secret, without which it is stored: it may be switched off.
"""

from __future__ import annotations

import sqlite3
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery.unsent import is_all_unsent
from turnspan.errors import TurnspanError
from turnspan.index.changes import find_changes
from turnspan.index.disk import as_text
from turnspan.index.listing import session_row
from turnspan.index.places import decode_neighbours
from turnspan.index.store import stored_as_it_is

if TYPE_CHECKING:
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.tally import Tally

_MASKED: Final = "[redacted:"
_DAMAGE: Final = (sqlite3.Error, msgspec.MsgspecError, UnicodeDecodeError, TypeError)


class SessionTotals(msgspec.Struct, frozen=True):
    """All of a session, as if it had ended and nothing of it had been sent."""

    tally: Tally
    has_spans: bool
    cwds: tuple[str, ...]  # its working directories
    cwd: str  # the first one
    last_ns: int  # the latest time in its rows and of its files


class KnownTotals:
    """Totals by session. The index is opened when the first are asked for; `close` closes it."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._connection: sqlite3.Connection | None = None

    def if_unsent(self, session: SessionFile, target: Target, now_ns: int) -> SessionTotals | None:
        """Return the totals of a session if a destination has nothing of it; None: it has to be read.

        Raises StateError if the checkpoint cannot be read.
        """
        found = self._of(session)
        is_unsent = found is not None and is_all_unsent(session, target, found.cwds, found.last_ns, now_ns)
        return found if is_unsent else None

    def _of(self, session: SessionFile) -> SessionTotals | None:
        path = as_text(str(session.path))
        if path not in self._unchanged or self._connection is None:
            return None
        try:
            return _totals(self._connection, path, session.session_id)
        except _DAMAGE:  # the next command that brings the index up to date says so
            return None

    def close(self) -> None:
        """Close the index."""
        if self._connection is not None:
            self._connection.close()

    @cached_property
    def _unchanged(self) -> frozenset[str]:
        """The transcripts that are in the index as they are now."""
        self._connection = stored_as_it_is(self._config, self._config.destinations[0])
        if self._connection is None:
            return frozenset()
        try:
            changed = {as_text(change.transcript.path) for change in find_changes(self._connection, self._config).read}
            return frozenset(path for (path,) in self._connection.execute("SELECT path FROM session")) - changed
        except (TurnspanError, *_DAMAGE):
            return frozenset()


def _totals(connection: sqlite3.Connection, path: str, session_id: str) -> SessionTotals | None:
    execute = connection.execute
    row = session_row(connection, path)
    if row is None or row.session_id != session_id:
        return None
    written_ns, neighbours = execute("SELECT modified_ns, neighbours FROM file WHERE session = ?", (row.id,)).fetchone()
    cwds = tuple(cwd for (cwd,) in execute("SELECT cwd FROM policy WHERE session = ?", (row.id,)))
    cwd = _first_cwd(connection, row.id, cwds)
    if decode_neighbours(neighbours).is_everywhere or any(_MASKED in each for each in cwds) or cwd is None:
        return None
    (agents_ns,) = execute("SELECT max(modified_ns) FROM agent_file WHERE session = ?", (row.id,)).fetchone()
    has_spans = execute("SELECT 1 FROM turn WHERE session = ? LIMIT 1", (row.id,)).fetchone() is not None
    last_ns = max(row.last_ns, row.last_row_ns, written_ns, agents_ns or 0)
    return SessionTotals(row.tally, has_spans, cwds, cwd, last_ns)


def _first_cwd(connection: sqlite3.Connection, session: int, cwds: tuple[str, ...]) -> str | None:
    """Return the first working directory of a session; None if that is not certain, because paths are masked."""
    named = [cwd for cwd in cwds if cwd]
    if len(named) < 2:
        return named[0] if named else ""
    (first,) = connection.execute(
        "SELECT project FROM turn WHERE session = ? AND project <> '' ORDER BY position LIMIT 1", (session,)
    ).fetchone() or ("",)
    return first if first in named else None
