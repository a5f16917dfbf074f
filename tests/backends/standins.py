"""Stand-ins for Langfuse 4 and Tempo, which no package registry has: servers on loopback that behave as the real ones did.

They are not the real servers. They do what was seen when real ones were read back span by span:

- Langfuse acknowledges a request and stores it later (`work`). A span that is sent twice is listed twice until its
  database merges the two (`merge`). The page of a trace is below its project; `/trace/ID` does not exist.
- Tempo stores what it is sent, and shows a span twice that was sent twice.
"""

import json
import socket

from backends.langfuse_records import PROJECT, observation
from backends.servers import OK, reply


class LangfuseStandIn:
    """A stand-in for Langfuse 4, with a worker that lags behind."""

    def __init__(self):
        self.queue = []  # acknowledged, and not stored yet
        self.rows = []  # stored: (trace id, span id), a span that was sent twice is here twice
        self.requests = 0  # with spans
        self.lose_responses = 0  # how many of the next requests are queued without a response

    def __call__(self, connection, request):
        """Answer a request, or close the connection after it was queued."""
        if request.method == "POST" and request.spans:
            self.requests += 1
            self.queue += [(span["trace_id"], span["span_id"]) for span in request.spans]
            if self.lose_responses:
                self.lose_responses -= 1
                connection.shutdown(socket.SHUT_RDWR)
                return
        connection.sendall(self._answer(request))

    def work(self):
        """Store what is queued."""
        self.rows += self.queue
        self.queue = []

    def merge(self):
        """Merge equal rows, as the database does some time later."""
        self.rows = sorted(set(self.rows))

    def _answer(self, request):
        path, _, query = request.path.partition("?")
        if request.method == "POST":
            return OK
        if path == "/api/public/health":
            return reply(200, b'{"status": "OK", "version": "4.16.0"}')
        if path == "/api/public/projects":
            return reply(200, json.dumps(PROJECT).encode())
        if path == "/api/public/v2/observations":
            asked = dict(pair.split("=") for pair in query.split("&"))
            found = [observation(span, trace) for trace, span in self.rows if trace == asked["traceId"]]
            return reply(200, json.dumps({"data": found, "meta": {}}).encode())
        page = path.removeprefix(f"/project/{PROJECT['data'][0]['id']}/traces/")
        is_page = page != path and any(trace == page for trace, _ in self.rows)
        return reply(200, b"<html>a trace</html>", "text/html") if is_page else reply(404)


class TempoStandIn:
    """A stand-in for Tempo."""

    def __init__(self):
        self.rows = []  # (trace id, span id)

    def __call__(self, connection, request):
        """Store the spans of a request, and acknowledge it."""
        self.rows += [(span["trace_id"], span["span_id"]) for span in request.spans]
        connection.sendall(OK)
