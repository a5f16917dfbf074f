"""A process belongs to its run from the moment it is started."""

import os
import signal
import sys

from .processes import processes_with


def test_a_process_is_found_immediately():
    """A new process is found even while the kernel does not show its environment yet."""
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
