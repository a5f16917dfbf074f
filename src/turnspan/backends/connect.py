"""A connected socket, encrypted where the endpoint says so, within a deadline.

Rules:

- Names are looked up in a thread of its own: the resolver knows no deadline. `localhost` is never looked up.
- All addresses are tried, IPv6 and IPv4 in turn, each with a head start of a quarter second (RFC 8305): one dead family
  costs no more than that.
- TLS verifies the chain and the host, from the given CA file or the system's own store. Variables of the environment
  change nothing, for a project may have set them.
- A directory of hashed certificates is read on demand; only where there is none is the whole bundle loaded (30 ms).
"""

from __future__ import annotations

import errno
import os
import re
import selectors
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, cast

import msgspec

if TYPE_CHECKING:
    import ssl

HEAD_START_S = 0.25

Address: TypeAlias = "tuple[socket.AddressFamily, tuple[str, int]]"  # for IPv6, flow and scope follow the port


class Deadline:
    """A moment by which all must be done."""

    def __init__(self, seconds: float) -> None:
        self._at = time.monotonic() + seconds

    def left_s(self) -> float:
        """The seconds left; raises TimeoutError when there are none."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError("the time is up")
        return left


class Tls(msgspec.Struct, frozen=True):
    """Whose certificates to trust, and our own; empty for the system's store and for none."""

    certificate: str = ""
    client_certificate: str = ""
    client_key: str = ""


def open_socket(host: str, port: int, deadline: Deadline) -> socket.socket:
    """A connected TCP socket. Raises OSError."""
    sock = _connect(_in_turn(_look_up(host, port, deadline)), deadline)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def is_readable(sock: socket.socket) -> bool:
    """Whether a read would not wait: there are bytes, or the other side has closed."""
    with selectors.DefaultSelector() as selector:
        selector.register(sock, selectors.EVENT_READ)
        return bool(selector.select(0))


def _look_up(host: str, port: int, deadline: Deadline) -> list[Address]:
    if host.lower() == "localhost":
        return [(socket.AF_INET, ("127.0.0.1", port)), (socket.AF_INET6, ("::1", port))]
    found: list[Address] = []
    failures: list[OSError | UnicodeError] = []

    def ask() -> None:
        try:
            # As bytes: for text Python loads its IDNA tables first, and a setting's host is ASCII.
            for family, _, _, _, address in socket.getaddrinfo(host.encode(), port, type=socket.SOCK_STREAM):
                found.append((family, cast("tuple[str, int]", address)))
        except (OSError, UnicodeError) as exc:
            failures.append(exc)

    if ":" in host or host.replace(".", "").isdecimal():  # an address: nobody has to be asked
        ask()
    else:
        import threading  # noqa: PLC0415  most destinations of an event are on this machine

        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        thread.join(deadline.left_s())
    if failures:
        why = getattr(failures[0], "strerror", None) or failures[0]
        raise OSError(f"the name {host} cannot be resolved: {why}") from failures[0]
    if not found:
        raise OSError(f"the name {host} cannot be resolved: nobody answered in time")
    return found


def _in_turn(addresses: list[Address]) -> list[Address]:
    """The families alternating, the first one first, each in its own order."""
    seen: dict[socket.AddressFamily, int] = {}
    ranked = []
    for address in addresses:
        rank = seen[address[0]] = seen.get(address[0], -1) + 1
        ranked.append((rank, address))
    return [address for _, address in sorted(ranked, key=lambda item: item[0])]


def _connect(addresses: list[Address], deadline: Deadline) -> socket.socket:
    """The first of these that answers."""
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
                left_s = deadline.left_s()
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
    """A socket on its way to be connected. Raises OSError when it is clear at once that it will not be."""
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setblocking(False)
    code = sock.connect_ex(address)
    if code not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
        sock.close()
        raise OSError(code, os.strerror(code))
    return sock


def tls_context(tls: Tls) -> ssl.SSLContext:
    """What a handshake needs. Raises OSError (ssl.SSLError is one) when a certificate cannot be used."""
    import ssl  # noqa: PLC0415 - plain http does not pay for it

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
        # An encrypted key would make OpenSSL ask on the terminal; an empty password makes it fail instead.
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
    """Whether this is TLS saying no, rather than a connection that broke."""
    import ssl  # noqa: PLC0415 - plain http does not pay for it

    broke = ssl.SSLEOFError | ssl.SSLZeroReturnError | ssl.SSLSyscallError
    return isinstance(failure, ssl.SSLError) and not isinstance(failure, broke)
