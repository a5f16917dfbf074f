"""`turnspan forget` deletes a session here, in local files and in Langfuse, and it is never exported again."""

import json
import os
import subprocess
import sys
import time

import pytest
from backends.langfuse_records import observation
from backends.servers import OK, HttpServer, reply
from rows import Writer

from turnspan.backends import local
from turnspan.backends.local_erase import erase
from turnspan.delivery import marks, state
from turnspan.delivery.destinations import Target
from turnspan.delivery.ship import ship
from turnspan.settings.config import load_config
from turnspan.source.progress import Ending
from turnspan.source.sessions import session_at

ONE = "11110000-0000-4000-8000-000000000001"
TWO = "22220000-0000-4000-8000-000000000001"
SECRET = "sk-lf-0123456789abcdef"
DELETED = reply(200, b'{"message": "Traces deleted successfully"}')


@pytest.fixture
def place(tmp_path, monkeypatch):
    """Return an empty home, without the settings of this machine."""
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
            shipped.append(ship(session_at(path), target, Ending(is_over=True), time.time, **options))
            target.close()
        return shipped

    def sessions_in_files(self):
        """Return the number of spans of each session in the local files."""
        found = {}
        for span in local.read_spans(self.traces):
            session = span["attributes"]["session.id"]
            found[session] = found.get(session, 0) + 1
        return found


@pytest.fixture
def turnspan(place, command):
    """Return the command line and the home it works in."""
    command.place = place
    return command


def langfuse(monkeypatch, server):
    """Configure a Langfuse server."""
    monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk-lf-1")
    monkeypatch.setenv("LANGFUSE_SECRET_KEY", SECRET)
    monkeypatch.setenv("LANGFUSE_BASE_URL", server.url)


class Langfuse(HttpServer):
    """A server that accepts traces, lists those of a session, and deletes them."""

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


def test_a_forgotten_session_is_not_exported_again(turnspan):
    """Its state and local traces are deleted, those of others stay; the output says that it is switched off."""
    place = turnspan.place
    one, two = place.session(ONE), place.session(TWO)
    place.ship(one)
    place.ship(two)
    marks.leave_mark(place.home, ONE, {"event": "Stop"})
    (place.home / "state" / f"{ONE}.json.corrupt-1").write_text("{")
    assert place.sessions_in_files() == {ONE: 4, TWO: 4}
    code, out, err = turnspan("forget", "1111", "--yes")
    assert (code, err) == (0, "")
    assert "turnspan's state of the session: deleted" in out
    assert "local: deleted 2 lines" in out
    assert f"session {ONE} is now disabled and will not be exported again" in out
    assert f"transcript kept: {one}" in out
    assert place.sessions_in_files() == {TWO: 4}
    assert one.exists()
    kept = sorted(path.name for path in (place.home / "state").iterdir() if path.name.startswith(ONE))
    assert kept == [f"{ONE}.json"]
    assert state.peek(place.home, ONE) == state.Checkpoint(session_id=ONE, transcript=str(one), is_off=True)
    [shipped] = place.ship(one)
    assert (shipped.spans, shipped.off) == (0, 1)
    assert turnspan("backfill", "--json")[0] == 0
    assert place.sessions_in_files() == {TWO: 4}
    assert json.loads(turnspan("sessions", "--json", "--limit", "9")[1].splitlines()[-1])["session_id"] in {ONE, TWO}
    assert "disabled" in turnspan("show", ONE)[2]


def test_forget_can_be_repeated(turnspan):
    """A second run deletes the rest, and finding nothing is not an error."""
    turnspan.place.ship(turnspan.place.session(ONE))
    assert turnspan("forget", ONE, "--yes")[0] == 0
    code, out, _ = turnspan("forget", ONE, "--yes")
    assert code == 0
    assert "local: no traces of the session" in out


def test_a_session_whose_transcript_was_deleted(turnspan):
    """The state still has its id, and its traces name the session."""
    place = turnspan.place
    path = place.session(ONE)
    place.ship(path)
    place.ship(place.session(TWO))
    path.unlink()
    assert turnspan("forget", "1111", "--yes")[0] == 0
    assert place.sessions_in_files() == {TWO: 4}


@pytest.mark.parametrize("name", ["zzzz", "", "../../x"])
def test_an_unknown_session_is_an_error(turnspan, name):
    """One sentence, and nothing is touched."""
    turnspan.place.session(ONE)
    code, out, err = turnspan("forget", name, "--yes")
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert not turnspan.place.home.exists()


def test_an_ambiguous_prefix_is_an_error(turnspan):
    """Even if only one of the sessions has a state."""
    place = turnspan.place
    place.ship(place.session(ONE))
    place.session(ONE.replace("1111", "1112"))
    code, _, err = turnspan("forget", "111", "--yes")
    assert code == 1
    assert "2 sessions begin with '111'" in err
    assert place.sessions_in_files() == {ONE: 4}


def test_a_script_needs_yes(turnspan):
    """Without a terminal, --yes is required."""
    turnspan.place.ship(turnspan.place.session(ONE))
    code, _, err = turnspan("forget", ONE)
    assert code == 1
    assert "--yes" in err
    assert turnspan.place.sessions_in_files() == {ONE: 4}


@pytest.mark.parametrize(("typed", "is_deleted"), [(b"y\n", True), (b"\n", False), (b"n\n", False)])
def test_a_terminal_gets_a_prompt(place, typed, is_deleted):
    """The prompt names what will be deleted; no is the default."""
    place.ship(place.session(ONE))
    pty = pytest.importorskip("pty", reason="POSIX only")
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
    assert (process.wait(20) == 0) is is_deleted
    assert (place.sessions_in_files() == {}) is is_deleted
    os.close(ours)


def test_forget_waits_for_a_worker(place):
    """While a worker holds the lock of the session, nothing is deleted."""
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


def test_files_and_indexes_stay_consistent(turnspan):
    """Deleted lines are in none of the files; the other traces are not written a second time."""
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
    # After lost state the same traces are sent again: the index still has them.
    (place.home / "state" / f"{TWO}.json").unlink()
    place.ship(two)
    again = [line for path in sorted(place.traces.glob("*.jsonl")) for line in path.read_bytes().splitlines()]
    assert again == kept


def test_a_torn_line_of_the_session_is_deleted(place):
    """Half a line, as a crash may leave it, holds content as well."""
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
    """Not even their modification times change."""
    place.ship(place.session(TWO))
    before = {path.name: path.stat().st_mtime_ns for path in place.traces.glob("traces-*")}
    assert erase(place.traces, ONE, ()) == 0
    assert {path.name: path.stat().st_mtime_ns for path in place.traces.glob("traces-*")} == before
    assert erase(place.home / "nowhere", ONE, ()) == 0


# ---- Langfuse


@pytest.mark.parametrize("version", [3, 4])
@pytest.mark.parametrize("is_there", [True, False], ids=["with its transcript", "without"])
def test_langfuse_deletes_the_traces(turnspan, monkeypatch, version, is_there):
    """Every trace of the session, by derived ids and by those that Langfuse lists; none of another session."""
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
def test_a_failed_deletion_is_reported(turnspan, monkeypatch, answer, words):
    """Exit code 1 and the reason; the session is switched off anyway, and the same command retries."""
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
    """The failure is reported with exit code 1."""
    with Langfuse() as server:
        langfuse(monkeypatch, server)
        turnspan.place.ship(turnspan.place.session(ONE))
    code, out, _ = turnspan("forget", ONE, "--yes")
    assert code == 1
    assert "deleting failed" in out


def test_a_destination_that_cannot_delete_is_reported(turnspan, monkeypatch):
    """OTLP has no way to delete; a destination that is no longer configured cannot be asked."""
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
