"""`turnspan retention`: unsent transcripts that Claude Code will delete soon."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import time

import click

from turnspan.commands.declare import command, destinations_option, json_flag


@command()
@click.option(
    "--days", type=click.FloatRange(min=0), default=7.0, show_default=True, metavar="N", help="How many days ahead."
)
@destinations_option
@json_flag("One JSON object instead of a table")
@click.pass_context
def retention(ctx: click.Context, *, days: float, to: tuple[str, ...], is_json: bool) -> None:
    """List unsent transcripts that will be deleted soon.

    Claude Code deletes transcripts that were not written to for 30 days, or for
    `cleanupPeriodDays` in its settings. Started in a project, it applies that
    project's settings to the transcripts of all projects: the shortest period counts.

      turnspan retention             to be deleted within a week
      turnspan retention --days 2    to be deleted within two days

    Exit code: 1 if an unsent transcript will be deleted, or one cannot be read.

    --json, one object:
      cleanup_days cleanup_source
      expiring[session_id path project days_left unsent{destination}]
      failed{session or project: why it cannot be read}
    """
    from turnspan.bulk.report import retention_lines
    from turnspan.bulk.retention import cleanup_period, expiring
    from turnspan.commands.printing import destinations_named, print_lines, print_record, settings_for_export
    from turnspan.commands.records import retention_record

    config = settings_for_export()
    unreadable: dict[str, str] = {}
    found = list(expiring(config, destinations_named(config, to), days, time.time_ns(), unreadable))
    period = cleanup_period(config.claude_home)
    if is_json:
        print_record(retention_record(found, period, unreadable))
    else:
        print_lines(retention_lines(found, period, days, unreadable))
    ctx.exit(1 if found or unreadable else 0)
