"""Identities derived from the transcript: the same turn has the same ids live, retried, recovered and backfilled.

Never from a turn number, a file name, a line number or the clock. `VERSION` is part of every id: it changes only when
the same transcript must give other traces than before.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import sha256
from typing import Final

VERSION: Final = b"turnspan-1"
_ZEROS: Final = bytes(8)


@lru_cache(maxsize=16)  # the next turn links to it
def trace_id(session_id: str, key: str) -> bytes:
    """16 bytes for the turn that a prompt started; `key` is the prompt's original uuid."""
    return _digest(_counted(VERSION) + _counted(session_id.encode("utf-8", "replace")), key)[:16]


def span_id(trace: bytes, kind: str, key: str) -> bytes:
    """8 bytes for one span of a trace; `key` is its message id, tool use id, agent id or line uuid."""
    return _digest(_counted(trace) + _counted_kind(kind), key)[:8]


@lru_cache(maxsize=8)
def _counted_kind(kind: str) -> bytes:
    return _counted(kind.encode())


class SpanIds:
    """The ids of the spans of one trace, each given once."""

    def __init__(self, trace: bytes) -> None:
        self._trace = _counted(trace)
        self._before: dict[str, bytes] = {}  # what is hashed before the key, by kind
        self._given: set[bytes] = set()

    def next(self, kind: str, key: str) -> bytes:
        """Return the id of a span; if a damaged file contains a key twice in one trace, the second gets another id."""
        before = self._before.get(kind)
        if before is None:
            before = self._before[kind] = self._trace + _counted_kind(kind)
        found, number = _digest(before, key)[:8], 1
        while found in self._given:
            number += 1
            found = _digest(before, f"{key}~{number}")[:8]
        self._given.add(found)
        return found


def _counted(part: bytes) -> bytes:
    """A part preceded by its length, so that no two lists of parts give the same bytes."""
    return len(part).to_bytes(4, "big") + part


def _digest(before: bytes, key: str) -> bytes:
    """The digest of counted parts and a key, which is counted here."""
    raw = key.encode("utf-8", "replace")
    digest: bytes = sha256(before + len(raw).to_bytes(4, "big") + raw).digest()
    return b"\x01" + digest[1:] if digest.startswith(_ZEROS) else digest  # OpenTelemetry forbids an id of zeros
