"""Finds subagents that have no file of their own, or only a part of one, in the `progress` rows of their session.

Rules:

- A response that the agent's own file has is taken from there. The others are spans below the same call, with the same
  ids as if they were in the file: it can appear later, and then only its other responses are exported.
- The rows of a foreground agent are between its call and its result, and so inside the turn.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from turnspan.source.scan import rows_with
from turnspan.transcript.carry import known_as
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import MARK, AgentMessage, message_in, writes_progress
from turnspan.transcript.rows import LinePlace, response_key
from turnspan.transcript.turns import AGENT_TOOLS, Prompt

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from turnspan.source.sessions import SessionFile
    from turnspan.transcript.turns import Turn, TurnCall


class ProgressAgent(msgspec.Struct, frozen=True):
    """A subagent as the session's file shows it."""

    session_id: str
    messages: list[AgentMessage]

    @property
    def agent_id(self) -> str:
        """The agent's id."""
        return self.messages[0].agent_id

    @property
    def responses(self) -> set[str]:
        """The ids of its responses."""
        return {response_key(message.entry) for message in self.messages if message.entry.type == "assistant"}

    def turns(self) -> list[Turn]:
        """Return its turns, grouped as its own file would be."""
        grouper = Grouper(self.session_id, is_agent=True)
        turns: list[Turn] = []
        for number, message in enumerate(self.messages):
            for sealed in grouper.feed(message.entry, LinePlace(number, number, number + 1)):
                turns += sealed.turns
        last = grouper.seal()
        turns += last.turns if last is not None else []
        prompt = self.messages[0].prompt
        if turns and turns[0].prompt is None and prompt:
            turns[0].prompt = Prompt(prompt, None)  # its row is missing, but every other one repeats it
        return turns


def progress_agents(session: SessionFile, turn: Turn, agent_calls: Sequence[TurnCall]) -> dict[str, ProgressAgent]:
    """Return the agents in the progress rows of a turn, by the call that launched them."""
    calls = [call for call in agent_calls if call.name in AGENT_TOOLS]
    if not calls or not writes_progress(turn.version):
        return {}
    end = None if any(call.result is None for call in calls) else turn.end.end
    found: dict[str, list[AgentMessage]] = {}
    for message in _messages(session, turn.start.offset, end):
        found.setdefault(known_as(message.call_id) or "", []).append(message)
    return {call.id: ProgressAgent(session.session_id, found[call.id]) for call in calls if call.id in found}


def progress_responses(session: SessionFile, agent_id: str) -> set[str]:
    """Return the ids of all responses of an agent in the session's progress rows."""
    messages = [message for message in _messages(session) if message.agent_id == agent_id]
    return ProgressAgent(session.session_id, messages).responses


def without_responses(turns: Sequence[Turn], known: Collection[str]) -> list[Turn]:
    """Return further parts with the responses that are not `known`; turns that have no others are dropped."""
    left = []
    for turn in turns:
        turn.responses = [response for response in turn.responses if response.key not in known]
        if turn.responses:
            turn.part, turn.happenings = max(turn.part, 1), []
            left.append(turn)
    return left


def _messages(session: SessionFile, start: int = 0, end: int | None = None) -> Iterator[AgentMessage]:
    for line in rows_with(session.path, MARK, start, end):
        message = message_in(line)
        if message is not None:
            yield message
