"""`turnspan uninstall`: remove the hooks and restore the settings; --purge also deletes everything turnspan wrote."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from turnspan.commands.declare import command
from turnspan.commands.install import SCOPES, show_diff
from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.claude.install import InstallPlan
    from turnspan.health.purge import Written
    from turnspan.settings.config import Config


@command()
@click.option("--scope", type=click.Choice(SCOPES), help="Only this scope (default: wherever it is registered).")
@click.option("--purge", "is_purge", is_flag=True, help="Also delete settings with keys, state, traces and log.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Show what would change; change nothing.")
@click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask before --purge deletes.")
@click.pass_context
def uninstall(ctx: click.Context, *, scope: str | None, is_purge: bool, is_dry_run: bool, is_sure: bool) -> None:
    """Remove the hooks from Claude Code's settings.

    A file that has not changed since `turnspan install` is restored exactly. Otherwise
    only turnspan's entries are removed. Configuration, state and traces in
    ~/.claude/turnspan are kept, unless --purge is given.

      turnspan uninstall              user settings and this directory's
      turnspan uninstall --dry-run    only show the change
      turnspan uninstall --purge      everything that turnspan wrote on this machine

    --purge also removes the hooks from all other projects in which `turnspan install`
    was run. It asks before it deletes. Transcripts belong to Claude Code and are kept,
    and so is what other servers have received.

    Exit code: 1 if a settings file cannot be read, or if you decline.
    """
    from turnspan.commands.printing import print_line

    if is_purge and scope is not None:
        raise click.UsageError("--purge removes the hooks of every scope; omit --scope")
    env, project = dict(os.environ), Path.cwd()
    plans, unreadable = _plans(scope, env, project, is_everywhere=is_purge)
    for plan in plans if is_dry_run else ():
        show_diff(plan)  # empty if nothing changes
    config, parts = _to_purge(env) if is_purge else (None, [])
    if is_dry_run:
        _show_unchanged(plans, unreadable, scope)
        print_line("nothing was written")
        ctx.exit(1 if unreadable else 0)
    if parts and not unreadable:
        _confirm(is_sure=is_sure)
    _apply(plans)
    _show_unchanged(plans, unreadable, scope)
    if config is not None:
        _purge(config, parts, plans, is_safe=not unreadable)
    _show_remaining(env, project)
    ctx.exit(1 if unreadable else 0)


def _plans(
    scope: str | None, env: Mapping[str, str], project: Path, *, is_everywhere: bool
) -> tuple[list[InstallPlan], list[str]]:
    """Return the changes of the settings files, and why some of these files cannot be changed."""
    from turnspan.claude.install import InstallScope, plan_recorded, plan_uninstall

    plans: dict[Path, InstallPlan] = {}  # by file: in the home directory the project's settings are the user's own
    unreadable: list[str] = []
    for name in reversed(SCOPES) if scope is None else (scope,):  # the last installed first
        try:
            plan = plan_uninstall(InstallScope(name), env=env, project=project)
            plans.setdefault(plan.file.target, plan)
        except ConfigError as error:
            if scope is not None:
                raise
            unreadable.append(str(error))
    if is_everywhere:
        try:
            for plan in plan_recorded(env):
                plans.setdefault(plan.file.target, plan)
        except ConfigError as error:
            unreadable.append(str(error))
    return list(plans.values()), unreadable


def _apply(plans: Sequence[InstallPlan]) -> None:
    from turnspan.claude.install import apply
    from turnspan.commands.printing import print_line

    for plan in plans:
        apply(plan)
        if plan.is_change:
            print_line(f"turnspan is no longer registered in {plan.file.path}")


def _show_unchanged(plans: Sequence[InstallPlan], unreadable: Sequence[str], scope: str | None) -> None:
    """Name the files that cannot be read; if there are none and nothing was found, say so."""
    from turnspan.commands.printing import print_line, remark

    for why in unreadable:
        remark(why)
    if unreadable:
        remark("whether turnspan is registered in a file that cannot be read is unknown; fix it and run this again")
    elif not any(plan.is_change for plan in plans):
        print_line("turnspan is not registered" + (" here" if scope is None else f" in the {scope} settings"))


def _show_remaining(env: Mapping[str, str], project: Path) -> None:
    """Name the places that `uninstall` does not change: the plugin, policies, commands of the user's own."""
    from turnspan.claude.hooks import US, read_sources, registrations
    from turnspan.commands.printing import remark

    left = {(hook.scope, hook.path) for hook in registrations(read_sources(env, project)) if hook.exporter == US}
    for place, path in sorted(left):
        plugin = place.removeprefix("plugin ")
        how = f"; run `claude plugin uninstall {plugin}` to remove it" if plugin != place else ""
        remark(f"turnspan is still registered in {place} ({path}){how}")


# ---- purge


def _to_purge(env: Mapping[str, str]) -> tuple[Config, list[Written]]:
    """Return the settings, and the files to delete; print them."""
    from turnspan.commands.printing import print_line
    from turnspan.health.purge import written
    from turnspan.settings.config import load_config
    from turnspan.text import one_line

    config = load_config(env)
    parts = list(written(config))
    print_line(f"--purge deletes {config.home}:" if parts else f"nothing to delete in {config.home}")
    for part in parts:
        name = part.path.name if part.path.parent == config.home else str(part.path)
        print_line(f"  {part.bytes:>13,} bytes  {one_line(name)}" + (f": {part.what}" if part.what else ""))
    return config, parts


def _confirm(*, is_sure: bool) -> None:
    """Ask before anything is deleted. Declining ends the command with exit code 1."""
    from turnspan.commands.printing import print_line

    if is_sure:
        return
    if not sys.stdin.isatty():
        raise ConfigError("cannot ask for confirmation: stdin is not a terminal", hint="use --yes")
    if not click.confirm("Remove the hooks and delete these files?", default=False):
        print_line("nothing was changed")
        raise click.exceptions.Exit(1)


def _purge(config: Config, parts: Sequence[Written], plans: Sequence[InstallPlan], *, is_safe: bool) -> None:
    from turnspan.claude.clients import clients
    from turnspan.commands.printing import print_line, remark
    from turnspan.health.purge import purge

    if not is_safe:
        remark("nothing was deleted: the backup of a settings file that cannot be read may still be needed")
        return
    purge(config, parts)
    for directory in {plan.made_directory for plan in plans} - {None}:
        with suppress(OSError):  # it is in use
            Path(str(directory)).rmdir()
    if parts:
        print_line(f"deleted {config.home}")
    if any(client.has_exited is False for client in clients(config.claude_home)):
        remark(
            "Claude Code is running: sessions that were started before still call turnspan, which then writes "
            "to its directory again; end them and run `turnspan uninstall --purge` once more"
        )
    print_line("To remove the program: uv tool uninstall turnspan (or pipx uninstall, or pip uninstall)")
