"""A backfill of all stories to a real Phoenix, and what its pages then show."""

import re
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from figures import note

from real.compare import differences, wanted_in
from real.homes import STORIES, Past, copy_stories
from real.phoenix import derived

pytestmark = pytest.mark.slow
MICROSECOND_NS = 1_000  # the precision of Phoenix
PROJECT = "turnspan-b4c9"
LATER = "two-terminals"  # a story that is exported after the others
PAGE = Path(__file__).parents[2] / "docs" / "phoenix.md"


def configuration(phoenix):
    """Return the configuration that docs/phoenix.md shows, with the address of this Phoenix and another project."""
    [text] = re.findall(r"```toml\n(.*?)```", PAGE.read_text(), re.DOTALL)
    return text.replace("http://localhost:6006", phoenix.url).replace('"claude-code"', f'"{PROJECT}"')


class Filled:
    """A home, the spans that Phoenix should have of it, and the server."""

    def __init__(self, phoenix, base):
        self.phoenix = phoenix
        self.past = Past(base, {})
        self.past.configure(configuration(phoenix))
        copy_stories([name for name in STORIES if name != LATER], self.past.projects)
        self.sent = self.past.turnspan("backfill")

    @property
    def wanted(self):
        """The spans that should be stored now."""
        return wanted_in(self.past.projects, self.past.env)

    def seen(self):
        """Return all stored spans, once all have arrived."""
        return self.phoenix.wait_for(PROJECT, len(self.wanted))


@pytest.fixture(scope="module")
def filled(phoenix, tmp_path_factory):
    """A Phoenix project with the backfilled sessions, emptied afterwards."""
    phoenix.forget(PROJECT)
    filled = Filled(phoenix, tmp_path_factory.mktemp("past"))
    filled.seen()
    yield filled
    phoenix.forget(PROJECT)


def test_phoenix_has_every_span_of_a_backfill(filled):
    """Every span of every story is compared: ids, parents, names, times, status, all attributes, and what Phoenix derives."""
    wanted = filled.wanted

    assert filled.sent["spans"] == len(wanted)
    assert differences(wanted, filled.seen(), precision_ns=MICROSECOND_NS, derived=derived) == []
    note("phoenix-backfill", f"{len(wanted)} spans of {len(STORIES) - 1} stories")


def test_phoenix_shows_each_session_with_its_turns_and_tokens(filled):
    """The list of sessions has each session once, with its first prompt and the sum of its tokens."""
    tokens, traces, first = Counter(), defaultdict(set), {}
    for one in filled.wanted.values():
        session, usage = one.trace.session_id, one.span.usage
        traces[session].add(one.trace.trace_id)
        if usage is not None:
            tokens[session, "prompt"] += usage.input + usage.cache_read + usage.cache_write
            tokens[session, "completion"] += usage.output
        if one.span.kind == "turn":
            first[session] = min(first.get(session, (2**63, "")), (one.span.start_ns, one.attributes["input.value"]))

    fields = "sessions(first: 1000) { edges { node { sessionId numTraces firstInput { value } tokenUsage { prompt completion } } } }"
    shown = [edge["node"] for edge in filled.phoenix.project(PROJECT, fields)["sessions"]["edges"]]

    assert {one["sessionId"]: one["numTraces"] for one in shown} == {name: len(ids) for name, ids in traces.items()}
    assert len(shown) == len(traces)
    for one in shown:
        session = one["sessionId"]
        assert one["tokenUsage"] == {kind: tokens[session, kind] for kind in ("prompt", "completion")}
        if session in first:
            assert one["firstInput"]["value"] == first[session][1]


def test_phoenix_adds_up_the_tokens_of_a_turn_once(filled):
    """A turn shows the tokens of all its responses, including those of its agents, without counting any twice."""
    wanted = filled.wanted
    below = Counter()
    for one in wanted.values():
        usage, at = one.span.usage, one
        while usage is not None and at is not None:
            below[at.span.span_id.hex()] += usage.input + usage.cache_read + usage.cache_write + usage.output
            at = wanted.get((one.key[0], at.parent_id))

    fields = "spans(first: 1000) { edges { node { spanId cumulativeTokenCountTotal } } }"
    shown = [edge["node"] for edge in filled.phoenix.project(PROJECT, fields)["spans"]["edges"]]

    assert {one["spanId"]: one["cumulativeTokenCountTotal"] or 0 for one in shown} == {
        span_id: below[span_id] for _, span_id in wanted
    }


def test_phoenix_computes_the_same_cost(filled):
    """Phoenix's own price list gives the cost that we send, with two exceptions.

    It prices cache writes of one hour as those of five minutes, and it prices a response that was cut off.
    """
    fields = """spans(first: 1000, filterCondition: "span_kind == 'LLM'") {
        edges { node { spanId costSummary { total { cost } } } } }"""
    shown = [edge["node"] for edge in filled.phoenix.project(PROJECT, fields)["spans"]["edges"]]
    spans = {one.span.span_id.hex(): one.span for one in filled.wanted.values()}
    compared = 0
    for one in shown:
        span = spans[one["spanId"]]
        theirs = (one["costSummary"] or {"total": {"cost": None}})["total"]["cost"]
        if span.cost_usd is None:
            assert theirs is None or span.usage.is_incomplete
        elif span.usage.cache_write_1h:
            assert theirs < span.cost_usd
        else:
            assert theirs == pytest.approx(span.cost_usd, abs=1e-9)
            compared += 1
    assert compared > 50


def test_a_resent_span_is_stored_once(filled):
    """After `backfill --resend`, Phoenix shows no span twice and counts no token twice."""
    fields = """recordCount traceCount tokenCountTotal costSummary { total { cost } }
        sessions(first: 1000) { edges { node { sessionId tokenUsage { total } } } }"""
    before, known = filled.phoenix.project(PROJECT, fields), len(filled.wanted)

    assert filled.past.turnspan("backfill", "--resend")["spans"] == known

    # Phoenix stores spans in order of arrival: once a later story is there, so is everything before it.
    copy_stories([LATER], filled.past.projects)
    assert filled.past.turnspan("backfill")["spans"] == len(filled.wanted) - known > 0
    seen = filled.seen()
    assert differences(filled.wanted, seen, precision_ns=MICROSECOND_NS, derived=derived) == []
    after = filled.phoenix.project(PROJECT, fields)
    assert after["recordCount"] == len(filled.wanted)
    shown = [{edge["node"]["sessionId"]: edge["node"] for edge in one["sessions"]["edges"]} for one in (before, after)]
    assert shown[0].items() <= shown[1].items()
