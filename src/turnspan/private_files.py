"""Our own files: where they live, and how they are opened, replaced and locked.

Rules:

- Everything of ours is below `$CLAUDE_CONFIG_DIR/turnspan`, or `~/.claude/turnspan`. A relative directory is refused: a
  worker has no working directory it could be relative to.
- Directories of ours are 0700 and files 0600. What is a link, belongs to someone else or can be written by others is
  refused, never repaired: whoever made it so could have put anything there.
- A file is replaced as a whole: a temporary file is written and fsynced, renamed, and the directory fsynced. Whoever
  reads, and whenever the machine stops, there is the old one or the new one.
- Locks are the kernel's: they die with their holder, are never stolen and never soft. `fcntl` is used directly: loading
  `filelock` takes some 70 ms of CPU for the same `flock`, and where the file system has none it turns to a soft lock.
  It does the locking where there is no `fcntl`.
- What the disk says is told as a `StateError`, a sentence with a hint. Only "it is not there" stays an answer.
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
_SHORTEST_POLL_S = 0.001  # most are held for a few milliseconds
_PATIENCE_S = 2.5
_IN_USE = {5, 32, 33}  # what Windows answers while a virus scanner or an indexer has the file open


class Busy(Exception):  # noqa: N818 - an answer, not an error
    """Someone else holds this lock."""


def claude_home(env: Mapping[str, str]) -> Path:
    """Where Claude Code keeps its own files."""
    configured = env.get("CLAUDE_CONFIG_DIR")
    if not configured:
        return _person_home(env) / ".claude"
    if not Path(configured).is_absolute():
        message = f"no state dir: CLAUDE_CONFIG_DIR is {configured!r}, which is a relative path"
        raise StateError(message, hint="set it to an absolute path")
    return Path(configured)


def turnspan_home(env: Mapping[str, str]) -> Path:
    """Where our state, log, settings and local traces live."""
    return claude_home(env) / "turnspan"


def _person_home(env: Mapping[str, str]) -> Path:
    named = Path(env.get("USERPROFILE" if sys.platform == "win32" else "HOME") or "")
    if named.is_absolute():
        return named
    if sys.platform != "win32":
        import pwd  # noqa: PLC0415 - there is none on Windows

        try:
            recorded = Path(pwd.getpwuid(os.geteuid()).pw_dir)
        except KeyError:  # a container that runs under a number without a name
            recorded = Path()
        if recorded.is_absolute():
            return recorded
    raise StateError("no state dir: this user has no home directory", hint="set HOME or CLAUDE_CONFIG_DIR")


def private_directory(path: Path) -> Path:
    """Make sure of a directory that only we can write to, and return it."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        found = _make_directory(path)
    except OSError as error:
        raise disk_error(error, path) from error
    if stat.S_ISLNK(found.st_mode) or not stat.S_ISDIR(found.st_mode):
        raise _unsafe(path, "it is not a directory of its own", hint="move it away")
    _check_owner(path, found)
    return path


def _make_directory(path: Path) -> os.stat_result:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)  # another worker may have been faster
        return os.lstat(path)
    except OSError as error:
        raise disk_error(error, path) from error


def open_private(path: Path, flags: int) -> int:
    """Open a regular file of ours, or create it 0600. Raises FileNotFoundError where there is none to open."""
    try:
        descriptor = os.open(path, flags | _SAFELY | _BINARY, 0o600)
    except OSError as error:
        if error.errno == errno.ENOENT and not flags & os.O_CREAT:
            raise
        # A link, a directory, a FIFO or socket without anyone at its other end.
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
    """The first `limit` bytes of a file of ours; None when there is no such file."""
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
    """What a file holds from here to its end, or to a limit."""
    size = os.fstat(descriptor).st_size - os.lseek(descriptor, 0, os.SEEK_CUR)
    return os.read(descriptor, max(0, min(size, limit)))


def replace_private(path: Path, content: bytes) -> None:
    """Give a file new content, durably. Raises StateError, and then the old content is still there."""
    temporary = _write_temporary(path, content)
    try:
        rename_patiently(temporary, path)
        _sync_directory(path.parent)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error


def _write_temporary(path: Path, content: bytes) -> Path:
    temporary = path.with_name(f".{path.name}.{os.urandom(6).hex()}.tmp")
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _SAFELY | _BINARY, 0o600)
        try:
            unwritten = memoryview(content)
            while unwritten:
                unwritten = unwritten[os.write(descriptor, unwritten) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise disk_error(error, path) from error
    return temporary


def rename_patiently(
    source: Path, target: Path, *, rename: Callable[[Path, Path], None] = os.replace, patience_s: float = _PATIENCE_S
) -> None:
    """Rename over `target`; where Windows says that it is in use, try again for a while."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            return rename(source, target)
        except OSError as error:
            if getattr(error, "winerror", None) not in _IN_USE or time.monotonic() > deadline:
                raise
        time.sleep(_LOCK_POLL_S)


def _sync_directory(path: Path) -> None:
    if sys.platform == "win32":  # directories cannot be opened there
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Held(NamedTuple):
    """A lock that is held, and the file it is the lock of."""

    descriptor: int
    is_locked: bool  # False where the file system cannot lock, and then nobody is kept out


if sys.platform != "win32":
    import fcntl

    @contextmanager
    def kernel_lock(path: Path, timeout_s: float) -> Iterator[Held]:
        """Hold the lock of this file, which is made when there is none. Raises Busy."""
        deadline, pause_s = time.monotonic() + timeout_s, _SHORTEST_POLL_S
        while (held := _try_lock(path)) is None:
            if time.monotonic() >= deadline:
                raise Busy
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOCK_POLL_S)
        try:
            yield held
        finally:
            # Not only by closing: a forked child would have the same open file, and with it the lock.
            with suppress(OSError):
                fcntl.flock(held.descriptor, fcntl.LOCK_UN)
            os.close(held.descriptor)

    def _try_lock(path: Path) -> Held | None:
        while True:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
            is_locked = True
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return None
            except OSError:  # ENOLCK, ENOSYS, EOPNOTSUPP: some network file systems
                is_locked = False
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                    return Held(descriptor, is_locked)
            os.close(descriptor)  # removed between our opening and our locking it: that was the lock no more

else:

    @contextmanager
    def kernel_lock(path: Path, timeout_s: float) -> Iterator[Held]:
        """Hold the lock of this file, which is made when there is none. Raises Busy."""
        from filelock import FileLock, Timeout  # noqa: PLC0415 - slow to load

        guard = FileLock(f"{path}.guard", timeout=timeout_s)  # a locked file cannot be read there, not even by us
        try:
            guard.acquire()
        except Timeout:
            raise Busy from None
        try:
            descriptor = open_private(path, os.O_RDWR | os.O_CREAT)
            try:
                yield Held(descriptor, is_locked=True)
            finally:
                os.close(descriptor)
        finally:
            guard.release()


def _check_owner(path: Path, found: os.stat_result) -> None:
    if sys.platform == "win32":  # the profile directory's access list does this there
        return
    if found.st_uid != os.geteuid():
        raise _unsafe(path, "it belongs to another user", hint="move it away, or run as its owner")
    if found.st_mode & 0o022:
        raise _unsafe(path, "others can write to it", hint=f"look at what is in it, then `chmod go-w '{path}'`")


def _unsafe(path: Path, why: str, *, hint: str) -> StateError:
    return StateError(f"unsafe state path {str(path)!r}: {why}", hint=hint)


def disk_error(error: OSError, path: Path) -> StateError:
    """What the disk said, as a sentence."""
    match error.errno:
        case errno.ENOSPC | errno.EDQUOT:
            return StateError(f"disk full: cannot write {str(path)!r}", hint="free some space")
        case errno.EROFS | errno.EACCES | errno.EPERM:
            return StateError(f"cannot persist state: no access to {str(path)!r}", hint="make it writable again")
        case errno.EMFILE | errno.ENFILE:
            return StateError(f"too many open files: cannot open {str(path)!r}", hint="raise `ulimit -n`")
    return StateError(f"cannot persist state: {str(path)!r}: {error.strerror or error}", hint="check the disk")


def nearest_existing(path: Path) -> Path:
    """Return the path itself, or its nearest parent that exists and can be seen."""
    for each in (path, *path.parents):
        with suppress(OSError):
            each.lstat()
            return each
    return path


def can_write(directory: Path) -> bool:
    """Whether we may create files in a directory."""
    is_effective = os.access in os.supports_effective_ids
    return directory.is_dir() and os.access(directory, os.W_OK | os.X_OK, effective_ids=is_effective)
