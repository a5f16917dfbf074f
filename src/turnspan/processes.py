"""Processes that share the work of a command: `concurrent.futures`, with an end for every case.

Rules:

- Processes are forked where that is safe (Linux, no other thread, no gRPC): a new interpreter takes 0.1 s to import
  everything again.
- They end with their parent, however that ends: a thread of each waits until the other end of a pipe is closed.
- Ctrl-C reaches every process of a terminal, and SIGTERM may reach a process group. They ignore Ctrl-C, and end a few
  seconds after SIGTERM: until then their parent, which got it too, can ask them to stop where nothing is lost.
- If one of them dies, all do, and every task that is not done raises BrokenExecutor.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future
    from multiprocessing.connection import Connection
    from multiprocessing.queues import SimpleQueue

    End = Connection[Any, Any]

_GRACE_S: Final = 5.0
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_run: Callable[[Any], Any]  # in a worker: handles a task


class Workers:
    """Some processes; `prepare(*arguments)` runs once in each and returns the function that handles a task."""

    def __init__(self, size: int, prepare: Callable[..., Callable[[Parent, Any], Any]], *arguments: object) -> None:
        is_forked = can_fork()
        context: Any = get_context("fork" if is_forked else "spawn")
        its_leash, self._leash = context.Pipe(duplex=False)
        its_stop, self._stop = context.Pipe(duplex=False)
        self._reports: SimpleQueue[Any] = context.SimpleQueue()
        mine = [self._leash, self._stop] if is_forked else []
        parent = Parent(its_stop, self._reports)
        given = _Given(parent, its_leash, mine, gc.get_threshold(), prepare, arguments)
        self._executor = ProcessPoolExecutor(size, context, _begin, (given,))
        self._its = (its_leash, its_stop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """End the processes at once: a caller that wants a result waits for it first."""
        self._leash.close()
        with suppress(KeyboardInterrupt):  # a second Ctrl-C: they end anyway
            self._executor.shutdown(cancel_futures=True)
        self._stop.close()
        self._reports.close()
        for end in self._its:
            end.close()

    def submit(self, task: object) -> Future[Any]:
        """Hand a task to a process. Raises BrokenExecutor, and OSError if none can be started."""
        with _signals_blocked():
            return self._executor.submit(_handle, task)

    def reports(self) -> Iterator[Any]:
        """Yield what the processes have sent so far about running tasks."""
        while not self._reports.empty():
            yield self._reports.get()

    def stop(self) -> None:
        """Ask the processes to stop where nothing is lost."""
        self._stop.send_bytes(b"stop")


class Parent:
    """The parent, as a process sees it: gets reports, may ask to stop."""

    def __init__(self, stop: End, reports: SimpleQueue[Any]) -> None:
        self._stop = stop
        self._reports = reports

    def send(self, report: object) -> None:
        """Send something about the current task. A report is small: a pipe takes it whole or not at all."""
        self._reports.put(report)

    def pause(self, seconds: float) -> bool:
        """Wait; return False immediately on a request to stop."""
        return not self._stop.poll(max(0.0, seconds))

    @property
    def is_stopping(self) -> bool:
        """Whether the parent asked to stop."""
        return self._stop.poll(0.0)


class _Given(NamedTuple):
    """What a process needs."""

    parent: Parent
    leash: End
    not_its: list[End]  # a forked process has all pipes of its parent
    threshold: tuple[int, int, int]
    prepare: Callable[..., Callable[[Parent, Any], Any]]
    arguments: tuple[object, ...]


def _begin(given: _Given) -> None:
    """Begin a process."""
    global _run  # noqa: PLW0603  an executor hands nothing else to its tasks
    for end in given.not_its:
        end.close()
    threading.Thread(target=_end_with, args=(given.leash,), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: threading.Timer(_GRACE_S, os._exit, (1,)).start())
    if sys.platform != "win32":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _SIGNALS)
    gc.freeze()  # what is loaded stays: no collection looks at it
    gc.set_threshold(*given.threshold)
    _run = partial(given.prepare(*given.arguments), given.parent)


def _end_with(leash: End) -> None:
    """End this process when the other end is closed."""
    leash.poll(None)
    os._exit(1)


def _handle(task: object) -> Any:  # noqa: ANN401
    return _run(task)


@contextmanager
def _signals_blocked() -> Iterator[None]:
    """Block signals while a process starts, until it handles them in its own way; this one gets them afterwards."""
    if sys.platform == "win32":
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def can_fork() -> bool:
    """Return whether a fork is safe: a thread that it does not have may hold a lock that it waits for.

    The core of grpc has ended its threads by then, but not every version of it can be used in a fork.
    """
    if sys.platform != "linux" or "grpc" in sys.modules:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  threads of all libraries, not only Python's
    except OSError:  # /proc is not mounted
        return False
