"""A backend from another package is verified, repaired, probed, linked and forgotten like ours."""

import json
import os
import subprocess
import sys

import pytest
from rows import Writer

CODE = '''
"""Traces in one JSON file."""

import json
from pathlib import Path

from turnspan.backends import Answer, Erased, Probe, Verdict


class ShelfBackend:
    max_request_bytes = 1_000_000

    def __init__(self, name, path):
        self.name = name
        self._path = Path(path)

    def encode(self, traces):
        return json.dumps(
            {t.trace_id.hex(): [t.session_id, [s.span_id.hex() for s in t.spans]] for t in traces}
        ).encode()

    def send(self, body):
        shelf = self._read()
        for trace_id, (session_id, spans) in json.loads(body).items():
            known = shelf.get(trace_id, [session_id, []])[1]
            shelf[trace_id] = [session_id, sorted({*known, *spans})]
        self._path.write_text(json.dumps(shelf))
        return Verdict(Answer.ACKNOWLEDGED)

    def close(self):
        pass

    def stored(self, trace_id):
        return frozenset(map(bytes.fromhex, self._read().get(trace_id.hex(), ["", []])[1]))

    def erase(self, session_id, trace_ids):
        shelf = self._read()
        kept = {k: v for k, v in shelf.items() if v[0] != session_id and bytes.fromhex(k) not in trace_ids}
        self._path.write_text(json.dumps(kept))
        return Erased(len(shelf) - len(kept))

    def probe(self):
        if not self._path.parent.is_dir():
            return Probe(Answer.CONFIGURATION, f"the shelf {self._path.parent} is missing", "put one up")
        return Probe(Answer.ACKNOWLEDGED, "the shelf holds", version="2.0", project="loom")

    def link(self, trace_id):
        return f"https://shelf.example/{trace_id.hex()}"

    def _read(self):
        return json.loads(self._path.read_text()) if self._path.exists() else {}


def open_backend(settings, *, name, home):
    return ShelfBackend(name, settings["path"])
'''
SESSION = "33330000-0000-4000-8000-000000000001"


@pytest.fixture
def place(tmp_path):
    """An installed package with a backend, and a destination that uses it."""
    return Place(tmp_path)


class Place:
    def __init__(self, base):
        info = base / "site" / "turnspan_shelf-1.0.dist-info"
        info.mkdir(parents=True)
        self.code = base / "site" / "turnspan_shelf.py"
        self.code.write_text(CODE)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: turnspan-shelf\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text("[turnspan.backends]\nshelf = turnspan_shelf:open_backend\n")
        self.shelf = base / "room" / "shelf.json"
        self.shelf.parent.mkdir()
        claude = base / "claude"
        writer = Writer(session=SESSION)
        for number in range(3):
            writer.turn(f"question {number}", "Answer.")
        writer.save(claude / "projects" / "-p")
        home = claude / "turnspan"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(f'[destinations.attic]\ntype = "shelf"\npath = "{self.shelf}"\n')
        (home / "config.toml").chmod(0o600)
        ours = ("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        self.env = {**kept, "CLAUDE_CONFIG_DIR": str(claude), "PYTHONPATH": str(base / "site")}

    def run(self, *arguments):
        """Run a command; return its exit code and its output."""
        done = subprocess.run(
            [sys.executable, "-m", "turnspan", *arguments],
            env=self.env, capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert "Traceback" not in done.stderr, done.stderr
        return done.returncode, done.stdout

    def stored(self):
        """Return what is on the shelf."""
        return json.loads(self.shelf.read_text())


def test_what_another_package_stores_is_verified_and_repaired(place):
    """`verify` asks the backend itself: it finds a trace that the shelf lost, and sends exactly that again."""
    assert place.run("backfill")[0] == 0
    everything = place.stored()
    assert len(everything) == 3
    code, out = place.run("verify", "--json")
    assert code == 0
    assert json.loads(out.splitlines()[-1])["is_complete"]

    lost = min(everything)
    place.shelf.write_text(json.dumps({key: value for key, value in everything.items() if key != lost}))
    assert place.run("verify")[0] == 1
    assert place.run("verify", "--repair")[0] == 0
    assert place.stored() == everything


def test_another_packages_destination_is_probed_and_linked(place):
    """`status --check` and `doctor` show what its probe says; the newest turn has its link."""
    place.run("backfill")
    code, out = place.run("status", "--check", "--json")
    [found] = json.loads(out)["destinations"]
    assert code == 0
    assert found["answer"] == "acknowledged"
    assert found["newest"]["link"] == f"https://shelf.example/{found['newest']['trace_id']}"
    assert "the shelf holds" in place.run("doctor")[1]

    place.shelf.unlink()
    place.shelf.parent.rmdir()
    [found] = json.loads(place.run("status", "--check", "--json")[1])["destinations"]
    assert found["answer"] == "configuration"
    assert found["answer_reason"] == f"the shelf {place.shelf.parent} is missing"
    code, out = place.run("doctor")
    assert code == 1
    assert "put one up" in out


def test_another_packages_destination_takes_a_test_trace_and_shows_it(place):
    """`doctor --send-test` reads the test trace back, and gives its link."""
    out = place.run("doctor", "--send-test")[1]
    [trace_id] = place.stored()
    assert f"a test trace was sent and read back: https://shelf.example/{trace_id}" in out


def test_a_backend_without_abilities_is_used_as_far_as_it_goes(place):
    """Doctor sends it nothing, verify counts what it acknowledged, forget says that the traces stay there."""
    code = place.code.read_text()
    for name in ("stored", "erase", "probe", "link"):
        code = code.replace(f"def {name}(", f"def _{name}(")
    place.code.write_text(code)
    assert "it cannot be probed" in place.run("doctor")[1]
    assert not place.shelf.exists()
    place.run("backfill")
    assert place.run("verify")[0] == 0
    [found] = json.loads(place.run("status", "--check", "--json")[1])["destinations"]
    assert (found["answer"], found["newest"]["link"]) == ("acknowledged", None)
    code, out = place.run("forget", SESSION, "--yes")
    assert code == 1
    assert "attic: cannot delete, traces sent there stay" in out


def test_a_session_is_forgotten_at_another_packages_destination(place):
    """Its traces are deleted there, as they are in ours."""
    place.run("backfill")
    code, out = place.run("forget", SESSION, "--yes")
    assert code == 0
    assert "attic: deleted 3 traces" in out
    assert place.stored() == {}
