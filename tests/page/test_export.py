"""`turnspan export`: one file to share, masked, complete without a server or a script."""

import base64
import hashlib
import json
import re
import stat
import sys
import tracemalloc
from html.parser import HTMLParser
from itertools import repeat

import pytest
from markdown_it import MarkdownIt
from rows import Writer

from turnspan.page.export import html, markdown
from turnspan.page.preview import Preview
from turnspan.page.tree import Layout
from turnspan.settings.config import load_config
from turnspan.source.sessions import session_of

SESSION = "5e55104a-0000-4000-8000-000000000001"
SECRET = "sk-ant-api03-" + "Zx9" * 31 + "AA"
NASTY = '<img src=x onerror="window.hacked=1"><script>window.hacked=1</script></pre></style><b>bold</b>\u202e\x1b[31m'


class Page(HTMLParser):
    """The tags of a page, and everything that could load or run something."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.problems, self.ids, self.anchors, self.text = set(), [], [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        """Note a tag."""
        self.tags.add(tag)
        for name, value in attrs:
            if name.startswith("on") or name in {
                "src",
                "style",
                "srcdoc",
                "action",
                "data",
                "formaction",
                "xlink:href",
            }:
                self.problems.append(f"{tag} {name}={value}")
            if name == "id":
                self.ids.append(value)
            if name == "href":
                self.anchors.append(value)

    def handle_data(self, data):
        """Collect the text."""
        self.text += data


@pytest.fixture
def claude(tmp_path, monkeypatch):
    """Claude Code's directory; the working directory is another one."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "claude"


def written(claude, *prompts):
    """Write a session with these prompts and a few calls."""
    writer = Writer(session=SESSION)
    for prompt in prompts:
        writer.prompt(prompt)
        call = writer.call("Bash", {"command": f"echo {prompt}", "description": prompt})
        writer.result(call, f"Exit code 1\n{prompt}", is_error=True)
        call = writer.call("Edit", {"file_path": "/p/a.py", "old_string": "x = 1", "new_string": f"x = {prompt!r}"})
        writer.result(call, "updated")
        writer.say(f"# Answer\n\nabout `{prompt}` and {prompt}")
    return writer.save(claude / "projects" / "-p")


def test_a_page_is_complete_and_loads_nothing(claude, command):
    """The HTML file has the prompt, calls and answers, a strict policy, and no script, image or foreign style."""
    written(claude, "hello", f"{NASTY} {SECRET}")
    code, out, err = command("export", SESSION[:6], "-o", "story.html")
    assert (code, out) == (0, "")
    assert "2 traces" in err
    text = (claude.parent / "work" / "story.html").read_text(encoding="utf-8")
    page = Page(text)
    assert page.problems == []
    assert not page.tags & {"script", "img", "iframe", "object", "embed", "link", "form", "base", "video"}
    assert len(page.ids) == len(set(page.ids))
    assert all(anchor.removeprefix("#") in page.ids for anchor in page.anchors if anchor.startswith("#"))
    assert "default-src 'none'; style-src 'sha256-" in text
    assert SECRET not in text
    assert "[redacted:anthropic" in page.text
    assert "\u202e" not in text
    for words in ("Turn 1", "hello", "exit code 1", "Waterfall", "2 turns", "--paper"):
        assert words in page.text


def test_the_policy_allows_the_style_and_nothing_else(claude, command):
    """The hash of the content security policy is that of the style in the file."""
    written(claude, "hello")
    command("export", "-o", "story.html")
    text = (claude.parent / "work" / "story.html").read_text(encoding="utf-8")
    style = re.search("<style>(.*?)</style>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in text


def test_markdown_can_be_pasted_anywhere(claude, command):
    """The Markdown file has diffs, terminal blocks and answers; hostile content becomes neither a tag nor a fence."""
    written(claude, "hello", f"``` {NASTY}\n```\n</details> ![x](https://example.com/x.png)")
    assert command("export", "-o", "story.md")[0] == 0
    text = (claude.parent / "work" / "story.md").read_text(encoding="utf-8")
    assert "```diff\n-x = 1\n+x = 'hello'" in text
    assert "```console\n$ echo hello" in text
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    page = Page(rendered)
    assert page.tags <= {
        "b", "blockquote", "code", "details", "em", "h1", "h2", "hr", "br", "li", "p", "pre", "strong", "summary", "ul", "a",
    }  # fmt: skip
    assert page.problems == []
    assert rendered.count("<details>") == rendered.count("</details>") == 4


def test_json_is_one_list_of_the_records_of_show(claude, command):
    """The JSON file has the lines of `show --json` as one list."""
    written(claude, "hello", "again")
    command("export", "-o", "story.json")
    records = json.loads((claude.parent / "work" / "story.json").read_text(encoding="utf-8"))
    lines = command("show", "--json")[1].splitlines()
    assert records == [json.loads(line) for line in lines]


def test_one_turn_goes_to_stdout(claude, command):
    """`--turn` selects a turn, `-o -` prints Markdown or the format that is named."""
    written(claude, "hello", "again")
    code, out, _ = command("export", "--turn", "2", "-o", "-")
    assert code == 0
    assert "again" in out
    assert "hello" not in out
    assert command("export", "-o", "-", "--format", "html")[1].startswith("<!doctype html>")
    assert command("export", "--turn", "7", "-o", "-")[0] == 1


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_the_file_is_private_and_not_overwritten(claude, command):
    """The file is readable by its owner only; an existing one is kept unless --force is given."""
    written(claude, "hello")
    target = claude.parent / "work" / "5e55104a.html"
    assert command("export")[0] == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    target.write_text("mine")
    code, _, err = command("export")
    assert code == 1
    assert "--force" in err
    assert target.read_text() == "mine"
    assert command("export", "--force")[0] == 0
    assert target.read_text(encoding="utf-8").startswith("<!doctype")
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_wrong_names_are_explained(claude, command):
    """An unknown suffix, a directory and a directory that does not exist are errors, and no file remains."""
    written(claude, "hello")
    assert command("export", "-o", "story.pdf")[0] == 2
    (claude.parent / "work" / "x.html").mkdir()
    assert command("export", "-o", "x.html")[0] == 1
    assert command("export", "-o", "none/x.html")[0] == 1
    assert command("export", "00000000", "-o", "y.html")[0] == 1
    assert [path.name for path in (claude.parent / "work").iterdir()] == ["x.html"]


def test_a_failure_removes_the_file(claude, command, monkeypatch):
    """If the export stops in the middle, neither the file nor a temporary one remains."""
    written(claude, "hello", "again")

    def broken(*_):
        yield "begun"
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(html, "pieces", broken)
    code, _, err = command("export", "-o", "story.html")
    assert code == 1
    assert "No space left" in err
    assert list((claude.parent / "work").iterdir()) == []


def test_metadata_mode_exports_no_content(claude, command, monkeypatch):
    """What the settings do not allow to be exported is not in the file either."""
    written(claude, "private words")
    monkeypatch.setenv("TURNSPAN_CAPTURE", "metadata")
    for name in ("a.html", "a.md", "a.json"):
        command("export", "-o", name)
        text = (claude.parent / "work" / name).read_text(encoding="utf-8")
        assert "private words" not in text
        assert "Turn 1" in text


@pytest.mark.parametrize("form", [html, markdown])
def test_a_long_session_takes_no_more_memory(claude, form):
    """Pieces are made as traces are read: many turns take the memory of a few."""
    path = written(claude, "words " * 200)
    config = load_config({"CLAUDE_CONFIG_DIR": str(claude), "HOME": str(claude)})
    (previewed,) = Preview(session_of(path), config, config.destinations[0]).traces()
    peaks = []
    for number in (2, 20):
        tracemalloc.start()
        length = sum(len(piece) for piece in form.pieces(repeat(previewed, number), str(path), Layout(100)))
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert length > number * 1_500
    assert peaks[1] < peaks[0] + 500_000, peaks
