"""Reads several sessions: in this process, or in others if there is much to read, while this one writes.

Sessions are begun in the given order, newest first, and arrive as they are read. A process that dies loses nothing: its
sessions are read in this process instead.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from turnspan.index.reading import SessionReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from turnspan.index.reading import Finish, Part, ReadJob
    from turnspan.processes import Parent, Workers
    from turnspan.settings.config import Config, Destination

_WORTH_BYTES: Final = 8 << 20  # starting processes takes as long as reading half of this
_MOST_BYTES: Final = 64 << 20  # of a session whose rows are all in memory, twice; a larger one is read here, in parts
_MOST_PROCESSES: Final = 8
_AHEAD: Final = 2  # sessions of each process that are being read, or wait to be written


def read_jobs(
    jobs: Sequence[ReadJob], config: Config, destination: Destination
) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
    """Yield each session's path and what was read of it. Use each before you take the next."""
    reader = SessionReader(config, destination)
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1, len(jobs))
    workers = None
    if processes > 1 and sum(job.size for job in jobs) >= _WORTH_BYTES:
        from turnspan.processes import Workers  # noqa: PLC0415 - most updates need no other process

        with suppress(OSError, ImportError, NotImplementedError):  # no more files, or a system without semaphores
            workers = Workers(processes, _Elsewhere, config, destination)
    if workers is None:
        for job in jobs:
            yield job.path, reader.parts(job)
        return
    with workers:
        yield from _read_elsewhere(jobs, reader, workers, _AHEAD * processes)


def _read_elsewhere(
    jobs: Sequence[ReadJob], reader: SessionReader, workers: Workers, most: int
) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
    waiting = deque(jobs)
    running: dict[Future[list[Part | Finish]], ReadJob] = {}
    while waiting or running:
        while waiting and len(running) < most:
            job = waiting.popleft()
            future = _submitted(workers, job) if job.size <= _MOST_BYTES else None
            if future is None:
                yield job.path, reader.parts(job)
            else:
                running[future] = job
        for future in wait(running, return_when=FIRST_COMPLETED).done:
            job = running.pop(future)
            yield job.path, reader.parts(job) if future.exception() is not None else future.result()


def _submitted(workers: Workers, job: ReadJob) -> Future[list[Part | Finish]] | None:
    """Hand a session to another process; return None if there is none."""
    try:
        return workers.submit(job)
    except (BrokenExecutor, OSError):
        return None


class _Elsewhere:
    """Reads sessions in another process."""

    def __init__(self, config: Config, destination: Destination) -> None:
        self._reader = SessionReader(config, destination)

    def __call__(self, _parent: Parent, job: ReadJob) -> list[Part | Finish]:
        """Return what was read of a session."""
        return list(self._reader.parts(job))
