"""One event is handled: finished turns are sent, open ones wait, and one line in the log says so."""

import os
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from backends.servers import OK, HttpServer
from faults.recording import (
    ACKNOWLEDGED,
    CREDENTIALS,
    INVALID,
    LATER,
    Recording,
    refusing,
    target_for,
)
from only_posix import make_fifo
from rows import Writer, agent_writer, save_agent

from turnspan.backends import Answer, Verdict
from turnspan.claude.event import Event, parse_event
from turnspan.delivery import marks, state
from turnspan.delivery.unsent import has_nothing_left, read_unsent
from turnspan.errors import BackendError, TurnspanError
from turnspan.health.log_lines import read_log
from turnspan.log import LOG_NAME
from turnspan.settings.config import load_config
from turnspan.source.sessions import SessionFile
from turnspan.worker import serve

MINUTE_S = 60.0


class Office:
    """A Claude home, a clock of its own, and a worker that is called for each event."""

    def __init__(self, claude):
        self.claude = claude
        self.project = claude / "projects" / "-home-ada-loom"
        self.project.mkdir(parents=True)
        self.env = {"CLAUDE_CONFIG_DIR": str(claude)}
        self.now_s = time.time()
        self.backends = [Recording()]
        self.plans = []  # (when, what to do): other programs run while a worker sleeps
        self.slept_s = 0.0

    @property
    def backend(self):
        return self.backends[0]

    def configure(self, text):
        """Take these settings from now on."""
        home = self.claude / "turnspan"
        home.mkdir(mode=0o700, exist_ok=True)
        (home / "config.toml").write_text(text)
        (home / "config.toml").chmod(0o600)

    def sleep(self, seconds):
        """Let time pass for the worker."""
        self.slept_s += seconds
        self.now_s += seconds
        due = [plan for plan in self.plans if plan[0] <= self.now_s]
        self.plans = [plan for plan in self.plans if plan[0] > self.now_s]
        for _, act in due:
            act()

    def later(self, seconds, act):
        """Have something happen while a worker sleeps."""
        self.plans.append((self.now_s + seconds, act))

    def writer(self, number=1, ago_s=30.0, **options):
        """Return a session that began a while ago."""
        writer = Writer(f"5e55104a-0000-4000-8000-{number:012}", tag=f"w{number}", **options)
        writer.now = datetime.fromtimestamp(self.now_s - ago_s, tz=UTC)
        return writer

    def save(self, writer):
        """Write a transcript as of now."""
        path = writer.save(self.project)
        os.utime(path, (self.now_s, self.now_s))
        return path

    def serve(self, name, writer, *, env=None, **more):
        """Have one event served."""
        event = Event(
            hook_event_name=name,
            session_id=writer.session,
            transcript_path=str(self.project / f"{writer.session}.jsonl"),
            cwd="/home/ada/loom",
            **more,
        )
        find = lambda config: [target_for(config, backend, at) for at, backend in enumerate(self.backends)]  # noqa: E731
        serve(event, {**self.env, **(env or {})}, lambda: self.now_s, self.sleep, find)

    def stop(self, writer, words=None, **more):
        """Have a Stop served, which says the words that the transcript ends with, or others."""
        if words is None:
            words = writer.rows[-1]["message"]["content"][0]["text"]
        self.save(writer)
        self.serve("Stop", writer, last_assistant_message=words, **more)

    @property
    def log(self):
        """The lines of the log, without their times."""
        path = self.claude / "turnspan" / LOG_NAME
        return [line.split(" ", 1)[1] for line in path.read_text().splitlines()] if path.exists() else []

    @property
    def home(self):
        return self.claude / "turnspan"


@pytest.fixture
def office(tmp_path):
    """A place where nothing has happened yet."""
    return Office(tmp_path / "claude")


def turns(backend):
    """Return the names of the turns that are stored, in order of arrival."""
    return [name for name in backend.names if name.startswith("Turn")]


# ---- when a turn is sent


def test_a_turn_is_sent_at_its_stop(office):
    """One event, one trace, one line."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    assert office.backend.names == ["Turn 1", "claude-opus-4-5-20251101"]
    assert office.backend.is_closed
    assert office.slept_s == 0
    [line] = office.log
    assert line.startswith("INFO sent session=5e55104a-")
    assert line.endswith("trigger=Stop turns=1 spans=2")


@pytest.mark.parametrize("late_s", [0.0, 0.04, 0.5, 1.9])
def test_last_words_that_come_late_are_waited_for(office, late_s):
    """The file may lag behind the event by up to two seconds: then the complete turn is sent, once."""
    writer = office.writer()
    writer.prompt("Hello.")
    call = writer.call("Bash", {"command": "ls"})
    writer.result(call, "a b")
    office.save(writer)
    writer.say("Good day.")
    office.later(late_s, lambda: office.save(writer))
    office.serve("Stop", writer, last_assistant_message="Good day.")
    model = "claude-opus-4-5-20251101"
    assert office.backend.names == ["Turn 1", model, "Bash", model]
    assert len(office.log) == 1


def test_last_words_that_come_half_are_waited_for(office):
    """A line is complete when its newline is there, and not before."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    path = office.save(writer)
    raw = path.read_bytes()
    path.write_bytes(raw[:-60])
    office.later(1.0, lambda: path.write_bytes(raw))
    office.serve("Stop", writer, last_assistant_message="Good day.")
    assert turns(office.backend) == ["Turn 1"]
    assert office.slept_s >= 1.0


def test_last_words_that_never_come_keep_the_turn_for_the_next_event(office):
    """After two seconds the worker gives up; no partial turn is sent, and the next event sends the complete one."""
    writer = office.writer()
    writer.prompt("Hello.")
    office.save(writer)
    office.serve("Stop", writer, last_assistant_message="Good day.")
    assert office.backend.requests == []
    assert 1.9 <= office.slept_s <= 2.1
    assert "unsealed=True" in office.log[-1]
    writer.say("Good day.")
    writer.turn("And now?", "Now this.")
    office.stop(writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert office.backend.twice == []


def test_a_clock_that_steps_back_does_not_keep_the_worker(office):
    """Waiting ends by count too: an hour back must not be an hour more."""
    writer = office.writer()
    writer.prompt("Hello.")
    office.save(writer)

    def step_back():
        office.now_s -= 3600
        office.later(0, step_back)

    office.later(0.05, step_back)
    office.serve("Stop", writer, last_assistant_message="Good day.")
    assert office.slept_s <= 2.1


def test_a_stop_without_words_takes_what_is_there(office):
    """Clients before 2.1.47 do not send the last message: an answer is enough."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.save(writer)
    office.serve("Stop", writer)
    assert turns(office.backend) == ["Turn 1"]
    assert office.slept_s == 0


def test_a_stop_whose_file_is_not_there_yet_waits_for_it(office):
    """The event of a first turn may come before the file exists."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.later(0.7, lambda: office.save(writer))
    office.serve("Stop", writer, last_assistant_message="Good day.")
    assert turns(office.backend) == ["Turn 1"]


def test_the_stop_of_an_earlier_turn_waits_for_nothing(office):
    """Its words have left already; the turn that runs now stays."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    writer.prompt("And now?")
    office.save(writer)
    office.serve("Stop", writer, last_assistant_message="Good day.")
    assert turns(office.backend) == ["Turn 1"]
    assert office.slept_s == 0


def test_an_open_turn_is_sent_when_the_session_ends(office):
    """SessionEnd: everything is sent, answered or not."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    writer.prompt("And now?")
    office.save(writer)
    office.serve("SessionEnd", writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2"]


def test_the_end_of_a_session_is_logged_in_one_line(office):
    """A session's end is served in two steps, in case its last rows come late; its line counts both."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    writer.prompt("And now?")
    office.save(writer)

    def goes_on():
        writer.say("Now this.")
        office.save(writer)

    office.later(1.0, goes_on)
    office.serve("SessionEnd", writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert len(office.backend.rows) == 4
    [line] = office.log
    assert line.endswith("trigger=SessionEnd turns=2 spans=4")


def test_the_end_of_a_session_without_a_backend_says_why(office):
    """The second step finds the destination backing off: the log line has the response to the first one."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    writer.prompt("And now?")
    office.save(writer)
    office.backend.answers = [CREDENTIALS]
    office.serve("SessionEnd", writer)
    [line] = office.log
    assert line.startswith('ERROR "backoff: credentials"')


@pytest.mark.parametrize("name", ["SessionStart", "SubagentStop"])
def test_other_events_end_no_turn(office, name):
    """A turn that has no answer stays, also when something else of its session ends."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    writer.prompt("And now?")
    office.save(writer)
    office.serve(name, writer, agent_id="a1")
    assert turns(office.backend) == ["Turn 1"]


def failed(writer):
    """Add what the client writes when the API refuses."""
    error = {"error": "server_error", "isApiErrorMessage": True, "requestId": None, "model": "<synthetic>"}
    return writer.say("API Error: 500", message="msg_failed", **error)


def test_a_failed_turn_is_sent_at_its_stop_failure(office):
    """StopFailure without an agent is the turn's own end."""
    writer = office.writer(version="2.1.325")
    writer.prompt("Hello.")
    failed(writer)
    office.save(writer)
    office.serve("StopFailure", writer)
    assert turns(office.backend) == ["Turn 1"]


def test_a_failure_of_an_agent_does_not_end_the_turn(office):
    """StopFailure that names an agent (2.1.325): the turn has not ended, and is sent complete when it has."""
    writer = office.writer(version="2.1.325")
    writer.prompt("Hello.")
    call = writer.call("Agent", {"prompt": "Go."})
    office.save(writer)
    office.serve("StopFailure", writer, agent_id="a1")
    assert office.backend.requests == []
    writer.result(call, "It failed.", is_error=True)
    writer.say("It failed.")
    office.stop(writer)
    assert turns(office.backend) == ["Turn 1"]
    assert len(office.backend.rows) == 4


def test_a_background_agent_joins_its_turn_when_it_has_ended(office):
    """The turn is sent at its Stop, the agent's spans at its SubagentStop, in the same trace; its file may lag too."""
    writer = office.writer()
    writer.prompt("Go.")
    call = writer.call("Agent", {"prompt": "Go far.", "subagent_type": "Explore", "run_in_background": True})
    agent = agent_writer(writer, "a1")
    writer.result(call, "agentId: a1", outcome={"isAsync": True, "status": "async_launched", "agentId": "a1"})
    writer.say("Started.")
    agent.prompt("Go far.")
    save_agent(agent, office.project, "a1")
    office.stop(writer)
    assert len(office.backend.rows) == 4
    agent.say("Been far.")
    office.later(0.8, lambda: save_agent(agent, office.project, "a1"))
    office.serve("SubagentStop", writer, agent_id="a1", last_assistant_message="Been far.")
    assert len(office.backend.rows) == 6
    assert len({row.trace_id for row in office.backend.rows}) == 1
    office.serve("SessionEnd", writer)
    assert len(office.backend.rows) == 6


# ---- events at the same time


def test_an_event_that_comes_while_its_session_is_served_is_not_lost(office):
    """The second worker leaves a mark and exits; the first handles it. Nothing is sent twice."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")

    def meanwhile(_rows):
        office.backend.answers = [ACKNOWLEDGED]
        writer.turn("And now?", "Now this.")
        office.stop(writer)  # finds its session taken
        return ACKNOWLEDGED

    office.backend.answers = [meanwhile]
    office.stop(writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert office.backend.twice == []
    assert [line.split(" session=")[0] for line in office.log] == ["INFO busy", "INFO sent", "INFO sent"]
    assert not marks.has_marks(office.home, writer.session)


def test_an_event_ends_the_wait_for_words(office):
    """Another turn was written meanwhile: both are sent."""
    writer = office.writer()
    writer.prompt("Hello.")
    office.save(writer)

    def goes_on():
        writer.say("Good day, as it were.")
        writer.turn("And now?", "Now this.")
        office.stop(writer)

    office.later(0.3, goes_on)
    office.serve("Stop", writer, last_assistant_message="Other words.")
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert office.slept_s < 1


def test_an_event_of_a_session_that_is_being_recovered_is_not_lost(office):
    """Another session's worker has it: it serves the event when it has let go."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    writer.prompt("And now?")
    office.save(writer)

    def meanwhile(_rows):
        office.backend.answers = [ACKNOWLEDGED]
        writer.say("Now this.")
        office.stop(writer)
        return ACKNOWLEDGED

    office.backend.answers = [meanwhile]
    office.serve("SessionStart", office.writer(3))
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert office.backend.twice == []
    assert not marks.has_marks(office.home, writer.session)


def test_what_a_killed_worker_was_asked_is_found_by_the_next(office):
    """Its mark is still there: the next event, of any kind, sends the turn that the lost event ended."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.save(writer)
    marks.leave_mark(office.home, writer.session, {"event": "Stop"})
    office.serve("SubagentStop", writer, agent_id="a1")
    assert turns(office.backend) == ["Turn 1"]
    assert "trigger=Stop,SubagentStop" in office.log[-1]


# ---- backends that fail


def test_a_backend_that_says_later_is_waited_for_a_little(office):
    """No one waits for the worker, so it can wait: the turn arrives with the same event."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.backend.answers = [LATER, LATER, LATER, ACKNOWLEDGED]
    office.stop(writer)
    assert turns(office.backend) == ["Turn 1"]
    assert 2 < office.slept_s < 4
    assert office.log[-1].startswith("INFO sent")


def test_a_backend_that_stays_down_is_backed_off_and_logged(office):
    """One line says so; the next events send no request and are quick; after the outage all turns arrive in order."""
    writer = office.writer()
    office.backend.answers = [LATER]
    for number in (1, 2, 3):
        writer.turn(f"Question {number}.", f"Answer {number}.")
        before = office.slept_s
        office.stop(writer)
    assert office.slept_s == before
    assert [line.split(" session=")[0] for line in office.log] == [
        'WARN "backoff: later"',
        "INFO backoff",
        "INFO backoff",
    ]
    assert 'reason="come back later"' in office.log[0]
    office.now_s += 31
    office.backend.answers = [ACKNOWLEDGED]
    office.serve("SessionEnd", writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2", "Turn 3"]
    assert office.backend.twice == []


@pytest.mark.parametrize(("asked", "slept"), [(2.0, 2.0), (60.0, 0.0)])
def test_a_server_that_names_a_time_is_waited_for_if_it_is_short(office, asked, slept):
    """A short Retry-After is sat out, a long one remembered."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.backend.answers = [Verdict(Answer.LATER, "slowly", retry_after_s=asked), ACKNOWLEDGED]
    office.stop(writer)
    assert office.slept_s == slept
    assert (turns(office.backend) == ["Turn 1"]) == (slept > 0)


def test_wrong_credentials_are_an_error_at_once(office):
    """Nothing is tried again by itself, everything is kept."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.backend.answers = [CREDENTIALS]
    office.stop(writer)
    assert (len(office.backend.requests), office.slept_s) == (1, 0)
    assert office.log[-1].startswith('ERROR "backoff: credentials"')


def test_a_quarantined_span_is_logged(office):
    """The log names it an error, and the rest has arrived."""
    writer = office.writer()
    writer.prompt("Hello.")
    writer.result(writer.call("Bash", {"command": "ls"}), "a b")
    writer.say("Good day.")
    office.backend.answers = [refusing("Bash")]
    office.stop(writer)
    assert len(office.backend.rows) == 3
    assert office.log[-1].startswith("ERROR quarantined")
    assert office.log[-1].endswith("turns=1 spans=3 refused=1")


TWO = """
[destinations.one]
type = "otlp"
endpoint = "http://127.0.0.1:1"
[destinations.two]
type = "otlp"
endpoint = "http://127.0.0.1:2"
"""


def test_two_destinations_one_down(office):
    """The other one gets every turn, and the first all of them once it is back."""
    office.configure(TWO)
    office.backends = [Recording(LATER), Recording()]
    down, up = office.backends
    writer = office.writer()
    for number in (1, 2):
        writer.turn(f"Question {number}.", f"Answer {number}.")
        office.stop(writer)
    assert turns(up) == ["Turn 1", "Turn 2"]
    assert down.rows == []
    down.answers = [ACKNOWLEDGED]
    office.now_s += 3600
    office.serve("SessionEnd", writer)
    assert turns(down) == turns(up) == ["Turn 1", "Turn 2"]
    assert down.twice == up.twice == []


@pytest.mark.parametrize("name", ["Stop", "SessionEnd"])
def test_a_destination_that_cannot_be_used_stops_no_other(office, name):
    """One that is configured wrongly is a line in the log; the other one gets this session and those left behind."""
    left, writer = office.writer(1, ago_s=3600), office.writer(2)
    left.turn("Left.", "Behind.")
    office.save(left)
    writer.turn("Hello.", "Good day.")
    path = office.save(writer)
    with HttpServer(OK) as server:
        wrong = '[destinations.one]\ntype = "otlp"\nendpoint = "http://collector.example:4318"\n'
        office.configure(f'{wrong}[destinations.two]\ntype = "otlp"\nendpoint = "{server.url}"\n')
        event = Event(name, writer.session, str(path), "/", "Good day.")
        serve(event, office.env, lambda: office.now_s, office.sleep)
        names = [span["name"] for request in server.requests for span in request.spans]
    assert sorted(name for name in names if name.startswith("Turn")) == ["Turn 1: Hello.", "Turn 1: Left."]
    lines = [line for line in office.log if line.startswith("ERROR setting")]
    assert len(lines) == 1
    assert "destination=one" in lines[0]


# ---- switched off


def test_a_session_that_is_switched_off_is_not_recovered_by_another(office):
    """`TURNSPAN_ENABLED=0` in one terminal: nothing of that session is ever exported, by no worker."""
    secret, other = office.writer(1, ago_s=3600), office.writer(2)
    secret.turn("Secret.", "Sealed.")
    office.stop(secret, env={"TURNSPAN_ENABLED": "0"})
    other.turn("Hello.", "Good day.")
    office.stop(other)
    office.serve("SessionStart", office.writer(3))
    secret.turn("More.", "Still sealed.")
    office.save(secret)
    office.serve("SessionEnd", secret)
    assert turns(office.backend) == ["Turn 1"]
    assert not any(b"ealed" in row.content for row in office.backend.rows)


def test_switching_off_while_the_session_is_served_is_not_lost(office):
    """Resumed with tracing off while the last worker is still at it: remembered by that one."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")

    def meanwhile(_rows):
        office.backend.answers = [ACKNOWLEDGED]
        office.serve("SessionStart", writer, env={"TURNSPAN_ENABLED": "off"})
        return ACKNOWLEDGED

    office.backend.answers = [meanwhile]
    office.stop(writer)
    writer.turn("Secret.", "Sealed.")
    office.stop(writer)
    assert turns(office.backend) == ["Turn 1"]


def test_everything_switched_off_touches_nothing(office):
    """`enabled = false` in the settings: no state, nothing sent."""
    office.configure("enabled = false")
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    assert office.backend.requests == []
    assert not (office.home / "state").exists()


def test_a_project_that_is_switched_off_is_not_recovered_by_another_session(office, tmp_path):
    """Its own file says so, in the working directory that the transcript names."""
    (tmp_path / "vault" / ".claude").mkdir(parents=True)
    (tmp_path / "vault" / ".claude" / "turnspan.toml").write_text("enabled = false")
    secret, other = office.writer(1, ago_s=3600, cwd=str(tmp_path / "vault")), office.writer(2)
    secret.turn("Secret.", "Sealed.")
    office.save(secret)
    other.turn("Hello.", "Good day.")
    office.stop(other)
    assert turns(office.backend) == ["Turn 1"]
    assert not any(b"ealed" in row.content for row in office.backend.rows)


# ---- sessions left behind


def test_a_session_left_behind_is_recovered_by_the_next_event(office):
    """A plan with cleared context, `/clear`, a killed client: no Stop ever came, and yet it arrives."""
    left, writer = office.writer(1, ago_s=3600), office.writer(2)
    left.turn("Plan it.", "Planned.")
    left.prompt("Implement it.")
    office.save(left)
    writer.turn("Implement the following plan:", "Done.")
    office.stop(writer)
    assert [row.trace_id for row in office.backend.rows[:1]] != [row.trace_id for row in office.backend.rows[2:3]]
    assert turns(office.backend) == ["Turn 1", "Turn 1", "Turn 2"]
    assert "trigger=recovered turns=2" in office.log[-1]


def test_any_number_of_hops_is_recovered(office):
    """Five sessions without any event, found by one SessionStart."""
    for number in range(1, 6):
        left = office.writer(number, ago_s=4000 - 100 * number)
        left.turn(f"Hop {number}.", "Hopped.")
        office.save(left)
    office.serve("SessionStart", office.writer(9))
    assert len(turns(office.backend)) == 5
    assert len({row.trace_id for row in office.backend.rows}) == 5
    office.serve("SessionStart", office.writer(9))
    assert len(office.backend.rows) == 10


def test_a_session_that_is_still_at_work_is_left_alone(office):
    """Its finished turns are sent; the open one is left to its own worker."""
    other = office.writer(1, ago_s=300)
    other.turn("Hello.", "Good day.")
    other.prompt("A long one.")
    office.save(other)
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1"]
    office.now_s += 11 * MINUTE_S
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1", "Turn 2"]


def test_history_from_before_the_installation_stays(office):
    """Never written to since a destination was first used: it waits for `backfill`."""
    old = office.writer(1, ago_s=86400)
    old.turn("Long ago.", "Far away.")
    path = office.save(old)
    os.utime(path, (office.now_s - 86400, office.now_s - 86400))
    office.serve("SessionStart", office.writer(2))
    office.now_s += 86400
    office.serve("SessionStart", office.writer(2))
    assert office.backend.requests == []
    office.save(old)  # written to again: now it is of today
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1"]


def test_a_new_destination_gets_no_history_either(office):
    """Each destination has its own first day."""
    left = office.writer(1, ago_s=3600)
    left.turn("Left.", "Behind.")
    office.save(left)
    office.configure(TWO.partition("[destinations.two]")[0])
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1"]
    office.configure(TWO)
    office.backends.append(Recording())
    office.now_s += 3600
    office.serve("SessionStart", office.writer(2))
    assert office.backends[1].requests == []


def test_one_failing_session_stops_no_other(office):
    """A directory, a link in a circle, state of a newer turnspan, rubbish as state: the others are recovered."""
    for number in range(1, 6):
        left = office.writer(number, ago_s=3600)
        left.turn(f"Left {number}.", "Behind.")
        office.save(left)
    paths = sorted(office.project.glob("*.jsonl"))
    paths[0].unlink()
    paths[0].mkdir()
    paths[1].unlink()
    paths[1].symlink_to(paths[1])
    state.save(office.home, state.Checkpoint(session_id=paths[2].stem))
    (office.home / "state" / f"{paths[2].stem}.json").write_text('{"version":99}')
    (office.home / "state" / f"{paths[3].stem}.json").write_text("rubbish")
    (office.home / "state" / f"{paths[3].stem}.json").chmod(0o600)
    office.serve("SessionStart", office.writer(9))
    assert len(turns(office.backend)) == 2
    assert (office.home / "state" / f"{paths[2].stem}.json").read_text() == '{"version":99}'
    assert any("corrupt-1" in line for line in office.log)


def test_a_link_out_of_the_projects_is_not_followed(office, tmp_path):
    """What lies outside is not ours to read."""
    outside = office.writer(1, ago_s=3600)
    outside.turn("Outside.", "Of it.")
    path = outside.save(tmp_path / "elsewhere")
    (office.project / path.name).symlink_to(path)
    office.serve("SessionStart", office.writer(2))
    assert office.backend.requests == []


def test_recovery_is_not_repeated_with_every_stop(office):
    """Once a minute is enough; a session that starts or ends always looks."""
    left, writer = office.writer(1, ago_s=3600), office.writer(2)
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    left.turn("Left.", "Behind.")
    office.save(left)
    office.stop(writer)
    assert len(turns(office.backend)) == 1
    office.now_s += 61
    office.stop(writer)
    assert len(turns(office.backend)) == 2


def test_recovery_can_be_switched_off(office):
    """`recover = false`: a session is only ever sent by its own events."""
    office.configure("recover = false")
    left = office.writer(1, ago_s=3600)
    left.turn("Left.", "Behind.")
    office.save(left)
    office.serve("SessionStart", office.writer(2))
    assert office.backend.requests == []


def test_recovery_has_a_budget(office):
    """After twenty seconds the rest is left for the next event."""
    for number in range(1, 6):
        left = office.writer(number, ago_s=3600)
        left.turn(f"Left {number}.", "Behind.")
        office.save(left)

    def slowly(_rows):
        office.now_s += 15
        return ACKNOWLEDGED

    office.backend.answers = [slowly]
    office.serve("SessionStart", office.writer(9))
    assert len(turns(office.backend)) == 2
    office.serve("SessionStart", office.writer(9))
    office.serve("SessionStart", office.writer(9))
    assert len(turns(office.backend)) == 5
    assert office.backend.twice == []


def test_copied_history_is_not_recovered_as_its_own(office):
    """Of a fork without any event only its own turn is sent, also if the state was lost."""
    origin = office.writer(1, ago_s=3600)
    origin.turn("Hello.", "Good day.")
    fork = office.writer(2, ago_s=1800)
    fork.bare("mode", mode="normal")
    fork.rows += [{**row, "sessionId": fork.session} for row in origin.rows]
    fork.parent = origin.parent
    fork.turn("And now?", "Now this.")
    for writer in (origin, fork):
        office.save(writer)
    office.serve("SessionStart", office.writer(9))
    assert sorted(turns(office.backend)) == ["Turn 1", "Turn 2"]
    shutil.rmtree(office.home / "state")
    state.state_directory.cache_clear()
    office.serve("SessionStart", office.writer(9))
    assert len({row.key for row in office.backend.rows}) == 4


# ---- state


def test_state_that_was_deleted_costs_a_second_reading(office):
    """What goes out again is the same, byte by byte."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    shutil.rmtree(office.home)
    state.state_directory.cache_clear()
    office.stop(writer)
    first, second = office.backend.requests
    assert first == second


def test_corrupt_state_is_logged(office):
    """It is set aside under a name that is in the log."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    (office.home / "state" / f"{writer.session}.json").write_bytes(b"\0\0\0")
    office.stop(writer)
    assert office.log[-1].startswith('WARN "state corrupt"')
    assert f"kept_as={writer.session}.json.corrupt-1" in office.log[-1]


def test_a_rewritten_transcript_is_logged(office):
    """It is read again from its start, and what is new goes out."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    writer.turn("And now?", "Now this.")
    office.stop(writer)
    del writer.rows[:2]
    writer.turn("And then?", "Then that.")
    office.stop(writer)
    assert office.log[-1].startswith("WARN sent")
    assert "rewritten=True" in office.log[-1]
    assert any(b"Then that." in row.content for row in office.backend.rows)


def test_state_of_a_newer_turnspan_is_left_alone(office):
    """An error that says so, and nothing is sent."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    path = office.home / "state" / f"{writer.session}.json"
    path.write_text('{"version":99,"session_id":"x"}')
    writer.turn("And now?", "Now this.")
    with pytest.raises(TurnspanError, match="from a newer version"):
        office.stop(writer)
    assert turns(office.backend) == ["Turn 1"]
    assert path.read_text() == '{"version":99,"session_id":"x"}'


# ---- payloads


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "no JSON object"),
        (b"[1]", "no JSON object"),
        (b'{"a":', "no JSON object"),
        (b"\xff\xfe", "no JSON object"),
        (b"[" * 100_000, "no JSON object"),
        (b"{}", "unknown event ''"),
        (b'{"hook_event_name":"PreToolUse"}', "unknown event 'PreToolUse'"),
        (b'{"hook_event_name":["Stop"]}', "unknown event"),
        (b'{"hook_event_name":"Stop","session_id":"../../x"}', "'../../x' is not a session id"),
        (b'{"hook_event_name":"Stop","session_id":"CON\\n"}', "is not a session id"),
        (b'{"hook_event_name":"Stop","session_id":"s"}', "no transcript path"),
        (b'{"hook_event_name":"Stop","session_id":"s","transcript_path":"p/s.jsonl"}', "no transcript path"),
        (b'{"hook_event_name":"Stop","session_id":"s","transcript_path":"/etc/passwd"}', "is not below"),
        (b'{"hook_event_name":"Stop","session_id":"s","transcript_path":"/a\\u0000/s.jsonl"}', "is not below"),
        (b'{"hook_event_name":"Stop","session_id":"s","transcript_path":"/../.jsonl","cwd":"\\u0000"}', "named after"),
    ],
)
def test_an_invalid_event_gives_one_sentence(office, raw, words):
    """Whatever is on stdin, no transcript is read and nothing is sent."""
    with pytest.raises(TurnspanError, match=words.replace("(", r"\(")):
        serve(parse_event(raw), office.env, lambda: office.now_s, office.sleep)


def test_an_event_that_is_cut_still_names_its_session():
    """Without room for a long event the hook hands over its beginning: enough to serve the session."""
    raw = msgspec.json.encode(
        {
            "session_id": "s1",
            "transcript_path": "/p/s1.jsonl",
            "cwd": '/a "b"\\c',
            "hook_event_name": "Stop",
            "last_assistant_message": 'words, "session_id":"s2", ' * 1000,
        }
    )
    assert parse_event(raw[:5000]) == Event("Stop", "s1", "/p/s1.jsonl", '/a "b"\\c')


def test_half_an_emoji_in_the_last_words_does_no_harm(office):
    """The client may cut a text in the middle of a pair: the event is understood, and its words are found at once."""
    writer = office.writer()
    writer.turn("Hello.", "Good @ day.")
    path = office.project / f"{writer.session}.jsonl"
    path.write_bytes(b"".join(writer.lines()).replace(b"@", b"\\ud83d"))
    raw = f'{{"hook_event_name":"Stop","session_id":"{writer.session}","last_assistant_message":"Good \\ud83d day."}}'
    event = parse_event(raw.encode())
    assert event.hook_event_name == "Stop"
    office.serve("Stop", writer, last_assistant_message=event.last_assistant_message)
    assert turns(office.backend) == ["Turn 1"]
    assert office.slept_s == 0


def test_wrong_types_are_as_good_as_missing(office):
    """A client of tomorrow may send an object where today a text is."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    path = office.save(writer)
    raw = {"hook_event_name": "Stop", "session_id": writer.session, "transcript_path": str(path)}
    event = parse_event(msgspec.json.encode({**raw, "last_assistant_message": {"text": 1}, "cwd": 7, "agent_id": None}))
    assert event == Event("Stop", writer.session, str(path))
    with HttpServer(OK) as server:
        env = {**office.env, "TURNSPAN_OTLP_ENDPOINT": server.url}
        serve(event, env, lambda: office.now_s, office.sleep)
        assert len(server.requests) == 1


@pytest.mark.parametrize("kind", ["directory", "fifo", "loop", "outside"])
def test_a_transcript_that_is_not_a_file_is_refused(office, kind):
    """At once, with a sentence, and without touching what it points to."""
    writer = office.writer()
    path = office.project / f"{writer.session}.jsonl"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        make_fifo(path)
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to("/etc/hostname")
    began = time.monotonic()
    with pytest.raises(TurnspanError, match=r"directory|not a regular file|not below"):
        office.serve("Stop", writer)
    assert time.monotonic() - began < 1
    assert office.backend.requests == []


def test_a_wrong_setting_is_logged_and_the_rest_is_used(office):
    """What is still right is used; the sentence names the setting."""
    office.configure('capture = "everything"\n')
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    assert turns(office.backend) == ["Turn 1"]
    assert "capture" in office.log[0]
    assert "everything" in office.log[0]
    assert load_config(office.env).problems


def test_a_backend_that_refuses_everything_is_held_not_quarantined(office):
    """A wrong address: an error in the log, everything kept."""
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    office.backend.answers = [INVALID]
    office.stop(writer)
    assert office.log[-1].startswith('ERROR "backoff: invalid"')
    office.now_s += 31
    office.backend.answers = [ACKNOWLEDGED]
    office.serve("SessionEnd", writer)
    assert turns(office.backend) == ["Turn 1"]


def test_the_hook_command_in_a_terminal_is_not_an_error(office):
    """Without an event on stdin the worker does nothing, and `status` reports no error."""
    command = [sys.executable, "-m", "turnspan.worker"]
    subprocess.run(command, env={**os.environ, **office.env}, input=b"\n", check=True, timeout=60)
    [line] = read_log(office.home)
    assert (line.level, line.event) == ("INFO", "no event")


# ---- what an event said is remembered until it is acknowledged


def state_of(office, writer):
    """Return the cursor of a session."""
    [cursor] = state.known(office.home, writer.session).destinations.values()
    return cursor


@pytest.mark.parametrize("answer", [LATER, CREDENTIALS])
def test_a_session_that_ended_during_an_outage_is_sent_by_the_next_event_of_the_project(office, answer):
    """Its Stop and SessionEnd are not forgotten: nothing waits for ten idle minutes."""
    writer, other = office.writer(1), office.writer(2)
    office.backend.answers = [answer]
    writer.turn("One.", "First.")
    office.stop(writer)
    writer.turn("Two.", "Second.")
    office.stop(writer)
    writer.prompt("Three, which ends with the session.")
    office.save(writer)
    office.serve("SessionEnd", writer)
    office.backend.answers = [ACKNOWLEDGED]
    office.now_s += 31
    office.serve("SessionStart", other)
    assert turns(office.backend) == ["Turn 1", "Turn 2", "Turn 3"]
    assert office.backend.twice == []
    reported = state_of(office, writer).reported
    assert reported == state.Reported(over_ns=reported.over_ns, is_done=True)


def test_rows_written_late_belong_to_the_session_that_has_ended(office):
    """A file that lags behind at SessionEnd is sent completely by the next event of the project, not when it is idle."""
    writer, other = office.writer(1), office.writer(2)
    writer.prompt("One.")
    office.save(writer)
    office.serve("SessionEnd", writer)
    writer.say("First.", timestamp=writer.stamp())
    office.save(writer)
    office.serve("SessionStart", other)
    assert "claude-opus-4-5-20251101" in office.backend.names


def test_a_remembered_stop_does_not_seal_a_turn_that_began_later(office):
    """With a file that lags behind, the stop of one turn must not end the next one in the middle."""
    writer = office.writer(1, version="2.0.76")
    writer.turn("One.", "First.")
    said = writer.rows.pop()
    office.save(writer)
    office.serve("Stop", writer)
    writer.rows.append(said)
    writer.prompt("Two.")
    writer.say("I will look.", message="msg_two")
    office.save(writer)
    office.serve("SubagentStop", writer)
    assert turns(office.backend) == ["Turn 1"]


def test_a_stop_during_a_backoff_is_remembered_without_content(office):
    """The state holds a time and a digest of the last message, not the message."""
    writer = office.writer()
    office.backend.answers = [LATER]
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    writer.turn("And now?", "Secret words.")
    office.stop(writer)
    assert state_of(office, writer).reported.words is not None
    assert state_of(office, writer).reported.stopped_ns is not None
    raw = (office.home / "state" / f"{writer.session}.json").read_text()
    assert "Secret words" not in raw
    office.backend.answers = [ACKNOWLEDGED]
    office.now_s += 31
    office.serve("SubagentStop", writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2"]


def test_a_session_that_was_resumed_after_its_end_is_not_over(office):
    """A remembered end holds for what was written until then, not for a turn that began later."""
    writer, other = office.writer(1, ago_s=300), office.writer(2)
    office.backend.answers = [LATER]
    writer.turn("Hello.", "Good day.")
    office.stop(writer)
    office.serve("SessionEnd", writer)
    office.backend.answers = [ACKNOWLEDGED]
    office.now_s += 60
    writer.now = datetime.fromtimestamp(office.now_s, tz=UTC)
    writer.prompt("Resumed, and at work.")
    office.save(writer)
    office.serve("SessionStart", other)
    assert turns(office.backend) == ["Turn 1"]


def test_a_worker_that_dies_while_it_waits_has_remembered_the_stop(office):
    """The Stop is stored before the first retry, not after the last."""
    writer = office.writer()
    office.backend.answers = [LATER]
    writer.turn("Hello.", "Good day.")

    def die():
        raise KeyboardInterrupt

    office.later(0.1, die)
    with pytest.raises(KeyboardInterrupt):
        office.stop(writer)
    assert state_of(office, writer).reported.words is not None


def test_a_destination_that_cannot_be_opened_does_not_forget_the_end(office):
    """A wrong setting that is corrected later: the session is sent as ended."""
    writer, other = office.writer(1), office.writer(2)

    class Unusable(Recording):
        def encode(self, _traces):
            raise BackendError("wrong exporter")

    office.backends = [Unusable()]
    writer.turn("Hello.", "Good day.")
    office.save(writer)
    office.stop(writer)
    office.serve("SessionEnd", writer)
    office.backends = [Recording()]
    office.now_s += 31
    office.serve("SessionStart", other)
    assert turns(office.backend) == ["Turn 1"]


def test_an_older_turnspan_reads_a_state_with_a_remembered_end():
    """The new field is optional both ways."""

    class OldCursor(msgspec.Struct):
        sent_turns: int = 0

    cursor = state.Cursor(sent_turns=3, reported=state.Reported(over_ns=5, words="ab"))
    assert msgspec.json.decode(msgspec.json.encode(cursor), type=OldCursor).sent_turns == 3
    assert msgspec.json.decode(b'{"sent_turns": 3}', type=state.Cursor).reported == state.Reported()
    assert b"reported" not in msgspec.json.encode(state.Cursor(sent_turns=3))


def half_written(office, number=1):
    """Write a turn of an old client whose second line is cut; return its writer, and the file as it will be."""
    writer = office.writer(number, version="2.0.36")
    writer.prompt("Hello.")
    writer.say("I will look.", message="msg_one", usage={"input_tokens": 10, "output_tokens": 3})
    call = writer.call("Bash", {"command": "ls"}, message="msg_one", usage={"input_tokens": 10, "output_tokens": 72})
    cut_at = len(b"".join(writer.lines())) - 60
    writer.result(call, "a b")
    writer.say("Two files.")
    path = office.save(writer)
    complete = path.read_bytes()
    path.write_bytes(complete[:cut_at])
    os.utime(path, (office.now_s, office.now_s))
    return writer, complete


def complete_it(office, writer, complete):
    """Write the rest of a file that lags behind."""
    path = office.project / f"{writer.session}.jsonl"
    path.write_bytes(complete)
    os.utime(path, (office.now_s, office.now_s))


def outputs(office):
    """Return the output tokens of the responses that were sent, in order of arrival."""
    spans = [msgspec.json.decode(row.content)[1] for row in office.backend.rows]
    return [span["usage"]["output"] for span in spans if span["kind"] == "generation" and span.get("usage")]


def test_a_stop_without_words_waits_for_the_rest_of_a_line(office):
    """An old client does not name the last message. Half a line shows that the file lags: the turn is not cut in two."""
    writer, complete = half_written(office)
    office.serve("Stop", writer)
    assert office.backend.requests == []
    assert "unsealed=True" in office.log[-1]
    complete_it(office, writer, complete)
    office.serve("SessionEnd", writer)
    assert outputs(office) == [72, 40]
    assert office.backend.twice == []


def test_the_end_of_a_session_waits_for_the_rest_of_a_line(office):
    """A file that lags behind at SessionEnd, and at the next event too, gives one complete turn when it is there."""
    writer, complete = half_written(office)
    other = office.writer(2)
    office.serve("Stop", writer)
    office.serve("SessionEnd", writer)
    office.serve("SessionStart", other)
    assert office.backend.requests == []
    complete_it(office, writer, complete)
    office.now_s += 1
    office.serve("SessionEnd", other)
    assert outputs(office) == [72, 40]
    assert office.backend.twice == []


def test_half_a_line_that_stays_does_not_keep_a_turn_for_ever(office):
    """After a minute without another byte, the next event of the project sends what is there."""
    writer, _ = half_written(office)
    office.serve("SessionEnd", writer)
    assert office.backend.requests == []
    office.now_s += 2 * MINUTE_S
    office.serve("SessionStart", office.writer(2))
    assert outputs(office) == [3]


def test_a_killed_client_does_not_complete_a_line(office, dead_pid):
    """Its process does not exist any more: nothing is waited for."""
    writer, _ = half_written(office)
    client_file(office, writer.session, dead_pid)
    office.serve("SessionStart", office.writer(2))
    assert outputs(office) == [3]


def with_joined_words(office):
    """Write a turn of an old client which took words from the queue, and has ended."""
    writer = office.writer(1, version="2.0.76")
    writer.prompt("Wind the bobbins.")
    call = writer.call("Bash", {"command": "wind"})
    writer.bare("queue-operation", operation="enqueue", timestamp=writer.stamp(), content="Only the blue ones.")
    writer.result(call, "wound")
    writer.bare("queue-operation", operation="remove", timestamp=writer.stamp())
    writer.say("Done.")
    office.save(writer)
    office.serve("Stop", writer)
    return writer


def test_words_that_joined_the_last_turn_are_sent_when_the_session_ends(office):
    """At the Stop they may still get an answer of their own; at the end they have none. A resumed session has them once."""
    writer = with_joined_words(office)
    assert "steering" not in office.backend.names
    office.serve("SessionEnd", writer)
    assert office.backend.names.count("steering") == 1
    writer.turn("And the red ones?", "Done, too.")
    office.save(writer)
    office.serve("Stop", writer)
    office.serve("SessionEnd", writer)
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert office.backend.names.count("steering") == 1


def test_words_that_joined_the_last_turn_of_an_idle_session_are_not_left(office):
    """Without a SessionEnd, a backfill must look at such a session again: nothing says yet that it has all of it."""
    writer = with_joined_words(office)
    session = SessionFile(writer.session, office.project / f"{writer.session}.jsonl")
    assert not has_nothing_left(session, state_of(office, writer))


@pytest.mark.parametrize("name", ["Stop", "SessionEnd"])
def test_an_event_that_no_worker_has_handled_yet_is_known_all_the_same(office, name):
    """The worker of its session is busy, or was killed: its turn is pending, not in progress."""
    writer = office.writer(1, version="2.0.76")
    writer.turn("Hello.", "Good day.")
    session = SessionFile(writer.session, office.save(writer))
    [target] = [target_for(load_config(office.env), office.backend)]
    before = read_unsent(session, target, int(office.now_s * 1e9))
    assert (len(before.spans), before.has_open_turn) == (0, True)
    marks.leave_mark(office.home, writer.session, {"event": name, "at": office.now_s})
    after = read_unsent(session, target, int(office.now_s * 1e9))
    assert (len(after.spans), after.has_open_turn) == (2, False)


# ---- a client that was killed


@pytest.fixture
def dead_pid():
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        process.wait()
    return process.pid


def client_file(office, session_id, pid, start=None):
    """Write the file in which a client names its process."""
    directory = office.claude / "sessions"
    directory.mkdir(exist_ok=True)
    record = {"pid": pid, "sessionId": session_id, "cwd": "/home/ada", "status": "busy", "procStart": start or "1"}
    (directory / f"{pid}.json").write_text(msgspec.json.encode(record).decode())


def start_of(pid):
    """Return the start time of a process as Linux counts it."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


def killed_session(office):
    """A session that was killed in the middle of a tool, just now."""
    writer = office.writer(1)
    writer.turn("Hello.", "Good day.")
    writer.prompt("A long one.")
    writer.call("Bash", {"command": "sleep 100"})
    office.save(writer)
    return writer


def test_a_killed_client_ends_its_turn_at_the_next_event(office, dead_pid):
    """Its process does not exist any more: the turn is sent with the next event of the project."""
    writer = killed_session(office)
    client_file(office, writer.session, dead_pid)
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
    assert "Bash" in office.backend.names


@pytest.mark.skipif(sys.platform != "linux", reason="start times of processes are read on Linux")
def test_a_pid_that_another_process_has_now_is_not_the_client(office):
    """A process with the same pid and another start time is not the client."""
    writer = killed_session(office)
    client_file(office, writer.session, os.getpid(), "123")
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1", "Turn 2"]


@pytest.mark.skipif(sys.platform != "linux", reason="start times of processes are read on Linux")
def test_a_client_that_runs_keeps_its_turn(office, dead_pid):
    """A session that was killed and resumed is open as long as one of its clients runs."""
    writer = killed_session(office)
    client_file(office, writer.session, dead_pid)
    client_file(office, writer.session, os.getpid(), start_of(os.getpid()))
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1"]


@pytest.mark.parametrize(
    "kind", ["link", "fifo", "directory", "garbage", "types", "other pid", "other machine", "huge"]
)
def test_a_client_file_that_is_not_one_is_ignored(office, dead_pid, tmp_path, kind):
    """Then the timeouts apply, and nothing hangs."""
    writer = killed_session(office)
    client_file(office, writer.session, dead_pid)
    path = office.claude / "sessions" / f"{dead_pid}.json"
    record = msgspec.json.decode(path.read_bytes())
    if kind == "link":
        path.rename(tmp_path / "elsewhere.json")
        path.symlink_to(tmp_path / "elsewhere.json")
    elif kind == "fifo":
        path.unlink()
        make_fifo(path)
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "garbage": b"\xff{",
                "types": msgspec.json.encode({**record, "pid": str(dead_pid)}),
                "other pid": msgspec.json.encode({**record, "pid": dead_pid + 1}),
                "other machine": msgspec.json.encode({**record, "pidDomain": "linux:0123:pid:[1]"}),
                "huge": msgspec.json.encode({**record, "name": "x" * 100_000}),
            }[kind]
        )
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1"]
    office.now_s += 61 * MINUTE_S
    office.serve("SessionStart", office.writer(2))
    assert turns(office.backend) == ["Turn 1", "Turn 2"]
