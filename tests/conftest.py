"""What all tests share."""


def pytest_addoption(parser):
    """Add the option that writes golden files anew."""
    parser.addoption("--update-golden", action="store_true", help="write fixtures/*/golden.json anew")
