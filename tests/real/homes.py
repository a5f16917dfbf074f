"""Homes with transcripts of `fixtures/`, exported live while the files grow, or by a backfill afterwards."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from faults.story import PROJECT, Moment, Story
from faults.world import World
from lives import Life

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
# Without the examples of documents: some have no times, so that their spans are of 1970, which a server may not show.
STORIES = tuple(
    sorted(
        path.name
        for path in FIXTURES.iterdir()
        if (path / "projects").is_dir() and not path.name.startswith("document-")
    )
)
# Several turns, tools that succeed, fail and are denied, agents in the foreground, in the background and nested, failed
# requests, Esc, a compaction, a blocked Stop: what a live hook handles in a day.
LIVE_STORIES = (
    "several-turns",
    "split-response",
    "parallel-tools",
    "agents-foreground",
    "agents-background",
    "agents-nested",
    "api-errors",
    "interrupted-tool",
    "compaction-inside",
    "stop-blocked",
    "recorded-requests",
)
PATIENCE_S = 120


def copy_stories(names, projects: Path) -> None:
    """Copy stories into one transcript tree; of two stories with the same session, the first."""
    for name in names:
        source = FIXTURES / name / "projects"
        if not any((projects / path.relative_to(source)).exists() for path in source.glob("*/*.jsonl")):
            shutil.copytree(source, projects, dirs_exist_ok=True)


def rename_sessions(projects: Path, tag: str) -> None:
    """Give the sessions ids that are unique to this run: `tag` replaces four hexadecimal digits."""
    for path in sorted(projects.rglob("*"), reverse=True):  # files before their directories
        if path.is_file():
            path.write_bytes(path.read_bytes().replace(b"-10e0-4000-", f"-{tag}-4000-".encode()))
        path.rename(path.with_name(path.name.replace("-10e0-4000-", f"-{tag}-4000-")))


# ---- backfill


@dataclass(frozen=True, slots=True)
class Past:
    """A home with finished transcripts."""

    base: Path
    settings: dict[str, str]  # in the environment

    @property
    def projects(self) -> Path:
        """The directory of the transcripts."""
        return self.base / "claude" / "projects"

    @property
    def env(self) -> dict[str, str]:
        """The environment of a command, without this machine's settings."""
        own = {"PATH": os.environ["PATH"], "HOME": str(self.base), "CLAUDE_CONFIG_DIR": str(self.base / "claude")}
        return {**own, **self.settings}

    def configure(self, text: str) -> None:
        """Write the configuration file."""
        home = self.base / "claude" / "turnspan"
        home.mkdir(parents=True, mode=0o700)
        (home / "config.toml").write_text(text)
        (home / "config.toml").chmod(0o600)

    def turnspan(self, *words: str) -> dict:
        """Run a command that must succeed; return its JSON output."""
        done = self.run(*words, "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        with self.started(*words) as process:
            out, err = process.communicate(timeout=PATIENCE_S)
        return subprocess.CompletedProcess(words, process.returncode, out, err)

    def started(self, *words: str) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, "-m", "turnspan", *words], env=self.env, cwd=self.base, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip


# ---- live

STAMP = re.compile(rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?=\.\d+Z|Z)")


def bring_to_now(projects: Path) -> None:
    """Move all times of a transcript tree so that it starts five minutes ago: after ten idle minutes a session counts as over."""
    files = {path: path.read_bytes() for path in projects.rglob("*") if path.is_file()}
    first = min(_stamp(found[0]) for data in files.values() for found in STAMP.finditer(data))
    later = datetime.now(tz=UTC).replace(microsecond=0) - timedelta(minutes=5) - first
    for path, data in files.items():
        path.write_bytes(STAMP.sub(lambda found: f"{_stamp(found[0]) + later:%Y-%m-%dT%H:%M:%S}".encode(), data))


def _stamp(text: bytes) -> datetime:
    return datetime.strptime(text.decode(), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=UTC)


class Grown(Story):
    """The story of a finished transcript tree: its rows in order of time, and the hook events of the client."""

    def __init__(self, projects: Path) -> None:
        super().__init__()
        life = Life(projects)
        self._files = life.files
        self._agents = {name: _agent_of(name) for name in life.files if _agent_of(name) is not None}
        ends = {name: {first for first, _ in places} for name, places in life.answered.items()}
        sizes: dict[Path, int] = {}
        for name, size in life.steps:
            sizes[name] = size
            words = _last_words(self._files[name][:size]) if size in ends.get(name, ()) else None
            if words is not None:
                self._add("Stop", name.stem, sizes, last_assistant_message=words)
            elif name in self._agents and size == len(self._files[name]):
                session, agent = self._agents[name]
                self._add("SubagentStop", session, sizes, agent_id=agent)
        for name in life.answered:
            self._add("SessionEnd", name.stem, sizes)

    @property
    def files(self):
        """The final content of every file."""
        return self._files

    def _add(self, name, session, sizes, **facts):
        self.moments.append(Moment(name, session, dict(sizes), facts))


def _agent_of(name: Path) -> tuple[str, str] | None:
    """Return the session and the agent id of an agent's file."""
    if name.suffix != ".jsonl" or name.parent.name != "subagents":
        return None
    return name.parent.parent.name, name.stem.removeprefix("agent-")


def _last_words(data: bytes) -> str | None:
    """Return the text of the last response if the conversation ends with it: the client passes it to the Stop hook."""
    texts: dict[str, list[str]] = defaultdict(list)
    last = None
    for line in data.splitlines():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if row.get("type") not in {"user", "assistant"} or row.get("isSidechain"):
            continue
        last = row["message"].get("id") if row["type"] == "assistant" else None
        if last is not None:
            texts[last] += [block["text"] for block in row["message"]["content"] if block.get("type") == "text"]
    return "\n\n".join(texts[last]) if last is not None and texts[last] else None


def live_through(base: Path, server, stories=LIVE_STORIES, tag: str = "", **settings: str) -> World:
    """Call the real hook, with a real worker, at each moment of some stories; return the home.

    A `tag` gives the sessions unique ids.
    """
    finished = base / "finished"
    copy_stories(stories, finished)
    bring_to_now(finished)
    if tag:
        rename_sessions(finished, tag)
    story = Grown(finished)
    assert {path.parts[0] for path in story.files} == {PROJECT}
    world = World(base, server, story, **settings)
    for number in range(len(story.moments)):
        world.call_hook(world.payload(number))
        world.wait()
    return world
