"""Many sessions, oldest first, each brought to its destinations by `ship`.

Rules:

- Sessions go in parallel, each by one process and in order. Who has a session locked keeps it: we come back later.
- A destination that says "later" is waited for as it asks. One that does not recover, or refuses our credentials, is
  left alone for the rest of the run, and the others go on.
- Wherever it is stopped, the cursors say what is left: the same command goes on there. Only what is sent *again* has no
  cursor to tell; but the oldest come first, so the time of the first that is left does.
"""

from __future__ import annotations

import heapq
import os
import time
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import log, worker
from turnspan.backends import Answer
from turnspan.bulk.pool import Crew, Done, Lost
from turnspan.delivery import backoff, marks, state
from turnspan.delivery.destinations import Target, identity_of
from turnspan.errors import StateError, TurnspanError
from turnspan.hook_event import Event
from turnspan.private_files import Busy
from turnspan.ship import Shipped, resend, ship
from turnspan.source.progress import Ending

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from turnspan.backends import Verdict
    from turnspan.bulk.plan import Job, Plan
    from turnspan.bulk.pool import Desk
    from turnspan.settings.config import Config, Destination
    from turnspan.source.progress import Progress

_FIRST_PAUSE_S: Final = 1.0
_LONGEST_PAUSE_S: Final = 60.0
_PATIENCE_S: Final = 300.0  # how long a destination may go on saying "later", and how long a hold is waited for
_BUSY_EVERY_S: Final = 1.0
_BUSY_PATIENCE_S: Final = 60.0
_LOOK_EVERY_S: Final = 0.1
_REFUSING_ALL: Final = 3  # sessions of which a destination has refused everything, having taken nothing yet


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """What every process of a run needs to know."""

    config: Config
    destinations: tuple[Destination, ...]
    rate: float | None = None  # spans a second, on average, of each process
    is_resend: bool = False


class Task(msgspec.Struct, frozen=True):
    """One session, and the destinations that are not to be asked any more."""

    job: Job
    given_up: frozenset[str] = frozenset()


class Step(msgspec.Struct, frozen=True):
    """What was acknowledged since the last step, and how much of the session's files has been read."""

    turns: int
    spans: int
    read_bytes: float


class Waiting(msgspec.Struct, frozen=True):
    """A destination asked for time."""

    reason: str
    seconds: float


class Sent(msgspec.Struct, frozen=True):
    """What became of one session."""

    shipped: tuple[Shipped, ...] = ()
    is_busy: bool = False
    error: str = ""
    is_state_error: bool = False


class Totals(msgspec.Struct):
    """What became of a run so far."""

    sessions: int = 0  # of which all that may leave is at every destination
    tried: int = 0  # done with, well or not
    turns: int = 0  # these and spans: of all destinations together
    spans: int = 0
    copied: int = 0  # turns that belong to another session, and are sent there
    off: int = 0  # traces that were switched off
    open: int = 0  # sessions with a turn that goes on: its hook will send it
    refused: int = 0
    cut: int = 0
    masked: dict[str, int] = {}
    left: dict[str, str] = {}  # session → why not all of it was acknowledged; project → why it cannot be listed
    given_up: dict[str, str] = {}  # destination → why it was not asked any more
    pending: int = 0  # sessions not done with, for no fault of theirs
    resend_since: str | None = None  # when the oldest began that was to be sent again and is not
    read_bytes: float = 0.0
    waiting: str = ""
    is_interrupted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether everything that may leave was acknowledged."""
        return not (self.left or self.given_up or self.pending or self.refused or self.is_interrupted)


# ---- one session, in a process of the crew


class Sender:
    """Sends one session after the other."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._targets = [Target(destination, orders.config) for destination in orders.destinations]
        self._began_s = time.monotonic()
        self._spans = 0

    def __call__(self, desk: Desk, task: Task) -> Sent:
        """Bring one session to every destination that is still to be asked."""
        home, session_id = self._orders.config.home, task.job.session.session_id
        shipped: list[Shipped] = []
        try:
            with state.lock(home, session_id):
                for place, target in enumerate(self._targets):
                    if target.identity not in task.given_up and not desk.is_stopping:
                        shipped.append(self._ship(desk, task.job, target, place / len(self._targets)))
            serve_waiting(home, session_id)
        except Busy:
            return Sent(is_busy=True)
        except TurnspanError as error:
            return Sent(tuple(shipped), error=str(error), is_state_error=isinstance(error, StateError))
        return Sent(tuple(shipped))

    def _ship(self, desk: Desk, job: Job, target: Target, behind: float) -> Shipped:
        turns = spans = 0
        patience = Patience(desk.pause, desk.tell)

        def goes_on(shipped: Shipped, progress: Progress) -> bool:
            nonlocal turns, spans
            offsets = [progress.main.offset, *(position.offset for position in progress.agents.values())]
            read = job.bytes * behind + min(job.bytes, sum(offsets)) / len(self._targets)
            desk.tell(Step(shipped.turns - turns, shipped.spans - spans, read))
            self._spans += shipped.spans - spans
            turns, spans = shipped.turns, shipped.spans
            patience.renew()
            return desk.pause(self._ahead_s())

        ending = Ending(now_ns=time.time_ns())
        send = resend if self._orders.is_resend else ship
        shipped = send(job.session, target, ending, time.time, is_patient=patience, should_continue=goes_on)
        if patience.is_cut_short:
            # It is the person who has no time: nobody was given up, and who starts it again need not wait.
            backoff.clear(target.home, target.identity)
            shipped.stopped, shipped.is_interrupted = None, True
        return shipped

    def _ahead_s(self) -> float:
        """How long to wait to be within the rate."""
        rate = self._orders.rate
        return 0.0 if rate is None else self._spans / rate - (time.monotonic() - self._began_s)


class Patience:
    """Waits for a destination that says "later": as long as it asks, or ever longer.

    `pause` waits and says whether it was allowed to; `tell` hears for how long, and why.
    """

    def __init__(self, pause: Callable[[float], bool], tell: Callable[[Waiting], None]) -> None:
        self._pause = pause
        self._tell = tell
        self.is_cut_short = False  # it was not allowed to wait
        self.renew()

    def renew(self) -> None:
        """Something was acknowledged."""
        self._waited_s, self._pause_s = 0.0, _FIRST_PAUSE_S

    def __call__(self, verdict: Verdict) -> bool:
        """Whether to try again, after the wait."""
        pause_s = max(self._pause_s, verdict.retry_after_s or 0.0)
        if self._waited_s + pause_s > _PATIENCE_S:
            return False
        self._tell(Waiting(verdict.reason, pause_s))
        self._waited_s += pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
        self.is_cut_short = not self._pause(pause_s)
        return not self.is_cut_short


def serve_waiting(home: Path, session_id: str) -> None:
    """Serve the events that came while we had their session: their workers have left them to us."""
    if not marks.has_marks(home, session_id):
        return
    events = marks.read_marks(home, session_id).events
    path = next((str(facts["path"]) for facts in events if facts.get("path")), "")
    # An event that says nothing by itself: those that wait say it all.
    event = Event(hook_event_name="SubagentStop", session_id=session_id, transcript_path=path)
    try:
        worker.serve(event, os.environ, time.time, time.sleep)
    except TurnspanError as error:  # theirs, not ours
        log.log_line(home, "ERROR", "failed", session=session_id, reason=str(error))


# ---- all of them


def run(
    plan: Plan, orders: Orders, processes: int, watch: Callable[[Totals], None], should_stop: Callable[[], bool]
) -> Totals:
    """Send what is planned. `watch` hears how far it is, many times a second."""
    totals = Totals(pending=len(plan.jobs))
    for destination in orders.destinations:
        held = backoff.load(orders.config.home, identity_of(destination))
        if held is not None and held.answer != Answer.LATER:
            # A person asks for it, perhaps after setting right what was wrong. Only a server that wants time gets it.
            backoff.clear(orders.config.home, identity_of(destination))
    if plan.jobs:
        size = min(processes, len(plan.jobs))
        shared = msgspec.structs.replace(orders, rate=orders.rate / size if orders.rate is not None else None)
        with Crew[Task](size, Sender, shared) as crew:
            _Run(plan, orders, crew, totals).work(watch, should_stop)
    totals.left.update(plan.unread)
    reasons = totals.given_up or dict(list(totals.left.items())[:1])
    if totals.is_interrupted:
        reasons = {"stopped": totals.waiting or "by the user"}
    is_fine = totals.is_complete or (totals.is_interrupted and not (totals.left or totals.given_up or totals.refused))
    log.log_line(
        orders.config.home, "INFO" if is_fine else "WARN", "backfilled", sessions=totals.sessions,
        turns=totals.turns, spans=totals.spans, left=len(totals.left) + totals.pending, refused=totals.refused,
        **({"reason": "; ".join(f"{name}: {why}" for name, why in reasons.items())} if reasons else {}),
    )  # fmt: skip
    return totals


class _Run:
    """The parent's side of a run: what is next, and what comes back."""

    def __init__(self, plan: Plan, orders: Orders, crew: Crew[Task], totals: Totals) -> None:
        self._home = orders.config.home
        self._is_resend = orders.is_resend
        self._crew = crew
        self._totals = totals
        self._jobs = plan.jobs
        self._since_ns = plan.since_ns
        self._complete: set[str] = set()
        self._queue = [(0.0, number) for number in range(len(plan.jobs))]  # from when on, and which
        self._number = {job.session.session_id: number for number, job in enumerate(plan.jobs)}
        self._names = {identity_of(destination): destination.name for destination in orders.destinations}
        self._read: dict[str, float] = {}
        self._busy_since: dict[str, float] = {}
        self._refusing: dict[str, int] = {}
        self._given_up: set[str] = set()

    def work(self, watch: Callable[[Totals], None], should_stop: Callable[[], bool]) -> None:
        """Until everything is done with, or nothing more can be."""
        totals = self._totals
        while True:
            if should_stop() and not totals.is_interrupted:
                totals.is_interrupted = True
                self._crew.stop()
            is_over = totals.is_interrupted or len(self._given_up) == len(self._names)
            while not is_over and self._crew.has_room and self._queue and self._queue[0][0] <= time.time():
                _, number = heapq.heappop(self._queue)
                self._crew.give(Task(self._jobs[number], frozenset(self._given_up)))
            if not self._crew.at_work and (is_over or not self._queue):
                break
            for task, message in self._crew.events(_LOOK_EVERY_S):
                self._take(task.job, message)
            watch(totals)
        totals.pending = len(self._jobs) - totals.sessions - len(totals.left)
        left_ns = [job.began_ns for job in self._jobs if job.session.session_id not in self._complete]
        if self._is_resend and left_ns:
            since_s = max(left_ns[0], self._since_ns) // 10**9
            totals.resend_since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s))
        watch(totals)

    def _take(self, job: Job, message: object) -> None:
        totals = self._totals
        match message:
            case Step(turns, spans, read_bytes):
                totals.turns += turns
                totals.spans += spans
                totals.waiting = ""
                self._note_read(job, read_bytes)
            case Waiting(reason, seconds):
                totals.waiting = f"waiting {seconds:.0f} s: {reason}"
            case Done(Sent() as sent):
                self._finish(job, sent)
            case Lost(exit_code):
                self._finish(job, Sent(error=f"the process that sent it ended with code {exit_code}"))

    def _note_read(self, job: Job, read_bytes: float) -> None:
        """Progress in bytes: what was acknowledged before the run does not count."""
        read = min(float(job.left_bytes), max(0.0, read_bytes - (job.bytes - job.left_bytes)))
        known = self._read.get(job.session.session_id, 0.0)
        self._read[job.session.session_id] = max(known, read)
        self._totals.read_bytes += max(0.0, read - known)

    def _finish(self, job: Job, sent: Sent) -> None:
        totals, session_id, now_s = self._totals, job.session.session_id, time.time()
        if sent.is_busy:
            if now_s - self._busy_since.setdefault(session_id, now_s) <= _BUSY_PATIENCE_S:
                return self._come_back(job, now_s + _BUSY_EVERY_S)
            sent = Sent(error="another turnspan has it")
        for shipped in sent.shipped:
            self._account(job, shipped)
        # What stays here stays here once, however many destinations do not get it.
        totals.copied += max((shipped.copied for shipped in sent.shipped), default=0)
        totals.off += max((shipped.off for shipped in sent.shipped), default=0)
        if sent.error:
            totals.left[session_id] = sent.error
            if sent.is_state_error:
                state.probe_writable(self._home)  # a disk that takes nothing is the end of the run
        held_until_s = max((self._held_until_s(shipped, now_s) for shipped in sent.shipped), default=0.0)
        if held_until_s:
            return self._come_back(job, held_until_s)
        totals.tried += 1
        self._note_read(job, job.bytes)
        if session_id not in totals.left and sum(shipped.is_complete for shipped in sent.shipped) == len(self._names):
            totals.sessions += 1
            self._complete.add(session_id)
            totals.open += any(shipped.has_unsealed for shipped in sent.shipped)
        return None

    def _come_back(self, job: Job, at_s: float) -> None:
        heapq.heappush(self._queue, (at_s, self._number[job.session.session_id]))

    def _held_until_s(self, shipped: Shipped, now_s: float) -> float:
        """Until when a destination is waited for; 0 if it is not."""
        until_s = shipped.held_until_s
        if until_s is None or shipped.destination in self._given_up:
            return 0.0
        until = f"on hold until {time.strftime('%H:%M:%S', time.localtime(until_s))}"
        if until_s - now_s > _PATIENCE_S:
            self._give_up(shipped.destination, until)
            return 0.0
        self._totals.waiting = f"{self._names[shipped.destination]} is {until}"
        return until_s

    def _give_up(self, destination: str, why: str) -> None:
        self._given_up.add(destination)
        self._totals.given_up[self._names[destination]] = why
        self._queue = [(0.0, number) for number in sorted(number for _, number in self._queue)]  # nothing to wait for

    def _account(self, job: Job, shipped: Shipped) -> None:
        totals = self._totals
        totals.refused += shipped.refused
        totals.cut += shipped.cut
        for rule, times in shipped.masked.items():
            totals.masked[rule] = totals.masked.get(rule, 0) + times
        if shipped.spans:
            self._refusing[shipped.destination] = -1  # it takes something: what it refuses is about single spans
        if shipped.stopped is None:
            return
        why = f"{shipped.stopped.answer}: {shipped.stopped.reason}"
        totals.left[job.session.session_id] = f"{self._names[shipped.destination]}: {why}"
        if shipped.stopped.answer is Answer.INVALID:
            refusing = self._refusing.get(shipped.destination, 0)
            self._refusing[shipped.destination] = refusing if refusing < 0 else refusing + 1
            if refusing + 1 < _REFUSING_ALL:
                backoff.clear(self._home, shipped.destination)  # what it refuses is this session's
                return
        self._give_up(shipped.destination, why)
