"""What a backfill would send, without sending it: read and masked like the real thing.

Rules:

- Nothing is written, not even a lock, and nothing is connected to.
- What was acknowledged is not counted again: these are the turns that would leave now.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from turnspan.bulk.pool import Crew, Done, Lost
from turnspan.delivery.destinations import Target
from turnspan.errors import TurnspanError
from turnspan.trace.tally import Tally
from turnspan.unsent import read_unsent

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.bulk.backfill import Orders
    from turnspan.bulk.plan import Job, Plan
    from turnspan.bulk.pool import Desk

_LOOK_EVERY_S = 0.1


class Share(msgspec.Struct):
    """What one project would send to one destination."""

    sessions: int = 0
    tally: Tally = Tally()
    bytes: int = 0  # of transcripts that are to be read
    masked: dict[str, int] = {}  # how often each rule would mask something
    off: int = 0  # traces that are switched off
    copied: int = 0

    def add(self, other: Share) -> None:
        """Take in another part."""
        self.sessions += other.sessions
        self.tally += other.tally
        self.bytes += other.bytes
        self.off += other.off
        self.copied += other.copied
        for rule, times in other.masked.items():
            self.masked[rule] = self.masked.get(rule, 0) + times


class Surveyed(msgspec.Struct, frozen=True):
    """One session: its project, and what each destination would get."""

    project: str
    shares: dict[str, Share]
    error: str = ""


class Survey(msgspec.Struct):
    """What would be sent: by destination, by project."""

    destinations: dict[str, dict[str, Share]]
    failed: dict[str, str] = {}  # session or project → why it cannot be read
    sessions: int = 0
    read_bytes: int = 0
    is_interrupted: bool = False

    def total(self, destination: str) -> Share:
        """All projects together."""
        total = Share()
        for share in self.destinations[destination].values():
            total.add(share)
        return total


class Surveyor:
    """Looks at one session after the other."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._targets = [Target(destination, orders.config) for destination in orders.destinations]

    def __call__(self, desk: Desk, job: Job) -> Surveyed:
        """What would be sent of one session."""
        shares: dict[str, Share] = {}
        project = ""
        try:
            for target in self._targets:
                if not desk.is_stopping:
                    shares[target.destination.name], cwd = self._look(job, target)
                    project = project or cwd
        except TurnspanError as error:
            return Surveyed(project or job.session.project, shares, str(error))
        return Surveyed(project or job.session.project, shares)

    def _look(self, job: Job, target: Target) -> tuple[Share, str]:
        is_resend = self._orders.is_resend
        found = read_unsent(job.session, target, time.time_ns(), is_resend=is_resend, is_masking=True)
        share = Share(tally=found.tally, masked=found.masked, off=found.off, copied=found.copied)
        if found.spans:
            share.sessions = 1
            share.bytes = job.bytes if is_resend else job.left_bytes
        return share, found.cwd


def survey(
    plan: Plan, orders: Orders, processes: int, watch: Callable[[Survey], None], should_stop: Callable[[], bool]
) -> Survey:
    """Look at what is planned."""
    found = Survey({destination.name: {} for destination in orders.destinations}, dict(plan.unread))
    waiting = list(reversed(plan.jobs))
    with Crew["Job"](min(processes, len(waiting)), Surveyor, orders) as crew:
        while waiting or crew.at_work:
            if should_stop():
                found.is_interrupted = True
                crew.stop()
                waiting = []
            while waiting and crew.has_room:
                crew.give(waiting.pop())
            for job, message in crew.events(_LOOK_EVERY_S):
                _take(found, job, message)
            watch(found)
    return found


def _take(found: Survey, job: Job, message: object) -> None:
    match message:
        case Done(Surveyed() as one):
            for name, share in one.shares.items():
                found.destinations[name].setdefault(one.project, Share()).add(share)
            if one.error:
                found.failed[job.session.session_id] = one.error
        case Lost(exit_code):
            found.failed[job.session.session_id] = f"the process that read it ended with code {exit_code}"
    found.sessions += 1
    found.read_bytes += job.left_bytes
