"""Plays stories with one client version, several in parallel, and judges each: names → outcomes.

Rules: each story has its own process and directory. A story that could not be played is an outcome, too, with the reason
and the terminal's last screen. `with_turnspan=False` installs only the recording hook, to observe the client itself.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import time
import traceback
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from .judge import judge
from .scenarios import SCENARIOS
from .stage import Stage, Typed
from .time_shift import moved_back

if TYPE_CHECKING:
    from collections.abc import Iterator

WORKERS = 3  # a story mostly waits for its client, so two cores can run three
SETTLE_S = 20.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a story."""

    version: str
    scenario: str
    seconds: float
    problems: dict[str, list[str]]
    figures: dict[str, int]
    notes: tuple[str, ...] = ()
    failure: str = ""  # why it could not be played
    hook_ms: tuple[int, ...] = ()  # durations of turnspan's Stop hook, measured by the client

    @property
    def is_right(self) -> bool:
        """Whether it was played without problems."""
        return not self.failure and not self.problems

    def report(self) -> str:
        """Return the failure and the problems as text."""
        lines = [f"{self.version} {self.scenario}: {self.failure}"] if self.failure else []
        lines += [f"{check}: {what}" for check, found in self.problems.items() for what in found[:6]]
        return "\n".join(lines)


def turnspan_program() -> list[str]:
    """Return the installed command."""
    script = Path(sys.executable).parent / "turnspan"
    return [str(script)] if script.exists() else [sys.executable, "-m", "turnspan"]


def _run_turnspan(stage: Stage, *arguments: str, **env: str) -> None:
    done = subprocess.run(
        [*turnspan_program(), *arguments],
        env={**stage.environment(), **env},
        cwd=stage.home.project,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        raise AssertionError(f"turnspan {arguments[0]} failed: {done.stdout[-500:]} {done.stderr[-500:]}")


def install_turnspan(stage: Stage) -> None:
    """Run `turnspan install`, next to the hook that is already registered."""
    stage.env["TURNSPAN_OTLP_ENDPOINT"] = stage.sink.url
    _run_turnspan(stage, "install")
    hooks = json.loads(stage.home.settings.read_text())["hooks"]
    assert len(hooks["Stop"]) >= 2, f"turnspan install registered nothing: {hooks}"


def backfill(stage: Stage) -> None:
    """Export the same transcripts again from another home, without any state.

    Their times are moved back by hours: a turn that has just ended is not sealed by its file alone.
    """
    elsewhere = stage.root / "elsewhere"
    shutil.copytree(stage.home.transcripts, elsewhere / ".claude" / "projects")
    for path in elsewhere.rglob("*.jsonl"):
        path.write_text(moved_back(path.read_text(errors="surrogateescape")), errors="surrogateescape")
    _run_turnspan(stage, "backfill", HOME=str(elsewhere), TURNSPAN_OTLP_ENDPOINT=stage.second_sink.url)


def play_one(version: str, name: str, root: Path, with_turnspan: bool = True) -> Outcome:
    """Play one story in an empty directory and judge it."""
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    began = time.monotonic()
    failure, notes = "", []
    try:
        with Stage(root, version, name, install_turnspan if with_turnspan else None) as stage:
            notes = stage.notes
            try:
                SCENARIOS[name].play(stage)
                stage.wait_for_quiet(SETTLE_S)
                if with_turnspan:
                    backfill(stage)
            finally:
                _keep_screens(stage)
    except (AssertionError, OSError, subprocess.SubprocessError) as exc:
        failure = "".join(traceback.format_exception_only(exc)).strip()[-1500:]
        (root / "failure.txt").write_text("".join(traceback.format_exception(exc)))
    judged = judge(root) if with_turnspan and (root / "meta.json").exists() else None
    problems, figures = (judged.problems, dict(judged.figures)) if judged else ({}, {})
    seconds = time.monotonic() - began
    return Outcome(version, name, seconds, problems, figures, tuple(notes), failure, tuple(_hook_times(root)))


def _hook_times(root: Path) -> Iterator[int]:
    for path in (root / "projects").rglob("*.jsonl"):
        for line in path.read_text(errors="replace").split("\n"):
            if '"stop_hook_summary"' in line:
                for hook in json.loads(line).get("hookInfos") or ():
                    if "recorder.py" not in hook["command"] and "durationMs" in hook:
                        yield int(hook["durationMs"])


def _keep_screens(stage: Stage) -> None:
    for number, client in enumerate(c for c in stage.open_clients if isinstance(c, Typed)):
        with contextlib.suppress(OSError, subprocess.SubprocessError):
            (stage.root / f"screen{number}.txt").write_text(client.terminal.screen())


def play_all(version: str, root: Path, names: list[str] | None = None, with_turnspan: bool = True) -> Iterator[Outcome]:
    """Play all stories that a version supports, longest first, so that the workers finish at about the same time."""
    chosen = [n for n in names or SCENARIOS if SCENARIOS[n].fits(version)]
    chosen.sort(key=lambda n: -SCENARIOS[n].weight)
    workers = int(os.environ.get("TURNSPAN_E2E_WORKERS") or WORKERS)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        jobs = [pool.submit(play_one, version, n, root / n, with_turnspan) for n in chosen]
        yield from (job.result() for job in as_completed(jobs))
