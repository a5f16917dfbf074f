"""Runs the fuzzer: a target and some seconds → figures, and the bytes of a crash if there was one."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from .cases import seed_lines, seeds

TARGETS = ("lines", "path")
ROOT = Path(__file__).resolve().parents[2]
MAX_BYTES = {"lines": 3000, "path": 12_000}
TIMEOUT_S = 20  # for one input; a longer run counts as a crash
_EXECUTIONS = re.compile(r"stat::number_of_executed_units:\s*(\d+)")
_COVERED = re.compile(r" cov: (\d+) ft: (\d+)")


@dataclass(frozen=True, slots=True)
class Fuzzed:
    """The result of a run."""

    target: str
    executions: int
    edges: int  # branches of turnspan's bytecode that were taken
    features: int
    crash: Path | None
    log: Path

    def report(self) -> str:
        """Return a summary."""
        summary = f"{self.target}: {self.executions} inputs, {self.edges} branches reached"
        return f"{summary}; crash in {self.crash}" if self.crash else summary


def is_available() -> bool:
    """Whether the fuzzer is installed."""
    return importlib.util.find_spec("atheris") is not None


def fuzz(target: str, seconds: int, place: Path, seed: int = 0, inputs: int = -1) -> Fuzzed:
    """Fuzz a target for some seconds. Interesting inputs are kept in `place`, and the next run starts with them.

    A `seed` other than 0 makes the run reproducible; `inputs` limits the number of inputs, independent of the speed.
    """
    corpus, crashes = place / target, place / f"{target}-crashes"
    corpus.mkdir(parents=True, exist_ok=True)
    crashes.mkdir(exist_ok=True)
    known = set(crashes.iterdir())
    for number, case in enumerate(seeds() if target == "path" else seed_lines()):
        (corpus / f"seed-{number:04}").write_bytes(case)
    options = [
        f"-max_total_time={seconds}", f"-runs={inputs}", f"-max_len={MAX_BYTES[target]}", f"-timeout={TIMEOUT_S}", "-rss_limit_mb=3000",
        "-print_final_stats=1", "-len_control=0", f"-artifact_prefix={crashes}/", f"-seed={seed}",
    ]  # fmt: skip
    log = place / f"{target}.log"
    with log.open("w") as out:
        subprocess.run(
            [sys.executable, "-m", "tests.fuzz.engine", target, *options, str(corpus)],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": "0"}, stdout=out, stderr=subprocess.STDOUT, check=False, timeout=seconds * 2 + 300,
        )  # fmt: skip
    text = log.read_text(errors="replace")
    ran = _EXECUTIONS.search(text)
    covered = _COVERED.findall(text)
    edges, features = map(int, covered[-1]) if covered else (0, 0)
    new = sorted(set(crashes.iterdir()) - known)
    return Fuzzed(target, int(ran[1]) if ran else 0, edges, features, new[0] if new else None, log)
