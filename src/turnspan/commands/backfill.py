"""`turnspan backfill`: export the transcripts that are on disk.

Results go to stdout, as text or as one JSON object; progress goes to stderr. Exit code 0 means that everything was
acknowledged, 1 that something was not, 130 that Ctrl-C stopped it.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, TypeVar

import click

from turnspan.commands.declare import command, json_flag
from turnspan.commands.selection import INTERRUPTED, selecting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.bulk.plan import Plan, Selection
    from turnspan.bulk.runner import Orders, Totals
    from turnspan.delivery.destinations import Target

Result = TypeVar("Result")


@command()
@selecting(has_limit=True)
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Number of processes (default: one per core).")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N spans per second.")
@click.option("--resend", "is_resend", is_flag=True, help="Also send again what was acknowledged; see above.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would be sent; send nothing.")
@json_flag("One JSON object instead of text")
@click.pass_context
def backfill(
    ctx: click.Context,
    *,
    selection: Selection,
    to: tuple[str, ...],
    jobs: int | None,
    rate: float | None,
    is_resend: bool,
    is_dry_run: bool,
    is_json: bool,
) -> None:
    """Export existing transcripts, oldest first.

    Every session of every project, or only those in PATH: a transcript, a project's
    directory, or a copy of ~/.claude. Turns that were already sent are skipped.
    Press Ctrl-C to stop; run the same command to continue.

      turnspan backfill --dry-run            show what would be sent and masked
      turnspan backfill                      all sessions, to all destinations
      turnspan backfill --since 7d --project .
      turnspan backfill --to langfuse --limit 10
      turnspan backfill /mnt/old-laptop/.claude

    WHEN is a date, a time, or how long ago: 2026-08-31, 2026-08-31T14:00, 12h, 7d;
    --until DATE includes that day.
    Sessions are sent complete, with their original times. Of a session that is still
    being written, only the turns that have ended are sent.

    --resend starts with the oldest session each time; if it is stopped, it prints the
    --since to continue with.

    Exit code: 0 if everything was acknowledged, 1 if not, 130 after Ctrl-C.

    --json, one object: destinations seconds sessions tried turns spans copied repeated
    warmups off open refused cut masked{rule: times} unreadable{session: lines}
    left{session or project: why} given_up{destination: why} pending read_bytes
    waiting is_interrupted is_complete
    resend_since (null unless a --resend is not complete)
    With --dry-run: destinations{name: total projects{directory: …}} failed
    is_interrupted; total and each project have sessions, spans, bytes, masked, off,
    copied, repeated, warmups and the figures of `turnspan sessions --json`.
    """
    from turnspan.bulk.backfill import run
    from turnspan.bulk.plan import age_warning, make_plan
    from turnspan.bulk.runner import Orders
    from turnspan.commands.printing import destinations_named, print_lines, print_record, remark, settings_for_export
    from turnspan.delivery.destinations import Target
    from turnspan.text import count

    config = settings_for_export()
    destinations = destinations_named(config, to)
    plan = make_plan(config, selection, destinations, is_resend=is_resend)
    orders = Orders(config=config, destinations=destinations, rate=rate, is_resend=is_resend)
    if not plan.jobs and not plan.complete:
        remark("no sessions to send" if selection.limit is None else "no session has anything left to send")
    if plan.copies:
        remark(f"{count(plan.copies, 'file')} skipped: another file of the same session is as long or longer")
    for destination in destinations:
        warning = age_warning(destination, plan.jobs[0].began_ns, time.time_ns()) if plan.jobs else None
        if warning is not None:
            remark(f"warning: {warning}")
    if is_resend:
        _warn_of_repeats([Target(destination, config) for destination in destinations])
    processes = jobs or _cores()
    if is_dry_run:
        ctx.exit(_dry_run(plan, orders, processes, is_json=is_json))
    for destination in destinations:
        Target(destination, config).backend.close()  # an invalid setting is reported here, once
    began_s = time.monotonic()
    totals = _watched(run, plan, orders, processes)
    seconds, names = time.monotonic() - began_s, [destination.name for destination in destinations]
    if is_json:
        from turnspan.commands.records import backfill_record

        print_record(backfill_record(totals, names, seconds))
    else:
        from turnspan.bulk.report import backfill_lines

        print_lines(backfill_lines(totals, names, seconds))
    ctx.exit(INTERRUPTED if totals.is_interrupted else 0 if totals.is_complete else 1)


def _warn_of_repeats(targets: Iterable[Target]) -> None:
    """Say what becomes of spans that a destination has already."""
    from turnspan.commands.printing import remark

    for target in targets:
        if repeats := str(getattr(target.backend, "repeats", "")):
            remark(f"warning: {target.destination.name}: {repeats}")
        target.close()


def _dry_run(plan: Plan, orders: Orders, processes: int, *, is_json: bool) -> int:
    from turnspan.bulk.dry_run import dry_run
    from turnspan.bulk.report import dry_run_lines
    from turnspan.commands.printing import print_line, print_lines, print_record
    from turnspan.commands.records import dry_run_record

    found = _watched(dry_run, plan, orders, processes)
    if is_json:
        print_record(dry_run_record(found))
    else:
        print_lines(dry_run_lines(found, len(plan.jobs)))
        print_line("nothing was sent")
    return INTERRUPTED if found.totals.is_interrupted else 1 if found.totals.left else 0


def _watched(run: Callable[..., Result], plan: Plan, orders: Orders, processes: int) -> Result:
    """Run it with progress on stderr; Ctrl-C stops it."""
    from turnspan.commands.progress import progress, stop_requests

    with stop_requests() as should_stop, progress(len(plan.jobs), plan.left_bytes) as show:

        def watch(totals: Totals) -> None:
            show(totals.tried, totals.turns, totals.read_bytes, totals.waiting)

        return run(plan, orders, processes, watch, should_stop)


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # only the cores this process may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
