"""Answers the client's dialogs in a terminal.

Keys are pressed repeatedly until something happens: a dialog that has just opened may not accept input yet.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from .terminal import POINTER, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stage import Typed

OPTION = re.compile(rf"^[\s│]*[{POINTER}>]?\s*(\d)\. (.*?)[\s│]*$")
PROCEED = "Do you want to proceed?"


def press_until(client: Typed, key: str, is_so: Callable[[], bool]) -> None:
    """Press a key repeatedly until a condition holds."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        client.terminal.key(key)
        pressed = time.monotonic()
        while time.monotonic() < pressed + 2:
            if is_so():
                return
            time.sleep(0.03)
    raise AssertionError(f"{key} had no effect\n{client.terminal.screen()}")


def options(client: Typed) -> dict[str, str]:
    """Return the numbered options on the screen: number → text."""
    found = [OPTION.match(line) for line in client.terminal.screen().splitlines()]
    return {match[1]: match[2] for match in found if match}


def option(client: Typed, *words: str) -> str:
    """Wait for an option that begins with one of these texts; return its number."""
    wait_until(lambda: any(o.startswith(words) for o in options(client).values()), f"one of the options {words}")
    return next(number for number, o in options(client).items() if o.startswith(words))


def choose(client: Typed, words: str) -> None:
    """Choose the option that begins with this text."""
    number = option(client, words)
    press_until(client, number, lambda: not any(o.startswith(words) for o in options(client).values()))


def point_at(client: Typed, key: str, words: str) -> None:
    """Move the pointer of a list to the line with this text."""

    def is_there() -> bool:
        lines = [line.strip("│ ") for line in client.terminal.screen().splitlines() if line[:1] in " │"]
        return any(line.startswith(POINTER) and words in line for line in lines)

    press_until(client, key, is_there)
