"""Forgets a session: deletes our state of it, and its traces from every destination that can delete.

Rules:

- The session is switched off first, so that no worker sends it again meanwhile; then its traces are deleted. A failed
  step can be repeated: the trace ids are derived from the transcript, or the destination finds them by the session.
- Its id and the path of its transcript are kept here: without them it would be exported again.
- The transcript belongs to Claude Code and is never touched.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import index, log
from turnspan.backends import Erasable
from turnspan.delivery import state
from turnspan.delivery.destinations import Target, identity_of
from turnspan.errors import StateError, TranscriptError, TurnspanError
from turnspan.files import Busy
from turnspan.health.status import where_of
from turnspan.source import sessions
from turnspan.source.find import find_session
from turnspan.source.reader import Reader
from turnspan.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile

_LOCK_S: Final = 15.0


class Subject(msgspec.Struct, frozen=True):
    """A session to forget, with or without a transcript."""

    session_id: str
    transcript: SessionFile | None = None


class ForgetOutcome(msgspec.Struct, frozen=True):
    """The result in one place."""

    says: str
    is_done: bool = True


def find_subject(config: Config, name: str) -> Subject:
    """Find a session by its id, the beginning of its id, or its transcript. Raises TranscriptError."""
    projects = sessions.projects_dir(config.claude_home)
    try:
        found = find_session(projects, name, unread={})
    except TranscriptError:
        # Its transcript may be deleted already; but the name must not match several sessions.
        known = [session_id for session_id, _ in state.checkpoints(config.home) if session_id.startswith(name)]
        are_others = any(session.session_id.startswith(name) for session in sessions.all_sessions(projects, {}))
        if len(known) != 1 or are_others:
            raise
        return Subject(known[0])
    if not sessions.is_safe_id(found.session_id):
        raise TranscriptError(f"{found.session_id[:60]!r} is not a session id", hint="name a session's transcript")
    if found.path.is_file():
        return Subject(found.session_id, found)
    if state.peek(config.home, found.session_id) is None:
        raise TranscriptError(
            f"{name!r} is not a transcript", hint="name a session by its id; `turnspan sessions` lists them"
        )
    return Subject(found.session_id)


def forget(subject: Subject, config: Config) -> Iterator[ForgetOutcome]:
    """Forget a session everywhere, and yield the result for each place. Raises StateError if it cannot begin."""
    trace_ids = _trace_ids(subject)
    before = state.peek(config.home, subject.session_id)
    _forget_state(subject, config.home, before)
    yield ForgetOutcome("turnspan's state of the session: deleted")
    yield from _forget_in_index(subject, config)
    for destination in config.destinations:
        yield _forget_at(destination, config, subject.session_id, trace_ids)
    known = {identity_of(destination) for destination in config.destinations}
    for identity, cursor in (before.destinations if before is not None else {}).items():
        if identity not in known and cursor.sent_spans:
            says = f"{identity}: not configured here, its traces of the session were not deleted"
            yield ForgetOutcome(says, is_done=False)
    log.log_line(config.home, "INFO", "forgotten", session=subject.session_id)


def _trace_ids(subject: Subject) -> frozenset[bytes]:
    if subject.transcript is None:
        return frozenset()
    try:
        return frozenset(trace.trace_id for trace in Reader.for_people().traces(subject.transcript))
    except TranscriptError:  # no longer readable
        return frozenset()


def _forget_state(subject: Subject, home: Path, before: state.Checkpoint | None) -> None:
    path = str(subject.transcript.path) if subject.transcript is not None else before.transcript if before else ""
    session_id = subject.session_id
    try:
        with state.lock(home, session_id, _LOCK_S):
            state.save(home, state.Checkpoint(session_id=session_id, transcript=path, is_off=True))
            checkpoint = state.state_path(home, session_id)
            leftovers = (
                state.state_path(home, session_id, ".marks"),
                *(checkpoint.with_name(f"{checkpoint.name}.corrupt-{n}") for n in range(1, state.KEPT_CORRUPT + 1)),
                state.state_path(home, session_id, ".lock"),  # last: we hold it until then
            )
            for leftover in leftovers:
                with suppress(OSError):
                    leftover.unlink(missing_ok=True)
    except Busy:
        raise StateError("another turnspan process is sending this session", hint="try again when it is done") from None


def _forget_in_index(subject: Subject, config: Config) -> Iterator[ForgetOutcome]:
    """Delete its rows from the index, and their text from the file. Later updates keep figures only: it is disabled."""
    try:
        if index.forget(config, subject.session_id):
            yield ForgetOutcome("the index: deleted")
    except StateError as error:
        yield ForgetOutcome(f"the index: deleting failed: {error}", is_done=False)


def _forget_at(destination: Destination, config: Config, session_id: str, trace_ids: frozenset[bytes]) -> ForgetOutcome:
    target = Target(destination, config)
    try:
        if not isinstance(target.backend, Erasable):
            where = where_of(destination, config.home)
            to = f", traces sent to {where} stay there" if where else ", traces sent there stay"
            return ForgetOutcome(f"{destination.name}: cannot delete{to}", is_done=False)
        erased = target.backend.erase(session_id, trace_ids)
    except TurnspanError as error:
        return ForgetOutcome(f"{destination.name}: deleting failed: {error}", is_done=False)
    finally:
        target.close()
    if not erased.number:
        return ForgetOutcome(f"{destination.name}: no traces of the session", is_done=erased.is_complete)
    says = f"{destination.name}: deleted {count(erased.number, erased.unit)}{erased.remark}"
    return ForgetOutcome(says, is_done=erased.is_complete)
