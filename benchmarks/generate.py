"""Generate Claude Code transcripts of any size, realistic in shape; the same seed gives the same bytes.

    python benchmarks/generate.py OUT --megabytes 1000 --sessions 3000 --seed 1     an archive
    python benchmarks/generate.py OUT --turns 1000                                  one long session

It writes OUT/projects/… like the client, and OUT/expected.json: the contents, counted while writing.

- A line is a template: rendered to bytes once per client version, completed with the session's constants once per
  session, and with the rest when it is written. Long texts are slices of a few large texts that are escaped already.
- Everything is streamed: memory grows by one row per session. Nothing depends on the clock or the machine.
- The templates follow the field sets of five client versions; all texts are made up.
- A session of N turns begins with the same bytes as one of N + 1 turns.
"""

from __future__ import annotations

import argparse
import bisect
import itertools
import json
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

from generator.session import Session
from generator.templates import ERAS, NOUNS
from generator.writing import Archive, Dice, Tally

if TYPE_CHECKING:
    from typing import Any

FIRST_DAY_MS = 1_785_542_400_000  # every archive begins on 2026-08-01 and spans 90 days
SPAN_MS = 90 * 86_400_000


def write_archive(
    out: Path,
    *,
    megabytes: float = 200,
    sessions: int = 600,
    turns: int | None = None,
    version: str | None = None,
    result_bytes: int = 2000,
    seed: int = 1,
) -> dict[str, Any]:
    """Write the tree below `out`; return what it contains."""
    sessions = 1 if turns else sessions
    dice = Dice(seed, result_bytes)
    archive = Archive(out / "projects", dice, {}, defaultdict(lambda: [0, 0]))
    eras = [era for era in ERAS if version in (None, era.name)]
    if not eras:
        sys.exit(f"no such version: {version} (available: {', '.join(era.name for era in ERAS)})")
    weights = [dice.rng.lognormvariate(0, 1.1) for _ in range(sessions)]
    until = list(itertools.accumulate(era.share for era in eras))
    totals, strays, warmups, rows = Tally(), Tally(), Tally(), []
    by_version: dict[str, Tally] = defaultdict(Tally)
    left_bytes, left_weight = megabytes * 1e6, sum(weights)
    projects = [f"-home-dev-{NOUNS[n % len(NOUNS)]}{n // len(NOUNS) or ''}" for n in range(1 + sessions // 60)]
    for n, weight in enumerate(weights):
        # archives are ordered by time, and newer sessions come from newer clients
        era = eras[bisect.bisect_left(until, (n + 0.5) / sessions * until[-1])] if sessions > 1 else eras[-1]
        started = FIRST_DAY_MS + n * SPAN_MS // sessions + dice.below(600_000)
        session = Session(archive, era, projects[dice.below(len(projects))], started)
        target = left_bytes * weight / left_weight
        while (session.turns < turns) if turns else (not session.turns or session.size() < target):
            session.turn()
        if not turns and dice.chance(0.01):  # the terminal was closed while a tool ran
            session.cut_off()
        left_bytes, left_weight = left_bytes - session.size(), left_weight - weight
        rows.append(session.close())
        totals.add(session.tally)
        strays.add(session.stray)
        warmups.add(session.warmups)
        by_version[era.name].add(session.tally)
        by_version[era.name].counts["sessions"] += 1
    totals.counts["sessions"] = sessions
    expected = {
        "made_with": {
            "megabytes": None if turns else megabytes,
            "sessions": sessions,
            "turns": turns,
            "version": version,
            "result_bytes": result_bytes,
            "seed": seed,
        },
        "totals": totals.report(),
        "unlaunched_agents": strays.report(),
        "warmups": warmups.report(),
        "line_kinds": {kind: {"lines": n, "bytes": size} for kind, (n, size) in sorted(archive.kinds.items())},
        "by_version": {name: tally.report() for name, tally in by_version.items()},
        "sessions": rows,
    }
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="a new or empty directory; use it as CLAUDE_CONFIG_DIR")
    parser.add_argument("--megabytes", type=float, default=200, help="size of the archive, spread over its sessions")
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--turns", type=int, help="one session with this many turns instead of an archive")
    parser.add_argument("--version", help="only this client version (default for --turns: the newest)")
    parser.add_argument(
        "--result-bytes", type=int, default=2000, help="mean size of tool results; smaller means more spans per MB"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty")
    began = time.perf_counter()
    expected = write_archive(**vars(options))
    took = time.perf_counter() - began
    size = sum(kind["bytes"] for kind in expected["line_kinds"].values()) / 1e6
    totals = expected["totals"]
    print(f"{size:,.0f} MB, {totals['sessions']} sessions, {totals['turns']} turns")
    print(f"written in {took:.1f} s, {size / took:.0f} MB/s")


if __name__ == "__main__":
    main()
