"""Sessions that are read by several processes have the rows of sessions that one process read."""

import multiprocessing
import os
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from rows import Writer

from index.dumps import dump
from turnspan.index import schema
from turnspan.index.changes import find_changes
from turnspan.index.pool import read_jobs
from turnspan.index.reading import ReadJob, SessionReader
from turnspan.settings.config import load_config

_LONG = 600  # turns: some pieces
_DEADLINE_S = 60
_LISTED = "import multiprocessing; print(*(each.pid for each in multiprocessing.active_children()), flush=True)"
_READ = f"""
import os, sys, time
os.cpu_count = lambda: 3
from turnspan.index.pool import read_jobs
from turnspan.index.reading import ReadJob
from turnspan.settings.config import load_config
config = load_config(os.environ)
for _, parts in read_jobs([ReadJob("s", path, size=4 << 20) for path in sys.argv[1:]], config, config.destinations[0]):
    {_LISTED}
    time.sleep(600)
"""

_BUILD = """
import os
os.cpu_count = lambda: 2
from turnspan.index import opened
from turnspan.settings.config import load_config
with opened(load_config(os.environ)) as index:
    assert not index.is_in_memory, index.remarks
"""


def session_of(number, turns, project):
    """Write a session with some turns; return its path."""
    writer = Writer(session=f"{number:08}-0000-4000-8000-000000000001", tag=f"s{number}")
    for turn in range(turns):
        secret = "password=hunter2Xy!" if turn % 200 == 0 else ""
        writer.turn(f"Question {turn}", secret + f" Answer {turn}" * 700)
    return writer.save(project)


@pytest.fixture
def project(claude_home):
    """A project with a long session and some short ones: enough to be worth another process."""
    project = claude_home / "projects" / "-home-ada-loom"
    for number, turns in enumerate((_LONG, 40, 3, 2, 1), start=1):
        session_of(number, turns, project)
    return project


@contextmanager
def another_thread():
    """Run another thread: a process with threads is not forked."""
    is_over = threading.Event()
    thread = threading.Thread(target=is_over.wait)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def parts_of(jobs, processors, monkeypatch):
    """Return what was read of each session, with that many processors."""
    monkeypatch.setattr(os, "cpu_count", lambda: processors)
    config = load_config(os.environ)
    return {path: list(parts) for path, parts in read_jobs(jobs, config, config.destinations[0])}


def jobs_of(project):
    """Return all sessions of a project."""
    # More than there is to read: enough to be worth other processes.
    return [ReadJob(path.stem, str(path), size=10 * path.stat().st_size) for path in sorted(project.glob("*.jsonl"))]


@pytest.mark.parametrize("processors", [2, 4])
def test_several_processes_read_what_one_reads(project, monkeypatch, processors):
    """Every session arrives once, with the same rows, however many processes read."""
    expected = parts_of(jobs_of(project), 1, monkeypatch)
    assert parts_of(jobs_of(project), processors, monkeypatch) == expected
    assert not multiprocessing.active_children()


def test_processes_of_a_program_with_threads(project, monkeypatch):
    """A program with threads starts new interpreters, and reads the same."""
    expected = parts_of(jobs_of(project), 1, monkeypatch)
    with another_thread():
        assert parts_of(jobs_of(project), 2, monkeypatch) == expected


@pytest.mark.usefixtures("project")
def test_the_index_of_several_processes(claude_home, monkeypatch):
    """An index that a command built with several processes has the content of one that a single process built."""
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    expected = dump(load_config(os.environ))
    (claude_home / "turnspan" / "index.sqlite3").unlink()
    subprocess.run([sys.executable, "-c", _BUILD], check=True)
    assert dump(load_config(os.environ)) == expected
    assert "hunter" not in str(expected)


def test_the_newest_are_read_first(claude_home):
    """Whatever their sizes are, the sessions that were written last are read before the others."""
    project = claude_home / "projects" / "-home-ada-loom"
    for number, turns in enumerate((1, 3, 2, 4), start=1):
        os.utime(session_of(number, turns, project), (number, number))
    with closing(sqlite3.connect(":memory:")) as connection:
        schema.create(connection)
        changes = find_changes(connection, load_config(os.environ))
    assert [change.transcript.session_id[7] for change in changes.read] == ["4", "3", "2", "1"]


def test_processes_that_die_lose_nothing(project, monkeypatch):
    """The sessions of processes that were killed are read in this one."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    config = load_config(os.environ)
    jobs = jobs_of(project)
    found = {}
    for path, parts in read_jobs(jobs, config, config.destinations[0]):
        found[path] = list(parts)
        assert kill_children() == (2 if len(found) == 1 else 0)
    reader = SessionReader(config, config.destinations[0])
    assert found == {job.path: list(reader.parts(job)) for job in jobs}


def kill_children():
    """Kill the processes that read; return how many there were."""
    children = multiprocessing.active_children()
    for process in children:
        process.kill()  # the pool may have ended it already, because another one died
        process.join()
    return len(children)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_its_processes_end_when_it_is_killed(project):
    """A command that is killed leaves no process behind."""
    paths = [job.path for job in jobs_of(project)]
    with subprocess.Popen([sys.executable, "-c", _READ, *paths], stdout=subprocess.PIPE, text=True) as running:
        children = [int(word) for word in running.stdout.readline().split()]
        running.kill()
    assert len(children) == 3
    deadline = time.monotonic() + _DEADLINE_S
    while any(is_running(child) for child in children):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def is_running(process):
    """Return whether a process exists, and is not only waiting for its parent to notice that it ended."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False
