"""How far a session has been read, what is known of its end, and what leaves: the values that reading goes from and to.

They are places and identities, never content: `state` keeps a `Progress` between two events.
"""

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript.resume import Carry

if TYPE_CHECKING:
    from turnspan.trace.model import Trace

IDLE_NS: Final = 10 * 60 * 10**9
IDLE_WHILE_PENDING_NS: Final = 60 * 60 * 10**9  # a call without a result may be a long build, or a person at lunch


class Position(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far one file has been read, and what is to be remembered there.

    Of an agent that was read to its end only the place is kept: should it go on, the rest is read again.
    """

    line: int = 0
    offset: int = 0
    fingerprint: str = ""
    carry: Carry = Carry()


class Launched(msgspec.Struct, frozen=True, array_like=True):
    """A call that launched an agent, or sent it on: there its spans hang."""

    trace_id: str
    span_id: str
    name: str
    type: str = ""
    is_background: bool = False
    since_ns: int = 0  # when it was called


class Progress(msgspec.Struct, frozen=True):
    """How far a session has been read: its own file and its agents'."""

    main: Position = Position()
    is_own: bool = False  # a turn of its own was met: nothing after it is copied
    agents: dict[str, Position] = {}
    launched: dict[str, tuple[Launched, ...]] = {}
    left_out: tuple[int, ...] = ()  # the last turns that were copies: nor do their later parts belong here


class Ending(msgspec.Struct, frozen=True):
    """What is known about the end of what is open: it says when a turn may leave, never what is in it."""

    is_over: bool = False  # the session has ended: everything may leave
    is_stopped: bool = False  # the client says that the turn has ended
    last_words: str | None = None  # … with words of this digest (`words_digest`)
    stopped_ns: int | None = None  # … at this time: a turn that began later is another one
    stopped_session: str | None = None  # turns of this session have ended, whatever file they stand in
    now_ns: int | None = None  # to tell an idle session
    finished_agents: tuple[str, ...] = ()

    def is_idle(self, since_ns: int, patience_ns: int = IDLE_NS) -> bool:
        """Whether silence since then means that nobody is at work any more."""
        return self.now_ns is not None and self.now_ns - since_ns > patience_ns


class Piece(msgspec.Struct, frozen=True):
    """Traces that leave together, and the progress to commit once they are acknowledged."""

    traces: "list[Trace]"
    progress: Progress
    turns: int = 0
    copied: int = 0
