"""`turnspan stats`: tokens and cost by day, project, model and so on."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import click

from turnspan.commands.declare import command, json_flag
from turnspan.commands.selection import TimeArgument

GROUPINGS = ("day", "week", "month", "project", "model", "tool", "agent", "branch", "session")


@command()
@click.option("--by", type=click.Choice(GROUPINGS), default="day", show_default=True, help="What to group by.")
@click.option("--since", type=TimeArgument(), metavar="WHEN", help="Only what happened since this time.")
@click.option("--until", type=TimeArgument(is_end=True), metavar="WHEN", help="Only what happened before this time.")
@click.option("--project", metavar="P", help="Only turns in this directory and below, or with P in its path.")
@json_flag("One JSON object per group and line, and one for the total")
@click.pass_context
def stats(
    ctx: click.Context, *, by: str, since: int | None, until: int | None, project: str | None, is_json: bool
) -> None:
    """Show tokens, cost, turns and tool calls.

      turnspan stats                         by day
      turnspan stats --by model --since 30d  the models of the last 30 days
      turnspan stats --by tool --project .   the tools used in this directory
      turnspan stats --by project --json | jq -r '[.key, .cost_usd] | @tsv'

    What a group counts:
      day, week, month   responses by the time they ended; turns, tool calls and
                         agents by the time they started, in the local time zone.
                         A week is named by its Monday.
      project, branch    everything in the turns of a working directory or branch
      session            everything in a session
      model              its responses: tokens and cost, but no turns or tool calls
      tool               its calls: failures and time, but no tokens
      agent              the responses and tool calls of agents of a type; (main) is
                         the session itself
    Every figure adds up to the total, which is the sum over all sessions of what
    `show` says. A copied turn counts once.

    CACHE is the share of the input tokens that was read from the cache, ACTIVE the
    time in which a response, tool or agent was at work, without waiting for you
    (inferred), FAILED the tool calls that failed. ≥ means at least: the client did
    not count some tokens, or a model has no known price.

    Exit code: 1 if a session could not be read (stderr says which).

    --json, a line for each group, and one with by = "total"; null where the grouping
    cannot say:
      by key label
      sessions (with a turn in the group; one session can be in several groups)
      turns generations generations_failed agents
      tools tools_failed tools_denied tools_interrupted tools_ms errors
      usage tokens cost_usd is_cost_partial cache_hit_rate active_ms
    """
    from turnspan.commands.printing import print_line, print_record, remark, settings_in_force, width
    from turnspan.commands.progress import progress
    from turnspan.index import opened
    from turnspan.index.measures import values_of
    from turnspan.index.stats import Slice, counted, projects_named
    from turnspan.page.stats_table import note_lines, stats_lines
    from turnspan.source.find import NO_SESSIONS

    config = settings_in_force()
    with opened(config, show=progress) as index:
        projects = projects_named(index.connection, project) if project is not None else None
        with counted(index.connection, Slice(since_ns=since, until_ns=until, projects=projects)) as statistics:
            total, groups, models = statistics.total(), statistics.by(by), statistics.unpriced_models()
        if is_json:
            for group in groups:
                print_record({"by": by, "key": group.key, "label": group.label, **values_of(group.figures)})
            print_record({"by": "total", "key": None, "label": None, **values_of(total)})
        elif groups:
            head, *lines = stats_lines(by, groups, total, width())
            print_line(click.style(head, bold=True))
            for line in lines[:-1]:
                print_line(line)
            print_line(click.style(lines[-1], bold=True))
            for note in note_lines(total, models):
                print_line(click.style(note, fg="bright_black"))
        else:
            is_any = index.connection.execute("SELECT 1 FROM turn LIMIT 1").fetchone() is not None
            remark("no turns found" if is_any else f"no turns found: {NO_SESSIONS}")
        for why in (*index.remarks, *(f"skipped: {why}" for why in index.unreadable.values())):
            remark(why)
    ctx.exit(1 if index.unreadable else 0)
