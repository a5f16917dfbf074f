"""Finds the session that a user means: by its path, its id or the beginning of it, or as the latest of a directory.

Any file that is not a session's transcript is refused with a clear message (`require_transcript`).
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source import tail
from turnspan.source.scan import END_BYTES, lines, modified_ns, row_as
from turnspan.source.sessions import all_sessions, each_once, is_independent, path_named, session_of
from turnspan.transcript.lines import Anomalies, is_record, parse

if TYPE_CHECKING:
    from pathlib import Path

    from turnspan.source.sessions import SessionFile

NO_SESSIONS: Final = "run Claude Code once, or try `turnspan demo`"  # what to do on a machine without transcripts
_SEARCHED_BYTES: Final = 64 * 1024 * 1024  # some entry comes earlier, even in a damaged transcript
_HEAD_BYTES: Final = 8192
_WHERE: Final = "transcripts are the .jsonl files below ~/.claude/projects; `turnspan sessions` lists them"


def find_session(
    projects: Path, name: str | None, cwd: Path | None = None, unread: dict[str, str] | None = None
) -> SessionFile:
    """Return a session by path, id or id prefix; without a name the latest one of the project in `cwd`, or of all."""
    if name is None:
        return _latest(projects, cwd, unread)
    path = path_named(name)
    if name.endswith(".jsonl") or os.sep in name or path.exists():
        if path.is_dir():
            raise TranscriptError(f"{name!r} is a directory", hint="give the path of a transcript, a .jsonl file")
        return session_of(path)
    matches = each_once(s for s in all_sessions(projects, unread) if s.session_id.startswith(name))
    if not matches:
        raise TranscriptError(f"no session {name!r} below {projects}", hint="`turnspan sessions` lists them")
    if len(matches) > 1:
        some = ", ".join(sorted(match.session_id for match in matches)[:4])
        raise TranscriptError(f"{len(matches)} sessions begin with {name!r}: {some}", hint="give more of the id")
    return matches[0]


def _latest(projects: Path, cwd: Path | None, unread: dict[str, str] | None) -> SessionFile:
    found = (session for session in all_sessions(projects, unread) if not session.is_lost)
    candidates = sorted(found, key=lambda s: modified_ns(s.path), reverse=True)
    if not candidates:
        raise TranscriptError(f"no transcripts found in {projects}", hint=NO_SESSIONS)
    if cwd is not None:
        for session in candidates:
            if _head_names(session.path, cwd):
                return session
    return candidates[0]


class _Cwd(msgspec.Struct):
    cwd: str = ""


def _head_names(path: Path, cwd: Path) -> bool:
    return any(row_as(line, _Cwd).cwd == str(cwd) for line in lines(path, END_BYTES))


def require_transcript(path: Path) -> None:
    """Raise TranscriptError if a file is not a session's transcript, nor that of a subagent whose session is lost."""
    descriptor = tail.open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        found = tail.complete_lines(descriptor, until=min(size, _SEARCHED_BYTES), is_complete=is_record)
        if not any(line.data is not None and _is_entry(line.data) for line in found):
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
