"""What all rooms that start further processes share."""

from __future__ import annotations

import os
import sys
from typing import Final

# New objects between two garbage collections: Python's default takes a tenth of a process that reads transcripts.
GC_THRESHOLD: Final = 100_000


def can_fork() -> bool:
    """Return whether a fork is safe: a thread that it does not have may hold a lock that it waits for.

    The core of grpc has ended its threads by then, but not every version of it can be used in a fork.
    """
    if sys.platform != "linux" or "grpc" in sys.modules:
        return False
    try:
        return len(os.listdir("/proc/self/task")) == 1  # noqa: PTH208  threads of all libraries, not only Python's
    except OSError:  # /proc is not mounted
        return False
