"""No secret in a transcript reaches a server or a file of turnspan.

Secrets of every rule are put into every string of every line of the transcripts in `fixtures/`. Then the worker handles
a real event, and the bytes that the server received and all files that were written are searched for the secrets.
"""

import json
import shutil
import time
from pathlib import Path
from random import Random

import pytest
from backends.servers import HttpServer
from secret_samples import MAKERS

from turnspan.claude.event import Event
from turnspan.worker import serve

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORIES = (
    "agents-background", "agents-nested", "api-errors", "command-custom", "compaction-inside", "interrupted-tool",
    "parallel-tools", "plan-carried-over", "queued-attachment", "recorded-requests", "surroundings",
)  # fmt: skip
# Fields that decide how a line is read. All others can hold a secret, ids and names included.
STRUCTURE = frozenset({
    "type", "subtype", "role", "timestamp", "sessionId", "version", "operation", "model", "stop_reason",
})  # fmt: skip


def with_secrets(value, next_text, key=""):
    """Return the value with a secret in every string."""
    if isinstance(value, str):
        return value if key in STRUCTURE else f"{value}\n{next_text()}\n"
    if isinstance(value, list):
        return [with_secrets(item, next_text, key) for item in value]
    if isinstance(value, dict):
        return {name: with_secrets(item, next_text, name) for name, item in value.items()}
    return value


def linked(row):
    """Return the fields that link lines, so that the transcript stays readable."""
    return {key: row[key] for key in ("uuid", "parentUuid", "agentId", "promptId", "toolUseID") if key in row}


def poisoned(story, target, samples, start, is_linked):
    """Copy a transcript and put the samples into its strings in turn, beginning with number `start`."""
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
def test_no_secret_is_exported(tmp_path, capture):
    """A secret in any field is neither in the bytes that were sent nor in a file of turnspan."""
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
