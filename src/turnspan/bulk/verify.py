"""What is there, against what should be: transcripts, acknowledgements, and the backend itself where it can be asked.

Rules:

- What should be there is built from the transcript, as `ship` builds it. Identities are derived, so whether a span is
  there is a question about its id.
- Where a backend can be asked, its word counts; where it cannot, what it acknowledged does.
- A partial success may say how many spans were refused and not which: then nobody knows, and it is not called complete.
- A backend that gives no answer is not one that holds nothing: such a session is unknown, and not repaired.
- A repair sends exactly what is missing, through `ship`, and nothing that has arrived.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery import state
from turnspan.ship import send_again, send_unsent
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.source.scan import size_of
from turnspan.trace.tally import Tally, tally_of
from turnspan.unsent import read_unsent

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends import Holdings, Verdict
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config
    from turnspan.ship import Shipped
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace
    from turnspan.unsent import Unsent

_BUSY_PATIENCE_S: Final = 10.0


class Checked(msgspec.Struct, frozen=True, kw_only=True):
    """One session at one destination."""

    session: SessionFile
    project: str
    spans: int  # that should be there
    expected: Tally
    acknowledged: Tally
    stored: Tally | None  # None: the backend cannot be asked, or did not answer
    unsent: frozenset[bytes] = frozenset()  # spans that were never acknowledged and are not there
    lost: frozenset[bytes] = frozenset()  # spans that were acknowledged and are not there
    refused: frozenset[bytes] = frozenset()  # of the missing ones, those the destination would not take
    forgotten: int = 0  # so many more that it would not take: which ones is not remembered
    doubtful: frozenset[bytes] = frozenset()  # spans among which the destination refused some, without saying which
    there: frozenset[bytes] = frozenset()  # spans the backend holds
    ending: Ending = Ending()  # what was known of the session's end
    off: int = 0  # traces that are switched off
    is_unknown: bool = False  # the backend can be asked, but did not answer
    silence: str = ""  # why not, where that is known

    @property
    def missing(self) -> int:
        """How many spans are not there."""
        return len(self.unsent | self.lost | self.refused) + self.forgotten

    @property
    def is_complete(self) -> bool:
        """Whether all that should be there is."""
        return not self.missing and not self.doubtful and not self.is_unknown


def check(session: SessionFile, target: Target, config: Config, holdings: Holdings | None, now_ns: int) -> Checked:
    """Compare a session with what a destination acknowledged, and with what it holds."""
    checkpoint = state.known(config.home, session.session_id)
    cursor = checkpoint.destinations.get(target.identity, state.Cursor())
    rest = read_unsent(session, target, now_ns)
    left = rest.spans
    ending = _ending(session, cursor, rest, now_ns)
    quarantined = {bytes.fromhex(entry.span_id) for entry in cursor.quarantined if entry.span_id}
    doubted = {bytes.fromhex(entry.trace_id) for entry in cursor.quarantined if not entry.span_id}
    not_acknowledged = left | quarantined
    wanted: set[bytes] = set()
    doubtful: set[bytes] = set()
    there: set[bytes] = set()
    expected = acknowledged = stored = Tally()
    off = 0
    is_unknown = False
    project = ""
    for piece in Reading(session, Progress(), ending, target.prices).pieces():
        for trace in piece.traces:
            project = project or trace.cwd
            if checkpoint.is_off or target.mask.is_off(trace.cwd):
                off += 1
                continue
            ids = {span.span_id for span in trace.spans}
            wanted |= ids
            doubtful |= ids if trace.trace_id in doubted else set()
            expected += tally_of(trace)
            acknowledged += tally_of(_without(trace, not_acknowledged))
            held = holdings.stored(trace.trace_id) if holdings is not None else None
            if held is None:
                is_unknown |= holdings is not None
                continue
            there |= held
            stored += tally_of(_without(trace, ids - held))
    is_asked = holdings is not None and not is_unknown
    missing = wanted - there if is_asked else wanted & not_acknowledged
    return Checked(
        session=session,
        project=project or session.project,
        spans=len(wanted),
        expected=expected,
        acknowledged=acknowledged,
        stored=stored if is_asked else None,
        unsent=frozenset(missing & left),
        lost=frozenset(missing - left - quarantined),
        refused=frozenset(missing & quarantined),
        forgotten=0 if is_asked else cursor.forgotten,
        doubtful=frozenset() if is_asked else frozenset(doubtful - not_acknowledged),
        there=frozenset(there),
        ending=ending,
        off=off,
        is_unknown=is_unknown,
        silence=str(getattr(holdings, "silence", "")) if is_unknown else "",
    )


def repair(
    session: SessionFile,
    target: Target,
    config: Config,
    holdings: Holdings | None,
    is_patient: Callable[[Verdict], bool] = lambda _verdict: False,
) -> list[Shipped]:
    """Send what is missing of a session. Raises Busy if someone else keeps it; events may wait after it."""
    with state.lock(config.home, session.session_id, _BUSY_PATIENCE_S):
        now_ns = time.time_ns()
        found = check(session, target, config, holdings, now_ns)  # again: it may have moved on
        if found.is_unknown:
            return []
        done: list[Shipped] = []
        again = found.lost | (found.refused if holdings is not None else frozenset())
        if again:
            done.append(send_again(session, target, found.ending, time.time, again, is_patient=is_patient))
        if found.unsent and all(shipped.is_complete for shipped in done):
            ending = Ending(now_ns=now_ns)
            done.append(send_unsent(session, target, ending, time.time, found.there, is_patient=is_patient))
        return done


def _ending(session: SessionFile, cursor: state.Cursor, rest: Unsent, now_ns: int) -> Ending:
    """What may be counted on: a turn that was acknowledged has ended, however short ago, if none goes on behind it.

    Its place need not be the file's end: the client writes how long a turn took after its hook has returned.
    """
    is_at_end = cursor.progress.main.offset == size_of(session.path)
    return Ending(is_stopped=is_at_end or not rest.has_open_turn, now_ns=now_ns)


def _without(trace: Trace, ids: set[bytes] | frozenset[bytes]) -> Trace:
    return msgspec.structs.replace(trace, spans=tuple(span for span in trace.spans if span.span_id not in ids))
