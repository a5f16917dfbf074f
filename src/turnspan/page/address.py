"""The port and the access key of `turnspan view --stable`, kept so that links still work after a restart.

They are in `view.json`, which only its owner can read. A file that cannot be decoded is replaced. A user who deletes it
gets another key.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING, Annotated, Final

import msgspec

from turnspan.files import private_directory, read_private, replace_private

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = "view.json"
_LONGEST: Final = 4096


class Address(msgspec.Struct, frozen=True):
    """Where a page is served: the port, and the key in its URL."""

    port: Annotated[int, msgspec.Meta(ge=0, le=65535)]
    key: Annotated[str, msgspec.Meta(pattern="^[A-Za-z0-9_-]{32}$")]


def new_key() -> str:
    """Return a random access key."""
    return secrets.token_urlsafe(24)


def stable_address(home: Path) -> Address:
    """Return the stored address; with a new key and any free port (0) if there is none. Raises StateError."""
    try:
        return msgspec.json.decode(read_private(home / _FILE, _LONGEST) or b"", type=Address)
    except ValueError:
        return Address(0, new_key())


def keep_address(home: Path, address: Address) -> None:
    """Store the address. Raises StateError."""
    private_directory(home)
    replace_private(home / _FILE, msgspec.json.encode(address))
