"""Probes a Langfuse server: its version, the keys, and the project they belong to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Finding, Outcome, Probe
from turnspan.backends.probing import look_at, send_empty
from turnspan.errors import BackendError

if TYPE_CHECKING:
    from turnspan.backends import Backend
    from turnspan.backends.langfuse_api import LangfuseApi
    from turnspan.backends.langfuse_projects import ProjectIds
    from turnspan.backends.settings import Server
    from turnspan.backends.verdicts import Response

REGIONS: Final = ("https://cloud.langfuse.com", "https://us.cloud.langfuse.com", "https://hipaa.cloud.langfuse.com")
_OLDEST: Final = (3, 22)  # the first with an OTLP endpoint


def probe_langfuse(backend: Backend, server: Server, api: LangfuseApi, projects: ProjectIds) -> Probe:
    """Probe a Langfuse server, and remember the project of the keys."""
    version = ""

    def ask_health() -> Response:
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
    others = ", ".join(url for url in REGIONS if server.endpoint.host not in url)
    hint = f"check both keys; keys of another region or server are unknown here: set `base_url` ({others})"
    probe = msgspec.structs.replace(send_empty(backend, server, findings, hint), version=version)
    return _with_project(probe, api, projects) if probe.outcome is Outcome.GOOD else probe


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
