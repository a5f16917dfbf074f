"""How far a session has been read, whether it has ended, and what is exported: what a reading starts from and returns.

`Progress` is stored between events: places and identities, never content. Its field names are those of the state files.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript.carry import Carry

if TYPE_CHECKING:
    from turnspan.trace.model import Trace

IDLE_NS: Final = 10 * 60 * 10**9
IDLE_WHILE_PENDING_NS: Final = (
    60 * 60 * 10**9
)  # a call without a result may be a long build, or a question to a user who is away


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


class Ending(msgspec.Struct, frozen=True):
    """What is known about the end of the session: it decides when a turn is exported, never what is in it."""

    is_over: bool = False  # the session has ended: everything is exported
    is_stopped: bool = False  # the client says that the turn has ended
    last_words: str | None = None  # … with a last message of this digest (`words_digest`)
    stopped_ns: int | None = None  # … at this time: a turn that began later is another one
    stopped_bytes: int | None = None  # … when the file had this size, if an earlier event said so
    stopped_session: str | None = None  # turns of this session have ended, whatever file they are in
    now_ns: int | None = None  # set if idle sessions are to be exported
    finished_agents: tuple[str, ...] = ()
    is_asked: bool = False  # the user asked for an export: a turn followed by its closing rows has ended
    acknowledged: int = 0  # turns that end before this offset were exported, so they have ended
    late_since_ns: int | None = None  # half a line in a file that was written to since then will be completed

    @classmethod
    def asked(cls, now_ns: int) -> "Ending":
        """Return what is known when a user asks for an export."""
        return cls(now_ns=now_ns, is_asked=True)

    def is_idle(self, since_ns: int, patience_ns: int = IDLE_NS) -> bool:
        """Whether nothing was written for so long that the client must have ended."""
        return self.now_ns is not None and self.now_ns - since_ns > patience_ns


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
