"""Jaeger: build it if it is not installed, start it on loopback, query it, and know which tags it adds.

`TURNSPAN_JAEGER` names a binary, or `jaeger` (version 2) or `jaeger-all-in-one` (version 1) is on the PATH. Otherwise it
is built with Go, once. Go does not install a module with a replace directive, which Jaeger's has; so it is built from a
module of our own that has the requirements and checksums of Jaeger's. Its pages are not part of the module.
"""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING, Any

from real.compare import Seen
from real.installing import Unavailable, installed, order
from real.server import Server, free_ports

if TYPE_CHECKING:
    from collections.abc import Iterable

    from real.compare import Wanted

MODULE, VERSION = "github.com/jaegertracing/jaeger", "v1.76.0"  # its cmd/jaeger is Jaeger 2.13
BUILD_S = 1_800  # it has 2,300 packages; all of CI may take 90 minutes
NAMES = ("jaeger", "jaeger-all-in-one")
READ_S = 30
MICROSECOND_NS = 1_000  # Jaeger's API knows no finer times
# What it adds to every span: the kind, the scope, and the status in its own words.
ADDED = ("span.kind", "otel.", "error", "internal.", "w3c.", "span.flags")


def find() -> str:
    """Return the binary, built if necessary. Raises Unavailable."""
    chosen = os.environ.get("TURNSPAN_JAEGER")
    found = chosen or next((path for name in NAMES if (path := shutil.which(name))), None)
    return found or str(_built())


def _built() -> Path:
    with installed(f"jaeger-{VERSION}") as (place, is_ready):
        binary = place / "jaeger"
        if not is_ready:
            go = shutil.which("go")
            if go is None:
                raise Unavailable(
                    f"neither {' nor '.join(NAMES)} nor go is on the PATH, and TURNSPAN_JAEGER is not set"
                )
            _build(go, place)
    return binary


def _build(go: str, place: Path) -> None:
    own = place / "module"
    shutil.rmtree(own, ignore_errors=True)
    own.mkdir()
    (own / "go.mod").write_text("module turnspan.test/jaeger\n")
    source = Path(json.loads(order(go, "mod", "download", "-json", f"{MODULE}@{VERSION}", cwd=own))["Dir"])
    _, _, requirements = (source / "go.mod").read_text().partition("\n")
    (own / "go.mod").write_text(f"module turnspan.test/jaeger\n{requirements}")
    (own / "go.sum").write_bytes((source / "go.sum").read_bytes())
    order(go, "mod", "edit", f"-require={MODULE}@{VERSION}", cwd=own)
    order(
        *("nice", "-n", "10", go, "build", "-mod=mod", "-buildvcs=false", "-trimpath", "-ldflags=-s -w"),
        *("-o", place / "jaeger", f"{MODULE}/cmd/jaeger"),
        cwd=own,
        timeout_s=BUILD_S,
    )


class Jaeger(Server):
    """A server that keeps traces in memory."""

    def __init__(self, binary: str, directory: Path) -> None:
        otlp, query, *others = free_ports(5)
        self.url, self.query_url = f"http://127.0.0.1:{otlp}", f"http://127.0.0.1:{query}"
        self.grpc_address = f"127.0.0.1:{others[0]}"
        if "all-in-one" in os.path.basename(binary):  # noqa: PTH119 - a command, perhaps without a directory
            command = [binary, *_flags(otlp, query, others)]
        else:
            config = directory / "jaeger.yaml"  # JSON is YAML
            config.write_text(json.dumps(_config(otlp, query, others)))
            command = [binary, "--config", str(config)]
        self._command, self._directory = command, directory
        self.start(command, directory)

    def restart(self) -> None:
        """Start it again at the same ports, and end it first if it runs: it has forgotten everything."""
        self.__exit__()
        self.start(self._command, self._directory)
        self.__enter__()

    def warnings(self, wanted: Iterable[Wanted]) -> set[str]:
        """Return what Jaeger warns of in these traces, such as clock skew or a negative duration.

        This is the newer API: up to 2.13 the older one knows a host only by the tag `ip`, and warns in any case.
        """
        texts = set()
        for trace_id in {one.key[0] for one in wanted}:
            answer = self._ask(f"/api/v3/traces/{trace_id}")
            assert answer is not None
            resources = answer["result"]["resourceSpans"]
            spans = [
                span for resource in resources for scope in resource["scopeSpans"] for span in scope.get("spans", ())
            ]
            assert spans
            attributes = [attribute for span in spans for attribute in span["attributes"]]
            texts |= {json.dumps(one["value"]) for one in attributes if one["key"] == "@jaeger@warnings"}
        return texts

    def is_up(self) -> bool:
        """Whether it answers queries."""
        return self._ask("/api/services") is not None

    def _ask(self, path: str) -> dict[str, Any] | None:
        return ask(self.query_url, path)

    def wait_for(self, wanted: Iterable[Wanted]) -> list[Seen]:
        """Wait until every trace has as many spans as are wanted, with a deadline; return all spans."""
        counts: dict[str, int] = {}
        for one in wanted:
            counts[one.key[0]] = counts.get(one.key[0], 0) + 1
        deadline, found = time.monotonic() + READ_S, []
        for trace_id, count in counts.items():
            while len(spans := spans_in(self._ask(f"/api/traces/{trace_id}"))) < count and time.monotonic() < deadline:
                time.sleep(0.1)
            found += spans
        return found


def ask(base: str, path: str) -> dict[str, Any] | None:
    """Query the API; None if there is no answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(base + path, timeout=READ_S) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        if error.code == 404:
            return {"data": []} if path.startswith("/api/traces/") else None
        raise
    except OSError:
        return None


def _flags(otlp: int, query: int, others: list[int]) -> list[str]:
    here = "127.0.0.1"
    return [
        "--collector.otlp.enabled=true",
        f"--collector.otlp.http.host-port={here}:{otlp}",
        f"--collector.otlp.grpc.host-port={here}:{others[0]}",
        f"--query.http-server.host-port={here}:{query}",
        f"--query.grpc-server.host-port={here}:{others[1]}",
        f"--admin.http.host-port={here}:{others[2]}",
    ]


def _config(otlp: int, query: int, others: list[int]) -> dict[str, Any]:
    here = "127.0.0.1"
    otlp_grpc, query_grpc, *_ = others
    protocols = {"http": {"endpoint": f"{here}:{otlp}"}, "grpc": {"endpoint": f"{here}:{otlp_grpc}"}}
    return {
        "service": {
            "extensions": ["jaeger_storage", "jaeger_query"],
            "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["jaeger_storage_exporter"]}},
            "telemetry": {"metrics": {"level": "none"}},
        },
        "extensions": {
            "jaeger_storage": {"backends": {"memory": {"memory": {"max_traces": 100_000}}}},
            "jaeger_query": {
                "storage": {"traces": "memory"},
                "http": {"endpoint": f"{here}:{query}"},
                "grpc": {"endpoint": f"{here}:{query_grpc}"},
            },
        },
        "receivers": {"otlp": {"protocols": protocols}},
        "exporters": {"jaeger_storage_exporter": {"trace_storage": "memory"}},
    }


# ---- its answers


def spans_in(answer: dict[str, Any] | None) -> list[Seen]:
    """Return the spans in an answer to `/api/traces/…`."""
    return [_seen(span) for trace in (answer or {}).get("data") or () for span in trace["spans"]]


def _seen(span: dict[str, Any]) -> Seen:
    tags = {tag["key"]: tag["value"] for tag in span["tags"]}
    trace_id = span["traceID"].zfill(32)  # older servers omit leading zeros
    # A link is a reference, too; a parent is a CHILD_OF within the trace.
    parents = [
        reference["spanID"].zfill(16)
        for reference in span.get("references") or ()
        if reference["refType"] == "CHILD_OF" and reference["traceID"].zfill(32) == trace_id
    ]
    start_ns = span["startTime"] * 1_000
    is_error = tags.get("error") in (True, "true") or tags.get("otel.status_code") == "ERROR"
    return Seen(
        trace_id,
        span["spanID"].zfill(16),
        parents[0] if parents else None,
        span["operationName"],
        start_ns,
        start_ns + span["duration"] * 1_000,
        str(tags.get("otel.status_description", "")) if is_error else None,
        {key: value for key, value in tags.items() if key == "error.type" or not key.startswith(ADDED)},
    )


def same(ours: object, theirs: object) -> bool:
    """Whether a tag holds a value of ours: a list is its JSON, and an integral double may be an integer."""
    if isinstance(ours, list):
        return isinstance(theirs, str) and theirs.startswith("[") and json.loads(theirs) == ours
    return ours == theirs
