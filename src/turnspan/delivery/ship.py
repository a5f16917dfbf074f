"""Read, build, mask, send, commit, for one session and one destination: the one path for sending.

Rules:

- Only spans that were acknowledged, or refused for good and recorded, are committed. All others are read again from the
  transcript.
- Each destination has its own cursor, export policy and backoff: an outage of one does not delay the others.
- Before anything is sent, the state must be writable: without a commit, the same spans would be sent with every event.
- After a request without a response, a backend that can be asked is asked what it has, and gets the rest.
- A destination is not contacted before its backoff is over; a changed configuration is a new destination.
- What an event said about the end of a turn is committed if that turn could not be sent, and forgotten when it was.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.backends import Answer, Readable
from turnspan.delivery import backoff, state, unsent
from turnspan.errors import StateError, TurnspanError
from turnspan.source.progress import Counts
from turnspan.source.scan import size_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.backends import Verdict
    from turnspan.delivery.deliver import Delivery
    from turnspan.delivery.destinations import Target
    from turnspan.source.ending import Ending
    from turnspan.source.progress import Piece, Progress
    from turnspan.source.reader import Reading
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace

    _Patience = Callable[[Verdict], bool]
    _Commits = Callable[["Shipped", Progress], bool]

_FIRST_BACKOFF_S: Final = 30.0
_LONGEST_BACKOFF_S: Final = 300.0
_LONGEST_RETRY_AFTER_S: Final = 3600.0
_REMEMBERED_QUARANTINE: Final = 200
_REMEMBERED_SPANS: Final = 20_000


class Shipped(msgspec.Struct):
    """The result of sending one session to one destination. The sum of two is the result of two rounds."""

    destination: str
    turns: int = 0
    spans: int = 0
    counts: Counts = Counts()
    is_off: bool = False  # the session is switched off
    stopped: Verdict | None = None
    held_until_s: float | None = None  # backing off: it was not contacted
    is_interrupted: bool = False  # `should_continue` returned False
    is_rewritten: bool = False
    kept_as: str = ""  # the state was corrupt: the name under which it was set aside
    is_answer_missing: bool = False
    has_unsealed: bool = False
    noticed: dict[str, int] = {}
    unknown: dict[str, int] = {}

    @property
    def off(self) -> int:
        """How many traces are switched off; 1 if the session is."""
        return 1 if self.is_off else self.counts.off

    @property
    def unreadable(self) -> int:
        """How many lines could not be read."""
        return self.noticed.get("unreadable", 0) + self.noticed.get("oversized", 0)

    @property
    def is_behind(self) -> bool:
        """Whether an event says that something has ended, and only the files do not show it yet."""
        return self.is_answer_missing and self.is_complete

    @property
    def is_complete(self) -> bool:
        """Whether everything that may be exported has arrived."""
        return self.stopped is None and self.held_until_s is None and not self.is_interrupted

    def __add__(self, later: Shipped) -> Shipped:
        """Return both rounds as one: the counts added, the rest as it is after the later round."""
        return msgspec.structs.replace(
            later,
            turns=self.turns + later.turns,
            spans=self.spans + later.spans,
            counts=self.counts + later.counts,
            stopped=later.stopped or self.stopped,
            is_rewritten=self.is_rewritten or later.is_rewritten,
            kept_as=self.kept_as or later.kept_as,
        )


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which spans of a session are sent: without anything else, those that the destination does not have."""

    is_all: bool = False  # all, as if nothing had ever been sent
    again: frozenset[bytes] | None = None  # only these, which were acknowledged; the cursor does not move
    stored: frozenset[bytes] = frozenset()  # not these: the backend was found to have them, though not acknowledged


UNSENT: Final = Wanted()
ALL: Final = Wanted(is_all=True)


def _never(_verdict: Verdict) -> bool:
    return False


def _always(_shipped: Shipped, _progress: Progress) -> bool:
    return True


def ship(
    session: SessionFile,
    target: Target,
    ending: Ending,
    clock: Callable[[], float],
    wanted: Wanted = UNSENT,
    *,
    is_patient: _Patience = _never,
    should_continue: _Commits = _always,
) -> Shipped:
    """Send what a destination does not have of a session yet. The caller holds the session's lock.

    `is_patient` is called after a response of "later": True if it has waited, and the same request should be retried.
    `should_continue` is called after every commit.
    """
    return _Export(session, target, ending, clock, wanted).run(is_patient, should_continue)


class _Export:
    """One session on its way to one destination: masks, sends and commits, a piece at a time."""

    def __init__(
        self, session: SessionFile, target: Target, ending: Ending, clock: Callable[[], float], wanted: Wanted
    ) -> None:
        loaded = target.checkpoints.load(session.session_id)
        is_all = wanted.is_all or wanted.again is not None
        self.shipped = Shipped(target.identity, is_off=loaded.checkpoint.is_off, kept_as=loaded.kept_as)
        self._rest = unsent.Rest(session, target, ending, loaded.checkpoint, is_all=is_all)
        self._session = session
        self._target = target
        self._clock = clock
        self._wanted = wanted
        self._checkpoint = loaded.checkpoint
        self._cursor = state.Cursor(reported=self._rest.cursor.reported) if wanted.is_all else self._rest.cursor
        self._arrived = {*wanted.stored, *(bytes.fromhex(span) for span in self._cursor.arrived)}  # of the next piece
        self._is_writable = False
        self._reported = self._cursor.reported.then(ending.handled(int(clock() * 1e9), size_of(session.path)))

    def run(self, is_patient: _Patience, should_continue: _Commits) -> Shipped:
        """Send everything, until it is done or something stops it."""
        if self._is_blocked():
            self._remember()
        elif self._may_have_more():
            try:
                self._send_pieces(is_patient, should_continue)
            except TurnspanError:
                self._remember()
                raise
        return self.shipped

    # ---- steps

    def _is_blocked(self) -> bool:
        """Return whether the destination is backing off, so that nothing may be sent now."""
        now = self._clock()
        held = None if self._checkpoint.is_off else backoff.load(self._target.home, self._target.identity)
        if held is not None and now < held.until_s <= now + _LONGEST_RETRY_AFTER_S:
            self.shipped.held_until_s = held.until_s
            return True
        return False

    def _may_have_more(self) -> bool:
        """Return whether it is worth reading.

        At the session's end, or when time has passed, the same bytes may allow another conclusion: then they are read.
        """
        ending = self._rest.ending
        if self._wanted != UNSENT or ending.is_over or ending.now_ns is not None or self._checkpoint.is_off:
            return True
        return unsent.may_have_more(self._session, self._checkpoint, self._target.identity)

    def _send_pieces(self, is_patient: _Patience, should_continue: _Commits) -> None:
        shipped, rest = self.shipped, self._rest
        for piece, left in rest.pieces():
            traces = self._masked([trace for trace, _ in left])
            while not self._send(traces, piece):
                assert shipped.stopped is not None
                self._remember()  # now: the worker may not survive the wait
                if shipped.stopped.answer is Answer.LATER and is_patient(shipped.stopped):
                    continue
                self._stop(shipped.stopped)
                break
            shipped.is_interrupted = shipped.stopped is None and not should_continue(shipped, piece.progress)
            if not shipped.is_complete:
                break
        self._conclude()

    def _conclude(self) -> None:
        """Note what was found besides turns; if nothing is left to send, store that.

        A session with an open turn is stored as begun although nothing was sent: that turn is not history.
        """
        shipped, reading = self.shipped, self._rest.reading
        if reading is None:
            return
        shipped.is_rewritten = reading.is_rewritten
        shipped.is_answer_missing = reading.is_answer_missing
        shipped.has_unsealed = reading.has_unsealed
        shipped.noticed = self._rest.noticed
        shipped.unknown = {f"{kind} ({version})": count for (kind, version), count in reading.anomalies.unknown.items()}
        if shipped.is_complete and self._wanted.again is None:
            found = {"seen_bytes": _seen_bytes(reading), "reported": self._still_reported(reading)}
            is_new = reading.has_unsealed and self._target.identity not in self._checkpoint.destinations
            if is_new or any(getattr(self._cursor, name) != value for name, value in found.items()):
                self._commit(**found)

    def _remember(self) -> None:
        """Store what events said about the end of a turn that is not acknowledged; without it, the timeouts apply."""
        if self._wanted.again is None and self._reported != self._cursor.reported and not self._checkpoint.is_off:
            with suppress(StateError):
                self._commit(reported=self._reported)

    def _still_reported(self, reading: Reading) -> Ending:
        """Return what to remember after a reading: all, unless it has reached what the events spoke of."""
        is_done = reading.is_finished and not reading.is_answer_missing
        return self._reported.when_done() if is_done else self._reported

    def _masked(self, traces: Sequence[Trace]) -> list[Trace]:
        """Return traces as they are exported, masked once, however often they are sent."""
        again = self._wanted.again
        if again is not None:
            traces = [trace for trace in traces if not again.isdisjoint(span.span_id for span in trace.spans)]
        masked, counts = self._rest.masked(traces)
        self.shipped.counts += counts
        if again is None:
            return masked
        chosen = [unsent.without(trace, _span_ids([trace]) - again) for trace in masked]
        return [trace for trace in chosen if trace is not None]

    def _send(self, traces: Sequence[Trace], piece: Piece) -> bool:
        """Send a piece and commit what is settled; return False if something stopped it."""
        delivery = self._deliver(traces)
        self.shipped.stopped = delivery.stopped
        if self._wanted.again is not None:
            if delivery.requests:
                self._commit(**({"last_success_s": self._clock()} if delivery.sent else {}))
        elif delivery.stopped is None:
            assert self._rest.reading is not None
            self.shipped.turns += piece.turns
            self.shipped.counts += piece.counts
            self._commit(
                progress=piece.progress,
                arrived=(),
                sent_turns=self._cursor.sent_turns + piece.turns,
                last_success_s=self._clock(),
                last_error="",
                seen_bytes=_seen_bytes(self._rest.reading),
                reported=self._still_reported(self._rest.reading),
            )
            self._arrived = set(self._wanted.stored)
        elif delivery.sent:  # a part of the piece has arrived: remember which spans, so that they are not sent again
            self._commit(arrived=tuple(span.hex() for span in self._arrived)[:_REMEMBERED_SPANS])
        return delivery.stopped is None

    def _deliver(self, traces: Sequence[Trace]) -> Delivery:
        """Send the spans that have not arrived, and note those that were settled."""
        from turnspan.delivery.deliver import deliver  # noqa: PLC0415  an event with nothing new must not load it

        if self._cursor.is_unsure:
            self._arrived |= self._stored_at_backend(traces)
        left = [trace for each in traces if (trace := unsent.without(each, self._arrived)) is not None]
        if left and not self._is_writable:
            state.probe_writable(self._target.home)
            self._is_writable = True
        delivery = deliver(self._target.backend, left, lambda sent: self._arrived.update(_span_ids(sent)))
        self._account(delivery)
        is_unsure = delivery.stopped is not None and delivery.stopped.is_unknown
        self._cursor = msgspec.structs.replace(self._cursor, is_unsure=is_unsure)
        if delivery.sent:
            backoff.clear(self._target.home, self._target.identity)
        return delivery

    def _stored_at_backend(self, traces: Sequence[Trace]) -> set[bytes]:
        """Return which of these spans the backend has; if it does not say, it gets all of them again."""
        backend = self._target.backend
        found: set[bytes] = set()
        if isinstance(backend, Readable):
            for trace in traces:
                held = backend.stored(trace.trace_id)
                if held is None:
                    break
                found |= held
        return found

    def _account(self, delivery: Delivery) -> None:
        self.shipped.spans += delivery.sent
        self.shipped.counts += Counts(cut=delivery.cut)
        self._cursor = msgspec.structs.replace(self._cursor, sent_spans=self._cursor.sent_spans + delivery.sent)
        if delivery.refused and (delivery.stopped is None or delivery.sent):  # else they will be sent again
            self.shipped.counts += Counts(refused=delivery.refused_spans)
            self._quarantine(delivery)

    def _quarantine(self, delivery: Delivery) -> None:
        now = self._clock()
        known = {(entry.trace_id, entry.span_id) for entry in self._cursor.quarantined}
        new = [
            state.Quarantine(
                trace_id=r.trace_id.hex(), span_id=r.span_id.hex(), spans=r.spans, reason=r.reason[:300], at_s=now
            )
            for r in delivery.refused
            # Without an id they may be other spans of the same trace, unless they are sent once more.
            if (r.trace_id.hex(), r.span_id.hex()) not in known or (not r.span_id and self._wanted.again is None)
        ]
        entries = (*self._cursor.quarantined, *new)
        past = sum(entry.spans for entry in entries[:-_REMEMBERED_QUARANTINE])
        self._cursor = msgspec.structs.replace(
            self._cursor, quarantined=entries[-_REMEMBERED_QUARANTINE:], forgotten=self._cursor.forgotten + past
        )

    def _stop(self, verdict: Verdict) -> None:
        """Record why it stopped, and back off, longer each time.

        Spans that are refused as invalid concern this session alone: other sessions are still sent.
        """
        error = f"{verdict.answer}: {verdict.reason}"
        if verdict.answer is Answer.INVALID:
            if self._wanted.again is None:
                self._commit(last_error=error)
            return
        home, identity = self._target.home, self._target.identity
        now, held = self._clock(), backoff.load(home, identity)
        length = min(_LONGEST_BACKOFF_S, 2 * held.length_s) if held is not None else _FIRST_BACKOFF_S
        if verdict.retry_after_s is not None:
            length = max(length, min(verdict.retry_after_s, _LONGEST_RETRY_AFTER_S))
        answer, reason = verdict.answer, verdict.reason
        new = backoff.Backoff(until_s=now + length, length_s=length, reason=reason, answer=answer)
        backoff.save(home, identity, new)
        self._commit(last_error=error)

    def _commit(self, **changes: Any) -> None:  # noqa: ANN401  the fields of a Cursor
        self._cursor = msgspec.structs.replace(self._cursor, **changes)
        destinations = {**self._checkpoint.destinations, self._target.identity: self._cursor}
        path = str(self._session.path)
        self._checkpoint = msgspec.structs.replace(self._checkpoint, transcript=path, destinations=destinations)
        self._target.checkpoints.save(self._checkpoint)


def _seen_bytes(reading: Reading) -> int:
    """Return the size of a file of which nothing is left, so that it need not be opened again; else 0."""
    return reading.size if reading.is_finished and not reading.has_unsealed else 0


def _span_ids(traces: Sequence[Trace]) -> set[bytes]:
    return {span.span_id for trace in traces for span in trace.spans}
