"""What to do with a destination that answers "later": wait for it a little, then back off.

`Patience` waits, for one session or for a run. After that, the destination is not contacted before a time, by any
session: `Backoff`. Its file keeps its old name, `.hold-DESTINATION`, so that an older turnspan honours it, too.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery.state import state_directory
from turnspan.files import read_private, replace_private

if TYPE_CHECKING:
    from turnspan.backends import Verdict

_MAX_BYTES: Final = 64 * 1024


class Patience:
    """Waits for a destination that answers "later": as long as it asks, or with growing pauses, up to a limit in all.

    `pause` waits and returns False if it was interrupted. The last of `pauses_s` is repeated. `report` gets the reason
    and the length of each pause.
    """

    def __init__(
        self,
        pause: Callable[[float], bool],
        pauses_s: Sequence[float],
        limit_s: float,
        report: Callable[[str, float], None] = lambda _reason, _seconds: None,
    ) -> None:
        self._pause = pause
        self._pauses_s = pauses_s
        self._limit_s = limit_s
        self._report = report
        self.is_cut_short = False  # a pause was interrupted
        self.renew()

    def renew(self) -> None:
        """Start over: something was acknowledged."""
        self._waited_s, self._times = 0.0, 0

    def __call__(self, verdict: "Verdict") -> bool:
        """Wait; return whether to retry."""
        pause_s = max(self._pauses_s[min(self._times, len(self._pauses_s) - 1)], verdict.retry_after_s or 0.0)
        if self._waited_s + pause_s > self._limit_s:
            return False
        self._report(verdict.reason, pause_s)
        self._waited_s += pause_s
        self._times += 1
        self.is_cut_short = not self._pause(pause_s)
        return not self.is_cut_short


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
