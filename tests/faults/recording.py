"""A backend that records its spans and responds as a test wants: a third-party one, as far as turnspan knows."""

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
    """Traces as the rows that a backend would store; a turn has its number as its name, without its prompt."""
    return [
        Row(trace.trace_id.hex(), span.span_id.hex(), span.start_ns, numbered(span.name), as_sent(trace, span))
        for trace in traces
        for span in trace.spans
    ]


class Recording:
    """Answers each request with the next of `answers`, the last one for ever.

    An answer is a Verdict, or a function of the rows that gives one. What is acknowledged is stored; `is_stored_anyway`
    is for a server that keeps what it was sent and never gets to say so.
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
        """Every span with all that belongs to it."""
        return msgspec.json.encode(rows_of(traces))

    def send(self, body):
        """Write the rows down and answer."""
        rows = msgspec.json.decode(body, type=list[Row])
        self.requests.append(rows)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        verdict = answer(rows) if callable(answer) else answer
        if verdict.answer in {Answer.ACKNOWLEDGED, Answer.PARTIAL} or self.is_stored_anyway:
            self.rows += rows
        return verdict

    def close(self):
        """Note that nothing more will come."""
        self.is_closed = True

    @property
    def names(self):
        """The names of what is stored, in the order of arrival."""
        return [row.name for row in self.rows]

    @property
    def twice(self):
        """What was stored more than once."""
        return [key for key, count in Counter(row.key for row in self.rows).items() if count > 1]


def refusing(*names, verdict=INVALID):
    """Give an answer that is this verdict whenever one of these spans is in a request."""
    return lambda rows: verdict if any(row.name in names for row in rows) else ACKNOWLEDGED


def target_for(config, backend, number=0):
    """Return a destination of a configuration with another backend behind it."""
    target = Target(config.destinations[number], config)
    target.backend = backend  # what is there already is not made again
    target.close = backend.close
    return target
