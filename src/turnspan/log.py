"""One line per event in a log that never grows past three files.

Rules:

- A line is `time level event key=value…`: one event, one line, whatever the values hold.
- A line is appended by one write, so lines of any number of processes stay whole.
- The log is a courtesy: when it cannot be written, that is an answer (False) and not an error.
- Only facts: whoever calls puts in no content of a transcript and no credentials.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from turnspan.errors import StateError
from turnspan.private_files import open_private, private_directory

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    Level = Literal["DEBUG", "INFO", "WARN", "ERROR"]

LOG_NAME: Final = "turnspan.log"
MAX_LOG_BYTES: Final = 1_000_000
KEPT_FILES: Final = 3
_MAX_VALUE_CHARS: Final = 1000


def log_line(home: Path, level: Level, event: str, **facts: object) -> bool:
    """Append one line; False when the log cannot be written."""
    line = format_line(time.time(), level, event, facts).encode("utf-8")
    path = home / LOG_NAME
    try:
        private_directory(home)
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except (StateError, OSError):
        return False
    try:
        is_written = os.write(descriptor, line) == len(line)
        if os.fstat(descriptor).st_size > MAX_LOG_BYTES:
            with suppress(OSError):  # another process is at it, or the disk minds; the next line will try again
                _rotate(path, descriptor)
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return is_written


def format_line(at_s: float, level: Level, event: str, facts: dict[str, object]) -> str:
    """The line of an event, newline included."""
    seconds, fraction = divmod(at_s, 1)
    at = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{int(fraction * 1000):03}Z"
    pairs = (f"{key}={_value(fact)}" for key, fact in facts.items())
    return " ".join((at, level, _value(event), *pairs)) + "\n"


def _value(fact: object) -> str:
    text = str(fact)
    if len(text) > _MAX_VALUE_CHARS:
        text = text[:_MAX_VALUE_CHARS] + "…"
    if text and text.isprintable() and not any(char in text for char in ' "\\'):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(char if char.isprintable() else _escape(char) for char in escaped) + '"'


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")  # also for half a surrogate pair


def _rotate(path: Path, descriptor: int) -> None:
    """Move every file one place on. Who writes to a moved file meanwhile still writes to a file that is kept."""
    if sys.platform != "win32":
        import fcntl  # noqa: PLC0415 - there is none on Windows

        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the lock is the file's: it ends with the descriptor
        if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
            return  # someone else has just moved it
    for place in range(KEPT_FILES - 1, 0, -1):
        source = path if place == 1 else path.with_name(f"{path.name}.{place - 1}")
        if source.exists():
            source.replace(path.with_name(f"{path.name}.{place}"))
