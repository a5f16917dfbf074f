"""An index that is brought up to date has the rows of one that is built anew, whatever happened in between."""

import os
import random
import shutil
from pathlib import Path

import msgspec
import pytest
from lives import Life
from rows import Writer

from index.dumps import dump
from turnspan.index import NAME, Filter, list_sessions, opened
from turnspan.settings.config import load_config
from turnspan.source.reader import all_traces
from turnspan.source.sessions import SessionFile
from turnspan.trace.tally import Tally, tally_of

FIXTURES = Path(__file__).parents[2] / "fixtures"
STORIES = sorted(path.name for path in FIXTURES.iterdir() if (path / "projects").is_dir())


@pytest.fixture
def home(claude_home):
    """A Claude home with a directory for transcripts."""
    (claude_home / "projects").mkdir()
    return claude_home


def updated():
    """Return the content of the index after an update."""
    return dump(load_config(os.environ))


def rebuilt(home):
    """Return the content of an index that is built anew."""
    for suffix in ("", "-wal", "-shm"):
        (home / "turnspan" / (NAME + suffix)).unlink(missing_ok=True)
    return updated()


def grow(life, directory, sizes):
    """Append to the files what was written to them, up to these sizes; files that did not grow are not touched."""
    for name, size in sizes.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        known = path.stat().st_size if path.exists() else -1
        if size > known:
            with path.open("ab") as file:
                file.write(life.files[name][max(known, 0) : size])


@pytest.mark.parametrize("story", STORIES)
def test_a_session_that_grows_has_the_rows_of_one_that_was_read_at_its_end(home, story):
    """Rows are the same whether the index was updated at every moment of a session, at some of them, or once."""
    life = Life(FIXTURES / story / "projects")
    chance = random.Random(story)
    moments = sorted(chance.sample(range(1, len(life.steps) + 1), min(40, len(life.steps))))
    for moment in [*moments, len(life.steps)]:
        grow(life, home / "projects", life.sizes(moment))
        lived = updated()
    assert lived == rebuilt(home)


def change(path, data, chance):
    """Delete, cut, rewrite or restore a file."""
    lines = data.splitlines(keepends=True)
    match chance.randrange(5):
        case 0:
            path.unlink(missing_ok=True)
        case 1:
            path.write_bytes(b"".join(lines[: chance.randrange(len(lines) + 1)]))
        case 2:
            path.write_bytes(data[: chance.randrange(len(data) + 1)])  # a line that is being written
        case 3:
            path.write_bytes(b"".join(chance.sample(lines, len(lines))))
        case _:
            path.write_bytes(data)


@pytest.mark.parametrize("story", [story for story in STORIES if story.startswith(("agents-", "copied-"))])
def test_a_file_that_was_deleted_and_restored_gives_the_rows_of_a_new_index(home, story):
    """Other files decide which turns are copies, and where a subagent belongs: rows follow when one of them changes."""
    shutil.copytree(FIXTURES / story / "projects", home / "projects", dirs_exist_ok=True)
    updated()
    for path in sorted((home / "projects").rglob("*.jsonl")):
        data = path.read_bytes()
        path.unlink()
        without = updated()
        saved = shutil.copytree(home / "turnspan", home / "saved")
        assert without == rebuilt(home), f"without {path.name}"
        shutil.rmtree(home / "turnspan")
        saved.rename(home / "turnspan")
        path.write_bytes(data)
        assert updated() == rebuilt(home), f"with {path.name} again"


@pytest.mark.parametrize("seed", [0, 12, 23, 33, 39, 97])
def test_any_change_of_any_file_gives_the_rows_of_a_new_index(home, seed):
    """Files that grow, are cut, rewritten, deleted and restored, in any order: the rows are those of a new index."""
    chance = random.Random(seed)
    stories = chance.sample(STORIES, 8)
    for number, story in enumerate(stories):
        for project in (FIXTURES / story / "projects").iterdir():
            shutil.copytree(project, home / "projects" / f"{number}{project.name}")
    files = {path: path.read_bytes() for path in sorted((home / "projects").rglob("*.jsonl"))}
    for _ in range(12):
        for path in chance.sample(sorted(files), 3):
            change(path, files[path], chance)
        updated()
    for path, data in files.items():
        if chance.random() < 0.8:
            path.write_bytes(data)
    lived = updated()
    assert lived == rebuilt(home)


def test_only_what_grew_is_read(home):
    """A turn more makes an update read from the last settled turn: what was read before is not read again."""
    project = home / "projects" / "-home-ada-loom"
    project.mkdir()
    writer = Writer()
    for turn in range(1, 6):
        writer.turn(f"Question {turn} " + "wool " * 2000, f"Answer {turn}")
    path = writer.save(project)
    before = updated()
    data = path.read_bytes().replace(b"Question 2 ", b"QUESTION 2 ")  # neither at the beginning nor at the end
    assert len(data) == path.stat().st_size
    writer.turn("One more", "Yes")
    path.write_bytes(data + b"".join(writer.lines()[-2:]))
    (_, turns), (_, grown) = before[str(path)], updated()[str(path)]
    assert grown[: len(turns) - 1] == turns[:-1]
    assert len(grown) == len(turns) + 1
    assert "QUESTION 2" in str(rebuilt(home))


def test_totals_are_those_of_the_traces(home):
    """Each turn and each session has the totals of `trace.tally`, over all fixtures."""
    for story in STORIES:
        for project in (FIXTURES / story / "projects").iterdir():
            shutil.copytree(project, home / "projects" / f"{story}{project.name}")
    config = load_config(os.environ)
    turns = 0
    with opened(config) as index:
        for row in list_sessions(index, Filter()):
            session = SessionFile(row.session_id, row.path)
            traces = [trace for trace in all_traces(session, None) if trace.spans]
            total = sum((tally_of(trace) for trace in traces), Tally())
            assert without_inferred(row.tally) == without_inferred(total), session
            found = index.connection.execute(
                "SELECT trace_id, generations, tools, agents, errors, input, output, cache_read, cache_write_5m, "
                "cache_write_1h, web_searches, round(cost_usd, 9), cut_off, incomplete, unpriced FROM turn "
                "WHERE session = ?",
                (row.id,),
            ).fetchall()
            assert sorted(found) == sorted(map(figures_of, traces)), session
            responses = index.connection.execute(
                "SELECT count(*), sum(response.input), sum(response.output) FROM response JOIN turn "
                "ON turn.id = response.turn WHERE session = ?",
                (row.id,),
            ).fetchone()
            assert (responses[0], responses[1] or 0, responses[2] or 0) == (
                total.generations, total.usage.input, total.usage.output
            )  # fmt: skip
            turns += len(traces)
    assert turns > 80


def without_inferred(tally):
    """Return a tally without what the index does not count, and with its cost rounded."""
    return msgspec.structs.replace(tally, inferred=0, cost_usd=round(tally.cost_usd, 9))


def figures_of(trace):
    """Return the totals of a trace as a row of the index has them."""
    tally = tally_of(trace)
    used = tally.usage
    return (
        trace.trace_id.hex(), tally.generations, tally.tools, tally.agents, tally.errors, used.input, used.output,
        used.cache_read, used.cache_write_5m, used.cache_write_1h, used.web_searches, round(tally.cost_usd, 9),
        tally.cut_off, tally.incomplete, ", ".join(sorted(tally.unpriced)),
    )  # fmt: skip


def test_active_time_is_the_union_of_responses_and_tools(home):
    """Work at the same time counts once; waiting for the user's answer to a question does not count."""
    project = home / "projects" / "-home-ada-loom"
    project.mkdir()
    writer = Writer()
    writer.prompt("ask me")
    call = writer.call("AskUserQuestion", {"questions": []}, after=2)
    writer.result(call, "yes", after=1000)
    call = writer.call("Bash", {"command": "make"}, after=3)
    writer.result(call, "done", after=60)
    writer.say("Done.", after=5)
    writer.save(project)
    with opened(load_config(os.environ)) as index:
        assert index.connection.execute("SELECT active_ns FROM turn").fetchall() == [
            (70 * 10**9 - 3_000,)
        ]  # three inferred starts
