"""A trace becomes what may leave: as much as its owner allows, without secrets.

Rules:

- What a capture mode or a switch holds back is gone before anything is looked at.
- Then every string is masked (see `masking`).
- `full` masks our own credentials only, `redacted` also what the rules know, `metadata` holds no content at all: of the
  facts only those in `METADATA_FACTS` stay.
- The same trace and policy give the same result: the budget counts steps of the scan, not seconds.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from turnspan import lazy
from turnspan.secrets.replace import RuleSet
from turnspan.secrets.scan import Meter
from turnspan.trace.masking import masked_trace, withheld
from turnspan.trace.model import Json, Kind, Media, Reasoning, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from turnspan.trace.model import Content, Facts, Message, Part, Span, Trace

SCAN_BUDGET: Final = 60_000_000  # steps: one a character of ordinary text, a second or two of the worst there is

METADATA_FACTS: Final = frozenset({
    "aborted", "agent_id", "answers_call", "attempt", "background", "client_version", "denial", "depth", "duration_ms",
    "effort", "entrypoint", "error_status", "event", "exit_code", "finish_reason", "incomplete", "interrupted",
    "max_tokens", "mcp_server", "origin", "permission_mode", "previous_session", "prompt_id", "request_id",
    "request_model", "response_id", "retry_in_ms", "service_tier", "speed", "stop_reason", "time.inferred",
    "tokens_after", "tokens_before", "tool_call_id", "trigger", "turn_number",
})  # fmt: skip
"""Facts that say how something ran, not what it was about. A fact that is not here is content."""

_OUTPUT_EVENTS: Final = frozenset({"late_result", "task_notification"})  # what a tool or an agent gave back later

# Homes as Linux, macOS and Windows have them, and as Claude Code writes them into the names of project directories.
_HOMES: Final = lazy.pattern(
    r"""(?<![\w.-])(?:
        (?:/home/|/Users/|[A-Za-z]:\\{1,2}Users\\{1,2})[^/\\\s"'`:;,<>()\[\]{}|]+
      | /root(?![\w.-])
      | (?<=projects/)-(?:home|Users)-[A-Za-z0-9]+
    )""",
    re.VERBOSE,
)
_IDENTIFIER: Final = lazy.pattern(r"[\w.:/@+\[\]()-]{1,200}")
_NAME: Final = lazy.pattern(r"[\w.:/@+\[\]()-]{1,120}(?: \w{1,20}){0,2}")  # "Turn 3", "late result", a tool, a model


class CaptureMode(StrEnum):
    """How much of a trace may leave."""

    FULL = "full"
    REDACTED = "redacted"
    METADATA = "metadata"


class Policy(msgspec.Struct, frozen=True):
    """What of a trace may leave for one destination."""

    capture: CaptureMode = CaptureMode.REDACTED
    thinking: bool = True
    tool_inputs: bool = True
    tool_outputs: bool = True
    images: bool = True
    paths: bool = False  # whether home directories are masked, too
    rules: RuleSet = RuleSet()


class Redacted(NamedTuple):
    """What may leave, how often each rule masked something in it, and under `withheld` how many texts stayed behind."""

    trace: Trace
    counts: dict[str, int]


def redact(
    trace: Trace, policy: Policy, *, budget: int = SCAN_BUDGET, is_late: Callable[[], bool] | None = None
) -> Redacted:
    """The trace as it may leave. `is_late` is asked now and then and ends the scan early: a last resort, not a pace."""
    trace = _allowed(trace, policy)
    rules = policy.rules.credentials_only() if policy.capture == CaptureMode.FULL else policy.rules
    if policy.paths:
        rules = rules.with_pattern("home", _HOMES)
    return Redacted(*masked_trace(trace, rules, Meter(budget, is_late)))


# ---- what may leave


def _allowed(trace: Trace, policy: Policy) -> Trace:
    if policy.capture == CaptureMode.METADATA:
        spans = tuple(_metadata(span) for span in trace.spans)
        name = _name_or(trace.name, "trace")
        return msgspec.structs.replace(trace, name=name, tags=(), facts=_metadata_facts(trace.facts), spans=spans)
    if policy.thinking and policy.tool_inputs and policy.tool_outputs and policy.images:
        return trace
    return msgspec.structs.replace(trace, spans=tuple(_switched(span, policy) for span in trace.spans))


def _metadata(span: Span) -> Span:
    return msgspec.structs.replace(
        span,
        name=_name_or(span.name, span.kind.value),
        input=None,
        output=None,
        model=span.model and _name_or(span.model, "unknown"),
        error=span.error and _name_or(span.error, "error"),
        error_message="",
        facts=_metadata_facts(span.facts),
    )


def _name_or(name: str, otherwise: str) -> str:
    """A name, unless it reads like somebody's words."""
    return name if _NAME.fullmatch(name) else otherwise


def _metadata_facts(facts: Facts) -> Facts:
    """Facts about how it ran; where words stand in place of an identifier they are somebody's words."""
    return {
        key: value
        for key, value in facts.items()
        if key in METADATA_FACTS
        and not isinstance(value, tuple)
        and (not isinstance(value, str) or _IDENTIFIER.fullmatch(value))
    }


def _switched(span: Span, policy: Policy) -> Span:
    """The span without what the switches hold back."""
    is_output = span.kind is Kind.TOOL or (span.kind is Kind.EVENT and span.facts.get("event") in _OUTPUT_EVENTS)
    went_in, came_out, message, facts = span.input, span.output, span.error_message, span.facts
    if span.kind is Kind.TOOL and not policy.tool_inputs:
        went_in = went_in and Json(withheld("tool inputs", is_json=True))
        facts = _metadata_facts(facts)
    if is_output and not policy.tool_outputs:
        came_out = came_out and withheld("tool outputs")
        message = message and withheld("tool outputs")
    return msgspec.structs.replace(
        span, input=_switched_content(went_in, policy), output=_switched_content(came_out, policy),
        error_message=message, facts=facts,
    )  # fmt: skip


def _switched_content(content: Content | None, policy: Policy) -> Content | None:
    if not isinstance(content, tuple):
        return content
    return tuple(msgspec.structs.replace(message, parts=tuple(_switched_parts(message, policy))) for message in content)


def _switched_parts(message: Message, policy: Policy) -> Iterable[Part]:
    for part in message.parts:
        match part:
            case Reasoning() if not policy.thinking:
                continue
            case Media() if not policy.images:
                continue
            case ToolCall() if not policy.tool_inputs:
                yield ToolCall(part.id, part.name, withheld("tool inputs", is_json=True))
            case ToolResult() if not policy.tool_outputs:
                yield ToolResult(part.id, withheld("tool outputs"))
            case Text() if message.role == "tool" and not policy.tool_outputs:
                yield Text(withheld("tool outputs"))
            case _:
                yield part
