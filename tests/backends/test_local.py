import base64
import json
import multiprocessing
import os
import signal
import stat

import msgspec
import pytest
from google.protobuf.json_format import Parse
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from backends.samples import TRACE, sdk_spans, small_trace, traces_of, wild_texts
from backends.samples import texts as clean_texts
from turnspan.backends import Answer, Verdict
from turnspan.backends.genai import GenAI
from turnspan.backends.local import LocalBackend, open_backend, read_spans
from turnspan.backends.local_files import write_all
from turnspan.backends.otlp_json import decode_line, encode_lines
from turnspan.backends.settings import Capture
from turnspan.errors import ConfigError
from turnspan.files import kernel_lock

SPELLING = GenAI(Capture(tags=("a",)))
ACKNOWLEDGED = Verdict(Answer.ACKNOWLEDGED)


def open_in(home, **settings):
    """Open a backend, as another process would."""
    return open_backend(settings, name="local", home=home)


def send(backend, *traces):
    """Send traces that must be acknowledged."""
    verdict = backend.send(backend.encode(traces))
    assert verdict == ACKNOWLEDGED
    return backend


def names_in(directory):
    """Return the span names that a reader finds."""
    return [span["name"] for span in read_spans(directory)]


def raw_spans(directory):
    """Return all spans of all complete lines with repeats, as a collector would see them."""
    return [
        (span["trace_id"], span["span_id"])
        for path in sorted(directory.glob("*.jsonl"))
        for line in path.read_bytes().splitlines()
        for span in decode_line(line)
    ]


def as_protobuf(line):
    """Return a line as protobuf, by Google's own JSON parser; only the ids differ from its JSON."""
    request = json.loads(line)
    for resource_spans in request["resourceSpans"]:
        for scope_spans in resource_spans["scopeSpans"]:
            for span in scope_spans["spans"]:
                for each in (span, *span.get("links", ())):
                    for key in ("traceId", "spanId", "parentSpanId"):
                        if key in each:
                            each[key] = base64.b64encode(bytes.fromhex(each[key])).decode()
    return Parse(json.dumps(request), ExportTraceServiceRequest())


@settings(max_examples=30, deadline=None)
@given(trace=traces_of(clean_texts).filter(lambda trace: trace.spans))
def test_a_line_is_the_same_request_as_the_sdks(trace):
    """Read by protobuf's own JSON parser, a line is what the SDK would have sent."""
    [line] = encode_lines([trace], SPELLING).splitlines()

    assert as_protobuf(line) == encode_spans(sdk_spans([trace], SPELLING))


@settings(max_examples=30, deadline=None)
@given(traces=st.lists(traces_of(wild_texts), max_size=3))
def test_any_trace_is_one_line_and_is_read_again(traces):
    """For any text, a trace stays one line and every span is read again."""
    body = encode_lines(traces, SPELLING)
    lines = body.split(b"\n")
    expected = [span.span_id.hex() for trace in traces for span in trace.spans]

    assert lines.pop() == b""
    assert len(lines) == sum(1 for trace in traces if trace.spans)
    assert [span["span_id"] for line in lines for span in decode_line(line)] == expected
    assert body == encode_lines(traces, SPELLING)


def test_the_encoding_rules_of_otlp_json():
    """Hexadecimal ids, camelCase, 64-bit integers as strings, enums as numbers."""
    span = json.loads(encode_lines([TRACE], SPELLING))["resourceSpans"][0]["scopeSpans"][0]["spans"][1]
    values = {item["key"]: item["value"] for item in span["attributes"]}

    assert span["traceId"] == TRACE.trace_id.hex()
    assert span["parentSpanId"] == b"turn.001".hex()
    assert span["kind"] == 3
    assert span["startTimeUnixNano"] == str(TRACE.spans[1].start_ns)
    assert values["gen_ai.usage.output_tokens"] == {"intValue": "70"}
    assert values["turnspan.cost.usd"] == {"doubleValue": 0.0625}
    assert values["gen_ai.response.finish_reasons"] == {"arrayValue": {"values": [{"stringValue": "tool_call"}]}}


def test_spans_are_read_as_they_were_written(tmp_path):
    """A reader gets plain values: ids, times, parents, attributes, status, links."""
    send(open_in(tmp_path), TRACE)
    turn, generation, tool, *_ = read_spans(tmp_path / "traces")

    assert turn["trace_id"] == TRACE.trace_id.hex()
    assert turn["parent_span_id"] == ""
    assert turn["links"][0]["attributes"] == {"turnspan.link.relation": "previous_turn"}
    assert turn["attributes"]["turnspan.interrupted"] is True
    assert (generation["start_ns"], generation["end_ns"]) == (TRACE.spans[1].start_ns, TRACE.spans[1].end_ns)
    assert generation["attributes"]["gen_ai.usage.output_tokens"] == 70
    assert generation["attributes"]["gen_ai.response.finish_reasons"] == ["tool_call"]
    assert (tool["status"], tool["status_message"]) == (2, "exit code 1")
    assert tool["resource"]["service.version"] == "2.1.325"


def test_files_belong_to_their_owner_alone(tmp_path):
    """Transcripts hold secrets: no other user may read them."""
    send(open_in(tmp_path), TRACE)

    assert stat.S_IMODE((tmp_path / "traces").stat().st_mode) == 0o700
    for path in (tmp_path / "traces").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_trace_that_is_sent_again_is_not_written_again(tmp_path):
    """Killed between writing and committing, a worker sends the same again: the file holds it once."""
    directory = tmp_path / "traces"
    send(open_in(tmp_path), small_trace(1), small_trace(2))
    for n in range(3, 30):
        send(open_in(tmp_path), small_trace(n))
    before = raw_spans(directory)
    send(open_in(tmp_path), small_trace(2), small_trace(1))
    send(send(open_in(tmp_path), small_trace(5)), small_trace(6))

    assert raw_spans(directory) == before
    assert len(before) == len(set(before)) == 29


def test_late_spans_of_a_trace_are_written_without_the_old_ones(tmp_path):
    """A background agent's spans arrive after their turn; only the new ones are written."""
    backend = open_in(tmp_path)
    early = msgspec.structs.replace(TRACE, spans=TRACE.spans[:2])
    late = msgspec.structs.replace(TRACE, spans=TRACE.spans[2:])
    send(backend, early)
    send(backend, late)
    send(open_in(tmp_path), TRACE)
    both = msgspec.structs.replace(
        TRACE, spans=(TRACE.spans[0], msgspec.structs.replace(TRACE.spans[1], span_id=b"new.0001"))
    )
    send(open_in(tmp_path), both)
    spans = raw_spans(tmp_path / "traces")

    assert len(spans) == len(set(spans)) == len(TRACE.spans) + 1


@pytest.mark.parametrize("cut", [1, 2, 10, 200, 400])
def test_half_a_line_of_a_killed_writer_is_skipped(tmp_path, cut):
    """The next trace starts on a line of its own, the cut one is written again, and readers skip the rest."""
    directory = tmp_path / "traces"
    send(open_in(tmp_path), small_trace(1))
    send(open_in(tmp_path), small_trace(2))
    file = directory / "traces-000001.jsonl"
    size = file.stat().st_size
    os.truncate(file, size - cut)
    send(open_in(tmp_path), small_trace(3))
    send(open_in(tmp_path), small_trace(2))

    assert sorted(names_in(directory)) == ["Turn 1", "Turn 2", "Turn 3"]
    assert sorted(raw_spans(directory)) == sorted(set(raw_spans(directory)))


@pytest.mark.parametrize("index_size", [0, 1, 23, 24, 25, 48])
def test_an_index_cut_anywhere_loses_nothing(tmp_path, index_size):
    """A trace missing in the index is at worst written twice, and read once."""
    directory = tmp_path / "traces"
    send(open_in(tmp_path), small_trace(1), small_trace(2))
    os.truncate(directory / "traces-000001.index", index_size)
    send(open_in(tmp_path), small_trace(2), small_trace(3))
    send(open_in(tmp_path), small_trace(3))

    assert sorted(names_in(directory)) == ["Turn 1", "Turn 2", "Turn 3"]
    assert raw_spans(directory).count((small_trace(3).trace_id.hex(), small_trace(3).spans[0].span_id.hex())) == 1


def test_an_index_record_without_its_line_does_not_count(tmp_path):
    """Killed after the index and before the line, a trace is not taken for stored."""
    directory = tmp_path / "traces"
    send(open_in(tmp_path), small_trace(1))
    size = (directory / "traces-000001.jsonl").stat().st_size
    send(open_in(tmp_path), small_trace(2))
    os.truncate(directory / "traces-000001.jsonl", size)
    # In its place comes another trace, whose span happens to look the same.
    send(open_in(tmp_path), msgspec.structs.replace(small_trace(3), spans=small_trace(2).spans))
    send(open_in(tmp_path), small_trace(2))

    assert [span["trace_id"] for span in read_spans(directory)] == [small_trace(n).trace_id.hex() for n in (1, 3, 2)]


def test_a_reader_drops_repeats_after_a_lost_index(tmp_path):
    """Without the index a trace may be in the file twice; a reader returns it once."""
    directory = tmp_path / "traces"
    send(open_in(tmp_path), TRACE)
    (directory / "traces-000001.index").unlink()
    send(open_in(tmp_path), TRACE)

    assert len(raw_spans(directory)) == 2 * len(TRACE.spans)
    assert len(list(read_spans(directory))) == len(TRACE.spans)


@pytest.mark.parametrize(
    ("intact", "damaged"),
    [
        (b'"traceId":"', b'"traceId":"q'),
        (b'"spanId":"', b'"spanId":"zz'),
        (b'"spanId":"', b'"spanId":"00'),
        (b'"startTimeUnixNano":"', b'"startTimeUnixNano":"x'),
        (b'"intValue":"', b'"intValue":"x'),
    ],
)
def test_a_damaged_line_is_as_good_as_none(tmp_path, intact, damaged):
    """An editor or a bad disk changed an id or a number: the rest is read, and the trace is written again."""
    send(open_in(tmp_path), small_trace(1), TRACE, small_trace(2))
    path = tmp_path / "traces" / "traces-000001.jsonl"
    first, line, last = path.read_bytes().splitlines(keepends=True)
    assert intact in line
    path.write_bytes(first + line.replace(intact, damaged, 1) + last)
    others = {small_trace(n).trace_id.hex() for n in (1, 2)}
    assert {span["trace_id"] for span in read_spans(tmp_path / "traces")} == others
    send(open_in(tmp_path), TRACE)
    assert {span["trace_id"] for span in read_spans(tmp_path / "traces")} == {*others, TRACE.trace_id.hex()}


def test_files_rotate_and_none_is_deleted_by_default(tmp_path):
    """A full file is never written again; a trace in it is still found."""
    directory = tmp_path / "traces"
    backend = open_in(tmp_path, max_file_bytes=1_000)
    for n in range(10):
        send(backend, small_trace(n))
    first = (directory / "traces-000001.jsonl").read_bytes()
    for n in range(10):
        send(open_in(tmp_path, max_file_bytes=1_000), small_trace(n))

    assert len(list(directory.glob("*.jsonl"))) > 3
    assert (directory / "traces-000001.jsonl").read_bytes() == first
    assert names_in(directory) == [f"Turn {n}" for n in range(10)]
    assert len(raw_spans(directory)) == 10


def test_old_files_are_deleted_with_max_files(tmp_path):
    """The newest files are kept, with their indexes."""
    directory = tmp_path / "traces"
    backend = open_in(tmp_path, max_file_bytes=1_000, max_files=2)
    for n in range(10):
        send(backend, small_trace(n))

    assert len(list(directory.glob("*.jsonl"))) == len(list(directory.glob("*.index"))) == 2
    assert names_in(directory)[-1] == "Turn 9"


def _send_many(home, numbers):
    backend = open_in(home)
    for n in numbers:
        send(backend, small_trace(n))


def test_many_writers_at_once_lose_and_repeat_nothing(tmp_path):
    """Sessions that stop together, and one that is sent by two workers, end up in the files once each."""
    fork = multiprocessing.get_context("fork")
    writers = [fork.Process(target=_send_many, args=(tmp_path, range(k, k + 20))) for k in (0, 10, 20, 30)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(30)
        assert writer.exitcode == 0
    spans = raw_spans(tmp_path / "traces")

    assert len(spans) == len(set(spans)) == 50


def test_a_directory_that_cannot_be_written_is_configuration(tmp_path):
    """A file where the directory should be is a mistake for the user to correct."""
    (tmp_path / "traces").write_text("")

    assert open_in(tmp_path).send(b"{}\n").answer is Answer.CONFIGURATION


def test_waiting_for_another_writer_has_a_limit(tmp_path):
    """While another process holds the lock nothing is written, and nothing is acknowledged."""
    send(open_in(tmp_path), small_trace(1))
    capture = Capture()
    sizes = {"max_request_bytes": 10**6, "max_file_bytes": 10**6, "max_files": None}
    backend = LocalBackend("local", tmp_path / "traces", capture, **sizes, lock_wait_s=0.05)
    with kernel_lock(tmp_path / "traces" / ".lock", 1):
        verdict = backend.send(backend.encode([small_trace(2)]))

    assert verdict.answer is Answer.LATER
    assert names_in(tmp_path / "traces") == ["Turn 1"]


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path):
    """A symlink cannot make us append to another file."""
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (tmp_path / "traces").mkdir()
    (tmp_path / "traces" / "traces-000001.jsonl").symlink_to(victim)
    backend = open_in(tmp_path)

    assert backend.send(backend.encode([TRACE])).answer is Answer.CONFIGURATION
    assert victim.read_text() == "precious"


def test_a_full_disk_is_later_and_leaves_no_half_line(tmp_path):
    """Nothing is acknowledged that was not written, and the file stays as it was."""
    resource = pytest.importorskip("resource", reason="a limit on file sizes simulates the full disk")

    def run():
        backend = open_in(tmp_path)
        send(backend, small_trace(1))
        size = (tmp_path / "traces" / "traces-000001.jsonl").stat().st_size
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 100, size + 100))
        verdict = backend.send(backend.encode([small_trace(2)]))
        assert verdict.answer is Answer.LATER
        assert (tmp_path / "traces" / "traces-000001.jsonl").stat().st_size == size

    child = multiprocessing.get_context("fork").Process(target=run)
    child.start()
    child.join(30)

    assert child.exitcode == 0
    send(open_in(tmp_path), small_trace(2))
    assert names_in(tmp_path / "traces") == ["Turn 1", "Turn 2"]


def test_settings(tmp_path):
    """The directory can be set; an invalid value is an error with a sentence."""
    send(open_in(tmp_path, directory=str(tmp_path / "else")), small_trace(1))

    assert names_in(tmp_path / "else") == ["Turn 1"]
    assert names_in(tmp_path / "nowhere") == []
    for settings_ in ({"max_files": 0}, {"max_file_bytes": "big"}, {"directory": ""}, {"endpoint": "x"}):
        with pytest.raises(ConfigError, match="destination local: "):
            open_in(tmp_path, **settings_)
    assert open_in(tmp_path).send(b"x" * 4_000_000).answer is Answer.TOO_LARGE


def test_several_requests_are_stored_together(tmp_path):
    """They are stored with one sync, each trace on its line; one that is stored already is not written again."""
    backend = open_in(tmp_path)
    bodies = [backend.encode([small_trace(number)]) for number in range(1, 4)]
    send(backend, small_trace(2))
    assert backend.send_all(bodies) == ACKNOWLEDGED
    assert backend.send_all([]) == ACKNOWLEDGED
    found = raw_spans(tmp_path / "traces")
    assert len(found) == len(set(found)) == sum(len(small_trace(number).spans) for number in range(1, 4))


@pytest.mark.skipif(not hasattr(os, "writev"), reason="the system has no writev")
@pytest.mark.parametrize("accepted", [0, 1, 3, 4, 7, 9])
def test_the_rest_of_a_partial_write_is_written(tmp_path, monkeypatch, accepted):
    """A system may accept only some of the bytes: none is lost, and none is written twice."""
    monkeypatch.setattr(os, "writev", lambda file, parts: os.write(file, b"".join(parts)[:accepted]))
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        write_all(file, b"", b"abcd", b"", b"efg", b"hi")
    finally:
        os.close(file)
    assert (tmp_path / "file").read_bytes() == b"abcdefghi"


def test_more_parts_than_one_call_takes(tmp_path):
    """A group of any number of requests is written completely."""
    parts = [f"{number}\n".encode() for number in range(3000)]
    file = os.open(tmp_path / "file", os.O_WRONLY | os.O_CREAT)
    try:
        write_all(file, *parts)
    finally:
        os.close(file)
    assert (tmp_path / "file").read_bytes() == b"".join(parts)
