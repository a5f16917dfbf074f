"""The clients that name their process: whether the client of a session was killed.

Claude Code 2.1.292 and newer writes `sessions/<pid>.json` into its home while it runs, and removes it when it exits.
The file of a client that was killed stays.

Rules:

- Only the pid, the start time, the session id and the pid domain are read. A link, a FIFO or anything that does not fit
  is ignored.
- Linux: the process has exited if the pid does not exist, is a zombie, or has another start time (field 22 of
  `/proc/<pid>/stat`). A pid of another machine or container (`pidDomain`) says nothing.
- macOS: the start time is a text of `ps`, so only the pid is checked.
- A session that was killed and is now open in an older client, which writes no such file, looks killed: what its turn
  still writes is exported as a later part of the same trace.
- Windows: nothing is known, because a pid cannot be checked without a handle. The timeouts apply.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

_MOST_FILES: Final = 10_000
_MAX_BYTES: Final = 64 * 1024
_PID_BITS: Final = 31


class Client(msgspec.Struct, frozen=True):
    """A client that has named its process."""

    session_id: str
    has_exited: bool | None  # None: unknown


class _File(msgspec.Struct, rename="camel"):
    pid: int
    session_id: str
    proc_start: str = ""
    pid_domain: str = ""


_decode: Final = msgspec.json.Decoder(_File).decode


def clients(claude_home: Path) -> Iterator[Client]:
    """Yield the clients that have a file in Claude Code's home, and whether each one has exited."""
    directory = claude_home / "sessions"
    with suppress(OSError), os.scandir(directory) as entries:
        for entry in islice(entries, _MOST_FILES):
            stem, _, suffix = entry.name.partition(".")
            if suffix != "json" or not stem.isdecimal() or not entry.is_file(follow_symlinks=False):
                continue
            with suppress(OSError, ValueError, RecursionError):  # every error of msgspec's is a ValueError
                file = _decode(read_regular(directory / entry.name, _MAX_BYTES) or b"")
                if file.pid == int(stem) and 0 < file.pid < 1 << _PID_BITS:
                    yield Client(file.session_id, _has_exited(file))


def _has_exited(file: _File) -> bool | None:
    if sys.platform == "win32":
        return None
    if sys.platform != "linux":
        return not _exists(file.pid)
    if file.pid_domain and file.pid_domain != _pid_domain():
        return None
    try:
        state, *fields = Path(f"/proc/{file.pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return True if Path("/proc/self/stat").exists() else None
    return state in {"Z", "X"} or (file.proc_start.isdecimal() and fields[18] != file.proc_start)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        pass  # another user's
    return True


def _pid_domain() -> str:
    """Return the machine and the pid namespace of this process, as the client writes them; "" if unknown."""
    try:
        return f"linux:{Path('/etc/machine-id').read_text().strip()}:{Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return ""
