"""The verdicts over gRPC, against a real gRPC server."""

import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from google.protobuf.any_pb2 import Any
from google.rpc.error_details_pb2 import DebugInfo, RetryInfo
from google.rpc.status_pb2 import Status

from backends.samples import TRACE
from backends.servers import OK, GrpcServer, HttpServer, partial_success
from turnspan.backends import Answer, Verdict
from turnspan.backends.grpc_transport import read_status, retry_delay_s
from turnspan.backends.otlp import open_backend
from turnspan.errors import ConfigError

SECRET = "tOp-SeCrEt-token-1234567890"


def send(url, **settings):
    """Export one trace over gRPC."""
    given = {"endpoint": url, "protocol": "grpc", "timeout_s": 5, "headers": {"X-Key": SECRET}, "compression": "gzip"}
    given |= settings
    backend = open_backend(given, name="test", home=None)
    try:
        return backend.send(backend.encode([TRACE]))
    finally:
        backend.close()


def verdict_on(answer):
    """Return the verdict on this response."""
    with GrpcServer(answers=[answer]) as server:
        return send(server.url)


def abort(code, details="because", retry_s=None):
    """Return a response that ends the call with this status."""

    def answer(context):
        if retry_s is not None:
            info = RetryInfo()
            info.retry_delay.FromNanoseconds(int(retry_s * 1e9))
            packed = [Any(), Any()]
            packed[0].Pack(DebugInfo(detail="x"))
            packed[1].Pack(info)
            status = Status(code=code.value[0], message=details, details=packed)
            context.set_trailing_metadata((("grpc-status-details-bin", status.SerializeToString()),))
        context.abort(code, details)

    return answer


def test_acknowledged():
    """A successful call acknowledges."""
    assert verdict_on((0, "")) == Verdict(Answer.ACKNOWLEDGED)


def test_rejected_spans_are_counted_and_the_reason_is_kept():
    """A success that rejects spans is not a success."""
    assert verdict_on((3, "no room")) == Verdict(Answer.PARTIAL, "no room", rejected=3)
    assert verdict_on((0, "slow down")) == Verdict(Answer.ACKNOWLEDGED, "slow down")


@pytest.mark.parametrize(
    ("code", "answer"),
    [
        ("UNAUTHENTICATED", Answer.CREDENTIALS),
        ("PERMISSION_DENIED", Answer.CREDENTIALS),
        ("UNIMPLEMENTED", Answer.CONFIGURATION),
        ("NOT_FOUND", Answer.CONFIGURATION),
        ("INVALID_ARGUMENT", Answer.INVALID),
        ("UNAVAILABLE", Answer.LATER),
        ("DEADLINE_EXCEEDED", Answer.LATER),
        ("RESOURCE_EXHAUSTED", Answer.LATER),
        ("ABORTED", Answer.LATER),
        ("CANCELLED", Answer.LATER),
        ("DATA_LOSS", Answer.LATER),
        ("INTERNAL", Answer.LATER),
        ("UNKNOWN", Answer.LATER),
    ],
)
def test_each_status_has_its_verdict(code, answer):
    """A gRPC status means the same as its HTTP equivalent, and credentials are not quoted."""
    verdict = verdict_on(abort(grpc.StatusCode[code], f"key {SECRET} is bad"))

    assert verdict.answer is answer
    assert verdict.is_unknown == (answer is Answer.LATER and code != "RESOURCE_EXHAUSTED")
    assert SECRET not in verdict.reason
    assert code in verdict.reason


@pytest.mark.parametrize(("asked_s", "wait_s"), [(2.5, 2.5), (0, 0.0), (1e7, 3600.0), (None, None)])
@pytest.mark.parametrize("code", [grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE])
def test_retry_info_is_honoured(code, asked_s, wait_s):
    """The server's retry delay is honoured, up to an hour."""
    verdict = verdict_on(abort(code, retry_s=asked_s))

    assert (verdict.answer, verdict.retry_after_s) == (Answer.LATER, wait_s)


def test_a_status_with_invalid_details_has_no_delay():
    """Invalid details are ignored."""
    assert retry_delay_s(b"\x1a\x05abc") is None
    assert retry_delay_s(b"") is None
    assert retry_delay_s(b"\x08\x01") is None


@pytest.mark.parametrize(
    ("body", "verdict"),
    [
        pytest.param(
            partial_success(2, "caf??").replace(b"??", b"\xc3?"),
            Verdict(Answer.PARTIAL, "caf\ufffd?", rejected=2),
            id="text that is not UTF-8",
        ),
        pytest.param(b"\xff\xff", Verdict(Answer.LATER, "unreadable response", is_unknown=True), id="not a message"),
    ],
)
def test_a_response_is_read_as_over_http(body, verdict):
    """Rejected spans are counted even if the text is invalid; an unreadable response acknowledges nothing."""
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: body)
    server = grpc.server(ThreadPoolExecutor(1))
    service = "opentelemetry.proto.collector.trace.v1.TraceService"
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {"Export": handler}),))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        assert send(f"http://127.0.0.1:{port}") == verdict
    finally:
        server.stop(None).wait(5)


def test_a_message_over_the_servers_limit_is_too_large():
    """RESOURCE_EXHAUSTED about the size of the message means: split the request."""
    with GrpcServer(options=(("grpc.max_receive_message_length", 100),)) as server:
        assert send(server.url).answer is Answer.TOO_LARGE


def test_a_call_that_hangs_ends_at_the_deadline():
    """A call that hangs costs the timeout, and the batch may have been stored."""
    done = threading.Event()
    began = time.monotonic()
    with GrpcServer(answers=[lambda _context: done.wait(10)]) as server:
        verdict = send(server.url, timeout_s=0.3)
        done.set()

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, True)
    assert time.monotonic() - began < 5
    assert verdict.reason.startswith(f"gRPC DEADLINE_EXCEEDED: no answer from 127.0.0.1:{server.port} within 0.3 s")


def test_a_refused_connection_is_not_unknown():
    """Nothing was sent, so nothing can have been stored."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    verdict = send(f"http://127.0.0.1:{port}")

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)


def test_an_http_port_acknowledges_nothing():
    """Port 4318 instead of 4317 is an error."""
    with HttpServer(OK) as server:
        assert send(server.url).answer in (Answer.CONFIGURATION, Answer.LATER)


@pytest.mark.parametrize(
    ("code", "details", "answer"),
    [
        ("UNAVAILABLE", "Trying to connect an http1.x server", Answer.CONFIGURATION),
        ("UNKNOWN", "Received http2 header with status: 302", Answer.CONFIGURATION),
        ("UNKNOWN", "Received http2 header with status: 413", Answer.TOO_LARGE),
        ("RESOURCE_EXHAUSTED", "grpc: received message larger than max (9 vs. 4)", Answer.TOO_LARGE),
        ("UNAVAILABLE", "DNS resolution failed for x: y", Answer.LATER),
    ],
)
def test_the_details_decide_where_the_status_is_ambiguous(code, details, answer):
    """One gRPC status can be a transient failure or a permanent misconfiguration."""
    assert read_status(grpc.StatusCode[code], details, None, ()).answer is answer


def test_headers_are_metadata_and_proxies_of_the_environment_are_ignored(monkeypatch):
    """The call reaches the configured server directly, with the configured headers."""
    with HttpServer(OK) as trap, GrpcServer() as server:
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, trap.url)
        assert send(server.url).answer is Answer.ACKNOWLEDGED

        assert trap.requests == []
        assert server.metadata[0]["x-key"] == SECRET


def test_a_grpc_endpoint_has_no_path():
    """A path is a configuration error: gRPC would ignore it."""
    with pytest.raises(ConfigError, match="without a path"):
        open_backend({"endpoint": "http://localhost:4317/v1/traces", "protocol": "grpc"}, name="t", home=None)


@pytest.mark.parametrize(
    "broken",
    [
        pytest.param("sys.modules['grpc'] = None", id="missing"),
        pytest.param("sys.modules['grpc'] = types.ModuleType('grpc')", id="incomplete"),
        pytest.param("sys.modules['grpc._cython.cygrpc'] = None", id="without its compiled part"),
    ],
)
def test_a_missing_or_broken_grpc_is_a_configuration_error(broken):
    """Without a working grpcio there is a message with a hint instead of a traceback, and HTTP works."""
    program = f"""
import sys, types
{broken}
from turnspan.backends.otlp import open_backend
from turnspan.errors import ConfigError
open_backend({{"endpoint": "http://localhost:4318"}}, name="x", home=None)
try:
    open_backend({{"endpoint": "http://localhost:4317", "protocol": "grpc"}}, name="x", home=None)
except ConfigError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)

    assert done.stderr == ""
    assert done.stdout.startswith("cannot use gRPC for localhost:4317: the Python package grpcio is missing or broken")
    assert 'set protocol = "http/protobuf"' in done.stdout
