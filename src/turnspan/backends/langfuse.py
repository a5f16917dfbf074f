"""Langfuse: its own attribute names over OTLP/HTTP, its keys, and a look at what it holds.

Settings: `public_key`, `secret_key`, `base_url` (https://cloud.langfuse.com unless set), `release`, and those of `otlp`
except `endpoint` and `protocol`.

Rules:

- Content is ChatML, the only form in which Langfuse draws tool calls, thinking and markdown.
- What describes the trace stands on every span: Langfuse keeps no trace apart from its observations.
- Usage and cost are JSON texts; no key counts what another one counts.
- After an answer that got lost, `stored` says which spans of a trace have arrived, so that only the rest is sent.
"""

from __future__ import annotations

import base64
import re
import time
from typing import TYPE_CHECKING

import msgspec

from turnspan.backends import content, naming
from turnspan.backends.genai import Bounded, tags_of
from turnspan.backends.http_transport import HttpTransport, NoAnswerError
from turnspan.backends.otlp import OtlpBackend, open_transport
from turnspan.backends.settings import COMMON, TRANSPORT, Settings
from turnspan.trace.model import Kind

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from turnspan.backends.naming import Attributes
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Content, Span, Trace, Usage

KNOWN = COMMON | TRANSPORT | {"base_url", "public_key", "secret_key", "release"}
_MAX_DECODED_BYTES = 4_000_000
_MAX_TAG_LENGTH = 200  # longer tags are dropped by the server
_MAX_PAGES = 50

_TYPE = {
    Kind.TURN: "agent",
    Kind.GENERATION: "generation",
    Kind.TOOL: "tool",
    Kind.AGENT: "agent",
    Kind.EVENT: "event",
}
_PARAMETERS = ("max_tokens", "effort", "speed", "service_tier")
_SEARCHABLE = {"response_id": "gen_ai.response.id", "tool_call_id": "gen_ai.tool.call.id"}

_encode = msgspec.json.Encoder().encode


class LangfuseSpelling:
    """Langfuse's names."""

    def __init__(self, capture: Capture, release: str) -> None:
        self._capture = capture
        self._release = release

    def resource(self, trace: Trace) -> Attributes:
        """What wrote the trace."""
        return naming.resource(trace)

    def of_trace(self, trace: Trace) -> Attributes:
        """The trace's name, session, person, tags, and its facts as metadata."""
        out = Bounded(self._capture.attribute_max_bytes)
        out.put("langfuse.trace.name", trace.name)
        out.put("session.id", trace.session_id)
        out.put("langfuse.session.id", trace.session_id)
        if self._capture.user_id:
            out.put("user.id", self._capture.user_id)
            out.put("langfuse.user.id", self._capture.user_id)
        if tags := tags_of(trace, self._capture):
            out.put("langfuse.trace.tags", tuple(tag[:_MAX_TAG_LENGTH] for tag in tags))
        if self._capture.environment:
            out.put("langfuse.environment", self._capture.environment)
        if self._release:
            out.put("langfuse.release", self._release)
        out.put("langfuse.version", trace.client_version)
        for name, value in trace.facts.items():
            out.put(f"langfuse.trace.metadata.{_flat(name)}", value)
        return out.attributes

    def of_span(self, trace: Trace, span: Span) -> Attributes:  # noqa: ARG002 - the trace's facts are on every span
        """What one observation carries."""
        out = Bounded(self._capture.attribute_max_bytes)
        out.attributes["langfuse.observation.type"] = _TYPE[span.kind]
        if span.input is not None:
            _put_content(out, span.kind, span.input, "input")
        if span.output is not None:
            _put_content(out, span.kind, span.output, "output")
        if span.kind is Kind.GENERATION:
            _put_generation(out, span)
        if span.totals is not None:
            _put_totals(out, span.totals)
        if span.totals_cost_usd is not None:
            out.attributes["langfuse.observation.metadata.cost_usd"] = span.totals_cost_usd
        if span.error is not None:
            out.attributes["langfuse.observation.level"] = "ERROR"
            out.put("langfuse.observation.status_message", span.error_message or span.error)
            out.put("error.type", span.error)
        for name, value in span.facts.items():
            if (key := _SEARCHABLE.get(name)) is not None:
                out.put(key, value)
            elif span.kind is not Kind.GENERATION or name not in _PARAMETERS:
                out.put(f"langfuse.observation.metadata.{_flat(name)}", value)
        return out.attributes


def _flat(name: str) -> str:
    """A metadata key that stays one key: dots would nest it."""
    return name.replace(".", "_")


def _put_content(out: Bounded, kind: Kind, value: Content, direction: str) -> None:
    key = f"langfuse.observation.{direction}"
    is_conversation = kind in (Kind.TURN, Kind.GENERATION, Kind.AGENT) or isinstance(value, tuple)
    out.text(key, content.chatml(value, direction) if is_conversation else content.json_text(value), is_json=True)


def _put_generation(out: Bounded, span: Span) -> None:
    if span.model is not None:
        # The suffix asks for a longer context; prices and models are known without it.
        out.put("langfuse.observation.model.name", span.model.removesuffix("[1m]"))
    if parameters := {name: span.facts[name] for name in _PARAMETERS if name in span.facts}:
        out.put("langfuse.observation.model.parameters", _encode(parameters).decode())
    if span.usage is not None:
        usage = span.usage
        details = {
            "input": usage.input,
            "output": usage.output,
            "cache_read_input_tokens": usage.cache_read,
            "input_cache_creation_5m": usage.cache_write_5m,
            "input_cache_creation_1h": usage.cache_write_1h,
        }
        out.attributes["langfuse.observation.usage_details"] = _encode(details).decode()
        _put_rare(out, usage)
    if span.cost_usd is not None:
        out.attributes["langfuse.observation.cost_details"] = _encode({"total": span.cost_usd}).decode()
    if span.first_token_ns is not None:
        out.attributes["langfuse.observation.completion_start_time"] = _iso(span.first_token_ns)


def _put_totals(out: Bounded, totals: Usage) -> None:
    prefix = "langfuse.observation.metadata.usage_"
    out.attributes |= {
        f"{prefix}input": totals.input,
        f"{prefix}output": totals.output,
        f"{prefix}cache_read": totals.cache_read,
        f"{prefix}cache_creation_5m": totals.cache_write_5m,
        f"{prefix}cache_creation_1h": totals.cache_write_1h,
    }
    _put_rare(out, totals)


def _put_rare(out: Bounded, usage: Usage) -> None:
    if usage.web_searches:
        out.attributes["langfuse.observation.metadata.usage_web_searches"] = usage.web_searches
    if usage.is_incomplete:
        out.attributes["langfuse.observation.metadata.usage_incomplete"] = True


def _iso(at_ns: int) -> str:
    seconds, rest_ns = divmod(naming.otlp_time(at_ns), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest_ns // 1_000:06d}Z"


class _Observation(msgspec.Struct, frozen=True):
    id: str


class _Meta(msgspec.Struct, frozen=True, rename="camel"):
    cursor: str | None = None
    total_pages: int = 0


class _Page(msgspec.Struct, frozen=True):
    data: list[_Observation]
    meta: _Meta = _Meta()


class LangfuseBackend(OtlpBackend):
    """Langfuse, which can also be asked what it holds."""

    def __init__(self, name: str, spelling: LangfuseSpelling, http: HttpTransport, base: str, limit: int) -> None:
        super().__init__(name, spelling, http, limit)
        self._http = http
        self._base = base
        self.silence = ""  # why it did not say what it holds

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """The span ids that Langfuse holds of a trace; None when it cannot say."""
        query = f"traceId={trace_id.hex()}"
        pages = self._pages(f"/api/public/v2/observations?{query}&fields=core&limit=1000", by_cursor=True)
        if pages is None:  # a server before v4
            pages = self._pages(f"/api/public/observations?{query}&limit=100", by_cursor=False)
        if pages is None:
            return None
        ids = {observation.id for page in pages for observation in page.data}
        return frozenset(bytes.fromhex(id_) for id_ in ids if re.fullmatch(r"[0-9a-f]{16}", id_))

    def _pages(self, path: str, *, by_cursor: bool) -> list[_Page] | None:
        pages: list[_Page] = []
        query = ""
        while len(pages) < _MAX_PAGES:
            try:
                response = self._http.exchange("GET", self._base + path + query, {})
            except NoAnswerError as error:
                self.silence = str(error)
                return None
            if response.status != 200 or not response.is_complete:
                self.silence = f"HTTP {response.status}{'' if response.is_complete else ', and the answer broke off'}"
                return None
            try:
                page = msgspec.json.decode(response.body, type=_Page)
            except (msgspec.DecodeError, UnicodeDecodeError):
                self.silence = "its answer cannot be read"
                return None
            pages.append(page)
            if by_cursor and page.meta.cursor:
                query = f"&cursor={_quoted(page.meta.cursor)}"
            elif not by_cursor and page.meta.total_pages > len(pages):
                query = f"&page={len(pages) + 1}"
            else:
                return pages
        self.silence = "its answer has no end"
        return None


def _quoted(text: str) -> str:
    return "".join(chr(b) if chr(b).isalnum() and b < 128 else f"%{b:02X}" for b in text.encode())


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> LangfuseBackend:  # noqa: ARG001 - the entry point's signature
    """A Langfuse project. Raises ConfigError when a setting is wrong."""
    read = Settings(settings, name=name, known=KNOWN)
    endpoint = read.endpoint("base_url")
    base = endpoint.path.rstrip("/")
    keys = []
    for key in ("public_key", "secret_key"):
        value = read.text(key, is_secret=True)
        if not value or not value.isascii() or not value.isprintable() or (key == "public_key" and ":" in value):
            raise read.wrong(key, "the key as Langfuse shows it in the project's settings", is_secret=True)
        keys.append(value)
    capture = read.capture()
    if capture.environment and not re.fullmatch(r"(?!langfuse)[a-z0-9_-]{1,40}", capture.environment):
        raise read.wrong("environment", "at most 40 of a-z, 0-9, - and _, not beginning with langfuse")
    headers = read.headers()
    if any(header.lower() == "authorization" for header in headers):
        raise read.wrong("headers", "without Authorization, which public_key and secret_key make", is_secret=True)
    headers["Authorization"] = f"Basic {base64.b64encode(':'.join(keys).encode()).decode()}"
    headers["x-langfuse-ingestion-version"] = "4"
    target = msgspec.structs.replace(endpoint, path=f"{base}/api/public/otel/v1/traces")
    transport = open_transport(read, target, headers, "http/protobuf")
    assert isinstance(transport, HttpTransport)
    limit = read.whole("max_request_bytes", most=_MAX_DECODED_BYTES)
    return LangfuseBackend(name, LangfuseSpelling(capture, read.text("release")), transport, base, limit)
