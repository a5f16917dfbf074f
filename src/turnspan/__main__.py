"""`turnspan`, and `python -m turnspan`: the hook goes its own short way, everything else is `cli`."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] == ["hook"]:
        from turnspan.hook import main as hook  # noqa: PLC0415  an event must not pay for the command line

        hook()
    from turnspan.cli import main as command_line  # noqa: PLC0415

    command_line()


if __name__ == "__main__":
    main()
