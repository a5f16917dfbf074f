"""The page without a mouse, with a screen reader, enlarged, without motion, and in both themes."""

import json

import browser
import pytest
from session_pages import Page, eventful, spans_of, turns_of
from test_view import SESSION, made, viewing

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine"),
]

# Roles of what a user can act on, or jump to: each needs a name.
NAMED = {
    "button", "link", "searchbox", "checkbox", "combobox", "slider", "tree", "treeitem", "separator", "splitter",
    "main", "complementary", "navigation", "table", "DisclosureTriangle",
}  # fmt: skip
FOCUSED = "document.activeElement"
# Colours are painted, so that mixed and transparent ones are what a user sees.
CONTRAST = """(() => {
  const context = Object.assign(document.createElement("canvas"), { width: 1, height: 1 }).getContext("2d", { willReadFrequently: true });
  const painted = (...colours) => {
    context.clearRect(0, 0, 1, 1);
    for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
    return [...context.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const light = (rgb) => rgb.map((v) => v / 255).map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, n) => sum + v * [0.2126, 0.7152, 0.0722][n], 0);
  const low = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility({ opacityProperty: true })) continue;
    const behind = [];
    for (let each = element; each; each = each.parentElement) behind.unshift(getComputedStyle(each).backgroundColor);
    const below = painted(...behind);
    const [one, other] = [light(below), light(painted(...behind, getComputedStyle(element).color))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) low.add(`${element.className} ${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 20)}`);
  }
  return JSON.stringify([...low]);
})()"""


def views_of(viewer):
    """Every view: its address, and what is there when it is complete."""
    turn = turns_of(viewer)[0]
    span = next(one["id"] for one in spans_of(viewer, turn) if one["error"])
    return {
        "overview": ("#/?days=all", ".bars a"),
        "sessions": ("#/sessions", ".sessions tbody tr"),
        "search": ("#/search?q=tokenizer", ".row-link"),
        "trace": (f"#/s/{SESSION}/t/{turn['trace']}/{span}", "#details table"),
        "chat": (f"#/s/{SESSION}?view=chat", ".talk .call"),
    }


@pytest.fixture(scope="module")
def viewer(tmp_path_factory):
    """A page with an eventful session and another one."""
    home = tmp_path_factory.mktemp("home")
    eventful(home)
    made(home, "another one", session="5e55104a-0000-4000-8000-000000000002")
    with viewing(home) as served:
        yield served


@pytest.fixture(params=["light", "dark"])
def page(request):
    """A browser with one of the themes."""
    with Page(is_dark=request.param == "dark") as opened:
        yield opened
        opened.check()


def shown(page, viewer, view):
    """Open a view."""
    route, ready = views_of(viewer)[view]
    page.open(viewer, route, f"!!document.querySelector({ready!r})")


@pytest.mark.parametrize("view", ["overview", "sessions", "search", "trace", "chat"])
def test_text_can_be_read_and_everything_has_a_name(viewer, page, view):
    """Text has a contrast of 4.5 to 1; what a user can act on has a name for screen readers; one heading is the first."""
    shown(page, viewer, view)
    page.value("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    page.has_none(".loading")
    assert json.loads(page.value(CONTRAST)) == []
    nodes = [node for node in page.tell("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    roles = [(node["role"]["value"], node.get("name", {}).get("value", "")) for node in nodes]
    assert [role for role, name in roles if role in NAMED and not name.strip()] == []
    assert page.count("h1") == 1
    assert {"main", "navigation"} <= {role for role, _ in roles}
    if view == "trace":
        assert ("complementary", "Details of Bash") in roles
        levels = page.value("JSON.stringify([...document.querySelectorAll('[role=treeitem]')].map(e => e.ariaLevel))")
        assert set(json.loads(levels)) == {"1", "2"}


@pytest.mark.parametrize("view", ["overview", "sessions", "search", "trace", "chat"])
def test_the_focus_is_visible_everywhere(viewer, view):
    """Each stop of the tab key is on the screen and looks different from the others."""
    with Page() as page:
        shown(page, viewer, view)
        page.value("document.activeElement.blur()")
        seen = []
        for _ in range(40):
            page.press("Tab")
            stop = page.value(
                "(e => e === document.body ? '' : JSON.stringify([e.outerHTML.slice(0, 80),"
                " getComputedStyle(e).outlineStyle !== 'none' && parseFloat(getComputedStyle(e).outlineWidth) >= 1"
                " || e.matches('.sizer, .splitter'),"
                " e.getBoundingClientRect().width > 0 && e.getBoundingClientRect().bottom > 0"
                f" && e.getBoundingClientRect().top < innerHeight]))({FOCUSED})"
            )
            if not stop:
                break
            seen.append(json.loads(stop))
        assert len(seen) >= 2
        assert [html for html, is_visible, is_near in seen if not is_visible or not is_near] == []


def test_all_views_are_reached_with_the_keyboard(viewer):
    """From the first key to the content of a span and back; the focus is never lost."""
    with Page() as page:
        page.open(viewer, "#/?days=all", "!!document.querySelector('.bars a')")
        page.press("Tab")
        assert page.value(f"{FOCUSED}.innerText") == "Skip to the content"
        page.press("Enter")
        assert page.value(f"{FOCUSED}.id") == "main"
        page.value("document.querySelector('.places a[href=\"#/sessions\"]').focus()")
        page.press("Enter")
        page.wait("location.hash === '#/sessions'")
        page.settle()
        assert page.value(f"{FOCUSED}.getAttribute('aria-label')") == "sessions"
        while SESSION not in (page.value(f"{FOCUSED}.href ?? ''") or ""):
            page.press("j")
        page.press("Enter")
        page.has(".turn", 3)
        page.settle()
        assert page.value(f"{FOCUSED}.id") == "main"
        page.press("j")
        page.press("Enter")
        page.has(".rows .span", 3)
        page.press("j")
        page.press("j")
        row = page.value(f"{FOCUSED}.dataset.span")
        assert page.value(f"{FOCUSED}.role") == "treeitem"
        page.press("Enter")
        page.wait("document.getElementById('details').hidden === false")
        assert page.value(f"{FOCUSED}.dataset.span") == row
        page.press("d")
        assert page.value(f"{FOCUSED}.id") == "details"
        page.press("Tab")
        assert page.value(f"document.getElementById('details').contains({FOCUSED})")
        page.press("Escape")
        page.wait("document.getElementById('details').hidden")
        assert page.value(f"{FOCUSED}.dataset.span") == row
        page.settle()
        page.press("c")
        page.has(".talk .call")
        page.press("/")
        assert page.value(f"{FOCUSED}.id") == "filter"
        page.press("Escape")
        page.press("Escape")
        page.wait("location.hash === '#/sessions'")
        page.check()


def test_a_page_twice_as_large_needs_no_scrolling_sideways(viewer):
    """At a zoom of 200 % of a small screen everything is below each other."""
    with Page() as page:
        page.tell("Emulation.setDeviceMetricsOverride", width=640, height=400, deviceScaleFactor=2, mobile=False)
        for view in views_of(viewer):
            shown(page, viewer, view)
            assert page.value("document.documentElement.scrollWidth <= innerWidth"), view


def test_nothing_moves_for_users_who_do_not_want_it(viewer):
    """With reduced motion there is no animation and no transition."""
    with Page() as page:
        page.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-reduced-motion", "value": "reduce"}])
        for view in views_of(viewer):
            shown(page, viewer, view)
            assert page.value("document.getAnimations().length") == 0, view


def test_content_is_copied(viewer):
    """A text has a button that copies it, without the labels around it."""
    with Page() as page:
        page._call("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
        shown(page, viewer, "chat")
        page.tell("Page.bringToFront")
        page.click(".talk .prompt .copy")
        page.has(".copied")
        assert page.value("navigator.clipboard.readText()") == "Fix the **tokenizer**, please"
