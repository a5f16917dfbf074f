"""`turnspan status`: what was sent, what is pending, and why."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import sys
import time

import click

from turnspan.commands.declare import command, json_flag


@command()
@click.option("--check", "is_asking", is_flag=True, help="Test the connection to every destination.")
@click.option("--watch", "is_watching", is_flag=True, help="Keep watching; Ctrl-C stops.")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="SECONDS",
    help="How often --watch updates.",
)  # fmt: skip
@json_flag("One JSON object instead of text")
def status(*, is_asking: bool, is_watching: bool, every: float, is_json: bool) -> None:
    """Show what was sent, what is pending, and why.

    Destinations, registered hooks, turns sent and pending, backoff and refusals, the
    last error, the measured duration of the hook, and the newest trace. Changes
    nothing, and makes no network requests unless --check.

      turnspan status              the current state
      turnspan status --check      … and test the destinations
      turnspan status --watch      … and keep watching
      turnspan status --json | jq '.destinations[] | {name, turns, pending}'

    pending  ready to send; the next event sends it
    open     a turn that has not ended yet; it is sent when it has
    history  written before the destination was first used; not exported until you
             run `turnspan backfill`
    backoff  retrying later, at the time shown
    refused  spans that the destination rejected for good; all others are sent

    --json, one object (with --watch, one per line):
      at home is_enabled disabled_by
      hooks[scope path events] hook_ms{stops median_ms longest_ms}
      transcripts unreadable[…] sessions{known off unreadable}
      masked{rule: times} masked_since
      last_error{at level event facts} problems[…] ignored[…]
      other_exporters[…]
      destinations[name type where source capture answer answer_reason
        sessions turns spans pending{sessions turns is_more open history}
        last_success last_error backoff_until refused[reason spans session_id]
        newest{session_id turn trace_id at link}]
    """
    from turnspan.commands.printing import print_lines, print_record, working_directory
    from turnspan.commands.records import status_record
    from turnspan.health.status import take_status
    from turnspan.health.status_text import status_lines
    from turnspan.settings.config import load_config

    while True:
        config = load_config(os.environ)
        found = take_status(config, os.environ, working_directory(), now_s=time.time(), is_asking=is_asking)
        if is_watching and not is_json and sys.stdout.isatty():
            click.clear()
        if is_json:
            print_record(status_record(found))
        else:
            print_lines(status_lines(found))
        if not is_watching:
            return
        sys.stdout.flush()
        time.sleep(every)
