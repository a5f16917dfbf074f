"""The table of sessions and the totals of each."""

import os

import msgspec
import pytest
from only_posix import make_fifo
from reads import read
from rows import Writer, agent_writer, save_agent, tool_id

from turnspan.bulk.report import Verified, verify_lines
from turnspan.bulk.verify import Checked
from turnspan.page.overview import overview
from turnspan.page.sessions_table import table_head, table_row
from turnspan.settings.config import load_config
from turnspan.source.sessions import SessionFile, newest_sessions
from turnspan.text import cells
from turnspan.trace.tally import tally_of

DAY_NS = 86400 * 10**9


def session_number(number, **options):
    """Return a writer for one of many sessions."""
    return Writer(session=f"{number:08}-0000-4000-8000-000000000001", tag=f"s{number}", **options)


def save_dated(writer, directory, day):
    """Save a transcript with a modification time."""
    path = writer.save(directory)
    os.utime(path, ns=(day * DAY_NS, day * DAY_NS))
    return path


def listed(**options):
    """Return the rows of the list of sessions."""
    return [row for row, _ in overview(load_config(os.environ), limit=10, unread={}, **options)]


def summary_of(path):
    """Return the row of one transcript."""
    return next(row for row in listed() if row.path == path)


@pytest.fixture
def projects(claude_home):
    """Return the directory of a project in the Claude home."""
    return claude_home / "projects" / "-home-ada-loom"


def test_a_session_is_summed_up(projects):
    """Turns, responses, tools, agents and errors are counted, tokens and cost are summed, each once."""
    writer = Writer(version="2.1.325")
    writer.prompt("look around")
    call = writer.call("Agent", {"description": "look", "prompt": "look", "subagent_type": "Explore"})
    agent = agent_writer(writer, "a1b2")
    agent.prompt("look")
    agent.say("Nothing here.")
    writer.result(call, "Nothing here.", outcome={"agentId": "a1b2", "status": "completed"}, after=5)
    failed = writer.call("Bash", {"command": "false"})
    writer.result(failed, "Exit code 1", is_error=True)
    writer.say("Done.")
    writer.turn("thanks", "You are welcome.")
    path = writer.save(projects)
    save_agent(agent, projects, "a1b2", {"agentType": "Explore", "toolUseId": tool_id(call)})

    total = summary_of(path).tally
    assert (total.turns, total.generations, total.tools, total.agents, total.errors) == (2, 5, 2, 1, 1)
    assert total.usage.output == 5 * 40
    assert total.usage.cache_read == 5 * 300
    assert total.cost_usd > 0
    assert not total.is_cost_partial


def test_a_total_that_lacks_something_is_marked(projects):
    """Output tokens that were not recorded make a total a lower bound (≥); without any price it is unknown (?)."""
    writer = Writer(version="2.1.325")
    writer.prompt("hi")
    writer.say("Hello.", model="some-model-of-tomorrow")
    unknown = summary_of(writer.save(projects))
    assert unknown.tally.unpriced == {"some-model-of-tomorrow"}
    assert " ? " in table_row(unknown, 100, now_ns=0, sent="no")

    writer = session_number(2, version="2.1.30")
    writer.turn("hi", "Hello.")
    uncounted = summary_of(writer.save(projects))
    assert uncounted.tally.incomplete == 1
    assert "≥370" in table_row(uncounted, 100, now_ns=0, sent="no")


def test_verify_marks_a_total_that_lacks_something(projects):
    """The sentence about a destination marks partial tokens and cost like the table of sessions: ≥."""
    writer = session_number(2, version="2.1.30")
    writer.turn("hi", "Hello.")
    path = writer.save(projects)
    tally = summary_of(path).tally
    session = SessionFile(path.stem, path)
    checked = Checked(session=session, project="", spans=2, expected=tally, acknowledged=tally, stored=None)
    (sentence,) = verify_lines([Verified("local", checked)], {"local": False}, {})
    assert "≥370 tokens, ≥$" in sentence


def test_a_session_without_turns_has_a_row(projects):
    """A session without a turn is listed, too."""
    projects.mkdir(parents=True)
    path = projects / "5e55104a-0000-4000-8000-000000000001.jsonl"
    path.write_text('{"type":"progress","data":{}}\n')
    os.utime(path, ns=(3 * DAY_NS, 3 * DAY_NS))
    summary = summary_of(path)
    assert summary.tally.turns == 0
    assert table_row(summary, 80, now_ns=5 * DAY_NS, sent="no").split()[:3] == ["2d", "5e55104a", "0"]
    assert "(no turn yet)" in table_row(summary, 80, now_ns=0, sent="no")


def test_a_title_comes_from_the_user_then_the_prompt(projects):
    """A title given by the user is used first; a session without a title shows its first prompt."""
    writer = Writer()
    writer.turn("weave a\nlong carpet", "Done.")
    path = writer.save(projects)
    assert summary_of(path).title == "weave a long carpet"
    writer.bare("custom-title", customTitle="Carpets \x1b[31mred")
    writer.turn("more", "Done.")
    assert summary_of(writer.save(projects)).title == "Carpets red"


def test_the_newest_sessions_are_found(tmp_path):
    """The sessions that were modified last are found."""
    for number in range(1, 8):
        writer = session_number(number)
        writer.turn("hi", "Hello.")
        save_dated(writer, tmp_path / "-home-ada-loom", number)
    found = newest_sessions(tmp_path, limit=3)
    assert {session.session_id[:8] for session in found} == {"00000007", "00000006", "00000005"}


def test_only_regular_files_are_opened(tmp_path):
    """A FIFO or a directory among the transcripts is skipped: opening it could block forever."""
    (tmp_path / "-p").mkdir()
    make_fifo(tmp_path / "-p" / "00000001-0000-4000-8000-000000000001.jsonl")
    (tmp_path / "-p" / "00000002-0000-4000-8000-000000000001.jsonl").mkdir()
    assert newest_sessions(tmp_path, limit=3) == []
    assert newest_sessions(tmp_path / "missing", limit=10) == []


def test_copied_files_are_listed_by_their_own_times(tmp_path):
    """Copied files have new modification times: the session with the latest activity is still first."""
    for number, day in ((1, 5), (2, 9), (3, 1)):
        writer = session_number(number)
        writer.wait(day * 86400)
        writer.turn("hi", "Hello.")
        save_dated(writer, tmp_path / "-p", 20_000)
    assert [session.session_id[7] for session in newest_sessions(tmp_path, limit=10)] == ["2", "1", "3"]


def test_a_project_is_named_by_directory_or_by_a_part_of_its_path(claude_home, tmp_path):
    """`--project .` selects a directory and those below it; a word selects every path that contains it."""
    here = tmp_path / "work" / "loom"
    (here / "src").mkdir(parents=True)
    places = (here, here / "src", tmp_path / "work" / "loom-2", "C:\\Users\\ada\\carpet")
    for number, cwd in enumerate(places, 1):
        writer = session_number(number, cwd=str(cwd))
        writer.turn("hi", "Hello.")
        writer.save(claude_home / "projects" / f"-p{number}")

    def found(project):
        return {row.session_id[7] for row in listed(project=project)}

    assert found(str(here)) == {"1", "2"}
    assert found("LOOM") == {"1", "2", "3"}
    assert found("carpet") == {"4"}
    assert found("nowhere") == set()


def test_a_row_fits_the_terminal(projects):
    """Long titles are cut and columns are aligned; from 60 columns on the table fits."""
    writer = Writer(cwd="/home/ada/織物" + "x" * 40)
    writer.turn("織る" * 100, "Done.")
    summary = summary_of(writer.save(projects))
    for width in (60, 72, 80, 140):
        row = table_row(summary, width, now_ns=summary.last_ns, sent="3/3")
        head = table_head(width)
        assert cells(row) <= width
        assert row.index("3/3") + 3 == head.index("SENT") + 4
        assert cells(row[: row.index("織る")]) == head.index("TITLE")


def test_narrow_terminals_get_fewer_columns():
    """TOKENS and PROJECT are omitted first; the id, the cost and what was sent stay."""
    assert " ".join(table_head(80).split()) == "AGE SESSION TURNS TOKENS COST SENT PROJECT TITLE"
    assert " ".join(table_head(72).split()) == "AGE SESSION TURNS COST SENT PROJECT TITLE"
    assert " ".join(table_head(60).split()) == "AGE SESSION TURNS COST SENT TITLE"


def test_a_title_is_not_markup(projects):
    """A title that looks like a style or an emoji name of the table library is shown as it is."""
    writer = Writer()
    writer.turn("[red]weave[/red] :thread:", "Done.")
    assert "[red]weave[/red] :thread:" in table_row(summary_of(writer.save(projects)), 120, now_ns=0, sent="no")


def test_totals_add_up(projects):
    """The totals of all traces add up to those of the session."""
    writer = Writer(version="2.1.325")
    for number in range(3):
        writer.turn(f"question {number}", "answer")
    path = writer.save(projects)
    traces, _ = read(path)
    total = tally_of(traces[0]) + tally_of(traces[1]) + tally_of(traces[2])
    assert msgspec.structs.replace(total, inferred=0) == summary_of(path).tally  # the list shows no inferred times
    assert total.turns == 3
