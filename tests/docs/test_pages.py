"""The documentation: its commands work, its examples run, its files can be parsed, its links lead somewhere."""

import contextlib
import http.server
import io
import json
import re
import shutil
import threading
import tomllib

import pytest
import yaml
from pages import ELSEWHERE, PAGES, REASONS, ROOT, Computer, blocks

from turnspan import api
from turnspan.settings.config import load_config

# Pages and pictures that other changes bring.
WITH_COMMANDS = ["getting-started.md", "ci.md", "uninstall.md", "upgrading.md", "migrating.md"]
NOT_OURS = {"CONTRIBUTING.md": "its command is the test command of the README", "README.md": "test_readme.py runs it"}


def ids(page):
    """Return the name of a page."""
    return page.name


class Collector(http.server.BaseHTTPRequestHandler):
    """An OTLP server that accepts everything."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests += 1
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    """A server on loopback, for pages that need one."""
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Collector)
    running.requests = 0
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


@pytest.mark.parametrize("name", WITH_COMMANDS)
def test_every_command_of_a_page_works(tmp_path, name, collector):
    """In an empty home and without any variables, the commands of a page run in order, and each exits with 0."""
    found = blocks(ROOT / "docs" / name, "sh")
    computer = Computer(tmp_path, f"http://127.0.0.1:{collector.server_port}")
    said = computer.run([block.text for block in found if not block.mark])
    assert "Traceback" not in said
    if name == "getting-started.md":
        assert "Say hello." in said  # `show`
        assert re.search(r"sent +1 turn in \d+ spans of 1 session", said)
        assert "complete (1 session, 1 turn" in said  # `verify`
    if name == "uninstall.md":
        assert [path for path in (tmp_path / "home").rglob("*") if path.is_file()] == []
    if name == "ci.md":
        assert collector.requests


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_blocks_that_are_not_run_have_a_reason(page):
    """A block of commands is run by the test above, or a comment says why not."""
    for block in blocks(page, "sh"):
        if block.mark:
            assert block.mark.startswith(tuple(REASONS)), block.mark
        elif page.name not in {*WITH_COMMANDS, *NOT_OURS}:
            assert block.runs_elsewhere, f"{page.name}: add the page to WITH_COMMANDS, or say why not: {block.text}"
    assert all(ELSEWHERE.values())
    assert all(REASONS.values())


def test_the_examples_of_the_api_run(claude_home):
    """The code on the page of the Python API runs from top to bottom, with a session on disk."""
    shutil.copytree(ROOT / "fixtures" / "agents-nested" / "projects", claude_home / "projects")
    names, printed = {}, io.StringIO()
    with contextlib.redirect_stdout(printed):
        for block in blocks(ROOT / "docs" / "api.md", "python"):
            exec(compile(block.text, "docs/api.md", "exec"), names)
    said = printed.getvalue()
    assert "1 Delegate all the way down. -> All levels answered." in said
    assert "no session 'no-such-session'" in said
    assert len(names["rows"]) == 7


def test_everything_public_is_on_the_page_of_the_api():
    """Each function, and each class that is not an example of another, is named."""
    text = (ROOT / "docs" / "api.md").read_text() + (ROOT / "docs" / "dev" / "backends.md").read_text()
    missing = [name for name in api.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_files_on_a_page_are_valid(page, claude_home):
    """TOML, YAML and JSON can be parsed; a configuration has no problem that turnspan would report."""
    for block in blocks(page, "toml"):
        settings = tomllib.loads(block.text)
        if "project" not in settings:
            config = claude_home / "turnspan" / "config.toml"
            config.write_text(block.text)
            config.chmod(0o600)
            assert load_config({"CLAUDE_CONFIG_DIR": str(claude_home), "HOME": str(claude_home)}).problems == ()
    for block in blocks(page, "yaml"):
        assert yaml.safe_load(block.text)
    for block in blocks(page, "json"):
        assert json.loads(block.text)


@pytest.mark.parametrize("page", PAGES, ids=ids)
def test_links_lead_somewhere(page):
    """A relative link names a file that exists, and a heading that is there."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        assert path.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in headings(path), f"{page.name} links to {target}"


def headings(path):
    """Return the anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_page_is_in_the_table_of_contents():
    """docs/README.md links to every page next to it."""
    contents = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in PAGES if page.parent.name == "docs" and f"({page.name})" not in contents] == [
        "README.md"
    ]


def test_quoted_lines_of_doctor_are_real():
    """Each line of `doctor` on the page of troubleshooting is a text that turnspan prints."""
    folders = ("health", "claude", "backends")
    sources = [path.read_text() for name in folders for path in (ROOT / "src" / "turnspan" / name).rglob("*.py")]
    texts = re.sub(r"[\"']\s*\n\s*f?[\"']", "", "\n".join(sources))
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    quoted = re.findall(r"`+ ?[✗!] (.+?) ?`+(?= |,|$)", page)
    assert len(quoted) > 15
    for line in quoted:
        for words in (words.strip(" .,:()`") for words in line.split("…")):
            assert words in texts or len(words) < 6, f"no check says {words!r}"


WORDS = re.compile(
    r"\b(told|tells|nobody|whoever|somebody|the person|shall|in peace|mend(s|ed)?|whole|to the byte|may come again|"
    r"goes on|hears of|at hand|by hand|is gone|there are:|(?<!there )(?<!there\n  )is no (?!longer)|stands)\b",
    re.IGNORECASE,
)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "hooks" / "README.md"], ids=ids)
def test_pages_are_in_plain_english(page):
    """Words that read like a translation are not used."""
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    found = [text[max(0, match.start() - 30) : match.end() + 10] for match in WORDS.finditer(text)]
    assert found == []
