"""The pages of the documentation, their code blocks, and a machine on which their commands run.

A block that is not run has a comment in the line before it: `<!-- not run: REASON -->`, or `<!-- slow: REASON -->` if
`pytest --slow` runs it. REASONS lists what is accepted.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
HERE = Path(__file__).parent
# Why a block cannot run in the plain suite; the beginning of the comment in the page.
REASONS = {
    "slow: needs uv": "downloads the dependencies",
    "slow: installs": "downloads the dependencies",
    "not run: pipx is not installed": "only uv is tested; both install the same wheel",
    "not run: needs a newer version": "there is none yet",
}
# Commands that need a server or another program: other tests run what they show.
ELSEWHERE = {
    "docker": "there is no Docker where the tests run; tests/real builds Jaeger and a collector from source",
    "pip install arize-phoenix": "tests/real installs Phoenix",
    "phoenix serve": "tests/real starts Phoenix",
    "sqlite3 ": "the program may not be installed; the tests of the index run its queries",
    "datasette": "needs datasette; the tests of the index run its queries",
    "pytest": "runs the tests themselves",
    "python -m pytest": "runs the tests themselves",
    "TURNSPAN_FAULTS=": "runs the tests themselves",
    "turnspan install --to langfuse": "asks for keys on a terminal; tests/claude/test_install.py answers",
    "turnspan doctor --send-test": "needs the server of the page",
}
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
_MARK = re.compile(r"<!-- ((?:slow|not run): .+?) -->\s*$")


@dataclass(frozen=True, slots=True)
class Block:
    """A code block of a page."""

    language: str
    text: str
    mark: str  # why it is not run; empty: it is

    @property
    def is_slow(self) -> bool:
        return self.mark.startswith("slow")

    @property
    def runs_elsewhere(self) -> bool:
        return any(line.strip().startswith(tuple(ELSEWHERE)) for line in self.text.splitlines())


def blocks(page: Path, language: str) -> list[Block]:
    """Return the code blocks of a page in one language."""
    text = page.read_text(encoding="utf-8")
    found = []
    for match in _FENCE.finditer(text):
        mark = _MARK.search(text[: match.start()].rstrip(" "))
        found.append(Block(match[2], textwrap.dedent(match[3]), mark[1] if mark else ""))
    return [block for block in found if block.language == language]


class Computer:
    """An empty home, and programs that the pages call: turnspan, and a Claude Code that answers "Hello."."""

    def __init__(self, root: Path, collector: str = "") -> None:
        self.home, self.programs, self.clone = root / "home", root / "bin", root / "clone"
        for directory in (self.home, self.programs, self.clone):
            directory.mkdir()
        for name in ("hooks", "fixtures"):
            (self.clone / name).symlink_to(ROOT / name)
        python = f'exec "{sys.executable}"'
        serve, claude = HERE / "serve.py", HERE / "fake_claude.py"
        scripts = {
            # A command that serves a page until Ctrl-C is stopped when its URL is printed.
            "turnspan": f'case $1 in view|demo) {python} -I "{serve}" "$@";; *) {python} -m turnspan "$@";; esac',
            "claude": f'{python} -I "{claude}" "$@"',
        }
        for name, script in scripts.items():
            (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
            (self.programs / name).chmod(0o755)
        (self.programs / "python3").symlink_to(sys.executable)
        self.env = {
            "PATH": f"{self.programs}:/usr/bin:/bin", "HOME": str(self.home), "LANG": "C.UTF-8",
            "COLLECTOR_URL": collector,
        }  # fmt: skip

    def run(self, commands: list[str], timeout_s: float = 120) -> str:
        """Run the blocks of a page in one shell, in the clone; return what they print."""
        script = "set -eu\n" + "".join(f"cat <<'~~'\n$ {text}\n~~\n{text}\n" for text in map(str.strip, commands))
        done = subprocess.run(
            ["bash", "-c", script], env=self.env, cwd=self.clone, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, check=False, timeout=timeout_s,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout
