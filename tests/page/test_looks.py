"""Each kind of content looks the same in the conversation, in the panel of a span and in an exported page.

The three views have style sheets of their own beside the shared one: a rule of one view must not break a kind of content
in another. Compared are computed styles in a real browser, light and dark, of the first session of the demo.
"""

import json
from datetime import UTC, datetime

import browser
import pytest
from session_pages import Page, spans_of, turns_of
from test_export_page import exported, opened
from test_view import viewing

from turnspan.page.demo.sessions import write_sessions
from turnspan.source.sessions import session_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine"),
]

# Blocks with a box and fixed width; then parts of Markdown and of blocks.
BLOCKS = (".c-md .c-code", ".c-diff", ".c-term", ":not(.c-found) > .c-file", ".c-found")
PARTS = (".c-name", ".c-name + .c-code", ".c-md code", ".c-md th", ".c-md td", ".c-term > pre", ".c-ins", ".c-del")
STYLES = (
    "fontFamily", "whiteSpace", "position", "borderTopStyle", "borderTopColor", "backgroundColor", "color", "display",
    "fontSize", "lineHeight", "paddingTop", "paddingLeft", "borderTopWidth",
)  # fmt: skip
FREE_OF_SIZE = STYLES.index("fontSize")  # of parts: an exported page has a larger font than the page
CLOSED = ".talk details:not([open])"
COLLECT = """
JSON.stringify(Object.fromEntries(%s.map((kind) => [kind, [...new Set([...document.querySelectorAll(%r + " " + kind)].map(
  (found) => JSON.stringify(%s.map((name) => getComputedStyle(found)[name]))))]])))
"""


def looks(page, inside):
    """The computed styles of each kind of content below an element; none if it is not there."""
    found = json.loads(page.value(COLLECT % (json.dumps([*BLOCKS, *PARTS]), inside, json.dumps(STYLES))))
    kept = {kind: len(STYLES) if kind in BLOCKS else FREE_OF_SIZE for kind in found}
    return {kind: {tuple(json.loads(one)[: kept[kind]]) for one in all_} for kind, all_ in found.items() if all_}


def in_conversation(page, viewer, session):
    """The conversation, with every call and every folded section open."""
    page.open(viewer, f"#/s/{session}?view=chat", "!!document.querySelector('main .c-md .c-code')")
    while page.count(CLOSED):
        page.value(f"document.querySelectorAll({CLOSED!r}).forEach(each => {{ each.open = true; }})")
        page.settle()
    page.has(".talk .c-term")
    page.has(".talk .c-diff")
    page.has(".talk .c-file")
    return looks(page, ".talk")


def in_panel(page, viewer, session):
    """The panels of all spans of the first three turns."""
    found = {}
    for turn in turns_of(viewer, session)[:3]:
        for span in spans_of(viewer, turn, session):
            page.visit(f"{viewer.url}#/s/{session}/t/{turn['trace']}/{span['id']}")
            page.wait("document.getElementById('details')?.hidden === false")
            for kind, styles in looks(page, "#details").items():
                found.setdefault(kind, set()).update(styles)
    return found


@pytest.mark.parametrize("is_dark", [False, True], ids=["light", "dark"])
def test_content_looks_the_same_in_every_view(tmp_path, is_dark):
    """A block of code has its box and its fixed width in all three views, and the name of its language above it."""
    path = write_sessions(tmp_path, datetime.now(UTC))
    session = session_of(path).session_id
    with Page(is_dark=is_dark) as page, viewing(tmp_path) as viewer:
        page.sized(1440, 900)
        chat = in_conversation(page, viewer, session)
        panel = in_panel(page, viewer, session)
        page.check()
        opened(page, exported(path, tmp_path / "page.html", tmp_path))
        page.value("document.querySelectorAll('details').forEach(each => { each.open = true; })")
        saved = looks(page, "main")
    assert {*BLOCKS} - {".c-found"} <= chat.keys() & panel.keys() & saved.keys()
    for kind in (*BLOCKS, *PARTS):
        views = [found[kind] for found in (chat, panel, saved) if kind in found]
        assert all(styles == views[0] for styles in views), (kind, views)
    for kind in BLOCKS:
        for style in chat.get(kind, ()):
            assert "monospace" in style[0], kind
            assert style[STYLES.index("borderTopWidth")] == "1px", kind
