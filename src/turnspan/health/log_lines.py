"""Reads the log that `log.py` writes, oldest line first.

A line that cannot be parsed is skipped: a full disk can leave half a line.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import StateError
from turnspan.files import read_private
from turnspan.log import KEPT_FILES, LOG_NAME, MAX_LOG_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_VALUE: Final = r'"(?:[^"\\]|\\.)*"|[^\s"]*'
_LINE: Final = re.compile(rf"(?P<at>\S+Z) (?P<level>[A-Z]+) (?P<event>{_VALUE})(?P<facts>(?: \w+=(?:{_VALUE}))*)")
_FACT: Final = re.compile(rf" (\w+)=({_VALUE})")
_ESCAPED: Final = re.compile(r'\\(["\\])')


class LogLine(msgspec.Struct, frozen=True):
    """One event."""

    at: str  # UTC, ISO 8601
    level: str
    event: str
    facts: dict[str, str]


def read_log(home: Path) -> Iterator[LogLine]:
    """Every line of the log files; a file that cannot be read has none."""
    for place in range(KEPT_FILES - 1, -1, -1):
        path = home / (f"{LOG_NAME}.{place}" if place else LOG_NAME)
        try:
            raw = read_private(path, 2 * MAX_LOG_BYTES) or b""
        except StateError:
            continue
        for text in raw.decode("utf-8", "replace").splitlines():
            found = _LINE.fullmatch(text)
            if found is not None:
                facts = {name: _plain(value) for name, value in _FACT.findall(found["facts"])}
                yield LogLine(found["at"], found["level"], _plain(found["event"]), facts)


def _plain(value: str) -> str:
    return _ESCAPED.sub(r"\1", value[1:-1]) if value.startswith('"') else value


def counts_in(text: str) -> dict[str, int]:
    """Parse `rule=3,other=1`."""
    counts: dict[str, int] = {}
    for item in text.split(","):
        name, _, number = item.rpartition("=")
        if name and number.isascii() and number.isdecimal():
            counts[name] = counts.get(name, 0) + int(number)
    return counts
