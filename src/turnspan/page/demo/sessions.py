"""Writes the sessions of the demo into a directory."""

from __future__ import annotations

import gzip
import json
import os
import re
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

_SOURCE: Final = Path(__file__).with_name("sessions.jsonl.gz")
_NEWEST: Final = datetime(2026, 1, 15, 16, 40, tzinfo=UTC)  # the last time in the file
_TIME: Final = re.compile(r'(?<="timestamp":")\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z')


def write_sessions(home: Path, newest: datetime) -> Path:
    """Write all sessions into Claude Code's directory `home`, the last row at `newest`; return the main one's path."""
    moved = partial(_moved, by=newest - _NEWEST)
    main = None
    for name, rows in _files(moved):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(rows), encoding="utf-8")
        main = main or path
        times = _TIME.findall("".join(rows))
        if times:
            written = datetime.fromisoformat(max(times)).timestamp()
            os.utime(path, (written, written))
    assert main is not None
    return main


def _files(moved: partial[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield the path and the lines of each file."""
    name, rows = "", list[str]()
    common: dict[str, dict[str, str]] = {}
    for line in gzip.decompress(_SOURCE.read_bytes()).decode().splitlines():
        row = json.loads(line)
        if "file" in row:
            if name:
                yield name, rows
            name, rows, common = row["file"], [], row
            continue
        row |= common["conversation" if "parentUuid" in row else "other"]
        rows.append(_TIME.sub(moved, json.dumps(row, ensure_ascii=False, separators=(",", ":"))) + "\n")
    yield name, rows


def _moved(found: re.Match[str], *, by: timedelta) -> str:
    time = datetime.fromisoformat(found[0]) + by
    return f"{time.astimezone(UTC):%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03}Z"
