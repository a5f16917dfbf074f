"""Reads a TOML file, and finds the lines of its tables and keys.

Rules:

- Only a regular file of limited size is read: a project can contain anything, and a FIFO would block.
- A file that cannot be read is a problem; a missing file is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan import lazy
from turnspan.files import read_regular

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_MAX_BYTES: Final = 256 * 1024
_HEADER: Final = lazy.pattern(r"\s*\[\[?\s*(?P<name>.+?)\s*\]\]?\s*(#.*)?")
_PLACE: Final = lazy.pattern(r"\(at line (\d+), column \d+\)")
_QUOTED: Final = lazy.pattern(r"""["'].*["']""")
_STRING: Final = lazy.pattern(r"""["'].*""")
_KEY: Final = lazy.pattern(r"\s*[a-z_][a-z0-9_.-]{0,30}\s*=(?!=)(?=.*[^=\s])")  # not the end of a Base64 text


class TomlFile(msgspec.Struct, frozen=True):
    """The content of a file. `problem` says why it could not be used; a missing file is an empty one."""

    path: Path
    text: str = ""
    table: dict[str, Any] = {}
    problem: str = ""

    def at(self, table: str, key: str = "") -> str:
        """`path:line` of a key in a table, or of the table; `path` if the line is not found."""
        lines: dict[str, int] = {}
        for number, name, _ in entries(self.text):
            lines.setdefault(name, number)
        line = lines.get(f"{table}.{key}".strip(".")) or lines.get(table)
        return f"{self.path}:{line}" if line else str(self.path)


def read_toml(path: Path, *, is_ours: bool = False) -> TomlFile:
    """Read a file; `is_ours` refuses one that other users can write to."""
    try:
        raw = read_regular(path, _MAX_BYTES, is_ours=is_ours)
    except OSError as error:
        return TomlFile(path, problem=f"cannot read {path}: {error.strerror or error}")
    if raw is None:
        return TomlFile(path)
    import tomllib  # noqa: PLC0415 - most users have no such file

    try:
        text = raw.decode("utf-8-sig")
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        return TomlFile(path, problem=_invalid(path, text, error))
    except (UnicodeDecodeError, RecursionError):
        return TomlFile(path, problem=f"{path} is not valid TOML: it is not UTF-8, or nested too deeply")


def entries(text: str) -> Iterator[tuple[int, str, bool]]:
    """Each header and each key of a text: its line, its dotted name without quotes, and whether it is a header."""
    table = ""
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            table = bare_name(header["name"])
            yield number, table, True
        elif "=" in line:
            name = bare_name(line.partition("=")[0])
            yield number, f"{table}.{name}" if table else name, False


def bare_name(name: str) -> str:
    """A dotted name without quotes and spaces."""
    return ".".join(part.strip().strip("\"'") for part in name.split("."))


def _invalid(path: Path, text: str, error: ValueError) -> str:
    """What is wrong with a text, with its line: without values and long words, which may be part of a key."""
    found = _PLACE.search(str(error))
    number = int(found[1]) if found is not None else 0
    line = text.splitlines()[number - 1] if 0 < number <= text.count("\n") + 1 else ""
    key = _KEY.match(line)
    quoted = f"{key[0]} …" if key else _STRING.sub("…", line.strip()) if line.lstrip().startswith("[") else ""
    words = _QUOTED.sub(lambda part: "…" if any(map(str.isalnum, part[0])) else part[0], str(error))
    where = f"{path}:{number}" if number else str(path)
    hint = "; a backslash needs single quotes, 'C:\\…'" if "\\" in line and '"' in line else ""
    return f"{where} is not valid TOML: {words}" + (f": {quoted}" if quoted else "") + hint
