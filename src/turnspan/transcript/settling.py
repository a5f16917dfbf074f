"""Adds what is written between two conversation rows, and words taken from the queue, to the turn of the second row."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnspan.transcript.classify import answers_queued

if TYPE_CHECKING:
    from turnspan.transcript.context import SessionContext
    from turnspan.transcript.gaps import Gap
    from turnspan.transcript.memory import RowMemory
    from turnspan.transcript.turns import Turn


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
    for words in context.words_taken(_steering(turn), rows.owner):
        turn.happenings.append(words)
        rows.own(words.key, turn.number)
    context.clear_taken()


def _steering(turn: Turn) -> set[str]:
    return {happening.text for happening in turn.happenings if happening.kind == "steering"}
