"""Removes checkpoints of deleted transcripts, and files that killed workers left behind: once a day."""

import os
import stat
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from turnspan.delivery.state import MAX_STATE_BYTES, lock, state_directory, state_path
from turnspan.errors import StateError
from turnspan.files import Busy, disk_error, open_private, read_private

_STALE_TEMP_S: Final = 3600.0
_STALE_STATE_S: Final = 90 * 86400.0
_EVERY_S: Final = 86400.0


class Pruned(msgspec.Struct, frozen=True):
    """How many files were removed."""

    states: int = 0
    leftovers: int = 0


class _Located(msgspec.Struct):
    transcript: str


def prune(home: Path, now_s: float) -> Pruned:
    """Once a day, remove leftovers of killed workers and the checkpoints of transcripts that were deleted.

    Deleted: the checkpoint was not written for 90 days, and the file system says that the transcript does not exist
    while the directory of all projects does. Any other answer keeps the checkpoint.
    """
    directory = state_directory(home)
    if not _is_due(directory / ".pruned", now_s):
        return Pruned()
    try:
        with os.scandir(directory) as entries:
            names = [entry.name for entry in entries if not entry.name.startswith(".pruned")]
    except OSError as error:
        raise disk_error(error, directory) from error
    states = leftovers = 0
    for name in names:
        with suppress(OSError, StateError, Busy):  # keep a file that cannot be examined
            age_s = now_s - os.lstat(directory / name).st_mtime
            if age_s <= (_STALE_TEMP_S if name.endswith(".tmp") else _STALE_STATE_S):
                continue
            if name.endswith(".tmp") or ".corrupt-" in name:
                (directory / name).unlink()
                leftovers += 1
            elif name.endswith(".json"):
                states += _remove_unneeded(home, name)
            else:
                leftovers += _remove_unneeded(home, name)
    return Pruned(states, leftovers)


def _is_due(stamp: Path, now_s: float) -> bool:
    try:
        if 0 <= now_s - os.lstat(stamp).st_mtime < _EVERY_S:
            return False
    except FileNotFoundError:
        os.close(open_private(stamp, os.O_WRONLY | os.O_CREAT))
    with suppress(OSError):
        os.utime(stamp, (now_s, now_s))
    return True


def _remove_unneeded(home: Path, name: str) -> bool:
    """Remove a checkpoint whose transcript was deleted; a lock or a mark only after its checkpoint."""
    path = home / "state" / name
    checkpoint = state_path(home, path.stem)
    with lock(home, path.stem):
        is_unneeded = _is_transcript_deleted(path) if path == checkpoint else not os.path.lexists(checkpoint)
        if is_unneeded:
            path.unlink()
    return is_unneeded


def _is_transcript_deleted(checkpoint: Path) -> bool:
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
