"""One session is sent to one destination: acknowledged spans are committed, and nothing else is."""

import json
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
from backends.servers import OK, HttpServer, reply
from faults.recording import (
    ACKNOWLEDGED,
    CONFIGURATION,
    CREDENTIALS,
    INVALID,
    LATER,
    Recording,
    refusing,
    target_for,
)
from rows import Writer, agent_writer, save_agent

from turnspan.backends import Answer, Verdict
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target
from turnspan.delivery.ship import Shipped, ship
from turnspan.errors import StateError
from turnspan.settings.config import load_config
from turnspan.source.progress import Ending
from turnspan.source.reader import PIECE_SPANS
from turnspan.source.sessions import session_at

NOW_S = 1_780_000_000.0
OVER = Ending(is_over=True)


class Place:
    """A Claude home with a clock of its own."""

    def __init__(self, claude):
        self.claude = claude
        self.project = claude / "projects" / "-home-ada-loom"
        self.now_s = NOW_S
        self.configure()

    def configure(self, text="", **env):
        """Take these settings from now on."""
        home = self.claude / "turnspan"
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        (home / "config.toml").write_text(text)
        self.config = load_config({"CLAUDE_CONFIG_DIR": str(self.claude), **env})
        assert self.config.problems == ()

    def ship(self, writer, backend, number=0, **options):
        """Save a transcript and bring it to a destination."""
        session = session_at(writer.save(self.project))
        target = target_for(self.config, backend, number)
        ending = options.pop("ending", OVER)
        return ship(session, target, ending, lambda: self.now_s, **options)

    def cursor(self, writer, number=0):
        """Return what the state knows of a session at a destination."""
        known = state.load(self.config.home, writer.session).checkpoint.destinations
        return known.get(self.identity(number))

    def identity(self, number=0):
        """Return the name under which the state knows a destination."""
        return Target(self.config.destinations[number], self.config).identity


@pytest.fixture
def place(tmp_path):
    """A Claude home in which nothing has happened yet."""
    return Place(tmp_path / "claude")


def writer_of(count, session=1, **options):
    """Return a session of some turns, `Turn 1` and on, each with one response."""
    writer = Writer(f"5e55104a-0000-4000-8000-{session:012}", tag=f"s{session}", **options)
    for number in range(1, count + 1):
        writer.turn(f"Question {number}.", f"Answer {number}.")
    return writer


def turns(backend):
    """Return the names of the turns that are stored, in order."""
    return [name for name in backend.names if name.startswith("Turn")]


# ---- commit


def test_what_is_acknowledged_is_not_sent_again(place):
    """A second event finds nothing to do, a later turn goes alone."""
    backend, writer = Recording(), writer_of(2)
    shipped = place.ship(writer, backend)
    assert (shipped.turns, shipped.spans, shipped.is_complete) == (2, 4, True)
    assert place.ship(writer, backend).spans == 0
    writer.turn("Question 3.", "Answer 3.")
    assert place.ship(writer, backend).turns == 1
    assert turns(backend) == ["Turn 1", "Turn 2", "Turn 3"]
    assert backend.twice == []
    assert place.cursor(writer).sent_turns == 3
    assert place.cursor(writer).sent_spans == 6


@pytest.mark.parametrize("verdict", [LATER, CREDENTIALS, CONFIGURATION, INVALID], ids=lambda v: str(v.answer))
def test_what_is_not_acknowledged_is_read_again(place, verdict):
    """Whatever a backend says, the place stays where it was, and everything arrives when it has recovered."""
    writer = writer_of(3)
    failing = Recording(verdict)
    shipped = place.ship(writer, failing)
    assert (shipped.spans, shipped.turns, shipped.is_complete) == (0, 0, False)
    assert shipped.stopped.answer is verdict.answer
    cursor = place.cursor(writer)
    assert (cursor.progress.main.offset, cursor.arrived, cursor.quarantined) == (0, (), ())
    assert str(verdict.answer) in cursor.last_error
    place.now_s += 3600
    backend = Recording()
    assert place.ship(writer, backend).turns == 3
    assert turns(backend) == ["Turn 1", "Turn 2", "Turn 3"]
    assert place.cursor(writer).last_error == ""


def test_a_part_that_arrived_does_not_go_out_again(place):
    """An outage in the middle of several requests: the next time sends the rest, in order."""
    writer = writer_of(8)
    backend = Recording(ACKNOWLEDGED, ACKNOWLEDGED, LATER, max_request_bytes=6_000)
    shipped = place.ship(writer, backend)
    first = len(backend.rows)
    assert 0 < first < 16
    assert shipped.spans == first
    assert len(place.cursor(writer).arrived) == first
    place.now_s += 3600
    backend.answers = [ACKNOWLEDGED]
    assert place.ship(writer, backend).spans == 16 - first
    assert backend.twice == []
    assert turns(backend) == [f"Turn {number}" for number in range(1, 9)]
    assert place.cursor(writer).arrived == ()


def test_a_span_refused_before_an_outage_is_named(place):
    """A span that was quarantined in a request that an outage cut short is in the state, and not sent again."""
    writer = writer_of(8)
    is_back = False

    def answer(rows):
        is_down = not is_back and any(row.name == "Turn 6" for row in rows)
        return LATER if is_down else refusing("Turn 2")(rows)

    backend = Recording(answer, max_request_bytes=6_000)
    assert place.ship(writer, backend).stopped == LATER
    assert [entry.reason for entry in place.cursor(writer).quarantined] == [INVALID.reason]
    is_back = True
    place.now_s += 3600
    asked = len(backend.requests)
    assert place.ship(writer, backend).is_complete
    assert not any(row.name == "Turn 2" for request in backend.requests[asked:] for row in request)
    assert turns(backend) == [f"Turn {number}" for number in range(1, 9) if number != 2]
    assert len(place.cursor(writer).quarantined) == 1


def test_many_turns_are_noted_batch_by_batch(place):
    """An outage far into a long session costs one batch, not the session."""
    writer = writer_of(PIECE_SPANS)
    backend = Recording(ACKNOWLEDGED, LATER)
    assert place.ship(writer, backend).turns == PIECE_SPANS // 2
    assert place.cursor(writer).sent_turns == PIECE_SPANS // 2
    place.now_s += 3600
    backend.answers = [ACKNOWLEDGED]
    assert place.ship(writer, backend).turns == PIECE_SPANS // 2
    assert (len(backend.rows), backend.twice) == (2 * PIECE_SPANS, [])


# ---- quarantine


def test_one_poisoned_turn_among_twenty_is_named_and_the_rest_is_sent(place):
    """Nineteen arrive in order; the bad one is in the state with its reason, and is never asked about again."""
    writer = writer_of(20)
    backend = Recording(refusing("Turn 7"))
    shipped = place.ship(writer, backend)
    assert (shipped.refused, shipped.is_complete) == (1, True)
    assert turns(backend) == [f"Turn {number}" for number in range(1, 21) if number != 7]
    [named] = place.cursor(writer).quarantined
    assert (named.reason, named.at_s) == (INVALID.reason, NOW_S)
    asked = len(backend.requests)
    assert place.ship(writer, backend).is_complete
    assert len(backend.requests) == asked


def test_a_refused_turn_is_named_as_soon_as_anything_else_is_taken(place):
    """Alone it might be the address that is wrong, so it waits; the next turn that arrives decides."""
    writer = writer_of(1)
    backend = Recording(refusing("Turn 1", "claude-opus-4-5-20251101"))
    assert place.ship(writer, backend).stopped.answer is Answer.INVALID
    assert place.cursor(writer).quarantined == ()
    writer.turn("Question 2.", "Answer 2.")
    place.now_s += 3600
    backend.answers = [refusing("Turn 1")]
    assert place.ship(writer, backend).is_complete
    assert turns(backend) == ["Turn 2"]
    assert len(place.cursor(writer).quarantined) == 1


def test_what_comes_again_was_not_refused_for_good(place):
    """A destination that takes nothing is held: none of its refusals is final, so none is counted as if it were."""
    shipped = place.ship(writer_of(100), Recording(lambda _rows: INVALID))
    assert (shipped.stopped.answer, shipped.refused) == (Answer.INVALID, 0)


# ---- holds


def test_a_destination_on_hold_is_not_asked(place):
    """Neither for this session nor for another, until its time has come; then everything arrives."""
    one, two = writer_of(1), writer_of(1, session=2)
    backend = Recording(LATER)
    place.ship(one, backend)
    for writer in (one, two):
        shipped = place.ship(writer, backend)
        assert (shipped.held_until_s, shipped.is_complete) == (NOW_S + 30, False)
    assert len(backend.requests) == 1
    place.now_s += 30
    backend.answers = [ACKNOWLEDGED]
    assert place.ship(one, backend).turns == place.ship(two, backend).turns == 1
    assert backend.twice == []


def test_a_hold_grows_while_an_outage_lasts_and_ends_with_it(place):
    """Longer each time, five minutes at most; what is taken ends it."""
    writer, backend = writer_of(1), Recording(LATER)
    waits = []
    for _ in range(6):
        place.ship(writer, backend)
        waits.append(place.ship(writer, backend).held_until_s - place.now_s)
        place.now_s += waits[-1]
    assert waits == [30, 60, 120, 240, 300, 300]
    backend.answers = [ACKNOWLEDGED]
    assert place.ship(writer, backend).is_complete
    assert backoff.load(place.config.home, place.identity()) is None


@pytest.mark.parametrize(("asked", "given"), [(5.0, 30.0), (90.0, 90.0), (10.0**9, 3600.0)])
def test_retry_after_is_honoured_up_to_an_hour(place, asked, given):
    """A server that asks for time gets it, but not for ever."""
    writer, backend = writer_of(1), Recording(Verdict(Answer.LATER, "slowly", retry_after_s=asked))
    place.ship(writer, backend)
    assert place.ship(writer, backend).held_until_s == NOW_S + given


@pytest.mark.parametrize("clock", [-3600.0 * 24 * 365, 3600.0 * 24 * 365])
def test_a_clock_that_jumps_does_not_hold_for_a_year(place, clock):
    """A hold that ends further away than any hold can is none."""
    writer, backend = writer_of(1), Recording(LATER)
    place.ship(writer, backend)
    backend.answers = [ACKNOWLEDGED]
    place.now_s += clock
    assert place.ship(writer, backend).turns == 1


def test_waiting_is_asked_for_before_giving_up(place):
    """Who calls may wait and have the same tried again; only "later" is worth waiting for."""
    heard = []

    def is_patient(verdict):
        heard.append(verdict.answer)
        return len(heard) < 4

    backend = Recording(LATER, LATER, ACKNOWLEDGED)
    assert place.ship(writer_of(2), backend, is_patient=is_patient).turns == 2
    assert heard == [Answer.LATER] * 2
    assert place.ship(writer_of(2, session=2), Recording(CREDENTIALS), is_patient=is_patient).stopped == CREDENTIALS
    assert len(heard) == 2


# ---- several destinations

TWO = """
[destinations.near]
type = "otlp"
endpoint = "http://127.0.0.1:1"
[destinations.far]
type = "otlp"
endpoint = "http://127.0.0.1:2"
"""


def test_one_destination_that_is_down_does_not_delay_the_others(place):
    """Each has its own place, its own hold and its own errors."""
    place.configure(TWO)
    writer = writer_of(2)
    down, up = Recording(LATER), Recording()
    place.ship(writer, down, 0)
    place.ship(writer, up, 1)
    assert turns(up) == ["Turn 1", "Turn 2"]
    writer.turn("Question 3.", "Answer 3.")
    assert place.ship(writer, down, 0).held_until_s is not None
    assert place.ship(writer, up, 1).turns == 1
    place.now_s += 3600
    down.answers = [ACKNOWLEDGED]
    assert place.ship(writer, down, 0).turns == 3
    assert place.ship(writer, up, 1).spans == 0
    assert turns(down) == turns(up) == ["Turn 1", "Turn 2", "Turn 3"]


def test_a_changed_endpoint_is_a_new_destination(place):
    """What another server has acknowledged is not there: it gets everything. Going back sends nothing twice."""
    writer = writer_of(2)
    with HttpServer(OK) as old, HttpServer(OK) as new:
        for server in (old, new, old):
            place.configure(TURNSPAN_OTLP_ENDPOINT=server.url)
            target = Target(place.config.destinations[0], place.config)
            ship(session_at(writer.save(place.project)), target, OVER, time.time)
            target.close()
        assert len(old.requests) == len(new.requests) == 1
        assert old.requests[0].body == new.requests[0].body


def test_a_rotated_key_drains_what_was_kept(place):
    """The endpoint is the same destination with another key: nothing is lost and nothing sent twice."""
    writer = writer_of(2)
    with HttpServer(reply(401), OK) as server:
        for key in ("old", "new"):
            place.configure(TURNSPAN_OTLP_ENDPOINT=server.url, TURNSPAN_OTLP_HEADERS=f"authorization={key}-key-123")
            target = Target(place.config.destinations[0], place.config)
            shipped = ship(session_at(writer.save(place.project)), target, OVER, lambda: place.now_s)
            target.close()
            place.now_s += 3600
        assert shipped.turns == 2
        assert [request.headers["authorization"] for request in server.requests] == ["old-key-123", "new-key-123"]


# ---- state that cannot be kept


def test_nothing_is_sent_when_the_state_cannot_be_kept(tmp_path):
    """On a read-only disk every event would send the session again, so nothing is sent."""
    code = """
import ctypes, os, subprocess, sys
from pathlib import Path
sys.path[:0] = [sys.argv[2], sys.argv[2] + "/delivery"]
from faults.recording import Recording
from test_ship import Place, writer_of
from turnspan.delivery import backoff, state
from turnspan.errors import StateError
place, backend, writer = Place(Path(sys.argv[1]) / "claude"), Recording(), writer_of(1)
place.ship(writer, backend)
writer.turn("Question 2.", "Answer 2.")
writer.save(place.project)
if os.geteuid() == 0:
    if ctypes.CDLL(None).unshare(0x00020000):
        sys.exit(77)
    for command in (["--make-rprivate", "/"], ["--bind", *[str(place.config.home)] * 2],
                    ["-o", "remount,bind,ro", str(place.config.home)]):
        if subprocess.run(["mount", *command], capture_output=True).returncode:
            sys.exit(77)
else:
    (place.config.home / "state").chmod(0o500)
try:
    place.ship(writer, backend)
except StateError as error:
    print(error)
print(len(backend.requests), place.cursor(writer).sent_turns)
"""
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path, str(Path(__file__).parents[1])],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if done.returncode == 77:
        pytest.skip("this machine does not allow mounting")
    said, counts = done.stdout.splitlines()
    assert "cannot persist state: no access to" in said
    assert counts == "1 1"


def test_a_disk_that_is_full_at_the_commit_stops_the_export(place):
    """The old state stays what it was, one batch has gone out and no more; with room again, nothing is lost."""
    writer, backend = writer_of(PIECE_SPANS + 10), Recording()
    place.ship(writer_of(1, session=2), Recording())  # the directories are there
    writer.save(place.project)
    resource = pytest.importorskip("resource", reason="POSIX only")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    target = target_for(place.config, backend)
    session = session_at(place.project / f"{writer.session}.jsonl")
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, hard))
    try:
        with pytest.raises(StateError, match="cannot persist state"):
            ship(session, target, OVER, lambda: place.now_s)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert len(backend.requests) == 1
    assert place.cursor(writer) is None
    assert not list((place.config.home / "state").glob("*.tmp"))
    assert place.ship(writer, backend).turns == PIECE_SPANS + 10
    rows = {row.key: row.content for row in backend.rows}
    assert len(rows) == 2 * (PIECE_SPANS + 10)
    assert all(rows[row.key] == row.content for row in backend.rows)  # what came again is the same


def test_corrupt_state_is_reported_and_costs_a_second_reading(place):
    """It is set aside under a reported name, and the spans that are sent again are the same."""
    writer, backend = writer_of(2), Recording()
    place.ship(writer, backend)
    (place.config.home / "state" / f"{writer.session}.json").write_bytes(b'{"version":1,"session_id":')
    shipped = place.ship(writer, backend)
    assert shipped.kept_as == f"{writer.session}.json.corrupt-1"
    assert place.ship(writer, backend).kept_as == ""
    assert {row.key: row.content for row in backend.rows[:4]} == {row.key: row.content for row in backend.rows[4:]}


# ---- switched off


def test_a_project_that_is_switched_off_stays_here(place, tmp_path):
    """Its file is found from the transcript's own working directory; switched on again, only new turns are sent."""
    cwd = tmp_path / "secret" / "deep"
    (cwd / ".claude").mkdir(parents=True)
    (tmp_path / "secret" / ".claude").mkdir()
    file = tmp_path / "secret" / ".claude" / "turnspan.toml"
    file.write_text("enabled = false")
    writer, backend = writer_of(2, cwd=str(cwd)), Recording()
    shipped = place.ship(writer, backend)
    assert (shipped.off, shipped.spans, backend.requests) == (2, 0, [])
    file.unlink()
    writer.turn("Question 3.", "Answer 3.")
    place.ship(writer, backend)
    assert turns(backend) == ["Turn 3"]


@pytest.mark.parametrize("text", ["enabled = ", "\xff"])
def test_a_project_file_that_cannot_be_read_is_a_wish_for_privacy(place, tmp_path, text):
    """Nothing is exported."""
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "turnspan.toml").write_bytes(text.encode("latin-1"))
    backend = Recording()
    assert place.ship(writer_of(1, cwd=str(tmp_path)), backend).off == 1
    assert backend.requests == []


@pytest.mark.parametrize(("cwd", "is_off"), [("/srv/private/deep", True), ("/srv/private", True), ("/srv/open", False)])
def test_a_pattern_switches_working_directories_off(place, cwd, is_off):
    """`off` names directories and all below them."""
    place.configure('off = ["/srv/private/**"]')
    backend = Recording()
    place.ship(writer_of(1, cwd=cwd), backend)
    assert (backend.requests == []) == is_off


def test_a_session_that_was_switched_off_stays_off(place):
    """Nothing of it is exported, whatever the ending."""
    writer, backend = writer_of(1), Recording()
    state.save(place.config.home, state.Checkpoint(session_id=writer.session, is_off=True))
    assert place.ship(writer, backend).off == 1
    assert backend.requests == []


@pytest.mark.parametrize("cwd", ["/srv/a\0b", "/srv/\ud800", "relative", "/" + "x" * 5000])
def test_no_working_directory_can_hurt_us(place, cwd):
    """An impossible working directory has no project file: the session is exported."""
    writer, backend = writer_of(1, cwd="@"), Recording()
    path = writer.save(place.project)
    path.write_bytes(path.read_bytes().replace(b'"@"', json.dumps(cwd).encode()))
    shipped = ship(session_at(path), target_for(place.config, backend), OVER, lambda: NOW_S)
    assert shipped.is_complete
    assert place.cursor(writer).progress.main.offset == path.stat().st_size


# ---- what others look at


def test_a_session_of_which_nothing_is_left_is_marked_as_seen(place):
    """Who looks for sessions left behind need not open it; an unsealed turn is looked at again."""
    writer, backend = writer_of(1), Recording()
    writer.prompt("And?")
    place.ship(writer, backend, ending=Ending())
    assert place.cursor(writer).seen_bytes == 0
    writer.say("Then.")
    place.ship(writer, backend)
    assert place.cursor(writer).seen_bytes == (place.project / f"{writer.session}.jsonl").stat().st_size


def test_a_session_that_was_not_written_to_is_not_read_again(place):
    """An event that finds the sizes unchanged reads nothing; at the session's end, or after a time, the files are read."""
    writer, backend = writer_of(2), Recording()
    place.ship(writer, backend)
    writer.rows[0]["message"]["content"] = "Question 9."  # as long as before: only a look inside shows it
    assert not place.ship(writer, backend, ending=Ending(is_stopped=True)).is_rewritten
    assert place.ship(writer, backend, ending=Ending(now_ns=int(NOW_S * 1e9))).is_rewritten


@pytest.mark.parametrize("is_flat", [False, True])
def test_an_agent_that_continues_alone_is_read(place, is_flat):
    """Its session's own file stays as it is."""
    writer, backend = Writer(), Recording()
    writer.prompt("Go.")
    call = writer.call("Agent", {"prompt": "Go far.", "run_in_background": True})
    writer.result(call, "agentId: a1", outcome={"isAsync": True, "status": "async_launched", "agentId": "a1"})
    writer.say("Started.")
    agent = agent_writer(writer, "a1")
    agent.turn("Go far.", "Been far.")
    save_agent(agent, place.project, "a1", flat=is_flat)
    stopped = Ending(is_stopped=True, finished_agents=("a1",))
    place.ship(writer, backend, ending=stopped)
    assert place.cursor(writer).seen_bytes
    assert place.ship(writer, backend, ending=stopped).spans == 0
    agent.turn("Go on.", "Been on.")
    save_agent(agent, place.project, "a1", flat=is_flat)
    assert place.ship(writer, backend, ending=stopped).spans == 2
    assert backend.twice == []


def test_the_state_holds_no_content(place):
    """Places and names, never words."""
    writer = writer_of(1)
    writer.turn("Tell me of Rumpelstiltskin.", "He spun straw into gold.")
    place.ship(writer, Recording(refusing("Turn 1")))
    raw = (place.config.home / "state" / f"{writer.session}.json").read_bytes()
    assert b"quarantined" in raw
    assert b"Rumpel" not in raw
    assert b"straw" not in raw
    assert msgspec.json.decode(raw)["version"] == state.VERSION


def test_two_rounds_add_up():
    """Counts are added; whether it is complete, and what is open, is as after the later round."""
    first = Shipped(
        "otlp", turns=1, spans=2, cut=1, masked={"jwt": 1}, kept_as="x", is_rewritten=True, has_unsealed=True
    )
    later = Shipped("otlp", turns=2, spans=3, masked={"jwt": 2, "aws": 1}, held_until_s=5.0)
    both = first + later
    assert (both.turns, both.spans, both.cut, both.masked) == (3, 5, 1, {"jwt": 3, "aws": 1})
    assert (both.kept_as, both.is_rewritten, both.has_unsealed, both.is_complete) == ("x", True, False, False)
    assert (Shipped("otlp", stopped=LATER) + Shipped("otlp")).stopped == LATER
