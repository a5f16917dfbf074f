import json
import math

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from backends.samples import SESSION, TRACE, sdk_spans, small_trace, traces_of, values, wild_texts
from backends.samples import texts as clean_texts
from backends.servers import partial_success
from turnspan.backends.attributes import Attributes
from turnspan.backends.genai import GenAI
from turnspan.backends.langfuse import LangfuseNaming
from turnspan.backends.otlp_json import encode_lines
from turnspan.backends.otlp_messages import NotOtlpError, encode_request, read_response
from turnspan.backends.sdk import readable_spans
from turnspan.backends.settings import Capture
from turnspan.delivery.callers import Caller, called

CAPTURE = Capture(user_id="me", environment="test", tags=("a", "b"))
NAMINGS = {"genai": GenAI(CAPTURE), "langfuse": LangfuseNaming(CAPTURE, "r1")}


def attributes_of(values):
    """Return attributes with these names and values."""
    out = Attributes()
    for name, value in values.items():
        out.put(name, value)
    return out


class Given:
    """A naming with the attributes that hypothesis chose."""

    def __init__(self, resource, shared, own):
        self._resource, self._shared, self._own = resource, shared, own

    def resource(self, trace):
        return {"version": trace.client_version, **{f"resource.{key}": value for key, value in self._resource.items()}}

    def place(self, span):
        return span.name, span.parent_id

    def of_trace(self, _trace):
        return attributes_of(self._shared)

    def of_span(self, _trace, _span):
        return attributes_of({f"own.{key}": value for key, value in self._own.items()})


attributes = st.dictionaries(st.one_of(clean_texts, st.text("k", min_size=115, max_size=135)), values, max_size=6)


@pytest.mark.parametrize("name", NAMINGS)
@settings(max_examples=25, deadline=None)
@given(traces=st.lists(traces_of(clean_texts), max_size=3))
def test_the_bytes_are_those_of_the_sdk(name, traces):
    """The request for any trace is the same as the SDK's, byte for byte."""
    naming = NAMINGS[name]

    assert encode_request(traces, naming) == encode_spans(sdk_spans(traces, naming)).SerializeToString()


@pytest.mark.parametrize("name", NAMINGS)
def test_a_caller_is_encoded_as_by_the_sdk(name):
    """The link to another program's span is marked as remote, in protobuf and in JSON, and reaches an exporter of the SDK like that."""
    naming = NAMINGS[name]
    trace = called(TRACE, (Caller(trace_id="1" * 32, span_id="2" * 16),))
    body = encode_request([trace], naming)

    assert body == encode_spans(sdk_spans([trace], naming)).SerializeToString()
    assert b'"flags":768' in encode_lines([trace], naming)
    assert [link.context.is_remote for span in readable_spans(body) for link in span.links] == [False, True]


def test_a_turn_in_a_callers_trace_does_not_rename_it():
    """With the caller as the parent, Langfuse gets no name of the trace; everything else is as always."""
    trace = called(TRACE, (Caller(trace_id="1" * 32, span_id="2" * 16, is_parent=True),))
    before, after = (NAMINGS["langfuse"].of_trace(one) for one in (TRACE, trace))

    assert before.keys() - after.keys() == {"langfuse.trace.name"}


@settings(max_examples=100, deadline=None)
@given(resource=st.dictionaries(clean_texts, clean_texts, max_size=6), shared=attributes, own=attributes)
def test_every_kind_of_value_is_encoded_as_by_the_sdk(resource, shared, own):
    """Strings of any length, numbers of any size, lists and empty values give the same bytes."""
    naming = Given(resource, {f"shared.{key}": value for key, value in shared.items()}, own)
    traces = [TRACE, small_trace(1), small_trace(2, version="2.0.0")]

    assert encode_request(traces, naming) == encode_spans(sdk_spans(traces, naming)).SerializeToString()


@pytest.mark.parametrize("length", [0, *range(100, 131), 16380, 16383, 16384, 2**21])
def test_texts_of_any_length_are_encoded_as_by_the_sdk(length):
    """Lengths around the steps of protobuf's variable-length integers give the same bytes."""
    naming = Given({}, {"k": "x" * length}, {"own": "é" * length})

    assert encode_request([TRACE], naming) == encode_spans(sdk_spans([TRACE], naming)).SerializeToString()


@settings(max_examples=25, deadline=None)
@given(trace=traces_of(wild_texts))
def test_text_that_is_not_valid_unicode_never_stops_a_span(trace):
    """A lone surrogate anywhere (name, attribute, key, id) becomes U+FFFD; all spans still arrive."""
    for naming in NAMINGS.values():
        body = encode_request([trace], naming)
        request = ExportTraceServiceRequest.FromString(body)
        arrived = [s for rs in request.resource_spans for ss in rs.scope_spans for s in ss.spans]

        assert [s.span_id for s in arrived] == [s.span_id for s in trace.spans]
        assert body == encode_request([trace], naming)


def test_a_lone_surrogate_is_replaced_and_nothing_else_is():
    """Only the lone surrogate is replaced, not the text around it."""
    span = msgspec.structs.replace(
        TRACE.spans[2], name="Ba\ud800sh", facts={"k\udc00": "v\ud83d\ude00"}, error_message="\udfff!"
    )
    trace = msgspec.structs.replace(TRACE, spans=(span,))
    [arrived] = _decode(encode_request([trace], NAMINGS["genai"]))

    assert arrived.name == "Ba\ufffdsh"
    assert arrived.status.message == "\ufffd!"
    assert _plain(arrived.attributes)["turnspan.k\ufffd"] == "v😀"
    assert _plain(arrived.attributes)["session.id"] == SESSION


def test_integers_past_63_bits_become_text():
    """An integer that OTLP cannot hold is sent as text instead of being dropped."""
    facts = {"big": 2**63, "small": -(2**63) - 1, "last": 2**63 - 1, "huge": 10**5000}
    [arrived] = _decode(encode_request([TRACE], Given({}, {}, facts)))[:1]
    attributes = _plain(arrived.attributes)

    assert attributes["own.big"] == "9223372036854775808"
    assert attributes["own.small"] == "-9223372036854775809"
    assert attributes["own.last"] == 2**63 - 1
    assert attributes["own.huge"].startswith("0x")


def test_times_that_cannot_be_stored_are_clamped():
    """A transcript from the year 1 or 9999 gives a span that can be sent."""
    span = msgspec.structs.replace(TRACE.spans[0], start_ns=-5, end_ns=10**21)
    [arrived] = _decode(encode_request([msgspec.structs.replace(TRACE, spans=(span,))], NAMINGS["genai"]))

    assert (arrived.start_time_unix_nano, arrived.end_time_unix_nano) == (0, 2**63 - 1)


def test_the_bytes_do_not_depend_on_machine_or_time():
    """The resource names the client and turnspan, but no real host, process or random instance."""
    request = ExportTraceServiceRequest.FromString(encode_request([TRACE], NAMINGS["langfuse"]))

    assert sorted(a.key for a in request.resource_spans[0].resource.attributes) == [
        "host.id",
        "service.name",
        "service.version",
        "telemetry.sdk.language",
        "telemetry.sdk.name",
        "telemetry.sdk.version",
    ]


def test_traces_without_spans_make_an_empty_request():
    """A request without spans is zero bytes, not an empty group."""
    assert encode_request([msgspec.structs.replace(TRACE, spans=())], NAMINGS["genai"]) == b""


@settings(max_examples=100, deadline=None)
@given(rejected=st.integers(-(2**63), 2**63 - 1), message=clean_texts)
def test_the_response_of_a_server_is_read_as_written(rejected, message):
    """What the server's protobuf library wrote is what we read."""
    assert read_response(partial_success(rejected, message)) == (max(rejected, 0), message)


def test_a_response_that_is_cut_is_refused_at_every_byte():
    """No beginning of a response passes for a complete one."""
    complete = partial_success(300, "no")
    for end in range(1, len(complete)):
        with pytest.raises(NotOtlpError):
            read_response(complete[:end])


@pytest.mark.parametrize(("rejected", "count"), [(2, 2), (0, 0), (-1, 0)])
def test_a_message_that_is_not_utf8_does_not_hide_what_was_rejected(rejected, count):
    """A server that quotes half a character still says how many spans it rejected."""
    body = partial_success(rejected, "no room for 'caf??'").replace(b"??", b"\xc3?")

    assert read_response(body) == (count, "no room for 'caf\ufffd?'")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data):
    """Garbage never raises anything but our own error."""
    try:
        rejected, message = read_response(data)
    except NotOtlpError:
        return
    assert rejected >= 0
    message.encode()


def test_fields_from_the_future_are_skipped():
    """Unknown fields of a newer server are ignored."""
    future = b"\x10\x05" + b"\x19" + bytes(8) + b"\x25" + bytes(4) + b"\x2a\x02hi"

    assert read_response(future) == (0, "")


def test_nan_and_infinity_are_kept():
    """Infinity and NaN are legal in OTLP."""
    [arrived] = _decode(encode_request([TRACE], Given({}, {}, {"nan": math.nan, "inf": -math.inf})))[:1]
    attributes = _plain(arrived.attributes)

    assert math.isnan(attributes["own.nan"])
    assert attributes["own.inf"] == -math.inf


def test_messages_are_valid_json():
    """The content of a generation is valid JSON in the part format."""
    spans = _decode(encode_request([TRACE], NAMINGS["genai"]))
    messages = json.loads(_plain(spans[1].attributes)["gen_ai.output.messages"])

    assert [part["type"] for part in messages[0]["parts"]] == ["reasoning", "text", "tool_call"]


def _decode(body):
    request = ExportTraceServiceRequest.FromString(body)
    return [span for rs in request.resource_spans for ss in rs.scope_spans for span in ss.spans]


def _plain(attributes):
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in attributes}
