"""What Windows does not have: a test that needs it is skipped there."""

import os
import sys

import pytest

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="POSIX only")
is_root = sys.platform != "win32" and os.geteuid() == 0


def make_fifo(path):
    """Create a FIFO."""
    if sys.platform == "win32":
        pytest.skip("Windows has no FIFOs")
    os.mkfifo(path)
