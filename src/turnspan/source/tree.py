"""The transcripts on disk: the one walk over their directories, with names, sizes and times. It opens no file.

    projects/<project>/<session>.jsonl                               sessions
    projects/<project>/agent-<id>.jsonl                              subagents next to their session (2.0.28 to 2.1.1)
    projects/<project>/<session>/subagents/[…/]agent-<id>.jsonl      subagents of a session, workflows included

Rules:

- Ids that become paths are checked. The slug of a project is never computed: directories are listed.
- A symlink is followed if its target is below the projects directory; any other one is treated as missing. Among
  subagents, a symlink to a directory is never followed: it could lead in a circle. A project's directory may be a
  symlink: whatever exports it checks where it leads.
- A list of names is cached until its directory changes.
"""

from __future__ import annotations

import os
import stat
import time
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError

if TYPE_CHECKING:
    from collections.abc import Iterator

Stamp = tuple[int, int]  # size and modification time

TITLES: Final = "sessions-index.json"
_LONGEST_ID: Final = 128
_PORTS: Final = {f"{port}{number}" for port in ("com", "lpt") for number in range(10)}
_RESERVED: Final = {"con", "prn", "aux", "nul", *_PORTS}  # on Windows
_UUID_LENGTH: Final = 36
_TICK_NS: Final = 50_000_000  # file systems set times in steps of some milliseconds
_FILE_ENDS: Final = frozenset({"jsonl", ".json"})  # the ends of file names: transcripts, and `meta.json`


def is_safe_id(text: str) -> bool:
    """Whether an id is safe as a file name, on Windows too."""
    if not text.isalnum() and not (text[:1].isalnum() and text.replace("-", "").replace("_", "").isalnum()):
        return False
    return text.isascii() and len(text) <= _LONGEST_ID and (len(text) > 4 or text.lower() not in _RESERVED)


def is_below(path: Path, root: Path) -> bool:
    """Whether a path, with symlinks resolved, is below a directory."""
    try:
        target = path.resolve()
        # A symlink loop raises an error up to Python 3.12; later versions return one of the links.
        return target.is_relative_to(root.resolve()) and not target.is_symlink()
    except (OSError, RuntimeError, ValueError):
        return False


def stays_in(path: Path | str, root: Path) -> bool:
    """Whether a path is not a symlink, or one that stays below a directory."""
    return not os.path.islink(path) or is_below(Path(path), root)  # noqa: PTH114  mostly strings


def directory_stamp(directory: Path) -> int:
    """Return a number that changes with a directory: its time, unless it can still change without another time."""
    changed_ns, now_ns = directory.stat().st_mtime_ns, time.time_ns()  # the clock decides what is cached, nothing else
    return changed_ns if abs(now_ns - changed_ns) > _TICK_NS else now_ns


def projects_dir(claude_home: Path) -> Path:
    """Return the directory of Claude Code's transcripts."""
    return claude_home / "projects"


def project_names(projects: Path) -> list[str]:
    """Return the names of all projects, ordered. Raises TranscriptError if they cannot be listed."""
    try:
        with os.scandir(projects) as entries:
            return sorted(entry.name for entry in entries if _may_be_directory(entry))
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise _unlisted(projects, error) from error


def _may_be_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a symlink loop, or no permission: listing it will raise the error
        return True


def _unlisted(directory: Path, error: OSError) -> TranscriptError:
    return TranscriptError(f"cannot list {str(directory)!r}: {error.strerror}")


class Names(msgspec.Struct, frozen=True):
    """The names in a project's directory, ordered."""

    sessions: tuple[str, ...] = ()
    renamed: tuple[str, ...] = ()  # those of `sessions` that are not named after a session: backups, mostly
    agents: tuple[str, ...] = ()  # subagents next to their sessions
    others: frozenset[str] = frozenset()  # directories of sessions, among others


def names_in(directory: Path) -> Names:
    """Return the names in a project's directory. If it cannot be listed, that is an error, not an empty list."""
    try:
        return _names_in(str(directory), directory_stamp(directory))
    except (FileNotFoundError, NotADirectoryError):
        return Names()
    except OSError as error:
        raise _unlisted(directory, error) from error


@lru_cache(maxsize=1 << 9)  # a backfill asks for the same directories with every session
def _names_in(directory: str, _changed_ns: int) -> Names:
    names = sorted(_entries(directory, Path(directory).parent))
    files = [name for name in names if name.endswith(".jsonl")]
    sessions = [name for name in files if not name.startswith("agent-") and is_safe_id(name[:-6])]
    return Names(
        tuple(sessions),
        tuple(name for name in sessions if len(name) != _UUID_LENGTH + 6),
        tuple(name for name in files if name.startswith("agent-") and is_safe_id(name[6:-6])),
        frozenset(names).difference(files),
    )


def _entries(directory: str, projects: Path) -> list[str]:
    """Return the names in a directory, except those of symlinks that leave the projects directory."""
    with os.scandir(directory) as entries:
        return [entry.name for entry in entries if not entry.is_symlink() or is_below(Path(entry.path), projects)]


def agent_names(directory: Path, session_id: str) -> Iterator[tuple[str, list[str]]]:
    """Yield the directories of a session's subagents (since 2.1.2), each with the names in it, ordered.

    Every event needs them, and there can be a thousand: so no `Path` objects, and no system call per file.
    """
    own, projects = directory / session_id, directory.parent
    waiting = [str(own / "subagents")]
    if not stays_in(own, projects) or not stays_in(waiting[0], projects):
        return
    while waiting:
        inner = waiting.pop()
        try:
            names = sorted(_entries(inner, projects))
        except OSError:  # missing, or not a directory
            continue
        yield inner, names
        below = [inner + os.sep + name for name in reversed(names) if name[-5:] not in _FILE_ENDS]
        waiting += [path for path in below if not os.path.islink(path)]  # noqa: PTH114


class Folder(msgspec.Struct):
    """The files of a project, each with its stamp."""

    path: str
    files: dict[str, Stamp] = {}  # transcripts, by name
    agents: dict[str, dict[str, Stamp]] = {}  # subagents' files, by the directory of their session
    titles: Stamp | None = None


def folder_of(directory: Path) -> Folder:
    """Return the files of a project, with those of its sessions' subagents."""
    names, path = names_in(directory), str(directory) + os.sep
    found = Folder(str(directory), stamps_in(directory))
    for name in names.agents:
        if (stamp := _regular(path + name)) is not None:
            found.files[name] = stamp
    for name in sorted(names.others):
        if name == TITLES:
            found.titles = _regular(path + name)
        elif agents := _agent_stamps(directory, name):
            found.agents[name] = agents
    return found


def _agent_stamps(directory: Path, session_id: str) -> dict[str, Stamp]:
    agents: dict[str, Stamp] = {}
    for inner, names in agent_names(directory, session_id):
        for name in names:
            if name.endswith(".json"):
                agents[name] = 0, 0  # its fields that matter do not change: when it appears is enough
            elif not name.startswith("agent-") or not name.endswith(".jsonl"):
                continue
            elif (stamp := _regular(inner + os.sep + name)) is not None:
                agents[name[6:-6]] = stamp
    return agents


def session_stamps(projects: Path) -> Iterator[Stamp]:
    """Yield the stamps of all sessions' transcripts; of projects that can be listed."""
    try:
        directories = [projects / name for name in project_names(projects)]
    except TranscriptError:
        return
    for directory in directories:
        with suppress(TranscriptError):  # the list of sessions says why
            yield from stamps_in(directory).values()


def stamps_in(directory: Path) -> dict[str, Stamp]:
    """Return the stamps of the sessions' transcripts in a project, by name; there can be thousands."""
    path = str(directory) + os.sep
    found = ((name, _regular(path + name)) for name in names_in(directory).sessions)
    return {name: stamp for name, stamp in found if stamp is not None}


def _regular(path: str) -> Stamp | None:
    """Return size and time of a regular file; None if it is not one."""
    try:
        found = os.stat(path)  # noqa: PTH116
    except OSError:
        return None
    return (found.st_size, found.st_mtime_ns) if stat.S_ISREG(found.st_mode) else None
