"""What Langfuse is asked and told besides traces: how it is, whose project it is, and what to forget.

Rules:

- The same keys, certificates and proxy as for traces, the same deadline, and no redirect is followed.
- Health needs no keys, so none are sent with it: a server that is not Langfuse shall not see them.
- What cannot be done is a BackendError, a sentence without anything secret.
"""

from __future__ import annotations

import base64
import time
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from turnspan.backends.http_transport import HttpTransport, NoAnswerError
from turnspan.backends.langfuse import KNOWN
from turnspan.backends.otlp import open_transport
from turnspan.backends.settings import Settings
from turnspan.backends.verdicts import read_verdict
from turnspan.errors import BackendError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.backends.verdicts import Response
    from turnspan.settings.config import Destination

T = TypeVar("T")

REGIONS: Final = ("https://cloud.langfuse.com", "https://us.cloud.langfuse.com", "https://hipaa.cloud.langfuse.com")
_DELETED_AT_ONCE: Final = 500
_MAX_PAGES: Final = 500


class Health(msgspec.Struct, frozen=True):
    """What a server says about itself."""

    version: str
    status: str = ""


class Project(msgspec.Struct, frozen=True, rename="camel"):
    """The project that the keys belong to."""

    id: str
    name: str = ""
    retention_days: int | None = None


class _Projects(msgspec.Struct, frozen=True):
    data: list[Project]


class _Observation(msgspec.Struct, frozen=True, rename="camel"):
    trace_id: str | None = None


class _Trace(msgspec.Struct, frozen=True):
    id: str


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    cursor: str | None = None
    total_pages: int = 0


class _Observations(msgspec.Struct, frozen=True):
    data: list[_Observation]
    meta: _Meta = _Meta()


class _Traces(msgspec.Struct, frozen=True):
    data: list[_Trace]
    meta: _Meta = _Meta()


class LangfuseApi:
    """One Langfuse project."""

    def __init__(self, destination: Destination) -> None:
        read = Settings(destination.options, name=destination.name, known=KNOWN)
        endpoint = read.endpoint("base_url")
        pair = ":".join(read.text(key, is_secret=True) for key in ("public_key", "secret_key"))
        credentials = base64.b64encode(pair.encode()).decode()
        transport = open_transport(read, endpoint, {}, "http/protobuf")
        assert isinstance(transport, HttpTransport)
        self._http = transport
        self._base = endpoint.path.rstrip("/")
        self._headers = {**read.headers(), "Authorization": f"Basic {credentials}"}
        self._secrets = (*self._headers.values(), credentials, pair, *pair.split(":", 1))

    def close(self) -> None:
        """Let go of the connection."""
        self._http.close()

    def ask_health(self) -> Response:
        """The answer to whether the server is well. Raises NoAnswerError."""
        return self._http.exchange("GET", f"{self._base}/api/public/health", {})

    def project(self) -> Project:
        """Whose keys these are. Raises BackendError."""
        found = self._get("/api/public/projects", _Projects).data
        if not found:
            raise BackendError("Langfuse names no project for these keys")
        return found[0]

    def traces_of(self, session_id: str) -> set[str]:
        """The ids of the traces that Langfuse holds of a session. Raises BackendError."""
        path = f"/api/public/v2/observations?sessionId={session_id}&fields=core&limit=1000"
        response = self._exchange("GET", path)
        if response.status != 404:
            return self._traces_by_observation(path, self._read(response, _Observations))
        found: set[str] = set()  # a server before v4
        for page in range(1, _MAX_PAGES):
            answer = self._get(f"/api/public/traces?sessionId={session_id}&fields=core&limit=100&page={page}", _Traces)
            found |= {trace.id for trace in answer.data}
            if page >= answer.meta.total_pages:
                break
        return found

    def _traces_by_observation(self, path: str, answer: _Observations) -> set[str]:
        found: set[str] = set()
        for _ in range(_MAX_PAGES):
            found |= {observation.trace_id for observation in answer.data if observation.trace_id}
            if not answer.meta.cursor:
                break
            answer = self._get(f"{path}&cursor={_quoted(answer.meta.cursor)}", _Observations)
        return found

    def delete(self, trace_ids: Sequence[str]) -> None:
        """Have traces deleted, which the server does in its own time. Raises BackendError."""
        for start in range(0, len(trace_ids), _DELETED_AT_ONCE):
            body = msgspec.json.encode({"traceIds": list(trace_ids[start : start + _DELETED_AT_ONCE])})
            response = self._exchange("DELETE", "/api/public/traces", body)
            if not 200 <= response.status < 300:
                raise self._refused(response)

    def _get(self, path: str, kind: type[T]) -> T:
        return self._read(self._exchange("GET", path), kind)

    def _read(self, response: Response, kind: type[T]) -> T:
        if response.status != 200 or not response.is_complete:
            raise self._refused(response)
        try:
            return msgspec.json.decode(response.body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise BackendError("Langfuse gave an answer that cannot be read") from error

    def _exchange(self, method: str, path: str, body: bytes = b"") -> Response:
        headers = dict(self._headers)
        if body:
            headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        try:
            return self._http.exchange(method, self._base + path, headers, body)
        except NoAnswerError as error:
            raise BackendError(str(error)) from error

    def _refused(self, response: Response) -> BackendError:
        if 200 <= response.status < 300:
            return BackendError(f"HTTP {response.status}, but the answer broke off")
        return BackendError(read_verdict(response, now_s=time.time(), secrets=self._secrets).reason)


def _quoted(text: str) -> str:
    return "".join(chr(b) if chr(b).isalnum() and b < 128 else f"%{b:02X}" for b in text.encode())


def read_health(response: Response) -> Health | None:
    """What a server says about itself; None if it is not Langfuse that speaks."""
    try:
        return msgspec.json.decode(response.body, type=Health)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
