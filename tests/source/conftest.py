"""What tests of reading share."""

import pytest


@pytest.fixture
def project(tmp_path):
    """A project directory below a projects directory."""
    path = tmp_path / "projects" / "-home-ada-loom"
    path.mkdir(parents=True)
    return path
