"""A hook that records each payload, and the size of every transcript at that moment.

turnspan finds it in the settings as the hook of another tool. It runs as `python -I -S recorder.py DIRECTORY`, prints
nothing and exits 0. A file gets its final name when it is complete.
"""

# No pathlib: its import would slow the client down.
# ruff: noqa: PTH105, PTH110, PTH118, PTH120, PTH123, PTH202

from __future__ import annotations

import json
import os
import sys
import time


def sizes_below(transcript: str) -> dict[str, int]:
    """Return the sizes of all files of a transcript's project, by relative path."""
    project = os.path.dirname(transcript)
    found = {}
    for folder, _, names in os.walk(project):
        for name in names:
            path = os.path.join(folder, name)
            if name.endswith((".jsonl", ".meta.json")):
                found[os.path.relpath(path, project)] = os.path.getsize(path)
    return found


def main() -> None:
    """Record one payload."""
    now = time.time_ns()
    payload = json.load(sys.stdin)
    transcript = payload.get("transcript_path") or ""
    row = {
        "t": now / 1e9,
        "payload": payload,
        "transcript_exists": os.path.exists(transcript),
        "sizes": sizes_below(transcript) if transcript else {},
        "t_done": time.time(),
    }
    target = os.path.join(sys.argv[1], f"{now}-{payload.get('hook_event_name')}.json")
    with open(target + ".part", "w", encoding="utf-8") as out:
        json.dump(row, out)
    os.replace(target + ".part", target)


if __name__ == "__main__":
    main()
