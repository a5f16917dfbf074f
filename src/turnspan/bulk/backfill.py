"""Send the sessions of a plan, each through `ship`.

A run can be interrupted at any point: the cursors hold what is left, and the same command continues. Only sessions that
are sent *again* have no cursor for it; they run oldest first, so the start of the oldest one left is where to continue.
"""

from __future__ import annotations

import importlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import log
from turnspan.backends import Answer
from turnspan.bulk.group import CommitGroup, Outbox
from turnspan.bulk.runner import PATIENCE_S, Runner, SessionOutcome, Step, Waiting, bytes_read
from turnspan.claude.event import Event
from turnspan.delivery import backoff, marks, state
from turnspan.delivery.backoff import Patience
from turnspan.delivery.destinations import Target, identity_of
from turnspan.delivery.ship import ALL, UNSENT, Shipped, ship
from turnspan.errors import StateError, TurnspanError
from turnspan.files import Busy
from turnspan.processes import can_fork
from turnspan.source.ending import Ending

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from turnspan.bulk.plan import Job, Plan
    from turnspan.bulk.runner import Orders, Task, Totals
    from turnspan.processes import Parent
    from turnspan.settings.config import Config
    from turnspan.source.progress import Progress

_PAUSES_S: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0)


def run(
    plan: Plan, orders: Orders, processes: int, watch: Callable[[Totals], None], should_stop: Callable[[], bool]
) -> Totals:
    """Send the sessions of a plan. `watch` is called with the totals many times a second.

    Raises StateError if no progress could be stored.
    """
    state.probe_writable(orders.config.home)
    for destination in orders.destinations:
        held = backoff.load(orders.config.home, identity_of(destination))
        if held is not None and held.answer != Answer.LATER:
            # The user may have fixed the cause. Only a server that asked for time gets it.
            backoff.clear(orders.config.home, identity_of(destination))
    if min(processes, len(plan.jobs)) > 1 and can_fork():
        _load()
    totals = Runner(plan, orders, Sender).run(processes, watch, should_stop)
    _log(orders.config, totals)
    return totals


def _load() -> None:
    """Import what each process needs to send its first session: forked ones then have it."""
    for name in ("filelock", "turnspan.delivery.deliver", "turnspan.delivery.policy", "turnspan.source.reader"):
        importlib.import_module(name)


def _log(config: Config, totals: Totals) -> None:
    reasons = [f"{name}: {why}" for name, why in (totals.given_up or dict(list(totals.left.items())[:1])).items()]
    is_failed = bool(reasons or totals.refused)
    if totals.is_interrupted:  # not an error: `status` shows warnings as the last error
        reasons.append(f"interrupted while {totals.waiting}" if totals.waiting else "interrupted")
    log.log_line(
        config.home, "WARN" if is_failed else "INFO", "backfilled", sessions=totals.sessions, turns=totals.turns,
        spans=totals.spans, left=len(totals.left) + totals.pending, refused=totals.refused,
        **({"reason": "; ".join(reasons)} if reasons else {}),
    )  # fmt: skip


# ---- the sessions of a task, in a worker process


class Sender:
    """Sends the sessions of one task after the other; what they send is committed in groups (`group`)."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        home = orders.config.home
        self._group = CommitGroup(home, partial(serve_waiting, home))
        self._targets = [Target(each, orders.config, self._group) for each in orders.destinations]
        self._began_s = time.monotonic()
        self._spans = 0

    def __call__(self, parent: Parent, task: Task) -> list[SessionOutcome]:
        """Send each session to every destination that was not given up; return the outcomes, in order.

        After a request to stop, sessions that were not begun have no outcome.
        """
        group, outcomes = self._group, list[SessionOutcome]()
        group.failed, group.on_stored = {}, parent.send
        try:
            for place, job in enumerate(task.jobs):
                if place and parent.is_stopping:
                    break
                outcomes.append(self._begun(parent, task, job))
                self._send_again(parent, task, outcomes)
            group.store()
            self._send_again(parent, task, outcomes)
        except BaseException:
            group.abandon()
            raise
        for place, job in enumerate(task.jobs[: len(outcomes)]):
            if job.session.session_id in group.failed:
                outcomes[place] = _failed(group.failed[job.session.session_id])
        return outcomes

    def _begun(self, parent: Parent, task: Task, job: Job) -> SessionOutcome:
        """Lock a session and send it, with the group."""
        session_id = job.session.session_id
        try:
            self._group.lock(session_id)
        except Busy:
            return SessionOutcome(is_busy=True)
        except TurnspanError as error:
            return _failed(error)
        outcome = self._send(parent, task, job, self._targets)
        self._group.finish(session_id)
        return outcome

    def _send_again(self, parent: Parent, task: Task, outcomes: list[SessionOutcome]) -> None:
        """Send the sessions of a group that could not be stored again, each by itself: it may be about one of them."""
        for place, job in enumerate(task.jobs[: len(outcomes)]):
            refusing = self._group.refused.get(job.session.session_id)
            if refusing is not None:
                again = self._send(parent, task, job, [self._without_group(target) for target in self._targets])
                outcomes[place] = _merged(outcomes[place], again, refusing)
                self._group.finish_refused(job.session.session_id)

    def _without_group(self, target: Target) -> Target:
        """Return a target that commits at once, with the same backend."""
        plain = Target(target.destination, self._orders.config)
        plain.backend = target.backend.backend if isinstance(target.backend, Outbox) else target.backend
        return plain

    def _send(self, parent: Parent, task: Task, job: Job, targets: Sequence[Target]) -> SessionOutcome:
        """Send one session, which is locked."""
        shipped: list[Shipped] = []
        try:
            for index, target in enumerate(targets):
                is_refused = target.checkpoints is self._group and job.session.session_id in self._group.refused
                if target.identity not in task.given_up and not parent.is_stopping and not is_refused:
                    shipped.append(self._ship(parent, job, index, target))
        except TurnspanError as error:
            return _failed(error, shipped)
        return SessionOutcome(shipped=tuple(shipped))

    def _ship(self, parent: Parent, job: Job, index: int, target: Target) -> Shipped:
        """Send one session to the destination at `index`."""
        group, session_id = self._group, job.session.session_id
        is_grouped = target.checkpoints is group
        turns = spans = 0

        def pause(seconds: float) -> bool:
            is_stored = not is_grouped or not (seconds > 0 or group.is_full) or group.store()
            return is_stored and session_id not in group.failed and parent.pause(seconds)

        is_patient = patience(pause, parent.send)

        def commit(shipped: Shipped, progress: Progress) -> bool:
            nonlocal turns, spans
            read_bytes = bytes_read(job, progress, index, len(self._targets))
            step = Step(session_id, shipped.turns - turns, shipped.spans - spans, read_bytes)
            if is_grouped:
                group.when_stored(target.identity, step)
            else:
                parent.send([step])
            self._spans += shipped.spans - spans
            turns, spans = shipped.turns, shipped.spans
            is_patient.renew()
            return pause(self._ahead_s())

        ending, wanted = Ending.asked(time.time_ns()), ALL if self._orders.is_resend else UNSENT
        shipped = ship(job.session, target, ending, time.time, wanted, is_patient=is_patient, should_continue=commit)
        if is_patient.is_cut_short:
            # The user stopped the run, the destination did not fail: the next run need not wait.
            backoff.clear(target.home, target.identity)
            shipped.stopped, shipped.is_interrupted = None, True
        return shipped

    def _ahead_s(self) -> float:
        """Seconds to wait to stay within the rate."""
        rate = self._orders.rate
        return 0.0 if rate is None else self._spans / rate - (time.monotonic() - self._began_s)


def _failed(error: TurnspanError, shipped: Sequence[Shipped] = ()) -> SessionOutcome:
    return SessionOutcome(shipped=tuple(shipped), error=str(error), is_state_error=isinstance(error, StateError))


def _merged(before: SessionOutcome, again: SessionOutcome, refused: set[str]) -> SessionOutcome:
    """Return two runs of one session as one, without what refusing destinations seemed to accept in the first."""
    earlier = {shipped.destination: shipped for shipped in before.shipped if shipped.destination not in refused}
    both = tuple(earlier[one.destination] + one if one.destination in earlier else one for one in again.shipped)
    return msgspec.structs.replace(again, shipped=both)


def patience(pause: Callable[[float], bool], report: Callable[[Waiting], None]) -> Patience:
    """Return the patience of a run: some minutes, with growing pauses."""
    return Patience(pause, _PAUSES_S, PATIENCE_S, lambda reason, seconds: report(Waiting(reason, seconds)))


def serve_waiting(home: Path, session_id: str) -> None:
    """Handle the events that arrived while this process held the session's lock: their workers left them to it."""
    try:
        if not marks.has_marks(home, session_id):
            return
        from turnspan import worker  # noqa: PLC0415  few sessions are open during a backfill

        events = marks.read_marks(home, session_id).events
        path = next((str(facts["path"]) for facts in events if facts.get("path")), "")
        # This event means nothing by itself; it makes the worker handle those that wait.
        event = Event(hook_event_name="SubagentStop", session_id=session_id, transcript_path=path)
        worker.serve(event, os.environ, time.time, time.sleep)
    except TurnspanError as error:  # an error of the event, not of this run
        log.log_line(home, "ERROR", "failed", session=session_id, reason=str(error))
