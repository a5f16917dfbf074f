from hypothesis import given
from hypothesis import strategies as st

from turnspan.trace import ids


def test_ids_are_what_they_have_always_been():
    """The same turn has the same ids forever: changing them would export every turn a second time."""
    trace = ids.trace_id("0badcafe-0000-4000-8000-000000000001", "0badcafe-0000-4000-8000-000000000002")
    assert trace.hex() == "e182e559755949d83f3f6efe0b32dca5"
    assert ids.span_id(trace, "turn", "").hex() == "af61c86b74cc399e"
    assert ids.span_id(trace, "tool", "toolu_1").hex() == "a7abf2dd132eb99b"


@given(st.text(), st.text(), st.text())
def test_ids_have_the_right_length_and_are_never_zero(session, key, kind):
    """Backends refuse ids of the wrong length, and ids of zeros."""
    trace = ids.trace_id(session, key)
    span = ids.span_id(trace, kind.encode("ascii", "ignore").decode(), key)
    assert (len(trace), len(span)) == (16, 8)
    assert any(trace)
    assert any(span)


@given(st.tuples(st.text(), st.text()), st.tuples(st.text(), st.text()))
def test_different_turns_have_different_ids(first, second):
    """Two turns share an id only if they are the same turn, however their parts would read when put together."""
    assert (ids.trace_id(*first) == ids.trace_id(*second)) == (first == second)


def test_where_one_part_ends_matters():
    """`ab` + `c` is not `a` + `bc`."""
    assert ids.trace_id("ab", "c") != ids.trace_id("a", "bc")
    trace = ids.trace_id("a", "b")
    assert ids.span_id(trace, "tool", "x") != ids.span_id(trace, "toolx", "")
    assert ids.span_id(trace, "tool", "x") != ids.span_id(trace, "event", "x")


def test_broken_text_has_an_id_too():
    """A lone surrogate in an id is not an error."""
    assert len(ids.trace_id("\ud83d", "\ud83d")) == 16
