"""What all tests share."""

from hypothesis import settings

# The same examples every time, however slow the machine is; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("plain", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("plain")


def pytest_addoption(parser):
    """Add the option that writes golden files anew."""
    parser.addoption("--update-golden", action="store_true", help="write fixtures/*/golden.json anew")
