"""Moves the times in a transcript back by some hours."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

HOURS = 2  # longer than the wait for a missing tool result, after which a turn is sealed
STAMP = re.compile(r'"timestamp":"([^"]+)"')


def moved_back(transcript: str) -> str:
    """Return a transcript with every timestamp moved back."""
    return STAMP.sub(_moved, transcript)


def _moved(stamp: re.Match[str]) -> str:
    moment = datetime.fromisoformat(stamp.group(1)) - timedelta(hours=HOURS)
    return f'"timestamp":"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"'
