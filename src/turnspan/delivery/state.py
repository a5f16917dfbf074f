"""The checkpoint of a session: one locked, atomic file.

Rules:

- A checkpoint holds offsets and ids, never content. Anything it does not acknowledge is read again from the transcript.
- A checkpoint that cannot be decoded is set aside, and the session starts again. One that a newer turnspan wrote is not
  touched. One that cannot be *read* is an error, never "there is none".
- The cost of an operation does not depend on the number of sessions.

Files of a session in `state/`: `.json` is its checkpoint, `.lock` its lock, `.marks` its pending events (`marks`).
"""

import errno
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Final, Protocol, TypeAlias

import msgspec

from turnspan.backends import Backend
from turnspan.delivery.callers import Caller, noted, parsed
from turnspan.errors import StateError
from turnspan.files import (
    disk_error,
    kernel_lock,
    private_directory,
    read_private,
    replace_all,
    replace_private,
)
from turnspan.settings.options import CAPTURES
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.sessions import SessionFile, is_safe_id

VERSION: Final = 1
MAX_STATE_BYTES: Final = 8 * 1024 * 1024
KEPT_CORRUPT: Final = 3

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]


class NewerStateError(StateError):
    """A newer turnspan wrote this checkpoint, so this one must not export the session."""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """Spans a destination refused for good; `span_id` is empty if it did not say which spans of the trace."""

    trace_id: str
    span_id: str = ""
    spans: Count = 1
    reason: str = ""
    at_s: float = 0.0


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How much of a session one destination has acknowledged."""

    progress: Progress = Progress()
    arrived: tuple[str, ...] = ()  # acknowledged spans beyond `progress`: only a part of their piece was accepted
    is_unsure: bool = False  # the last request got no response: its spans may have arrived
    quarantined: tuple[Quarantine, ...] = ()  # the most recent ones; `forgotten` counts the others
    forgotten: Count = 0
    seen_bytes: Count = 0  # size of the transcript when nothing of it was left to send
    sent_turns: Count = 0
    sent_spans: Count = 0
    last_success_s: float = 0.0
    last_error: str = ""
    reported: Ending = Ending()  # what events said, until it is acknowledged; older versions ignore it

    @property
    def last_turn(self) -> int:
        """The number of the last turn that was acknowledged, or left out because it is exported from elsewhere."""
        return self.progress.main.carry.turns

    @property
    def refused_spans(self) -> int:
        """How many spans the destination refused for good."""
        return sum(entry.spans for entry in self.quarantined) + self.forgotten


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that is remembered about a session between two events."""

    session_id: str
    version: Annotated[int, msgspec.Meta(ge=1)] = VERSION
    transcript: str = ""
    is_off: bool = False  # the user switched this session off: it is never exported
    destinations: dict[str, Cursor] = {}
    callers: tuple[Caller, ...] = ()  # older versions ignore it, and the next one
    capture: str = ""  # the narrowest capture mode to which the environment of an event restricted this session

    def cursor(self, identity: str) -> Cursor:
        """Return how much a destination has acknowledged.

        A destination without a cursor is a new one. What events said, while an earlier one was down, holds for it too.
        """
        said = [cursor.reported for cursor in self.destinations.values()]
        latest = max(said, key=lambda reported: (reported.over_ns or 0, reported.stopped_ns or 0), default=Ending())
        return self.destinations.get(identity) or Cursor(reported=latest)


class Loaded(msgspec.Struct, frozen=True):
    """A checkpoint; a new one if there was none, or none that could be decoded."""

    checkpoint: Checkpoint
    kept_as: str = ""  # the name under which a corrupt checkpoint was set aside


class _Versioned(msgspec.Struct):
    version: int


_decode_checkpoint: Final = msgspec.json.Decoder(Checkpoint).decode
_decode_version: Final = msgspec.json.Decoder(_Versioned).decode


@lru_cache(maxsize=64)  # an event asks for its own six times
def state_path(home: Path, session_id: str, suffix: str = ".json") -> Path:
    """Return the path of a session's file. Raises StateError unless the id is a plain name."""
    if not is_safe_id(session_id):
        raise StateError(f"{session_id[:100]!r} is not a session id", hint="it must be a plain name")
    return home / "state" / f"{session_id}{suffix}"


def load(home: Path, session_id: str) -> Loaded:
    """Return the checkpoint of a session, or a new one. Raises NewerStateError, or StateError if it is unreadable."""
    path = state_path(home, session_id)
    state_directory(home)
    checkpoint, is_corrupt = _read(path, session_id)
    kept_as = _set_aside(path) if is_corrupt else ""
    return Loaded(checkpoint or Checkpoint(session_id=session_id), kept_as)


def known(home: Path, session_id: str) -> Checkpoint:
    """Like `load`, but without writing anything: a corrupt checkpoint stays where it is, and counts as none."""
    return _read(state_path(home, session_id), session_id)[0] or Checkpoint(session_id=session_id)


def peek(home: Path, session_id: str) -> Checkpoint | None:
    """Return the checkpoint of a session without writing anything; None if there is none that can be used.

    Raises StateError if it is unreadable.
    """
    with suppress(NewerStateError):
        return _read(state_path(home, session_id), session_id)[0]
    return None


def was_sent(home: Path, session_id: str, identity: str) -> bool:
    """Return whether a destination has acknowledged turns of a session, whose transcript may be deleted since."""
    checkpoint = peek(home, session_id)
    cursor = checkpoint.destinations.get(identity) if checkpoint is not None else None
    return cursor is not None and cursor.sent_turns > 0


def _read(path: Path, session_id: str) -> tuple[Checkpoint | None, bool]:
    """Return the checkpoint in a file, if there is one, and whether the file is corrupt."""
    raw = read_private(path, MAX_STATE_BYTES)
    if raw is None:
        return None, False
    checkpoint, version = _decoded(raw)
    if version > VERSION:
        message = f"the state of session {session_id} is from a newer version ({version}; this one knows {VERSION})"
        raise NewerStateError(message, hint="update turnspan")
    if checkpoint is None or checkpoint.session_id != session_id or not _has_valid_positions(checkpoint):
        return None, True
    return checkpoint, False


def _decoded(raw: bytes) -> tuple[Checkpoint | None, int]:
    """Return a checkpoint and its version; the version also if the rest cannot be decoded."""
    with suppress(ValueError, RecursionError):  # every error of msgspec's is a ValueError
        checkpoint = _decode_checkpoint(raw)
        return checkpoint, checkpoint.version
    with suppress(ValueError, RecursionError):
        return None, _decode_version(raw).version
    return None, 0


def checkpoints(home: Path) -> Iterator[tuple[str, Checkpoint | None]]:
    """Yield every session that has a checkpoint, without writing anything; None for one that is unusable."""
    try:
        names = sorted(entry.name for entry in os.scandir(home / "state") if entry.name.endswith(".json"))
    except OSError:
        return
    for session_id in (name.removesuffix(".json") for name in names if not name.startswith(".")):
        try:
            yield session_id, peek(home, session_id)
        except StateError:
            yield session_id, None


def known_sessions(home: Path) -> set[str]:
    """Return the sessions that have a checkpoint, usable or not. Raises StateError if they cannot be listed."""
    directory = home / "state"
    try:
        names = os.listdir(directory)  # noqa: PTH208
    except FileNotFoundError:
        return set()
    except OSError as error:
        raise disk_error(error, directory) from error
    return {name.removesuffix(".json") for name in names if name.endswith(".json")}


def _has_valid_positions(checkpoint: Checkpoint) -> bool:
    """Return whether every position could be one in a file."""
    return all(
        0 <= position.line <= position.offset < 2**62
        for cursor in checkpoint.destinations.values()
        for position in (cursor.progress.main, *cursor.progress.agents.values())
    )


def _set_aside(path: Path) -> str:
    names = [f"{path.name}.corrupt-{number}" for number in range(1, KEPT_CORRUPT + 1)]
    kept = path.with_name(next((name for name in names if not os.path.lexists(path.with_name(name))), names[-1]))
    try:
        path.replace(kept)
    except OSError as error:
        raise disk_error(error, path) from error
    return kept.name


def save(home: Path, checkpoint: Checkpoint) -> None:
    """Replace a session's checkpoint, durably. If it raises StateError, the old one is still there."""
    path = state_path(home, checkpoint.session_id)
    raw = _encoded(checkpoint)
    state_directory(home)
    replace_private(path, raw)


def save_all(home: Path, checkpoints: Iterable[Checkpoint]) -> dict[str, StateError]:
    """Replace the checkpoints of several sessions; return those that failed: their old ones are still there."""
    contents: dict[str, bytes] = {}
    failed: dict[str, StateError] = {}
    for checkpoint in checkpoints:
        try:
            contents[state_path(home, checkpoint.session_id).name] = _encoded(checkpoint)
        except StateError as error:
            failed[checkpoint.session_id] = error
    unsaved = replace_all(state_directory(home), contents) if contents else {}
    return failed | {name.removesuffix(".json"): error for name, error in unsaved.items()}


def _encoded(checkpoint: Checkpoint) -> bytes:
    try:
        raw = msgspec.json.encode(checkpoint)
    except UnicodeEncodeError:  # a path that is not UTF-8: the acknowledgements matter more than the path
        raw = msgspec.json.encode(msgspec.structs.replace(checkpoint, transcript=""))
    if len(raw) > MAX_STATE_BYTES:
        raise StateError(f"the state of session {checkpoint.session_id} has grown to {len(raw)} bytes")
    return raw


class Checkpoints(Protocol):
    """When `ship` commits: each piece at once (`OnDisk`), or with those of other sessions (`bulk.group`)."""

    def load(self, session_id: str) -> Loaded:
        """Return the checkpoint of a session, or a new one. Raises StateError."""

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint of a session: now, or when everything that it acknowledges is stored."""

    def outbox(self, identity: str, backend: Backend) -> Backend:
        """Return what `ship` sends through: the backend, or what keeps requests until they are stored together."""


class OnDisk:
    """The checkpoint files, each replaced durably as soon as it is saved."""

    def __init__(self, home: Path) -> None:
        self._home = home

    def load(self, session_id: str) -> Loaded:
        """Return the checkpoint of a session, or a new one. Raises StateError."""
        return load(self._home, session_id)

    def save(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint of a session. Raises StateError."""
        save(self._home, checkpoint)

    def outbox(self, _identity: str, backend: Backend) -> Backend:
        """Return the backend itself."""
        return backend


def note_caller(home: Path, session: SessionFile, traceparent: str, *, at_s: float, is_parent: bool) -> str:
    """Remember the caller of a client that was started; return the new name of a checkpoint that was corrupt."""
    ids = parsed(traceparent)
    if ids is None and not known(home, session.session_id).callers:
        return ""
    loaded = load(home, session.session_id)
    checkpoint = loaded.checkpoint
    trace_id, span_id = ids or ("", "")
    since_ns = max(0, int(at_s * 1e9))
    caller = Caller(since_ns=since_ns, trace_id=trace_id, span_id=span_id, is_parent=is_parent and ids is not None)
    callers = noted(checkpoint.callers, caller)
    if callers != checkpoint.callers:
        save(home, msgspec.structs.replace(checkpoint, transcript=str(session.path), callers=callers))
    return loaded.kept_as


def note_capture(home: Path, session: SessionFile, capture: str) -> str:
    """Remember the narrowest capture mode to which an event restricts its session; return as `note_caller`."""
    loaded = load(home, session.session_id)
    checkpoint = loaded.checkpoint
    if (mode := narrower(capture, checkpoint.capture)) != checkpoint.capture:
        save(home, msgspec.structs.replace(checkpoint, transcript=str(session.path), capture=mode))
    return loaded.kept_as


def narrower(capture: str, other: str) -> str:
    """Return the narrower of two capture modes; "" is no restriction, and an unknown one the narrowest."""
    known = [mode if mode in CAPTURES else CAPTURES[0] for mode in (capture, other) if mode]
    return min(known, key=CAPTURES.index, default="")


def probe_writable(home: Path) -> None:
    """Raise StateError if no checkpoint could be written.

    Then nothing may be sent: without a checkpoint it would be sent again with every event.
    """
    directory = state_directory(home)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise disk_error(OSError(errno.EACCES, os.strerror(errno.EACCES)), directory)
    if sys.platform != "win32" and os.statvfs(directory).f_bavail == 0:
        raise disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), directory)


@cache  # asked many times an event; if the directory is removed meanwhile, opening a file in it fails
def state_directory(home: Path) -> Path:
    """Return the directory of the checkpoints; create it if necessary."""
    return private_directory(private_directory(home) / "state")


@contextmanager
def lock(home: Path, session_id: str, timeout_s: float = 0.0) -> Iterator[bool]:
    """Lock a session. Raises Busy; yields False if the file system has no locks, and then others are not kept out."""
    path = state_path(home, session_id, ".lock")
    state_directory(home)
    with kernel_lock(path, timeout_s) as held:
        yield held.is_locked
