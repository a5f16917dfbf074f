"""Measures the encoding of spans, side by side with the SDK's encoder on the same spans.

    python benchmarks/encode.py [--turns 100] [--rounds 9] [--json]

- `encode` gets ready attributes, like the SDK: the same work for the same bytes, which is checked first.
- `name and encode` starts from our own traces: names, messages as JSON, limits. The SDK does none of this.
- Rounds are interleaved and measured in CPU time; the minimum counts, the median shows how busy the machine was.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
import zlib
from hashlib import sha256

from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link as SdkLink
from opentelemetry.trace import SpanContext, SpanKind, TraceFlags

from turnspan import __version__
from turnspan.backends.genai import GenAI
from turnspan.backends.langfuse import LangfuseNaming
from turnspan.backends.otlp_json import encode_lines
from turnspan.backends.otlp_messages import encode_request
from turnspan.backends.settings import Capture
from turnspan.trace.model import Json, Kind, Link, Message, Reasoning, Span, Text, ToolCall, ToolResult, Trace, Usage

GOAL = 3.0
SECOND = 1_000_000_000


def made_up_words(source: random.Random, length: int) -> str:
    words = ("alpha", "beta\n", "gamma", "delta", '"epsilon"', "zeta", "eta", "theta", "iota", "kappa", "naïve", "漢字")
    return " ".join(source.choices(words, k=length // 6))


def made_up_trace(n: int, source: random.Random) -> Trace:
    """A turn of six responses, each with a tool call whose result is about 2 KB."""

    def id_of(key: str) -> bytes:
        return sha256(f"{n}/{key}".encode()).digest()[:8]

    start = 1_760_000_000 * SECOND + n * 60 * SECOND
    prompt = made_up_words(source, 200)
    asked: tuple[Message, ...] = (Message("user", (Text(prompt),)),)
    turn = Span(
        span_id=id_of("turn"),
        parent_id=None,
        kind=Kind.TURN,
        name=f"Turn {n}",
        start_ns=start,
        end_ns=start + 50 * SECOND,
        input=prompt,
        output=made_up_words(source, 400),
        totals=Usage(30, 2_000, 120_000, 4_000, 300),
        totals_cost_usd=0.125,
        facts={"prompt_id": f"prompt-{n}", "origin": "human"},
        links=(Link(sha256(b"previous").digest()[:16], id_of("previous"), "previous_turn"),),
    )
    spans = [turn]
    for step in range(6):
        at = start + step * 8 * SECOND
        arguments = json.dumps({"command": made_up_words(source, 150)})
        call = ToolCall(f"toolu_{n}_{step}", "Bash", arguments)
        result = made_up_words(source, 2_000)
        facts = {
            "response_id": f"msg_{n}_{step}",
            "request_id": f"req_{n}_{step}",
            "request_model": "claude-sonnet-4-5",
            "finish_reason": "tool_call",
            "effort": "high",
        }
        generation = Span(
            span_id=id_of(f"generation {step}"),
            parent_id=turn.span_id,
            kind=Kind.GENERATION,
            name="claude-sonnet-4-5",
            start_ns=at,
            end_ns=at + 4 * SECOND,
            input=asked,
            output=(Message("assistant", (Reasoning(made_up_words(source, 100)), Text("Now."), call), "tool_call"),),
            model="claude-sonnet-4-5",
            usage=Usage(3, 200, 12_000, 400, 30),
            cost_usd=0.0125,
            first_token_ns=at + SECOND,
            facts=facts,
        )
        tool = Span(
            span_id=id_of(f"tool {step}"),
            parent_id=generation.span_id,
            kind=Kind.TOOL,
            name="Bash",
            start_ns=at + 4 * SECOND,
            end_ns=at + 6 * SECOND,
            input=Json(arguments),
            output=result,
            facts={"tool_call_id": call.id, "exit_code": 0},
        )
        spans += (generation, tool)
        asked = (Message("tool", (ToolResult(call.id, result),)),)
    return Trace(
        trace_id=sha256(f"trace {n}".encode()).digest()[:16],
        name=turn.name,
        session_id="0f6c9a4e-1111-4222-8333-444455556666",
        client_version="2.1.325",
        facts={"cwd": "/home/ada/project", "git_branch": "main", "title": "Made up"},
        spans=tuple(spans),
    )


class Ready:
    """A naming with ready attributes."""

    def __init__(self, naming, traces) -> None:
        self._resources = {trace.trace_id: naming.resource(trace) for trace in traces}
        self._shared = {trace.trace_id: naming.of_trace(trace) for trace in traces}
        self._own = {span.span_id: naming.of_span(trace, span) for trace in traces for span in trace.spans}

    def resource(self, trace):
        return self._resources[trace.trace_id]

    def of_trace(self, trace):
        return self._shared[trace.trace_id]

    def of_span(self, _trace, span):
        return self._own[span.span_id]


def sdk_spans(traces, naming) -> list[ReadableSpan]:
    def context(trace_id: bytes, span_id: bytes) -> SpanContext:
        return SpanContext(int.from_bytes(trace_id, "big"), int.from_bytes(span_id, "big"), False, TraceFlags(1))

    scope = InstrumentationScope("turnspan", __version__)
    return [
        ReadableSpan(
            span.name,
            context(trace.trace_id, span.span_id),
            None if span.parent_id is None else context(trace.trace_id, span.parent_id),
            Resource(naming.resource(trace)),
            attributes={**naming.of_trace(trace), **naming.of_span(trace, span)},
            kind=SpanKind.CLIENT if span.kind is Kind.GENERATION else SpanKind.INTERNAL,
            start_time=span.start_ns,
            end_time=span.end_ns,
            instrumentation_scope=scope,
            links=[
                SdkLink(context(link.trace_id, link.span_id), {"turnspan.link.relation": link.relation})
                for link in span.links
            ],
        )
        for trace in traces
        for span in trace.spans
    ]


def measure(turns: int, rounds: int) -> dict[str, object]:
    source = random.Random(1)
    traces = [made_up_trace(n, source) for n in range(turns)]
    spans = sum(len(trace.spans) for trace in traces)
    genai, langfuse = GenAI(Capture()), LangfuseNaming(Capture(), "")
    ready = Ready(genai, traces)
    theirs = sdk_spans(traces, ready)
    body = encode_request(traces, genai)
    if encode_spans(theirs).SerializeToString() != body:
        raise SystemExit("the bytes differ from the SDK's")
    tasks = {
        "the SDK's encode_spans": lambda: encode_spans(theirs).SerializeToString(),
        "encode": lambda: encode_request(traces, ready),
        "name and encode, OTLP": lambda: encode_request(traces, genai),
        "name and encode, Langfuse": lambda: encode_request(traces, langfuse),
        "name and encode, JSON lines": lambda: encode_lines(traces, genai),
        "gzip of the OTLP bytes": lambda: zlib.compress(body, 1),
    }
    times: dict[str, list[float]] = {name: [] for name in tasks}
    for _ in range(rounds):
        for name, task in tasks.items():
            began = time.process_time()
            task()
            times[name].append((time.process_time() - began) / spans * 1e6)
    yardstick = min(times["the SDK's encode_spans"])
    return {
        "spans": spans,
        "bytes_per_span": len(body) // spans,
        "goal": GOAL,
        "rows": [
            {
                "task": name,
                "us_per_span": round(min(taken), 1),
                "median_us": round(statistics.median(taken), 1),
                "times_as_fast": round(yardstick / min(taken), 2),
            }
            for name, taken in times.items()
        ],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=100, help="number of generated turns, each with 13 spans")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = measure(arguments.turns, arguments.rounds)
    if arguments.json:
        print(json.dumps(found))
        return
    print(f"{found['spans']} spans of {found['bytes_per_span']} bytes; CPU µs per span\n")
    print(f"{'':32}{'best':>8}{'median':>8}{'ratio':>8}")
    for row in found["rows"]:
        print(f"{row['task']:32}{row['us_per_span']:8}{row['median_us']:8}{row['times_as_fast']:8}")
    reached = found["rows"][1]["times_as_fast"]
    print(f"\nencode: {reached} times as fast as the SDK, goal {GOAL}: {'reached' if reached >= GOAL else 'MISSED'}")


if __name__ == "__main__":
    main()
