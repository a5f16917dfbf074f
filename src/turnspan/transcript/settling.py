"""Adds what is written between two conversation rows, and words taken from the queue, to the turn of the second row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.transcript.rows import Place, answers_queued
from turnspan.transcript.turns import Turn, add_surroundings

if TYPE_CHECKING:
    from turnspan.transcript.context import SessionContext
    from turnspan.transcript.gaps import Gap
    from turnspan.transcript.memory import Memory, RowMemory
    from turnspan.transcript.rows import Row
    from turnspan.transcript.turns import Happening


def settle(turn: Turn, gap: Gap, context: SessionContext, rows: RowMemory) -> None:
    """Add what was written before a row to the row's turn."""
    if gap.happenings:
        # Words taken from the queue are mostly repeated by an attachment, before or after.
        said = _steering(turn)
        for happening in gap.happenings:
            if happening.kind != "steering" or happening.text not in said:
                turn.happenings.append(happening)
            if happening.key not in rows.owner:
                rows.own(happening.key, turn.number)  # in case the row is repeated: a compaction has no parent
    if gap.local_commands:
        turn.local_commands += tuple(gap.local_commands)
    if gap.expansion and turn.prompt is not None and not turn.responses:
        turn.prompt.expansion = "\n".join(filter(None, (turn.prompt.expansion, *gap.expansion)))
        turn.prompt.blocks += tuple(gap.expansion_blocks)
    if context.state.taken and not answers_queued(turn.version):
        _settle_queue(turn, context, rows)


def _settle_queue(turn: Turn, context: SessionContext, rows: RowMemory) -> None:
    """Add words taken from the queue to a turn, unless another row repeats them."""
    add_words(turn, context.words_taken(_steering(turn), rows.owner), rows)
    context.clear_taken()


def add_words(turn: Turn, words: list[Happening], rows: RowMemory) -> None:
    """Add words taken from the queue to a turn, and remember that they are in one."""
    turn.happenings += words
    for happening in words:
        rows.own(happening.key, turn.number)


def joined_at_end(memory: Memory, context: SessionContext, between: list[Row]) -> Turn | None:
    """Return a further part of the last turn with the words that joined it, if there are any (up to 2.1.12).

    `between` are the rows since that turn. Nothing is kept of them but that the words are in a turn.
    """
    ref, last = memory.past.recent[-1], context.entry_at(memory.past.last)
    if last is None or not answers_queued(last.version or ""):
        return None
    place = Place(0, *memory.past.last)
    turn = Turn(
        session_id=ref.session_id, key=ref.key, number=ref.number, part=ref.parts, origin="continued",
        start=place, end=place,
    )  # fmt: skip
    add_surroundings(turn, last)
    context.begin()
    for row in between:
        if row.entry.type == "queue-operation":
            context.take(row)
    add_words(turn, context.words_taken((), memory.rows.owner), memory.rows)
    context.undo()
    if not turn.happenings:
        return None
    turn.times = [words.time_ns for words in turn.happenings if words.time_ns is not None]
    memory.rows.commit()
    recent = (*memory.past.recent[:-1], turn.ref)
    memory.past = msgspec.structs.replace(memory.past, recent=recent, owners=memory.rows.roll_back())
    return turn


def _steering(turn: Turn) -> set[str]:
    return {happening.text for happening in turn.happenings if happening.kind == "steering"}
