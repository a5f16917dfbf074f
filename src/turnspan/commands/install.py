"""`turnspan install`: read, ask, test, summarise, apply.

Rules:

- Everything is read before anything is asked, and asked and tested before anything is written.
- `choose` asks for the destination and tests it.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from turnspan.commands.choose import DESTINATIONS
from turnspan.commands.declare import command
from turnspan.errors import ConfigError
from turnspan.settings.options import CAPTURES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnspan.claude.command import Runtime
    from turnspan.claude.install import InstallPlan
    from turnspan.settings.config import Config, Destination

SCOPES: Final = ("user", "project", "local")


@command()
@click.option(
    "--scope", type=click.Choice(SCOPES), default="user", show_default=True, help="Which sessions are traced."
)
@click.option("--to", type=click.Choice(DESTINATIONS), help="Send traces to. Asked on a terminal.")
@click.option("--endpoint", metavar="URL", help="URL of the server, or a Langfuse region.")
@click.option("--public-key", metavar="KEY", help="Public key of a Langfuse project.")
@click.option("--capture", type=click.Choice(CAPTURES), help="What is exported to this destination.")
@click.option("--no-check", "is_unchecked", is_flag=True, help="Save without testing the connection.")
@click.option("--plugin", "is_plugin", is_flag=True, help="Print how to install the plugin instead.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would change; change nothing.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask anything.")
def install(
    *,
    scope: str,
    to: str | None,
    endpoint: str | None,
    public_key: str | None,
    capture: str | None,
    is_unchecked: bool,
    is_plugin: bool,
    is_dry_run: bool,
    is_sure: bool,
) -> None:
    """Register the hooks in Claude Code's settings.

    Sessions that you start afterwards are traced. On a terminal it asks where to send
    traces and tests the connection before saving. Otherwise traces are kept in local
    files.

      turnspan install                    for all your sessions
      turnspan install --dry-run          only show the change
      turnspan install --scope local      for your sessions in this directory
      turnspan install --to otlp --endpoint http://localhost:4318
      LANGFUSE_SECRET_KEY=… turnspan install --to langfuse --public-key pk-lf-…
      turnspan install --plugin           as a Claude Code plugin instead

    Scopes:
      user     ~/.claude/settings.json
      project  .claude/settings.json, usually shared with others
      local    .claude/settings.local.json, only for you

    Secrets can't be passed as flags. They are asked for, or taken from
      LANGFUSE_SECRET_KEY, TURNSPAN_OTLP_HEADERS (name=value,name=value)
    """
    from turnspan.claude.install import (
        InstallScope,
        apply,
        client_version,
        plan_install,
        remember_runtime,
        this_runtime,
    )
    from turnspan.commands.choose import ask_where, choose
    from turnspan.commands.printing import print_line
    from turnspan.settings.config import load_config

    env, runtime = dict(os.environ), this_runtime()
    if is_plugin:
        _explain_plugin(env, runtime, is_dry_run=is_dry_run)
        return
    plan = plan_install(InstallScope(scope), env=env, project=Path.cwd(), runtime=runtime, client=client_version(env))
    is_asking = not is_sure and not is_dry_run and sys.stdin.isatty() and sys.stdout.isatty()
    if to is None and is_asking and all(known.source == "default" for known in load_config(env).destinations):
        to = ask_where()
    flags = {"public_key": public_key, "base_url": endpoint, "endpoint": endpoint}
    is_checked = not is_unchecked and not is_dry_run
    chosen = None if to is None else choose(to, env, flags, is_asking=is_asking, is_checked=is_checked)
    _show(plan, is_diff=is_dry_run, is_summary=is_asking)
    if is_dry_run:
        print_line("nothing was written")
        return
    if plan.is_change and is_asking:
        _confirm(plan, chosen, env)
    if chosen is not None:
        _save(chosen, capture, env)
    apply(plan)
    remember_runtime(env, runtime)
    _conclude(plan, load_config(env))


def _save(chosen: Destination, capture: str | None, env: Mapping[str, str]) -> None:
    """Store a destination in config.toml."""
    from turnspan.commands.printing import print_line
    from turnspan.settings.config_file import write_destination

    policy = {"capture": capture} if capture else {}
    path = write_destination(env, chosen.name, {"type": chosen.type, **chosen.options, **policy})
    print_line(f"saved destination {chosen.name} in {path}")


# ---- texts


def _show(plan: InstallPlan, *, is_diff: bool, is_summary: bool) -> None:
    from turnspan.commands.printing import print_line, remark

    if not plan.is_change:
        print_line(f"already installed in {plan.file.path}")
    elif is_diff:
        show_diff(plan)
    elif is_summary:
        print_line(f"This {plan.summary}; no other setting changes.")
    for notice in plan.notices:
        remark(f"note: {notice}")


def show_diff(plan: InstallPlan) -> None:
    """Print the change of the settings file as a diff."""
    from turnspan.commands.printing import print_line
    from turnspan.text import plain

    for line in plain(plan.diff).splitlines():
        print_line(click.style(line, fg={"+": "green", "-": "red", "@": "cyan"}.get(line[:1])))


def _confirm(plan: InstallPlan, chosen: Destination | None, env: Mapping[str, str]) -> None:
    """Ask whether to apply the change; `d` shows it first. Declining ends the command with exit code 1."""
    from turnspan.commands.printing import print_line
    from turnspan.files import turnspan_home
    from turnspan.settings.config import CONFIG_NAME

    if chosen is not None:
        print_line(f"It also saves the destination {chosen.name} in {turnspan_home(env) / CONFIG_NAME}.")
    choices = click.Choice(("y", "yes", "n", "no", "d"), case_sensitive=False)
    while True:
        answer = click.prompt(
            "Apply these changes? [Y/n/d] (d: show the diff)",
            type=choices,
            default="y",
            show_default=False,
            show_choices=False,
        )
        if answer == "d":
            show_diff(plan)
            continue
        if answer.startswith("n"):
            print_line("nothing was written")
            raise click.exceptions.Exit(1)
        return


def _conclude(plan: InstallPlan, config: Config) -> None:
    from turnspan.commands.printing import print_line, remark
    from turnspan.health.status import where_of

    if plan.is_change:
        print_line(f"turnspan is registered in {plan.file.path}")
        if plan.file.content is not None:
            print_line(f"  backup: {plan.file.backup}")
    for destination in config.destinations:
        name = "local files" if destination.type == "local" else destination.name
        source = "" if destination.source == "default" else f", from {destination.source}"
        print_line(f"  destination: {name} ({where_of(destination, config.home)}{source})")
        if destination.source.startswith("$"):
            remark(
                f"note: {destination.source} must be set where Claude Code is started; "
                f"`turnspan install --to {destination.type}` saves it"
            )
    for problem in config.problems:
        remark(f"warning: {problem}")
    for sentence in config.ignored:
        remark(f"note: {sentence}")
    print_line("Sessions that you start from now on are traced. Next:")
    print_line("  turnspan demo      look at an example session, in a temporary directory")
    print_line("  turnspan status    after your first turn: what was sent, and what was not")
    print_line("  turnspan backfill  export the sessions from before (--dry-run counts them first)")


def _explain_plugin(env: Mapping[str, str], runtime: Runtime, *, is_dry_run: bool) -> None:
    import shlex

    from turnspan.claude.install import plugin_directory, remember_runtime
    from turnspan.commands.printing import print_line

    directory = plugin_directory(runtime)
    if directory is None:
        raise ConfigError("this installation does not include the plugin", hint="use the `hooks` directory of a clone")
    if not is_dry_run:
        remember_runtime(env, runtime)
    print_line("Run these two commands. Set the destination with `/plugin` in Claude Code (default: local files).")
    print_line(f"  claude plugin marketplace add {shlex.quote(str(directory))}")
    print_line("  claude plugin install turnspan@turnspan")
