"""Events and faults in any order: hypothesis chooses the orders, and one oracle judges all of them.

Rows are written, complete and partial; files are truncated, rewritten and forked; events arrive, get lost, and their
workers are killed; the backend fails in several ways and recovers; the state is deleted, damaged and replaced by an older
one. When the faults have stopped, one clean end of each session must give exactly what one reading of the files gives.

The same machine with a deliberate bug must be caught: otherwise it would prove nothing.
"""

import contextlib
import os
import shutil
import sys
import tempfile
import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import msgspec
import pytest
from figures import IS_ALL, note
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from faults.recording import (
    ACKNOWLEDGED,
    CONFIGURATION,
    CREDENTIALS,
    INVALID,
    LATER,
    Recording,
    rows_of,
    target_for,
)
from faults.story import Recorder
from turnspan.claude.event import Event
from turnspan.delivery import state
from turnspan.errors import TurnspanError
from turnspan.settings.config import load_config
from turnspan.source import tail
from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import SessionFile, session_at
from turnspan.worker import serve

IDLE_S = 9 * 60  # a little less than what turnspan takes for silence
counts: Counter[str] = Counter()


class Killed(BaseException):
    """What a worker meets in the middle of its work: nothing catches it."""


class Executioner:
    """Kills whatever runs in this process at its n-th look at a file."""

    WATCHED = frozenset({
        "open", "os.rename", "os.remove", "os.mkdir", "os.scandir", "os.truncate", "fcntl.flock", "mmap.__new__",
    })  # fmt: skip

    def __init__(self):
        self.left = 0

    def __call__(self, event, _arguments):
        """Hear of everything that the interpreter does."""
        if self.left and event in self.WATCHED:
            self.left -= 1
            if not self.left:
                raise Killed


def descriptors():
    """Return what is open in this process."""
    found = set()
    for descriptor in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):  # the one that the list was read from
            os.fstat(descriptor)
            found.add(descriptor)
    return found


executioner = Executioner()
sys.addaudithook(executioner)


class Transcript:
    """A session that is being written."""

    def __init__(self, project, number, now_s):
        self.writer = Recorder(f"0de10000-0000-4000-8000-{number:012}", "2.1.325", tag=f"m{number}")
        self.path = project / f"{self.writer.session}.jsonl"
        self.half = b""  # what is missing of a line that was begun
        self.is_tampered = False
        self.is_shared = False  # it was forked, or is a fork
        self.is_closed = True  # what comes next is a prompt
        self.pending = None  # a call that has no result yet
        self.written = 0
        self.writer.now = datetime.fromtimestamp(now_s, tz=UTC)

    @property
    def is_answered(self):
        """Whether the last row is the end of a turn."""
        rows = self.writer.rows
        return (
            bool(rows)
            and rows[-1]["type"] == "assistant"
            and self.is_closed
            and "text" in rows[-1]["message"]["content"][0]
        )

    def flush(self, now_s, part=1.0):
        """Bring the file up to what was said, but for a part of the last line."""
        new = b"".join(self.writer.lines()[self.written :])
        self.written = len(self.writer.lines())
        keep = (
            len(new)
            if part == 1.0
            else len(new) - len(self.writer.lines()[-1]) + int(len(new) * part) % len(self.writer.lines()[-1])
        )
        with self.path.open("ab") as file:
            file.write(self.half + new[:keep])
        self.half = new[keep:]
        os.utime(self.path, (now_s, now_s))


class Loom(RuleBasedStateMachine):
    """The world, and turnspan in it."""

    def __init__(self):
        super().__init__()
        self.base = Path(
            tempfile.mkdtemp(prefix="turnspan-", dir="/dev/shm" if os.access("/dev/shm", os.W_OK) else None)
        )
        self.project = self.base / "projects" / "-home-ada-loom"
        self.project.mkdir(parents=True)
        self.env = {"CLAUDE_CONFIG_DIR": str(self.base)}
        self.now_s = time.time()
        self.recording = Recording()
        self.transcripts = []
        self.kept_state = None
        self.may_repeat = False
        self.is_over = False

    # ---- turnspan

    def backend(self):
        """Return the destination's backend: a mutant may wrap it."""
        return self.recording

    def call(self, event):
        """Serve an event as a new process would: a mutant may do it otherwise."""
        state.state_directory.cache_clear()
        backend = self.backend()
        serve(event, self.env, lambda: self.now_s, self.sleep, lambda config: [target_for(config, backend)])

    def sleep(self, seconds):
        """Let time pass."""
        self.now_s += seconds

    def happen(self, name, transcript, *, words=None, kill_at=0):
        """Have an event happen, perhaps with a worker that is killed."""
        counts[name] += 1
        self.now_s += 1
        event = Event(name, transcript.writer.session, str(transcript.path), "/home/ada/loom", words)
        opened = descriptors()
        executioner.left = kill_at
        try:
            self.call(event)
            is_killed = False
        except Killed:
            counts["killed"] += 1
            self.may_repeat = is_killed = True
        except TurnspanError:
            counts["failed"] += 1
            is_killed = False
        finally:
            executioner.left = 0
        for descriptor in descriptors() - opened if is_killed else ():
            os.close(descriptor)  # what the kernel does for a process that dies
        self.check_stored()

    # ---- what the world does

    @initialize(number=st.integers(1, 2))
    def begin(self, number):
        """Some people open a session each."""
        for _ in range(number):
            self.transcripts.append(Transcript(self.project, len(self.transcripts) + 1, self.now_s))

    def one(self, at):
        """Return one of the sessions."""
        return self.transcripts[at % len(self.transcripts)]

    def say(self, transcript, what):
        """Add rows to a session, as its client would."""
        writer = transcript.writer
        writer.now = datetime.fromtimestamp(self.now_s, tz=UTC)
        if what == "prompt" or transcript.is_closed:
            writer.prompt(f"Question {writer.count}.")
            transcript.is_closed, transcript.pending = False, None
        elif transcript.pending is not None:
            writer.result(transcript.pending, "done")
            transcript.pending = None
        elif what == "call":
            transcript.pending = writer.call("Bash", {"command": f"step {writer.count}"})
        else:
            writer.say(f"Answer {writer.count}.")
            transcript.is_closed = True
        self.now_s = writer.now.timestamp() + 1

    @rule(
        at=st.integers(0, 9),
        what=st.lists(st.sampled_from(["prompt", "answer", "call", "answer"]), min_size=1, max_size=5),
    )
    def rows_are_written(self, at, what):
        """Whole rows, any number of them."""
        transcript = self.one(at)
        for each in what:
            self.say(transcript, each)
        transcript.flush(self.now_s)

    @rule(at=st.integers(0, 9), calls=st.integers(0, 2), is_disturbed=st.booleans(), is_told=st.booleans())
    def a_turn_is_lived(self, at, calls, is_disturbed, is_told):
        """A prompt, some calls and an answer; something else may end in the middle of it, and its Stop may get lost."""
        self.rows_are_written(at, ["prompt", "call"])
        if is_disturbed:
            self.something_ends_in_the_middle(at, 0)
        self.rows_are_written(at, ["result", *["call", "result"] * calls, "answer"])
        if is_told:
            self.a_turn_stops(at, 0)

    @rule(at=st.integers(0, 9), kill_at=st.one_of(st.just(0), st.integers(1, 60)))
    def something_ends_in_the_middle(self, at, kill_at):
        """An unknown agent has stopped: an event that ends no turn."""
        self.happen("SubagentStop", self.one(at), kill_at=kill_at)

    @rule(at=st.integers(0, 9), what=st.sampled_from(["prompt", "answer", "call"]), part=st.floats(0.05, 0.95))
    def half_a_row_is_written(self, at, what, part):
        """Perhaps after some complete ones; the rest comes with the next."""
        transcript = self.one(at)
        self.say(transcript, what)
        transcript.flush(self.now_s, part)

    @rule(at=st.integers(0, 9), kill_at=st.one_of(st.just(0), st.just(0), st.integers(1, 60)))
    def a_turn_stops(self, at, kill_at):
        """The client says so, with the last words; its worker may be killed."""
        transcript = self.one(at)
        if transcript.is_answered and not transcript.half:
            words = transcript.writer.rows[-1]["message"]["content"][0]["text"]
            self.happen("Stop", transcript, words=words, kill_at=kill_at)

    @rule(at=st.integers(0, 9))
    def a_stop_comes_before_its_words(self, at):
        """The file lags behind: the last line is there in part, or not at all."""
        transcript = self.one(at)
        if transcript.is_answered or transcript.is_closed or transcript.pending is not None:
            return
        self.say(transcript, "answer")
        words = transcript.writer.rows[-1]["message"]["content"][0]["text"]
        if not transcript.path.exists():
            transcript.path.touch()
        self.happen("Stop", transcript, words=words)

    @rule(at=st.integers(0, 9), kill_at=st.one_of(st.just(0), st.integers(1, 60)))
    def a_session_ends(self, at, kill_at):
        """An open turn is over; if the session is resumed, it is with a new prompt."""
        transcript = self.one(at)
        if transcript.path.exists() and not transcript.half:
            transcript.flush(self.now_s)
            transcript.is_closed, transcript.pending = True, None
            self.happen("SessionEnd", transcript, kill_at=kill_at)

    @rule(kill_at=st.one_of(st.just(0), st.integers(1, 60)))
    def another_process_starts(self, kill_at):
        """A new session looks for what others left behind."""
        self.happen("SessionStart", Transcript(self.project, 99, self.now_s), kill_at=kill_at)

    @rule()
    def everybody_goes_to_lunch(self):
        """For more than an hour nothing is written."""
        self.time_passes(4000)

    def time_passes(self, seconds):
        """Let time go by; who has been silent for too long by then will not go on with what was begun."""
        for transcript in self.transcripts:
            if self.now_s + seconds - transcript.writer.now.timestamp() > IDLE_S:
                if transcript.writer.rows:
                    transcript.flush(self.now_s)
                transcript.is_closed, transcript.pending = True, None
        self.now_s += seconds

    @precondition(lambda self: len(self.transcripts) < 4)
    @rule(at=st.integers(0, 9))
    def a_session_is_forked(self, at):
        """Its rows are copied into a new file without a mark, and a new prompt follows."""
        origin = self.one(at)
        if origin.is_tampered or origin.half or not origin.is_answered or origin.written < len(origin.writer.rows):
            return
        fork = Transcript(self.project, len(self.transcripts) + 1, self.now_s)
        fork.writer.bare("mode", mode="normal")
        copied = [row for row in origin.writer.rows if row["type"] != "api-request"]
        fork.writer.rows += [{**row, "sessionId": fork.writer.session} for row in copied]
        fork.writer.parent = origin.writer.parent
        origin.is_shared = fork.is_shared = True
        self.transcripts.append(fork)
        counts["forked"] += 1
        self.rows_are_written(len(self.transcripts) - 1, ["prompt"])

    @rule(at=st.integers(0, 9), left=st.floats(0, 0.99))
    def a_transcript_is_truncated(self, at, left):
        """In place, at any byte."""
        transcript = self.one(at)
        if transcript.is_shared or not transcript.path.exists():
            return
        transcript.flush(self.now_s)
        data = transcript.path.read_bytes()
        data = data[: int(len(data) * left)]
        data = data[: data.rfind(b"\n") + 1]
        transcript.path.write_bytes(data)
        transcript.writer.rows = [msgspec.json.decode(line) for line in data.splitlines()]
        self.tamper(transcript)

    @rule(at=st.integers(0, 9), row=st.integers(0, 99))
    def a_row_is_removed(self, at, row):
        """The file is written anew without one of its rows."""
        transcript = self.one(at)
        rows = [one for one in transcript.writer.rows if one["type"] != "api-request"]
        if transcript.is_shared or not rows:
            return
        transcript.flush(self.now_s)
        transcript.writer.rows.remove(rows[row % len(rows)])
        transcript.path.write_bytes(b"".join(transcript.writer.lines()))
        self.tamper(transcript)

    def tamper(self, transcript):
        """Record that a file was changed."""
        counts["tampered"] += 1
        transcript.half, transcript.written = b"", len(transcript.writer.rows)
        transcript.is_tampered = transcript.is_closed = self.may_repeat = True
        transcript.pending = None

    @rule(
        verdict=st.sampled_from([LATER, CREDENTIALS, CONFIGURATION, INVALID]),
        is_stored=st.booleans(),
        good=st.integers(0, 2),
    )
    def the_backend_fails(self, verdict, is_stored, good):
        """After some good answers; it may keep what it is sent, and never say so."""
        self.recording.answers = [*[ACKNOWLEDGED] * good, verdict]
        if is_stored and verdict is LATER:
            self.recording.is_stored_anyway = self.may_repeat = True
        counts["outages"] += 1

    @rule()
    def the_backend_recovers(self):
        """And any hold is over."""
        self.recording.answers, self.recording.is_stored_anyway = [ACKNOWLEDGED], False
        self.time_passes(301)

    @rule(how=st.sampled_from(["deleted", "spoilt", "kept", "an older one"]), at=st.integers(0, 9))
    def our_state_is_lost(self, how, at):
        """All of it, or one session's; or a backup is restored."""
        directory = self.base / "turnspan" / "state"
        if not directory.exists():
            return
        if how == "deleted":
            shutil.rmtree(directory)
        elif how == "kept":
            self.kept_state = {path.name: path.read_bytes() for path in directory.glob("*.json")}
            return
        elif how == "spoilt":
            path = directory / f"{self.one(at).writer.session}.json"
            if path.exists():
                path.write_bytes(path.read_bytes()[:-20])
        elif self.kept_state is not None:
            for name, raw in self.kept_state.items():
                (directory / name).write_bytes(raw)
                (directory / name).chmod(0o600)
        self.may_repeat = True
        counts["state lost"] += 1

    # ---- the oracle

    def check_stored(self):
        """What has arrived is well at any moment: a span never moves, and never changes unless its file was changed."""
        tampered = {one.writer.session for one in self.transcripts if one.is_tampered}
        starts, contents = {}, {}
        for row in self.recording.rows:
            assert starts.setdefault((row.trace_id, row.span_id), row.start_ns) == row.start_ns, f"{row.name} moved"
            session = msgspec.json.decode(row.content)[0][2]
            if session not in tampered:
                assert contents.setdefault(row.key, row.content) == row.content, f"{row.name} changed"
        if not self.may_repeat:
            assert self.recording.twice == []

    def teardown(self):
        """The faults stop, every session ends once, and what has arrived is compared with one reading."""
        try:
            if self.transcripts and sys.exc_info()[0] is None:
                self.judge()
        finally:
            shutil.rmtree(self.base, ignore_errors=True)

    def judge(self):
        """Conservation, integrity, uniqueness, nothing spurious."""
        self.the_backend_recovers()
        self.time_passes(4000)
        for transcript in self.transcripts:
            if transcript.writer.rows or transcript.half:
                transcript.flush(self.now_s)
        for transcript in self.transcripts:
            if transcript.path.exists():
                self.happen("SessionEnd", transcript)
        config = load_config(self.env)
        mask = target_for(config, self.recording).mask
        stored = {row.key: row.content for row in self.recording.rows}
        expected, loose = {}, set()
        for transcript in self.transcripts:
            if not transcript.path.exists():
                continue
            traces = [mask(trace).trace for trace in Reader.for_people().traces(session_at(transcript.path))]
            rows = rows_of(traces)
            if transcript.is_tampered:
                loose.add(transcript.writer.session)
                lost = {row.key for row in rows} - stored.keys()
            else:
                expected |= {row.key: row.content for row in rows}
                lost = {row.key for row in rows} - stored.keys()
            assert not lost, f"lost: {sorted(lost)}"
        strict = {
            row.key: row.content for row in self.recording.rows if msgspec.json.decode(row.content)[0][2] not in loose
        }
        assert strict == expected
        counts["stories"] += 1
        counts["spans"] += len(expected)


SETTINGS = settings(
    max_examples=3000 if IS_ALL else 40,
    stateful_step_count=40 if IS_ALL else 25,
    suppress_health_check=list(HealthCheck),
    deadline=None,
)


def test_any_order_of_events_leaves_one_reading():
    """Any faults in any order: nothing lost, nothing changed, nothing twice unless it could not be avoided."""
    counts.clear()
    run_state_machine_as_test(Loom, settings=SETTINGS)
    faults = ", ".join(f"{name} {counts[name]}" for name in ("killed", "outages", "state lost", "tampered", "forked"))
    note("model", f"{counts['stories']} stories, {counts['spans']} spans compared ({faults})", is_sampled=True)


# ---- mistakes that must be caught


class CommitsBeforeItSends(Loom):
    """Says that it has been delivered, and delivers when it is closed."""

    def backend(self):
        """Put a queue in between."""
        return Queueing(self.recording)


class Queueing:
    """A backend that acknowledges first."""

    def __init__(self, inner):
        self.name, self.max_request_bytes, self.encode = inner.name, inner.max_request_bytes, inner.encode
        self._inner, self._waiting = inner, []

    def send(self, body):
        """Promise."""
        self._waiting.append(body)
        return ACKNOWLEDGED

    def close(self):
        """Deliver."""
        for body in self._waiting:
            self._inner.send(body)


class TakesOneAnswerForTheEnd(Loom):
    """A user's row and one of the assistant's are a complete turn."""

    def call(self, event):
        """Send everything that has an answer."""
        path = Path(event.transcript_path)
        if path.exists() and b'"type":"assistant"' in path.read_bytes().rpartition(b'"content":"Question')[2]:
            event = msgspec.structs.replace(event, hook_event_name="SessionEnd")
        super().call(event)


class SendsAgainUnderNewIds(Loom):
    """Each attempt gives its spans ids of its own."""

    attempts = 0

    def backend(self):
        """Count the attempts into the ids."""
        type(self).attempts += 1
        return Renaming(self.recording, self.attempts)


class Renaming:
    """A backend whose span ids depend on the attempt."""

    def __init__(self, inner, attempt):
        self.name, self.max_request_bytes, self.send, self.close = (
            inner.name,
            inner.max_request_bytes,
            inner.send,
            inner.close,
        )
        self._inner, self._attempt = inner, attempt

    def encode(self, traces):
        """Salt the ids."""
        salt = self._attempt.to_bytes(2, "big")
        return self._inner.encode([
            msgspec.structs.replace(
                trace,
                spans=tuple(msgspec.structs.replace(span, span_id=salt + span.span_id[2:]) for span in trace.spans),
            )
            for trace in traces
        ])  # fmt: skip


class GoesPastHalfALine(Loom):
    """Takes the end of the file for the end of what it has read."""

    def call(self, event):
        """Move the place to the end of the file, half a line or not."""
        super().call(event)
        path, home = Path(event.transcript_path), self.base / "turnspan"
        if not path.exists() or not (home / "state" / f"{path.stem}.json").exists():
            return
        checkpoint = state.load(home, path.stem).checkpoint
        with path.open("rb") as file:
            size = path.stat().st_size
            moved = {
                name: msgspec.structs.replace(
                    cursor,
                    progress=msgspec.structs.replace(
                        cursor.progress,
                        main=msgspec.structs.replace(
                            cursor.progress.main, offset=size, fingerprint=tail.fingerprint(file.fileno(), size)
                        ),
                    ),
                )
                for name, cursor in checkpoint.destinations.items()
            }
        state.save(home, msgspec.structs.replace(checkpoint, destinations=moved))


MUTANTS = [CommitsBeforeItSends, TakesOneAnswerForTheEnd, SendsAgainUnderNewIds, GoesPastHalfALine]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.__name__)
def test_a_mistake_is_caught(mutant):
    """The oracle is worth something: each of these mistakes, which others have made, fails it."""
    hunt = settings(SETTINGS, max_examples=500, phases=(Phase.generate,), report_multiple_bugs=False, database=None)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as caught:
        run_state_machine_as_test(mutant, settings=hunt)
    assert isinstance(caught.value, AssertionError)
    note("mutants", f"{len(MUTANTS)} deliberate mistakes, each caught")


def test_the_executioner_kills(tmp_path):
    """A kill in the middle of reading is a kill: nothing of ours catches it."""
    transcript = Transcript(tmp_path, 1, time.time())
    transcript.writer.turn("Hello.", "Good day.")
    transcript.flush(time.time())
    executioner.left = 1
    session = SessionFile(transcript.path.stem, transcript.path)
    with pytest.raises(Killed):
        list(Reader.for_people().read(session, Progress(), Ending(is_over=True)).pieces())
    assert executioner.left == 0
