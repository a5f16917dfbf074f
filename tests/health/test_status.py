"""`turnspan status`, for users and for scripts."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from backends.langfuse_records import Store
from backends.servers import OK, HttpServer, reply
from rows import Writer

from turnspan import log
from turnspan.bulk.backfill import run
from turnspan.bulk.plan import Selection, make_plan
from turnspan.bulk.runner import Orders
from turnspan.claude.install import InstallScope, apply, plan_install, this_runtime
from turnspan.cli import main
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target, identity_of, since
from turnspan.delivery.ship import ship
from turnspan.health.hook_times import hook_times
from turnspan.health.log_lines import counts_in, read_log
from turnspan.settings.config import load_config
from turnspan.source.ending import Ending
from turnspan.source.sessions import session_at

SESSION = "5e55104a-0000-4000-8000-000000000001"


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A home of its own; nothing of this machine's settings."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Place(tmp_path)


class Place:
    def __init__(self, base):
        self.base = base
        self.claude = base / "claude"
        self.home = self.claude / "turnspan"

    @property
    def config(self):
        return load_config(os.environ)

    def session(self, turns=2, session=SESSION, **options):
        """Write a session of some turns, just now."""
        writer = Writer(session=session, **options)
        for number in range(turns):
            writer.turn(f"question {number}", "Answer.")
        return writer, writer.save(self.claude / "projects" / "-p")

    def ship(self, path, config=None, **ending):
        """Send a session to the first destination, as a worker does."""
        config = config or self.config
        target = Target(config.destinations[0], config)
        since(config, target.identity, time.time())
        try:
            return ship(session_at(path), target, Ending(**(ending or {"is_over": True})), time.time)
        finally:
            target.close()


@pytest.fixture
def turnspan(place, command):
    """The command line, and the home it works in."""
    command.place = place
    return command


def status(turnspan, *options):
    """The status as an object."""
    code, out, err = turnspan("status", "--json", *options)
    assert (code, err) == (0, "")
    return json.loads(out)


# ---- nothing yet


def test_before_anything_happened(turnspan):
    """It says that nothing is registered, and what to do."""
    code, out, err = turnspan("status")
    assert (code, err) == (0, "")
    assert "none: Claude Code does not call turnspan; run `turnspan install`" in out
    assert "sent     nothing yet" in out
    assert not turnspan.place.claude.exists()


def test_status_only_looks(turnspan):
    """Not a file is made, also where a state is damaged."""
    _, path = turnspan.place.session()
    turnspan.place.ship(path)
    damaged = turnspan.place.home / "state" / "x.json"
    damaged.write_text("{")
    damaged.chmod(0o600)

    def everything():
        return {path: path.stat().st_mtime_ns for path in sorted(turnspan.place.base.rglob("*"))}

    before = everything()
    found = status(turnspan)
    turnspan("status", "--check")
    assert everything() == before
    assert found["sessions"] == {"known": 2, "off": 0, "unreadable": 1}


# ---- what was sent


def test_what_was_sent_and_the_newest_trace(turnspan):
    """Turns, spans, sessions, when, and the trace that arrived last."""
    _, path = turnspan.place.session(turns=3)
    turnspan.place.ship(path)
    _, out, _ = turnspan("status")
    assert "sent     3 turns in 6 spans of 1 session, last just now" in out
    [local] = status(turnspan)["destinations"]
    assert (local["turns"], local["spans"], local["sessions"]) == (3, 6, 1)
    assert local["newest"]["turn"] == 3
    lines = (turnspan.place.home / "traces" / "traces-000001.jsonl").read_text().splitlines()
    assert local["newest"]["trace_id"] in lines[-1]
    assert local["pending"] == {"sessions": 0, "turns": 0, "is_more": False, "open": 0, "history": 0}


def test_langfuse_has_a_link(turnspan, monkeypatch):
    """One click to the newest trace, once `doctor` or `status --check` has asked for the project of the keys."""
    with HttpServer(Store()) as server:
        monkeypatch.setenv("LANGFUSE_PUBLIC_KEY", "pk")
        monkeypatch.setenv("LANGFUSE_SECRET_KEY", "sk-lf-secret")
        monkeypatch.setenv("LANGFUSE_BASE_URL", f"{server.url}/")
        _, path = turnspan.place.session()
        turnspan.place.ship(path)
        assert status(turnspan)["destinations"][0]["newest"]["link"] is None
        turnspan("status", "--check")
        [langfuse] = status(turnspan)["destinations"]
        sent = {span["trace_id"] for span in server.requests[0].spans}
    assert langfuse["newest"]["link"] == f"{server.url}/project/p1/traces/{langfuse['newest']['trace_id']}"
    assert langfuse["newest"]["trace_id"] in sent
    _, out, _ = turnspan("status")
    assert langfuse["newest"]["link"] in out
    assert "secret" not in out


def test_what_is_pending_open_and_history(turnspan):
    """Sessions since the first use are pending if their last turn has ended, else open. Older ones are history."""
    place = turnspan.place
    _, path = place.session()
    place.ship(path)
    writer, path = place.session(turns=1, session="aaaa0000-0000-4000-8000-000000000001", tag="b")
    _, old = place.session(turns=4, session="bbbb0000-0000-4000-8000-000000000001", tag="c")
    os.utime(old, (1000, 1000))
    [local] = status(turnspan)["destinations"]
    assert local["pending"] == {"sessions": 1, "turns": 1, "is_more": False, "open": 0, "history": 1}
    writer.now = writer.now.fromtimestamp(time.time(), tz=writer.now.tzinfo)
    writer.prompt("and now?")
    writer.save(path.parent)
    [local] = status(turnspan)["destinations"]
    assert (local["pending"]["turns"], local["pending"]["open"]) == (1, 1)
    _, out, _ = turnspan("status")
    assert "pending  1 turn of 1 session" in out
    assert "open     1 session with a turn in progress" in out
    assert "history  1 older session; run `turnspan backfill` to export them" in out


def test_a_project_that_cannot_be_listed_is_reported_as_not_counted(turnspan):
    """Everything else is reported; the figure says "at least"."""
    turnspan.place.session()
    (turnspan.place.claude / "projects" / "circle").symlink_to("circle")
    (why,) = status(turnspan)["unreadable"]
    assert why.startswith("cannot list ")
    out = turnspan("status")[1]
    assert "sessions  at least 1 transcript, " in out
    assert why in out


def test_what_is_off_is_not_pending(turnspan):
    """A project's own wish, and a session that was switched off."""
    place = turnspan.place
    private = place.base / "private"
    (private / ".claude").mkdir(parents=True)
    (private / ".claude" / "turnspan.toml").write_text("enabled = false\n")
    _, first = place.session()
    place.ship(first)
    place.session(turns=1, session="aaaa0000-0000-4000-8000-000000000001", tag="b", cwd=str(private))
    _, third = place.session(turns=1, session="bbbb0000-0000-4000-8000-000000000001", tag="c")
    state.save(place.home, state.Checkpoint(session_id=third.stem, is_off=True))
    found = status(turnspan)
    assert found["destinations"][0]["pending"]["sessions"] == 0
    assert found["sessions"]["off"] == 1


# ---- what went wrong


def test_a_destination_that_is_down_is_held(turnspan, monkeypatch):
    """Until when, and why; what waits is counted."""
    with HttpServer(reply(401, b"no such key")) as server:
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", server.url)
        _, path = turnspan.place.session()
        turnspan.place.ship(path)
        [otlp] = status(turnspan)["destinations"]
        assert otlp["last_error"].startswith("credentials: HTTP 401")
        assert otlp["backoff_until"] > otlp["last_success"] if otlp["last_success"] else otlp["backoff_until"]
        assert otlp["pending"]["turns"] == 2
        assert re.search(r"backoff  until \d\d:\d\d:\d\d after credentials: HTTP 401", turnspan("status")[1])


def test_a_hold_that_is_over(turnspan, monkeypatch):
    """The last error is shown, and that the next event retries."""
    monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", "http://127.0.0.1:1")
    identity = identity_of(turnspan.place.config.destinations[0])
    backoff.save(turnspan.place.home, identity, backoff.Backoff(until_s=1.0, reason="HTTP 503", answer="later"))
    [otlp] = status(turnspan)["destinations"]
    assert (otlp["backoff_until"], otlp["last_error"]) == (None, "later: HTTP 503")
    assert "later: HTTP 503; the next event retries" in turnspan("status")[1]


def test_refused_spans_are_listed_by_reason(turnspan):
    """How many spans, why, and in which session last."""
    identity = identity_of(turnspan.place.config.destinations[0])
    refused = tuple(
        state.Quarantine(trace_id="00", span_id=f"{n:016x}", reason=reason, at_s=float(n))
        for n, reason in enumerate(["too old", "too old", "no name"])
    )
    cursor = state.Cursor(quarantined=refused, sent_spans=5)
    state.save(turnspan.place.home, state.Checkpoint(session_id=SESSION, destinations={identity: cursor}))
    [local] = status(turnspan)["destinations"]
    assert local["refused"] == [
        {"reason": "too old", "spans": 2, "session_id": SESSION},
        {"reason": "no name", "spans": 1, "session_id": SESSION},
    ]
    assert "refused  2 spans, latest in 5e55104a: too old" in turnspan("status")[1]


def test_destinations_of_before_are_named(turnspan):
    """After another endpoint was set, or when only Claude Code's environment has it."""
    cursor = state.Cursor(sent_spans=5)
    state.save(turnspan.place.home, state.Checkpoint(session_id=SESSION, destinations={"otlp-12345678": cursor}))
    assert status(turnspan)["other_exporters"] == ["otlp-12345678"]
    assert "otlp-12345678" in turnspan("status")[1]


def test_the_last_error_and_what_was_masked_come_from_the_log(turnspan):
    """Counts by rule, and the last line that was not fine."""
    home = turnspan.place.home
    log.log_line(home, "INFO", "sent", session=SESSION, destination="local", masked="aws-access-key=2,jwt=1")
    log.log_line(home, "WARN", "backoff: later", session=SESSION, destination="otlp", reason='said "no"')
    log.log_line(home, "INFO", "sent", session=SESSION, destination="local", masked="jwt=4")
    found = status(turnspan)
    assert found["masked"] == {"aws-access-key": 2, "jwt": 5}
    assert found["masked_since"] == found["last_error"]["at"][:10] + found["masked_since"][10:]
    assert (found["last_error"]["event"], found["last_error"]["facts"]["reason"]) == ("backoff: later", 'said "no"')
    _, out, _ = turnspan("status")
    assert "aws-access-key 2, jwt 5" in out
    assert re.search(r'error     .*, backoff: later: session=.* reason=said "no"', out)


@pytest.mark.parametrize(
    ("error", "is_over"),
    [
        ({"event": "backoff: later", "session": "another", "destination": "otlp"}, True),
        ({"event": "backoff: credentials", "session": SESSION, "destination": "other"}, False),
        ({"event": "not recovered", "session": SESSION}, True),
        ({"event": "not recovered", "session": "another"}, False),
        ({"event": "failed"}, True),
        ({"event": "bug", "type": "KeyError"}, False),
        ({"event": "quarantined", "destination": "otlp"}, False),
    ],
    ids=["same destination", "another destination", "same session", "another session", "an event", "bug", "refused"],
)
def test_an_error_that_is_over_is_not_shown(turnspan, error, is_over):
    """After an outage something was sent to the same destination: `status` has no error any more."""
    home = turnspan.place.home
    log.log_line(home, "ERROR", error.pop("event"), **error)
    assert status(turnspan)["last_error"] is not None
    log.log_line(home, "INFO", "sent", session=SESSION, destination="otlp")
    log.log_line(home, "INFO", "nothing new", session=SESSION, destination="otlp")
    assert (status(turnspan)["last_error"] is None) is is_over


def test_ctrl_c_during_a_backfill_is_not_an_error(turnspan):
    """You stopped it: `status` has nothing to report."""
    place = turnspan.place
    place.session()
    config = place.config
    plan = make_plan(config, Selection(), config.destinations)
    orders = Orders(config=config, destinations=config.destinations)
    assert run(plan, orders, 1, lambda _totals: None, lambda: True).is_interrupted
    assert status(turnspan)["last_error"] is None


def test_switched_off_and_wrong_settings_are_reported(turnspan, monkeypatch):
    """Who wonders why nothing arrives sees it first."""
    monkeypatch.setenv("TURNSPAN_ENABLED", "0")
    monkeypatch.setenv("TURNSPAN_CAPTURE", "all")
    code, out, _ = turnspan("status")
    assert code == 0
    assert "disabled by $TURNSPAN_ENABLED" in out
    assert "$TURNSPAN_CAPTURE: capture is 'all'" in out


# ---- asking


@pytest.mark.parametrize(
    ("answers", "answer"), [([OK], "acknowledged"), ([reply(400)], "acknowledged"), ([reply(401)], "credentials")]
)
def test_check_asks_the_destinations(turnspan, monkeypatch, answers, answer):
    """An empty request shows whether it responds and accepts the credentials; no request without --check."""
    with HttpServer(*answers) as server:
        monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", server.url)
        assert status(turnspan)["destinations"][0]["answer"] is None
        assert server.requests == []
        assert status(turnspan, "--check")["destinations"][0]["answer"] == answer
        assert [(request.method, request.spans) for request in server.requests] == [("GET", []), ("POST", [])]


def test_check_of_a_destination_that_is_set_wrongly(turnspan, monkeypatch):
    """That is an answer, too."""
    monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", "http://collector.example")
    [found] = status(turnspan, "--check")["destinations"]
    assert found["answer"] == "configuration"
    assert "insecure endpoint" in found["answer_reason"]


# ---- the hook


def test_hooks_that_are_registered(turnspan):
    """Where, and for which events."""
    place = turnspan.place
    plan = plan_install(InstallScope.USER, env=os.environ, project=place.base, runtime=this_runtime())
    apply(plan)
    [hook] = status(turnspan)["hooks"]
    assert (hook["scope"], hook["path"]) == ("user", str(place.claude / "settings.json"))
    assert "Stop" in hook["events"]


def test_how_long_the_hook_took(turnspan):
    """The client's own measurement of our hook, and of no other."""
    writer, _ = turnspan.place.session()
    for ours, theirs in ((80, 900), (120, 900), (95, 900)):
        infos = [
            {"command": "/opt/turnspan-hook /opt/python /opt/lib", "durationMs": ours},
            {"command": "prettier --check", "durationMs": theirs},
        ]
        writer.row("system", subtype="stop_hook_summary", hookInfos=infos)
    writer.row("system", subtype="stop_hook_summary", hookInfos=[{"command": "/opt/turnspan-hook"}])
    writer.say('a text that mentions "stop_hook_summary"')
    path = writer.save(turnspan.place.claude / "projects" / "-p")
    path.write_bytes(b'{"subtype":"stop_hook_summary", torn\n' + path.read_bytes())
    assert status(turnspan)["hook_ms"] == {"stops": 3, "median_ms": 95, "longest_ms": 120}
    assert "duration: median 95 ms, max 120 ms (3 runs)" in turnspan("status")[1]
    assert hook_times(turnspan.place.base) is None


# ---- again and again


def test_watch_continues_until_it_is_stopped(place):
    """A new picture every few seconds; Ctrl-C ends it without a word."""
    place.session()
    code = "from turnspan.cli import main; main()"
    watching = subprocess.Popen(
        [sys.executable, "-c", code, "status", "--watch", "--every", "0.2", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        first, second = (json.loads(watching.stdout.readline()) for _ in range(2))
        assert first["at"] < second["at"]
        watching.send_signal(signal.SIGINT)
        _, err = watching.communicate(timeout=20)
        assert (watching.returncode, err.strip()) == (130, "")
    finally:
        watching.kill()
        watching.wait()


def test_help_names_every_field(turnspan, monkeypatch):
    """What machines get is promised in the help."""
    monkeypatch.setenv("TURNSPAN_OTLP_ENDPOINT", "http://127.0.0.1:1")
    found = status(turnspan)
    help_text = turnspan("status", "--help")[1]
    names = (*found, *found["sessions"], *found["destinations"][0], *found["destinations"][0]["pending"])
    for name in names:
        assert re.search(rf"\b{name}\b", help_text), name


def test_commands_and_sessions_complete(turnspan, capsys, monkeypatch):
    """The shell knows the commands that are loaded late, and the sessions that can be forgotten."""
    turnspan.place.session()

    def completed(words, number):
        monkeypatch.setenv("_TURNSPAN_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(number))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    assert completed("turnspan st", 1) == ["plain,stats", "plain,status"]
    assert completed("turnspan forget 5e", 2) == [f"plain,{SESSION}"]
    assert "plain,--send-test" in completed("turnspan doctor --", 2)


# ---- in `sessions` and `show`


def test_sessions_say_how_much_was_sent(turnspan):
    """All, some, none; or off."""
    place = turnspan.place
    ids = {name: f"{name * 4}0000-0000-4000-8000-000000000001" for name in "abcd"}
    _, path = place.session(turns=2, session=ids["a"], tag="a")
    place.ship(path)
    writer, path = place.session(turns=2, session=ids["b"], tag="b")
    place.ship(path)
    writer.turn("a third", "Yes.")
    writer.save(path.parent)
    place.session(turns=1, session=ids["c"], tag="c")
    place.session(turns=1, session=ids["d"], tag="d")
    state.save(place.home, state.Checkpoint(session_id=ids["d"], is_off=True))
    records = [json.loads(line) for line in turnspan("sessions", "--json")[1].splitlines()]
    assert {record["session_id"][0]: record["sent"] for record in records} == {
        "a": "all",
        "b": "2/3",
        "c": "no",
        "d": "off",
    }
    assert re.search(r"bbbb0000 .* 2/3  loom", turnspan("sessions")[1])


def test_a_session_whose_file_was_rewritten_is_not_sent_completely(turnspan):
    """As many turns were sent as the file has now, but not these."""
    place = turnspan.place
    writer, path = place.session(turns=2, tag="old")
    place.ship(path)
    place.session(turns=1, tag="new", session=writer.session)
    assert json.loads(turnspan("sessions", "--json")[1])["sent"] == "0/1"


def test_show_works_if_the_state_of_a_session_cannot_be_read(turnspan):
    """A state file that is a symlink is not followed: whether the session is disabled is unknown, and `show` says so."""
    writer, path = turnspan.place.session()
    turnspan.place.ship(path)
    stored = state.state_path(turnspan.place.home, writer.session)
    stored.rename(stored.with_name("elsewhere"))
    stored.symlink_to(stored.with_name("elsewhere"))
    code, out, err = turnspan("show", writer.session)
    assert code == 0
    assert "Turn 1" in out
    assert "is unknown" in err


def test_a_session_that_only_one_of_two_destinations_has(turnspan):
    """The one that has the least counts."""
    _, path = turnspan.place.session()
    turnspan.place.ship(path)
    assert json.loads(turnspan("sessions", "--json")[1])["sent"] == "all"
    config = turnspan.place.home / "config.toml"
    config.write_text('[destinations.local]\n[destinations.otlp]\nendpoint = "http://127.0.0.1:1"\n')
    config.chmod(0o600)
    assert json.loads(turnspan("sessions", "--json")[1])["sent"] == "no"


def test_show_says_that_a_session_is_off(turnspan):
    """`show` prints it, and says that it is not exported."""
    _, path = turnspan.place.session()
    state.save(turnspan.place.home, state.Checkpoint(session_id=path.stem, is_off=True))
    code, out, err = turnspan("show", path.stem)
    assert code == 0
    assert "Export:  nowhere: this session is disabled" in out
    assert "it is not exported" in err


# ---- what it is made of


def test_the_log_is_read_back_as_it_was_written(tmp_path):
    """Every value, whatever it holds; an invalid line is skipped."""
    facts = {"plain": "a", "spaced": "a b", "quoted": 'a "b" \\ c', "empty": "", "equals": "a=1,b=2"}
    log.log_line(tmp_path / "home", "WARN", "an event", **facts)
    path = tmp_path / "home" / log.LOG_NAME
    with path.open("a") as file:
        file.write("half a li")
    [line] = read_log(tmp_path / "home")
    assert (line.level, line.event, line.facts) == ("WARN", "an event", facts)
    assert counts_in("a=1,b c=2,torn,=3,d=x") == {"a": 1, "b c": 2}


def test_peeking_touches_nothing(tmp_path):
    """A checkpoint is read as it is; what is not understood is None, and stays where it is."""
    home = tmp_path / "home"
    assert state.peek(home, "a") is None
    assert list(state.checkpoints(home)) == []
    assert not home.exists()
    saved = state.Checkpoint(session_id="a", is_off=True)
    state.save(home, saved)
    for name, text in (("b", "{"), ("c", '{"session_id":"c","version":99}'), ("d", '{"session_id":"a"}')):
        (home / "state" / f"{name}.json").write_text(text)
        (home / "state" / f"{name}.json").chmod(0o600)
    before = sorted((home / "state").iterdir())
    assert list(state.checkpoints(home)) == [("a", saved), ("b", None), ("c", None), ("d", None)]
    assert sorted((home / "state").iterdir()) == before
