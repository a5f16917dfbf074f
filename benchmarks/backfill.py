"""Backfill of an archive into local files and to an OTLP server, compared with `json.loads` on the same bytes.

    python benchmarks/backfill.py                         generates archives of 200 and 400 MB
    python benchmarks/backfill.py --megabytes 1000 --sessions 3000
    python benchmarks/backfill.py ARCHIVE…                directories that contain `projects`
    … --jobs 1 2 --rounds 3 --capture full --json

- It times the command that users run, with an empty state each time: start-up, processes and syncs included.
- CPU seconds are those of all its processes; wall seconds depend on the load of the machine. `x json` compares CPU
  seconds; `wall x` is the speed-up over one job.
- The server is a separate process that reads and acknowledges requests; its cost is not counted.
- Peak memory is that of the largest process.
- `--sync-ms 5` simulates a disk on which each sync takes so long, `--sync-ms 0` one on which it takes no time.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

GOAL = 0.3  # times as fast as json.loads, on one core, with everything captured
GOAL_TWO = 1.8  # times that, on two
START = "from turnspan.cli import main; main()"
JSON_LOADS = """
import json, os, pathlib, sys
processes, number = int(sys.argv[2]), 0
while number < processes - 1 and not os.fork():
    number += 1
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.jsonl"))[number::processes]:
    with path.open("rb") as lines:
        for line in lines:
            json.loads(line)
if number < processes - 1:
    os.wait()
"""
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"


# Python imports these modules when it starts, in every process of a backfill.
SLOW_DISK = """
import os, time
def fsync(_descriptor, seconds=float(os.environ["BENCHMARK_SYNC_S"])):
    time.sleep(seconds)
os.fsync = fsync
"""
WITHOUT_FAST = """
import sys
sys.modules["isal"] = None
"""


class Run(NamedTuple):
    """The cost of a command."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    out: str


def timed(command: list[str], env: dict[str, str]) -> Run:
    """Run a command; return the cost of all its processes."""
    with tempfile.TemporaryFile() as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=env, stdout=out, stderr=subprocess.DEVNULL)
        _, status, used = os.wait4(process.pid, 0)
        wall_s = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{command} exited with {process.returncode}")
        out.seek(0)
        output = out.read().decode()
    peak_mb = used.ru_maxrss / (1 << 20 if sys.platform == "darwin" else 1 << 10)  # macOS counts bytes, Linux KB
    return Run(wall_s, used.ru_utime + used.ru_stime, peak_mb, output)


# ---------------------------------------------------------------- the server


def serve() -> None:
    """Print the port, then acknowledge every request."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=_take, args=(connection,), daemon=True).start()


def _exit_with_parent() -> None:
    sys.stdin.read()
    os._exit(0)


def _take(connection: socket.socket) -> None:
    with connection, connection.makefile("rb") as stream:
        while stream.readline():
            size = 0
            while (line := stream.readline().strip()) != b"":
                name, _, value = line.partition(b":")
                if name.lower() == b"content-length":
                    size = int(value)
            stream.read(size)
            connection.sendall(ANSWER)


@contextmanager
def server() -> Iterator[str]:
    """Start a server in a separate process and yield its URL."""
    process = subprocess.Popen(
        [sys.executable, __file__, "--serve"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        process.stdin.close()


# ---------------------------------------------------------------- measuring


def measure(archive: Path, jobs: list[int], rounds: int, capture: str, sync_ms: float | None = None) -> dict[str, Any]:
    """Run every task on one archive, interleaved."""
    files = list((archive / "projects").rglob("*.jsonl"))
    size = sum(path.stat().st_size for path in files)
    runs: dict[str, list[Run]] = {}
    with server() as url:
        for _ in range(rounds):
            runs.setdefault("json.loads", []).append(json_loads(archive))
            for target in ("local", "otlp"):
                for count in jobs:
                    name = f"{target}, {count} job{'s' if count > 1 else ''}"
                    there = url if target == "otlp" else ""
                    runs.setdefault(name, []).append(backfill(archive, count, capture, there, sync_ms))
    base = min(run.cpu_s for run in runs["json.loads"])
    rows = []
    for name, done in runs.items():
        best = min(done, key=lambda run: run.cpu_s)
        fastest = min(run.wall_s for run in done)
        first = min(run.wall_s for run in runs.get(f"{name.partition(',')[0]}, 1 job", done))
        record = json.loads(best.out) if best.out else {}
        rows.append(
            {
                "task": name,
                "cpu_s": best.cpu_s,
                "wall_s": fastest,
                "mb_per_cpu_s": size / 1e6 / best.cpu_s,
                "mb_per_wall_s": size / 1e6 / fastest,
                "times_json_loads": base / best.cpu_s,
                "times_one_job": first / fastest,
                "turns_per_s": record.get("turns", 0) / fastest,
                "turns": record.get("turns"),
                "spans": record.get("spans"),
                "peak_mb": max(run.peak_mb for run in done),
            }
        )
    return {
        "path": str(archive),
        "bytes": size,
        "files": len(files),
        "capture": capture,
        "rounds": rounds,
        "rows": rows,
    }


def json_loads(archive: Path, processes: int = 1) -> Run:
    """Run the reference task; with two processes, the speed-up this machine gives to independent work."""
    return timed([sys.executable, "-c", JSON_LOADS, str(archive), str(processes)], dict(os.environ))


def backfill(archive: Path, jobs: int, capture: str, url: str = "", sync_ms: float | None = None, **more: Any) -> Run:
    """Run one backfill with an empty state; `sync_ms` is how long a sync takes, if not what the disk needs."""
    with empty_home() as home:
        return command(home, capture, "backfill", archive, "--jobs", jobs, url=url, sync_ms=sync_ms, **more)


def verify(archive: Path, capture: str) -> tuple[Run, Run, Run]:
    """Run a dry run of everything, a check of everything, and a backfill with nothing to do, after a backfill."""
    with empty_home() as home:
        command(home, capture, "backfill", archive)
        dry_run = command(home, capture, "backfill", archive, "--dry-run", "--resend", "--jobs", 1)
        return dry_run, command(home, capture, "verify", archive), command(home, capture, "backfill", archive)


@contextmanager
def empty_home() -> Iterator[Path]:
    """Yield an empty home. Its traces are deleted after the run, its small files when the benchmark ends.

    For some seconds, an ext4 without a journal does not use the inodes of deleted files: after a thousand of them, each
    file that the next run creates would search for a free one.
    """
    home = Path(tempfile.mkdtemp(dir=scratch().name))
    try:
        yield home
    finally:
        shutil.rmtree(home / "turnspan" / "traces", ignore_errors=True)


@cache
def scratch() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory()


def command(
    home: Path,
    capture: str,
    *arguments: object,
    url: str = "",
    sync_ms: float | None = None,
    compression: str = "",
    is_fast: bool = True,
) -> Run:
    """Run a command with a home of its own; not `is_fast`: as if `turnspan[fast]` were not installed."""
    kept = ("PATH", "LANG", "PYTHONPATH", "SYSTEMROOT")  # not PYTHONDONTWRITEBYTECODE: every run would compile
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {"HOME": str(home), "CLAUDE_CONFIG_DIR": str(home), "TURNSPAN_CAPTURE": capture}
    env |= {"TURNSPAN_OTLP_ENDPOINT": url} if url else {}
    env |= {"TURNSPAN_OTLP_COMPRESSION": compression} if compression else {}
    line = [sys.executable, "-c", START, *map(str, arguments), "--json"]
    patch = ("" if sync_ms is None else SLOW_DISK) + ("" if is_fast else WITHOUT_FAST)
    if not patch:
        return timed(line, env)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "sitecustomize.py").write_text(patch)
        path = os.pathsep.join(filter(None, (folder, env.get("PYTHONPATH", ""))))
        return timed(line, env | {"PYTHONPATH": path, "BENCHMARK_SYNC_S": str((sync_ms or 0) / 1000)})


def table(result: dict[str, Any]) -> str:
    head = f"{'':15} {'CPU s':>8} {'wall s':>8} {'MB/CPU s':>9} {'MB/s':>7} {'x json':>7} {'wall x':>7}"
    made_of = f"{result['bytes'] / 1e6:,.0f} MB in {result['files']:,} files"
    lines = [
        f"{result['path']}: {made_of}, capture {result['capture']}, best of {result['rounds']}",
        f"{head} {'turns/s':>8} {'turns':>8} {'spans':>9} {'peak MB':>8}",
    ]
    for row in result["rows"]:
        figures = (
            f"{row['task']:15} {row['cpu_s']:8.2f} {row['wall_s']:8.2f} {row['mb_per_cpu_s']:9.1f} "
            f"{row['mb_per_wall_s']:7.1f} {row['times_json_loads']:7.2f} {row['times_one_job']:7.2f}"
        )
        if row["turns"] is None:
            lines.append(f"{figures} {'-':>8} {'-':>8} {'-':>9} {row['peak_mb']:8.0f}")
            continue
        verdict = ""
        if row["task"].endswith("1 job"):
            verdict = f"  goal {GOAL} x json: {'met' if row['times_json_loads'] >= GOAL else 'MISSED'}"
        elif row["task"].endswith("2 jobs"):
            verdict = f"  goal {GOAL_TWO} x one job: {'met' if row['times_one_job'] >= GOAL_TWO else 'MISSED'}"
        lines.append(
            f"{figures} {row['turns_per_s']:8.0f} {row['turns']:8,} {row['spans']:9,} {row['peak_mb']:8.0f}{verdict}"
        )
    return "\n".join(lines)


def doubling(results: list[dict[str, Any]]) -> str:
    """Compare the CPU seconds of the first archive with those of each further one."""
    lines = []
    first = results[0]
    for other in results[1:]:
        times = other["bytes"] / first["bytes"]
        for before, after in zip(first["rows"], other["rows"], strict=True):
            growth = after["cpu_s"] / before["cpu_s"]
            lines.append(f"{times:.2f} times the bytes: {after['task']:15} {growth:5.2f} times the CPU seconds")
    return "\n".join(lines)


def made(below: Path, megabytes: float, sessions: int) -> Path:
    """Generate an archive in a separate process: a child's peak memory includes its parent's when it started."""
    out = below / f"{megabytes:g}-mb"
    generator = Path(__file__).with_name("generate.py")
    command = [sys.executable, str(generator), str(out), "--megabytes", str(megabytes), "--sessions", str(sessions)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("archives", type=Path, nargs="*", help="directories that contain `projects`")
    parser.add_argument(
        "--megabytes", type=float, default=200, help="size of the first archive to generate; the second is twice that"
    )
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--jobs", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--capture", default="full", choices=("full", "redacted", "metadata"))
    parser.add_argument("--sync-ms", type=float, help="how long a sync takes, in milliseconds")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve()
    below = Path(tempfile.mkdtemp())
    try:
        archives = options.archives or [
            made(below, options.megabytes * times, options.sessions * times) for times in (1, 2)
        ]
        results = []
        for archive in archives:
            results.append(measure(archive, options.jobs, options.rounds, options.capture, options.sync_ms))
            if not options.json:
                print(table(results[-1]), end="\n\n", flush=True)
    finally:
        shutil.rmtree(below)
    if options.json:
        print(json.dumps(results, indent=1))
    elif len(results) > 1:
        print(doubling(results))


if __name__ == "__main__":
    main()
