"""What one reading of a transcript remembers for the next: places, identities, digests and times, never content.

A session's state is stored in these types. An event with nothing new loads no other module of this package.
"""

from datetime import UTC, datetime
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from turnspan import lazy

Words = tuple[int, int]  # offset and length of a line
NO_WORDS: Final = (0, 0)

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_LONGEST_TIME: Final = 64  # characters
_DAYS: Final = 106_751  # always less than 2**63 ns
_parse = datetime.fromisoformat
_LONGEST_ID: Final = 128
_ID: Final = lazy.pattern(rf"[A-Za-z0-9_.:/-]{{1,{_LONGEST_ID}}}")


class TurnRef(msgspec.Struct, frozen=True, array_like=True):
    """A turn by its identity."""

    session_id: str
    key: str
    number: int
    parts: int


class Carry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the next reading must know about the turns that were sealed. Small; texts are stored as places."""

    turns: int = 0
    recent: tuple[TurnRef, ...] = ()
    owners: tuple[tuple[str, int], ...] = ()  # the last rows, by uuid, and the number of their turn
    responses: tuple[str, ...] = ()  # the last message ids
    calls: tuple[str, ...] = ()  # the last calls
    pending: tuple[tuple[str, int], ...] = ()  # calls sealed without a result, and the number of their turn
    is_answered: bool = False
    words: tuple[str, ...] = ()  # digests of the last turn's last message
    high_water_ns: int = 0
    input_ns: int | None = None  # the row that triggered the next response, if none has come yet
    context: dict[str, Words] = {}  # row type → the last line of that type
    queued: tuple[Words, ...] = ()  # typed while a turn ran, not yet taken from the queue
    taken: tuple[Words, ...] = ()  # taken from the queue, and not yet repeated by another line
    last: Words = NO_WORDS  # the last row of the turn that queued words may have joined
    agents: "dict[str, Carry]" = {}  # subagents inside the file (before 2.0.28) that may continue, by their first row
    prompts: tuple[tuple[str, str], ...] = ()  # digests of what pending calls ask such subagents to do, and the calls


def words_digest(text: str) -> str:
    """Return a digest of a text, so that an event can wait for the text without storing it."""
    return blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=12).hexdigest()


def known_as(given: str | None) -> str | None:
    """Return an id unchanged if it looks like one, else a digest of it: state never contains content."""
    if given is None:
        return None
    if given.isascii() and (
        (len(given) == 36 and given[8] == "-" and given[13] == "-")
        or (given.isidentifier() and len(given) <= _LONGEST_ID)  # `msg_…`, `toolu_…`: faster than the pattern
        or _ID.fullmatch(given)
    ):
        return given
    return "id:" + words_digest(given)


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


@lru_cache(maxsize=64)
def version_of(text: str | None) -> tuple[int, ...]:
    """Return a client version as numbers; empty if it is not a version."""
    parts = (text or "").split("-")[0].split(".")
    return tuple(int(part) for part in parts) if parts and all(part.isdecimal() for part in parts) else ()
