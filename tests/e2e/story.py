"""Defines stories, and what they share.

Rules:

- A story drives the client and waits for the API, for hooks or for the screen. It never sleeps and makes no assertions:
  `judge.py` compares afterwards.
- `SCENARIOS` maps a name to its story and to the client versions that support it.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .client import version_tuple
from .time_shift import HOURS, moved_back

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stage import Stage


PRINTED = "1.0.84"  # the oldest client for stories with `-p`
TYPED = "1.0.128"  # the oldest client for stories in a terminal: earlier ones have other first-run screens
OWN_ANSWER_UNTIL = (2, 1, 12)  # up to this client, a queued prompt gets a response of its own


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story and the client versions that support it."""

    name: str
    play: Callable[[Stage], None]
    since: str = PRINTED
    weight: int = 1  # long stories start first
    until: str = ""  # the last client that supports it

    def fits(self, version: str) -> bool:
        """Whether a client version supports it."""
        is_before_end = not self.until or version_tuple(version) <= version_tuple(self.until)
        return is_before_end and version_tuple(version) >= version_tuple(self.since)


SCENARIOS: dict[str, Scenario] = {}


def scenario(
    since: str = PRINTED, weight: int = 1, until: str = ""
) -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Register a story under its function's name."""

    def register(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        SCENARIOS[play.__name__] = Scenario(play.__name__, play, since, weight, until)
        return play

    return register


def hours_later(stage: Stage, session_id: str) -> None:
    """Pretend that hours have passed, so that an unfinished turn is sealed: move the session's and turnspan's times back.

    The transcripts keep their modification times: turnspan ignores files older than its installation.
    """
    stage.wait_for_quiet()
    for path in stage.home.transcripts.rglob("*.jsonl"):
        if session_id in str(path):
            written = path.stat()
            path.write_text(moved_back(path.read_text()))
            os.utime(path, ns=(written.st_atime_ns, written.st_mtime_ns))
    for path in (stage.home.config / "turnspan").rglob("*"):
        os.utime(path, (time.time() - HOURS * 3600,) * 2)


def wait_for_words(stage: Stage) -> None:
    """Wait until a held stream has sent its first text."""
    stage.api.wait_for(lambda e: e["event"] == "holding", "the stream", 20)


def notified(stage: Stage, count: int) -> None:
    """Wait until the model has responded to this many task notifications."""
    answered = []

    def look(seen: dict[str, Any]) -> bool:
        if seen["event"] == "response" and seen["script"] == "notified" and seen["n"] not in answered:
            answered.append(seen["n"])
        return len(answered) >= count

    stage.wait_hook("Stop", after=stage.api.wait_for(look, f"{count} notifications")["t_end"] - 0.05)
