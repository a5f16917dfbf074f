"""Active time: the union of what responses, tools and subagents took."""

import pytest

from turnspan.trace.model import Kind, Span
from turnspan.trace.times import active_ms, waited_ns


def span(kind, start, end, name="x", error=None, **facts):
    """Return a span with times in milliseconds."""
    return Span(
        span_id=bytes(8), parent_id=None, kind=kind, name=name, start_ns=start * 10**6, end_ns=end * 10**6,
        error=error, facts=facts,
    )  # fmt: skip


def test_nothing_is_not_active():
    """Without spans, there is no active time."""
    assert active_ms([]) == 0


def test_what_runs_in_parallel_counts_once():
    """Overlapping and nested intervals are counted once, and gaps between them are not counted."""
    spans = [
        span(Kind.TOOL, 50, 90),
        span(Kind.GENERATION, 10, 60),
        span(Kind.AGENT, 55, 80),
        span(Kind.TOOL, 200, 230),
    ]
    assert active_ms(spans) == 80 + 30


def test_turns_and_events_are_not_work():
    """The turn itself contains the waiting, and an event has no duration."""
    assert active_ms([span(Kind.TURN, 0, 900), span(Kind.EVENT, 100, 700), span(Kind.GENERATION, 0, 5)]) == 5


def test_a_recorded_duration_excludes_the_question_before():
    """A tool that waited for permission overnight counts with the duration that it recorded."""
    asked = span(Kind.TOOL, 0, 9_000_000, duration_ms=250)
    assert (active_ms([asked]), waited_ns(asked)) == (250, (9_000_000 - 250) * 10**6)


def test_a_recorded_duration_never_adds_time():
    """A duration longer than the interval of the call counts as the interval; a negative one is ignored."""
    for took_ms in (1e9, -1):
        tool = span(Kind.TOOL, 0, 100, duration_ms=took_ms)
        assert (active_ms([tool]), waited_ns(tool)) == (100, None)


@pytest.mark.parametrize("why", [{"name": "AskUserQuestion"}, {"name": "ExitPlanMode"}, {"error": "permission_denied"}])
def test_a_question_to_the_user_is_not_work(why):
    """A tool that only asks the user, and one that was denied, does not count, however long the answer took."""
    asked = span(Kind.TOOL, 0, 500, **why)
    assert (active_ms([asked, span(Kind.GENERATION, 500, 700)]), waited_ns(asked)) == (200, 500 * 10**6)


def test_less_than_half_a_second_is_not_a_wait():
    """A client takes some milliseconds around a tool: no user answered a question in that time."""
    assert waited_ns(span(Kind.TOOL, 0, 1000, duration_ms=501)) is None
    assert waited_ns(span(Kind.TOOL, 0, 1000, duration_ms=500)) == 500 * 10**6


def test_a_call_without_a_result_and_a_response_did_not_wait():
    """How long a call without a result took is not known; a response does not wait for the user."""
    assert waited_ns(span(Kind.TOOL, 0, 1000, name="AskUserQuestion", incomplete=True)) is None
    assert waited_ns(span(Kind.GENERATION, 0, 1000, duration_ms=1)) is None
