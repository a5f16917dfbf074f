"""Measures the cost of masking next to encoding, its false positives, and the worst cases.

    python benchmarks/masking.py [DIRECTORY] [--rounds 7] [--megabytes 8] [--offenders 10]

- DIRECTORY holds ordinary source code; default: the installed packages of this Python.
- Cost: the same texts are masked and encoded in turn, round by round, so that a busy machine affects both; the minimum
  of the CPU seconds counts. Then the same for traces of generated sessions, a piece at a time, as they are sent.
- False positives: every masked place in the tree counts, example passwords in documentation included.
"""

from __future__ import annotations

import argparse
import base64
import json
import sysconfig
import tempfile
import time
from collections import Counter
from pathlib import Path
from random import Random

import generate
import msgspec

from turnspan.backends.genai import GenAI
from turnspan.backends.otlp_messages import encode_request
from turnspan.backends.settings import Capture
from turnspan.secrets.replace import compile_rules, mask, suspects
from turnspan.secrets.scan import Meter, OverBudget
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import session_at
from turnspan.trace.redact import SCAN_BUDGET, Policy, redact, redact_all

SOURCES = {
    ".py",
    ".pyi",
    ".md",
    ".rst",
    ".txt",
    ".toml",
    ".cfg",
    ".json",
    ".yaml",
    ".yml",
    ".js",
    ".ts",
    ".css",
    ".html",
    ".h",
}
RULES = compile_rules()


def sources(below, megabytes=None):
    files = sorted(file for file in below.rglob("*") if file.suffix in SOURCES and file.is_file())
    Random(1).shuffle(files)
    size = 0
    for file in files:
        try:
            text = file.read_text()
        except (UnicodeDecodeError, OSError):
            continue
        yield file, text
        size += len(text)
        if megabytes is not None and size > megabytes * 1e6:
            return


def race(tasks, rounds):
    best = dict.fromkeys(tasks, float("inf"))
    for _ in range(rounds):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            best[name] = min(best[name], time.process_time() - began)
    return best


def cost_of_text(below, megabytes, rounds):
    texts = [text for _, text in sources(below, megabytes)]
    size = sum(map(len, texts)) / 1e6
    budget = 10**12
    best = race(
        {
            "msgspec.json.encode": lambda: [msgspec.json.encode(text) for text in texts],
            "json.dumps": lambda: [json.dumps(text) for text in texts],
            "mask, text by text": lambda: [mask(text, rules=RULES) for text in texts],
            "suspects, all together": lambda: suspects(texts, rules=RULES, meter=Meter(budget)),
        },
        rounds,
    )
    print(f"\n{size:.1f} MB of source code in {len(texts)} texts")
    for name, seconds in best.items():
        print(f"  {name:24}{seconds * 1e3 / size:8.2f} ms/MB {seconds / best['json.dumps']:6.1f} x json.dumps")


def cost_of_traces(rounds):
    with tempfile.TemporaryDirectory() as home:
        generate.write_archive(Path(home), megabytes=6, sessions=12)
        sessions = [file for file in sorted(Path(home).rglob("*.jsonl")) if not file.name.startswith("agent-")]
        reader, over = Reader.for_people(), Ending(is_over=True)
        readings = [reader.read(session_at(file), Progress(), over) for file in sessions]
        pieces = [piece.traces for reading in readings for piece in reading.pieces()]
    traces = [trace for piece in pieces for trace in piece]
    naming, policy = GenAI(Capture()), Policy()
    best = race(
        {
            "encode": lambda: [encode_request(piece, naming) for piece in pieces],
            "redact": lambda: [redact_all(piece, policy) for piece in pieces],
            "encode, singly": lambda: [encode_request([trace], naming) for trace in traces],
            "redact, singly": lambda: [redact(trace, policy) for trace in traces],
        },
        rounds,
    )
    spans = sum(len(trace.spans) for trace in traces)
    return {"traces": len(traces), "spans": spans, **{name: seconds * 1e6 / spans for name, seconds in best.items()}}


def print_traces(found):
    print(f"\n{found['traces']} traces, {found['spans']} spans")
    for name in ("encode", "redact", "encode, singly", "redact, singly"):
        print(f"  {name:24}{found[name]:8.1f} µs per span {found[name] / found['encode']:6.2f} x encode")


def false_positives(below, offenders):
    size, masked, by_rule, by_file = 0, 0, Counter(), Counter()
    for file, text in sources(below):
        size += len(text)
        counts = mask(text, rules=RULES).counts
        by_rule.update(counts)
        by_file[file.relative_to(below)] += sum(counts.values())
        masked += sum(counts.values())
    print(f"\n{masked} places masked in {size / 1e6:.1f} MB of ordinary files: {masked / (size / 1e5):.3f} per 100 KB")
    print("  by rule: " + ", ".join(f"{rule} {number}" for rule, number in by_rule.most_common()))
    for file, number in by_file.most_common(offenders):
        print(f"  {number:5} {file}")


def worst_cases():
    blob = base64.b64encode(Random(1).randbytes(3_750_000)).decode()
    begin = "-----BEGIN RSA PRI" + "VATE KEY-----\n"
    cases = {
        "base64, 5 MB": blob,
        "a private key that never ends": begin + blob,
        "API_KEY= x 100,000": "API_KEY=" * 100_000,
        "API_KEY=a1b2 x 100,000": "API_KEY=a1b2 " * 100_000,
        "://a: x 100,000": "://a:" * 100_000,
        "BEGIN PRIVATE KEY x 38,000": begin * 38_000,
        "1 MB without a space": "Aa1" * 333_333,
        "@ x 1,000,000": "@" * 1_000_000,
    }
    print("\nworst cases")
    for name, text in cases.items():
        began = time.process_time()
        try:
            outcome = f"{sum(mask(text, rules=RULES, meter=Meter(SCAN_BUDGET)).counts.values())} masked"
        except OverBudget:
            outcome = "withheld"
        print(f"  {name:32}{time.process_time() - began:6.2f} s  {outcome}")


def main():
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("directory", type=Path, nargs="?", default=Path(sysconfig.get_path("purelib")))
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--megabytes", type=float, default=8)
    parser.add_argument("--offenders", type=int, default=10)
    parser.add_argument("--json", action="store_true", help="only redact and encode for traces, in µs per span")
    options = parser.parse_args()
    if options.json:
        print(json.dumps(cost_of_traces(options.rounds)))
        return
    cost_of_text(options.directory, options.megabytes, options.rounds)
    print_traces(cost_of_traces(options.rounds))
    worst_cases()
    false_positives(options.directory, options.offenders)


if __name__ == "__main__":
    main()
