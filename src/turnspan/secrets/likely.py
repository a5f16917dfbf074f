"""Finds strings that look like secrets although no rule recognises them, for a person to look at.

Not part of masking: it is wrong too often. A string is likely the more random characters it has (its entropy in bits).
"""

from __future__ import annotations

import math
import re
from collections import Counter
from typing import TYPE_CHECKING, Final

from turnspan import lazy
from turnspan.secrets.values import looks_random

if TYPE_CHECKING:
    from collections.abc import Iterator

_WORD: Final = lazy.pattern(
    r"(?<![\w/.+-])[A-Za-z0-9_+/.~=-]{12,200}(?![\w/+-])|(?<=[\"'=: ])[^\s\"'`<>(){}\[\],;]{10,60}(?=[\"'\s,;]|\Z)"
)
# Ids and digests: of commits, spans and files, of Anthropic's API, versions, dates, paths and names in code.
_KNOWN: Final = lazy.pattern(
    r"[0-9a-f]{6,64}\Z|(?:sha\d+[-:])|[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}\Z"
    r"|(?:msg|req|toolu|srvtoolu|agent)_"
    r"|v?[0-9]+(?:\.[0-9]+)+|[0-9T:.+Z/-]+\Z|.*(?:://|\.\.|redacted:|withheld:)|(?:claude|gpt)-|[./~]|.*\.[a-z]{1,5}\Z"
    r"|.*[A-Za-z]/[A-Za-z]"
)
_NAME: Final = lazy.pattern(r"[A-Za-z]+(?:[._-][A-Za-z]+)*[0-9]{0,3}\Z|[A-Za-z_]+(?:_[a-z0-9]+){2,}\Z")
_FIXED: Final = lazy.pattern(r"(?:[A-Za-z][A-Za-z0-9]{1,9}[_-]){1,2}(?=[A-Za-z0-9]{8})")


def likely_secrets(text: str) -> Iterator[tuple[float, str]]:
    """Yield strings of a text that look like secrets, each with its entropy in bits."""
    for found in _WORD.finditer(text):
        value = found[0].strip(".=-/~")
        if len(value) >= 10 and not _KNOWN.match(value) and not _NAME.match(value) and looks_random(value.encode()):
            yield _bits(value), value


def _bits(value: str) -> float:
    counts = Counter(value)
    return -sum(number * math.log2(number / len(value)) for number in counts.values())


def pattern_for(value: str) -> str:
    """Return a regular expression for strings of the same shape: its fixed beginning, then as many such characters."""
    fixed = _FIXED.match(value)
    prefix = fixed[0] if fixed is not None else ""
    rest = value[len(prefix) :]
    classes = "".join(part for part in ("A-Z", "a-z", "0-9") if re.search(f"[{part}]", rest))
    signs = "".join(sorted({re.escape(sign) for sign in rest if not (sign.isascii() and sign.isalnum())}))
    edge = r"(?<!\w)" if (prefix or rest)[:1].isalnum() else ""
    return f"{edge}{re.escape(prefix)}[{classes}{signs}]{{{len(rest)}}}"
