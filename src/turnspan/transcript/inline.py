"""Subagents inside their parent's file (before 2.0.28): each is a tree of rows, grouped on its own.

A turn can be sealed while its agents are at work: a question for permission, overnight. What they do afterwards is in a
further part of the turn. So their own `Carry` is remembered, and the prompts of calls that have no agent yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import Carry, known_as, words_digest
from turnspan.transcript.rows import is_warmup, key_of
from turnspan.transcript.turns import AGENT_TOOLS, InlineAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.transcript.grouping import Grouper
    from turnspan.transcript.rows import TranscriptRow
    from turnspan.transcript.turns import Turn, TurnCall

_REMEMBERED_AGENTS: Final = 8


class _AgentPrompt(msgspec.Struct):
    prompt: str = ""


class Warmups(msgspec.Struct):
    """Agents inside the file that the client started by itself (2.0.25). They are in no turn, but they are counted."""

    places: set[int] = set()  # of their first rows
    skipped: set[str] = set()  # the ids of their responses and calls

    def take(self, row: TranscriptRow) -> None:
        """Add a row of such an agent."""
        message = row.entry.message
        if is_warmup(row.entry):
            self.places.add(row.place.offset)
        elif row.entry.type == "assistant" and message is not None:
            calls = {known_as(block.id) or "" for block in e.blocks(message) if block.type == "tool_use"}
            self.skipped |= {row.response, *calls}


class InlineAgents:
    """The subagents of the open turn. `grouper` returns a grouper for one, from what is remembered of it."""

    def __init__(self, grouper: Callable[[Carry | None], Grouper]) -> None:
        self._grouper = grouper
        self._agents: dict[str, tuple[InlineAgent, Grouper]] = {}  # by the uuid of their first row
        self._roots: dict[str, str] = {}  # uuid of a row → the first row of its agent

    def take(self, row: TranscriptRow, turn: Turn, past: Carry) -> None:
        """Take a row of an agent that works for this turn; a row without a known parent begins a new agent."""
        entry = row.entry
        if entry.uuid is not None and (entry.uuid in self._roots or _root_in(past, entry.uuid) is not None):
            return  # a row that is in the file twice
        root = self._roots.get(entry.parent_uuid or "") or _root_in(past, entry.parent_uuid)
        if root not in self._agents:
            carry = past.agents.get(root or "")
            agent = InlineAgent(root, "") if root is not None and carry is not None else _new_agent(row, turn, past)
            root = agent.root
            self._agents[root] = (agent, self._grouper(carry))
            turn.agents.append(agent)
        assert root is not None
        if entry.uuid is not None:
            self._roots[entry.uuid] = root
        agent, grouper = self._agents[root]
        for sealed in grouper.feed(entry, row.place):
            agent.turns += sealed.turns
        turn.end = row.place

    def finish(self, turn: Turn) -> None:
        """Seal the agents of a turn that has ended."""
        for agent, grouper in self._agents.values():
            sealed = grouper.seal() if agent in turn.agents else None
            if sealed is not None:
                agent.turns += sealed.turns

    def remembered(self, past: Carry) -> dict[str, Carry]:
        """Return what later rows of these agents need to know, and of those before them."""
        found = {**past.agents, **{root: grouper.carry for root, (_, grouper) in self._agents.items()}}
        return dict(list(found.items())[-_REMEMBERED_AGENTS:])

    def forget(self) -> None:
        """Forget all agents: no turn is open."""
        if self._agents:
            self._agents, self._roots = {}, {}


def _new_agent(row: TranscriptRow, turn: Turn, past: Carry) -> InlineAgent:
    text = e.plain_text(e.blocks(row.entry.message)) if row.entry.message is not None else ""
    # Only a further part of a turn can have the agents of that turn's calls.
    call_id = dict(past.prompts).get(words_digest(text), "") if past.prompts and turn.part else ""
    return InlineAgent(key_of(row.entry), text, call_id=call_id)


def _root_in(past: Carry, parent: str | None) -> str | None:
    """Return the first row of the agent that a row belongs to, if its parent was sealed before."""
    return next((root for root, carry in past.agents.items() if parent in dict(carry.owners)), None)


def prompts_of(calls: list[TurnCall]) -> tuple[tuple[str, str], ...]:
    """Return digests of what calls ask subagents to do, with the calls' ids."""
    found = []
    for call in calls:
        if call.name in AGENT_TOOLS:
            try:
                found.append((words_digest(msgspec.json.decode(call.arguments, type=_AgentPrompt).prompt), call.id))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    return tuple(found)
