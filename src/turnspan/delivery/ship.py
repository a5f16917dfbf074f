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
from turnspan.delivery.callers import called
from turnspan.errors import StateError, TurnspanError
from turnspan.source.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from collections.abc import Set as AbstractSet

    from turnspan.backends import Verdict
    from turnspan.delivery.deliver import Delivery
    from turnspan.delivery.destinations import Target
    from turnspan.source.progress import Ending, Piece
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
_NOTICED: Final = ("unreadable", "misshapen", "oversized", "glued")


class Shipped(msgspec.Struct):
    """The result of sending one session to one destination. The sum of two is the result of two rounds."""

    destination: str
    turns: int = 0
    spans: int = 0
    copied: int = 0
    repeated: int = 0
    warmups: int = 0
    off: int = 0
    refused: int = 0
    cut: int = 0
    masked: dict[str, int] = {}
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
    def unreadable(self) -> int:
        """How many lines could not be read."""
        return self.noticed.get("unreadable", 0) + self.noticed.get("oversized", 0)

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
            copied=self.copied + later.copied,
            repeated=self.repeated + later.repeated,
            warmups=self.warmups + later.warmups,
            refused=self.refused + later.refused,
            cut=self.cut + later.cut,
            masked={rule: self.masked.get(rule, 0) + later.masked.get(rule, 0) for rule in self.masked | later.masked},
            stopped=later.stopped or self.stopped,
            is_rewritten=self.is_rewritten or later.is_rewritten,
            kept_as=self.kept_as or later.kept_as,
        )


def _never(_verdict: Verdict) -> bool:
    return False


def _always(_shipped: Shipped, _progress: Progress) -> bool:
    return True


def ship(
    session: SessionFile,
    target: Target,
    ending: Ending,
    clock: Callable[[], float],
    *,
    is_patient: _Patience = _never,
    should_continue: _Commits = _always,
) -> Shipped:
    """Send what a destination does not have of a session yet. The caller holds the session's lock.

    `is_patient` is called after a response of "later": True if it has waited, and the same request should be retried.
    `should_continue` is called after every commit.
    """
    return _Export(session, target, clock).send_unsent(ending, is_patient, should_continue)


def resend(
    session: SessionFile,
    target: Target,
    ending: Ending,
    clock: Callable[[], float],
    *,
    is_patient: _Patience = _never,
    should_continue: _Commits = _always,
) -> Shipped:
    """Send all of a session as if nothing had ever been sent; otherwise like `ship`."""
    return _ExportAll(session, target, clock).send_all(ending, is_patient, should_continue)


def send_unsent(
    session: SessionFile,
    target: Target,
    ending: Ending,
    clock: Callable[[], float],
    stored: frozenset[bytes],
    *,
    is_patient: _Patience = _never,
) -> Shipped:
    """Like `ship`, but without the spans that the backend was found to have although they are not acknowledged."""
    return _Export(session, target, clock, stored).send_unsent(ending, is_patient, _always)


def send_again(
    session: SessionFile,
    target: Target,
    ending: Ending,
    clock: Callable[[], float],
    spans: frozenset[bytes],
    *,
    is_patient: _Patience = _never,
) -> Shipped:
    """Send these acknowledged spans of a session once more; the cursor does not move."""
    return _ExportAgain(session, target, clock, spans).send_all(ending, is_patient, _always)


class _Export:
    """One session on its way to one destination: masks, sends and commits, a piece at a time."""

    _moves_cursor = True

    def __init__(
        self,
        session: SessionFile,
        target: Target,
        clock: Callable[[], float],
        stored: AbstractSet[bytes] = frozenset(),
    ) -> None:
        loaded = target.checkpoints.load(session.session_id)
        self.shipped = Shipped(target.identity, kept_as=loaded.kept_as)
        self._cursor = loaded.checkpoint.cursor(target.identity)
        self._session = session
        self._target = target
        self._clock = clock
        self._stored = stored  # spans known to have arrived, besides those the cursor names
        self._checkpoint = loaded.checkpoint
        self._is_writable = False
        self._reported = self._cursor.reported

    def send_unsent(self, ending: Ending, is_patient: _Patience, should_continue: _Commits) -> Shipped:
        """Send what the destination does not have."""
        self._reported = unsent.reported_after(self._session, self._reported, ending, int(self._clock() * 1e9))
        if self._is_blocked():
            self._remember()
        elif self._may_have_more(ending):
            try:
                self._run(self._cursor.progress, ending, is_patient, should_continue)
            except TurnspanError:
                self._remember()
                raise
        return self.shipped

    def send_all(self, ending: Ending, is_patient: _Patience, should_continue: _Commits) -> Shipped:
        """Send everything from the beginning of the session."""
        if not self._is_blocked():
            self._run(Progress(), ending, is_patient, should_continue)
        return self.shipped

    # ---- steps

    def _is_blocked(self) -> bool:
        """Return whether nothing may be sent now: the session is switched off, or the destination is backing off."""
        if self._checkpoint.is_off:
            self.shipped.off = 1
            return True
        now = self._clock()
        held = backoff.load(self._target.home, self._target.identity)
        if held is not None and now < held.until_s <= now + _LONGEST_RETRY_AFTER_S:
            self.shipped.held_until_s = held.until_s
            return True
        return False

    def _may_have_more(self, ending: Ending) -> bool:
        """Return whether it is worth reading.

        At the session's end, or when time has passed, the same bytes may allow another conclusion: then they are read.
        """
        identity = self._target.identity
        if ending.is_over or ending.now_ns is not None:
            return not unsent.is_outdated_copy(self._session, self._checkpoint, identity)
        return unsent.may_have_more(self._session, self._checkpoint, identity)

    def _run(self, progress: Progress, ending: Ending, is_patient: _Patience, should_continue: _Commits) -> None:
        """Send everything from a place on, until it is done or something stops it."""
        from turnspan.source.reader import Reading  # noqa: PLC0415  an event with nothing new must not load it

        ending = unsent.known_ending(self._session, self._target, self._cursor, ending)
        target, shipped = self._target, self.shipped
        reading = Reading(self._session, progress, ending, target.prices, target.was_sent)
        for piece in reading.pieces():
            traces = self._exportable(piece.traces)
            while not self._send(traces, piece, reading):
                assert shipped.stopped is not None
                self._remember()  # now: the worker may not survive the wait
                if shipped.stopped.answer is Answer.LATER and is_patient(shipped.stopped):
                    shipped.stopped = None
                    continue
                self._stop(shipped.stopped)
                break
            shipped.is_interrupted = shipped.stopped is None and not should_continue(shipped, piece.progress)
            if not shipped.is_complete:
                break
        shipped.is_rewritten = reading.is_rewritten
        shipped.is_answer_missing = reading.is_answer_missing
        shipped.has_unsealed = reading.has_unsealed
        noticed = reading.anomalies
        shipped.noticed = {name: count for name in _NOTICED if (count := getattr(noticed, name))}
        shipped.unknown = {f"{kind} ({version})": count for (kind, version), count in noticed.unknown.items()}
        if shipped.is_complete and self._moves_cursor:
            seen_bytes, reported = _seen_bytes(reading), self._still_reported(reading)
            if (seen_bytes, reported) != (self._cursor.seen_bytes, self._cursor.reported):
                self._commit(seen_bytes=seen_bytes, reported=reported)  # nothing is left to send, and that is new

    def _remember(self) -> None:
        """Store what events said about the end of a turn that is not acknowledged; without it, the timeouts apply."""
        if self._moves_cursor and self._reported != self._cursor.reported and not self._checkpoint.is_off:
            with suppress(StateError):
                self._commit(reported=self._reported)

    def _still_reported(self, reading: Reading) -> state.Reported:
        """Return what to remember after a reading: all, unless it has reached what the events spoke of."""
        is_done = reading.is_finished and not reading.is_answer_missing
        return unsent.reported_when_done(self._reported) if is_done else self._reported

    def _exportable(self, traces: Sequence[Trace]) -> list[Trace]:
        """Return the traces that may be exported, masked once, however often they are sent."""
        mask = self._target.mask.of_session(self._checkpoint.capture)
        allowed = [trace for trace in traces if not mask.is_off(trace.cwd)]
        self.shipped.off += len(traces) - len(allowed)
        masked = mask.masked_all(allowed)
        for redacted in masked:
            for rule, count in redacted.counts.items():
                self.shipped.masked[rule] = self.shipped.masked.get(rule, 0) + count
        return [called(redacted.trace, self._checkpoint.callers) for redacted in masked]

    def _send(self, traces: Sequence[Trace], piece: Piece, reading: Reading) -> bool:
        """Send a piece and commit what is settled; return False if something stopped it."""
        arrived = {*self._stored, *(bytes.fromhex(span) for span in self._cursor.arrived)}
        delivery = self._deliver(traces, arrived)
        if delivery.stopped is None:
            self.shipped.turns += piece.turns
            self.shipped.copied += piece.copied
            self.shipped.repeated += piece.repeated
            self.shipped.warmups += piece.warmups
            self._commit(
                progress=piece.progress,
                arrived=(),
                sent_turns=self._cursor.sent_turns + piece.turns,
                last_success_s=self._clock(),
                last_error="",
                seen_bytes=_seen_bytes(reading),
                reported=self._still_reported(reading),
            )
            return True
        self.shipped.stopped = delivery.stopped
        if delivery.sent:  # a part of the piece has arrived: remember which spans, so that they are not sent again
            self._commit(arrived=tuple(span.hex() for span in arrived)[:_REMEMBERED_SPANS])
        return False

    def _deliver(self, traces: Sequence[Trace], arrived: set[bytes]) -> Delivery:
        """Send the spans that have not arrived, and add those that were settled to `arrived`."""
        from turnspan.delivery.deliver import deliver  # noqa: PLC0415  as above

        if self._cursor.is_unsure:
            arrived |= self._stored_at_backend(traces)
        left = [trace for each in traces if (trace := unsent.without(each, arrived)) is not None]
        if left and not self._is_writable:
            state.probe_writable(self._target.home)
            self._is_writable = True
        delivery = deliver(self._target.backend, left, lambda sent: arrived.update(_span_ids(sent)))
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
        self.shipped.cut += delivery.cut
        self._cursor = msgspec.structs.replace(self._cursor, sent_spans=self._cursor.sent_spans + delivery.sent)
        if delivery.refused and (delivery.stopped is None or delivery.sent):  # else they will be sent again
            self.shipped.refused += delivery.refused_spans
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
            if (r.trace_id.hex(), r.span_id.hex()) not in known or (not r.span_id and self._moves_cursor)
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
            if self._moves_cursor:
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


class _ExportAll(_Export):
    """Sends a session as if nothing had ever been sent."""

    def __init__(self, session: SessionFile, target: Target, clock: Callable[[], float]) -> None:
        super().__init__(session, target, clock)
        self._cursor = state.Cursor(reported=self._reported)


class _ExportAgain(_Export):
    """Sends some acknowledged spans once more."""

    _moves_cursor = False

    def __init__(
        self, session: SessionFile, target: Target, clock: Callable[[], float], spans: frozenset[bytes]
    ) -> None:
        super().__init__(session, target, clock)
        self._spans = spans
        self._done: set[bytes] = set()

    def _exportable(self, traces: Sequence[Trace]) -> list[Trace]:
        wanted = [trace for trace in traces if not self._spans.isdisjoint(span.span_id for span in trace.spans)]
        chosen: list[Trace] = []
        for masked in super()._exportable(wanted):  # all of it: a span must be masked as it was the first time
            others = _span_ids([masked]) - self._spans
            chosen += [kept] if (kept := unsent.without(masked, others)) is not None else []
        return chosen

    def _send(self, traces: Sequence[Trace], _piece: Piece, _reading: Reading) -> bool:
        delivery = self._deliver(traces, self._done)
        self.shipped.stopped = delivery.stopped
        if delivery.requests:
            self._commit(**({"last_success_s": self._clock()} if delivery.sent else {}))
        return delivery.stopped is None


def _seen_bytes(reading: Reading) -> int:
    """Return the size of a file of which nothing is left, so that it need not be opened again; else 0."""
    return reading.size if reading.is_finished and not reading.has_unsealed else 0


def _span_ids(traces: Sequence[Trace]) -> set[bytes]:
    return {span.span_id for trace in traces for span in trace.spans}
