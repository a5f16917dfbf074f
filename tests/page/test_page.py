"""The page in a real browser."""

import json
from urllib.parse import urlsplit

import browser
import pytest
from browser import Browser
from test_view import SECRET, SESSION, made, records_of, viewing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine"),
]

NASTY = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script> </pre><b>bold</b>'
MANY = "document.querySelectorAll('%s').length"


def trace_of(viewer, at):
    """The id of a trace, by its place in the session."""
    return [one["trace"] for one in records_of(viewer, f"session/{SESSION}") if one["is"] == "turn"][at]


@pytest.fixture
def page():
    """A browser that must log no error and connect to no other server."""
    with Browser() as opened:
        yield opened
        assert opened.said == []
        hosts = {urlsplit(url).hostname for url in opened.asked if not url.startswith(("about:", "chrome"))}
        assert hosts <= {"127.0.0.1"}


def test_a_turn_can_be_found_and_read(tmp_path, page):
    """From the list of sessions to a turn and its content, with the keyboard alone."""
    made(tmp_path, "hello", f"the key is {SECRET}", "third")
    made(tmp_path, "another one", session="5e55104a-0000-4000-8000-000000000002")
    with viewing(tmp_path) as viewer:
        page.visit(viewer.ticket_url() + "#/sessions")
        page.wait(MANY % "tbody tr" + " === 2")
        page.wait("location.pathname.length > 10 && !location.pathname.includes('open')")
        assert page.value("document.querySelector('tbody').innerText").count("$") == 2
        page.value(f"document.querySelector('a[href=\"#/s/{SESSION}\"]').focus()")
        page.press("Enter")
        page.wait(MANY % ".turn" + " === 3")
        page.settle()
        page.press("j")
        page.press("j")
        page.press("Enter")
        page.wait(MANY % ".waterfall .span" + " === 2")
        assert page.value("location.hash") == f"#/s/{SESSION}/t/{trace_of(viewer, 1)}"
        assert SECRET not in page.value("document.body.innerText")
        assert page.value("document.querySelector('.turn mark').textContent").startswith("[redacted:")
        page.press("j")
        page.press("Enter")
        page.wait("!document.getElementById('details').hidden")
        assert "the key is [redacted:" in page.value("document.getElementById('details').innerText")
        page.press("Escape")
        page.wait("document.getElementById('details').hidden")
        page.settle()
        page.press("Escape")
        page.wait(MANY % "tbody tr" + " === 2")


def test_transcripts_are_shown_as_text_only(tmp_path, page):
    """Markup in a prompt, an answer or a title is shown, never run."""
    made(tmp_path, NASTY, "again " + NASTY)
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/sessions")
        page.wait(MANY % "tbody tr" + " === 1")
        assert "<img" in page.value("document.querySelector('tbody').innerText")
        page.visit(f"{viewer.url}#/s/{SESSION}/t/{trace_of(viewer, 0)}")
        page.wait(MANY % ".waterfall .span" + " === 2")
        page.value("document.querySelectorAll('.span')[0].click()")
        page.wait("!document.getElementById('details').hidden")
        assert NASTY in page.value("document.querySelector('#details .said').textContent")
        assert page.value(MANY % "main img, main script, main b, aside img, aside script, .said b") == 0
        assert page.value("window.hacked") is None


def test_the_filter_shows_matching_turns(tmp_path, page):
    """The filter shows only turns that contain the text; emptying it shows all of them."""
    made(tmp_path, "hello", "the parser fails", "third")
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/s/{SESSION}")
        page.wait(MANY % ".sum" + " > 0")
        page.press("/")
        assert page.value("document.activeElement.id") == "filter"
        for letter in "parser":
            page.press(letter)
        page.wait(MANY % ".turn:not([hidden])" + " === 1")
        assert "the parser fails" in page.value("document.querySelector('.turn:not([hidden])').innerText")
        page.value(
            "const filter = document.getElementById('filter'); filter.value = ''; filter.dispatchEvent(new Event('input'))"
        )
        page.wait(MANY % ".turn:not([hidden])" + " === 3")


def test_escape_clears_the_filter(tmp_path, page):
    """Esc in the filter empties the box and shows all turns again; the title of the page names the session."""
    made(tmp_path, "hello", "the parser fails", "third")
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/s/{SESSION}")
        page.wait(MANY % ".sum" + " > 0")
        assert page.value("document.title").endswith(" - turnspan")
        page.press("/")
        for letter in "parser":
            page.press(letter)
        page.wait(MANY % ".turn:not([hidden])" + " === 1")
        page.press("Escape")
        page.wait(MANY % ".turn:not([hidden])" + " === 3")
        assert page.value("document.getElementById('filter').value") == ""


def test_bars_match_the_times_of_spans(tmp_path, page):
    """A bar has the position and the width of its span within the turn."""
    made(tmp_path, "hello")
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/s/{SESSION}/t/{trace_of(viewer, 0)}")
        page.wait(MANY % ".waterfall .span" + " === 2")
        boxes = json.loads(
            page.value(
                "JSON.stringify([...document.querySelectorAll('.rows .lane')].map(lane => {"
                " const all = lane.getBoundingClientRect(), bar = lane.firstChild.getBoundingClientRect();"
                " return [(bar.left - all.left) / all.width, bar.width / all.width]; }))"
            )
        )
        (spans,) = records_of(viewer, f"trace/{SESSION}?at=0&trace={trace_of(viewer, 0)}")
    for (left, width), span in zip(boxes, spans["spans"][1:], strict=True):  # the turn is the row of the axis
        assert left == pytest.approx(span["from_ms"] / spans["ms"], abs=0.02)
        assert width == pytest.approx(span["ms"] / spans["ms"], abs=0.02)


def test_a_stopped_viewer_is_reported(tmp_path):
    """When `turnspan view` was stopped, the page says so instead of staying empty."""
    made(tmp_path, "hello")
    with Browser() as page:
        with viewing(tmp_path) as viewer:
            page.visit(f"{viewer.url}#/sessions")
            page.wait(MANY % "tbody tr" + " === 1")
        page.press("r")
        page.wait("document.querySelector('.trouble') !== null")
        assert "is `turnspan view` still running?" in page.value("document.querySelector('.trouble').textContent")
