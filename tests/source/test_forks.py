"""Copied history: each kind of copy is recognised, and exported from its origin only."""

import json
import os
import shutil
from pathlib import Path

import pytest
from reads import outline, outlined, read, spans
from rows import Writer

from turnspan.source import forks, sessions
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import SessionFile
from turnspan.trace.build import trace_of
from turnspan.transcript.carry import TurnRef

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures"
OTHER = "f04c0000-0000-4000-8000-000000000002"


def test_the_table_of_the_documentation_is_the_list_of_rules():
    """Whoever changes a rule prints the table again: `print(forks.table())`."""
    assert forks.table() in (ROOT / "docs" / "dev" / "architecture.md").read_text()


def copied(writer, *, version=None, **changes):
    """Return a writer whose file begins with a copy of another one's rows, each changed in some way."""
    copy = Writer(OTHER, version or writer.version, "b", **writer.always)
    copy.now = writer.now
    copy.rows = [{**row, **{key: change(row) for key, change in changes.items()}} for row in writer.rows]
    copy.parent = copy.rows[-1]["uuid"]
    return copy


def test_a_copy_under_the_old_id_belongs_to_its_origin(project):
    """A resume or a fork up to 2.1.63 keeps the old session id on copied rows: only new turns are exported."""
    main = Writer(version="2.1.45")
    main.turn("One.", "First.")
    fork = copied(main)
    fork.turn("Two.", "Second.")
    assert outlined(main.save(project)) == ["Turn 1", "  said First."]
    assert outlined(fork.save(project)) == ["Turn 2", "  said Second."]
    assert outlined(project / f"{main.session}.jsonl") == ["Turn 1", "  said First."]


@pytest.mark.parametrize("version", ["2.1.1", "2.1.45", "2.1.123"])
@pytest.mark.parametrize("which_is_newer", ["origin", "copy"])
def test_an_origin_that_continues_after_the_copy_is_not_lost(project, version, which_is_newer):
    """Copied turns are exported from their origin, also if it was written to after the copy."""
    main = Writer(version=version)
    main.turn("One.", "First.")
    mark = {
        "forkedFrom": lambda row: {"sessionId": main.session, "messageUuid": row["uuid"]},
        "sessionId": lambda _: OTHER,
    }
    fork = copied(main, **(mark if version == "2.1.123" else {}))
    fork.turn("Two.", "Second.")
    main.turn("Three.", "Third.")
    paths = {"origin": main.save(project), "copy": fork.save(project)}
    for name, path in paths.items():
        os.utime(path, (2e9, 2e9) if name == which_is_newer else (1e9, 1e9))
    assert outlined(paths["origin"]) == ["Turn 1", "  said First.", "Turn 2", "  said Third."]
    assert outlined(paths["copy"]) == ["Turn 2", "  said Second."]


def test_an_unmarked_fork_is_recognised_by_its_first_row(project):
    """Where nothing marks a copy, the file that was begun later is it: what a client writes first is not copied."""
    main = Writer(version="2.1.172")
    main.turn("One.", "First.")
    fork = copied(main, sessionId=lambda _: OTHER)
    fork.wait(60)
    fork.rows.insert(
        0, {"type": "queue-operation", "operation": "dequeue", "timestamp": fork.stamp(), "sessionId": OTHER}
    )
    fork.turn("Two.", "Second.")
    paths = main.save(project), fork.save(project)
    os.utime(paths[0], (2e9, 2e9))
    assert outlined(paths[0]) == ["Turn 1", "  said First."]
    assert outlined(paths[1]) == ["Turn 2", "  said Second."]


def test_a_long_first_prompt_does_not_hide_a_copy(project):
    """A prompt of a hundred kilobytes pushes the first time far into the file; its copy is found all the same."""
    main = Writer(version="2.1.172")
    main.turn("x" * 100_000, "First.")
    main.turn("y" * 200_000, "Second.")
    fork = copied(main, sessionId=lambda _: OTHER)
    fork.wait(60)
    fork.rows.insert(
        0, {"type": "queue-operation", "operation": "dequeue", "timestamp": fork.stamp(), "sessionId": OTHER}
    )
    fork.turn("Three.", "Third.")
    main.save(project)
    assert outlined(fork.save(project)) == ["Turn 3", "  said Third."]


@pytest.mark.parametrize("version", ["1.0.128", "2.0.15", "2.0.25"])
def test_a_fork_with_new_times_is_recognised_by_them(project, version):
    """Clients before 2.0.30 give everything they copy a new session and one new time."""
    main = Writer(version=version)
    main.turn("One.", "First.")
    fork = copied(main, sessionId=lambda _: OTHER, timestamp=lambda _: "2026-03-01T10:00:00.000Z")
    fork.wait(7200)
    fork.turn("Two.", "Second.")
    assert outlined(main.save(project)) == ["Turn 1", "  said First."]
    assert outlined(fork.save(project)) == ["Turn 2", "  said Second."]


def test_copies_of_old_clients_are_recognised_in_any_order(project):
    """When the sessions of an old client are read one after the other, copies are recognised; rows that appear too."""
    first, main, last = (Writer(f"f04c0000-0000-4000-8000-00000000000{n}", "2.0.15", f"{n}") for n in (1, 3, 4))
    for writer in (first, main, last):
        writer.turn("One.", "First.")
    fork = copied(main, sessionId=lambda _: OTHER, timestamp=lambda _: "2026-03-01T10:00:00.000Z")
    fork.wait(7200)
    fork.turn("Two.", "Second.")
    paths = [writer.save(project) for writer in (first, main, fork, last)]
    assert [outlined(path)[0] for path in paths] == ["Turn 1", "Turn 1", "Turn 2", "Turn 1"]
    first.rows += [{**row, "sessionId": first.session, "timestamp": "2020-01-01T00:00:00.000Z"} for row in last.rows]
    first.save(project)
    assert outlined(paths[3]) == []


def test_later_parts_of_a_copied_turn_are_copies_too(project):
    """A turn that a Stop hook sent back to work is copied with all its parts."""
    main = Writer(version="2.1.45")
    main.turn("One.", "First.")
    main.prompt("Stop hook feedback:\nmore", isMeta=True)
    main.say("More of it.")
    fork = copied(main)
    fork.turn("Two.", "Second.")
    assert outlined(main.save(project)) == ["Turn 1", "  said First.", "… said More of it."]
    assert outlined(fork.save(project)) == ["Turn 2", "  said Second."]
    reading = Reader.for_people().read(SessionFile(OTHER, project / f"{OTHER}.jsonl"), Progress(), Ending(is_over=True))
    assert [(piece.turns, piece.counts.copied) for piece in reading.pieces()] == [(1, 1)]


def test_the_origin_of_an_unmarked_fork_holds_more_than_the_conversation(project):
    """If nothing else decides, the file with more rows between the common ones is the origin, whichever is newer."""
    main = Writer(version="2.1.172")
    main.prompt("One.")
    main.bare("file-history-snapshot", snapshot={})
    main.say("First.")
    main.turn("Two.", "Second.")
    fork = copied(main, sessionId=lambda _: OTHER)
    fork.rows = [row for row in fork.rows if row["type"] != "file-history-snapshot"]
    fork.turn("Fork.", "Other.")
    assert outlined(fork.save(project)) == [
        "Turn 1",
        "  said First.",
        "Turn 2",
        "  said Second.",
        "Turn 3",
        "  said Other.",
    ]
    for latest in (main, fork, main):
        path = latest.save(project)
        os.utime(path, ns=(path.stat().st_mtime_ns + 10**9,) * 2)
        if latest is main:
            main.turn("More.", "Later.")
    assert outlined(project / f"{main.session}.jsonl")[:2] == ["Turn 1", "  said First."]
    assert outlined(project / f"{OTHER}.jsonl") == ["Turn 3", "  said Other."]


def test_a_forks_first_turn_points_to_the_turn_before_it(project):
    """The turn that follows a copied one is linked to its original, in the other session."""
    for mark in ({"sessionId": lambda _: OTHER}, {}):
        main = Writer(version="2.1.172")
        asked = main.turn("One.", "First.")
        fork = copied(main, **mark)
        fork.wait(60)
        fork.rows.insert(
            0, {"type": "queue-operation", "operation": "dequeue", "timestamp": fork.stamp(), "sessionId": OTHER}
        )
        fork.turn("Two.", "Second.")
        main.save(project)
        (turn,) = spans(read(fork.save(project))[0], "turn")
        assert turn.links[0].trace_id == trace_of(TurnRef(main.session, asked["uuid"], 1, 1))


def test_turns_written_under_the_old_id_into_a_new_file_are_kept(project):
    """1.0.x `--continue` writes to a new file under the old id: rows that the old file does not hold are new."""
    main = Writer(version="1.0.128")
    main.turn("One.", "First.")
    main.save(project)
    fork = copied(main)
    fork.session = main.session
    fork.turn("Two.", "Second.")
    fork.session = OTHER
    assert outlined(fork.save(project)) == ["Turn 2", "  said Second."]


def test_copies_whose_origin_was_deleted_are_exported_under_its_identity(project):
    """A copy whose origin is not on disk is the only one there is, unless the origin was exported before."""
    main = Writer(version="2.1.45")
    asked = main.turn("One.", "First.")
    fork = copied(main)
    fork.turn("Two.", "Second.")
    path = fork.save(project)
    traces, _ = read(path)
    assert outline(traces) == ["Turn 1", "  said First.", "Turn 2", "  said Second."]
    assert traces[0].trace_id == trace_of(TurnRef(main.session, asked["uuid"], 1, 1))
    assert traces[0].session_id == main.session
    session = SessionFile(fork.session, path)
    reading = Reader(None, lambda session_id: session_id == main.session).read(
        session, Progress(), Ending(is_over=True)
    )
    assert outline([trace for piece in reading.pieces() for trace in piece.traces]) == ["Turn 2", "  said Second."]
    main.save(project)
    assert outlined(path) == ["Turn 2", "  said Second."]


def test_a_copy_of_a_session_that_was_sent_stays_unsent_beside_other_sessions(project):
    """Its origin was exported and deleted; an older session of the project, which has nothing of it, is no reason."""
    older = Writer("0fd00000-0000-4000-8000-000000000009", "2.1.45", "c")
    older.turn("Old.", "Older.")
    older.save(project)
    main = Writer(version="2.1.45")
    main.wait(3600)
    main.turn("One.", "First.")
    fork = copied(main)
    fork.turn("Two.", "Second.")
    session = SessionFile(fork.session, fork.save(project))
    reading = Reader(None, lambda session_id: session_id == main.session).read(
        session, Progress(), Ending(is_over=True)
    )
    assert outline([trace for piece in reading.pieces() for trace in piece.traces]) == ["Turn 2", "  said Second."]


def test_a_renamed_origin_is_found(project):
    """A copy is not exported again because its origin was renamed, or is in another project."""
    main = Writer(version="2.1.45")
    main.turn("One.", "First.")
    fork = copied(main)
    fork.turn("Two.", "Second.")
    path, origin = fork.save(project), main.save(project)
    other = project.parent / "-home-ada-other"
    other.mkdir()
    for place in (project / "backup-of-monday.jsonl", other / origin.name):
        origin = origin.rename(place)
        assert outlined(path) == ["Turn 2", "  said Second."], place.name


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" ,  ", "  :  ")])
def test_a_transcript_that_another_tool_wrote_again_is_the_same(project, separators):
    """Spaces and the order of keys do not matter, nor the length of the last row of a renamed file."""
    main = Writer(version="2.1.45")
    main.turn("One.", "First.")
    fork = copied(main)
    fork.turn("Two.", "Second." + "x" * 100_000)
    paths = main.save(project), fork.save(project)
    wanted = outlined(paths[1])
    assert wanted[0] == "Turn 2"
    for path in paths:
        rows = [json.loads(line) for line in path.read_bytes().splitlines()]
        turned = [dict(reversed(row.items())) for row in rows]
        path.write_text("".join(json.dumps(row, separators=separators) + "\n" for row in turned))
    assert outlined(paths[1]) == wanted
    renamed = paths[1].rename(project / "copy.jsonl")
    assert sessions.session_of(renamed).session_id == fork.session
    assert sessions.cwd_of(renamed) == "/home/ada/loom"
    assert sessions.last_time_ns(renamed) is not None


def test_copies_whose_origin_was_deleted_are_exported_by_the_first(project):
    """Clients before 1.0.86 copied under new uuids, at new times. When the origin was deleted its copies stay."""
    story = FIXTURES / "copied-resume-1.0.80" / "projects" / "-home-ada-loom"
    origin, resumed, continued = (shutil.copy(path, project / path.name) for path in sorted(story.iterdir()))
    last = ["Turn 5", "  said Cut."]
    assert (outlined(resumed), outlined(continued)) == (["Turn 4", "  said Tied."], last)
    origin.unlink()
    assert [line for line in outlined(resumed) if line.startswith("Turn")] == ["Turn 1", "Turn 2", "Turn 3", "Turn 4"]
    assert outlined(continued) == last


def test_words_without_an_answer_are_copies_of_words_only(project):
    """In clients before 1.0.86 an unanswered prompt is recognised by its words alone, not by the branch name."""
    earlier = Writer(version="1.0.80", gitBranch="Later.")
    earlier.turn("One.", "First.")
    earlier.save(project)
    own = Writer(OTHER, version="1.0.80")
    own.wait(3600)
    own.prompt("Later.")
    assert outlined(own.save(project)) == ["Turn 1"]
    earlier.turn("Later.", "Second.")
    earlier.save(project)
    assert outlined(own.save(project)) == []


def test_a_resume_that_repeats_itself_is_exported_once(project):
    """VS Code once wrote the history again into the same file, with new uuids: the message ids are the same."""
    main = Writer(version="2.1.11")
    main.turn("One.", "First.")
    main.rows += json.loads(json.dumps(main.rows).replace("0000000a-", "0000000c-"))
    main.wait(99)
    main.turn("Two.", "Second.")
    assert outlined(main.save(project)) == ["Turn 1", "  said First.", "Turn 3", "  said Second."]
