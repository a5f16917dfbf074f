"""What all tests share."""

import os
import signal

import figures
import pytest
from hypothesis import settings

from turnspan.cli import main

# The same examples every time, however slow the machine is; `--hypothesis-profile=search` looks for new ones.
settings.register_profile("plain", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, max_examples=2000)
settings.load_profile("plain")


def pytest_addoption(parser):
    """Add what a person may ask for."""
    parser.addoption("--update-golden", action="store_true", help="write fixtures/*/golden.json anew")
    parser.addoption("--slow", action="store_true", help="also run what needs a big real part, as CI does")


def pytest_configure():
    """Whatever started us: a job in the background ignores Ctrl-C, and so would every process of ours."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(config, items):
    """Leave out what needs a big real part (the npm client, a server), unless it was asked for; CI asks for it."""
    if config.getoption("--slow"):
        return
    skip = pytest.mark.skip(reason="needs a big real part: run it with --slow, as CI does")
    for item in items:
        if "slow" in item.keywords:
            item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, exitstatus):
    """Say what was shown, and write it down if that is wanted and all went well."""
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
    """Run the command line here; give its exit code and what it wrote."""

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
