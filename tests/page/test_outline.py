"""The outline of a long session: any turn can be opened before the session was read to there, with the same figures."""

import json
import shutil

import pytest
from rows import Writer
from test_view import FIXTURES, SECRET, SESSION, made, settings

from turnspan.delivery import state
from turnspan.errors import TranscriptError
from turnspan.index import opened, write
from turnspan.page import api
from turnspan.page.api import OpenSession
from turnspan.source import reader
from turnspan.source.sessions import SessionFile, all_sessions


@pytest.fixture(autouse=True)
def _everything_is_long(monkeypatch):
    """Every session has an outline, in many pieces."""
    monkeypatch.setattr(api, "_LONG", 0)
    for module in (reader, write):
        monkeypatch.setattr(module, "PIECE_SPANS", 4)


def indexed(home):
    """The settings of a home whose index is up to date."""
    config = settings(home)
    with opened(config):
        return config


def session_of(home, config):
    """The session as the page opens it."""
    path = home / "projects" / "-home-ada-loom" / f"{SESSION}.jsonl"
    return OpenSession(SessionFile(SESSION, path), config, config.destinations[0])


def begun(session):
    """The outline of a session, of which nothing else was read yet; the other records."""
    records = session.records()
    first = next(records)
    assert first["is"] == "outline"
    return first["turns"], records


@pytest.mark.parametrize("story", sorted(path.name for path in FIXTURES.iterdir() if (path / "projects").is_dir()))
def test_the_outline_is_what_is_read_later(tmp_path, story):
    """In every story: the same turns in the same order, and rows and spans that are equal, whenever they are read."""
    shutil.copytree(FIXTURES / story / "projects", tmp_path / "projects")
    config = indexed(tmp_path)
    for file in all_sessions(tmp_path / "projects"):
        session = OpenSession(file, config, config.destinations[0])
        records = session.records()
        outline = next(records)
        if outline["is"] != "outline":
            continue
        rows = outline["turns"]
        early = list(session.turn_records(0, len(rows))) + [
            row for at in range(len(rows)) for row in session.turn_records(at, at)
        ]
        spans = [session.trace_record(at, row[0]) for at, row in enumerate(rows)]
        turns = [one for one in records if one["is"] == "turn"]
        assert [row[0] for row in rows] == [turn["trace"] for turn in turns[: len(rows)]]
        assert early == turns[: len(rows)] * 2
        assert spans == [session.trace_record(turn["at"], turn["trace"]) for turn in turns[: len(rows)]]
        for (_, name, prompt, start_ms, when), turn in zip(rows, turns, strict=False):
            assert (name, start_ms, when) == (turn["name"], turn["start_ms"], turn["when"])
            assert turn["gist"].startswith(prompt)


def test_a_turn_far_behind_is_opened_first(tmp_path, monkeypatch):
    """Opening a turn of the outline reads its piece and nothing else of the session."""
    made(tmp_path, *(f"number {number}" for number in range(200)))
    session = session_of(tmp_path, indexed(tmp_path))
    rows, _ = begun(session)
    read = []
    taken = reader.Reading.pieces
    monkeypatch.setattr(
        reader.Reading, "pieces", lambda self, **k: (read.extend(one.traces) or one for one in taken(self, **k))
    )
    assert session.trace_record(190, rows[190][0])["spans"][0]["gist"] == "number 190"
    assert [row["gist"] for row in session.turn_records(150, 152)] == ["number 150", "number 151", "number 152"]
    assert len(read) < 20


def test_a_session_that_grew_has_an_outline_of_its_beginning(tmp_path):
    """What was written after the index was read follows; no turn is missing or listed twice."""
    path = made(tmp_path, "one", "two", "three")
    config = indexed(tmp_path)
    writer = Writer(SESSION, tag=SESSION[-4:])
    for prompt in ("one", "two", "three", "four", "five"):
        writer.prompt(prompt)
        writer.say(f"as for {prompt[:20]}: done")
    path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    session = session_of(tmp_path, config)
    rows, rest = begun(session)
    assert [row[2] for row in rows] == ["one", "two"]
    assert [one["gist"] for one in rest if one["is"] == "turn"] == ["one", "two", "three", "four", "five"]
    assert list(session.turn_records(0, 1)) == []  # all of them were read


def test_another_file_is_not_opened_by_the_outline_of_the_old_one(tmp_path):
    """A rewritten transcript has no outline; one that is rewritten later gives an error, never another turn."""
    path = made(tmp_path, "one", "two", "three")
    config = indexed(tmp_path)
    session = session_of(tmp_path, config)
    rows, _ = begun(session)
    old = path.read_text()
    writer = Writer(SESSION, tag="other")
    for number in range(9):
        writer.turn(f"something else {number}", "indeed")
    path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    with pytest.raises(TranscriptError, match="has changed"):
        session.trace_record(1, rows[1][0])
    with pytest.raises(TranscriptError, match="has changed"):
        list(session.turn_records(0, 1))
    again = session_of(tmp_path, config)
    gists = [one["gist"] for one in again.records() if one["is"] == "turn"]
    assert gists == [f"something else {number}" for number in range(9)]
    path.write_text(old[: len(old) // 2])  # shorter than what was indexed
    assert next(session_of(tmp_path, config).records())["is"] != "outline"


@pytest.mark.parametrize("why", ["no index", "switched off", "disabled", "project", "capture"])
def test_without_an_index_of_these_settings_there_is_no_outline(tmp_path, why):
    """The session is then read from its start: nothing is shown that is not allowed now."""
    made(tmp_path, "one", f"two {SECRET}", "three")
    home = tmp_path / "turnspan"
    if why != "no index":
        indexed(tmp_path)
    home.mkdir(mode=0o700, exist_ok=True)
    written = {
        "switched off": "index = false\n",
        "capture": 'capture = "metadata"\n',
        "project": 'off = ["/home/**"]\n',
    }
    (home / "config.toml").write_text(written.get(why, ""))
    config = settings(tmp_path)
    if why == "disabled":
        state.save(config.home, state.Checkpoint(session_id=SESSION, is_off=True))
    records = list(session_of(tmp_path, config).records())
    assert [one["is"] for one in records[:4]] == ["head", "turn", "turn", "turn"]
    assert SECRET not in json.dumps(records)


def test_masked_texts_are_masked_in_the_outline(tmp_path):
    """A secret in a prompt is masked there, too."""
    made(tmp_path, "one", f"the key is {SECRET}", "three", "four")
    rows, _ = begun(session_of(tmp_path, indexed(tmp_path)))
    assert SECRET not in json.dumps(rows)
    assert "[redacted:" in rows[1][2]
