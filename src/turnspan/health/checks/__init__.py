"""What a support engineer would look at, one module for each place to look.

A check is a sentence with a mark, and what to do about it. Checks only look; the one that sends something is asked for
by name. Each module gives its checks one by one, so that a person sees the first while the last is still under way.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec


class Mark(StrEnum):
    """How a check turned out."""

    GOOD = "good"
    DOUBT = "doubt"  # it works, but should be looked at
    BAD = "bad"  # something does not work until somebody acts


class Check(msgspec.Struct, frozen=True):
    """One fact, and what to do about it."""

    group: str
    mark: Mark
    says: str
    todo: str = ""


class Group(msgspec.Struct, frozen=True):
    """Checks that stand together under one heading."""

    name: str

    def good(self, says: str) -> Check:
        """It is as it should be."""
        return Check(self.name, Mark.GOOD, says)

    def doubt(self, says: str, todo: str) -> Check:
        """It works, but should be looked at."""
        return Check(self.name, Mark.DOUBT, says, todo)

    def bad(self, says: str, todo: str) -> Check:
        """It does not work until somebody acts."""
        return Check(self.name, Mark.BAD, says, todo)
