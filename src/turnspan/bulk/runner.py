"""Run a plan: hand its sessions to worker processes, oldest first, and add up the results.

`backfill` and the dry run both run here. They differ in the worker that handles one session: one sends, the other only
reads and masks.

Rules:

- Sessions run in parallel; one session is handled by one process at a time. Tasks become smaller, so that all processes
  finish at about the same time.
- If a process dies, or a task fails for an unforeseen reason, its sessions are tried again, one after the other
  and nothing beside them: the one that is the cause is named.
- A session that another process has locked is retried later.
- A destination that answers "later" gets the time it asks for. One that does not recover, or refuses our credentials,
  is given up for the rest of the run; the other destinations continue.
- A session that fails is named, and stops no other.
"""

from __future__ import annotations

import heapq
import time
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Answer
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import identity_of
from turnspan.errors import TurnspanError
from turnspan.processes import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.bulk.plan import Job, Plan
    from turnspan.delivery.ship import Shipped
    from turnspan.processes import Parent
    from turnspan.settings.config import Config, Destination
    from turnspan.source.progress import Progress

PATIENCE_S: Final = 300.0  # longest wait for a destination that answers "later", or is in backoff
_BUSY_EVERY_S: Final = 1.0
_BUSY_PATIENCE_S: Final = 60.0
_POLL_S: Final = 0.1
_LEAST_BYTES, _MOST_BYTES = 1 << 20, 32 << 20  # of a task; what it sends is committed in groups
_MOST_JOBS: Final = 128
_REFUSING_ALL: Final = 3  # sessions of which a destination refused everything before it accepted anything


class Orders(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a run, the same for every process."""

    config: Config
    destinations: tuple[Destination, ...]
    rate: float | None = None  # spans per second, on average, of each process
    is_resend: bool = False


class Task(msgspec.Struct, frozen=True):
    """Some sessions, which one process handles in order, and the destinations that were given up."""

    jobs: tuple[Job, ...]
    given_up: frozenset[str] = frozenset()
    is_retry: bool = False  # of one session, alone


class Step(msgspec.Struct, frozen=True):
    """What was acknowledged of a session since the last step, and how many bytes of its files have been read.

    A worker sends lists of them.
    """

    session_id: str
    turns: int
    spans: int
    read_bytes: float


class Waiting(msgspec.Struct, frozen=True):
    """A destination asked for time."""

    reason: str
    seconds: float


class SessionOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """The result of one session."""

    shipped: tuple[Shipped, ...] = ()
    is_busy: bool = False
    error: str = ""
    is_state_error: bool = False


class Totals(msgspec.Struct):
    """The result of a run so far. The field names are the keys of `backfill --json`."""

    sessions: int = 0  # complete at every destination
    tried: int = 0  # finished, complete or not
    turns: int = 0  # these and spans: of all destinations together
    spans: int = 0
    copied: int = 0  # turns that belong to another session and are exported from there
    repeated: int = 0  # turns that are in a file twice
    warmups: int = 0  # subagents that the client started by itself, to warm up
    off: int = 0  # traces of directories that are switched off
    open: int = 0  # sessions with a turn in progress: its hook will send it
    refused: int = 0
    cut: int = 0
    masked: dict[str, int] = {}
    unreadable: dict[str, int] = {}  # session → lines that cannot be read; the others were exported
    left: dict[str, str] = {}  # session → why it is incomplete; project → why it cannot be listed
    given_up: dict[str, str] = {}  # destination → why it was given up
    pending: int = 0  # sessions not finished and not failed
    resend_since: str | None = None  # start of the oldest session that was not sent again
    read_bytes: float = 0.0
    waiting: str = ""
    is_interrupted: bool = False

    @property
    def is_complete(self) -> bool:
        """Whether everything to export was acknowledged."""
        return not (self.left or self.given_up or self.pending or self.refused or self.is_interrupted)


class Runner:
    """The parent process of a run.

    `worker(orders)` is called once in each process and returns the function that handles one task: it returns the
    outcomes of its sessions, in order. `on_outcome` gets each of them.
    """

    def __init__(
        self,
        plan: Plan,
        orders: Orders,
        worker: Callable[[Orders], Callable[[Parent, Task], Sequence[SessionOutcome]]],
        on_outcome: Callable[[Job, SessionOutcome], None] = lambda _job, _outcome: None,
    ) -> None:
        self.totals = Totals(pending=len(plan.jobs))
        self._plan = plan
        self._orders = orders
        self._worker = worker
        self._on_outcome = on_outcome
        self._home = orders.config.home
        self._complete: set[str] = set()
        self._processes = 1
        self._queue = [(0.0, number) for number in range(len(plan.jobs))]  # not before this time; index of the job
        self._number = {job.session.session_id: number for number, job in enumerate(plan.jobs)}
        self._suspects: list[Job] = []  # of tasks that failed
        self._running: dict[Future[Sequence[SessionOutcome]], Task] = {}
        self._names = {identity_of(destination): destination.name for destination in orders.destinations}
        self._read: dict[str, float] = {}
        self._busy_since: dict[str, float] = {}
        self._refusing: dict[str, int] = {}
        self._given_up: set[str] = set()

    def run(self, processes: int, watch: Callable[[Totals], None], should_stop: Callable[[], bool]) -> Totals:
        """Handle every session of the plan. `watch` is called with the totals many times a second."""
        self._processes = min(processes, len(self._plan.jobs))
        while not self._is_over():
            self._work(watch, should_stop)  # again if a process died
        if self._plan.jobs:
            self._finish_totals()
            watch(self.totals)
        self.totals.left.update(self._plan.unread)
        self.totals.sessions += self._plan.complete
        self.totals.tried += self._plan.complete
        return self.totals

    def _is_over(self) -> bool:
        is_over = self.totals.is_interrupted or len(self._given_up) == len(self._names)
        return not self._running and (is_over or not (self._queue or self._suspects))

    def _work(self, watch: Callable[[Totals], None], should_stop: Callable[[], bool]) -> None:
        """Hand tasks to processes until all are done, or a process has died."""
        is_broken = False
        with self._started() as workers:
            while self._running or not (is_broken or self._is_over()):
                if should_stop() and not self.totals.is_interrupted:
                    self.totals.is_interrupted = True
                    workers.stop()
                while not is_broken and (task := self._next_task()) is not None:
                    self._running[_submitted(workers, task)] = task
                done = wait(self._running, _POLL_S, FIRST_COMPLETED).done
                if not self._running:
                    time.sleep(_POLL_S)  # a session that is locked is tried again later
                for report in workers.reports():
                    self._note(report)
                for future in done:
                    self._take(self._running.pop(future), future)
                    is_broken |= isinstance(future.exception(), BrokenExecutor)
                watch(self.totals)

    def _started(self) -> Workers:
        rate = self._orders.rate
        shared = msgspec.structs.replace(self._orders, rate=rate / self._processes if rate is not None else None)
        try:
            return Workers(self._processes, self._worker, shared)
        except (OSError, ImportError, NotImplementedError) as error:  # the latter: a system without semaphores
            raise TurnspanError(f"cannot start processes: {error}") from error

    def _next_task(self) -> Task | None:
        """Return the next task, if one can begin now."""
        is_over = self.totals.is_interrupted or len(self._given_up) == len(self._names)
        if is_over or len(self._running) >= (1 if self._suspects else self._processes):
            return None
        given_up = frozenset(self._given_up)
        if self._suspects:
            return Task((self._suspects.pop(0),), given_up, is_retry=True)
        jobs = self._next_jobs()
        return Task(jobs, given_up) if jobs else None

    def _next_jobs(self) -> tuple[Job, ...]:
        """Take the next jobs from the queue: less than a process's share of what is left, unless there is only one.

        A process waits for the disk at the end of each task, so there should be few.
        """
        shares = self._processes + 1 if self._processes > 1 else 1
        left_bytes = sum(self._plan.jobs[number].left_bytes for _, number in self._queue)
        most_bytes = min(_MOST_BYTES, max(_LEAST_BYTES, left_bytes // shares))
        most_jobs = min(_MOST_JOBS, -(-len(self._queue) // shares))
        jobs: list[Job] = []
        size = 0
        while self._queue and self._queue[0][0] <= time.time() and len(jobs) < most_jobs:
            job = self._plan.jobs[self._queue[0][1]]
            size += job.left_bytes
            if jobs and size > most_bytes:
                break
            heapq.heappop(self._queue)
            jobs.append(job)
        return tuple(jobs)

    def _finish_totals(self) -> None:
        totals, jobs = self.totals, self._plan.jobs
        totals.pending = len(jobs) - totals.sessions - len(totals.left)
        left_ns = [job.began_ns for job in jobs if job.session.session_id not in self._complete]
        if self._orders.is_resend and left_ns:
            since_s = max(left_ns[0], self._plan.since_ns) // 10**9
            totals.resend_since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since_s))

    def _note(self, report: object) -> None:
        """Take a report about a running task."""
        totals = self.totals
        match report:
            case list() as steps:
                for step in steps:
                    totals.turns += step.turns
                    totals.spans += step.spans
                    self._note_read(self._plan.jobs[self._number[step.session_id]], step.read_bytes)
                totals.waiting = ""
            case Waiting(reason, seconds):
                totals.waiting = f"waiting {seconds:.0f} s: {reason}"

    def _take(self, task: Task, future: Future[Sequence[SessionOutcome]]) -> None:
        """Take the result of a task."""
        error = future.exception()
        if error is None:
            for job, outcome in zip(task.jobs, future.result(), strict=False):  # after a stop there are fewer
                self._finish(job, outcome)
        elif task.is_retry:
            is_dead = isinstance(error, BrokenExecutor)
            why = "its process ended unexpectedly" if is_dead else f"{type(error).__name__}: {error}"
            self._finish(task.jobs[0], SessionOutcome(error=why))
        else:
            self._suspects += task.jobs

    def _note_read(self, job: Job, read_bytes: float) -> None:
        """Count progress in bytes, without those that were acknowledged before the run."""
        read = min(float(job.left_bytes), max(0.0, read_bytes - (job.bytes - job.left_bytes)))
        known = self._read.get(job.session.session_id, 0.0)
        self._read[job.session.session_id] = max(known, read)
        self.totals.read_bytes += max(0.0, read - known)

    def _finish(self, job: Job, outcome: SessionOutcome) -> None:
        totals, session_id, now_s = self.totals, job.session.session_id, time.time()
        if outcome.is_busy:
            if now_s - self._busy_since.setdefault(session_id, now_s) <= _BUSY_PATIENCE_S:
                return self._retry(job, now_s + _BUSY_EVERY_S)
            outcome = SessionOutcome(error="another turnspan process is working on it")
        self._on_outcome(job, outcome)
        for shipped in outcome.shipped:
            self._account(job, shipped)
        # A trace that is not exported counts once, however many destinations there are.
        totals.copied += max((shipped.counts.copied for shipped in outcome.shipped), default=0)
        totals.repeated += max((shipped.counts.repeated for shipped in outcome.shipped), default=0)
        totals.warmups += max((shipped.counts.warmups for shipped in outcome.shipped), default=0)
        totals.off += max((shipped.off for shipped in outcome.shipped), default=0)
        unreadable = max((shipped.unreadable for shipped in outcome.shipped), default=0)
        if unreadable:
            totals.unreadable[session_id] = max(unreadable, totals.unreadable.get(session_id, 0))
        if outcome.error:
            totals.left[session_id] = outcome.error
            if outcome.is_state_error:
                state.probe_writable(self._home)  # if the disk is not writable, end the run
        held_until_s = max((self._held_until_s(shipped, now_s) for shipped in outcome.shipped), default=0.0)
        if held_until_s:
            return self._retry(job, held_until_s)
        totals.tried += 1
        self._note_read(job, job.bytes)
        complete = sum(shipped.is_complete for shipped in outcome.shipped)
        if session_id not in totals.left and complete == len(self._names):
            totals.sessions += 1
            self._complete.add(session_id)
            totals.open += any(shipped.has_unsealed for shipped in outcome.shipped)
        return None

    def _retry(self, job: Job, at_s: float) -> None:
        heapq.heappush(self._queue, (at_s, self._number[job.session.session_id]))

    def _held_until_s(self, shipped: Shipped, now_s: float) -> float:
        """Until when to wait for a destination in backoff; 0 if the run does not wait for it."""
        until_s = shipped.held_until_s
        if until_s is None or shipped.destination in self._given_up:
            return 0.0
        until = f"backing off until {time.strftime('%H:%M:%S', time.localtime(until_s))}"
        if until_s - now_s > PATIENCE_S:
            self._give_up(shipped.destination, until)
            return 0.0
        self.totals.waiting = f"{self._names[shipped.destination]} is {until}"
        return until_s

    def _give_up(self, destination: str, why: str) -> None:
        self._given_up.add(destination)
        self.totals.given_up[self._names[destination]] = why
        self._queue = [(0.0, number) for number in sorted(number for _, number in self._queue)]  # no more waiting

    def _account(self, job: Job, shipped: Shipped) -> None:
        totals = self.totals
        totals.refused += shipped.counts.refused
        totals.cut += shipped.counts.cut
        add_counts(totals.masked, shipped.counts.masked)
        if shipped.spans:
            self._refusing[shipped.destination] = -1  # it accepts some spans: a refusal is about single spans
        if shipped.stopped is None:
            return
        why = f"{shipped.stopped.answer}: {shipped.stopped.reason}"
        totals.left[job.session.session_id] = f"{self._names[shipped.destination]}: {why}"
        if shipped.stopped.answer is Answer.INVALID:
            refusing = self._refusing.get(shipped.destination, 0)
            self._refusing[shipped.destination] = refusing if refusing < 0 else refusing + 1
            if refusing + 1 < _REFUSING_ALL:
                backoff.clear(self._home, shipped.destination)  # the refusal is about this session
                return
        self._give_up(shipped.destination, why)


def _submitted(workers: Workers, task: Task) -> Future[Sequence[SessionOutcome]]:
    """Hand a task to a process; what prevents it is in the result. Raises TurnspanError if none can be started."""
    try:
        return workers.submit(task)
    except BrokenExecutor as error:
        failed: Future[Sequence[SessionOutcome]] = Future()
        failed.set_exception(error)
        return failed
    except OSError as error:
        raise TurnspanError(f"cannot start processes: {error}") from error


def bytes_read(job: Job, progress: Progress, index: int, destinations: int) -> float:
    """How many bytes of a session were read, on average over its destinations, while the one at `index` is served."""
    offset = progress.main.offset + sum(position.offset for position in progress.agents.values())
    return (job.bytes * index + min(job.bytes, offset)) / destinations


def add_counts(counts: dict[str, int], more: dict[str, int]) -> None:
    """Add the second counts to the first."""
    for name, times in more.items():
        counts[name] = counts.get(name, 0) + times
