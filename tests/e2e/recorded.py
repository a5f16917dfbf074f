"""Reads what the transcripts of a run contain: the most that an exporter can know."""

from __future__ import annotations

import contextlib
import json
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

Row = dict[str, Any]
_SUGGESTING = "agent-aprompt_suggestion-"
_PROMPT = re.compile(r"#(p\d+)\b")


@dataclass(frozen=True, slots=True)
class Recorded:
    """The contents of a run's transcripts."""

    usage: dict[str, Row]  # message id → the largest recorded usage
    starts: dict[str, list[float]]  # message id → the time of its request's row, else of the user's rows before it
    ends: dict[str, list[float]]  # message id → the time of its last row, in each file that contains it
    timed: frozenset[str]  # message ids whose request is recorded
    costs: dict[str, Row]  # session → the client's own totals
    prompts: frozenset[str] = frozenset()  # "p3": prompts that are in any file
    misfiled: frozenset[str] = frozenset()  # message ids that are only in the file of the agent that suggests prompts


def read_transcripts(run: Path) -> Recorded:
    """Read the transcripts of a run."""
    found = Recorded({}, defaultdict(list), defaultdict(list), frozenset(), {})
    timed: set[str] = set()
    prompts: set[str] = set()
    suggesting: set[str] = set()
    elsewhere: set[str] = set()
    for path in sorted((run / "projects").rglob("*.jsonl")):
        rows = list(_decodable(path))
        prompts.update(_PROMPT.findall(path.read_text(encoding="utf-8", errors="replace")))
        requests = {row["id"]: _at(row) for row in rows if row.get("type") == "api-request"}
        said_at, first, last = 0.0, set(), {}
        for row in rows:
            if row.get("type") == "cost-state":
                found.costs[str(row.get("sessionId") or path.stem)] = row
            elif row.get("type") == "user" and row.get("timestamp"):
                said_at = _at(row)
            elif row.get("type") == "assistant" and row["message"].get("usage"):
                key, usage = row["message"]["id"], row["message"]["usage"]
                if (usage.get("output_tokens") or 0) >= found.usage.get(key, {}).get("output_tokens", 0):
                    found.usage[key] = usage
                if row.get("requestRef") in requests:
                    timed.add(key)
                if key not in first:
                    first.add(key)
                    found.starts[key].append(requests.get(row.get("requestRef"), said_at))
                last[key] = _at(row)
        (suggesting if path.name.startswith(_SUGGESTING) else elsewhere).update(last)
        for key, moment in last.items():
            found.ends[key].append(moment)
    misfiled = frozenset(suggesting - elsewhere)
    return replace(found, timed=frozenset(timed), prompts=frozenset(prompts), misfiled=misfiled)


def _decodable(path: Path) -> Iterator[Row]:
    for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):  # other line separators are content
        with contextlib.suppress(ValueError):  # a killed client may have written half a line
            yield json.loads(line)


def _at(row: Row) -> float:
    stamp = row.get("timestamp")
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0
