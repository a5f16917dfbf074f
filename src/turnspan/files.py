"""turnspan's own files: where they are, and how they are opened, replaced and locked.

Rules:

- Everything is below `$CLAUDE_CONFIG_DIR/turnspan`, or `~/.claude/turnspan`. A relative directory is refused: a worker
  has no working directory to resolve it against.
- Directories are 0700 and files 0600. A path that is a link, belongs to another user or is writable by others is
  refused, never repaired: its content cannot be trusted.
- Replacing a file is atomic and durable: a temporary file is written and fsynced, renamed, and the directory fsynced.
  A reader, or a machine after a crash, finds the old content or the new content.
- Locks are kernel locks: they end with their holder and are never stolen. `filelock` locks a descriptor that was opened
  here, so that the rules above also hold for lock files. Lock files stay; one that was removed or replaced between
  opening and locking is opened again.
- A disk error is raised as a `StateError`, a sentence with a hint. Only FileNotFoundError is passed on.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from turnspan.errors import StateError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_SAFELY = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_BINARY = getattr(os, "O_BINARY", 0)
_LOCK_POLL_S = 0.02
_SHORTEST_POLL_S = 0.001  # most locks are held for a few milliseconds
_PATIENCE_S = 2.5
_SYNCED_AT_ONCE = 16
_SLOW_SYNCS_S = 0.02  # if syncing some files takes longer, the rest is synced at once
_IN_USE = {5, 32, 33}  # Windows error codes while a virus scanner or an indexer has the file open


class Busy(Exception):  # noqa: N818 - a result, not an error
    """Another process holds this lock."""


def claude_home(env: Mapping[str, str]) -> Path:
    """Return the directory of Claude Code's own files."""
    configured = env.get("CLAUDE_CONFIG_DIR")
    if not configured:
        return _user_home(env) / ".claude"
    if not Path(configured).is_absolute():
        message = f"no state dir: CLAUDE_CONFIG_DIR is {configured!r}, which is a relative path"
        raise StateError(message, hint="set it to an absolute path")
    return Path(configured)


def turnspan_home(env: Mapping[str, str]) -> Path:
    """Return the directory of our state, log, settings and local traces."""
    return claude_home(env) / "turnspan"


def home_of_transcript(path: Path) -> Path | None:
    """Return the directory of Claude Code's own files that holds this transcript; None if it is in no such directory.

    Variables cannot change it: a project's settings can set CLAUDE_CONFIG_DIR and HOME for a hook.
    """
    projects = next((parent for parent in path.parents if parent.name == "projects"), None)
    is_path = path.is_absolute() and "\0" not in str(path)
    return projects.parent if projects is not None and is_path else None


def _user_home(env: Mapping[str, str]) -> Path:
    variable = "USERPROFILE" if sys.platform == "win32" else "HOME"
    named = Path(env.get(variable) or "")
    home = named if named.is_absolute() else recorded_home()
    if home is None:
        raise StateError("no state dir: this user has no home directory", hint=f"set {variable} or CLAUDE_CONFIG_DIR")
    return home


def recorded_home() -> Path | None:
    """Return the home directory in the user database; None if there is none."""
    if sys.platform == "win32":
        return None
    import pwd  # noqa: PLC0415 - does not exist on Windows

    try:
        recorded = Path(pwd.getpwuid(os.geteuid()).pw_dir)
    except KeyError:  # a container whose user id has no name
        return None
    return recorded if recorded.is_absolute() else None


def private_directory(path: Path) -> Path:
    """Return a directory that only we can write to; create it if missing."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = _make_directory(path)
    except OSError as error:
        raise disk_error(error, path) from error
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise _unsafe(path, "it is not a directory, or is a link", hint="move it away")
    _check_owner(path, found)
    return path


def _make_directory(path: Path) -> os.stat_result:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)  # another worker may have created it meanwhile
        return os.lstat(path)
    except OSError as error:
        raise disk_error(error, path) from error


def open_private(path: Path, flags: int) -> int:
    """Open a regular file of ours, or create it 0600. Raises FileNotFoundError without O_CREAT."""
    if not hasattr(os, "O_NOFOLLOW") and path.is_symlink():  # Windows
        raise _unsafe(path, "it is not a regular file", hint="move it away")
    try:
        descriptor = os.open(path, flags | _SAFELY | _BINARY, 0o600)
    except OSError as error:
        if error.errno == errno.ENOENT and not flags & os.O_CREAT:
            raise
        # A link, a directory, or a FIFO or socket without a reader.
        if error.errno in {errno.ELOOP, errno.EMLINK, errno.EISDIR, errno.ENXIO}:
            raise _unsafe(path, "it is not a regular file", hint="move it away") from error
        raise disk_error(error, path) from error
    found = os.fstat(descriptor)
    try:
        if not stat.S_ISREG(found.st_mode):
            raise _unsafe(path, "it is not a regular file", hint="move it away")
        _check_owner(path, found)
    except StateError:
        os.close(descriptor)
        raise
    return descriptor


def read_private(path: Path, limit: int) -> bytes | None:
    """Return the first `limit` bytes of a file of ours; None if it does not exist."""
    try:
        descriptor = open_private(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        return read_on(descriptor, limit)
    except OSError as error:
        raise disk_error(error, path) from error
    finally:
        os.close(descriptor)


def read_on(descriptor: int, limit: int) -> bytes:
    """Return the bytes from the current offset to the end of the file, `limit` at most."""
    size = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    return os.read(descriptor, max(0, min(size, limit)))


def replace_private(path: Path, content: bytes) -> None:
    """Replace the content of a file, durably. Raises StateError, which keeps the old content."""
    replacements = Replacements(path.parent, {path.name: content})
    replacements.sync()
    if failed := replacements.commit():
        raise failed[path.name]


class Replacements:
    """New contents of several files of one directory, in temporary files until they are committed.

    Each step can be done by another thread, because syncing a disk is slow: creating the object writes the new files,
    `sync` makes them durable, `commit` renames them. A file that fails keeps its old content, and is in `failed`.
    """

    def __init__(self, directory: Path, contents: Mapping[str, bytes]) -> None:
        self.failed: dict[str, StateError] = {}
        self._directory = directory
        self._written: dict[str, tuple[Path, int]] = {}  # temporary files, and their descriptors
        for name, content in contents.items():
            try:
                self._written[name] = _write_temporary(directory / name, content)
            except StateError as error:
                self.failed[name] = error

    def sync(self) -> None:
        """Sync the new files: one by one, but on a slow disk at the same time, so that it can write them together."""
        names = list(self._written)
        began_s = time.monotonic()
        while names and time.monotonic() - began_s < _SLOW_SYNCS_S:
            self._sync(names.pop())
        if names:
            from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  only for a slow disk

            with ThreadPoolExecutor(_SYNCED_AT_ONCE) as threads:
                list(threads.map(self._sync, names))

    def _sync(self, name: str) -> None:
        try:
            os.fsync(self._written[name][1])
        except OSError as error:
            self.failed[name] = disk_error(error, self._directory / name)

    def commit(self) -> dict[str, StateError]:
        """Replace the files, which were synced, and sync their directory, once; return those that failed."""
        for name, (temporary, descriptor) in self._written.items():
            if name in self.failed:
                _remove(temporary, descriptor)
                continue
            try:
                os.close(descriptor)
                rename_patiently(temporary, self._directory / name)
            except OSError as error:
                _remove(temporary)
                self.failed[name] = disk_error(error, self._directory / name)
        try:
            if self._written:
                _sync_directory(self._directory)
        except OSError as error:
            self.failed |= dict.fromkeys(self._written, disk_error(error, self._directory))
        self._written = {}
        return self.failed

    def discard(self) -> None:
        """Remove the temporary files: nothing is replaced."""
        for temporary, descriptor in self._written.values():
            _remove(temporary, descriptor)
        self._written = {}


def _write_temporary(path: Path, content: bytes) -> tuple[Path, int]:
    """Write a new file next to `path`; return it and its descriptor. It is not synced."""
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY | _BINARY, 0o600)
    except OSError as error:
        raise disk_error(error, path) from error
    try:
        unwritten = memoryview(content)
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
    except OSError as error:
        _remove(temporary, descriptor)
        raise disk_error(error, path) from error
    return temporary, descriptor


def _remove(temporary: Path, descriptor: int | None = None) -> None:
    """Remove a temporary file, and close it if it is open."""
    if descriptor is not None:
        with suppress(OSError):
            os.close(descriptor)
    with suppress(OSError):
        temporary.unlink(missing_ok=True)


def rename_patiently(
    source: Path, target: Path, *, rename: Callable[[Path, Path], None] = os.replace, patience_s: float = _PATIENCE_S
) -> None:
    """Rename over `target`; retry for a while if Windows says that it is in use."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return rename(source, target)
        except OSError as error:
            if getattr(error, "winerror", None) not in _IN_USE or time.monotonic() > deadline:
                raise
        time.sleep(_LOCK_POLL_S)


def _sync_directory(path: Path) -> None:
    if sys.platform == "win32":  # Windows cannot open directories
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Held(NamedTuple):
    """A lock that is held, and the file that it locks."""

    descriptor: int
    is_locked: bool  # False on a file system that cannot lock: other processes are not kept out


@contextmanager
def kernel_lock(path: Path, timeout_s: float) -> Iterator[Held]:
    """Hold the lock of this file, which is created if missing. Raises Busy."""
    deadline, pause_s = time.monotonic() + timeout_s, _SHORTEST_POLL_S
    while (held := _try_lock(path)) is None:
        if time.monotonic() >= deadline:
            raise Busy
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LOCK_POLL_S)
    try:
        yield held
    finally:
        from filelock import unlock_descriptor  # noqa: PLC0415  as in `_try_lock`

        # Closing alone is not enough: a forked child has the same open file, and with it the lock.
        with suppress(OSError):
            unlock_descriptor(held.descriptor)
        os.close(held.descriptor)


def _try_lock(path: Path) -> Held | None:
    """Lock a file, or return None if another process holds it."""
    from filelock import lock_descriptor  # noqa: PLC0415  a tenth of `turnspan sessions`, which mostly locks nothing

    while True:
        descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
        try:
            is_busy, is_locked = not lock_descriptor(descriptor, blocking=False), True
        except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP: some network file systems
            is_busy = is_locked = False
        if not is_busy:
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return Held(descriptor, is_locked)
        os.close(descriptor)
        if is_busy:
            return None
        # The file was removed after it was opened: other processes lock its successor.


def _check_owner(path: Path, found: os.stat_result) -> None:
    if sys.platform == "win32":  # there the access list of the profile directory protects it
        return
    if found.st_uid != os.geteuid():
        raise _unsafe(path, "it belongs to another user", hint="move it away, or run as its owner")
    if found.st_mode & 0o022:
        raise _unsafe(path, "other users can write to it", hint=f"check its content, then `chmod go-w '{path}'`")


def _unsafe(path: Path, why: str, *, hint: str) -> StateError:
    return StateError(f"unsafe state path {str(path)!r}: {why}", hint=hint)


def disk_error(error: OSError, path: Path) -> StateError:
    """Return a StateError for an error of the disk."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StateError(f"disk full: cannot write {str(path)!r}", hint="free some space")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return StateError(f"cannot persist state: no access to {str(path)!r}", hint="make it writable again")
        case errno.EMFILE | errno.ENFILE:
            return StateError(f"too many open files: cannot open {str(path)!r}", hint="raise `ulimit -n`")
    return StateError(f"cannot persist state: {str(path)!r}: {error.strerror or error}", hint="check the disk")


def read_regular(path: Path, limit: int, *, is_ours: bool = False) -> bytes | None:
    """Read a regular file without ever blocking; None if there is none. Raises OSError.

    `is_ours` refuses a file that other users can write to.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | _BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a regular file")
        if found.st_size > limit:
            raise OSError(f"it is longer than {limit} bytes")
        if is_ours and sys.platform != "win32" and (found.st_mode & 0o022 or found.st_uid not in {0, os.geteuid()}):
            raise OSError(f"other users can write to it; check its content, then run `chmod go-w '{path}'`")
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists and can be seen."""
    for each in (path, *path.parents):
        with suppress(OSError):
            each.lstat()
            return each
    return path


def can_write(directory: Path) -> bool:
    """Return whether files can be created in a directory."""
    is_effective = os.access in os.supports_effective_ids
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK, effective_ids=is_effective)
