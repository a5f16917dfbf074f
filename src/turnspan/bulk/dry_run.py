"""What a backfill would send: the same run with a worker that reads and masks, and does not send.

Rules:

- Nothing is written, not even a lock, and nothing is connected to. So a destination is not asked what it already stored
  after a lost response: such spans are announced, and a backfill may skip them.
- What was acknowledged is not counted: the figures are what a backfill would send now.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from turnspan.bulk.runner import Runner, SessionOutcome, Step, Totals, bytes_read
from turnspan.delivery.destinations import Target
from turnspan.delivery.ship import Shipped
from turnspan.delivery.unsent import Rest
from turnspan.errors import TurnspanError
from turnspan.source.ending import Ending
from turnspan.source.progress import Counts
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.bulk.plan import Job, Plan
    from turnspan.bulk.runner import Orders, Task
    from turnspan.processes import Parent


class Share(msgspec.Struct):
    """What one destination would receive, of one session or of one project."""

    sessions: int = 0
    spans: int = 0
    tally: Tally = Tally()
    bytes: int = 0  # of transcripts to read
    counts: Counts = Counts()
    cwd: str = ""  # working directory of the first trace

    def add(self, other: Share) -> None:
        """Add another share to this one."""
        self.sessions += other.sessions
        self.spans += other.spans
        self.tally += other.tally
        self.bytes += other.bytes
        self.counts += other.counts
        self.cwd = self.cwd or other.cwd


class SessionPreview(SessionOutcome, frozen=True, kw_only=True):
    """The outcome of one session: its project, and what each destination would receive."""

    project: str
    shares: dict[str, Share]


class DryRun(msgspec.Struct):
    """The result of a dry run: totals as of a backfill, and shares by destination and project."""

    destinations: dict[str, dict[str, Share]]
    totals: Totals = msgspec.field(default_factory=Totals)

    def add(self, _job: Job, outcome: SessionOutcome) -> None:
        """Add the outcome of one session."""
        if isinstance(outcome, SessionPreview):
            for name, share in outcome.shares.items():
                self.destinations[name].setdefault(outcome.project, Share()).add(share)

    def total(self, destination: str) -> Share:
        """All projects together."""
        total = Share()
        for share in self.destinations[destination].values():
            total.add(share)
        return total


def dry_run(
    plan: Plan, orders: Orders, processes: int, watch: Callable[[Totals], None], should_stop: Callable[[], bool]
) -> DryRun:
    """Read the sessions of a plan and count what a backfill would send."""
    found = DryRun({destination.name: {} for destination in orders.destinations})
    found.totals = Runner(plan, orders, Previewer, found.add).run(processes, watch, should_stop)
    return found


# ---- one session, in a worker process


class Previewer:
    """Reads one session after the other, as `Sender` sends them."""

    def __init__(self, orders: Orders) -> None:
        self._orders = orders
        self._targets = [Target(destination, orders.config) for destination in orders.destinations]

    def __call__(self, parent: Parent, task: Task) -> list[SessionPreview]:
        """Return what each destination would receive of each session that was begun before a request to stop."""
        found: list[SessionPreview] = []
        for place in range(len(task.jobs)):
            if place and parent.is_stopping:
                break
            found.append(self._preview_all(parent, task, place))
        return found

    def _preview_all(self, parent: Parent, task: Task, place: int) -> SessionPreview:
        job = task.jobs[place]
        shipped: list[Shipped] = []
        shares: dict[str, Share] = {}
        error = ""
        try:
            for index, target in enumerate(self._targets):
                if not parent.is_stopping:
                    share = shares[target.destination.name] = Share()
                    shipped.append(self._preview(parent, task, place, index, share))
        except TurnspanError as failure:
            error = str(failure)
        for share in shares.values():
            if share.spans:
                share.sessions = 1
                share.bytes = job.bytes if self._orders.is_resend else job.left_bytes
        project = next((share.cwd for share in shares.values() if share.cwd), job.session.project)
        return SessionPreview(shipped=tuple(shipped), error=error, project=project, shares=shares)

    def _preview(self, parent: Parent, task: Task, place: int, index: int, share: Share) -> Shipped:
        """Add to `share` what the destination at `index` would receive; return what `ship` would."""
        job, target = task.jobs[place], self._targets[index]
        shipped = Shipped(target.identity)
        rest = Rest(job.session, target, Ending.asked(time.time_ns()), is_all=self._orders.is_resend)
        for piece, traces in rest.pieces():
            part = Share(spans=sum(len(left.spans) for _, left in traces))
            part.tally = sum((tally_of(left) for _, left in traces), start=Tally())
            part.counts = rest.masked([trace for trace, _ in traces])[1]
            share.add(part)
            read_bytes = bytes_read(job, piece.progress, index, len(self._targets))
            parent.send([Step(job.session.session_id, part.tally.turns, part.spans, read_bytes)])
            if parent.is_stopping:
                shipped.is_interrupted = True
                break
        share.counts, share.cwd = share.counts + rest.counts, rest.cwd
        shipped.spans, shipped.counts = share.spans, share.counts
        shipped.has_unsealed, shipped.noticed = rest.has_open_turn, rest.noticed
        return shipped
