"""`python -m tests.demo [FILE]`: write the sessions of `turnspan demo` (default: src/turnspan/demo/sessions.jsonl.gz)."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

from tests.demo.others import others
from tests.demo.routine import routine
from tests.demo.story import story

TARGET = Path(__file__).resolve().parents[2] / "src" / "turnspan" / "demo" / "sessions.jsonl.gz"


def lines():
    """Yield the file: for each transcript a line with its path and what its rows have in common, then its rows."""
    for session in (story(), *others(), *routine()):
        for path, chain, other, rows in session.files():
            yield json.dumps({"file": path, "conversation": chain, "other": other}, separators=(",", ":"))
            yield from (json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)


def main():
    """Write the file."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(("\n".join(lines()) + "\n").encode(), mtime=0))


if __name__ == "__main__":
    main()
