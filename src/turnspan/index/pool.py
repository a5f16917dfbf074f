"""Reads several sessions: in this process, or in several if there is much to read (`processes`)."""

from __future__ import annotations

import gc
import os
from contextlib import closing, contextmanager
from typing import TYPE_CHECKING, Final

from turnspan.index.reading import GC_THRESHOLD, SessionReader

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from turnspan.index.reading import Finish, Job, Part
    from turnspan.settings.config import Config, Destination

_WORTH_BYTES: Final = 4 << 20  # starting a process takes as long as reading this much
_MOST_PROCESSES: Final = 8


def read_jobs(
    jobs: Sequence[Job], config: Config, destination: Destination
) -> Iterator[tuple[str, Iterable[Part | Finish]]]:
    """Yield each session's path and what was read of it, in any order. Use each before you take the next."""
    if not jobs:
        return
    reader = SessionReader(config, destination)
    others = min(_MOST_PROCESSES, os.cpu_count() or 1) - 1
    with _rare_collections():
        if not others or sum(job.size for job in jobs) < _WORTH_BYTES:
            for job in jobs:
                yield job.path, reader.parts(job)
            return
        from turnspan.index.processes import Pool  # noqa: PLC0415 - most updates need no other process

        with closing(Pool(min(others, len(jobs)), reader, config, destination)) as pool:
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
