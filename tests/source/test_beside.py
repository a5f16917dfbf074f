"""The transcripts beside a session: however many there are, each is asked, and time grows with their number only."""

import json

import pytest
from reads import outline, read
from rows import Writer

from turnspan.source import beside, scan
from turnspan.source.sessions import SessionFile, session_of

MANY = 100


@pytest.fixture
def project(tmp_path):
    """A project directory with many sessions that were open at the same time."""
    path = tmp_path / "projects" / "-home-ada-loom"
    for number in range(MANY):
        writer = Writer(f"{number:08}-0000-4000-8000-000000000000", "2.1.172", f"{number}")
        writer.turn(f"Question {number}.", f"Answer {number}.")
        writer.wait(3600)
        writer.turn("More.", "More of it.")
        writer.save(path)
    return path


def fork_of(path, name):
    """Write a fork of a session without any mark, with a further turn."""
    rows = [{**row, "sessionId": name} for row in map(json.loads, path.read_bytes().splitlines())]
    fork = Writer(name, "2.1.172", "f")
    fork.wait(7200)
    started = {"type": "queue-operation", "operation": "dequeue", "timestamp": fork.stamp(), "sessionId": name}
    fork.rows = [started, *rows]
    fork.turn("Fork.", "Forked.")
    return fork.save(path.parent)


def asked(path):
    """Return the names of the other sessions that may have the first turn of a session, and those that have it."""
    uuid = next(row["uuid"] for row in map(json.loads, path.read_bytes().splitlines()) if "uuid" in row)
    found = [other.path for other in beside.others_that_may_have(session_of(path), uuid)]
    return len(found), [other.stem for other in found if scan.contains_id(other, uuid)]


def test_after_some_questions_only_files_that_share_an_id_are_searched(project):
    """A copy is found whether all files were searched or compared; so is one in a file that was written since."""
    paths = sorted(project.iterdir())
    fork = fork_of(paths[50], "f04c0000-0000-4000-8000-000000000002")
    wanted = [asked(path)[1] for path in paths[:20]]
    assert (asked(paths[50]), asked(paths[51])) == ((1, [fork.stem]), (0, []))
    assert [asked(path)[1] for path in paths[:20]] == wanted == [[]] * 20
    late = fork_of(paths[60], "f04c0000-0000-4000-8000-000000000003")
    assert [asked(path)[1] for path in (paths[50], paths[60], late)] == [[fork.stem], [late.stem], [paths[60].stem]]


def test_copies_among_many_sessions_are_exported_once(project):
    """All sessions of a large project are read one after the other; of the fork only its own turn is exported."""
    paths = sorted(project.iterdir())
    fork = fork_of(paths[50], "f04c0000-0000-4000-8000-000000000002")
    for path in paths:
        assert len(outline(read(path)[0])) == 4, path.name
    assert outline(read(fork)[0]) == ["Turn 3", "  said Forked."]


def test_only_sessions_that_were_open_at_a_time_are_asked(project):
    """A session that ended before a prompt was written, or began after it, cannot have it."""
    path = min(project.iterdir())
    later = Writer("0fd00000-0000-4000-8000-000000000009", "2.1.172", "z")
    later.wait(86400)
    later.turn("Later.", "Later.")
    later.save(project)
    moment = scan.first_time_ns(path)
    session = SessionFile(path.stem, path)
    assert len(list(beside.others_that_may_have(session, "x", at_ns=moment))) == MANY - 1
    assert list(beside.others_that_may_have(session, "x", at_ns=moment - 10**9)) == []
    assert len(list(beside.others(session))) == MANY
