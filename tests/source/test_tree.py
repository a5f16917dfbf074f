"""The walk over the transcripts: what is listed, and which symlinks are followed."""

import os
import time

from rows import Writer, agent_writer, save_agent

from turnspan.source import sessions
from turnspan.source.sessions import SessionFile
from turnspan.source.tree import names_in


def test_a_file_that_appears_in_the_same_moment_is_listed(project):
    """A directory can change twice without another time: a listing of such a moment is not kept."""
    now_ns = time.time_ns()
    os.utime(project, ns=(now_ns, now_ns))
    assert names_in(project).sessions == ()
    (project / f"{'0' * 36}.jsonl").touch()
    os.utime(project, ns=(now_ns, now_ns))
    assert names_in(project).sessions == (f"{'0' * 36}.jsonl",)


def test_a_path_outside_is_outside(tmp_path, project):
    """A link that leads out of the projects directory is seen through."""
    (tmp_path / "elsewhere.jsonl").touch()
    (project / "link.jsonl").symlink_to(tmp_path / "elsewhere.jsonl")
    (project / "own.jsonl").touch()
    assert sessions.is_below(project / "own.jsonl", project.parent)
    assert not sessions.is_below(project / "link.jsonl", project.parent)
    assert not sessions.is_below(project / ".." / ".." / "elsewhere.jsonl", project.parent)


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
