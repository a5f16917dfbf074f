"""What a command prints: the answer to stdout, remarks to stderr.

Rules:

- Colour is for terminals only, and never with `NO_COLOR`.
- A stream that knows only ASCII gets our signs in ASCII.
- What a remark repeats is stripped of what a terminal would obey; whoever prints an answer does that himself.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO

import click

from turnspan.terminal import in_ascii, one_line

if TYPE_CHECKING:
    from turnspan.settings.config import Config

_PIPE_WIDTH: Final = 120  # where there is no terminal to ask


def answer(line: str) -> None:
    """Print a line of what was asked for."""
    _echo(line, sys.stdout)


def remark(sentence: str) -> None:
    """Say something next to the answer: stdout is for the answer alone."""
    _echo(click.style(one_line(sentence), fg="yellow"), sys.stderr)


def complain(sentence: str, hint: str) -> None:
    """Say what went wrong, and what to do."""
    for label, colour, text in (("error: ", "red", sentence), ("hint: ", "cyan", hint)):
        if text:
            _echo(click.style(label, fg=colour) + one_line(text), sys.stderr)


def _echo(line: str, stream: TextIO) -> None:
    is_unicode = (stream.encoding or "").lower().startswith("utf")
    # The stream itself: click would write UTF-8 to one that says it knows only ASCII.
    click.echo(line if is_unicode else in_ascii(line), file=stream, color=_wants_colour())


def _wants_colour() -> bool | None:
    """Whether the person says yes or no; None leaves it to the stream."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return True if os.environ.get("FORCE_COLOR", "0") not in {"", "0"} else None


def width() -> int:
    """How wide the terminal is."""
    return shutil.get_terminal_size((_PIPE_WIDTH, 24)).columns


def working_directory() -> Path | None:
    """Where we are; None if that was deleted."""
    try:
        return Path.cwd()
    except OSError:
        return None


def settings_in_force() -> Config:
    """The settings; what is wrong with them is said, and the rest is used."""
    from turnspan.settings.config import load_config  # noqa: PLC0415 - an error before any setting needs none

    config = load_config(os.environ)
    for problem in config.problems:
        remark(f"warning: {problem}")
    return config
