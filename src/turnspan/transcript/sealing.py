"""Sealing: turns become final, and what later rows need to know about them becomes a `Carry`."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript.carry import Carry

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.transcript.context import ContextState
    from turnspan.transcript.rows import Place
    from turnspan.transcript.turns import Turn

_REMEMBERED_TURNS: Final = 4
_REMEMBERED_RESPONSES: Final = 8
_REMEMBERED_CALLS: Final = 32


class Wait(Enum):
    """Why a row is not taken yet."""

    FOR_LINES = "further lines of the last response may follow"


class Sealed(msgspec.Struct, frozen=True):
    """Turns that can be exported. Reading continues at `end`, from `carry`."""

    turns: list[Turn]
    end: Place
    past: Carry  # without `words`: their digests are expensive, and only those of the last turn are needed

    @property
    def carry(self) -> Carry:
        """What the next reading must know."""
        return msgspec.structs.replace(self.past, words=self.turns[-1].last_words)


def carry_after(past: Carry, turns: Sequence[Turn], *, rows: tuple[tuple[str, int], ...], is_answered: bool,
                input_ns: int | None, context: ContextState) -> Carry:  # fmt: skip
    """Return what to remember when these turns are sealed; `past` is what was remembered of the turns before."""
    refs, number, high_water_ns = list(past.recent), past.turns, past.high_water_ns
    responses, calls, pending = list(past.responses), list(past.calls), list(past.pending)
    for turn in turns:
        refs = [ref for ref in refs if ref.number != turn.number]
        refs.append(turn.ref)
        number = max(number, turn.number)
        high_water_ns = max([high_water_ns, *turn.times])
        for response in turn.responses:
            responses.append(response.key)
            for call in response.calls:
                calls.append(call.id)
                if call.result is None:
                    pending.append((call.id, turn.number))
    return Carry(
        turns=number,
        recent=tuple(refs[-_REMEMBERED_TURNS:]),
        owners=rows,
        responses=tuple(responses[-_REMEMBERED_RESPONSES:]),
        calls=tuple(calls[-_REMEMBERED_CALLS:]),
        pending=tuple(pending[-_REMEMBERED_CALLS:]),
        is_answered=is_answered,
        high_water_ns=high_water_ns,
        input_ns=input_ns,
        context=context.lines,
        queued=context.queued,
        taken=context.taken,
    )
