"""The records that the page loads: the turns of a session, the spans of a turn.

Rules:

- Records are streamed as they are read: the page fills while a long session is still being read.
- A record is ready to display, with the same texts and figures as `show`.
- A turn is read again from the start of its piece, so opening one of ten thousand reads only some hundred spans.
- Of a long session the page first gets an outline from the index: names, prompts, and where each turn is. So any turn
  can be opened, and any part of the list filled, before the session was read to there. Figures are never taken from
  the outline: they come from the transcript, through the same code as all others.
- A turn is known by its own trace id. If a caller's span is its parent, it is exported with another one, which several
  turns can share.
- A session that grows is read on from where the last ended turn ends. What follows is open: a turn or an agent that is
  still running. It is shown, marked, and read again whenever the files have changed.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, OrderedDict
from contextlib import closing, contextmanager, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery import state
from turnspan.delivery.destinations import Target
from turnspan.delivery.unsent import known_ending
from turnspan.errors import StateError, TranscriptError
from turnspan.index import stored_as_it_is
from turnspan.index.seek import outline_of
from turnspan.page.chat import chat_record
from turnspan.page.content import sections
from turnspan.page.export import html, markdown
from turnspan.page.images import image_of, sizes_in
from turnspan.page.preview import Preview
from turnspan.page.spans import span_record, trace_record
from turnspan.page.tree import Layout, foot_lines, head_of
from turnspan.page.turns import turn_record, when_of
from turnspan.source.ending import Ending
from turnspan.source.find import require_transcript
from turnspan.source.progress import Progress
from turnspan.source.scan import stamp_of
from turnspan.source.sessions import agent_files, is_safe_id
from turnspan.source.tree import session_stamps
from turnspan.text import plain, unstyled
from turnspan.trace.labels import numbered
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.index.seek import Outline
    from turnspan.page.preview import PreviewedTrace
    from turnspan.page.turns import Record
    from turnspan.settings.config import Config, Destination
    from turnspan.source.images import Image
    from turnspan.source.sessions import SessionFile

_LAYOUT: Final = Layout(width=100)  # of the lines below a session; the page wraps them itself
_REMEMBERED: Final = 8  # opened traces of a session
_LONG: Final = 1 << 20  # bytes of a transcript that is not read within a moment
_MOST_ROWS: Final = 500  # of one request


class TracePlace(msgspec.Struct, frozen=True):
    """Where a trace is: the start of its piece, and how many traces with its id come before it from there."""

    start: Progress
    number: int
    trace_id: bytes  # its own


class ShownTrace(msgspec.Struct, frozen=True):
    """A trace that was read: where it is, and what is shown of it."""

    place: TracePlace
    tally: Tally
    masked: dict[str, int]
    record: Record
    title: str = ""


def stamp_of_sessions(projects: Path) -> str:
    """Return a text that changes whenever a session is written to, from the sizes and times of their files."""
    found = list(session_stamps(projects))
    return f"{len(found)}-{sum(size for size, _ in found)}-{max((changed for _, changed in found), default=0)}"


class OpenSession:
    """A session that the page has opened: first its turns, then the spans of any of them, then what is new."""

    def __init__(self, session: SessionFile, config: Config, destination: Destination) -> None:
        self._session = session
        self._config = config
        self._destination = destination
        self._lock = threading.Lock()  # for the fields below: several tabs can show the session
        self._ended: list[ShownTrace] = []
        self._open: list[ShownTrace] = []
        self._end: Progress | None = None  # behind the last of `_ended`; None if they are still being read
        self._read_s = 0.0  # when `_open` was read
        self._head: Record = {}
        self._notes: tuple[str, ...] = ()
        self._outline: Outline | None = None  # of turns that are still being read
        self._urgent = 0  # requests for what the user looks at: reading all turns waits for them
        self._is_calm = threading.Event()
        self._is_calm.set()
        self._opened: OrderedDict[tuple[str, bytes, int], PreviewedTrace] = OrderedDict()

    # ---- the turns

    def records(self) -> Iterator[Record]:
        """The head of the session, a record for each turn, the totals, and how to ask for what is new."""
        require_transcript(self._session.path)
        stamp = self.stamp()
        with self._lock:
            ended, place = self._ended[:], self._end
        first = None
        if place is not None:
            preview, new = self._read_on(ended, place)
            first = next(new, None)
        if place is None or preview.is_rewritten:
            ended, self._notes = [], ()
            with self._lock:
                # A turn can be opened while the others are still being read.
                self._ended, self._end, self._open = ended, None, []
            yield from self._outlined()
            preview, new = self._read_on(ended, Progress())
            first = None
        known = ended[:-1] if first is not None else ended
        if known:
            yield self._head
            yield from (position.record for position in known)
        yield from (first,) if first is not None else ()
        yield from new
        yield from self._rest(ended, preview.place)
        self._notes = (*self._notes, *map(plain, preview.notes()))
        for note in dict.fromkeys(self._notes):
            yield {"is": "note", "text": note}
        yield _end(ended, stamp)

    def records_since(self, since: int, trace_id: str, stamp: str) -> Iterator[Record]:
        """What was written since `since` turns had ended, the last of them this; nothing if no file has changed."""
        now = self.stamp()
        if stamp == now:
            return
        with self._lock:
            ended, place = self._ended[:], self._end
        is_known = since <= len(ended) and (not since or ended[since - 1].place.trace_id.hex() == trace_id)
        if place is None or not is_known:
            yield {"is": "again"}  # the page must load the session from its start
            return
        earlier = ended[since:]
        preview, new = self._read_on(ended, place)
        found = list(new)
        if preview.is_rewritten:
            yield {"is": "again"}
            return
        if not since and ended:
            yield self._head
        yield from (position.record for position in earlier)
        yield from (record for record in found if record["is"] == "turn")
        yield from self._rest(ended, preview.place)
        yield _end(ended, now)

    def turn_records(self, first: int, last: int) -> Iterator[Record]:
        """Some turns of the outline, read from where they are. Raises TranscriptError if the file has changed."""
        outline = self._outline
        if outline is None:
            return  # all turns were read meanwhile
        last = min(last, first + _MOST_ROWS, len(outline.turns) - 1)
        with self._first():
            yield from self._rows(outline, first, last)

    def _rows(self, outline: Outline, first: int, last: int) -> Iterator[Record]:
        for piece, places in groupby(range(first, last + 1), key=lambda at: outline.turns[at].piece):
            wanted = set(places)
            ids = {outline.turns[at].trace_id for at in wanted}
            in_piece = [at for at, turn in enumerate(outline.turns) if turn.piece == piece and turn.trace_id in ids]
            preview = Preview(self._session, self._config, self._destination, outline.progress(piece))
            found = (one for one in preview.traces(ids={bytes.fromhex(one) for one in ids}) if one.trace.spans)
            for at in in_piece:
                previewed = next(found, None)
                if previewed is None or previewed.own.trace_id.hex() != outline.turns[at].trace_id:
                    raise _changed()
                if at in wanted:
                    yield {"is": "turn", "at": at, **turn_record(previewed)}

    @contextmanager
    def _first(self) -> Iterator[None]:
        """Pause the reading of all turns meanwhile: it would take half of the interpreter's time."""
        with self._lock:
            self._urgent += 1
            self._is_calm.clear()
        try:
            yield
        finally:
            with self._lock:
                self._urgent -= 1
                if not self._urgent:
                    self._is_calm.set()

    def _outlined(self) -> Iterator[Record]:
        """Yield the turns of a long session as the index has them, without figures."""
        self._outline = None
        if stamp_of(str(self._session.path))[0] < _LONG:
            return
        connection = stored_as_it_is(self._config, self._destination)
        if connection is None:
            return
        with closing(connection):
            self._outline = outline_of(connection, self._config, self._session)
        if self._outline is not None:
            rows, names = list[list[object]](), dict[str, str]()
            for turn in self._outline.turns:
                name = f"{names[turn.trace_id]} · continued" if turn.trace_id in names else plain(numbered(turn.name))
                names.setdefault(turn.trace_id, name)
                rows.append([turn.trace_id, name, turn.prompt, turn.start_ns / 1e6, when_of(turn.start_ns)])
            yield {"is": "outline", "turns": rows}

    def _read_on(self, ended: list[ShownTrace], place: Progress) -> tuple[Preview, Iterator[Record]]:
        preview = Preview(self._session, self._config, self._destination, place, self._ending())
        return preview, self._turns(preview, ended)

    def _turns(self, preview: Preview, ended: list[ShownTrace]) -> Iterator[Record]:
        """Add the turns that have ended to `ended`, and yield a record for each."""
        for previewed in preview.traces():
            self._is_calm.wait()
            if not previewed.trace.spans:
                continue
            if not ended:
                yield self._headed(previewed)
            ended.append(_position(previewed, preview.place, ended))
            yield ended[-1].record

    def _rest(self, ended: list[ShownTrace], end: Progress) -> Iterator[Record]:
        """Yield what is still running, and the totals."""
        preview = Preview(self._session, self._config, self._destination, end)
        running: list[ShownTrace] = []
        with self._lock:
            self._ended, self._end, self._open, self._outline = ended, end, running, None
            self._read_s = time.monotonic()
        for previewed in preview.traces():
            if not previewed.trace.spans:
                continue
            if not ended and not running:
                yield self._headed(previewed)
            running.append(_position(previewed, preview.place, running, len(ended)))
            yield running[-1].record
        if not ended and not running:
            yield {"is": "note", "text": "this session has no turns yet"}
            return
        total, masked = Tally(), Counter[str]()
        for position in (*ended, *running):
            total += position.tally
            masked.update(position.masked)
        lines = [unstyled(line) for line in foot_lines(total, masked, _LAYOUT)]
        title = next((one.title for one in reversed((*ended, *running)) if one.title), "")
        yield {"is": "foot", "lines": lines, "title": title}

    def _headed(self, previewed: PreviewedTrace) -> Record:
        facts = head_of(previewed, str(self._session.path), _LAYOUT)
        self._head = {"is": "head", "session": previewed.trace.session_id, "facts": facts}
        return self._head

    def _ending(self) -> Ending:
        """Return what is known about the end of the session, as an export on request would take it."""
        ending = Ending.asked(time.time_ns())
        if not is_safe_id(self._session.session_id):
            return Ending(is_over=True)  # a file with another name: no client writes to it
        with suppress(StateError):
            target = Target(self._destination, self._config)
            checkpoint = state.peek(self._config.home, self._session.session_id)
            cursor = checkpoint.cursor(target.identity) if checkpoint is not None else state.Cursor()
            ending = msgspec.structs.replace(ending, acknowledged=cursor.progress.main.offset)
            return known_ending(self._session, target, cursor, ending)
        return ending

    def stamp(self) -> str:
        """Return a text that changes whenever the session's files or its checkpoint do.

        While something is running it also changes every minute: a client that was killed writes nothing.
        """
        paths = [str(self._session.path), *(file.name for file in agent_files(self._session).values())]
        if is_safe_id(self._session.session_id):
            paths.append(str(state.state_path(self._config.home, self._session.session_id)))
        stamps = [stamp_of(path) for path in paths]
        minutes = int(time.monotonic() - self._read_s) // 60 if self._open else 0
        return f"{len(stamps)}-{sum(size for size, _ in stamps)}-{max(changed for _, changed in stamps)}-{minutes}"

    def exported(self, form: str) -> Iterator[str]:
        """The session as one file, HTML or Markdown, in pieces."""
        require_transcript(self._session.path)
        preview = Preview(self._session, self._config, self._destination)
        made = html.pieces if form == "html" else markdown.pieces
        yield from made(preview.traces(), str(self._session.path), _LAYOUT)

    # ---- one turn

    def trace_record(self, at: int, trace_id: str) -> Record:
        """One of the traces, with all its spans. Raises TranscriptError if the file has changed."""
        return trace_record(self._trace(at, trace_id).own)

    def chat_record(self, at: int, trace_id: str) -> Record:
        """One of the traces as a conversation. Raises TranscriptError if the file has changed."""
        previewed = self._trace(at, trace_id)
        return chat_record(previewed.own, has_images=previewed.are_images_shown)

    def span_record(self, at: int, trace_id: str, span_id: str, *, is_full: bool = False) -> Record:
        """One span with its content. Raises TranscriptError if there is none."""
        previewed = self._trace(at, trace_id)
        span = next((one for one in previewed.own.spans if one.span_id.hex() == span_id), None)
        if span is None:
            raise TranscriptError("this turn does not have that span", hint="reload the session")
        return {
            **span_record(span, previewed.trace),
            "sections": msgspec.to_builtins(sections(span, is_full=is_full)),
            "links": self._links(previewed.trace.trace_id),
            "images": sizes_in(span) if previewed.are_images_shown else [],
        }

    def image(self, at: int, trace_id: str, span_id: str, number: int) -> Image | None:
        """One of the images of a span; None if there is none, or if it may not be shown."""
        previewed = self._trace(at, trace_id)
        span = next((one for one in previewed.own.spans if one.span_id.hex() == span_id), None)
        if span is None or not previewed.are_images_shown:
            return None
        return image_of(self._session, span, number)

    def _links(self, trace_id: bytes) -> list[list[str]]:
        """Return the pages of a trace at the destinations that have pages."""
        found = []
        for destination in self._config.destinations:
            target = Target(destination, self._config)
            try:
                url = target.link(trace_id)
            finally:
                target.close()
            if url is not None and url.startswith(("http://", "https://")):
                found.append([destination.name, url])
        return found

    def _trace(self, at: int, trace_id: str) -> PreviewedTrace:
        with self._lock:
            ended, positions, outline = len(self._ended), [*self._ended, *self._open], self._outline
        ids = [one.place.trace_id.hex() for one in positions]
        ids += [turn.trace_id for turn in outline.turns[len(ids) :]] if outline is not None else []
        if not 0 <= at < len(ids) or ids[at] != trace_id:
            at = ids.index(trace_id) if trace_id in ids else -1
        if at < 0:
            raise _changed()
        if at < len(positions):
            place = positions[at].place
        else:
            assert outline is not None
            place = _place_in(outline, at)
        key = self.stamp(), place.trace_id, at
        with self._lock:
            if key in self._opened:
                self._opened.move_to_end(key)
                return self._opened[key]
        with self._first():
            previewed = self._read(place, is_open=ended <= at < len(positions))
        with self._lock:
            self._opened[key] = previewed
            while len(self._opened) > _REMEMBERED:
                self._opened.popitem(last=False)
        return previewed

    def _read(self, place: TracePlace, *, is_open: bool) -> PreviewedTrace:
        ending = Ending(is_over=True) if is_open else self._ending()
        preview = Preview(self._session, self._config, self._destination, place.start, ending)
        number = 0
        for previewed in preview.traces(ids=(place.trace_id,)):
            if previewed.trace.spans and number == place.number:
                return previewed
            number += bool(previewed.trace.spans)
        raise _changed()


def _changed() -> TranscriptError:
    return TranscriptError("the transcript has changed", hint="reload the session")


def _place_in(outline: Outline, at: int) -> TracePlace:
    """Return where a turn of an outline is."""
    turn = outline.turns[at]
    number = sum(other.trace_id == turn.trace_id and other.piece == turn.piece for other in outline.turns[:at])
    return TracePlace(outline.progress(turn.piece), number, bytes.fromhex(turn.trace_id))


def _position(
    previewed: PreviewedTrace, start: Progress, earlier: list[ShownTrace], ended: int | None = None
) -> ShownTrace:
    """Return the position of a trace after earlier ones; with `ended` it is open, and follows so many ended ones."""
    trace = previewed.own
    number = 0
    for other in reversed(earlier):
        if other.place.start is not start:
            break
        number += other.place.trace_id == trace.trace_id
    at = len(earlier) + (ended or 0)
    record = {"is": "turn", "at": at, **turn_record(previewed, is_open=ended is not None)}
    title = plain(str(trace.facts.get("title") or ""))
    return ShownTrace(TracePlace(start, number, trace.trace_id), tally_of(trace), previewed.masked, record, title)


def _end(ended: list[ShownTrace], stamp: str) -> Record:
    """Return the last record: what the page sends to get what is new."""
    trace_id = ended[-1].place.trace_id.hex() if ended else ""
    return {"is": "end", "since": len(ended), "trace": trace_id, "stamp": stamp}
