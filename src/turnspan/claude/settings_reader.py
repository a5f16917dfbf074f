"""The one reader of Claude Code's settings files: settings.json, settings.local.json, policies, plugin manifests.

A worker reads such files on every event, so decoding is msgspec's. Only if that fails does the slower parser of
`settings_json` run, which accepts what Claude Code accepts and names the line and column of an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.files import read_regular

if TYPE_CHECKING:
    from pathlib import Path

MAX_BYTES: Final = 8 << 20


class Settings(msgspec.Struct, frozen=True):
    """The content of a settings file. A missing file has no values and no problem."""

    values: dict[str, Any] = {}
    problem: str = ""  # why it cannot be used; Claude Code cannot use it either
    exists: bool = True

    def table(self, key: str) -> dict[str, Any]:
        """The object at a key; empty if there is none, or it is something else."""
        return as_table(self.values.get(key))


def read_settings(path: Path, limit: int = MAX_BYTES) -> Settings:
    """Read a settings file; it never raises."""
    try:
        raw = read_regular(path, limit)
    except OSError as error:
        return Settings(problem=error.strerror or str(error) or "it cannot be read")
    if raw is None:
        return Settings(exists=False)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        return Settings(problem="it is not UTF-8")
    try:
        return Settings(values=_decoded(text))
    except ConfigError as error:
        return Settings(problem=str(error))


def _decoded(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (ValueError, RecursionError):
        from turnspan.claude.settings_json import parse_settings  # noqa: PLC0415 - only for an unusual file

        return parse_settings(text)


def as_table(value: object) -> dict[str, Any]:
    """The value if it is an object, else an empty one."""
    return value if isinstance(value, dict) else {}
