"""The example in docs/backends.md works when it is installed as a package."""

import json
import re
import subprocess
import sys
from pathlib import Path

from turnspan.backends import langfuse, local, otlp, sdk

PAGE = Path(__file__).parents[2] / "docs" / "backends.md"
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


def blocks(language):
    """Return the code blocks of the page."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text(), re.DOTALL)


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
    text = PAGE.with_name("configuration.md").read_text()
    for setting in otlp.KNOWN | langfuse.KNOWN | local.KNOWN | sdk.KNOWN:
        assert f"`{setting}`" in text or f"`{setting} =" in text, setting
