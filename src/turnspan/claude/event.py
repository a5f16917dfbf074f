"""The payload of a hook, parsed from its stdin.

A payload may be truncated or contain a lone surrogate: every readable field is used. A field of the wrong type counts
as missing.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from typing import Final

import msgspec

from turnspan import lazy
from turnspan.errors import TurnspanError

OTHER_SIDE: Final = "Claude Code and turnspan must be on the same side of WSL"


class Event(msgspec.Struct, frozen=True):
    """The payload of a hook."""

    hook_event_name: str = ""
    session_id: str = ""
    transcript_path: str = ""
    cwd: str = ""
    last_assistant_message: str | None = None
    agent_id: str | None = None
    source: str = ""  # of a SessionStart: startup, resume, clear or compact
    at_s: float = 0.0  # when the hook ran


_TEXT: Final = lazy.pattern(
    rb'"(%b)"\s*:\s*("[^"\\]*(?:\\.[^"\\]*)*")' % "|".join(Event.__struct_fields__).encode(), re.DOTALL
)


def parse_event(raw: bytes) -> Event:
    """Parse the payload of a hook; a field of the wrong type counts as missing."""
    try:
        table = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        table = _salvaged(raw) or None
    if not isinstance(table, dict):
        raise TurnspanError("the hook received no JSON object on stdin")
    texts = {key: table[key] for key in Event.__struct_fields__ if isinstance(table.get(key), str)}
    if "\0" in texts.get("cwd", ""):  # not a valid path
        del texts["cwd"]
    return Event(**texts)


def foreign_system(path: str, platform: str = sys.platform) -> str:
    """Return the system of a path that this one cannot open, "" for any other: the client is on another side of WSL."""
    if platform == "win32":
        return "Linux" if path.startswith("/") else ""
    return "Windows" if path[1:3] in {":\\", ":/"} or path.startswith("\\\\") else ""


def _salvaged(raw: bytes) -> dict[str, str]:
    """Return the readable fields of a payload that is not valid JSON."""
    import json  # noqa: PLC0415  only for broken payloads

    texts: dict[str, str] = {}
    for name, literal in _TEXT.findall(raw):
        with suppress(ValueError):
            text = json.loads(literal.decode("utf-8", "replace"), strict=False)
            # Replace lone surrogates as the transcript reader does: the last message is compared with the transcript.
            texts.setdefault(name.decode(), text.encode("utf-16", "surrogatepass").decode("utf-16", "replace"))
    return texts
