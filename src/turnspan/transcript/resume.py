"""What one reading of a transcript leaves behind for the next: places, identities and digests, never content.

The state of a session is made of this, and an event that finds nothing new loads no more of the transcript's side.
"""

from functools import lru_cache
from hashlib import blake2b
from typing import Final

import msgspec

from turnspan import lazy

Words = tuple[int, int]  # the place (offset, length) of a line that holds words

_ID: Final = lazy.pattern(r"[A-Za-z0-9_.:/-]{1,128}")


class TurnRef(msgspec.Struct, frozen=True, array_like=True):
    """A turn by its identity."""

    session_id: str
    key: str
    number: int
    parts: int


class Carry(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the past leaves behind for the next reading. Small, and without content: texts are kept as places."""

    turns: int = 0
    recent: tuple[TurnRef, ...] = ()
    owners: tuple[tuple[str, int], ...] = ()  # the last rows, by uuid, and the number of their turn
    responses: tuple[str, ...] = ()  # the last message ids
    calls: tuple[str, ...] = ()  # the last calls
    pending: tuple[tuple[str, int], ...] = ()  # calls that left without a result, and the number of their turn
    is_answered: bool = False
    words: tuple[str, ...] = ()  # digests of the last turn's last words
    high_water_ns: int = 0
    input_ns: int | None = None  # what made the client ask, where no answer has come: one that comes late starts there
    context: dict[str, Words] = {}  # kind → the line that says it
    queued: tuple[Words, ...] = ()  # typed and not yet taken
    taken: tuple[Words, ...] = ()  # taken from the queue, and no line has repeated them yet


def words_digest(text: str) -> str:
    """A digest of words: an event can wait for them without anybody keeping them."""
    return blake2b(" ".join(text.split()).encode("utf-8", "replace"), digest_size=12).hexdigest()


def known_as(given: str | None) -> str | None:
    """An id as it is, if it looks like one; else a digest: what we remember between two events is never content."""
    if given is None or (len(given) == 36 and given[8] == "-" and given[13] == "-" and given.isascii()):
        return given
    return _plain_id(given)


@lru_cache(maxsize=64)  # the lines of a response repeat it
def _plain_id(given: str) -> str:
    return given if _ID.fullmatch(given) else "id:" + words_digest(given)
