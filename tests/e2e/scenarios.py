"""All stories, by name."""

from __future__ import annotations

from . import stories_printed, stories_printed_tasks, stories_typed, stories_typed_dialogs
from .story import SCENARIOS, Scenario

__all__ = [
    "SCENARIOS",
    "Scenario",
    "stories_printed",
    "stories_printed_tasks",
    "stories_typed",
    "stories_typed_dialogs",
]
