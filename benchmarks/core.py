"""Transcripts to traces on one core, compared with reading and parsing the same bytes.

    python benchmarks/core.py PATH…                 transcripts, or directories of them
    python benchmarks/core.py --turns 10 100 1000   generated sessions of these lengths
    … --rounds 7 --instructions --json

- Every run is a separate process that times only its work: CPU seconds, wall seconds, peak memory.
- Runs are interleaved, so that load on the machine affects all of them equally; the minimum of the CPU seconds counts,
  the median shows how busy the machine was.
- All tasks read the same files: a session's transcript and those of its subagents.
- `--instructions` counts executed instructions with valgrind: slow, and the same on any machine.
"""

from __future__ import annotations

import argparse
import gc
import json
import re
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOAL = 0.6  # times as fast as json.loads
COUNTING = ("valgrind", "--tool=cachegrind", "--cache-sim=no", "--cachegrind-out-file=/dev/null")


def session_files(path: Path) -> Iterator[Path]:
    """A transcript and its subagents' files, or all transcripts below a directory."""
    if path.is_dir():
        yield from sorted(path.rglob("*.jsonl"))
        return
    yield path
    yield from sorted((path.with_suffix("") / "subagents").rglob("agent-*.jsonl"))
    owner = f'"sessionId":"{path.stem}"'.encode()
    for flat in sorted(path.parent.glob("agent-*.jsonl")):
        with flat.open("rb") as file:
            if owner in file.readline():
                yield flat


def do_nothing(_: Path) -> int:
    return 0


def read_bytes(path: Path) -> int:
    size = 0
    for file in session_files(path):
        with file.open("rb") as lines:
            for line in lines:
                size += len(line)
    return size


def decode_json(path: Path) -> int:
    rows = 0
    for file in session_files(path):
        with file.open("rb") as lines:
            for line in lines:
                json.loads(line)
                rows += 1
    return rows


def decode_msgspec(path: Path) -> int:
    import msgspec  # noqa: PLC0415

    decode = msgspec.json.Decoder().decode
    rows = 0
    for file in session_files(path):
        with file.open("rb") as lines:
            for line in lines:
                try:
                    decode(line)
                except msgspec.DecodeError:  # a lone surrogate: json takes it
                    json.loads(line)
                rows += 1
    return rows


def build_all(path: Path) -> int:
    """Build every trace of the sessions at `path`, as a backfill does; return the number of spans."""
    from turnspan.source.reader import Reader  # noqa: PLC0415  `event` imports this module without it
    from turnspan.source.sessions import session_at  # noqa: PLC0415

    sessions = [path]
    if path.is_dir():
        sessions = [file for file in session_files(path) if not file.name.startswith("agent-")]
    return sum(len(trace.spans) for session in sessions for trace in Reader.for_people().traces(session_at(session)))


TASKS: dict[str, Callable[[Path], int]] = {
    "read the lines": read_bytes,
    "msgspec, untyped": decode_msgspec,
    "json.loads": decode_json,
    "turnspan: traces": build_all,
}
WARM = {"nothing": do_nothing, **TASKS}


def run_here(task: str, path: Path) -> None:
    """Run a task once, in a child process, and print what it took."""
    import turnspan.source.reader  # noqa: F401, PLC0415  start-up is measured elsewhere

    gc.set_threshold(100_000)  # as in every process of turnspan that reads transcripts
    began, cpu_began = time.perf_counter(), time.process_time()
    made = WARM[task](path)
    cpu_s, wall_s = time.process_time() - cpu_began, time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    peak_mb = peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # macOS counts bytes, Linux KB
    print(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s, "peak_mb": peak_mb, "made": made}))


def run_child(task: str, path: Path, *prefix: str) -> subprocess.CompletedProcess[str]:
    command = [*prefix, sys.executable, __file__, "--child", task, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{task} failed on {path}:\n{done.stderr}")
    return done


def count_instructions(task: str, path: Path) -> int:
    """Count the instructions of a task, start-up included."""
    return instructions_in(run_child(task, path, *COUNTING).stderr)


def instructions_in(output: str) -> int:
    """Return the number of instructions in valgrind's output."""
    found = re.search(r"I\s+refs:\s+([\d,]+)", output)
    if not found:
        sys.exit(f"valgrind printed no number of instructions:\n{output}")
    return int(found[1].replace(",", ""))


def measure(path: Path, rounds: int, *, with_instructions: bool) -> dict[str, Any]:
    """Run all tasks on one path, interleaved."""
    size = sum(file.stat().st_size for file in session_files(path))
    runs: dict[str, list[dict[str, float]]] = {task: [] for task in TASKS}
    for _ in range(rounds):
        for task in TASKS:
            runs[task].append(json.loads(run_child(task, path).stdout))
    base = min(run["cpu_s"] for run in runs["json.loads"])
    rows: list[dict[str, Any]] = []
    for task, done in runs.items():
        best = min(run["cpu_s"] for run in done)
        row = {
            "task": task,
            "cpu_s_min": best,
            "cpu_s_median": statistics.median(run["cpu_s"] for run in done),
            "wall_s_min": min(run["wall_s"] for run in done),
            "mb_per_s": size / 1e6 / best,
            "times_json_loads": base / best,
            "peak_mb": max(run["peak_mb"] for run in done),
            "made": done[0]["made"],
        }
        if with_instructions:
            row["instructions_per_byte"] = (count_instructions(task, path) - count_instructions("nothing", path)) / size
        rows.append(row)
    return {"path": str(path), "bytes": size, "rounds": rounds, "rows": rows}


def table(result: dict[str, Any]) -> str:
    lines = [
        f"{result['path']}: {result['bytes'] / 1e6:,.1f} MB, best of {result['rounds']}",
        f"{'':18} {'CPU s':>8} {'median':>8} {'MB/s':>8} {'x json':>7} {'peak MB':>8} {'instr/B':>8} {'made':>10}",
    ]
    for row in result["rows"]:
        instructions = f"{row['instructions_per_byte']:8.1f}" if "instructions_per_byte" in row else f"{'-':>8}"
        figures = (
            f"{row['cpu_s_min']:8.3f} {row['cpu_s_median']:8.3f} {row['mb_per_s']:8.0f} {row['times_json_loads']:7.2f}"
        )
        verdict = ""
        if row["task"].startswith("turnspan"):
            met = row["times_json_loads"] >= GOAL
            verdict = f"  goal {GOAL:g} x: {'met' if met else 'MISSED'}"
        lines.append(f"{row['task']:18} {figures} {row['peak_mb']:8.0f} {instructions} {row['made']:10,}{verdict}")
    return "\n".join(lines)


def made_sessions(turns: list[int], below: Path) -> list[Path]:
    """Generate one session for each length.

    In a separate process: the peak memory of a child is never less than its parent's when it started.
    """
    paths = []
    for count in turns:
        out = below / f"{count}-turns"
        command = [sys.executable, str(Path(__file__).with_name("generate.py")), str(out), "--turns", str(count)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        paths.append(max((out / "projects").glob("*/*.jsonl"), key=lambda path: path.stat().st_size))
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("paths", type=Path, nargs="*", help="transcripts, or directories of them")
    parser.add_argument("--turns", type=int, nargs="+", default=[], help="lengths of sessions to generate and measure")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--instructions", action="store_true", help="count instructions with valgrind: use a small file"
    )
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        run_here(options.child, options.paths[0])
        return
    if options.instructions and not shutil.which("valgrind"):
        parser.error("--instructions needs valgrind")
    with tempfile.TemporaryDirectory() as folder:
        turns = options.turns if options.turns or options.paths else [1000]
        paths = [*options.paths, *made_sessions(turns, Path(folder))]
        results = []
        for path in paths:
            results.append(measure(path, options.rounds, with_instructions=options.instructions))
            if not options.json:
                print(table(results[-1]), end="\n\n")
    if options.json:
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
