"""What would leave of a session, for a person to look at: the same reading and the same masking, and nothing is sent.

Rules:

- A file that is not a transcript is refused with one sentence, before anything is shown.
- Traces come one by one, as they are read: a long session is not waited for and not held.
- What is switched off is shown too, masked like everything else, and said to stay here.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery.destinations import prices_of
from turnspan.delivery.policy import policy_of, rules_of
from turnspan.errors import ConfigError, TranscriptError
from turnspan.settings.config import narrowed
from turnspan.source import tail
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.terminal import count
from turnspan.trace.redact import redact
from turnspan.transcript.lines import Noticed, is_record, parse

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.cost import Prices
    from turnspan.trace.model import Trace
    from turnspan.trace.redact import Policy

_LOOKED_AT_BYTES: Final = 64 * 1024 * 1024  # a transcript shows itself in its first lines, and no damage is that long
_HEAD_BYTES: Final = 8192
_WHERE: Final = "transcripts are the .jsonl files below ~/.claude/projects; `turnspan sessions` lists them"


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
        noticed = self._reading.noticed
        if self._copied:
            yield f"not shown: {count(self._copied, 'turn')} copied from other sessions, where they are shown"
        if noticed.unreadable:
            yield f"passed over: {count(noticed.unreadable, 'line')} that cannot be read"
        if noticed.oversized:
            yield f"passed over: {count(noticed.oversized, 'line')} too long to hold"
        if noticed.unknown:
            yield f"passed over: entries of unknown types ({', '.join(sorted({kind for kind, _ in noticed.unknown}))})"


def destination_named(config: Config, name: str | None) -> Destination:
    """A destination by its name; the first one without."""
    for destination in config.destinations:
        if name in {None, destination.name}:
            return destination
    names = ", ".join(destination.name for destination in config.destinations)
    raise ConfigError(f"there is no destination {name!r}", hint=f"there are: {names}")


def require_transcript(path: Path) -> None:
    """Raise one sentence if a file is anything but a session's transcript."""
    descriptor = tail.open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        lines = tail.complete_lines(descriptor, until=min(size, _LOOKED_AT_BYTES), is_whole=is_record)
        if not any(line.data is not None and _is_entry(line.data) for line in lines):
            head = tail.read_line_at(descriptor, 0, _HEAD_BYTES)
            raise TranscriptError(f"{str(path)!r} {_what_it_is(size, head)}", hint=_WHERE)
    finally:
        os.close(descriptor)
    if path.name.startswith("agent-"):
        raise TranscriptError(
            f"{str(path)!r} is the transcript of a subagent", hint="show the session that launched it"
        )


def _is_entry(line: bytes) -> bool:
    """Whether a line is of a type that Claude Code writes, also one that no trace needs."""
    noticed = Noticed()
    if parse(line, noticed):
        return True
    return line.lstrip().startswith(b"{") and noticed.is_clean and not noticed.unknown


def _what_it_is(size: int, head: bytes) -> str:
    if size == 0:
        return "is empty"
    if b"\0" in head:
        return "is not a transcript: it holds binary data"
    if size < _HEAD_BYTES and b"\n" not in head:
        return "is not a transcript: it holds no complete line"
    return "is not a transcript: no line of it is an entry of Claude Code's"


def all_traces(session: SessionFile, prices: Prices | None) -> Iterator[Trace]:
    """All traces of a session, as they were built: nothing is masked."""
    for piece in Reading(session, Progress(), Ending(is_over=True), prices).pieces():
        yield from piece.traces
