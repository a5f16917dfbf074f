"""`turnspan doctor`: every check, and what to do about each problem."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnspan.commands.declare import command, json_flag

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnspan.health.checks import Check


@command()
@click.option("--to", metavar="DESTINATION", help="Check only this destination.")
@click.option("--send-test", "is_sending", is_flag=True, help="Send a test trace to each destination and read it back.")
@json_flag("One JSON object instead of text")
@click.pass_context
def doctor(ctx: click.Context, *, to: str | None, is_sending: bool, is_json: bool) -> None:
    """Check the installation and say what to fix.

    The package, the hooks and what they start, switches and policies, files and
    their permissions, configuration, each destination step by step (connection, TLS,
    credentials, protocol, version, clock), what Claude Code writes, and which
    transcripts it will delete soon.

      turnspan doctor                  all checks
      turnspan doctor --send-test      … and send a test trace
      turnspan doctor --to langfuse    only one destination
      turnspan doctor --json | jq '.checks[] | select(.mark != "good")'

    ✓ good   ! warning   ✗ error: does not work until you fix it

    Exit code: 1 if there is an error.

    --json, one object: is_healthy checks[group mark says todo], where mark is
    good, doubt or bad.
    """
    from turnspan.commands.printing import print_lines, print_record, working_directory
    from turnspan.commands.records import doctor_record
    from turnspan.delivery.destinations import destination_named
    from turnspan.health.checks import Mark
    from turnspan.health.doctor import doctor_lines, examine
    from turnspan.settings.config import load_config

    if to is not None:
        destination_named(load_config(os.environ), to)
    project = working_directory() or Path("/")
    made: list[Check] = []
    checks = _collected(examine(os.environ, project, now_s=time.time(), only=to, is_sending=is_sending), made)
    if is_json:
        print_record(doctor_record(list(checks)))
    else:
        print_lines(doctor_lines(checks))
    ctx.exit(1 if any(check.mark is Mark.BAD for check in made) else 0)


def _collected(checks: Iterable[Check], made: list[Check]) -> Iterator[Check]:
    """Pass the checks on one by one, and collect them."""
    for check in checks:
        made.append(check)
        yield check
