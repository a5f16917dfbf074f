"""Measure all goals for speed and memory, and print them as one table.

    python -m benchmarks                       everything: about a quarter of an hour, 3 GB of generated transcripts
    python -m benchmarks --quick               the same with short sessions and a small archive: a few minutes
    python -m benchmarks secrets               which secrets masking misses, and what it masks wrongly
    python -m benchmarks passwords             which passwords it misses, by form, and which lines of code it masks
    … --data DIRECTORY --only event hook --json --write docs/performance.md

- Each row is measured next to its yardstick, in the same run, interleaved. The goal applies to the ratio of the minima;
  the ratio of the medians shows how busy the machine was.
- `--data` is a directory for generated transcripts, which the next run reuses.
- `--write` replaces the table between the markers of a file.
- A missed goal is marked in the table. It is not an error: benchmarks are not tests.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import backfill  # noqa: E402  the other files are scripts that import each other by name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BEGIN, END = "<!-- benchmarks: begin -->", "<!-- benchmarks: end -->"


class Row(NamedTuple):
    """One row of the table. `is_most`: the goal is an upper bound, else a lower bound."""

    what: str
    next_to: str
    goal: float
    is_most: bool
    best: float  # the ratio of the minima, or an absolute figure
    median: float | None
    detail: str = ""
    unit: str = "x"

    @property
    def is_met(self) -> bool:
        slack = 1.1 if self.goal == 1.0 else 1.0  # "equal" needs a tolerance for noise
        return self.best <= self.goal * slack if self.is_most else self.best >= self.goal


class Size(NamedTuple):
    """The amount of work in a run."""

    lengths: tuple[int, ...]
    megabytes: int
    sessions: int
    rounds: int
    event_rounds: int
    hook_rounds: int
    backfills: int


FULL = Size((10, 100, 1000, 10_000), 1000, 3000, 9, 25, 40, 2)
QUICK = Size((10, 100, 1000), 60, 180, 5, 5, 20, 3)


def script(name: str, *options: str) -> Any:
    """Run another benchmark; return its JSON output."""
    command = [sys.executable, str(HERE / name), *options, "--json"]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=False)
    if done.returncode:
        sys.exit(f"{name} exited with {done.returncode}")
    return json.loads(done.stdout)


def hook_rows(size: Size, _: Path) -> Iterator[Row]:
    found = {row["what"]: row for row in script("hook.py", "--rounds", str(size.hook_rounds))}
    for what, name in (("hook through the launcher", "launcher"), ("hook through Python", "python hook")):
        row = found[name]
        detail = f"{row['min_ms']:.1f} ms"
        yield Row(what, f"`{row['next to']}`", row["goal"], True, row["min_ratio"], row["median_ratio"], detail)
    for what, name in (("launcher", "launcher"), ("Python hook", "python hook")):
        left_open, closed = found[f"{name}, stdin left open"], found[name]
        ratio, median = (left_open[key] / closed[key] for key in ("min_ms", "median_ms"))
        yield Row(f"{what}, stdin left open", "the same, closed", 1.0, True, ratio, median)
    for name, row in found.items():
        if name.startswith("state"):
            yield Row(name, "fsync and rename of a small file", 2.0, True, row["min_ratio"], row["median_ratio"])


def event_rows(size: Size, data: Path) -> Iterator[Row]:
    lengths = [str(length) for length in size.lengths]
    for row in script("event.py", "--turns", *lengths, "--rounds", str(size.event_rounds), "--data", str(data))["rows"]:
        detail = f"{row['min']:.0f} {row['unit']}"
        if "instructions_ratio" in row:
            detail += f"; {row['instructions_ratio']:.2f} x in instructions"
        yield Row(row["what"], row["next to"], row["goal"], True, row["min_ratio"], row["median_ratio"], detail)


def index_rows(size: Size, data: Path) -> Iterator[Row]:
    length, rounds = str(size.lengths[-1]), str(size.rounds)
    options = ("--megabytes", str(size.megabytes), "--sessions", str(size.sessions), "--turns", length)
    for row in script("index.py", *options, "--rounds", rounds, "--data", str(data))["rows"]:
        detail = f"{row['min']:.0f} {row['unit']}"
        if "instructions_ratio" in row:
            detail += f"; {row['instructions_ratio']:.2f} x in instructions"
        if "cpu_ratio" in row:
            detail += f"; {row['cpu_ratio']:.2f} x in CPU time of all processes"
        yield Row(row["what"], row["next to"], row["goal"], True, row["min_ratio"], row["median_ratio"], detail)


def core_rows(size: Size, data: Path) -> Iterator[Row]:
    length = size.lengths[-2]
    kept = data / f"turns{length}"
    if not kept.exists():
        generate(kept, "--turns", str(length))
    session = max((kept / "projects").glob("*/*.jsonl"), key=lambda path: path.stat().st_size)
    archive = archive_of(size, data) / "projects"
    found = script("core.py", str(archive), str(session), "--rounds", str(size.rounds))
    for what, measured in zip((f"an archive of {size.sessions:,} sessions", "one session"), found, strict=True):
        rows = {row["task"]: row for row in measured["rows"]}
        theirs, ours, floor = rows["json.loads"], rows["turnspan: traces"], rows["msgspec, untyped"]
        detail = f"{ours['mb_per_s']:.0f} MB/s; msgspec alone {floor['times_json_loads']:.1f} x"
        medians = theirs["cpu_s_median"] / ours["cpu_s_median"]
        best = ours["times_json_loads"]
        yield Row(f"bytes to traces, {what}, speed", "`json.loads`", 0.6, False, best, medians, detail)
    yield Row(f"memory, a session of {length:,} turns", "-", 150, True, ours["peak_mb"], None, unit="MB")


def backfill_rows(size: Size, data: Path) -> Iterator[Row]:
    archive = archive_of(size, data)
    tasks: dict[str, Callable[[str], backfill.Run]] = {
        "json": lambda _: backfill.json_loads(archive),
        "json, two": lambda _: backfill.json_loads(archive, 2),
        "local": lambda _: backfill.backfill(archive, 1, "full", ""),
        "local, two": lambda _: backfill.backfill(archive, 2, "full", ""),
        "otlp": lambda url: backfill.backfill(archive, 1, "redacted", url, compression="gzip", is_fast=False),
        "otlp, fast": lambda url: backfill.backfill(archive, 1, "redacted", url, compression="gzip"),
        "otlp, here": lambda url: backfill.backfill(archive, 1, "redacted", url),
        "no syncs": lambda _: backfill.backfill(archive, 1, "full", sync_ms=0),
        "slow disk": lambda _: backfill.backfill(archive, 1, "full", sync_ms=5),
    }
    if not has_fast_gzip():
        del tasks["otlp, fast"]
    runs: dict[str, list[backfill.Run]] = {name: [] for name in tasks}
    with backfill.server() as url:
        for _ in range(size.backfills):
            for name, task in tasks.items():
                runs[name].append(task(url))

    def cpu(name: str, choose: Callable[[list[float]], float]) -> float:
        return choose([run.cpu_s for run in runs[name]])

    for name, what, goal in (
        ("local", "backfill into local files, `full`, one process", 0.3),
        ("otlp", "backfill over OTLP, `redacted`, one process", 0.2),
        ("otlp, fast", "the same with `turnspan[fast]`", 0.23),
        ("otlp, here", "the same to this machine, which needs no compression", 0.2),
    ):
        if name not in runs:
            continue
        best, median = (cpu("json", choose) / cpu(name, choose) for choose in (min, statistics.median))
        detail = f"{megabytes(archive) / cpu(name, min):.0f} MB/s"
        yield Row(f"{what}, speed", "`json.loads`", goal, False, best, median, detail)
    walls = {name: [run.wall_s for run in done] for name, done in runs.items()}
    best, median = (choose(walls["local"]) / choose(walls["local, two"]) for choose in (min, statistics.median))
    detail = f"by the clock; `json.loads` {min(walls['json']) / min(walls['json, two']):.2f} x"
    yield Row("backfill, two processes, speed", "one", 1.8, False, best, median, detail)
    best, median = (choose(walls["slow disk"]) / choose(walls["no syncs"]) for choose in (min, statistics.median))
    detail = "by the clock, simulated"
    yield Row("backfill, a sync takes 5 ms", "a sync takes no time", 1.2, True, best, median, detail)
    peak = max(run.peak_mb for name, done in runs.items() if not name.startswith("json") for run in done)
    yield Row(f"memory, a backfill of {size.megabytes:,} MB", "-", 150, True, peak, None, unit="MB")
    yield from verify_rows(archive, size)


def verify_rows(archive: Path, size: Size) -> Iterator[Row]:
    runs = [backfill.verify(archive, "full") for _ in range(size.backfills)]
    dry_runs, checks, idle = ([run.cpu_s for run in column] for column in zip(*runs, strict=True))
    best, median = (choose(checks) / choose(dry_runs) for choose in (min, statistics.median))
    yield Row("verify, local files, CPU", "a dry run of everything", 1.5, True, best, median)
    peak = max(check.peak_mb for _, check, _ in runs)
    yield Row(f"memory, verify of {size.megabytes:,} MB", "-", 100, True, peak, None, unit="MB")
    start = min(backfill.timed([sys.executable, "-c", "import click, rich.table"], {}).cpu_s for _ in range(5))
    detail = f"{min(idle) * 1000:.0f} ms CPU for {size.sessions:,} sessions"
    yield Row("backfill, nothing to do", "importing click and rich", 10, True, min(idle) / start, None, detail)


def has_fast_gzip() -> bool:
    """Whether `turnspan[fast]` is installed."""
    return find_spec("isal") is not None


def encode_rows(_: Size, __: Path) -> Iterator[Row]:
    found = script("encode.py")
    theirs, ours = found["rows"][:2]
    median = theirs["median_us"] / ours["median_us"]
    yield Row(
        "encoding, speed", "the SDK's `encode_spans`", 3.0, False, ours["times_as_fast"], median, "the same bytes"
    )


def masking_rows(_: Size, __: Path) -> Iterator[Row]:
    found = script("masking.py")
    detail = f"a piece at a time; one trace at a time {found['redact, singly'] / found['encode, singly']:.2f} x"
    yield Row("masking secrets", "encoding the same spans", 1.0, True, found["redact"] / found["encode"], None, detail)


PARTS: dict[str, Callable[[Size, Path], Iterator[Row]]] = {
    "hook": hook_rows,
    "event": event_rows,
    "index": index_rows,
    "core": core_rows,
    "backfill": backfill_rows,
    "encode": encode_rows,
    "masking": masking_rows,
}


def archive_of(size: Size, data: Path) -> Path:
    """Return the generated archive."""
    archive = data / f"archive{size.megabytes}"
    if not archive.exists():
        generate(archive, "--megabytes", str(size.megabytes), "--sessions", str(size.sessions))
    return archive


def generate(out: Path, *options: str) -> None:
    command = [sys.executable, str(HERE / "generate.py"), str(out), *options]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def megabytes(archive: Path) -> float:
    return sum(path.stat().st_size for path in (archive / "projects").rglob("*.jsonl")) / 1e6


def table(rows: list[Row], took_s: float, *, is_quick: bool) -> str:
    lines = ["| what | next to | goal | measured | medians | |", "|---|---|---|---|---|---|"]
    for row in rows:
        digits = ".0f" if row.unit == "MB" else ".2f"
        goal = f"{'at most' if row.is_most else 'at least'} {row.goal:g} {row.unit}"
        median = "" if row.median is None else f"{row.median:{digits}} {row.unit}"
        verdict = row.detail if row.is_met else ", ".join(filter(None, ("**missed**", row.detail)))
        lines.append(f"| {row.what} | {row.next_to} | {goal} | {row.best:{digits}} {row.unit} | {median} | {verdict} |")
    missed = sum(not row.is_met for row in rows)
    cores = f"{os.cpu_count()} cores, load {os.getloadavg()[0]:.1f} at the end"
    how = "`--quick`, " if is_quick else ""
    where = f"{how}Python {sys.version.split()[0]}, {cores}, {took_s:.0f} s"
    lines += ["", f"{len(rows) - missed} of {len(rows)} goals met ({where})."]
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Replace the table between the markers of a file."""
    before, _, rest = path.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    if not rest:
        sys.exit(f"{path} has no marker {BEGIN}")
    path.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")


def main() -> None:
    for name, file in (("secrets", "leaks.py"), ("passwords", "passwords.py")):
        if sys.argv[1:2] == [name]:
            sys.exit(subprocess.run([sys.executable, str(HERE / file), *sys.argv[2:]], check=False).returncode)
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="short sessions, a small archive, fewer rounds")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS), help="run only these parts")
    parser.add_argument("--data", type=Path, help="directory for generated transcripts, reused by the next run")
    parser.add_argument("--write", type=Path, help="write the table between the markers of this file")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    size = QUICK if options.quick else FULL
    began = time.monotonic()
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch)
        data.mkdir(parents=True, exist_ok=True)
        for name in options.only:
            print(f"{name} …", file=sys.stderr, flush=True)
            rows += PARTS[name](size, data)
    text = table(rows, time.monotonic() - began, is_quick=options.quick)
    if options.write:
        write(options.write, text)
    print(json.dumps([row._asdict() | {"is_met": row.is_met} for row in rows], indent=1) if options.json else text)


if __name__ == "__main__":
    main()
