"""Langfuse's API: health, the project of the keys, stored observations, deletion; and a probe that uses it.

It uses the generated API client of the `langfuse` package, never its tracing client, which sets up OpenTelemetry and
starts threads. Importing the package takes 0.3 s of CPU, so it is loaded with the first request.

Rules:

- The client sends through our HTTP transport: one deadline for the complete exchange, our certificates and proxy, no
  environment variables, no redirects.
- Health is asked without keys: the server may not be Langfuse.
- Servers before v4 lack the observations endpoint of the package; they are asked at the paths they have.
- A failure is a BackendError with a sentence without secrets.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Final, cast

import msgspec

from turnspan.backends import Finding, Outcome, Probe
from turnspan.backends.http_transport import HttpTransport, NoAnswerError
from turnspan.backends.otlp import open_transport
from turnspan.backends.probing import look_at, send_empty
from turnspan.backends.verdicts import HttpResponse, read_verdict
from turnspan.errors import BackendError
from turnspan.settings.options import LANGFUSE_REGIONS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import httpx
    from langfuse.api.client import LangfuseAPI as Client
    from langfuse.api.commons.types.observation_v2 import ObservationV2

    from turnspan.backends import Backend
    from turnspan.backends.langfuse import ProjectIds
    from turnspan.backends.settings import Server

_OLDEST: Final = (3, 22)  # the first with an OTLP endpoint
_DELETED_AT_ONCE: Final = 500
_MAX_PAGES: Final = 500
_ENDLESS: Final = "the response of Langfuse has no end"
_OURS: Final = {"host", "user-agent", "accept-encoding", "connection", "content-length"}  # set by our transport
# What the generated client raises for JSON that is not what its models expect.
_UNREADABLE: Final = (ValueError, TypeError, AttributeError, RecursionError)


class Project(msgspec.Struct, frozen=True):
    """The project of the keys."""

    id: str
    name: str
    retention_days: int | None = None


class _Id(msgspec.Struct, frozen=True):
    id: str


class _PageMeta(msgspec.Struct, frozen=True, rename="camel"):
    total_pages: int = 0


class _Page(msgspec.Struct, frozen=True):
    data: list[_Id]
    meta: _PageMeta = _PageMeta()


class _StatusError(BackendError):
    """The server did not answer with 2xx."""

    def __init__(self, response: HttpResponse, secrets: Sequence[str]) -> None:
        reason = "HTTP 404: the Langfuse API is not there"
        if response.status != 404:
            reason = read_verdict(response, now_s=time.time(), secrets=secrets).reason
        super().__init__(reason)
        self.response = response


class _Transport:
    """Our HTTP transport as an httpx transport.

    Everything but a complete 2xx response is an error, so the generated client never retries by itself.
    """

    def __init__(self, http: HttpTransport, secrets: Sequence[str]) -> None:
        self._http = http
        self._secrets = secrets
        self.last: HttpResponse | None = None

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Exchange one request. Raises NoAnswerError or BackendError."""
        import httpx  # noqa: PLC0415 - loaded by the caller

        body = request.read()
        headers = {name: value for name, value in request.headers.items() if name not in _OURS}
        if body:
            headers["Content-Length"] = str(len(body))
        self.last = response = self._http.exchange(request.method, request.url.raw_path.decode(), headers, body)
        if not 200 <= response.status < 300:
            raise _StatusError(response, self._secrets)
        if not response.is_complete:
            raise BackendError(f"HTTP {response.status}, but the response was cut off")
        return httpx.Response(response.status, content=response.body)

    def close(self) -> None:
        """Do nothing: the connection belongs to LangfuseApi."""


class LangfuseApi:
    """One Langfuse project."""

    def __init__(
        self, server: Server, keys: tuple[str, str], headers: Mapping[str, str], secrets: Sequence[str]
    ) -> None:
        transport = open_transport(server.settings, server.endpoint, {}, "http/protobuf")
        assert isinstance(transport, HttpTransport)
        self._http = transport
        self._url = server.endpoint.url
        self._keys = keys
        self._headers = headers
        self._secrets = secrets

    def close(self) -> None:
        """Close the connection."""
        self._http.close()

    def health(self) -> tuple[HttpResponse, str]:
        """Return the response to a request without keys, and the server's version, empty if it is not Langfuse.

        Raises NoAnswerError or BackendError.
        """
        transport = _Transport(self._http, ())
        version = ""
        try:
            with _readable():
                version = _open_client(self._url, _open_httpx(transport, {})).health.health().version
        except BackendError:
            if transport.last is None:  # the package is missing
                raise
        assert transport.last is not None
        return transport.last, version

    def project(self) -> Project:
        """Return the project of the keys. Raises BackendError."""
        with _answered():
            found = self._client.projects.get().data
        if not found:
            raise BackendError("Langfuse names no project for these keys")
        return Project(found[0].id, found[0].name or found[0].id, found[0].retention_days)

    def spans_of(self, trace_id: str) -> list[str]:
        """Return the ids of the observations of a trace, repeated if Langfuse shows them twice. Raises BackendError."""
        try:
            return [str(found.id) for found in self._observations({"traceId": trace_id})]
        except _StatusError as refused:
            if refused.response.status != 404:
                raise
        return self._ids_before_v4("observations", {"traceId": trace_id})

    def traces_of(self, session_id: str) -> set[str]:
        """Return the ids of the traces of a session. Raises BackendError."""
        try:
            return {found.trace_id for found in self._observations({"sessionId": session_id}) if found.trace_id}
        except _StatusError as refused:
            if refused.response.status != 404:
                raise
        return set(self._ids_before_v4("traces", {"sessionId": session_id, "fields": "core"}))

    def delete(self, trace_ids: Sequence[str]) -> None:
        """Request the deletion of traces, which the server does asynchronously. Raises BackendError."""
        for start in range(0, len(trace_ids), _DELETED_AT_ONCE):
            with _answered():
                self._client.trace.delete_multiple(trace_ids=trace_ids[start : start + _DELETED_AT_ONCE])

    @cached_property
    def _session(self) -> httpx.Client:
        return _open_httpx(_Transport(self._http, self._secrets), self._headers, self._keys)

    @cached_property
    def _client(self) -> Client:
        return _open_client(self._url, self._session)

    def _observations(self, query: dict[str, str]) -> Iterator[ObservationV2]:
        """Yield the observations that match a query, page by page."""
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            with _answered():
                page = self._client.observations.get_many(
                    fields="core", limit=1000, cursor=cursor, request_options={"additional_query_parameters": query}
                )
            yield from page.data
            cursor = page.meta.cursor
            if not cursor:
                return
        raise BackendError(_ENDLESS)

    def _ids_before_v4(self, what: str, query: dict[str, str]) -> list[str]:
        """Return the ids of observations or traces from a server before v4, which the package's client cannot ask."""
        ids: list[str] = []
        for number in range(1, _MAX_PAGES + 1):
            with _answered():
                params = {**query, "limit": "100", "page": str(number)}
                answer = self._session.get(f"{self._url}/api/public/{what}", params=params)
                page = msgspec.json.decode(answer.content, type=_Page)
            ids += [found.id for found in page.data]
            if number >= page.meta.total_pages:
                return ids
        raise BackendError(_ENDLESS)


def _open_httpx(transport: _Transport, headers: Mapping[str, str], keys: tuple[str, str] | None = None) -> httpx.Client:
    import httpx  # noqa: PLC0415 - only for requests other than traces

    ours = cast("httpx.BaseTransport", transport)  # it has the deadline, so there is no timeout here
    return httpx.Client(transport=ours, headers=dict(headers), auth=keys, timeout=None, trust_env=False)  # noqa: S113 - as said


def _open_client(url: str, session: httpx.Client) -> Client:
    from langfuse.api.client import LangfuseAPI  # noqa: PLC0415 - takes 0.3 s of CPU

    return LangfuseAPI(base_url=url, httpx_client=session)


@contextmanager
def _answered() -> Iterator[None]:
    """Raise BackendError for a request without a readable response."""
    try:
        with _readable():
            yield
    except NoAnswerError as error:
        raise BackendError(str(error)) from error


@contextmanager
def _readable() -> Iterator[None]:
    """Raise BackendError for a response that is not in the expected form."""
    try:
        from langfuse.api.core.api_error import ApiError  # noqa: PLC0415 - as above
    except ImportError as error:
        hint = "reinstall turnspan with its dependencies"
        raise BackendError(f"Langfuse's API client cannot be loaded: {error}", hint=hint) from error
    try:
        yield
    except (ApiError, *_UNREADABLE) as error:
        raise BackendError("the response of Langfuse cannot be read") from error


# ---- probing


def probe_langfuse(backend: Backend, server: Server, api: LangfuseApi, projects: ProjectIds) -> Probe:
    """Probe a Langfuse server, and remember the project of the keys."""
    version = ""

    def ask_health() -> HttpResponse:
        nonlocal version
        response, version = api.health()
        return response

    try:
        found = look_at(server, ask_health)
    except BackendError as error:
        return send_empty(backend, server, (Finding(Outcome.UNKNOWN, str(error), error.hint),))
    if found.failed is not None:
        return found.failed
    assert found.response is not None
    findings = (*found.findings, _version_finding(version, found.response.status, server))
    hint = wrong_keys_hint(server.endpoint.url)
    probe = msgspec.structs.replace(send_empty(backend, server, findings, hint), version=version)
    return _with_project(probe, api, projects) if probe.outcome is Outcome.GOOD else probe


def wrong_keys_hint(url: str) -> str:
    """Return what to do about keys that a server does not know."""
    others = ", ".join(region for _, region in LANGFUSE_REGIONS if region != url)
    return f"check both keys; keys of another region or server are unknown here: set `base_url` ({others})"


def _version_finding(version: str, status: int, server: Server) -> Finding:
    if not version:
        says = f"{server.endpoint.authority} does not answer like Langfuse (HTTP {status})"
        return Finding(Outcome.UNKNOWN, says, "check `base_url`")
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if parts and parts < _OLDEST:
        return Finding(Outcome.BAD, f"Langfuse {version} does not accept OTLP yet", "update it to 3.22 or newer")
    return Finding(Outcome.GOOD, f"Langfuse {version}")


def _with_project(probe: Probe, api: LangfuseApi, projects: ProjectIds) -> Probe:
    try:
        project = api.project()
    except BackendError as error:
        finding = Finding(Outcome.UNKNOWN, f"the project of the keys is unknown: {error}", "check the keys")
        return msgspec.structs.replace(probe, findings=(*probe.findings, finding))
    projects.remember(project.id)
    days = project.retention_days
    kept = f", which keeps traces for {days} day{'' if days == 1 else 's'}" if days else ""
    finding = Finding(Outcome.GOOD, f"the keys belong to the project {project.name}{kept}")
    return msgspec.structs.replace(probe, project=project.name, findings=(*probe.findings, finding))
