"""A backend that records its spans and gives configured verdicts; to turnspan it is a third-party backend."""

from __future__ import annotations

from collections import Counter

import msgspec
from reads import as_sent

from turnspan.backends import Answer, Verdict
from turnspan.delivery.destinations import Target
from turnspan.trace.labels import numbered

ACKNOWLEDGED = Verdict(Answer.ACKNOWLEDGED)
LATER = Verdict(Answer.LATER, "come back later")
CREDENTIALS = Verdict(Answer.CREDENTIALS, "HTTP 401: who are you?")
CONFIGURATION = Verdict(Answer.CONFIGURATION, "HTTP 302: over there")
INVALID = Verdict(Answer.INVALID, "HTTP 400: nonsense")
TOO_LARGE = Verdict(Answer.TOO_LARGE, "HTTP 413: too much")


class Row(msgspec.Struct, frozen=True, array_like=True):
    """A span as it was sent."""

    trace_id: str
    span_id: str
    start_ns: int
    name: str
    content: bytes

    @property
    def key(self):
        """The key by which a store identifies a span."""
        return self.trace_id, self.span_id, self.start_ns


def rows_of(traces):
    """Return traces as the rows that a backend would store; a turn has its number as its name, without its prompt."""
    return [
        Row(trace.trace_id.hex(), span.span_id.hex(), span.start_ns, numbered(span.name), as_sent(trace, span))
        for trace in traces
        for span in trace.spans
    ]


class Recording:
    """Gives each request the next of `answers`, and repeats the last.

    An answer is a Verdict, or a function of the rows that returns one. Acknowledged rows are stored; `is_stored_anyway`
    simulates a server that stores spans and fails before it acknowledges them.
    """

    def __init__(self, *answers, max_request_bytes=3_500_000):
        self.name = "recording"
        self.max_request_bytes = max_request_bytes
        self.answers = list(answers) or [ACKNOWLEDGED]
        self.requests = []
        self.rows = []
        self.is_stored_anyway = False
        self.is_closed = False

    def encode(self, traces):
        """Return the rows of all spans as JSON."""
        return msgspec.json.encode(rows_of(traces))

    def send(self, body):
        """Record the rows and return the next verdict."""
        rows = msgspec.json.decode(body, type=list[Row])
        self.requests.append(rows)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        verdict = answer(rows) if callable(answer) else answer
        if verdict.answer in {Answer.ACKNOWLEDGED, Answer.PARTIAL} or self.is_stored_anyway:
            self.rows += rows
        return verdict

    def close(self):
        """Record that the backend was closed."""
        self.is_closed = True

    @property
    def names(self):
        """The names of the stored spans, in order of arrival."""
        return [row.name for row in self.rows]

    @property
    def twice(self):
        """The keys of spans that were stored more than once."""
        return [key for key, count in Counter(row.key for row in self.rows).items() if count > 1]


def refusing(*names, verdict=INVALID):
    """Return an answer that gives this verdict if one of these spans is in a request."""
    return lambda rows: verdict if any(row.name in names for row in rows) else ACKNOWLEDGED


def target_for(config, backend, number=0):
    """Return a target of a configuration with its backend replaced."""
    target = Target(config.destinations[number], config)
    target.backend = backend  # an existing backend is not opened again
    target.close = backend.close
    return target
