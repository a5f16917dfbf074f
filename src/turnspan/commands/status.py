"""`turnspan status`, `doctor`, `config` and `forget`: how it stands, what is wrong, what is set, what shall be gone.

Rules:

- What is asked for goes to stdout, as lines or as JSON; all else to stderr.
- Nothing is changed but by `forget`, which asks first.
- `cli.py` makes commands of these functions: `frame.command("status")(commands.status.status)`.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from click.shell_completion import CompletionItem

    from turnspan.health.checks import Check


def _complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from turnspan.commands.completion import session_items

    return session_items(incomplete)


@click.option("--check", "is_asking", is_flag=True, help="Ask every destination whether it answers.")
@click.option("--watch", "is_watching", is_flag=True, help="Go on, with a new picture every few seconds.")
@click.option(
    "--every", type=click.FloatRange(min=0.2), default=2.0, show_default=True, metavar="SECONDS", help="How often."
)
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of lines.")
def status(*, is_asking: bool, is_watching: bool, every: float, is_json: bool) -> None:
    """What was sent, what was not, and why.

    Destinations, the hooks that are registered, turns sent and pending, what is
    held back or was refused, the last trouble, how long the hook really took, and
    the newest trace. Nothing is changed, and nobody is asked without --check.

      turnspan status              how it stands
      turnspan status --check      … and whether the destinations answer now
      turnspan status --watch      … and how it goes on; Ctrl-C ends it
      turnspan status --json | jq '.destinations[] | {name, turns, pending}'

    pending  could leave now, and leaves with the next event
    open     a turn that goes on: it leaves when it has ended
    history  written before the destination was first used: it never leaves unasked
    held     the destination is left in peace until then
    refused  the destination will never take these spans; all others go on

    --json, one object (with --watch, one a line):
      at home is_enabled disabled_by
      hooks[scope path events] hook_ms{stops median_ms longest_ms}
      transcripts unreadable[…] sessions{known off unreadable}
      masked{rule: times} masked_since
      last_error{at level event facts} problems[…] other_exporters[…]
      destinations[name type where source capture answer answer_reason
        sessions turns spans pending{sessions turns is_more open history}
        last_success last_error held_until refused[reason spans session_id]
        newest{session_id turn trace_id at link}]
    """
    from turnspan.commands.printing import answer, working_directory
    from turnspan.health.status import take_status
    from turnspan.health.status_text import status_lines, status_record
    from turnspan.settings.config import load_config
    from turnspan.view.records import line_of

    while True:
        config = load_config(os.environ)
        found = take_status(config, os.environ, working_directory(), now_s=time.time(), is_asking=is_asking)
        if is_watching and not is_json and sys.stdout.isatty():
            click.clear()
        if is_json:
            answer(line_of(status_record(found)))
        else:
            answer("\n".join(status_lines(found)))
        if not is_watching:
            return
        sys.stdout.flush()
        time.sleep(every)


@click.option("--to", metavar="DESTINATION", help="Only this destination.")
@click.option("--send-test", "is_sending", is_flag=True, help="Send each destination a test trace, and ask for it.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of lines.")
@click.pass_context
def doctor(ctx: click.Context, *, to: str | None, is_sending: bool, is_json: bool) -> None:
    """Every check a support engineer would make, and what to do.

    The package, the hooks and what they call, switches and policies, files and
    their permissions, settings, each destination step by step (connection, TLS,
    credentials, protocol, version, clock), what the client writes, and what it
    deletes soon.

      turnspan doctor                  all of it
      turnspan doctor --send-test      … and send a trace through, to the other end
      turnspan doctor --to langfuse    only one destination
      turnspan doctor --json | jq '.checks[] | select(.mark != "good")'

    ✓ good   ! works, but look at it   ✗ does not work until you act

    Exit code: 1 if there is a ✗.

    --json, one object: is_healthy checks[group mark says todo], where mark is
    good, doubt or bad.
    """
    from turnspan.commands.printing import answer, working_directory
    from turnspan.delivery.destinations import destination_named
    from turnspan.health.checks import Mark
    from turnspan.health.doctor import doctor_lines, doctor_record, examine
    from turnspan.settings.config import load_config
    from turnspan.view.records import line_of

    if to is not None:
        destination_named(load_config(os.environ), to)
    project = working_directory() or Path("/")
    made: list[Check] = []
    checks = _noted(examine(os.environ, project, now_s=time.time(), only=to, is_sending=is_sending), made)
    if is_json:
        answer(line_of(doctor_record(list(checks))))
    else:
        for line in doctor_lines(checks):
            answer(line)
    ctx.exit(1 if any(check.mark is Mark.BAD for check in made) else 0)


def _noted(checks: Iterable[Check], made: list[Check]) -> Iterator[Check]:
    """The checks, each of them noted as it passes."""
    for check in checks:
        made.append(check)
        yield check


@click.option("--table", "is_table", is_flag=True, help="All settings that there are, as Markdown.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of lines.")
@click.pass_context
def config(ctx: click.Context, *, is_table: bool, is_json: bool) -> None:
    """The settings in force, and where each comes from.

    Flags count before the environment, that before ~/.claude/turnspan/config.toml,
    and that before the defaults. `.claude/turnspan.toml` in a project can switch
    off, narrow and tag. Keys are never shown.

      turnspan config             what holds here
      turnspan config --json | jq '.settings | map_values(.source)'
      turnspan config --table     all that can be set, and what it does

    Exit code: 1 if something in them is wrong.

    --json, one object: home claude_home settings{name: value source}
    destinations[name type source options policy]
    project{directory is_off capture withheld tags why} problems[…]
    """
    from turnspan.commands.printing import answer, working_directory
    from turnspan.settings.config import load_config
    from turnspan.settings.in_force import config_lines, config_record
    from turnspan.settings.options import table
    from turnspan.view.records import line_of

    if is_table:
        for line in table():
            answer(line)
        return
    settings = load_config(os.environ)
    cwd = str(working_directory() or "")
    narrowing = settings.narrowing(cwd)
    problems = (*settings.problems, *narrowing.problems)
    if is_json:
        answer(line_of(config_record(settings, cwd, narrowing, problems)))
    else:
        for line in config_lines(settings, cwd, narrowing, problems):
            answer(line)
    ctx.exit(1 if problems else 0)


@click.argument("session", shell_complete=_complete_session)
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Ask nothing.")
@click.pass_context
def forget(ctx: click.Context, *, session: str, is_sure: bool) -> None:
    """Delete what turnspan has of a session, and its traces.

    SESSION is an id, the beginning of one, or the path of a transcript. Our state
    of it is deleted, and its traces where they can be: in local files, and in
    Langfuse. OTLP itself knows no way to delete. From then on the session is
    switched off: it is not exported again, not by `backfill` either.

      turnspan forget 3f2a9c          asks first
      turnspan forget 3f2a9c --yes    in a script

    The transcript itself is Claude Code's, and stays.

    Exit code: 1 if traces of it are still somewhere.
    """
    from turnspan.commands.printing import answer, settings_in_force
    from turnspan.delivery.state import state_path
    from turnspan.health.forget import find_subject
    from turnspan.health.forget import forget as forget_session
    from turnspan.terminal import one_line

    settings = settings_in_force()
    subject = find_subject(settings, session)
    if not is_sure:
        if not sys.stdin.isatty():
            raise ConfigError("nobody is there to be asked", hint="--yes forgets it without asking")
        names = ", ".join(destination.name for destination in settings.destinations)
        answer(f"session {subject.session_id}: our state of it, and its traces in {one_line(names)}")
        click.confirm("Delete them", default=False, abort=True)
    is_done = True
    for outcome in forget_session(subject, settings):
        is_done &= outcome.is_done
        answer(one_line(outcome.says))
    answer(f"session {subject.session_id} is switched off now, and will not be exported again;")
    answer(f"  without {one_line(str(state_path(settings.home, subject.session_id)))} it would be")
    if subject.transcript is not None:
        answer(f"its transcript stays: {one_line(str(subject.transcript.path))}")
    ctx.exit(0 if is_done else 1)
