"""Smoke test of a built wheel, as a user would meet it: an empty environment, an empty home, another directory.

    python .ci/smoke.py dist                                     the wheel in dist/
    python .ci/smoke.py dist --client claude --api URL           and one turn of a real Claude Code

Standard library only, and no file of the sources: what the wheel lacks is missing here. It installs, looks at the demo,
registers the hooks, lets an event export a turn, reads it back, serves the page, uninstalls, and checks that nothing
remains. Variables named PIP_* are passed to pip, for machines that are offline.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
import venv
from pathlib import Path

WINDOWS = sys.platform == "win32"
SESSION = "5e55104a-0000-4000-8000-00000000feed"
PROMPT, ANSWER = "Is the wheel complete?", "Yes, it is."


class Machine:
    """An environment with the wheel and nothing else, and the home of a user who has never seen turnspan."""

    def __init__(self, root: Path, wheel: Path) -> None:
        self.home, self.elsewhere = root / "home", root / "some where"
        self.home.mkdir()
        self.elsewhere.mkdir()
        venv.create(root / "venv", with_pip=True)
        self.programs = root / "venv" / ("Scripts" if WINDOWS else "bin")
        self.python = self.programs / ("python.exe" if WINDOWS else "python")
        kept = ("SYSTEMROOT", "TEMP", "TMP", "PATHEXT") if WINDOWS else ()
        self.env = {
            "PATH": os.environ["PATH"] if WINDOWS else "/usr/bin:/bin",
            "USERPROFILE" if WINDOWS else "HOME": str(self.home),
            "LANG": "C.UTF-8",
            **{name: os.environ[name] for name in kept if name in os.environ},
        }
        pip = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_"))}
        self.run(self.python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wheel.resolve(), env=pip)

    @property
    def claude(self) -> Path:
        return self.home / ".claude"

    def run(self, *command: object, env: dict[str, str] | None = None, code: int = 0, stdin: str = "") -> str:
        """Run a command in another directory; return what it prints. Its exit code must be `code`."""
        done = subprocess.run(
            [str(word) for word in command], env=self.env | (env or {}), cwd=self.elsewhere, input=stdin, check=False,
            capture_output=True, text=True, encoding="utf-8", timeout=600,
        )  # fmt: skip
        if done.returncode != code:
            raise SystemExit(f"{command} exited with {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout

    def turnspan(self, *arguments: object, code: int = 0) -> str:
        """Run turnspan."""
        return self.run(self.programs / ("turnspan.exe" if WINDOWS else "turnspan"), *arguments, code=code)

    def files(self) -> set[str]:
        """Return all files in the home."""
        return {path.relative_to(self.home).as_posix() for path in self.home.rglob("*") if path.is_file()}


def step(words: str) -> None:
    print(f"smoke: {words}", flush=True)


def check(is_true: object, words: str) -> None:
    if not is_true:
        raise SystemExit(f"smoke: failed: {words}")


def look_around(machine: Machine) -> None:
    """Every command has help, the package is the installed one, and nothing was written by looking."""
    step("commands")
    check(re.fullmatch(r"turnspan \S+\n", machine.turnspan("--version")), "--version prints the version")
    where = machine.run(machine.python, "-c", "import turnspan; print(turnspan.__file__)").strip()
    check(Path(where).is_relative_to(machine.programs.parent), f"{where} is in the environment")
    listed = re.findall(r"^  ([a-z]+)  ", machine.turnspan("--help"), flags=re.MULTILINE)
    for name in listed:
        check("Usage:" in machine.turnspan(name, "--help"), f"{name} has help")
    check({"install", "backfill", "show", "view", "doctor"} <= set(listed), f"commands are listed: {listed}")
    for backend in ("otlp", "langfuse", "local", "sdk"):
        machine.run(machine.python, "-c", f"from turnspan.backends.{backend} import open_backend")
    cost = "from turnspan import api; print(api.cost_usd('claude-opus-4-5', api.Usage(output=1_000_000)))"
    check(float(machine.run(machine.python, "-c", cost)) > 0, "the table of prices is part of the wheel")
    if "demo" in listed:
        step("demo")
        demo(machine)
    check(not machine.files(), f"looking wrote nothing: {machine.files()}")


def demo(machine: Machine) -> None:
    """The bundled session is shown, and served as a page."""
    with served(machine, "demo", "--no-browser") as url:
        check(b"<html" in fetch(url), "the demo serves a page")


def fetch(url: str) -> bytes:
    with urllib.request.build_opener(urllib.request.HTTPCookieProcessor()).open(url, timeout=30) as response:
        body: bytes = response.read()
        return body


@contextlib.contextmanager
def served(machine: Machine, *command: str):  # noqa: ANN201
    """Start a command that serves a page; give its URL."""
    program = machine.programs / ("turnspan.exe" if WINDOWS else "turnspan")
    serving = subprocess.Popen(
        [str(program), *command], env=machine.env | {"PYTHONUNBUFFERED": "1"}, cwd=machine.elsewhere, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, encoding="utf-8",
    )  # fmt: skip
    try:
        for line in serving.stdout or ():
            if found := re.search(r"http://\S+", line):
                yield found[0]
                return
        raise SystemExit(f"smoke: failed: {command} printed no URL")
    finally:
        serving.terminate()
        serving.wait(30)


def write_transcript(machine: Machine) -> Path:
    """Write a session of one turn, as Claude Code does."""
    path = machine.claude / "projects" / "-somewhere" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    common = {"sessionId": SESSION, "version": "2.1.325", "cwd": str(machine.elsewhere), "isSidechain": False}
    usage = {"input_tokens": 10, "output_tokens": 20, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 0}
    answer = {
        "id": "msg_1", "role": "assistant", "model": "claude-opus-4-5-20251101", "stop_reason": "end_turn",
        "content": [{"type": "text", "text": ANSWER}], "usage": usage,
    }  # fmt: skip
    now = time.time()
    stamps = [time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(now + later)) for later in (0, 1)]
    rows = [
        {"type": "user", "uuid": "u1", "parentUuid": None, "message": {"role": "user", "content": PROMPT}},
        {"type": "assistant", "uuid": "u2", "parentUuid": "u1", "requestId": "r1", "message": answer},
    ]
    lines = [json.dumps({**common, **row, "timestamp": at}) + "\n" for row, at in zip(rows, stamps, strict=True)]
    path.write_text("".join(lines), encoding="utf-8")
    return path


def play_event(machine: Machine) -> None:
    """Run the hook that was registered, as Claude Code does after a turn."""
    transcript = write_transcript(machine)
    settings = json.loads((machine.claude / "settings.json").read_text(encoding="utf-8"))
    hook = settings["hooks"]["Stop"][0]["hooks"][0]
    words = [hook["command"], *hook["args"]] if "args" in hook else ["sh", "-c", hook["command"]]
    payload = {
        "hook_event_name": "Stop", "session_id": SESSION, "transcript_path": str(transcript),
        "cwd": str(machine.elsewhere), "last_assistant_message": ANSWER,
    }  # fmt: skip
    check(machine.run(*words, stdin=json.dumps(payload)) == "", "the hook prints nothing")


def play_turn(machine: Machine, client: str, api: str) -> None:
    """Run one turn of a real client, whose API is scripted."""
    key = "sk-ant-api03-scripted-" + "0" * 40
    env = {
        "ANTHROPIC_API_KEY": key, "ANTHROPIC_BASE_URL": api, "DISABLE_TELEMETRY": "1", "DISABLE_AUTOUPDATER": "1",
        "DISABLE_ERROR_REPORTING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "SHELL": "/bin/sh",
    }  # fmt: skip
    print(machine.run(*shlex.split(client), "-p", f"{PROMPT} #p1", env=env).strip())


def wait_for_trace(machine: Machine) -> None:
    """Wait until the worker has exported the turn."""
    deadline = time.monotonic() + 60
    traces = machine.claude / "turnspan" / "traces"
    while PROMPT not in "".join(path.read_text(encoding="utf-8") for path in traces.glob("*.jsonl")):
        check(time.monotonic() < deadline, f"the turn was exported: {sorted(machine.files())}")
        time.sleep(0.1)


def read_back(machine: Machine) -> None:
    """What was exported can be listed, shown, verified and viewed."""
    step("sessions, show, status, verify, doctor, view")
    check(json.loads(machine.turnspan("sessions", "--json").splitlines()[0])["turns"] == 1, "sessions lists the turn")
    check(PROMPT in machine.turnspan("show"), "show prints the prompt")
    status = json.loads(machine.turnspan("status", "--json"))
    check(status["destinations"][0]["turns"] == 1, f"status counts the turn: {status}")
    check("complete" in machine.turnspan("verify"), "verify finds everything")
    machine.turnspan("doctor")
    with served(machine, "view", "--no-browser") as url:
        page = fetch(url).decode()
        for name in re.findall(r'(?:src|href)="([^":]+\.(?:js|css))"', page):
            check(fetch(urllib.parse.urljoin(url, name)), f"the page has {name}")


def main() -> None:
    """Run everything."""
    options = argparse.ArgumentParser(description="Smoke test of a built wheel.")
    options.add_argument("dist", type=Path, help="a directory with one wheel")
    options.add_argument("--client", help="the command of a real Claude Code")
    options.add_argument("--api", help="the URL of a scripted API for it")
    given = options.parse_args()
    (wheel,) = given.dist.glob("*.whl")
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as root:
        step(f"installing {wheel.name} with Python {sys.version.split()[0]}")
        machine = Machine(Path(root).resolve(), wheel)
        look_around(machine)
        step("install")
        machine.turnspan("install", "--dry-run")
        check(not machine.files(), "a dry run writes nothing")
        machine.turnspan("install", "--yes")
        before = {"ours": machine.claude / "turnspan" / "runtime", "plugin": plugin_of(machine)}
        check(all(path.exists() for path in before.values()), f"the plugin is part of the wheel: {before}")
        if given.client:
            step("one turn of the real client")
            play_turn(machine, given.client, given.api)
        else:
            step("one event")
            play_event(machine)
        wait_for_trace(machine)
        read_back(machine)
        step("uninstall")
        machine.turnspan("uninstall", "--purge", "--yes")
        left = {name for name in machine.files() if "turnspan" in name or name == ".claude/settings.json"}
        check(not left, f"nothing remains: {left}")
    step("passed")


def plugin_of(machine: Machine) -> Path:
    """Return the plugin's directory that `install --plugin` names."""
    said = machine.turnspan("install", "--plugin")
    (place,) = re.findall(r"marketplace add (.+)", said)
    return Path(shlex.split(place)[0]) / "hooks" / "hooks.json"


if __name__ == "__main__":
    main()
