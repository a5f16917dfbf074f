"""How far a session has been read, and what is exported: what a reading starts from and returns.

`Progress` is stored between events: places and identities, never content. Its field names are those of the state files.
"""

from typing import TYPE_CHECKING

import msgspec

from turnspan.transcript.carry import Carry

if TYPE_CHECKING:
    from turnspan.trace.model import Trace


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far one file has been read, and what to remember there.

    For an agent that was read to its end only the place is stored: if it continues, the beginning is read again.
    """

    line: int = 0
    offset: int = 0
    fingerprint: str = ""
    carry: Carry = Carry()


class Launched(msgspec.Struct, frozen=True, array_like=True):
    """A call that launched an agent, or sent it on: the parent of its spans."""

    trace_id: str
    span_id: str
    name: str
    type: str = ""
    is_background: bool = False
    since_ns: int = 0  # when it was called


class Progress(msgspec.Struct, frozen=True):
    """How far a session has been read: its own file and its agents'."""

    main: Position = Position()
    is_own: bool = False  # it has a turn of its own session: nothing of that session after it is copied
    agents: dict[str, Position] = {}
    launched: dict[str, tuple[Launched, ...]] = {}
    left_out: tuple[int, ...] = ()  # numbers of the last copied turns: their further parts are skipped as well


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What is not exported as the transcript has it, by reason. The names are those of the log and of `--json`."""

    copied: int = 0  # turns that are exported from another session
    repeated: int = 0  # turns that are in the file twice
    warmups: int = 0  # subagents that the client started by itself, to warm up (2.0.x)
    off: int = 0  # traces that are switched off; 1 if the session is
    refused: int = 0  # spans that the destination refused for good
    cut: int = 0  # spans that were truncated to fit the size limit
    masked: dict[str, int] = {}  # how often each rule masked something

    def __add__(self, other: "Counts") -> "Counts":
        """Return the sum."""
        masked = {rule: self.masked.get(rule, 0) + other.masked.get(rule, 0) for rule in self.masked | other.masked}
        return Counts(
            copied=self.copied + other.copied,
            repeated=self.repeated + other.repeated,
            warmups=self.warmups + other.warmups,
            off=self.off + other.off,
            refused=self.refused + other.refused,
            cut=self.cut + other.cut,
            masked=masked,
        )


class Piece(msgspec.Struct, frozen=True):
    """Traces that are sent together, and the progress to commit when they are acknowledged."""

    traces: "list[Trace]"
    progress: Progress
    turns: int = 0
    counts: Counts = Counts()
