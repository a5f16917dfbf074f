"""The overview, the list of sessions and the search in a real browser."""

import json
import os
import time
from urllib.parse import quote, urlsplit

import browser
import pytest
from browser import Browser
from rows import Writer
from test_page import MANY, NASTY
from test_view import SECRET, made, records_of, settings, viewing

from turnspan.index import opened

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(browser.found() is None, reason="there is no Chromium on this machine"),
]

SESSION = "5e55104a-0000-4000-8000-0000000000%02d"
HOSTILE = f"{NASTY} \u202e\x1b[31mred\x07"


@pytest.fixture
def page():
    """A browser that must log no error and connect to no other server."""
    with Browser() as opened_page:
        yield opened_page
        assert opened_page.said == []
        hosts = {
            urlsplit(url).hostname for url in opened_page.asked if not url.startswith(("about:", "chrome", "data:"))
        }
        assert hosts <= {"127.0.0.1"}


def lived_in(home, sessions=12):
    """A home with sessions of several days, projects, branches and models, some with failing tools."""
    for number in range(sessions):
        writer = Writer(SESSION % number, tag=f"s{number}x", version="2.1.325", cwd=f"/home/ada/{('loom', 'flax', 'silk')[number % 3]}",
                        gitBranch=("main", "fix/parser")[number % 2])  # fmt: skip
        writer.wait(86400 * (number // 2))
        for turn in range(1 + number % 4):
            writer.prompt(f"question {turn} of session {number}")
            call = writer.call("Bash", {"command": "true"}, model="claude-haiku-4-5-20251001")
            writer.result(call, "Exit code 1" if number == 3 else "fine", is_error=True if number == 3 else None)
            writer.say("the shuttle is fast", usage={"input_tokens": 100, "output_tokens": 1000 * (number + 1)})
        writer.save(home / "projects" / f"-home-ada-{number % 3}")
    return home


@pytest.fixture
def stats(command, monkeypatch, tmp_path):
    """`turnspan stats --json` for this home: groups by key, and the total."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))

    def run(*arguments):
        *groups, total = [json.loads(line) for line in command("stats", "--json", *arguments)[1].splitlines()]
        return {group["key"]: group for group in groups}, total

    return run


def cells(page, selector, *names):
    """The data of each element: a list of tuples."""
    script = f"JSON.stringify([...document.querySelectorAll({json.dumps(selector)})].map(e => ({{...e.dataset}})))"
    return [tuple(data.get(name) for name in names) for data in json.loads(page.value(script))]


def panel(page, name, field):
    """The values of a column of a panel, by key."""
    rows = f"[...document.querySelectorAll('[data-panel={name}] tbody tr')]"
    script = f"JSON.stringify({rows}.map(r => [r.dataset.key, r.querySelector('[data-field={field}]').dataset.value]))"
    return {key: float(value) for key, value in json.loads(page.value(script)) if value}


# ---- the overview


def test_the_overview_has_the_figures_of_stats(tmp_path, page, stats):
    """Bars, totals and panels of the page are the numbers that `turnspan stats --json` prints."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/?days=all")
        page.wait(MANY % ".bars a" + " > 0")
        days, total = stats("--by", "day")
        bars = {key: float(value) for key, value in cells(page, ".bars a", "key", "value") if float(value)}
        table = "JSON.stringify([...document.querySelectorAll('.values tbody tr')].map(r => [r.dataset.key, ...[...r.cells].slice(1, 3).map(c => c.dataset.value)]))"
        rows = {key: (float(cost), float(used)) for key, cost, used in json.loads(page.value(table)) if float(cost)}
        unit = page.value("document.querySelector('.chart').dataset.unit")
        if unit == "day":
            assert bars == pytest.approx({key: day["cost_usd"] for key, day in days.items()})
            assert rows == {key: (pytest.approx(day["cost_usd"]), day["tokens"]) for key, day in days.items()}
        else:
            groups, _ = stats("--by", unit)
            assert bars == pytest.approx({key: group["cost_usd"] for key, group in groups.items()})
            assert rows == {key: (pytest.approx(group["cost_usd"]), group["tokens"]) for key, group in groups.items()}
        totals = {name: float(value) for name, value in cells(page, "[data-total]", "total", "value")}
        assert totals == pytest.approx({name: total[name] for name in totals})
        kinds = {kind: int(value) for kind, value in cells(page, "[data-kind]", "kind", "value")}
        assert kinds == {kind: count for kind, count in total["usage"].items() if count and kind in kinds}
        for by in ("project", "model", "agent", "branch"):
            wanted, _ = stats("--by", by)
            assert panel(page, by, "cost_usd") == pytest.approx(
                {key: group["cost_usd"] for key, group in wanted.items()}
            )
            assert panel(page, by, "tokens") == {key: group["tokens"] for key, group in wanted.items()}
        tools, _ = stats("--by", "tool")
        assert panel(page, "tool", "tools") == {key: group["tools"] for key, group in tools.items()}
        assert panel(page, "failing", "tools_failed") == {"Bash": tools["Bash"]["tools_failed"]}
        sessions, _ = stats("--by", "session")
        costly = panel(page, "sessions", "cost_usd")
        assert len(costly) == 8
        assert costly == pytest.approx({key: sessions[key]["cost_usd"] for key in costly})
        assert min(costly.values()) >= max(each["cost_usd"] for key, each in sessions.items() if key not in costly)


def test_the_height_of_a_bar_is_its_value(tmp_path, page):
    """Bars are stacked to scale, and every bar says its values to a screen reader."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/?since=2026-03-01&until=2026-03-06&metric=tokens&stack=project")
        page.wait(MANY % ".bars a" + " === 6")
        script = (
            "JSON.stringify([...document.querySelectorAll('.bars a')].map(a => [Number(a.dataset.value),"
            " [...a.querySelectorAll('.stack i')].reduce((sum, i) => sum + i.getBoundingClientRect().height, 0),"
            " a.getAttribute('aria-label')]))"
        )
        bars = json.loads(page.value(script))
        scale = max(height / value for value, height, _ in bars)
        for value, height, label in bars:
            assert height == pytest.approx(value * scale, abs=2)
            assert label.startswith(("Sun", "Mon", "Tue", "Wed", "Thu", "Fri"))
            assert "loom" in label or "flax" in label or "silk" in label


def test_everything_is_a_filter(tmp_path, page, stats):
    """A click on a project, a model or a bar narrows everything; a chip removes the filter; Back works."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/?days=all")
        page.wait(MANY % ".bars a" + " > 0")
        page.value("document.querySelector('[data-panel=project] tr[data-key=\"/home/ada/flax\"] a').click()")
        page.wait("document.querySelector('.chip')?.dataset.value === '/home/ada/flax'")
        page.wait(MANY % "[data-panel=project] tbody tr" + " === 1")
        total = stats("--project", "flax")[1]
        assert page.value("Number(document.querySelector('[data-total=turns]').dataset.value)") == total["turns"]
        page.value("document.querySelector('[data-panel=model] tr[data-key^=claude-haiku] a').click()")
        page.wait(MANY % ".chip" + " === 2 && " + MANY % "[data-panel=model] tbody tr" + " === 1")
        assert page.value("document.querySelector('.chips').innerText").count("Clear all") == 1
        page.value("history.back()")
        page.wait(MANY % ".chip" + " === 1")
        page.value("document.querySelector('.chip .remove').click()")
        page.wait(MANY % ".chip" + " === 0 && " + MANY % "[data-panel=project] tbody tr" + " === 3")
        page.value("document.querySelectorAll('.bars a')[0].click()")
        page.wait("new URLSearchParams(location.hash.split('?')[1]).has('since')")
        page.wait(MANY % ".chip" + " === 2")


# ---- the list of sessions


def listed(page):
    """The sessions in the order of the list, by their last two digits."""
    return [int(each[0][-2:]) for each in cells(page, ".sessions tbody tr", "session")]


def test_the_list_is_sorted_filtered_and_paged(tmp_path, page):
    """Every column sorts, filters are chips in the address, and the list says how many sessions there are."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer:
        viewer.limit = 5
        page.visit(f"{viewer.url}#/sessions")
        page.wait(MANY % ".sessions tbody tr" + " === 5")
        assert "1\u20135 of 12 sessions" in page.value("document.querySelector('.count').textContent")
        assert page.value("document.querySelector('th[aria-sort]').innerText").startswith("Last activity")
        first = listed(page)
        page.value("document.querySelector('.pager a[rel=next]').click()")
        page.wait("document.querySelector('.count').textContent.startsWith('6\\u201310')")
        assert not set(first) & set(listed(page))
        for name in ("title", "project", "branch", "turns", "tokens", "cost", "errors", "sent", "last"):
            direction = f"(document.querySelector('th.at-{name}').getAttribute('aria-sort') ?? '')"
            for _ in range(2):
                before = json.dumps(page.value(direction))
                page.value(f"document.querySelector('th.at-{name} a').click()")
                page.wait(f"{direction} !== {before}")
            order = page.value(direction)
            values = [float(value) for (value,) in cells(page, f"td.at-{name}", "value") if value]
            assert values == sorted(values, reverse=order == "descending")
        page.visit(f"{viewer.url}#/sessions?errors=1")
        page.wait(MANY % ".sessions tbody tr" + " === 1")
        assert listed(page) == [3]
        page.visit(f"{viewer.url}#/sessions?project={quote('/home/ada/silk', safe='')}&branch=main")
        page.wait(MANY % ".sessions tbody tr" + " === 2")
        assert sorted(listed(page)) == [2, 8]
        page.visit(f"{viewer.url}#/sessions?tool=NoSuchTool")
        page.wait("document.querySelector('.count').textContent.startsWith('No session matches')")


def test_the_list_can_be_used_with_the_keyboard_alone(tmp_path, page):
    """/ goes to the box, typing filters, Esc empties it, j and k move, Enter opens; the menu has labels."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/sessions")
        page.wait(MANY % ".sessions tbody tr" + " === 12")
        page.press("/")
        for letter in "session 7":
            page.press(letter)
        page.wait(MANY % ".sessions tbody tr" + " === 1")
        assert page.value("location.hash") == "#/sessions?q=session+7"
        assert page.value("document.activeElement.value") == "session 7"
        page.press("Escape")
        page.wait(MANY % ".sessions tbody tr" + " === 12")
        page.press("Escape")
        page.value("document.querySelector('.menu summary').click()")
        page.wait("document.activeElement.name === 'project'")
        assert page.value(
            "[...document.querySelectorAll('.menu select, .menu input')].every(e => e.labels.length === 1)"
        )
        page.value(
            "const s = document.querySelector('select[name=model]'); s.value = '=claude-haiku-4-5-20251001'; s.dispatchEvent(new Event('change'))"
        )
        page.wait("location.hash.includes('model=claude-haiku') && document.querySelector('.chip') !== null")
        page.settle()  # the open menu is loaded again, and takes the focus
        page.value("document.activeElement.blur(); document.querySelector('.menu').open = false")
        page.press("j")
        page.press("j")
        page.press("Enter")
        page.wait(MANY % ".turn" + " > 0")
        assert page.value("location.hash").startswith("#/s/5e55104a")


def test_a_long_list_is_quick(tmp_path, page):
    """With 5,000 sessions a page of the list is loaded, and typed into, without a noticeable wait."""
    (tmp_path / "projects" / "-home-ada-loom").mkdir(parents=True)
    for number in range(5000):
        path = tmp_path / "projects" / "-home-ada-loom" / f"{number:08}-0000-4000-8000-000000000001.jsonl"
        writer = Writer(path.stem, tag=f"n{number}x")
        writer.wait(600 * number)
        writer.turn(f"title {number}", "Done.")
        path.write_bytes(b"".join(writer.lines()))
    with opened(settings(tmp_path)):  # brings the index up to date
        pass
    with viewing(tmp_path) as viewer:
        took = []
        for _ in range(3):
            began = time.process_time()
            records_of(viewer, "sessions?q=title+499&sort=-cost")
            took.append(time.process_time() - began)
        assert min(took) < 0.2  # of CPU: other tests run at the same time
        page.visit(f"{viewer.url}#/sessions")
        page.wait(MANY % ".sessions tbody tr" + " === 100")
        assert "of 5,000 sessions" in page.value("document.querySelector('.count').textContent")
        page.press("/")
        for letter in "title 4999":
            page.press(letter)
        page.wait(MANY % ".sessions tbody tr" + " === 1")


# ---- the search


def test_a_hit_opens_at_its_turn(tmp_path, page):
    """Words are found in all sessions, shown in context, and lead to the span that has them."""
    lived_in(tmp_path)
    made(tmp_path, "first", f"the treadle of {SECRET}", "third", session="7ead1e00-0000-4000-8000-000000000001")
    with viewing(tmp_path) as viewer:
        page.visit(f"{viewer.url}#/search")
        page.wait("document.activeElement?.type === 'search'")
        for letter in "treadle":
            page.press(letter)
        page.wait(MANY % ".row-link" + " === 1")
        assert page.value("location.hash") == "#/search?q=treadle"
        assert page.value("document.querySelector('mark.hit').textContent") == "treadle"
        assert "[redacted:" in page.value("document.querySelector('.context').textContent")
        page.press("ArrowDown")
        page.press("Enter")
        page.wait("location.hash.includes('/t/') && " + MANY % ".turn" + " > 0")
        page.wait("document.body.innerText.includes('the treadle of')")
        page.wait("!document.querySelector('#details').hidden")
        page.value("history.back()")  # one step, although the page has opened the span of the hit
        page.wait("location.hash.startsWith('#/search')")
        page.wait(MANY % ".row-link" + " === 1")
        assert page.value("document.querySelector('.hits input').value") == "treadle"
        page.visit(f"{viewer.url}#/search?q=shuttle")
        page.wait(MANY % ".row-link" + " > 10")
        page.visit(f"{viewer.url}#/search?q=nowhere")
        page.wait("document.querySelector('.count').textContent === 'Nothing found for nowhere'")
        for words in ('"', "***", "NEAR(", "a AND", "-x"):
            page.visit(f"{viewer.url}#/search?q={quote(words)}")
            assert page.value("document.querySelector('.count').textContent")
            assert page.value(MANY % ".trouble") == 0


# ---- hostile content, narrow screens


def test_names_are_shown_as_text_only(tmp_path, page):
    """Markup in a title, project, branch, model, tool or prompt is shown on every view, and never run."""
    writer = Writer(SESSION % 1, cwd=f"/home/{HOSTILE}", gitBranch=HOSTILE)
    writer.prompt(f"{HOSTILE} shuttle")
    call = writer.call(HOSTILE, {"x": HOSTILE}, model=HOSTILE)
    writer.result(call, HOSTILE, is_error=True)
    writer.bare("custom-title", customTitle=HOSTILE)
    writer.say("Done.")
    writer.save(tmp_path / "projects" / "-p")
    with viewing(tmp_path) as viewer:
        for place, shown in (
            ("#/?days=all", ".panel tbody tr"),
            ("#/sessions", ".sessions tbody tr"),
            ("#/search?q=shuttle", ".row-link"),
            (f"#/?days=all&project={quote(HOSTILE)}&branch={quote(NASTY)}", ".chip"),
            (f"#/sessions?model={quote(NASTY)}", ".chip"),
        ):
            page.visit(viewer.url + place)
            page.wait(MANY % shown + " > 0")
            assert "<img" in page.value("document.querySelector('main').innerText"), place
            assert page.value(MANY % "main img, main script, main b:not(.tip b, .lines b, .legend b)") == 0
            assert page.value("window.hacked") is None
            assert "\u202e" not in page.value("document.querySelector('main').innerText")
        page.visit(f"{viewer.url}#/sessions")
        page.wait(MANY % ".sessions tbody tr" + " === 1")
        page.value("document.querySelector('.menu summary').click()")
        page.wait(MANY % ".menu option" + " > 5")
        page.value("document.querySelector('td.at-project button').click()")
        page.wait(MANY % ".sessions tbody tr" + " === 1 && " + MANY % ".chip" + " === 1")
        assert page.value("window.hacked") is None


def test_projects_with_the_same_name_are_distinct(tmp_path):
    """Two directories with the same last part are listed with the part before it."""
    for number, cwd in enumerate(("/home/ada/loom/api", "/home/ada/silk/api", "/home/ada/flax")):
        writer = Writer(SESSION % number, tag=f"d{number}", cwd=cwd)
        writer.turn("hello", "Done.")
        writer.save(tmp_path / "projects" / f"-p{number}")
    with viewing(tmp_path) as viewer:
        (overview,) = records_of(viewer, "overview?days=all")
    assert {row["label"] for row in overview["groups"]["project"]["rows"]} == {"loom/api", "silk/api", "flax"}


def test_a_narrow_screen_has_everything(tmp_path):
    """At 320 pixels nothing is wider than the screen, and cost, turns and titles are there."""
    lived_in(tmp_path)
    with viewing(tmp_path) as viewer, Browser(320, 700) as page:
        page.tell("Emulation.setDeviceMetricsOverride", width=320, height=700, deviceScaleFactor=1, mobile=True)
        for place, shown in (
            ("#/?days=all", ".bars a"),
            ("#/sessions", ".sessions tbody tr"),
            ("#/search?q=shuttle", ".row-link"),
        ):
            page.visit(viewer.url + place)
            page.wait(MANY % shown + " > 0")
            assert page.value("document.documentElement.scrollWidth") <= 320, place
            assert page.value("document.querySelector('.places a[aria-current]') !== null")
        page.visit(f"{viewer.url}#/sessions")
        page.wait(MANY % ".sessions tbody tr" + " > 0")
        row = page.value("document.querySelector('.sessions tbody tr').innerText")
        assert "$" in row
        assert "turn" in row
        assert "question" in row
        assert page.said == []


def test_contrast_is_enough(tmp_path):
    """Text on the page has a contrast of 4.5 to 1 and bars one of 3 to 1, light and dark."""
    lived_in(tmp_path)
    script = """(() => {
      const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
      const light = (c) => { const [r, g, b] = c.match(/[\\d.]+/g).map(Number); return 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b); };
      const solid = (e) => { while (e) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\\)$|transparent/.test(c)) return c; e = e.parentElement; } return 'rgb(255, 255, 255)'; };
      const ratio = (a, b) => { const [x, y] = [light(a), light(b)].sort((p, q) => q - p); return (x + 0.05) / (y + 0.05); };
      const low = [];
      for (const e of document.querySelectorAll('main a, main td, main th, main span, main dd, main dt, main button, main h1, main h2, main small')) {
        if (!e.offsetParent || !e.innerText?.trim() || e.children.length) continue;
        const found = ratio(getComputedStyle(e).color, solid(e));
        if (found < 4.5) low.push([e.className || e.tagName, e.innerText.slice(0, 20), found]);
      }
      for (const e of document.querySelectorAll('.stack i, .kinds i')) {
        const found = ratio(getComputedStyle(e).backgroundColor, solid(e.parentElement));
        if (found < 3) low.push([e.className, found]);
      }
      return JSON.stringify(low);
    })()"""
    with viewing(tmp_path) as viewer:
        for is_dark in (False, True):
            with Browser(is_dark=is_dark) as page:
                for place, shown in (
                    ("#/?days=all", ".bars a"),
                    ("#/sessions", "tbody tr"),
                    ("#/search?q=shuttle", ".row-link"),
                ):
                    page.visit(viewer.url + place)
                    page.wait(MANY % shown + " > 0")
                    assert json.loads(page.value(script)) == [], (is_dark, place)
