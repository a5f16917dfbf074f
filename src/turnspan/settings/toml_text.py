"""Reads a TOML file, and finds the line of a key for messages.

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
    from pathlib import Path

_MAX_BYTES: Final = 256 * 1024
_HEADER: Final = lazy.pattern(r"\s*\[\[?\s*(?P<name>.+?)\s*\]\]?\s*(#.*)?")
_PLACE: Final = lazy.pattern(r"\(at line (\d+), column \d+\)")
_QUOTED: Final = lazy.pattern(r"""["'].*["']""")


class TomlFile(msgspec.Struct, frozen=True):
    """The content of a file. `problem` says why it could not be used; a missing file is an empty one."""

    path: Path
    text: str = ""
    table: dict[str, Any] = {}
    problem: str = ""

    def at(self, table: str, key: str = "") -> str:
        """`path:line` of a key in a table, or of the table; `path` if the line is not found."""
        line = _line(self.text, table, key) or (_line(self.text, table, "") if table else 0)
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
        found = _PLACE.search(str(error))
        line = f":{found[1]}" if found is not None else ""
        words = _QUOTED.sub("…", str(error))  # text of the file, perhaps part of a key
        return TomlFile(path, problem=f"{path}{line} is not valid TOML: {words}")
    except (UnicodeDecodeError, RecursionError):
        return TomlFile(path, problem=f"{path} is not valid TOML: it is not UTF-8, or nested too deeply")


def _line(text: str, table: str, key: str) -> int:
    """The number of the line with the header of a table, or of a key in it; 0 if there is none."""
    inside = ""
    wanted = f"{table}.{key}" if table and key else table or key
    for number, line in enumerate(text.splitlines(), 1):
        header = _HEADER.fullmatch(line)
        if header is not None:
            inside = _bare(header["name"])
            if inside == wanted:
                return number
        elif "=" in line:
            name = _bare(line.partition("=")[0])
            if (f"{inside}.{name}" if inside else name) == wanted:
                return number
    return 0


def _bare(name: str) -> str:
    """A dotted name without quotes and spaces."""
    return ".".join(part.strip().strip("\"'") for part in name.split("."))
