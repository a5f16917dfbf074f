"""The records of turns and spans: figures, waits, the context window, the critical path, the conversation."""

import json

import pytest
from rows import USAGE, Writer
from test_view import SESSION, settings

from turnspan.page.api import OpenSession
from turnspan.page.critical_path import critical_path
from turnspan.source.sessions import SessionFile
from turnspan.trace.model import Kind, Span


def shown(home, writer, **files):
    """A session with these rows: its view, and its turns."""
    directory = home / "projects" / "-home-ada-loom"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{writer.session}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    for name, content in files.items():
        (directory / name).write_text(content)
    config = settings(home)
    view = OpenSession(SessionFile(writer.session, path), config, config.destinations[0])
    return view, [one for one in view.records() if one["is"] == "turn"]


def spans_of(view, turn):
    """The spans of a turn."""
    return view.trace_record(turn["at"], turn["trace"])["spans"]


def details_of(view, turn, name):
    """The first span of this name, with everything that is known about it."""
    span = next(span for span in spans_of(view, turn) if span["name"] == name)
    return view.span_record(turn["at"], turn["trace"], span["id"])


def test_the_context_window_is_what_the_model_was_given(tmp_path):
    """Input, cache read and cache write of each response of the conversation; compactions are between them."""
    writer = Writer(SESSION)
    writer.prompt("hello")
    call = writer.call("Read", {"file_path": "/a"}, usage={**USAGE, "cache_read_input_tokens": 1000})
    writer.result(call, "text")
    writer.say("done")
    writer.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 1030})
    writer.prompt("This session is being continued", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    writer.prompt("and then")
    writer.say("yes")
    _, (first, second) = shown(tmp_path, writer)
    assert (first["context"], first["compactions"]) == ([1030, 330], [])
    assert (second["context"], second["compactions"]) == ([330], [0])
    assert "compacted" in second["badges"]


def test_waiting_for_permission_is_inferred(tmp_path):
    """A tool that ran for 1 of 9 seconds waited for 8; a refused one waited all the time; otherwise it is not known."""
    writer = Writer(SESSION)
    writer.prompt("hello")
    edit = writer.call("Edit", {"file_path": "/a"})
    writer.result(edit, "ok", after=9, outcome={"durationMs": 1000})
    bash = writer.call("Bash", {"command": "ls"})
    writer.result(bash, "ok", after=9)
    push = writer.call("Bash", {"command": "git push"})
    writer.result(push, "The user doesn't want to proceed with this tool use.", is_error=True, after=5)
    writer.say("fine")
    view, (turn,) = shown(tmp_path, writer)
    assert [span["waited_ms"] for span in spans_of(view, turn) if span["kind"] == "tool"] == [8000, None, 5000]
    assert turn["waited_ms"] == 13_000
    assert "1 denied" in turn["badges"]
    assert ["waited for you", "8.000 s", "inferred"] in details_of(view, turn, "Edit")["figures"]


def test_a_span_has_all_its_figures(tmp_path):
    """Input, both cache writes, output, cost, duration and start; what is inferred says so."""
    used = {"input_tokens": 7, "cache_read_input_tokens": 11_000, "output_tokens": 40, "cache_creation_input_tokens": 30,
            "cache_creation": {"ephemeral_5m_input_tokens": 10, "ephemeral_1h_input_tokens": 20}}  # fmt: skip
    writer = Writer(SESSION)
    writer.prompt("hello")
    writer.say("done", usage=used)
    view, (turn,) = shown(tmp_path, writer)
    record = details_of(view, turn, "opus-4-5")
    figures = {name: value for name, value, _ in record["figures"]}
    assert figures["input"] == "7"
    assert figures["cache read"] == "11,000"
    assert (figures["cache write 5m"], figures["cache write 1h"]) == ("10", "20")
    assert figures["output"] == "40"
    assert figures["context window"] == "11,037"
    assert figures["cost"].startswith("$0.0")
    assert figures["duration"] == "1.000 s"
    remarks = {name: remark for name, _, remark in record["figures"]}
    assert remarks["start"].startswith("inferred")
    assert {name for name, _ in record["ids"]} == {"session", "trace", "span", "response", "request"}
    assert "response_id" not in dict(record["facts"])


def test_an_error_is_reported_once(tmp_path):
    """The text of a failed call is in its content once; its row names the type of the error."""
    writer = Writer(SESSION)
    writer.prompt("hello")
    call = writer.call("Bash", {"command": "false"})
    writer.result(call, "Exit code 1\nthe unmistakable reason", is_error=True)
    writer.say("it failed")
    view, (turn,) = shown(tmp_path, writer)
    record = details_of(view, turn, "Bash")
    assert json.dumps(record).count("the unmistakable reason") == 1
    assert record["error"] == "tool error"
    row = next(span for span in spans_of(view, turn) if span["name"] == "Bash")
    assert json.dumps(row).count("the unmistakable reason") == 0


def test_a_turn_is_a_conversation(tmp_path):
    """The prompt, what was said, and the calls between, with what happened; the same spans as in the waterfall."""
    writer = Writer(SESSION)
    writer.prompt("please look")
    call = writer.say([{"type": "text", "text": "I look"}], message="msg_1", stop=None)
    call = writer.call("Read", {"file_path": "/a"}, message="msg_1")
    writer.result(call, "text")
    writer.row("system", subtype="api_error", error={"status": 529}, retryInMs=100, retryAttempt=1, maxRetries=10)
    writer.say("I have seen it")
    view, (turn,) = shown(tmp_path, writer)
    blocks = view.chat_record(turn["at"], turn["trace"])["blocks"]
    assert [block["is"] for block in blocks] == ["prompt", "answer", "tool", "event", "answer"]
    assert "please look" in blocks[0]["sections"][0]["html"]
    assert "I look" in blocks[1]["sections"][0]["html"]
    assert len(blocks[1]["sections"]) == 1  # its call is a block of its own
    assert (blocks[2]["name"], blocks[2]["blocks"]) == ("Read", [])
    assert "1 retry" in turn["badges"]
    known = {span["id"] for span in spans_of(view, turn)}
    assert {block["id"] for block in blocks} <= known


# ---- the critical path


def span(name, start, end, parent=None, kind=Kind.TOOL, **facts):
    """A span between two times."""
    parent_id = parent.span_id if parent is not None else None
    return Span(
        span_id=name.encode(), parent_id=parent_id, kind=kind, name=name, start_ns=start, end_ns=end, facts=facts
    )


def names(path):
    """The path, in words."""
    return {one.decode() for one in path}


def test_the_slowest_of_parallel_calls_is_critical():
    """Of two calls that ran at the same time only the one that ended last delayed the next response."""
    turn = span("turn", 0, 100, kind=Kind.TURN)
    ask = span("ask", 0, 20, turn, Kind.GENERATION)
    slow, quick = span("slow", 15, 80, ask), span("quick", 18, 40, ask)
    answer = span("answer", 80, 100, turn, Kind.GENERATION)
    assert names(critical_path([turn, ask, slow, quick, answer])) == {"ask", "slow", "answer"}


def test_the_path_goes_through_an_agent():
    """The steps of the agent that ended last are on the path, not those of the agent beside it."""
    turn = span("turn", 0, 100, kind=Kind.TURN)
    ask = span("ask", 0, 10, turn, Kind.GENERATION)
    calls = [span("call1", 8, 90, ask), span("call2", 9, 50, ask)]
    agents = [span("agent1", 10, 90, calls[0], Kind.AGENT), span("agent2", 10, 50, calls[1], Kind.AGENT)]
    steps = [span("a1", 10, 40, agents[0], Kind.GENERATION), span("b1", 12, 50, agents[1], Kind.GENERATION)]
    read = span("read", 38, 60, steps[0])
    last = span("a2", 60, 90, agents[0], Kind.GENERATION)
    answer = span("answer", 91, 100, turn, Kind.GENERATION)
    found = critical_path([turn, ask, *calls, *agents, *steps, read, last, answer])
    assert names(found) == {"ask", "a1", "read", "a2", "answer"}


def test_an_agent_in_the_background_is_not_critical():
    """A turn that ended without its agent was not delayed by it."""
    turn = span("turn", 0, 30, kind=Kind.TURN)
    ask = span("ask", 0, 10, turn, Kind.GENERATION)
    call = span("call", 9, 11, ask)
    agent = span("agent", 10, 500, call, Kind.AGENT, background=True)
    work = span("work", 10, 500, agent, Kind.GENERATION)
    answer = span("answer", 11, 30, turn, Kind.GENERATION)
    assert names(critical_path([turn, ask, call, agent, work, answer])) == {"ask", "call", "answer"}


@pytest.mark.parametrize("spans", [[], [span("event", 1, 1, kind=Kind.EVENT)], [span("turn", 0, 9, kind=Kind.TURN)]])
def test_nothing_is_critical_where_nothing_ran(spans):
    """A turn without responses has no path."""
    assert critical_path(spans) == frozenset()


def test_impossible_times_end():
    """Spans that all have the same time, or that are their own parent's child, do not make it run forever."""
    turn = span("turn", 0, 0, kind=Kind.TURN)
    found = [turn]
    for number in range(50):
        asked = span(f"g{number}", 0, 0, turn, Kind.GENERATION)
        found += [asked, span(f"t{number}", 0, 0, asked)]
    assert critical_path(found)
