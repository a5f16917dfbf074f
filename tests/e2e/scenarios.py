"""All stories, by name."""

from __future__ import annotations

from . import stories_printed, stories_typed
from .story import SCENARIOS, Scenario

__all__ = ["SCENARIOS", "Scenario", "stories_printed", "stories_typed"]
