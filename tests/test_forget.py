"""A session is forgotten: here, in files, and in Langfuse; and it does not come back."""

import json
import os
import pty
import subprocess
import sys
import time

import pytest
from backends.langfuse_records import observation
from backends.servers import OK, HttpServer, reply
from rows import Writer

from turnspan.backends import local
from turnspan.backends.local_erase import erase
from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.settings.config import load_config
from turnspan.ship import ship
from turnspan.source.progress import Ending
from turnspan.source.sessions import session_at

ONE = "11110000-0000-4000-8000-000000000001"
TWO = "22220000-0000-4000-8000-000000000001"
SECRET = "sk-lf-0123456789abcdef"
DELETED = reply(200, b'{"message": "Traces deleted successfully"}')


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A home of its own; nothing of this machine's settings."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


class Place:
    def __init__(self, base):
        self.projects = base / "claude" / "projects" / "-p"
        self.home = base / "claude" / "turnspan"
        self.traces = self.home / "traces"

    def session(self, session, turns=2):
        """Write a session."""
        writer = Writer(session=session, tag=session[:2])
        for number in range(turns):
            writer.turn(f"question {number} about {TWO if session == ONE else ONE}", "Answer.")
        return writer.save(self.projects)

    def ship(self, path, **options):
        """Send a session everywhere."""
        config = load_config(os.environ)
        shipped = []
        for destination in config.destinations:
            target = Target(destination, config)
            shipped.append(ship(session_at(path), target, config, Ending(is_over=True), time.time, **options))
            target.close()
        return shipped

    def sessions_in_files(self):
        """The sessions that have spans in the local files, and how many."""
        found = {}
        for span in local.read_spans(self.traces):
            session = span["attributes"]["session.id"]
            found[session] = found.get(session, 0) + 1
        return found


@pytest.fixture
def turnspan(place, command):
    """The command line, and the home it works in."""
    command.place = place
    return command


def langfuse(monkeypatch, server):
    """Name a Langfuse server."""
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", SECRET)
    monkeypatch.setenv("LANGFUSE_BASE_URL", server.url)


class Langfuse(HttpServer):
    """Takes traces, says which it has of a session, and deletes them."""

    def __init__(self, version=4, delete=DELETED):
        self.traces = {}
        self.version = version
        self.delete = delete
        super().__init__(self.serve)

    def serve(self, connection, request):
        path, _, query = request.path.partition("?")
        if request.method == "POST":
            for span in request.spans:
                self.traces.setdefault(span["attributes"]["session.id"], set()).add(span["trace_id"])
            return connection.sendall(OK)
        if request.method == "DELETE":
            if b" 200 " in self.delete:
                for ids in self.traces.values():
                    ids.difference_update(json.loads(request.body)["traceIds"])
            return connection.sendall(self.delete)
        options = dict(item.split("=") for item in query.split("&"))
        held = sorted(self.traces.get(options["sessionId"], ()))
        if path == "/api/public/v2/observations" and self.version >= 4:
            at = int(options.get("cursor", 0))  # two traces a page, each with two observations
            data = [observation("x", trace_id) for trace_id in held[at : at + 2] for _ in range(2)]
            return self.answer(connection, data, {"cursor": str(at + 2)} if at + 2 < len(held) else {})
        if path == "/api/public/traces" and self.version < 4:
            page = int(options["page"])
            data = [{"id": trace_id} for trace_id in held[2 * page - 2 : 2 * page]]
            return self.answer(connection, data, {"page": page, "totalPages": -(-len(held) // 2)})
        return connection.sendall(reply(404))

    @staticmethod
    def answer(connection, data, meta):
        connection.sendall(reply(200, json.dumps({"data": data, "meta": meta}).encode()))


# ---- here


def test_a_session_is_forgotten_and_stays_so(turnspan):
    """State and local traces are gone, others stay; nothing sends it again, and that is said."""
    place = turnspan.place
    one, two = place.session(ONE), place.session(TWO)
    place.ship(one)
    place.ship(two)
    state.leave_mark(place.home, ONE, {"event": "Stop"})
    (place.home / "state" / f"{ONE}.json.corrupt-1").write_text("{")
    assert place.sessions_in_files() == {ONE: 4, TWO: 4}
    code, out, err = turnspan("forget", "1111", "--yes")
    assert (code, err) == (0, "")
    assert "turnspan's state of the session: deleted" in out
    assert "local: deleted 2 lines" in out
    assert f"session {ONE} is switched off now, and will not be exported again" in out
    assert f"its transcript stays: {one}" in out
    assert place.sessions_in_files() == {TWO: 4}
    assert one.exists()
    left = sorted(path.name for path in (place.home / "state").iterdir() if path.name.startswith(ONE))
    assert left == [f"{ONE}.json"]
    assert state.peek(place.home, ONE) == state.Checkpoint(session_id=ONE, transcript=str(one), is_off=True)
    [shipped] = place.ship(one)
    assert (shipped.spans, shipped.off) == (0, 1)
    assert turnspan("backfill", "--json")[0] == 0
    assert place.sessions_in_files() == {TWO: 4}
    assert json.loads(turnspan("sessions", "--json", "--limit", "9")[1].splitlines()[-1])["session_id"] in {ONE, TWO}
    assert "switched off" in turnspan("show", ONE)[2]


def test_it_can_be_done_again(turnspan):
    """Whatever is left to forget is; and there is nothing wrong with nothing."""
    turnspan.place.ship(turnspan.place.session(ONE))
    assert turnspan("forget", ONE, "--yes")[0] == 0
    code, out, _ = turnspan("forget", ONE, "--yes")
    assert code == 0
    assert "local: no traces of the session" in out


def test_a_session_whose_transcript_is_gone(turnspan):
    """Its state still names it, and its traces its session."""
    place = turnspan.place
    path = place.session(ONE)
    place.ship(path)
    place.ship(place.session(TWO))
    path.unlink()
    assert turnspan("forget", "1111", "--yes")[0] == 0
    assert place.sessions_in_files() == {TWO: 4}


@pytest.mark.parametrize("name", ["zzzz", "", "../../x"])
def test_what_is_no_session_is_refused(turnspan, name):
    """One sentence, and nothing is touched."""
    turnspan.place.session(ONE)
    code, out, err = turnspan("forget", name, "--yes")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert not turnspan.place.home.exists()


def test_a_name_that_could_mean_two_is_refused(turnspan):
    """Also when only one of them is known to turnspan."""
    place = turnspan.place
    place.ship(place.session(ONE))
    place.session(ONE.replace("1111", "1112"))
    code, _, err = turnspan("forget", "111", "--yes")
    assert code == 1
    assert "2 sessions begin with '111'" in err
    assert place.sessions_in_files() == {ONE: 4}


def test_nobody_is_there_to_be_asked(turnspan):
    """In a script it must be said that it is meant."""
    turnspan.place.ship(turnspan.place.session(ONE))
    code, _, err = turnspan("forget", ONE)
    assert code == 1
    assert "--yes" in err
    assert turnspan.place.sessions_in_files() == {ONE: 4}


@pytest.mark.parametrize(("typed", "is_gone"), [(b"y\n", True), (b"\n", False), (b"n\n", False)])
def test_a_person_is_asked(place, typed, is_gone):
    """On a terminal it says what it is about to delete; no is the default."""
    place.ship(place.session(ONE))
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from turnspan.cli import main; main()", "forget", ONE],
        stdin=theirs, stdout=theirs, stderr=theirs, env={**os.environ, "TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    said = b""
    while b"[y/N]" not in said:
        said += os.read(ours, 4096)
    assert ONE.encode() in said
    assert b"local" in said
    os.write(ours, typed)
    try:
        while chunk := os.read(ours, 4096):
            said += chunk
    except OSError:  # the other end is closed
        pass
    assert (process.wait(20) == 0) is is_gone
    assert (place.sessions_in_files() == {}) is is_gone
    os.close(ours)


def test_somebody_else_is_sending_it(place):
    """A worker that has the session is waited for."""
    place.ship(place.session(ONE))
    command = [sys.executable, "-c", "from turnspan.cli import main; main()", "forget", ONE, "--yes"]
    with state.lock(place.home, ONE):
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.6)
        assert place.sessions_in_files() == {ONE: 4}
    process.communicate(timeout=20)
    assert process.returncode == 0
    assert place.sessions_in_files() == {}


# ---- files


def test_files_stay_in_order_and_known(turnspan):
    """What is taken out leaves no trace in any of the files; the rest is not sent a second time."""
    place = turnspan.place
    config = place.home / "config.toml"
    place.home.mkdir(parents=True, mode=0o700)
    config.write_text("[destinations.local]\nmax_file_bytes = 3000\n")
    config.chmod(0o600)
    for turns in (2, 5, 7):  # each delivery begins a file
        one, two = place.session(ONE, turns), place.session(TWO, turns)
        place.ship(one)
        place.ship(two)
    names = sorted(path.name for path in place.traces.glob("*.jsonl"))
    assert len(names) == 6
    before = [line for name in names for line in (place.traces / name).read_bytes().splitlines()]
    assert turnspan("forget", ONE, "--yes")[0] == 0
    after = [line for name in names for line in (place.traces / name).read_bytes().splitlines()]
    kept = [line for line in before if f'"session.id","value":{{"stringValue":"{TWO}"'.encode() in line]
    assert after == kept
    assert sorted(path.name for path in place.traces.glob("*.jsonl")) == names
    assert all(path.stat().st_mode & 0o077 == 0 for path in place.traces.iterdir())
    assert [path.name for path in place.traces.glob("*.tmp")] == []
    # A second delivery of what is there, after lost state: the index still knows it.
    (place.home / "state" / f"{TWO}.json").unlink()
    place.ship(two)
    again = [line for path in sorted(place.traces.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    assert again == kept


def test_a_torn_line_of_the_session_goes_too(place):
    """Half a line that a crash left behind holds content as well."""
    place.ship(place.session(ONE))
    place.ship(place.session(TWO))
    path = place.traces / "traces-000001.jsonl"
    line = next(
        line for line in path.read_bytes().splitlines() if ONE.encode() in line.partition(b"session.id")[2][:80]
    )
    with path.open("ab") as file:
        file.write(line[: len(line) * 3 // 4])
    assert erase(place.traces, ONE, ()) == 3
    assert place.sessions_in_files() == {TWO: 4}


def test_files_without_the_session_are_not_touched(place):
    """Not even their times change."""
    place.ship(place.session(TWO))
    before = {path.name: path.stat().st_mtime_ns for path in place.traces.glob("traces-*")}
    assert erase(place.traces, ONE, ()) == 0
    assert {path.name: path.stat().st_mtime_ns for path in place.traces.glob("traces-*")} == before
    assert erase(place.home / "nowhere", ONE, ()) == 0


# ---- Langfuse


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("is_there", [True, False], ids=["with its transcript", "without"])
def test_langfuse_is_told_to_delete(turnspan, monkeypatch, version, is_there):
    """Every trace of the session, by what is derived and by what Langfuse says it has; and of no other."""
    with Langfuse(version) as server:
        langfuse(monkeypatch, server)
        one, two = turnspan.place.session(ONE, turns=5), turnspan.place.session(TWO)
        turnspan.place.ship(one)
        turnspan.place.ship(two)
        if not is_there:
            one.unlink()
        code, out, _ = turnspan("forget", ONE, "--yes")
        assert code == 0
        assert "langfuse: deleted 5 traces (Langfuse deletes asynchronously)" in out
        assert server.traces[ONE] == set()
        assert len(server.traces[TWO]) == 2
        assert all(request.headers.get("authorization") for request in server.requests)
        assert SECRET not in out


@pytest.mark.parametrize(
    ("answer", "words"),
    [(reply(401, SECRET.encode()), "refused the credentials"), (reply(500), "HTTP 500"), (reply(302), "redirect")],
    ids=["401", "500", "redirect"],
)
def test_langfuse_that_does_not_delete_is_told(turnspan, monkeypatch, answer, words):
    """Exit code 1, the reason, and the session is off all the same; the same command tries again."""
    with Langfuse(delete=answer) as server:
        langfuse(monkeypatch, server)
        turnspan.place.ship(turnspan.place.session(ONE))
        code, out, _ = turnspan("forget", ONE, "--yes")
        assert code == 1
        assert "langfuse: deleting failed: " in out
        assert words in out
        assert SECRET not in out
        assert state.peek(turnspan.place.home, ONE).is_off
        server.delete = DELETED
        assert turnspan("forget", ONE, "--yes")[0] == 0
        assert server.traces[ONE] == set()


def test_langfuse_that_is_down(turnspan, monkeypatch):
    """It is told, and nothing else is lost."""
    with Langfuse() as server:
        langfuse(monkeypatch, server)
        turnspan.place.ship(turnspan.place.session(ONE))
    code, out, _ = turnspan("forget", ONE, "--yes")
    assert code == 1
    assert "deleting failed" in out


def test_a_destination_that_cannot_delete_is_named(turnspan, monkeypatch):
    """OTLP knows no way to delete; and what is not configured here cannot be asked."""
    with HttpServer() as server:
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", server.url)
        path = turnspan.place.session(ONE)
        turnspan.place.ship(path)
        code, out, _ = turnspan("forget", ONE, "--yes")
        assert code == 1
        assert f"otlp: cannot delete, traces sent to {server.url} stay there" in out
        (turnspan.place.home / "state" / f"{ONE}.json").unlink()
        turnspan.place.ship(path)
    monkeypatch.delenv("TURNSPAN_OTLP_ENDPOINT")
    code, out, _ = turnspan("forget", ONE, "--yes")
    assert code == 1
    assert "not configured here, its traces of the session were not deleted" in out
