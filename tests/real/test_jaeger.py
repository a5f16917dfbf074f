"""A real Jaeger; and the reading of its answers, without one."""

import json
import re
from pathlib import Path

import pytest
from backends.servers import HttpServer, reply
from figures import note

from real.compare import differences, wanted_in
from real.homes import LIVE_STORIES, STORIES, Past, copy_stories, live_through
from real.jaeger import MICROSECOND_NS, ask, same, spans_in

PAGE = Path(__file__).parents[2] / "docs" / "jaeger.md"


def configuration(jaeger):
    """Return the configuration that docs/jaeger.md shows, with the addresses of this Jaeger."""
    [text] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return text.replace("http://localhost:4318", jaeger.url).replace("http://localhost:16686", jaeger.query_url)


def found(wanted, seen):
    """Return the differences; Jaeger derives nothing from our attributes."""
    return differences(wanted, seen, precision_ns=MICROSECOND_NS, derived=lambda _: {}, same=same)


@pytest.mark.slow
def test_live_export_arrives_in_jaeger_span_by_span(jaeger, tmp_path):
    """Ids, parents, names, times, status and every attribute, as one reading of the final files gives them."""
    world = live_through(tmp_path, jaeger)
    wanted = wanted_in(world.projects, world.env)

    assert found(wanted, jaeger.wait_for(wanted.values())) == []
    assert jaeger.warnings(wanted.values()) == set()
    note("jaeger-live", f"{len(wanted)} spans of {len(LIVE_STORIES)} sessions")


@pytest.mark.slow
def test_backfill_arrives_in_jaeger_once_and_verify_finds_it(jaeger, tmp_path):
    """Every story, without a warning; sent a second time it is still there once; and `turnspan verify` says so.

    A Jaeger that was restarted is empty: `verify` finds that, and `--repair` sends everything again.
    """
    past = Past(tmp_path, {})
    past.configure(configuration(jaeger))
    copy_stories(STORIES, past.projects)
    wanted = wanted_in(past.projects, past.env)

    assert past.turnspan("backfill")["spans"] == len(wanted)
    assert found(wanted, jaeger.wait_for(wanted.values())) == []
    assert past.turnspan("backfill", "--resend")["spans"] == len(wanted)
    assert found(wanted, jaeger.wait_for(wanted.values())) == []
    assert jaeger.warnings(wanted.values()) == set()
    assert past.turnspan("verify")["is_complete"]
    assert past.turnspan("verify")["destinations"]["jaeger"]["doubled_spans"] == 0
    jaeger.restart()
    assert past.run("verify").returncode == 1
    past.turnspan("verify", "--repair")
    assert found(wanted, jaeger.wait_for(wanted.values())) == []
    assert jaeger.warnings(wanted.values()) == set()
    note("jaeger-backfill", f"{len(wanted)} spans of {len(STORIES)} stories")


ANSWER = {
    "data": [
        {
            "traceID": "00000000000000000af7651916cd43dd",
            "spans": [
                {
                    "traceID": "af7651916cd43dd",
                    "spanID": "7ad6b7169203331",
                    "operationName": "Bash",
                    "references": [
                        {"refType": "FOLLOWS_FROM", "traceID": "1" * 32, "spanID": "2" * 16},
                        {"refType": "CHILD_OF", "traceID": "af7651916cd43dd", "spanID": "b9c7c989f97918e1"},
                    ],
                    "startTime": 1_760_000_000_000_001,
                    "duration": 2_500,
                    "tags": [
                        {"key": "span.kind", "type": "string", "value": "internal"},
                        {"key": "error", "type": "bool", "value": True},
                        {"key": "otel.status_code", "type": "string", "value": "ERROR"},
                        {"key": "otel.status_description", "type": "string", "value": "exit code 1"},
                        {"key": "error.type", "type": "string", "value": "tool_error"},
                        {"key": "turnspan.exit_code", "type": "int64", "value": 1},
                    ],
                    "logs": [],
                    "processID": "p1",
                }
            ],
            "processes": {"p1": {"serviceName": "claude-code", "tags": []}},
        }
    ]
}


def test_an_answer_of_jaegers_query_api_is_read():
    """Ids without leading zeros, a link that is not a parent, times in microseconds, the status in tags."""
    with HttpServer(reply(200, json.dumps(ANSWER).encode(), "application/json"), reply(404, b"{}")) as server:
        [span] = spans_in(ask(server.url, "/api/traces/af7651916cd43dd"))
        assert spans_in(ask(server.url, "/api/traces/1")) == []

    assert span.key == ("00000000000000000af7651916cd43dd", "07ad6b7169203331")
    assert span.parent_id == "b9c7c989f97918e1"
    assert (span.start_ns, span.end_ns) == (1_760_000_000_000_001_000, 1_760_000_000_002_501_000)
    assert span.error == "exit code 1"
    assert span.attributes == {"error.type": "tool_error", "turnspan.exit_code": 1}
    assert same(["stop"], '["stop"]')
    assert not same(["stop"], "stop")
