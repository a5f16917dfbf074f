"""Active time: the union of what responses, tools and subagents took."""

from turnspan.trace.model import Kind, Span
from turnspan.trace.times import active_ns


def span(kind, start, end, name="x", **facts):
    """Return a span with times in milliseconds."""
    return Span(
        span_id=bytes(8), parent_id=None, kind=kind, name=name, start_ns=start * 10**6, end_ns=end * 10**6, facts=facts
    )


def active_ms(*spans):
    """Return the active time in milliseconds."""
    return active_ns(spans) / 1e6


def test_nothing_is_not_active():
    """Without spans, there is no active time."""
    assert active_ms() == 0


def test_what_runs_in_parallel_counts_once():
    """Overlapping and nested intervals are counted once, and gaps between them are not counted."""
    spans = [
        span(Kind.TOOL, 50, 90),
        span(Kind.GENERATION, 10, 60),
        span(Kind.AGENT, 55, 80),
        span(Kind.TOOL, 200, 230),
    ]
    assert active_ms(*spans) == 80 + 30


def test_turns_and_events_are_not_work():
    """The turn itself contains the waiting, and an event has no duration."""
    assert active_ms(span(Kind.TURN, 0, 900), span(Kind.EVENT, 100, 700), span(Kind.GENERATION, 0, 5)) == 5


def test_a_recorded_duration_excludes_the_question_before():
    """A tool that waited for permission overnight counts with the duration that it recorded."""
    assert active_ms(span(Kind.TOOL, 0, 9_000_000, duration_ms=250)) == 250


def test_a_recorded_duration_never_adds_time():
    """A duration longer than the interval of the call counts as the interval; a negative one is ignored."""
    assert active_ms(span(Kind.TOOL, 0, 100, duration_ms=1e9)) == 100
    assert active_ms(span(Kind.TOOL, 0, 100, duration_ms=-1)) == 100


def test_a_question_to_the_user_is_not_work():
    """A tool that only asks the user does not count, however long the answer took."""
    assert active_ms(span(Kind.TOOL, 0, 500, name="AskUserQuestion"), span(Kind.GENERATION, 500, 700)) == 200
