"""Starts a server as a separate process on loopback, waits until it is up, and stops it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

STOP_S = 20


class Server:
    """A base class: subclasses call `start` and implement `is_up`."""

    START_S = 60

    def start(self, command: Sequence[object], directory: Path, **env: str) -> None:
        """Start a command without this machine's environment, with its log in `directory`."""
        self._log = directory / "server.log"
        own = {"PATH": "/usr/bin:/bin", "HOME": str(directory), **env}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(word) for word in command],
                env=own,
                cwd=directory,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

    def is_up(self) -> bool:
        """Whether the server responds."""
        raise NotImplementedError

    def __enter__(self):
        deadline = time.monotonic() + self.START_S
        while not self.is_up():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.__exit__()
                raise AssertionError(f"{type(self).__name__} did not start:\n{self._log.read_text()[-2000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_):
        self._process.terminate()
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_ports(count: int) -> list[int]:
    """Return unused ports on loopback."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [one.getsockname()[1] for one in sockets]
