"""Some processes that work through tasks, each on one task at a time.

Rules:

- A process that dies takes its one task with it and nothing else: the task is reported as lost, another process takes
  its place.
- Ctrl-C reaches every process of a terminal, and a SIGTERM may reach all of a group. Ours leave both to the parent,
  which asks each of them to stop where it can.
- A parent that dies has asked for a stop, too: its end of the pipe is gone.
- They are started afresh, not forked: nothing of the parent, no lock and no connection, is theirs by accident.
"""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnProcess
    from types import TracebackType

_GRACE_S = 5.0
_STOPS = (signal.SIGINT, signal.SIGTERM)

Task = TypeVar("Task")


class Done(msgspec.Struct, frozen=True):
    """The last word about a task."""

    result: Any


class Lost(msgspec.Struct, frozen=True):
    """The process that had a task is gone."""

    exit_code: int | None


class Desk:
    """A worker's place: what it tells its parent, and whether the parent wants it to stop."""

    def __init__(self, inbox: Connection[Any, Any], outbox: Connection[Any, Any]) -> None:
        self._inbox = inbox
        self._outbox = outbox

    def tell(self, message: object) -> None:
        """Say how far a task is."""
        self._outbox.send(message)

    def pause(self, seconds: float) -> bool:
        """Wait; False, and at once, if a stop is asked for. Whatever comes while a task is worked on asks for it."""
        return not self._inbox.poll(max(0.0, seconds))

    @property
    def is_stopping(self) -> bool:
        """Whether a stop is asked for."""
        return self._inbox.poll()


class _Member:
    def __init__(self, process: SpawnProcess, to: Connection[Any, Any], back: Connection[Any, Any]) -> None:
        self.process = process
        self.to = to
        self.back = back
        self.task: Any = None


class Crew(Generic[Task]):
    """Processes that are given tasks. `prepare`, called once in each, gives the function that does one."""

    def __init__(self, size: int, prepare: Callable[..., Callable[[Desk, Task], Any]], *args: object) -> None:
        self._size = size
        self._prepare = prepare
        self._args = args
        self._members: list[_Member] = []
        self._is_stopping = False

    def __enter__(self) -> Crew[Task]:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _where: TracebackType | None
    ) -> None:
        self.stop()
        for member in self._members:
            if error is not None:
                member.process.kill()
            member.process.join(_GRACE_S)
            if member.process.is_alive():
                member.process.kill()
                member.process.join()
            _close(member)

    @property
    def has_room(self) -> bool:
        """Whether a task could be begun now."""
        return not self._is_stopping and (
            len(self._members) < self._size or any(member.task is None for member in self._members)
        )

    @property
    def at_work(self) -> int:
        """How many tasks are being done."""
        return sum(member.task is not None for member in self._members)

    def give(self, task: Task) -> None:
        """Have a task begun."""
        member = next((member for member in self._members if member.task is None), None) or self._hire()
        member.task = task
        with suppress(BrokenPipeError):  # it has just died: `events` will tell
            member.to.send(task)

    def events(self, timeout_s: float) -> Iterator[tuple[Task, Any]]:
        """What was told meanwhile about tasks; the last thing about each is `Done` or `Lost`."""
        heard = [member.back for member in self._members if member.task is not None]
        if not heard:
            time.sleep(timeout_s)
        for back in wait(heard, timeout_s) if heard else ():
            member = next(member for member in self._members if member.back is back)
            task = member.task
            try:
                message = member.back.recv()
            except (EOFError, OSError):
                message = self._bury(member)
            if isinstance(message, Done):
                member.task = None
            yield task, message

    def stop(self) -> None:
        """Ask everybody to stop where it is safe; no new task begins."""
        if not self._is_stopping:
            self._is_stopping = True
            for member in self._members:
                with suppress(BrokenPipeError):
                    member.to.send(None)

    def _hire(self) -> _Member:
        context = get_context("spawn")
        theirs, to = context.Pipe(duplex=False)
        back, their_back = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(self._prepare, self._args, theirs, their_back), daemon=True)
        with _left_to_the_parent():
            process.start()
        theirs.close()
        their_back.close()
        member = _Member(process, to, back)
        self._members.append(member)
        return member

    def _bury(self, member: _Member) -> Lost:
        member.process.join(_GRACE_S)
        self._members.remove(member)
        _close(member)
        return Lost(member.process.exitcode)


def _close(member: _Member) -> None:
    member.to.close()
    member.back.close()


@contextmanager
def _left_to_the_parent() -> Iterator[None]:
    """What is ignored when a process starts stays ignored in it, from its first instruction on."""
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _STOPS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _work(
    prepare: Callable[..., Callable[[Desk, Any], Any]],
    args: tuple[object, ...],
    inbox: Connection[Any, Any],
    outbox: Connection[Any, Any],
) -> None:
    """What a process does all its life."""
    for number in _STOPS:
        signal.signal(number, signal.SIG_IGN)
    do = prepare(*args)
    desk = Desk(inbox, outbox)
    while True:
        try:
            task = inbox.recv()
        except EOFError:
            return
        if task is None:
            return
        with suppress(BrokenPipeError):  # nobody is there to hear it: the next `recv` says so
            outbox.send(Done(do(desk, task)))
