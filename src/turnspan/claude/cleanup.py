"""After how many days Claude Code deletes a transcript.

It deletes one that was not written to for `cleanupPeriodDays` (30 by default), when it starts. It merges the settings
of the directory it starts in and applies them to every project (anthropics/claude-code#90148): the shortest period of
any project holds for all transcripts.
"""

from __future__ import annotations

from pathlib import Path  # noqa: TC003 - msgspec reads the annotation
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.claude.hooks import managed_settings
from turnspan.claude.settings_reader import read_settings

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

DEFAULT_DAYS: Final = 30


class Period(msgspec.Struct, frozen=True):
    """The cleanup period, and the file that sets it."""

    days: int
    source: Path | None = None  # None: the default


def shortest_period(claude_home: Path, projects: Iterable[Path], managed: Sequence[Path] | None = None) -> Period:
    """The period that holds: an organisation's policy, or else the shortest of the user's and all projects'."""
    for path in reversed(managed_settings() if managed is None else managed):
        if (policy := _period_in(path)) is not None:
            return policy
    shortest = _period_in(claude_home / "settings.json") or Period(DEFAULT_DAYS)
    for project in projects:
        own = _period_in(project / ".claude" / "settings.local.json") or _period_in(
            project / ".claude" / "settings.json"
        )
        if own is not None and own.days < shortest.days:
            shortest = own
    return shortest


def _period_in(path: Path) -> Period | None:
    days = read_settings(path).values.get("cleanupPeriodDays")
    return Period(days, path) if isinstance(days, int) and not isinstance(days, bool) and days >= 0 else None
