"""`turnspan install` and `turnspan uninstall`: look, ask, check, show the change, make it.

Rules:

- Everything is looked at before anything is asked, and asked and checked before anything is written.
- A key comes from the environment or is typed without echo. It is never an argument, and never shown.
- A destination is stored only if its server takes the credentials, unless the person says otherwise.
- `commands` makes them for a group: `for command in commands(kind): group.add_command(command)`.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import click

from turnspan.errors import ConfigError, TurnspanError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from turnspan.claude.install import Plan, Runtime
    from turnspan.settings.config import Config, Destination

SCOPES: Final = ("user", "project", "local")
DESTINATIONS: Final = ("local", "langfuse", "otlp")
CAPTURES: Final = ("full", "redacted", "metadata")


class _Question(NamedTuple):
    """One thing a destination needs, by the name of its environment variable."""

    variable: str
    words: str
    proposal: str | None  # None: there is no answer but the person's
    is_secret: bool = False


_QUESTIONS: Final = {
    "local": (),
    "langfuse": (
        _Question("LANGFUSE_BASE_URL", "Langfuse URL", "https://cloud.langfuse.com"),
        _Question("LANGFUSE_PUBLIC_KEY", "Public key (pk-lf-…)", None),
        _Question("LANGFUSE_SECRET_KEY", "Secret key (sk-lf-…, not shown)", None, is_secret=True),
    ),
    "otlp": (
        _Question("TURNSPAN_OTLP_ENDPOINT", "OTLP endpoint", "http://localhost:4318"),
        _Question("TURNSPAN_OTLP_HEADERS", "Headers (name=value,…, not shown; Enter for none)", "", is_secret=True),
    ),
}
_OF_OTHERS: Final = ("HOME", "USERPROFILE", "CLAUDE_CONFIG_DIR")  # what settings are found by


_INSTALL: Final = (
    click.Option(
        ["--scope"], type=click.Choice(SCOPES), default="user", show_default=True, help="Whose sessions are traced."
    ),
    click.Option(["--to"], type=click.Choice(DESTINATIONS), help="Where traces go. Asked on a terminal."),
    click.Option(["--endpoint"], metavar="URL", help="The base URL of that server."),
    click.Option(["--public-key"], metavar="KEY", help="The public key of a Langfuse project."),
    click.Option(["--capture"], type=click.Choice(CAPTURES), help="How much of a turn may go there."),
    click.Option(["--no-check", "is_unchecked"], is_flag=True, help="Store it without asking the server."),
    click.Option(["--plugin", "is_plugin"], is_flag=True, help="Say how to install the plugin instead."),
    click.Option(["--dry-run", "is_dry_run"], is_flag=True, help="Show what would change, and change nothing."),
    click.Option(["-y", "--yes", "is_sure"], is_flag=True, help="Ask nothing."),
)
_UNINSTALL: Final = (
    click.Option(["--scope"], type=click.Choice(SCOPES), help="Only there; otherwise wherever they are registered."),
    click.Option(["--dry-run", "is_dry_run"], is_flag=True, help="Show what would change, and change nothing."),
)


def commands(kind: type[click.Command] = click.Command) -> tuple[click.Command, click.Command]:
    """`install` and `uninstall`, as commands of this kind."""
    return (
        kind("install", params=list(_INSTALL), callback=install, help=install.__doc__),
        kind("uninstall", params=list(_UNINSTALL), callback=uninstall, help=uninstall.__doc__),
    )


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

    Every session that you start from then on is traced. On a terminal it asks
    where the traces shall go, and tries that before it is stored. Otherwise they
    stay on this machine, for `turnspan show` and `turnspan view`.

      turnspan install                    for all your sessions
      turnspan install --dry-run          only show the change
      turnspan install --scope local      for your sessions in this directory
      turnspan install --to otlp --endpoint http://localhost:4318
      LANGFUSE_SECRET_KEY=… turnspan install --to langfuse --public-key pk-lf-…
      turnspan install --plugin           as a plugin of Claude Code instead

    Scopes:
      user     ~/.claude/settings.json
      project  .claude/settings.json, which is usually shared with others
      local    .claude/settings.local.json, for you alone

    Secrets are never arguments. They are asked for, or come from
      LANGFUSE_SECRET_KEY, TURNSPAN_OTLP_HEADERS (name=value,name=value)
    """
    from turnspan.claude.install import Scope, apply, client_version, plan_install, remember_runtime, this_runtime
    from turnspan.settings.config import load_config
    from turnspan.settings.config_file import write_destination

    env, runtime = dict(os.environ), this_runtime()
    if is_plugin:
        _explain_plugin(env, runtime, is_dry_run=is_dry_run)
        return
    plan = plan_install(Scope(scope), env=env, project=Path.cwd(), runtime=runtime, client=client_version(env))
    is_asking = not is_sure and not is_dry_run and sys.stdin.isatty() and sys.stdout.isatty()
    if to is None and is_asking and all(known.source == "default" for known in load_config(env).destinations):
        to = click.prompt("Where shall traces go", type=click.Choice(DESTINATIONS), default="local")
    flags = {"LANGFUSE_PUBLIC_KEY": public_key, "LANGFUSE_BASE_URL": endpoint, "TURNSPAN_OTLP_ENDPOINT": endpoint}
    given = env | {name: value for name, value in flags.items() if value}
    chosen = (
        None if to is None else choose(to, given, is_asking=is_asking, is_checked=not is_unchecked and not is_dry_run)
    )
    _show(plan)
    if is_dry_run:
        click.echo("nothing was written")
        return
    if plan.is_change and is_asking:
        click.confirm("Write this", default=True, abort=True)
    if chosen is not None:
        policy = {"capture": capture} if capture else {}
        path = write_destination(env, chosen.name, {"type": chosen.type, **chosen.options, **policy})
        click.echo(f"stored {chosen.name} in {path}")
    apply(plan)
    remember_runtime(env, runtime)
    _conclude(plan, load_config(env))


def uninstall(*, scope: str | None, is_dry_run: bool) -> None:
    """Take the hooks out of Claude Code's settings.

    A file that nobody has changed since `turnspan install` is put back to the
    byte. Otherwise only the entries of turnspan are removed. Settings, state and
    traces in ~/.claude/turnspan stay.

      turnspan uninstall              everywhere: user, and this directory's
      turnspan uninstall --dry-run    only show the change
    """
    from turnspan.claude.hooks import US, read_sources, registrations
    from turnspan.claude.install import Scope, apply, plan_uninstall

    env, project = dict(os.environ), Path.cwd()
    is_found = False
    for name in reversed(SCOPES) if scope is None else (scope,):  # the last that came goes first
        try:
            plan = plan_uninstall(Scope(name), env=env, project=project)
        except ConfigError as error:
            if scope is not None:
                raise
            _remark(str(error))
            continue
        if plan.is_change:
            is_found = True
            _show(plan)
        if not is_dry_run:
            apply(plan)
            if plan.is_change:
                click.echo(f"turnspan is no longer registered in {plan.file.path}")
    if not is_found:
        click.echo("turnspan is not registered" + (" here" if scope is None else f" in the {scope} settings"))
    if is_dry_run:
        click.echo("nothing was written")
        return
    left = {(found.scope, found.path) for found in registrations(read_sources(env, project)) if found.exporter == US}
    for place, path in sorted(left):
        _remark(f"turnspan is still registered in {place} ({path})")


# ---- destinations


def choose(to: str, env: Mapping[str, str], *, is_asking: bool, is_checked: bool) -> Destination:
    """A destination from what is given and asked, tried at its server. Raises ConfigError where that does not work."""
    while True:
        try:
            config, destination = _described(to, env, is_asking=is_asking)
            if is_checked:
                _try(destination, config)
        except TurnspanError as error:
            if not is_asking:
                raise
            _remark(str(error))
            env = {name: env[name] for name in _OF_OTHERS if name in env}  # what was given does not work: ask for all
        else:
            return destination


def _described(to: str, env: Mapping[str, str], *, is_asking: bool) -> tuple[Config, Destination]:
    from turnspan.settings.config import Destination, load_config
    from turnspan.settings.options import POLICY

    answers = {name: env[name] for name in _OF_OTHERS if name in env}
    for question in _QUESTIONS[to]:
        value = env.get(question.variable) or env.get(f"CC_{question.variable}") or ""
        if not value and is_asking:
            value = click.prompt(
                question.words,
                default=question.proposal,
                hide_input=question.is_secret,
                show_default=not question.is_secret,
            )
        elif not value and question.proposal is None:
            raise ConfigError(
                f"{to} needs {question.variable}",
                hint="set it in the environment, or run this on a terminal, which asks for it",
            )
        answers[question.variable] = value or question.proposal or ""
    config = load_config(answers)
    wrong = [problem for problem in config.problems if problem.startswith("$")]
    if wrong:
        raise ConfigError(wrong[0])
    if to == "local":
        return config, Destination("local", "local", {}, {name: config.values[name] for name in POLICY}, "")
    found = next(known for known in config.destinations if known.name == to and known.source.startswith("$"))
    return config, found


def _try(destination: Destination, config: Config) -> None:
    """Probe a destination. Raises ConfigError if it cannot be used."""
    from turnspan.backends import Answer, Outcome, probe
    from turnspan.delivery.destinations import Target

    backend = Target(destination, config).backend
    try:
        found = probe(backend)
    finally:
        backend.close()
    if found.outcome is not Outcome.GOOD:
        what = "does not take these credentials" if found.answer is Answer.CREDENTIALS else "cannot be used"
        hint = "correct it and try again, or store it as it is with --no-check"
        raise ConfigError(f"{destination.name} {what}: {found.says}", hint=hint)


# ---- words


def _show(plan: Plan) -> None:
    from turnspan.terminal import plain

    if not plan.is_change:
        click.echo(f"{plan.file.path} is as it should be")
    for line in plain(plan.diff).splitlines():
        colour = {"+": "green", "-": "red", "@": "cyan"}.get(line[:1])
        click.echo(click.style(line, fg=colour))
    for notice in plan.notices:
        _remark(notice)


def _remark(sentence: str) -> None:
    from turnspan.terminal import one_line

    click.echo(click.style("note: ", fg="yellow") + one_line(sentence), err=True)


def _conclude(plan: Plan, config: Config) -> None:
    click.echo(f"turnspan is registered in {plan.file.path}")
    if plan.is_change and plan.file.content is not None:
        click.echo(f"  as it was before: {plan.file.backup}")
    for destination in config.destinations:
        source = "" if destination.source == "default" else f", from {destination.source}"
        click.echo(f"  traces go to: {destination.name} ({destination.type}{source})")
        if destination.source.startswith("$"):
            _remark(f"{destination.source} must be set where Claude Code is started; --to {destination.type} stores it")
    click.echo("Sessions that you start from now on are traced. `turnspan status` shows what was sent.")


def _explain_plugin(env: Mapping[str, str], runtime: Runtime, *, is_dry_run: bool) -> None:
    import shlex

    from turnspan.claude.install import plugin_directory, remember_runtime

    directory = plugin_directory(runtime)
    if directory is None:
        raise ConfigError("the plugin is not part of this installation", hint="use the `hooks` directory of a clone")
    if not is_dry_run:
        remember_runtime(env, runtime)
    click.echo(
        "Run these two. `/plugin` in Claude Code sets where the traces go; without that they stay on this machine."
    )
    click.echo(f"  claude plugin marketplace add {shlex.quote(str(directory))}")
    click.echo("  claude plugin install turnspan@turnspan")
