"""The page of a session in a real browser: both views, the strip, the waterfall, a span, links, growth."""

import json
import shutil
import time
from pathlib import Path

import browser
import pytest
from rows import Writer
from session_pages import MANY, Page, deep, eventful, spans_of, turns_of
from test_live import Client
from test_view import SECRET, SESSION, made, settings, viewing

from turnspan.index import opened
from turnspan.page.api import OpenSession
from turnspan.source.sessions import session_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine"),
]

HIDDEN = "document.getElementById('details').hidden"
SHOWN = "document.getElementById('details')?.hidden === false"


@pytest.fixture(scope="module")
def shared():
    """One browser for all tests of this file: it takes a second to start."""
    with Page() as opened:
        yield opened


@pytest.fixture
def page(shared):
    """The browser, with nothing logged before or during a test."""
    shared.said.clear()
    shared.asked.clear()
    shared.sized(1400, 900)
    yield shared
    shared.check()
    shared.visit("about:blank")


# ---- the head and the strip


def test_the_strip_shows_context_and_cost(tmp_path, page):
    """The strip says in words what it draws: the largest context window, compactions, and each turn with its cost."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        turns = turns_of(viewer)
        page.open(viewer, f"#/s/{SESSION}", "!!document.querySelector('.strip')")
        assert page.text(".readout") == "Context window: at most 15,000 tokens, 1 compaction"
        assert page.count(".strip .compaction") == 1
        assert page.count(".strip .cost") == 3
        page.value("document.querySelector('.strip').focus()")
        page.press("ArrowRight")
        assert page.text(".readout").startswith("Turn 1 · response 1 of 3 · 10,000 tokens of context")
        assert turns[0]["figures"][2] in page.text(".readout")
        page.press("ArrowRight")
        assert page.value("document.querySelector('.strip').getAttribute('aria-valuetext')").startswith("Turn 2")
        page.press("Enter")
        page.has(".waterfall .span", 3)
        assert page.value("location.hash").endswith(turns[1]["trace"])
        assert page.value("document.title").startswith("Turn 2 - Fix the tokenizer")


def test_background_agents_are_below_their_turn(tmp_path, page):
    """They are read last; the page has them below the turn that launched them. A filter says what it looks at."""
    fixture = next((Path(__file__).parents[2] / "fixtures" / "agents-background").glob("projects/*/*.jsonl"))
    shutil.copytree(fixture.parent, tmp_path / "projects" / "-p")
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{fixture.stem}", MANY % ".strip" + " === 1")
        assert page.texts(".row.turn .name") == ["Turn 1", "Turn 1 · background agent", "Turn 2"]
        page.value("filter = document.getElementById('filter'); filter.value = 'nowhere'")
        page.value("filter.dispatchEvent(new Event('input'))")
        page.wait("document.querySelector('.note a')?.href.endsWith('#/search?q=nowhere')")


def test_bars_of_the_strip_have_the_heights_of_the_figures(tmp_path, page):
    """The bars of cost relate to each other as the costs do."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        costs = [turn["cost_usd"] for turn in turns_of(viewer)]
        page.open(viewer, f"#/s/{SESSION}", "!!document.querySelector('.strip')")
        heights = json.loads(
            page.value(
                "JSON.stringify([...document.querySelectorAll('.strip .cost')].map(e => +e.getAttribute('height')))"
            )
        )
    assert [height / max(heights) for height in heights] == pytest.approx([cost / max(costs) for cost in costs])


def test_what_happened_is_visible_in_the_list(tmp_path, page):
    """Errors, refusals, waits, retries and compactions are on the rows of their turns."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", MANY % ".turn" + " === 3")
        first, second, third = page.texts(".turn")
    assert "1 error" in first
    assert "~7s waited" in first
    assert "1 denied" in second
    assert "~20s waited" in second
    assert "compacted" in third
    assert "1 retry" in third


# ---- the waterfall


def test_the_waterfall_has_an_axis_and_a_critical_path(tmp_path, page):
    """Ticks from the start on; the spans on the critical path are marked; the turn is listed once."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        spans = spans_of(viewer, turn)
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}", MANY % ".rows .span" + f" === {len(spans) - 1}")
        assert page.texts(".axis-tick")[0] == "0ms"
        assert len(page.texts(".axis-tick")) >= 3
        critical = {span["id"] for span in spans if span["is_critical"]}
        marked = page.value(
            "JSON.stringify([...document.querySelectorAll('.critical[data-span]')].map(e => e.dataset.span))"
        )
        assert set(json.loads(marked)) == critical
        assert len(critical) == len(spans) - 2  # not the turn, and not the quick one of two parallel calls
        assert page.value("document.querySelector('main').innerText").count("Turn 1") == 1
        assert page.value("document.querySelector('main').innerText").count("Fix the **tokenizer**, please") == 1


def test_spans_collapse_and_expand(tmp_path, page):
    """By the triangle, by Left and Right, and all at once; screen readers get the state."""
    eventful(tmp_path)
    visible = MANY % ".rows .span:not([hidden])"
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        everything = len(spans_of(viewer, turn)) - 1
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}", f"{visible} === {everything}")
        page.click(".rows .twisty")
        page.wait(f"{visible} === {everything - 2}")
        assert page.value("document.querySelector('.rows .span').getAttribute('aria-expanded')") == "false"
        assert page.value(HIDDEN)
        page.value("document.querySelector('.rows .span').focus()")
        page.press("ArrowRight")
        page.wait(f"{visible} === {everything}")
        page.press("j")
        page.press("ArrowLeft")  # a call has nothing to collapse: to its parent
        page.press("ArrowLeft")
        page.wait(f"{visible} === {everything - 2}")
        page.click(".axis .small")
        page.wait(f"{visible} === 3")
        page.click(".axis .small")
        page.wait(f"{visible} === {everything}")


def test_the_axis_zooms_to_a_span(tmp_path, page):
    """The key z makes a span as wide as the lane; Z shows the turn again."""
    eventful(tmp_path)
    share = "(() => { const lane = document.querySelectorAll('.rows .lane')[1]; return lane.firstChild.getBoundingClientRect().width / lane.getBoundingClientRect().width; })()"
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}", MANY % ".rows .span" + " > 3")
        before = page.value(share)
        page.value("document.querySelectorAll('.rows .span')[1].focus()")
        page.press("z")
        page.wait(f"{share} > 0.9")
        assert page.text(".axis .zoomed") == "Zoom out"
        page.press("Z")
        page.has_none(".axis .zoomed")
        assert page.value(share) == pytest.approx(before)


def test_hovering_shows_exact_times(tmp_path, page):
    """Start, end and duration to the millisecond; what is inferred says so."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}", MANY % ".rows .span" + " > 3")
        for number, expected in ((0, "inferred"), (2, "waited for you ~7.000 s, inferred")):
            box = json.loads(
                page.value(
                    f"JSON.stringify(document.querySelectorAll('.rows .lane')[{number}].getBoundingClientRect())"
                )
            )
            page.tell("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + 20, y=box["y"] + 4)
            page.wait(f"document.getElementById('hint').innerText.includes({expected!r})")
        assert "duration 9.000 s" in page.text("#hint")
        assert "critical path" in page.text("#hint")


def test_columns_are_resized_with_the_keyboard(tmp_path, page):
    """The line between names and bars moves, and the width is kept over a reload."""
    eventful(tmp_path)
    width = "document.querySelector('.rows .what').getBoundingClientRect().width"
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        route = f"#/s/{SESSION}/t/{turn['trace']}"
        page.open(viewer, route, MANY % ".rows .span" + " > 3")
        before = page.value(width)
        page.value("document.querySelector('.splitter').focus()")
        for _ in range(4):
            page.press("ArrowLeft")
        after = page.wait(f"{width} < {before} - 50 && {width}")
        page.open(viewer, route, MANY % ".rows .span" + " > 3")
        assert page.value(width) == pytest.approx(after, abs=1)
        page.value("localStorage.clear()")


@pytest.mark.parametrize("width", [320, 500, 1400, 3840])
def test_names_are_readable_at_any_depth(tmp_path, page, width):
    """Eight agents deep, on a phone and on a large screen: every name is inside its column, and nothing scrolls sideways."""
    session = deep(tmp_path)
    page.sized(width, 800, is_phone=width < 600)
    with viewing(tmp_path) as viewer:
        (turn,) = turns_of(viewer, session)
        spans = spans_of(viewer, turn, session)
        assert max(span["depth"] for span in spans) >= 20
        page.open(viewer, f"#/s/{session}/t/{turn['trace']}", MANY % ".rows .span" + f" === {len(spans) - 1}")
        names = json.loads(page.value(
            "JSON.stringify([...document.querySelectorAll('.rows .span')].map(row => {"
            " row.style.contentVisibility = 'visible';"
            " const name = row.querySelector('.name'), all = row.querySelector('.what').getBoundingClientRect(), own = name.getBoundingClientRect();"
            " return [name.scrollWidth - name.clientWidth, all.right - own.right, own.width]; }))"
        ))  # fmt: skip
        assert all(cut <= 1 and inside >= -1 and wide > 20 for cut, inside, wide in names), names
        assert page.value("document.documentElement.scrollWidth <= innerWidth")


def test_a_phone_shows_cost_and_tokens(tmp_path, page):
    """At 320 pixels rows have their cost and time, and the panel of a span its tokens; nothing is cut off."""
    eventful(tmp_path)
    page.sized(320, 640, is_phone=True)
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        span = next(one for one in spans_of(viewer, turn) if one["kind"] == "generation")
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}", MANY % ".rows .span" + " > 3")
        in_view = "(e => { const box = e.getBoundingClientRect(); return box.width > 0 && box.right <= innerWidth; })"
        assert page.value(f"[...document.querySelectorAll('.turn .cost, .turn .time, .rows .time')].every({in_view})")
        assert page.text(".turn .cost").startswith("$")
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}/{span['id']}", SHOWN)
        quick = page.text(".quick")
        assert all(word in quick for word in ("input 10", "cache read 9,900", "output 50", "cost $", "duration"))
        assert page.value(f"[...document.querySelectorAll('.quick > span')].every({in_view})")
        assert page.value("document.documentElement.scrollWidth <= innerWidth")


# ---- a span


def test_a_span_shows_words_then_figures_then_ids(tmp_path, page):
    """First what was said, then tokens, cost and times, then ids to copy; the row keeps its cost."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        span = next(one for one in spans_of(viewer, turn) if one["kind"] == "generation")
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}/{span['id']}", SHOWN)
        text = page.text("#details")
        places = [
            text.index(word)
            for word in ("I look at both files.", "cache write 5m", "context window", "Identity", span["id"])
        ]
        assert places == sorted(places)
        assert f"claude --resume {SESSION}" in text
        assert page.text(f"[data-span='{span['id']}'] .cost").startswith("$")
        assert page.value(f"document.querySelector(\"[data-span='{span['id']}'] .cost\").offsetWidth > 0")
        assert page.text(f"[data-span='{span['id']}'][aria-selected=true] .name") == span["name"]


def test_an_error_is_shown_once(tmp_path, page):
    """The text of a failed call is on the page once when it is opened."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        failed = next(one for one in spans_of(viewer, turn) if one["error"])
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}/{failed['id']}", SHOWN)
        assert page.value("document.body.innerText").count("the unmistakable reason") == 1


def test_ids_and_the_resume_command_are_copied(tmp_path, page):
    """The buttons copy to the clipboard and say so."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        page._call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        page.open(viewer, f"#/s/{SESSION}", "!!document.querySelector('.actions .copy')")
        page.tell("Page.bringToFront")
        page.click(".actions .copy")
        page.has(".copied")
        assert page.value("navigator.clipboard.readText()") == f"claude --resume {SESSION}"


def test_a_span_links_to_the_same_trace_elsewhere(tmp_path, page):
    """A destination with a page of its own gets a link; opening the panel asks it for nothing."""
    eventful(tmp_path)
    home = tmp_path / "turnspan"
    home.mkdir(mode=0o700)
    destination = 'type = "otlp"\nendpoint = "http://127.0.0.1:9"\nquery_url = "http://127.0.0.1:9"\n'
    (home / "config.toml").write_text(f"[destinations.jaeger]\n{destination}")
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        span = spans_of(viewer, turn)[0]["id"]
        page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}/{span}", SHOWN)
        assert page.value("document.querySelector('.links a').href") == f"http://127.0.0.1:9/trace/{turn['trace']}"
        assert page.text(".links") == "Open in jaeger ↗"


def test_a_button_saves_the_session(tmp_path, page):
    """The links at the top give the exported file."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", "!!document.querySelector('.actions a')")
        saved = page.value("fetch(document.querySelector('.actions a').href).then(answer => answer.text())")
        assert "Fix the tokenizer" in saved
        assert page.texts(".actions a") == ["Export HTML", "Markdown"]


# ---- the conversation


def test_the_same_turns_are_a_conversation(tmp_path, page):
    """Prompt and answer as text, tools folded; a folded tool opens with its content."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}?view=chat", MANY % ".talk .answer" + " >= 4")
        assert page.texts(".talk .turn .name") == ["Turn 1", "Turn 2", "Turn 3"]
        first = page.text(".talk")
        assert "I look at both files." in first
        assert "the unmistakable reason" not in first
        assert page.count(".talk .answer strong") == 1
        page.value(
            "[...document.querySelectorAll('.call')].find(e => e.innerText.includes('pytest -q')).firstChild.click()"
        )
        page.wait("document.querySelector('.talk').innerText.includes('the unmistakable reason')")
        assert page.count(".event") == 2
        page.click(".tab", 1)
        page.has(".turn[aria-expanded]", 3)
        assert "view=chat" not in page.value("location.hash")
        page.press("c")
        page.has(".talk .answer", 4)
        assert page.value("location.hash") == f"#/s/{SESSION}?view=chat"


# ---- places


def test_back_and_forward_work(tmp_path, page):
    """Back closes a span, then goes to the list, where the scroll position is kept; forward returns to the session."""
    made(tmp_path, *(f"number {n}" for n in range(60)))
    with viewing(tmp_path) as viewer:
        page.open(viewer, "#/sessions", MANY % "a[href*='/s/']" + " >= 1")
        page.click("a[href*='/s/']")
        page.has(".turn", 50)
        page.settle()  # the strip above the turns moves them
        page.value("scrollTo(0, 900)")
        page.wait("history.state?.scroll === 900")
        page.click(".turn", 40)
        page.has(".rows .span")
        page.click(".rows .span")
        page.wait(SHOWN)
        hash_of_span = page.value("location.hash")
        page.value("history.back()")
        page.wait(HIDDEN)
        assert page.value("location.hash") == hash_of_span.rpartition("/")[0]
        page.value("history.forward()")
        page.wait(SHOWN)
        page.press("Escape")
        page.wait(HIDDEN)
        page.settle()  # Esc has gone back one step
        page.value("history.back()")
        page.wait("location.hash.startsWith('#/sessions')")
        page.has_none(".turn")
        page.value("history.forward()")
        page.has(".turn", 50)
        page.wait("scrollY > 800")


def test_the_panel_closes_with_its_turn_or_view(tmp_path, page):
    """Closing a turn, or changing to the conversation, closes the panel and stays in the session."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        page.open(viewer, "#/sessions", MANY % "a[href*='/s/']" + " >= 1")
        page.click("a[href*='/s/']")
        for close, ready in (
            ("document.querySelector('.turn').click()", MANY % ".waterfall" + " === 0"),
            ("document.querySelector('.tab[data-view=chat]').click()", MANY % ".talk .answer" + " >= 4"),
        ):
            page.has(".turn", 3)
            page.click(".turn")
            page.has(".rows .span", 3)
            page.click(".rows .span", 1)
            page.wait(SHOWN)
            assert page.count(".rows [aria-selected=true]") == 1
            page.value(close)
            page.wait(ready)
            page.wait(HIDDEN)
            assert page.value("location.hash").split("?")[0] == f"#/s/{SESSION}"
        assert page.value("document.title").startswith("Fix the tokenizer")


def test_a_link_to_a_span_survives_a_restart(tmp_path, page):
    """With the same port and key, the URL of a span shows it again."""
    eventful(tmp_path)
    with viewing(tmp_path) as viewer:
        (turn, *_) = turns_of(viewer)
        span = spans_of(viewer, turn)[2]
        route = f"#/s/{SESSION}/t/{turn['trace']}/{span['id']}"
        port, key = viewer.port, viewer.key
    with viewing(tmp_path, port=port, key=key) as viewer:
        page.open(viewer, route, SHOWN)
        assert span["id"] in page.text("#details")
        assert page.value("location.hash") == route
        page.open(viewer, f"#/s/{SESSION}/t/{'0' * 32}", "document.body.innerText.includes('does not have that turn')")


# ---- growth


def test_an_open_session_grows(tmp_path, page):
    """While a client writes, the running turn appears, marked, and becomes longer; what is opened stays open."""
    client = Client(tmp_path)
    client.ask("first")
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", MANY % ".badge.running" + " === 1")
        assert "not exported yet" in page.text(".badge.running")
        page.click(".turn")
        page.wait(MANY % ".rows .span" + " === 2")
        client.answer("a very good answer")
        page.wait(MANY % ".rows .span" + " === 3")
        client.ask("second")
        page.wait(MANY % ".turn" + " === 2")
        assert page.count(".badge.running") == 1
        assert page.count(".rows .span") == 3
        assert "running" not in page.texts(".turn")[0]
        asked = [url for url in page.asked if "/session/" in url]
        assert (
            sum("since=" not in url for url in asked) == 1
        )  # everything after the first load only asked for what is new


def test_the_conversation_grows(tmp_path, page):
    """The same in the conversation: the answer appears in the running turn."""
    client = Client(tmp_path)
    client.ask("first")
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}?view=chat", MANY % ".talk .call" + " === 1")
        client.answer("a very good answer")
        page.wait("document.querySelector('.talk').innerText.includes('a very good answer')")
        assert page.count(".talk") == 1


def test_a_transcript_that_is_replaced_is_loaded_again(tmp_path, page):
    """If the file becomes another one, the page shows that; a deleted one is reported."""
    path = made(tmp_path, "one", "two")
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", MANY % ".turn" + " === 2")
        made(tmp_path, "something else")
        page.wait(MANY % ".turn" + " === 1 && document.querySelector('.turn').innerText.includes('something else')")
        path.unlink()
        page.has(".trouble")


def test_a_hidden_tab_asks_for_nothing(tmp_path, page):
    """The page stops polling while its tab is hidden, and catches up when it is shown."""
    client = Client(tmp_path)
    client.ask("first")
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", MANY % ".badge.running" + " === 1")
        page.wait("performance.getEntriesByType('resource').filter(e => e.name.includes('since=')).length > 0")
        page.value(
            "Object.defineProperty(document, 'hidden', { get: () => window.isAway ?? false, configurable: true })"
        )
        page.value("window.isAway = true; document.dispatchEvent(new Event('visibilitychange'))")
        polls = "performance.getEntriesByType('resource').filter(e => e.name.includes('since=')).length"
        page.value("new Promise(done => setTimeout(done, 1200))")
        before = page.value(polls)
        client.answer()
        page.value("new Promise(done => setTimeout(done, 2500))")
        assert page.value(polls) == before
        page.value("window.isAway = false; document.dispatchEvent(new Event('visibilitychange'))")
        page.wait(f"{polls} > {before}")


# ---- hostile content


NASTY = (
    '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script></pre></style><svg onload="window.hacked=1">'
    "<a href='javascript:window.hacked=1'>x</a> [y](javascript:window.hacked=1) ![z](http://evil.example/z.png) "
    "<iframe src=http://evil.example></iframe> \x1b[31m\x07\x00 \u202egnirts\u2066\u200f ${window.hacked=1} {{hacked}} ' \" ` &lt;b&gt; "
)


def test_hostile_content_is_text_everywhere(tmp_path, page):
    """Markup, scripts, control characters and marks of direction in every field: nothing runs, nothing is loaded."""
    writer = Writer(SESSION, version=f"2.1.200{NASTY[:40]}", cwd=f"/home/{NASTY}", gitBranch=NASTY)
    writer.version = "2.1.200"
    writer.bare("custom-title", customTitle=NASTY)
    writer.prompt(NASTY)
    writer.say([{"type": "thinking", "thinking": NASTY, "signature": "x"}], message="msg_n", stop=None)
    writer.say(NASTY, message="msg_n", stop=None)
    for tool, arguments in (
        ("Bash", {"command": NASTY, "description": NASTY}),
        ("Edit", {"file_path": NASTY, "old_string": NASTY, "new_string": NASTY * 2}),
        ("Write", {"file_path": f"a{NASTY}.py", "content": NASTY}),
        ("Read", {"file_path": NASTY}),
        ("TodoWrite", {"todos": [{"content": NASTY, "status": NASTY, "activeForm": NASTY}]}),
        ("WebFetch", {"url": "javascript:window.hacked=1", "prompt": NASTY}),
        (NASTY, {NASTY: NASTY}),
    ):
        call = writer.call(tool, arguments, message="msg_n", model=NASTY)
        writer.result(call, NASTY, is_error=tool == "Read")
    writer.row(
        "system",
        subtype="api_error",
        error={"status": 529, "message": NASTY},
        retryInMs=1,
        retryAttempt=1,
        maxRetries=2,
    )
    writer.say(f"# {NASTY}\n\n```{NASTY}\n{NASTY}\n```\n\n| {NASTY} | b |\n|---|---|\n| {NASTY} | d |", model=NASTY)
    directory = tmp_path / "projects" / "-home-ada-loom"
    directory.mkdir(parents=True)
    (directory / f"{SESSION}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    with viewing(tmp_path) as viewer:
        (turn,) = turns_of(viewer)
        spans = spans_of(viewer, turn)
        page.open(viewer, "#/sessions", MANY % "a[href*='/s/']" + " >= 1")
        for span in spans:
            page.open(viewer, f"#/s/{SESSION}/t/{turn['trace']}/{span['id']}", SHOWN)
            page.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert len(spans) > 9
        page.open(viewer, f"#/s/{SESSION}?view=chat", MANY % ".talk .call" + " >= 7")
        page.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        page.wait(MANY % ".call-body .content" + " >= 7")
        assert page.value("window.hacked") is None
        assert (
            page.count(
                "main img, main script, main iframe, main style, main svg[onload], [onerror], [href^=javascript]"
            )
            == 0
        )
        assert not any(mark in page.value("document.body.textContent") for mark in "\x1b\x07\u202e\u2066\u200f")


def test_only_sections_become_markup(tmp_path, page):
    """The browser itself refuses to make markup of any other string: the content security policy names one place."""
    made(tmp_path, "hello")
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", MANY % ".turn" + " === 1")
        refused = "(() => { try { document.body.innerHTML = '<b>x</b>'; return ''; } catch (error) { return error.name; } })()"
        assert page.value(refused) == "TypeError"
        page.said.clear()


# ---- ten thousand turns


def ten_thousand(home):
    """Write a session of ten thousand turns."""
    writer = Writer(SESSION)
    for number in range(10_000):
        writer.prompt(f"please do number {number}, {('the parser', 'the lexer')[number % 2]}")
        writer.say(f"{number} is done")
    return writer.save(home / "projects" / "-home-ada-loom")


def test_ten_thousand_turns(tmp_path, page, monkeypatch):
    """Typing in the filter takes less than a frame or two, opening a turn a fifth of a second, and few rows are built."""
    monkeypatch.setattr(browser, "PATIENCE_S", 120.0)  # a busy machine reads them slowly
    ten_thousand(tmp_path)
    with viewing(tmp_path) as viewer:
        page.open(viewer, f"#/s/{SESSION}", "!!document.querySelector('.strip')")
        assert page.count("*") < 10_000
        typed = (
            "(async () => { const box = document.getElementById('filter'), took = [];"
            " for (const text of ['p', 'pa', 'par', 'parser', 'number 77', '']) {"
            "  box.value = text; const began = performance.now(); box.dispatchEvent(new Event('input'));"
            "  document.body.offsetHeight; took.push(performance.now() - began);"
            "  await new Promise(requestAnimationFrame); }"
            " return JSON.stringify(took); })()"
        )
        took_ms = json.loads(page.value(typed))
        assert sorted(took_ms)[len(took_ms) // 2] < 100, took_ms
        page.value(
            "(box => { box.value = 'number 7777,'; box.dispatchEvent(new Event('input')); })(document.getElementById('filter'))"
        )
        page.wait(MANY % ".turn" + " === 1")
        began = time.monotonic()
        page.click(".turn")
        page.has(".rows .span")
        took_s = time.monotonic() - began
        assert took_s < 2, took_s
        assert "number 7777" in page.text(".turn")
        page.press("Escape")
        page.wait(MANY % ".turn" + " > 20")


def test_a_link_into_ten_thousand_turns_does_not_wait_for_them(tmp_path, page, monkeypatch):
    """With an index the turn of a link is open, with its figures, while the session is still being read."""
    monkeypatch.setattr(browser, "PATIENCE_S", 120.0)
    path = ten_thousand(tmp_path)
    config = settings(tmp_path)
    with opened(config) as index:
        (trace,) = index.connection.execute("SELECT trace_id FROM turn WHERE position = 9900").fetchone()
    session = OpenSession(session_of(path), config, config.destinations[0])
    records = session.records()
    next(records)
    began = time.process_time()
    session.trace_record(9900, trace)
    list(session.turn_records(9880, 9940))
    assert time.process_time() - began < 0.5  # of CPU; reading the session takes several seconds
    row = "document.querySelector('.turn[data-at=\"9900\"]')"
    with viewing(tmp_path) as viewer:
        page.visit("about:blank")
        page.tell("Page.navigate", url=f"{viewer.url}#/s/{SESSION}/t/{trace}")
        page.wait(f"{row}?.querySelector('.cost')?.innerText && " + MANY % ".rows .span")
        assert page.value("document.getElementById('main').dataset.shown ?? null") is None  # it is still being read
        assert "please do number 9900" in page.value(f"{row}.innerText")
        assert page.value(f"(box => box.top >= 0 && box.bottom <= innerHeight)({row}.getBoundingClientRect())")
        before = page.value(f"{row}.innerText")
        page.settle()
        assert page.value(f"{row}.innerText") == before
        assert page.count(".rows .span") == 1
        assert "10,000 turns" in page.text(".totals")
        assert page.value("[...document.querySelectorAll('.turn .time')].every(e => e.innerText !== '…')")


def test_secrets_are_masked_in_every_view(tmp_path, page):
    """A secret is shown as masked in the list, the conversation and the panel."""
    made(tmp_path, f"the key is {SECRET}")
    with viewing(tmp_path) as viewer:
        (turn,) = turns_of(viewer)
        span = spans_of(viewer, turn)[0]["id"]
        for route, ready in (
            (f"#/s/{SESSION}/t/{turn['trace']}/{span}", SHOWN),
            (f"#/s/{SESSION}?view=chat", MANY % ".talk .prompt mark" + " === 1"),
        ):
            page.open(viewer, route, ready)
            assert page.count("mark") >= 1
            assert SECRET not in page.value("document.documentElement.outerHTML")
