"""Parses the time formats of all clients, as nanoseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TIME: Final = 64  # characters


def parse_time(stamp: str | float | None) -> int | None:
    """Return the nanoseconds of ISO 8601 text, or of seconds or milliseconds since 1970. A naive time is UTC."""
    ns = 0
    if isinstance(stamp, str) and len(stamp) <= _LONGEST_TIME:
        try:
            moment = datetime.fromisoformat(stamp)
            since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
        except (ValueError, OverflowError):
            return None
        ns = (since.days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000  # `//` takes twice as long
    elif isinstance(stamp, (int, float)) and 0 < stamp < 1e15:
        ns = round(stamp * 1000 if stamp > 1e11 else stamp * 1_000_000) * 1000
    return ns if 0 < ns < 2**63 else None
