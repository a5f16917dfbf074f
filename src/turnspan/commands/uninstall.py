"""`turnspan uninstall`: remove the hooks and restore the settings."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnspan.commands.declare import command
from turnspan.commands.install import SCOPES, show_diff
from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping


@command()
@click.option("--scope", type=click.Choice(SCOPES), help="Only this scope (default: wherever it is registered).")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would change; change nothing.")
@click.pass_context
def uninstall(ctx: click.Context, *, scope: str | None, is_dry_run: bool) -> None:
    """Remove the hooks from Claude Code's settings.

    A file that has not changed since `turnspan install` is restored exactly. Otherwise
    only turnspan's entries are removed. Configuration, state and traces in
    ~/.claude/turnspan are kept.

      turnspan uninstall              user settings and this directory's
      turnspan uninstall --dry-run    only show the change

    Exit code: 1 if a settings file cannot be read.
    """
    from turnspan.claude.install import Scope, apply, plan_uninstall
    from turnspan.commands.printing import print_line, remark

    env, project = dict(os.environ), Path.cwd()
    is_found = is_unknown = False
    for name in reversed(SCOPES) if scope is None else (scope,):  # the last installed first
        try:
            plan = plan_uninstall(Scope(name), env=env, project=project)
        except ConfigError as error:
            if scope is not None:
                raise
            is_unknown = True
            remark(str(error))
            continue
        if plan.is_change:
            is_found = True
            show_diff(plan)
        if not is_dry_run:
            apply(plan)
            if plan.is_change:
                print_line(f"turnspan is no longer registered in {plan.file.path}")
    if is_unknown:
        remark("whether turnspan is registered in a file that cannot be read is unknown; fix it and run this again")
    elif not is_found:
        print_line("turnspan is not registered" + (" here" if scope is None else f" in the {scope} settings"))
    if is_dry_run:
        print_line("nothing was written")
    else:
        _show_remaining(env, project)
    ctx.exit(1 if is_unknown else 0)


def _show_remaining(env: Mapping[str, str], project: Path) -> None:
    """Name the places that `uninstall` does not change: the plugin, policies, commands of the user's own."""
    from turnspan.claude.hooks import US, read_sources, registrations
    from turnspan.commands.printing import remark

    left = {(hook.scope, hook.path) for hook in registrations(read_sources(env, project)) if hook.exporter == US}
    for place, path in sorted(left):
        remark(f"turnspan is still registered in {place} ({path})")
