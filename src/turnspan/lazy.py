"""Regular expressions that are compiled on first use.

A worker is started for every event and needs few of our patterns. Compiled on import, they would add 58 million
instructions to the 334 million of an event with one new turn.
"""

from __future__ import annotations

import re
from typing import Any, AnyStr, Final, cast

_METHODS: Final = ("finditer", "findall", "fullmatch", "match", "search", "sub")


class _Pattern:
    """A pattern whose methods become those of the compiled one when the first of them is used."""

    def __init__(self, source: str | bytes, flags: int) -> None:
        self._source = source
        self._flags = flags

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401  any attribute of a pattern
        compiled = re.compile(self._source, self._flags)
        for method in _METHODS:
            setattr(self, method, getattr(compiled, method))
        return getattr(compiled, name)


def pattern(source: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return a pattern that is compiled on first use."""
    return cast("re.Pattern[AnyStr]", _Pattern(source, flags))
