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
