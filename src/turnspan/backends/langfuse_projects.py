"""Remembers the id of the Langfuse project that a pair of keys belongs to: a link to a trace contains it.

A probe (`install`, `doctor`, `status --check`) asks Langfuse and remembers the id in turnspan's home. No event asks for
it.
"""

from __future__ import annotations

from contextlib import suppress
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import lazy
from turnspan.errors import StateError
from turnspan.files import private_directory, read_private, replace_private

if TYPE_CHECKING:
    from pathlib import Path

_FILE: Final = "langfuse-projects.json"
_MAX_BYTES: Final = 1 << 20
_ID: Final = lazy.pattern(r"[A-Za-z0-9_-]{1,100}")  # it becomes part of a URL
_decode: Final = msgspec.json.Decoder(dict[str, str]).decode


class ProjectIds:
    """The project of one public key on one server."""

    def __init__(self, home: Path, base_url: str, public_key: str) -> None:
        self._home = home
        self._key = blake2b(f"{base_url}\0{public_key}".encode(), digest_size=8).hexdigest()

    def known(self) -> str | None:
        """Return the id; None if Langfuse was not asked yet."""
        found = self._all().get(self._key, "")
        return found if _ID.fullmatch(found) else None

    def remember(self, project_id: str) -> None:
        """Store the id. A home that cannot be written to only costs the links."""
        found = self._all()
        if found.get(self._key) == project_id or _ID.fullmatch(project_id) is None:
            return
        with suppress(StateError, OSError):
            private_directory(self._home)
            replace_private(self._home / _FILE, msgspec.json.encode({**found, self._key: project_id}))

    def _all(self) -> dict[str, str]:
        try:
            return _decode(read_private(self._home / _FILE, _MAX_BYTES) or b"{}")
        except (StateError, OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}
