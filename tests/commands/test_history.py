"""History is exported only on request: no command but `backfill` sends a session that is older than the installation."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest
from backends.servers import OK, HttpServer
from rows import Writer

from turnspan.claude.event import Event
from turnspan.cli import COMMANDS
from turnspan.worker import serve

NEW = "5e55104a-0000-4000-8000-000000000009"
OLD = [f"5e55104a-0000-4000-8000-00000000000{number}" for number in (1, 2, 3)]
RUN = "from turnspan.__main__ import main; main()"
# Every command, with its options that send, write or read most.
CALLS = {
    "config": ["config"],
    "demo": ["demo", "--no-browser"],
    "doctor": ["doctor", "--send-test"],
    "export": ["export", OLD[0], "-o", "out.html"],
    "forget": ["forget", OLD[0], "--yes"],
    "hook": ["hook"],
    "install": ["install", "--yes"],
    "retention": ["retention", "--days", "90"],
    "search": ["search", "Question"],
    "sessions": ["sessions"],
    "show": ["show", OLD[0]],
    "stats": ["stats"],
    "status": ["status", "--check"],
    "uninstall": ["uninstall", "--yes"],
    "verify": ["verify", "--repair"],
    "view": ["view", "--no-browser"],
}
SERVERS = ("demo", "view")


@pytest.fixture
def home(claude_home, monkeypatch):
    """A home with three old sessions, and one of which an event was handled; yields it with the server it exports to."""
    project = claude_home / "projects" / "-home-ada-loom"
    for session in OLD:
        writer = Writer(session=session, tag=session[-1])
        writer.turn("Question.", "Answer.")
        path = writer.save(project)
        os.utime(path, (time.time() - 2 * 86400,) * 2)
    writer = Writer(session=NEW, tag="9")
    writer.turn("A new question.", "An answer.")
    path = writer.save(project)
    with HttpServer(OK) as server:
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", server.url)
        event = Event(hook_event_name="Stop", session_id=NEW, transcript_path=str(path), cwd=str(claude_home))
        serve(event, dict(os.environ), time.time, time.sleep)
        assert exported(server) == {NEW}
        yield claude_home, server


def exported(server):
    """The sessions of all spans that a server received."""
    received = [span for request in server.requests if request.method == "POST" for span in request.spans]
    return {span["attributes"]["session.id"] for span in received} & {*OLD, NEW}


def test_every_command_is_in_the_table():
    """A new command must say here how it is called."""
    assert {*CALLS, "backfill"} == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_no_command_but_backfill_exports_history(home, name):
    """What nobody asked for is not sent, whatever else the command does."""
    _, server = home
    ran = subprocess.Popen(
        [sys.executable, "-c", RUN, *CALLS[name]], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    if name in SERVERS:  # a server runs until it is stopped
        while "http://" not in (line := ran.stdout.readline()):
            assert line, ran.stderr.read()
        ran.send_signal(signal.SIGINT)
    _, said = ran.communicate(timeout=60)
    assert "Traceback" not in said
    assert "Usage:" not in said
    assert exported(server) == {NEW}


def test_verify_counts_history_apart(home, command):
    """Older sessions are neither missing nor an error; after a backfill they are compared like all others."""
    _, server = home
    code, out, _ = command("verify")
    assert code == 0
    assert "otlp: all acknowledged (1 session, 1 turn" in out
    assert "  3 older sessions not exported, as intended; run `turnspan backfill` to export them\n" in out
    code, out, _ = command("verify", "--json")
    record = json.loads(out)
    assert (code, record["is_complete"], record["differences"]) == (0, True, [])
    assert (record["destinations"]["otlp"]["sessions"], record["destinations"]["otlp"]["history"]) == (1, 3)
    assert command("backfill", "--session", OLD[0])[0] == 0
    assert exported(server) == {NEW, OLD[0]}
    code, out, _ = command("verify")
    assert "otlp: all acknowledged (2 sessions, 2 turns" in out
    assert "2 older sessions not exported" in out


def test_a_session_that_no_event_reported_is_named_and_not_sent(home, command):
    """A session written to since the installation is missing; whether it is sent is for `backfill` or its next event."""
    claude, server = home
    lost = Writer(session=OLD[1], tag="2")
    lost.turn("Question.", "Answer.")
    lost.save(claude / "projects" / "-home-ada-other")
    (claude / "projects" / "-home-ada-loom" / f"{OLD[1]}.jsonl").unlink()
    code, out, _ = command("verify", "--repair", "--session", OLD[1])
    assert code == 1
    assert f"not repaired: {OLD[1]}: no event and no backfill has begun it; `turnspan backfill` sends it" in out
    assert exported(server) == {NEW}
