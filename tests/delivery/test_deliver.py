"""Every verdict has its consequence, and nothing is dropped without being named."""

import msgspec
import pytest
from backends.samples import GENERATION, TOOL, TRACE, small_trace
from faults.recording import (
    ACKNOWLEDGED,
    CONFIGURATION,
    CREDENTIALS,
    INVALID,
    LATER,
    TOO_LARGE,
    Recording,
    refusing,
)
from hypothesis import given
from hypothesis import strategies as st

from turnspan.backends import Answer, Verdict
from turnspan.delivery.deliver import deliver
from turnspan.trace.model import Json, Message, Reasoning, Text, ToolCall, ToolResult

PARTIAL_ONE = Verdict(Answer.PARTIAL, "one is odd", rejected=1)


def turns(count):
    """Return some traces of one span each."""
    return [small_trace(number) for number in range(1, count + 1)]


def names(traces):
    """Return the names of all spans."""
    return [span.name for trace in traces for span in trace.spans]


def with_text(characters, number=1, **more):
    """Return a trace of one span that holds a long text."""
    trace = small_trace(number)
    span = msgspec.structs.replace(trace.spans[0], input="x" * characters, **more)
    return msgspec.structs.replace(trace, spans=(span,))


# ---- acknowledged


def test_what_is_acknowledged_is_settled_and_heard_of():
    """One request, one acknowledgement, and the callback gets every trace."""
    backend, heard = Recording(), []
    delivery = deliver(backend, [TRACE, *turns(3)], heard.extend)
    assert (delivery.stopped, delivery.sent, delivery.requests) == (None, len(TRACE.spans) + 3, 1)
    assert names(heard) == backend.names == names([TRACE, *turns(3)])
    assert (delivery.refused, delivery.cut, delivery.refused_spans) == ([], 0, 0)


def test_nothing_to_send_contacts_no_destination():
    """Traces without spans are no request."""
    backend = Recording()
    empty = msgspec.structs.replace(TRACE, spans=())
    assert deliver(backend, []).stopped is None
    assert deliver(backend, [empty]).stopped is None
    assert backend.requests == []


# ---- answers that stop everything


@pytest.mark.parametrize("verdict", [LATER, CREDENTIALS, CONFIGURATION], ids=lambda verdict: str(verdict.answer))
def test_what_is_not_acknowledged_stops_the_rest(verdict):
    """What came before stays acknowledged; nothing that comes after overtakes."""
    traces = [with_text(2000, number) for number in range(1, 7)]
    backend, heard = Recording(ACKNOWLEDGED, verdict, ACKNOWLEDGED, max_request_bytes=6000), []
    delivery = deliver(backend, traces, heard.extend)
    assert delivery.stopped == verdict
    assert len(backend.requests) == 2
    assert names(heard) == backend.names == names(traces)[: len(heard)]
    assert 0 < len(heard) < 6
    assert (delivery.sent, delivery.refused) == (len(heard), [])


# ---- too large


def test_what_will_not_fit_is_never_sent_as_one():
    """Requests stay below the limit of the backend, and order is kept."""
    traces = [with_text(1500, number) for number in range(1, 21)]
    backend = Recording(max_request_bytes=8000)
    delivery = deliver(backend, traces)
    assert delivery.stopped is None
    assert backend.names == names(traces)
    assert len(backend.requests) > 1
    assert all(len(msgspec.json.encode(request)) <= 8000 for request in backend.requests)
    assert delivery.cut == 0


def test_a_server_that_takes_less_gets_less():
    """A 413 splits the request, down to what the server takes, in order, without cutting anything."""
    backend = Recording(lambda rows: TOO_LARGE if len(rows) > 2 else ACKNOWLEDGED)
    delivery = deliver(backend, [*turns(5), TRACE])
    assert delivery.stopped is None
    assert backend.names == names([*turns(5), TRACE])
    assert (delivery.cut, delivery.refused, backend.twice) == (0, [], [])


def takes(size):
    """Give an answer of 413 to more bytes than that."""
    return lambda rows: TOO_LARGE if sum(len(row.content) for row in rows) > size else ACKNOWLEDGED


@pytest.mark.parametrize(
    ("limit", "kept"), [(30_000, 20_000), (2_500, 1_000), (900, 0)], ids=["cut", "cut short", "metadata only"]
)
def test_a_span_that_is_too_large_alone_is_cut(limit, kept):
    """First its texts are shortened, then shortened more, then left out; it says how long it was."""
    backend = Recording(takes(limit))
    delivery = deliver(backend, [with_text(50_000), small_trace(2)])
    assert delivery.stopped is None
    assert (delivery.sent, delivery.cut, delivery.refused) == (2, 1, [])
    first, second = (msgspec.json.decode(row.content)[1] for row in backend.rows)
    assert (first["input"] or "").count("x") == kept
    assert first["facts"]["cut_from_bytes"] > 50_000
    assert second["input"] == "question 2"


def test_a_span_that_is_too_large_without_content_is_quarantined_alone():
    """A span whose metadata alone is too large is quarantined; the others are sent."""
    backend = Recording(lambda rows: TOO_LARGE if any(row.name == "Turn 2" for row in rows) else ACKNOWLEDGED)
    delivery = deliver(backend, turns(4))
    assert delivery.stopped is None
    assert backend.names == ["Turn 1", "Turn 3", "Turn 4"]
    [refused] = delivery.refused
    assert (refused.span_id, refused.reason) == (small_trace(2).spans[0].span_id, TOO_LARGE.reason)


def test_a_span_over_our_own_limit_is_cut_before_anything_is_asked():
    """A body over the limit is never sent: only the cut one is."""
    backend = Recording(max_request_bytes=30_000)
    delivery = deliver(backend, [with_text(100_000)])
    assert (delivery.sent, delivery.cut, delivery.requests, len(backend.requests)) == (1, 1, 1, 1)


def test_every_kind_of_content_can_be_cut():
    """Words, thinking, arguments, results and errors: each is shortened, and JSON stays JSON."""
    long = "y" * 5_000
    messages = (
        Message("user", (Text(long), ToolResult("t1", long))),
        Message("assistant", (Reasoning(long), ToolCall("t2", "Bash", f'{{"command":"{long}"}}')), "tool_call"),
    )
    generation = msgspec.structs.replace(GENERATION, input=messages, output=Json(f'["{long}"]'))
    tool = msgspec.structs.replace(TOOL, error_message=long, facts={"file_path": long, "exit_code": 1})
    backend = Recording(takes(9_000))
    delivery = deliver(backend, [msgspec.structs.replace(TRACE, spans=(generation, tool))])
    assert (delivery.cut, delivery.refused) == (2, [])
    cut, failed = (msgspec.json.decode(row.content)[1] for row in backend.rows)
    texts = [part.get("text") or part.get("result") or part["arguments"] for m in cut["input"] for part in m["parts"]]
    assert all(900 < text.count("y") <= 1_000 and len(text) < 1_100 for text in texts)
    assert msgspec.json.decode(texts[3])["cut"].startswith('{"command":"yyy')
    assert len(msgspec.json.decode(cut["output"]["text"])["cut"]) < 1_100
    assert failed["error_message"].count("y") == 500
    assert failed["facts"]["file_path"] == long  # it fitted without its error message
    assert failed["facts"]["exit_code"] == 1


def test_an_outage_in_the_middle_of_cutting_stops_there():
    """A large span whose server goes away is neither sent nor refused."""
    backend = Recording(TOO_LARGE, LATER)
    delivery = deliver(backend, [with_text(50_000)])
    assert (delivery.stopped, delivery.sent, delivery.refused) == (LATER, 0, [])


# ---- invalid


def test_the_one_bad_span_is_found_and_quarantined_alone():
    """A 400 is halved down to the one bad span; the rest of its trace and all others arrive, in order."""
    backend, heard = Recording(refusing("Bash")), []
    traces = [small_trace(1), TRACE, small_trace(2)]
    delivery = deliver(backend, traces, heard.extend)
    assert delivery.stopped is None
    assert backend.names == [name for name in names(traces) if name != "Bash"]
    [refused] = delivery.refused
    assert (refused.trace_id, refused.span_id, refused.reason) == (TRACE.trace_id, TOOL.span_id, INVALID.reason)
    assert names(heard) == names(traces)  # the refused one is settled too
    assert backend.twice == []


def test_one_poisoned_turn_among_twenty():
    """Nineteen arrive in order, one is named."""
    backend = Recording(refusing("Turn 7"))
    delivery = deliver(backend, turns(20))
    assert backend.names == [name for name in names(turns(20)) if name != "Turn 7"]
    assert [refused.span_id for refused in delivery.refused] == [small_trace(7).spans[0].span_id]
    assert delivery.requests < 12


def test_a_backend_that_refuses_everything_is_a_wrong_address():
    """Nothing is quarantined and everything is kept."""
    for traces in (turns(1), turns(3), [TRACE]):
        delivery = deliver(Recording(INVALID), traces)
        assert delivery.stopped is not None
        assert delivery.stopped.answer is Answer.INVALID
        assert INVALID.reason in delivery.stopped.reason
        assert (delivery.refused, delivery.sent) == ([], 0)


def test_a_backend_that_refuses_everything_is_not_asked_for_ever():
    """A few dozen refusals are enough to know."""
    backend = Recording(INVALID)
    assert deliver(backend, turns(500)).stopped == INVALID
    assert len(backend.requests) < 80


# ---- partial


def test_a_partial_success_names_what_it_may_concern():
    """The server does not say which span it rejected: the trace is named, and nothing is sent again."""
    backend = Recording(PARTIAL_ONE)
    delivery = deliver(backend, [TRACE])
    assert (delivery.stopped is None, delivery.sent, delivery.refused_spans) == (True, len(TRACE.spans) - 1, 1)
    [refused] = delivery.refused
    assert (refused.trace_id, refused.span_id) == (TRACE.trace_id, b"")
    assert refused.reason == f"1 of {len(TRACE.spans)} spans of this request: one is odd"


def test_a_partial_success_that_rejects_nothing_is_a_warning():
    """Zero rejected is an acknowledgement with words."""
    delivery = deliver(Recording(Verdict(Answer.PARTIAL, "careful", rejected=0)), turns(3))
    assert (delivery.stopped is None, delivery.sent, delivery.refused) == (True, 3, [])


def test_a_partial_success_that_rejects_everything_takes_nothing():
    """All of n rejected, and nothing else taken: held, like a server that refuses everything."""
    delivery = deliver(Recording(Verdict(Answer.PARTIAL, "no", rejected=99)), turns(3))
    assert delivery.stopped is not None
    assert (delivery.sent, delivery.refused) == (0, [])


def test_a_rejected_request_is_named_span_by_span():
    """All of one request rejected, another one taken: those spans are quarantined by name."""
    traces = [with_text(3000, 1), with_text(3000, 2)]
    backend = Recording(Verdict(Answer.PARTIAL, "no", rejected=1), ACKNOWLEDGED, max_request_bytes=7000)
    delivery = deliver(backend, traces)
    assert len(backend.requests) == 2
    assert [refused.span_id for refused in delivery.refused] == [traces[0].spans[0].span_id]
    assert (delivery.stopped is None, delivery.sent) == (True, 1)


def test_a_cut_span_that_is_rejected_is_named():
    """A span that was shortened and then rejected by a partial success did not arrive."""
    backend = Recording(TOO_LARGE, TOO_LARGE, PARTIAL_ONE, ACKNOWLEDGED)
    delivery = deliver(backend, [with_text(50_000), small_trace(2)])
    assert (delivery.sent, delivery.cut) == (1, 0)
    assert [(refused.span_id, refused.reason) for refused in delivery.refused] == [
        (small_trace(1).spans[0].span_id, "one is odd")
    ]


# ---- all of it together

SIZES = st.sampled_from([10, 1_500, 4_000, 30_000])


@given(
    sizes=st.lists(SIZES, min_size=1, max_size=12),
    bad=st.sets(st.integers(0, 11), max_size=3),
    failures=st.lists(st.integers(1, 30), max_size=4),
    limit=st.sampled_from([3_000, 12_000, 100_000]),
)
def test_whatever_is_answered_every_span_is_settled_once(sizes, bad, failures, limit):
    """Any sizes, any bad spans, any outages: each span is stored once or named once, and order is kept."""
    traces = [with_text(size, number) for number, size in enumerate(sizes, 1)]
    poisoned = {traces[at].name for at in bad if at < len(traces)}
    count = 0

    def answer(rows):
        nonlocal count
        count += 1
        if count in failures:
            return LATER
        return INVALID if any(row.name in poisoned for row in rows) else ACKNOWLEDGED

    backend = Recording(answer, max_request_bytes=limit)
    settled, refused, held = set(), [], set()
    for _ in range(len(failures) + 1):
        left = [trace for trace in traces if trace.trace_id not in settled]
        heard = set()
        delivery = deliver(backend, left, lambda sent, heard=heard: heard.update(trace.trace_id for trace in sent))
        if delivery.stopped is None or delivery.sent:
            settled |= heard
            refused += [one.trace_id for one in delivery.refused]
        elif delivery.stopped.answer is Answer.INVALID:
            held = {trace.trace_id for trace in left}
        if delivery.stopped is None or held:
            break
    assert backend.names == [trace.name for trace in traces if trace.name not in poisoned]
    assert sorted([*refused, *held]) == sorted(trace.trace_id for trace in traces if trace.name in poisoned)
