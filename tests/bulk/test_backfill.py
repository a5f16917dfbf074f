"""A backfill sends every session once, even if it is interrupted or killed."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from multiprocessing import Pipe, SimpleQueue, get_context
from pathlib import Path

import pytest
from backends.servers import OK, GrpcServer, HttpServer, reply
from reads import one_pass, read
from rows import Writer, agent_writer, save_agent

from turnspan.backends.otlp_json import decode_line
from turnspan.bulk.backfill import Sender, run
from turnspan.bulk.dry_run import DryRun
from turnspan.bulk.plan import Selection, age_warning, make_plan
from turnspan.bulk.report import dry_run_lines
from turnspan.bulk.runner import Orders, Task, Totals
from turnspan.commands.selection import TimeArgument
from turnspan.delivery import backoff, marks, state
from turnspan.delivery.destinations import Target
from turnspan.delivery.ship import ship
from turnspan.errors import StateError, TranscriptError
from turnspan.processes import Parent
from turnspan.settings.config import Destination, load_config
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions, session_at

GENERATOR = Path(__file__).parents[2] / "benchmarks" / "generate.py"
START = "from turnspan.cli import main; main()"
TURNSPAN = [sys.executable, "-c", START]
DEADLINE_S = 60
HOUR_NS = 3600 * 10**9
SEED = 20


# ---- a Claude home with old sessions


@pytest.fixture(scope="session")
def made(tmp_path_factory):
    """A generated archive: sessions of five client versions, with subagents of all kinds."""
    out = tmp_path_factory.mktemp("archive") / "claude"
    command = [sys.executable, GENERATOR, out, "--megabytes", "1", "--sessions", "9", "--seed", "7"]
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


def start(claude, *arguments, **more):
    """Start a command in a process group of its own."""
    return subprocess.Popen(
        [*TURNSPAN, *map(str, arguments)], env=environment(claude, **more), start_new_session=True,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def finish(process):
    """Wait for a command; return its exit code, stdout and stderr."""
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def backfill(claude, *arguments, **more):
    """Run a backfill; return its exit code, its JSON object and stderr."""
    code, out, err = finish(start(claude, "backfill", "--json", *arguments, **more))
    assert out, err
    return code, json.loads(out), err


def wait_for(is_so, what):
    """Wait for a condition, with a deadline."""
    deadline = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < deadline, f"timed out waiting for {what}"
        time.sleep(0.002)


def lines_on_disk(claude):
    """Every span in the local files; duplicates are kept."""
    found = []
    for path in sorted((claude / "turnspan" / "traces").glob("*.jsonl")):
        for line in path.read_bytes().splitlines(keepends=True):
            found += [json.dumps(span, sort_keys=True) for span in decode_line(line)]
    return found


def ids(spans):
    """The ids of some spans."""
    return [(span["trace_id"], span["span_id"]) for span in spans]


def received(server):
    """Every span that a server received; duplicates are kept."""
    return [json.dumps(span, sort_keys=True) for request in server.requests for span in request.spans]


def expected(projects):
    """The ids of the spans that one reading of all transcripts gives."""
    return {(trace.trace_id.hex(), span.span_id.hex()) for trace in one_pass(projects) for span in trace.spans}


# ---- without worker processes


def orders_for(claude, *, is_resend=False, rate=None, **more):
    """The orders of a run."""
    config = load_config(environment(claude, **more))
    return Orders(config=config, destinations=config.destinations, is_resend=is_resend, rate=rate)


def send_here(claude, *paths, orders=None, **selection):
    """Send the selected sessions in this process; return the outcome of each."""
    orders = orders or orders_for(claude)
    plan = make_plan(
        orders.config, Selection(paths=paths, **selection), orders.destinations, is_resend=orders.is_resend
    )
    unstopped, _ = Pipe(duplex=False)
    sender, parent = Sender(orders), Parent(unstopped, SimpleQueue())
    return {job.session.session_id: sender(parent, Task((job,)))[0] for job in plan.jobs}


def send_one(claude, orders=None):
    """Send the only session; return what was shipped."""
    (sent,) = send_here(claude, orders=orders).values()
    (shipped,) = sent.shipped
    return shipped


def planned(claude, *paths, **selection):
    """The ids of the sessions in a plan, in order."""
    config = load_config(environment(claude))
    plan = make_plan(config, Selection(paths=paths, **selection), config.destinations)
    return [job.session.session_id for job in plan.jobs]


def writer(number, *, began=None, **options):
    """A session with an id of its own."""
    made = Writer(f"5e55104a-0000-4000-8000-{number:012}", tag=f"t{number}", **options)
    made.now = began or made.now
    return made


def test_everything_arrives_once_and_a_second_run_finds_nothing_to_do(claude):
    """A backfill sends every span of every transcript; a second one sends nothing."""
    code, record, _ = backfill(claude)
    first = lines_on_disk(claude)
    assert code == 0
    assert record["is_complete"]
    assert record["sessions"] == 9
    assert sorted(ids(map(json.loads, first))) == sorted(expected(claude / "projects"))
    assert record["spans"] == len(first)
    code, record, _ = backfill(claude)
    assert (code, record["turns"], record["spans"]) == (0, 0, 0)
    assert lines_on_disk(claude) == first


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_nothing_to_do_is_decided_without_reading(claude, tmp_path):
    """A second backfill opens no transcript; one more row makes it read that session only."""
    backfill(claude)
    log = tmp_path / "calls"
    trace = ["strace", "-f", "-o", str(log), "-e", "trace=openat"]
    command = [*trace, *TURNSPAN, "backfill", "--json", "--jobs", "1"]
    done = subprocess.run(command, env=environment(claude), check=True, capture_output=True)
    assert json.loads(done.stdout)["sessions"] == 9
    opened = [line for line in log.read_text().splitlines() if ".jsonl" in line and "/agent-" not in line]
    assert opened == []  # the beginnings of subagents next to their sessions show whose they are
    newest = max((claude / "projects").glob("*/*.jsonl"), key=lambda path: path.stat().st_mtime)
    with newest.open("a") as file:
        file.write(json.dumps({"type": "summary", "summary": "x"}) + "\n")
    assert planned(claude) == [newest.stem]


@pytest.mark.parametrize("is_flat", [True, False], ids=["next to it", "below it"])
def test_a_subagent_that_no_event_looked_for_is_found(tmp_path, is_flat):
    """A subagent that no call launched, which a Stop does not export, makes a backfill read the session again."""
    claude = tmp_path / "claude"
    project = claude / "projects" / "-home-ada-loom"
    session = writer(1, version="2.0.76")
    session.turn("hello", "done")
    path = session.save(project)
    orders = orders_for(claude)
    target = Target(orders.destinations[0], orders.config)
    assert ship(session_at(path), target, Ending(is_stopped=True), time.time).turns == 1
    assert planned(claude) == []
    agent = agent_writer(session, "a1")
    agent.turn("look", "found")
    save_agent(agent, project, "a1", flat=is_flat)
    assert planned(claude) == [path.stem]
    assert send_one(claude).spans == 2
    assert planned(claude) == []


def test_killed_at_random_moments_into_local_files(claude):
    """After several SIGKILLs and restarts the files hold what one clean run gives, nothing twice."""
    complete = sorted(expected(claude / "projects"))
    dice = random.Random(SEED)
    traces = claude / "turnspan" / "traces"

    def written():
        return sum(path.stat().st_size for path in traces.glob("*.jsonl")) if traces.is_dir() else 0

    kills = 0
    for _ in range(4):
        process = start(claude, "backfill", "--jobs", "2")
        enough = written() + dice.randrange(300_000)
        wait_for(lambda p=process, e=enough: p.poll() is not None or written() > e, "a moment to kill it at")
        time.sleep(dice.random() * 0.02)
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            kills += 1
        process.communicate()
    assert kills, "it was never killed"
    code, record, _ = backfill(claude)
    assert code == 0, record
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == complete


def test_killed_at_random_moments_into_a_server(claude):
    """A server receives every span; spans that are repeated after a kill are byte-identical, so it stores each once."""
    complete = expected(claude / "projects")
    dice = random.Random(SEED)
    victim = []
    lock = threading.Lock()
    left = [3]

    def deadly(connection, _request):
        """Sometimes kill the sender, before or after it gets the response."""
        with lock:
            is_fatal = bool(left[0] and victim) and dice.random() < 0.4
            is_answered = dice.random() < 0.5
            left[0] -= is_fatal
        if is_answered or not is_fatal:
            connection.sendall(OK)
        if is_fatal:
            os.killpg(victim[0], signal.SIGKILL)

    with HttpServer(deadly) as server:
        for _ in range(5):
            process = start(claude, "backfill", "--jobs", "2", TURNSPAN_OTLP_ENDPOINT=server.url)
            with lock:
                victim[:] = [process.pid]
            process.communicate(timeout=DEADLINE_S)
            with lock:
                victim.clear()
            if process.returncode == 0:
                break
        assert process.returncode == 0
        assert left[0] < 3, "it was never killed"
        distinct = [json.loads(span) for span in set(received(server))]
    assert sorted(ids(distinct)) == sorted(complete)


def test_a_session_sent_in_part_by_its_hook_is_completed(claude):
    """No span is sent twice, and all of them together are those of one clean pass."""
    path = max((s.path for s in all_sessions(claude / "projects")), key=lambda p: len(read(p)[0]))
    data = path.read_bytes()
    reading = Reader.for_people().read(session_at(path), Progress(), Ending(is_over=True))
    ends = [piece.progress.main.offset for piece in reading.pieces()]
    with HttpServer() as server:
        orders = orders_for(claude, TURNSPAN_OTLP_ENDPOINT=server.url)
        target = Target(orders.destinations[0], orders.config)
        for end in (ends[len(ends) // 4], ends[len(ends) // 2]):
            path.write_bytes(data[:end])
            ship(session_at(path), target, Ending(is_stopped=True), time.time)
        live = len(received(server))
        path.write_bytes(data)
        code, _, _ = backfill(claude, TURNSPAN_OTLP_ENDPOINT=server.url)
        everything = [json.loads(span) for span in received(server)]
    assert code == 0
    assert 0 < live < len(everything)
    assert sorted(ids(everything)) == sorted(expected(claude / "projects"))


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_after_ctrl_c_the_same_command_continues(claude, stop):
    """After Ctrl-C, or SIGTERM to the process group, running requests finish and are recorded: no span is sent twice."""
    slow = threading.Event()

    def answer(connection, _request):
        slow.wait(0.2)
        connection.sendall(OK)

    with HttpServer(answer) as server:
        process = start(claude, "backfill", "--jobs", "2", TURNSPAN_OTLP_ENDPOINT=server.url)
        wait_for(lambda: len(server.requests) >= 2, "the first requests")
        os.killpg(process.pid, stop)
        code, out, err = finish(process)
        assert code == 130
        assert "Stopping" in err
        assert "Traceback" not in err
        assert "run the same command to continue" in out
        assert "incomplete: " not in out
        before = len(received(server))
        slow.set()
        code, record, _ = backfill(claude, TURNSPAN_OTLP_ENDPOINT=server.url)
        everything = received(server)
    assert code == 0
    assert 0 < before < len(everything)
    assert record["spans"] == len(everything) - before
    assert max(Counter(everything).values()) == 1
    assert sorted(ids(map(json.loads, everything))) == sorted(expected(claude / "projects"))


@pytest.mark.parametrize("asked", [("backfill",), ("verify", "--repair")])
def test_ctrl_c_during_a_wait_does_not_count_as_a_failure(tmp_path, asked):
    """The destination is not given up, and the same command contacts it immediately."""
    claude = tmp_path / "claude"
    session = writer(1)
    session.turn("hello", "hello")
    session.save(claude / "projects" / "-home-ada-loom")
    with HttpServer(OK) as server:
        assert finish(start(claude, "backfill", TURNSPAN_OTLP_ENDPOINT=server.url))[0] == 0
        (claude / "turnspan" / "turnspan.log").unlink()
        session.turn("and then?", "hello")
        session.save(claude / "projects" / "-home-ada-loom")
        server.answers[:] = [reply(503, Retry_After="100"), OK]
        server.requests.clear()
        process = start(claude, *asked, TURNSPAN_OTLP_ENDPOINT=server.url)
        wait_for(lambda: server.requests, "the first request")
        os.killpg(process.pid, signal.SIGINT)
        code, out, _ = finish(process)
        assert code == 130
        assert "gave up" not in out
        assert ("stopped while waiting 100 s: HTTP 503\n" in out) == (asked == ("backfill",))
        assert list((claude / "turnspan" / "state").glob(".hold-*")) == []
        if asked == ("backfill",):  # `status` shows the last warning as the last error: this is neither
            (line,) = (claude / "turnspan" / "turnspan.log").read_text().splitlines()
            assert " INFO backfilled " in line
            assert 'reason="interrupted while waiting 100 s: HTTP 503"' in line
        assert finish(start(claude, *asked, TURNSPAN_OTLP_ENDPOINT=server.url))[0] == 0
        assert len(server.requests) == 2


def test_two_backfills_at_once(claude):
    """Two concurrent backfills both succeed, and together they send every span once."""
    both = [start(claude, "backfill", "--json", "--jobs", "1") for _ in range(2)]
    results = [finish(process) for process in both]
    assert [code for code, _, _ in results] == [0, 0]
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == sorted(expected(claude / "projects"))
    assert sum(json.loads(out)["spans"] for _, out, _ in results) == len(lines_on_disk(claude))


WITNESS = """
import os, sys
def witness(event, args):
    is_file = event == "open" and not isinstance(args[0], int)
    is_write = is_file and isinstance(args[2], int) and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if event.startswith(("socket.", "os.mkdir", "os.rename", "os.remove", "os.truncate")) or is_write:
        with_path = os.open(os.environ["WITNESS"], os.O_WRONLY | os.O_APPEND)
        os.write(with_path, f"{event} {args}\\n".encode())
        os.close(with_path)
if os.environ.get("WITNESS"):
    record = os.environ["WITNESS"]
    sys.addaudithook(lambda e, a: None if e == "open" and a[0] == record else witness(e, a))
"""


def test_a_dry_run_writes_nothing_and_connects_to_nothing(claude, tmp_path):
    """A dry run counts what would be sent, without writing a file or opening a connection in any process."""
    (tmp_path / "spy").mkdir()
    (tmp_path / "spy" / "sitecustomize.py").write_text(WITNESS)
    log = tmp_path / "witness.txt"
    log.touch()
    before = {path: path.stat().st_mtime_ns for path in claude.rglob("*")}
    code, record, _ = backfill(
        claude, "--dry-run", "--jobs", "2", PYTHONPATH=str(tmp_path / "spy"), PYTHONDONTWRITEBYTECODE="1",
        WITNESS=str(log), TURNSPAN_OTLP_ENDPOINT="http://127.0.0.1:9",
    )  # fmt: skip
    assert code == 0
    suspicious = [line for line in log.read_text().splitlines() if "/dev/null" not in line]
    assert suspicious == []
    assert {path: path.stat().st_mtime_ns for path in claude.rglob("*")} == before
    total = record["destinations"]["otlp"]["total"]
    code, sent, _ = backfill(claude)
    assert total["sessions"] == sent["sessions"] == 9
    assert total["turns"] == sum(trace["name"].startswith("Turn") and not trace["parent_span_id"] for trace in
                                 map(json.loads, lines_on_disk(claude)))  # fmt: skip
    assert total["bytes"] > 500_000
    assert total["cost_usd"] > 0


def figures(spans):
    """Sessions, turns, spans and cost of some spans that a destination received."""
    responses = [span for span in spans if span["attributes"]["openinference.span.kind"] == "LLM"]
    return (
        len({span["attributes"]["session.id"] for span in spans}),
        sum(span["name"].startswith("Turn ") and not span["parent_span_id"] for span in spans),
        len(spans),
        pytest.approx(sum(span["attributes"].get("turnspan.cost.usd", 0) for span in responses)),
    )


def save_special_sessions(claude, tmp_path):
    """Save a session, a fork of it, one that is switched off, one that cannot be read, and one to send in parts."""
    projects, private = claude / "projects", tmp_path / "private"
    original = writer(1, version="2.1.45")
    original.turn("my key is AKIA" + "Q7ZXW2MB4KPL9TRN", "done")
    fork = writer(2, version="2.1.45")
    fork.rows, fork.count, fork.parent = list(original.rows), original.count, original.parent
    fork.turn("my own", "done")
    hidden = writer(3, cwd=str(private))
    hidden.turn("hello", "hello")
    (private / ".claude").mkdir(parents=True)
    (private / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    partly = writer(4)
    for number in range(100):
        partly.turn(f"question {number} " + "x" * 1000, "done")
    for session in (original, fork, hidden, partly):
        path = session.save(projects / "-home-ada-loom")
    (projects / "-home-ada-loom" / "5e55104a.jsonl").mkdir()
    return path


def test_a_dry_run_announces_what_a_backfill_sends(claude, tmp_path):
    """Sessions, turns, spans, cost and masked secrets are the same for each destination.

    Also with a fork, a directory that is switched off, an outdated copy, a session of which a part arrived, and one
    that cannot be read.
    """
    path = save_special_sessions(claude, tmp_path)
    backup = tmp_path / "backup" / "-home-ada-loom" / path.name
    backup.parent.mkdir(parents=True)
    with HttpServer(OK, OK, reply(503)) as server:
        home = claude / "turnspan"
        home.mkdir(mode=0o700)
        (home / "config.toml").write_text(
            "[destinations.files]\ntype = 'local'\n"
            f"[destinations.otlp]\nendpoint = '{server.url}'\nmax_request_bytes = 50000\n"
        )
        (home / "config.toml").chmod(0o600)
        orders = orders_for(claude)
        files, otlp = (Target(destination, orders.config) for destination in orders.destinations)
        data = path.read_bytes()
        backup.write_bytes(data[: data.index(b"question 20 ")].rpartition(b"\n")[0] + b"\n")
        path.write_bytes(data[: data.index(b"question 40 ")].rpartition(b"\n")[0] + b"\n")
        ship(session_at(path), files, Ending(is_stopped=True), time.time)
        path.write_bytes(data)
        ship(session_at(path), otlp, Ending(is_stopped=True), time.time)
        assert state.peek(home, path.stem).destinations[otlp.identity].arrived  # a part of a piece was acknowledged
        backoff.clear(home, otlp.identity)
        server.answers = [OK]
        server.requests.pop()  # the one that was answered with HTTP 503
        before = {"files": len(lines_on_disk(claude)), "otlp": len(received(server))}
        code, announced, _ = backfill(claude, "--dry-run")
        assert (code, list(announced["failed"])) == (1, ["5e55104a"])
        code, record, _ = backfill(claude)
        assert (code, list(record["left"])) == (1, ["5e55104a"])
        after = {"files": lines_on_disk(claude), "otlp": received(server)}
        for place in (claude, backup):
            none = backfill(claude, place, "--dry-run")[1]["destinations"]
            assert {name: one["total"]["spans"] for name, one in none.items()} == {"files": 0, "otlp": 0}
            assert backfill(claude, place)[1]["spans"] == 0
    totals = {name: one["total"] for name, one in announced["destinations"].items()}
    for name, total in totals.items():
        sent = [json.loads(span) for span in after[name][before[name] :]]
        assert (total["sessions"], total["turns"], total["spans"], total["cost_usd"]) == figures(sent), name
        assert (total["copied"], total["off"]) == (record["copied"], record["off"]) == (1, 1)
    assert totals["files"]["spans"] != totals["otlp"]["spans"]
    assert sum(total["spans"] for total in totals.values()) == record["spans"]
    assert totals["files"]["masked"]
    assert Counter(totals["files"]["masked"]) + Counter(totals["otlp"]["masked"]) == Counter(record["masked"])


def test_a_dry_run_counts_what_would_be_masked(tmp_path):
    """The counts by rule are those of the real run."""
    session = writer(1)
    session.turn("my key is AKIA" + "Q7ZXW2MB4KPL9TRN", "I will not repeat it")
    session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")
    code, record, _ = backfill(tmp_path / "claude", "--dry-run")
    share = record["destinations"]["local"]["projects"]["/home/ada/loom"]
    assert (code, share["turns"]) == (0, 1)
    assert sum(share["masked"].values()) > 0
    assert send_one(tmp_path / "claude").counts.masked == share["masked"]


TALLY = ["agents", "cost_usd", "errors", "generations", "is_cost_partial", "tools", "turns", "usage"]
DIFFERENCE = [
    "acknowledged", "destination", "doubtful", "expected", "forgotten", "in_flight", "is_repaired", "is_unknown", "lost", "overlooked", "path",
    "problem", "project", "refused", "session_id", "silence", "stored", "unsent",
]  # fmt: skip
KEYS = {
    "backfill": [
        "copied", "cut", "destinations", "given_up", "is_complete", "is_interrupted", "left", "masked", "off", "open",
        "pending", "read_bytes", "refused", "repeated", "resend_since", "seconds", "sessions", "spans", "tried", "turns",
        "unreadable", "waiting", "warmups",
    ],
    "dry run": ["destinations", "failed", "is_interrupted", "unreadable"],
    "share": sorted([*TALLY, "bytes", "copied", "masked", "off", "repeated", "sessions", "spans", "warmups"]),
    "verify": ["destinations", "differences", "failed", "is_complete"],
    "verified": ["acknowledged", "doubled_spans", "expected", "history", "missing_spans", "off", "sessions", "stored"],
    "difference": DIFFERENCE,
    "retention": ["cleanup_days", "cleanup_source", "expiring", "failed"],
    "expiring": ["days_left", "path", "project", "session_id", "unsent"],
    "tallies": [TALLY] * 6,
}  # fmt: skip


def test_the_keys_of_json_records_are_a_promise(tmp_path):
    """Scripts read `backfill`, `backfill --dry-run`, `verify` and `retention` with --json: no key is ever removed."""
    claude = tmp_path / "claude"
    session = writer(1)

    def record(*arguments):
        return json.loads(finish(start(claude, *arguments, "--json"))[1])

    for question in ("hello", "and then?"):
        session.turn(question, "hello")
        path = session.save(claude / "projects" / "-home-ada-loom")
        os.utime(path, (time.time() - 29 * 86400,) * 2)
        if question == "hello":
            backfill = record("backfill")

    dry_run, retention, verify = record("backfill", "--dry-run"), record("retention"), record("verify")
    local, verified, (expiring,) = (
        dry_run["destinations"]["local"],
        verify["destinations"]["local"],
        retention["expiring"],
    )
    (share,), (difference,) = local["projects"].values(), verify["differences"]
    sides = ("expected", "acknowledged", "stored")
    found = {
        "backfill": backfill, "dry run": dry_run, "share": share, "verify": verify, "verified": verified,
        "difference": difference, "retention": retention, "expiring": expiring,
    }  # fmt: skip
    found = {name: sorted(one) for name, one in found.items()}
    tallies = [*(verified[side] for side in sides), *(difference[side] for side in sides)]
    found["tallies"] = [sorted(tally) for tally in tallies]
    assert found == KEYS
    assert sorted(local) == ["projects", "total"]
    assert sorted(expiring["unsent"]["local"]) == TALLY


# ---- sessions in use


def test_a_turn_in_progress_is_left_to_its_hook(tmp_path):
    """Of a session in use only the finished turns are sent; that is not a failure."""
    session = writer(1, began=datetime.now(UTC))
    session.turn("first", "done")
    session.prompt("second")
    session.call("Bash", {"command": "make"})
    session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")
    shipped = send_one(tmp_path / "claude")
    assert (shipped.turns, shipped.has_unsealed, shipped.is_complete) == (1, True, True)


def test_a_session_that_is_locked_is_retried(tmp_path):
    """While a hook has a session the others are sent; it is sent once its lock is free."""
    claude = tmp_path / "claude"
    for number in (1, 2):
        session = writer(number)
        session.turn("hello", "hello")
        session.save(claude / "projects" / "-home-ada-loom")
    with HttpServer() as server:
        with state.lock(claude / "turnspan", writer(1).session):
            process = start(claude, "backfill", "--json", TURNSPAN_OTLP_ENDPOINT=server.url)
            wait_for(lambda: server.requests, "the other session")
        code, out, _ = finish(process)
        assert {span["attributes"]["session.id"] for request in server.requests for span in request.spans} == {
            writer(1).session, writer(2).session,
        }  # fmt: skip
    assert (code, json.loads(out)["sessions"]) == (0, 2)


def test_an_event_during_a_backfill_is_handled(tmp_path):
    """A hook whose session is locked by a backfill leaves a mark; the backfill then handles its event."""
    claude = tmp_path / "claude"
    session = writer(1, began=datetime.now(UTC))
    session.turn("first", "done")
    session.turn("second", "done as well")  # less than ten minutes ago: only its hook knows that it has ended
    path = session.save(claude / "projects" / "-home-ada-loom")
    home = claude / "turnspan"

    def answer(connection, _request):
        if len(server.requests) == 1:
            marks.leave_mark(home, session.session, {"event": "Stop", "path": str(path)})
        connection.sendall(OK)

    with HttpServer(answer) as server:
        code, record, _ = backfill(claude, TURNSPAN_OTLP_ENDPOINT=server.url)
        turns = [s["name"] for request in server.requests for s in request.spans if s["name"].startswith("Turn")]
    assert (code, record["turns"]) == (0, 1)
    assert turns == ["Turn 1: first", "Turn 2: second"]
    assert not marks.has_marks(home, session.session)


# ---- destinations that fail


def test_retry_after_is_respected(tmp_path):
    """The sender waits as long as Retry-After asks, then sends everything."""
    session = writer(1)
    session.turn("hello", "hello")
    session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")
    times = []

    def answer(connection, _request):
        times.append(time.monotonic())
        connection.sendall(reply(429, Retry_After="2") if len(times) == 1 else OK)

    with HttpServer(answer) as server:
        shipped = send_one(tmp_path / "claude", orders_for(tmp_path / "claude", TURNSPAN_OTLP_ENDPOINT=server.url))
    assert shipped.is_complete
    assert len(times) == 2
    assert times[1] - times[0] >= 2


def test_a_destination_that_refuses_our_credentials_is_given_up(claude):
    """One request per process, a message and exit code 1; the other destination still receives everything."""
    (claude / "turnspan").mkdir(mode=0o700)
    config = claude / "turnspan" / "config.toml"
    with HttpServer(reply(401)) as server:
        config.write_text(f"[destinations.files]\ntype = 'local'\n[destinations.otlp]\nendpoint = '{server.url}'\n")
        config.chmod(0o600)
        code, record, _ = backfill(claude, "--jobs", "2")
        assert len(server.requests) <= 2
    assert code == 1
    assert "credentials" in record["given_up"]["otlp"]
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == sorted(expected(claude / "projects"))


def test_a_rate_is_kept(tmp_path):
    """With --rate no more spans are sent per second, on average."""
    session = writer(1)
    for number in range(20):
        session.turn(f"question {number}", "answer")
    session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")
    began_s = time.monotonic()
    assert send_one(tmp_path / "claude", orders_for(tmp_path / "claude", rate=40)).spans == 40
    assert time.monotonic() - began_s >= 40 / 40


def test_a_rate_is_shared_by_the_processes_that_send(tmp_path):
    """With one session only one of eight processes sends, and it may use the full rate."""
    session = writer(1)
    for number in range(30):
        session.turn(f"question {number}", "done")
    session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")
    code, record, _ = backfill(tmp_path / "claude", "--rate", "60", "--jobs", "8")
    assert (code, record["spans"]) == (0, 60)
    assert 1 <= record["seconds"] < 6  # an eighth of the rate would take eight


def test_a_warning_for_backends_that_drop_old_spans():
    """Datadog, Dynatrace and Tempo do not show old spans: the user is warned where the host gives them away."""

    def warned(endpoint, hours):
        destination = Destination("otlp", "otlp", {"endpoint": endpoint}, {}, "test")
        return age_warning(destination, 10**18, 10**18 + hours * HOUR_NS)

    assert "18 hours" in warned("https://otlp.datadoghq.eu", 19)
    assert warned("https://otlp.datadoghq.eu", 17) is None
    assert "one hour" in warned("https://abc123.live.dynatrace.com/api/v2/otlp", 2)
    assert "search" in warned("https://tempo-prod-04.grafana.net", 2)
    assert "search" in warned("http://tempo:4318", 2)
    assert "search" in warned("https://otlp-gateway-prod-eu-west-2.grafana.net/otlp", 2)
    assert warned("http://localhost:4318", 1000) is None
    assert warned("https://contempo.example.com", 1000) is None


# ---- which sessions


def test_sessions_are_chosen_by_time_project_and_id(tmp_path):
    """--since, --until, --project and --session each select sessions; the oldest come first."""
    claude = tmp_path / "claude"
    for number, (day, project) in enumerate([(3, "loom"), (1, "loom"), (2, "press")], 1):
        session = writer(number, began=datetime(2026, 3, day, 12, tzinfo=UTC), cwd=f"/home/ada/{project}")
        session.turn("hello", "hello")
        session.save(claude / "projects" / f"-home-ada-{project}")
    one, two, three = (writer(number).session for number in (1, 2, 3))
    day = 86400 * 10**9
    second = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * 10**9
    assert planned(claude) == [two, three, one]
    assert planned(claude, since_ns=second) == [three, one]
    assert planned(claude, until_ns=second + day) == [two, three]
    assert planned(claude, project="LOOM") == [two, one]
    assert planned(claude, sessions=(three[:-1],)) == [two, three, one]
    assert planned(claude, sessions=(three,)) == [three]
    assert planned(claude, claude / "projects" / "-home-ada-press") == [three]
    assert planned(claude, claude / "projects") == planned(claude, claude) == [two, three, one]


def test_the_start_and_directory_are_found_behind_a_long_row(tmp_path):
    """A session may begin with a pasted image of hundreds of kilobytes."""
    claude = tmp_path / "claude"
    long = writer(1, began=datetime(2026, 3, 1, tzinfo=UTC))
    long.rows.append({"type": "attachment", "data": "x" * 300_000})
    long.turn("y" * 300_000, "done")
    short = writer(2, began=datetime(2026, 3, 2, tzinfo=UTC))
    short.turn("hello", "hello")
    for session in (long, short):
        session.save(claude / "projects" / "-somewhere")
    assert planned(claude) == [long.session, short.session]
    assert planned(claude, until_ns=int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()) * 10**9) == [long.session]
    assert planned(claude, project="/home/ada/loom/") == [long.session, short.session]


@pytest.mark.skipif(not hasattr(time, "tzset"), reason="the time zone cannot be set here")
def test_until_includes_the_full_day(monkeypatch):
    """In any ISO notation, also on the day of a clock change."""
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        until, since = (TimeArgument(is_end=is_end).convert for is_end in (True, False))
        for day, written in (("2026-08-31", "20260831"), ("2026-03-29", "2026-W13-7"), ("2026-10-25", "20261025")):
            after = datetime.fromisoformat(day) + timedelta(days=1)
            assert until(day, None, None) == until(written, None, None) == since(after.isoformat(), None, None)
        assert until("2026-08-31T14:00", None, None) == since("2026-08-31T12:00Z", None, None)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_limit_counts_what_is_left(tmp_path):
    """--limit 1, twice, sends two sessions: complete ones do not count."""
    claude = tmp_path / "claude"
    for number in (1, 2, 3):
        session = writer(number, began=datetime(2026, 3, number, tzinfo=UTC))
        session.turn("hello", "hello")
        session.save(claude / "projects" / "-home-ada-loom")
    assert list(send_here(claude, limit=1)) == [writer(1).session]
    assert list(send_here(claude, limit=1)) == [writer(2).session]
    assert list(send_here(claude, limit=5)) == [writer(3).session]


def test_a_limit_does_not_count_sessions_with_nothing_to_send(tmp_path):
    """Rows after an agent's last turn, or a session that is switched off, leave nothing to send."""
    claude = tmp_path / "claude"
    project = claude / "projects" / "-home-ada-loom"
    for number in (1, 2, 3):
        session = writer(number, began=datetime(2026, 3, number, tzinfo=UTC))
        session.turn(f"question {number}", "done")
        session.save(project)
    first, second = (writer(number).session for number in (1, 2))
    lonely = agent_writer(writer(1, began=datetime(2026, 3, 1, tzinfo=UTC)), "a1")
    lonely.turn("look around", "looked")
    lonely.row("progress", data={"type": "hook_progress"})
    save_agent(lonely, project, "a1")
    assert planned(claude, limit=1) == [first]
    code, record, _ = backfill(claude, "--limit", "1")
    assert (code, record["sessions"]) == (0, 1)
    state.save(claude / "turnspan", state.Checkpoint(session_id=second, is_off=True))
    code, record, _ = backfill(claude, "--limit", "1")
    assert (code, record["turns"]) == (0, 1)
    assert planned(claude, limit=1) == []


def test_a_path_that_holds_no_transcript_is_an_error(tmp_path):
    """A misspelt path must not look like an empty archive."""
    (tmp_path / "empty").mkdir()
    agent = tmp_path / "agent-1234.jsonl"
    agent.write_text("{}\n")
    for path in (tmp_path / "empty", tmp_path / "missing.jsonl", agent):
        with pytest.raises(TranscriptError):
            planned(tmp_path / "claude", path)


def test_a_link_out_of_the_archive_is_not_followed(tmp_path):
    """Only files inside the named directory are read."""
    session = writer(1)
    session.turn("hello", "hello")
    secret = session.save(tmp_path / "elsewhere")
    project = tmp_path / "claude" / "projects" / "-home-ada-loom"
    project.mkdir(parents=True)
    (project / secret.name).symlink_to(secret)
    assert planned(tmp_path / "claude") == []


@pytest.mark.skipif(sys.platform in {"win32", "darwin"}, reason="their names are always Unicode")
def test_a_path_that_is_not_utf_8_works(tmp_path):
    """An old disk may have names in an old encoding: its sessions are sent, once."""
    claude = tmp_path / "claude"
    session = writer(1)
    session.turn("hello", "hello")
    session.save(tmp_path / os.fsdecode(b"K\xf6ln") / "-home-ada-loom")
    (old,) = (path for path in tmp_path.iterdir() if path != claude)
    assert backfill(claude, old)[1]["turns"] == 1
    code, record, _ = backfill(claude, old)
    assert (code, record["turns"], record["sessions"]) == (0, 0, 1)


def test_a_project_that_cannot_be_listed_stops_no_other(claude):
    """The other projects are sent; this one is named in the output, and the exit code is 1."""
    (claude / "projects" / "circle").symlink_to("circle")
    code, record, _ = backfill(claude, "--dry-run")
    assert (code, list(record["failed"])) == (1, ["circle"])
    code, record, _ = backfill(claude)
    assert (code, list(record["left"]), record["pending"], record["is_complete"]) == (1, ["circle"], 0, False)
    assert record["left"]["circle"].startswith("cannot list ")
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == sorted(expected(claude / "projects"))


def test_a_copy_of_the_directory_gives_the_same_spans(claude, tmp_path):
    """Sessions sent from a copy of ~/.claude are not sent again from the original."""
    copy = tmp_path / "old-laptop"
    shutil.copytree(claude, copy)
    sent = send_here(claude, copy)
    assert all(outcome.shipped[0].is_complete for outcome in sent.values())
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == sorted(expected(claude / "projects"))
    again = send_here(claude)
    assert sum(outcome.shipped[0].spans for outcome in again.values()) == 0


def test_an_outdated_copy_of_a_session_is_skipped(tmp_path):
    """A backup that ends before the cursor sends nothing and does not move it."""
    claude = tmp_path / "claude"
    session = writer(1)
    session.turn("first", "done")
    session.turn("second", "done")
    copy = session.save(tmp_path / "backup" / "-home-ada-loom")
    session.turn("third", "done")
    session.save(claude / "projects" / "-home-ada-loom")
    send_here(claude)
    before = state.peek(claude / "turnspan", session.session)
    outcome = send_here(claude, copy)[session.session]
    assert outcome.shipped[0].spans == 0
    assert state.peek(claude / "turnspan", session.session) == before


@pytest.mark.parametrize("name", ["monday", "monday, the 2nd ü"])
@pytest.mark.parametrize("is_original_there", [False, True])
def test_a_renamed_transcript_is_sent_once_under_its_session_id(tmp_path, name, is_original_there):
    """The rows say which session it is, not the name of the file."""
    claude = tmp_path / "claude"
    session = writer(1)
    session.turn("first", "done")
    session.turn("second", "done")
    path = session.save(claude / "projects" / "-home-ada-loom")
    should = sorted(expected(claude / "projects"))
    kept = path.with_name(f"{name}.jsonl")
    kept.write_bytes(path.read_bytes())
    if not is_original_there:
        path.unlink()
    named = (kept, *([path] if is_original_there else []))
    code, record, said = backfill(claude, *named)
    assert (code, record["turns"], record["copied"]) == (0, 2, 0)
    assert ("1 file skipped" in said) == is_original_there
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == should
    assert state.peek(claude / "turnspan", session.session).destinations
    assert backfill(claude, *named)[1]["spans"] == 0
    code, out, _ = finish(start(claude, "verify", *named))
    assert (code, out.startswith("local: complete (1 session, 2 turns,")) == (0, True)


def test_a_session_that_is_renamed_after_it_was_sent_is_not_sent_again(tmp_path):
    """An old copy next to it is not sent either, and neither counts as pending."""
    claude = tmp_path / "claude"
    session = writer(1)
    session.turn("first", "done")
    old = session.save(claude / "projects" / "-home-ada-loom")
    old.rename(old.with_name("monday.jsonl"))
    session.turn("second", "done")
    path = session.save(old.parent)
    assert send_one(claude).turns == 2
    assert send_here(claude) == {}
    (there,) = json.loads(finish(start(claude, "status", "--json"))[1])["destinations"]
    assert (there["turns"], there["pending"]["sessions"], there["pending"]["history"]) == (2, 0, 0)
    path.rename(path.with_name("tuesday.jsonl"))
    assert send_here(claude) == {}
    (row,) = finish(start(claude, "sessions", "--json"))[1].splitlines()
    assert (json.loads(row)["session_id"], json.loads(row)["turns"]) == (session.session, 2)


def test_a_project_that_is_switched_off_is_not_exported(tmp_path):
    """A project's own settings switch it off, also for a backfill; that is not a failure."""
    claude, private = tmp_path / "claude", tmp_path / "private"
    (private / ".claude").mkdir(parents=True)
    (private / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    for number, cwd in ((1, private), (2, tmp_path)):
        session = writer(number, cwd=str(cwd))
        session.turn("hello", "hello")
        session.save(claude / "projects" / f"-{number}")
    outcomes = send_here(claude)
    assert [outcomes[writer(n).session].shipped[0].off for n in (1, 2)] == [1, 0]
    assert {json.loads(span)["attributes"]["session.id"] for span in lines_on_disk(claude)} == {writer(2).session}


def test_a_trace_that_is_switched_off_is_counted_once(tmp_path):
    """With two destinations it is still one trace, not two."""
    claude, project = tmp_path / "claude", tmp_path / "loom"
    session = writer(1, cwd=str(project))
    session.turn("hello", "hello")
    session.save(claude / "projects" / "-loom")
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    home = claude / "turnspan"
    home.mkdir(mode=0o700)
    names = ("one", "two")
    text = "".join(f'[destinations.{name}]\ntype = "local"\ndirectory = "{tmp_path / name}"\n' for name in names)
    (home / "config.toml").write_text(text)
    (home / "config.toml").chmod(0o600)
    code, record, _ = backfill(claude)
    assert (code, record["destinations"], record["off"]) == (0, ["one", "two"], 1)


def test_a_dry_run_that_was_stopped_says_so():
    """Figures of some sessions must not look like those of all."""
    found = DryRun({"local": {}}, Totals(tried=3, is_interrupted=True))
    assert next(dry_run_lines(found, 9)) == "stopped: only 3 of 9 sessions were read"


def test_resend_sends_the_same_bytes_again(tmp_path):
    """--resend starts over and sends exactly the same bytes as before."""
    claude = tmp_path / "claude"
    session = writer(1)
    session.turn("first", "done")
    session.save(claude / "projects" / "-home-ada-loom")
    with HttpServer() as server:
        url = server.url
        send_here(claude, orders=orders_for(claude, TURNSPAN_OTLP_ENDPOINT=url))
        first = received(server)
        send_here(claude, orders=orders_for(claude, is_resend=True, TURNSPAN_OTLP_ENDPOINT=url))
        assert received(server) == first * 2


def test_a_resend_that_was_stopped_says_how_to_continue(tmp_path):
    """It gives a --since with which no session is sent a third time, as the oldest come first."""
    claude = tmp_path / "claude"
    for number in (1, 2, 3):
        session = writer(number, began=datetime(2026, 3, number, 9, tzinfo=UTC))
        session.turn("hello", "hello")
        session.save(claude / "projects" / "-home-ada-loom")
    patient, is_stopped = threading.Event(), threading.Event()

    def answer(connection, _request):
        if len(server.requests) == 5:
            patient.wait(DEADLINE_S)
        is_begun_anyway = len(server.requests) == 6 and not is_stopped.is_set()  # the stop arrives while it waits
        connection.sendall(reply(503) if is_begun_anyway else OK)

    with HttpServer(answer) as server:
        assert backfill(claude, TURNSPAN_OTLP_ENDPOINT=server.url)[1]["resend_since"] is None
        again = ("backfill", "--resend", "--jobs", "1")
        process = start(claude, *again, TURNSPAN_OTLP_ENDPOINT=server.url)
        wait_for(lambda: len(server.requests) == 5, "the second of them")
        os.killpg(process.pid, signal.SIGINT)
        patient.set()
        code, out, _ = finish(process)
        is_stopped.set()
        assert code == 130
        _, _, since = out.partition("run the same command with --since ")
        since = since.split()[0]
        assert since in {"2026-03-02T09:00:01Z", "2026-03-03T09:00:01Z"}  # whether the stop or the answer came first
        assert finish(start(claude, *again, "--since", since, TURNSPAN_OTLP_ENDPOINT=server.url))[0] == 0
        times = Counter(received(server))
    assert len(times) == 6
    assert min(times.values()) == 2
    second_day_ns = datetime(2026, 3, 2, tzinfo=UTC).timestamp() * 1e9
    assert {times[span] for span in times if json.loads(span)["start_ns"] < second_day_ns} == {2}


# ---- worker processes


def test_several_processes_send_over_grpc(tmp_path):
    """Its library cannot be used in a forked process, so these are started anew."""
    for number in (1, 2, 3, 4):
        session = writer(number)
        session.turn("hello", "hello")
        session.save(tmp_path / "claude" / "projects" / "-home-ada-loom")
    with GrpcServer() as server:
        more = {"TURNSPAN_OTLP_ENDPOINT": server.url, "TURNSPAN_OTLP_PROTOCOL": "grpc"}
        code, totals, err = backfill(tmp_path / "claude", "--jobs", "2", **more)
    assert (code, totals["sessions"], totals["spans"]) == (0, 4, 8), err


def processes_of(group):
    """Return the processes of a process group; one that has ended and was not waited for is none."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, pgrp = path.read_text().rpartition(")")[2].split()[:3]
        except OSError:
            continue
        found += [int(path.parent.name)] if int(pgrp) == group and state not in {"Z", "X"} else []
    return found


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_backfill_that_is_killed_leaves_no_process(claude):
    """Only the command is killed, at random moments: its processes end too, and the next run sends the rest, once."""
    complete = sorted(expected(claude / "projects"))
    dice = random.Random(SEED)
    for _ in range(6):
        process = start(claude, "backfill", "--jobs", "3")
        wait_for(lambda p=process: p.poll() is not None or len(processes_of(p.pid)) == 4, "its processes")
        time.sleep(dice.random() * 0.2)
        process.kill()
        process.communicate()
        wait_for(lambda p=process: not processes_of(p.pid), "its processes to end")
    code, record, _ = backfill(claude)
    assert code == 0, record
    assert sorted(ids(map(json.loads, lines_on_disk(claude)))) == complete


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_a_process_that_waits_for_a_server_ends_with_its_parent(claude):
    """Nothing keeps a session locked, however long its server takes to answer."""
    is_over = threading.Event()
    with HttpServer(lambda _connection, _request: is_over.wait(DEADLINE_S)) as server:
        process = start(claude, "backfill", "--jobs", "2", TURNSPAN_OTLP_ENDPOINT=server.url)
        wait_for(lambda: len(server.requests) == 2, "the first requests")
        process.kill()
        began_s = time.monotonic()
        wait_for(lambda: not processes_of(process.pid), "its processes to end")
        assert time.monotonic() - began_s < 5
        is_over.set()
        process.communicate()


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_the_sessions_of_a_process_that_ends_are_tried_again(claude, number):
    """SIGTERM ends a process that is sending, within seconds; the command sends its sessions in another one."""
    is_over = threading.Event()
    killed = []

    def answer(connection, _request):
        if not killed:
            is_over.wait(DEADLINE_S)
        connection.sendall(OK)

    with HttpServer(answer) as server:
        process = start(claude, "backfill", "--json", "--jobs", "2", TURNSPAN_OTLP_ENDPOINT=server.url)
        wait_for(lambda: len(server.requests) == 2, "the first requests")
        killed += [pid for pid in processes_of(process.pid) if pid != process.pid]
        os.kill(killed[0], number)
        wait_for(lambda: not {*killed} & {*processes_of(process.pid)}, "the processes to end")
        is_over.set()
        code, out, err = finish(process)
        spans = {(span["trace_id"], span["span_id"]) for request in server.requests for span in request.spans}
    assert (code, json.loads(out)["sessions"], err) == (0, 9, "")
    assert spans == expected(claude / "projects")


def test_a_home_that_cannot_be_written_is_an_error(claude):
    """It is said once, before anything is read."""
    orders = orders_for(claude)
    plan = make_plan(orders.config, Selection(), orders.destinations)
    claude.chmod(0o500)

    def attempt():
        if os.geteuid() == 0:
            os.setuid(54321)
        with pytest.raises(StateError, match="no access to"):
            run(plan, orders, 2, lambda _totals: None, lambda: False)

    child = get_context("fork").Process(target=attempt)
    child.start()
    child.join()
    assert child.exitcode == 0


def test_lines_that_cannot_be_read_are_reported(claude_home, command):
    """Each damaged session is named, with the number of its lines; the rest of it is exported."""
    writer = Writer()
    writer.turn("one", "First.")
    writer.turn("two", "Second.")
    lines = writer.lines()
    writer.save(claude_home / "projects" / "-p").write_bytes(lines[0] + lines[1][:150] + b"\n" + b"".join(lines[1:]))
    damaged = f"damaged: {writer.session}: 1 line cannot be read"
    code, out, _ = command("backfill", "--dry-run", "--jobs", "1")
    assert (code, damaged in out) == (0, True)
    code, out, _ = command("backfill", "--dry-run", "--jobs", "1", "--json")
    assert json.loads(out)["unreadable"] == {writer.session: 1}
    code, out, _ = command("backfill", "--resend", "--jobs", "1", "--json")
    found = json.loads(out)
    assert (code, found["unreadable"], found["turns"], found["is_complete"]) == (0, {writer.session: 1}, 2, True)
    code, out, _ = command("backfill", "--resend", "--jobs", "1")
    assert damaged in out


def test_a_damaged_line_of_a_subagent_counts_once(claude_home, command):
    """A subagent's file is read more than once; its torn line is one line."""
    writer = Writer()
    writer.prompt("one")
    call = writer.call("Task", {"prompt": "look", "description": "look", "subagent_type": "Explore"})
    agent = agent_writer(writer, "a1")
    agent.turn("look", "Seen.")
    writer.result(call, "Seen.", outcome={"agentId": "a1", "status": "completed"})
    writer.say("Done.")
    path = writer.save(claude_home / "projects" / "-p")
    saved = save_agent(agent, path.parent, "a1")
    with saved.open("ab") as file:
        file.write(agent.lines()[-1][:120] + b"\n")
    _, out, _ = command("backfill", "--jobs", "1", "--json")
    assert json.loads(out)["unreadable"] == {writer.session: 1}
