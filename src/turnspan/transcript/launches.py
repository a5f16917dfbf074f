"""Which agent a tool result names, and whether that agent continues in the background.

Rules:

- A session's file names the agent in `toolUseResult`. An agent's own file does not (2.1.207, 2.1.325): there only the
  text of the result does.
- A message to an agent that has finished resumes it, always in the background. The result of a message to an agent that
  is still running names no resumed agent.
"""

from __future__ import annotations

from typing import Final

from turnspan.transcript import entries as e
from turnspan.transcript.turns import AGENT_TOOLS

_MESSAGE_TOOL: Final = "SendMessage"
_BACKGROUND: Final = frozenset({"async_launched", "teammate_spawned", "remote_launched"})
_LAUNCH_NOTE: Final = "Async agent launched"


def agent_of(tool: str, answer: str, known: e.Outcome) -> tuple[str | None, bool]:
    """Return the agent that a call launched or resumed, and whether it runs in the background."""
    if tool == _MESSAGE_TOOL:
        resumed = known.resumed_agent_id or e.agent_resumed_in(answer)
        return resumed, resumed is not None
    is_background = known.is_async or known.status in _BACKGROUND
    if tool not in AGENT_TOOLS:
        return known.agent_id, is_background
    is_background |= known.status is None and answer.lstrip().startswith(_LAUNCH_NOTE)
    return known.agent_id or e.agent_named_in(answer[-2000:]), is_background
