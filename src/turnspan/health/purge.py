"""What turnspan wrote on this machine, and its deletion.

Rules:

- Everything in turnspan's directory is ours: settings with keys, state, traces, index, log. It also has the backups of
  Claude Code's settings, which are needed until the hooks are removed: the hooks are removed first.
- Of a directory that the user chose for local traces, only our own files are deleted.
- A link is deleted, never what it points to. Transcripts are Claude Code's and are kept.
- It can be repeated: what a killed run did not delete is deleted by the next one.
"""

from __future__ import annotations

import os
import shutil
import stat
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends.local_files import data_path, file_numbers, index_path
from turnspan.errors import StateError
from turnspan.files import disk_error, private_directory
from turnspan.settings.config import CONFIG_NAME

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from turnspan.settings.config import Config

_ATTEMPTS: Final = 5  # a worker that is still running may write while we delete
_WHAT: Final = {
    CONFIG_NAME: "settings and keys",
    "state": "how far each session was exported",
    "traces": "traces",
    "index.sqlite3": "the index of `sessions`, `stats`, `search` and `view`",
    "turnspan.log": "the log",
    "installed": "backups of Claude Code's settings",
}


class Written(msgspec.Struct, frozen=True):
    """A file or directory that turnspan wrote."""

    path: Path
    what: str
    bytes: int


def written(config: Config) -> Iterator[Written]:
    """Yield everything that turnspan wrote: in its own directory, and traces elsewhere."""
    home = config.home
    if os.path.lexists(home):
        private_directory(home)  # refuses a link and another user's directory
        for path in sorted(home.iterdir()):
            what = _WHAT.get(path.name, "")
            yield Written(path, f"{what} (only the link)" if what and path.is_symlink() else what, _size(path))
    for destination in config.destinations:
        chosen = destination.options.get("directory")
        directory = Path(str(chosen)).expanduser() if chosen else None
        if directory is not None and not directory.is_relative_to(home):
            for path in _trace_files(directory):
                yield Written(path, "traces", _size(path))


def purge(config: Config, parts: Iterable[Written]) -> None:
    """Delete these files, and turnspan's directory. Raises StateError if something remains."""
    for part in parts:
        _delete(part.path)
    if os.path.lexists(config.home):
        _delete(config.home)


def _trace_files(directory: Path) -> list[Path]:
    numbers = file_numbers(directory)
    paths = [make(directory, number) for number in numbers for make in (data_path, index_path)]
    return [path for path in (*paths, directory / ".lock") if numbers and os.path.lexists(path)]


def _size(path: Path) -> int:
    files = [path] if not path.is_dir() or path.is_symlink() else path.rglob("*")
    total = 0
    for each in files:
        with suppress(FileNotFoundError):  # deleted meanwhile
            found = each.lstat()
            total += 0 if stat.S_ISDIR(found.st_mode) else found.st_size
    return total


def _delete(path: Path) -> None:
    problem = OSError("it was written again")
    for _ in range(_ATTEMPTS):
        try:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        except FileNotFoundError:
            pass
        except OSError as error:
            problem = error
        if not os.path.lexists(path):
            return
    message = disk_error(problem, path).args[0]
    raise StateError(str(message), hint="end open sessions of Claude Code, and run the same command again")
