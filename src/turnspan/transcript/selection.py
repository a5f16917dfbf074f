"""Which turn a new response belongs to: the first rule that applies, in the order of `choose`.

The answer depends on the parent of the response's row, on what is written between it and the row before, and on the
client's version. This module only decides; `assembly` acts on the decision.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

from turnspan.transcript.rows import answers_queued, is_own_row, is_synthetic

if TYPE_CHECKING:
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.gaps import Gap
    from turnspan.transcript.memory import Memory
    from turnspan.transcript.rows import Row
    from turnspan.transcript.turns import Turn


_COMMAND_TOOLS: Final = frozenset({"Skill", "SlashCommand"})  # how the model runs a command


class Choice(Enum):
    """The turn a new response belongs to. The last three seal what is open first."""

    OPEN_TURN = "the open turn"
    EARLIER_TURN = "a further part of a sealed turn"
    UNKNOWN_PROMPT = "a new turn: the file begins with a response"
    COMMAND = "a new turn: the response answers a command or `!` line"
    QUEUED_WORDS = "a new turn: the response answers words typed while the last turn ran (up to 2.1.12)"
    AFTER_STOP = "a further part of the open turn, which the client has stopped"


def choose(memory: Memory, row: Row, gap: Gap, *, is_agent: bool) -> Choice:
    """Return which turn a new response belongs to."""
    entry, turn = row.entry, memory.open.turn
    if gap.command is not None and _answers_command(memory, entry, gap):
        return Choice.COMMAND
    if turn is None:
        if not memory.past.recent:
            return Choice.UNKNOWN_PROMPT
    elif not memory.is_of_open_turn(entry):
        return Choice.EARLIER_TURN
    if gap.boundary != "feedback" and not is_agent and _answers_queued_words(memory, row):
        return Choice.QUEUED_WORDS
    if turn is None:
        return Choice.EARLIER_TURN
    if gap.boundary and turn.has_answer and not is_synthetic(entry):
        return Choice.AFTER_STOP
    return Choice.OPEN_TURN


def _answers_command(memory: Memory, entry: Entry, gap: Gap) -> bool:
    """Whether the response is below the command, or has no known parent and nothing else can have asked for it."""
    if entry.parent_uuid in gap.command_rows:
        return True
    if entry.parent_uuid in memory.rows.owner:
        return False
    return memory.open.turn is None or memory.open.turn.has_answer


def _answers_queued_words(memory: Memory, row: Row) -> bool:
    """Whether it is a second final answer: these clients answered typed-ahead words without a row for them."""
    if not answers_queued(row.entry.version) or is_synthetic(row.entry) or row.response in memory.past.responses:
        return False
    turn = _running(memory, row.entry)
    if turn is None:
        return memory.past.is_answered
    return not turn.has_failed and turn.has_answer


def _running(memory: Memory, entry: Entry) -> Turn | None:
    """Return the open turn; without one, the later part of a sealed turn that the row's parent belongs to."""
    number = memory.rows.owner.get(entry.parent_uuid or "")
    return memory.open.turn or (memory.open.parts.get(number) if number is not None else None)


def is_models_own_command(memory: Memory, entry: Entry) -> bool:
    """Whether the model ran a command: 2.0.36 writes a skill after its call as if the user had typed it."""
    turn = memory.open.turn
    if entry.is_meta or turn is None or not turn.responses or turn.has_answer:
        return False
    if not memory.is_of_open_turn(entry):
        return False
    return any(call.name in _COMMAND_TOOLS and call.result is not None for call in turn.responses[-1].calls)


def is_after_copy(turn: Turn, entry: Entry, session_id: str) -> bool:
    """Whether a response of this session continues a turn of another one, because it was copied from there.

    A turn without any response yet becomes this session's own: only its prompt was carried over (2.1.12).
    """
    if not is_own_row(entry, session_id) or turn.forked_from is not None:
        return False
    if not turn.responses:
        turn.session_id = session_id
    return bool(turn.responses)
