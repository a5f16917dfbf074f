"""The facts of a span: small details besides its content, under our own names.

A detail that the transcript does not contain is omitted, never guessed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.transcript.entries import ApiUsage, exit_code_of
from turnspan.transcript.rows import SYNTHETIC

if TYPE_CHECKING:
    from turnspan.trace.model import Facts
    from turnspan.transcript.turns import Happening, ModelResponse, Result, Turn, TurnCall

_REJECTED: Final = ("The user doesn't want to proceed", "Permission to use", "Claude requested permissions")
_FINISH_REASONS: Final = {
    "end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_call",
    "refusal": "content_filter",
}  # fmt: skip
_PROVIDERS: Final = {"msg_bdrk_": "aws.bedrock", "msg_vrtx_": "gcp.vertex_ai", "msg_": "anthropic"}
_CUT_SHORT: Final = "[Request interrupted by user"
_NO_USAGE: Final = ApiUsage()
_LONGEST_ARGUMENTS: Final = 1_000_000
_ARGUMENT_FACTS: Final = {
    "Read": ("file_path", "file_path"), "Write": ("file_path", "file_path"), "Edit": ("file_path", "file_path"),
    "MultiEdit": ("file_path", "file_path"), "NotebookEdit": ("notebook_path", "file_path"),
    "Skill": ("skill", "skill"),
}  # fmt: skip


class _FileArguments(msgspec.Struct):
    """Raw: a field that is not text must not hide the others."""

    file_path: msgspec.Raw = msgspec.Raw()
    notebook_path: msgspec.Raw = msgspec.Raw()
    skill: msgspec.Raw = msgspec.Raw()


_decode_arguments: Final = msgspec.json.Decoder(_FileArguments).decode
_decode_text: Final = msgspec.json.Decoder(str).decode


class _AgentArguments(msgspec.Struct):
    prompt: str | None = None
    subagent_type: str | None = None
    description: str | None = None


def agent_arguments(call: TurnCall) -> tuple[str, str, str]:
    """Return prompt, type and description of an Agent call; empty where missing."""
    try:
        known = msgspec.json.decode(call.arguments, type=_AgentArguments)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        known = _AgentArguments()
    return known.prompt or "", known.subagent_type or "", known.description or ""


def tool_facts(call: TurnCall) -> Facts:
    """Return the facts of a tool call."""
    result = call.result
    facts: Facts = {"tool_call_id": call.id}
    if result is None:
        facts["incomplete"] = True
    else:
        facts |= _result_facts(result)
    if call.name.startswith("mcp__"):
        facts["mcp_server"] = call.name.split("__")[1]
    if call.name in _ARGUMENT_FACTS and len(call.arguments) <= _LONGEST_ARGUMENTS:
        key, name = _ARGUMENT_FACTS[call.name]
        value = _argument(call.arguments, key)
        if value is not None:
            facts[name] = value
    return facts


def _result_facts(result: Result) -> Facts:
    """Return what a result says besides its text."""
    facts: Facts = {}
    if result.duration_ms is not None:
        facts["duration_ms"] = result.duration_ms
    if result.denial is not None:
        facts["denial"] = result.denial
    if result.is_background:
        facts["background"] = True
    if result.was_interrupted and not result.is_error:
        facts["interrupted"] = True
    if result.is_user_modified:
        facts["user_modified"] = True
    code = exit_code_of(result.text) if result.is_error else None
    if code is not None:
        facts["exit_code"] = code
    return facts


def _argument(arguments: str, key: str) -> str | None:
    """Return an argument of a call; None if it is not a text."""
    try:
        return _decode_text(getattr(_decode_arguments(arguments), key))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def failure_of(result: Result) -> str | None:
    """Return the error type of a result; None if it is not an error."""
    if not result.is_error:
        return None
    if result.was_interrupted or result.denial == "interrupted" or _CUT_SHORT in result.text[:400]:
        return "interrupted"
    if result.denial is not None or result.text.startswith(_REJECTED):
        return "permission_denied"
    return "tool_error"


def finish_reason(response: ModelResponse) -> str:
    """Return why the model stopped, in OpenTelemetry's terms; inferred if the client did not record it."""
    reason = response.stop_reason or ""
    if response.error is not None or (response.is_aborted and not reason):
        return "error"
    return _FINISH_REASONS.get(reason, reason) or ("tool_call" if response.calls else "stop")


def model_facts(turn: Turn) -> Facts:
    """Return the provider and the model of the first response that has them."""
    for response in turn.responses:
        facts = generation_facts(turn, response, "")
        if "provider" in facts and "request_model" in facts:
            return {name: facts[name] for name in ("provider", "request_model")}
    return {}


def generation_facts(turn: Turn, response: ModelResponse, finish: str) -> Facts:
    """Return the facts of a response."""
    used = response.usage or _NO_USAGE
    model = response.model if response.model != SYNTHETIC else None
    known = {
        "response_id": response.key, "request_id": response.request_id,
        "provider": next((name for start, name in _PROVIDERS.items() if response.key.startswith(start)), None),
        "request_model": response.requested_model or model or None, "effort": response.effort,
        "max_tokens": response.max_tokens, "stop_reason": response.stop_reason, "service_tier": used.service_tier,
        "speed": used.speed, "error_status": response.error_status, "thinking_ms": response.thinking_ms,
        "finish_reason": finish,
    }  # fmt: skip
    facts: Facts = {name: value for name, value in known.items() if value is not None}
    if response.request_ns is None:
        facts["time.inferred"] = "start"
    if response.is_aborted:
        facts["aborted"] = True
    if turn.happenings and any(_is_compaction_before(response, happening) for happening in turn.happenings):
        facts["compacted"] = True
    return facts


def _is_compaction_before(response: ModelResponse, happening: Happening) -> bool:
    at_ns, first_ns = happening.time_ns, response.first_ns
    return happening.kind == "compaction" and at_ns is not None and first_ns is not None and at_ns <= first_ns


def turn_facts(turn: Turn) -> Facts:
    """Return the facts of a turn."""
    facts: Facts = {"turn_number": turn.number, "origin": turn.origin}
    for name, value in (
        ("prompt_id", turn.prompt_id), ("permission_mode", turn.permission_mode),
        ("command", turn.prompt.command if turn.prompt is not None else None),
        ("local_commands", turn.local_commands), ("answers_call", turn.answers_call),
    ):  # fmt: skip
        if value:
            facts[name] = value
    if turn.is_interrupted:
        facts["interrupted"] = True
    elif not turn.has_answer:
        facts["incomplete"] = True
    return facts


def session_facts(turn: Turn) -> Facts:
    """Return the facts of the session at the end of the turn."""
    titles = turn.titles
    title = titles.get("custom-title") or titles.get("ai-title") or titles.get("summary")
    facts: Facts = {}
    for name, value in (
        ("title", title), ("cwd", turn.cwd), ("git_branch", turn.git_branch), ("slug", turn.slug),
        ("entrypoint", turn.entrypoint), ("client_version", turn.version),
        ("previous_session", turn.previous_session), ("pull_request", turn.pull_request), ("agent", turn.agent),
    ):  # fmt: skip
        if value:
            facts[name] = value
    return facts
