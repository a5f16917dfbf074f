"""The log: one line per event, in at most three files.

Rules:

- A line is `time level event key=value…`. No value can break it or add another.
- A line is appended by a single write, so lines of concurrent processes do not mix.
- Logging never fails: a log that cannot be written is a return value (False), not an error.
- Facts only: callers pass no transcript content and no credentials.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.backends import Answer
from turnspan.errors import StateError
from turnspan.files import Busy, kernel_lock, open_private, private_directory, read_on, replace_private

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Literal

    from turnspan.delivery.ship import Shipped
    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile

    Level = Literal["DEBUG", "INFO", "WARN", "ERROR"]

LOG_NAME: Final = "turnspan.log"
MAX_LOG_BYTES: Final = 1_000_000
KEPT_FILES: Final = 3
_MAX_VALUE_CHARS: Final = 1000


def log_line(home: Path, level: Level, event: str, **facts: object) -> bool:
    """Append one line; return False if the log cannot be written."""
    line = format_line(time.time(), level, event, facts).encode("utf-8")
    path = home / LOG_NAME
    try:
        private_directory(home)
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    except (StateError, OSError):
        return False
    try:
        is_written = os.write(descriptor, line) == len(line)
        is_full = os.fstat(descriptor).st_size > MAX_LOG_BYTES
    except OSError:
        return False
    finally:
        os.close(descriptor)
    if is_full:
        with suppress(Busy, StateError, OSError):  # another process rotates, or the disk fails; the next line retries
            _rotate(path)
    return is_written


def format_line(at_s: float, level: Level, event: str, facts: dict[str, object]) -> str:
    """Format a line, newline included."""
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
    return char.encode("unicode_escape").decode("ascii")  # also a lone surrogate


def _rotate(path: Path) -> None:
    """Rename every file to the next number. A process that still writes to a renamed file loses nothing."""
    with kernel_lock(path, timeout_s=0) as held:
        if os.fstat(held.descriptor).st_size <= MAX_LOG_BYTES:
            return  # another process has just rotated
        for number in range(KEPT_FILES - 1, 0, -1):
            source = path if number == 1 else path.with_name(f"{path.name}.{number - 1}")
            target = path.with_name(f"{path.name}.{number}")
            if number == 1 and sys.platform == "win32":  # an open file cannot be renamed there
                os.lseek(held.descriptor, 0, os.SEEK_SET)
                replace_private(target, read_on(held.descriptor, 2 * MAX_LOG_BYTES))
                os.ftruncate(held.descriptor, 0)
            elif source.exists():
                source.replace(target)


# ---- the line about a session


def report(config: Config, session: SessionFile, shipped: Shipped, marks: list[dict[str, Any]]) -> None:
    """Log the result of shipping a session; `marks` are the events that caused it."""
    facts: dict[str, Any] = {
        "session": session.session_id,
        "destination": shipped.destination,
        "trigger": ",".join(sorted({str(mark.get("event")) for mark in marks})),
        "turns": shipped.turns,
        "spans": shipped.spans,
    }
    counted = {**msgspec.structs.asdict(shipped.counts), "off": shipped.off, "kept_as": shipped.kept_as}
    masked = counted.pop("masked")
    facts |= {name: value for name, value in counted.items() if value}
    for name, counts in (("masked", masked), ("noticed", shipped.noticed), ("unknown", shipped.unknown)):
        if counts:
            facts[name] = ",".join(f"{key}={count}" for key, count in sorted(counts.items()))
    if shipped.is_rewritten:
        facts["rewritten"] = True
    if shipped.is_answer_missing:
        facts["unsealed"] = True
    if shipped.stopped is not None:
        facts["reason"] = shipped.stopped.reason
    log_line(config.home, _level_of(shipped), _event_of(shipped), **facts)


def _level_of(shipped: Shipped) -> Level:
    stopped = shipped.stopped
    if shipped.counts.refused or (stopped is not None and stopped.answer is not Answer.LATER):
        return "ERROR"
    return "WARN" if stopped is not None or shipped.is_rewritten or shipped.kept_as else "INFO"


def _event_of(shipped: Shipped) -> str:
    if shipped.stopped is not None:
        return f"backoff: {shipped.stopped.answer}"
    if shipped.counts.refused:
        return "quarantined"
    if shipped.kept_as:
        return "state corrupt"
    if shipped.held_until_s is not None:
        return "backoff"
    return "sent" if shipped.spans else "nothing new"
