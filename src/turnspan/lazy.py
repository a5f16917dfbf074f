"""What takes long to load, loaded late or not at all: a worker is started for every event.

- `pattern`: a regular expression that is compiled when it is first used. Compiling all of ours takes as long as
  building and sending a turn, and most turns need a few of them.
- `blake2b`, `sha256`: without `hashlib`, which loads OpenSSL for the same functions (`random` in the standard library
  does so, too).
- msgspec, imported here first: where typing_extensions is installed it takes one function from there that `typing` has,
  too, and pays for `inspect`, `ast` and `dis` with a tenth of what an event costs.
"""

from __future__ import annotations

import re
import sys
from typing import Any, AnyStr, Final, cast

try:
    from _blake2 import blake2b

    if sys.version_info >= (3, 12):
        from _sha2 import sha256
    else:
        from _sha256 import sha256  # type: ignore[import-not-found, unused-ignore]  # typeshed has only its successor
except ImportError:  # another Python than CPython
    from hashlib import blake2b, sha256

__all__ = ["blake2b", "pattern", "sha256"]

_METHODS: Final = ("finditer", "findall", "fullmatch", "match", "search", "sub")


class _Pattern:
    """Stands for a compiled pattern: after the first call its methods are those of one."""

    def __init__(self, source: str | bytes, flags: int) -> None:
        self._source = source
        self._flags = flags

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  whatever a pattern has
        compiled = re.compile(self._source, self._flags)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def pattern(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """A pattern that is compiled when it is first used."""
    return cast("re.Pattern[AnyStr]", _Pattern(source, flags))


def _load_msgspec() -> None:
    hidden = {"typing_extensions": None} if "typing_extensions" not in sys.modules else {}
    sys.modules.update(cast("dict[str, Any]", hidden))
    try:
        import msgspec  # noqa: F401, PLC0415
    finally:
        for name in hidden:
            del sys.modules[name]


_load_msgspec()
