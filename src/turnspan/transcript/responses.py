"""The lines of one API response become one value: a client writes one for each block, and repeats the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnspan.transcript import entries as e
from turnspan.transcript.resume import known_as
from turnspan.transcript.turns import Call, Said

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turnspan.transcript.turns import Response


def add_line(  # noqa: C901
    response: Response, entry: e.Entry, message: e.Message, moment: int | None, told: Sequence[str]
) -> list[Call]:
    """One more line of a response; the calls that it brings, less those that were told before."""
    if moment is not None and (response.last_ns is None or moment > response.last_ns):
        response.last_ns = moment
    response.stop_reason = message.stop_reason or response.stop_reason
    response.is_aborted = response.is_aborted or bool(entry.is_aborted_mid_stream)
    if entry.thinking_duration_ms is not None:
        response.thinking_ms = (response.thinking_ms or 0) + entry.thinking_duration_ms
    used = message.usage
    if used is not None and (
        response.usage is None or (used.output_tokens or 0) >= (response.usage.output_tokens or 0)
    ):
        response.usage = used  # the last line carries the largest count
    found = e.blocks(message)
    if entry.is_api_error_message:
        response.error = e.plain_text(found)
        response.error_status = entry.api_error_status
    calls: list[Call] = []
    for block in found:
        kind = block.type
        if kind == "tool_use":
            call_id = known_as(block.id) or f"{response.key}/{len(response.parts)}"
            if call_id not in told and all(call.id != call_id for call in response.calls):
                call = Call(call_id, block.name or "tool", e.raw_text(block.input) or "{}", moment)
                response.parts.append(call)
                response.calls.append(call)
                calls.append(call)
        elif kind == "text":
            response.parts.append(Said("text", block.text or ""))
        elif kind in {"thinking", "redacted_thinking"}:
            response.parts.append(Said("thinking", block.thinking or ""))
        elif kind == "server_tool_use":
            response.parts.append(Said("server_tool", f"{block.name or 'tool'} {e.raw_text(block.input)}".strip()))
        elif kind is not None and kind.endswith("_tool_result"):
            response.parts.append(Said("server_tool", e.inner_text(block.content)))
    return calls
