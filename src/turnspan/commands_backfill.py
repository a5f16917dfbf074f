"""`turnspan backfill`, `turnspan verify` and `turnspan retention`: bring the past in, and prove that it is there.

Rules:

- What is asked for goes to stdout, as lines or as one JSON object. How far it is goes to stderr: a bar on a terminal, a
  line now and then elsewhere.
- Exit code 0 says that everything was acknowledged, or is there; 1 that something is not; 130 that it was stopped.
- `cli.py` makes commands of these functions: `frame.command("backfill")(commands_backfill.backfill)`.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import re
import signal
import sys
import time
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from turnspan.accounts import Verified
    from turnspan.backfill import Orders
    from turnspan.config import Config, Destination
    from turnspan.holdings import Holdings
    from turnspan.plan import Job, Plan, Selection
    from turnspan.ship import Target
    from turnspan.verify import Checked

    Watch = Callable[[int, int | None, float, str], None]  # sessions, turns, bytes, and what it waits for

_INTERRUPTED: Final = 130
_LINE_EVERY_S: Final = 10.0
_AGO: Final = re.compile(r"(\d+)([mhdw])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class When(click.ParamType):
    """A day, a time, or how long ago; a day is meant from its beginning, or to its end."""

    name = "when"

    def __init__(self, *, is_end: bool = False) -> None:
        self._is_end = is_end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's signature
        """The time in nanoseconds."""
        if isinstance(value, int):
            return value
        ago = _AGO.fullmatch(value)
        try:
            if ago is not None:
                at = datetime.now().astimezone() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            else:
                at = datetime.fromisoformat(value).astimezone()
                if self._is_end and len(value) == len("2026-08-31"):
                    at += timedelta(days=1)
            return int(at.timestamp()) * 10**9
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; write 2026-08-31, 2026-08-31T14:00, or 12h, 7d, 4w ago", param, ctx)


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which sessions are meant, and where they go."""
    for option in (
        click.option("--to", multiple=True, metavar="DESTINATION", help="Only this destination; may come again."),
        click.option("--session", multiple=True, metavar="ID", help="Only this session, by how its id begins."),
        click.option("--project", metavar="P", help="Only those of a directory and below, or with P in their path."),
        click.option("--until", type=When(is_end=True), metavar="WHEN", help="Only those begun before the end of it."),
        click.option("--since", type=When(), metavar="WHEN", help="Only those written to since then."),
        click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]..."),
    ):
        command = option(command)
    return command


@_selecting
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N sessions, the oldest.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; as many as there are cores.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N spans a second.")
@click.option("--resend", "is_resend", is_flag=True, help="Send again what was acknowledged, too.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only say what would be sent.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of lines.")
@click.pass_context
def backfill(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    since: int | None,
    until: int | None,
    project: str | None,
    session: tuple[str, ...],
    to: tuple[str, ...],
    limit: int | None,
    jobs: int | None,
    rate: float | None,
    is_resend: bool,
    is_dry_run: bool,
    is_json: bool,
) -> None:
    """Export the transcripts that are on disk, oldest first.

    Every session of every project, or only what lies in PATH: a transcript, a
    project's directory, or a copy of ~/.claude made elsewhere. What was sent
    before is not sent again. Ctrl-C stops it; the same command goes on there.

      turnspan backfill --dry-run            what would be sent, and what masked
      turnspan backfill                      all of it, everywhere
      turnspan backfill --since 7d --project .
      turnspan backfill --to langfuse --limit 10
      turnspan backfill /mnt/old-laptop/.claude

    WHEN is a day, a time, or how long ago: 2026-08-31, 2026-08-31T14:00, 12h, 7d.
    A session is sent as a whole, with its original times. In one that is still
    being written, only the turns that have ended are sent.

    Exit code: 0 if everything was acknowledged, 1 if not, 130 after Ctrl-C.

    --json, one object: destinations seconds sessions turns spans copied off open
    refused cut masked{rule: times} left{session: why} given_up{destination: why}
    pending is_interrupted is_complete
    """
    from turnspan import accounts
    from turnspan.backfill import Orders, Totals, run
    from turnspan.plan import Selection, age_warning, make_plan
    from turnspan.targets import open_target

    config = _config()
    destinations = _destinations(config, to)
    selection = Selection(
        paths=paths, since_ns=since, until_ns=until, project=project, sessions=session, limit=limit
    )
    plan = make_plan(config, selection, () if is_resend else destinations)
    if is_resend:
        plan = _all_left(plan, limit)
    orders = Orders(config=config, destinations=destinations, rate=rate, is_resend=is_resend)
    if not plan.jobs:
        _remark("there are no sessions to send" if limit is None else "there is no session with anything left to send")
    if plan.copies:
        _remark(f"{plan.copies} shorter copies of sessions were passed over")
    for destination in destinations:
        warning = age_warning(destination, plan.jobs[0].began_ns, time.time_ns()) if plan.jobs else None
        if warning is not None:
            _remark(f"warning: {warning}")
    processes = jobs or _cores()
    if is_dry_run:
        ctx.exit(_survey(plan, orders, processes, is_json=is_json))
    for destination in destinations:
        open_target(destination, config).backend.close()  # what is wrong with its settings is said here, once
    began_s = time.monotonic()
    with _stop_requests() as should_stop, _progress(len(plan.jobs), plan.left_bytes) as show:

        def watch(totals: Totals) -> None:
            show(totals.sessions + len(totals.left), totals.turns, totals.read_bytes, totals.waiting)

        totals = run(plan, orders, processes, watch, should_stop)
    seconds, names = time.monotonic() - began_s, [destination.name for destination in destinations]
    if is_json:
        _print_record(accounts.backfill_record(totals, names, seconds))
    else:
        _print_lines(accounts.backfill_lines(totals, names, seconds))
    ctx.exit(_INTERRUPTED if totals.is_interrupted else 0 if totals.is_complete else 1)


def _all_left(plan: Plan, limit: int | None) -> Plan:
    """The plan of somebody who wants everything again."""
    from turnspan.plan import Job, Plan

    jobs = [Job(job.session, job.began_ns, job.bytes, job.bytes) for job in plan.jobs]
    return Plan(jobs[:limit], plan.copies)


def _survey(plan: Plan, orders: Orders, processes: int, *, is_json: bool) -> int:
    from turnspan import accounts
    from turnspan.survey import Survey, survey

    with _stop_requests() as should_stop, _progress(len(plan.jobs), plan.left_bytes) as show:

        def watch(found: Survey) -> None:
            show(found.sessions, None, found.read_bytes, "")

        found = survey(plan, orders, processes, watch, should_stop)
    if is_json:
        _print_record(accounts.survey_record(found))
    else:
        _print_lines(accounts.survey_lines(found))
        _print_lines(["nothing was sent"])
    return _INTERRUPTED if found.is_interrupted else 1 if found.failed else 0
