"""`verify` finds exactly what is missing at a destination, and `--repair` sends exactly that."""

import json
import os
import random
import shutil
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
import pytest
from backends.langfuse_records import observation
from backends.servers import OK, HttpServer, partial_success, reply, reset
from rows import Writer

from turnspan.backends import reader_of
from turnspan.backends.jaeger import JaegerBackend
from turnspan.backends.local import read_spans
from turnspan.bulk.recount import Recount, recount
from turnspan.bulk.repair import repair
from turnspan.bulk.report import Verified, verify_lines
from turnspan.bulk.retention import Period, cleanup_period, expiring
from turnspan.bulk.verify import check
from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.delivery.ship import ship
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.sessions import all_sessions

FIXTURES = Path(__file__).parents[2] / "fixtures"
RECORDINGS = Path(__file__).parents[3] / "shared" / "corpus"  # if they are there
GENERATOR = Path(__file__).parents[2] / "benchmarks" / "generate.py"
START = "from turnspan.cli import main; main()"
SEED = 20
DAY_S = 86400


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A generated archive of a few sessions."""
    out = tmp_path_factory.mktemp("archive") / "claude"
    command = [sys.executable, GENERATOR, out, "--megabytes", "0.6", "--sessions", "5", "--seed", "11"]
    subprocess.run(command, check=True, capture_output=True)
    return out


@pytest.fixture
def claude(made, tmp_path):
    """A Claude home with a copy of the archive."""
    shutil.copytree(made / "projects", tmp_path / "claude" / "projects")
    return tmp_path / "claude"


def environment(claude, **more):
    """An environment without this machine's settings, with CLAUDE_CONFIG_DIR set."""
    ours = ("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_", "CLAUDE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    return {**kept, "CLAUDE_CONFIG_DIR": str(claude), **more}


def turnspan(claude, *arguments, **more):
    """Run a command; return its exit code and stdout."""
    done = subprocess.run(
        [sys.executable, "-c", START, *arguments], env=environment(claude, **more), capture_output=True, text=True,
        check=False, timeout=120,
    )  # fmt: skip
    return done.returncode, done.stdout


class Place:
    """One destination to send to and to query."""

    def __init__(self, claude, *, query_url=None, **more):
        self.config = load_config(environment(claude, **more))
        destination = self.config.destinations[0]
        if query_url is not None:
            options = {**destination.options, "query_url": query_url}
            destination = msgspec.structs.replace(destination, options=options)
        self.target = Target(destination, self.config)
        self.sessions = list(all_sessions(claude / "projects"))

    def ask(self):
        """What can be asked, without waiting long for an answer."""
        return reader_of(self.target.backend, sleep=lambda _: None)

    def ship(self, session, *, ago_s=0, **ending):
        """Send a session, a while ago."""
        return ship(session, self.target, Ending(**(ending or {"is_over": True})), lambda: time.time() - ago_s)

    def check(self):
        """Every session, compared."""
        holdings = self.ask()
        return [check(session, self.target, self.config, holdings, time.time_ns()) for session in self.sessions]

    def repair(self):
        """Repair every session; return the number of spans sent."""
        holdings = self.ask()
        done = [repair(session, self.target, self.config, holdings) for session in self.sessions]
        return sum(shipped.spans for one in done for shipped in one)


def spans_of(server):
    """Every span that a server received, in order."""
    return [span for request in server.requests if request.method == "POST" for span in request.spans]


def stored(directory):
    """The ids in the local files."""
    return {(span["trace_id"], span["span_id"]) for span in read_spans(directory)}


def delete_from_files(directory, lost):
    """Delete spans from the local files."""
    for path in sorted(directory.glob("*.jsonl")):
        kept = []
        for line in path.read_bytes().splitlines():
            request = json.loads(line)
            for block in request["resourceSpans"]:
                for scope in block["scopeSpans"]:
                    scope["spans"] = [s for s in scope["spans"] if (s["traceId"], s["spanId"]) not in lost]
            if any(scope["spans"] for block in request["resourceSpans"] for scope in block["scopeSpans"]):
                kept.append(json.dumps(request).encode() + b"\n")
        path.write_bytes(b"".join(kept))


def test_every_deletion_from_the_files_is_found_and_repaired(claude):
    """`verify` lists exactly the deleted spans, and --repair restores exactly those."""
    traces = claude / "turnspan" / "traces"
    assert turnspan(claude, "backfill")[0] == 0
    complete = stored(traces)
    code, out = turnspan(claude, "verify")
    assert code == 0
    assert "local: complete (5 sessions, " in out
    lost = set(random.Random(SEED).sample(sorted(complete), len(complete) // 7))
    delete_from_files(traces, lost)
    code, out = turnspan(claude, "verify", "--json")
    record = json.loads(out)
    named = {span for difference in record["differences"] for span in difference["lost"]}
    assert code == 1
    assert named == {span for _, span in lost}
    assert record["destinations"]["local"]["missing_spans"] == len(lost)
    assert record["destinations"]["local"]["expected"] == record["destinations"]["local"]["acknowledged"]
    assert record["destinations"]["local"]["stored"] != record["destinations"]["local"]["expected"]
    assert turnspan(claude, "verify", "--repair")[0] == 0
    assert stored(traces) == complete
    assert sum(line.count('"spanId"') for path in traces.glob("*.jsonl") for line in path.open()) == sum(
        len(span["links"]) + 1 for span in read_spans(traces)
    ), "a span is in the files twice"
    assert turnspan(claude, "verify")[0] == 0


def test_what_a_session_got_since_it_was_sent_is_missing_until_it_is_repaired(claude):
    """A turn that no event reported is found by `verify`, and sent by --repair: its session has been begun."""
    assert turnspan(claude, "backfill")[0] == 0
    session = Writer(session="5e55104a-0000-4000-8000-000000000042", tag="b")
    for number in (1, 2):
        session.turn(f"Question {number}.", "Answer.")
        session.save(claude / "projects" / "-home-ada-loom")
        if number == 1:
            assert turnspan(claude, "backfill")[0] == 0
    code, out = turnspan(claude, "verify", "--json")
    (difference,) = json.loads(out)["differences"]
    assert code == 1
    assert difference["unsent"]
    assert not difference["lost"]
    code, out = turnspan(claude, "verify", "--repair")
    assert code == 0
    assert "sent now" in out
    assert turnspan(claude, "verify")[0] == 0


def test_an_empty_selection_is_reported(claude):
    """A misspelt id or project must not look like "complete"."""
    command = [sys.executable, "-c", START, "verify", "--session", "misspelt"]
    done = subprocess.run(command, env=environment(claude), capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "no sessions to compare\n")


def test_a_transcript_that_cannot_be_read_is_not_complete(claude):
    """What to expect of it is unknown: it is named, and the exit code is 1."""
    assert turnspan(claude, "backfill")[0] == 0
    (claude / "projects" / "-home-ada-loom" / "5e55104a.jsonl").mkdir(parents=True)
    code, out = turnspan(claude, "verify")
    assert (code, out.count("cannot be read: 5e55104a: ")) == (1, 1)
    code, out = turnspan(claude, "verify", "--json")
    assert (code, json.loads(out)["is_complete"], list(json.loads(out)["failed"])) == (1, False, ["5e55104a"])


def test_a_project_that_cannot_be_listed_is_not_complete(claude):
    """It is named by verify and retention; the other projects are compared."""
    assert turnspan(claude, "backfill")[0] == 0
    (claude / "projects" / "circle").symlink_to("circle")
    for asked in ("verify", "retention"):
        code, out = turnspan(claude, asked)
        assert (code, out.count("cannot be read: circle: cannot list ")) == (1, 1)
        code, out = turnspan(claude, asked, "--json")
        assert (code, list(json.loads(out)["failed"])) == (1, ["circle"])


class Langfuse:
    """A fake Langfuse that stores spans and lists them; `version` 3 does not have the newer endpoint."""

    def __init__(self, version):
        self.version = version
        self.held = {}  # trace id → span ids
        self.is_down = False
        self.is_silent = False  # it stores every second span and closes the connection without a response

    def __call__(self, connection, request):
        """Answer a request."""
        url = urlsplit(request.path)
        if request.method == "POST":
            for span in request.spans[:: 2 if self.is_silent else 1]:
                self.held.setdefault(span["trace_id"], set()).add(span["span_id"])
            return reset(connection) if self.is_silent else connection.sendall(OK)
        asked = parse_qs(url.query)
        is_newer = url.path == "/api/public/v2/observations"
        if self.is_down or (is_newer and self.version == 3):
            return connection.sendall(reply(503 if self.is_down else 404))
        assert not is_newer or asked["fields"] == ["core"]
        ids = sorted(self.held.get(asked["traceId"][0], ()))
        body = {"data": [observation(one) for one in ids], "meta": {"totalPages": 1}}
        return connection.sendall(reply(200, json.dumps(body).encode(), "application/json"))


@pytest.mark.parametrize("version", [3, 4])
def test_langfuse_is_queried(claude, version):
    """Spans that Langfuse lost are found through its API, of either version, and only those are sent again."""
    langfuse = Langfuse(version)
    with HttpServer(langfuse) as server:
        place = Place(
            claude, LANGFUSE_BASE_URL=server.url, LANGFUSE_PUBLIC_KEY="pk-lf-test", LANGFUSE_SECRET_KEY="sk-lf-test"
        )
        for session in place.sessions:
            assert place.ship(session, ago_s=3600).is_complete  # what was sent a minute ago may be in flight
        assert all(found.is_complete and found.stored == found.expected for found in place.check())
        complete = {trace: set(spans) for trace, spans in langfuse.held.items()}
        everything = sorted((trace, span) for trace, spans in complete.items() for span in spans)
        lost = set(random.Random(SEED).sample(everything, 9))
        for trace, span in lost:
            langfuse.held[trace].discard(span)
        found = {span.hex() for one in place.check() for span in one.lost}
        assert found == {span for _, span in lost}
        sent = len(spans_of(server))
        assert place.repair() == 9
        assert {(span["trace_id"], span["span_id"]) for span in spans_of(server)[sent:]} == lost
        assert langfuse.held == complete


@pytest.mark.parametrize("can_be_asked", [True, False])
def test_after_a_lost_response_langfuse_gets_what_it_does_not_have(claude, can_be_asked):
    """It is queried for each trace first, also by a later worker; if it does not answer, everything is sent again."""
    langfuse = Langfuse(4)
    with HttpServer(langfuse) as server:
        place = Place(
            claude, LANGFUSE_BASE_URL=server.url, LANGFUSE_PUBLIC_KEY="pk-lf-test", LANGFUSE_SECRET_KEY="sk-lf-test"
        )
        session = place.sessions[0]
        langfuse.is_silent = True
        assert not place.ship(session).is_complete
        asked = {(span["trace_id"], span["span_id"]) for span in spans_of(server)}
        kept = {(trace, span) for trace, spans in langfuse.held.items() for span in spans}
        assert kept < asked
        langfuse.is_silent, langfuse.is_down, sent = False, not can_be_asked, len(spans_of(server))
        for hold in (place.config.home / "state").glob(".hold-*"):
            hold.unlink()
        assert place.ship(session).is_complete
        again = [(span["trace_id"], span["span_id"]) for span in spans_of(server)[sent:]]
        assert sorted(again) == sorted(asked - kept if can_be_asked else asked)
        langfuse.is_down, sent = False, len(spans_of(server))
        assert all(found.is_complete for found in place.check() if found.session == session)
        assert place.ship(session).spans == 0
        assert len(spans_of(server)) == sent


def test_an_invalid_answer_counts_as_no_answer(claude):
    """If Langfuse's answer cannot be decoded, the session is unknown."""
    langfuse = Langfuse(4)
    with HttpServer(langfuse) as server:
        place = Place(
            claude,
            LANGFUSE_PUBLIC_KEY="pk-lf-0000",
            LANGFUSE_SECRET_KEY="sk-lf-00000000",
            LANGFUSE_BASE_URL=server.url,
        )
        for session in place.sessions:
            place.ship(session)
        server.answers = [reply(200, b'{"data":[{"id":"\xff"}]}', "application/json")]
        assert all(one.is_unknown and not one.missing for one in place.check())


def test_a_backend_that_does_not_answer_is_not_empty(claude):
    """Its sessions are unknown: nothing is sent, and it is not queried for every trace."""
    langfuse = Langfuse(4)
    with HttpServer(langfuse) as server:
        place = Place(
            claude, LANGFUSE_BASE_URL=server.url, LANGFUSE_PUBLIC_KEY="pk-lf-test", LANGFUSE_SECRET_KEY="sk-lf-test"
        )
        for session in place.sessions:
            place.ship(session)
        langfuse.is_down = True
        posts = len(spans_of(server))
        found = place.check()
        assert all(one.is_unknown and not one.is_complete and one.stored is None for one in found)
        assert {one.silence for one in found} == {"HTTP 503"}
        *_, said = verify_lines([Verified("langfuse", found[0])], {"langfuse": True}, {"langfuse": 0}, {})
        assert said.endswith("; no answer about 1 session: HTTP 503")
        assert place.repair() == 0
        assert len(spans_of(server)) == posts
        questions = [request for request in server.requests if request.method == "GET"]
        assert len(questions) <= 60


class Jaeger:
    """A fake Jaeger: accepts OTLP and answers the query its web page uses."""

    def __init__(self):
        self.held = {}

    def __call__(self, connection, request):
        """Answer a request."""
        if request.method == "POST":
            for span in request.spans:
                self.held.setdefault(span["trace_id"], set()).add(span["span_id"])
            return connection.sendall(OK)
        spans = self.held.get(request.path.removeprefix("/jaeger/api/traces/"))
        if not spans:
            return connection.sendall(reply(404, b'{"data":null,"errors":[]}', "application/json"))
        # Older servers leave out leading zeros.
        body = {"data": [{"traceID": "x", "spans": [{"spanID": span.lstrip("0"), "tags": []} for span in spans]}]}
        return connection.sendall(reply(200, json.dumps(body).encode(), "application/json"))


def test_jaeger_is_queried(claude):
    """Spans and traces that Jaeger lost are found through its query service and sent again."""
    jaeger = Jaeger()
    with HttpServer(jaeger) as server:
        place = Place(claude, query_url=f"{server.url}/jaeger", TURNSPAN_OTLP_ENDPOINT=server.url)
        assert isinstance(place.target.backend, JaegerBackend)
        for session in place.sessions:
            place.ship(session)
        assert all(one.is_complete and one.stored is not None for one in place.check())
        complete = {trace: set(spans) for trace, spans in jaeger.held.items()}
        dice = random.Random(SEED)
        first, second = dice.sample(sorted(complete), 2)
        lost = {(first, span) for span in jaeger.held.pop(first)} | {(second, min(complete[second]))}
        jaeger.held[second].discard(min(complete[second]))
        assert {span.hex() for one in place.check() for span in one.lost} == {span for _, span in lost}
        assert place.repair() == len(lost)
        assert jaeger.held == complete


def test_a_destination_that_cannot_be_queried_is_judged_by_its_acknowledgements(claude):
    """A plain collector cannot be queried: what it did not acknowledge is missing, and a repair sends it."""
    with HttpServer() as server:
        place = Place(claude, TURNSPAN_OTLP_ENDPOINT=server.url)
        for session in place.sessions[1:]:
            place.ship(session)
        found = place.check()
        assert place.ask() is None
        assert [one.is_complete for one in found] == [False, True, True, True, True]
        assert len(found[0].unsent) == found[0].spans
        assert found[0].acknowledged.turns == 0 < found[0].expected.turns
        assert place.repair() == found[0].spans
        assert all(one.is_complete for one in place.check())


def test_refused_spans_are_missing(tmp_path):
    """A quarantined span is listed as refused, not as sent."""
    session = Writer()
    for number in range(3):
        session.turn(f"question {number}", "poison" if number == 1 else "answer")
    session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")

    def picky(connection, request):
        is_bad = any("poison" in str(span["attributes"]) for span in request.spans)
        connection.sendall(reply(400, b"bad span") if is_bad else OK)

    with HttpServer(picky) as server:
        place = Place(tmp_path / "claude", TURNSPAN_OTLP_ENDPOINT=server.url)
        place.ship(place.sessions[0])
        (found,) = place.check()
        assert not found.is_complete
        assert found.refused
        assert not found.unsent
        assert not found.lost
        assert found.missing == len(found.refused) < found.spans


def test_spans_refused_without_ids_are_doubtful(tmp_path):
    """A partial success gives the number of refused spans, not their ids: the session is not complete."""
    claude = tmp_path / "claude"
    session = Writer()
    for number in range(5):
        session.turn(f"question {number}", "answer")
    session.save(claude / "projects" / "-home-ada-loom")
    with HttpServer(reply(200, partial_success(3, "too old"), "application/x-protobuf")) as server:
        code, out = turnspan(claude, "backfill", "--json", TURNSPAN_OTLP_ENDPOINT=server.url)
        record = json.loads(out)
        assert (code, record["refused"], record["spans"]) == (1, 3, len(spans_of(server)) - 3)
        code, out = turnspan(claude, "verify", TURNSPAN_OTLP_ENDPOINT=server.url)
        assert code == 1
        assert f"some of {len(spans_of(server))} spans refused" in out
        code, out = turnspan(claude, "verify", "--repair", "--json", TURNSPAN_OTLP_ENDPOINT=server.url)
        (difference,) = json.loads(out)["differences"]
        assert (code, len(difference["doubtful"]), difference["is_repaired"]) == (1, len(spans_of(server)), False)
        server.answers = [OK]
        assert turnspan(claude, "backfill", "--resend", TURNSPAN_OTLP_ENDPOINT=server.url)[0] == 0
        assert turnspan(claude, "verify", TURNSPAN_OTLP_ENDPOINT=server.url)[0] == 0


@pytest.mark.parametrize("is_named", [True, False])
def test_refused_spans_are_counted_however_they_were_refused(tmp_path, is_named):
    """With or without ids, and more than are kept: every command gives the number."""
    claude = tmp_path / "claude"
    session = Writer()
    for number in range(150):
        session.turn(f"question {number}", "answer")
    session.save(claude / "projects" / "-home-ada-loom")

    def picky(connection, request):
        spans = len(request.spans)
        refused = 0 if len(server.requests) == 1 else spans if is_named else spans - 1
        connection.sendall(reply(200, partial_success(refused, "too old"), "application/x-protobuf"))

    with HttpServer(picky) as server:
        home = claude / "turnspan"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(
            f'[destinations.otlp]\nendpoint = "{server.url}"\nmax_request_bytes = 60000\n'
        )
        (home / "config.toml").chmod(0o600)
        record = json.loads(turnspan(claude, "backfill", "--json")[1])
        taken, *others = (len(request.spans) for request in server.requests)
        refused = sum(others) if is_named else sum(others) - len(others)
        assert (record["refused"], record["spans"]) == (refused, 300 - refused)
        (there,) = json.loads(turnspan(claude, "status", "--json")[1])["destinations"]
        assert sum(refusal["spans"] for refusal in there["refused"]) == refused
        assert f"it rejected {refused} spans for good" in turnspan(claude, "doctor")[1]
        code, out = turnspan(claude, "verify", "--json")
        (difference,) = json.loads(out)["differences"]
        out = turnspan(claude, "verify")[1]
    assert code == 1
    if is_named:
        assert (len(difference["refused"]), difference["forgotten"]) == (200, refused - 200)
        assert f"200 refused, {refused - 200} more refused (ids not kept)" in out
        assert f"{refused} spans of 1 session missing" in out
        assert any("is not remembered" in refusal["reason"] for refusal in there["refused"])
    else:
        assert (difference["refused"], difference["forgotten"]) == ([], 0)
        assert len(difference["doubtful"]) == 300 - taken


@pytest.mark.parametrize("has_rows_behind", [False, True])
def test_a_turn_that_was_just_sent_is_verified(tmp_path, has_rows_behind):
    """A hook sends a turn immediately: verify knows that it has ended, and notices when it is lost.

    Also after the client has written its duration, which it does after the hook.
    """
    claude = tmp_path / "claude"
    session = Writer()
    session.now = datetime.now(UTC)
    session.turn("just now", "done")
    session.save(claude / "projects" / "-home-ada-loom")
    place = Place(claude)
    place.ship(place.sessions[0], is_stopped=True)
    if has_rows_behind:
        session.row("system", subtype="turn_duration", durationMs=1000)
        session.save(claude / "projects" / "-home-ada-loom")
    assert [one.expected.turns for one in place.check()] == [1]
    complete = stored(claude / "turnspan" / "traces")
    delete_from_files(claude / "turnspan" / "traces", complete)
    assert [len(one.lost) for one in place.check()] == [len(complete)]
    before = state.peek(claude / "turnspan", session.session).destinations[place.target.identity].progress
    place.repair()
    assert stored(claude / "turnspan" / "traces") == complete
    assert state.peek(claude / "turnspan", session.session).destinations[place.target.identity].progress == before


def test_nothing_is_sent_again_after_the_state_was_lost(claude):
    """Where the backend can be queried, its answer counts: the sessions are complete, and a repair sends nothing."""
    jaeger = Jaeger()
    with HttpServer(jaeger) as server:
        place = Place(claude, query_url=f"{server.url}/jaeger", TURNSPAN_OTLP_ENDPOINT=server.url)
        for session in place.sessions:
            place.ship(session)
            state.state_path(place.config.home, session.session_id).unlink()
        assert all(one.is_complete for one in place.check())
        trace = min(jaeger.held)
        lost = jaeger.held.pop(trace)
        assert place.repair() == len(lost)
        assert len(jaeger.held[trace]) == len(lost)


# ---- retention


def test_unsent_sessions_that_will_be_deleted_soon_are_listed(tmp_path):
    """Of two old sessions only the unsent one is listed; a recent one is not."""
    claude = tmp_path / "claude"
    now_s = time.time()
    for number, days in ((1, 27), (2, 28), (3, 2)):
        session = Writer(f"5e55104a-0000-4000-8000-{number:012}", tag=f"t{number}")
        session.turn("hello", "hello")
        path = session.save(claude / "projects" / "-home-ada-loom")
        os.utime(path, (now_s - days * DAY_S,) * 2)
    place = Place(claude)
    place.ship(place.sessions[1])
    config = place.config
    (found,) = expiring(config, config.destinations, 7, int(now_s * 1e9), {})
    assert found.session == place.sessions[0]
    assert 2.9 < found.days_left < 3.1
    assert found.unsent["local"].turns == 1
    assert list(expiring(config, config.destinations, 1, int(now_s * 1e9), {})) == []
    code, out = turnspan(claude, "retention", "--json")
    assert code == 1
    assert [one["session_id"] for one in json.loads(out)["expiring"]] == [found.session.session_id]
    place.ship(place.sessions[0])
    assert turnspan(claude, "retention") == (
        0, "no unsent transcript will be deleted in the next 7 days; Claude Code deletes transcripts after 30 days\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "days"),
    [
        ('{"cleanupPeriodDays": 99999}', 99999),
        ('{"cleanupPeriodDays": 0}', 0),
        ('{"cleanupPeriodDays": "7"}', 30),
        ('{"cleanupPeriodDays": true}', 30),
        ("{", 30),
        ("[]", 30),
        (None, 30),
    ],
)
def test_the_cleanup_period_is_read_from_claude_codes_settings(tmp_path, settings, days):
    """Without a valid value it is 30 days."""
    if settings is not None:
        (tmp_path / "settings.json").write_text(settings)
    assert cleanup_period(tmp_path, managed=()).days == days


def test_the_shortest_cleanup_period_counts(tmp_path):
    """Claude Code cleans up all projects by the settings of the one it starts in; managed settings override all."""
    claude, policy = tmp_path / "claude", tmp_path / "managed-settings.json"
    files = {}
    for number, name in enumerate(("loom", "spindle")):
        session = Writer(f"5e55104a-0000-4000-8000-{number:012}", tag=f"t{number}", cwd=str(tmp_path / name))
        session.turn("hello", "hello")
        path = session.save(claude / "projects" / f"-home-ada-{name}")
        os.utime(path, (time.time() - 5 * DAY_S,) * 2)
        (tmp_path / name / ".claude").mkdir(parents=True)
        files[name] = tmp_path / name / ".claude" / "settings.json"

    def says(path, days):
        path.write_text(json.dumps({"cleanupPeriodDays": days}))
        return Period(days, path)

    assert cleanup_period(claude, managed=()) == Period(30)
    own = says(claude / "settings.json", 3650)
    assert cleanup_period(claude, managed=()) == own
    shared = says(files["spindle"], 7)
    assert cleanup_period(claude, managed=()) == shared
    code, out = turnspan(claude, "retention")
    assert (code, out.count("2.0 d")) == (1, 2)
    assert f"after 7 days ({shared.source})" in out
    says(files["loom"], 9999)
    assert cleanup_period(claude, managed=()) == shared
    local = says(files["spindle"].with_name("settings.local.json"), 6)
    assert cleanup_period(claude, managed=()) == local
    ruled = says(policy, 9999)
    assert cleanup_period(claude, managed=(policy,)) == ruled


# ---- what the export does not recognise


def rows_of(*rows):
    """Return rows as the lines of a file, with spaces after the colons."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def test_responses_are_counted_independently(tmp_path):
    """Every message id and tool id of a model counts once, in all files of a session, however the JSON is written."""
    project = tmp_path / "-p"
    subagents = project / "5e55104a-0000-4000-8000-000000000001" / "subagents"
    subagents.mkdir(parents=True)
    said = {"id": "msg_1", "model": "m", "content": [{"type": "tool_use", "id": "toolu_1"}, {"type": "text"}]}
    (project / "5e55104a-0000-4000-8000-000000000001.jsonl").write_text(
        rows_of(
            {"type": "assistant", "message": said},
            {"message": said, "type": "assistant"},
            {"type": "assistant", "message": {"id": "msg_2", "model": "<synthetic>"}},
            {"type": "assistant", "isApiErrorMessage": True, "message": {"id": "msg_3", "model": "m"}},
            {"type": "user", "message": {"id": "msg_4", "role": "assistant"}},
            {"type": "progress", "data": {"message": {"type": "assistant", "message": {**said, "id": "msg_5"}}}},
            {"type": "progress", "data": {"message": "assistant"}},
        )
        + '{"type":"assistant","message":{"id":"msg_6"'
    )
    (subagents / "agent-a1.jsonl").write_text(rows_of({"type": "assistant", "message": {"id": "msg_7", "content": ""}}))
    [session] = all_sessions(tmp_path)
    assert recount(session) == Recount(frozenset({"msg_1", "msg_5", "msg_7"}), frozenset({"toolu_1"}))


def test_a_response_that_the_export_does_not_recognise_is_reported(tmp_path):
    """It is in the files and in no span: verify does not call the session complete, and a repair does not hide it."""
    claude = tmp_path / "claude"
    session = Writer(version="1.0.44")
    session.turn("weave", "Woven.")
    session.say("Taken for a repeated answer.", message="msg_unseen", parentUuid=None)
    del session.rows[-1]["requestId"]
    session.save(claude / "projects" / "-home-ada-loom")
    assert turnspan(claude, "backfill")[0] == 0
    code, out = turnspan(claude, "verify")
    assert code == 1
    assert "1 response in the files not exported" in out
    code, out = turnspan(claude, "verify", "--json")
    found = json.loads(out)
    assert (code, found["is_complete"]) == (1, False)
    assert [one["overlooked"] for one in found["differences"]] == [["msg_unseen"]]
    code, out = turnspan(claude, "verify", "--repair")
    assert code == 1
    assert "turnspan does not recognise some of its responses" in out


def test_verify_is_silent_after_a_backfill_of_every_fixture(tmp_path):
    """Copies, warm-ups and API errors are no false alarm, in any fixture or recording."""
    claude = tmp_path / "claude"
    for tree in (FIXTURES, RECORDINGS):
        for number, project in enumerate(sorted(path for path in tree.rglob("projects/*") if path.is_dir())):
            shutil.copytree(project, claude / "projects" / f"{tree.name}-{number}{project.name}")
    code, out = turnspan(claude, "backfill", "--json")
    assert code == 0, out
    code, out = turnspan(claude, "verify", "--json")
    found = json.loads(out)
    assert (code, found["differences"], found["failed"]) == (0, [], {})
    assert found["destinations"]["local"]["expected"]["generations"] > 100
