"""Recorded sessions of real clients, each with the truth about what was served, for the corpus tests."""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest


def corpus():
    """Return the recordings' directory: `TURNSPAN_CORPUS`, or `shared/corpus` in or above the checkout."""
    if named := os.environ.get("TURNSPAN_CORPUS"):
        return Path(named)
    above = (parent / "shared" / "corpus" for parent in Path(__file__).resolve().parents)
    found = next((path for path in above if path.is_dir()), None)
    if found is None:
        pytest.skip("no recordings here: set TURNSPAN_CORPUS to a directory of them")
    return found


@dataclass(frozen=True)
class Recording:
    """One recorded session: its transcripts, the hooks that fired, and what the API really served."""

    name: str  # "2.1.325/bgagent"
    path: Path

    @cached_property
    def truth(self):
        """Every event of `truth.jsonl`."""
        return [json.loads(line) for line in (self.path / "truth.jsonl").read_text().splitlines()]

    @cached_property
    def responses(self):
        """The responses of the conversation that were served to their end."""
        served = (row for row in self.truth if row["event"] == "response" and row["http_status"] == 200)
        return [row for row in served if not row["aux"] and not row["aborted"]]

    @cached_property
    def calls(self):
        """Tool use id → the response that asked for it, and the call."""
        known = (row for row in self.truth if row["event"] == "response" and row["message_id"])
        return {call["id"]: (row, call) for row in known for call in row["tool_uses"]}

    @cached_property
    def results(self):
        """Tool use id → its result as it came back to the API."""
        return {row["tool_use_id"]: row for row in self.truth if row["event"] == "tool_result"}

    @cached_property
    def prompts(self):
        """Prompt label → the prompt."""
        return {
            key: value["text"] for key, value in json.loads((self.path / "meta.json").read_text())["prompts"].items()
        }

    @cached_property
    def hooks(self):
        """Every hook call in order: (payload, sizes of the project's files at that moment)."""
        found = [json.loads(path.read_text()) for path in sorted((self.path / "hooks").glob("*.json"))]
        return [(hook["payload"], hook["sizes"]) for hook in found]

    def turn_of(self, row):
        """Return the prompt that a response answers; a subagent's is that of the call that launched it."""
        for _ in range(10):
            above = self.calls.get(row["parent_tool_use_id"])
            if row["turn"] or above is None:
                break
            row = above[0]
        return row["turn"]


def recordings():
    """Return all recordings."""
    found = [
        Recording(f"{path.parent.parent.name}/{path.parent.name}", path.parent)
        for path in sorted(corpus().glob("*/*/truth.jsonl"))
    ]
    if not found:
        pytest.skip(f"no recordings below {corpus()}")
    return found
