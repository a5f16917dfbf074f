"""Backoff: a destination that failed is not contacted before a time, by any session.

The file keeps its old name, `.hold-DESTINATION`, so that an older turnspan honours it, too.
"""

from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

from turnspan.delivery.state import state_directory
from turnspan.files import read_private, replace_private

_MAX_BYTES: Final = 64 * 1024


class Backoff(msgspec.Struct, frozen=True, kw_only=True):
    """Do not contact a destination before `until_s`."""

    until_s: float
    length_s: float = 0.0
    reason: str = ""
    answer: str = ""


def load(home: Path, identity: str) -> Backoff | None:
    """Return the backoff of a destination, also one that is over; None if its last request succeeded."""
    raw = read_private(_path(home, identity), _MAX_BYTES)
    try:
        return msgspec.json.decode(raw, type=Backoff) if raw is not None else None
    except (ValueError, RecursionError):
        return None


def save(home: Path, identity: str, backoff: Backoff) -> None:
    """Stop contacting a destination for a while."""
    state_directory(home)
    replace_private(_path(home, identity), msgspec.json.encode(backoff))


def clear(home: Path, identity: str) -> None:
    """Contact a destination again: it has accepted something, or the user asked for it."""
    with suppress(OSError):
        _path(home, identity).unlink(missing_ok=True)


@lru_cache(maxsize=64)  # a backfill asks for it with every piece
def _path(home: Path, identity: str) -> Path:
    name = "".join(char if char.isascii() and (char.isalnum() or char in "_-") else "_" for char in identity)
    return home / "state" / f".hold-{name}"
