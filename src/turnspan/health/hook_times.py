"""The duration of our hook, as measured by Claude Code.

After every stop the client records which hooks it ran (`stop_hook_summary`); newer clients also record how long each
took. Only `status` uses these lines.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.claude.command import mentions_us
from turnspan.errors import TranscriptError
from turnspan.source import tail
from turnspan.source.sessions import newest_sessions

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

_SESSIONS: Final = 30
_TAIL_BYTES: Final = 512 * 1024
_MARK: Final = b'"stop_hook_summary"'


class _Info(msgspec.Struct, rename="camel"):
    command: str = ""
    duration_ms: float | None = None


class _Summary(msgspec.Struct, rename="camel"):
    subtype: str = ""
    hook_infos: list[_Info] = []


class HookTimes(msgspec.Struct, frozen=True):
    """Durations of the hook in milliseconds, over the latest stops that record one."""

    stops: int
    median_ms: float
    longest_ms: float


def hook_times(projects: Path) -> HookTimes | None:
    """The durations in the latest sessions; None if no client recorded one."""
    return _times(
        ms for session in newest_sessions(projects, limit=_SESSIONS, unread={}) for ms in _noted(session.path)
    )


def _times(measured: Iterable[float]) -> HookTimes | None:
    times = sorted(measured)
    return HookTimes(len(times), times[len(times) // 2], times[-1]) if times else None


def _noted(path: Path) -> Iterator[float]:
    for line in _end_of(path).splitlines():
        if _MARK not in line:
            continue
        try:
            summary = msgspec.json.decode(line, type=_Summary)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # the first line is cut
            continue
        if summary.subtype == "stop_hook_summary":
            for info in summary.hook_infos:
                if info.duration_ms is not None and mentions_us({"command": info.command}):
                    yield info.duration_ms


def _end_of(path: Path) -> bytes:
    try:
        descriptor = tail.open_regular(path)
    except TranscriptError:
        return b""
    try:
        return tail.read_at(descriptor, _TAIL_BYTES, max(0, os.fstat(descriptor).st_size - _TAIL_BYTES))
    except OSError:
        return b""
    finally:
        os.close(descriptor)
