"""Options, hooks and fixtures for all tests."""

import os
import signal
import sys

import figures
import pytest
from hypothesis import settings
from not_on_windows import SKIPPED

from turnspan.cli import main

# The same examples in every run and no deadline; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("plain", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("plain")


def pytest_addoption(parser):
    """Add our command-line options."""
    parser.addoption("--update-golden", action="store_true", help="rewrite fixtures/*/golden.json")
    parser.addoption(
        "--slow",
        action="store_true",
        help="also run tests that need the npm client, a backend server or a browser, as CI does",
    )


def pytest_configure():
    """Restore SIGINT: a background job ignores it, and every process of the tests would inherit that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Skip slow tests (the npm client, a server, a browser) unless --slow is given, and what Windows does not have."""
    for item in items if sys.platform == "win32" else ():
        if (reason := SKIPPED.get(item.originalname)) is not None:
            item.add_marker(pytest.mark.skip(reason=reason))
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="slow: run it with --slow, as CI does")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, exitstatus):
    """Print the figures of the run; write them into the page if requested and all tests passed."""
    if not figures.noted():
        return
    terminalreporter.section("figures")
    for key, figure in sorted(figures.noted().items()):
        terminalreporter.write_line(f"{key}: {figure}")
    if os.environ.get("TURNSPAN_FIGURES") == "1" and exitstatus == 0:
        figures.write(figures.PAGE, figures.noted())
        terminalreporter.write_line(f"written to {figures.PAGE.name}")


@pytest.fixture
def command(capsys):
    """Run the command line in this process; return its exit code, stdout and stderr."""

    def run(*arguments):
        with pytest.raises(SystemExit) as exit_:
            main(arguments)
        captured = capsys.readouterr()
        return exit_.value.code, captured.out, captured.err

    return run


@pytest.fixture
def claude_home(tmp_path, monkeypatch):
    """A Claude home in tmp_path, without any settings of this machine."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "claude" / "turnspan").mkdir(mode=0o700, parents=True)
    return tmp_path / "claude"
