"""Asks a backend what it stores, again if there was no answer, but not forever."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

from turnspan.backends import Readable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.backends import Backend

_PAUSES_S: Final = (0.5, 1.0, 2.0)
_GIVE_UP_AFTER: Final = 3  # traces without an answer


def repeated(spans: Sequence[bytes]) -> frozenset[bytes]:
    """Return the ids that occur more than once."""
    return frozenset(span for span, times in Counter(spans).items() if times > 1)


def reader_of(backend: Backend, sleep: Callable[[float], None] = time.sleep) -> Reader | None:
    """Return a reader for a backend; None if it cannot report what it stores."""
    return Reader(backend, sleep) if isinstance(backend, Readable) else None


class Reader:
    """Retries `stored`; after several traces without an answer it stops asking."""

    def __init__(self, backend: Readable, sleep: Callable[[float], None]) -> None:
        self._backend = backend
        self._sleep = sleep
        self._unanswered = 0

    @property
    def silence(self) -> str:
        """Why there was no answer; empty if the backend does not say."""
        return str(getattr(self._backend, "silence", ""))

    @property
    def doubles(self) -> frozenset[bytes]:
        """The spans of the last trace that are stored more than once, where the backend can say it."""
        return frozenset(getattr(self._backend, "doubles", ()))

    @property
    def lag_s(self) -> float:
        """How long it may take until what was acknowledged is shown."""
        return float(getattr(self._backend, "lag_s", 0.0))

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return the ids of the stored spans of a trace; None if there was no answer."""
        for pause_s in (*_PAUSES_S, None):
            found = self._backend.stored(trace_id) if self._unanswered < _GIVE_UP_AFTER else None
            if found is not None:
                self._unanswered = 0
                return found
            if pause_s is None or self._unanswered >= _GIVE_UP_AFTER:
                break
            self._sleep(pause_s)
        self._unanswered += 1
        return None
