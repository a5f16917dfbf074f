"""`turnspan demo`: bundled sessions that read like real ones, in a directory that is deleted."""

import gzip
import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from turnspan.delivery.destinations import prices_of
from turnspan.page.demo.sessions import _SOURCE, write_sessions
from turnspan.page.preview import Preview
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import session_of, sessions_in
from turnspan.trace.model import Kind
from turnspan.trace.tally import Tally, tally_of

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2030, 5, 6, 7, 8, tzinfo=UTC)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """Claude Code's directory with the sessions of the demo."""
    home = tmp_path_factory.mktemp("demo")
    write_sessions(home, NOW)
    return home


def sessions(home):
    """Return all sessions of a directory."""
    return [session for folder in sorted((home / "projects").iterdir()) for session in sessions_in(folder)]


def test_the_file_is_what_its_script_writes(tmp_path):
    """The bundled sessions are made by `python -m tests.demo`, the same rows each time."""
    target = tmp_path / "sessions.jsonl.gz"
    subprocess.run([sys.executable, "-m", "tests.demo", str(target)], cwd=ROOT, check=True)
    assert gzip.decompress(target.read_bytes()) == gzip.decompress(_SOURCE.read_bytes())


def test_every_session_is_read_without_anomalies(home, tmp_path):
    """No row is unknown, unreadable or left over, and every response has a cost."""
    prices = prices_of(load_config({"CLAUDE_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}))
    found = sessions(home)
    assert len(found) >= 30
    for session in found:
        reading = Reader.for_people(prices).read(session, Progress(), Ending(is_over=True))
        total = Tally()
        for piece in reading.pieces():
            assert piece.counts.copied == 0
            for trace in piece.traces:
                total += tally_of(trace)
        noticed = reading.anomalies
        assert (noticed.unreadable, noticed.oversized, noticed.unknown) == (0, 0, {})
        assert total.cost_usd > 0
        assert not total.is_cost_partial
        assert total.inferred == 0


def test_the_main_session_has_everything_there_is_to_see(home, tmp_path):
    """Reads, edits, a failing test, agents, a compaction, retries, a refusal, an image and a masked password."""
    (main,) = [path for path in home.glob("projects/-home-dev-csvload/*.jsonl") if (path.with_suffix("")).is_dir()]
    config = load_config({"CLAUDE_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)})
    shown = list(Preview(session_of(main), config, config.destinations[0]).traces())
    spans = [span for previewed in shown for span in previewed.trace.spans]
    names = {span.name for span in spans}
    assert {"Read", "Edit", "Write", "MultiEdit", "Bash", "Grep", "Glob", "TodoWrite", "Agent", "WebFetch"} <= names
    assert {"Explore", "general-purpose", "compaction", "retry", "interruption"} <= names
    assert {"tool_error", "permission_denied"} <= {span.error for span in spans}
    assert sum(previewed.masked.get("url-password", 0) for previewed in shown) > 0
    assert "image/png" in str([span.input for span in spans if span.kind is Kind.TURN])
    assert len({span.model for span in spans if span.model}) == 2


def test_times_are_moved_to_the_recent_past(home):
    """The newest row has the time that was asked for, and all others are within four weeks before it."""
    text = "".join(path.read_text(encoding="utf-8") for path in home.rglob("*.jsonl"))
    times = [datetime.fromisoformat(found) for found in re.findall(r'"timestamp":"([^"]+)"', text)]
    assert max(times) == NOW
    assert NOW - timedelta(days=28) < min(times)
    newest = max(home.rglob("*.jsonl"), key=lambda path: path.stat().st_mtime)
    assert datetime.fromtimestamp(newest.stat().st_mtime, UTC) == NOW


def test_rows_look_like_those_of_a_client(home):
    """Each row of a conversation has the fields that a client writes, and follows another one."""
    for path in home.rglob("*.jsonl"):
        rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        chain = [row for row in rows if "uuid" in row]
        known = {row["uuid"] for row in chain}
        for row in chain:
            assert {"parentUuid", "isSidechain", "sessionId", "version", "cwd", "gitBranch", "timestamp"} <= row.keys()
            assert row["parentUuid"] is None or row["parentUuid"] in known
        assert {row["sessionId"] for row in rows} == {path.stem if "subagents" not in path.parts else path.parts[-3]}


def test_the_demo_is_small():
    """The wheel does not become noticeably larger."""
    assert _SOURCE.stat().st_size < 120_000


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_demo_runs_until_it_is_stopped_and_removes_its_directory(tmp_path, number):
    """It prints a tree and a URL, serves the page, and after Ctrl-C nothing is left; the user's files stay as they are."""
    env = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path / "home"),
        "TMPDIR": str(tmp_path / "tmp"),
        "LANG": "C.UTF-8",
    }
    (tmp_path / "home").mkdir()
    (tmp_path / "tmp").mkdir()
    with subprocess.Popen(
        [sys.executable, "-m", "turnspan", "demo", "--no-browser"], env=env, cwd=tmp_path, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    ) as process:  # fmt: skip
        lines = []
        while not (line := process.stdout.readline()).startswith("http://"):
            assert line, process.stderr.read()
            lines.append(line)
        assert "Turn 2" in "".join(lines)
        assert "tool_error" in "".join(lines)
        with urllib.request.urlopen(line.strip()) as page:
            assert page.status == 200
        assert list((tmp_path / "tmp").iterdir())
        process.send_signal(number)
        _, said = process.communicate(timeout=30)
    assert process.returncode == 0
    assert "turnspan install" in said
    assert list((tmp_path / "tmp").iterdir()) == []
    assert list((tmp_path / "home").rglob("*")) == []
