"""Reads sessions in this process and some others.

The work is divided while it is done:

- The other processes begin with the largest sessions, and send the rows of each when it is read. This process writes
  them; whenever there is nothing to write, it reads the smallest session itself.
- If no session is left, this process asks for the pieces of one that another process is reading. As long as it has
  nothing else to do, it gets them as they were read, and masks them and makes their rows, while the other process reads
  on. So two processes share one long session as well.

Not `bulk.pool`: that room is above this one, and its processes keep the state of a delivery. Here a process that dies
loses nothing: the session is read in this process instead.
"""

from __future__ import annotations

import gc
import os
import pickle
import signal
import threading
from collections import deque
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.connection import wait
from queue import Queue, SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.index.reading import Finish, SessionReader, Unmasked
from turnspan.processes import GC_THRESHOLD
from turnspan.source.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    from turnspan.index.reading import Job, Part
    from turnspan.settings.config import Config, Destination

    End = Connection[Any, Any]

_AHEAD: Final = 2  # sessions that a process gets before the first is written
_HELD_BYTES: Final = 8 << 20  # rows that wait in a process: of a session that is not read to its end yet


# ---- in this process


class Pool:
    """Reads sessions in this process and some others."""

    def __init__(self, reader: SessionReader, config: Config, destination: Destination, *, is_forked: bool) -> None:
        self._reader = reader
        self._settings = config, destination
        self._context: Any = get_context("fork" if is_forked else "spawn")
        self._is_forked = is_forked
        self._processes: list[_Process] = []

    def start(self, number: int) -> None:
        """Start the other processes."""
        for _ in range(number):
            its_inbox, inbox = self._context.Pipe(duplex=False)
            outbox, its_outbox = self._context.Pipe(duplex=False)
            mine = [inbox, outbox, *(end for each in self._processes for end in (each.inbox, each.outbox))]
            arguments = (its_inbox, its_outbox, mine if self._is_forked else [], *self._settings)
            process = self._context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            its_inbox.close()
            its_outbox.close()
            self._processes.append(_Process(process, inbox, outbox))

    def close(self) -> None:
        """End the processes: they have nothing to save."""
        for process in self._processes:
            process.close()

    def read(self, jobs: Sequence[Job]) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
        """Yield each session's path and what was read of it."""
        waiting = deque(sorted(jobs, key=lambda job: job.size, reverse=True))
        while True:
            for process in self._processes:
                while waiting and len(process.jobs) < _AHEAD and process.give(waiting[0]):
                    waiting.popleft()
            busy = [process for process in self._processes if process.jobs]
            ready = wait([process.outbox for process in busy], 0) if busy else []
            if waiting and not ready:
                job = waiting.pop()
                yield job.path, self._reader.parts(job)
            elif busy:
                process = next((process for process in busy if process.outbox in ready), busy[0])
                parts = self._parts(process, waiting)
                yield process.jobs[0].path, parts
                for _ in parts:  # the rest, if it was not wanted
                    pass
            else:
                return

    def _parts(self, process: _Process, waiting: deque[Job]) -> Iterator[Part | Finish]:
        """Yield what a process read of its first session; if it died, read its sessions here."""
        job, has_begun = process.jobs[0], False
        try:
            for found in process.results():
                has_begun = True
                if isinstance(found, Finish):
                    yield found
                else:
                    yield from self._reader.masked(found) if isinstance(found, Unmasked) else found
        except (EOFError, OSError, pickle.UnpicklingError):
            self._processes.remove(process)
            process.close()
            waiting.extendleft(reversed([*process.jobs][1:]))
            if has_begun:
                job = msgspec.structs.replace(job, progress=Progress(), is_anew=True)
            yield from self._reader.parts(job)


class _Process:
    """A process that reads sessions, as this one sees it."""

    def __init__(self, process: BaseProcess, inbox: End, outbox: End) -> None:
        self.inbox = inbox
        self.outbox = outbox
        self.jobs: deque[Job] = deque()
        self._process = process

    def give(self, job: Job) -> bool:
        """Send a session to read; return whether that was possible."""
        with suppress(OSError):
            self.inbox.send(job)
            self.jobs.append(job)
            return True
        return False

    def results(self) -> Iterator[list[Part] | Unmasked | Finish]:
        """Yield what it read of its first session. Raises EOFError or OSError if it died."""
        while True:
            if not self.outbox.poll():
                self.inbox.send(self.jobs[0].path)  # this process waits for it
            found = pickle.loads(self.outbox.recv_bytes())  # noqa: S301 - from a process of ours
            if isinstance(found, Finish):
                self.jobs.popleft()
            yield found
            if isinstance(found, Finish):
                return

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.join()
        self.inbox.close()
        self.outbox.close()


# ---- in another process


def _serve(inbox: End, outbox: End, inherited: Sequence[End], config: Config, destination: Destination) -> None:
    """Read sessions until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its processes
    gc.set_threshold(GC_THRESHOLD)
    for end in inherited:  # else the pipes stay open when the parent dies
        end.close()
    with suppress(BaseException):  # the parent reads the session again, and raises the same error
        parent = _Parent(inbox, outbox)
        reader = SessionReader(config, destination)
        while True:
            for found in reader.batches(parent.next_job()):
                parent.send(reader.masked(found) if isinstance(found, Unmasked) and not parent.is_idle else found)
    os._exit(0)


class _Parent:
    """The process that writes, as another one sees it. When it ends, this process does, too."""

    def __init__(self, inbox: End, outbox: End) -> None:
        self._inbox = inbox
        self._outbox = outbox
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._path = ""  # of the session that is read
        self._awaited = ""  # the path of the last session that the parent waited for
        self._held: list[bytes] = []
        self._size = 0
        self._sent: Queue[list[bytes]] = Queue(_AHEAD)
        for target in (self._receive_all, self._send_all):
            threading.Thread(target=target, daemon=True).start()

    def next_job(self) -> Job:
        """Wait for the next session."""
        job = self._jobs.get()
        self._path = job.path
        return job

    @property
    def is_idle(self) -> bool:
        """Whether the parent waits for this session, and has got everything that was sent."""
        return self._awaited == self._path and not self._sent.unfinished_tasks

    def send(self, found: list[Part] | Unmasked | Finish) -> None:
        """Send something when its session is complete, or now if the parent waits for this session."""
        self._held.append(pickle.dumps(found, pickle.HIGHEST_PROTOCOL))
        self._size += len(self._held[-1])
        if isinstance(found, Finish) or self._awaited == self._path or self._size > _HELD_BYTES:
            messages, self._held, self._size = self._held, [], 0
            self._sent.put(messages)

    def _receive_all(self) -> None:
        with suppress(EOFError, OSError):
            while True:
                message = self._inbox.recv()
                if isinstance(message, str):
                    self._awaited = message
                else:
                    self._jobs.put(message)
        os._exit(0)

    def _send_all(self) -> None:
        with suppress(OSError):
            while True:
                for message in self._sent.get():
                    self._outbox.send_bytes(message)
                self._sent.task_done()
        os._exit(0)
