"""The transcripts beside a session: which of them may have an id, and which were being written at a time.

Every session of a project asks all others whether they have its first turn (`source.forks`). A backfill of thousands of
sessions must not take the square of their number:

- Of a large project, sizes and times are looked up again only after a moment, or if the session itself was written to
  since: a copy is written after its origin.
- The first questions are answered by searching each file. After some, one pass over all files finds the ids that more
  than one of them has: there are few, and only those can be copies.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.scan import ids_in, is_id, stamp_of, time_range
from turnspan.source.sessions import SessionFile, session_of
from turnspan.source.tree import directory_stamp, names_in

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from turnspan.source.tree import Stamp

_SMALL: Final = 64  # files of a project whose sizes and times are looked up with every question
_TRUSTED_S: Final = 0.25  # how long those of a larger project are taken as they are
_SEARCHES: Final = 4  # of each file, before all ids are compared in one pass
_NEVER_NS: Final = 2**63


def others(session: SessionFile) -> Iterator[SessionFile]:
    """Yield the other sessions of the project."""
    return _as_sessions(session, names_in(session.path.parent).sessions)


def others_that_may_have(session: SessionFile, *ids: str, at_ns: int | None = None) -> Iterator[SessionFile]:
    """Yield the other sessions that may have one of these ids; of those that were being written at a time, if given."""
    project = _project_of(session.path.parent)
    project.refresh(session.path.name)
    return _as_sessions(session, project.that_may_have(ids, at_ns, session.path.name))


def session_in(path: Path) -> str:
    """Return the session that a transcript belongs to: a backup beside it is not another session."""
    if len(path.stem) == 36:
        return path.stem
    return _session_named_in(str(path), stamp_of(str(path)), directory_stamp(path.parent))


@lru_cache(maxsize=1 << 9)  # asked with every turn
def _session_named_in(path: str, _stamp: Stamp, _changed_ns: int) -> str:
    return session_of(Path(path)).session_id


def forget() -> None:
    """Forget sizes and times, because the files may have changed a moment ago."""
    _project_of.cache_clear()


def _as_sessions(session: SessionFile, names: Iterable[str]) -> Iterator[SessionFile]:
    directory = session.path.parent
    for name in names:
        path = directory / name
        if path != session.path and session_in(path) != session.session_id:
            yield SessionFile(name[:-6], path)


class _Life(msgspec.Struct, frozen=True, order=True):
    """When a transcript was written, by the times in it."""

    first_ns: int  # 0 if the beginning of the file does not show a time
    last_ns: int  # far in the future if the end does not show one
    name: str
    stamp: Stamp


class _Project:
    """The transcripts of a project, as they were a moment ago."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lives: dict[str, _Life] = {}
        self._ordered: list[_Life] = []
        self._firsts: list[int] = []
        self._read_s = 0.0
        self._searches = 0
        self._shared: dict[int, set[str]] | None = None  # hash of an id → the files that have it, if several have
        self._changed: set[str] = set()  # files that were written to since `_shared` was made

    def refresh(self, own: str) -> None:
        """Look at all files again, unless they are many, that was a moment ago, and a session is as it was then."""
        names, lives = names_in(self._directory).sessions, self._lives
        if len(names) > _SMALL and len(names) == len(lives) and time.monotonic() - self._read_s < _TRUSTED_S:
            known = lives.get(own)
            if known is not None and known.stamp == self._stamp(own):
                return
        stamps = {name: self._stamp(name) for name in names}
        fresh = {name: known for name in names if (known := lives.get(name)) and known.stamp == stamps[name]}
        changed = stamps.keys() - fresh.keys()
        for name in changed:
            first_ns, last_ns = time_range(self._directory / name)
            fresh[name] = _Life(first_ns or 0, _NEVER_NS if last_ns is None else last_ns, name, stamps[name])
        if changed or len(fresh) != len(lives):
            self._changed |= changed
            self._ordered = sorted(fresh.values())
            self._firsts = [life.first_ns for life in self._ordered]
        self._lives, self._read_s = fresh, time.monotonic()

    def _stamp(self, name: str) -> Stamp:
        return stamp_of(f"{self._directory}/{name}")

    def that_may_have(self, ids: Sequence[str], at_ns: int | None, own: str) -> list[str]:
        """Return the names of the files that may have one of these ids of a file, ordered."""
        if self._searches > _SEARCHES * len(self._lives):
            self._shared, self._searches = self._compared(), 0
        is_compared = own in self._lives and own not in self._changed and all(map(is_id, ids))
        if self._shared is None or not is_compared:
            found = self._ordered[: len(self._firsts) if at_ns is None else bisect_right(self._firsts, at_ns)]
            names = [life.name for life in found if at_ns is None or life.last_ns >= at_ns]
            self._searches += len(names)
            return sorted(names)
        hashes = [hash(each.encode("utf-8", "surrogatepass")) for each in ids]
        shared = self._changed.union(*(self._shared.get(each, ()) for each in hashes))
        lives = (self._lives[name] for name in shared if name in self._lives)
        return sorted(life.name for life in lives if at_ns is None or life.first_ns <= at_ns <= life.last_ns)

    def _compared(self) -> dict[int, set[str]]:
        """Return the ids that more than one file has."""
        first: dict[int, str] = {}
        shared: dict[int, set[str]] = {}
        self._changed = set()
        for name in self._lives:
            for each in {hash(found) for found, _ in ids_in(self._directory / name)}:
                if (other := first.setdefault(each, name)) != name:
                    shared.setdefault(each, {other}).add(name)
        return shared


@lru_cache(maxsize=1 << 10)  # a backfill goes through all projects at once, in the order of time
def _project_of(directory: Path) -> _Project:
    return _Project(directory)
