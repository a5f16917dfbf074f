"""A real Langfuse, if `LANGFUSE_*` names one: live export, backfill, `turnspan verify`, then `turnspan forget`.

    LANGFUSE_PUBLIC_KEY=… LANGFUSE_SECRET_KEY=… LANGFUSE_BASE_URL=… pytest --slow tests/real/test_langfuse.py

The sessions get ids of this run, so that no run meets the traces of another; they are deleted again.
"""

import os
import secrets
import subprocess
import sys
import time

import pytest

from real.compare import wanted_in
from real.homes import LIVE_STORIES, STORIES, Past, copy_stories, live_through, rename_sessions
from turnspan.source.sessions import all_sessions

SETTINGS = {
    name: value
    for name in ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "LANGFUSE_BASE_URL", "LANGFUSE_HOST")
    if (value := os.environ.get(name))
}
IS_SET = {"LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY"} < SETTINGS.keys()
STORED_S = 180  # Langfuse acknowledges a queued request, and stores it later
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not IS_SET, reason="no Langfuse: set LANGFUSE_PUBLIC_KEY, LANGFUSE_SECRET_KEY and LANGFUSE_BASE_URL (or _HOST)"
    ),
]


class Nowhere:
    """No OTLP endpoint: only the Langfuse keys are set."""

    url = ""


def wait_until_complete(past):
    """Run `turnspan verify` until everything is stored; return its last exit code and output."""
    deadline = time.monotonic() + STORED_S
    while True:
        done = subprocess.run(
            [sys.executable, "-m", "turnspan", "verify"], env=past.env, capture_output=True, text=True, check=False
        )
        if done.returncode == 0 or time.monotonic() > deadline:
            return done.returncode, done.stdout + done.stderr
        time.sleep(5)


def forget(past):
    """Delete everything again."""
    for session in all_sessions(past.projects):
        command = [sys.executable, "-m", "turnspan", "forget", session.session_id, "--yes"]
        subprocess.run(command, env=past.env, capture_output=True, check=False)


def test_live_export_arrives_in_langfuse(tmp_path):
    """Every span of eleven growing sessions is acknowledged by Langfuse and, a little later, there."""
    world = live_through(tmp_path, Nowhere, LIVE_STORIES, tag=secrets.token_hex(2), **SETTINGS)
    past = Past(tmp_path, SETTINGS)
    try:
        assert wanted_in(world.projects, world.env)
        assert wait_until_complete(past)[0] == 0
        assert not [line for line in world.log if " ERROR " in line], world.log
    finally:
        forget(past)


def test_backfill_arrives_in_langfuse(tmp_path):
    """Every story, sent twice: it is complete, and verify has nothing to repair."""
    past = Past(tmp_path, SETTINGS)
    copy_stories(STORIES, past.projects)
    rename_sessions(past.projects, secrets.token_hex(2))
    wanted = wanted_in(past.projects, past.env)
    try:
        assert past.turnspan("backfill")["spans"] == len(wanted)
        code, said = wait_until_complete(past)
        assert code == 0, said
        assert past.turnspan("backfill", "--resend")["spans"] == len(wanted)
        assert wait_until_complete(past)[0] == 0
    finally:
        forget(past)
