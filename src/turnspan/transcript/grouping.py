"""Entries become turns: which rows count, in which order they are taken, and where a later reading may go on.

Rules:

- **What stands between two conversation rows is read together with the second one** (`Gap`). Titles, attachments,
  queue operations and system lines never end a turn, so a turn that was sealed early and one that was sealed late are
  the same.
- An event (Stop, SessionEnd, idleness) only says *when* a turn may leave, never *what* is in it.
- **What seals a turn is read again from its `Carry`**, with all that stands behind the turn, as by a later reading that
  has nothing else. So in any pieces the same file gives the same turns.
- A row that stands there twice is taken once. One that stands before its prompt waits for it, with a few others.

What a row adds to a turn is `making`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.transcript import entries as e
from turnspan.transcript.assembly import NOBODY, Making
from turnspan.transcript.classify import (
    copies_anew,
    is_conversation,
    is_interruption,
    is_placeholder,
    key_of,
    response_key,
    results_of,
)
from turnspan.transcript.inline import InlineAgents
from turnspan.transcript.resume import known_as

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turnspan.transcript.assembly import Sealed
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.resume import Carry
    from turnspan.transcript.turns import Place, Turn

_MAX_EARLY: Final = 48  # rows that wait for their prompt
_TOLD: Final = frozenset({"user", "assistant", "system", "attachment"})  # rows of which a turn may tell
_NONE_SEALED: Final[tuple[Sealed, ...]] = ()


class Grouper:
    """Groups entries into turns, one entry at a time. `recall` gives the entry at a place again."""

    def __init__(
        self,
        session_id: str,
        carry: Carry | None = None,
        recall: Callable[[int, int], Entry | None] = lambda _offset, _length: None,
        *,
        is_agent: bool = False,
    ) -> None:
        self._is_agent = is_agent
        self._between: list[tuple[Entry, Place]] = []
        self._early: list[tuple[Entry, Place]] = []
        self._behind: list[tuple[Entry, Place]] = []  # whatever stands behind the last row that was taken
        inline = InlineAgents(lambda: Grouper(session_id, is_agent=True))
        self._making = Making(session_id, carry, recall, inline, is_agent=is_agent)

    # ---- what a caller sees

    @property
    def unsealed(self) -> list[Turn]:
        """What is open: at most one turn, and later parts of earlier ones."""
        return self._making.unsealed

    @property
    def is_answered(self) -> bool:
        """Whether what is open has come to an end, so that an event may seal it."""
        return bool(self.unsealed) and all(turn.has_answer for turn in self.unsealed)

    @property
    def early_ns(self) -> int | None:
        """When the last row was written that is held back for its prompt; 0 if none of them says."""
        return max([e.time_ns(entry) or 0 for entry, _ in self._early], default=None)

    def feed(self, entry: Entry, place: Place) -> Sequence[Sealed]:
        """Take one entry; what it seals."""
        if is_placeholder(entry):
            return _NONE_SEALED
        entry.uuid, entry.parent_uuid = known_as(entry.uuid), known_as(entry.parent_uuid)
        self._behind.append((entry, place))
        if self._is_known(entry):
            return _NONE_SEALED
        if not is_conversation(entry, is_agent=self._is_agent):
            (self._early or self._between).append((entry, place))
            return _NONE_SEALED
        if entry.request_id is None and self._is_retold(entry):
            self._making.own(key_of(entry), NOBODY)
            return _NONE_SEALED
        if entry.parent_uuid not in self._making.owners and self._is_early(entry) and len(self._early) < _MAX_EARLY:
            self._early.append((entry, place))
            return _NONE_SEALED
        if not self._early:
            sealed = self._take(entry, place)
            if sealed is not None:
                return self._again(sealed)
            self._behind.clear()
            return _NONE_SEALED
        if self._is_late_prompt(entry):
            rest = [row for row in self._early if not is_conversation(row[0], is_agent=self._is_agent)]
            answers = [row for row in self._early if is_conversation(row[0], is_agent=self._is_agent)]
            return self._release([*rest, (entry, place), *answers])
        return self._release([*self._early, (entry, place)])

    def flush(self) -> list[Sealed]:
        """Take rows that were held back for a prompt that did not come."""
        sealed: list[Sealed] = []
        while self._early:
            sealed += self._release(self._early)
        return sealed

    def seal(self) -> Sealed | None:
        """What is open, sealed: an event says that it has ended."""
        return self._making.seal()

    # ---- the order of rows

    def _take(self, entry: Entry, place: Place) -> Sealed | None:
        """Take a row with what stands before it; or what has to be sealed first, and then nothing is taken."""
        sealed = self._making.take(entry, place, self._between)
        if sealed is None and self._between:
            self._between = []
        return sealed

    def _release(self, rows: list[tuple[Entry, Place]]) -> list[Sealed]:
        """Take rows that were held back, each with what stands before it: a later reading may begin at any of them."""
        self._early = []
        for entry, place in rows:
            if self._is_known(entry):
                continue
            if not is_conversation(entry, is_agent=self._is_agent):
                self._between.append((entry, place))
            elif (sealed := self._take(entry, place)) is not None:
                return self._again(sealed)
        self._behind = [row for row in self._behind if row[1].offset >= self._making.end.end]
        return []

    def _again(self, sealed: Sealed) -> list[Sealed]:
        """What was sealed, and what is sealed when the rows behind it are read again."""
        rows = [row for row in self._behind if row[1].offset >= sealed.end.end]
        self._between, self._early, self._behind = [], [], []
        found = [sealed]
        for entry, place in rows:
            found += self.feed(entry, place)
        return found

    def _is_known(self, entry: Entry) -> bool:
        """Whether a row stands there twice: its uuid tells, or what it says."""
        if entry.uuid is not None:
            return entry.uuid in self._making.owners
        return entry.type in _TOLD and key_of(entry) in self._making.owners

    def _is_retold(self, entry: Entry) -> bool:
        """Whether an old client repeats its answers before the next prompt of a stream, and no prompt (1.0.44)."""
        if self._is_agent or entry.is_sidechain or not copies_anew(entry.version or ""):
            return False
        if entry.type == "assistant" and entry.parent_uuid is None and not entry.is_api_error_message:
            return self._making.has_begun  # it hangs on nothing, and is not the first
        is_below = self._making.owners.get(entry.parent_uuid or "") == NOBODY
        return is_below and (entry.type == "assistant" or bool(results_of(entry)))

    # ---- answers that stand before their prompts

    def _is_early(self, entry: Entry) -> bool:
        """Whether an answer stands before its own prompt (2.1.45, 2.1.128), or a result behind such an answer."""
        parent = entry.parent_uuid
        if self._is_agent or parent is None or parent in self._making.owners or entry.is_sidechain:
            return False
        if entry.type == "user":
            return bool(results_of(entry)) and any(other.uuid == parent for other, _ in self._early)
        if entry.type != "assistant" or any(not turn.has_answer for turn in self.unsealed):
            return False  # something runs: it belongs there
        return all(other.uuid != parent for other, _ in (*self._between, *self._early) if other.type != "assistant")

    def _is_late_prompt(self, entry: Entry) -> bool:
        """Whether a row is the prompt of the one response that was written before it, and of its results.

        Of one only: a second one could seal the turn, and reading would go on behind the prompt, past that response.
        """
        if entry.type != "user" or entry.is_sidechain or entry.message is None or results_of(entry):
            return False
        if is_interruption(e.plain_text(e.blocks(entry.message))):
            return False
        answers = [other for other, _ in self._early if other.type == "assistant"]
        if len(set(map(response_key, answers))) > 1:
            return False
        return entry.uuid == answers[0].parent_uuid or (e.time_ns(entry) or 0) <= (e.time_ns(answers[0]) or 0)
