"""The checks of `turnspan doctor`, one module per area.

A check is a sentence with a mark, and what to do about it. Checks only read; the test trace is sent only on request.
Each module yields its checks one by one, so the first is shown while the last is still running.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Mark(StrEnum):
    """The result of a check."""

    GOOD = "good"
    DOUBT = "doubt"  # a warning: it works
    BAD = "bad"  # an error: it does not work until it is fixed


class Check(msgspec.Struct, frozen=True):
    """One finding, and what to do about it."""

    group: str
    mark: Mark
    says: str
    todo: str = ""


class CheckGroup(msgspec.Struct, frozen=True):
    """Checks under one heading."""

    name: str

    def good(self, says: str) -> Check:
        """A check that passed."""
        return Check(self.name, Mark.GOOD, says)

    def doubt(self, says: str, todo: str) -> Check:
        """A warning."""
        return Check(self.name, Mark.DOUBT, says, todo)

    def bad(self, says: str, todo: str) -> Check:
        """An error."""
        return Check(self.name, Mark.BAD, says, todo)
