"""Measure one event, from the hook to the response of the backend: CPU and memory of the hook and the worker together.

    python benchmarks/event.py [--turns 10 100 1000 10000] [--rounds 9] [--data DIRECTORY] [--json]

- The session already has that many turns, all of them sent. An event adds one: a prompt, a tool call with 2 KB of
  result, a response. The next event adds nothing.
- Yardstick: `python -c "import opentelemetry.exporter.otlp.proto.http.trace_exporter"`, the cost of an exporter before
  it has read a line. All measurements are interleaved; minima and medians.
- The worker detaches from its parent, so this process adopts orphans below it and reads their usage when they exit.
  That requires Linux.
- With valgrind, the worker's instructions are also counted, once: they do not depend on how busy the machine is.
- During an outage the time of the hook counts: with the backend down, and with one that accepts a request and never
  responds, next to a backend that is up. By then the worker has noticed and backs off.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import backfill
import core

from turnspan import hook

if TYPE_CHECKING:
    from collections.abc import Iterator

LAUNCHER = Path(__file__).parent.parent / "hooks" / "turnspan-hook"
YARDSTICK = "import opentelemetry.exporter.otlp.proto.http.trace_exporter"
ADOPT_ORPHANS = 36  # prctl's PR_SET_CHILD_SUBREAPER
RESULT = "".join(f"src/module_{n}.py:{n}: def function_{n}(value):\n" for n in range(45))
GOAL, GOAL_NOTHING, GOAL_LENGTH = 1.0, 0.7, 1.1


class Cost(NamedTuple):
    """The cost of some processes."""

    cpu_ms: float
    peak_mb: float
    hook_ms: float  # until the hook has exited and closed its standard streams


class Session:
    """A generated session that grows by one turn at a time."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.path = max((home / "projects").glob("*/*.jsonl"), key=lambda path: path.stat().st_size)
        self._turns = 0

    def event(self, name: str) -> bytes:
        facts = {"hook_event_name": name, "session_id": self.path.stem, "transcript_path": str(self.path), "cwd": "/"}
        return json.dumps(facts).encode()

    def add_turn(self) -> None:
        """Append the rows that a client writes for one short turn."""
        self._turns += 1
        now = time.time_ns() // 1_000_000 - 1000  # the turn took a second and is over

        def row(kind: str, at: int, message: dict[str, Any], parent: int | None) -> dict[str, Any]:
            def uuid(number: int) -> str:
                return f"{now % 0xFFFFFFFF:08x}-0000-4000-8000-{number:012x}"

            seconds, ms = divmod(now + at * 100, 1000)
            return {
                "parentUuid": None if parent is None else uuid(parent),
                "isSidechain": False,
                "type": kind,
                "message": message,
                "uuid": uuid(at),
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + f".{ms:03}Z",
                "userType": "external",
                "cwd": "/",
                "sessionId": self.path.stem,
                "version": "2.1.325",
            }

        def said(message_id: str, block: dict[str, Any], reason: str) -> dict[str, Any]:
            usage = {"input_tokens": 5, "output_tokens": 40, "cache_read_input_tokens": 20_000}
            return {
                "id": f"{message_id}_{now}",
                "role": "assistant",
                "model": "claude-opus-5-5",
                "content": [block],
                "stop_reason": reason,
                "usage": usage,
            }

        call = f"toolu_{now}"
        ran = {"type": "tool_use", "id": call, "name": "Bash", "input": {"command": "rg function"}}
        rows = (
            row("user", 0, {"role": "user", "content": "Where are the functions?"}, None),
            row("assistant", 1, said("msg_a", ran, "tool_use"), 0),
            row(
                "user",
                2,
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call, "content": RESULT}]},
                1,
            ),
            row("assistant", 3, said("msg_b", {"type": "text", "text": "In forty-five modules."}, "end_turn"), 2),
        )
        with self.path.open("a") as file:
            file.writelines(json.dumps(line, separators=(",", ":")) + "\n" for line in rows)


def adopt_orphans() -> None:
    """Make this process the parent of orphaned descendants."""
    if not sys.platform.startswith("linux") or ctypes.CDLL(None).prctl(ADOPT_ORPHANS, 1, 0, 0, 0):
        sys.exit("this benchmark needs Linux: it reads the usage of a detached worker")


def children() -> set[int]:
    return set(map(int, Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()))


def run(command: list[str], env: dict[str, str], stdin: bytes = b"") -> Cost:
    """Run a command and wait for every process that it started."""
    before = children()
    began = time.perf_counter()
    process = subprocess.Popen(
        command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with suppress(BrokenPipeError):
        process.stdin.write(stdin)
    process.stdin.close()
    process.stdout.read()
    process.stdout.close()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    hook_ms = (time.perf_counter() - began) * 1000
    usages = [used]
    while orphans := children() - before:
        usages += [os.wait4(pid, 0)[2] for pid in orphans]
    cpu_s = sum(used.ru_utime + used.ru_stime for used in usages)
    peak_kb = max(used.ru_maxrss for used in usages)
    return Cost(cpu_s * 1000, peak_kb / 1024, hook_ms)


def environment(home: Path, url: str) -> dict[str, str]:
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "CLAUDE_CONFIG_DIR": str(home),
        "TURNSPAN_OTLP_ENDPOINT": url,
    }


def through_hook(session: Session, url: str, name: str = "Stop") -> Cost:
    command = [str(LAUNCHER), sys.executable, hook.PACKAGE_ROOT]
    return run(command, environment(session.home, url), session.event(name))


def instructions(session: Session, url: str) -> int:
    """Return the number of instructions of the worker for the next event."""
    command = [*core.COUNTING, sys.executable, *hook.WORKER_OPTIONS, hook.WORKER_CODE, hook.PACKAGE_ROOT]
    done = subprocess.run(
        command, env=environment(session.home, url), input=session.event("Stop"), stderr=subprocess.PIPE, check=True
    )
    return core.instructions_in(done.stderr.decode())


def yardstick_instructions() -> int:
    """Return the instructions of importing the OTLP/HTTP exporter."""
    done = subprocess.run([*core.COUNTING, sys.executable, "-c", YARDSTICK], stderr=subprocess.PIPE, check=True)
    return core.instructions_in(done.stderr.decode())


def last_log_line(session: Session) -> str:
    return (session.home / "turnspan" / "turnspan.log").read_text().splitlines()[-1]


@contextmanager
def prepared(turns: int, data: Path, url: str) -> Iterator[Session]:
    """A session that was sent completely, in its own home; generated files are kept in `data`."""
    kept = data / f"turns{turns}"
    if not kept.exists():
        generator = str(Path(__file__).with_name("generate.py"))
        subprocess.run(
            [sys.executable, generator, str(kept), "--turns", str(turns)], check=True, stdout=subprocess.DEVNULL
        )
    with tempfile.TemporaryDirectory(dir=data) as home:
        subprocess.run(["cp", "-r", "--reflink=auto", str(kept / "projects"), home], check=True)
        session = Session(Path(home))
        through_hook(session, url, "SessionEnd")
        if "turns=" not in last_log_line(session):
            sys.exit(f"nothing was sent: {last_log_line(session)}")
        yield session


def measure(lengths: list[int], rounds: int, data: Path) -> dict[str, Any]:
    """Measure events at all lengths, interleaved."""
    with backfill.server() as url:
        yardsticks: list[Cost] = []
        one: dict[int, list[Cost]] = {length: [] for length in lengths}
        nothing: dict[int, list[Cost]] = {length: [] for length in lengths}
        # One length after the other, because ten thousand turns are half a gigabyte; each with its own yardsticks.
        beside: dict[int, list[Cost]] = {length: [] for length in lengths}
        first = lengths[0]
        counted: dict[int, tuple[int, int]] = {}  # instructions with one new turn, and with nothing new
        with prepared(first, data, url) as short:
            for length in lengths:
                with prepared(length, data, url) as session:
                    for _ in range(rounds):
                        for each, costs in ((session, one[length]), (short, beside[length])):
                            each.add_turn()
                            costs.append(through_hook(each, url))
                            if "sent" not in last_log_line(each):
                                sys.exit(f"the turn was not sent: {last_log_line(each)}")
                        nothing[length].append(through_hook(session, url))
                        yardsticks.append(run([sys.executable, "-c", YARDSTICK], dict(os.environ)))
                    if shutil.which("valgrind"):
                        session.add_turn()
                        counted[length] = (instructions(session, url), instructions(session, url))
    rows = [
        row("event, one new turn", "importing the OTLP exporter", GOAL, one[first], yardsticks),
        row("event, nothing new", "importing the OTLP exporter", GOAL_NOTHING, nothing[first], yardsticks),
    ]
    if counted:
        yardstick = yardstick_instructions()
        for each, instructions_of in zip(rows, counted[first], strict=True):
            each["instructions"], each["instructions_ratio"] = instructions_of, instructions_of / yardstick
    for length in lengths[1:]:
        what = f"event after {length:,} turns"
        rows.append(row(what, f"after {first}", GOAL_LENGTH, one[length], beside[length]))
        if counted:
            rows[-1]["instructions"] = counted[length][0]
            rows[-1]["instructions_ratio"] = counted[length][0] / counted[first][0]
        rows.append(row(f"{what}, memory", f"after {first}", GOAL_LENGTH, one[length], beside[length], field="peak_mb"))
    return {"rounds": rounds, "rows": rows}


def row(
    what: str, next_to: str, goal: float, ours: list[Cost], theirs: list[Cost], *, field: str = "cpu_ms"
) -> dict[str, Any]:
    mine, other = ([getattr(cost, field) for cost in costs] for costs in (ours, theirs))
    return {
        "what": what,
        "next to": next_to,
        "unit": {"cpu_ms": "ms CPU", "peak_mb": "MB", "hook_ms": "ms"}[field],
        "min": min(mine),
        "median": statistics.median(mine),
        "min_ratio": min(mine) / min(other),
        "median_ratio": statistics.median(mine) / statistics.median(other),
        "goal": goal,
    }


# ---------------------------------------------------------------- outages


@contextmanager
def silent_server() -> Iterator[str]:
    """A backend that accepts connections and never responds."""
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"


def measure_outage(rounds: int, data: Path) -> list[dict[str, Any]]:
    """Measure the hook while the backend is down, next to one that is up."""
    with socket.create_server(("127.0.0.1", 0)) as unused:
        down = f"http://127.0.0.1:{unused.getsockname()[1]}"
    with backfill.server() as url, silent_server() as silent, prepared(10, data, url) as session:
        for away in (down, silent):
            session.add_turn()
            through_hook(session, away)
            if "backoff" not in last_log_line(session):
                sys.exit(f"the outage was not noticed: {last_log_line(session)}")
        costs: dict[str, list[Cost]] = {url: [], down: [], silent: []}
        for _ in range(rounds):
            for where, taken in costs.items():
                session.add_turn()
                taken.append(through_hook(session, where))
    return [
        row("hook, backend down", "backend up", 1.0, costs[down], costs[url], field="hook_ms"),
        row("hook, backend hanging", "backend up", 1.0, costs[silent], costs[url], field="hook_ms"),
    ]


def table(rows: list[dict[str, Any]]) -> str:
    figures = f"{'min':>8} {'median':>8} {'unit':8} {'ratio of minima':>16} {'of medians':>11} {'goal':>6}"
    lines = [f"{'what':34} {'next to':30} {figures}"]
    for each in rows:
        verdict = "" if each["min_ratio"] <= each["goal"] * (1.1 if each["goal"] == 1.0 else 1.0) else "  falls short"
        if "instructions_ratio" in each:
            millions = each["instructions"] / 1e6
            verdict += f"  {millions:.0f} million instructions, ratio {each['instructions_ratio']:.2f}"
        lines.append(
            f"{each['what']:34} {each['next to']:30} {each['min']:8.1f} {each['median']:8.1f} {each['unit']:8}"
            f" {each['min_ratio']:16.2f} {each['median_ratio']:11.2f} {each['goal']:6.1f}{verdict}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--turns", type=int, nargs="+", default=[10, 100, 1000, 10_000])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--data", type=Path, help="directory for generated sessions, reused by the next run")
    parser.add_argument("--no-outage", action="store_true", help="skip the hook during an outage, which takes a minute")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    adopt_orphans()
    with tempfile.TemporaryDirectory() as scratch:
        data = options.data or Path(scratch)
        data.mkdir(parents=True, exist_ok=True)
        result = measure(options.turns, options.rounds, data)
        if not options.no_outage:
            result["rows"] += measure_outage(min(options.rounds, 9), data)
    print(json.dumps(result, indent=1) if options.json else table(result["rows"]))


if __name__ == "__main__":
    main()
