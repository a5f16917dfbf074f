"""Progress of a long command, and requests to stop it.

Rules:

- Progress goes to stderr: a bar on a terminal, otherwise a line every ten seconds.
- The first Ctrl-C or SIGTERM requests a clean stop; the second one quits immediately.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import signal
import sys
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Watch = Callable[[int, int | None, float, str], None]  # sessions, turns, bytes, and what it is waiting for

_LINE_EVERY_S: Final = 10.0
_BAR_EVERY_S: Final = 0.1
_STOPPING: Final = b"Stopping... press Ctrl-C again to quit immediately\n"
_CLEAR_LINE: Final = b"\r\x1b[2K"


@contextmanager
def stop_requests() -> Iterator[Callable[[], bool]]:
    """Give a function that says whether a stop was requested; a second request raises KeyboardInterrupt."""
    asked: list[int] = []
    # The progress bar is on the cursor's line: clear it, or the message would start in the middle of it.
    message = (_CLEAR_LINE if _has_bar() else b"") + _STOPPING

    def ask(number: int, _frame: object) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)
        with suppress(OSError):  # not through sys.stderr: the handler may interrupt a write to it
            os.write(2, message)

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _has_bar() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


# ---- progress


@contextmanager
def progress(sessions: int, size: int) -> Iterator[Watch]:
    """Show progress: a bar on a terminal, otherwise a line every ten seconds."""
    if not sessions:
        yield lambda _sessions, _turns, _bytes, _note: None
    elif _has_bar():
        yield from _bar(sessions, size)
    else:
        yield _lines(sessions, size)


def _bar(sessions: int, size: int) -> Iterator[Watch]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    from turnspan.text import one_line

    columns = (
        BarColumn(),
        TextColumn("{task.description}", markup=False),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    # Without a thread of its own: worker processes are forked only if there is none.
    with Progress(*columns, console=Console(stderr=True), transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=size)
        last_s = 0.0

        def show(done: int, turns: int | None, read_bytes: float, note: str) -> None:
            nonlocal last_s
            words = f"{done:,}/{sessions:,} sessions" + (f", {turns:,} turns" if turns is not None else "")
            bar.update(task, completed=read_bytes, description=words + (f", {one_line(note)[:60]}" if note else ""))
            if time.monotonic() - last_s >= _BAR_EVERY_S:
                bar.refresh()
                last_s = time.monotonic()

        yield show


def _lines(sessions: int, size: int) -> Watch:
    from turnspan.commands.printing import remark
    from turnspan.text import duration

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
        remark(", ".join([*words, note] if note else words))

    return show
