"""The code in the documentation of backends works: the example package, every configuration, every command.

The collector's recipes and the configurations of Jaeger and Phoenix run in tests/real with the real servers.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from turnspan.backends import langfuse, local, otlp, sdk
from turnspan.cli import frame
from turnspan.delivery.destinations import targets_of
from turnspan.settings.config import load_config

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "dev" / "backends.md"
PAGES = ("langfuse", "jaeger", "phoenix", "tempo", "collector", "exporters", "teams")
KEYS = {
    '"pk-lf-…"': '"pk-lf-1"',
    '"sk-lf-…"': '"sk-lf-1"',
    '"…"': '"x"',
    "Bearer …": "Bearer x",
}  # an ellipsis is not ASCII
PROGRAM = """
import json, sqlite3, sys
from importlib.metadata import entry_points
from pathlib import Path

sys.path.insert(0, sys.argv[2])
from backends.samples import TRACE, small_trace
from turnspan.backends import Answer
from turnspan.errors import ConfigError

[found] = entry_points(group="turnspan.backends", name="sqlite")
open_backend = found.load()
home = Path(sys.argv[1])
backend = open_backend({}, name="mine", home=home)
body = backend.encode([TRACE, small_trace(1)])
assert body == backend.encode([TRACE, small_trace(1)])
assert len(body) < backend.max_request_bytes
answers = [backend.send(body).answer for _ in range(2)]
backend.close()
rows = sqlite3.connect(home / "spans.sqlite").execute("select name, kind from spans order by start_ns").fetchall()
(home / "broken").write_text("hello, this is not a database, but some words that are long enough" * 20)
answers.append(open_backend({"path": str(home / "broken")}, name="x", home=home).send(body).answer)
answers.append(open_backend({"path": str(home / "no" / "such")}, name="x", home=home).send(body).answer)
try:
    open_backend({"path": 7}, name="mine", home=home)
except ConfigError as error:
    answers.append(str(error))
print(json.dumps({"answers": answers, "rows": rows, "name": backend.name}))
"""


def blocks(language, page=PAGE):
    """Return the code blocks of a page."""
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.DOTALL)


def test_the_example_backend_works(tmp_path):
    """Copied from the page and found by its entry point, it stores each span once and answers with verdicts."""
    [code] = [block for block in blocks("python") if "SqliteBackend" in block]
    [project] = [block for block in blocks("toml") if "entry-points" in block]
    site, home = tmp_path / "site", tmp_path / "home"
    info = site / "turnspan_sqlite-1.0.dist-info"
    info.mkdir(parents=True)
    home.mkdir()
    (site / "turnspan_sqlite.py").write_text(code)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: turnspan-sqlite\nVersion: 1.0\n")
    entry_point = re.search(r"^sqlite = \"(.*)\"$", project, re.MULTILINE)[1]
    (info / "entry_points.txt").write_text(f"[turnspan.backends]\nsqlite = {entry_point}\n")
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(home), str(Path(__file__).parents[1])],
        env={"PYTHONPATH": str(site), "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)

    assert found["answers"][:4] == ["acknowledged", "acknowledged", "configuration", "later"]
    assert "'path' is 7; it must be the path of a file" in found["answers"][4]
    assert len(found["rows"]) == 6
    assert ["Bash", "tool"] in found["rows"]


def test_the_example_is_short():
    """Adding a backend takes at most 70 lines."""
    [code] = [block for block in blocks("python") if "SqliteBackend" in block]

    assert len(code.splitlines()) <= 70


def test_every_setting_is_documented():
    """The page of the configuration names every setting of every backend."""
    text = (DOCS / "configuration.md").read_text()
    for setting in otlp.KNOWN | langfuse.KNOWN | local.KNOWN | sdk.KNOWN:
        assert f"`{setting}`" in text or f"`{setting} =" in text, setting


CONFIGURATIONS = [pytest.param(text, id=name) for name in PAGES for text in blocks("toml", DOCS / f"{name}.md")]


@pytest.mark.parametrize("text", CONFIGURATIONS)
def test_every_configuration_in_the_documentation_is_valid(text, tmp_path):
    """Copied into config.toml, it is read without a problem, and its destinations can be opened."""
    for shown, key in KEYS.items():
        text = text.replace(shown, key)
    certificate = tmp_path / "ca.pem"
    certificate.write_text("")
    home = tmp_path / "turnspan"
    home.mkdir(mode=0o700)
    (home / "config.toml").write_text(text.replace("/etc/ssl/example-ca.pem", str(certificate)))
    (home / "config.toml").chmod(0o600)
    config = load_config({"CLAUDE_CONFIG_DIR": str(tmp_path)})

    assert config.problems == ()
    for target in targets_of(config):
        if target.destination.options.get("exporter") != "zipkin_json":  # its package is not installed here
            target.backend.close()


def test_every_command_in_the_documentation_exists():
    """Each command that begins with `turnspan` parses: its name and its options are right."""
    pages = [DOCS / f"{name}.md" for name in (*PAGES, "dev/backends")]
    texts = [
        *(page.read_text() for page in pages),
        *(f"`{line}`" for page in pages for line in "".join(blocks("sh", page)).splitlines()),
    ]
    found = {line for text in texts for line in re.findall(r"`turnspan ([a-z][^`\n#]*)`", text)}
    for line in found:
        name, *words = line.split()
        command = frame.get_command(click.Context(frame), name)
        assert command is not None, line
        command.make_parser(click.Context(command)).parse_args(words)

    assert {"doctor --send-test", "verify", "retention"} <= {line.strip() for line in found}


def test_every_test_in_the_documentation_exists():
    """Each `pytest` command names files that are there."""
    texts = [(DOCS / f"{name}.md").read_text() for name in PAGES]
    named = {path for text in texts for path in re.findall(r"tests/[a-z_/]+\.py", text)}

    assert len(named) >= 4
    assert all((DOCS.parent / path).is_file() for path in named)
