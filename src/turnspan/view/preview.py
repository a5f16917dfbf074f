"""What would leave of a session, for a person to look at: the same reading and the same masking, and nothing is sent.

Rules:

- Traces come one by one, as they are read: a long session is not waited for and not held.
- What is switched off is shown too, masked like everything else, and said to stay here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.delivery.destinations import prices_of
from turnspan.delivery.policy import policy_of, rules_of
from turnspan.settings.config import narrowed
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.terminal import count
from turnspan.trace.redact import redact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace
    from turnspan.trace.redact import Policy


class Leaving(msgspec.Struct, frozen=True):
    """A trace as it would leave."""

    trace: Trace
    masked: dict[str, int]  # how often each rule masked something
    where: str = ""  # where it would go and how much of it, for a person


class Preview:
    """One walk over what would leave of a session, from a place on. After it: what was passed over."""

    def __init__(
        self, session: SessionFile, config: Config, destination: Destination, place: Progress | None = None
    ) -> None:
        self.place = place or Progress()  # where the piece begins that the last trace is of: a walk can begin there
        self._reading = Reading(session, self.place, Ending(is_over=True), prices_of(config))
        self._config = config
        self._destination = destination
        self._rules = rules_of(config)
        self._known: dict[str, tuple[Policy, tuple[str, ...], str]] = {}  # by working directory
        self._copied = 0

    def traces(self, turn: int | None = None) -> Iterator[Leaving]:
        """The traces in the order of leaving; with a number only those of that turn."""
        for piece in self._reading.pieces():
            self._copied += piece.copied
            for trace in piece.traces:
                if turn is None or trace.name == f"Turn {turn}":
                    yield self._masked(trace)
            self.place = piece.progress

    def _masked(self, trace: Trace) -> Leaving:
        cwd = str(trace.facts.get("cwd", ""))
        if cwd not in self._known:
            self._known[cwd] = self._known_about(cwd)
        policy, tags, where = self._known[cwd]
        tagged = msgspec.structs.replace(trace, tags=tuple(dict.fromkeys((*trace.tags, *tags))))
        masked, counts = redact(tagged, policy)
        return Leaving(masked, dict(counts), where)

    def _known_about(self, cwd: str) -> tuple[Policy, tuple[str, ...], str]:
        config, destination = self._config, self._destination
        narrowing = config.narrowing(cwd)
        settings = narrowed(destination.policy, narrowing)
        where = f"to {destination.name}, {settings['capture']}"
        if narrowing.is_off:
            where = f"nowhere: {narrowing.why}"
        if not config.is_enabled:
            where = f"nowhere: switched off by {config.sources['enabled']}"
        return policy_of(settings, config, self._rules), (*map(str, config.values["tags"]), *narrowing.tags), where

    def notes(self) -> Iterator[str]:
        """What a person should know after the walk, a sentence each."""
        noticed = self._reading.anomalies
        if self._copied:
            yield f"not shown: {count(self._copied, 'turn')} copied from other sessions, where they are shown"
        if noticed.unreadable:
            yield f"passed over: {count(noticed.unreadable, 'line')} that cannot be read"
        if noticed.oversized:
            yield f"passed over: {count(noticed.oversized, 'line')} too long to hold"
        if noticed.unknown:
            yield f"passed over: entries of unknown types ({', '.join(sorted({kind for kind, _ in noticed.unknown}))})"
