"""What a backend holds, for the backends that can be asked: local files, Langfuse, and Jaeger's query service.

Rules:

- A question is about one trace, an answer is the ids of its spans. None says that there is no answer, which is not the
  same as an empty one.
- A backend that is slow to answer is asked again; one that stays silent is not asked about every trace there is.
- Why there was no answer is told by those who know it (`silence`).
"""

from __future__ import annotations

import ssl
import time
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Holdings
from turnspan.backends.local import read_spans
from turnspan.backends.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.backends.settings import Endpoint
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config

_PAUSES_S: Final = (0.5, 1.0, 2.0)
_SILENT_AFTER: Final = 3  # traces without an answer
_TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 256 * 1024 * 1024  # Jaeger gives a trace with all its content or not at all


def open_holdings(target: Target, config: Config, sleep: Callable[[float], None] = time.sleep) -> Holdings | None:
    """What can be asked about a destination; None for one that only takes. Raises ConfigError."""
    destination = target.destination
    if destination.type == "local":
        named = destination.options.get("directory")
        return LocalHoldings(Path(str(named)).expanduser() if named else config.home / "traces")
    if isinstance(target.backend, Holdings):
        return _Patient(target.backend, sleep)
    if destination.options.get("query_url"):
        return _Patient(_open_jaeger(target), sleep)
    return None


class LocalHoldings:
    """The spans in the files of a directory, read once."""

    def __init__(self, directory: Path) -> None:
        self._spans: dict[bytes, set[bytes]] = {}
        for span in read_spans(directory):
            trace_id = bytes.fromhex(str(span["trace_id"]))
            self._spans.setdefault(trace_id, set()).add(bytes.fromhex(str(span["span_id"])))

    def stored(self, trace_id: bytes) -> frozenset[bytes]:
        """The span ids in the files."""
        return frozenset(self._spans.get(trace_id, ()))


class _JaegerSpan(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="spanID")


class _JaegerTrace(msgspec.Struct, frozen=True):
    spans: list[_JaegerSpan] = []


class _JaegerAnswer(msgspec.Struct, frozen=True):
    data: list[_JaegerTrace] | None = None


class JaegerHoldings:
    """Jaeger's query service, the one its own pages ask (`query_url`, usually port 16686)."""

    def __init__(self, endpoint: Endpoint, certificate: str) -> None:
        self.silence = ""
        self._where = endpoint.authority
        self._path = endpoint.path.rstrip("/")
        self._connection = (
            HTTPSConnection(
                endpoint.host, endpoint.port, timeout=_TIMEOUT_S,
                context=ssl.create_default_context(cafile=certificate or None),
            )
            if endpoint.is_tls
            else HTTPConnection(endpoint.host, endpoint.port, timeout=_TIMEOUT_S)
        )  # fmt: skip

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """The span ids it holds of a trace; None when it does not say."""
        try:
            self._connection.request("GET", f"{self._path}/api/traces/{trace_id.hex()}")
            response = self._connection.getresponse()
            body = response.read(_MAX_ANSWER_BYTES)
        except (OSError, HTTPException) as error:
            self._connection.close()
            why = (error.strerror if isinstance(error, OSError) else "") or str(error) or type(error).__name__
            self.silence = f"no answer from {self._where}: {why}"
            return None
        if not response.isclosed():  # there is more than we read
            self._connection.close()
            self.silence = "its answer is too long"
            return None
        if response.status == 404:
            return frozenset()
        if response.status != 200:
            self.silence = f"HTTP {response.status}"
            return None
        try:
            answer = msgspec.json.decode(body, type=_JaegerAnswer)
            # Older servers leave out leading zeros.
            return frozenset(bytes.fromhex(s.id.zfill(16)) for trace in answer.data or () for s in trace.spans)
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            self.silence = "its answer cannot be read"
            return None


def _open_jaeger(target: Target) -> JaegerHoldings:
    options = {key: target.destination.options.get(key, "") for key in ("query_url", "certificate")}
    read = Settings(options, name=target.destination.name, known=frozenset(options))
    return JaegerHoldings(read.endpoint("query_url"), read.file("certificate"))


class _Patient:
    """Asks again where there was no answer, but not for ever."""

    def __init__(self, asked: Holdings, sleep: Callable[[float], None]) -> None:
        self._asked = asked
        self._sleep = sleep
        self._silent = 0

    @property
    def silence(self) -> str:
        """Why there was no answer, as far as that is known: a backend need not say so."""
        return str(getattr(self._asked, "silence", ""))

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """The span ids it holds of a trace; None when it does not say."""
        for pause_s in (*_PAUSES_S, None):
            found = self._asked.stored(trace_id) if self._silent < _SILENT_AFTER else None
            if found is not None:
                self._silent = 0
                return found
            if pause_s is None or self._silent >= _SILENT_AFTER:
                break
            self._sleep(pause_s)
        self._silent += 1
        return None
