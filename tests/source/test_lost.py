"""Sessions whose own transcript was deleted: what their subagents did is exported all the same, once."""

import json
import shutil
from pathlib import Path

import pytest
from reads import outline, read

from turnspan.errors import TranscriptError
from turnspan.source.ending import Ending
from turnspan.source.find import find_session, require_transcript
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions, each_once, session_of

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
FLAT, NESTED = "00000098-10e0-4000-8000-000000000098", "00000097-10e0-4000-8000-000000000097"


@pytest.fixture
def projects(tmp_path):
    """A copy of the story about lost sessions."""
    shutil.copytree(FIXTURES / "agents-lost" / "projects", tmp_path / "projects")
    return tmp_path / "projects"


def test_a_lost_session_is_listed_once(projects):
    """However many of its agents are left, a session is listed once, under the id that their rows name."""
    assert sorted(session.session_id for session in each_once(all_sessions(projects))) == [NESTED, FLAT]


def test_a_lost_session_is_exported_once(projects):
    """A second backfill finds nothing new."""
    for session in all_sessions(projects):
        traces, progress = read(session.path)
        assert {trace.session_id for trace in traces} == {session.session_id}
        assert read(session.path, progress)[0] == []


def test_what_was_exported_before_the_session_was_lost_is_not_exported_again(tmp_path):
    """Agents that were exported below their calls do not become traces of their own when the session is deleted."""
    shutil.copytree(FIXTURES / "agents-foreground" / "projects", tmp_path / "projects")
    (session,) = all_sessions(tmp_path / "projects")
    _, progress = read(session.path)
    session.path.unlink()
    (lost,) = all_sessions(tmp_path / "projects")
    assert lost.is_lost
    assert lost.session_id == session.session_id
    assert lost.project == session.project
    assert read(lost.path, progress)[0] == []
    assert read(lost.path)[0] != []


def test_the_file_of_an_agent_can_be_shown_if_its_session_is_lost(projects):
    """It is shown as part of the session that it names; beside its session, the session is to be shown instead."""
    path = projects / "-home-ada-loom" / "agent-98f00d01.jsonl"
    require_transcript(path)
    assert outline(read(find_session(projects, str(path)).path)[0]) == ["agent", "  said It is in the basket."]
    own = path.with_name(f"{FLAT}.jsonl")
    shutil.copy(path, own)
    with pytest.raises(TranscriptError, match="is the transcript of a subagent"):
        require_transcript(path)


def test_an_agent_alone_in_a_directory_is_read(projects, tmp_path):
    """A single file that was copied from `subagents/` is enough."""
    (copied,) = projects.glob("*/*/subagents/agent-97beef00.jsonl")
    alone = shutil.copy(copied, tmp_path / "agent-97beef00.jsonl")
    assert outline(read(Path(alone))[0]) == ["agent", "  said 12 m."]


def test_warmups_of_a_lost_session_are_counted(projects):
    """An agent that the client started by itself is skipped, and counted."""
    session = session_of(projects / "-home-ada-loom" / "agent-98f00d01.jsonl")
    reading = Reader.for_people().read(session, Progress(), Ending(is_over=True))
    pieces = list(reading.pieces())
    assert sum(piece.counts.warmups for piece in pieces) == reading.warmups == 1
    assert reading.skipped


def test_a_lost_session_that_was_sent_says_so(claude_home, command):
    """It has no turn to count: that its spans have arrived is what `sessions` shows."""
    shutil.copytree(FIXTURES / "agents-lost" / "projects", claude_home / "projects")
    assert command("sessions")[1].count(" no ") == 2
    assert command("backfill")[0] == 0
    code, out, _ = command("sessions", "--json")
    assert code == 0
    assert [json.loads(line)["sent"] for line in out.splitlines()] == ["all", "all"]
