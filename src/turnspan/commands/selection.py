"""The options of `backfill` and `verify` that select sessions and destinations."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import re
from datetime import date, datetime, timedelta
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turnspan.commands.declare import destinations_option, project_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.commands.declare import Function

INTERRUPTED: Final = 130  # the exit code after Ctrl-C
_AGO: Final = re.compile(r"(\d+)([mhdw])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class TimeArgument(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2; we take older ones
    """A date, a time, or how long ago. A date means its beginning, or its end with `is_end`."""

    name = "when"

    def __init__(self, *, is_end: bool = False) -> None:
        self._is_end = is_end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's signature
        """Return the time in nanoseconds."""
        if isinstance(value, int):
            return value
        ago = _AGO.fullmatch(value)
        try:
            if ago is not None:
                at = datetime.now().astimezone() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            else:
                at = datetime.fromisoformat(value)
                if self._is_end and _is_date(value):
                    at += timedelta(days=1)  # by the calendar: not every day has 24 hours
                at = at.astimezone()
            return int(at.timestamp()) * 10**9
        except (ValueError, OverflowError):
            self.fail(f"invalid time {value!r}; use 2026-08-31, 2026-08-31T14:00, or 12h, 7d, 4w ago", param, ctx)


def _is_date(value: str) -> bool:
    try:
        date.fromisoformat(value)
    except ValueError:  # it has a time of day
        return False
    return True


def selecting(*, has_limit: bool = False) -> Callable[[Function], Function]:
    """Add PATH and the options that select sessions and destinations; the command gets a `selection` and `to`."""

    def decorated(function: Function) -> Function:
        @wraps(function)
        def run(
            *arguments: object,
            paths: tuple[Path, ...],
            since: int | None,
            until: int | None,
            project: str | None,
            session: tuple[str, ...],
            limit: int | None = None,
            **options: object,
        ) -> None:
            from turnspan.bulk.plan import Selection

            selection = Selection(
                paths=paths, since_ns=since, until_ns=until, project=project, sessions=session, limit=limit
            )
            function(*arguments, selection=selection, **options)

        command: Function = run
        for option in (_LIMIT, *_OPTIONS) if has_limit else _OPTIONS:
            command = option(command)
        return command

    return decorated


_LIMIT: Final = click.option(
    "--limit", type=click.IntRange(min=1), metavar="N", help="At most N sessions, the oldest first."
)
_OPTIONS: Final = (  # in reverse order, as decorators are
    destinations_option,
    click.option("--session", multiple=True, metavar="ID", help="Only this session, by the beginning of its id."),
    project_option,
    click.option(
        "--until", type=TimeArgument(is_end=True), metavar="WHEN", help="Only sessions started before this time."
    ),
    click.option("--since", type=TimeArgument(), metavar="WHEN", help="Only sessions written to since this time."),
    click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]..."),
)
