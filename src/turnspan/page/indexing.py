"""The index behind the page: a request waits for it for a moment, then gets what is there so far.

Rules:

- Usually nothing or little is new, and a request brings the index up to date by itself.
- If that takes long (the first time, with thousands of sessions), it continues in the background. Until it is done,
  requests get what was read so far, with a record `reading` first: the page says that figures are not complete, and
  asks again. So the first view never waits for the last session.
- An index that is not a file cannot be read while it is made: then a request waits.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing, contextmanager, suppress
from multiprocessing import active_children
from typing import TYPE_CHECKING, Final

from turnspan.index import Index, is_stored, opened, stored_as_it_is
from turnspan.text import one_line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from turnspan.index.update import Watch
    from turnspan.settings.config import Config, Destination

    Record = dict[str, object]
    Made = Callable[[Index], Iterator[Record]]

_PATIENCE_S: Final = 0.4  # until a request gets what is there


class Indexing:
    """Answers requests from the index of one destination."""

    def __init__(self, config: Config, destination: Destination) -> None:
        self._config = config
        self._destination = destination
        self._lock = threading.Lock()
        self._long: _Job | None = None  # what brings the index up to date in the background
        self._read: tuple[int, int] | None = None  # sessions that it has read, and all that it reads

    def prepare(self) -> None:
        """Begin to bring the index up to date, before the first request."""
        if is_stored(self._config, self._destination):
            self._started(lambda _: iter(()))

    def abandon(self) -> None:
        """End the processes that read sessions: the interpreter would wait for them before it exits.

        What they read is lost, and read again by the next command.
        """
        for process in active_children():
            process.kill()

    def close(self) -> None:
        """Wait until nothing is written to the index."""
        with self._lock:
            job = self._long
        if job is not None:
            job.join()

    def records(self, made: Made) -> Iterator[Record]:
        """Yield the records that `made` returns for an index, and why something is missing."""
        if not is_stored(self._config, self._destination):
            with opened(self._config, self._destination) as index:
                yield from _with_notes(made, index)
            return
        if not self._is_busy():
            job = self._started(made)
            if job.is_up_to_date.wait(_PATIENCE_S):
                yield from job.result()
                return
        yield from self._so_far(made)

    def _is_busy(self) -> bool:
        with self._lock:
            job = self._long
        return job is not None and not job.is_up_to_date.wait(_PATIENCE_S)

    def _started(self, made: Made) -> _Job:
        job = _Job(lambda: opened(self._config, self._destination, show=self._show), made)
        with self._lock:
            self._long, self._read = job, None
        job.start()
        return job

    def _so_far(self, made: Made) -> Iterator[Record]:
        done, total = self._read or (None, None)
        yield {"is": "reading", "done": done, "of": total}
        connection = stored_as_it_is(self._config, self._destination)
        if connection is not None:
            with closing(connection), suppress(sqlite3.Error):  # a damaged one is being rebuilt
                yield from made(Index(connection, is_in_memory=False))

    @contextmanager
    def _show(self, sessions: int, _size: int) -> Iterator[Watch]:
        def watch(done: int, _expected: int | None, _bytes: float, _name: str) -> None:
            self._read = done, sessions

        yield watch


class _Job(threading.Thread):
    """Opens the index, which brings it up to date, and makes the records of a request."""

    def __init__(self, index: Callable[[], AbstractContextManager[Index]], made: Made) -> None:
        super().__init__(daemon=True)
        self._index = index
        self._made = made
        self._records: list[Record] = []
        self._error: Exception | None = None
        self.is_up_to_date = threading.Event()

    def run(self) -> None:
        """Do it; an error is for the request."""
        try:
            with self._index() as index:
                self.is_up_to_date.set()
                self._records = list(_with_notes(self._made, index))
        except Exception as error:  # noqa: BLE001 - the request raises it
            self._error = error
        finally:
            self.is_up_to_date.set()

    def result(self) -> list[Record]:
        """Wait for the records. Raises what went wrong."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._records


def _with_notes(made: Made, index: Index) -> Iterator[Record]:
    yield from made(index)
    for why in (*index.remarks, *(f"skipped: {why}" for why in index.unreadable.values())):
        yield {"is": "note", "text": one_line(why)}
