"""Records of Langfuse's API with every field that a server always sends, and a server that stores what it is sent."""

import json

from backends.servers import OK, reply

NO_TRACE = b'{"data": null, "errors": [{"code": 404, "msg": "trace not found"}]}'  # Jaeger's
PROJECT = {
    "data": [
        {
            "id": "p1",
            "name": "loom",
            "organization": {"id": "o1", "name": "weavers"},
            "metadata": {},
            "retentionDays": 30,
        }
    ]
}


def observation(id_, trace_id="0" * 32):
    """An observation with the fields of the group `core`."""
    return {
        "id": id_,
        "traceId": trace_id,
        "startTime": "2026-01-01T00:00:00.000Z",
        "endTime": None,
        "projectId": "p1",
        "parentObservationId": None,
        "type": "SPAN",
    }


class Store:
    """A server that stores the spans it is sent, and answers questions about them as Langfuse and as Jaeger do."""

    def __init__(self):
        self.traces = {}  # trace id → (session id, span ids)

    def __call__(self, connection, request):
        """Answer a request."""
        connection.sendall(self._answer(request))

    def _answer(self, request):
        path, _, query = request.path.partition("?")
        if request.method == "POST":
            for span in request.spans:
                _, spans = self.traces.setdefault(span["trace_id"], (span["attributes"]["session.id"], set()))
                spans.add(span["span_id"])
            return OK
        if request.method == "DELETE":
            for trace_id in json.loads(request.body)["traceIds"]:
                self.traces.pop(trace_id, None)
            return reply(200, b'{"message": "Traces deleted successfully"}')
        if path == "/api/public/health":
            return reply(200, b'{"status": "OK", "version": "4.1.0"}')
        if path == "/api/public/projects":
            return reply(200, json.dumps(PROJECT).encode())
        if path == "/api/public/v2/observations":
            asked = dict(pair.split("=") for pair in query.split("&"))
            found = [
                observation(span_id, trace_id)
                for trace_id, (session_id, spans) in sorted(self.traces.items())
                for span_id in sorted(spans)
                if asked.get("traceId", trace_id) == trace_id and asked.get("sessionId", session_id) == session_id
            ]
            return reply(200, json.dumps({"data": found, "meta": {}}).encode())
        if path.startswith("/api/traces/"):
            _, spans = self.traces.get(path.removeprefix("/api/traces/"), ("", ()))
            data = [{"spans": [{"spanID": span_id.lstrip("0")} for span_id in spans]}]
            return reply(200, json.dumps({"data": data}).encode()) if spans else reply(404, NO_TRACE)
        if path == "/api/services":
            return reply(200, b'{"data": ["claude-code"], "total": 1}')
        return reply(404)
