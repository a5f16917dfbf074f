"""A process counts from the moment it was started, not from when it has begun to run."""

import os
import signal
import sys

from .processes import processes_with


def test_a_process_is_found_at_once():
    """Not one of many is missed in the moment in which the kernel shows no environment yet."""
    for number in range(100):
        mark = f"TEST_PROCESSES={os.getpid()}-{number}"
        name, value = mark.split("=")
        pid = os.posix_spawn(sys.executable, [sys.executable, "-ISc", "import time; time.sleep(60)"], {name: value})
        try:
            assert processes_with(mark) == [pid]
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert processes_with(mark) == []
