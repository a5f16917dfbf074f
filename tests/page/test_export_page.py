"""Exported pages in a real browser, opened from disk without a server."""

import json

import browser
import pytest
from browser import Browser
from rows import Writer

from turnspan.page.demo.sessions import _NEWEST, write_sessions
from turnspan.page.export import html
from turnspan.page.preview import Preview
from turnspan.page.tree import Layout
from turnspan.settings.config import load_config
from turnspan.source.sessions import session_of

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine"),
]

NASTY = (
    '<img src="https://example.com/x.png" onerror="document.title=\'hacked\'"><script>document.title="hacked"</script>'
    "</pre></details></style><style>@import 'https://example.com/x.css'</style><link rel=stylesheet href=//example.com/x>"
    "<iframe src=https://example.com></iframe>![x](https://example.com/y.png)[x](javascript:document.title='hacked')"
    "\u202e\x1b]0;t\x07\x00"
)
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


def exported(path, target, claude):
    """Write a session as a page; return its URL."""
    config = load_config({"CLAUDE_CONFIG_DIR": str(claude), "HOME": str(claude)})
    preview = Preview(session_of(path), config, config.destinations[0])
    target.write_text("".join(html.pieces(preview.traces(), str(path), Layout(100))), encoding="utf-8")
    return target.as_uri()


def opened(page, url):
    """Open a page from disk."""
    page.visit(url)
    page.wait("document.readyState === 'complete' && document.querySelector('main') !== null")


def test_hostile_content_runs_nothing_and_asks_no_one(tmp_path):
    """Markup, scripts, images and styles in every field of a transcript stay text."""
    writer = Writer(cwd=NASTY, gitBranch=NASTY)
    writer.bare("ai-title", aiTitle=NASTY)
    writer.prompt(NASTY)
    for name, arguments in (
        ("Bash", {"command": NASTY, "description": NASTY}), ("Write", {"file_path": f"{NASTY}.py", "content": NASTY}),
        ("Edit", {"file_path": NASTY, "old_string": NASTY, "new_string": f"{NASTY}!"}), ("Read", {"file_path": NASTY}),
        ("TodoWrite", {"todos": [{"content": NASTY, "status": NASTY}]}), ("WebFetch", {"url": NASTY, "prompt": NASTY}),
        ("Grep", {"pattern": NASTY}), (NASTY, {NASTY: NASTY}),
    ):  # fmt: skip
        writer.result(writer.call(name, arguments), NASTY, is_error=name == "Grep")
    writer.say(
        [{"type": "thinking", "thinking": NASTY}, {"type": "text", "text": f"# {NASTY}\n\n```{NASTY}\n{NASTY}\n```"}]
    )
    url = exported(writer.save(tmp_path / "projects" / "-p"), tmp_path / "page.html", tmp_path)
    with Browser() as page:
        opened(page, url)
        assert page.value("document.querySelectorAll('script, img, iframe, link, object, embed, form').length") == 0
        assert page.value("document.querySelectorAll('style').length") == 1
        assert "hacked" in page.value("document.title")  # as text
        assert page.value("document.title") != "hacked"
        hrefs = page.value("[...document.querySelectorAll('a[href]')].map(a => a.getAttribute('href'))")
        assert not [href for href in hrefs if href.lower().startswith("javascript:")]
        assert page.value("document.body.textContent").count("<script>") > 10
        assert page.said == []
        assert {asked for asked in page.asked if not asked.startswith("about:")} == {url}


@pytest.mark.parametrize("is_dark", [False, True])
def test_the_demo_can_be_read_at_any_width(tmp_path, is_dark):
    """Styles apply without a script, the page never scrolls sideways, and a row of the waterfall leads to its span."""
    path = write_sessions(tmp_path, _NEWEST)
    url = exported(path, tmp_path / "page.html", tmp_path)
    for width in (500, 1400):
        with Browser(width, 900, is_dark=is_dark) as page:
            page.tell("Emulation.setScriptExecutionDisabled", value=False)
            opened(page, url)
            page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
            scroll, inner = page.value(WIDTHS)
            assert scroll <= inner
            dark = page.value("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
            assert dark == is_dark
            assert page.value("document.querySelectorAll('article').length") == 6
            assert page.value("document.querySelector('.e-totals').getBoundingClientRect().top") < page.value(
                "document.querySelector('article').getBoundingClientRect().top"
            )
            page.value("document.querySelectorAll('.e-row')[5].click()")
            page.wait("document.querySelector(':target') !== null")
            assert page.said == []
            assert all(asked.startswith(url) for asked in page.asked if not asked.startswith("about:"))


def test_contrast_of_all_text_is_sufficient(tmp_path):
    """Every text of the demo has a contrast of at least 4.5 to 1 with what is behind it, light and dark."""
    path = write_sessions(tmp_path, _NEWEST)
    url = exported(path, tmp_path / "page.html", tmp_path)
    for is_dark in (False, True):
        with Browser(is_dark=is_dark) as page:
            opened(page, url)
            page.value("document.querySelectorAll('details').forEach(each => each.open = true)")
            assert json.loads(page.value(CONTRAST)) == []


CONTRAST = """(() => {
  const numbers = colour => colour.match(/[0-9.]+/g).map(Number);
  const light = ([r, g, b]) => [r, g, b].map(v => v / 255).map(v => v <= .03928 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4)
    .reduce((sum, v, n) => sum + v * [.2126, .7152, .0722][n], 0);
  const behind = element => {
    for (let each = element; each; each = each.parentElement) {
      const colour = numbers(getComputedStyle(each).backgroundColor);
      if (colour.length === 3 || colour[3] > 0) return colour;
    }
  };
  const bad = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || element.closest('style')) continue;
    const [one, other] = [light(numbers(getComputedStyle(element).color)), light(behind(element))];
    const ratio = (Math.max(one, other) + .05) / (Math.min(one, other) + .05);
    if (ratio < 4.5) bad.add(`${element.tagName}.${element.className} ${ratio.toFixed(2)} ${walker.currentNode.data.slice(0, 20)}`);
  }
  return JSON.stringify([...bad]);
})()"""
