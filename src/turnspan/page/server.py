"""Serves the page and its records to a browser on this machine.

Rules:

- It listens on the loopback address and requires that address in the Host header, against DNS rebinding.
- Every path begins with a random key, new each time unless the user asks for a stable one. The browser is opened with
  a ticket instead, which works once: other users can read the arguments of a process.
- The page can load only its own files, run only its own script, and not be framed; it is not cached and sends no
  referrer.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import sys
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import chain
from pathlib import Path
from socketserver import ThreadingTCPServer
from typing import TYPE_CHECKING, Final
from urllib.parse import parse_qsl, quote, unquote

from turnspan.errors import ConfigError, TranscriptError, TurnspanError
from turnspan.page import overview_api
from turnspan.page.address import new_key
from turnspan.page.api import OpenSession, stamp_of_sessions
from turnspan.page.indexing import Indexing
from turnspan.source.sessions import all_sessions, each_once, is_safe_id, projects_dir

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.page.turns import Record
    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile

_PAGE: Final = Path(__file__).with_name("web")
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
}
_DOWNLOADS: Final = {"html": "text/html; charset=utf-8", "md": "text/markdown; charset=utf-8"}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "trusted-types sections; require-trusted-types-for 'script'",  # only one place of the script can make markup
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
_IMAGES: Final = "; img-src 'self'"  # added to the policy if the user wants to see images
_OURSELVES: Final = ("127.0.0.1", "localhost")
_SILENCE_S: Final = 30.0  # timeout of an idle connection
_TOGETHER_S: Final = 0.05  # a browser that gets ten thousand records one by one takes three times as long
_NUMBER: Final = re.compile(r"[0-9]{1,9}")

Query = Mapping[str, str]  # the parameters after "?", the first of each name


def _pulse(server: Viewer, _name: str, _query: Query) -> Iterable[Record]:
    return [{"is": "pulse", "stamp": stamp_of_sessions(projects_dir(server.config.claude_home))}]


def _session(server: Viewer, name: str, query: Query) -> Iterable[Record]:
    since = _number(query, "since")
    if since is None:
        return server.session(name).records()
    return server.session(name).records_since(since, query.get("trace", ""), query.get("stamp", ""))


def _turns(server: Viewer, name: str, query: Query) -> Iterable[Record] | None:
    first, last = _number(query, "from"), _number(query, "to")
    return None if first is None or last is None else server.session(name).turn_records(first, last)


def _trace(server: Viewer, name: str, query: Query) -> Iterable[Record] | None:
    at = _number(query, "at")
    return None if at is None else [server.session(name).trace_record(at, query.get("trace", ""))]


def _chat(server: Viewer, name: str, query: Query) -> Iterable[Record] | None:
    at = _number(query, "at")
    return None if at is None else [server.session(name).chat_record(at, query.get("trace", ""))]


def _span(server: Viewer, name: str, query: Query) -> Iterable[Record] | None:
    at = _number(query, "at")
    if at is None:
        return None
    wanted = query.get("trace", ""), query.get("span", "")
    return [server.session(name).span_record(at, *wanted, is_full="full" in query)]


def _number(query: Query, name: str) -> int | None:
    """Return a parameter as a number; None if it is not one."""
    text = query.get(name, "")
    return int(text) if _NUMBER.fullmatch(text) else None


# The records of a path: its first part is the name of the route, the rest is passed to it. None is "not found".
_ROUTES: Final[Mapping[str, Callable[[Viewer, str, Query], Iterable[Record] | None]]] = {
    **overview_api.ROUTES,
    "pulse": _pulse,
    "session": _session,
    "turns": _turns,
    "trace": _trace,
    "chat": _chat,
    "span": _span,
}


class Viewer(ThreadingTCPServer):
    """Serves the page until it is closed. Not an `HTTPServer`, which looks up its own name in DNS."""

    daemon_threads = True
    allow_reuse_address = sys.platform != "win32"  # there it would let another program take over the port
    request_queue_size = 32

    def __init__(
        self,
        config: Config,
        destination: Destination,
        *,
        port: int = 0,
        key: str = "",
        limit: int = 100,
        project: str | None = None,
    ) -> None:
        try:
            super().__init__(("127.0.0.1", port), _Request)
        except OSError as error:
            hint = "use another --port, or omit it to pick a free one"
            raise ConfigError(f"cannot listen on port {port}: {error.strerror}", hint=hint) from error
        self.config = config
        self.destination = destination
        self.indexing = Indexing(config, destination)
        self.limit = limit
        self.project = project
        self.key = key or new_key()
        self._ticket: str | None = None
        self._lock = threading.Lock()
        self._sessions: dict[str, OpenSession] = {}
        self.files = {
            path.relative_to(_PAGE).as_posix(): path for path in _PAGE.rglob("*") if path.suffix in _TYPES
        }  # only these are served

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self.server_address[1])

    @property
    def url(self) -> str:
        """The URL of the page, with the key."""
        return f"http://127.0.0.1:{self.port}/{self.key}/"

    def ticket_url(self) -> str:
        """A URL that redirects to the page once."""
        self._ticket = secrets.token_urlsafe(24)
        return f"http://127.0.0.1:{self.port}/open/{self._ticket}"

    def takes(self, ticket: str) -> bool:
        """Whether this is the ticket; it is then used up."""
        with self._lock:
            is_valid = self._ticket is not None and hmac.compare_digest(ticket.encode(), self._ticket.encode())
            self._ticket = None if is_valid else self._ticket
        return is_valid

    def put(self, session: SessionFile) -> str:
        """Register a session, wherever its file is; return the fragment of its URL."""
        self._sessions[session.session_id] = OpenSession(session, self.config, self.destination)
        return f"#/s/{quote(session.session_id, safe='')}"

    def session(self, session_id: str) -> OpenSession:
        """The session with this id. Raises TranscriptError; only an id is accepted, never a path."""
        with self._lock:
            if session_id not in self._sessions:
                if not is_safe_id(session_id):
                    raise TranscriptError("that is not a session id")
                found = each_once(
                    s for s in all_sessions(projects_dir(self.config.claude_home)) if s.session_id == session_id
                )
                if not found:
                    raise TranscriptError(f"unknown session {session_id!r}", hint="its file may have been deleted")
                self.put(found[0])
            return self._sessions[session_id]


class _Request(BaseHTTPRequestHandler):
    server: Viewer
    server_version = "turnspan"
    sys_version = ""
    timeout = _SILENCE_S

    def do_GET(self) -> None:
        """Answer one request."""
        path, _, query = self.path.partition("?")
        key, _, rest = path.lstrip("/").partition("/")
        host, _, port = self.headers.get("Host", "").rpartition(":")
        if host not in _OURSELVES or not port.isdecimal():
            self._refuse(HTTPStatus.FORBIDDEN)
        elif key == "open" and self.server.takes(rest):
            self._begin(HTTPStatus.SEE_OTHER, Location=f"/{self.server.key}/")
        elif not hmac.compare_digest(key.encode(), self.server.key.encode()):
            self._refuse(HTTPStatus.NOT_FOUND)
        elif (file := self.server.files.get(rest or "page.html")) is not None:
            self._begin(HTTPStatus.OK, **{"Content-Type": _TYPES[file.suffix]})
            self.wfile.write(file.read_bytes())
        else:
            self._answer(unquote(rest), dict(parse_qsl(query, keep_blank_values=True)))

    def _answer(self, what: str, query: Query) -> None:
        route, _, name = what.partition("/")
        if route == "export":
            self._download(name)
            return
        if route == "image":
            self._image(name, query)
            return
        try:
            records = _ROUTES[route](self.server, name, query) if route in _ROUTES else None
        except TurnspanError as error:
            records = [_error_record(error)]
        if records is None:
            self._refuse(HTTPStatus.NOT_FOUND)
        else:
            self._stream(records)

    def _download(self, name: str) -> None:
        """Send a session as one file."""
        session, _, form = name.rpartition(".")
        if form not in _DOWNLOADS:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        try:
            pieces = self.server.session(session).exported(form)
            first = next(pieces)
        except TurnspanError:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        saved_as = f'attachment; filename="{quote(session[:8], safe="")}.{form}"'
        self._begin(HTTPStatus.OK, **{"Content-Type": _DOWNLOADS[form], "Content-Disposition": saved_as})
        for piece in chain((first,), pieces):
            self.wfile.write(piece.encode("utf-8", "replace"))

    def _image(self, name: str, query: Query) -> None:
        """Send an image of a span."""
        at, number = _number(query, "at"), _number(query, "number")
        image = None
        with suppress(TurnspanError):
            if at is not None and number is not None:
                image = self.server.session(name).image(at, query.get("trace", ""), query.get("span", ""), number)
        if image is None:
            self._refuse(HTTPStatus.NOT_FOUND)
            return
        self._begin(HTTPStatus.OK, **{"Content-Type": image.mime, "Content-Security-Policy": "default-src 'none'"})
        self.wfile.write(image.data)

    def _stream(self, records: Iterable[Record]) -> None:
        """Send each record as one line: the first at once, later ones together with those that soon follow."""
        self._begin(HTTPStatus.OK, **{"Content-Type": "application/x-ndjson; charset=utf-8"})
        lines: list[bytes] = []
        due_s = 0.0
        try:
            for record in records:
                lines.append(json.dumps(record, separators=(",", ":")).encode())
                if time.monotonic() >= due_s:
                    self.wfile.write(b"\n".join((*lines, b"")))
                    lines.clear()
                    due_s = time.monotonic() + _TOGETHER_S
        except TurnspanError as error:
            lines.append(json.dumps(_error_record(error)).encode())
        self.wfile.write(b"\n".join((*lines, b"")) if lines else b"")

    def _refuse(self, status: HTTPStatus) -> None:
        self._begin(status, **{"Content-Type": "text/plain; charset=utf-8"})
        self.wfile.write(f"{status.phrase}\n".encode())

    def _begin(self, status: HTTPStatus, **headers: str) -> None:
        self.send_response(status)
        own = dict(_HEADERS)
        if self.server.config.values["view_images"]:
            own["Content-Security-Policy"] += _IMAGES
        for name, value in (own | headers).items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Log nothing: paths contain the key."""

    def handle(self) -> None:
        """Serve a connection; a browser that closes it is not an error."""
        try:
            super().handle()
        except (ConnectionError, TimeoutError):
            self.close_connection = True


def _error_record(error: TurnspanError) -> Record:
    return {"is": "error", "text": str(error.args[0]), "hint": error.hint}
