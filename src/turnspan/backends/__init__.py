"""Backends: where traces are sent, and what a response means.

A backend turns traces into bytes (`encode`, pure) and delivers bytes (`send`). It does not decide what happens to a
turn: it reads a `Verdict` from the response, and `delivery` acts on it. Third parties add a backend with an entry point
in the group `turnspan.backends`; docs/dev/backends.md shows one.

Rules:

- `encode` is a pure function of the traces: the same traces give the same bytes.
- `send` never raises for anything a network or a server does; it returns a Verdict.
- `send` honours its deadline, never follows a redirect, and reads at most a few MB of a response.
- `encode`, `send` and `close` are required. `stored`, `erase`, `probe`, `link` and `send_all` are optional abilities,
  each one a Protocol below. Commands ask for the ability with `isinstance`, never for the type of a destination. A
  backend whose configuration decides whether it has an ability is two classes.
"""

from __future__ import annotations

import time
from collections import Counter
from enum import StrEnum
from typing import TYPE_CHECKING, Final, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from turnspan.trace.model import Trace

_PAUSES_S: Final = (0.5, 1.0, 2.0)  # before `stored` is asked again
_GIVE_UP_AFTER: Final = 3  # traces without an answer


class Answer(StrEnum):
    """What a response means for the request."""

    ACKNOWLEDGED = "acknowledged"  # commit
    PARTIAL = "partial"  # some spans were rejected for good; the rest is stored
    CONFIGURATION = "configuration"  # redirect, HTML, 404, TLS: keep everything, report it to the user
    CREDENTIALS = "credentials"  # 401, 403: keep everything, report it to the user
    LATER = "later"  # 408, 429, 5xx, refused, reset, timeout: keep everything, retry
    TOO_LARGE = "too_large"  # 413 or over the size limit: split
    INVALID = "invalid"  # 400, 422: bisect


class Verdict(msgspec.Struct, frozen=True):
    """An answer, and its details."""

    answer: Answer
    reason: str = ""  # one line, without credentials
    retry_after_s: float | None = None
    rejected: int = 0  # PARTIAL: how many spans
    is_unknown: bool = False  # LATER after the request was sent: the server may have stored it


class Backend(Protocol):
    """A destination for traces: what every backend must have."""

    name: str
    max_request_bytes: int

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """Encode all spans of these traces as one request body."""

    def send(self, body: bytes) -> Verdict:
        """Deliver one request body and read the verdict from the response."""

    def close(self) -> None:
        """Close connections."""


# ---- abilities


class Outcome(StrEnum):
    """The result of one step of a probe."""

    GOOD = "good"
    BAD = "bad"  # it cannot be used until the user changes something
    UNKNOWN = "unknown"  # it may work; check it


class Finding(msgspec.Struct, frozen=True):
    """One fact that a probe found."""

    outcome: Outcome
    says: str
    hint: str = ""  # what to do about it


class Probe(msgspec.Struct, frozen=True):
    """Whether a destination can be used now, and as whom."""

    answer: Answer  # ACKNOWLEDGED: it can be used
    says: str = ""  # one sentence, without credentials
    hint: str = ""
    version: str = ""  # of the server, where known
    project: str = ""  # that the credentials belong to, where known
    findings: tuple[Finding, ...] = ()  # in the order of the steps; empty: the sentence above is all

    @property
    def outcome(self) -> Outcome:
        """Good, bad, or unknown: a transient failure."""
        if self.answer is Answer.ACKNOWLEDGED:
            return Outcome.GOOD
        return Outcome.UNKNOWN if self.answer is Answer.LATER else Outcome.BAD


class Erased(msgspec.Struct, frozen=True):
    """How much of a session was deleted from a destination."""

    number: int
    unit: str = "trace"
    remark: str = ""  # more about it, as the end of a sentence
    is_complete: bool = True  # False: there may be more that was not found


@runtime_checkable
class Readable(Protocol):
    """A backend that can report what it stores."""

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return the ids of the stored spans of a trace; None if there was no answer.

        A backend may say more in attributes: `silence`, the reason for None; `doubles`, the spans of this trace that
        are stored more than once; `lag_s`, how long it may take until what was acknowledged is shown.
        """


@runtime_checkable
class Erasable(Protocol):
    """A backend that can delete."""

    def erase(self, session_id: str, trace_ids: Collection[bytes]) -> Erased:
        """Delete these traces and all others of the session. Raises TurnspanError."""


@runtime_checkable
class Probeable(Protocol):
    """A backend that can report whether it is reachable."""

    def probe(self) -> Probe:
        """Check whether the destination can be used, without storing anything there. Does not raise."""


@runtime_checkable
class Linkable(Protocol):
    """A backend whose traces have a page."""

    def link(self, trace_id: bytes) -> str | None:
        """Return the URL of a trace in the destination's UI, without a network request; None if unknown."""


@runtime_checkable
class Grouping(Protocol):
    """A backend that stores many requests for little more than the cost of one."""

    def send_all(self, bodies: Sequence[bytes]) -> Verdict:
        """Deliver several request bodies: all of them, or none."""


def probe(backend: Backend) -> Probe:
    """Probe a backend; one without the ability is sent an empty request."""
    return backend.probe() if isinstance(backend, Probeable) else probe_by_sending(backend)


def probe_by_sending(backend: Backend) -> Probe:
    """Send an empty request, which stores nothing, and return what its verdict says about the destination."""
    verdict = backend.send(backend.encode([]))
    # An empty request may be invalid: the server still understood it.
    if verdict.answer in {Answer.ACKNOWLEDGED, Answer.PARTIAL, Answer.INVALID}:
        return Probe(Answer.ACKNOWLEDGED)
    return Probe(verdict.answer, verdict.reason)


# ---- asking what is stored


def repeated(spans: Sequence[bytes]) -> frozenset[bytes]:
    """Return the ids that occur more than once."""
    return frozenset(span for span, times in Counter(spans).items() if times > 1)


def reader_of(backend: Backend, sleep: Callable[[float], None] = time.sleep) -> StoredReader | None:
    """Return a reader for a backend; None if it cannot report what it stores."""
    return StoredReader(backend, sleep) if isinstance(backend, Readable) else None


class StoredReader:
    """Retries `stored`; after several traces without an answer it stops asking."""

    def __init__(self, backend: Readable, sleep: Callable[[float], None]) -> None:
        self._backend = backend
        self._sleep = sleep
        self._unanswered = 0

    @property
    def silence(self) -> str:
        """Why there was no answer; empty if the backend does not say."""
        return str(getattr(self._backend, "silence", ""))

    @property
    def doubles(self) -> frozenset[bytes]:
        """The spans of the last trace that are stored more than once, where the backend can say it."""
        return frozenset(getattr(self._backend, "doubles", ()))

    @property
    def lag_s(self) -> float:
        """How long it may take until what was acknowledged is shown."""
        return float(getattr(self._backend, "lag_s", 0.0))

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return the ids of the stored spans of a trace; None if there was no answer."""
        for pause_s in (*_PAUSES_S, None):
            found = self._backend.stored(trace_id) if self._unanswered < _GIVE_UP_AFTER else None
            if found is not None:
                self._unanswered = 0
                return found
            if pause_s is None or self._unanswered >= _GIVE_UP_AFTER:
                break
            self._sleep(pause_s)
        self._unanswered += 1
        return None
