"""Finds the session that a user means: by its path, its id or the beginning of it, or as the latest of a directory."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source.scan import END_BYTES, lines, modified_ns, row_as
from turnspan.source.sessions import all_sessions, each_once, path_named, session_of

if TYPE_CHECKING:
    from pathlib import Path

    from turnspan.source.sessions import SessionFile

NO_SESSIONS: Final = "run Claude Code once, or try `turnspan demo`"  # what to do on a machine without transcripts


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
