"""Measure the hook next to starting a process, and state and locks next to one durable write.

    python benchmarks/hook.py [--rounds 40] [--json]

Each row alternates with its yardstick, because the machine may be busy: minima and medians. A hook's time ends when it
has exited and closed stdout and stderr. Its worker only starts here; the next measurement waits for it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from turnspan import hook
from turnspan.delivery import marks, state
from turnspan.delivery.prune import prune

LAUNCHER = Path(__file__).parent.parent / "hooks" / "turnspan-hook"
EVENT = json.dumps(
    {
        "session_id": "0f6c9a4e-1111-4222-8333-444455556666",
        "transcript_path": "/home/ada/.claude/projects/-home-ada/0f6c9a4e-1111-4222-8333-444455556666.jsonl",
        "hook_event_name": "Stop",
        "stop_hook_active": False,
        "last_assistant_message": "All tests pass now. " * 60,
    }
).encode()
WORKER = """
import os
from turnspan.hook import take_over
def main():
    take_over()
    os.mkdir(os.environ["DONE"])
"""


def time_process(command, env, *, is_left_open=False, has_worker=False):
    """Return the seconds until a process has exited and closed stdout and stderr."""
    start = time.perf_counter()
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, bufsize=0
    )
    with suppress(BrokenPipeError):  # a yardstick does not read
        process.stdin.write(EVENT)
    if not is_left_open:
        process.stdin.close()
    said = process.stdout.read() + process.stderr.read()
    process.wait()
    took_s = time.perf_counter() - start
    process.stdin.close()
    process.stdout.close()
    process.stderr.close()
    if said or process.returncode:
        raise SystemExit(f"{command[0]} printed {said!r} and exited with {process.returncode}")
    if has_worker:
        wait_for_worker(Path(env["DONE"]))
    return took_s


def wait_for_worker(done):
    """Wait for the worker, so that it does not disturb the next measurement."""
    deadline = time.monotonic() + 20
    while not done.exists():
        if time.monotonic() > deadline:
            raise SystemExit("the worker did not start")
        time.sleep(0.001)
    done.rmdir()


def time_durable_write(directory):
    """Return the seconds of the yardstick: write, fsync and rename one small file."""
    start = time.perf_counter()
    descriptor = os.open(directory / "new", os.O_WRONLY | os.O_CREAT, 0o600)
    os.write(descriptor, b"x" * 600)
    os.fsync(descriptor)
    os.close(descriptor)
    (directory / "new").replace(directory / "old")
    return time.perf_counter() - start


def time_state(home, session_id):
    """Return the seconds that an event with something new spends on its state."""

    def work(_marks, _is_locked):
        checkpoint = state.load(home, session_id).checkpoint
        state.probe_writable(home)
        state.save(home, checkpoint)

    start = time.perf_counter()
    marks.attend(home, session_id, {"event": "Stop"}, work)
    prune(home, time.time())
    return time.perf_counter() - start


def rows(scratch):
    """Yield name, name of the yardstick, goal, what to measure, and the yardstick."""
    root = scratch / "pkg"
    (root / "turnspan").mkdir(parents=True)
    (root / "turnspan" / "__init__.py").touch()
    (root / "turnspan" / "worker.py").write_text(WORKER)
    shutil.copy(hook.__file__, root / "turnspan" / "hook.py")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", scratch / "venv"], check=True)
    python = str(scratch / "venv" / "bin" / "python")
    env = {"PATH": "/usr/bin:/bin", "DONE": str(scratch / "done")}
    through_python = [python, *hook.HOOK_OPTIONS, hook.HOOK_CODE, str(root)]
    through_sh = ["/bin/sh", "-c", shlex.join([str(LAUNCHER), python, str(root)])]  # as the client runs it

    def of(command, **how):
        return lambda: time_process(command, env, **how)

    bare_python, bare_sh = of([python, "-I", "-S", "-c", "pass"]), of(["/bin/sh", "-c", ":"])
    yield "launcher", "sh -c :", 2.2, of(through_sh, has_worker=True), bare_sh
    yield "launcher, stdin left open", "sh -c :", 2.2, of(through_sh, has_worker=True, is_left_open=True), bare_sh
    yield "python hook", "python -I -S -c pass", 1.15, of(through_python, has_worker=True), bare_python
    yield (
        "python hook, stdin left open",
        "python -I -S -c pass",
        1.15,
        of(through_python, has_worker=True, is_left_open=True),
        bare_python,
    )
    for sessions in (1, 10_000):
        home = scratch / f"home-{sessions}"
        state.save(home, state.Checkpoint(session_id="s0", transcript="/p/q/s0.jsonl"))
        for number in range(1, sessions):
            shutil.copy(home / "state" / "s0.json", home / "state" / f"s{number}.json")
        prune(home, time.time())
        yield (
            f"state and lock, {sessions:,} sessions",
            "fsync + rename",
            2.0,
            lambda home=home: time_state(home, "s0"),
            lambda: time_durable_write(scratch),
        )


def main():
    """Measure and print a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        table = list(rows(Path(scratch)))
        samples = [([], []) for _ in table]
        for _ in range(options.rounds):
            for (_, _, _, measured, yardstick), (ours, theirs) in zip(table, samples, strict=True):
                theirs.append(yardstick() * 1000)
                ours.append(measured() * 1000)
    for (name, yardstick_name, goal, _, _), (ours, theirs) in zip(table, samples, strict=True):
        results.append(
            {
                "what": name,
                "next to": yardstick_name,
                "min_ms": min(ours),
                "median_ms": statistics.median(ours),
                "min_ratio": min(ours) / min(theirs),
                "median_ratio": statistics.median(ours) / statistics.median(theirs),
                "goal": goal,
            }
        )
    if options.json:
        print(json.dumps(results, indent=2))
        return
    print(
        f"{'what':34} {'next to':22} {'min ms':>8} {'median':>8} {'ratio of minima':>16} {'of medians':>11} {'goal':>6}"
    )
    for row in results:
        verdict = "" if row["min_ratio"] <= row["goal"] else "  falls short"
        print(
            f"{row['what']:34} {row['next to']:22} {row['min_ms']:8.2f} {row['median_ms']:8.2f}"
            f" {row['min_ratio']:16.2f} {row['median_ratio']:11.2f} {row['goal']:6.1f}{verdict}"
        )


if __name__ == "__main__":
    main()
