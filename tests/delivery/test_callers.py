"""`TRACEPARENT` where a hook runs: it is remembered for the session, and every later export of a turn has the same link."""

import json
from base64 import b64encode

import msgspec
import pytest
from click.testing import CliRunner
from faults.recording import LATER, Recording
from test_worker import Office

from turnspan.backends.local import read_spans
from turnspan.cli import frame
from turnspan.delivery import state
from turnspan.delivery.callers import Caller

FIRST, SECOND = "4bf92f3577b34da6a3ce929d0e0e4736", "0af7651916cd43dd8448eb211c80319c"
SPAN = "00f067aa0ba902b7"


def parent(trace_id):
    """Return the environment of a client that a program runs within a trace."""
    return {"TRACEPARENT": f"00-{trace_id}-{SPAN}-01"}


@pytest.fixture
def office(tmp_path):
    """A place where nothing has happened yet."""
    return Office(tmp_path / "claude")


def linked(backend):
    """Return for each turn that was sent the traces that it is linked to as its callers."""
    rows = {row.key: row for request in backend.requests for row in request if row.name.startswith("Turn")}
    coded = {trace_id: b64encode(bytes.fromhex(trace_id)) for trace_id in (FIRST, SECOND)}
    return [[trace_id for trace_id, code in coded.items() if code in row.content] for row in rows.values()]


def turn(office, writer, env=None, source="startup"):
    """Start a client in this environment, which adds a turn and stops."""
    office.now_s += 60
    writer.now = writer.now.fromtimestamp(office.now_s, tz=writer.now.tzinfo)
    office.serve("SessionStart", writer, env=env, source=source)
    office.now_s += 60
    writer.turn("Hello.", "Good day.")
    office.stop(writer, env=env)


def test_a_turn_has_a_link_to_its_caller(office):
    """Each turn of the session; the caller is in the checkpoint, and nothing else of the environment."""
    writer = office.writer()
    turn(office, writer, parent(FIRST))
    turn(office, writer, parent(FIRST))
    [caller] = state.known(office.home, writer.session).callers

    assert linked(office.backend) == [[FIRST], [FIRST]]
    assert (caller.trace_id, caller.span_id, caller.is_parent) == (FIRST, SPAN, False)


def test_no_caller_no_change(office):
    """Without the variable, or with one that is not valid, nothing is linked and nothing is remembered."""
    writer = office.writer()
    turn(office, writer)
    turn(office, writer, {"TRACEPARENT": "00-nonsense"})
    turn(office, writer, {**parent(FIRST), "TURNSPAN_TRACEPARENT": "off"})

    assert linked(office.backend) == [[], [], []]
    assert state.known(office.home, writer.session).callers == ()


def test_a_turn_is_sent_later_with_the_same_link(office):
    """The destination is down when the turn ends; another session's worker, with another caller, sends it."""
    office.backends = [Recording(LATER)]
    writer = office.writer()
    turn(office, writer, parent(FIRST))
    first = office.backend.requests[0]
    office.backends = [Recording()]
    office.now_s += 3600
    other = office.writer(2, ago_s=5)
    office.save(other)
    office.serve("SessionStart", other, env=parent(SECOND))

    assert office.backend.requests[0] == first
    assert linked(office.backend) == [[FIRST]]


def test_another_caller_resumes_the_session(office):
    """A turn keeps its own caller, also if it is sent after the session was resumed by another, or by none."""
    office.backends = [Recording(LATER)]
    writer = office.writer()
    turn(office, writer, parent(FIRST))
    for env in (parent(SECOND), {}):
        office.now_s += 3600
        turn(office, writer, env, "resume")
    office.backends = [Recording()]
    office.now_s += 3600
    office.serve("SessionEnd", writer)

    assert linked(office.backend) == [[FIRST], [SECOND], []]


def test_the_caller_as_the_parent_stays_the_parent(office):
    """The setting of the time when the caller was first seen holds for the session, so that a turn is not sent twice in two traces."""
    writer = office.writer()
    turn(office, writer, {**parent(FIRST), "TURNSPAN_TRACEPARENT": "parent"})
    turn(office, writer, parent(FIRST))

    assert {row.trace_id for row in office.backend.rows} == {FIRST}


@pytest.mark.parametrize("name", ["settings.json", "settings.local.json"])
@pytest.mark.parametrize("content", [json.dumps({"env": parent(FIRST)}), "{ not JSON"])
def test_a_project_cannot_name_a_caller(office, tmp_path, name, content):
    """A variable that a project's settings set, or may set, does not count."""
    project = tmp_path / "project"
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / name).write_text(content)
    writer = office.writer()
    turn(office, writer, {**parent(FIRST), "CLAUDE_PROJECT_DIR": str(project)})

    assert linked(office.backend) == [[]]


def test_only_the_start_of_a_client_names_its_caller(office):
    """Other hooks may have a span of the client's own tracing in their environment, and so has the start after a compaction."""
    writer = office.writer()
    turn(office, writer, parent(FIRST))
    office.now_s += 60
    writer.now = writer.now.fromtimestamp(office.now_s, tz=writer.now.tzinfo)
    office.serve("SessionStart", writer, env=parent(SECOND), source="compact")
    writer.turn("Hello again.", "Good day.")
    office.stop(writer, env=parent(SECOND))
    office.serve("SubagentStop", writer, env=parent(SECOND))
    office.serve("SessionEnd", writer, env=parent(SECOND))

    assert linked(office.backend) == [[FIRST], [FIRST]]


def test_a_checkpoint_with_an_invalid_caller_is_corrupt():
    """Ids that are not ids never reach an exporter."""
    raw = msgspec.json.encode(state.Checkpoint(session_id="s", callers=(Caller(trace_id=FIRST, span_id=SPAN),)))

    assert state._decoded(raw)[0].callers[0].trace_id == FIRST
    assert state._decoded(raw.replace(FIRST.encode(), b"../../../x"))[0] is None


def test_backfill_verify_and_status_know_the_callers_trace(office, monkeypatch):
    """A session whose turn could not be sent live: backfill puts it into the caller's trace, verify finds it there, status links to it."""
    office.now_s -= 3600  # backfill does not have to wait for the end of the backoff
    office.backends = [Recording(LATER)]
    writer = office.writer()
    turn(office, writer, {**parent(FIRST), "TURNSPAN_TRACEPARENT": "parent"})
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(office.claude))
    state.state_directory.cache_clear()
    said = {}
    for words in (("backfill", "--jobs", "1"), ("verify",), ("status",), ("show", writer.session)):
        done = CliRunner().invoke(frame, [*words, "--json"])
        assert done.exit_code == 0, done.output
        said[words[0]] = json.loads(done.stdout.splitlines()[0] if words[0] == "show" else done.stdout)

    assert {span["trace_id"] for span in read_spans(office.home / "traces")} == {FIRST}
    assert said["verify"]["is_complete"]
    assert said["verify"]["destinations"]["local"]["stored"]["turns"] == 1
    assert said["status"]["destinations"][0]["newest"]["trace_id"] == FIRST
    assert said["show"]["trace_id"] == FIRST
