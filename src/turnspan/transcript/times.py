"""Parses the time formats of all clients, as nanoseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST_TIME: Final = 64  # characters


def parse_time(stamp: str | float | None) -> int | None:
    """Return the nanoseconds of ISO 8601 text, or of seconds or milliseconds since 1970. A naive time is UTC."""
    if isinstance(stamp, str):
        return _parse_iso(stamp) if len(stamp) <= _LONGEST_TIME else None
    if isinstance(stamp, (int, float)) and 0 < stamp < 1e15:
        ns = round(stamp * 1000 if stamp > 1e11 else stamp * 1_000_000) * 1000
        return ns if 0 < ns < 2**63 else None
    return None


def _parse_iso(stamp: str) -> int | None:
    try:
        moment = datetime.fromisoformat(stamp)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        ns = (moment - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError):
        return None
    return ns if 0 < ns < 2**63 else None
