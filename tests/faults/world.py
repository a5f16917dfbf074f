"""A home with a story, the ways to call turnspan there, and the comparison of what arrived with what was expected."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from e2e.processes import processes_with

from faults.sink import spans_in
from faults.story import loom
from turnspan.claude.event import parse_event
from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.errors import TurnspanError
from turnspan.hook import HOOK_CODE, HOOK_OPTIONS, PACKAGE_ROOT, WORKER_CODE, WORKER_OPTIONS
from turnspan.log import LOG_NAME
from turnspan.settings.config import load_config
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions
from turnspan.worker import serve

LAUNCHER = Path(__file__).resolve().parents[2] / "hooks" / "turnspan-hook"
HOOK = [sys.executable, *HOOK_OPTIONS, HOOK_CODE, PACKAGE_ROOT]
WORKER = [sys.executable, *WORKER_OPTIONS, WORKER_CODE, PACKAGE_ROOT]
BY_SHELL = ["/bin/sh", str(LAUNCHER), sys.executable, PACKAGE_ROOT]
PATIENCE_S = 60.0
HOOK_BUDGET_S = 5.0  # generous, for a busy machine; benchmarks/ has the real figure
_numbers = itertools.count()


@dataclass
class Judged:
    """The number of expected spans and of repeats."""

    spans: int = 0
    repeats: int = 0


class World:
    """A separate home, with a story that can be played moment by moment."""

    def __init__(self, base, sink, story=None, **env):
        self.base = base
        self.sink = sink
        self.claude = base / "claude"
        self.projects = self.claude / "projects"
        self.home = self.claude / "turnspan"
        self.story = story or loom()
        self.token = f"{os.getpid()}-{next(_numbers)}"
        self.env = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(base),
            "CLAUDE_CONFIG_DIR": str(self.claude),
            "TURNSPAN_OTLP_ENDPOINT": sink.url,
            "TURNSPAN_OTLP_TIMEOUT_S": "5",
            "FAULTS_WORLD": self.token,
            **env,
        }
        self.projects.mkdir(parents=True)
        self.clock_s = time.time()  # for `serve` in this process; real workers use the real clock
        self.hook_s: list[float] = []

    # ---- how turnspan is called

    def payload(self, number):
        """Let the files grow to their sizes at a moment, and return the hook's payload."""
        self.story.put(self.projects, number)
        return self.story.moments[number].payload(self.projects)

    def call_hook(self, payload, *, command=HOOK, env=None, cwd=None, **options):
        """Run the hook as the client does; it must exit with 0, print nothing and be fast."""
        began = time.monotonic()
        done = subprocess.run(
            [*command], input=payload, capture_output=True, env={**self.env, **(env or {})}, cwd=cwd or self.base,
            timeout=PATIENCE_S, check=False, **options,
        )  # fmt: skip
        self.hook_s.append(time.monotonic() - began)
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
        assert self.hook_s[-1] < HOOK_BUDGET_S or command != HOOK  # strace also waits for the worker

    def start_hook(self, payload, *, command=HOOK, env=None):
        """Start the hook without waiting for it, to run several in parallel."""
        process = subprocess.Popen(
            [*command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            env={**self.env, **(env or {})}, cwd=self.base,
        )  # fmt: skip
        process.stdin.write(payload)
        process.stdin.close()
        return process

    def run_worker(self, payload, *, prefix=(), env=None, **options):
        """Run a worker until it exits; return its exit code."""
        return subprocess.run(
            [*prefix, *WORKER], input=payload, capture_output=True, env={**self.env, **(env or {})}, cwd=self.base,
            timeout=PATIENCE_S, check=False, **options,
        ).returncode  # fmt: skip

    def serve(self, payload):
        """Handle an event in this process, as a worker does; return the error that it would log."""
        state.state_directory.cache_clear()  # every worker is a new process
        try:
            serve(parse_event(payload), self.env, self.now, self.sleep)
        except (TurnspanError, OSError) as error:
            return str(error)
        return ""

    def now(self):
        """Return the time of this world."""
        return self.clock_s

    def sleep(self, seconds):
        """Advance the time of this world."""
        self.clock_s += seconds

    def wait(self):
        """Wait until all workers of this world have exited."""
        deadline = time.monotonic() + PATIENCE_S
        while workers := self.workers():
            assert time.monotonic() < deadline, f"still running: {workers}"
            time.sleep(0.01)

    def workers(self):
        """Return the running processes of this world."""
        return processes_with(f"FAULTS_WORLD={self.token}")

    # ---- playing the story

    def live(self, first=0, last=None):
        """Handle a range of moments in this process, without faults."""
        for number in range(first, len(self.story.moments) if last is None else last):
            assert self.serve(self.payload(number)) == ""

    def end(self):
        """Handle a SessionEnd of every session without a fault, after all faults."""
        self.story.put(self.projects, len(self.story.moments))
        for session in sorted(self.projects.glob("*/*.jsonl")):
            assert self.serve(self.end_of(session)) == ""

    def end_of(self, path):
        """Return the payload of a SessionEnd."""
        event = {"hook_event_name": "SessionEnd", "session_id": path.stem, "transcript_path": str(path), "cwd": "/"}
        return str(event).replace("'", '"').encode()

    def keep(self):
        """Save all files and stored spans; return a function that restores them."""
        kept = self.base / f"kept-{next(_numbers)}"
        shutil.copytree(self.claude, kept, symlinks=True)
        stored = list(self.sink.stored)

        def restore():
            shutil.rmtree(self.claude)
            shutil.copytree(kept, self.claude, symlinks=True)
            self.sink.stored[:] = stored
            self.sink.faults.clear()

        return restore

    # ---- results

    @property
    def log(self):
        """The lines of the log."""
        path = self.home / LOG_NAME
        return path.read_text().splitlines() if path.exists() else []

    def expected(self):
        """Return the spans of one reading of all files: (trace id, span id, start) → bytes."""
        target = Target(load_config(self.env).destinations[0], load_config(self.env))
        found = {}
        for session in all_sessions(self.projects):
            for trace in Reader.for_people().traces(session):
                masked = target.mask(trace)
                for key, content in spans_in(target.backend.encode([masked.trace])):
                    assert key not in found
                    found[key] = content
        return found

    def judge(self, *, may_repeat=False):
        """Check that no span was lost, changed, added, or sent twice after it was acknowledged."""
        expected = self.expected()
        stored = self.sink.stored
        counts = Counter(one.key for one in stored)
        lost = expected.keys() - counts.keys()
        assert not lost, f"lost: {sorted(lost)}"
        spurious = counts.keys() - expected.keys()
        assert not spurious, f"not in any transcript: {sorted(spurious)}"
        changed = [one.key for one in stored if one.content != expected[one.key]]
        assert not changed, f"arrived differently: {changed}"
        known = set()
        for one in stored:
            assert may_repeat or one.key not in known, f"twice: {one.key}"
            if one.is_acknowledged:
                known.add(one.key)
        assert not [line for line in self.log if " ERROR bug " in line], self.log
        return Judged(len(expected), len(stored) - len(counts))

    def go_on(self):
        """Check that a new turn of the first session is still exported."""
        writer = next(iter(self.story._writers.values()))
        writer.turn("Still there?", "Still here.")
        self.story.stop(writer)
        before = {one.key for one in self.sink.stored}
        assert self.serve(self.payload(len(self.story.moments) - 1)) == ""
        new = {one.key for one in self.sink.stored} - before
        assert len(new) == 2, f"{len(new)} spans of a new turn arrived"
        del writer.rows[-3:]
        self.story.moments.pop()
