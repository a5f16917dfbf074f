import json
import os
import shutil
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from only_posix import make_fifo
from reads import outline, read, sent, spans
from rows import Writer, agent_writer, save_agent

from turnspan.errors import TranscriptError
from turnspan.source import scan, sessions
from turnspan.source.find import find_session
from turnspan.source.first_prompts import FirstPrompts
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.source.sessions import SessionFile, session_at, session_names
from turnspan.trace.build import trace_of
from turnspan.transcript.resume import TurnRef

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
OTHER = "f04c0000-0000-4000-8000-000000000002"


@pytest.fixture
def project(tmp_path):
    """A project directory below a projects directory."""
    path = tmp_path / "projects" / "-home-ada-loom"
    path.mkdir(parents=True)
    return path


def copied(writer, *, version=None, **changes):
    """Return a writer whose file begins with a copy of another one's rows, each changed in some way."""
    copy = Writer(OTHER, version or writer.version, "b", **writer.always)
    copy.now = writer.now
    copy.rows = [{**row, **{key: change(row) for key, change in changes.items()}} for row in writer.rows]
    copy.parent = copy.rows[-1]["uuid"]
    return copy


def outlined(path):
    """Return the traces of a session, as lines."""
    return outline(read(path)[0])


# ---- where they lie


def test_sessions_are_found_by_their_names(project):
    """Sessions are the files named after one; agents, folders of agents and other files are not."""
    for name in ("b.jsonl", "a.jsonl", "agent-x.jsonl", "notes.txt", ".hidden.jsonl", "no good.jsonl", "a.jsonl.bak"):
        (project / name).touch()
    (project / "a").mkdir()
    assert [session.session_id for session in sessions.sessions_in(project)] == ["a", "b"]
    assert [s.project for s in sessions.all_sessions(project.parent)] == [project.name] * 2
    assert list(sessions.sessions_in(project / "gone")) == []
    assert list(sessions.all_sessions(project / "gone")) == []


def test_a_path_outside_is_outside(tmp_path, project):
    """A link that leads out of the projects directory is seen through."""
    (tmp_path / "elsewhere.jsonl").touch()
    (project / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    (project / "own.jsonl").touch()
    assert sessions.is_below(project / "own.jsonl", project.parent)
    assert not sessions.is_below(project / "link.jsonl", project.parent)
    assert not sessions.is_below(project / ".." / ".." / "elsewhere.jsonl", project.parent)


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "", ".", "-x", "a" * 200, "a\0b"])
def test_an_id_that_is_not_a_name_is_not_used_in_a_path(project, name):
    """An id that would lead elsewhere is not an id."""
    assert sessions.flat_agent_file(SessionFile("s", project / "s.jsonl"), name) is None
    if name:
        with pytest.raises(TranscriptError, match="not named after a session"):
            session_at(project / f"{name.replace('/', '_').replace(chr(0), '?')} .jsonl")


def test_a_session_is_found_by_id_prefix_and_path(project):
    """A session is found by its id, a prefix of it, or its file."""
    first = Writer("aaaa0000-0000-4000-8000-000000000001").save(project)
    Writer("aaab0000-0000-4000-8000-000000000002").save(project)
    found = [find_session(project.parent, name) for name in (first.stem, "aaaa", str(first))]
    assert found == [SessionFile(first.stem, first)] * 3
    for name, said in (("aaa", "2 sessions begin"), ("zz", "no session"), (str(project), "is a directory")):
        with pytest.raises(TranscriptError, match=said):
            find_session(project.parent, name)


def test_without_a_name_it_is_the_latest_of_this_project(project):
    """Nothing named means the latest session of the directory one is in, or else the latest of all."""
    with pytest.raises(TranscriptError, match="no transcripts"):
        find_session(project.parent, None)
    here, there = Writer("a1"), Writer("a2", cwd="/home/ada/quilt")
    here.turn("Hi.", "Hi.")
    there.turn("Hi.", "Hi.")
    os.utime(here.save(project), (1, 1))
    there.save(project)
    assert find_session(project.parent, None, there.always["cwd"]).session_id == "a2"
    assert find_session(project.parent, None, here.always["cwd"]).session_id == "a1"
    assert find_session(project.parent, None).session_id == "a2"


def test_titles_come_from_the_index_too(project):
    """`sessions-index.json` has names for sessions; a broken one has none."""
    index = project / "sessions-index.json"
    assert sessions.indexed_titles(project) == {}
    index.write_text(
        json.dumps({"version": 1, "entries": [{"sessionId": "a", "summary": "Weaving"}, {"sessionId": "b"}]})
    )
    assert sessions.indexed_titles(project) == {"a": "Weaving"}
    for rubbish in ("[]", '{"entries": 5}', "{", "\0"):
        index.write_text(rubbish)
        assert sessions.indexed_titles(project) == {}


# ---- agents


def test_agents_are_found_in_every_layout(project):
    """Agents lie below their session, in workflows too, or next to it; what their meta.json says is read."""
    main = Writer()
    main.turn("Hi.", "Hi.")
    path = main.save(project)
    agent = agent_writer(main, "a1")
    agent.turn("Go.", "Gone.")
    save_agent(agent, project, "a1", {"agentType": "Explore", "description": "d", "toolUseId": "t", "spawnDepth": 2})
    save_agent(agent, project, "a2", below="subagents/workflows/run")
    save_agent(agent, project, "a3", flat=True)
    session = SessionFile(path.stem, path)
    found = sessions.agent_files(session)
    assert set(found) == {"a1", "a2"}
    assert (found["a1"].type, found["a1"].tool_use_id, found["a1"].depth, found["a1"].is_finished) == (
        "Explore",
        "t",
        2,
        False,
    )
    assert [file.agent_id for file in sessions.flat_agent_files(session)] == ["a3"]
    assert sessions.flat_agent_file(session, "a3").path.name == "agent-a3.jsonl"
    assert list(sessions.flat_agent_files(SessionFile(OTHER, path))) == []


def test_links_to_directories_lead_nowhere(project):
    """A link among the agents that leads back to them, or out of the session, is not followed."""
    main = Writer()
    main.turn("Hi.", "Hi.")
    path = main.save(project)
    save_agent(agent_writer(main, "a1"), project, "a1")
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "agent-b1.jsonl").write_text("{}")
    agents = path.with_suffix("") / "subagents"
    (agents / "again").symlink_to(agents)
    (agents / "out").symlink_to(elsewhere)
    (agents / "agent-..jsonl").write_text("{}")
    (agents / "notes").write_text("no directory")
    assert set(sessions.agent_files(SessionFile(path.stem, path))) == {"a1"}


@pytest.fixture
def linked(project):
    """A session with a subagent, and a directory outside the projects directory with files like its own."""
    main = Writer()
    main.turn("Hi.", "Hi.")
    path = main.save(project)
    save_agent(agent_writer(main, "a1"), project, "a1")
    outside = project.parent.parent / "outside"
    outside.mkdir()
    return SessionFile(path.stem, path), path.with_suffix("") / "subagents", outside


def test_agents_that_are_links_out_of_the_projects_directory_are_not_read(linked, project):
    """Neither a file, nor a directory above it, nor one next to the session; links inside are followed."""
    session, agents, outside = linked
    (outside / "agent-b1.jsonl").write_text(f'{{"sessionId":"{session.session_id}"}}\n')
    (agents / "agent-b1.jsonl").symlink_to(outside / "agent-b1.jsonl")
    (project / "agent-b2.jsonl").symlink_to(outside / "agent-b1.jsonl")
    (agents / "agent-b3.jsonl").symlink_to("/dev/zero")
    (agents / "agent-a2.jsonl").symlink_to(agents / "agent-a1.jsonl")
    assert set(sessions.agent_files(session)) == {"a1", "a2"}
    assert sessions.flat_agent_file(session, "b2") is None
    assert list(sessions.flat_agent_files(session)) == []
    agents.rename(outside / "subagents")
    agents.symlink_to(outside / "subagents")
    assert sessions.agent_files(session) == {}
    agents.unlink()
    agents.parent.rmdir()
    agents.parent.symlink_to(outside)
    assert sessions.agent_files(session) == {}


@pytest.mark.parametrize("target", ["outside", "/dev/zero", "FIFO"])
def test_descriptions_that_are_links_or_pipes_are_not_read(linked, project, target):
    """`meta.json` of an agent and `sessions-index.json` of a project are read only if they are files there."""
    session, agents, outside = linked
    (outside / "x.json").write_text('{"agentType":"secret","entries":[{"sessionId":"s","summary":"secret"}]}')
    for path in (agents / "agent-a1.meta.json", project / "sessions-index.json"):
        path.unlink(missing_ok=True)
        if target == "FIFO":
            make_fifo(path)
        else:
            path.symlink_to(outside / "x.json" if target == "outside" else target)
    assert sessions.agent_files(session)["a1"].type == ""
    assert sessions.indexed_titles(project) == {}


@pytest.mark.parametrize(
    ("meta", "kind"),
    [
        (b'{"agentType":"Explore","finished":true}', "Explore"),
        (b'{"agentType":"Explore","finished":tr', "Explore"),
        (b'{"agentType":"Explore","descri', "Explore"),
        (b'{"agentTy', ""),
        (b"[]", ""),
        (b"\xff", ""),
        (b"", ""),
    ],
)
def test_the_readable_half_of_a_meta_file_is_used(project, meta, kind):
    """meta.json is rewritten when an agent ends: a reader at that moment gets the complete fields."""
    main = Writer()
    main.turn("Hi.", "Hi.")
    path = main.save(project)
    file = save_agent(agent_writer(main, "a1"), project, "a1")
    file.with_suffix(".meta.json").write_bytes(meta)
    assert sessions.agent_files(SessionFile(path.stem, path))["a1"].type == kind


def test_an_agents_label_is_in_its_id():
    """Agents that no call launched say in their id what they are for."""
    assert sessions.label_of("acompact-00aa") == "compact"
    assert sessions.label_of("aprompt_suggestion-6b3e03") == "prompt suggestion"
    assert sessions.label_of("a9ae1324435cade63") == ""


# ---- copied history


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


def test_first_prompts_that_are_searched_in_advance_are_found_all_the_same(project):
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


def test_the_first_prompts_of_old_sessions_are_known_in_advance(project):
    """The second session of a process learns which prompts the others of its project will ask for; not new clients."""
    writers = [Writer(f"{n:08}-0000-4000-8000-000000000000", version, f"{n}") for n, version in enumerate(
        ("2.0.15", "2.0.15", "2.0.15", "2.1.172", "2.0.15")
    )]  # fmt: skip
    writers[2].prompt("Caveat.", isMeta=True)
    for writer in writers:
        writer.turn("One.", "First.")
    paths = [writer.save(project) for writer in writers]
    (project / f"{'9' * 8}-0000-4000-8000-000000000000.jsonl").write_text("damaged\n")
    prompts, names, before = FirstPrompts(), session_names(project), (2, 0, 30)
    uuids = [writer.rows[-2]["uuid"] for writer in writers]
    assert prompts.expected(paths[0], names, before) == ()
    assert prompts.expected(paths[1], names, before) == (uuids[2], uuids[4])
    assert prompts.expected(paths[2], names, before) == (uuids[4],)
    assert prompts.expected(paths[4], names, before) == ()


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
    reading = Reading(SessionFile(OTHER, project / f"{OTHER}.jsonl"), Progress(), Ending(is_over=True))
    assert [(piece.turns, piece.copied) for piece in reading.pieces()] == [(1, 1)]


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
    reading = Reading(session, Progress(), Ending(is_over=True), None, lambda session_id: session_id == main.session)
    assert outline([trace for piece in reading.pieces() for trace in piece.traces]) == ["Turn 2", "  said Second."]
    main.save(project)
    assert outlined(path) == ["Turn 2", "  said Second."]


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


# ---- files that are no transcripts


def test_a_fifo_in_the_project_does_not_block(project):
    """A pipe that bears the name of a session, an agent or a meta file is passed over at once."""
    main = Writer(version="2.1.172")
    main.turn("One.", "First.")
    path = main.save(project)
    folder = project / main.session / "subagents"
    folder.mkdir(parents=True)
    for pipe in (
        project / f"{OTHER}.jsonl",
        project / "agent-p1.jsonl",
        folder / "agent-p2.jsonl",
        folder / "agent-p2.meta.json",
    ):
        make_fifo(pipe)
    found = []
    thread = threading.Thread(target=lambda: found.append(outlined(path)), daemon=True)
    thread.start()
    thread.join(10)
    assert found == [["Turn 1", "  said First."]]


def test_times_of_files_make_no_difference(project):
    """A restored backup has other modification times, and gives the same traces."""
    main = Writer(version="2.0.60")
    main.prompt("Measure.")
    main.call("Task", {"prompt": "Measure it.", "subagent_type": "Explore"})
    agent = agent_writer(main, "abc123")
    agent.turn("Measure it.", "Ninety.")
    path, file = (
        main.save(project),
        save_agent(agent, project, "abc123", flat=True),
    )  # killed: no result names the agent
    before = sent(read(path)[0])
    for moment in (0, 4e9):
        os.utime(path, (moment, moment))
        os.utime(file, (moment, moment))
        assert sent(read(path)[0]) == before
    assert "      Explore" in outlined(path)


@given(
    ids=st.lists(st.text("abcdef0123-", min_size=1, max_size=8), min_size=1, max_size=30),
    asked=st.lists(st.text("abcdef0123-", min_size=1, max_size=8), max_size=10),
    spaces=st.sampled_from(["", " "]),
)
def test_a_file_that_is_searched_often_gives_the_same_answers(tmp_path_factory, ids, asked, spaces):
    """After some searches an index of the ids in a file is used: it never hides one, at any offset, in any spelling."""
    path = tmp_path_factory.mktemp("often", numbered=True) / "a.jsonl"
    keys = ("uuid", "id", "requestId", "parentUuid", "messageUuid")
    rows = [
        f'{{"{keys[n % 5]}"{spaces}:{spaces}"{each}", "text": "\\"uuid\\":\\"zz\\""}}\n' for n, each in enumerate(ids)
    ]
    path.write_text("".join(rows))
    size = path.stat().st_size
    questions = [
        (each, key, before) for each in (*ids, *asked, "zz") for key in keys for before in (None, size // 2, 0)
    ]

    def answers(soon=()):
        return [scan.contains_id(path, each, key=key, before=before, soon=soon) for each, key, before in questions]

    def times():
        return [scan.first_row_time_ns(path, ("id", b'"%b"' % each.encode())) for each in (*ids, *asked)]

    scan._ids_of.cache_clear()
    found = answers()
    before_index = times()
    assert (answers(), times()) == (found, before_index)
    scan._ids_of.cache_clear()
    assert answers(soon=(*asked, *ids[::2])) == found
    text = path.read_text()
    for (each, key, before), is_there in zip(questions, found, strict=True):
        at = text.find(f'"{key}"{spaces}:{spaces}"{each}"')
        end = at + len(f'"{key}"{spaces}:{spaces}"{each}"')
        assert is_there == (at >= 0 and (before is None or end <= before)), (each, key, before)


def test_a_file_that_appears_in_the_same_moment_is_listed(project):
    """A directory can change twice without another time: a listing of such a moment is not kept."""
    now_ns = time.time_ns()
    os.utime(project, ns=(now_ns, now_ns))
    assert session_names(project) == ()
    (project / f"{'0' * 36}.jsonl").touch()
    os.utime(project, ns=(now_ns, now_ns))
    assert session_names(project) == (f"{'0' * 36}.jsonl",)
