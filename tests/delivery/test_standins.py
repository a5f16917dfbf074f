"""Spans that are in flight or doubled, with stand-ins for Langfuse 4 and Tempo (tests/backends/standins.py): not the real servers."""

import json
import os
import subprocess
import time
import urllib.error
import urllib.request

import pytest
from backends.servers import HttpServer
from backends.standins import LangfuseStandIn, TempoStandIn
from click.testing import CliRunner
from real.homes import Past, copy_stories
from test_worker import Office

from turnspan.claude.event import Event
from turnspan.cli import frame
from turnspan.delivery import state
from turnspan.delivery.destinations import targets_of
from turnspan.worker import serve

STORIES = ("several-turns",)


@pytest.fixture
def langfuse():
    """A running stand-in for Langfuse."""
    with HttpServer(LangfuseStandIn()) as server:
        yield server


class Home(Past):
    """A home whose commands run in this process: some start-ups of Python less."""

    def run(self, *words):
        """Run a command."""
        ours = {name: None for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CLAUDE"))}
        state.state_directory.cache_clear()
        more = ("--jobs", "1") if words[0] == "backfill" else ()
        done = CliRunner().invoke(frame, [*words, *more], env={**ours, **self.env})
        return subprocess.CompletedProcess(words, done.exit_code, done.stdout, done.stderr)


def keys(url):
    """Return the environment that names a Langfuse."""
    return {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": "sk-lf-secret", "LANGFUSE_BASE_URL": url}


@pytest.fixture
def past(langfuse, tmp_path):
    """A home with two stories, configured for the stand-in."""
    found = Home(tmp_path, keys(langfuse.url))
    copy_stories(STORIES, found.projects)
    return found


def verified(past, *words):
    """Run `turnspan verify`; return its exit code and its object."""
    done = past.run("verify", *words, "--json")
    return done.returncode, json.loads(done.stdout)


def test_what_langfuse_has_queued_is_in_flight(langfuse, past):
    """`verify` says so, and `--repair` sends nothing again and does not claim that it is there; when it is, `verify` is complete."""
    store = langfuse.answers[0]
    past.turnspan("backfill")
    sent = store.requests
    code, found = verified(past, "--repair")

    assert code == 1
    assert all(one["in_flight"] and not one["lost"] and not one["is_repaired"] for one in found["differences"])
    assert all("in flight" in one["problem"] for one in found["differences"])
    assert "in flight" in past.run("verify").stdout
    assert store.requests == sent
    store.work()
    code, found = verified(past, "--repair")
    assert (code, found["is_complete"], found["destinations"]["langfuse"]["doubled_spans"]) == (0, True, 0)


def test_a_repair_asks_again_before_it_says_that_spans_are_there(langfuse, past):
    """Langfuse lost a trace minutes ago: it is sent again, and is in flight until Langfuse shows it; a second repair does not double it."""
    store = langfuse.answers[0]
    past.turnspan("backfill")
    lost = store.queue[0][0]
    store.work()
    store.rows = [row for row in store.rows if row[0] != lost]
    make_older(past, 3600)
    sent = store.requests
    code, found = verified(past, "--repair")

    assert code == 1
    assert [one["is_repaired"] for one in found["differences"]] == [False]
    assert "in flight" in found["differences"][0]["problem"]
    assert store.requests == sent + 1
    assert verified(past, "--repair")[0] == 1
    assert store.requests == sent + 1
    store.work()
    assert verified(past)[0] == 0
    assert len(store.rows) == len(set(store.rows))


def make_older(past, seconds):
    """Let the acknowledgements of all sessions be older."""
    for path in (past.base / "claude" / "turnspan" / "state").glob("*.json"):
        checkpoint = json.loads(path.read_text())
        for cursor in checkpoint["destinations"].values():
            cursor["last_success_s"] -= seconds
        path.write_text(json.dumps(checkpoint))


def test_spans_that_are_sent_again_are_counted_and_warned_of(langfuse, past):
    """`--resend` warns before it sends; `verify` counts the doubles until the database has merged them."""
    store = langfuse.answers[0]
    past.turnspan("backfill")
    again = past.run("backfill", "--resend")
    store.work()
    code, found = verified(past)

    assert "warning: langfuse: Langfuse shows a span that is sent again twice" in again.stderr
    assert code == 0
    assert found["destinations"]["langfuse"]["doubled_spans"] == len(set(store.rows)) > 0
    assert f"it shows {len(set(store.rows))} spans twice" in past.run("verify").stdout
    store.merge()
    assert verified(past)[1]["destinations"]["langfuse"]["doubled_spans"] == 0


def test_the_link_to_a_trace_is_a_page(langfuse, past):
    """It contains the project, which `doctor` asks for; the address without it does not exist."""
    past.turnspan("backfill")
    langfuse.answers[0].work()
    past.run("doctor")
    link = past.turnspan("status")["destinations"][0]["newest"]["link"]

    assert urllib.request.urlopen(link, timeout=10).status == 200
    with pytest.raises(urllib.error.HTTPError, match="404"):
        urllib.request.urlopen(link.replace("/project/p1/traces/", "/trace/"), timeout=10)


def test_a_lost_response_of_a_lagging_langfuse_doubles_nothing(langfuse, tmp_path):
    """The request was queued, the response is lost, and Langfuse does not show the spans yet: turnspan asks later, and sends nothing twice."""
    store = langfuse.answers[0]
    store.lose_responses = 1
    office = Office(tmp_path / "claude")
    office.now_s = time.time()
    writer = office.writer()
    writer.turn("Hello.", "Good day.")
    path = office.save(writer)
    event = Event(
        hook_event_name="Stop", session_id=writer.session, transcript_path=str(path), cwd="/home/ada/loom",
        last_assistant_message="Good day.",
    )  # fmt: skip
    env = {**office.env, **keys(langfuse.url)}
    serve(event, env, lambda: office.now_s, office.sleep, targets_of)
    assert store.requests == 1
    store.work()
    office.now_s += 60
    serve(event, env, lambda: office.now_s, office.sleep, targets_of)

    assert store.requests == 1
    assert len(store.rows) == len(set(store.rows)) == 2


def test_tempo_shows_a_span_twice_only_after_a_resend(tmp_path):
    """Backfilled twice, every span is there once; `--resend` warns, and doubles."""
    with HttpServer(TempoStandIn()) as server:
        past = Home(tmp_path, {"TURNSPAN_OTLP_ENDPOINT": server.url})
        copy_stories(STORIES, past.projects)
        rows = server.answers[0].rows
        past.turnspan("backfill")
        past.turnspan("backfill")
        past.turnspan("verify", "--repair")
        once = len(rows)

        assert once == len(set(rows)) > 0
        again = past.run("backfill", "--resend")
        assert "warning: otlp: some servers, such as Tempo, show a span twice" in again.stderr
        assert len(rows) == 2 * once
