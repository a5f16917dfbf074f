"""Traces to send: one with every kind of span, and strategies for arbitrary ones."""

from __future__ import annotations

from hypothesis import strategies as st
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

from turnspan import __version__
from turnspan.trace.model import (
    CALLER,
    Json,
    Kind,
    Link,
    Media,
    Message,
    Reasoning,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
)

START = 1_760_000_000_000_000_000
SECOND = 1_000_000_000
SESSION = "0f0e7a52-1111-4222-8333-944455556666"

TURN = Span(
    span_id=b"turn.001",
    parent_id=None,
    kind=Kind.TURN,
    name="Turn 3",
    start_ns=START,
    end_ns=START + 9 * SECOND,
    input="List the files, please.",
    output="There are two files.",
    totals=Usage(30, 200, 4000, 500, 60, 1),
    totals_cost_usd=0.125,
    facts={"prompt_id": "prompt-1", "interrupted": True},
    links=(Link(b"0123456789abcdef", b"turn.000", "previous_turn"),),
)
GENERATION = Span(
    span_id=b"gen.0001",
    parent_id=b"turn.001",
    kind=Kind.GENERATION,
    name="claude-sonnet-4-5",
    start_ns=START + 1 * SECOND,
    end_ns=START + 3 * SECOND,
    input=(Message("user", (Text("List the files, please."), Media("image/png", 1234))),),
    output=(
        Message(
            "assistant",
            (Reasoning("Use ls."), Text("I will look."), ToolCall("toolu_1", "Bash", '{"command":"ls"}')),
            "tool_call",
        ),
    ),
    model="claude-sonnet-4-5[1m]",
    usage=Usage(3, 70, 1000, 200, 50),
    cost_usd=0.0625,
    first_token_ns=START + 1 * SECOND + SECOND // 4,
    facts={
        "response_id": "msg_1",
        "request_id": "req_1",
        "request_model": "claude-sonnet-4-5",
        "finish_reason": "tool_call",
        "max_tokens": 32000,
        "effort": "high",
        "time.inferred": "start",
    },
)
TOOL = Span(
    span_id=b"tool.001",
    parent_id=b"gen.0001",
    kind=Kind.TOOL,
    name="Bash",
    start_ns=START + 3 * SECOND,
    end_ns=START + 4 * SECOND,
    input=Json('{"command":"ls"}'),
    output="a.txt\nb.txt",
    error="tool_error",
    error_message="exit code 1",
    facts={"tool_call_id": "toolu_1", "exit_code": 1},
)
AGENT = Span(
    span_id=b"agent.01",
    parent_id=b"tool.001",
    kind=Kind.AGENT,
    name="Explore",
    start_ns=START + 4 * SECOND,
    end_ns=START + 5 * SECOND,
    input="Find it.",
    output="Found.",
    totals=Usage(1, 2, 3, 4, 5, is_incomplete=True),
    facts={"agent_id": "agent-7", "agent_description": "finds things", "depth": 1},
)
EVENT = Span(
    span_id=b"event.01",
    parent_id=b"turn.001",
    kind=Kind.EVENT,
    name="compaction",
    start_ns=START + 6 * SECOND,
    end_ns=START + 6 * SECOND,
    facts={"trigger": "auto"},
)
TRACE = Trace(
    trace_id=b"trace-of-turn-03",
    name="Turn 3",
    session_id=SESSION,
    client_version="2.1.325",
    tags=("work",),
    facts={"cwd": "/home/me/project", "git_branch": "main"},
    spans=(TURN, GENERATION, TOOL, AGENT, EVENT),
)


def small_trace(n: int, *, version: str = "2.1.325") -> Trace:
    """Return the n-th of many traces with one span."""
    span = Span(
        span_id=n.to_bytes(8, "big"),
        parent_id=None,
        kind=Kind.TURN,
        name=f"Turn {n}",
        start_ns=START + n * SECOND,
        end_ns=START + n * SECOND + 1,
        input=f"question {n}",
    )
    trace_id = (n + 1000).to_bytes(16, "big")
    return Trace(trace_id=trace_id, name=f"Turn {n}", session_id=SESSION, client_version=version, spans=(span,))


def sdk_spans(traces, naming):
    """Return traces as spans of the SDK."""
    scope = InstrumentationScope("turnspan", __version__)
    spans = []
    for trace in traces:
        resource = Resource(naming.resource(trace))
        for span in trace.spans:
            status = Status() if span.error is None else Status(StatusCode.ERROR, span.error_message)
            spans.append(
                ReadableSpan(
                    span.name,
                    _context(trace.trace_id, span.span_id),
                    None if span.parent_id is None else _context(trace.trace_id, span.parent_id),
                    resource,
                    attributes={**naming.of_trace(trace), **naming.of_span(trace, span)},
                    kind=SpanKind.CLIENT if span.kind is Kind.GENERATION else SpanKind.INTERNAL,
                    start_time=span.start_ns,
                    end_time=span.end_ns,
                    instrumentation_scope=scope,
                    status=status,
                    links=[
                        SdkLink(
                            _context(link.trace_id, link.span_id, is_remote=link.relation == CALLER),
                            {"turnspan.link.relation": link.relation},
                        )
                        for link in span.links
                    ],
                )
            )
    return spans


def _context(trace_id: bytes, span_id: bytes, *, is_remote: bool = False) -> SpanContext:
    return SpanContext(int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), is_remote, TraceFlags(1))


# For the SDK a parent or a link with an id of zeros is invalid; ours are hashes.
span_ids = st.binary(min_size=8, max_size=8).filter(any)
trace_ids = st.binary(min_size=16, max_size=16).filter(any)
texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=200)
wild_texts = st.text(st.characters(), max_size=40)
times = st.integers(0, 2**63 - 1)
values = st.one_of(
    texts,
    st.text(st.sampled_from("aé漢😀"), min_size=110, max_size=300),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.booleans(),
    st.lists(texts, max_size=4).map(tuple),
)
json_texts = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts),
    lambda inner: st.one_of(st.lists(inner, max_size=5), st.dictionaries(texts, inner, max_size=5)),
    max_leaves=30,
)


def _contents(text):
    parts = st.one_of(
        st.builds(Text, text),
        st.builds(Reasoning, text),
        st.builds(ToolCall, text, text, st.one_of(text, st.just('{"a": [1, "\\ud800"]}'), st.just('{"a":{}}'))),
        st.builds(ToolResult, text, text),
        st.builds(Media, text, st.integers(0, 9)),
    )
    messages = st.builds(
        Message,
        st.sampled_from(["user", "assistant", "tool"]),
        st.lists(parts, max_size=3).map(tuple),
        st.one_of(st.none(), text),
    )
    return st.one_of(st.none(), text, st.builds(Json, text), st.lists(messages, max_size=3).map(tuple))


def _usages():
    count = st.integers(0, 10**7)
    return st.one_of(st.none(), st.builds(Usage, count, count, count, count, count, count, st.booleans()))


def spans_of(text):
    """Return a strategy for spans whose texts come from `text`."""
    return st.builds(
        Span,
        span_id=span_ids,
        parent_id=st.one_of(st.none(), span_ids),
        kind=st.sampled_from(Kind),
        name=text,
        start_ns=times,
        end_ns=times,
        input=_contents(text),
        output=_contents(text),
        model=st.one_of(st.none(), text),
        usage=_usages(),
        cost_usd=st.one_of(st.none(), st.floats(0, 100)),
        first_token_ns=st.one_of(st.none(), times),
        totals=_usages(),
        totals_cost_usd=st.one_of(st.none(), st.floats(0, 100)),
        error=st.one_of(st.none(), text),
        error_message=text,
        facts=st.dictionaries(
            st.one_of(
                text, st.sampled_from(["response_id", "finish_reason", "tool_call_id", "agent_id", "max_tokens"])
            ),
            values,
            max_size=4,
        ),
        links=st.lists(st.builds(Link, trace_ids, span_ids, text), max_size=2).map(tuple),
    )


def traces_of(text):
    """Return a strategy for traces whose texts come from `text`."""
    return st.builds(
        Trace,
        trace_id=trace_ids,
        name=text,
        session_id=text,
        client_version=st.one_of(text, st.just("2.1.325")),
        tags=st.lists(text, max_size=3).map(tuple),
        facts=st.dictionaries(text, values, max_size=3),
        spans=st.lists(spans_of(text), max_size=4).map(tuple),
    )
