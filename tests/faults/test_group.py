"""Group commit: sessions whose progress is stored together lose nothing, wherever it is interrupted.

By default the process is killed at a sample of its calls; with `TURNSPAN_FAULTS=all`, before, after and in the middle of
every one of them.
"""

import errno
import importlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from multiprocessing import Pipe, SimpleQueue
from pathlib import Path

import pytest
from backends.servers import HttpServer
from figures import IS_ALL
from rows import Writer

from faults.recording import ACKNOWLEDGED, LATER, Recording
from turnspan.backends import Answer, Verdict
from turnspan.backends.local import read_spans
from turnspan.bulk.backfill import Sender
from turnspan.bulk.plan import Selection, make_plan
from turnspan.bulk.runner import Orders, Runner, Step, Task
from turnspan.delivery import state
from turnspan.errors import StateError
from turnspan.files import Busy
from turnspan.processes import Parent
from turnspan.settings.config import load_config

SESSIONS = 4
SEED = 3
TWO = """
[destinations.one]
type = "local"
directory = "{one}"
[destinations.two]
type = "local"
directory = "{two}"
"""

# Runs the sessions of a home as one group, in one process, and dies at a call: before it, after it, or half way.
DRIVER = """
import os, signal, sys
from multiprocessing import Pipe, SimpleQueue

CALLS = ("open", "write", "writev", "fsync", "replace", "ftruncate", "close", "mkdir")
harm, wanted = sys.argv[1], int(sys.argv[2])
count = 0

def wrapped(name, real):
    def call(*args, **kwargs):
        global count
        count += 1
        if count != wanted:
            return real(*args, **kwargs)
        if harm == "after":
            real(*args, **kwargs)
        elif harm == "half" and name == "write":
            real(args[0], bytes(args[1])[: len(args[1]) // 2])
        elif harm == "half" and name == "writev":
            os.write(args[0], b"".join(args[1])[: sum(map(len, args[1])) // 2])
        os.kill(os.getpid(), signal.SIGKILL)
    return call

from turnspan.bulk.backfill import Sender
from turnspan.bulk.plan import Selection, make_plan
from turnspan.bulk.runner import Orders, Task
from turnspan.processes import Parent
from turnspan.settings.config import load_config
import turnspan.backends.local, turnspan.backends.otlp, turnspan.source.reader, turnspan.delivery.deliver, turnspan.log

config = load_config(os.environ)
orders = Orders(config=config, destinations=config.destinations)
plan = make_plan(config, Selection(), config.destinations)
unstopped, _ = Pipe(duplex=False)
sender, parent = Sender(orders), Parent(unstopped, SimpleQueue())
for name in CALLS:
    setattr(os, name, wrapped(name, getattr(os, name)))
outcomes = sender(parent, Task(tuple(plan.jobs)))
os.write(1, f"{count} {sum(shipped.spans for outcome in outcomes for shipped in outcome.shipped)}".encode())
"""


# ---- a home with some sessions


def writer_of(number, turns=2):
    """A session with an id of its own."""
    writer = Writer(f"5e55104a-0000-4000-8000-{number:012}", tag=f"t{number}")
    for turn in range(turns):
        writer.turn(f"question {number}.{turn}", f"answer {number}.{turn}")
    return writer


class Home:
    """A Claude home with old sessions."""

    def __init__(self, claude, sessions=SESSIONS):
        self.claude = claude
        self.names = []
        for number in range(1, sessions + 1):
            writer = writer_of(number)
            writer.save(claude / "projects" / "-home-ada-loom")
            self.names.append(writer.session)
        (claude / "turnspan").mkdir(mode=0o700)

    def env(self, **more):
        """Return an environment without this machine's settings."""
        ours = ("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_", "CLAUDE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        return {**kept, "CLAUDE_CONFIG_DIR": str(self.claude), **more}

    def orders(self, **more):
        """Return the orders of a run."""
        config = load_config(self.env(**more))
        return Orders(config=config, destinations=config.destinations)

    def send(self, *backends, **more):
        """Send all sessions as one group; return the outcomes by session, and the messages."""
        orders = self.orders(**more)
        plan = make_plan(orders.config, Selection(), orders.destinations)
        unstopped, _ = Pipe(duplex=False)
        reports = SimpleQueue()
        sender = Sender(orders)
        for target, backend in zip(sender._targets, backends, strict=False):
            target.backend = sender._group.outbox(target.identity, backend)
        outcomes = sender(Parent(unstopped, reports), Task(tuple(plan.jobs)))
        messages = []
        while not reports.empty():
            message = reports.get()
            messages += message if isinstance(message, list) else [message]
        return dict(zip([job.session.session_id for job in plan.jobs], outcomes, strict=False)), messages

    def stored(self, directory="traces"):
        """Return how often each span is in the local files."""
        found = Counter()
        for path in sorted((self.claude / "turnspan" / directory).glob("*.jsonl")):
            for line in path.read_bytes().splitlines():
                try:
                    request = json.loads(line)
                except ValueError:
                    continue  # half a line of a process that was killed
                for resource in request["resourceSpans"]:
                    for scope in resource["scopeSpans"]:
                        found.update(span["spanId"] for span in scope["spans"])
        return found

    def cursor(self, name, number=0):
        """Return what the state knows of a session at a destination."""
        found = list(self.cursors(name).values())
        return found[number] if len(found) > number else None

    def cursors(self, name):
        """Return what the state knows of a session, by destination."""
        return state.known(self.claude / "turnspan", name).destinations

    def are_free(self):
        """Return whether no session is locked."""
        for name in self.names:
            try:
                with state.lock(self.claude / "turnspan", name):
                    pass
            except Busy:
                return False
        return True


@pytest.fixture
def home(tmp_path):
    """A home with some sessions."""
    return Home(tmp_path / "claude")


class Storing(Recording):
    """A recording backend that can store several requests together."""

    def __init__(self, *answers, together=(ACKNOWLEDGED,)):
        super().__init__(*answers)
        self.together = list(together)
        self.groups = []

    def send_all(self, bodies):
        """Record a group and return the next verdict about groups."""
        self.groups.append(len(bodies))
        verdict = self.together.pop(0) if len(self.together) > 1 else self.together[0]
        if verdict.answer is Answer.ACKNOWLEDGED:
            for body in bodies:
                self.send(body)
        return verdict


@contextmanager
def counting_syncs(monkeypatch):
    """Count the syncs of this process."""
    found, fsync = [], os.fsync
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: (found.append(descriptor), fsync(descriptor)))
        yield found


def session_of(row):
    """Return the session of a stored span."""
    return re.search(rb"5e55104a-[0-9-]+", row.content)[0].decode()


# ---- what it saves


def test_sessions_are_stored_together(tmp_path, monkeypatch):
    """Twenty sessions need one sync of lines, one of the index, and one for each checkpoint."""
    home = Home(tmp_path / "claude", 20)
    home.send()
    (tmp_path / "claude" / "turnspan" / "state").rename(tmp_path / "old")
    (tmp_path / "claude" / "turnspan" / "traces").rename(tmp_path / "traces")
    state.state_directory.cache_clear()
    with counting_syncs(monkeypatch) as syncs:
        outcomes, messages = home.send()
    assert all(outcome.shipped[0].is_complete for outcome in outcomes.values())
    assert len(syncs) <= 20 + 5  # 80 if each session is stored by itself
    assert sum(message.spans for message in messages if isinstance(message, Step)) == len(home.stored()) == 80
    assert home.are_free()


# ---- killed


def killed_homes(base, url, harm, call):
    """Kill a group at a call, in a home of its own; return the home and whether it was killed."""
    home = Home(base / f"{harm}-{call}" / "claude")
    more = {"TURNSPAN_OTLP_ENDPOINT": url} if url else {}
    command = [sys.executable, "-c", DRIVER, harm, str(call)]
    done = subprocess.run(command, env=home.env(**more), capture_output=True, text=True, check=False)
    assert done.returncode in {0, -signal.SIGKILL}, done.stderr
    return home, done


@pytest.mark.parametrize("is_remote", [False, True], ids=["local", "server"])
def test_killed_at_every_call_of_a_group_commit(tmp_path, is_remote):
    """After a kill the next backfill completes every session; local files have each span once, a server gets all."""
    with HttpServer() as server:
        url = server.url if is_remote else ""
        _, done = killed_homes(tmp_path, url, "never", 0)
        calls, spans = map(int, done.stdout.split())
        assert spans == 4 * SESSIONS
        kills = [(harm, call) for call in range(1, calls + 1) for harm in ("before", "after", "half")]
        chosen = kills if IS_ALL else random.Random(SEED).sample(kills, 10)
        before = len(server.requests)

        def run(kill):
            home, done = killed_homes(tmp_path, url, *kill)
            outcomes, _ = home.send(**({"TURNSPAN_OTLP_ENDPOINT": url} if url else {}))
            assert all(outcome.shipped[0].is_complete for outcome in outcomes.values()), kill
            if not is_remote:
                assert set(home.stored().values()) == {1}, kill
                assert len(list(read_spans(home.claude / "turnspan" / "traces"))) == spans, kill
            again, _ = home.send(**({"TURNSPAN_OTLP_ENDPOINT": url} if url else {}))
            assert sum(outcome.shipped[0].spans for outcome in again.values()) == 0, kill
            return done.returncode != 0

        with ThreadPoolExecutor(2) as pool:
            killed = sum(pool.map(run, chosen))
        assert killed >= len(chosen) * 3 // 4  # the others had more calls before
        if is_remote:
            # Every home has the same sessions: the server counts them together.
            times = Counter(span["span_id"] for request in server.requests[before:] for span in request.spans)
            assert len(times) == spans
            assert all(len(chosen) <= count <= 2 * len(chosen) for count in times.values())


# ---- one session fails


def test_a_session_that_fails_holds_back_no_other(home):
    """A session whose state is from a newer version is reported; the rest of its group is sent and committed."""
    directory = state.state_directory(home.claude / "turnspan")
    (directory / f"{home.names[1]}.json").write_text('{"version": 99}')
    outcomes, _ = home.send()
    assert [bool(outcomes[name].error) for name in home.names] == [False, True, False, False]
    assert sum(home.stored().values()) == len(home.stored()) == 4 * (SESSIONS - 1)
    assert [home.cursor(name).sent_turns for name in home.names if name != home.names[1]] == [2, 2, 2]
    assert home.are_free()


def test_a_session_that_is_locked_holds_back_no_other(home):
    """A session that a hook is sending is left to be retried."""
    with state.lock(home.claude / "turnspan", home.names[2]):
        outcomes, _ = home.send()
    assert [outcomes[name].is_busy for name in home.names] == [False, False, True, False]
    assert len(home.stored()) == 4 * (SESSIONS - 1)


def test_a_checkpoint_that_cannot_be_written_concerns_its_session_only(home):
    """Its spans are sent again by the next run; the other sessions are committed."""

    def obstruct(_rows):
        if len(backend.requests) == 3:  # the third session: its checkpoint was loaded already
            (home.claude / "turnspan" / "state" / f"{home.names[2]}.json" / "x").mkdir(parents=True)
        return ACKNOWLEDGED

    backend = Recording(obstruct)
    outcomes, messages = home.send(backend)
    assert [outcomes[name].is_state_error for name in home.names] == [False, False, True, False]
    assert sum(message.spans for message in messages if isinstance(message, Step)) == 4 * (SESSIONS - 1)
    assert home.are_free()
    again = Recording()
    (home.claude / "turnspan" / "state" / f"{home.names[2]}.json").rename(home.claude / "away")
    home.send(again)
    assert set(map(session_of, again.rows)) == {home.names[2]}


def test_a_full_disk_leaves_every_checkpoint_as_it_was(home, monkeypatch):
    """If no checkpoint can be written, all sessions are reported, and the next run sends them."""
    real = os.write

    def full(descriptor, data):
        if Path(f"/proc/self/fd/{descriptor}").readlink().name.endswith(".tmp"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(descriptor, data)

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        outcomes, _ = home.send()
    assert all("disk full" in outcome.error and outcome.is_state_error for outcome in outcomes.values())
    assert not list((home.claude / "turnspan" / "state").glob("*.json"))
    assert not list((home.claude / "turnspan" / "state").glob(".*.tmp"))
    outcomes, _ = home.send()
    assert all(outcome.shipped[0].is_complete for outcome in outcomes.values())
    assert set(home.stored().values()) == {1}


# ---- a destination refuses a group


def test_what_could_not_be_stored_is_not_committed(home):
    """If a group cannot be stored, each of its sessions is sent by itself, and committed if that works."""
    backend = Storing(together=(Verdict(Answer.LATER, "full"), ACKNOWLEDGED))
    outcomes, messages = home.send(backend)
    assert all(outcome.shipped[0].is_complete and outcome.shipped[0].spans == 4 for outcome in outcomes.values())
    assert (backend.groups, len(backend.rows), backend.twice) == ([SESSIONS], 4 * SESSIONS, [])
    assert sum(message.spans for message in messages if isinstance(message, Step)) == 4 * SESSIONS
    assert [home.cursor(name).sent_spans for name in home.names] == [4] * SESSIONS
    assert home.are_free()


def test_one_session_that_cannot_be_stored_does_not_affect_the_others(home):
    """The session that the backend refuses is reported; the others of its group are complete."""
    refused = Verdict(Answer.INVALID, "no")

    def choosy(rows):
        return refused if session_of(rows[0]) == home.names[1] else ACKNOWLEDGED

    backend = Storing(choosy, together=(refused, ACKNOWLEDGED))
    outcomes, _ = home.send(backend)
    assert [outcomes[name].shipped[0].is_complete for name in home.names] == [True, False, True, True]
    assert set(map(session_of, backend.rows)) == {*home.names} - {home.names[1]}
    assert home.cursor(home.names[1]).sent_turns == 0


def test_two_destinations_of_which_one_refuses(home):
    """What the other one acknowledged stays acknowledged, and is not sent to it again."""
    config = home.claude / "turnspan" / "config.toml"
    config.write_text(TWO.format(one=home.claude / "one", two=home.claude / "two"))
    first, second = Storing(together=(LATER, ACKNOWLEDGED)), Recording()
    outcomes, _ = home.send(first, second)
    for backend in (first, second):
        assert (len(backend.rows), backend.twice) == (4 * SESSIONS, [])
    for name in home.names:
        assert [one.spans for one in outcomes[name].shipped] == [4, 4]
        assert [home.cursor(name, number).sent_spans for number in (0, 1)] == [4, 4]


def test_a_group_that_is_refused_in_the_middle_of_a_session(tmp_path, monkeypatch):
    """A session that is larger than a group is stored piece by piece, and begins again where it was refused."""
    home = Home(tmp_path / "claude", 1)
    writer_of(2, 900).save(home.claude / "projects" / "-home-ada-loom")
    monkeypatch.setattr("turnspan.bulk.group.GROUP_PIECES", 2)
    backend = Storing(together=(ACKNOWLEDGED, LATER, ACKNOWLEDGED))
    outcomes, _ = home.send(backend)
    assert all(outcome.shipped[0].is_complete for outcome in outcomes.values())
    assert (len(backend.rows), backend.twice) == (1804, [])
    assert len(backend.groups) > 1


def test_a_long_session_that_is_refused_while_it_is_read(tmp_path, monkeypatch):
    """No later piece of it is committed without the earlier ones."""
    home = Home(tmp_path / "claude", 1)
    writer_of(1, 900).save(home.claude / "projects" / "-home-ada-loom")
    monkeypatch.setattr("turnspan.bulk.group.GROUP_PIECES", 1)
    backend = Storing(together=(LATER, ACKNOWLEDGED))
    backend.answers = [lambda _rows: sys.exit("killed")]  # when it is sent by itself
    with pytest.raises(SystemExit):
        home.send(backend)
    assert backend.groups == [1]
    assert home.cursor(home.names[0]) is None
    assert home.are_free()


def test_a_session_that_is_refused_is_sent_to_no_other_destination_meanwhile(home, monkeypatch):
    """What the other one acknowledged could not be noted: it would be sent twice."""
    config = home.claude / "turnspan" / "config.toml"
    config.write_text(TWO.format(one=home.claude / "one", two=home.claude / "two"))
    monkeypatch.setattr("turnspan.bulk.group.GROUP_PIECES", 1)
    first, second = Storing(together=(LATER, ACKNOWLEDGED)), Recording()
    home.send(first, second)
    for backend in (first, second):
        assert (len(backend.rows), backend.twice) == (4 * SESSIONS, [])
    assert home.are_free()


def test_a_group_that_is_refused_while_another_destination_is_waited_for(home):
    """The session that waits acknowledges nothing of what was refused, whatever else is noted about it."""
    config = home.claude / "turnspan" / "config.toml"
    config.write_text(TWO.format(one=home.claude / "one", two=home.claude / "two"))
    much_later = Verdict(Answer.LATER, "come back later", 1000.0)  # longer than a backfill waits
    first = Storing(much_later, together=(LATER,))
    second = Recording(Verdict(Answer.LATER, "slowly", 0.01), ACKNOWLEDGED)
    outcomes, _ = home.send(first, second)
    assert (first.rows, len(second.rows), second.twice) == ([], 4 * SESSIONS, [])
    for name in home.names:
        assert not outcomes[name].shipped[0].is_complete
        assert all(not cursor.sent_turns for identity, cursor in home.cursors(name).items() if "one" in identity)


def test_a_pause_holds_nothing_back(home):
    """Before a destination gets the time it asks for, everything that it acknowledged is committed."""
    seen = []

    def slow(_rows):
        if len(backend.requests) == 3:
            return Verdict(Answer.LATER, "slowly", retry_after_s=0.05)
        if len(backend.requests) == 4:
            seen.extend(home.cursor(name) is not None for name in home.names)
        return ACKNOWLEDGED

    backend = Recording(slow)
    outcomes, _ = home.send(backend)
    assert seen[:2] == [True, True]
    assert all(outcome.shipped[0].is_complete for outcome in outcomes.values())


def test_what_was_sent_is_not_held_for_long(home, monkeypatch):
    """With a slow server, what it acknowledged is committed every two seconds, however small the group is."""
    monkeypatch.setattr("turnspan.bulk.group._GROUP_S", 0.0)
    known = []

    def slow(_rows):
        known.append(sum(home.cursor(name) is not None for name in home.names))
        time.sleep(0.001)
        return ACKNOWLEDGED

    home.send(Recording(slow))
    assert known == [0, 1, 2, 3]


def test_a_checkpoint_too_large_to_store(home):
    """A checkpoint of more than 8 MB is an error of its session; the others are saved."""
    big = state.Checkpoint(session_id="big", transcript="x" * state.MAX_STATE_BYTES)
    failed = state.save_all(home.claude / "turnspan", [big, state.Checkpoint(session_id="small")])
    assert isinstance(failed.pop("big"), StateError)
    assert not failed
    assert state.peek(home.claude / "turnspan", "small") is not None


# ---- a process dies

POISON = """
import os
from turnspan.bulk.runner import SessionOutcome
from turnspan.delivery.ship import Shipped

def prepare(orders):
    def do(parent, task):
        if any(job.session.session_id.endswith("2") for job in task.jobs):
            os._exit(9)
        identities = [destination.name for destination in orders.destinations]
        return [SessionOutcome(shipped=tuple(map(Shipped, identities))) for job in task.jobs]
    return do
"""


def test_a_session_that_ends_its_process_is_the_only_one_that_fails(tmp_path, monkeypatch):
    """The other sessions of its group are handed to another process."""
    home = Home(tmp_path / "claude", 16)
    (tmp_path / "poison.py").write_text(POISON)
    monkeypatch.syspath_prepend(tmp_path)
    orders = home.orders()
    plan = make_plan(orders.config, Selection(), orders.destinations)
    runner = Runner(plan, orders, importlib.import_module("poison").prepare)
    totals = runner.run(1, lambda _totals: None, lambda: False)
    assert set(totals.left) == {home.names[1], home.names[11]}
    assert totals.sessions == 14
