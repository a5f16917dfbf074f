"""A session that grows while the page shows it: what is new, what is still running, and that nothing is read twice."""

import json
import time
from datetime import UTC, datetime, timedelta

import pytest
from rows import Writer
from test_view import SESSION, records_of, settings, viewing

from turnspan.page.api import OpenSession
from turnspan.page.preview import Preview
from turnspan.source import reader
from turnspan.source.sessions import SessionFile

MISSING = {"is": "again"}


class Client:
    """A client that is writing a transcript now."""

    def __init__(self, home):
        self.writer = Writer(SESSION)
        self.writer.now = datetime.now(UTC) - timedelta(seconds=30)
        self.path = home / "projects" / "-home-ada-loom" / f"{SESSION}.jsonl"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.written = 0

    def write(self):
        """Append the rows that are new."""
        with self.path.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in self.writer.rows[self.written :])
        self.written = len(self.writer.rows)

    def ask(self, prompt):
        """Write a prompt, and the beginning of the answer."""
        self.writer.prompt(prompt)
        self.call = self.writer.call("Bash", {"command": f"echo {prompt}"})
        self.write()

    def answer(self, text="done"):
        """Write the rest of the answer."""
        self.writer.result(self.call, "ok")
        self.writer.say(text)
        self.write()


@pytest.fixture
def client(tmp_path):
    """A client in an empty home."""
    return Client(tmp_path)


@pytest.fixture
def session(client, tmp_path):
    """The session as the page opens it."""
    config = settings(tmp_path)
    return OpenSession(SessionFile(SESSION, client.path), config, config.destinations[0])


def turns(records):
    """The turns among some records: (name, is it open)."""
    return [(one["name"], one["is_open"]) for one in records if one["is"] == "turn"]


def since(session, end):
    """What is new since an end."""
    return list(session.records_since(end["since"], end["trace"], end["stamp"]))


def test_a_running_turn_is_shown_and_marked(client, session):
    """A turn that has not ended is shown as open; the next prompt ends it."""
    client.ask("first")
    *shown, end = session.records()
    assert turns(shown) == [("Turn 1", True)]
    assert next(one for one in shown if one["is"] == "turn")["badges"] == []  # not "no answer": it is running
    assert end["since"] == 0
    client.answer()
    client.ask("second")
    *new, end = since(session, end)
    assert turns(new) == [("Turn 1", False), ("Turn 2", True)]
    client.answer("all of it")
    *new, end = since(session, end)
    assert turns(new) == [("Turn 2", True)]
    assert next(one for one in new if one["is"] == "turn")["answer"] == "all of it"
    assert next(one for one in new if one["is"] == "foot")["lines"][0].startswith("2 turns")


def test_without_anything_new_there_is_no_record(client, session):
    """As long as no file changes, the page gets an empty response."""
    client.ask("first")
    *_, end = session.records()
    assert since(session, end) == []
    client.answer()
    assert since(session, end) != []


def test_what_has_ended_is_read_once(client, session, monkeypatch):
    """With a hundred turns that have ended, a new row costs only the turns after them."""
    monkeypatch.setattr(reader, "PIECE_SPANS", 20)
    for number in range(100):
        client.ask(f"number {number}")
        client.answer()
    *_, end = session.records()
    assert end["since"] == 99  # the last one may still go on
    read = []
    traces = Preview.traces
    monkeypatch.setattr(
        Preview, "traces", lambda self, *a, **k: (read.append(one) or one for one in traces(self, *a, **k))
    )
    client.ask("one more")
    assert turns(since(session, end)) == [("Turn 100", False), ("Turn 101", True)]
    assert len(read) == 2


def test_two_tabs_get_the_same_turns(client, session):
    """A tab that asks later, or after another tab has read on, gets everything it lacks."""
    client.ask("first")
    *_, one = session.records()
    *_, other = session.records()
    for number in range(3):
        client.answer()
        client.ask(f"number {number}")
        *_, one = since(session, one)
    assert turns(since(session, other)) == [("Turn 1", False), ("Turn 2", False), ("Turn 3", False), ("Turn 4", True)]


def test_an_open_turn_can_be_opened_while_it_grows(client, session):
    """The waterfall of a running turn has what was written so far."""
    client.ask("first")
    turn = next(one for one in session.records() if one["is"] == "turn")
    before = session.trace_record(turn["at"], turn["trace"])
    client.answer()
    after = session.trace_record(turn["at"], turn["trace"])
    assert [span["name"] for span in before["spans"]] == ["Turn 1", "opus-4-5", "Bash"]
    assert [span["name"] for span in after["spans"]] == ["Turn 1", "opus-4-5", "Bash", "opus-4-5"]


def test_a_rewritten_transcript_is_loaded_again(client, session):
    """If the file is another one, or the viewer was restarted, the page is asked to load the session from its start."""
    for number in range(3):
        client.ask(f"number {number}")
        client.answer()
    *_, end = session.records()
    content = client.path.read_text().splitlines(keepends=True)
    client.path.write_text("".join(content[4:]))
    assert since(session, end) == [MISSING]
    config = session._config
    restarted = OpenSession(session._session, config, config.destinations[0])
    assert since(restarted, end) == [MISSING]


def test_a_new_session_grows_from_nothing(client, session):
    """A page that was opened before the first turn shows it when it is written."""
    client.writer.bare("summary", summary="x", leafUuid="y")
    client.write()
    note, end = session.records()
    assert note["text"] == "this session has no turns yet"
    client.ask("first")
    head, turn, *_ = since(session, end)
    assert (head["is"], turn["name"]) == ("head", "Turn 1")


def test_a_half_written_line_is_shown_when_it_is_complete(client, session):
    """The client may be writing a line while the page looks: nothing is lost and nothing is shown twice."""
    client.ask("first")
    *_, end = session.records()
    client.writer.result(client.call, "ok")
    client.writer.say("the end")
    rows = "".join(json.dumps(row) + "\n" for row in client.writer.rows[client.written :])
    for at in range(0, len(rows), 97):
        with client.path.open("a") as file:
            file.write(rows[at : at + 97])
        *new, end = since(session, end)
        assert turns(new) == [("Turn 1", True)]
    assert next(one for one in new if one["is"] == "turn")["answer"] == "the end"


def test_the_pulse_changes_with_any_session(client, tmp_path):
    """The page asks for one short text to learn that a list has changed."""
    client.ask("first")
    with viewing(tmp_path) as viewer:
        (before,) = records_of(viewer, "pulse")
        assert records_of(viewer, "pulse") == [before]
        client.answer()
        (after,) = records_of(viewer, "pulse")
        assert after["stamp"] != before["stamp"]
        other = client.path.with_name("5e55104a-0000-4000-8000-000000000002.jsonl")
        other.write_text("{}\n")
        assert records_of(viewer, "pulse")[0]["stamp"] != after["stamp"]


def test_the_page_asks_for_what_is_new(client, tmp_path):
    """The same over HTTP: since, trace and stamp as the last record gave them."""
    client.ask("first")
    with viewing(tmp_path) as viewer:
        *_, end = records_of(viewer, f"session/{SESSION}")
        query = f"since={end['since']}&trace={end['trace']}&stamp={end['stamp']}"
        assert records_of(viewer, f"session/{SESSION}?{query}") == []
        client.answer()
        assert turns(records_of(viewer, f"session/{SESSION}?{query}")) == [("Turn 1", True)]


def test_a_killed_client_is_noticed(client, session, monkeypatch):
    """A turn that is shown as running is looked at again every minute, though nothing is written."""
    client.ask("first")
    *_, end = session.records()
    assert since(session, end) == []
    later = time.monotonic() + 61
    monkeypatch.setattr(time, "monotonic", lambda: later)
    *new, end = since(session, end)
    assert turns(new) == [("Turn 1", True)]
    *_, end = since(session, end)
    assert since(session, end) == []
