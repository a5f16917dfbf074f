"""Transcripts as they would be had everything happened some hours earlier: text → text."""

from __future__ import annotations

import re
from datetime import datetime, timedelta

HOURS = 2  # more than what seals a turn whose tool never came back
STAMP = re.compile(r'"timestamp":"([^"]+)"')


def moved_back(transcript: str) -> str:
    """Move every time in a transcript."""
    return STAMP.sub(_moved, transcript)


def _moved(stamp: re.Match[str]) -> str:
    moment = datetime.fromisoformat(stamp.group(1)) - timedelta(hours=HOURS)
    return f'"timestamp":"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03}Z"'
