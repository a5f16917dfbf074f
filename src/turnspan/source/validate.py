"""Checks that a file is a session's transcript, so that any other file is refused with a clear message."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

from turnspan.errors import TranscriptError
from turnspan.source import tail
from turnspan.source.sessions import is_independent, session_of
from turnspan.transcript.lines import Anomalies, is_record, parse

if TYPE_CHECKING:
    from pathlib import Path

_SEARCHED_BYTES: Final = 64 * 1024 * 1024  # some entry comes earlier, even in a damaged transcript
_HEAD_BYTES: Final = 8192
_WHERE: Final = "transcripts are the .jsonl files below ~/.claude/projects; `turnspan sessions` lists them"


def require_transcript(path: Path) -> None:
    """Raise TranscriptError if a file is not a session's transcript, nor that of a subagent whose session is lost."""
    descriptor = tail.open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        lines = tail.complete_lines(descriptor, until=min(size, _SEARCHED_BYTES), is_complete=is_record)
        if not any(line.data is not None and _is_entry(line.data) for line in lines):
            head = tail.read_line_at(descriptor, 0, _HEAD_BYTES)
            raise TranscriptError(f"{str(path)!r} {_reason(size, head)}", hint=_WHERE)
    finally:
        os.close(descriptor)
    session = session_of(path)
    if not is_independent(session):
        raise TranscriptError(
            f"{str(path)!r} is the transcript of a subagent", hint="show the session that launched it"
        )


def _is_entry(line: bytes) -> bool:
    """Whether a line is of a type that Claude Code writes, needed for traces or not."""
    anomalies = Anomalies()
    if parse(line, anomalies):
        return True
    return line.lstrip().startswith(b"{") and anomalies.is_clean and not anomalies.unknown


def _reason(size: int, head: bytes) -> str:
    if size == 0:
        return "is empty"
    if b"\0" in head:
        return "is not a transcript: it contains binary data"
    if size < _HEAD_BYTES and b"\n" not in head:
        return "is not a transcript: it contains no complete line"
    return "is not a transcript: it contains no Claude Code entries"
