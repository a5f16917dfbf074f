"""Changes a settings file atomically, with a backup and a record so that the change can be undone.

Rules:

- A link is followed: its target is replaced, and keeps its mode and owner. A new file is private to the user.
- The bytes before an installation are kept in turnspan's directory as `settings.json`; a `Record` next to them holds
  what the installation wrote and what was there before.
- An installation that was undone exactly leaves no files behind.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from turnspan import files
from turnspan.claude.settings_reader import MAX_BYTES
from turnspan.errors import ConfigError, StateError


class Record(msgspec.Struct, frozen=True):
    """What is needed to undo an installation exactly."""

    settings: str
    written_sha256: str
    original: str | None  # None: there was no file
    made_directory: bool = False


class SettingsFile(msgspec.Struct, frozen=True):
    """A settings file as it was when it was read."""

    path: Path  # as Claude Code names it
    target: Path  # the same with links resolved
    kept_in: Path  # turnspan's directory for this file
    content: bytes | None  # None: there is no file

    @property
    def backup(self) -> Path:
        """The file with the bytes before the latest installation."""
        return self.kept_in / "settings.json"


def look_at(path: Path, our_home: Path) -> SettingsFile:
    """Read a settings file. Raises StateError or ConfigError if it cannot be read."""
    target = Path(os.path.realpath(path))
    kept_in = our_home / "installed" / digest(os.fsencode(target))[:16]
    return SettingsFile(path, target, kept_in, _read(path, target))


def change(file: SettingsFile, content: bytes | None, record: Record | None) -> None:
    """Replace or remove the file if it has not changed since; a record starts an installation, None ends it."""
    if _read(file.path, file.target) != file.content:
        raise StateError(f"{file.path} was just changed by another program", hint="run the same command again")
    try:
        if record is not None:
            _keep(file, content, record)
        if content != file.content:
            _replace(file.target, content)
        if record is None:
            _forget(file, content)
    except StateError as error:
        raise StateError(f"{file.path} was not changed: {error.args[0]}", hint=error.hint) from error


def read_record(file: SettingsFile) -> Record | None:
    """The record of an installation; None if there is none, or it is damaged."""
    raw = files.read_private(file.kept_in / "record.json", 8 * MAX_BYTES)
    try:
        return None if raw is None else msgspec.json.decode(raw, type=Record)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def recorded_files(our_home: Path) -> tuple[Path, ...]:
    """The settings files that have a record, in any project."""
    found = []
    for path in sorted(our_home.glob("installed/*/record.json")):
        with suppress(StateError, ValueError):  # every error of msgspec's is a ValueError
            raw = files.read_private(path, 8 * MAX_BYTES)
            found += [] if raw is None else [Path(msgspec.json.decode(raw, type=Record).settings)]
    return tuple(found)


def digest(content: bytes) -> str:
    """A fingerprint of some bytes."""
    return hashlib.sha256(content).hexdigest()


def _read(path: Path, target: Path) -> bytes | None:
    try:
        return files.read_regular(target, MAX_BYTES)
    except OSError as error:
        if error.errno in {None, errno.ELOOP}:  # a directory, too large, or a link to itself
            raise ConfigError(f"{path} is not a settings file", hint="move it away") from error
        raise StateError(f"cannot read {path}: {error.strerror}", hint="make it readable for you") from error


def _keep(file: SettingsFile, content: bytes | None, record: Record) -> None:
    for directory in (file.kept_in.parent.parent, file.kept_in.parent, file.kept_in):
        files.private_directory(directory)
    if file.content is not None and file.content != content:
        files.replace_private(file.backup, file.content)
    files.replace_private(file.kept_in / "record.json", msgspec.json.encode(record))


def _replace(target: Path, content: bytes | None) -> None:
    staged = target.with_name(f".{target.name}.turnspan")
    try:
        if content is None:
            return target.unlink()
        target.parent.mkdir(exist_ok=True)
        files.replace_private(staged, content)
        if target.exists():
            found = target.stat()
            if sys.platform != "win32" and os.geteuid() == 0:  # with sudo, in another user's home
                os.chown(staged, found.st_uid, found.st_gid)
            staged.chmod(stat.S_IMODE(found.st_mode))
        files.rename_patiently(staged, target)
    except OSError as error:
        with suppress(OSError):
            staged.unlink(missing_ok=True)
        raise files.disk_error(error, target) from error


def _forget(file: SettingsFile, content: bytes | None) -> None:
    record = read_record(file)
    if record is None:
        return
    is_as_before = content == (None if record.original is None else record.original.encode())
    with suppress(OSError):  # a leftover does no harm
        (file.kept_in / "record.json").unlink()
        if is_as_before:
            file.backup.unlink(missing_ok=True)
            file.kept_in.rmdir()
        if is_as_before and record.made_directory:
            file.target.parent.rmdir()
