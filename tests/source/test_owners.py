"""Renamed files and backups: which session they belong to, and which of several files of one session is exported."""

import json

import pytest
from reads import outline, read, sent
from rows import Writer

from turnspan.source.sessions import all_sessions, each_once, session_of

FORK = "f04c0000-0000-4000-8000-000000000002"


@pytest.fixture
def project(claude_home):
    """A project directory in a Claude home."""
    path = claude_home / "projects" / "-home-ada-loom"
    path.mkdir(parents=True)
    return path


def session(*answers, **options):
    """Return a session with these answers."""
    written = Writer(**options)
    for answer in answers:
        written.turn(f"Question {answer}.", answer)
    return written


def said(project):
    """Return what all sessions of a tree said, in the order of their files."""
    shown = [line for found in each_once(all_sessions(project.parent)) for line in outline(read(found.path)[0])]
    return [line.removeprefix("  said ") for line in shown if "said" in line]


def continued(main, answer):
    """Return a session in a new file whose rows name the old session, as 1.0.128 writes it for `--continue`."""
    more = Writer(main.session, main.version, "c")
    more.now = main.now
    more.turn(f"Question {answer}.", answer)
    more.session = FORK
    return more


def test_turns_that_only_a_renamed_file_has_are_exported_once(project, command):
    """1.0.128 `--continue` writes a new file whose rows name the old session: it is exported under any name, once."""
    main = session("One", "Two", version="1.0.128")
    main.save(project)
    path = continued(main, "Three").save(project)
    assert said(project) == ["One", "Two", "Three"]
    renamed = path.rename(project / "monday.jsonl")
    assert session_of(renamed).session_id == "monday"
    assert sorted(said(project)) == ["One", "Three", "Two"]
    found = each_once(all_sessions(project.parent))
    assert len(sent([trace for each in found for trace in read(each.path)[0]])) > 3
    assert [json.loads(command("backfill", "--json")[1])["turns"] for _ in range(2)] == [3, 0]


@pytest.mark.parametrize("kept", [1, 2, 3])
def test_a_backup_of_a_file_with_two_sessions_belongs_to_that_file(project, kept):
    """If another session was appended to a file, a copy of it, or of its beginning, is not the other session."""
    main, other = session("One", "Two"), session("Three", session=FORK, tag="b")
    path = main.save(project)
    path.write_bytes(path.read_bytes() + b"".join(json.dumps(row).encode() + b"\n" for row in other.rows))
    rows = path.read_bytes().splitlines(keepends=True)
    backup = project / "0-backup.jsonl"
    backup.write_bytes(b"".join(rows[: 2 * kept]))
    assert session_of(backup).session_id == main.session
    assert said(project) == ["One", "Two", "Three"]


def test_a_longer_backup_does_not_replace_a_session_that_has_more(project):
    """A backup that was written with spaces is longer, but it is old: the session's own file counts."""
    main = session("One", "Two")
    backup = project / "monday.jsonl"
    backup.write_text("".join(json.dumps(row, separators=(" ,         ", " :          ")) + "\n" for row in main.rows))
    main.turn("Question Three.", "Three")
    path = main.save(project)
    assert backup.stat().st_size > path.stat().st_size
    assert said(project) == ["One", "Two", "Three"]


def test_a_backup_replaces_a_session_that_was_cut_off(project):
    """If the session's own file was cut off, the backup counts, under the same session."""
    main = session("One", "Two", "Three")
    path = main.save(project)
    backup = project / "monday.jsonl"
    backup.write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes()[:1500])
    (found,) = each_once(all_sessions(project.parent))
    assert (found.session_id, found.path) == (main.session, backup)
    assert said(project) == ["One", "Two", "Three"]


def test_the_longest_backup_that_has_everything_counts(project):
    """Of two backups of a deleted session that have all responses, the longer one has more of its other rows."""
    rows = session("One", "Two").rows
    titled = [*rows, {"type": "custom-title", "customTitle": "Weaving", "sessionId": rows[0]["sessionId"]}]
    for name, part in (("monday", rows), ("tuesday", titled)):
        (project / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    (found,) = each_once(all_sessions(project.parent))
    assert found.path.stem == "tuesday"


def test_two_backups_that_both_have_something_are_both_exported(project):
    """Neither of two backups of a deleted session has all of it: both are exported, and what both have once."""
    rows = session("One", "Two", "Three").rows
    for name, part in (("monday", rows[:4]), ("tuesday", rows[2:])):
        (project / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    assert sorted(said(project)) == ["One", "Three", "Two"]
