"""Reduces a trace to what may be exported: as much as the policy allows, without secrets.

Rules:

- Content that the capture mode or a switch excludes is removed first; then every string is masked (`masking`).
- `full` masks only turnspan's own credentials, `redacted` every secret that the rules recognise; `metadata` has no
  content at all, and of the facts only `METADATA_FACTS`.
- The same trace and policy give the same result: the budget counts steps of the scan, not seconds.
"""

from __future__ import annotations

import re
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from turnspan import lazy
from turnspan.secrets.replace import RuleSet
from turnspan.secrets.scan import Meter
from turnspan.trace.masking import clean_traces, masked_trace, withheld
from turnspan.trace.model import Json, Kind, Media, Reasoning, Text, ToolCall, ToolResult, with_parts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from turnspan.trace.model import Facts, Message, Part, Span, Trace

SCAN_BUDGET: Final = (
    60_000_000  # steps: one per character of ordinary text; one or two seconds of CPU in the worst case
)

METADATA_FACTS: Final = frozenset({
    "aborted", "agent", "agent_id", "answers_call", "attempt", "background", "client_version", "compacted", "denial",
    "depth", "duration.active_ms", "duration_ms", "effort", "entrypoint", "error_status", "event", "exit_code",
    "finish_reason", "incomplete", "interrupted", "max_tokens", "mcp_server", "origin", "part", "partial",
    "permission_mode", "previous_session", "prompt_id", "provider", "request_id", "request_model", "response_id",
    "retry_in_ms", "service_tier", "speed", "stop_reason", "time.inferred", "tokens_after", "tokens_before",
    "tool_call_id", "trigger", "turn_number", "user_modified",
})  # fmt: skip
"""Facts about how something ran. Every other fact is content."""

_OUTPUT_EVENTS: Final = frozenset({"late_result", "task_notification"})  # late results of a tool or a subagent

# Home directories of Linux, macOS and Windows, and in the names of Claude Code's project directories.
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
    """How much of a trace is exported."""

    FULL = "full"
    REDACTED = "redacted"
    METADATA = "metadata"


class Policy(msgspec.Struct, frozen=True):
    """What is exported to one destination."""

    capture: CaptureMode = CaptureMode.REDACTED
    thinking: bool = True
    tool_inputs: bool = True
    tool_outputs: bool = True
    images: bool = True
    paths: bool = False  # whether home directories are masked, too
    rules: RuleSet = RuleSet()


class Redacted(NamedTuple):
    """A trace ready for export, and the number of secrets by rule (`withheld`: texts that were not exported)."""

    trace: Trace
    counts: dict[str, int]


def redact(
    trace: Trace, policy: Policy, *, budget: int = SCAN_BUDGET, is_late: Callable[[], bool] | None = None
) -> Redacted:
    """Return the trace as it is exported. `is_late` ends the scan early; it is a last resort for a stuck scan."""
    return _redacted(_allowed(trace, policy), _rules(policy), Meter(budget, is_late))


def redact_all(traces: Sequence[Trace], policy: Policy) -> list[Redacted]:
    """Return traces as `redact` returns each of them, in less time: most contain nothing that must be masked."""
    allowed, rules = [_allowed(trace, policy) for trace in traces], _rules(policy)
    clean: set[int] = set()
    if len(traces) > 1 and not rules.is_empty:
        clean = clean_traces(allowed, rules, Meter(SCAN_BUDGET // 2))
    return [
        Redacted(_without_blocks(trace), {}) if place in clean else _redacted(trace, rules, Meter(SCAN_BUDGET))
        for place, trace in enumerate(allowed)
    ]


def _redacted(trace: Trace, rules: RuleSet, meter: Meter) -> Redacted:
    masked, counts = masked_trace(trace, rules, meter)
    return Redacted(_without_blocks(masked), counts)


def _without_blocks(trace: Trace) -> Trace:
    return msgspec.structs.replace(trace, blocks=()) if trace.blocks else trace


def _rules(policy: Policy) -> RuleSet:
    rules = policy.rules.credentials_only() if policy.capture == CaptureMode.FULL else policy.rules
    return rules.with_pattern("home", _HOMES) if policy.paths else rules


# ---- capture modes and switches


def _allowed(trace: Trace, policy: Policy) -> Trace:
    if policy.capture == CaptureMode.METADATA:
        spans = tuple(_metadata(span) for span in trace.spans)
        name = _name_or(trace.name, "trace")
        return msgspec.structs.replace(
            trace,
            name=name,
            session_id=_identifier_or(trace.session_id, "unknown"),
            client_version=_identifier_or(trace.client_version, "unknown"),
            tags=(),
            facts=_metadata_facts(trace.facts),
            spans=spans,
            blocks=(),
        )
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
    """Return a name, or `otherwise` if it is free text."""
    return name if _NAME.fullmatch(name) else otherwise


def _identifier_or(value: str, otherwise: str) -> str:
    """Return an identifier, or `otherwise` if it is free text."""
    return value if not value or _IDENTIFIER.fullmatch(value) else otherwise


def _metadata_facts(facts: Facts) -> Facts:
    """Return the facts about how it ran, without values that are free text."""
    return {
        key: value
        for key, value in facts.items()
        if key in METADATA_FACTS
        and not isinstance(value, tuple)
        and (not isinstance(value, str) or _IDENTIFIER.fullmatch(value))
    }


def _switched(span: Span, policy: Policy) -> Span:
    """Return the span without the content that the switches exclude."""
    is_output = span.kind is Kind.TOOL or (span.kind is Kind.EVENT and span.facts.get("event") in _OUTPUT_EVENTS)
    inputs, outputs, message, facts = span.input, span.output, span.error_message, span.facts
    if span.kind is Kind.TOOL and not policy.tool_inputs:
        inputs = inputs and Json(withheld("tool inputs", is_json=True))
        facts = _metadata_facts(facts)
    if is_output and not policy.tool_outputs:
        outputs = outputs and withheld("tool outputs")
        message = message and withheld("tool outputs")
    parts = partial(_switched_parts, policy)
    return msgspec.structs.replace(
        span, input=inputs and with_parts(inputs, parts), output=outputs and with_parts(outputs, parts),
        error_message=message, facts=facts,
    )  # fmt: skip


def _switched_parts(policy: Policy, message: Message) -> Iterable[Part]:
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
