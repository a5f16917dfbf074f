"""One locked, atomic checkpoint per session.

Rules:

- A checkpoint holds places, never content. What it does not acknowledge is read again from the transcript.
- What cannot be understood is set aside and the session starts again; what a newer turnspan wrote is left alone; what
  cannot be *read* is neither: an error is never taken for "there is none".
- An event first leaves a mark, then tries the lock. Whoever holds it looks for marks again *after* letting go, so a
  mark is seen by the worker that left it or by the one that was in its way (`attend`). Marks are removed only when the
  work they asked for is done: a killed worker's are found by the next.
- Nothing here costs more because there are many sessions, but for the daily `prune`.

Files of a session in `state/`: `.json` the checkpoint, `.lock`, `.mark` events that wait, `.taken` events being served.
"""

from __future__ import annotations

import os
import re
import stat
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

import msgspec

from turnspan.errors import StateError
from turnspan.home import (
    Busy,
    disk_error,
    kernel_lock,
    open_private,
    private_directory,
    read_private,
    replace_private,
    write_temporary,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

VERSION: Final = 1
MAX_STATE_BYTES: Final = 8 * 1024 * 1024
MAX_MARKS_BYTES: Final = 256 * 1024  # past that an event leaves no facts: that there is a mark is enough
KEPT_CORRUPT: Final = 3
STALE_TEMP_S: Final = 3600.0
STALE_STATE_S: Final = 90 * 86400.0
PRUNE_EVERY_S: Final = 86400.0

_SESSION_ID: Final = re.compile(r"(?!(?i:con|prn|aux|nul|com\d|lpt\d)$)[A-Za-z0-9][A-Za-z0-9_-]{0,99}")

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Facts: TypeAlias = dict[str, str | int | float | bool | None]


class NewerStateError(StateError):
    """A newer turnspan wrote this state: leave the session to it."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Until when a destination is left in peace, and why."""

    until_s: float
    reason: str = ""
    answer: str = ""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination will never take; `span_id` is empty for a whole trace."""

    trace_id: str
    span_id: str = ""
    reason: str = ""
    at_s: float = 0.0


class AgentCursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one subagent's file has been acknowledged."""

    line: Count = 0
    offset: Count = 0
    fingerprint: str = ""
    is_finished: bool = False


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one destination has acknowledged a session."""

    line: Count = 0
    offset: Count = 0
    fingerprint: str = ""
    turns: Count = 0
    carry: dict[str, object] = {}
    held: Hold | None = None
    quarantined: tuple[Quarantine, ...] = ()
    agents: dict[str, AgentCursor] = {}
    sent_turns: Count = 0
    sent_spans: Count = 0
    last_success_s: float = 0.0
    last_error: str = ""


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All we know of a session between two events."""

    session_id: str
    version: Annotated[int, msgspec.Meta(ge=1)] = VERSION
    transcript: str = ""
    destinations: dict[str, Cursor] = {}


class Found(StrEnum):
    """What was there when a checkpoint was asked for."""

    NOTHING = "nothing"
    CHECKPOINT = "checkpoint"
    RUBBISH = "rubbish"  # set aside


class Loaded(msgspec.Struct, frozen=True):
    """A checkpoint, and where it comes from."""

    checkpoint: Checkpoint
    found: Found
    kept_as: str = ""  # the name under which rubbish was set aside


class Pruned(msgspec.Struct, frozen=True):
    """What was removed."""

    states: int = 0
    leftovers: int = 0


class _Versioned(msgspec.Struct):
    version: int


class _Located(msgspec.Struct):
    transcript: str


def state_path(home: Path, session_id: str, suffix: str = ".json") -> Path:
    """The file of a session; an id that is anything but a plain name is refused."""
    if _SESSION_ID.fullmatch(session_id) is None:
        raise StateError(f"{session_id[:100]!r} is not a session id", hint="it must be a plain name")
    return home / "state" / f"{session_id}{suffix}"


def load(home: Path, session_id: str) -> Loaded:
    """The checkpoint of a session, or a new one. Raises NewerStateError, or StateError when it cannot be read."""
    path = state_path(home, session_id)
    _state_directory(home)
    raw = read_private(path, MAX_STATE_BYTES)
    if raw is None:
        return Loaded(Checkpoint(session_id=session_id), Found.NOTHING)
    try:
        version = msgspec.json.decode(raw, type=_Versioned).version
        if version > VERSION:
            message = f"the state of session {session_id} is from a newer version ({version}; this one knows {VERSION})"
            raise NewerStateError(message, hint="update turnspan")
        checkpoint = msgspec.json.decode(raw, type=Checkpoint)
    except (ValueError, RecursionError):  # every error of msgspec's is a ValueError
        checkpoint = None
    if checkpoint is None or checkpoint.session_id != session_id:
        return Loaded(Checkpoint(session_id=session_id), Found.RUBBISH, _set_aside(path))
    return Loaded(checkpoint, Found.CHECKPOINT)


def _set_aside(path: Path) -> str:
    names = [f"{path.name}.corrupt-{number}" for number in range(1, KEPT_CORRUPT + 1)]
    kept = path.with_name(next((name for name in names if not os.path.lexists(path.with_name(name))), names[-1]))
    try:
        path.replace(kept)
    except OSError as error:
        raise disk_error(error, path) from error
    return kept.name


def save(home: Path, checkpoint: Checkpoint) -> None:
    """Replace a session's checkpoint, durably. Raises StateError, and then the old one is still there."""
    path = state_path(home, checkpoint.session_id)
    raw = msgspec.json.encode(checkpoint)
    if len(raw) > MAX_STATE_BYTES:
        raise StateError(f"the state of session {checkpoint.session_id} has grown to {len(raw)} bytes")
    _state_directory(home)
    replace_private(path, raw)


def probe_writable(home: Path) -> None:
    """Raise StateError when no checkpoint could be written.

    Then nothing may be sent: what is sent and not noted is sent again with every event.
    """
    probe = _state_directory(home) / "probe"
    write_temporary(probe, b" " * 4096, is_durable=False).unlink(missing_ok=True)


def _state_directory(home: Path) -> Path:
    return private_directory(private_directory(home) / "state")


def lock(home: Path, session_id: str, timeout_s: float = 0.0) -> AbstractContextManager[bool]:
    """Hold a session. Raises Busy; gives False where the file system cannot lock, and then nobody is kept out."""
    path = state_path(home, session_id, ".lock")
    _state_directory(home)
    return kernel_lock(path, timeout_s)


def attend(home: Path, session_id: str, facts: Facts, work: Callable[[list[Facts], bool], None]) -> bool:
    """Have `work` done for this event, by us or by the worker that has the session now; False when it is that one.

    `work` gets the facts of all events since the last time, and whether the session is locked. It is called again for
    events that arrive meanwhile. When it raises, the marks stay, for the next event.
    """
    leave_mark(home, session_id, facts)
    is_ours = False
    while has_marks(home, session_id):
        try:
            with lock(home, session_id) as is_locked:
                while (marks := take_marks(home, session_id)) is not None:
                    work(marks, is_locked)
                    drop_taken(home, session_id)
        except Busy:
            return is_ours
        is_ours = True
    return is_ours


def leave_mark(home: Path, session_id: str, facts: Facts) -> None:
    """Note that an event happened, for whoever has the session or will have it."""
    path = state_path(home, session_id, ".mark")
    _state_directory(home)
    line = msgspec.json.encode(facts) + b"\n"
    is_seen = False
    while not is_seen:
        descriptor = open_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size + len(line) <= MAX_MARKS_BYTES:
                os.write(descriptor, line)
            # Taken between our opening and our writing it: the taker may have read it without our line.
            is_seen = os.path.samestat(os.fstat(descriptor), os.lstat(path))
        except FileNotFoundError:
            is_seen = False
        except OSError as error:
            raise disk_error(error, path) from error
        finally:
            os.close(descriptor)


def has_marks(home: Path, session_id: str) -> bool:
    """Whether an event waits for its work, or a worker died over it."""
    return any(os.path.lexists(state_path(home, session_id, suffix)) for suffix in (".mark", ".taken"))


def take_marks(home: Path, session_id: str) -> list[Facts] | None:
    """The facts of the events that wait, in order; None when none does. Only for who holds the lock."""
    taken = state_path(home, session_id, ".taken")
    raw = read_private(taken, MAX_MARKS_BYTES)  # a worker died over these
    if raw is None:
        try:
            state_path(home, session_id, ".mark").replace(taken)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise disk_error(error, taken) from error
        raw = read_private(taken, MAX_MARKS_BYTES) or b""
    marks: list[Facts] = []
    for line in raw.splitlines():
        with suppress(ValueError, RecursionError):  # half a line, of a full disk
            marks.append(msgspec.json.decode(line, type=Facts))
    return marks


def drop_taken(home: Path, session_id: str) -> None:
    """Forget the marks taken last: their work is done."""
    path = state_path(home, session_id, ".taken")
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise disk_error(error, path) from error


def prune(home: Path, now_s: float) -> Pruned:
    """Once a day, remove what killed workers left behind, and the states of transcripts that are gone for good.

    Gone for good: not touched by us for 90 days, and the file system says that the file does not exist while the
    directory of all projects does. Any other answer keeps the state.
    """
    directory = _state_directory(home)
    if not _is_prune_due(directory / ".pruned", now_s):
        return Pruned()
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".pruned")]
    except OSError as error:
        raise disk_error(error, directory) from error
    states = leftovers = 0
    for name in names:
        with suppress(OSError, StateError, Busy):  # what cannot be looked at stays
            age_s = now_s - os.lstat(directory / name).st_mtime
            if age_s <= (STALE_TEMP_S if name.endswith(".tmp") else STALE_STATE_S):
                continue
            if name.endswith(".tmp") or ".corrupt-" in name:
                (directory / name).unlink()
                leftovers += 1
            elif name.endswith(".json"):
                states += _remove_unneeded(home, name)
            else:
                leftovers += _remove_unneeded(home, name)
    return Pruned(states, leftovers)


def _is_prune_due(stamp: Path, now_s: float) -> bool:
    try:
        if 0 <= now_s - os.lstat(stamp).st_mtime < PRUNE_EVERY_S:
            return False
    except FileNotFoundError:
        os.close(open_private(stamp, os.O_WRONLY | os.O_CREAT))
    with suppress(OSError):
        os.utime(stamp, (now_s, now_s))
    return True


def _remove_unneeded(home: Path, name: str) -> bool:
    """Remove a checkpoint whose transcript is gone; a lock or a mark only when its checkpoint is gone before it."""
    path = home / "state" / name
    checkpoint = state_path(home, path.stem)
    with lock(home, path.stem):
        is_unneeded = _is_transcript_gone(path) if path == checkpoint else not os.path.lexists(checkpoint)
        if is_unneeded:
            path.unlink()
    return is_unneeded


def _is_transcript_gone(checkpoint: Path) -> bool:
    raw = read_private(checkpoint, MAX_STATE_BYTES)
    try:
        transcript = Path(msgspec.json.decode(raw or b"", type=_Located).transcript)
    except (ValueError, RecursionError):
        return False
    if not transcript.is_absolute() or not stat.S_ISDIR(transcript.parent.parent.stat().st_mode):
        return False
    try:
        os.lstat(transcript)
    except FileNotFoundError:
        return True
    return False
