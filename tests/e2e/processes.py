"""Which processes belong to a run: those with its mark in their environment."""

from __future__ import annotations

import os
import time
from pathlib import Path

_BIRTH_S = 5.0  # a bound, never reached by a process that goes on


def processes_with(mark: str) -> list[int]:
    """Find the processes whose environment holds `NAME=value`, ourselves left out."""
    wanted = mark.encode()
    others = (e for e in Path("/proc").iterdir() if e.name.isdecimal() and int(e.name) != os.getpid())
    return [int(entry.name) for entry in others if wanted in _environment(entry)]


def _environment(entry: Path) -> list[bytes]:
    """Read the environment of a process, of one that is just becoming another program as soon as it has one.

    Whoever starts a program goes on before that program's memory is laid out: on a busy machine long before. Until then
    the kernel shows neither arguments nor an environment, only what is executed.
    """
    deadline = time.monotonic() + _BIRTH_S
    try:
        while True:
            arguments = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
            if arguments or environment or time.monotonic() > deadline:
                return environment.split(b"\0")
            (entry / "exe").readlink()  # a process that has ended, and one of the kernel's own, has none
            time.sleep(0.001)
    except OSError:
        return []
