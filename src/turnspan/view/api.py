"""The records that the page loads: the sessions, the turns of a session, the spans of a turn.

Rules:

- Records are streamed as they are read: the page fills while a long session is still being read.
- A record is ready to display, with the same texts and figures as `show`.
- A turn is read again from the start of its piece, so opening one of ten thousand reads only some hundred spans.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source.validate import require_transcript
from turnspan.terminal import plain, unstyled
from turnspan.trace.labels import numbered
from turnspan.trace.model import Kind
from turnspan.trace.one_liner import gist_of
from turnspan.trace.tally import Tally, tally_of
from turnspan.view.overview import overview
from turnspan.view.preview import Preview
from turnspan.view.sessions_table import columns_of
from turnspan.view.tree import (
    Layout,
    badges_of,
    by_parent,
    details_of,
    figures_of,
    foot_lines,
    head_of,
    name_of,
    sections_of,
    time_of_day,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.settings.config import Config, Destination
    from turnspan.source.progress import Progress
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Span, Trace
    from turnspan.view.preview import PreviewedTrace

Record = dict[str, object]

_LAYOUT: Final = Layout(width=100)  # of the lines below a session; the page wraps them itself
_COLUMNS: Final = ("age", "id", "turns", "tokens", "cost", "sent", "project", "title")


class Position(msgspec.Struct, frozen=True):
    """The position of a trace: the start of its piece, and its number in it."""

    place: Progress
    number: int
    trace_id: bytes


def session_records(config: Config, *, limit: int, project: str | None) -> Iterator[Record]:
    """A record for each of the newest sessions, and a note for each that could not be read."""
    unread: dict[str, str] = {}
    for summary, sent in overview(config, limit=limit, project=project, unread=unread):
        columns = columns_of(summary, now_ns=time.time_ns(), sent=sent)
        yield {
            "is": "session",
            **dict(zip(_COLUMNS, columns, strict=True)),
            "session": summary.session_id,
            "directory": plain(summary.project),
            "errors": summary.tally.errors,
        }
    for why in unread.values():
        yield {"is": "note", "text": plain(f"skipped: {why}")}


class OpenSession:
    """A session that the page has opened: first its turns, then the spans of any of them."""

    def __init__(self, session: SessionFile, config: Config, destination: Destination) -> None:
        self._session = session
        self._config = config
        self._destination = destination
        self._positions: list[Position] = []

    def records(self) -> Iterator[Record]:
        """The head of the session, a record for each turn, and the totals."""
        require_transcript(self._session.path)
        preview = Preview(self._session, self._config, self._destination)
        total, masked = Tally(), Counter[str]()
        positions: list[Position] = []
        self._positions = positions
        for previewed in preview.traces():
            if not previewed.trace.spans:
                continue
            if not positions:
                facts = head_of(previewed, str(self._session.path), _LAYOUT)
                yield {"is": "head", "session": previewed.trace.session_id, "facts": facts}
            is_same = bool(positions) and positions[-1].place is preview.place
            positions.append(
                Position(preview.place, positions[-1].number + 1 if is_same else 0, previewed.trace.trace_id)
            )
            yield {"is": "turn", "at": len(positions) - 1, **_turn_record(previewed)}
            total += tally_of(previewed.trace)
            masked.update(previewed.masked)
        if positions:
            yield {"is": "foot", "lines": [unstyled(line) for line in foot_lines(total, masked, _LAYOUT)]}
        else:
            yield {"is": "note", "text": "this session has no turns yet"}
        for note in preview.notes():
            yield {"is": "note", "text": plain(note)}

    def trace_record(self, at: int) -> Record:
        """One of the traces, with all its spans. Raises TranscriptError if the file has changed."""
        if 0 <= at < len(self._positions):
            position = self._positions[at]
            number = 0
            for previewed in Preview(self._session, self._config, self._destination, position.place).traces():
                if previewed.trace.spans and number == position.number:
                    if previewed.trace.trace_id == position.trace_id:
                        return _trace_record(previewed.trace)
                    break
                number += bool(previewed.trace.spans)
        raise TranscriptError("the transcript has changed", hint="reload the session")


def _turn_record(previewed: PreviewedTrace) -> Record:
    """A trace as one row. Spans that a turn got later, or that belong to none, are named after the first of them."""
    trace = previewed.trace
    top = trace.spans[0]
    is_later = top.parent_id is not None
    return {
        "trace": trace.trace_id.hex(),
        "name": plain(numbered(trace.name)),
        "when": time_of_day(top, _LAYOUT),
        "start_ms": top.start_ns / 1e6,
        "is_later": is_later,
        "badges": ["later"] if is_later else list(badges_of(top)),
        "gist": gist_of(top, is_parent=len(trace.spans) > 1),
        "figures": figures_of(top),
        "errors": tally_of(trace).errors,
        "masked": sum(previewed.masked.values()),
    }


def _trace_record(trace: Trace) -> Record:
    began_ns = min(span.start_ns for span in trace.spans)
    ended_ns = max(span.end_ns for span in trace.spans)
    below = by_parent(trace)
    return {
        "trace": trace.trace_id.hex(),
        "ms": (ended_ns - began_ns) / 1e6,
        "spans": [
            _span_record(span, depth, began_ns, is_parent=bool(below.get(span.span_id)))
            for span, depth in _in_order(below.get(None, ()), below, 0)
        ],
    }


def _in_order(
    spans: Sequence[Span], below: Mapping[bytes | None, Sequence[Span]], depth: int
) -> Iterator[tuple[Span, int]]:
    for span in spans:
        yield span, depth
        yield from _in_order(below.get(span.span_id, ()), below, depth + 1)


def _span_record(span: Span, depth: int, began_ns: int, *, is_parent: bool) -> Record:
    return {
        "kind": span.kind.value,
        "depth": depth,
        "is_parent": is_parent,
        "name": name_of(span),
        "badges": list(badges_of(span)),
        "gist": gist_of(span, is_parent=is_parent),
        "figures": figures_of(span),
        "error": plain(span.error) if span.error is not None and span.kind is not Kind.TURN else None,
        "from_ms": (span.start_ns - began_ns) / 1e6,
        "ms": (span.end_ns - span.start_ns) / 1e6,
        "first_token_ms": (span.first_token_ns - span.start_ns) / 1e6 if span.first_token_ns is not None else None,
        "is_inferred": "time.inferred" in span.facts,
        "facts": {plain(name): plain(str(value)) for name, value in details_of(span).items()},
        "sections": [[label, plain(text)] for label, text in sections_of(span)],
    }
