"""`turnspan sessions`: the sessions on this machine as a table."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import time

import click

from turnspan.commands.declare import command, json_flag, limit_option, project_option


@command()
@project_option
@limit_option(20)
@json_flag("One JSON object per session and line")
@click.pass_context
def sessions(ctx: click.Context, *, project: str | None, limit: int, is_json: bool) -> None:
    """List the sessions on this machine, newest first.

      turnspan sessions                  the 20 newest
      turnspan sessions --project .      those of this directory
      turnspan sessions --project api    those with `api` in their path
      turnspan sessions --limit 500 --json | jq -s 'map(.cost_usd) | add'

    TOKENS counts all tokens, cached ones included. ≥ means at least: the client did
    not count some tokens, or a model has no known price. SENT shows how much was
    exported, at the destination that has the least: all, 3/5 turns, no; off if the
    session is not exported.

    Exit code: 1 if a session could not be read (stderr says which).

    --json, a line for each session:
      session_id path title project client_version last_activity
      turns generations tools agents errors
      usage cost_usd is_cost_partial sent
    """
    from turnspan.commands.printing import print_line, print_record, remark, settings_in_force, width
    from turnspan.commands.progress import progress
    from turnspan.commands.records import summary_record
    from turnspan.page.overview import overview
    from turnspan.page.sessions_table import table_head, table_row
    from turnspan.source.find import NO_SESSIONS

    config = settings_in_force()
    now_ns, columns = time.time_ns(), width()
    unreadable: dict[str, str] = {}
    remarks: list[str] = []
    is_anything = False
    found = overview(config, limit=limit, project=project, unread=unreadable, remarks=remarks, show=progress)
    for summary, sent in found:
        if is_json:
            print_record(summary_record(summary, sent))
        else:
            if not is_anything:
                print_line(click.style(table_head(columns), bold=True))
            print_line(table_row(summary, columns, now_ns=now_ns, sent=sent))
        is_anything = True
    if not is_anything and not unreadable:
        whose, todo = ("", f": {NO_SESSIONS}") if project is None else (f" of {project!r}", "")
        remark(f"no sessions{whose} found in {config.claude_home / 'projects'}{todo}")
    for sentence in remarks:
        remark(sentence)
    for why in unreadable.values():
        remark(f"skipped: {why}")
    ctx.exit(1 if unreadable else 0)
