"""No secret that stands anywhere in a transcript reaches a server or a file of ours.

Secrets of every kind are put into every text of every type of line that the stories in `fixtures/` hold. Then the
worker is called as for a real event, and the raw bytes that reached the server, and all that we wrote, are searched.
"""

import json
import shutil
import time
from pathlib import Path
from random import Random

import pytest
from backends.servers import HttpServer
from secret_samples import MAKERS

from turnspan.hook_event import Event
from turnspan.worker import serve

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORIES = (
    "agents-background", "agents-nested", "api-errors", "command-custom", "compaction-inside", "interrupted-tool",
    "parallel-tools", "plan-carried-over", "queued-attachment", "recorded-requests", "surroundings",
)  # fmt: skip
# What a line needs to be what it is. Everything else may hold a secret, ids and names included.
STRUCTURE = frozenset({
    "type", "subtype", "role", "timestamp", "sessionId", "version", "operation", "model", "stop_reason",
})  # fmt: skip


def with_secrets(value, next_text, key=""):
    """Put a text with a secret into every string, and every key of a tool's input."""
    if isinstance(value, str):
        return value if key in STRUCTURE else f"{value}\n{next_text()}\n"
    if isinstance(value, list):
        return [with_secrets(item, next_text, key) for item in value]
    if isinstance(value, dict):
        return {name: with_secrets(item, next_text, name) for name, item in value.items()}
    return value


def linked(row):
    """What ties lines together, so that the poisoned story still is a story."""
    return {key: row[key] for key in ("uuid", "parentUuid", "agentId", "promptId", "toolUseID") if key in row}


def poisoned(story, target, samples, start, is_linked):
    """A copy of a story in which the texts take the samples in turn, beginning with one of them."""
    shutil.copytree(FIXTURES / story / "projects", target, dirs_exist_ok=True)
    number = start

    def next_text():
        nonlocal number
        number += 1
        return samples[number % len(samples)].text

    for path in sorted(target.rglob("*.jsonl")):
        rows = [json.loads(line) for line in path.read_text().splitlines() if line.startswith("{")]
        rows = [with_secrets(row, next_text) | (linked(row) if is_linked else {}) for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.parametrize("capture", ["redacted", "metadata"])
def test_no_secret_leaves(tmp_path, capture):
    """Whatever a secret stands in, it is in none of the bytes that were sent, and in no file of ours."""
    random = Random(7)
    samples = [make(random) for make in MAKERS]
    sent = 0
    for number, story in enumerate(STORIES):
        claude = tmp_path / story
        poisoned(story, claude / "projects", samples, number * 37, is_linked=number % 2 == 0)
        with HttpServer() as server:
            home = claude / "turnspan"
            home.mkdir(mode=0o700)
            (home / "config.toml").write_text(
                f'capture = "{capture}"\n[destinations.here]\ntype = "local"\n'
                f'[destinations.there]\ntype = "otlp"\nendpoint = "{server.url}"\n'
            )
            (home / "config.toml").chmod(0o600)
            for path in sorted((claude / "projects").glob("*/*.jsonl")):
                if not path.name.startswith("agent-"):
                    event = Event("SessionEnd", path.stem, str(path), "/")
                    serve(event, {"CLAUDE_CONFIG_DIR": str(claude)}, time.time, lambda _: None)
            received = b"".join(request.body for request in server.requests)
        sent += len(received)
        written = {path: path.read_bytes() for path in home.rglob("*") if path.is_file() and path.name != "config.toml"}
        assert any(path.parent.name == "traces" for path in written)
        for sample in samples:
            needle = sample.secret.encode()
            assert needle not in received, (story, sample.rule)
            assert not [path for path, data in written.items() if needle in data], (story, sample.rule)
    assert sent > 10_000
