"""A session as it would be exported: read and masked like for sending, but nothing is sent.

Rules:

- Traces are yielded as they are read: a long session is neither waited for nor held in memory.
- Sessions and traces that are switched off are shown too, masked like all others, and marked as not exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.errors import StateError
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.source.sessions import is_safe_id
from turnspan.terminal import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace


class PreviewedTrace(msgspec.Struct, frozen=True):
    """A trace as it would be exported."""

    trace: Trace
    masked: dict[str, int]  # how often each rule masked something
    where: str = ""  # the destination and the capture mode, or why it is not exported


class Preview:
    """Reads what would be exported of a session, from a place on; `notes` then says what was skipped."""

    def __init__(
        self, session: SessionFile, config: Config, destination: Destination, place: Progress | None = None
    ) -> None:
        self.place = place or Progress()  # where the piece of the last trace begins: another preview can begin there
        target = Target(destination, config)
        self._reading = Reading(session, self.place, Ending(is_over=True), target.prices)
        self._name = destination.name
        self._policy = target.mask
        known, self._why_unknown = None, ""
        try:
            known = state.peek(config.home, session.session_id) if is_safe_id(session.session_id) else None
        except StateError as error:
            self._why_unknown = str(error)
        self._is_off = known is not None and known.is_off
        self._copied = self._repeated = self._warmups = 0

    def traces(self, turn: int | None = None) -> Iterator[PreviewedTrace]:
        """Yield the traces in the order of export; with a number only those of that turn."""
        for piece in self._reading.pieces():
            self._copied += piece.copied
            self._repeated += piece.repeated
            self._warmups += piece.warmups
            for trace in piece.traces:
                if turn is None or trace.name == f"Turn {turn}":
                    masked, counts = self._policy.masked(trace)
                    yield PreviewedTrace(masked, dict(counts), self._where(trace.cwd))
            self.place = piece.progress

    def _where(self, cwd: str) -> str:
        why_off = "this session is disabled" if self._is_off else self._policy.why_off(cwd)
        return f"nowhere: {why_off}" if why_off else f"to {self._name}, {self._policy.capture(cwd)}"

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each reason why the export is not what the transcript has."""
        if self._is_off:
            yield "this session is disabled: it is not exported"
        if self._why_unknown:
            yield f"whether this session is disabled is unknown: {self._why_unknown}"
        noticed = self._reading.anomalies
        if self._copied:
            yield f"not shown: {count(self._copied, 'turn')} copied from other sessions, where they are shown"
        if self._repeated:
            yield f"not shown: {count(self._repeated, 'turn')} repeated in the same file"
        if self._warmups:
            yield f"not shown: {count(self._warmups, 'subagent')} that the client started by itself, to warm up"
        if noticed.unreadable:
            yield f"skipped: {count(noticed.unreadable, 'unreadable line')}"
        if noticed.oversized:
            yield f"skipped: {count(noticed.oversized, 'line')} over the size limit"
        if noticed.unknown:
            yield f"skipped: entries of unknown types ({', '.join(sorted({kind for kind, _ in noticed.unknown}))})"
