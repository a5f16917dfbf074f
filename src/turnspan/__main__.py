"""`turnspan` and `python -m turnspan`: `hook` and `--version` are answered directly, everything else by `cli`."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["hook"]:
        from turnspan.hook import main as hook  # noqa: PLC0415 - an event must not load click

        hook()
    if sys.argv[1:] == ["--version"]:
        from turnspan import __version__  # noqa: PLC0415

        _print(f"turnspan {__version__}")  # loading click would take four times as long as Python's start
        return
    from turnspan.cli import main as command_line  # noqa: PLC0415

    command_line()


def _print(line: str) -> None:
    """Print a line. A reader that closed the pipe is not an error; a full disk is."""
    try:
        os.write(1, f"{line}\n".encode())
    except BrokenPipeError:
        pass
    except OSError as error:
        sys.exit(f"error: {error.strerror}")


if __name__ == "__main__":
    main()
