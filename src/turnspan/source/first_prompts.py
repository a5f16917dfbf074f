"""The prompts that old sessions of a project begin with: several of them are looked up with one pass over each file.

A session of a client before 2.0.30 asks every other file of its project for its first prompt (`source.forks`). In a
process that reads many sessions, the others will ask the same files for theirs; most of the time of a search is spent
on getting the file into memory. What is returned here is a guess: it decides how often files are read, nothing else.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.scan import END_BYTES, lines, row_as
from turnspan.transcript.carry import version_of

if TYPE_CHECKING:
    from pathlib import Path

_MOST: Final = 8  # prompts of a project; with more, an index of each file is faster


class _Row(msgspec.Struct, rename="camel"):
    type: str = ""
    uuid: str = ""
    version: str = ""
    is_meta: bool = False
    is_sidechain: bool = False


class FirstPrompts:
    """The first prompts in the projects that a process reads."""

    def __init__(self) -> None:
        self._asked: set[Path] = set()

    def expected(self, path: Path, names: tuple[str, ...], before: tuple[int, ...]) -> tuple[str, ...]:
        """Return the uuids that other sessions of a project, of clients before a version, will ask for.

        None for the first session that asks: a hook's worker reads one, so the others will not ask.
        """
        self._asked.add(path)
        if len(self._asked) == 1:
            return ()
        found = _first_prompts(path.parent, names, before)
        left = [uuid for name, uuid in found if path.parent / name not in self._asked]
        return tuple(left) if len(left) <= _MOST else ()


THIS_PROCESS: Final = FirstPrompts()


@lru_cache(maxsize=1 << 6)
def _first_prompts(directory: Path, names: tuple[str, ...], before: tuple[int, ...]) -> list[tuple[str, str]]:
    found = []
    for name in names:
        for line in lines(directory / name, END_BYTES):
            row = row_as(line, _Row)
            if row.type == "user" and not row.is_meta and not row.is_sidechain:
                if row.uuid and version_of(row.version) < before:
                    found.append((name, row.uuid))
                break
    return found
