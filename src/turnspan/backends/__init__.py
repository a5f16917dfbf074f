"""Where traces go: the contract of a backend, and what an answer means.

A backend turns traces into bytes (`encode`, pure) and delivers bytes (`send`). It never decides what becomes of a
turn: it reads a `Verdict` off the response, and `deliver` acts on it. Third parties add a backend by an entry point in
the group `turnspan.backends`; docs/backends.md shows one.

Rules:

- `encode` is a pure function of the traces: the same traces give the same bytes.
- `send` never raises for anything a network or a server does; it answers with a Verdict.
- `send` honours its deadline, never follows a redirect, and reads at most a few MB of an answer.
"""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.trace.model import Trace


class Answer(StrEnum):
    """What a response means for what was sent."""

    ACKNOWLEDGED = "acknowledged"  # commit
    PARTIAL = "partial"  # some spans were rejected for good; the rest is stored
    CONFIGURATION = "configuration"  # redirect, HTML, 404, TLS: hold everything, tell the person
    CREDENTIALS = "credentials"  # 401, 403: hold everything, tell the person
    LATER = "later"  # 408, 429, 5xx, refused, reset, timeout: hold, try again
    TOO_LARGE = "too_large"  # 413 or over the size limit: split
    INVALID = "invalid"  # 400, 422: bisect


class Verdict(msgspec.Struct, frozen=True):
    """An answer, with what a person would want to know about it."""

    answer: Answer
    reason: str = ""  # one line, without credentials
    retry_after_s: float | None = None
    rejected: int = 0  # PARTIAL: how many spans
    is_unknown: bool = False  # LATER after the request went out: the server may have stored it


class Backend(Protocol):
    """A destination that takes traces."""

    name: str
    max_request_bytes: int

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """All spans of these traces as one request body."""

    def send(self, body: bytes) -> Verdict:
        """Deliver one request body and read the verdict off the answer."""

    def close(self) -> None:
        """Let go of connections."""


@runtime_checkable
class Holdings(Protocol):
    """A backend, or what stands beside it, that says what it holds."""

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """The span ids it holds of a trace; None when it cannot say."""
