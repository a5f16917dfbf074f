"""Arize Phoenix from PyPI on loopback: installs, starts and queries it, and knows which attributes it derives.

Rules:

- It is installed once, with its dependencies as of a fixed date, into a virtual environment in a cache outside the project:
  `TURNSPAN_TEST_CACHE`, else the user's cache (`installing`).
- It is isolated: a directory of its own, no telemetry, loopback only, and a proxy that does not exist for other requests.
- If it cannot be installed, `Unavailable` is raised with the reason, and the test is skipped.
"""

from __future__ import annotations

import json
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime
from typing import TYPE_CHECKING, Any

from real.compare import Seen
from real.installing import Unavailable, installed, order
from real.server import Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from real.compare import Wanted

VERSION = "20.26.1"
AS_OF = "2026-11-16"  # dependencies as of this date
READ_S = 60
# By default it listens for gRPC on every interface.
LAUNCH = """
import sys
import grpc.aio
from phoenix.server.main import main
listen = grpc.aio.Server.add_insecure_port
grpc.aio.Server.add_insecure_port = lambda server, address: listen(server, address.replace("[::]", "127.0.0.1"))
sys.argv = ["phoenix", "serve"]
main()
"""


def install() -> Path:
    """Install Phoenix unless it is installed; return its interpreter."""
    with installed(f"phoenix-{VERSION}") as (place, is_ready):
        python = place / "bin" / "python"
        if not is_ready:
            _install_into(place, python)
    return python


def _install_into(place: Path, python: Path) -> None:
    """Create the environment with uv, which takes seconds; fall back to pip, which may have an index that uv does not know."""
    wanted = f"arize-phoenix=={VERSION}"
    order(sys.executable, "-m", "venv", place)
    try:
        order(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv")
        uv = (python, "-m", "uv", "pip", "install", "-q", "--no-cache", "--python", python)
        order(*uv, "--exclude-newer", AS_OF, wanted)
    except Unavailable:
        order(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wanted)


class Phoenix(Server):
    """A server with a separate database."""

    START_S = 180  # a new database runs through every migration

    def __init__(self, python: Path, directory: Path) -> None:
        self.url, self.grpc_url = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.start(
            [python, "-c", LAUNCH],
            directory,
            PHOENIX_WORKING_DIR=str(directory),
            PHOENIX_HOST="127.0.0.1",
            PHOENIX_PORT=self.url.rpartition(":")[2],
            PHOENIX_GRPC_PORT=self.grpc_url.rpartition(":")[2],
            PHOENIX_TELEMETRY_ENABLED="false",
            PHOENIX_ALLOW_EXTERNAL_RESOURCES="false",
            PHOENIX_DISABLE_AGENT_ASSISTANT="true",
            PHOENIX_AGENTS_DISABLE_WEB_ACCESS="true",
            HTTP_PROXY="http://127.0.0.1:9",
            HTTPS_PROXY="http://127.0.0.1:9",
            NO_PROXY="127.0.0.1,localhost",
        )

    def is_up(self) -> bool:
        """Whether the server responds."""
        try:
            return self._ask("GET", "/healthz") is not None
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # ignore this machine's proxy
        with opener.open(request, timeout=READ_S) as answer:
            return answer.read()

    # ---- queries

    def forget(self, project: str) -> None:
        """Delete the traces of a project: a span can be in one project only."""
        try:
            self._ask("DELETE", f"/v1/projects/{project}/traces?start_time=2000-01-01&end_time=2100-01-01")
        except urllib.error.HTTPError as error:
            if error.code != 404:  # the project does not exist yet
                raise

    def spans(self, project: str) -> list[Seen]:
        """Return all spans of a project."""
        found, cursor = [], ""
        while True:
            try:
                page = json.loads(self._ask("GET", f"/v1/projects/{project}/spans?limit=1000{cursor}"))
            except urllib.error.HTTPError as error:
                if error.code == 404:  # nothing has arrived yet
                    return []
                raise
            found += [_seen(one) for one in page["data"]]
            if not page["next_cursor"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def wait_for(self, project: str, count: int) -> list[Seen]:
        """Wait until a project has this many spans (Phoenix stores them asynchronously); return all spans."""
        deadline = time.monotonic() + READ_S
        while len(found := self.spans(project)) < count and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def query(self, text: str, **variables: object) -> dict[str, Any]:
        """Run a GraphQL query, as its own pages do."""
        answer = json.loads(self._ask("POST", "/graphql", {"query": text, "variables": variables}))
        assert not answer.get("errors"), answer["errors"]
        return answer["data"]

    def project(self, name: str, fields: str) -> dict[str, Any]:
        """Return fields of a project, as its page shows them."""
        found = self.query(f"query {{ projects {{ edges {{ node {{ name {fields} }} }} }} }}")
        return next(edge["node"] for edge in found["projects"]["edges"] if edge["node"]["name"] == name)


# ---- responses


def _seen(span: dict[str, Any]) -> Seen:
    return Seen(
        span["context"]["trace_id"],
        span["context"]["span_id"],
        span["parent_id"],
        span["name"],
        _ns(span["start_time"]),
        _ns(span["end_time"]),
        span["status_message"] if span["status_code"] == "ERROR" else None,
        {**span["attributes"], "openinference.span.kind": span["span_kind"]},
    )


def _ns(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int(at.replace(microsecond=0).timestamp()) * 1_000_000_000 + at.microsecond * 1_000


# ---- derived attributes: its pages are built on OpenInference's names, which it derives from GenAI's


def derived(wanted: Wanted) -> dict[str, Any]:
    """Return the attributes that Phoenix must derive for a span."""
    ours, usage = wanted.attributes, wanted.span.usage
    out: dict[str, Any] = {}
    if "gen_ai.provider.name" in ours:
        out |= {"llm.provider": "anthropic", "llm.system": "anthropic"}
    if "gen_ai.request.model" in ours:  # an API error has no model
        out["llm.model_name"] = ours["gen_ai.request.model"]
    if wanted.span.kind == "generation":
        out["llm.finish_reason"] = ours["gen_ai.response.finish_reasons"][0]
        parameters = {name: ours.get(f"gen_ai.request.{name}") for name in ("max_tokens", "stream")}
        if known := {name: value for name, value in parameters.items() if value is not None}:
            out["llm.invocation_parameters"] = json.dumps(known)
        if usage is not None:
            prompt = usage.input + usage.cache_read + usage.cache_write
            out |= {
                "llm.token_count.prompt": prompt,
                "llm.token_count.completion": usage.output,
                "llm.token_count.total": prompt + usage.output,
                "llm.token_count.prompt_details.cache_read": usage.cache_read,
                "llm.token_count.prompt_details.cache_write": usage.cache_write,
            }
    if wanted.span.kind == "tool":
        out |= {"tool.name": wanted.span.name, "tool.id": ours["gen_ai.tool.call.id"]}
        out |= dict(_flat("tool.parameters", json.loads(ours["gen_ai.tool.call.arguments"])))
    for direction in ("input", "output"):
        for number, message in enumerate(json.loads(ours.get(f"gen_ai.{direction}.messages", "[]"))):
            out |= _message(f"llm.{direction}_messages.{number}.message", message)
    return out


def _flat(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _flat(f"{key}.{name}", item)
    else:
        yield key, value


def _message(key: str, message: dict[str, Any]) -> dict[str, Any]:
    """Return the attributes of a message: its text, thinking, calls or tool result."""
    out = {f"{key}.role": message["role"]}
    if "finish_reason" in message:
        out[f"{key}.finish_reason"] = message["finish_reason"]
    said = [part for part in message["parts"] if part["type"] in ("text", "reasoning")]
    if len(said) == 1 and said[0]["type"] == "text":
        out[f"{key}.content"] = said[0]["content"]
    else:
        for number, part in enumerate(said):
            place = f"{key}.contents.{number}.message_content"
            out |= {f"{place}.type": part["type"], f"{place}.text": part["content"]}
    for number, call in enumerate(part for part in message["parts"] if part["type"] == "tool_call"):
        place = f"{key}.tool_calls.{number}.tool_call"
        out |= {f"{place}.id": call["id"], f"{place}.function.name": call["name"]}
        out[f"{place}.function.arguments"] = json.dumps(call["arguments"], ensure_ascii=False)
    for part in message["parts"]:
        if part["type"] == "tool_call_response":
            out |= {f"{key}.tool_call_id": part["id"], f"{key}.content": part["response"]}
    return out
