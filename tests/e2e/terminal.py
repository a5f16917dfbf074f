"""Runs a program in a terminal: in tmux if it is installed, else in a pseudo-terminal with our own emulator.

A story types keys and reads the screen; it waits by polling until a deadline.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import threading
import time
from pathlib import Path
from typing import Protocol

from .api import WaitError
from .screen import Screen

COLUMNS, ROWS = 180, 50
POINTER = "\u276f"  # drawn by the newest clients before the input line and before a selected option
KEYS = {
    "Enter": "\r",
    "Escape": "\x1b",
    "Tab": "\t",
    "Up": "\x1b[A",
    "Down": "\x1b[B",
    "C-c": "\x03",
    "C-u": "\x15",
    "BTab": "\x1b[Z",
}


class Terminal(Protocol):
    """The operations of a terminal."""

    pid: int

    def write(self, text: str) -> None:
        """Type a text, without Enter."""

    def key(self, name: str) -> None:
        """Press a key."""

    def screen(self) -> str:
        """Return the text on the screen."""

    def is_running(self) -> bool:
        """Whether the program is still running."""

    def close(self) -> None:
        """Close the terminal; a program that is still running gets SIGHUP."""


def open_terminal(argv: list[str], env: dict[str, str], cwd: Path) -> Terminal:
    """Start a program in a terminal; `TURNSPAN_E2E_PTY` selects our own even if tmux is installed."""
    tmux = shutil.which("tmux")
    if tmux is None or os.environ.get("TURNSPAN_E2E_PTY"):
        return PtyTerminal(argv, env, cwd)
    return TmuxTerminal(tmux, argv, env, cwd)


def wait_until(is_so: object, what: str, timeout_s: float = 20, poll_s: float = 0.03) -> None:
    """Poll until a condition holds; raise WaitError after a deadline."""
    assert callable(is_so)
    deadline = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > deadline:
            raise WaitError(f"{what}: not in {timeout_s:.0f} s")
        time.sleep(poll_s)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rsplit(")", 1)[1].split()[0] != "Z"
    return True


class TmuxTerminal:
    """A window of a separate tmux server."""

    def __init__(self, tmux: str, argv: list[str], env: dict[str, str], cwd: Path) -> None:
        self._place = Path(
            tempfile.mkdtemp(prefix="tmux-")
        )  # not in the run's directory: the path of a socket must be short
        self._tmux = [tmux, "-f", os.devnull, "-S", str(self._place / "socket")]
        self._env = {
            name: env[name] for name in ("PATH", "HOME", "TERM", "LANG")
        }  # the server must not have the run's mark
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        start = ["env", "-i", *(f"{k}={v}" for k, v in env.items()), *argv]
        subprocess.run([*self._tmux, "new-session", "-d", *size, "-c", str(cwd), *start], check=True, env=self._env)
        self.pid = int(self._ask("display-message", "-p", "#{pane_pid}"))
        self._ask("set-option", "-g", "remain-on-exit", "on")
        self._ask("set-option", "-g", "escape-time", "0")

    def _ask(self, *order: str) -> str:
        done = subprocess.run(
            [*self._tmux, *order], capture_output=True, text=True, check=False, timeout=20, env=self._env
        )
        return done.stdout

    def write(self, text: str) -> None:
        """Type a text."""
        self._ask("send-keys", "-l", "--", text)

    def key(self, name: str) -> None:
        """Press a key."""
        self._ask("send-keys", name)

    def screen(self) -> str:
        """Return the text on the screen."""
        return self._ask("capture-pane", "-p", "-J")

    def is_running(self) -> bool:
        """Whether the program is still running."""
        return is_alive(self.pid)

    def close(self) -> None:
        """End the tmux server."""
        self._ask("kill-server")
        shutil.rmtree(self._place, ignore_errors=True)


class PtyTerminal:
    """A pseudo-terminal with our own emulator."""

    def __init__(self, argv: list[str], env: dict[str, str], cwd: Path) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:  # the child
            try:
                os.chdir(cwd)
                os.execvpe(argv[0], argv, env)
            finally:
                os._exit(127)
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self._screen = Screen(COLUMNS, ROWS)
        self._reading = threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(OSError):
            while data := os.read(self._fd, 65536):
                with self._reading:
                    self._screen.feed(data)

    def write(self, text: str) -> None:
        """Type a text."""
        os.write(self._fd, text.encode())

    def key(self, name: str) -> None:
        """Press a key."""
        os.write(self._fd, KEYS.get(name, name).encode())

    def screen(self) -> str:
        """Return the text on the screen."""
        with self._reading:
            return self._screen.text()

    def is_running(self) -> bool:
        """Whether the program is still running."""
        with contextlib.suppress(ChildProcessError):
            return os.waitpid(self.pid, os.WNOHANG)[0] == 0
        return False

    def close(self) -> None:
        """Close the terminal, and kill the program if it does not exit."""
        with contextlib.suppress(OSError):
            os.close(self._fd)
        deadline = time.monotonic() + 5
        while self.is_running() and time.monotonic() < deadline:
            time.sleep(0.02)
        if self.is_running():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
