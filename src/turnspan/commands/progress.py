"""How far a long command is, and whether the person wants it to stop.

Rules:

- All of it goes to stderr: a bar on a terminal, a line now and then elsewhere.
- The first Ctrl-C, or SIGTERM, asks for a stop where it is safe; the second one ends it at once.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

import click

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Watch = Callable[[int, int | None, float, str], None]  # sessions, turns, bytes, and what it waits for

_LINE_EVERY_S: Final = 10.0


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed, or a SIGTERM came; the second one ends it at once."""
    asked: list[int] = []

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(OSError):  # not through the stream: a handler may interrupt its own writing
            os.write(2, b"stopping where it is safe; once more ends it at once\n")

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# ---- how far it is


@contextmanager
def progress(sessions: int, size: int) -> Iterator[Watch]:
    """Shows how far it is: a bar on a terminal, a line now and then elsewhere."""
    if not sessions:
        yield lambda _sessions, _turns, _bytes, _note: None
    elif sys.stderr.isatty():
        yield from _bar(sessions, size)
    else:
        yield _lines_now_and_then(sessions, size)


def _bar(sessions: int, size: int) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from turnspan.terminal import one_line

    columns = (
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=size)

        def show(done: int, turns: int | None, read_bytes: float, note: str) -> None:
            words = f"{done:,}/{sessions:,} sessions" + (f", {turns:,} turns" if turns is not None else "")
            bar.update(task, completed=read_bytes, description=words + (f", {one_line(note)[:60]}" if note else ""))

        yield show


def _lines_now_and_then(sessions: int, size: int) -> Watch:
    from turnspan.terminal import duration, one_line

    began_s = last_s = time.monotonic()

    def show(done: int, turns: int | None, read_bytes: float, note: str) -> None:
        nonlocal last_s
        now_s = time.monotonic()
        if now_s - last_s < _LINE_EVERY_S:
            return
        last_s = now_s
        speed = read_bytes / (now_s - began_s)
        words = [f"{done:,}/{sessions:,} sessions"]
        words += [f"{turns:,} turns"] if turns is not None else []
        words += (
            [f"{speed / 1e6:.1f} MB/s", f"{duration(int((size - read_bytes) / speed * 1e9))} left"] if speed else []
        )
        click.echo(", ".join([*words, one_line(note)] if note else words), err=True)

    return show
