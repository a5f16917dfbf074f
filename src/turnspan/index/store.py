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
from contextlib import closing, contextmanager, suppress
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

import turnspan
from turnspan.errors import StateError
from turnspan.files import Busy, kernel_lock, open_private, private_directory, read_regular
from turnspan.index import schema
from turnspan.index.changes import Scope, find_changes
from turnspan.text import count

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.index.changes import Changes
    from turnspan.index.update import ShowProgress
    from turnspan.settings.config import Config, Destination

NAME: Final = "index.sqlite3"
_LOCK: Final = "index.lock"
_BUSY_S: Final = 5.0
_DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError, msgspec.MsgspecError)  # what damaged rows raise
_WAIT_S: Final = 30.0  # for another command that brings the index up to date
_LOG: Final = "PRAGMA journal_mode = WAL"
# With a write-ahead log, everything is written twice. A new file needs none as long as there is nothing to read in it,
# and what is not committed fits into memory.
_WRITTEN_ONCE_BYTES: Final = 64 << 20
_PRICES_BYTES: Final = 64 << 20
_POLICY: Final = ("capture", "thinking", "tool_inputs", "tool_outputs", "images", "turn_names")


class Index:
    """An index that is up to date: `connection` is for queries, `remarks` is for the user."""

    def __init__(self, connection: sqlite3.Connection, *, is_in_memory: bool) -> None:
        self.connection = connection
        self.is_in_memory = is_in_memory
        self.remarks: list[str] = []
        self.unreadable: dict[str, str] = {}  # sessions and projects that could not be read, with the reason


class _Work(msgspec.Struct, frozen=True):
    """What an index is opened for."""

    config: Config
    destination: Destination
    scope: Scope
    show: ShowProgress | None

    @property
    def path(self) -> Path:
        return self.config.home / NAME

    def apply(self, connection: sqlite3.Connection, changes: Changes) -> None:
        """Bring an index up to date."""
        from turnspan.index.update import Updater  # noqa: PLC0415 - most commands find the index up to date

        if not changes.is_empty:
            Updater(connection, self.config, self.destination, self.show).apply(changes)

    def changes(self, connection: sqlite3.Connection, *, is_in_memory: bool = False) -> Changes:
        """Return what is to be updated."""
        changes = find_changes(connection, self.config)
        self.scope.restrict(changes, is_in_memory=is_in_memory)
        return changes


@contextmanager
def opened(
    config: Config,
    destination: Destination | None = None,
    *,
    scope: Scope = Scope(),  # noqa: B008 - a frozen value
    show: ShowProgress | None = None,
) -> Iterator[Index]:
    """Open the index and bring it up to date: what `scope` needs. `show` shows progress if that takes a while."""
    work = _Work(config, destination or config.destinations[0], scope, show)
    index = None
    remark = ""
    if is_stored(config, work.destination):
        try:
            index = _open_file(work)
        except StateError as error:
            remark = f"the index cannot be used: {error}"
    if index is None:
        index = _open_in_memory(work)
    if remark:
        index.remarks.append(remark)
    try:
        index.connection.execute("BEGIN")
        yield index
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if not index.is_in_memory and _is_damage(error):
            index.connection.close()
            _delete(work.path)
            raise StateError(
                "the index is damaged and was deleted", hint="run the command again: it is rebuilt"
            ) from error
        raise StateError(f"cannot read {str(work.path)!r}: {error}", hint="delete it: it is rebuilt then") from error
    finally:
        with suppress(sqlite3.Error):
            index.connection.close()


def stored_as_it_is(config: Config, destination: Destination) -> sqlite3.Connection | None:
    """Return a connection to the file, which is not brought up to date; None if there is none with these settings."""
    if not is_stored(config, destination):
        return None
    work = _Work(config, destination, Scope(), None)
    connection = None
    try:
        os.close(open_private(work.path, os.O_RDWR))
        connection = _connect(work.path)
        connection.execute("BEGIN")
        is_usable = _is_current(connection, work)
    except (OSError, StateError, sqlite3.Error, *_DAMAGE):
        is_usable = False
    if connection is not None and not is_usable:
        connection.close()
    return connection if is_usable else None


def is_stored(config: Config, destination: Destination) -> bool:
    """Return whether the index of a destination is a file."""
    if not config.values["index"] or config.is_invalid:  # invalid settings may lack what is to be masked
        return False
    first = config.destinations[0]
    return destination == first or _policy_of(destination) == _policy_of(first)


def _policy_of(destination: Destination) -> list[object]:
    return [destination.policy[name] for name in _POLICY]


def fingerprint(config: Config, destination: Destination) -> str:
    """Return a digest of what decides the content of the index, besides transcripts and credentials."""
    prices: bytes | None = None
    if config.values["prices"]:
        with suppress(OSError):
            prices = read_regular(Path(config.values["prices"]).expanduser(), _PRICES_BYTES)
    what = (
        schema.DIGEST, turnspan.__version__, _policy_of(destination), config.values["mask_paths"],
        sorted(config.values["patterns"].items()), prices,
    )  # fmt: skip
    return _digest(what)


def _credentials(config: Config) -> set[str]:
    """Return digests of the configured credentials, which are masked."""
    found = set()
    for each in config.destinations:
        secrets = [*(each.options.get("headers") or {}).items(), each.options.get("secret_key")]
        found |= {_digest(secret) for secret in secrets if secret}
    return found


def _digest(what: object) -> str:
    return blake2b(repr(what).encode("utf-8", "replace"), digest_size=16).hexdigest()


def _is_current(connection: sqlite3.Connection, work: _Work) -> bool:
    """Return whether the rows were made with these settings. Credentials of another environment do no harm."""
    if not _check(connection, work.path):
        return False
    if _meta(connection, "fingerprint") != fingerprint(work.config, work.destination):
        return False
    return _credentials(work.config) <= set((_meta(connection, "credentials") or "").split())


# ---- the file


def _open_file(work: _Work) -> Index:
    """Open the file and bring it up to date. Raises StateError if it cannot be used."""
    private_directory(work.config.home)
    os.close(open_private(work.path, os.O_RDWR | os.O_CREAT))
    try:
        connection = _connect(work.path)
        try:
            return _updated(connection, work)
        except BaseException:
            connection.close()
            raise
    except _DAMAGE as error:
        if not _is_damage(error):
            raise _unusable(work.path, error) from error
        return _rebuilt(work, error)


def _connect(path: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
    connection.execute("PRAGMA secure_delete = ON")
    return connection


def _updated(connection: sqlite3.Connection, work: _Work) -> Index:
    index = Index(connection, is_in_memory=False)
    changes = work.changes(connection) if _is_current(connection, work) else None
    if changes is None or not changes.is_empty:
        try:
            with kernel_lock(work.config.home / _LOCK, _WAIT_S):
                changes = _write(connection, work)
        except Busy:
            if changes is None:
                raise StateError("another command is building it", hint="try again when it is done") from None
            number = len(changes.read) + len(changes.delete)
            index.remarks.append(
                f"another command is updating the index: {count(number, 'session')} may be missing or incomplete"
            )
    _note_unreadable(index, changes)
    return index


def _check(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether the file has our tables. Raises StateError if it is not ours to change."""
    # In this order: if another command creates the tables meanwhile, its application id is committed with them.
    (has_tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    application, version = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("application_id", "user_version")
    )
    if application == schema.APPLICATION_ID:
        if version > schema.VERSION:
            raise StateError(f"{str(path)!r} was written by a newer turnspan", hint="update turnspan")
        return bool(version == schema.VERSION)
    if application or has_tables:
        raise StateError(f"{str(path)!r} was written by another program", hint="move it away")
    return False


def _write(connection: sqlite3.Connection, work: _Work) -> Changes:
    """Bring the file up to date. The caller holds the lock."""
    is_new = not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    if is_new:
        connection.execute(f"PRAGMA page_size = {schema.PAGE_BYTES}")
    else:
        connection.execute(_LOG)
    connection.execute("PRAGMA synchronous = NORMAL")
    if not _is_current(connection, work):
        _empty(connection, work)
    changes = work.changes(connection)
    if is_new and sum(change.transcript.size for change in changes.read) > _WRITTEN_ONCE_BYTES:
        connection.execute(_LOG)
    elif is_new:
        connection.execute("PRAGMA cache_spill = OFF")  # so that others can read until a transaction is committed
    work.apply(connection, changes)
    if is_new:
        with suppress(sqlite3.OperationalError):  # another command is reading: the next one that writes does it
            connection.execute(_LOG)
    return changes


def _empty(connection: sqlite3.Connection, work: _Work) -> None:
    """Create the tables anew; what was there before is overwritten."""
    connection.execute("BEGIN IMMEDIATE")
    had_tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
    schema.drop(connection)
    schema.create(connection)
    values = {
        "fingerprint": fingerprint(work.config, work.destination),
        "credentials": " ".join(sorted(_credentials(work.config))),
    }
    connection.executemany("INSERT INTO meta VALUES (?, ?)", values.items())
    connection.execute("COMMIT")
    if had_tables:
        connection.execute("VACUUM")


def _meta(connection: sqlite3.Connection, key: str) -> str | None:
    row = connection.execute("SELECT value FROM meta WHERE key = ?", (key,)).fetchone()
    return str(row[0]) if row is not None else None


def _is_damage(error: Exception) -> bool:
    """Return whether an error says that the file is damaged: not that it is locked, or that the disk fails."""
    text = str(error)
    return not isinstance(error, sqlite3.OperationalError) or text.startswith(("no such ", "Could not decode"))


def _delete(path: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def _rebuilt(work: _Work, error: Exception) -> Index:
    """Delete a damaged file and build it again."""
    try:
        with kernel_lock(work.config.home / _LOCK, _WAIT_S):
            _delete(work.path)
            os.close(open_private(work.path, os.O_RDWR | os.O_CREAT))
            connection = _connect(work.path)
            index = Index(connection, is_in_memory=False)
            changes = _write(connection, work)
    except Busy:
        raise StateError("another command is building it", hint="try again when it is done") from None
    except (OSError, sqlite3.Error) as again:
        raise _unusable(work.path, again) from again
    index.remarks.append(f"the index was damaged ({error}): it was rebuilt")
    _note_unreadable(index, changes)
    return index


def _unusable(path: Path, error: Exception) -> StateError:
    is_locked = "locked" in str(error)
    hint = "another program has it open: close it there" if is_locked else "it can be deleted, and is rebuilt then"
    return StateError(f"cannot open {str(path)!r}: {error}", hint=hint)


def _note_unreadable(index: Index, changes: Changes) -> None:
    index.unreadable |= changes.listing.unlisted
    rows = index.connection.execute(
        "SELECT session_id, problem FROM session JOIN file ON file.session = session.id WHERE problem <> ''"
    )
    index.unreadable |= dict(rows.fetchall())


# ---- in memory


def _open_in_memory(work: _Work) -> Index:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    index = Index(connection, is_in_memory=True)
    connection.execute("BEGIN")
    schema.create(connection)
    connection.execute("COMMIT")
    changes = work.changes(connection, is_in_memory=True)
    work.apply(connection, changes)
    _note_unreadable(index, changes)
    return index


# ---- forgetting


def forget(config: Config, session_id: str) -> bool:
    """Delete the rows of a session from the file, and their text from its bytes; return whether there were any.

    Raises StateError if that is not possible now.
    """
    path = config.home / NAME
    try:
        os.close(open_private(path, os.O_RDWR))
    except FileNotFoundError:
        return False
    try:
        with kernel_lock(config.home / _LOCK, _WAIT_S), closing(_connect(path)) as connection:
            return _check(connection, path) and _forget(connection, session_id)
    except Busy:
        raise StateError("another command is updating the index", hint="try again when it is done") from None
    except sqlite3.Error as error:
        raise _unusable(path, error) from error


def _forget(connection: sqlite3.Connection, session_id: str) -> bool:
    from turnspan.index.write import PURGE, Writer  # noqa: PLC0415 - for `forget` only

    found = connection.execute("SELECT id FROM session WHERE session_id = ?", (session_id,)).fetchall()
    if not found:
        return False
    connection.execute("BEGIN IMMEDIATE")
    writer = Writer(connection)
    for (session,) in found:
        writer.delete(session)
    connection.execute(PURGE)
    connection.execute("COMMIT")
    connection.execute("VACUUM")
    if connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
        raise StateError("the index is in use: deleted text may still be in it", hint="close it and repeat this")
    return True
