"""One locked, atomic checkpoint per session.

Rules:

- A checkpoint holds places, never content. What it does not acknowledge is read again from the transcript.
- What cannot be understood is set aside and the session starts again; what a newer turnspan wrote is left alone; what
  cannot be *read* is neither: an error is never taken for "there is none".
- An event that finds its session locked leaves a mark, then tries the lock once more. Whoever holds it looks for marks
  again *after* letting go, so a mark is seen by the worker that left it or by the one that was in its way (`attend`).
  Marks are dropped only when the work they asked for is done: a killed worker's are found by the next.
- Nothing here costs more because there are many sessions, but for the daily `prune`.

Files of a session in `state/`: `.json` its checkpoint, `.lock` its lock, `.marks` the events that wait or are served.
"""

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from turnspan.errors import StateError
from turnspan.private_files import (
    Busy,
    disk_error,
    kernel_lock,
    open_private,
    private_directory,
    read_on,
    read_private,
    replace_private,
)
from turnspan.source.progress import Progress
from turnspan.source.sessions import is_safe_id

VERSION: Final = 1
MAX_STATE_BYTES: Final = 8 * 1024 * 1024
MAX_HOLD_BYTES: Final = 64 * 1024
MAX_MARKS_BYTES: Final = 256 * 1024  # past that an event leaves no facts: that there is a mark is enough
KEPT_CORRUPT: Final = 3
STALE_TEMP_S: Final = 3600.0
STALE_STATE_S: Final = 90 * 86400.0
PRUNE_EVERY_S: Final = 86400.0
MARKS_TIMEOUT_S: Final = 2.0  # they are locked for microseconds at a time

Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Facts: TypeAlias = dict[str, str | int | float | bool | None]


class NewerStateError(StateError):
    """A newer turnspan wrote this state: leave the session to it."""


class Hold(msgspec.Struct, frozen=True, kw_only=True):
    """Until when a destination is left in peace, and why."""

    until_s: float
    length_s: float = 0.0
    reason: str = ""
    answer: str = ""


class Quarantine(msgspec.Struct, frozen=True, kw_only=True):
    """What a destination will never take; `span_id` is empty where it did not say which spans of a trace."""

    trace_id: str
    span_id: str = ""
    spans: Count = 1
    reason: str = ""
    at_s: float = 0.0


class Cursor(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How far one destination has acknowledged a session."""

    progress: Progress = Progress()
    arrived: tuple[str, ...] = ()  # spans behind `progress` that are there already: a batch that was cut short
    is_unsure: bool = False  # the last request got no answer: what was in it may be there as well
    quarantined: tuple[Quarantine, ...] = ()  # the latest; of those before them only the number is kept
    forgotten: Count = 0
    seen_bytes: Count = 0  # the size of the transcript when nothing of it was left to send
    sent_turns: Count = 0
    sent_spans: Count = 0
    last_success_s: float = 0.0
    last_error: str = ""

    @property
    def refused_spans(self) -> int:
        """How many spans the destination will never take."""
        return sum(entry.spans for entry in self.quarantined) + self.forgotten


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """All we know of a session between two events."""

    session_id: str
    version: Annotated[int, msgspec.Meta(ge=1)] = VERSION
    transcript: str = ""
    is_off: bool = False  # the person switched this session off: nobody exports it
    destinations: dict[str, Cursor] = {}


class Loaded(msgspec.Struct, frozen=True):
    """A checkpoint, a new one where there was none or rubbish."""

    checkpoint: Checkpoint
    kept_as: str = ""  # the name under which rubbish was set aside


class Marks(msgspec.Struct, frozen=True):
    """The facts of events that wait, and how much of the file they take."""

    events: list[Facts]
    length: int


class Pruned(msgspec.Struct, frozen=True):
    """What was removed."""

    states: int = 0
    leftovers: int = 0


class _Versioned(msgspec.Struct):
    version: int


class _Located(msgspec.Struct):
    transcript: str


_decode_checkpoint: Final = msgspec.json.Decoder(Checkpoint).decode
_decode_version: Final = msgspec.json.Decoder(_Versioned).decode
_decode_facts: Final = msgspec.json.Decoder(Facts).decode


@lru_cache(maxsize=64)  # an event asks for its own six times
def state_path(home: Path, session_id: str, suffix: str = ".json") -> Path:
    """The file of a session; an id that is anything but a plain name is refused."""
    if not is_safe_id(session_id):
        raise StateError(f"{session_id[:100]!r} is not a session id", hint="it must be a plain name")
    return home / "state" / f"{session_id}{suffix}"


def load(home: Path, session_id: str) -> Loaded:
    """The checkpoint of a session, or a new one. Raises NewerStateError, or StateError when it cannot be read."""
    path = state_path(home, session_id)
    _state_directory(home)
    raw = read_private(path, MAX_STATE_BYTES)
    if raw is None:
        return Loaded(Checkpoint(session_id=session_id))
    checkpoint, version = _decoded(raw)
    if version > VERSION:
        message = f"the state of session {session_id} is from a newer version ({version}; this one knows {VERSION})"
        raise NewerStateError(message, hint="update turnspan")
    if checkpoint is None or checkpoint.session_id != session_id or not _has_real_places(checkpoint):
        return Loaded(Checkpoint(session_id=session_id), _set_aside(path))
    return Loaded(checkpoint)


def _decoded(raw: bytes) -> tuple[Checkpoint | None, int]:
    """What a state says, and the version that wrote it, which is told also where the rest is not understood."""
    with suppress(ValueError, RecursionError):  # every error of msgspec's is a ValueError
        checkpoint = _decode_checkpoint(raw)
        return checkpoint, checkpoint.version
    with suppress(ValueError, RecursionError):
        return None, _decode_version(raw).version
    return None, 0


def peek(home: Path, session_id: str) -> Checkpoint | None:
    """The checkpoint of a session, touching nothing; None if there is none that we understand.

    Raises StateError when it cannot be read.
    """
    raw = read_private(state_path(home, session_id), MAX_STATE_BYTES)
    checkpoint, version = _decoded(raw) if raw is not None else (None, 0)
    if checkpoint is None or version > VERSION or checkpoint.session_id != session_id:
        return None
    return checkpoint if _has_real_places(checkpoint) else None


def checkpoints(home: Path) -> Iterator[tuple[str, Checkpoint | None]]:
    """Every session that has a state, touching nothing; None for one that cannot be read or understood."""
    try:
        names = sorted(entry.name for entry in os.scandir(home / "state") if entry.name.endswith(".json"))
    except OSError:
        return
    for session_id in (name.removesuffix(".json") for name in names if not name.startswith(".")):
        try:
            yield session_id, peek(home, session_id)
        except StateError:
            yield session_id, None


def _has_real_places(checkpoint: Checkpoint) -> bool:
    """Whether every place it names could be one in a file."""
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
    """Replace a session's checkpoint, durably. Raises StateError, and then the old one is still there."""
    path = state_path(home, checkpoint.session_id)
    try:
        raw = msgspec.json.encode(checkpoint)
    except UnicodeEncodeError:  # a path that is not UTF-8: what was acknowledged counts more than where it was read
        raw = msgspec.json.encode(msgspec.structs.replace(checkpoint, transcript=""))
    if len(raw) > MAX_STATE_BYTES:
        raise StateError(f"the state of session {checkpoint.session_id} has grown to {len(raw)} bytes")
    _state_directory(home)
    replace_private(path, raw)


def load_hold(home: Path, identity: str) -> Hold | None:
    """Until when a destination is left in peace, whichever session it was that found it so."""
    raw = read_private(_hold_path(home, identity), MAX_HOLD_BYTES)
    try:
        return msgspec.json.decode(raw, type=Hold) if raw is not None else None
    except (ValueError, RecursionError):
        return None


def save_hold(home: Path, identity: str, hold: Hold) -> None:
    """Leave a destination in peace."""
    _state_directory(home)
    replace_private(_hold_path(home, identity), msgspec.json.encode(hold))


def drop_hold(home: Path, identity: str) -> None:
    """A destination has taken something: it is back."""
    with suppress(OSError):
        _hold_path(home, identity).unlink(missing_ok=True)


def _hold_path(home: Path, identity: str) -> Path:
    name = "".join(sign if sign.isascii() and (sign.isalnum() or sign in "_-") else "_" for sign in identity)
    return home / "state" / f".hold-{name}"


def probe_writable(home: Path) -> None:
    """Raise StateError when no checkpoint could be written.

    Then nothing may be sent: what is sent and not noted is sent again with every event.
    """
    directory = _state_directory(home)
    if not os.access(directory, os.W_OK | os.X_OK):
        raise disk_error(OSError(errno.EACCES, os.strerror(errno.EACCES)), directory)
    if sys.platform != "win32" and os.statvfs(directory).f_bavail == 0:
        raise disk_error(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), directory)


@cache  # a process asks many times an event; a directory that goes away under it is noticed when a file is opened
def _state_directory(home: Path) -> Path:
    return private_directory(private_directory(home) / "state")


@contextmanager
def lock(home: Path, session_id: str, timeout_s: float = 0.0) -> Iterator[bool]:
    """Hold a session. Raises Busy; gives False where the file system cannot lock, and then nobody is kept out."""
    path = state_path(home, session_id, ".lock")
    _state_directory(home)
    with kernel_lock(path, timeout_s) as held:
        yield held.is_locked


def attend(home: Path, session_id: str, facts: Facts, work: Callable[[list[Facts], bool], None]) -> bool:
    """Have `work` done for this event, by us or by the worker that has the session now; False when it is that one.

    `work` gets the facts of the events that wait and of this one, and whether the session is locked. It is called again
    for events that arrive meanwhile. When it raises, those that waited go on waiting.
    """
    ours = [facts]
    is_done_here = False
    while True:
        try:
            with lock(home, session_id) as is_locked:
                while (marks := read_marks(home, session_id)).length or ours:
                    work([*marks.events, *ours], is_locked)
                    drop_marks(home, session_id, marks)
                    ours = []
                    is_done_here = True
        except Busy:
            if not ours:
                return is_done_here
            leave_mark(home, session_id, facts)
            ours = []
        else:
            if not has_marks(home, session_id):
                return is_done_here


def leave_mark(home: Path, session_id: str, facts: Facts) -> None:
    """Note that an event happened, for whoever has the session or will have it."""
    # The newline comes first: half a line that a full disk left behind ends there.
    line = b"\n" + msgspec.json.encode(facts)
    with _marks_file(home, session_id) as descriptor:
        length = os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, line if length + len(line) <= MAX_MARKS_BYTES else line[:1])


def has_marks(home: Path, session_id: str) -> bool:
    """Whether an event waits for its work, or a worker died over it."""
    try:
        return os.lstat(state_path(home, session_id, ".marks")).st_size > 0
    except FileNotFoundError:
        return False


def marks_length(home: Path, session_id: str) -> int:
    """How much waits: it grows when an event comes."""
    try:
        return os.lstat(state_path(home, session_id, ".marks")).st_size
    except FileNotFoundError:
        return 0


def read_marks(home: Path, session_id: str) -> Marks:
    """The events that wait, in order. Only for who holds the lock."""
    if not has_marks(home, session_id):
        return Marks([], 0)
    with _marks_file(home, session_id) as descriptor:
        raw = read_on(descriptor, 2 * MAX_MARKS_BYTES)
    events: list[Facts] = []
    for line in raw.splitlines():
        with suppress(ValueError, RecursionError):  # empty, or half a line
            events.append(_decode_facts(line))
    return Marks(events, len(raw))


def drop_marks(home: Path, session_id: str, marks: Marks) -> None:
    """Forget these marks, for their work is done; those that came after them stay."""
    if not marks.length:
        return
    with _marks_file(home, session_id) as descriptor:
        os.lseek(descriptor, marks.length, os.SEEK_SET)
        rest = read_on(descriptor, 2 * MAX_MARKS_BYTES)
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.write(descriptor, rest)
        os.ftruncate(descriptor, len(rest))


@contextmanager
def _marks_file(home: Path, session_id: str) -> Iterator[int]:
    """The marks of a session, which nobody else touches meanwhile."""
    path = state_path(home, session_id, ".marks")
    _state_directory(home)
    try:
        with kernel_lock(path, MARKS_TIMEOUT_S) as held:
            yield held.descriptor
    except Busy:
        raise StateError(f"{str(path)!r} stays locked", hint="look for a turnspan worker that hangs") from None
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
