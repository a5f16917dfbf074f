"""Writes a destination into the person's config.toml, and leaves the rest of that file as it is.

Rules:

- Text in, text out: one `[destinations.NAME]` is replaced or appended, and comments and other tables stay.
- The result is read back before anybody sees it. What cannot be edited safely is left to the person.
- The file is 0600 in a 0700 directory, and no error shows a value: each may be a key.
"""

from __future__ import annotations

import re
import tomllib
from typing import TYPE_CHECKING, Final

from turnspan.errors import ConfigError
from turnspan.private_files import private_directory, read_private, replace_private, turnspan_home

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

Value = str | bool | int | list[str] | dict[str, str]

_SIZE_LIMIT: Final = 1 << 20
_BARE: Final = re.compile(r"[A-Za-z0-9_-]+")
_HEADER: Final = re.compile(r"\s*\[\[?\s*([^\]#]+?)\s*\]")
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}


def write_destination(env: Mapping[str, str], name: str, values: Mapping[str, Value]) -> Path:
    """Store a destination in the person's config file, and return where that is."""
    directory = private_directory(turnspan_home(env))
    path = directory / "config.toml"
    raw = read_private(path, _SIZE_LIMIT)
    try:
        text = (raw or b"").decode()
        changed = with_destination(text, name, values)
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(
            f"{path} is not valid TOML, and was not touched", hint="`turnspan config` shows where"
        ) from error
    replace_private(path, changed.encode())
    return path


def with_destination(text: str, name: str, values: Mapping[str, Value]) -> str:
    """The text with this destination in place of one of the same name. Raises TOMLDecodeError for invalid TOML."""
    expected = tomllib.loads(text)
    table = expected.setdefault("destinations", {})
    if not isinstance(table, dict):
        raise ConfigError("`destinations` in config.toml is not a table", hint="correct it first")
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
        raise ConfigError(f"config.toml already says something about {name!r} in another way", hint="edit it by hand")
    return changed


def _lines_of(lines: list[str], name: str) -> tuple[int, int]:
    """The lines of a destination's table and of the tables in it; the blank ones and comments after it are not its."""
    mine = {f"destinations.{name}", f"destinations.{_key(name)}"}
    headers = [(n, match[1]) for n, line in enumerate(lines) if (match := _HEADER.match(line))]
    first = next((n for n, header in headers if header in mine), len(lines))
    is_inside = tuple(f"{header}." for header in mine)
    last = next((n for n, header in headers if n > first and not header.startswith(is_inside)), len(lines))
    while last > first + 1 and (not lines[last - 1].strip() or lines[last - 1].lstrip().startswith("#")):
        last -= 1
    return first, last


def _section(name: str, values: Mapping[str, Value]) -> list[str]:
    return [f"[destinations.{_key(name)}]", *(f"{_key(key)} = {_value(value)}" for key, value in values.items())]


def _value(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, list):
        return f"[{', '.join(_text(item) for item in value)}]"
    if isinstance(value, dict):
        return f"{{ {', '.join(f'{_key(key)} = {_text(item)}' for key, item in value.items())} }}" if value else "{}"
    return _text(value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _text(text: str) -> str:
    if any("\ud800" <= letter <= "\udfff" for letter in text):
        raise ConfigError("a value is not valid text", hint="type it again")
    return '"' + "".join(_ESCAPES.get(letter) or _escaped(letter) for letter in text) + '"'


def _escaped(letter: str) -> str:
    return f"\\u{ord(letter):04X}" if letter < " " or letter == "\x7f" else letter
