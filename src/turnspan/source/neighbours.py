"""Which other transcripts decide what is exported from a session: a reader that stores its result reads again then.

A turn that may have been copied (`source.forks`) is looked up in other files. What they say can change when one of them
grows, is restored or is deleted; rows that were written after the turns in question never matter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.source import forks

if TYPE_CHECKING:
    from turnspan.source.sessions import SessionFile
    from turnspan.transcript.turns import Turn


class Neighbours(msgspec.Struct, frozen=True, array_like=True):
    """The files that matter: those with rows that were written up to a time, of the project or of all projects."""

    until_ns: int = -1  # nothing was looked up
    is_everywhere: bool = False
    has_copies: bool = False  # turns were found in other files: it matters if one of them is deleted
    has_own: bool = False  # it has a turn of its own: a new file that was begun later does not matter

    def and_turn(self, turn: Turn, session: SessionFile, *, is_copied: bool) -> Neighbours:
        """Return them after a turn that may have been copied."""
        is_foreign = forks.is_foreign(turn, session)
        has_own = self.has_own or not (is_copied or is_foreign)
        if self.until_ns < 0 and not forks.is_looked_up(turn, session):
            return Neighbours(has_own=has_own)
        return Neighbours(
            max([self.until_ns, *turn.times]), self.is_everywhere or is_foreign, self.has_copies or is_copied, has_own
        )

    def and_later(self, later: Neighbours) -> Neighbours:
        """Return them after another part of the session was read."""
        return Neighbours(
            max(self.until_ns, later.until_ns),
            self.is_everywhere or later.is_everywhere,
            self.has_copies or later.has_copies,
            self.has_own or later.has_own,
        )
