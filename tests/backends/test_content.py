import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backends.samples import GENERATION, TOOL, json_texts, texts, traces_of, wild_texts
from turnspan.backends.content import ELLIPSIS, chatml, fit, genai_messages, is_json, well_formed
from turnspan.backends.genai import GenAI
from turnspan.backends.langfuse import LangfuseNaming
from turnspan.backends.settings import Capture
from turnspan.trace.model import Json, Kind, Message, Text, ToolCall, ToolResult


@settings(deadline=None)
@given(tree=json_texts, limit=st.integers(64, 600))
def test_json_is_cut_inside_and_stays_json(tree, limit):
    """Cut JSON is valid JSON and fits into the limit."""
    text = json.dumps(tree, ensure_ascii=False)
    short = fit(text, limit, is_json=True)

    json.loads(short)
    assert len(short.encode()) <= limit or len(text.encode()) <= limit


@given(text=texts, limit=st.integers(8, 300))
def test_plain_text_is_cut_between_characters(text, limit):
    """Cut text fits into the limit, has no half characters, and ends in an ellipsis."""
    short = fit(text, limit, is_json=False)

    assert len(short.encode()) <= limit
    assert short == text or (short.endswith(ELLIPSIS) and text.startswith(short[: -len(ELLIPSIS)]))


def test_the_longest_strings_are_cut_and_the_short_ones_kept():
    """A short path next to a long file is kept."""
    text = json.dumps({"path": "/home/me/a.txt", "old": "x" * 5_000, "new": "y" * 50_000, "n": 7})
    short = json.loads(fit(text, 2_000, is_json=True))

    assert short["path"] == "/home/me/a.txt"
    assert short["n"] == 7
    assert len(short["old"]) == len(short["new"]) > 900


def test_text_full_of_escapes_is_measured_as_it_is_written():
    """Quotes and line breaks count as the two bytes that they take in JSON."""
    short = fit(json.dumps(['"\n' * 5_000]), 1_000, is_json=True)

    assert 900 < len(short.encode()) <= 1_000


def test_a_value_too_wide_to_be_cut_becomes_one_string():
    """A list of ten thousand numbers has no strings to cut: its beginning becomes one JSON string."""
    short = fit(json.dumps(list(range(10_000))), 500, is_json=True)

    assert json.loads(short).startswith("[0,")
    assert len(short) <= 500


def test_a_value_too_deep_to_be_parsed_becomes_one_string():
    """JSON nested too deeply for the parser is cut as text."""
    assert len(fit("[" * 100_000 + "]" * 100_000, 500, is_json=True)) <= 500


def test_arguments_inside_a_string_stay_json_too():
    """ChatML has a call's arguments as JSON in a string: after a cut both are valid."""
    call = ToolCall("t", "Write", json.dumps({"path": "/a", "content": "z\n" * 20_000}))
    message = json.loads(fit(chatml((Message("assistant", (call,)),), "output"), 3_000, is_json=True))

    arguments = json.loads(message["tool_calls"][0]["function"]["arguments"])
    assert arguments["path"] == "/a"
    assert arguments["content"].endswith(ELLIPSIS)


def test_genai_messages_have_the_parts_of_the_conventions():
    """Messages have text, reasoning, calls with arguments as JSON and results, and outputs a finish reason."""
    [message] = json.loads(genai_messages(GENERATION.output, "output"))

    assert message == {
        "role": "assistant",
        "parts": [
            {"type": "reasoning", "content": "Use ls."},
            {"type": "text", "content": "I will look."},
            {"type": "tool_call", "id": "toolu_1", "name": "Bash", "arguments": {"command": "ls"}},
        ],
        "finish_reason": "tool_call",
    }
    [asked] = json.loads(genai_messages((Message("tool", (ToolResult("toolu_1", "a.txt"),)),), "input"))
    assert asked == {
        "role": "tool",
        "parts": [{"type": "tool_call_response", "id": "toolu_1", "response": "a.txt"}],
    }


@pytest.mark.parametrize(
    ("parts", "reason"), [((Text("hi"),), "stop"), ((Text("hi"), ToolCall("t", "Bash", "{}")), "tool_call")]
)
def test_an_output_always_has_a_finish_reason(parts, reason):
    """Phoenix shows no output without one, and most transcripts do not record it."""
    [message] = json.loads(genai_messages((Message("assistant", parts),), "output"))

    assert message["finish_reason"] == reason


def test_an_image_is_a_marker():
    """Of an image only the type and size are exported."""
    [message] = json.loads(genai_messages(GENERATION.input, "input"))

    assert message["parts"][1] == {"type": "text", "content": "[image/png, 1234 bytes]"}


@pytest.mark.parametrize("arguments", ["{broken", "", "NaN", '{"a": 1} trailing', "[" * 3_000])
def test_arguments_that_are_not_json_are_sent_as_text(arguments):
    """A call with invalid arguments does not make the message invalid."""
    [message] = json.loads(genai_messages((Message("assistant", (ToolCall("t", "Bash", arguments),)),), "output"))

    assert message["parts"][0]["arguments"] == arguments


def test_chatml_has_the_form_that_langfuse_displays():
    """A response is one message with thinking, calls and content; each tool result is a message."""
    assert json.loads(chatml(GENERATION.output, "output")) == {
        "role": "assistant",
        "content": "I will look.",
        "thinking": [{"type": "thinking", "content": "Use ls."}],
        "tool_calls": [
            {"id": "toolu_1", "type": "function", "function": {"name": "Bash", "arguments": '{"command":"ls"}'}}
        ],
    }
    results = (Message("user", (ToolResult("toolu_1", "a"), ToolResult("toolu_2", "b"), Text("and this"))),)
    assert json.loads(chatml(results, "input")) == [
        {"role": "tool", "tool_call_id": "toolu_1", "content": "a"},
        {"role": "tool", "tool_call_id": "toolu_2", "content": "b"},
        {"role": "user", "content": "and this"},
    ]
    assert json.loads(chatml("hello", "input")) == [{"role": "user", "content": "hello"}]


@pytest.mark.parametrize(
    ("text", "clean"),
    [
        ('{"a":"\\ud800x"}', {"a": "\ufffdx"}),
        ('{"\\uDC00":["\\ud83d\\ude00"]}', {"\ufffd": ["😀"]}),
        ('{"a":"\\\\ud800"}', {"a": "\\ud800"}),
    ],
)
def test_escaped_surrogates_are_replaced_in_json_text(text, clean):
    """An escaped lone surrogate is replaced; an escaped backslash before "ud800" is not."""
    assert json.loads(well_formed(text)) == clean


@settings(max_examples=50, deadline=None)
@given(trace=traces_of(st.one_of(texts, wild_texts.map(lambda t: t.encode("utf-8", "replace").decode()))))
def test_no_attribute_is_longer_than_allowed(trace):
    """Every text of every span fits into the limit, and a cut one has its original length."""
    capture = Capture(attribute_max_bytes=256)
    for naming in (GenAI(capture), LangfuseNaming(capture, "")):
        for span in trace.spans:
            attributes = naming.of_span(trace, span)
            for key, value in attributes.items():
                if isinstance(value, str):
                    assert len(value.encode()) <= 256
                if key.startswith("turnspan.truncated."):
                    assert value > 256
                    assert key.removeprefix("turnspan.truncated.") in attributes
                is_chat = key == "langfuse.observation.input" and span.kind is Kind.GENERATION
                if is_chat or key in ("gen_ai.input.messages", "gen_ai.output.messages"):
                    assert is_json(value) or isinstance(span.input, Json)


def test_a_cut_attribute_has_its_original_length():
    """turnspan.truncated.<name> is the original length in bytes."""
    span = msgspec.structs.replace(TOOL, output="ä" * 400)
    attributes = GenAI(Capture(attribute_max_bytes=300)).of_span(None, span)

    assert attributes["turnspan.truncated.output.value"] == 800
    assert attributes["turnspan.truncated.gen_ai.tool.call.result"] == 800
    assert attributes["output.value"] == attributes["gen_ai.tool.call.result"] == "ä" * 148 + ELLIPSIS
    assert "turnspan.truncated.input.value" not in attributes
