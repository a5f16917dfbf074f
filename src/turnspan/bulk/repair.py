"""Send what a check found to be missing: exactly that, through `ship`.

A session that no event and no backfill has begun is never sent from here: that is the user's decision.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from turnspan.bulk.backfill import serve_waiting
from turnspan.bulk.verify import check, compared
from turnspan.delivery import backoff, state
from turnspan.delivery.ship import Wanted, ship
from turnspan.errors import TurnspanError
from turnspan.files import Busy
from turnspan.source.ending import Ending

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends import Readable, Verdict
    from turnspan.bulk.verify import Checked
    from turnspan.delivery.backoff import Patience
    from turnspan.delivery.destinations import Target
    from turnspan.delivery.ship import Shipped
    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile

_BUSY_PATIENCE_S: Final = 10.0
_ASK_AGAIN_S: Final = (0.2, 0.8)  # pauses: what was sent a moment ago may not be shown yet


def repair_problem(
    checked: Checked, target: Target, config: Config, holdings: Readable | None, patience: Patience
) -> str:
    """Repair a session; return why it is not complete, or "" if it is."""
    if why_not := _why_not_repairable(checked, is_asked=holdings is not None):
        return why_not
    if not _is_begun(checked, target):
        return "no event and no backfill has begun it; `turnspan backfill` sends it"
    try:
        done = repair(checked.session, target, config, holdings, patience)
        serve_waiting(config.home, checked.session.session_id)
    except Busy:
        return "another turnspan process is sending it"
    except TurnspanError as error:
        return str(error)
    if patience.is_cut_short:
        backoff.clear(config.home, target.identity)  # the user ended the wait, the destination did not fail
    for shipped in done:
        if shipped.stopped is not None:
            return f"{shipped.stopped.answer}: {shipped.stopped.reason}"
        if shipped.held_until_s is not None:
            return f"backing off until {time.strftime('%H:%M', time.localtime(shipped.held_until_s))}"
        if shipped.counts.refused:
            return f"{shipped.counts.refused} spans were refused"
    return _not_shown_yet(checked, target, config, holdings)


def _is_begun(checked: Checked, target: Target) -> bool:
    """Return whether a destination has, or had, something of a session: by its cursor or by what it stores."""
    checkpoint = state.known(target.home, checked.session.session_id)
    return target.identity in checkpoint.destinations or len(checked.unsent) < checked.spans


def _not_shown_yet(checked: Checked, target: Target, config: Config, holdings: Readable | None) -> str:
    """Ask again whether a backend has everything now; return what is not there yet, or "" if nothing is missing."""
    if holdings is None:
        return ""
    for pause_s in (*_ASK_AGAIN_S, None):
        try:
            found = check(checked.session, target, config, holdings, time.time_ns())
        except TurnspanError as error:
            return str(error)
        if not found.missing or found.in_flight or pause_s is None:
            break
        time.sleep(pause_s)
    if found.is_unknown:
        return f"it was sent, but the destination did not answer{found.silence and f': {found.silence}'}"
    if found.in_flight:
        return f"{len(found.in_flight)} spans are in flight; run `turnspan verify` again in some minutes"
    return f"{found.missing} spans are still missing" if found.missing else ""


def _why_not_repairable(checked: Checked, *, is_asked: bool) -> str:
    if checked.is_unknown:
        return f"the destination did not answer{checked.silence and f': {checked.silence}'}"
    if not checked.missing and not checked.doubtful:
        return "turnspan does not recognise some of its responses; please report this"
    if checked.in_flight and not (checked.unsent or checked.lost or checked.refused):
        return f"{len(checked.in_flight)} spans are in flight; run `turnspan verify` again in some minutes"
    if not checked.unsent and not checked.lost and not is_asked:
        return "it was refused, and the destination cannot be queried; try `turnspan backfill --resend`"
    return ""


def repair(
    session: SessionFile,
    target: Target,
    config: Config,
    holdings: Readable | None,
    is_patient: Callable[[Verdict], bool] = lambda _verdict: False,
) -> list[Shipped]:
    """Send what is missing of a session. Raises Busy if another process has it; events may wait after it."""
    with state.lock(config.home, session.session_id, _BUSY_PATIENCE_S):
        now_ns = time.time_ns()
        comparison = compared(session, target, config, holdings, now_ns)  # once more: it may have changed
        found = comparison.result()
        if found.is_unknown:
            return []
        done: list[Shipped] = []
        again = found.lost | (found.refused if holdings is not None else frozenset())
        if again:
            wanted = Wanted(again=again)
            done.append(ship(session, target, comparison.ending, time.time, wanted, is_patient=is_patient))
        if found.unsent and all(shipped.is_complete for shipped in done):
            wanted = Wanted(stored=frozenset(comparison.arrived))
            done.append(ship(session, target, Ending.asked(now_ns), time.time, wanted, is_patient=is_patient))
        return done
