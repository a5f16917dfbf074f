"""How a command is declared: `@command()`, and the arguments and options that several commands share.

`--version` and completion of command names load this module and no other of this room, so it imports only click.
"""

# ruff: noqa: PLC0415 - completion of session ids loads the reader of sessions only when it is asked for

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.shell_completion import CompletionItem

    Function = Callable[..., None]


class Command(click.Command):
    """A command whose help is printed as it is written: click would join the lines of examples and tables."""

    def format_help_text(self, _ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the help text, indented."""
        write_help(self, formatter)


def command(*, hidden: bool = False, takes_dashes: bool = False) -> Callable[[Function], click.Command]:
    """Make a command of a function; its name is the function's, its help the docstring.

    With `takes_dashes`, an argument may begin with a dash.
    """
    return click.command(cls=Command, hidden=hidden, context_settings={"ignore_unknown_options": takes_dashes})


def write_help(described: click.Command, formatter: click.HelpFormatter) -> None:
    """Write a command's help text line by line."""
    formatter.write_paragraph()
    for line in inspect.cleandoc(described.help or "").splitlines():
        formatter.write(f"  {line}".rstrip() + "\n")


# ---- shared arguments and options


def session_argument(*, required: bool = False) -> Callable[[Function], Function]:
    """SESSION, completed by the shell."""
    return click.argument("session", required=required, shell_complete=_complete_session)


def _complete_session(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    from turnspan.commands.completion import session_items

    return session_items(incomplete)


def json_flag(what: str) -> Callable[[Function], Function]:
    """--json; `what` says what is printed."""
    return click.option("--json", "is_json", is_flag=True, help=f"{what}.")


def preview_option(function: Function) -> Function:
    """--to, for commands that show what would be exported to one destination."""
    help_text = "Preview the export to this destination (default: the first)."
    return click.option("--to", metavar="DESTINATION", help=help_text)(function)


def destinations_option(function: Function) -> Function:
    """--to, which can be repeated, for commands that work on several destinations."""
    return click.option(
        "--to", multiple=True, metavar="DESTINATION", help="Only this destination; can be repeated."
    )(function)  # fmt: skip


def project_option(function: Function) -> Function:
    """--project."""
    help_text = "Only sessions in this directory and below, or with P in their path."
    return click.option("--project", metavar="P", help=help_text)(function)


def limit_option(default: int, help_text: str = "Maximum number of sessions.") -> Callable[[Function], Function]:
    """--limit, for lists of sessions."""
    return click.option(
        "--limit", type=click.IntRange(min=1), default=default, show_default=True, metavar="N",
        help=help_text,
    )  # fmt: skip
