"""An OTLP destination with Jaeger's query service beside it (`query_url`, usually port 16686).

The query service is the one that Jaeger's own pages use. It gets no credentials.

A missing trace is a 404 in Jaeger's own JSON. Any other 404 is a wrong `query_url`, which says nothing about the trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Finding, Outcome, repeated
from turnspan.backends.http_transport import HttpTransport, NoAnswerError
from turnspan.backends.otlp import OtlpBackend, open_transport

if TYPE_CHECKING:
    from turnspan.backends import Probe
    from turnspan.backends.naming import Naming
    from turnspan.backends.otlp import Transport
    from turnspan.backends.settings import Endpoint, Server
    from turnspan.backends.verdicts import HttpResponse

_MAX_BODY_BYTES: Final = 256 * 1024 * 1024  # Jaeger returns a trace with all its content, or nothing


class _JaegerSpan(msgspec.Struct, frozen=True):
    id: str = msgspec.field(name="spanID")


class _Trace(msgspec.Struct, frozen=True):
    spans: list[_JaegerSpan] = []


class _Traces(msgspec.Struct, frozen=True):
    data: list[_Trace] | None = None


class _Services(msgspec.Struct, frozen=True):
    data: list[str] | None  # null while nothing is stored


class _Failure(msgspec.Struct, frozen=True):
    data: None
    errors: list[msgspec.Raw]


class JaegerBackend(OtlpBackend):
    """Jaeger: sends OTLP, and asks the query service what is stored."""

    repeats = ""  # equal spans are shown once

    def __init__(
        self,
        name: str,
        naming: Naming,
        transport: Transport,
        max_request_bytes: int,
        server: Server,
        *,
        query: Endpoint,
    ) -> None:
        super().__init__(name, naming, transport, max_request_bytes, server)
        asked = open_transport(server.settings, query, {}, "http/protobuf", max_body_bytes=_MAX_BODY_BYTES)
        assert isinstance(asked, HttpTransport)
        self._http = asked
        self._query = query
        self.silence = ""  # why `stored` had no answer
        self.doubles: frozenset[bytes] = frozenset()  # spans that the last `stored` found more than once

    def close(self) -> None:
        """Close connections."""
        super().close()
        self._http.close()

    def link(self, trace_id: bytes) -> str:
        """Return the URL of a trace in Jaeger's UI."""
        return f"{self._query.url}/trace/{trace_id.hex()}"

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return the ids of the spans of a trace that Jaeger stores; None if there was no answer."""
        try:
            response = self._get(f"/api/traces/{trace_id.hex()}")
        except NoAnswerError as error:
            self.silence = str(error)
            return None
        if response.status == 404 and _is_jaegers(response):
            return frozenset()
        if response.status != 200 or not response.is_complete:
            self.silence = f"HTTP {response.status}{'' if response.is_complete else ', but the response was cut off'}"
            if response.status == 404:
                self.silence += f" from {self._query.url}, which is not Jaeger's query service: check `query_url`"
            return None
        try:
            answer = msgspec.json.decode(response.body, type=_Traces)
            # Older servers omit leading zeros.
            spans = [bytes.fromhex(span.id.zfill(16)) for trace in answer.data or () for span in trace.spans]
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            self.silence = "the response cannot be read"
            return None
        self.doubles = repeated(spans)
        return frozenset(spans)

    def probe(self) -> Probe:
        """Check the server that traces are sent to, and the query service."""
        found = super().probe()
        return msgspec.structs.replace(found, findings=(*found.findings, self._probe_query()))

    def _probe_query(self) -> Finding:
        """Ask the query service for its services. A failure is only a warning: traces are sent without it."""
        hint = "check `query_url`: it is the URL of Jaeger's own pages, usually port 16686"
        try:
            response = self._get("/api/services")
        except NoAnswerError as error:
            return Finding(Outcome.UNKNOWN, f"the query service cannot be asked: {error}", hint)
        says = f"HTTP {response.status}"
        if response.status == 200:
            try:
                services = msgspec.json.decode(response.body, type=_Services).data or ()
            except (msgspec.DecodeError, UnicodeDecodeError):
                says = "its answer is not Jaeger's"
            else:
                named = f", {len(services)} {'service' if len(services) == 1 else 'services'}"
                return Finding(Outcome.GOOD, f"the query service answers at {self._query.url}{named}")
        return Finding(Outcome.UNKNOWN, f"the query service cannot be asked: {self._query.url}: {says}", hint)

    def _get(self, path: str) -> HttpResponse:
        return self._http.exchange("GET", f"{self._query.path.rstrip('/')}{path}", {})


def _is_jaegers(response: HttpResponse) -> bool:
    """Whether it is Jaeger's own JSON: `{"data": null, "errors": [{"code": 404, "msg": "trace not found"}], …}`."""
    try:
        msgspec.json.decode(response.body, type=_Failure)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    return True
