"""The plan of a backfill: which sessions were selected, how old they are, and how much of each is not acknowledged yet.

Rules:

- Making a plan writes nothing.
- A session is selected completely or not at all, and the oldest come first.
- Only files in the named places are read: a link that points outside of them is not followed.
"""

from __future__ import annotations

import os
import re
import time
from contextlib import suppress
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends.settings import parse_url
from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.delivery.unsent import file_sizes, has_nothing_left, has_unsent, unread_bytes
from turnspan.errors import StateError, TranscriptError
from turnspan.source import sessions, tail
from turnspan.source.scan import first_time_ns, last_time_ns, modified_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile

_HOUR_NS: Final = 3600 * 10**9
# Hosts of backends that are known not to show old spans, the age in hours, and what they do with them.
_FORGETFUL: Final = (
    (re.compile(r"(?:.+\.)?(?:datadoghq\.(?:com|eu)|ddog-gov\.com)"), 18, "Datadog drops spans older than 18 hours"),
    (re.compile(r".+\.dynatrace(?:labs)?\.com"), 1, "Dynatrace drops spans older than one hour"),
    (
        re.compile(r"(?:.+[.-])?tempo(?:[.-].+)?|otlp-gateway-.+\.grafana\.net"),
        1,
        "Tempo stores spans older than an hour, but its search does not find them, only their trace id does",
    ),
)


class Selection(msgspec.Struct, frozen=True, kw_only=True):
    """Which sessions the user selected."""

    paths: tuple[Path, ...] = ()  # none: all projects
    since_ns: int | None = None  # written to at this time or later
    until_ns: int | None = None  # begun before this time
    project: str | None = None
    sessions: tuple[str, ...] = ()  # ids or prefixes of ids
    limit: int | None = None  # at most so many, of those with something unsent


class Job(msgspec.Struct, frozen=True):
    """A session to send."""

    session: SessionFile
    began_ns: int
    bytes: int  # of its files
    left_bytes: int  # of these, not yet acknowledged by every destination


class Plan(msgspec.Struct, frozen=True):
    """The sessions to send, oldest first."""

    jobs: list[Job]
    complete: int = 0  # further sessions that were selected: every destination has everything
    copies: int = 0  # files that were skipped: another one of the same session is at least as long
    unread: dict[str, str] = {}  # project → why it cannot be listed
    since_ns: int = 0  # as the user selected

    @property
    def left_bytes(self) -> int:
        """How many bytes there are to read."""
        return sum(job.left_bytes for job in self.jobs)


def make_plan(
    config: Config, selection: Selection, destinations: Sequence[Destination], *, is_resend: bool = False
) -> Plan:
    """Return the plan for a selection. Raises TranscriptError if a path has no transcripts."""
    unread: dict[str, str] = {}
    named = _named(sessions.projects_dir(config.claude_home), selection.paths, unread)
    found = {session.path: session for session in named if _is_selected(session, selection)}
    wanted = sessions.each_once(found.values())
    targets = [Target(destination, config) for destination in destinations]
    known = set() if is_resend or not targets else state.known_sessions(config.home)
    jobs = [job for session in wanted if (job := _job(session, targets, is_known=session.session_id in known))]
    complete = len(wanted) - len(jobs)
    jobs.sort(key=lambda job: (job.began_ns, job.session.session_id))
    if selection.limit is not None:
        now_ns = time.time_ns()
        ready = (job for job in jobs if _has_unsent(job, targets, now_ns, is_resend=is_resend))
        jobs = list(islice(ready, selection.limit))
    return Plan(jobs, complete, len(found) - len(wanted), unread, selection.since_ns or 0)


def _named(projects: Path, paths: Sequence[Path], unread: dict[str, str]) -> Iterator[SessionFile]:
    """Yield the sessions in these paths: a transcript, a project, projects, or a directory with `projects` in it."""
    if not paths:
        yield from _below(projects, sessions.all_sessions(projects, unread))
    for path in paths:
        if path.is_dir():
            root = path / "projects" if (path / "projects").is_dir() else path
            inside = list(_below(root, (*sessions.sessions_in(root), *sessions.all_sessions(root, unread))))
            if not inside and not unread:
                raise TranscriptError(f"no transcripts in {str(path)!r}", hint="name a project's directory")
            yield from inside
            continue
        os.close(tail.open_regular(path))
        session = sessions.session_of(path.absolute())
        if path.suffix != ".jsonl" or not sessions.is_independent(session):
            raise TranscriptError(f"{str(path)!r} is not a session's transcript", hint="name a session's .jsonl file")
        yield _checked(session)


def _below(root: Path, found: Iterable[SessionFile]) -> Iterator[SessionFile]:
    directories: dict[Path, bool] = {}
    for session in found:
        directory = session.path.parent
        if directory not in directories:
            directories[directory] = sessions.is_below(directory, root)
        is_link = session.path.is_symlink()
        if sessions.is_below(session.path, root) if is_link else directories[directory]:
            yield sessions.session_of(session.path.absolute())


def _checked(session: SessionFile) -> SessionFile:
    if not sessions.is_safe_id(session.session_id):
        raise TranscriptError(f"neither the name of {str(session.path)!r} nor a row of it says which session it is")
    return session


def _is_selected(session: SessionFile, selection: Selection) -> bool:
    if selection.sessions and not session.session_id.startswith(selection.sessions):
        return False
    if selection.project is not None and not sessions.is_of(session, selection.project):
        return False
    if selection.until_ns is not None and began_ns(session.path) >= selection.until_ns:
        return False
    if selection.since_ns is None:
        return True
    return (last_time_ns(session.path) or modified_ns(session.path)) >= selection.since_ns


def began_ns(path: Path) -> int:
    """Return when a session began: the first time in its file, or else when the file was modified."""
    return first_time_ns(path) or modified_ns(path)


def _job(session: SessionFile, targets: Sequence[Target], *, is_known: bool) -> Job | None:
    """Return the job of a session, or None if all of it was acknowledged; `is_known`: there is a checkpoint of it."""
    cursors: dict[str, state.Cursor] = {}
    with suppress(StateError, TranscriptError):  # `ship` will say so
        if is_known:
            cursors = state.known(targets[0].home, session.session_id).destinations
        if cursors and all(_has_everything(target, session, cursors) for target in targets):
            return None
    sizes = file_sizes(session)
    left = max((unread_bytes(sizes, cursors.get(target.identity)) for target in targets), default=0)
    return Job(session, began_ns(session.path), sum(sizes), left)


def _has_everything(target: Target, session: SessionFile, cursors: dict[str, state.Cursor]) -> bool:
    return target.identity in cursors and has_nothing_left(session, cursors[target.identity])


def _has_unsent(job: Job, targets: Sequence[Target], now_ns: int, *, is_resend: bool) -> bool:
    """Return whether something of a session can be sent now. Unread bytes do not show it: some are never exported."""
    try:
        return bool(job.left_bytes) and any(
            has_unsent(job.session, target, now_ns, is_all=is_resend) for target in targets
        )
    except (StateError, TranscriptError):
        return True  # `ship` will say why not


# ---- backends and old spans


def age_warning(destination: Destination, oldest_ns: int, now_ns: int) -> str | None:
    """Return a warning if a destination is known not to show spans this old."""
    endpoint = parse_url(str(destination.options.get("endpoint", "")))
    if endpoint is None:
        return None
    for hosts, hours, what in _FORGETFUL:
        if hosts.fullmatch(endpoint.host.lower()) and now_ns - oldest_ns > hours * _HOUR_NS:
            return f"{destination.name}: {what}"
    return None
