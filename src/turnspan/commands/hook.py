"""`turnspan hook`: for settings that name the command instead of the module."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

from turnspan.commands.declare import command


@command(hidden=True)
def hook() -> None:
    """Handle one event of Claude Code, read from stdin."""
    from turnspan.hook import main

    main()
