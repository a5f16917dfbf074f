"""The comparison with real servers finds every kind of difference."""

from dataclasses import replace

import pytest

from real.compare import Seen, differences, wanted_in
from real.homes import Past, copy_stories


@pytest.fixture
def wanted(tmp_path):
    """The spans of one story that a server should have."""
    past = Past(tmp_path, {"TURNSPAN_OTLP_ENDPOINT": "http://127.0.0.1:9"})
    copy_stories(["parallel-tools"], past.projects)
    return wanted_in(past.projects, past.env)


def as_seen(one):
    """A span as a server returns it that changes nothing."""
    span = one.span
    return Seen(*one.key, one.parent_id, span.name, span.start_ns, span.end_ns, one.error, dict(one.attributes))


def compared(wanted, seen):
    """Return the differences, for a server that adds `llm.x` to every span."""
    return differences(wanted, seen, precision_ns=1_000, derived=lambda _: {"llm.x": 1})


def test_equal_spans_give_no_difference(wanted):
    """Times may be rounded to a microsecond, and the server may add its known attributes."""
    seen = [as_seen(one) for one in wanted.values()]
    for one in seen:
        one.attributes["llm.x"] = 1

    assert compared(wanted, [replace(one, start_ns=one.start_ns + 999) for one in seen]) == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda seen: seen[1:], "missing"),
        (lambda seen: [*seen, seen[0]], "2 times"),
        (lambda seen: [*seen, replace(seen[0], span_id="0" * 16)], "unexpected"),
        (lambda seen: [replace(seen[0], parent_id="0" * 16), *seen[1:]], "parent is"),
        (lambda seen: [replace(seen[0], name="Turn 9"), *seen[1:]], "name is 'Turn 9'"),
        (lambda seen: [replace(seen[0], start_ns=seen[0].start_ns + 1_001), *seen[1:]], "start is"),
        (lambda seen: [replace(seen[0], end_ns=seen[0].end_ns - 1_001), *seen[1:]], "end is"),
        (lambda seen: [replace(seen[0], error="no"), *seen[1:]], "error is 'no'"),
        (lambda seen: [replace(seen[0], attributes={**seen[0].attributes, "session.id": "x"}), *seen[1:]], "session.id"),
        (lambda seen: [replace(seen[0], attributes={**seen[0].attributes, "more": 1}), *seen[1:]], "more = 1 is unexpected"),
        (lambda seen: [replace(seen[0], attributes={"llm.x": 1}), *seen[1:]], "is missing"),
        (lambda seen: [replace(seen[0], attributes={**seen[0].attributes, "llm.x": 2}), *seen[1:]], "llm.x is 2"),
    ],
)  # fmt: skip
def test_every_difference_is_reported(wanted, change, words):
    """Spans that are missing, duplicated or unexpected, and a wrong parent, name, time, status or attribute."""
    seen = [as_seen(one) for one in wanted.values()]
    for one in seen:
        one.attributes["llm.x"] = 1

    found = compared(wanted, change(seen))

    assert found
    assert all(words in one or words == "is missing" for one in found), found
