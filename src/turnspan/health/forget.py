"""Forgets a session: our state of it, and its traces where they can be taken back.

Rules:

- First it is switched off, so that nobody sends it again meanwhile; then its traces are deleted. Whatever fails can be
  tried again: the ids of its traces are derived from the transcript, or asked for by its session.
- What is left of it here is its id and the place of its transcript: without them it would be exported again.
- The transcript is Claude Code's, and is never touched.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import log
from turnspan.delivery import state
from turnspan.delivery.destinations import identity_of
from turnspan.errors import BackendError, StateError, TranscriptError, TurnspanError
from turnspan.health.status import where_of
from turnspan.private_files import Busy
from turnspan.source import sessions
from turnspan.source.reader import all_traces
from turnspan.terminal import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile

_LOCK_S: Final = 15.0


class Subject(msgspec.Struct, frozen=True):
    """A session to be forgotten, with or without a transcript."""

    session_id: str
    transcript: SessionFile | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What became of it in one place."""

    says: str
    is_done: bool = True


def find_subject(config: Config, name: str) -> Subject:
    """A session by its id, by the beginning of it, or by its transcript. Raises TranscriptError."""
    projects = sessions.projects_dir(config.claude_home)
    try:
        found = sessions.find_session(projects, name, unread={})
    except TranscriptError:
        # Its transcript may be gone already; but not if there are several that the name could mean.
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
            f"{name!r} is no transcript", hint="name a session by its id; `turnspan sessions` lists them"
        )
    return Subject(found.session_id)


def forget(subject: Subject, config: Config) -> Iterator[Outcome]:
    """Forget it everywhere, and say place by place what became of that. Raises StateError if it cannot begin."""
    trace_ids = _trace_ids(subject)
    before = state.peek(config.home, subject.session_id)
    _forget_state(subject, config.home, before)
    yield Outcome("our state of it is deleted")
    for destination in config.destinations:
        yield _forget_at(destination, config, subject.session_id, trace_ids)
    known = {identity_of(destination) for destination in config.destinations}
    for identity, cursor in (before.destinations if before is not None else {}).items():
        if identity not in known and cursor.sent_spans:
            yield Outcome(f"{identity} has traces of it, and is not configured here: they stay there", is_done=False)
    log.log_line(config.home, "INFO", "forgotten", session=subject.session_id)


def _trace_ids(subject: Subject) -> frozenset[bytes]:
    if subject.transcript is None:
        return frozenset()
    try:
        return frozenset(trace.trace_id for trace in all_traces(subject.transcript, None))
    except TranscriptError:  # it cannot be read any more
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
                state.state_path(home, session_id, ".lock"),  # the last: it is ours until then
            )
            for leftover in leftovers:
                with suppress(OSError):
                    leftover.unlink(missing_ok=True)
    except Busy:
        raise StateError("another turnspan is sending this session", hint="try again when it is done") from None


def _forget_at(destination: Destination, config: Config, session_id: str, trace_ids: frozenset[bytes]) -> Outcome:
    try:
        if destination.type == "local":
            return _forget_files(destination, config, session_id, trace_ids)
        if destination.type == "langfuse":
            return _forget_langfuse(destination, session_id, trace_ids)
    except TurnspanError as error:
        return Outcome(f"{destination.name}: its traces could not be deleted: {error}", is_done=False)
    return Outcome(
        f"{destination.name}: OTLP knows no way to delete; what was sent to {where_of(destination, config.home)} stays",
        is_done=False,
    )


def _forget_files(destination: Destination, config: Config, session_id: str, trace_ids: frozenset[bytes]) -> Outcome:
    from turnspan.backends.erase import erase  # noqa: PLC0415 - only for who has local traces

    erased = erase(Path(where_of(destination, config.home)), session_id, trace_ids)
    if not erased:
        return Outcome(f"{destination.name}: has no traces of it")
    return Outcome(f"{destination.name}: {count(erased, 'line')} with its traces taken out")


def _forget_langfuse(destination: Destination, session_id: str, trace_ids: frozenset[bytes]) -> Outcome:
    from turnspan.backends.langfuse_api import LangfuseApi  # noqa: PLC0415 - only for who uses Langfuse

    wanted = {trace_id.hex() for trace_id in trace_ids}
    doubt = ""
    api = LangfuseApi(destination)
    try:
        try:
            wanted |= api.traces_of(session_id)
        except BackendError as error:
            if not wanted:
                raise
            doubt = f"; it did not say whether it has others ({error})"
        if not wanted:
            return Outcome(f"{destination.name}: has no traces of it")
        api.delete(sorted(wanted))
    finally:
        api.close()
    says = (
        f"{destination.name}: {count(len(wanted), 'trace')} to be deleted, which Langfuse does in its own time{doubt}"
    )
    return Outcome(says, is_done=not doubt)
