"""What a story is, and what stories share.

Rules:

- A story drives the client and waits for what the API, the hooks or the screen show. It never sleeps and it judges
  nothing: `judge.py` compares afterwards.
- `SCENARIOS` maps a name to its story and to the first client version that can play it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .client import version_tuple

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stage import Stage

IDLE_MINUTES = 11  # a little more than what seals a turn that nobody ended


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story and who can play it."""

    name: str
    play: Callable[[Stage], None]
    since: str = "1.0.128"
    weight: int = 1  # long stories begin first

    def fits(self, version: str) -> bool:
        """Say whether a client version can play it."""
        return version_tuple(version) >= version_tuple(self.since)


SCENARIOS: dict[str, Scenario] = {}


def scenario(since: str = "1.0.128", weight: int = 1) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Register a story under its function's name."""

    def register(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        SCENARIOS[play.__name__] = Scenario(play.__name__, play, since, weight)
        return play

    return register


def later(stage: Stage) -> None:
    """Let the idle time pass that ends a turn nobody ended: every transcript gets older."""
    stage.wait_for_quiet()
    moment = time.time() - IDLE_MINUTES * 60
    for path in stage.home.transcripts.rglob("*.jsonl"):
        os.utime(path, (moment, moment))


def wait_for_words(stage: Stage) -> None:
    """Wait until a held stream has shown something to the client."""
    stage.api.wait_for(lambda e: e["event"] == "holding", "the stream", 20)
