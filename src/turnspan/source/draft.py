"""A piece in the making: its traces, how far everything has been read with it, and what stays open behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.source.decode import position_behind
from turnspan.source.progress import Launched, Piece, Position, Progress

if TYPE_CHECKING:
    from turnspan.trace.model import Trace
    from turnspan.transcript.resume import Carry
    from turnspan.transcript.sealing import Sealed


class Draft(msgspec.Struct):
    """What one walk over a session has found, and how far the pieces went that have left already."""

    main: Position
    is_own: bool
    agents: dict[str, Position]
    launched: dict[str, tuple[Launched, ...]]
    left_out: tuple[int, ...]
    last: Sealed | None = None  # of the session's own file
    is_changed: bool = False  # something was read that is worth a commit
    is_half: bool = False  # a turn or an agent is being added: what there is of it must not leave
    traces: list[Trace] = []
    spans: int = 0
    turns: int = 0
    copied: int = 0
    has_unsealed: bool = False  # of the whole walk: a turn or an agent has not come to its end
    is_answer_missing: bool = False  # the client says that something has ended, and the file does not show it yet
    open_ns: int | None = None  # when the turn began that must not leave yet
    warmups: int = 0

    @property
    def carry(self) -> Carry:
        """What is remembered behind the last turn that was sealed."""
        return self.last.carry if self.last is not None else self.main.carry

    def add(self, trace: Trace) -> None:
        """One more trace."""
        self.traces.append(trace)
        self.spans += len(trace.spans)

    def piece(self, descriptor: int) -> Piece:
        """What was drafted, to leave; the next piece begins where it ends."""
        if self.last is not None:
            self.main = position_behind(descriptor, self.last)
        progress = Progress(self.main, self.is_own, self.agents, self.launched, self.left_out)
        left = Piece(self.traces, progress, self.turns, self.copied)
        self.agents, self.launched = dict(self.agents), dict(self.launched)
        self.last, self.is_changed = None, False
        self.traces, self.spans, self.turns, self.copied = [], 0, 0, 0
        return left


def begun(progress: Progress) -> Draft:
    """A draft that goes on from what has left."""
    return Draft(progress.main, progress.is_own, dict(progress.agents), dict(progress.launched), progress.left_out)
