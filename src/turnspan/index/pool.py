"""Reads several sessions: in this process, or in several if there is much to read (`processes`)."""

from __future__ import annotations

import gc
import os
from contextlib import closing, contextmanager, suppress
from typing import TYPE_CHECKING, Final

from turnspan.index.reading import SessionReader
from turnspan.processes import GC_THRESHOLD, can_fork

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from turnspan.index.reading import Finish, Job, Part
    from turnspan.settings.config import Config, Destination

# Starting processes takes as long as reading this much. Forking takes 3 ms of CPU time, starting an interpreter 150.
_WORTH_FORKING: Final = 4 << 20
_WORTH_SPAWNING: Final = 8 << 20
_MOST_PROCESSES: Final = 8


def read_jobs(
    jobs: Sequence[Job], config: Config, destination: Destination
) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
    """Yield each session's path and what was read of it, in any order. Use each before you take the next."""
    if not jobs:
        return
    reader = SessionReader(config, destination)
    others = min(_MOST_PROCESSES, os.cpu_count() or 1) - 1
    is_forked = can_fork()
    worth_bytes = _WORTH_FORKING if is_forked else _WORTH_SPAWNING
    with _rare_collections():
        if not others or sum(job.size for job in jobs) < worth_bytes:
            for job in jobs:
                yield job.path, reader.parts(job)
            return
        from turnspan.index.processes import Pool  # noqa: PLC0415 - most updates need no other process

        with closing(Pool(reader, config, destination, is_forked=is_forked)) as pool:
            with suppress(OSError):  # too many processes: then there are fewer, or this one only
                pool.start(min(others, len(jobs)))
            yield from pool.read(jobs)


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Let the garbage collector run less often."""
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD)
    try:
        yield
    finally:
        gc.set_threshold(*before)
