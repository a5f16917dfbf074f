"""What commands print: results to stdout, remarks and errors to stderr.

Rules, the same for every command:

- Colour is for terminals, and never used with `NO_COLOR`; `FORCE_COLOR` turns it on everywhere.
- A stream that is not UTF-8 gets our symbols in ASCII.
- Remarks and errors are stripped of terminal escapes. Text for `print_line` must be stripped by its author.
"""

# ruff: noqa: PLC0415 - an error before any setting is read needs no settings

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from turnspan.errors import ConfigError
from turnspan.text import in_ascii, one_line

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from turnspan.settings.config import Config, Destination

_PIPE_WIDTH: Final = 120  # columns when stdout is not a terminal


def print_line(line: str) -> None:
    """Print a line of the result."""
    _echo(line, sys.stdout)


def print_lines(lines: Iterable[str]) -> None:
    """Print the lines of the result, each as soon as it is ready."""
    for line in lines:
        print_line(line)


def print_record(record: Mapping[str, object]) -> None:
    """Print a record as one line of JSON."""
    from turnspan.commands.records import line_of

    print_line(line_of(record))


def remark(sentence: str) -> None:
    """Print a remark to stderr."""
    _echo(click.style(one_line(sentence), fg="yellow"), sys.stderr)


def print_error(sentence: str, hint: str) -> None:
    """Print an error to stderr, and what to do about it."""
    for label, colour, text in (("error: ", "red", sentence), ("hint: ", "cyan", hint)):
        if text:
            _echo(click.style(label, fg=colour) + one_line(text), sys.stderr)


def _echo(line: str, stream: TextIO) -> None:
    is_unicode = (stream.encoding or "").lower().startswith("utf")
    # The stream itself: click would write UTF-8 to one whose encoding is ASCII.
    click.echo(line if is_unicode else in_ascii(line), file=stream, color=_wants_colour())


def _wants_colour() -> bool | None:
    """Whether the environment asks for colour; None: it depends on the stream."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR", "0") not in {"", "0"} else None


def width() -> int:
    """The width of the terminal in columns."""
    return shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns


def working_directory() -> Path | None:
    """The working directory; None if it was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


# ---- settings


def settings_in_force() -> Config:
    """Load the settings; problems are printed as warnings, and the valid rest is used."""
    from turnspan.settings.config import load_config

    config = load_config(os.environ)
    for problem in config.problems:
        remark(f"warning: {problem}")
    return config


def settings_for_export() -> Config:
    """Load the settings for a command that exports. Raises ConfigError while export is disabled."""
    config = settings_in_force()
    if not config.is_enabled:
        raise ConfigError(f"turnspan is disabled by {config.sources['enabled']}", hint=config.how_to_enable)
    return config


def destinations_named(config: Config, names: tuple[str, ...]) -> tuple[Destination, ...]:
    """The destinations with these names; all of them if none is named. Raises ConfigError for an unknown one."""
    from turnspan.delivery.destinations import destination_named

    if not names:
        return config.destinations
    return tuple(destination_named(config, name) for name in dict.fromkeys(names))
