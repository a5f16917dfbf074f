import json
import os
import threading
from pathlib import Path

import pytest
from only_posix import make_fifo
from reads import outlined, read, sent
from rows import Writer, agent_writer, save_agent

from turnspan.errors import TranscriptError
from turnspan.source import sessions
from turnspan.source.find import find_session
from turnspan.source.sessions import SessionFile, session_at

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
OTHER = "f04c0000-0000-4000-8000-000000000002"


# ---- where they lie


def test_sessions_are_found_by_their_names(project):
    """Sessions are the files named after one; agents, directories, other files and links that lead out are not."""
    for name in ("b.jsonl", "a.jsonl", "agent-x.jsonl", "notes.txt", ".hidden.jsonl", "no good.jsonl", "a.jsonl.bak"):
        (project / name).touch()
    (project / "a").mkdir()
    (project / "link.jsonl").symlink_to(project.parent.parent / "elsewhere.jsonl")
    (project / "inside.jsonl").symlink_to(project / "a.jsonl")
    assert [session.session_id for session in sessions.sessions_in(project)] == ["a", "b", "inside"]
    assert [s.project for s in sessions.all_sessions(project.parent)] == [project.name] * 3
    assert list(sessions.sessions_in(project / "gone")) == []
    assert list(sessions.all_sessions(project / "gone")) == []


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
