"""Subagents inside their parent's file (before 2.0.28): each is a tree of rows, grouped on its own."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnspan.transcript import entries as e
from turnspan.transcript.classify import key_of
from turnspan.transcript.turns import InlineAgent

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.transcript.grouping import Grouper
    from turnspan.transcript.turns import Row, Turn


class InlineAgents:
    """The subagents of the open turn. `grouper` returns a new grouper for each."""

    def __init__(self, grouper: Callable[[], Grouper]) -> None:
        self._grouper = grouper
        self._agents: dict[str, tuple[InlineAgent, Grouper]] = {}  # by the uuid of their first row
        self._roots: dict[str, str] = {}  # uuid of a row → the first row of its agent

    def take(self, row: Row, turn: Turn) -> None:
        """Take a row of an agent that works for this turn; a row without a known parent begins a new agent."""
        entry = row.entry
        root = self._roots.get(entry.parent_uuid or "")
        if root is None or root not in self._agents:
            text = e.plain_text(e.blocks(entry.message)) if entry.message is not None else ""
            root = entry.uuid or key_of(entry)
            agent = InlineAgent(root, text)
            self._agents[root] = (agent, self._grouper())
            turn.agents.append(agent)
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

    def forget(self) -> None:
        """Forget all agents: no turn is open."""
        self._agents, self._roots = {}, {}
