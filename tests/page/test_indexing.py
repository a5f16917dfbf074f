"""The first view while the index is being built: what was read so far, marked; and then all of it."""

import json
import threading
import time
from multiprocessing import get_context

import browser
import pytest
from session_pages import Page
from test_overview_page import lived_in
from test_view import ask, records_of, settings, viewing

from turnspan.index import opened, update
from turnspan.page import indexing


@pytest.fixture
def slow(monkeypatch):
    """An index of which only the first sessions are written until the test says so."""
    gate, begun = threading.Event(), threading.Event()
    written = update.Updater._write
    count = []

    def write(self, plan, parts):
        if len(count) >= 4:
            begun.set()
            assert gate.wait(60)
        count.append(plan)
        written(self, plan, parts)

    monkeypatch.setattr(update.Updater, "_write", write)
    monkeypatch.setattr(update, "_GROUP", 2)
    monkeypatch.setattr(indexing, "_PATIENCE_S", 0.05)
    gate.begun = begun
    yield gate
    gate.set()


def records_now(viewer, what):
    """The records of a path, as they are now."""
    return [json.loads(line) for line in ask(viewer, f"/{viewer.key}/{what}")[2].splitlines()]


def test_what_was_read_so_far_is_shown_and_marked(tmp_path, slow):
    """The first answers come at once, each with a record that says that they are not complete; the last one is."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer:
        first, *_ = records_now(viewer, "sessions")
        assert first == {"is": "reading", "done": None, "of": None}
        assert slow.begun.wait(30)
        reading, sessions = records_now(viewer, "sessions")
        assert reading["is"] == "reading"
        assert sessions["total"] == 4
        reading, overview = records_now(viewer, "overview?days=all")
        assert reading["is"] == "reading"
        assert overview["total"]["sessions"] == 4
        slow.set()
        (sessions,) = records_of(viewer, "sessions")
        assert sessions["total"] == 12


def test_one_request_builds_the_index(tmp_path, slow, monkeypatch):
    """Others get what is there: none of them builds an index of its own in memory."""
    lived_in(tmp_path)
    made = []
    monkeypatch.setattr("turnspan.index.store._open_in_memory", made.append)
    with viewing(tmp_path) as viewer:
        for _ in range(5):
            assert records_now(viewer, "sessions")[0]["is"] == "reading"
        assert len([one for one in threading.enumerate() if isinstance(one, indexing._Job)]) == 1
        slow.set()
        assert records_of(viewer, "sessions")[0]["total"] == 12
    assert made == []


@pytest.mark.slow
def test_an_index_that_is_up_to_date_is_never_partial(tmp_path, monkeypatch):
    """A slow query is waited for: only reading transcripts gives partial answers."""
    monkeypatch.setattr(indexing, "_PATIENCE_S", 5.0)
    lived_in(tmp_path)
    config = settings(tmp_path)
    with opened(config):
        pass
    took = threading.Event()

    def made(index):
        took.wait(6.0)  # longer than a request waits for the index
        yield {"is": "x", "sessions": index.connection.execute("SELECT count(*) FROM session").fetchone()[0]}

    assert list(indexing.Indexing(config, config.destinations[0]).records(made)) == [{"is": "x", "sessions": 12}]


def test_without_a_file_the_request_waits(tmp_path, monkeypatch):
    """With `index = false` the answer is complete, as it cannot be read before."""
    lived_in(tmp_path)
    monkeypatch.setattr(indexing, "_PATIENCE_S", 0.0)
    (tmp_path / "turnspan").mkdir(mode=0o700)
    (tmp_path / "turnspan" / "config.toml").write_text("index = false\n")
    with viewing(tmp_path) as viewer:
        assert records_now(viewer, "sessions")[0]["total"] == 12


@pytest.mark.slow
@pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine")
@pytest.mark.parametrize(
    ("route", "part", "all_of_it"),
    [("#/?days=all", ".card", "12"), ("#/sessions", ".sessions tbody tr", "12 sessions"), ("#/search?q=shuttle", ".row-link", "turns")],
)  # fmt: skip
def test_the_page_completes_itself(tmp_path, slow, route, part, all_of_it):
    """It says that it is reading, shows what there is, and everything when it is done; then the note disappears."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer, Page() as page:
        page.visit("about:blank")
        page.tell("Page.navigate", url=viewer.url + route)
        page.wait("document.querySelector('.reading')?.innerText.includes('not complete')")
        assert slow.begun.wait(30)
        page.has(part)
        assert page.value("document.getElementById('main').getAttribute('aria-busy')") == "true"
        slow.set()
        page.settle()
        page.has_none(".reading")
        assert all_of_it in page.value("document.getElementById('main').innerText")
        page.check()


def test_ctrl_c_does_not_wait_for_what_is_being_read(tmp_path):
    """Processes that read sessions for the index are ended with the viewer."""
    config = settings(tmp_path)
    process = get_context("spawn").Process(target=time.sleep, args=(600,))
    process.start()
    indexing.Indexing(config, config.destinations[0]).abandon()
    process.join(60)
    assert process.exitcode
