"""The README and "Getting started" word for word, in an empty home, from a fresh copy of the sources."""

import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest
from pages import ROOT, Computer, blocks

README = ROOT / "README.md"
# Only how this machine reaches a package registry; nothing else of its environment is passed on.
NETWORK = re.compile(r"(PIP|UV|SSL)_.*|.*_proxy|REQUESTS_CA_BUNDLE", re.IGNORECASE)
UVX = "uvx --from . turnspan demo"


def command_after(words):
    """Return the block of commands that follows these words in the README."""
    text = README.read_text(encoding="utf-8")
    return re.search(r"```sh\n(.*?)```", text[text.index(words) :], re.DOTALL)[1]


def test_the_readme_starts_with_one_line_to_try_it():
    """The first command is the demo; the two commands after it do all of their set-up."""
    first, main, tests = [block.text for block in blocks(README, "sh")][:3]
    assert first == f"{UVX}\n"
    assert main == command_after("## Run it")
    assert tests == command_after("Run the tests:")
    assert "[dev]" not in main
    assert all(command.startswith("python3 -m venv .venv && .venv/bin/pip install ") for command in (main, tests))


@pytest.mark.slow
def test_what_the_readme_shows_of_daily_use_works(tmp_path):
    """The commands under "Use it", in an empty home with one session."""
    lines = [line for block in blocks(README, "sh")[3:] for line in block.text.splitlines()]
    lines = [line for line in lines if not line.startswith("uv tool install")]
    commands = [line.partition("#")[0] for line in lines]
    said = Computer(tmp_path).run(["turnspan install --yes && claude -p hello", *commands])
    assert "Traceback" not in said
    assert "complete (1 session, 1 turn" in said


@pytest.fixture
def clone(tmp_path):
    """An unpacked sdist, which has all the files of a clone, and a home with nothing in it."""
    build = [sys.executable, "-m", "hatchling", "build", "-t", "sdist", "-d", str(tmp_path)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    computer = Computer(tmp_path)
    (tmp_path / "bin" / "turnspan").unlink()
    (tmp_path / "bin" / "python3").unlink()
    (tmp_path / "bin" / "python3").symlink_to(sys._base_executable)
    shutil.rmtree(computer.clone)
    (unpacked,) = (path for path in tmp_path.glob("turnspan-*") if path.is_dir())
    unpacked.rename(computer.clone)
    computer.env |= {name: value for name, value in os.environ.items() if NETWORK.fullmatch(name)}
    return computer


@pytest.mark.slow
def test_the_first_command_of_the_readme(clone):
    """It installs no test tools, shows progress, and ends with a tree to look at."""
    said = clone.run([command_after("## Run it")], timeout_s=900)
    assert "Successfully installed" in said
    assert "Collecting pytest" not in said
    assert said.index("sent 1 turn in 14 spans to local") < said.index("● Turn 1")
    assert "Level 3 was here." in said
    assert not any((clone.home / name).exists() for name in (".claude", ".demo"))


@pytest.mark.slow
def test_the_second_command_of_the_readme(clone):
    """The test suite passes in a fresh copy with nothing but PATH, HOME and LANG."""
    said = clone.run([command_after("Run the tests:")], timeout_s=2400)
    assert re.search(r"\[100%\]", said)


@pytest.mark.slow
def test_getting_started_with_uv(clone, tmp_path):
    """Every command of the page, with turnspan installed by uv as the page says."""
    uv = shutil.which("uv") or str(tmp_path / "uv" / "bin" / "uv")
    if not os.path.exists(uv):  # noqa: PTH110
        subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "uv")], check=True)
        subprocess.run([str(tmp_path / "uv" / "bin" / "pip"), "install", "-q", "uv"], check=True)
    for name in ("uv", "uvx"):
        (clone.programs / name).symlink_to(os.path.join(os.path.dirname(uv), name))  # noqa: PTH118, PTH120
    clone.env |= {"UV_PYTHON": sys._base_executable, "UV_PYTHON_DOWNLOADS": "never", "UV_NO_PROGRESS": "1"}
    clone.env["PATH"] = f"{clone.home / '.local' / 'bin'}:{clone.env['PATH']}"
    commands = []
    for block in blocks(ROOT / "docs" / "getting-started.md", "sh"):
        if not block.mark or block.is_slow:
            # Both serve a page until Ctrl-C.
            served = re.sub(
                r"^(.*turnspan (?:demo|view)).*$",
                r"timeout -s INT 20 \1 --no-browser || [ $? = 124 ]",
                block.text,
                flags=re.MULTILINE,
            )
            commands.append(served)
    said = clone.run(commands, timeout_s=1800)
    assert said.count("http://127.0.0.1:") == 2
    assert "Say hello." in said
