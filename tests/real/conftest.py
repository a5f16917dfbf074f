"""What the suites against real servers share."""

import pytest

from real.installing import Unavailable
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
