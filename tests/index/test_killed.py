"""Killed at any system call while the index is written: the next command has the right rows.

A process brings an index up to date: one session has grown, one is new, one was deleted; or there is none, and it is
built. strace kills it at one of its calls on the files of the index. By default one call of each kind is tried; with
`TURNSPAN_FAULTS=all`, every call.
"""

import os
import random
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing

import pytest
from faults import syscalls
from faults.conftest import needs_strace
from figures import IS_ALL
from rows import Writer

from index.dumps import content
from turnspan.index import NAME, opened
from turnspan.settings.config import load_config

pytestmark = needs_strace
_UPDATE = """
import os
from turnspan.index import opened
from turnspan.settings.config import load_config
with opened(load_config(os.environ)) as index:
    assert not index.is_in_memory, index.remarks
"""


def session_of(number, turns):
    """Return a session with some turns."""
    writer = Writer(session=f"{number:08}-0000-4000-8000-000000000001", tag=f"s{number}")
    for turn in range(turns):
        writer.turn(f"Question {turn}", f"Answer {turn}")
    return writer


@pytest.fixture
def world(claude_home):
    """A home whose index is behind: a session has grown, one is new, one was deleted."""
    project = claude_home / "projects" / "-home-ada-loom"
    project.mkdir(parents=True)
    for number in (1, 2):
        session_of(number, 3).save(project)
    subprocess.run([sys.executable, "-c", _UPDATE], check=True)
    session_of(1, 5).save(project)
    (project / f"{2:08}-0000-4000-8000-000000000001.jsonl").unlink()
    session_of(3, 2).save(project)
    return claude_home


def run(prefix=()):
    """Bring the index up to date in a process of its own; return its exit code."""
    command = [*prefix, sys.executable, "-c", _UPDATE]
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False).returncode


@pytest.mark.parametrize("is_new", [False, True], ids=["update", "first build"])
def test_a_killed_update_makes_no_wrong_rows(world, tmp_path, is_new):
    """Whatever call a process is killed at, the file is intact, and the next command completes it."""
    home, kept = world / "turnspan", tmp_path / "kept"
    if is_new:
        (home / NAME).unlink()
    shutil.copytree(home, kept)

    def restore():
        shutil.rmtree(home)
        shutil.copytree(kept, home)

    log = tmp_path / "calls"
    assert run(syscalls.counting(log)) == 0
    points = [point for point in syscalls.points(0, log, home) if NAME.partition(".")[0] in point.line]
    with opened(load_config(os.environ)) as index:
        expected = content(index.connection)
    chance = random.Random(7)
    names = dict.fromkeys(point.name for point in points)
    chosen = points if IS_ALL else [chance.choice([p for p in points if p.name == name]) for name in names]
    killed = 0
    for point in chosen:
        restore()
        killed += run(point.prefix("signal=KILL")) != 0
        with closing(sqlite3.connect(home / NAME)) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)], str(point)
        with opened(load_config(os.environ)) as index:
            assert (content(index.connection), index.is_in_memory, index.remarks) == (expected, False, []), str(point)
    assert killed > len(chosen) // 2
