"""Langfuse: its own attribute names over OTLP/HTTP, and its API for everything but sending.

Settings: `public_key`, `secret_key`, `base_url` (https://cloud.langfuse.com unless set), `release`,
`trace_name`, and those of `otlp` except `endpoint`, `protocol` and `query_url`.

Rules:

- The content of a generation is ChatML, the only form in which Langfuse renders tool calls, thinking and markdown. The
  content of a turn or a subagent is plain text, because lists show it as it is.
- Attributes of the trace are on every span: Langfuse derives a trace from its observations.
- Usage and cost are JSON texts; no token is counted under two keys.
- After a lost response, `stored` returns which spans of a trace have arrived, so that only the rest is sent.
"""

from __future__ import annotations

import base64
import re
import time
from contextlib import suppress
from functools import cached_property
from hashlib import blake2b
from typing import TYPE_CHECKING

import msgspec

from turnspan import lazy
from turnspan.backends import Erased, content, naming, repeated
from turnspan.backends.attributes import Attributes
from turnspan.backends.otlp import OtlpBackend, open_transport, secrets_in
from turnspan.backends.settings import COMMON, TRANSPORT, DestinationSettings, Server
from turnspan.errors import BackendError, ConfigError, StateError
from turnspan.files import private_directory, read_private, replace_private
from turnspan.trace.model import Json, Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping
    from pathlib import Path

    from turnspan.backends import Probe, Verdict
    from turnspan.backends.langfuse_api import LangfuseApi
    from turnspan.backends.naming import Resource
    from turnspan.backends.otlp import Transport
    from turnspan.backends.settings import Capture
    from turnspan.trace.model import Content, Span, Trace, Usage

KNOWN = COMMON | TRANSPORT | {"base_url", "public_key", "secret_key", "release", "trace_name"}
_MAX_DECODED_BYTES = 4_000_000
_ASK_AFTER_S = 20.0  # a queued request is usually stored after some seconds
_MAX_TAG_LENGTH = 200  # longer tags are dropped by the server

_TYPES = {
    Kind.TURN: "agent",
    Kind.GENERATION: "generation",
    Kind.TOOL: "tool",
    Kind.AGENT: "agent",
    Kind.EVENT: "event",
}
_METADATA = "langfuse.observation.metadata."
_PARAMETERS = ("max_tokens", "effort", "speed", "service_tier")
_TOOL_TAGS = {"skill": "skill", "mcp_server": "mcp"}
_BRANCH = "{branch}"
_SEARCHABLE = {"response_id": "gen_ai.response.id", "tool_call_id": "gen_ai.tool.call.id"}

_NUMBER_ONLY = lazy.pattern(r"Turn [0-9]+")

_PROJECTS = "langfuse-projects.json"
_MAX_PROJECTS_BYTES = 1 << 20
_PROJECT_ID = lazy.pattern(r"[A-Za-z0-9_-]{1,100}")  # it becomes part of a URL

_encode = msgspec.json.Encoder().encode
_decode_projects = msgspec.json.Decoder(dict[str, str]).decode


class LangfuseNaming:
    """Langfuse's attribute names."""

    def __init__(self, capture: Capture, release: str, trace_name: str = "turn") -> None:
        self._capture = capture
        self._release = release
        self._is_named_by_project = trace_name == "project"

    def resource(self, trace: Trace) -> Resource:
        """Return the attributes of the program that wrote the trace."""
        return naming.resource(trace, self._capture)

    def place(self, span: Span) -> tuple[str, bytes | None]:
        """Return the name of a span, and the id of its parent."""
        return naming.place(span, self._capture)

    def of_trace(self, trace: Trace) -> Attributes:
        """Return the trace's name, session, user, tags, and its facts as metadata."""
        out = Attributes(self._capture.attribute_max_bytes)
        if name := self._trace_name(trace):
            out.put("langfuse.trace.name", name)
        out.put("session.id", trace.session_id)
        out.put("langfuse.session.id", trace.session_id)
        if self._capture.user_id:
            out.put("user.id", self._capture.user_id)
            out.put("langfuse.user.id", self._capture.user_id)
        if tags := dict.fromkeys((*naming.tags_of(trace, self._capture), *_tags_of_tools(trace))):
            out.put("langfuse.trace.tags", tuple(tag[:_MAX_TAG_LENGTH] for tag in tags))
        if self._capture.environment:
            out.put("langfuse.environment", self._capture.environment)
        if release := self._release.replace(_BRANCH, str(trace.facts.get("git_branch", ""))):
            out.put("langfuse.release", release)
        out.put("langfuse.version", trace.client_version)
        for name, value in trace.facts.items():
            out.put(f"langfuse.trace.metadata.{_flat(name)}", value)
        return out

    def _trace_name(self, trace: Trace) -> str:
        """Return the name of the trace; empty if it has one already, by another program or an earlier part."""
        if any(map(_has_caller, trace.spans)):
            return ""
        if self._is_named_by_project and (project := naming.project_of(trace)):
            return project
        return "" if _is_further_part(trace) else trace.name

    def of_span(self, trace: Trace, span: Span) -> Attributes:  # noqa: ARG002 - the trace's facts are on every span
        """Return the attributes of one observation."""
        out = Attributes(self._capture.attribute_max_bytes)
        out["langfuse.observation.type"] = _TYPES[span.kind]
        if _has_caller(span):
            # As Langfuse's own SDK does: without it the turn is not a root there, and has no name.
            out["langfuse.internal.is_app_root"] = True
        if span.input is not None:
            _put_content(out, span.kind, span.input, "input")
        if span.output is not None:
            _put_content(out, span.kind, span.output, "output")
        if span.kind is Kind.GENERATION:
            _put_generation(out, span)
        if span.totals is not None:
            _put_totals(out, span.totals)
        if span.totals_cost_usd is not None:
            out[_METADATA + "cost_usd"] = span.totals_cost_usd
        if span.error is not None:
            out["langfuse.observation.level"] = "ERROR"
            out.put("langfuse.observation.status_message", span.error_message or span.error)
            out.put("error.type", span.error)
        _put_facts(out, span)
        return out


def _is_further_part(trace: Trace) -> bool:
    """Whether an earlier part of the turn named the trace after the prompt, which this part does not contain."""
    has_root = any(span.parent_id is None for span in trace.spans)
    return not has_root and _NUMBER_ONLY.fullmatch(trace.name) is not None


def _tags_of_tools(trace: Trace) -> Iterator[str]:
    """Yield a tag for each skill and each MCP server that the spans of a trace used."""
    for span in trace.spans:
        if span.kind is Kind.TOOL:
            yield from (f"{tag}:{span.facts[fact]}" for fact, tag in _TOOL_TAGS.items() if fact in span.facts)


def _has_caller(span: Span) -> bool:
    """Whether the parent of a turn is a span of another program."""
    return span.kind is Kind.TURN and span.parent_id is not None


def _flat(name: str) -> str:
    """Return a metadata key without dots, which would nest it."""
    return name.replace(".", "_")


def _put_content(out: Attributes, kind: Kind, value: Content, direction: str) -> None:
    key = f"langfuse.observation.{direction}"
    if kind in (Kind.TURN, Kind.AGENT) and (words := content.words(value)) is not None:
        out.text(key, words, is_json=False)
        return
    if kind is Kind.GENERATION or not isinstance(value, Json | str):
        out.text(key, content.chatml(value, direction), is_json=True)
    elif isinstance(value, str):
        out.text(key, value, is_json=False)
    else:
        out.text(key, content.well_formed(value.text), is_json=True)


def _put_generation(out: Attributes, span: Span) -> None:
    if span.model is not None:
        # The suffix asks for a longer context; Langfuse knows prices and models without it.
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
        out.put("langfuse.observation.usage_details", _encode(details).decode())
        _put_rare(out, usage)
    if span.cost_usd is not None:
        out.put("langfuse.observation.cost_details", _encode({"total": span.cost_usd}).decode())
    if span.first_token_ns is not None:
        out.put("langfuse.observation.completion_start_time", _iso(span.first_token_ns))


def _put_facts(out: Attributes, span: Span) -> None:
    for name, value in span.facts.items():
        if (key := _SEARCHABLE.get(name)) is not None:
            out.put(key, value)
        elif span.kind is not Kind.GENERATION or name not in _PARAMETERS:
            out.put(_METADATA + _flat(name), value)


def _put_totals(out: Attributes, totals: Usage) -> None:
    out.put(_METADATA + "usage_input", totals.input)
    out.put(_METADATA + "usage_output", totals.output)
    out.put(_METADATA + "usage_cache_read", totals.cache_read)
    out.put(_METADATA + "usage_cache_creation_5m", totals.cache_write_5m)
    out.put(_METADATA + "usage_cache_creation_1h", totals.cache_write_1h)
    _put_rare(out, totals)


def _put_rare(out: Attributes, usage: Usage) -> None:
    if usage.web_searches:
        out.put(_METADATA + "usage_web_searches", usage.web_searches)
    if usage.is_incomplete:
        out[_METADATA + "usage_incomplete"] = True


def _iso(at_ns: int) -> str:
    seconds, rest_ns = divmod(naming.otlp_time(at_ns), 1_000_000_000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest_ns // 1_000:06d}Z"


class ProjectIds:
    """The id of the project that a public key belongs to on one server: a link to a trace contains it.

    A probe (`install`, `doctor`, `status --check`) asks Langfuse and remembers the id in turnspan's home. No event asks
    for it.
    """

    def __init__(self, home: Path, base_url: str, public_key: str) -> None:
        self._home = home
        self._key = blake2b(f"{base_url}\0{public_key}".encode(), digest_size=8).hexdigest()

    def known(self) -> str | None:
        """Return the id; None if Langfuse was not asked yet."""
        found = self._all().get(self._key, "")
        return found if _PROJECT_ID.fullmatch(found) else None

    def remember(self, project_id: str) -> None:
        """Store the id. A home that cannot be written to only costs the links."""
        found = self._all()
        if found.get(self._key) == project_id or _PROJECT_ID.fullmatch(project_id) is None:
            return
        with suppress(StateError, OSError):
            private_directory(self._home)
            replace_private(self._home / _PROJECTS, msgspec.json.encode({**found, self._key: project_id}))

    def _all(self) -> dict[str, str]:
        try:
            return _decode_projects(read_private(self._home / _PROJECTS, _MAX_PROJECTS_BYTES) or b"{}")
        except (StateError, OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}


class LangfuseBackend(OtlpBackend):
    """Langfuse: traces over OTLP, everything else over its API."""

    lag_s = 300.0  # it acknowledges what it has queued
    repeats = (
        "Langfuse shows a span that is sent again twice, and adds its cost twice, until its database merges the two"
    )

    def __init__(
        self,
        name: str,
        naming: LangfuseNaming,
        transport: Transport,
        max_request_bytes: int,
        server: Server,
        *,
        open_api: Callable[[], LangfuseApi],
        projects: ProjectIds,
    ) -> None:
        super().__init__(name, naming, transport, max_request_bytes, server)
        self._langfuse = server
        self._open_api = open_api
        self._projects = projects
        self.silence = ""  # why `stored` had no answer
        self.doubles: frozenset[bytes] = frozenset()  # spans that the last `stored` found more than once

    @cached_property
    def _api(self) -> LangfuseApi:
        return self._open_api()

    def close(self) -> None:
        """Close connections."""
        super().close()
        if "_api" in self.__dict__:
            self._api.close()

    def send(self, body: bytes) -> Verdict:
        """Send one request and return the verdict.

        After a request without a response, `stored` does not show yet what Langfuse has queued: it is asked later.
        """
        verdict = super().send(body)
        if verdict.is_unknown and verdict.retry_after_s is None:
            return msgspec.structs.replace(verdict, retry_after_s=_ASK_AFTER_S)
        return verdict

    def link(self, trace_id: bytes) -> str | None:
        """Return the URL of a trace; None until a probe has asked for the project of the keys."""
        project_id = self._projects.known()
        if project_id is None:
            return None
        return f"{self._langfuse.endpoint.url}/project/{project_id}/traces/{trace_id.hex()}"

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return the ids of the spans of a trace that Langfuse stores; None if there was no answer."""
        try:
            ids = self._api.spans_of(trace_id.hex())
        except BackendError as error:
            self.silence = str(error)
            return None
        spans = [bytes.fromhex(id_) for id_ in ids if re.fullmatch(r"[0-9a-f]{16}", id_)]
        self.doubles = repeated(spans)
        return frozenset(spans)

    def erase(self, session_id: str, trace_ids: Collection[bytes]) -> Erased:
        """Have these traces and all others of the session deleted. Raises BackendError."""
        wanted = {trace_id.hex() for trace_id in trace_ids}
        problem = ""
        try:
            wanted |= self._api.traces_of(session_id)
        except BackendError as error:
            if not wanted:
                raise
            problem = f"; whether Langfuse stores others is unknown: {error}"
        if wanted:
            self._api.delete(sorted(wanted))
        return Erased(len(wanted), remark=f" (Langfuse deletes asynchronously){problem}", is_complete=not problem)

    def probe(self) -> Probe:
        """Check the server, its version, the keys, and the project they belong to."""
        from turnspan.backends.langfuse_api import probe_langfuse  # noqa: PLC0415 - no event needs it

        return probe_langfuse(self, self._langfuse, self._api, self._projects)


def open_backend(settings: Mapping[str, object], *, name: str, home: Path) -> LangfuseBackend:
    """Open a Langfuse project. Raises ConfigError for a wrong setting."""
    read = DestinationSettings(settings, name=name, known=KNOWN)
    endpoint = read.endpoint("base_url")
    base = endpoint.path.rstrip("/")
    keys = []
    for key in ("public_key", "secret_key"):
        value = read.text(key, is_secret=True)
        if not value:
            raise ConfigError(
                f"destination {name}: the setting {key!r} is missing",
                hint="create keys in the settings of your Langfuse project, then run `turnspan install --to langfuse`",
            )
        if not value.isascii() or not value.isprintable() or (key == "public_key" and ":" in value):
            raise read.wrong(key, "the key as shown in the settings of the Langfuse project", is_secret=True)
        keys.append(value)
    capture = read.capture()
    if capture.environment and not re.fullmatch(r"(?!langfuse)[a-z0-9_-]{1,40}", capture.environment):
        raise read.wrong("environment", "at most 40 characters of a-z, 0-9, - and _, not starting with langfuse")
    headers = read.headers()
    if any(header.lower() == "authorization" for header in headers):
        raise read.wrong(
            "headers", "without Authorization, which is made from public_key and secret_key", is_secret=True
        )
    headers["Authorization"] = f"Basic {base64.b64encode(':'.join(keys).encode()).decode()}"
    headers["x-langfuse-ingestion-version"] = "4"
    target = msgspec.structs.replace(endpoint, path=f"{base}/api/public/otel/v1/traces")
    transport = open_transport(read, target, headers, "http/protobuf")
    limit = read.integer("max_request_bytes", most=_MAX_DECODED_BYTES)
    server = Server(endpoint, read, has_credentials=True)

    def open_api() -> LangfuseApi:
        from turnspan.backends.langfuse_api import LangfuseApi  # noqa: PLC0415 - not needed to send

        return LangfuseApi(server, (keys[0], keys[1]), read.headers(), secrets_in(headers))

    projects = ProjectIds(home, endpoint.url, keys[0])
    names = LangfuseNaming(capture, read.text("release"), read.choice("trace_name"))
    return LangfuseBackend(name, names, transport, limit, server, open_api=open_api, projects=projects)
