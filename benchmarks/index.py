#!/usr/bin/env python3
"""Measure the index: building it, finding it up to date, and bringing it up to date after one new turn.

    python benchmarks/index.py [--data DIRECTORY] [--megabytes N] [--sessions N] [--turns N] [--rounds N] [--json]

- Building: the time of `turnspan sessions` without an index, next to `bytes → traces` of the same files in one process.
  By the clock, because it uses several processes; the CPU time of all of them is in the last column.
- Up to date: the CPU time of `turnspan sessions`, next to `python -c "import click"`, on an archive and on one session.
- One new turn: the CPU time that `turnspan sessions` takes more than with nothing new, next to that of an event with
  one new turn (hook, worker and delivery into local files).
- With valgrind, instructions are counted, too: they do not depend on how busy the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import core  # noqa: E402  the other files are scripts that import each other by name
import event  # noqa: E402

CLICK = [sys.executable, "-c", "import click"]
SESSIONS = [sys.executable, "-m", "turnspan", "sessions"]
TRACES = """
import os, sys
from pathlib import Path
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions
for session in all_sessions(Path(sys.argv[1]) / "projects"):
    for trace in Reader.for_people().traces(session):
        pass
"""


def environment(home: Path) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home)}


def timed(command: list[str], home: Path) -> tuple[float, float]:
    """Run a command; return its time by the clock, and the CPU time of all its processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(command, env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall_s, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def instructions(command: list[str], home: Path) -> int | None:
    """Return the number of instructions of a command; None without valgrind."""
    if not shutil.which("valgrind"):
        return None
    done = subprocess.run(
        [*core.COUNTING, *command], env=environment(home), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, check=True
    )
    return core.instructions_in(done.stderr.decode())


def row(what: str, next_to: str, goal: float, ours: list[float], theirs: list[float], **more: Any) -> dict[str, Any]:
    return {
        "what": what, "next to": next_to, "goal": goal, "min": min(ours) * 1000, "unit": "ms",
        "min_ratio": min(ours) / min(theirs), "median_ratio": statistics.median(ours) / statistics.median(theirs),
        **more,
    }  # fmt: skip


def building(home: Path, name: str, rounds: int) -> dict[str, Any]:
    ours, theirs, cpu = [], [], []
    for _ in range(rounds):
        theirs.append(timed([sys.executable, "-c", TRACES, str(home)], home))
        shutil.rmtree(home / "turnspan", ignore_errors=True)
        ours.append(timed(SESSIONS, home))
        cpu.append(ours[-1][1] / theirs[-1][1])
    walls = [[wall for wall, _ in runs] for runs in (ours, theirs)]
    return row(f"building the index, {name}", "bytes → traces", 1.5, *walls, cpu_ratio=min(cpu))


def up_to_date(home: Path, name: str, rounds: int) -> dict[str, Any]:
    timed(SESSIONS, home)
    ours, theirs = [], []
    for _ in range(rounds):
        theirs.append(timed(CLICK, home)[1])
        ours.append(timed(SESSIONS, home)[1])
    found = row(f"`sessions`, index up to date, {name}", '`python -c "import click"`', 3.0, ours, theirs)
    if (counted := instructions(SESSIONS, home)) is not None:
        yardstick = instructions(CLICK, home)
        found |= {"instructions": counted, "instructions_ratio": counted / (yardstick or 1)}
    return found


def one_new_turn(home: Path, name: str, rounds: int) -> dict[str, Any]:
    """Compare an update after one new turn with an event."""
    session = event.Session(home)
    timed(SESSIONS, home)
    event.through_hook(session, "")
    ours, theirs, counted = [], [], {}
    for _ in range(rounds):
        session.add_turn()
        updating = timed(SESSIONS, home)[1]
        ours.append(max(0.001, updating - timed(SESSIONS, home)[1]))
        theirs.append(event.through_hook(session, "").cpu_ms / 1000)
    if shutil.which("valgrind"):
        session.add_turn()
        update, nothing = (instructions(SESSIONS, home) or 0 for _ in range(2))
        yardstick = event.instructions(session, "")
        counted = {"instructions": update - nothing, "instructions_ratio": (update - nothing) / yardstick}
    return row(f"index after one new turn, {name}", "an event", 1.0, ours, theirs, **counted)


def generated(data: Path, *options: str) -> Path:
    """Return a generated home, a new one if there is none with these options."""
    home = data / ("index" + "".join(options).replace("--", "-"))
    if not home.exists():
        command = [sys.executable, str(HERE / "generate.py"), str(home), *options]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return home


def measure(data: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    archive = generated(data, "--megabytes", str(options.megabytes), "--sessions", str(options.sessions))
    long = generated(data, "--turns", str(options.turns))
    names = {archive: f"{options.sessions:,} sessions", long: f"a session of {options.turns:,} turns"}
    rows = [building(home, name, options.builds) for home, name in names.items()]
    rows += [up_to_date(home, name, options.rounds) for home, name in names.items()]
    with tempfile.TemporaryDirectory() as scratch:  # the sessions grow: the next run needs them as they were
        for number, (home, name) in enumerate(names.items()):
            copy = Path(scratch) / str(number)
            shutil.copytree(home, copy)
            rows.append(one_new_turn(copy, name, options.rounds))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, help="directory for generated transcripts, reused by the next run")
    parser.add_argument("--megabytes", type=int, default=1000)
    parser.add_argument("--sessions", type=int, default=5000)
    parser.add_argument("--turns", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--builds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    event.adopt_orphans()
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch)
        data.mkdir(parents=True, exist_ok=True)
        rows = measure(data, options)
    if options.json:
        print(json.dumps({"rows": rows}, indent=1))
        return
    for each in rows:
        verdict = "" if each["min_ratio"] <= each["goal"] else "  MISSED"
        ratio = f"{each['min_ratio']:.2f} x {each['next to']} (medians {each['median_ratio']:.2f})"
        if "instructions_ratio" in each:
            verdict += (
                f"  {each['instructions'] / 1e6:.0f} million instructions, ratio {each['instructions_ratio']:.2f}"
            )
        if "cpu_ratio" in each:
            verdict += f"  CPU of all processes {each['cpu_ratio']:.2f} x"
        print(f"{each['what']}: {each['min']:.0f} ms, {ratio}; goal at most {each['goal']:g}{verdict}")


if __name__ == "__main__":
    main()
