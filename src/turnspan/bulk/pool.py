"""A pool of worker processes, each of which handles one task at a time.

Rules:

- A process that dies loses its one task and nothing else: the task is reported as lost and a new process replaces it.
- Ctrl-C reaches every process of a terminal, and SIGTERM may reach a process group. The workers ignore both; the parent
  asks each of them to stop.
- A worker also stops when its parent dies: its end of the pipe closes.
- Processes are forked where that is safe (Linux, no other thread, no gRPC): a new interpreter takes 0.1 s to import
  everything again. A fork closes the pipes of the other workers, or it would keep them open when the parent dies.
"""

from __future__ import annotations

import gc
import select
import signal
import time
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from turnspan.processes import GC_THRESHOLD, can_fork

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess
    from types import TracebackType

_GRACE_S = 5.0
_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM)

Task = TypeVar("Task")


class Done(msgspec.Struct, frozen=True):
    """The result of a task."""

    result: Any


class Lost(msgspec.Struct, frozen=True):
    """The process that had the task died."""

    exit_code: int | None


class Parent:
    """The parent process, as a worker sees it: receives messages, may ask the worker to stop."""

    def __init__(self, inbox: Connection[Any, Any], outbox: Connection[Any, Any]) -> None:
        self._has_message = _waiter(inbox)
        self._outbox = outbox

    def send(self, message: object) -> None:
        """Send a message about the current task."""
        self._outbox.send(message)

    def pause(self, seconds: float) -> bool:
        """Wait; return False immediately on a stop request. Any message that arrives during a task is one."""
        return not self._has_message(max(0.0, seconds))

    @property
    def is_stopping(self) -> bool:
        """Whether the parent asked the worker to stop."""
        return self._has_message(0.0)


def _waiter(inbox: Connection[Any, Any]) -> Callable[[float], bool]:
    """Return a function that waits for a message. A worker asks with every session; `Connection.poll` is slow."""
    if not hasattr(select, "poll"):  # Windows
        return inbox.poll
    poller = select.poll()
    poller.register(inbox, select.POLLIN)
    return lambda seconds: bool(poller.poll(1000 * seconds))


class _Worker:
    """One process of the pool, as the parent sees it."""

    def __init__(self, process: BaseProcess, inbox: Connection[Any, Any], outbox: Connection[Any, Any]) -> None:
        self.process = process
        self.inbox = inbox
        self.outbox = outbox
        self.task: Any = None

    def close(self) -> None:
        self.inbox.close()
        self.outbox.close()


class Pool(Generic[Task]):
    """Processes that handle tasks. `prepare(*args)` runs once in each and returns the function that handles a task."""

    def __init__(self, size: int, prepare: Callable[..., Callable[[Parent, Task], Any]], *args: object) -> None:
        self._size = size
        self._prepare = prepare
        self._args = args
        self._workers: list[_Worker] = []
        self._is_stopping = False

    def __enter__(self) -> Pool[Task]:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.stop()
        for worker in self._workers:
            if error is not None:
                worker.process.kill()
            worker.process.join(_GRACE_S)
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join()
            worker.close()

    @property
    def has_room(self) -> bool:
        """Whether a task could start now."""
        return not self._is_stopping and (
            len(self._workers) < self._size or any(worker.task is None for worker in self._workers)
        )

    @property
    def running(self) -> int:
        """Number of tasks that are running."""
        return sum(worker.task is not None for worker in self._workers)

    def start(self, task: Task) -> None:
        """Start a task in an idle process, or in a new one."""
        worker = next((worker for worker in self._workers if worker.task is None), None) or self._spawn()
        worker.task = task
        with suppress(BrokenPipeError):  # it has just died: `messages` reports that
            worker.inbox.send(task)

    def messages(self, timeout_s: float) -> Iterator[tuple[Task, Any]]:
        """Messages about running tasks; the last one about each task is `Done` or `Lost`."""
        outboxes = [worker.outbox for worker in self._workers if worker.task is not None]
        if not outboxes:
            time.sleep(timeout_s)
        for outbox in wait(outboxes, timeout_s) if outboxes else ():
            worker = next(worker for worker in self._workers if worker.outbox is outbox)
            task = worker.task
            try:
                message = worker.outbox.recv()
            except (EOFError, OSError):
                message = self._remove(worker)
            if isinstance(message, Done):
                worker.task = None
            yield task, message

    def stop(self) -> None:
        """Ask every process to stop at the next safe point; no new task starts."""
        if not self._is_stopping:
            self._is_stopping = True
            for worker in self._workers:
                with suppress(BrokenPipeError):
                    worker.inbox.send(None)

    def _spawn(self) -> _Worker:
        is_fork = can_fork()
        context = get_context("fork") if is_fork else get_context("spawn")
        its_inbox, inbox = context.Pipe(duplex=False)
        outbox, its_outbox = context.Pipe(duplex=False)
        others = [end for worker in self._workers for end in (worker.inbox, worker.outbox)]
        inherited = [inbox, outbox, *others] if is_fork else []
        args = (self._prepare, self._args, its_inbox, its_outbox, inherited)
        process = context.Process(target=_work, args=args, daemon=True)
        with _stop_signals_ignored():
            process.start()
        its_inbox.close()
        its_outbox.close()
        worker = _Worker(process, inbox, outbox)
        self._workers.append(worker)
        return worker

    def _remove(self, worker: _Worker) -> Lost:
        worker.process.join(_GRACE_S)
        self._workers.remove(worker)
        worker.close()
        return Lost(worker.process.exitcode)


@contextmanager
def _stop_signals_ignored() -> Iterator[None]:
    """Ignore stop signals while a process starts: it inherits that from its first instruction on."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOP_SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(
    prepare: Callable[..., Callable[[Parent, Any], Any]],
    args: tuple[object, ...],
    inbox: Connection[Any, Any],
    outbox: Connection[Any, Any],
    inherited: list[Connection[Any, Any]],
) -> None:
    """Main loop of a worker process."""
    for connection in inherited:
        connection.close()
    gc.freeze()  # what is loaded stays: no collection looks at it
    gc.set_threshold(GC_THRESHOLD)
    for number in _STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    handle = prepare(*args)
    parent = Parent(inbox, outbox)
    while True:
        try:
            task = inbox.recv()
        except EOFError:
            return
        if task is None:
            return
        with suppress(BrokenPipeError):  # the parent died: the next `recv` ends the loop
            outbox.send(Done(handle(parent, task)))
