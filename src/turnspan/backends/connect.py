"""A connected socket, TLS, and the watchdog that ends an exchange at its deadline.

Written by hand: the standard library connects to one address after the other, each with the full timeout, so that a
dead IPv6 route uses up the deadline. asyncio does better, but importing it would add a sixth to the CPU of an event.

Rules:

- Names are looked up in a thread: the resolver has no deadline. `localhost` is never looked up.
- All addresses are tried, IPv6 and IPv4 in turn, each with a head start of a quarter second (RFC 8305).
- TLS verifies the chain and the host, with the given CA file or the system's store. Environment variables change
  nothing, because a project may have set them.
- A directory of hashed certificates is read on demand. Only without one is the system's bundle loaded (30 ms).
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import selectors
import socket
import ssl
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

if TYPE_CHECKING:
    from typing import Self

HEAD_START_S = 0.25

Address: TypeAlias = "tuple[socket.AddressFamily, tuple[str, int]]"  # for IPv6, flow and scope follow the port


class Watchdog:
    """Ends an exchange at its deadline: it shuts the socket down, and every operation on it fails."""

    def __init__(self, seconds: float) -> None:
        self.is_over = False
        self._at = time.monotonic() + seconds
        self._socket: socket.socket | None = None
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        _start(self._timer)
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        self._timer.join()  # it never sees a socket that is closed, or another one with its number

    def watch(self, sock: socket.socket) -> None:
        """Watch this socket from now on. Raises TimeoutError after the deadline."""
        self._socket = sock
        if self.is_over:
            raise TimeoutError("the deadline is over")

    def left_s(self) -> float:
        """Return the seconds left. Raises TimeoutError after the deadline."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the deadline is over")
        return left

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            # Not SSLSocket's own shutdown: it first switches TLS off, and what is being sent would go out unencrypted.
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _start(thread: threading.Thread) -> None:
    """Start a thread. Raises OSError if the system allows no more of them."""
    try:
        thread.start()
    except RuntimeError as exc:
        raise OSError(str(exc)) from exc


class Tls(msgspec.Struct, frozen=True):
    """The CA file to trust and our own certificate; empty for the system's store and for none."""

    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""


def open_socket(addresses: list[Address], watchdog: Watchdog) -> socket.socket:
    """Return a TCP socket that is connected to the first of these addresses to answer. Raises OSError."""
    sock = _connect(_in_turn(addresses), watchdog)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def is_readable(sock: socket.socket) -> bool:
    """Whether a read would not wait: there are bytes, or the other side has closed the connection."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def look_up(host: str, port: int, watchdog: Watchdog) -> list[Address]:
    """Return the addresses of a host. Raises OSError."""
    if host.lower() == "localhost":
        return [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port))]
    found: list[Address] = []
    failures: list[OSError] = []

    def ask() -> None:
        try:
            # As bytes: for text Python loads its IDNA tables first, and the host of a setting is ASCII.
            for family, _, _, _, address in socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM):
                found.append((family, cast("tuple[str, int]", address)))
        except OSError as exc:
            failures.append(exc)

    thread = threading.Thread(target=ask, daemon=True)
    _start(thread)
    thread.join(watchdog.left_s())
    if failures:
        why = failures[0].strerror or failures[0]
        raise OSError(f"the name {host} cannot be resolved: {why}") from failures[0]
    if not found:
        raise TimeoutError("the resolver did not answer")
    return found


def _in_turn(addresses: list[Address]) -> list[Address]:
    """Return the addresses with their families alternating, each family in its own order."""
    seen: dict[socket.AddressFamily, int] = {}
    ranked = []
    for address in addresses:
        rank = seen[address[0]] = seen.get(address[0], -1) + 1
        ranked.append((rank, address))
    return [address for _, address in sorted(ranked, key=lambda item: item[0])]


def _connect(addresses: list[Address], watchdog: Watchdog) -> socket.socket:
    """Return a socket that is connected to the first of these addresses to answer."""
    failure = OSError("no address")
    untried = list(addresses)
    with selectors.DefaultSelector() as selector:
        try:
            while untried or selector.get_map():
                if untried:
                    try:
                        selector.register(_begin(*untried.pop(0)), selectors.EVENT_WRITE)
                    except OSError as exc:
                        failure = exc
                        continue
                left_s = watchdog.left_s()
                for key, _ in selector.select(min(left_s, HEAD_START_S) if untried else left_s):
                    sock = key.fileobj
                    assert isinstance(sock, socket.socket)
                    selector.unregister(sock)
                    if (code := sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)) == 0:
                        return sock
                    failure = OSError(code, os.strerror(code))
                    sock.close()
            raise failure
        finally:
            for key in selector.get_map().values():
                assert isinstance(key.fileobj, socket.socket)
                key.fileobj.close()


def _begin(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    """Return a socket that is being connected. Raises OSError if that fails immediately."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


def tls_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for a handshake. Raises OSError (ssl.SSLError is one) if a certificate cannot be used."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    system = ssl.get_default_verify_paths()
    if tls.certificate:
        context.load_verify_locations(cafile=tls.certificate)
    elif _is_hashed(system.openssl_capath):
        context.load_verify_locations(capath=system.openssl_capath)
    elif Path(system.openssl_cafile).is_file():
        context.load_verify_locations(cafile=system.openssl_cafile)
    else:
        context.load_default_certs()
    if tls.client_certificate:
        # For an encrypted key OpenSSL would prompt on the terminal; an empty password makes it fail instead.
        context.load_cert_chain(tls.client_certificate, tls.client_key or None, password="")
    return context


def _is_hashed(directory: str) -> bool:
    """Whether OpenSSL can look certificates up in this directory by the hash of their subject."""
    try:
        with os.scandir(directory) as entries:
            return any(re.fullmatch(r"[0-9a-f]{8}\.[0-9]", entry.name) for entry in entries)
    except OSError:
        return False


def is_tls_refusal(failure: OSError) -> bool:
    """Whether TLS refused the connection, rather than the connection failed."""
    broke = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    return isinstance(failure, ssl.SSLError) and not isinstance(failure, broke)
