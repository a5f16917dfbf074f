import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnspan.trace.model import (
    Json,
    Kind,
    Media,
    Message,
    Part,
    Reasoning,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
    map_content,
    parts_of,
    texts_of,
    with_parts,
)

COUNTS = st.builds(Usage, *[st.integers(0, 2**40)] * 6, st.booleans())


@given(COUNTS, COUNTS, COUNTS)
def test_usage_adds_up_in_any_order(first, second, third):
    """A sum is the same in any order; one incomplete count makes the sum incomplete."""
    assert first + second == second + first
    assert (first + second) + third == first + (second + third)
    assert first + Usage() == first
    assert (first + second).cache_write == first.cache_write + second.cache_write
    assert (first + second).is_incomplete == (first.is_incomplete or second.is_incomplete)


@pytest.mark.parametrize(
    "part", [Text("a"), Reasoning("b"), ToolCall("t", "Bash", "{}"), ToolResult("t", "ok"), Media("image/png", 5)]
)
def test_encoded_parts_have_a_type(part):
    """Every part of a message says what it is, and can be read back."""
    assert msgspec.json.decode(msgspec.json.encode(part), type=Part) == part


def test_values_are_frozen():
    """A span that was built is never changed."""
    span = Span(span_id=b"x" * 8, parent_id=None, kind=Kind.TOOL, name="Bash", start_ns=1, end_ns=2)
    trace = Trace(trace_id=b"y" * 16, name="Turn 1", session_id="s", client_version="2.1.0", spans=(span,))
    for value, name in (
        (span, "name"),
        (trace, "name"),
        (Usage(), "input"),
        (Message("user", ()), "role"),
        (Json("{}"), "text"),
    ):
        with pytest.raises(AttributeError):
            setattr(value, name, "other")


SAID = (
    Message("user", (Text("hello"), Media("image/png", 3))),
    Message("assistant", (Reasoning("hm"), ToolCall("1", "Bash", '{"a":1}'), ToolResult("1", "done")), "stop"),
)


def test_the_strings_of_a_content_are_changed_by_what_they_are():
    """Texts, JSON and labels each have a function of their own; nothing is forgotten."""
    changed = map_content(SAID, "t:{}".format, "j:{}".format, "l:{}".format)

    assert changed == (
        Message("l:user", (Text("t:hello"), Media("l:image/png", 3))),
        Message(
            "l:assistant",
            (Reasoning("t:hm"), ToolCall("l:1", "l:Bash", 'j:{"a":1}'), ToolResult("l:1", "t:done")),
            "l:stop",
        ),
    )
    assert map_content("a", str.upper, str) == "A"
    assert map_content(Json("a"), str, str.upper) == Json("A")


@pytest.mark.parametrize("content", [SAID, Json("{}"), "text"])
def test_a_content_without_changes_is_returned_itself(content):
    """Callers compare by identity."""
    assert map_content(content, str, str, str) is content
    assert with_parts(content, lambda message: message.parts) is content


def test_texts_and_parts_of_a_content():
    """What was said, in order; and the parts of one kind, of messages only."""
    assert texts_of(SAID) == ["hello", "hm", '{"a":1}', "done"]
    assert (texts_of(Json("1")), texts_of("a")) == (["1"], ["a"])
    assert parts_of(SAID, Text) == [Text("hello")]
    assert parts_of("a", Text) == parts_of(None, Text) == []
