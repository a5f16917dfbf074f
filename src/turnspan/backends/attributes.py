"""The attributes of a span: names and values, in order.

Rules:

- If a name is set twice, the later value replaces the first one, at its place.
- A text longer than the limit is cut inside (see `content`), and `turnspan.truncated.<name>` is its original length in
  bytes.
- An integer of more than 64 bits, which OTLP cannot hold, becomes text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnspan.backends import content

if TYPE_CHECKING:
    from turnspan.trace.model import Scalar

_NO_LIMIT = 2**63
_LEAST, _MOST = -(2**63), 2**63 - 1


class Attributes(dict[str, "Scalar"]):
    """The attributes of one span; `put` and `text` keep every value within what a destination accepts."""

    def __init__(self, limit: int = _NO_LIMIT) -> None:
        super().__init__()
        self._limit = limit

    def put(self, name: str, value: Scalar) -> None:
        """Set one attribute; a long text is cut as plain text."""
        if isinstance(value, str):
            self.text(name, value, is_json=False)
        elif isinstance(value, tuple):
            self[name] = tuple([content.fit(item, self._limit, is_json=False) for item in value])
        elif isinstance(value, int) and not _LEAST <= value <= _MOST:
            self.put(name, _as_text(value))
        else:
            self[name] = value

    def text(self, name: str, text: str, *, is_json: bool) -> None:
        """Set one attribute to a text that may be long; JSON stays valid JSON."""
        if len(text) * 4 > self._limit and (size := len(text.encode())) > self._limit:
            self[name] = content.fit(text, self._limit, is_json=is_json)
            self[f"turnspan.truncated.{name}"] = size
        else:
            self[name] = text


def _as_text(value: int) -> str:
    """Return an integer that OTLP cannot hold as text; Python limits the length of decimal text, not of hexadecimal."""
    return str(value) if value.bit_length() < 10_000 else hex(value)
