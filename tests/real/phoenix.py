"""Arize Phoenix from PyPI, on loopback: how it is installed, started, asked, and what it makes of a span.

Rules:

- It is installed once, with everything it needs as of one day, into a virtual environment in a cache outside the project:
  `TURNSPAN_TEST_CACHE`, else the user's own (`installing`).
- It sees nothing of this machine but that directory and its own data, and reaches nobody: no telemetry, loopback only, and
  a proxy that does not exist for whatever else it might want to fetch.
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
AS_OF = "2026-11-16"  # what it needs is taken as it was on this day
READ_S = 60
# It would listen for gRPC on every interface.
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
    """Install Phoenix unless it is there; its interpreter."""
    with installed(f"phoenix-{VERSION}") as (place, is_ready):
        python = place / "bin" / "python"
        if not is_ready:
            _install_into(place, python)
    return python


def _install_into(place: Path, python: Path) -> None:
    """Make the environment. uv takes seconds for what takes pip minutes; an index that only pip knows is left to pip."""
    wanted = f"arize-phoenix=={VERSION}"
    order(sys.executable, "-m", "venv", place)
    try:
        order(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "uv")
        uv = (python, "-m", "uv", "pip", "install", "-q", "--no-cache", "--python", python)
        order(*uv, "--exclude-newer", AS_OF, wanted)
    except Unavailable:
        order(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", wanted)


class Phoenix(Server):
    """A server with a database of its own."""

    START_S = 180  # a new database is brought up through every migration there has been

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
        """Whether it answers."""
        try:
            return self._ask("GET", "/healthz") is not None
        except OSError:
            return False

    def _ask(self, method: str, path: str, body: object = None) -> bytes:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(
            self.url + path, data=data, method=method, headers={"Content-Type": "application/json"}
        )
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # whatever proxy this machine has
        with opener.open(request, timeout=READ_S) as answer:
            return answer.read()

    # ---- what it is asked

    def forget(self, project: str) -> None:
        """Have the traces of a project deleted: the same span cannot be in two of them."""
        try:
            self._ask("DELETE", f"/v1/projects/{project}/traces?start_time=2000-01-01&end_time=2100-01-01")
        except urllib.error.HTTPError as error:
            if error.code != 404:  # there is no such project yet
                raise

    def spans(self, project: str) -> list[Seen]:
        """All spans of a project, page by page."""
        found, cursor = [], ""
        while True:
            try:
                page = json.loads(self._ask("GET", f"/v1/projects/{project}/spans?limit=1000{cursor}"))
            except urllib.error.HTTPError as error:
                if error.code == 404:  # nothing has come yet
                    return []
                raise
            found += [_seen(one) for one in page["data"]]
            if not page["next_cursor"]:
                return found
            cursor = f"&cursor={page['next_cursor']}"

    def wait_for(self, project: str, count: int) -> list[Seen]:
        """Wait until a project has so many spans, as Phoenix stores in its own time; then all that there are."""
        deadline = time.monotonic() + READ_S
        while len(found := self.spans(project)) < count and time.monotonic() < deadline:
            time.sleep(0.2)
        return found

    def query(self, text: str, **variables: object) -> dict[str, Any]:
        """Ask what its own pages ask."""
        answer = json.loads(self._ask("POST", "/graphql", {"query": text, "variables": variables}))
        assert not answer.get("errors"), answer["errors"]
        return answer["data"]

    def project(self, name: str, fields: str) -> dict[str, Any]:
        """What its page of a project shows."""
        found = self.query(f"query {{ projects {{ edges {{ node {{ name {fields} }} }} }} }}")
        return next(edge["node"] for edge in found["projects"]["edges"] if edge["node"]["name"] == name)


# ---- what it tells


def _seen(told: dict[str, Any]) -> Seen:
    return Seen(
        told["context"]["trace_id"],
        told["context"]["span_id"],
        told["parent_id"],
        told["name"],
        _ns(told["start_time"]),
        _ns(told["end_time"]),
        told["status_message"] if told["status_code"] == "ERROR" else None,
        {**told["attributes"], "openinference.span.kind": told["span_kind"]},
    )


def _ns(text: str) -> int:
    at = datetime.fromisoformat(text)
    return int(at.replace(microsecond=0).timestamp()) * 1_000_000_000 + at.microsecond * 1_000


# ---- what it adds: OpenInference's names for what we say in GenAI's, on which all of its pages are built


def derived(wanted: Wanted) -> dict[str, Any]:
    """What Phoenix must make of a span."""
    ours, usage = wanted.attributes, wanted.span.usage
    out: dict[str, Any] = {}
    if wanted.span.kind == "generation":
        out |= {"llm.provider": "anthropic", "llm.system": "anthropic", "llm.model_name": ours["gen_ai.request.model"]}
        out["llm.finish_reason"] = ours["gen_ai.response.finish_reasons"][0]
        if "gen_ai.request.max_tokens" in ours:
            out["llm.invocation_parameters"] = json.dumps({"max_tokens": ours["gen_ai.request.max_tokens"]})
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
    """A message with its words, its thinking, its calls, or the result that it brings."""
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
