"""What the fault suites share: a collector, a world, and the figures at the end."""

import os
import shutil
import tempfile
from pathlib import Path

import figures
import pytest

from faults.sink import Sink
from faults.world import World


def pytest_collection_modifyitems(items):
    """Leave out the long runs unless they are asked for."""
    for item in items:
        is_long = item.get_closest_marker("slow") is not None or "test_model.py" in item.nodeid
        if "faults" in item.nodeid and is_long and not figures.IS_ALL:
            item.add_marker(pytest.mark.skip(reason="a long run: TURNSPAN_FAULTS=all"))


@pytest.fixture
def sink():
    """A collector on loopback."""
    with Sink() as server:
        yield server


@pytest.fixture
def place(tmp_path):
    """A directory, in memory if possible: a thousand fsyncs of a real disk are slow."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(prefix="turnspan-", dir="/dev/shm", ignore_cleanup_errors=True) as directory:
        yield Path(directory)


@pytest.fixture
def world(place, sink):
    """A home in which the story is about to happen."""
    return World(place, sink)


needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
