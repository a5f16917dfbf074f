"""TLS is always verified, over HTTP and over gRPC; a failure is a configuration error."""

import contextlib
import socket
import ssl
import subprocess
import threading
import time
from pathlib import Path

import grpc
import pytest

from backends.samples import TRACE
from backends.servers import OK, GrpcServer, HttpServer, reply
from turnspan.backends import Answer
from turnspan.backends.connect import Tls, tls_context
from turnspan.backends.otlp import open_backend
from turnspan.errors import ConfigError


def send(url, protocol="http/protobuf", **settings):
    """Export one trace to this URL."""
    backend = open_backend({"endpoint": url, "protocol": protocol, "timeout_s": 5, **settings}, name="test", home=None)
    try:
        return backend.send(backend.encode([TRACE]))
    finally:
        backend.close()


@contextlib.contextmanager
def https(certificates, pair, **changes):
    """Run an HTTPS server with this certificate."""
    context = certificates.server_context(*pair)
    for name, value in changes.items():
        setattr(context, name, value)
    with HttpServer(OK, tls=context) as server:
        yield server


@contextlib.contextmanager
def grpcs(certificates, pair, *, asks_for_client=False):
    """Run a gRPC server with this certificate."""
    chain, key = (Path(path).read_bytes() for path in pair)
    root = Path(certificates.ca).read_bytes() if asks_for_client else None
    with GrpcServer(credentials=grpc.ssl_server_credentials([(key, chain)], root, asks_for_client)) as server:
        yield server


SERVERS = {"http/protobuf": https, "grpc": grpcs}


@pytest.fixture(params=SERVERS)
def protocol(request):
    """Return each protocol in turn."""
    return request.param


def test_the_configured_authority_is_trusted(certificates, protocol):
    """A collector with a private certificate works if its CA is configured."""
    with SERVERS[protocol](certificates, certificates.sign("good")) as server:
        assert send(server.url, protocol, certificate=certificates.ca).answer is Answer.ACKNOWLEDGED
        assert len(server.requests) == 1


def test_an_unknown_authority_is_refused(certificates, protocol):
    """Nothing is sent to a server whose certificate is signed by an unknown CA."""
    with SERVERS[protocol](certificates, certificates.sign("unknown")) as server:
        verdict = send(server.url, protocol)

        assert verdict.answer is Answer.CONFIGURATION
        assert server.requests == []


def test_an_expired_certificate_is_refused(certificates, protocol):
    """Nothing is sent to a server whose certificate has expired."""
    try:
        pair = certificates.sign("expired", days=-1)
    except subprocess.CalledProcessError:
        pytest.skip("this openssl makes no expired certificates")
    with SERVERS[protocol](certificates, pair) as server:
        verdict = send(server.url, protocol, certificate=certificates.ca)

        assert verdict.answer is Answer.CONFIGURATION
        assert server.requests == []


def test_a_certificate_for_another_host_is_refused(certificates, protocol):
    """Nothing is sent to a server whose certificate names another host."""
    with SERVERS[protocol](certificates, certificates.sign("other", host="other.example")) as server:
        verdict = send(server.url, protocol, certificate=certificates.ca)

        assert verdict.answer is Answer.CONFIGURATION
        assert server.requests == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_an_old_protocol_is_refused(certificates):
    """TLS 1.1 is refused."""
    pair = certificates.sign("old")
    with https(
        certificates, pair, minimum_version=ssl.TLSVersion.TLSv1, maximum_version=ssl.TLSVersion.TLSv1_1
    ) as server:
        verdict = send(server.url, certificate=certificates.ca)

        assert verdict.answer is Answer.CONFIGURATION
        assert server.requests == []


def test_https_is_never_downgraded_to_plain_text(protocol):
    """With an https URL nothing is sent unencrypted, even if the port is plain text."""
    with HttpServer(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as server:
        verdict = send(server.url.replace("http:", "https:"), protocol)

        assert verdict.answer in (Answer.CONFIGURATION, Answer.LATER)
        assert all(TRACE.trace_id not in request.body for request in server.requests)


def test_a_client_certificate_is_presented_on_request(certificates, protocol):
    """Mutual TLS works with a client certificate and key, and fails without."""
    pair = certificates.sign("mutual")
    own, own_key = certificates.sign("client", host="client")
    if protocol == "grpc":
        opened = grpcs(certificates, pair, asks_for_client=True)
    else:
        context = certificates.server_context(*pair)
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(certificates.ca)
        opened = HttpServer(OK, tls=context)
    with opened as server:
        shown = {"certificate": certificates.ca, "client_certificate": own, "client_key": own_key}

        assert send(server.url, protocol, **shown).answer is Answer.ACKNOWLEDGED
        refused = send(server.url, protocol, certificate=certificates.ca)
        assert refused.answer in (Answer.CONFIGURATION, Answer.LATER)
        assert len(server.requests) == 1


def test_an_encrypted_key_does_not_prompt_on_the_terminal(certificates, tmp_path):
    """An encrypted client key is a configuration error, not a prompt."""
    own, own_key = certificates.sign("locked", host="client")
    locked = tmp_path / "locked.key"
    subprocess.run(
        ["openssl", "ec", "-in", own_key, "-aes256", "-passout", "pass:x", "-out", str(locked)],
        check=True,
        capture_output=True,
        timeout=30,
    )
    with https(certificates, certificates.sign("lockedserver")) as server:
        settings = {"certificate": certificates.ca, "client_certificate": own, "client_key": str(locked)}

        assert send(server.url, **settings).answer is Answer.CONFIGURATION


def test_an_invalid_certificate_file_is_reported(certificates, tmp_path):
    """A missing file is an error when the backend is opened, an invalid one when it is first used."""
    with pytest.raises(ConfigError, match=r"certificate.*nowhere\.pem.*file"):
        open_backend({"endpoint": "https://localhost", "certificate": "nowhere.pem"}, name="test", home=None)
    garbage = tmp_path / "garbage.pem"
    garbage.write_text("hello")
    with https(certificates, certificates.sign("garbage")) as server:
        assert send(server.url, certificate=str(garbage)).answer is Answer.CONFIGURATION


def test_a_reset_during_the_handshake_is_later(certificates):
    """A server that is restarting is retried later."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            connection.recv(10)
            connection.close()

        thread = threading.Thread(target=serve)
        thread.start()
        verdict = send(f"https://localhost:{listener.getsockname()[1]}", certificate=certificates.ca)
        thread.join(5)

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)


def test_a_handshake_that_hangs_ends_at_the_deadline():
    """A port that accepts the connection and sends nothing costs the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        verdict = send(f"https://localhost:{listener.getsockname()[1]}", timeout_s=0.3)

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)


@pytest.mark.parametrize("has_proxy", [False, True])
def test_a_dripping_server_cannot_extend_the_deadline_over_tls(certificates, has_proxy):
    """The deadline ends an encrypted connection as well, direct or through a proxy."""
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(https(certificates, certificates.sign(f"drip{has_proxy}")))
        server.answers[:] = [_drip(server.closing)]
        settings = {"certificate": certificates.ca, "timeout_s": 0.5}
        if has_proxy:
            settings["proxy"] = stack.enter_context(HttpServer(_tunnel_to(server))).url
        began = time.monotonic()
        verdict = send(server.url, **settings)

        assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, True)
        assert verdict.reason.endswith("within 0.5 s, still waiting for its answer")
        assert time.monotonic() - began < 3
        assert len(server.requests) == 1


def test_a_dripping_proxy_cannot_extend_the_deadline():
    """A proxy that never completes its response costs the timeout; nothing was sent to the server."""
    with HttpServer() as proxy:
        proxy.answers[:] = [_drip(proxy.closing)]
        verdict = send("https://localhost:1", proxy=proxy.url, timeout_s=0.4)

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, False)
    assert verdict.reason.endswith("within 0.4 s, still waiting for the proxy")


@pytest.mark.parametrize("size", [0, 20_000_000])
def test_nothing_is_sent_unencrypted_when_the_deadline_cuts_an_upload(certificates, size):
    """The rest of an upload that the deadline interrupts is never sent in plain text."""
    received = bytearray()
    context = certificates.server_context(*certificates.sign(f"upload{size}"))
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            connection, _ = listener.accept()
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = context.wrap_bio(incoming, outgoing, server_side=True)
            with connection, contextlib.suppress(OSError):
                while True:
                    try:
                        tls.do_handshake()
                        break
                    except ssl.SSLWantReadError:
                        connection.sendall(outgoing.read())
                        received.extend(data := connection.recv(65536))
                        incoming.write(data)
                connection.sendall(outgoing.read())
                done.wait(10)  # it reads nothing until the client has given up
                while data := connection.recv(1 << 20):
                    received.extend(data)

        done = threading.Event()
        thread = threading.Thread(target=serve)
        thread.start()
        given = {"endpoint": f"https://localhost:{listener.getsockname()[1]}", "certificate": certificates.ca}
        limits = {"compression": "none", "timeout_s": 0.4, "max_request_bytes": 50_000_000}
        backend = open_backend({**given, **limits}, name="test", home=None)
        verdict = backend.send(b"plaintext" * (size // 9 + 1))
        done.set()
        thread.join(10)
        backend.close()

    assert (verdict.answer, verdict.is_unknown) == (Answer.LATER, size == 0)
    assert received
    assert b"plaintext" not in received


def _drip(closing):
    """Return a response of one byte at a time, without end."""

    def answer(connection, _request):
        for byte in b"HTTP/1.1 200 OK\r\nX-Padding: " + b"x" * 10_000:
            connection.sendall(bytes((byte,)))
            if closing.wait(0.02):
                return

    return answer


def test_environment_variables_add_no_trust(certificates, monkeypatch):
    """A project that sets SSL_CERT_FILE cannot make turnspan trust its proxy."""
    monkeypatch.setenv("SSL_CERT_FILE", certificates.ca)
    monkeypatch.setenv("SSL_CERT_DIR", str(Path(certificates.ca).parent))
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", certificates.ca)
    paths = ssl.get_default_verify_paths()
    if not (Path(paths.openssl_capath).is_dir() or Path(paths.openssl_cafile).is_file()):
        pytest.skip("no system store but the environment's")
    with https(certificates, certificates.sign("env")) as server:
        assert send(server.url).answer is Answer.CONFIGURATION


def test_hashed_certificates_are_read_on_demand():
    """If the system's store is a directory of hashed certificates, none is loaded in advance."""
    paths = ssl.get_default_verify_paths()
    if not any(Path(paths.openssl_capath).glob("[0-9a-f]*.0")):
        pytest.skip("no hashed certificates here")

    assert tls_context(Tls()).get_ca_certs() == []


def _tunnel_to(server):
    """Return a proxy that connects to `server`, whatever the requested target."""

    def answer(connection, request):
        assert request.method == "CONNECT"
        with socket.create_connection(("127.0.0.1", server.port)) as target:
            connection.sendall(b"HTTP/1.1 200 Connection established\r\n\r\n")
            back = threading.Thread(target=_pump, args=(target, connection), daemon=True)
            back.start()
            _pump(connection, target)
            back.join(5)

    return answer


def _pump(source, sink):
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
        sink.shutdown(socket.SHUT_WR)


def test_https_goes_through_a_tunnel_of_the_proxy(certificates):
    """The proxy sees the target, but neither the content nor the credentials for the server."""
    with https(certificates, certificates.sign("tunnel")) as server, HttpServer(_tunnel_to(server)) as proxy:
        settings = {"certificate": certificates.ca, "headers": {"Authorization": "Bearer my-secret-token"}}
        address = proxy.url.replace("//", "//me:password@")
        verdict = send(server.url, proxy=address, **settings)

        assert verdict.answer is Answer.ACKNOWLEDGED
        assert proxy.requests[0].path == f"localhost:{server.port}"
        assert proxy.requests[0].headers["proxy-authorization"] == "Basic bWU6cGFzc3dvcmQ="
        assert "authorization" not in proxy.requests[0].headers
        assert "proxy-authorization" not in server.requests[0].headers
        assert len(server.requests[0].spans) == len(TRACE.spans)


@pytest.mark.parametrize(
    ("status", "answer"),
    [(407, Answer.CREDENTIALS), (403, Answer.CREDENTIALS), (502, Answer.LATER), (302, Answer.CONFIGURATION)],
)
def test_a_refusal_of_the_proxy_is_reported_as_such(status, answer):
    """The reason names the proxy, without its password."""
    with HttpServer(reply(status)) as proxy:
        verdict = send("https://localhost:1", proxy=proxy.url.replace("//", "//me:sesame-open@"))

    assert verdict.answer is answer
    assert "proxy" in verdict.reason
    assert "sesame" not in verdict.reason


def test_a_proxy_of_the_environment_is_used_only_if_configured(monkeypatch):
    """HTTPS_PROXY and NO_PROXY are ignored unless proxy_from_env is set."""
    with HttpServer(reply(502)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", proxy.url)
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        send("https://traces.invalid", timeout_s=2)
        assert proxy.requests == []

        send("https://traces.invalid", timeout_s=2, proxy_from_env=True)
        assert [request.path for request in proxy.requests] == ["traces.invalid:443"]

        monkeypatch.setenv("NO_PROXY", "example.org,.invalid")
        send("https://traces.invalid", timeout_s=2, proxy_from_env=True)
        assert len(proxy.requests) == 1
