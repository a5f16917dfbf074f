"""Reads several sessions, in processes of their own if there is much to read.

Not `bulk.pool`: that room is above this one, and its processes keep the state of a delivery. Here a process that dies
loses nothing: the session is read in this process instead.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from typing import TYPE_CHECKING, Final

from turnspan.index.reading import SessionReader, prepare, read_all

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from concurrent.futures import Future

    from turnspan.index.reading import Finish, Job, Part
    from turnspan.settings.config import Config, Destination

_WORTH_BYTES: Final = 8 << 20  # starting processes takes as long as reading this much
_HUGE_BYTES: Final = 64 << 20  # a session that is read in this process, piece by piece: its rows may not fit in memory
_MOST_PROCESSES: Final = 8


def read_jobs(
    jobs: Sequence[Job], config: Config, destination: Destination
) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
    """Yield each session's path and what was read of it, in any order."""
    small = [job for job in jobs if job.size < _HUGE_BYTES]
    processes = min(_MOST_PROCESSES, os.cpu_count() or 1, len(small))
    if processes < 2 or sum(job.size for job in small) < _WORTH_BYTES:
        small = []
    elsewhere = {job.path for job in small}
    here = [job for job in jobs if job.path not in elsewhere]
    if small:
        here += yield from _in_processes(small, processes, config, destination)
    if here:
        reader = SessionReader(config, destination)
        for job in here:
            yield job.path, reader.parts(job)


def _in_processes(
    jobs: Sequence[Job], processes: int, config: Config, destination: Destination
) -> Generator[tuple[str, Iterable[Part | Finish]], None, list[Job]]:
    """Yield what was read, and return the sessions that were not because a process died."""
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - most updates need no other process
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    waiting = deque(sorted(jobs, key=lambda job: job.size, reverse=True))
    running: deque[tuple[Job, Future[list[Part | Finish]]]] = deque()
    pool = ProcessPoolExecutor(processes, get_context("spawn"), _prepare, (config, destination))
    try:
        while waiting or running:
            while waiting and len(running) < 2 * processes:
                job = waiting.popleft()
                running.append((job, pool.submit(read_all, job)))
            job, future = running[0]
            parts = future.result()
            running.popleft()
            yield job.path, parts
    except BrokenProcessPool:
        return [job for job, _ in running] + [*waiting]
    finally:
        pool.shutdown(cancel_futures=True)
    return []


def _prepare(config: Config, destination: Destination) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent stops its processes
    prepare(config, destination)
