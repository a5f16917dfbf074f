"""Agents inside their parent's file (before 2.0.28): each is a tree of rows of its own, grouped by itself."""

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
    """The agents of what is open. `grouper` gives a new one for each."""

    def __init__(self, grouper: Callable[[], Grouper]) -> None:
        self._grouper = grouper
        self._agents: dict[str, tuple[InlineAgent, Grouper]] = {}  # by their root
        self._roots: dict[str, str] = {}  # of each row

    def take(self, row: Row, turn: Turn) -> None:
        """A row of an agent that works for this turn: one that hangs on no other begins a new agent."""
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
        """The turn has ended, and with it its agents."""
        for agent, grouper in self._agents.values():
            sealed = grouper.seal() if agent in turn.agents else None
            if sealed is not None:
                agent.turns += sealed.turns

    def forget(self) -> None:
        """Nothing is open any more."""
        self._agents, self._roots = {}, {}
