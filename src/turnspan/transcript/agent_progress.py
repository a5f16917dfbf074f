"""Subagents in `progress` rows of their session's file (2.1.9 to 2.1.47): every message of an agent, once more.

Where an agent has a file of its own, these rows repeat it. In backups and copied single files they are all there is.
"""

from typing import Final

import msgspec

from turnspan.transcript.entries import Entry
from turnspan.transcript.turns import version_of

MARK: Final = b"agent_progress"
_SINCE: Final = (2, 1, 9)
_UNTIL: Final = (2, 1, 97)  # no later client writes `progress` rows


class _Data(msgspec.Struct, rename="camel"):
    type: str | None = None
    agent_id: str | None = None
    prompt: str | None = None
    message: Entry | None = None


class _Row(msgspec.Struct):
    type: str | None = None
    version: str | None = None
    parent_call: str | None = msgspec.field(default=None, name="parentToolUseID")
    data: _Data | None = None


class AgentMessage(msgspec.Struct, frozen=True):
    """One message of a subagent: the call that launched it, and the row as the agent's own file would have it."""

    call_id: str
    agent_id: str
    prompt: str
    entry: Entry


_decode: Final = msgspec.json.Decoder(_Row).decode


def writes_progress(version: str) -> bool:
    """Whether this client writes what its subagents do into the session's file too."""
    numbers = version_of(version)
    return _SINCE <= numbers <= _UNTIL


def message_in(line: bytes) -> AgentMessage | None:
    """Return the message of a subagent that a line holds; None if it is another line, or damaged."""
    try:
        row = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    data = row.data
    if row.type != "progress" or data is None or data.type != MARK.decode() or data.message is None:
        return None
    if not row.parent_call or not data.agent_id:
        return None
    entry = data.message
    entry.version, entry.is_sidechain = row.version, True
    return AgentMessage(row.parent_call, data.agent_id, data.prompt or "", entry)
