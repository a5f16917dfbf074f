"""A session as it would be exported: read and masked like for sending, but nothing is sent.

Rules:

- Traces are yielded as they are read: a long session is neither waited for nor held in memory.
- Sessions and traces that are switched off are shown too, masked like all others, and marked as not exported.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery import state
from turnspan.delivery.callers import called
from turnspan.delivery.destinations import Target
from turnspan.errors import StateError
from turnspan.index import Scope, is_stored, opened
from turnspan.index.seek import spots_of
from turnspan.page.images import images_allowed
from turnspan.source.ending import Ending
from turnspan.source.progress import Counts, Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import is_safe_id
from turnspan.text import count

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from turnspan.index.seek import Spot
    from turnspan.index.update import ShowProgress
    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace
    from turnspan.trace.redact import Redacted


_OVER: Final = Ending(is_over=True)  # everything is shown, also what has not ended


class PreviewedTrace(msgspec.Struct, frozen=True):
    """A trace as it would be exported."""

    trace: Trace
    masked: dict[str, int]  # how often each rule masked something
    where: str = ""  # the destination and the capture mode, or why it is not exported
    are_images_shown: bool = False  # on the page: the user allows it, and nothing forbids it here
    apart: Trace | None = None  # if a caller's span is its parent: the same as a trace of its own, linked to the caller

    @property
    def own(self) -> Trace:
        """The trace as people look at it: its id is that of its turn, which several turns of a caller do not share."""
        return self.apart or self.trace


class Preview:
    """Reads what would be exported of a session, from a place on; `notes` then says what was skipped."""

    def __init__(
        self,
        session: SessionFile,
        config: Config,
        destination: Destination,
        place: Progress | None = None,
        ending: Ending = _OVER,
    ) -> None:
        self.place = place or Progress()  # where the piece of the last trace begins: another preview can begin there
        self._target = target = Target(destination, config)
        self._reading = Reader.for_people(target.prices).read(session, self.place, ending)
        self._config = config
        self._destination = destination
        self._images: dict[str, bool] = {}  # by working directory
        known, self._why_unknown = None, ""
        try:
            known = state.peek(config.home, session.session_id) if is_safe_id(session.session_id) else None
        except StateError as error:
            self._why_unknown = str(error)
        self._callers = known.callers if known is not None else ()
        self._links = tuple(msgspec.structs.replace(caller, is_parent=False) for caller in self._callers)
        self._is_off = known is not None and known.is_off
        self._capture = known.capture if known is not None else ""
        self._policy = target.mask.of_session(self._capture)
        self._counts = Counts()

    @property
    def is_rewritten(self) -> bool:
        """Whether the file is not the one in which the place was found."""
        return self._reading.is_rewritten

    def traces(
        self, turn: int | None = None, ids: Collection[bytes] | None = None, *, most: int | None = None
    ) -> Iterator[PreviewedTrace]:
        """Yield the traces in the order of export; with a number only those of that turn, with ids of their own those.

        `most`: how many traces that have spans are read at most, of this turn or others.
        """
        number = 0
        for piece in self._reading.pieces():
            self._counts += piece.counts
            wanted = []
            for trace in piece.traces:
                if number == most:
                    break
                number += bool(trace.spans)
                if (ids is None or trace.trace_id in ids) and (turn is None or trace.name == f"Turn {turn}"):
                    wanted.append(trace)
            for trace, redacted in zip(wanted, self._policy.masked_all(wanted), strict=True):
                yield self._previewed(redacted, trace.cwd)
            if number == most:
                return
            self.place = piece.progress

    def _previewed(self, redacted: Redacted, cwd: str) -> PreviewedTrace:
        masked, counts = redacted
        exported = called(masked, self._callers)
        apart = called(masked, self._links) if exported.trace_id != masked.trace_id else None
        return PreviewedTrace(exported, dict(counts), self._where(cwd), self._shows_images(cwd), apart)

    def _shows_images(self, cwd: str) -> bool:
        if cwd not in self._images:
            self._images[cwd] = not self._is_off and images_allowed(self._config, self._destination, cwd)
        return self._images[cwd]

    def _where(self, cwd: str) -> str:
        why_off = "this session is disabled" if self._is_off else self._policy.why_off(cwd)
        return f"nowhere: {why_off}" if why_off else f"to {self._destination.name}, {self._policy.capture(cwd)}"

    def notes(self) -> Iterator[str]:
        """Yield a sentence for each reason why the export is not what the transcript has."""
        if self._is_off:
            yield "this session is disabled: it is not exported"
        if self._policy is not self._target.mask:
            yield f"this session is restricted to {self._capture}: TURNSPAN_CAPTURE was set in it"
        if self._why_unknown:
            yield f"whether this session is disabled is unknown: {self._why_unknown}"
        noticed, counts = self._reading.anomalies, self._counts
        if counts.copied:
            yield f"not shown: {count(counts.copied, 'turn')} copied from other sessions, where they are shown"
        if counts.repeated:
            yield f"not shown: {count(counts.repeated, 'turn')} repeated in the same file"
        if counts.warmups:
            yield f"not shown: {count(counts.warmups, 'subagent')} that the client started by itself, to warm up"
        if noticed.unreadable:
            yield f"skipped: {count(noticed.unreadable, 'unreadable line')}"
        if noticed.oversized:
            yield f"skipped: {count(noticed.oversized, 'line')} over the size limit"
        if noticed.unknown:
            yield f"skipped: entries of unknown types ({', '.join(sorted({kind for kind, _ in noticed.unknown}))})"


class TurnPreview:
    """Reads one turn of a session: from the places that the index knows, or else through all of it."""

    def __init__(self, session: SessionFile, config: Config, destination: Destination, turn: int) -> None:
        self._session = session
        self._config = config
        self._destination = destination
        self._turn = turn
        self._read: list[Preview] = []

    def traces(self, show: ShowProgress | None = None) -> Iterator[PreviewedTrace]:
        """Yield the traces of the turn."""
        spots = self._spots(show)
        places: list[tuple[Progress | None, int | None]] = [(None, None)]
        if spots is not None:
            places = [(spot.progress, spot.traces) for spot in spots]
        for place, most in places:
            preview = Preview(self._session, self._config, self._destination, place)
            self._read.append(preview)
            yield from preview.traces(self._turn, most=most)

    def _spots(self, show: ShowProgress | None) -> list[Spot] | None:
        """Return where to read; None if the index does not know."""
        config = self._config
        if not is_stored(config, config.destinations[0]):
            return None
        with opened(config, scope=Scope(path=str(self._session.path)), show=show) as index:
            return spots_of(index, self._session.path, self._turn) if not index.is_in_memory else None

    def notes(self) -> Iterator[str]:
        """Yield the notes about what was read, each once."""
        yield from dict.fromkeys(note for preview in self._read for note in preview.notes())
