"""`turnspan` and `python -m turnspan`: `hook` is started directly, every other command by `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["hook"]:
        from turnspan.hook import main as hook  # noqa: PLC0415 - an event must not load click

        hook()
    from turnspan.cli import main as command_line  # noqa: PLC0415

    command_line()


if __name__ == "__main__":
    main()
