"""Reads a subagent's file: the runs since it was last read, each a turn of its own."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source import tail
from turnspan.source.decode import entries_from, found_again, position_behind, recall_from
from turnspan.source.progress import Position
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Anomalies

if TYPE_CHECKING:
    from turnspan.source.sessions import AgentFile
    from turnspan.transcript.memory import Sealed
    from turnspan.transcript.turns import Turn


class Runs(msgspec.Struct, frozen=True):
    """What a subagent did since it was last read."""

    turns: list[Turn]
    position: Position  # after the last of them
    is_open: bool = False  # something after them is not sealed yet


def read_runs(
    file: AgentFile,
    position: Position,
    session_id: str,
    anomalies: Anomalies,
    *,
    is_over: bool,
    since_ns: int = 0,
    until_ns: int | None = None,
) -> Runs:
    """Return the runs after a position.

    A run that began after `until_ns` is left for later; one that began before `since_ns` counts only if it has ended.
    """
    try:
        descriptor = tail.open_regular(file.path)
    except TranscriptError:
        return Runs([], position)
    try:
        position = found_again(descriptor, position)
        grouper = _grouper(descriptor, position, session_id)
        sealed: list[Sealed] = []
        for entries in entries_from(descriptor, position, anomalies):
            sealed += grouper.feed_all(entries)
        is_over = is_over and all(started_ns(turn) >= since_ns for turn in grouper.unsealed)
        final = grouper.seal() if is_over or grouper.is_answered else None
        sealed += [final] if final is not None else []
        turns: list[Turn] = []
        last = None
        for group in sealed:
            if until_ns is not None and min(map(started_ns, group.turns)) > until_ns:
                break
            turns += group.turns
            last = group
        if last is not None:
            is_at_end = last.end.end == os.fstat(descriptor).st_size
            position = position_behind(descriptor, last, with_carry=not is_at_end)
        return Runs(turns, position, bool(grouper.unsealed))
    finally:
        os.close(descriptor)


def _grouper(descriptor: int, position: Position, session_id: str) -> Grouper:
    """Return a grouper that continues at a position.

    Only the offset is stored for an agent that was read to its end. If it has grown since, the rest is read again.
    """
    carry = position.carry
    if position.offset and not carry.turns:
        earlier = Grouper(session_id, None, recall_from(descriptor), is_agent=True)
        for entries in entries_from(descriptor, Position(), Anomalies(), until=position.offset):
            list(earlier.feed_all(entries))
        sealed = earlier.seal()
        carry = sealed.carry if sealed is not None else carry
    return Grouper(session_id, carry, recall_from(descriptor), is_agent=True)


def identities(turn: Turn) -> set[str]:
    """Return the ids of a turn's responses and tool calls."""
    calls = {call.id for response in turn.responses for call in response.calls}
    return calls | {response.key for response in turn.responses}


def started_ns(turn: Turn) -> int:
    """When a turn began."""
    return min(turn.times, default=0)
