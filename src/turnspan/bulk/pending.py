"""How much of the sessions on this machine has arrived, and how much could leave now and has not.

Rules:

- It only looks: no file is made, and nothing is set aside.
- Pending is what could leave now. What was written before a destination was first used is history, and waits for
  `backfill`.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from turnspan.bulk.plan import is_outdated_copy
from turnspan.errors import StateError, TurnspanError
from turnspan.private_files import read_private
from turnspan.source.progress import Ending, Progress
from turnspan.source.reader import Reading
from turnspan.source.scan import modified_ns, size_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from turnspan.delivery.state import Checkpoint, Cursor
    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile


class Pending(msgspec.Struct, frozen=True):
    """What could leave now and has not."""

    sessions: int = 0
    turns: int = 0
    is_more: bool = False  # there was no time to count them all
    open: int = 0  # sessions with a turn that goes on
    history: int = 0  # sessions from before, which wait for `backfill`


def first_uses(home: Path) -> dict[str, float]:
    """When each destination was first used here."""
    try:
        raw = read_private(home / "since.json", 1 << 20)
        return msgspec.json.decode(raw, type=dict[str, float]) if raw is not None else {}
    except (StateError, msgspec.DecodeError, UnicodeDecodeError):
        return {}


def count_pending(
    files: Sequence[SessionFile],
    known: Mapping[str, Checkpoint | None],
    config: Config,
    identity: str,
    *,
    since_s: float | None,
    now_s: float,
    deadline: float,
) -> Pending:
    """What one destination has not got. `deadline` is a moment of the monotonic clock."""
    pending = turns = is_open = history = 0
    is_more = False
    for session in files:
        checkpoint = known.get(session.session_id)
        if checkpoint is not None and checkpoint.is_off:
            continue
        cursor = checkpoint.destinations.get(identity) if checkpoint is not None else None
        if cursor is None and (since_s is None or modified_ns(session.path) < since_s * 1e9):
            history += 1
            continue
        if cursor is not None and cursor.seen_bytes == size_of(session.path):
            continue
        if checkpoint is not None and is_outdated_copy(session, checkpoint, cursor):
            continue
        if time.monotonic() > deadline:
            is_more = True
            continue
        count, goes_on = _unsent(session, cursor, config, int(now_s * 1e9))
        pending += count is not None
        turns += count or 0
        is_open += goes_on
    return Pending(pending, turns, is_more, is_open, history)


def _unsent(session: SessionFile, cursor: Cursor | None, config: Config, now_ns: int) -> tuple[int | None, bool]:
    """How many turns of a session could leave now, None if nothing could; and whether a turn goes on."""
    progress = cursor.progress if cursor is not None else Progress()
    reading = Reading(session, progress, Ending(now_ns=now_ns))
    turns = traces = 0
    try:
        for piece in reading.pieces():
            wanted = [t for t in piece.traces if not config.narrowing(str(t.facts.get("cwd", ""))).is_off]
            traces += len(wanted)
            turns += piece.turns if wanted else 0
    except TurnspanError:  # it cannot be read, so it cannot leave
        return None, False
    return (turns if traces else None), reading.has_unsealed


def sent_word(checkpoint: Checkpoint | None, identities: Sequence[str], turns: int, *, is_off: bool) -> str:
    """How much of a session the destination has that has the least of it: all, 3/5 or no; off if none may have it."""
    if is_off or (checkpoint is not None and checkpoint.is_off):
        return "off"
    cursors = [checkpoint.destinations.get(each) if checkpoint is not None else None for each in identities]
    least = min((cursor.sent_turns if cursor is not None else 0 for cursor in cursors), default=0)
    if not least:
        return "no"
    return "all" if least >= turns else f"{least}/{turns}"
