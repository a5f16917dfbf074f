"""Responses and results, as their rows describe them.

A client writes a line for each block of a response, and repeats the rest on every line. What the lines say together:

| field | |
|---|---|
| `usage` | the line with the most output tokens, of equals the last (earlier lines hold streaming counts) |
| `stop_reason` | the last one that is set: null on 95 % of lines |
| `thinking_ms` | the sum: each thinking block records its own |
| `last_ns` | the latest: lines are stamped when their block ended, and stamps can go backwards |
| `is_aborted` | true if any line says so |
| `error` | the text of an API error line, which the client writes in place of an answer |
| `parts`, `calls`, `texts` | one for each block, in the order of the file; a call id counts once |

Which agent a result names, and whether that agent continues in the background:

- A session's file names the agent in `toolUseResult`. An agent's own file does not (2.1.207, 2.1.325): there only the
  text of the result does.
- A message to an agent that has finished resumes it, always in the background. The result of a message to an agent that
  is still running names no resumed agent.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript import entries as e
from turnspan.transcript.carry import known_as
from turnspan.transcript.rows import key_of
from turnspan.transcript.turns import AGENT_TOOLS, ModelResponse, Result, Said, TurnCall, several

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.transcript.rows import TranscriptRow

_MESSAGE_TOOL: Final = "SendMessage"
_BACKGROUND: Final = frozenset({"async_launched", "teammate_spawned", "remote_launched"})
_LAUNCH_NOTE: Final = "Async agent launched"


class RecordedRequest(msgspec.Struct, frozen=True):
    """A request that the client recorded (2.1.325): when it was sent, and with which parameters."""

    time_ns: int | None
    params: e.RequestParams | None


def new_response(row: TranscriptRow, request: RecordedRequest | None, trigger_ns: int | None) -> ModelResponse:
    """Return the response whose first line this is, without its content; `request` is the recorded one it names."""
    entry = row.entry
    params = request.params if request is not None else None
    return ModelResponse(
        key=row.response,
        uuid=entry.uuid or key_of(entry),
        model=(entry.message.model if entry.message is not None else None) or "",
        version=entry.version or "",
        request_id=entry.request_id,
        requested_model=entry.requested_model or (params.model if params is not None else None),
        effort=entry.effort,
        max_tokens=params.max_tokens if params is not None else None,
        trigger_ns=trigger_ns,
        request_ns=request.time_ns if request is not None else None,
        has_request_elsewhere=entry.request_ref is not None and request is None,
        session_id=entry.session_id or "",
        first_ns=row.time_ns,
        first_block_ms=entry.thinking_duration_ms or entry.tool_input_stream_ms,
    )


def merge_line(
    response: ModelResponse, row: TranscriptRow, message: e.ApiMessage, exported: Sequence[str]
) -> list[TurnCall]:
    """Merge one more line into a response; return the tool calls it adds, except those already `exported`."""
    _merge_scalars(response, row, message)
    added: list[TurnCall] = []
    for block in e.blocks(message):
        if block.type == "tool_use":
            call_id = known_as(block.id) or f"{response.key}/{len(response.parts)}"
            if call_id in exported or call_id in response.call_ids:
                continue
            response.call_ids.add(call_id)
            call = TurnCall(call_id, block.name or "tool", e.raw_text(block.input) or "{}", row.time_ns)
            response.parts.append(call)
            response.calls.append(call)
            added.append(call)
        elif (said := _said(block)) is not None:
            response.parts.append(said)
            if said.kind == "text":
                response.texts.append(said.text)
    return added


def repeats(response: ModelResponse, message: e.ApiMessage) -> bool:
    """Whether a line contains nothing that a response does not have: the history was written again (VS Code).

    Such a line can be a part of a text that the first one contains. Its time can be that of the copy, hours later.
    """
    return all(
        known_as(block.id) in response.call_ids if block.type == "tool_use" else _is_part_of(_said(block), response)
        for block in e.blocks(message)
    )


def _is_part_of(said: Said | None, response: ModelResponse) -> bool:
    if said is None or said in response.parts:
        return True
    texts = (part.text for part in response.parts if isinstance(part, Said) and part.kind == said.kind)
    return bool(said.text) and any(f"\n{said.text}\n" in f"\n{text}\n" for text in texts)


def _merge_scalars(response: ModelResponse, row: TranscriptRow, message: e.ApiMessage) -> None:
    entry, time_ns = row.entry, row.time_ns
    if time_ns is not None and (response.last_ns is None or time_ns > response.last_ns):
        response.last_ns = time_ns
    if message.stop_reason:
        response.stop_reason = message.stop_reason
    if entry.is_aborted_mid_stream:
        response.is_aborted = True
    if entry.is_api_error_message:
        response.error = e.plain_text(e.blocks(message))
        response.error_status = entry.api_error_status
    if entry.thinking_duration_ms is not None:
        response.thinking_ms = (response.thinking_ms or 0) + entry.thinking_duration_ms
    used, best = message.usage, response.usage
    if used is not None and (best is None or (used.output_tokens or 0) >= (best.output_tokens or 0)):
        response.usage = used


def _said(block: e.ContentBlock) -> Said | None:
    """Return what a block says, unless it is a tool call or of a type that is not exported."""
    kind = block.type
    if kind == "text":
        return Said("text", block.text or "")
    if kind in {"thinking", "redacted_thinking"}:
        return Said("thinking", block.thinking or "")
    if kind == "server_tool_use":
        return Said("server_tool", f"{block.name or 'tool'} {e.raw_text(block.input)}".strip())
    if kind is not None and kind.endswith("_tool_result"):
        texts = e.inner_texts(block.content)
        return Said("server_tool", "\n".join(texts), several(texts))
    return None


def new_result(tool: str, block: e.ContentBlock, row: TranscriptRow, outcome: e.ToolOutcome) -> Result:
    """Return the result of a call of this tool."""
    texts = e.inner_texts(block.content)
    text = "\n".join(texts)
    agent_id, is_background = agent_of(tool, text, outcome)
    return Result(
        text=text,
        is_error=bool(block.is_error),
        time_ns=row.time_ns,
        denial=row.entry.tool_denial_kind,
        duration_ms=outcome.duration_ms,
        agent_id=agent_id,
        is_background=is_background,
        was_interrupted=outcome.interrupted,
        is_user_modified=outcome.user_modified,
        blocks=several(texts),
    )


def agent_of(tool: str, answer: str, known: e.ToolOutcome) -> tuple[str | None, bool]:
    """Return the agent that a call launched or resumed, and whether it runs in the background."""
    if tool == _MESSAGE_TOOL:
        resumed = known.resumed_agent_id or e.agent_resumed_in(answer)
        return resumed, resumed is not None
    is_background = known.is_async or known.status in _BACKGROUND
    if tool not in AGENT_TOOLS:
        return known.agent_id, is_background
    is_background |= known.status is None and answer.lstrip().startswith(_LAUNCH_NOTE)
    return known.agent_id or e.agent_named_in(answer[-2000:]), is_background
