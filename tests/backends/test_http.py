"""The verdict on every kind of HTTP response, and on none, against real servers on loopback."""

import contextlib
import email.utils
import gzip
import re
import signal
import socket
import threading
import time

import pytest

from backends.samples import TRACE, small_trace
from backends.servers import OK, HttpServer, partial_success, reply, reset
from turnspan.backends import Answer, Verdict, connect
from turnspan.backends.connect import Watchdog, open_socket
from turnspan.backends.http_transport import packed
from turnspan.backends.otlp import open_backend

SECRET = "tOp-SeCrEt-token-1234567890"
HEADERS = {"Authorization": f"Bearer {SECRET}", "X-Tenant": "blue"}
PROTOBUF = "application/x-protobuf"


def send(server, **settings):
    """Export one trace to this server."""
    backend = open_backend(
        {"endpoint": server.url, "headers": HEADERS, "timeout_s": 5.0, "compression": "gzip", **settings},
        name="test",
        home=None,
    )
    try:
        return backend.send(backend.encode([TRACE]))
    finally:
        backend.close()


def verdict_on(*answers, **settings):
    """Return the verdict on these responses."""
    with HttpServer(*answers) as server:
        return send(server, **settings)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(OK, id="200 empty"),
        pytest.param(reply(202, b"", PROTOBUF), id="202 empty"),
        pytest.param(b"HTTP/1.1 204 No Content\r\n\r\n", id="204"),
        pytest.param(reply(200, b"{}", "application/json"), id="json"),
        pytest.param(reply(200, b'{"partialSuccess":{}}', "application/json"), id="empty partial success"),
        pytest.param(reply(200, b'{"partialSuccess":null,"x":1}', "application/json; charset=utf-8"), id="null"),
        pytest.param(reply(200, partial_success(0, ""), PROTOBUF), id="protobuf"),
        pytest.param(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", id="chunked"),
        pytest.param(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", id="after 100"),
        pytest.param(
            b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
            id="after 103 and 100",
        ),
    ],
)
def test_acknowledged(answer):
    """Only a 2xx with a valid OTLP body, or with an empty one, acknowledges."""
    assert verdict_on(answer) == Verdict(Answer.ACKNOWLEDGED)


def test_a_response_without_a_length_ends_with_the_connection():
    """HTTP/1.0 servers mark the end of a response by closing the connection."""

    def answer(connection, _request):
        connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
        connection.close()

    assert verdict_on(answer).answer is Answer.ACKNOWLEDGED


@pytest.mark.parametrize(
    "body",
    [
        pytest.param((partial_success(2, "no room"), PROTOBUF), id="protobuf"),
        pytest.param(
            (b'{"partialSuccess":{"rejectedSpans":"2","errorMessage":"no room"}}', "application/json"), id="json text"
        ),
        pytest.param(
            (b'{"partialSuccess":{"rejectedSpans":2,"errorMessage":"no room"}}', "application/json"), id="json number"
        ),
    ],
)
def test_rejected_spans_are_counted_and_the_reason_is_kept(body):
    """A success that rejects spans is not a success."""
    assert verdict_on(reply(200, *body)) == Verdict(Answer.PARTIAL, "no room", rejected=2)


def test_a_warning_is_not_a_rejection():
    """partial_success with no rejected span acknowledges; its message is kept."""
    assert verdict_on(reply(200, partial_success(0, "slow down"), PROTOBUF)) == Verdict(
        Answer.ACKNOWLEDGED, "slow down"
    )


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply(200, b"<!DOCTYPE html><p>Log in", "text/html"), id="portal"),
        pytest.param(reply(200, b"\n <html>", PROTOBUF), id="portal that lies"),
        pytest.param(reply(200, b"OK, thanks", "text/plain"), id="words"),
        pytest.param(reply(404, b"not found"), id="404"),
        pytest.param(reply(405), id="405"),
        pytest.param(reply(415), id="415"),
        pytest.param(reply(300), id="300"),
        pytest.param(b"SSH-2.0-OpenSSH_9.2\r\n", id="ssh"),
        pytest.param(bytes((0, 0, 18, 4, 0, 0, 0, 0, 0, 0, 3)), id="http2"),
        pytest.param(b"HTTP/2 200\r\n\r\n", id="no http/1"),
    ],
)
def test_configuration(answer):
    """A server that is not an OTLP endpoint acknowledges nothing; the user must change the configuration."""
    assert verdict_on(answer).answer is Answer.CONFIGURATION


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
@pytest.mark.parametrize("is_same_host", [True, False])
def test_a_redirect_is_never_followed(status, is_same_host):
    """Credentials are sent to the configured host only, and a redirect acknowledges nothing."""
    with HttpServer(OK) as elsewhere, HttpServer() as server:
        target = server.url if is_same_host else elsewhere.url
        server.answers[:] = [reply(status, Location=f"{target}/v1/traces?token=abc"), OK]
        verdict = send(server)

        assert verdict.answer is Answer.CONFIGURATION
        assert target in verdict.reason
        assert "token" not in verdict.reason
        assert len(server.requests) == 1
        assert elsewhere.requests == []


@pytest.mark.parametrize("status", [401, 403])
def test_credentials(status):
    """Rejected credentials have a verdict of their own, which quotes the server but not the key."""
    verdict = verdict_on(reply(status, f'{{"message":"bad key {SECRET}"}}'.encode(), "application/json"))

    assert verdict.answer is Answer.CREDENTIALS
    assert "bad key ***" in verdict.reason
    assert SECRET not in verdict.reason


@pytest.mark.parametrize("status", [408, 425, 429, 500, 502, 503, 504, 599])
def test_later(status):
    """Transient errors are retried; after a server error the batch may have been stored."""
    verdict = verdict_on(reply(status, b"busy", "text/plain"))

    assert (verdict.answer, verdict.retry_after_s) == (Answer.LATER, None)
    assert verdict.is_unknown == (status not in (425, 429))


@pytest.mark.parametrize(
    ("header", "wait_s"),
    [
        ("7", 7.0),
        ("0", 0.0),
        ("5000", 3600.0),
        ("1000000000", 3600.0),
        ("9" * 40, 3600.0),
        ("soon", None),
        ("-5", None),
        ("1.5", None),
    ],
)
@pytest.mark.parametrize("status", [429, 503])
def test_retry_after_in_seconds(status, header, wait_s):
    """The server's Retry-After is honoured, up to an hour; an invalid one is ignored."""
    assert verdict_on(reply(status, Retry_After=header)).retry_after_s == wait_s


@pytest.mark.parametrize(("ahead_s", "least", "most"), [(90, 80, 90), (-90, 0, 0), (10**8, 3600, 3600)])
def test_retry_after_as_a_date(ahead_s, least, most):
    """Retry-After may be a date."""
    date = email.utils.formatdate(time.time() + ahead_s, usegmt=True)

    assert least <= verdict_on(reply(429, Retry_After=date)).retry_after_s <= most


def test_a_date_that_does_not_exist_is_ignored():
    """An invalid date causes no wait."""
    assert verdict_on(reply(429, Retry_After="Mon, 99 Foo 99999 99:99:99 GMT")).retry_after_s is None


def test_too_large():
    """413 means: split the request."""
    assert verdict_on(reply(413)).answer is Answer.TOO_LARGE


def test_a_request_over_our_own_limit_is_not_sent():
    """A request over max_request_bytes is to be split, without asking the server."""
    with HttpServer() as server:
        backend = open_backend({"endpoint": server.url, "max_request_bytes": 10_000}, name="test", home=None)

        assert backend.max_request_bytes == 10_000
        assert backend.send(b"x" * 10_001).answer is Answer.TOO_LARGE
        assert server.requests == []


@pytest.mark.parametrize("is_polite", [True, False])
def test_a_response_before_the_end_of_the_request_is_read(is_polite):
    """A 413 during the upload counts, even if the server then resets the connection."""

    def serve(connection):
        connection.recv(1000)
        connection.sendall(reply(413, Connection="close"))
        if is_polite:
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    with _raw_server(serve) as url:
        assert _send_bulk(url).answer is Answer.TOO_LARGE


def test_a_server_that_does_not_read_cannot_extend_the_deadline():
    """The deadline covers the upload; a request that was not received was not stored."""
    done = threading.Event()
    began = time.monotonic()
    with _raw_server(lambda _connection: done.wait(10)) as url:
        verdict = _send_bulk(url, timeout_s=0.4)
        done.set()

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)
    assert "within 0.4 s" in verdict.reason
    assert time.monotonic() - began < 3


@contextlib.contextmanager
def _raw_server(serve):
    """Run a server that calls `serve` with its first connection, then closes it."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept():
            connection, _ = listener.accept()
            with connection:
                serve(connection)

        thread = threading.Thread(target=accept)
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def _send_bulk(url, **settings):
    """Send more than the buffers of a connection can hold."""
    given = {"endpoint": url, "compression": "none", "timeout_s": 5, "max_request_bytes": 50_000_000, **settings}
    backend = open_backend(given, name="test", home=None)
    try:
        return backend.send(bytes(20_000_000))
    finally:
        backend.close()


@pytest.mark.parametrize("status", [400, 422])
def test_invalid(status):
    """A request that the server calls invalid is to be bisected."""
    verdict = verdict_on(reply(status, b'{"message":"invalid span id"}', "application/json"))

    assert verdict.answer is Answer.INVALID
    assert "invalid span id" in verdict.reason


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(reply(200, partial_success(5, "abc")[:-1], PROTOBUF), id="cut protobuf"),
        pytest.param(reply(200, b'{"partialSuccess":{"rejec', "application/json"), id="cut json"),
        pytest.param(reply(200, b'{"partialSuccess":{"rejectedSpans":"many"}}', "application/json"), id="words"),
        pytest.param(reply(200, b'{"partialSuccess":7}', "application/json"), id="wrong type"),
    ],
)
def test_an_unreadable_success_is_unknown(answer):
    """A 200 with an unreadable body neither acknowledges nor rejects."""
    verdict = verdict_on(answer)

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, True)


def _then_close(data):
    def answer(connection, _request):
        connection.sendall(data)
        connection.shutdown(socket.SHUT_RDWR)  # now: Python forgets a descriptor before the system has closed it
        connection.close()

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_then_close(b""), id="closed without a response"),
        pytest.param(reset, id="reset"),
        pytest.param(_then_close(b"HTTP/1.1 200 O"), id="cut in the status line"),
        pytest.param(_then_close(b"HTTP/1.1 200 OK\r\nContent-Le"), id="cut in a header"),
        pytest.param(_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}"), id="cut in the body"),
        pytest.param(_then_close(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n"), id="cut before the empty line"),
        pytest.param(_then_close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n{}"), id="cut in a chunk"),
        pytest.param(_then_close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), id="cut before a chunk"),
        pytest.param(
            _then_close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"), id="cut in the trailer"
        ),
    ],
)
def test_a_connection_that_breaks_after_sending_is_unknown(answer):
    """The server may have stored the request: the verdict says so, and the transport does not retry."""
    with HttpServer(answer) as server:
        verdict = send(server)

        assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, True)
        assert len(server.requests) == 1


def test_a_refused_connection_is_not_unknown():
    """Nothing was sent, so nothing can have been stored."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    backend = open_backend({"endpoint": f"http://127.0.0.1:{port}"}, name="test", home=None)
    verdict = backend.send(b"x")

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)
    assert str(port) in verdict.reason


def test_a_name_that_does_not_resolve_is_later():
    """Without a network, the export is retried later."""
    backend = open_backend({"endpoint": "https://nowhere.invalid", "timeout_s": 5}, name="test", home=None)
    verdict = backend.send(b"x")

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)
    assert re.search(r"the name nowhere\.invalid cannot be resolved: \w", verdict.reason)


@pytest.mark.parametrize(
    ("answer", "scheme", "why"),
    [
        (None, "http", "{} cannot be reached: Connection refused"),
        (reset, "http", "no answer from {}: Connection reset by peer"),
        (_then_close(b""), "http", "no answer from {}: it closed the connection"),
        (
            _then_close(b"HTTP/1.1 200 OK\r\nContent-Le"),
            "http",
            "no answer from {}: it closed the connection in the middle of its answer",
        ),
        ("silence", "http", "no answer from {} within 0.3 s, still waiting for its answer"),
        ("silence", "https", "no answer from {} within 0.3 s, still in the TLS handshake"),
    ],
)
def test_the_reason_says_why_there_is_no_response(answer, scheme, why):
    """Refused, reset, closed or silent, and in which step: the user must do something different for each."""
    with HttpServer(answer) if callable(answer) else socket.create_server(("127.0.0.1", 0)) as server:
        port = server.port if callable(answer) else server.getsockname()[1]
        if answer is None:
            server.close()
        endpoint = f"{scheme}://127.0.0.1:{port}"
        backend = open_backend(
            {"endpoint": endpoint, "timeout_s": 0.3 if answer == "silence" else 10}, name="test", home=None
        )
        assert backend.send(b"x").reason == why.format(f"127.0.0.1:{port}")


def _hang(connection, _request):
    while connection.recv(1000):
        pass


def _hang_after(data):
    def answer(connection, request):
        connection.sendall(data)
        _hang(connection, request)

    return answer


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(_hang, id="silence"),
        pytest.param(_hang_after(b"HTTP/1.1 "), id="half a status line"),
        pytest.param(_hang_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n"), id="half the headers"),
        pytest.param(_hang_after(b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{"), id="half the body"),
        pytest.param(_hang_after(b"HTTP/1.1 200 OK\r\n\r\n"), id="a body that only a close would end"),
        pytest.param(_hang_after(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"), id="no chunk"),
        pytest.param(_hang_after(b"HTTP/1.1 100 Continue\r\n\r\n"), id="an interim response"),
    ],
)
def test_silence_ends_at_the_deadline(answer):
    """A server that stops sending costs at most the timeout."""
    began = time.monotonic()
    verdict = verdict_on(answer, timeout_s=0.3)

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, True)
    assert time.monotonic() - began < 3


def test_a_status_counts_even_if_its_body_hangs():
    """A 401 is a 401 even if the rest of the response never comes."""
    answer = _hang_after(b"HTTP/1.1 401 No\r\nContent-Length: 1000\r\n\r\nsorry")

    assert verdict_on(answer, timeout_s=0.3).answer is Answer.CREDENTIALS


def test_a_dripping_server_cannot_extend_the_deadline():
    """Sending a byte now and then does not keep a connection alive beyond the timeout."""
    with HttpServer() as server:

        def drip(connection, _request):
            for byte in b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 10_000:
                connection.sendall(bytes((byte,)))
                if server.closing.wait(0.02):
                    return

        server.answers[:] = [drip]
        began = time.monotonic()
        verdict = send(server, timeout_s=0.5)

        assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, True)
        assert time.monotonic() - began < 3


def test_a_resolver_that_hangs_ends_at_the_deadline(monkeypatch):
    """The deadline covers the name lookup."""
    done = threading.Event()
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_args, **_options: done.wait(10) and [])
    backend = open_backend({"endpoint": "https://traces.example", "timeout_s": 0.3}, name="test", home=None)
    began = time.monotonic()
    verdict = backend.send(b"x")
    done.set()

    assert verdict == Verdict(Answer.LATER, "no answer from traces.example within 0.3 s, still looking up its name")
    assert time.monotonic() - began < 3


def test_an_exchange_leaves_no_thread_behind():
    """Processes are forked between two requests: no watchdog may be running then."""
    with HttpServer(OK, _then_close(b""), OK) as server:
        backend = open_backend({"endpoint": server.url}, name="test", home=None)
        for _ in range(3):
            backend.send(b"x")
            assert not [thread for thread in threading.enumerate() if isinstance(thread, threading.Timer)]
        backend.close()


def test_a_system_without_threads_to_spare_is_later(monkeypatch):
    """At the limit of threads the export is retried later; nothing was sent."""

    def refuse(_thread):
        raise RuntimeError("can't start new thread")

    backend = open_backend({"endpoint": "http://127.0.0.1:1"}, name="test", home=None)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    verdict = backend.send(b"x")

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)
    assert "can't start new thread" in verdict.reason


def test_an_interrupted_exchange_does_not_answer_the_next():
    """After Ctrl-C in the middle of an exchange the next request gets a connection of its own."""

    def interrupt(connection, _request):
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{")
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with HttpServer(interrupt, reply(401)) as server:
        backend = open_backend({"endpoint": server.url, "timeout_s": 10}, name="test", home=None)
        with pytest.raises(KeyboardInterrupt):
            backend.send(b"one")

        assert backend.send(b"two").answer is Answer.CREDENTIALS
        assert [request.connection for request in server.requests] == [1, 2]
        backend.close()


@pytest.mark.parametrize("framing", ["Content-Length: 1000000000", "X: y", "Transfer-Encoding: chunked"])
@pytest.mark.parametrize(("filler", "answer"), [(b"\0", Answer.LATER), (b"<", Answer.CONFIGURATION)])
def test_an_endless_response_is_not_read_to_its_end(framing, filler, answer):
    """At most 4 MiB of a response are read."""
    sent = []

    def flood(connection, _request):
        connection.sendall(f"HTTP/1.1 200 OK\r\n{framing}\r\n\r\n".encode())
        chunk = filler * 65536
        if "chunked" in framing:
            chunk = b"10000\r\n" + chunk + b"\r\n"
        for _ in range(16_000):
            connection.sendall(chunk)
            sent.append(len(chunk))

    verdict = verdict_on(flood)

    assert verdict.answer is answer
    assert sum(sent) < 30_000_000


def test_endless_headers_are_not_read():
    """A response with more than a hundred headers is not taken for HTTP."""
    assert verdict_on(b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 20_000).answer is Answer.CONFIGURATION


def test_the_request_follows_otlp():
    """It is a POST of gzip-compressed protobuf with the configured headers, to the path below the base URL."""
    with HttpServer() as server:
        send(server)
        send(server, endpoint=f"{server.url}/base/")
        send(server, endpoint=f"{server.url}/x/v1/traces", compression="none")
        first, second, third = server.requests

    assert (first.method, first.path) == ("POST", "/v1/traces")
    assert second.path == "/base/v1/traces"
    assert third.path == "/x/v1/traces"
    assert first.headers["content-type"] == "application/x-protobuf"
    assert first.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in third.headers
    assert first.headers["authorization"] == f"Bearer {SECRET}"
    assert first.headers["x-tenant"] == "blue"
    assert first.headers["host"] == f"127.0.0.1:{server.port}"
    assert re.match(r"turnspan/\d", first.headers["user-agent"])
    assert first.body == third.body


def test_requests_to_this_machine_are_not_compressed_by_default():
    """Compression takes CPU time and saves nothing there, unless there is a proxy, which may run anywhere."""
    with HttpServer() as server:
        send(server, compression="auto")
        send(server, compression="auto", proxy=server.url)
        direct, by_proxy = server.requests

    assert "content-encoding" not in direct.headers
    assert by_proxy.headers["content-encoding"] == "gzip"
    assert direct.body == by_proxy.body


def test_a_connection_serves_several_requests():
    """Ten batches use one connection."""
    with HttpServer() as server:
        backend = open_backend({"endpoint": server.url}, name="test", home=None)
        for n in range(10):
            assert backend.send(backend.encode([small_trace(n)])).answer is Answer.ACKNOWLEDGED
        backend.close()

        assert {request.connection for request in server.requests} == {1}


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(reply(200, Connection="close"), id="said close"),
        pytest.param(_then_close(OK), id="closed silently"),
        pytest.param(_then_close(reply(503)), id="after an error"),
    ],
)
def test_a_closed_connection_is_replaced(first):
    """No request is lost if the server closes the connection between two of them."""
    with HttpServer(first, OK) as server:
        backend = open_backend({"endpoint": server.url}, name="test", home=None)
        backend.send(b"one")
        if callable(first):
            server.wait_for_close(0)
        second = backend.send(b"two")
        backend.close()

        assert second.answer is Answer.ACKNOWLEDGED
        assert [request.body for request in server.requests] == [b"one", b"two"]


def test_the_environment_and_the_home_directory_change_nothing(tmp_path, monkeypatch):
    """Proxy and OTEL_* variables and ~/.netrc change neither the target nor the content of a request."""
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login evil password evil\n")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("HOME", str(tmp_path))
    with HttpServer() as trap, HttpServer() as server:
        for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, trap.url)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "authorization=evil,x-evil=1")
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", trap.url)
        monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
        monkeypatch.setenv("OTEL_TRACES_SAMPLER", "always_off")
        monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "evil=1")
        monkeypatch.setenv("OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT", "1")
        assert send(server).answer is Answer.ACKNOWLEDGED
        [request] = server.requests

        assert trap.requests == []
        assert request.headers["authorization"] == f"Bearer {SECRET}"
        assert "x-evil" not in request.headers
        assert len(request.spans) == len(TRACE.spans)
        assert "evil" not in request.spans[0]["resource"]


def test_a_configured_proxy_is_used():
    """Plain http to this machine goes through a proxy on this machine, with the proxy's credentials."""
    with HttpServer() as proxy:
        port = proxy.url.rpartition(":")[2]
        verdict = send(
            proxy,
            endpoint="http://127.0.0.1:9",
            proxy=f"http://me:pass%20word@127.0.0.1:{port}",
        )
        [request] = proxy.requests

    assert verdict.answer is Answer.ACKNOWLEDGED
    assert request.path == "http://127.0.0.1:9/v1/traces"
    assert request.headers["proxy-authorization"] == "Basic bWU6cGFzcyB3b3Jk"


def test_localhost_is_reached_over_ipv4_and_ipv6():
    """A server that listens only on ::1, or only on 127.0.0.1, is reached as localhost."""
    if not socket.has_ipv6:
        pytest.skip("no IPv6 here")
    try:
        server = HttpServer(host="::1")
    except OSError:
        pytest.skip("no IPv6 loopback here")
    with server, HttpServer() as other:
        for each in (server, other):
            assert send(each, endpoint=f"http://localhost:{each.port}").answer is Answer.ACKNOWLEDGED
        assert send(server, endpoint=f"http://[::1]:{server.port}").answer is Answer.ACKNOWLEDGED
        assert server.requests[1].headers["host"] == f"[::1]:{server.port}"


def test_a_dead_address_costs_a_head_start_only():
    """If the first address drops packets, the second is tried after a quarter second."""
    with socket.create_server(("127.0.0.1", 0)) as alive, socket.socket() as full:
        # A listener whose queue is full does not answer, like a dead route.
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        blockers = []
        for _ in range(4):
            blocker = socket.socket()
            blocker.setblocking(False)
            blocker.connect_ex(full.getsockname())
            blockers.append(blocker)
        began = time.monotonic()
        addresses = [(socket.AF_INET, full.getsockname()), (socket.AF_INET, alive.getsockname())]
        sock = open_socket(addresses, Watchdog(5))
        taken = time.monotonic() - began
        port = sock.getpeername()[1]
        for each in (sock, *blockers):
            each.close()

        assert port == alive.getsockname()[1]
        assert taken < 1.0


def test_families_take_turns():
    """IPv6 and IPv4 addresses are tried alternately."""
    six, four = socket.AF_INET6, socket.AF_INET
    addresses = [(six, "a"), (six, "b"), (six, "c"), (four, "d"), (four, "e")]

    assert connect._in_turn(addresses) == [(six, "a"), (four, "d"), (six, "b"), (four, "e"), (six, "c")]


def test_a_deadline_that_has_passed_stops_before_connecting():
    """After the deadline no connection is attempted."""
    with socket.create_server(("127.0.0.1", 0)) as listener, pytest.raises(TimeoutError):
        open_socket([(socket.AF_INET, listener.getsockname())], Watchdog(-1))


@pytest.mark.parametrize("status", [200, 302, 400, 401, 403, 404, 413, 422, 429, 500])
def test_no_reason_holds_a_credential(status):
    """Credentials that a server echoes are removed from the reason."""
    echo = f"you sent Bearer {SECRET} and {SECRET}\x1b[31m\n".encode()
    verdict = verdict_on(reply(status, echo, "text/plain", Location=f"http://u:{SECRET}@127.0.0.1/{SECRET}"))

    assert SECRET not in verdict.reason
    assert "\x1b" not in verdict.reason
    assert "\n" not in verdict.reason


def test_a_backend_shows_no_credential():
    """The repr of a backend, as in a traceback, has no credentials."""
    backend = open_backend(
        {"endpoint": "https://example.org", "headers": HEADERS, "proxy": f"http://me:{SECRET}@127.0.0.1:1"},
        name="test",
        home=None,
    )

    assert SECRET not in repr(backend) + repr(vars(backend)) + repr(backend._transport._proxy)


def test_a_large_request_is_compressed_by_whatever_is_installed():
    """Small and large bodies are valid gzip, with ISA-L (`turnspan[fast]`) or without it; the content is the same."""
    for size in (0, 100, 70_000, 3_000_000):
        body = bytes(range(256)) * (size // 256 + 1)
        assert gzip.decompress(packed(body)) == body
