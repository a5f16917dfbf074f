"""Servers are installed once, into a cache outside the project: `TURNSPAN_TEST_CACHE`, else the user's own.

A server that cannot be installed is `Unavailable` with the reason; a test turns that into a skip.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

INSTALL_S = 600


class Unavailable(Exception):  # noqa: N818 - a circumstance, not a fault
    """The server cannot be installed here."""


def cache_dir() -> Path:
    """Return the directory that installed servers are kept in."""
    chosen = os.environ.get("TURNSPAN_TEST_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(chosen) if chosen else Path(base) / "turnspan-tests"


@contextmanager
def installed(name: str) -> Iterator[tuple[Path, bool]]:
    """Lock the directory of a server; yield it, and whether it is complete. It is complete if the body succeeds."""
    place = cache_dir() / name
    place.mkdir(parents=True, exist_ok=True)
    with (place / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield place, (place / ".ready").exists()
        (place / ".ready").touch()


def order(*command: object, cwd: Path | None = None, timeout_s: float = INSTALL_S, **env: str) -> str:
    """Run a command; return what it prints. Raises Unavailable."""
    words = [str(word) for word in command]
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
            cwd=cwd,
            env={**os.environ, **env},
        )
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"{' '.join(words[:4])} took longer than {timeout_s} s") from error
    if done.returncode:
        raise Unavailable(f"{' '.join(words)}: {(done.stderr or done.stdout).strip()[-300:]}")
    return done.stdout
