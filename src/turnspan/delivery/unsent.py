"""What a destination does not have yet of a session: the one answer for everything that sends, counts or compares.

There are three ways to ask:

- `may_have_more` compares the checkpoint with the sizes of the files: cheap. A yes may turn out to be nothing, because
  some rows are never exported; a no is wrong only for a file that was rewritten at exactly the same size.
- `is_all_unsent` says whether the totals of a session, which were counted before, are what a destination does not have.
- `Rest`, `read_unsent` and `has_unsent` read the transcript from the checkpoint on: exact.

Rules, the same for the worker, backfill, the dry run, verify, status and retention:

- A session or a directory that is switched off has nothing unsent.
- Spans that arrived already, in a piece of which only a part was accepted, are not unsent.
- A file that is only the beginning of a transcript that was acknowledged beyond its end has nothing unsent.
- The user's own prices apply.
- What an event said about the end of a turn holds until that turn is acknowledged (`known_ending`), also if no worker
  has handled the event yet. A client that was killed has ended its session.
- Nothing is written: a corrupt checkpoint stays where it is, and counts as none. One that cannot be read, or that a
  newer turnspan wrote, raises StateError: the caller reports that session as failed, as `ship` would.
"""

from __future__ import annotations

import os
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery import marks, state
from turnspan.delivery.callers import called
from turnspan.errors import StateError, TranscriptError
from turnspan.source import sessions, tail
from turnspan.source.ending import PENDING, Ending, said
from turnspan.source.progress import Counts, Position
from turnspan.source.scan import last_time_ns, modified_ns, size_of, stamp_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from turnspan.claude.clients import Client
    from turnspan.delivery.destinations import Target
    from turnspan.delivery.policy import ExportPolicy
    from turnspan.source.progress import Piece
    from turnspan.source.reader import Reading
    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace
    from turnspan.trace.tally import Tally

_NOTICED: Final = ("unreadable", "misshapen", "oversized", "glued")


# ---- whether a session has ended


def known_ending(session: SessionFile, target: Target, cursor: state.Cursor, ending: Ending) -> Ending:
    """Return all that is known about the end of a session.

    That is `ending`, what earlier events said and is not acknowledged yet, and, unless an event has just shown that the
    client is alive (`now_ns` is None), what events say that no worker has handled yet, because it is busy or was
    killed, and whether the client's process has exited.
    """
    remembered = cursor.reported.unless_resumed(ending)
    if ending.now_ns is not None:
        with suppress(StateError, OSError):  # what cannot be read is handled by the next worker
            events = marks.read_marks(target.home, session.session_id).events
            remembered = remembered.then(said(events)) if events else remembered
    is_over = remembered.over_ns is not None and remembered.is_still_over(last_time_ns(session.path) or 0)
    return ending.known(remembered, is_over=is_over, is_killed=_is_killed(session, target, ending))


def _is_killed(session: SessionFile, target: Target, ending: Ending) -> bool:
    """Return whether the client of a session was killed. One that is idle for long has ended anyway."""
    if ending.now_ns is None or ending.is_idle(modified_ns(session.path), PENDING):
        return False
    from turnspan.claude.clients import clients  # noqa: PLC0415  only for a session that was written to recently

    return has_client_exited(session.session_id, clients(target.claude_home))


def has_client_exited(session_id: str, clients: Iterable[Client]) -> bool:
    """Return whether all clients that had a session open have exited; False if none is known."""
    found = [client.has_exited for client in clients if client.session_id == session_id]
    return bool(found) and all(found)


# ---- without reading


def may_have_more(session: SessionFile, checkpoint: state.Checkpoint | None, identity: str) -> bool:
    """Return whether a destination may lack something, judged by the checkpoint and the sizes of the files."""
    if checkpoint is None:
        return True
    cursor = checkpoint.destinations.get(identity)
    if checkpoint.is_off or (cursor is not None and is_unchanged(session, cursor)):
        return False
    return not is_outdated_copy(session, checkpoint, identity)


def is_history(
    session: SessionFile, checkpoint: state.Checkpoint | None, target: Target, uses: Mapping[str, float]
) -> bool:
    """Return whether a session waits for `backfill`: it is older than a destination's first use, and was not begun.

    `uses` says when each destination was first used. What an event or a backfill has begun is not history.
    """
    if checkpoint is not None and target.identity in checkpoint.destinations:
        return False
    since_s = uses.get(target.identity)
    return since_s is None or modified_ns(session.path) < since_s * 1e9


def is_all_unsent(session: SessionFile, target: Target, cwds: Iterable[str], last_ns: int, now_ns: int) -> bool:
    """Return whether all of a session that was read before is unsent, so that it need not be read again to count it.

    `cwds` are all its working directories, `last_ns` is the latest time in it. The destination has nothing of it, all
    its turns have ended because it is idle, and none of them is switched off. A False only means that it must be read.
    """
    checkpoint = state.known(target.home, session.session_id)
    if checkpoint.is_off or target.identity in checkpoint.destinations:
        return False
    is_idle = Ending(now_ns=now_ns).is_idle(last_ns, PENDING)
    return is_idle and not any(target.mask.is_off(cwd) for cwd in cwds)


def is_unchanged(session: SessionFile, cursor: state.Cursor) -> bool:
    """Return whether nothing was written to a session since nothing of it was left to send."""
    if not cursor.seen_bytes or stamp_of(str(session.path))[0] != cursor.seen_bytes:
        return False
    read, launched, files = cursor.progress.agents, cursor.progress.launched, sessions.agent_files(session)
    for agent_id in {**files, **read, **launched}:
        file = files.get(agent_id) or sessions.flat_agent_file(session, agent_id)
        if file is not None and file.size > read.get(agent_id, Position()).offset:
            return False
    return True


def has_nothing_left(session: SessionFile, cursor: state.Cursor) -> bool:
    """Return whether a destination has everything of a session, whatever time has passed since, without reading it.

    Everything was sent when it was last read, nothing was open then, and no file has grown or appeared since. A False
    only means that it must be read.
    """
    if cursor.arrived or cursor.is_unsure or cursor.reported != Ending() or not is_unchanged(session, cursor):
        return False
    if cursor.progress.main.carry.taken:
        return False  # words that may have joined the last turn: the time that has passed decides
    read = cursor.progress.agents
    # An event does not look for subagents next to the session that no call has claimed.
    return all(file.size <= read.get(file.agent_id, Position()).offset for file in sessions.flat_agent_files(session))


def is_outdated_copy(session: SessionFile, checkpoint: state.Checkpoint, identity: str) -> bool:
    """Return whether a file is only the beginning of a transcript that was acknowledged beyond the file's end."""
    cursor = checkpoint.destinations.get(identity)
    if cursor is None or checkpoint.transcript == str(session.path):
        return False
    size = size_of(session.path)
    if cursor.progress.main.offset <= size or size == 0:
        return False
    try:
        return _fingerprint(session.path, size) == _fingerprint(Path(checkpoint.transcript), size)
    except TranscriptError:
        return False


def _fingerprint(path: Path, offset: int) -> str:
    descriptor = tail.open_regular(path)
    try:
        return tail.fingerprint(descriptor, offset)
    finally:
        os.close(descriptor)


def file_sizes(session: SessionFile) -> tuple[int, int]:
    """Return the size of a session's own file, and of its subagents' files together."""
    return size_of(session.path), sum(file.size for file in sessions.agent_files(session).values())


def unread_bytes(sizes: tuple[int, int], cursor: state.Cursor | None) -> int:
    """Return how many bytes of a session's files a destination has not acknowledged; for progress bars."""
    main, agents = sizes
    if cursor is None:
        return main + agents
    read = sum(position.offset for position in cursor.progress.agents.values())
    return (0 if cursor.seen_bytes == main else max(0, main - cursor.progress.main.offset)) + max(0, agents - read)


# ---- by reading


class Unsent(msgspec.Struct, frozen=True, kw_only=True):
    """What one destination does not have of one session."""

    spans: frozenset[bytes]
    tally: Tally
    cwd: str = ""  # the first working directory in what was read, also if it is switched off
    has_open_turn: bool = False  # a turn or a subagent has not ended


class Rest:
    """Reads what one destination does not have of a session, for everything that sends, counts or compares it.

    `is_all`: as if nothing had been sent. What was counted is final when `pieces` has ended.
    """

    def __init__(
        self,
        session: SessionFile,
        target: Target,
        ending: Ending,
        checkpoint: state.Checkpoint | None = None,
        *,
        is_all: bool = False,
    ) -> None:
        self.checkpoint = checkpoint or state.known(target.home, session.session_id)
        self.cursor = self.checkpoint.cursor(target.identity)
        self.ending = ending  # from `pieces` on, all that is known
        self.reading: Reading | None = None  # from `pieces` on, if there is something to read
        self.counts = Counts()  # of turns and traces that are not exported
        self.cwd = ""
        self._session = session
        self._target = target
        self._is_all = is_all

    def pieces(self) -> Iterator[tuple[Piece, list[tuple[Trace, Trace]]]]:
        """Yield each piece with its traces that have unsent spans: as built, and with its caller and only these spans.

        Raises TranscriptError.
        """
        session, target, checkpoint = self._session, self._target, self.checkpoint
        if checkpoint.is_off:
            self.counts = Counts(off=1)
            return
        self.ending = known_ending(session, target, self.cursor, self.ending)
        if not self._is_all and is_outdated_copy(session, checkpoint, target.identity):
            return
        cursor = state.Cursor() if self._is_all else self.cursor
        arrived = {bytes.fromhex(span) for span in cursor.arrived}
        self.reading = target.reader.read(session, cursor.progress, self.ending)
        for piece in self.reading.pieces():
            unsent: list[tuple[Trace, Trace]] = []
            off = 0
            for trace in piece.traces:
                self.cwd = self.cwd or trace.cwd
                if self.mask.is_off(trace.cwd):
                    off += 1
                elif left := without(called(trace, checkpoint.callers), arrived):
                    unsent.append((trace, left))
            piece = msgspec.structs.replace(piece, counts=piece.counts + Counts(off=off))  # noqa: PLW2901
            self.counts += piece.counts
            yield piece, unsent

    def left(self) -> Iterator[Trace]:
        """Yield the traces with their callers and only their unsent spans. Raises TranscriptError."""
        for _, traces in self.pieces():
            yield from (left for _, left in traces)

    def masked(self, traces: Sequence[Trace]) -> tuple[list[Trace], Counts]:
        """Return traces of a piece as they are exported, with their callers, and how often each rule masked something.

        Each is masked with all of its spans: a span is masked as it was the first time.
        """
        redacted = self.mask.masked_all(traces)
        counts = sum((Counts(masked=dict(each.counts)) for each in redacted), start=Counts())
        return [called(each.trace, self.checkpoint.callers) for each in redacted], counts

    @cached_property
    def mask(self) -> ExportPolicy:
        """The export policy of the session."""
        return self._target.mask.of_session(self.checkpoint.capture)

    @property
    def has_open_turn(self) -> bool:
        """Whether a turn or a subagent has not ended."""
        return self.reading is not None and self.reading.has_unsealed

    @property
    def is_rewritten(self) -> bool:
        """Whether the file is not the one that was acknowledged."""
        return self.reading is not None and self.reading.is_rewritten

    @property
    def noticed(self) -> dict[str, int]:
        """How many lines are damaged, and how."""
        found = self.reading.anomalies if self.reading is not None else None
        return {name: count for name in _NOTICED if (count := getattr(found, name, 0))}


def read_unsent(session: SessionFile, target: Target, now_ns: int) -> Unsent:
    """Return what a destination does not have of a session. Raises TranscriptError, StateError."""
    from turnspan.trace.tally import Tally, tally_of  # noqa: PLC0415  an event counts nothing

    rest = Rest(session, target, Ending.asked(now_ns))
    spans: set[bytes] = set()
    tally = Tally()
    for left in rest.left():
        spans |= {span.span_id for span in left.spans}
        tally += tally_of(left)
    return Unsent(spans=frozenset(spans), tally=tally, cwd=rest.cwd, has_open_turn=rest.has_open_turn)


def has_unsent(session: SessionFile, target: Target, now_ns: int, *, is_all: bool = False) -> bool:
    """Return whether something of a session could be sent now; reads no further than the first trace."""
    return any(True for _ in Rest(session, target, Ending.asked(now_ns), is_all=is_all).left())


def without(trace: Trace, spans: set[bytes] | frozenset[bytes]) -> Trace | None:
    """Return a trace without some of its spans; None if none is left."""
    if not spans or spans.isdisjoint(span.span_id for span in trace.spans):
        return trace if trace.spans else None
    left = tuple(span for span in trace.spans if span.span_id not in spans)
    return msgspec.structs.replace(trace, spans=left) if left else None
