"""Events of a session that another worker has locked: none is lost, and none waits for another event.

Rules:

- An event that finds its session locked leaves a mark, then tries the lock once more. The holder of the lock looks for
  marks again *after* it has released the lock, so a mark is seen by the worker that left it or by the one that held the
  lock (`attend`).
- Marks are dropped only when their work is done: those of a killed worker are found by the next one.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from turnspan.delivery.state import lock, state_directory, state_path
from turnspan.errors import StateError
from turnspan.files import Busy, disk_error, kernel_lock, read_on

MAX_MARKS_BYTES: Final = 256 * 1024  # beyond that a mark has no facts; that there is one is enough
_TIMEOUT_S: Final = 2.0  # the file is locked for microseconds at a time

Facts: TypeAlias = dict[str, str | int | float | bool | None]


class Marks(msgspec.Struct, frozen=True):
    """The facts of pending events, and how many bytes of the file they take."""

    events: list[Facts]
    length: int


_decode_facts: Final = msgspec.json.Decoder(Facts).decode


def attend(home: Path, session_id: str, facts: Facts, work: Callable[[list[Facts], bool], None]) -> bool:
    """Have `work` done for this event, here or by the worker that holds the session; False if it is that one.

    `work` gets the facts of the pending events and of this one, and whether the session is locked. It is called again
    for events that arrive meanwhile. If it raises, the marks stay.
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
    """Record an event for the present or the next holder of the session."""
    # The newline comes first: it ends a partial line that a full disk may have caused.
    line = b"\n" + msgspec.json.encode(facts)
    with _marks_file(home, session_id) as descriptor:
        length = os.lseek(descriptor, 0, os.SEEK_END)
        os.write(descriptor, line if length + len(line) <= MAX_MARKS_BYTES else line[:1])


def marked_sessions(home: Path) -> set[str]:
    """Return the sessions with a file of marks."""
    try:
        names = os.listdir(home / "state")  # noqa: PTH208
    except FileNotFoundError:
        return set()
    return {name.removesuffix(".marks") for name in names if name.endswith(".marks")}


def has_marks(home: Path, session_id: str) -> bool:
    """Return whether an event is pending, or was not finished by a worker that died."""
    return marks_length(home, session_id) > 0


def marks_length(home: Path, session_id: str) -> int:
    """Return the size of the marks: it grows when an event arrives."""
    try:
        return os.lstat(state_path(home, session_id, ".marks")).st_size
    except FileNotFoundError:
        return 0


def read_marks(home: Path, session_id: str) -> Marks:
    """Return the pending events in order. The caller holds the session's lock."""
    if not has_marks(home, session_id):
        return Marks([], 0)
    with _marks_file(home, session_id) as descriptor:
        raw = read_on(descriptor, 2 * MAX_MARKS_BYTES)
    events: list[Facts] = []
    for line in raw.splitlines():
        with suppress(ValueError, RecursionError):  # an empty or a partial line
            events.append(_decode_facts(line))
    return Marks(events, len(raw))


def drop_marks(home: Path, session_id: str, marks: Marks) -> None:
    """Remove these marks because their work is done; later ones stay."""
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
    """Open and lock the marks of a session."""
    path = state_path(home, session_id, ".marks")
    state_directory(home)
    try:
        with kernel_lock(path, _TIMEOUT_S) as held:
            yield held.descriptor
    except Busy:
        raise StateError(f"{str(path)!r} stays locked", hint="look for a turnspan worker that hangs") from None
    except OSError as error:
        raise disk_error(error, path) from error
