"""What a hook was told, from the bytes on its stdin.

A payload may be cut off, or hold half an emoji: what can be read of it counts, wrong types are as good as missing.
"""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

import msgspec

from turnspan import lazy
from turnspan.errors import TurnspanError


class Event(msgspec.Struct, frozen=True):
    """What a hook was told."""

    hook_event_name: str = ""
    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    last_assistant_message: str | None = None
    agent_id: str | None = None
    at_s: float = 0.0  # when it happened


_TEXT: Final = lazy.pattern(
    rb'"(%b)"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")' % "|".join(Event.__struct_fields__).encode(), re.DOTALL
)


def parse_event(raw: bytes) -> Event:
    """The payload of a hook; wrong types are as good as missing."""
    try:
        table = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        table = _salvaged(raw) or None
    if not isinstance(table, dict):
        raise TurnspanError("the hook got no JSON object on stdin")
    texts = {key: table[key] for key in Event.__struct_fields__ if isinstance(table.get(key), str)}
    if "\0" in texts.get("cwd", ""):  # no directory is called so
        del texts["cwd"]
    return Event(**texts)


def _salvaged(raw: bytes) -> dict[str, str]:
    """What an event says that is no valid JSON: there is half an emoji in it, or its end is missing."""
    import json  # noqa: PLC0415  few events are broken

    texts: dict[str, str] = {}
    for name, literal in _TEXT.findall(raw):
        with suppress(ValueError):
            text = json.loads(literal.decode("utf-8", "replace"), strict=False)
            # Half a pair becomes what the transcript's reader makes of it: the last words must be found again.
            texts.setdefault(name.decode(), text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return texts
