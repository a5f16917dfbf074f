"""Writes a destination into the user's config.toml, and keeps the rest of the file.

Hand-written because the standard library reads TOML and does not write it, and a writer would drop comments.

Rules:

- Text in, text out: one `[destinations.NAME]` is replaced or appended; comments and other tables are kept.
- The result is parsed and compared before it is written. A file that cannot be edited safely is left to the user.
- The file is 0600 in a 0700 directory, and no error shows a value: each may be a key.
"""

from __future__ import annotations

import json
import re
import tomllib
from typing import TYPE_CHECKING, Final

from turnspan.errors import ConfigError
from turnspan.files import private_directory, read_private, replace_private, turnspan_home
from turnspan.settings.toml_text import bare_name, entries

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Value = str | bool | int | list[str] | dict[str, str]

_SIZE_LIMIT: Final = 1 << 20
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")


def write_destination(env: Mapping[str, str], name: str, values: Mapping[str, Value]) -> Path:
    """Store a destination in the user's config file, and return its path."""
    directory = private_directory(turnspan_home(env))
    path = directory / "config.toml"
    raw = read_private(path, _SIZE_LIMIT)
    try:
        text = (raw or b"").decode()
        changed = with_destination(text, name, values)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path} is not valid TOML and was not changed", hint="`turnspan config` shows the line"
        ) from error
    replace_private(path, changed.encode())
    return path


def with_destination(text: str, name: str, values: Mapping[str, Value]) -> str:
    """The text with this destination in place of one of the same name. Raises TOMLDecodeError for invalid TOML."""
    expected = tomllib.loads(text)
    table = expected.setdefault("destinations", {})
    if not isinstance(table, dict):
        raise ConfigError("`destinations` in config.toml is not a table", hint="fix it first")
    table[name] = dict(values)
    section = "".join(f"{line}\n" for line in _section(name, values))
    lines = text.splitlines(keepends=True)
    first, last = _lines_of(lines, name)
    if first == last:
        gap = "" if not text.strip() else "\n" if text.endswith("\n") else "\n\n"
        changed = text + gap + section
    else:
        changed = "".join(lines[:first]) + section + "".join(lines[last:])
    try:
        is_right = tomllib.loads(changed) == expected
    except tomllib.TOMLDecodeError:
        is_right = False
    if not is_right:
        raise ConfigError(f"config.toml already defines {name!r} in another form", hint="edit the file yourself")
    return changed


def _lines_of(lines: list[str], name: str) -> tuple[int, int]:
    """The lines of a destination's table and its subtables, without blank lines and comments after it."""
    mine = {bare_name(f"destinations.{spelled}") for spelled in (name, _key(name))}
    headers = [(number - 1, header) for number, header, is_header in entries("".join(lines)) if is_header]
    first = next((n for n, header in headers if header in mine), len(lines))
    is_inside = tuple(f"{header}." for header in mine)
    last = next((n for n, header in headers if n > first and not header.startswith(is_inside)), len(lines))
    while last > first + 1 and (not lines[last - 1].strip() or lines[last - 1].lstrip().startswith("#")):
        last -= 1
    return first, last


def _section(name: str, values: Mapping[str, Value]) -> list[str]:
    return [f"[destinations.{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]


def _value(value: Value) -> str:
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_value(item)}' for key, item in value.items())} }}" if value else "{}"
    text = json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")  # the same in TOML, but for this letter
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError("a value is not valid text", hint="type it again")
    return text


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _value(key)
