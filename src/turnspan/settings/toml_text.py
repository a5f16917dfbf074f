"""A TOML file as a table, and the line on which a key of it stands.

Rules:

- Only a regular file of a sane size is read: what lies in a project may be anything, and nobody waits for a FIFO.
- What cannot be read is a sentence; that there is no file is not.
"""

from __future__ import annotations

import os
import stat
import sys
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan import lazy

if TYPE_CHECKING:
    from pathlib import Path

_MAX_BYTES: Final = 256 * 1024
_HEADER: Final = lazy.pattern(r"\s*\[\[?\s*(?P<name>.+?)\s*\]\]?\s*(#.*)?")
_PLACE: Final = lazy.pattern(r"\(at line (\d+), column \d+\)")
_QUOTED: Final = lazy.pattern(r"""["'].*["']""")
_SAFELY: Final = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


class TomlFile(msgspec.Struct, frozen=True):
    """What a file says. `problem` is a sentence if nothing could be made of it; no file is an empty one."""

    path: Path
    text: str = ""
    table: dict[str, Any] = {}
    problem: str = ""

    def at(self, table: str, key: str = "") -> str:
        """`path:line` of a key in a table (of the table itself without one), as well as that can be told."""
        line = _line(self.text, table, key) or (_line(self.text, table, "") if table else 0)
        return f"{self.path}:{line}" if line else str(self.path)


def read_toml(path: Path, *, is_ours: bool = False) -> TomlFile:
    """Read a file; one that is ours must be so that nobody else could have written it."""
    try:
        raw = read_regular(path, _MAX_BYTES, is_ours=is_ours)
    except OSError as error:
        return TomlFile(path, problem=f"cannot read {path}: {error.strerror or error}")
    if raw is None:
        return TomlFile(path)
    import tomllib  # noqa: PLC0415  most people have no file

    try:
        text = raw.decode("utf-8-sig")
        return TomlFile(path, text, tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        found = _PLACE.search(str(error))
        line = f":{found[1]}" if found is not None else ""
        words = _QUOTED.sub("…", str(error))  # the file's own, perhaps part of a key
        return TomlFile(path, problem=f"{path}{line} is not valid TOML: {words}")
    except (UnicodeDecodeError, RecursionError):
        return TomlFile(path, problem=f"{path} is not valid TOML: it is no text, or nested too deep")


def read_regular(path: Path, limit: int, *, is_ours: bool = False) -> bytes | None:
    """A whole file, without waiting for anything; None if there is none. Raises OSError."""
    try:
        descriptor = os.open(path, _SAFELY)
    except (FileNotFoundError, NotADirectoryError, ValueError):  # ValueError: a NUL in the name, so there is none
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise OSError("it is not a regular file")
        if found.st_size > limit:
            raise OSError(f"it is longer than {limit} bytes")
        if is_ours and sys.platform != "win32" and (found.st_mode & 0o022 or found.st_uid not in {0, os.geteuid()}):
            raise OSError(f"others can write to it; look at what is in it, then `chmod go-w '{path}'`")
        return os.read(descriptor, limit)
    finally:
        os.close(descriptor)


def _line(text: str, table: str, key: str) -> int:
    """The number of the line that begins a table, or sets a key in it; 0 if none does so by itself."""
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
