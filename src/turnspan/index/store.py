"""Opens the index: the file if it can be used, else the same tables in memory.

Rules:

- The file is `index.sqlite3` in turnspan's directory, 0600. It is derived from transcripts: it can be deleted at any
  time, and is rebuilt when the settings that decide its content, or turnspan, have changed (`fingerprint`).
- One process writes at a time (`index.lock`). A reader sees the state of one moment, whatever is written meanwhile.
- A file that cannot be used (damaged, written by another program or a newer turnspan, locked, read-only) is a remark,
  never an error: the command works with an index in memory.
- It holds what the export policy of the first destination lets through. For another destination with another policy,
  an index in memory is made.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import turnspan
from turnspan.errors import StateError
from turnspan.index import schema
from turnspan.index.update import Updater, find_changes
from turnspan.private_files import Busy, kernel_lock, open_private, private_directory, read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.index.update import Changes, ShowProgress
    from turnspan.settings.config import Config, Destination

NAME: Final = "index.sqlite3"
_LOCK: Final = "index.lock"
_BUSY_S: Final = 5.0
_WAIT_S: Final = 30.0  # for another command that brings the index up to date
_PRICES_BYTES: Final = 64 << 20
_POLICY: Final = ("capture", "thinking", "tool_inputs", "tool_outputs", "images", "turn_names")


class Index:
    """An index that is up to date: `connection` is for queries, `remarks` is for the user."""

    def __init__(self, connection: sqlite3.Connection, *, is_in_memory: bool) -> None:
        self.connection = connection
        self.is_in_memory = is_in_memory
        self.remarks: list[str] = []
        self.unreadable: dict[str, str] = {}  # sessions and projects that could not be read, with the reason


@contextmanager
def opened(
    config: Config, destination: Destination | None = None, *, show: ShowProgress | None = None
) -> Iterator[Index]:
    """Open the index and bring it up to date; `show` shows progress if that takes a while."""
    wanted = destination or config.destinations[0]
    index = None
    remark = ""
    if is_stored(config, wanted):
        try:
            index = _open_file(config, wanted, show)
        except StateError as error:
            remark = f"the index cannot be used: {error}"
    if index is None:
        index = _open_in_memory(config, wanted, show)
    if remark:
        index.remarks.append(remark)
    try:
        index.connection.execute("BEGIN")
        yield index
    except sqlite3.DatabaseError as error:
        raise _damaged(config.home / NAME, error) from error
    finally:
        with suppress(sqlite3.Error):
            index.connection.close()


def is_stored(config: Config, destination: Destination) -> bool:
    """Return whether the index of a destination is a file."""
    if not config.values["index"] or config.is_invalid:  # invalid settings may lack what is to be masked
        return False
    first = config.destinations[0]
    return destination == first or _policy_of(destination) == _policy_of(first)


def _policy_of(destination: Destination) -> list[object]:
    return [destination.policy[name] for name in _POLICY]


def fingerprint(config: Config, destination: Destination) -> str:
    """Return a digest of everything besides transcripts that decides what is in the index."""
    options = [(each.options.get("headers"), each.options.get("public_key"), each.options.get("secret_key"))
               for each in config.destinations]  # fmt: skip
    prices: bytes | None = None
    if config.values["prices"]:
        with suppress(OSError):
            prices = read_regular(Path(config.values["prices"]).expanduser(), _PRICES_BYTES)
    what = (
        schema.DIGEST, turnspan.__version__, _policy_of(destination), config.values["mask_paths"],
        sorted(config.values["patterns"].items()), options, prices,
    )  # fmt: skip
    return blake2b(repr(what).encode("utf-8", "replace"), digest_size=16).hexdigest()


# ---- the file


def _open_file(config: Config, destination: Destination, show: ShowProgress | None) -> Index:
    """Open the file and bring it up to date. Raises StateError if it cannot be used."""
    path = config.home / NAME
    private_directory(config.home)
    os.close(open_private(path, os.O_RDWR | os.O_CREAT))
    try:
        connection = _connect(path)
        try:
            return _updated(connection, config, destination, show)
        except BaseException:
            connection.close()
            raise
    except sqlite3.DatabaseError as error:
        if isinstance(error, sqlite3.OperationalError) and not str(error).startswith("no such "):
            raise _unusable(path, error) from error
        return _rebuilt(config, destination, show, error)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _updated(
    connection: sqlite3.Connection, config: Config, destination: Destination, show: ShowProgress | None
) -> Index:
    path = config.home / NAME
    index = Index(connection, is_in_memory=False)
    wanted = fingerprint(config, destination)
    changes = None
    if _check(connection, path) and _meta(connection, "fingerprint") == wanted:
        changes = find_changes(connection, config)
    if changes is None or not changes.is_empty:
        try:
            with kernel_lock(config.home / _LOCK, _WAIT_S):
                changes = _write(connection, config, destination, show, wanted)
        except Busy:
            if changes is None:
                raise StateError("another command is building it", hint="try again when it is done") from None
            number = len(changes.read) + len(changes.delete)
            index.remarks.append(f"the index is being updated by another command: {number} sessions are not current")
    _note_unreadable(index, changes)
    return index


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has our tables. Raises StateError if it is not ours to change."""
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application == schema.APPLICATION_ID:
        if version > schema.VERSION:
            raise StateError(f"{str(path)!r} was written by a newer turnspan", hint="update turnspan")
        return bool(version == schema.VERSION)
    if application or connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        raise StateError(f"{str(path)!r} was written by another program", hint="move it away")
    return False


def _write(
    connection: sqlite3.Connection, config: Config, destination: Destination, show: ShowProgress | None, wanted: str
) -> Changes:
    """Bring the file up to date. The caller holds the lock."""
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    if not _check(connection, config.home / NAME) or _meta(connection, "fingerprint") != wanted:
        _empty(connection, wanted)
    changes = find_changes(connection, config)
    Updater(connection, config, destination, show).apply(changes)
    return changes


def _empty(connection: sqlite3.Connection, wanted: str) -> None:
    """Create the tables anew; what was there before is overwritten."""
    connection.execute("BEGIN IMMEDIATE")
    had_tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    schema.drop(connection)
    schema.create(connection)
    connection.execute("INSERT INTO meta VALUES ('fingerprint', ?)", (wanted,))
    connection.execute("COMMIT")
    if had_tables:
        connection.execute("VACUUM")


def _meta(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row is not None else None


def _rebuilt(
    config: Config, destination: Destination, show: ShowProgress | None, error: sqlite3.DatabaseError
) -> Index:
    """Delete a damaged file and build it again."""
    path = config.home / NAME
    try:
        with kernel_lock(config.home / _LOCK, _WAIT_S):
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
            os.close(open_private(path, os.O_RDWR | os.O_CREAT))
            connection = _connect(path)
            index = Index(connection, is_in_memory=False)
            changes = _write(connection, config, destination, show, fingerprint(config, destination))
    except Busy:
        raise StateError("another command is building it", hint="try again when it is done") from None
    except (OSError, sqlite3.Error) as again:
        raise _unusable(path, again) from again
    index.remarks.append(f"the index was damaged ({error}): it was rebuilt")
    _note_unreadable(index, changes)
    return index


def _unusable(path: Path, error: Exception) -> StateError:
    return StateError(f"cannot open {str(path)!r}: {error}", hint="it can be deleted, and is rebuilt then")


def _damaged(path: Path, error: sqlite3.DatabaseError) -> StateError:
    return StateError(f"cannot read {str(path)!r}: {error}", hint="delete it: it is rebuilt then")


def _note_unreadable(index: Index, changes: Changes) -> None:
    index.unreadable |= changes.listing.unlisted
    rows = index.connection.execute(
        "SELECT session_id, problem FROM session JOIN file ON file.session = session.id WHERE problem <> ''"
    )
    index.unreadable |= dict(rows.fetchall())


# ---- in memory


def _open_in_memory(config: Config, destination: Destination, show: ShowProgress | None) -> Index:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    index = Index(connection, is_in_memory=True)
    connection.execute("BEGIN")
    schema.create(connection)
    connection.execute("COMMIT")
    changes = find_changes(connection, config)
    Updater(connection, config, destination, show).apply(changes)
    _note_unreadable(index, changes)
    return index
