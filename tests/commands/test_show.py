"""Traces as a tree and as JSON records."""

import json
from datetime import UTC, datetime
from textwrap import dedent

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import read
from rows import Writer

from turnspan.commands.records import line_of, trace_record
from turnspan.page.chat import chat_record
from turnspan.page.preview import PreviewedTrace
from turnspan.page.tree import Layout, foot_lines, session_lines, trace_lines
from turnspan.text import cells, unstyled
from turnspan.trace.model import (
    Json,
    Kind,
    Link,
    Media,
    Message,
    Reasoning,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
)  # fmt: skip
from turnspan.trace.tally import tally_of

NOON_NS = int(datetime(2026, 3, 1, 12, 0, tzinfo=UTC).timestamp()) * 10**9
LAYOUT = Layout(80, zone=UTC)
USED = Usage(input=10, output=40, cache_read=300, cache_write_5m=20)


def span(number, parent, kind, name, *, start=0.0, took=1.0, **fields):
    """Return a span; times in seconds after noon."""
    begin = NOON_NS + int(start * 10**9)
    return Span(
        span_id=number.to_bytes(8, "big"),
        parent_id=parent.to_bytes(8, "big") if parent is not None else None,
        kind=kind,
        name=name,
        start_ns=begin,
        end_ns=begin + int(took * 10**9),
        **fields,
    )


def trace(*spans, name="Turn 1", **fields):
    """Return a trace of these spans."""
    return Trace(
        trace_id=bytes(15) + b"\1", name=name, session_id="5e55104a", client_version="2.1.325", spans=spans, **fields
    )


def asks(text):
    """Return the input of a turn."""
    return (Message("user", (Text(text),)),)


def says(*parts):
    """Return the output of a generation."""
    return (Message("assistant", parts, "stop"),)


def tree(shown, layout=LAYOUT):
    """Return the lines of a trace without colours."""
    return [unstyled(line) for line in trace_lines(shown, layout)]


def a_turn():
    """Return a turn with tools, an agent, an event and an error."""
    return trace(
        span(1, None, Kind.TURN, "Turn 1", took=65, input=asks("count the files"), totals=USED, totals_cost_usd=0.05),
        span(2, 1, Kind.GENERATION, "claude-opus-4-5-20251101", start=1, took=0.7, model="claude-opus-4-5-20251101",
             usage=USED, cost_usd=0.0225, output=says(Text("Let me look."), ToolCall("t3", "Bash", "{}"))),
        span(3, 2, Kind.TOOL, "Bash", start=2, took=0.1, input=Json('{"command":"ls | wc -l","description":"count"}'),
             output="3\n"),
        span(4, 2, Kind.TOOL, "Bash", start=2, took=0.2, input=Json('{"command":"false"}'), output="Exit code 1",
             error="tool_error", error_message="Exit code 1\nno luck"),
        span(5, 2, Kind.TOOL, "Agent", start=3, took=9, input=Json('{"description":"explore","prompt":"look"}'),
             output="It is done."),
        span(6, 5, Kind.AGENT, "Explore", start=3, took=9, input=asks("look around"), totals=USED, totals_cost_usd=0.01,
             facts={"agent_id": "a1"}),
        span(7, 6, Kind.GENERATION, "claude-haiku-4-5", start=4, usage=USED, cost_usd=0.01,
             output=says(Text("Found it."))),
        span(8, 1, Kind.GENERATION, "claude-opus-4-5", start=14, usage=USED, cost_usd=0.02,
             output=says(Text("Three."))),
        span(9, 1, Kind.EVENT, "compaction", start=13, took=0,
             facts={"event": "compaction", "trigger": "auto", "tokens_before": 180_000, "tokens_after": 12_000}),
    )  # fmt: skip


def test_a_turn_is_a_tree_with_a_line_for_each_span():
    """Name, content, tokens, cost and duration of every span, below its parent; events where they happened."""
    assert "\n" + "\n".join(tree(a_turn())) + "\n" == dedent("""
        ● Turn 1 12:00  count the files                     330     40   $0.0500   1m05s
        ├─◆ opus-4-5  Let me look.                          330     40   $0.0225   700ms
        │ ├─▸ Bash  ls | wc -l → 3                                                 100ms
        │ ├─▸ Bash  false                                                          200ms
        │ │   ✗ tool_error: Exit code 1 no luck
        │ └─▸ Agent  explore                                330     40   $0.0100    9.0s
        │   └─◉ Explore  look around                        330     40   $0.0100    9.0s
        │     └─◆ haiku-4-5  Found it.                      330     40   $0.0100    1.0s
        ├─· compaction  trigger auto, tokens before 180k, tokens after 12.0k
        └─◆ opus-4-5  Three.                                330     40   $0.0200    1.0s
    """)


def test_a_figure_that_is_not_measured_is_marked():
    """An inferred time, output tokens that were not recorded and an unknown price are marked and explained."""
    half = Usage(input=10, output=2, is_incomplete=True)
    shown = trace(
        span(1, None, Kind.TURN, "Turn 1", input=asks("hi"), totals=half),
        span(2, 1, Kind.GENERATION, "claude-a", usage=half, cost_usd=0.5, facts={"time.inferred": "start"}),
        span(3, 1, Kind.GENERATION, "claude-b", usage=USED),
        span(4, 1, Kind.GENERATION, "claude-c", usage=half, facts={"aborted": True}),
        span(5, 4, Kind.TOOL, "Bash", facts={"incomplete": True}),
    )
    turn, inferred, unpriced, cut_off, tool = tree(shown)
    assert turn.split()[-4:] == ["10", "≥2", "?", "1.0s"]
    assert inferred.split()[-4:] == ["10", "≥2", "≥$0.5000", "~1.0s"]
    assert unpriced.split()[-4:] == ["330", "40", "?", "1.0s"]
    assert "[interrupted]" in cut_off
    assert tool.split()[-3:] == ["[no", "result]", "?"]
    foot = "\n".join(unstyled(line) for line in foot_lines(tally_of(shown), {}, LAYOUT))
    assert "at least $0.5000" in foot
    assert "~ inferred: the client did not record when it sent 1 request" in foot
    assert "≥ at least: the client did not record the final output tokens of 2 responses" in foot
    assert "? unknown: no price for claude-b" in foot
    assert "? unknown: the client did not record the cost of 1 interrupted response" in foot


def test_marks_that_were_not_used_are_not_explained():
    """If everything was measured, the footer has only totals."""
    foot = [unstyled(line) for line in foot_lines(tally_of(a_turn()), {}, LAYOUT)]
    assert foot == [
        "1 turn · 3 generations · 3 tool calls · 1 agent · 1 error",
        "990 tokens in (91% from the cache) · 120 out · $0.0525",
        "masked: nothing",
    ]


def test_late_spans_are_below_the_name_of_their_turn():
    """A background agent is exported after its turn: it is below a line that names the turn."""
    late = trace(
        span(6, 5, Kind.AGENT, "Explore", input=asks("look"), facts={"background": True}),
        span(7, 6, Kind.GENERATION, "claude-a", output=says(Text("Found."))),
        name="Turn 3",
    )
    first, agent, generation = tree(late)
    assert first == "○ Turn 3 · background agent 12:00, not in the turn's totals"
    assert agent.startswith("└─◉ Explore [background]  look ")
    assert generation.startswith("  └─◆ a  Found.")


def test_background_agents_are_below_their_turn_not_at_the_end():
    """They are read after the last turn; the lines of a session have them where they belong, days in their order."""
    launched = trace(
        span(1, None, Kind.TURN, "Turn 1", input=asks("launch")),
        span(2, 1, Kind.TOOL, "Agent", facts={"background": True}),
        name="Turn 1",
    )
    next_day = msgspec.structs.replace(
        trace(span(3, None, Kind.TURN, "Turn 2", start=86_400, input=asks("go on")), name="Turn 2"), trace_id=b"2" * 16
    )
    late = trace(span(4, 2, Kind.AGENT, "Explore", start=2 * 86_400, input=asks("look")), name="Turn 1")
    lines = session_lines([PreviewedTrace(each, {}) for each in (launched, next_day, late)], "/x", LAYOUT)
    found = [line for line in unstyled("\n".join(lines)).split("\n") if line.startswith(("●", "○", "Mon", "Tue"))]
    assert [line.split("  ")[0] for line in found] == [
        "● Turn 1 12:00", "○ Turn 1 · background agent 12:00, not in the turn's totals", "Mon 2026-03-02",
        "● Turn 2 12:00",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("error", "facts", "sentence"),
    [
        ('{"status":529,"message":"overloaded"}', {"attempt": 1, "retry_in_ms": 620.0}, "overloaded (529), retried after 0.6 s"),
        (json.dumps({"status": 529, "formatted": "529 Overloaded", "message": "529 {}"}), {"attempt": 2, "retry_in_ms": 1240},
         "overloaded (529), retried after 1.2 s (attempt 2)"),
        (json.dumps({"status": 500, "message": '500 {"error":{"message":"Internal server error"}}'}), {},
         "internal server error (500), retried"),
        ('{"status":529}', {"retry_in_ms": 900}, "API error (529), retried after 0.9 s"),
        ("Connection error.", {"retry_in_ms": 100}, "connection error, retried after 0.1 s"),
        (None, {"retry_in_ms": 100}, "API error, retried after 0.1 s"),
    ],
)  # fmt: skip
def test_a_retry_is_a_sentence(error, facts, sentence):
    """Why a request was repeated, and after how long: not the JSON that the client recorded."""
    event = span(2, 1, Kind.EVENT, "retry", output=error, facts={"event": "retry", **facts})
    assert f"retry  {sentence}" in "\n".join(tree(trace(span(1, None, Kind.TURN, "Turn 1"), event)))


def test_an_agent_without_a_turn_is_shown():
    """A trace without a turn shows the spans it has."""
    assert tree(trace(span(6, None, Kind.AGENT, "compact", input=asks("sum up"))))[0].startswith("◉ compact  sum up")


def test_a_trace_without_spans_has_no_lines():
    """An empty trace is not an error."""
    assert tree(trace()) == []


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("<task-notification>\n<task-id>x</task-id>\n<summary>Agent done</summary></task-notification>", "Agent done"),
        ("<bash-input>ls -la</bash-input>", "ls -la"),
        ("is 1 < 2?", "is 1 < 2?"),
    ],
)
def test_tags_of_the_client_are_omitted(words, shown):
    """The client wraps notifications and commands in tags; a line has no room for them."""
    line = tree(trace(span(1, None, Kind.TURN, "Turn 1", input=asks(words))))[0]
    assert line.split("12:00")[1].rsplit("  ", 1)[0].strip() == shown


def test_the_prompt_is_shown_before_an_editors_selection():
    """A selection that an editor added precedes the prompt in the transcript; the line shows the prompt."""
    both = (Message("user", (Text("ide_selection: def weave()"), Text("explain this"))),)
    alone = (Message("user", (Text("ide_selection: def weave()"),)),)
    assert "12:00  explain this" in tree(trace(span(1, None, Kind.TURN, "Turn 1", input=both)))[0]
    assert "12:00  ide_selection: def weave()" in tree(trace(span(1, None, Kind.TURN, "Turn 1", input=alone)))[0]


@pytest.mark.parametrize(
    ("output", "shown"),
    [
        (says(Reasoning("Hm."), Text("Yes.")), "Yes."),
        (says(Reasoning("Hm."), ToolCall("t", "Bash", "{}")), "(thinking) Hm."),
        (says(ToolCall("t", "Bash", "{}"), ToolCall("u", "Read", "{}")), "→ Bash, Read"),
        (None, ""),
    ],
)
def test_a_response_shows_its_text_or_reasoning_or_calls(output, shown):
    """The first of the three that is present."""
    line = tree(trace(span(2, None, Kind.GENERATION, "m", output=output)))[0]
    assert line.removeprefix("◆ m").rsplit("  ", 1)[0].strip() == shown


def test_an_api_error_is_not_shown_as_a_model():
    """The line says what it is."""
    line = tree(trace(span(2, None, Kind.GENERATION, "API error", error="api_error", error_message="overloaded")))[0]
    assert line.startswith("◆ API error ")


@pytest.mark.parametrize("width", [44, 60, 80, 140])
def test_lines_fit_the_terminal(width):
    """Long names, long words and wide characters are cut to the width."""
    wide = "数えて" * 200
    shown = trace(
        span(1, None, Kind.TURN, "Turn 1", input=asks(wide), totals=USED, totals_cost_usd=1000.0),
        span(2, 1, Kind.GENERATION, "claude-" + "m" * 90, usage=USED, output=says(Text(wide))),
        span(3, 2, Kind.TOOL, "mcp__" + "s" * 80, input=Json('{"x":"' + "y" * 500 + '"}'), output=wide,
             error="tool_error", error_message=wide),
    )  # fmt: skip
    assert all(cells(line) <= width for line in tree(shown, Layout(width, zone=UTC)))


@given(st.text(max_size=80), st.booleans())
@settings(max_examples=60, deadline=None)
def test_no_content_can_control_the_terminal(text, is_full):
    """Any text in any field of a trace: lines have no control characters, and records are plain ASCII."""
    poison = text + "\x1b]0;x\x07\x1b[2J\u202e\x9b31m\x7f\r"
    shown = Trace(
        trace_id=bytes(16), name=poison, session_id=poison, client_version=poison, tags=(poison,),
        facts={"cwd": poison, poison: poison},
        spans=(
            span(1, None, Kind.TURN, poison, input=asks(poison), output=says(Text(poison)), facts={"origin": poison}),
            span(2, 1, Kind.GENERATION, poison, model=poison, usage=USED, output=says(Reasoning(poison))),
            span(3, 2, Kind.TOOL, poison, input=Json(poison), output=poison, error=poison, error_message=poison),
            span(4, 2, Kind.TOOL, poison, input=Json(json.dumps({"command": poison})), output=poison),
            span(5, 4, Kind.AGENT, poison, input=(Message(poison, (ToolResult(poison, poison), Media(poison, 3))),)),
            span(6, 1, Kind.EVENT, poison, output=poison, facts={poison: poison}),
        ),
    )  # fmt: skip
    lines = session_lines([PreviewedTrace(shown, {poison: 1}, poison)], poison, Layout(80, zone=UTC, is_full=is_full))
    for line in "\n".join(lines).split("\n"):
        words = unstyled(line)
        assert not any(c < " " or "\x7f" <= c <= "\x9f" or c in "\u202e\u2028" for c in words), ascii(words)
    record = line_of(trace_record(shown, {}))
    assert record.isascii()
    assert record.isprintable()


def test_masked_content_is_highlighted():
    """A mask has its own colour, and the footer counts masks by rule."""
    line = next(
        iter(trace_lines(trace(span(1, None, Kind.TURN, "Turn 1", input=asks("use [redacted:jwt] now"))), LAYOUT))
    )
    assert "\x1b[35m[redacted:jwt]\x1b[0m" in line
    foot = [unstyled(line) for line in foot_lines(tally_of(a_turn()), {"jwt": 2, "aws-access-key": 1}, LAYOUT)]
    assert foot[-1] == "masked: 1 aws-access-key · 2 jwt"


def test_full_shows_all_content():
    """With `--full` every text, fact and id that is exported is shown, wrapped to the width on a terminal."""
    long = "\n".join(f"line {number} " + "x" * 100 for number in range(5))
    shown = trace(
        span(1, None, Kind.TURN, "Turn 1", input=asks(long), facts={"prompt_id": "p1"},
             links=(Link(bytes(16), bytes(8), "previous_turn"),)),
        span(2, 1, Kind.TOOL, "Bash", input=Json('{"command":"ls"}'), output="a\tb\nc", error="tool_error",
             error_message="no"),
    )  # fmt: skip
    everything = "\n".join(tree(shown, Layout(80, zone=UTC, is_full=True, is_wrapped=False)))
    assert all(line in everything for line in long.split("\n"))
    for words in (
        "prompt_id=p1",
        f"previous_turn={'0' * 32}/{'0' * 16}",
        'in: {"command":"ls"}',
        "out: a   b",
        "error: no",
    ):
        assert words in everything
    wrapped = tree(shown, Layout(80, zone=UTC, is_full=True))
    assert all(cells(line) <= 80 for line in wrapped)
    assert "".join(line.removeprefix("│ ").strip() for line in wrapped).count("x" * 100) >= 1


def test_full_shows_tokens_by_kind():
    """With `--full` a response shows its cached tokens by kind, and a turn the sum; other kinds are omitted."""
    used = Usage(input=10, output=40, cache_read=300, cache_write_5m=20, cache_write_1h=7, is_incomplete=True)
    shown = trace(
        span(1, None, Kind.TURN, "Turn 1", input=asks("hi"), totals=USED), span(2, 1, Kind.GENERATION, "m", usage=used)
    )
    lines = tree(shown, Layout(200, zone=UTC, is_full=True))
    assert any(line.endswith("input=10 cache_read=300 cache_write_5m=20 output=40") for line in lines)
    assert any("input=10 cache_read=300 cache_write_5m=20 cache_write_1h=7 output=≥40" in line for line in lines)


def test_a_session_is_shown_while_it_is_read():
    """The first turn is printed before the second is read."""
    asked = []

    def turns():
        for number in (1, 2):
            asked.append(number)
            yield PreviewedTrace(trace(span(1, None, Kind.TURN, f"Turn {number}", input=asks("hi"))), {})

    for line in session_lines(turns(), "x.jsonl", LAYOUT):
        if "Turn 1" in line:
            break
    assert asked == [1]


def test_a_session_has_a_header():
    """Title, project, client, date and destination, like a commit in `git log`; a new day has its own line."""
    first = trace(
        span(1, None, Kind.TURN, "Turn 1", input=asks("hi")),
        facts={"title": "Weaving", "cwd": "/home/ada/loom", "git_branch": "main", "entrypoint": "cli"},
    )
    second = trace(span(1, None, Kind.TURN, "Turn 2", start=86400, input=asks("again")), name="Turn 2")
    previewed = [
        PreviewedTrace(first, {"jwt": 1}, "to local, redacted"),
        PreviewedTrace(second, {"jwt": 2}, "to local, redacted"),
    ]
    lines = [unstyled(line) for line in session_lines(previewed, "/tmp/x.jsonl", LAYOUT)]
    assert lines[:7] == [
        "session 5e55104a",
        "Title:   Weaving",
        "Project: /home/ada/loom (main)",
        "Client:  Claude Code 2.1.325, cli",
        "Date:    Sun 2026-03-01 12:00:00 +0000",
        "File:    /tmp/x.jsonl",
        "Export:  to local, redacted",
    ]
    assert "Mon 2026-03-02" in lines
    assert lines[-1] == "masked: 3 jwt"


def test_a_record_has_every_field_and_is_json():
    """Every span has the same fields: ids in hexadecimal, times to the nanosecond, arguments as values."""
    record = json.loads(line_of(trace_record(a_turn(), {"jwt": 1})))
    assert record["trace_id"] == "0" * 31 + "1"
    assert record["masked"] == {"jwt": 1}
    turn, generation, tool, *_ = record["spans"]
    assert len({frozenset(span) for span in record["spans"]}) == 1
    assert turn["span_id"] == "0000000000000001"
    assert turn["parent_id"] is None
    assert turn["start"] == "2026-03-01T12:00:00.000000000Z"
    assert turn["duration_ms"] == 65_000
    assert generation["usage"]["cache_read"] == 300
    assert generation["parent_id"] == turn["span_id"]
    assert generation["output"][0]["parts"][1] == {"type": "tool_call", "id": "t3", "name": "Bash", "arguments": {}}
    assert tool["input"] == {"command": "ls | wc -l", "description": "count"}
    assert tool["output"] == "3\n"


@pytest.mark.parametrize("text", ["{half", "NaN", "[" * 100_000, "9" * 5000])
def test_arguments_that_are_not_json_stay_text(text):
    """Arguments that were truncated, or were never JSON, are kept as they are."""
    record = trace_record(trace(span(1, None, Kind.TOOL, "Bash", input=Json(text))), {})
    assert json.loads(line_of(record))["spans"][0]["input"] == text


def test_a_transcript_of_a_real_shape_is_shown(tmp_path):
    """From the rows of a real client version to the tree."""
    writer = Writer(version="2.1.45")
    writer.prompt("how many?")
    call = writer.call("Bash", {"command": "ls"})
    writer.result(call, "a\nb", is_error=False)
    writer.say("Two.")
    traces, _ = read(writer.save(tmp_path))
    shown = [unstyled(line).rstrip() for line in trace_lines(traces[0], Layout(100, zone=UTC))]
    assert [line.split("  ")[0] for line in shown] == ["● Turn 1 09:00", "├─◆ opus-4-5", "│ └─▸ Bash", "└─◆ opus-4-5"]
    assert "how many?" in shown[0]
    assert "ls → a b" in shown[2]
    assert "~" in shown[1]
    assert "≥40" in shown[1]


def test_a_compaction_before_the_prompt_is_before_it(tmp_path):
    """It is the first thing below its turn, and precedes the prompt of the conversation; one in the turn does not."""
    writer = Writer()
    writer.turn("weave", "Woven.")
    writer.row("system", subtype="compact_boundary", compactMetadata={"trigger": "manual"})
    writer.prompt("go on")
    writer.call("Bash", {"command": "weave"})
    writer.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto"})
    writer.say("Done.")
    (_, second), _ = read(writer.save(tmp_path))
    shown = [line for line in map(unstyled, trace_lines(second, LAYOUT)) if "compaction" in line or "opus" in line]
    assert ["manual" in line for line in shown] == [True, False, False, False]
    assert [block["is"] for block in chat_record(second)["blocks"]][:2] == ["event", "prompt"]
