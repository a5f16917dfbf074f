"""Parses the time formats of all clients, as nanoseconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TIME: Final = 64  # characters
_DAYS: Final = 106_751  # always less than 2**63 ns
_parse = datetime.fromisoformat


def parse_time(stamp: str | float | None) -> int | None:
    """Return the nanoseconds of ISO 8601 text, or of seconds or milliseconds since 1970. A naive time is UTC."""
    ns = 0
    if isinstance(stamp, str) and len(stamp) <= _LONGEST_TIME:
        try:
            since = _parse(stamp) - _EPOCH
        except TypeError:  # a naive time
            since = _parse(stamp).replace(tzinfo=UTC) - _EPOCH
        except (ValueError, OverflowError):
            return None
        days = since.days
        ns = (days * 86_400 + since.seconds) * 10**9 + since.microseconds * 1000  # `//` takes twice as long
        if 0 < days < _DAYS:
            return ns
    elif isinstance(stamp, (int, float)) and 0 < stamp < 1e15:
        ns = round(stamp * 1000 if stamp > 1e11 else stamp * 1_000_000) * 1000
    return ns if 0 < ns < 2**63 else None
