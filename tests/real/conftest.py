"""What the suites against real servers share."""

import pytest

from real.installing import Unavailable
from real.jaeger import Jaeger, find
from real.phoenix import Phoenix, install


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory):
    """A running Phoenix."""
    try:
        python = install()
    except Unavailable as reason:
        pytest.skip(f"Phoenix cannot be installed here: {reason}")
    with Phoenix(python, tmp_path_factory.mktemp("phoenix")) as server:
        yield server


@pytest.fixture
def jaeger(tmp_path_factory):
    """Return a running, empty Jaeger."""
    try:
        binary = find()
    except Unavailable as reason:
        pytest.skip(f"Jaeger cannot be built here: {reason}")
    with Jaeger(binary, tmp_path_factory.mktemp("jaeger")) as server:
        yield server
