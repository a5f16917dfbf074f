import pytest

from backends.servers import Certificates


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    """A private authority that may sign what a test needs."""
    return Certificates(tmp_path_factory.mktemp("certificates"))
