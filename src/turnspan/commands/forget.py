"""`turnspan forget`: delete a session's state and traces."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import sys

import click

from turnspan.commands.declare import command, session_argument
from turnspan.errors import ConfigError


@command()
@session_argument(required=True)
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")
@click.pass_context
def forget(ctx: click.Context, *, session: str, is_sure: bool) -> None:
    """Delete a session's state and its traces.

    SESSION is an id, the beginning of one, or the path of a transcript. Deletes
    turnspan's state for the session, and its traces where the destination can delete:
    local files and Langfuse. OTLP has no way to delete. The session is then disabled:
    it is not exported again, not even by `backfill`.

      turnspan forget 3f2a9c          asks first
      turnspan forget 3f2a9c --yes    for scripts

    The transcript belongs to Claude Code and is kept.

    Exit code: 1 if a destination still has traces of it.
    """
    from turnspan.commands.printing import print_line, settings_in_force
    from turnspan.delivery.state import state_path
    from turnspan.health.forget import find_subject
    from turnspan.health.forget import forget as forget_session
    from turnspan.text import one_line

    settings = settings_in_force()
    subject = find_subject(settings, session)
    if not is_sure:
        if not sys.stdin.isatty():
            raise ConfigError("cannot ask for confirmation: stdin is not a terminal", hint="use --yes")
        names = one_line(", ".join(f"'{destination.name}'" for destination in settings.destinations))
        print_line(f"This deletes turnspan's state for session {subject.session_id} and its traces in {names}.")
        click.confirm("Continue?", default=False, abort=True)
    is_done = True
    for outcome in forget_session(subject, settings):
        is_done &= outcome.is_done
        print_line(one_line(outcome.says))
    print_line(f"session {subject.session_id} is now disabled and will not be exported again;")
    print_line(f"  to enable it, delete {one_line(str(state_path(settings.home, subject.session_id)))}")
    if subject.transcript is not None:
        print_line(f"transcript kept: {one_line(str(subject.transcript.path))}")
    ctx.exit(0 if is_done else 1)
