"""Read, build, mask, send, commit, for one session: the one path that everything which exports takes.

Rules:

- Commit only what was acknowledged, or refused for good and named. What was not is read again from the transcript.
- Each destination has its own cursor, policy and holds: one that is down holds back nobody.
- Before anything is sent, the state must be writable: what is sent and not noted would be sent again with every event.
- After a request without an answer, a backend that can be asked says first what it has, and gets the rest.
- A destination on hold is not asked again before its time; a changed configuration is a new destination.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.backends import Answer, Holdings
from turnspan.delivery import backoff, state
from turnspan.source import sessions
from turnspan.source.progress import Ending, Position, Progress
from turnspan.source.scan import stamp_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.backends import Verdict
    from turnspan.delivery.deliver import Delivery
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config
    from turnspan.source.progress import Piece
    from turnspan.source.reader import Reading
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace

_FIRST_HOLD_S: Final = 30.0
_LONGEST_HOLD_S: Final = 300.0
_LONGEST_RETRY_AFTER_S: Final = 3600.0
_REMEMBERED_QUARANTINE: Final = 200
_REMEMBERED_SPANS: Final = 20_000


class Shipped(msgspec.Struct):
    """What happened to one session at one destination."""

    destination: str
    turns: int = 0
    spans: int = 0
    copied: int = 0
    off: int = 0
    refused: int = 0
    cut: int = 0
    masked: dict[str, int] = {}
    stopped: Verdict | None = None
    held_until_s: float | None = None  # it was on hold and not asked
    is_interrupted: bool = False  # `goes_on` said no
    is_rewritten: bool = False
    kept_as: str = ""  # the state was rubbish: the name under which it was set aside
    is_answer_missing: bool = False
    has_unsealed: bool = False
    noticed: dict[str, int] = {}
    unknown: dict[str, int] = {}

    @property
    def is_complete(self) -> bool:
        """Whether everything that may leave has arrived."""
        return self.stopped is None and self.held_until_s is None and not self.is_interrupted


def ship(
    session: SessionFile,
    target: Target,
    config: Config,
    ending: Ending,
    clock: Callable[[], float],
    *,
    is_patient: Callable[[Verdict], bool] = lambda _verdict: False,
    goes_on: Callable[[Shipped, Progress], bool] = lambda _shipped, _progress: True,
    is_resend: bool = False,
    only: frozenset[bytes] | None = None,
    there: frozenset[bytes] = frozenset(),
) -> Shipped:
    """Bring one session to one destination, as far as it may leave. The caller holds the session's lock.

    `is_patient` is asked after an answer of "later" whether it has waited and the same should be tried again.
    `goes_on` hears of every commit and says whether to go on. `is_resend`: as if nothing had ever been sent. `only`:
    send these spans of what was acknowledged once more, and move no cursor. `there`: spans known to have arrived.
    """
    found = state.load(config.home, session.session_id)
    loaded = found.checkpoint
    shipped = Shipped(target.identity, kept_as=found.kept_as)
    cursor = loaded.destinations.get(target.identity, state.Cursor())
    if loaded.is_off:
        shipped.off = 1
        return shipped
    now = clock()
    held = backoff.load(config.home, target.identity)
    if held is not None and now < held.until_s <= now + _LONGEST_RETRY_AFTER_S:
        shipped.held_until_s = held.until_s
        return shipped
    if is_resend:
        cursor = state.Cursor()
    if only is None and _is_unchanged(session, cursor, ending):
        return shipped
    from turnspan.source.reader import Reading  # noqa: PLC0415  an event with nothing new need not load what reads and builds

    reading = Reading(session, cursor.progress if only is None else Progress(), ending, target.prices)
    walk = _Walk(
        reading, target, config, clock=clock, checkpoint=loaded, cursor=cursor, shipped=shipped, only=only, there=there
    )
    for piece in reading.pieces():
        leaving = walk.leaving(piece)
        while not walk.send(piece, leaving):
            assert shipped.stopped is not None
            if shipped.stopped.answer is Answer.LATER and is_patient(shipped.stopped):
                shipped.stopped = None
                continue
            walk.stop(shipped.stopped)
            break
        shipped.is_interrupted = shipped.stopped is None and not goes_on(shipped, piece.progress)
        if not shipped.is_complete:
            break
    shipped.is_rewritten = reading.is_rewritten
    shipped.is_answer_missing = reading.is_answer_missing
    shipped.has_unsealed = reading.has_unsealed
    noticed = reading.noticed
    shipped.noticed = {
        name: count for name in ("unreadable", "misshapen", "oversized", "glued") if (count := getattr(noticed, name))
    }
    shipped.unknown = {f"{kind} ({version})": count for (kind, version), count in noticed.unknown.items()}
    if shipped.is_complete and only is None:
        walk.note_seen()
    return shipped


def _is_unchanged(session: SessionFile, cursor: state.Cursor, ending: Ending) -> bool:
    """Whether nothing was written to a session since nothing of it was left to send.

    Not asked at its end, nor when time has passed: then there may be more to conclude from the same bytes.
    """
    if ending.is_over or ending.now_ns is not None or not cursor.seen_bytes:
        return False
    if stamp_of(str(session.path))[0] != cursor.seen_bytes:
        return False
    read, launched, files = cursor.progress.agents, cursor.progress.launched, sessions.agent_files(session)
    for agent_id in {**files, **read, **launched}:
        file = files.get(agent_id) or sessions.flat_agent_file(session, agent_id)
        if file is not None and file.size > read.get(agent_id, Position()).offset:
            return False
    return True


class _Walk:
    """The cursor of one session at one destination, as it moves."""

    def __init__(
        self,
        reading: Reading,
        target: Target,
        config: Config,
        *,
        clock: Callable[[], float],
        checkpoint: state.Checkpoint,
        cursor: state.Cursor,
        shipped: Shipped,
        only: frozenset[bytes] | None,
        there: frozenset[bytes],
    ) -> None:
        self._reading = reading
        self._target = target
        self._config = config
        self._clock = clock
        self._checkpoint = checkpoint
        self._cursor = cursor
        self._shipped = shipped
        self._only = only
        self._there = there
        self._is_writable = False

    def send(self, piece: Piece, leaving: Sequence[Trace]) -> bool:
        """Send what may leave of a piece and commit what is settled; False if something stopped it."""
        from turnspan.delivery.deliver import deliver  # noqa: PLC0415  as above

        only = self._only
        arrived = set(self._there)
        if only is None:
            arrived |= {bytes.fromhex(span) for span in self._cursor.arrived}
        if self._cursor.is_unsure:
            arrived |= self._stored(leaving)
        traces = leaving
        if arrived:
            traces = [
                msgspec.structs.replace(trace, spans=tuple(span for span in trace.spans if span.span_id not in arrived))
                for trace in leaving
            ]
        if any(trace.spans for trace in traces) and not self._is_writable:
            state.probe_writable(self._config.home)
            self._is_writable = True
        delivery = deliver(self._target.backend, traces, lambda sent: arrived.update(_span_ids(sent)))
        self._account(delivery)
        is_unsure = delivery.stopped is not None and delivery.stopped.is_unknown
        self._cursor = msgspec.structs.replace(self._cursor, is_unsure=is_unsure)
        if delivery.sent:
            backoff.clear(self._config.home, self._target.identity)
        if only is not None:
            self._there = frozenset(arrived)
            self._shipped.stopped = delivery.stopped
            if delivery.requests:
                self._commit()
            return delivery.stopped is None
        if delivery.stopped is None:
            self._shipped.turns += piece.turns
            self._shipped.copied += piece.copied
            self._commit(
                progress=piece.progress,
                arrived=(),
                sent_turns=self._cursor.sent_turns + piece.turns,
                last_success_s=self._clock(),
                last_error="",
                seen_bytes=self._seen(),
            )
            return True
        self._shipped.stopped = delivery.stopped
        if delivery.sent:
            # A part of the piece is there: remember which spans, so that they do not go out again.
            self._commit(arrived=tuple(span.hex() for span in arrived)[:_REMEMBERED_SPANS])
        return False

    def _stored(self, traces: Sequence[Trace]) -> set[bytes]:
        """Which of these spans the backend says it has; one that cannot say gets all of them again."""
        backend = self._target.backend
        found: set[bytes] = set()
        if isinstance(backend, Holdings):
            for trace in traces:
                held = backend.stored(trace.trace_id)
                if held is None:
                    break
                found |= held
        return found

    def leaving(self, piece: Piece) -> list[Trace]:
        """What may leave of a piece, masked once, however often it is sent."""
        only = self._only
        traces: list[Trace] = []
        for trace in piece.traces:
            if only is not None and only.isdisjoint(span.span_id for span in trace.spans):
                continue
            masked = self._masked(trace)  # all of it: the same span must not leave with other masks
            if masked is not None and only is not None:
                wanted = tuple(span for span in masked.spans if span.span_id in only)
                masked = msgspec.structs.replace(masked, spans=wanted)
            if masked is not None:
                traces.append(masked)
        return traces

    def _account(self, delivery: Delivery) -> None:
        shipped = self._shipped
        shipped.spans += delivery.sent
        shipped.cut += delivery.cut
        changes: dict[str, Any] = {"sent_spans": self._cursor.sent_spans + delivery.sent}
        if delivery.refused and (delivery.stopped is None or delivery.sent):  # else they will be sent again
            shipped.refused += delivery.refused_spans
            now = self._clock()
            known = {(entry.trace_id, entry.span_id) for entry in self._cursor.quarantined}
            new = [
                state.Quarantine(
                    trace_id=r.trace_id.hex(), span_id=r.span_id.hex(), spans=r.spans, reason=r.reason[:300], at_s=now
                )
                for r in delivery.refused
                # What has no name may be other spans of the same trace, unless it is sent once more.
                if (r.trace_id.hex(), r.span_id.hex()) not in known or (not r.span_id and self._only is None)
            ]
            entries = (*self._cursor.quarantined, *new)
            changes["quarantined"] = entries[-_REMEMBERED_QUARANTINE:]
            past = sum(entry.spans for entry in entries[:-_REMEMBERED_QUARANTINE])
            changes["forgotten"] = self._cursor.forgotten + past
        self._cursor = msgspec.structs.replace(self._cursor, **changes)

    def _masked(self, trace: Trace) -> Trace | None:
        """What may leave of a trace; None if nothing may."""
        redacted = self._target.mask(trace)
        if redacted is None:
            self._shipped.off += 1
            return None
        for rule, count in redacted.counts.items():
            self._shipped.masked[rule] = self._shipped.masked.get(rule, 0) + count
        return redacted.trace

    def stop(self, verdict: Verdict) -> None:
        """Note why it stopped, and leave the destination in peace for a while, longer each time.

        What is refused as invalid is this session's own trouble: it holds back no other.
        """
        error = f"{verdict.answer}: {verdict.reason}"
        if verdict.answer is Answer.INVALID:
            if self._only is None:
                self._commit(last_error=error)
            return
        now = self._clock()
        home, identity = self._config.home, self._target.identity
        held = backoff.load(home, identity)
        length = min(_LONGEST_HOLD_S, 2 * held.length_s) if held is not None else _FIRST_HOLD_S
        if verdict.retry_after_s is not None:
            length = max(length, min(verdict.retry_after_s, _LONGEST_RETRY_AFTER_S))
        hold = backoff.Backoff(until_s=now + length, length_s=length, reason=verdict.reason, answer=verdict.answer)
        backoff.save(home, identity, hold)
        self._commit(last_error=error)

    def _seen(self) -> int:
        """The size of a file of which nothing is left: whoever looks for sessions left behind need not open it."""
        reading = self._reading
        return reading.size if reading.is_finished and not reading.has_unsealed else 0

    def note_seen(self) -> None:
        """Note that there was nothing to send, if that is new."""
        if self._seen() != self._cursor.seen_bytes:
            self._commit(seen_bytes=self._seen())

    def _commit(self, **changes: Any) -> None:  # noqa: ANN401  the fields of a Cursor
        self._cursor = msgspec.structs.replace(self._cursor, **changes)
        destinations = {**self._checkpoint.destinations, self._target.identity: self._cursor}
        path = str(self._reading.session.path)
        self._checkpoint = msgspec.structs.replace(self._checkpoint, transcript=path, destinations=destinations)
        state.save(self._config.home, self._checkpoint)


def _span_ids(traces: Sequence[Trace]) -> set[bytes]:
    return {span.span_id for trace in traces for span in trace.spans}
