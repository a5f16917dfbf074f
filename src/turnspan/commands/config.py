"""`turnspan config`: the settings in force and their sources."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os

import click

from turnspan.commands.declare import command, json_flag


@command()
@click.option("--table", "is_table", is_flag=True, help="Print all settings as Markdown tables.")
@json_flag("One JSON object instead of text")
@click.pass_context
def config(ctx: click.Context, *, is_table: bool, is_json: bool) -> None:
    """Show the settings in force and where each comes from.

    If ~/.claude/turnspan/config.toml names destinations, it decides where traces go
    and how much; environment variables can only restrict. Otherwise they override the
    file. A project's `.claude/turnspan.toml` can disable export, restrict it and add
    tags. Keys are never shown.

      turnspan config             the settings in this directory
      turnspan config --json | jq '.settings | map_values(.source)'
      turnspan config --table     all settings, what they do, and who may set them

    Exit code: 1 if a setting is not valid.

    --json, one object: home claude_home settings{name: value source}
    destinations[name type source options policy]
    project{directory is_off capture withheld tags why} problems[…] ignored[…]
    """
    from turnspan.commands.printing import print_lines, print_record, working_directory
    from turnspan.commands.records import config_record
    from turnspan.delivery.policy import rules_of
    from turnspan.errors import ConfigError
    from turnspan.settings.config import load_config
    from turnspan.settings.in_force import config_lines
    from turnspan.settings.matrix import matrix_table
    from turnspan.settings.options import table

    if is_table:
        print_lines((*matrix_table(), "", *table()))
        return
    settings = load_config(os.environ)
    cwd = str(working_directory() or "")
    narrowing = settings.narrowing(cwd)
    problems = (*settings.problems, *narrowing.problems)
    try:
        rules_of(settings)
    except ConfigError as error:  # a pattern that cannot be used
        problems = (*problems, str(error))
    if is_json:
        print_record(config_record(settings, cwd, narrowing, problems))
    else:
        print_lines(config_lines(settings, cwd, narrowing, problems))
    ctx.exit(1 if problems else 0)
