"""Compare a session's transcript with what a destination acknowledged, and with what it stored.

Three steps, then a comparison:

- expected: the spans that the transcript gives, built as `ship` builds them. Ids are derived from the transcript, so
  whether a span arrived is a question about its id.
- acknowledged: all of these, except what the cursor says was not sent yet or was refused.
- stored: what the backend returns, where it can be queried. Where it cannot, what it acknowledged counts.

Rules:

- A partial success may give the number of refused spans without their ids. Then the spans of that trace are doubtful,
  and the session is not complete.
- A backend that does not answer is not an empty one: the session is unknown, and not repaired.
- A repair sends exactly what is missing, through `ship`.
- Responses and tool calls are also counted in the files, independently of how spans are built (`recount`). One that no
  span has is overlooked: the session is not complete, and no repair helps.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.bulk.recount import Recount, recount
from turnspan.delivery import state
from turnspan.delivery.callers import called
from turnspan.ship import send_again, send_unsent
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.trace.tally import Tally, tally_of
from turnspan.unsent import Rest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.backends import Holdings, Verdict
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config
    from turnspan.ship import Shipped
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace

_BUSY_PATIENCE_S: Final = 10.0


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
        return len(self.unsent | self.lost | self.refused) + self.forgotten

    @property
    def is_complete(self) -> bool:
        """Whether every expected span arrived, and every response in the files is expected."""
        return not (self.missing or self.doubtful or self.is_unknown or self.overlooked.total)


def check(session: SessionFile, target: Target, config: Config, holdings: Holdings | None, now_ns: int) -> Checked:
    """Compare a session with what a destination acknowledged, and with what it stored."""
    return _compare(session, *_sides(session, target, config, holdings, now_ns))


def repair(
    session: SessionFile,
    target: Target,
    config: Config,
    holdings: Holdings | None,
    is_patient: Callable[[Verdict], bool] = lambda _verdict: False,
) -> list[Shipped]:
    """Send what is missing of a session. Raises Busy if another process has it; events may wait after it."""
    with state.lock(config.home, session.session_id, _BUSY_PATIENCE_S):
        now_ns = time.time_ns()
        expected, acknowledged, stored = _sides(session, target, config, holdings, now_ns)
        found = _compare(session, expected, acknowledged, stored)  # once more: it may have changed before the lock
        if found.is_unknown:
            return []
        done: list[Shipped] = []
        again = found.lost | (found.refused if holdings is not None else frozenset())
        if again:
            ending = expected.ending
            done.append(send_again(session, target, ending, time.time, again, is_patient=is_patient))
        if found.unsent and all(shipped.is_complete for shipped in done):
            ending = Ending(now_ns=now_ns, is_asked=True)
            done.append(send_unsent(session, target, ending, time.time, stored.spans, is_patient=is_patient))
        return done


# ---- the three sides


class _Expected(msgspec.Struct, frozen=True):
    """What the transcript gives."""

    traces: list[Trace]  # without content, and without those that are switched off
    ending: Ending  # what is known about the session's end
    project: str
    off: int
    overlooked: Recount


class _Acknowledged(msgspec.Struct, frozen=True):
    """What the cursor of a destination says, apart from what it acknowledged."""

    unsent: frozenset[bytes]  # spans
    refused: frozenset[bytes]  # spans
    doubtful: frozenset[bytes]  # traces of which an unknown part was refused
    forgotten: int  # refused spans whose ids were not kept


class _Stored(msgspec.Struct, frozen=True):
    """What a backend returned; `is_known` if it answered for every trace."""

    spans: frozenset[bytes] = frozenset()
    is_known: bool = False
    silence: str | None = None  # why it did not answer; None if it was not queried, or answered


def _sides(
    session: SessionFile, target: Target, config: Config, holdings: Holdings | None, now_ns: int
) -> tuple[_Expected, _Acknowledged, _Stored]:
    checkpoint = state.known(config.home, session.session_id)
    cursor = checkpoint.destinations.get(target.identity, state.Cursor())
    rest = Rest(session, target, now_ns)
    unsent = [(_outline(trace), _ids([left])) for trace, left in rest.traces()]
    if cursor.progress == Progress() and not checkpoint.is_off:  # nothing was acknowledged: the rest is everything
        project = rest.cwd or session.project
        traces = [trace for trace, _ in unsent]
        expected = _Expected(traces, rest.ending, project, rest.off, overlooked(session, traces))
    else:
        # What was acknowledged has ended, whatever showed it then.
        acknowledged = 0 if rest.is_rewritten else cursor.progress.main.offset
        ending = msgspec.structs.replace(rest.ending, acknowledged=acknowledged)
        reading = Reading(session, Progress(), ending, target.prices)
        callers = checkpoint.callers
        built = (_outline(called(trace, callers)) for piece in reading.pieces() for trace in piece.traces)
        expected = _expected(session, built, ending, lambda cwd: checkpoint.is_off or target.mask.is_off(cwd))
    not_sent = frozenset[bytes]().union(*(spans for _, spans in unsent))
    return expected, _acknowledged(cursor, not_sent), _stored(expected, holdings)


def _outline(trace: Trace) -> Trace:
    """A trace without its content: ids, kinds and figures."""
    spans = tuple(msgspec.structs.replace(span, input=None, output=None) for span in trace.spans)
    return msgspec.structs.replace(trace, spans=spans)


def _expected(
    session: SessionFile, traces: Iterable[Trace], ending: Ending, is_off: Callable[[str], bool]
) -> _Expected:
    """The traces to export, and how many are switched off."""
    wanted: list[Trace] = []
    project, off = "", 0
    for trace in traces:
        project = project or trace.cwd
        if is_off(trace.cwd):
            off += 1
        else:
            wanted.append(trace)
    return _Expected(wanted, ending, project or session.project, off, overlooked(session, wanted))


def overlooked(session: SessionFile, traces: Iterable[Trace]) -> Recount:
    """Return the responses and tool calls in a session's files that neither these traces nor a complete reading has.

    The complete reading also has what is open or switched off, and knows what is skipped on purpose: copied turns and
    warm-ups.
    """
    left = recount(session).minus(_identities(traces))
    if not left.total:
        return left
    reading = Reading(session, Progress(), Ending(is_over=True))
    for piece in reading.pieces():
        left = left.minus(_identities(piece.traces))
    return left.minus(reading.skipped)


def _identities(traces: Iterable[Trace]) -> set[str]:
    """Return the ids of the responses and tool calls of some traces."""
    names = ("response_id", "tool_call_id")
    return {str(span.facts[name]) for trace in traces for span in trace.spans for name in names if name in span.facts}


def _acknowledged(cursor: state.Cursor, unsent: frozenset[bytes]) -> _Acknowledged:
    """What was not acknowledged: not sent yet, or refused."""
    return _Acknowledged(
        unsent=unsent,
        refused=frozenset(bytes.fromhex(entry.span_id) for entry in cursor.quarantined if entry.span_id),
        doubtful=frozenset(bytes.fromhex(entry.trace_id) for entry in cursor.quarantined if not entry.span_id),
        forgotten=cursor.forgotten,
    )


def _stored(expected: _Expected, holdings: Holdings | None) -> _Stored:
    """What the backend has of the expected traces."""
    if holdings is None:
        return _Stored()
    answers = [holdings.stored(trace.trace_id) for trace in expected.traces]
    is_known = None not in answers
    spans = frozenset[bytes]().union(*(answer for answer in answers if answer is not None))
    return _Stored(spans, is_known, None if is_known else str(getattr(holdings, "silence", "")))


# ---- the comparison


def _compare(session: SessionFile, expected: _Expected, acknowledged: _Acknowledged, stored: _Stored) -> Checked:
    """What is missing. Where the backend answered, its answer counts; else what it acknowledged."""
    wanted = _ids(expected.traces)
    not_acknowledged = acknowledged.unsent | acknowledged.refused
    doubtful = _ids(trace for trace in expected.traces if trace.trace_id in acknowledged.doubtful)
    missing = wanted - stored.spans if stored.is_known else wanted & not_acknowledged
    return Checked(
        session=session,
        project=expected.project,
        spans=len(wanted),
        expected=_tally(expected.traces, wanted),
        acknowledged=_tally(expected.traces, wanted - not_acknowledged),
        stored=_tally(expected.traces, stored.spans) if stored.is_known else None,
        unsent=missing & acknowledged.unsent,
        lost=missing - not_acknowledged,
        refused=missing & acknowledged.refused,
        forgotten=0 if stored.is_known else acknowledged.forgotten,
        doubtful=frozenset() if stored.is_known else doubtful - not_acknowledged,
        off=expected.off,
        is_unknown=stored.silence is not None,
        silence=stored.silence or "",
        overlooked=expected.overlooked,
    )


def _ids(traces: Iterable[Trace]) -> frozenset[bytes]:
    return frozenset(span.span_id for trace in traces for span in trace.spans)


def _tally(traces: Iterable[Trace], ids: frozenset[bytes]) -> Tally:
    """The figures of these spans of some traces."""
    total = Tally()
    for trace in traces:
        spans = tuple(span for span in trace.spans if span.span_id in ids)
        total += tally_of(msgspec.structs.replace(trace, spans=spans))
    return total
