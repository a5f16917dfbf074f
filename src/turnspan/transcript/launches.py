"""Which agent the result of a call tells of, and whether that agent works on in the background.

Rules:

- A session's own file says it beside the result (`toolUseResult`). An agent's own file does not (2.1.207, 2.1.325):
  there the words of the result are all there is.
- A message to an agent that has finished sends it on, always in the background. A message to one that is at work only
  reaches it: then the result names no agent that was resumed.
"""

from __future__ import annotations

from typing import Final

from turnspan.transcript import entries as e
from turnspan.transcript.turns import AGENT_TOOLS

_MESSAGE_TOOL: Final = "SendMessage"
_BACKGROUND: Final = frozenset({"async_launched", "teammate_spawned", "remote_launched"})
_LAUNCH_NOTE: Final = "Async agent launched"


def agent_of(tool: str, answer: str, known: e.Outcome) -> tuple[str | None, bool]:
    """The agent that a call launched or sent on, and whether in the background."""
    if tool == _MESSAGE_TOOL:
        sent_on = known.resumed_agent_id or e.agent_resumed_in(answer)
        return sent_on, sent_on is not None
    is_background = known.is_async or known.status in _BACKGROUND
    if tool not in AGENT_TOOLS:
        return known.agent_id, is_background
    is_background |= known.status is None and answer.lstrip().startswith(_LAUNCH_NOTE)
    return known.agent_id or e.agent_named_in(answer[-2000:]), is_background
