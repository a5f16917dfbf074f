"""The public interface for scripts, notebooks and third-party backends: the names in `__all__`, and nothing else.

docs/api.md has examples, which the tests run. What is listed here changes only with a new major version; every other
module is private. `import turnspan` loads none of it: a hook imports the package.

    from turnspan import api

    for session in api.sessions():
        total = session.tally()
        print(session.session_id, total.turns, total.usage.output, total.cost_usd)
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from turnspan.backends import (
    Answer,
    Backend,
    Erasable,
    Erased,
    Finding,
    Linkable,
    Outcome,
    Probe,
    Probeable,
    Readable,
    Verdict,
)
from turnspan.backends.naming import scrubbed
from turnspan.delivery import state
from turnspan.delivery.destinations import Target, destination_named
from turnspan.delivery.policy import rules_of
from turnspan.errors import BackendError, ConfigError, StateError, TranscriptError, TurnspanError
from turnspan.secrets.replace import compile_rules
from turnspan.secrets.replace import mask as _mask
from turnspan.settings.config import load_config
from turnspan.source import sessions as _files
from turnspan.source.find import find_session
from turnspan.source.reader import Reader
from turnspan.source.scan import modified_ns
from turnspan.trace.cost import cost_usd
from turnspan.trace.model import (
    Json,
    Kind,
    Link,
    Media,
    Message,
    Reasoning,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
    parts_of,
)
from turnspan.trace.redact import CaptureMode, Policy, redact
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

__all__ = [
    "Answer",
    "Backend",
    "BackendError",
    "ConfigError",
    "Erasable",
    "Erased",
    "Finding",
    "Json",
    "Kind",
    "Link",
    "Linkable",
    "Media",
    "Message",
    "Outcome",
    "Probe",
    "Probeable",
    "Readable",
    "Reasoning",
    "Session",
    "Span",
    "StateError",
    "Tally",
    "Text",
    "ToolCall",
    "ToolResult",
    "Trace",
    "TranscriptError",
    "Turn",
    "TurnspanError",
    "Usage",
    "Verdict",
    "cost_usd",
    "mask",
    "scrubbed",
    "session",
    "sessions",
    "tally",
]


class Turn(msgspec.Struct, frozen=True):
    """One prompt and everything that answered it, also what was written after the turn had ended."""

    trace_id: bytes
    name: str  # "Turn 3: Fix the loader"
    spans: tuple[Span, ...]  # parents before children

    @property
    def number(self) -> int | None:
        """The number of the turn in its session; None for work of agents that belongs to no turn."""
        number = self.spans[0].facts.get("turn_number") if self.spans[0].kind is Kind.TURN else None
        return number if isinstance(number, int) else None

    @property
    def start(self) -> datetime:
        """When it began, in UTC."""
        return datetime.fromtimestamp(self.spans[0].start_ns / 1e9, UTC)

    @property
    def end(self) -> datetime:
        """When it ended, in UTC."""
        return datetime.fromtimestamp(self.spans[0].end_ns / 1e9, UTC)

    @property
    def prompt(self) -> str:
        """The text of the prompt."""
        return _text_of(self.spans[0].input)

    @property
    def answer(self) -> str:
        """The text of the last response."""
        return _text_of(self.spans[0].output)

    @property
    def generations(self) -> tuple[Span, ...]:
        """The responses of the model, those of subagents included."""
        return self._of_kind(Kind.GENERATION)

    @property
    def tools(self) -> tuple[Span, ...]:
        """The tool calls, those of subagents included."""
        return self._of_kind(Kind.TOOL)

    @property
    def agents(self) -> tuple[Span, ...]:
        """The subagents."""
        return self._of_kind(Kind.AGENT)

    def tally(self) -> Tally:
        """Return tokens, cost and counts of this turn."""
        trace = Trace(trace_id=self.trace_id, name=self.name, session_id="", client_version="", spans=self.spans)
        return tally_of(trace)

    def _of_kind(self, kind: Kind) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.kind is kind)


class Session(msgspec.Struct, frozen=True):
    """A session of Claude Code: a transcript on disk."""

    session_id: str
    path: Path

    @property
    def directory(self) -> str:
        """The working directory in which it began; "" if it is not recorded."""
        return _files.cwd_of(self.path)

    @property
    def modified(self) -> datetime:
        """When the transcript was last written to, in UTC."""
        return datetime.fromtimestamp(modified_ns(self.path) / 1e9, UTC)

    def traces(
        self, *, capture: Literal["full", "redacted", "metadata"] | None = None, to: str | None = None
    ) -> Iterator[Trace]:
        """Yield the traces in the order of export, as they are read.

        By default they are what your settings export to the destination `to`, or to the first one, also if the project
        is switched off. `capture` overrides the capture mode: "full" masks nothing but turnspan's own keys.
        A trace_id can occur twice: the spans of a background agent are exported when it has finished.
        """
        config = load_config(os.environ)
        target = Target(destination_named(config, to), config)
        policy = None if capture is None else Policy(_mode(capture), rules=rules_of(config))
        known = state.peek(config.home, self.session_id) if _files.is_safe_id(self.session_id) else None
        mask = target.mask.of_session(known.capture if known is not None else "")
        for trace in Reader.for_people(target.prices).traces(_files.SessionFile(self.session_id, self.path)):
            yield (mask.masked(trace) if policy is None else redact(trace, policy)).trace

    def turns(self, *, capture: Literal["full", "redacted", "metadata"] | None = None) -> list[Turn]:
        """Return the turns, each with all of its spans; see `traces` for `capture`."""
        found: dict[bytes, list[Trace]] = {}
        for trace in self.traces(capture=capture):
            found.setdefault(trace.trace_id, []).append(trace)
        spans = {trace_id: tuple(span for each in traces for span in each.spans) for trace_id, traces in found.items()}
        return [Turn(trace_id, found[trace_id][0].name, spans[trace_id]) for trace_id in found if spans[trace_id]]

    def tally(self) -> Tally:
        """Return tokens, cost and counts of the session."""
        return tally(self.traces(capture="metadata"))


def sessions(home: str | os.PathLike[str] | None = None) -> list[Session]:
    """Return all sessions below Claude Code's directory, `home` or your own, the one written to last first."""
    root = Path(home) if home is not None else load_config(os.environ).claude_home
    found = _files.each_once(_files.all_sessions(_files.projects_dir(root)))
    found.sort(key=lambda session: modified_ns(session.path), reverse=True)
    return [Session(session.session_id, session.path) for session in found]


def session(name: str | os.PathLike[str]) -> Session:
    """Return a session by its id, the beginning of one, or the path of its transcript. Raises TranscriptError."""
    found = find_session(_files.projects_dir(load_config(os.environ).claude_home), os.fspath(name))
    return Session(found.session_id, found.path)


def tally(traces: Iterable[Trace]) -> Tally:
    """Return the sum of tokens, cost and counts over traces."""
    total = Tally()
    for trace in traces:
        total += tally_of(trace)
    return total


def mask(text: str, patterns: Mapping[str, str] | None = None) -> tuple[str, dict[str, int]]:
    """Return a text with its secrets masked, and how often each rule matched.

    `patterns` are secrets of your own, a regular expression for each name. Raises ConfigError if one cannot be used.
    """
    masked = _mask(text, rules=compile_rules(patterns))
    return masked.text, dict(masked.counts)


def _mode(capture: str) -> CaptureMode:
    try:
        return CaptureMode(capture)
    except ValueError:
        raise ConfigError(f"capture is {capture!r}", hint=f"allowed: {', '.join(CaptureMode)}") from None


def _text_of(content: tuple[Message, ...] | Json | str | None) -> str:
    if isinstance(content, str):
        return content
    if isinstance(content, Json):
        return content.text
    return "\n".join(part.text for part in parts_of(content, Text))
