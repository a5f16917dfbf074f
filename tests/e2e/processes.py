"""Finds the processes of a run by a mark in their environment."""

from __future__ import annotations

import os
import time
from pathlib import Path

_BIRTH_S = 5.0  # an upper bound; exec takes milliseconds


def processes_with(mark: str) -> list[int]:
    """Return the processes with `NAME=value` in their environment, except this one."""
    wanted = mark.encode()
    others = (e for e in Path("/proc").iterdir() if e.name.isdecimal() and int(e.name) != os.getpid())
    return [int(entry.name) for entry in others if wanted in _environment(entry)]


def _environment(entry: Path) -> list[bytes]:
    """Return the environment of a process; during exec, wait until it has one.

    The parent continues before the memory of the new program is set up, on a busy machine long before. Until then the
    kernel shows neither arguments nor an environment, only the executable.
    """
    deadline = time.monotonic() + _BIRTH_S
    try:
        while True:
            arguments = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            if arguments or environment or time.monotonic() > deadline:
                return environment.split(b"\0")
            (entry / "exe").readlink()  # fails for a process that has ended and for a kernel thread
            time.sleep(0.001)
    except OSError:
        return []
