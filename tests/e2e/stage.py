"""The stage of one story: the API, the OTLP server, the home, the clients, and the payloads of their hooks.

Rules:

- All results of a run are in its directory: `truth.jsonl`, `sink.jsonl`, `hooks/`, `projects/`, `meta.json`.
- Prompts are numbered across the run (`#p3`), so that the API knows the turn of each request.
- A run has ended when no process with its mark (`TURNSPAN_E2E_RUN`) is alive; detached workers inherit the mark.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from .api import Api, WaitError
from .client import Home, install, make_home, recorder_command, register_hooks, version_tuple
from .processes import processes_with
from .sink import Sink
from .terminal import POINTER, Terminal, open_terminal, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

MARK = "TURNSPAN_E2E_RUN"
BYPASS = "--dangerously-skip-permissions"


class Stage:
    """The environment of a story, a context manager."""

    def __init__(self, root: Path, version: str, scenario: str, prepare: Callable[[Stage], None] | None = None) -> None:
        self.root = root
        self.version = version
        self.scenario = scenario
        self.notes: list[str] = []
        self.prompts: dict[str, dict[str, Any]] = {}
        self.clients: list[dict[str, Any]] = []
        self.program = install(version)
        self.home: Home = make_home(root, version)
        self.mark = uuid.uuid4().hex
        bodies = root / "bodies" if os.environ.get("TURNSPAN_E2E_BODIES") else None
        if bodies:
            bodies.mkdir(exist_ok=True)
        self.api = Api(root / "truth.jsonl", self.home.project, bodies)
        self.sink = Sink(root / "sink.jsonl")
        self.second_sink = Sink(root / "backfill.jsonl")  # for the backfill
        self.env: dict[str, str] = {}
        self.open_clients: list[Typed | Streamed] = []
        register_hooks(self.home, recorder_command(self.home))
        if prepare:
            prepare(self)

    def __enter__(self) -> Self:
        self.api.__enter__()
        self.sink.__enter__()
        self.second_sink.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        for client in self.open_clients:
            client.close()
        with contextlib.suppress(WaitError):
            self.wait_for_quiet()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.api.__exit__()
        self.sink.__exit__()
        self.second_sink.__exit__()
        if self.home.transcripts.exists():
            shutil.copytree(self.home.transcripts, self.root / "projects", dirs_exist_ok=True)
        hooks = [p.stem for p in sorted((self.root / "hooks").glob("*.json"))]
        meta = {
            "version": self.version,
            "scenario": self.scenario,
            "hook": None,
            "prompts": self.prompts,
            "clients": self.clients,
            "notes": self.notes,
            "proj": str(self.home.project),
            "home": str(self.home.home),
            "hooks": hooks,
        }
        (self.root / "meta.json").write_text(json.dumps(meta, indent=1))

    # ---- processes and files

    def environment(self) -> dict[str, str]:
        """Return the environment of a client on this stage."""
        return self.home.environment(ANTHROPIC_BASE_URL=self.api.url, **{MARK: self.mark}, **self.env)

    def processes(self) -> list[int]:
        """Return the processes with this run's mark."""
        return processes_with(f"{MARK}={self.mark}")

    def wait_for_quiet(self, timeout_s: float = 30) -> None:
        """Wait until every process of the run has ended."""
        wait_until(lambda: not self.processes(), "processes of the run ended", timeout_s)

    def wait_for_workers(self) -> None:
        """Wait until turnspan has handled all events so far."""

        def is_ours(pid: int) -> bool:
            with contextlib.suppress(OSError):
                command = Path(f"/proc/{pid}/cmdline").read_bytes()
                return any(name in command for name in (b"turnspan.worker", b"turnspan.hook", b"turnspan-hook"))
            return False

        wait_until(lambda: not any(map(is_ours, self.processes())), "turnspan's workers ended", 20)

    def open_gate(self, name: str) -> None:
        """Let a waiting tool continue."""
        (self.home.project / f"{name}.open").touch()

    def wait_gate(self, name: str) -> None:
        """Wait until a tool has reached its gate."""
        wait_until((self.home.project / f"{name}.begun").exists, f"a tool at gate {name}", 30)

    def wait_written(self, message_id: str) -> None:
        """Wait until a response is in a transcript."""

        def look() -> bool:
            return any(message_id in p.read_text(errors="replace") for p in self.home.transcripts.rglob("*.jsonl"))

        wait_until(look, f"{message_id} in a transcript", 20)

    def prompt(self, words: str) -> tuple[str, str]:
        """Number and record a prompt; return its turn and its text."""
        key = f"p{len(self.prompts) + 1}"
        self.prompts[key] = {"text": f"{words} #{key}", "t": time.time()}
        return key, f"{words} #{key}"

    # ---- hooks

    def hooks(self, event: str) -> list[dict[str, Any]]:
        """Return the recorded hook calls of an event, oldest first."""
        return [json.loads(p.read_text()) for p in sorted((self.root / "hooks").glob(f"*-{event}.json"))]

    def wait_hook(self, event: str, after: float = 0, timeout_s: float = 30) -> dict[str, Any]:
        """Wait for a hook call of an event after a point in time."""
        found: list[dict[str, Any]] = []

        def look() -> bool:
            found[:] = [h for h in self.hooks(event) if h["t"] >= after]
            return bool(found)

        wait_until(look, f"hook {event} after {after}", timeout_s)
        return found[0]

    def finished(self, turn: str, step: int = 0, event: str = "Stop") -> dict[str, Any]:
        """Wait for the response to a step and for the hook at the end of the turn.

        Clients before 2.1.47 do not pass the last message to the hook, and on a busy machine write it a second later: if
        a story quit immediately, no event would follow the last response.
        """
        answer = self.api.wait_response(turn, step)
        said = self.wait_hook(event, after=answer["t_end"] - 0.05)
        if version_tuple(self.version) < (2, 1, 47):
            self.wait_written(answer["message_id"])
        return said

    # ---- clients

    def run(self, words: str, *args: str, expect: int | None = 0, timeout_s: float = 90) -> dict[str, Any]:
        """Run `-p` with one prompt until the client exits."""
        _, text = self.prompt(words)
        return self.run_text(text, *args, expect=expect, timeout_s=timeout_s)

    def run_text(self, text: str, *args: str, expect: int | None = 0, timeout_s: float = 90) -> dict[str, Any]:
        """Run `-p` with a text that is not numbered."""
        client = self.start(text, *args)
        out, err = client.process.communicate(timeout=timeout_s)
        row = client.row
        row.update(rc=client.process.returncode, t_end=time.time())
        with contextlib.suppress(ValueError):
            said = json.loads(out)
            row.update(session_id=said.get("session_id"), result=said.get("result"))
        if expect is not None and row["rc"] != expect:
            raise AssertionError(f"the client exited with {row['rc']}: {out[-500:]!r} {err[-500:]!r}")
        return row

    def start(self, text: str, *args: str) -> Printing:
        """Start `-p` and return immediately."""
        mode = [] if "--permission-mode" in args else [BYPASS]
        return Printing(self, ["-p", text, *args, *mode, "--output-format", "json"])

    def stream(self, *args: str) -> Streamed:
        """Start a client that reads prompts as stream-json."""
        formats = ["--input-format", "stream-json", "--output-format", "stream-json", "--verbose"]
        client = Streamed(self, ["-p", *formats, BYPASS, *args])
        self.open_clients.append(client)
        return client

    def terminal(self, *args: str) -> Typed:
        """Start a client in a terminal and wait until it accepts input."""
        mode = [] if "--permission-mode" in args else [BYPASS]
        client = Typed(self, [*args, *mode])
        self.open_clients.append(client)
        return client


class Printing:
    """A client with `-p` and one prompt."""

    def __init__(self, stage: Stage, args: list[str]) -> None:
        self.process = subprocess.Popen(
            [str(stage.program), *args], env=stage.environment(), cwd=stage.home.project, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        self.row: dict[str, Any] = {"args": args, "pid": self.process.pid, "t": time.time()}
        stage.clients.append(self.row)

    def kill(self, how: signal.Signals) -> None:
        """Send a signal and wait until it has exited."""
        self.process.send_signal(how)
        self.process.communicate(timeout=30)
        self.row.update(rc=self.process.returncode, t_end=time.time())


class Streamed:
    """A client with stream-json input."""

    def __init__(self, stage: Stage, args: list[str]) -> None:
        self._stage = stage
        self.said: list[dict[str, Any]] = []
        self.process = subprocess.Popen(
            [str(stage.program), *args], env=stage.environment(), cwd=stage.home.project, stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=(stage.root / "client.err").open("a"), text=True, start_new_session=True,
        )  # fmt: skip
        self.row: dict[str, Any] = {"args": args, "pid": self.process.pid, "t": time.time()}
        stage.clients.append(self.row)
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            with contextlib.suppress(ValueError):
                row = json.loads(line)
                if row.get("session_id"):
                    self.row["session_id"] = row["session_id"]
                self.said.append(row)

    def _send(self, row: dict[str, Any]) -> None:
        assert self.process.stdin
        self.process.stdin.write(json.dumps(row) + "\n")
        self.process.stdin.flush()

    def say(self, words: str, *parts: dict[str, Any]) -> str:
        """Send a prompt, optionally with images; return its turn."""
        turn, text = self._stage.prompt(words)
        self.say_text(text, *parts)
        return turn

    def say_text(self, text: str, *parts: dict[str, Any]) -> None:
        """Send a text that is not numbered."""
        self._send({"type": "user", "message": {"role": "user", "content": [*parts, {"type": "text", "text": text}]}})

    def interrupt(self) -> None:
        """Interrupt the current turn."""
        self._send({"type": "control_request", "request_id": uuid.uuid4().hex, "request": {"subtype": "interrupt"}})

    def results(self) -> int:
        """Return the number of turns that the client reported as finished."""
        return sum(row.get("type") == "result" for row in list(self.said))

    def wait_results(self, count: int, timeout_s: float = 40) -> None:
        """Wait until this many turns are finished."""
        wait_until(lambda: self.results() >= count, f"{count} results of the client", timeout_s)

    def close(self) -> None:
        """Close stdin and wait for the client."""
        if self.process.stdin and not self.process.stdin.closed:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        try:
            self.process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._stage.notes.append("the client did not exit when its stdin was closed")
            self.process.kill()
            self.process.wait(timeout=10)
        self.row.update(rc=self.process.returncode, t_end=time.time())


class Typed:
    """A client in a terminal."""

    def __init__(self, stage: Stage, args: list[str]) -> None:
        self._stage = stage
        self.row: dict[str, Any] = {"args": ["TUI", *args], "t": time.time()}
        stage.clients.append(self.row)
        began = time.time()
        self.terminal: Terminal = open_terminal([str(stage.program), *args], stage.environment(), stage.home.project)
        self.row["pid"] = self.terminal.pid
        if version_tuple(stage.version) >= (1, 0, 62):
            stage.wait_hook("SessionStart", after=began)
        wait_until(self._accepts_input, "the terminal accepts input", 20)

    def _accepts_input(self) -> bool:
        return any(line.lstrip("│ ").startswith((POINTER, ">")) for line in self.terminal.screen().splitlines())

    def type(self, words: str, *, check: bool = True) -> str:
        """Type a prompt and Enter, wait until the client has accepted it, and return its turn."""
        turn, text = self._stage.prompt(words)
        self.enter(text, until=(lambda: self._was_accepted(turn)) if check else None)
        return turn

    def _was_accepted(self, turn: str) -> bool:
        return any(f"#{turn}" in h["payload"].get("prompt", "") for h in self._stage.hooks("UserPromptSubmit"))

    def enter(self, text: str, until: Callable[[], bool] | None = None) -> None:
        """Type a text, wait until it is on the screen, and press Enter until the client accepts it."""
        seen = text[-12:]
        for patience_s in (8, 8):  # a dialog that is closing swallows input
            self.terminal.write(text)
            with contextlib.suppress(WaitError):
                wait_until(lambda: self.shows(seen), f"typed text on the screen: {seen!r}", patience_s)
                break
            self.empty_line()
        self.terminal.key("Enter")
        if until is None:
            return
        for attempt in range(8):
            with contextlib.suppress(WaitError):
                wait_until(until, "the client accepted the text", 2.5)
                return
            if attempt == 3:  # text typed too early is on the screen but not in the input line
                self.empty_line()
                self.terminal.write(text)
            self.terminal.key("Enter")
        raise WaitError(f"the client did not accept {text!r}\n{self.terminal.screen()}")

    def empty_line(self) -> None:
        """Clear the input line and wait until it is empty: a key sent too early would become part of the text."""
        before = self.line()
        if before:
            self.terminal.key("C-u")
            with contextlib.suppress(WaitError):  # a placeholder cannot be cleared
                wait_until(lambda: self.line() != before, "the line is empty", 1)

    def line(self) -> str:
        """Return the text of the input line."""
        lines = [line.strip("\u2502 \u00a0") for line in self.terminal.screen().splitlines()]
        return next((line[1:].strip() for line in reversed(lines) if line.startswith((POINTER, ">"))), "")

    def shows(self, words: str) -> bool:
        """Whether a text is on the screen."""
        return words in self.terminal.screen()

    def wait_shows(self, words: str, timeout_s: float = 20) -> None:
        """Wait for a text on the screen."""
        wait_until(lambda: self.shows(words), f"{words!r} on the screen", timeout_s)

    def quit(self) -> None:
        """Exit with /exit and wait until the client has exited."""
        deadline = time.monotonic() + 30
        while self.terminal.is_running():
            if time.monotonic() > deadline:
                raise WaitError("the client did not exit\n" + self.terminal.screen())
            self.empty_line()  # text that was accepted may still be there
            self.terminal.write("/exit")
            with contextlib.suppress(WaitError):
                wait_until(
                    lambda: "/exit" in self.line(), "/exit in the input line", 5
                )  # an earlier one may be on the screen
            self.terminal.key("Enter")
            with contextlib.suppress(WaitError):
                wait_until(lambda: not self.terminal.is_running(), "the client exited", 4)
        self.row["t_end"] = time.time()

    def kill(self, how: signal.Signals) -> None:
        """Send the client a signal and wait until it has exited."""
        os.kill(self.terminal.pid, how)
        wait_until(lambda: not self.terminal.is_running(), "the client exited", 20)
        self.row["t_end"] = time.time()

    def close(self) -> None:
        """Close the terminal."""
        self.terminal.close()
