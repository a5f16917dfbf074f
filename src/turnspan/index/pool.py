"""Reads several sessions, in further processes if there is much to read.

This process reads, too, whenever it has nothing to write: it takes the smallest sessions, the others begin with the
largest. Otherwise it would wait while they start, and a machine with two processors would start one process too many.

Not `bulk.pool`: that room is above this one, and its processes keep the state of a delivery. Here a process that dies
loses nothing: the session is read in this process instead.
"""

from __future__ import annotations

import gc
import os
import signal
from collections import deque
from contextlib import contextmanager
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
_GC_THRESHOLD: Final = 100_000  # new objects; Python's default takes a twentieth of building an index


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
    with _rare_collections():
        if small:
            here += yield from _in_processes(small, processes - 1, config, destination)
        if here:
            reader = SessionReader(config, destination)
            for job in here:
                yield job.path, reader.parts(job)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run less often."""
    before = gc.get_threshold()
    gc.set_threshold(_GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _in_processes(
    jobs: Sequence[Job], others: int, config: Config, destination: Destination
) -> Generator[tuple[str, Iterable[Part | Finish]], None, list[Job]]:
    """Yield what was read here and in other processes, and return the sessions that were not because one died."""
    from concurrent.futures import ProcessPoolExecutor  # noqa: PLC0415 - most updates need no other process
    from concurrent.futures.process import BrokenProcessPool  # noqa: PLC0415
    from multiprocessing import get_context  # noqa: PLC0415

    waiting = deque(sorted(jobs, key=lambda job: job.size, reverse=True))
    running: deque[tuple[Job, Future[list[Part | Finish]]]] = deque()
    pool = ProcessPoolExecutor(others, get_context("spawn"), _prepare, (config, destination))
    reader = SessionReader(config, destination)
    try:
        while waiting or running:
            while waiting and len(running) < 2 * others:
                job = waiting.popleft()
                running.append((job, pool.submit(read_all, job)))
            job, future = running[0]
            if waiting and not future.done():
                job = waiting.pop()
                yield job.path, reader.parts(job)
                continue
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
    gc.set_threshold(_GC_THRESHOLD)
    prepare(config, destination)
