"""A caller's trace: which values of TRACEPARENT are valid, which turns it belongs to, and how it is exported."""

import msgspec
import pytest
from backends.samples import TRACE
from hypothesis import given
from hypothesis import strategies as st

from turnspan.delivery.callers import Caller, called, noted, parsed

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
END_NS = next(span.end_ns for span in TRACE.spans if span.parent_id is None)


def caller(since_ns=0, *, trace_id=TRACE_ID, is_parent=False):
    """Return a caller."""
    return Caller(since_ns=since_ns, trace_id=trace_id, span_id=SPAN_ID, is_parent=is_parent)


def roots(trace):
    """Return the spans of a trace without a parent."""
    return [span for span in trace.spans if span.parent_id is None]


@pytest.mark.parametrize(
    "text",
    [
        f"00-{TRACE_ID}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{SPAN_ID}-00",
        f"01-{TRACE_ID}-{SPAN_ID}-01",
        f"cc-{TRACE_ID}-{SPAN_ID}-01-what-the-future-will-be-like",
    ],
)
def test_a_traceparent_is_read(text):
    """Version 00, and later versions, which may have more fields."""
    assert parsed(text) == (TRACE_ID, SPAN_ID)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "1",
        f"00-{TRACE_ID}-{SPAN_ID}",
        f"00-{TRACE_ID}-{SPAN_ID}-01-more",
        f"00-{TRACE_ID}-{SPAN_ID}-01-",
        f"00-{TRACE_ID}-{SPAN_ID}-1",
        f"00-{TRACE_ID}-{SPAN_ID}-01 ",
        f"00-{TRACE_ID}-{SPAN_ID}-01\n",
        f"00-{TRACE_ID.upper()}-{SPAN_ID}-01",
        f"ff-{TRACE_ID}-{SPAN_ID}-01",
        f"cc-{TRACE_ID}-{SPAN_ID}-01.more",
        f"00-{'0' * 32}-{SPAN_ID}-01",
        f"00-{TRACE_ID}-{'0' * 16}-01",
        f"00-{TRACE_ID[:-1]}-{SPAN_ID}-01",
        f"00-{TRACE_ID[:-1]}٣-{SPAN_ID}-01",
        f"cc-{TRACE_ID}-{SPAN_ID}-01-{'x' * 10_000}",
    ],
)
def test_an_invalid_traceparent_counts_as_none(text):
    """Anything that is not exactly as the specification says."""
    assert parsed(text) is None


def test_the_root_has_a_link_to_the_caller():
    """Next to its other links; ids and parents are unchanged, and no other span has the link."""
    found = called(TRACE, (caller(),))
    [root] = roots(found)
    [before] = roots(TRACE)

    assert root.links[: len(before.links)] == before.links
    assert (root.links[-1].trace_id.hex(), root.links[-1].span_id.hex()) == (TRACE_ID, SPAN_ID)
    assert root.links[-1].relation == "caller"
    assert found.trace_id == TRACE.trace_id
    assert [span for span in found.spans if span.parent_id] == [span for span in TRACE.spans if span.parent_id]


def test_the_caller_can_be_the_parent():
    """Then the trace has the caller's id; the ids of the spans are still their own."""
    found = called(TRACE, (caller(is_parent=True),))

    assert found.trace_id.hex() == TRACE_ID
    assert roots(found) == []
    assert [span.parent_id.hex() for span in found.spans if span.kind == "turn"] == [SPAN_ID]
    assert [span.span_id for span in found.spans] == [span.span_id for span in TRACE.spans]


def test_a_later_part_of_a_turn_is_in_the_trace_of_its_caller():
    """Spans without their root have no link; with the caller as the parent they are in its trace."""
    part = msgspec.structs.replace(TRACE, spans=tuple(span for span in TRACE.spans if span.parent_id is not None))

    assert called(part, (caller(),)) == part
    assert called(part, (caller(is_parent=True),)) == msgspec.structs.replace(part, trace_id=bytes.fromhex(TRACE_ID))


def test_a_turn_belongs_to_the_caller_that_was_known_when_it_ended():
    """Not to one that resumed the session later, and to none if the client was started without one."""
    other = caller(END_NS + 1, trace_id="1" * 32)

    assert called(TRACE, (caller(5), other)) == called(TRACE, (caller(),))
    assert called(TRACE, (caller(5), Caller(since_ns=7))) == TRACE
    assert called(TRACE, (other,)) == TRACE
    assert called(TRACE, ()) == TRACE


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["", "1" * 32, "2" * 32])), max_size=12))
def test_every_event_finds_its_own_caller_later(events):
    """In whatever order events are handled: at the time of an event, its own caller is known."""
    callers, seen = (), {}
    for at, trace_id in events:
        callers = noted(callers, Caller(since_ns=at, trace_id=trace_id, span_id=SPAN_ID if trace_id else ""))
        seen[at] = trace_id
        known = [one for one in callers if one.since_ns <= at]

        assert (known[-1].trace_id if known else "") == trace_id
    assert [one.since_ns for one in callers] == sorted(one.since_ns for one in callers)
