"""Compare a session's transcript with what a destination acknowledged, and with what it stored.

A session is compared with three things, trace by trace, so that memory does not grow with it:

- expected: the spans that the transcript gives, built as `ship` builds them. Ids are derived from the transcript, so
  whether a span arrived is a question about its id.
- acknowledged: all of these, except what the cursor says was not sent yet or was refused.
- stored: what the backend returns, where it can be queried. Where it cannot, what it acknowledged counts.

Rules:

- A partial success may give the number of refused spans without their ids. Then the spans of that trace are doubtful,
  and the session is not complete.
- A backend that does not answer is not an empty one: the session is unknown, and not repaired.
- What a backend with a lag acknowledged in the last minutes is in flight, not lost. Sent again, it would be doubled.
- History is not missing: a session that no event and no backfill has begun, and that is older than the destination's
  first use, is counted apart, unless the backend has something of it (the state was lost).
- Responses and tool calls are also counted in the files, independently of how spans are built (`recount`). One that no
  span has is overlooked: the session is not complete, and no repair helps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from turnspan.bulk.recount import Recount, recount
from turnspan.delivery import state, unsent
from turnspan.delivery.callers import called
from turnspan.delivery.unsent import Rest
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from turnspan.backends import Readable
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config
    from turnspan.source.reader import Reader
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """The comparison of one session with one destination."""

    session: SessionFile
    project: str
    spans: int  # expected
    expected: Tally
    acknowledged: Tally
    stored: Tally | None  # None: the backend cannot be queried, or did not answer
    unsent: frozenset[bytes] = frozenset()  # missing spans that were never acknowledged
    lost: frozenset[bytes] = frozenset()  # missing spans that were acknowledged
    in_flight: frozenset[bytes] = frozenset()  # acknowledged so recently that the backend may not show them yet
    doubled: frozenset[bytes] = frozenset()  # spans that the backend shows more than once
    refused: frozenset[bytes] = frozenset()  # missing spans that the destination refused
    forgotten: int = 0  # further refused spans, whose ids were not kept
    doubtful: frozenset[bytes] = frozenset()  # spans of which the destination refused some, without naming them
    off: int = 0  # traces that are switched off
    is_unknown: bool = False  # the backend can be queried, but did not answer
    silence: str = ""  # why it did not answer, if known
    overlooked: Recount = Recount()  # responses and tool calls in the files that no span has

    @property
    def missing(self) -> int:
        """Number of missing spans."""
        return len(self.unsent | self.lost | self.in_flight | self.refused) + self.forgotten

    @property
    def is_complete(self) -> bool:
        """Whether every expected span arrived, and every response in the files is expected."""
        return not (self.missing or self.doubtful or self.is_unknown or self.overlooked.total)


def is_history(session: SessionFile, target: Target, holdings: Readable | None, uses: Mapping[str, float]) -> bool:
    """Return whether a session waits for `backfill`, and the backend has nothing of it, as far as it can be asked."""
    if not unsent.is_history(session, state.known(target.home, session.session_id), target, uses):
        return False
    first = next(Rest(session, target, Ending.asked(time.time_ns())).left(), None)
    return first is None or holdings is None or not holdings.stored(first.trace_id)


def check(session: SessionFile, target: Target, config: Config, holdings: Readable | None, now_ns: int) -> Checked:
    """Compare a session with what a destination acknowledged, and with what it stored."""
    return compared(session, target, config, holdings, now_ns).result()


# ---- the comparison


def compared(
    session: SessionFile, target: Target, config: Config, holdings: Readable | None, now_ns: int
) -> Comparison:
    """Read a session and compare it, one trace at a time."""
    checkpoint = state.known(config.home, session.session_id)
    cursor = checkpoint.cursor(target.identity)
    rest = Rest(session, target, Ending.asked(now_ns), checkpoint)
    found = Comparison(session, cursor, holdings, target.reader)
    found.is_recent = is_in_flight(cursor, holdings, now_ns)
    if cursor.progress == Progress() and not checkpoint.is_off:  # nothing was acknowledged: the rest is everything
        for _, traces in rest.pieces():
            for trace, left in traces:
                found.unsent |= _ids(left)
                found.add(called(trace, checkpoint.callers))
        found.project, found.off, found.ending = rest.cwd, rest.counts.off, rest.ending
        return found
    for left in rest.left():
        found.unsent |= _ids(left)
    # What was acknowledged has ended, whatever showed it then.
    acknowledged = 0 if rest.is_rewritten else cursor.progress.main.offset
    found.ending = msgspec.structs.replace(rest.ending, acknowledged=acknowledged)
    for piece in target.reader.read(session, Progress(), found.ending).pieces():
        for trace in piece.traces:
            found.project = found.project or trace.cwd
            if checkpoint.is_off or target.mask.is_off(trace.cwd):
                found.off += 1
            else:
                found.add(called(trace, checkpoint.callers))
    return found


def is_in_flight(cursor: state.Cursor, holdings: Readable | None, now_ns: int) -> bool:
    """Whether a destination acknowledged something so recently that it may not show it yet."""
    return 0 <= now_ns / 1e9 - cursor.last_success_s < float(getattr(holdings, "lag_s", 0.0))


class Comparison:
    """Compares a session trace by trace. It keeps ids of what is missing, and totals of everything else."""

    def __init__(self, session: SessionFile, cursor: state.Cursor, holdings: Readable | None, reader: Reader) -> None:
        self.ending = Ending()  # what is known about the session's end
        self.project = ""
        self.off = 0
        self.unsent: set[bytes] = set()  # spans that were not sent yet, as far as they were read
        self.arrived: set[bytes] = set()  # of these, spans that the backend has all the same
        self.is_recent = False  # what was acknowledged and is absent may be in flight
        self._session = session
        self._reader = reader
        self._holdings = holdings
        self._refused = {bytes.fromhex(entry.span_id) for entry in cursor.quarantined if entry.span_id}
        # Traces of which an unknown part was refused.
        self._doubtful_traces = {bytes.fromhex(entry.trace_id) for entry in cursor.quarantined if not entry.span_id}
        self._forgotten = cursor.forgotten  # refused spans whose ids were not kept
        counted = recount(session)
        self._responses, self._calls = set(counted.responses), set(counted.calls)
        self._spans = 0
        self._expected = self._acknowledged = self._stored = Tally()
        self._is_known = holdings is not None  # the backend answered for every trace
        self._absent: set[bytes] = set()  # spans that the backend does not have
        self._unacknowledged: set[bytes] = set()
        self._doubtful: set[bytes] = set()
        self._doubled: set[bytes] = set()

    def add(self, trace: Trace) -> None:
        """Compare one trace."""
        ids = _ids(trace)
        tally = tally_of(trace)
        unacknowledged = (ids & self.unsent) | (ids & self._refused)
        self._spans += len(ids)
        self._expected += tally
        self._acknowledged += tally if not unacknowledged else _tally_without(trace, unacknowledged)
        self._unacknowledged |= unacknowledged
        if trace.trace_id in self._doubtful_traces:
            self._doubtful |= ids - unacknowledged
        if self._holdings is not None:
            self._ask(self._holdings, trace, ids, tally)
        for name, counted in (("response_id", self._responses), ("tool_call_id", self._calls)):
            counted.difference_update([str(span.facts[name]) for span in trace.spans if name in span.facts])

    def _ask(self, holdings: Readable, trace: Trace, ids: set[bytes], tally: Tally) -> None:
        stored = holdings.stored(trace.trace_id)
        if stored is None:
            self._is_known = False
            return
        absent = ids - stored
        self._doubled |= ids & getattr(holdings, "doubles", frozenset())
        self.arrived |= self.unsent & stored
        self._absent |= absent
        self._stored += tally if not absent else _tally_without(trace, absent)

    def result(self) -> Checked:
        """Return what is missing. Where the backend answered, its answer counts; else what it acknowledged."""
        is_known = self._is_known
        missing = self._absent if is_known else self._unacknowledged
        absent = frozenset(missing - self._unacknowledged)
        return Checked(
            session=self._session,
            project=self.project or self._session.project,
            spans=self._spans,
            expected=self._expected,
            acknowledged=self._acknowledged,
            stored=self._stored if is_known else None,
            unsent=frozenset(missing & self.unsent),
            lost=frozenset() if self.is_recent else absent,
            in_flight=absent if self.is_recent else frozenset(),
            doubled=frozenset(self._doubled),
            refused=frozenset(missing & self._refused),
            forgotten=0 if is_known else self._forgotten,
            doubtful=frozenset(() if is_known else self._doubtful),
            off=self.off,
            is_unknown=self._holdings is not None and not is_known,
            silence="" if is_known else str(getattr(self._holdings, "silence", "")),
            overlooked=self._overlooked(),
        )

    def _overlooked(self) -> Recount:
        """Return the responses and tool calls in the files that neither the traces nor a complete reading has.

        The complete reading also has what is open or switched off, and knows what is skipped on purpose: copied turns
        and warm-ups.
        """
        left = Recount(frozenset(self._responses), frozenset(self._calls))
        if not left.total:
            return left
        reading = self._reader.read(self._session, Progress(), Ending(is_over=True))
        for piece in reading.pieces():
            left = left.minus(_identities(piece.traces))
        return left.minus(reading.skipped)


def _identities(traces: Iterable[Trace]) -> set[str]:
    """Return the ids of the responses and tool calls of some traces."""
    names = ("response_id", "tool_call_id")
    return {str(span.facts[name]) for trace in traces for span in trace.spans for name in names if name in span.facts}


def _ids(trace: Trace) -> set[bytes]:
    return {span.span_id for span in trace.spans}


def _tally_without(trace: Trace, missing: set[bytes]) -> Tally:
    """Return the figures of a trace without some of its spans."""
    spans = tuple(span for span in trace.spans if span.span_id not in missing)
    return tally_of(msgspec.structs.replace(trace, spans=spans))
