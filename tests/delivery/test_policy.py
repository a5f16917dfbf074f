"""The export policy: what is masked, and that `show` shows exactly what is sent."""

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from rows import Writer

from turnspan.backends import Answer, Verdict
from turnspan.commands.records import line_of, trace_record
from turnspan.delivery.destinations import Target
from turnspan.delivery.policy import rules_of
from turnspan.delivery.ship import ship
from turnspan.secrets.replace import mask
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.sessions import sessions_in

HEADERS = "TURNSPAN_OTLP_HEADERS"
FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
PROJECTS = sorted(path for path in FIXTURES.rglob("projects/*") if path.is_dir())
SECRET = "AKIA" + "Q7ZXW2MB4KPL9TRN"  # not a real key
NARROWS = 'capture = "metadata"\nthinking = false\ntags = ["from the project"]\n'
NOTHING = {"masked": {}}  # a backend gets no counts


class Recorder:
    """A backend that keeps the traces it gets."""

    max_request_bytes = 1 << 40

    def __init__(self):
        self.traces = []

    def encode(self, traces):
        """Keep the traces."""
        self.traces += traces
        return b""

    def send(self, _body):
        """Accept everything."""
        return Verdict(Answer.ACKNOWLEDGED)

    def close(self):
        """Do nothing."""


def configure(claude_home, capture):
    """Write settings with tags, a pattern and a capture mode."""
    path = claude_home / "turnspan" / "config.toml"
    path.write_text(
        f'tags = ["mine"]\n[destinations.local]\ncapture = "{capture}"\n[patterns]\nvault = "vault-[0-9]+"\n'
    )
    path.chmod(0o600)


def sent(session):
    """Send a session to a recording backend; return the records of the traces it got."""
    config = load_config(os.environ)
    target = Target(config.destinations[0], config)
    target.backend = Recorder()
    assert ship(session, target, Ending(is_over=True), time.time).is_complete
    return [json.loads(line_of(trace_record(trace, {}))) for trace in target.backend.traces]


def shown(command, session):
    """Return the records that `show --json` prints, without the counts of masked strings."""
    code, out, _ = command("show", str(session.path), "--json")
    assert code == 0
    records = [json.loads(line) for line in out.splitlines()]
    return [{**record, **NOTHING} for record in records if record["spans"]]


# ---- show and ship


@pytest.mark.parametrize("capture", ["full", "redacted", "metadata"])
def test_show_prints_exactly_what_is_sent(claude_home, command, capture):
    """Every fixture, in every capture mode: `show --json` prints the traces that a backend gets."""
    configure(claude_home, capture)
    compared = 0
    for number, project in enumerate(PROJECTS):
        copied = claude_home / "projects" / f"-p{number}"
        shutil.copytree(project, copied)
        for session in sessions_in(copied):
            (claude_home / "turnspan" / "state" / f"{session.session_id}.json").unlink(missing_ok=True)
            found = sent(session)
            assert shown(command, session) == found, session.path
            compared += len(found)
    assert compared > len(PROJECTS)


@pytest.mark.parametrize("capture", ["full", "redacted", "metadata"])
@pytest.mark.parametrize("project", ["", NARROWS])
def test_show_prints_what_a_project_lets_out(claude_home, tmp_path, command, capture, project):
    """A project that narrows the export narrows what `show` prints, in the same way."""
    configure(claude_home, capture)
    (tmp_path / "loom" / ".claude").mkdir(parents=True)
    (tmp_path / "loom" / ".claude" / "turnspan.toml").write_text(project)
    writer = Writer(cwd=str(tmp_path / "loom"))
    writer.turn(f"the key is {SECRET}, see vault-17", "Noted.")
    writer.save(claude_home / "projects" / "-p")
    [session] = sessions_in(claude_home / "projects" / "-p")
    found = sent(session)
    assert shown(command, session) == found
    text = json.dumps(found)
    is_metadata = bool(project) or capture == "metadata"
    assert ("the key is" in text) == (not is_metadata)
    assert (SECRET in text, "vault-17" in text) == (
        (True, True) if capture == "full" and not project else (False, False)
    )
    assert ("from the project" in text) == (bool(project) and not is_metadata)


def test_show_says_that_a_switched_off_project_is_not_exported(claude_home, tmp_path, command):
    """Nothing of it is sent; `show` prints it masked, and says that it is exported nowhere."""
    configure(claude_home, "redacted")
    (tmp_path / "loom" / ".claude").mkdir(parents=True)
    (tmp_path / "loom" / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    writer = Writer(cwd=str(tmp_path / "loom"))
    writer.turn(f"the key is {SECRET}", "Noted.")
    writer.save(claude_home / "projects" / "-p")
    [session] = sessions_in(claude_home / "projects" / "-p")
    assert sent(session) == []
    [record] = shown(command, session)
    assert SECRET not in json.dumps(record)
    assert "nowhere: " in command("show", str(session.path))[1]


# ---- credentials of destinations


def masked(tmp_path, header, text):
    """Return a text as it is exported to a collector that is sent this header."""
    env = {"CLAUDE_CONFIG_DIR": str(tmp_path), "TURNSPAN_OTLP_ENDPOINT": "http://127.0.0.1:4318", HEADERS: header}
    return mask(text, rules=rules_of(load_config(env))).text


@pytest.mark.parametrize("name", ["x-project-name", "X-Scope-OrgID", "x-honeycomb-dataset"])
def test_the_value_of_a_naming_header_is_not_masked(tmp_path, name):
    """A project may have any name, also one that occurs in a conversation: it is not a credential."""
    assert masked(tmp_path, f"{name}=background", "run_in_background") == "run_in_background"


@pytest.mark.parametrize("name", ["authorization", "x-api-key", "x-project-token", "x-honeycomb-team", "cookie"])
def test_the_value_of_any_other_header_is_masked(tmp_path, name):
    """The value may be a secret, so it is masked wherever it occurs."""
    assert "hunter2hunter2" not in masked(tmp_path, f"{name}=hunter2hunter2", "it says hunter2hunter2 here")
