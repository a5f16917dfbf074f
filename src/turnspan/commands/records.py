"""The records that `--json` prints: values that JSON can represent.

Rules:

- The keys are an interface: `--help` lists them, and a test compares all of them with a snapshot.
- Every key is always present: null where there is no value. Ids are hexadecimal; times are UTC, in nanoseconds.
- `line_of` gives ASCII: control characters are escaped, so a record cannot control a terminal.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from turnspan.health.checks import Mark
from turnspan.settings.in_force import shown_options, shown_settings
from turnspan.settings.options import POLICY
from turnspan.terminal import iso_time
from turnspan.trace.model import Json, ToolCall

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turnspan.health.checks import Check
    from turnspan.settings.config import Config
    from turnspan.settings.project import Narrowing
    from turnspan.trace.model import Content, Part, Span, Trace
    from turnspan.view.sessions_table import Summary


def line_of(record: Mapping[str, object]) -> str:
    """A record as one line of JSON."""
    return json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f")


def summary_record(summary: Summary, sent: str | None = None) -> dict[str, object]:
    """One session; `sent` says how much of it was exported."""
    total = summary.tally
    used = total.usage
    return {
        "session_id": summary.session_id,
        "path": str(summary.path),
        "title": summary.title,
        "project": summary.project,
        "client_version": summary.client_version,
        "last_activity": iso_time(summary.last_ns) if summary.last_ns else None,
        "turns": total.turns,
        "generations": total.generations,
        "tools": total.tools,
        "agents": total.agents,
        "errors": total.errors,
        "usage": msgspec.to_builtins(used),
        "cost_usd": total.cost_usd,
        "is_cost_partial": total.is_cost_partial,
        "sent": sent,
    }


def trace_record(trace: Trace, masked: Mapping[str, int]) -> dict[str, object]:
    """A trace with all its spans; `masked` counts the replacements of each rule."""
    return {
        "trace_id": trace.trace_id.hex(),
        "name": trace.name,
        "session_id": trace.session_id,
        "client_version": trace.client_version,
        "tags": list(trace.tags),
        "facts": msgspec.to_builtins(trace.facts),
        "masked": dict(masked),
        "spans": [_span_record(span) for span in trace.spans],
    }


def _span_record(span: Span) -> dict[str, object]:
    return {
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_id.hex() if span.parent_id is not None else None,
        "kind": span.kind.value,
        "name": span.name,
        "start": iso_time(span.start_ns),
        "end": iso_time(span.end_ns),
        "duration_ms": (span.end_ns - span.start_ns) / 1e6,
        "first_token": iso_time(span.first_token_ns) if span.first_token_ns is not None else None,
        "model": span.model,
        "usage": msgspec.to_builtins(span.usage),
        "cost_usd": span.cost_usd,
        "totals": msgspec.to_builtins(span.totals),
        "totals_cost_usd": span.totals_cost_usd,
        "error": span.error,
        "error_message": span.error_message,
        "input": _content_record(span.input),
        "output": _content_record(span.output),
        "facts": msgspec.to_builtins(span.facts),
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "relation": link.relation}
            for link in span.links
        ],
    }


def _content_record(content: Content | None) -> object:
    if isinstance(content, tuple):
        return [
            {
                "role": message.role,
                "finish_reason": message.finish_reason,
                "parts": [_part_record(p) for p in message.parts],
            }
            for message in content
        ]
    return _value(content.text) if isinstance(content, Json) else content


def _part_record(part: Part) -> object:
    record = msgspec.to_builtins(part)
    if isinstance(part, ToolCall):
        record["arguments"] = _value(part.arguments)
    return record


def _value(text: str) -> object:
    """The value of JSON text; the text itself if it is not valid JSON, for example because it was cut."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


# ---- config and doctor


def config_record(config: Config, cwd: str, narrowing: Narrowing, problems: tuple[str, ...]) -> dict[str, object]:
    """The settings in force, without secrets."""
    project = msgspec.to_builtins(narrowing)
    del project["problems"]  # part of `problems` below
    return {
        "home": str(config.home),
        "claude_home": str(config.claude_home),
        "settings": {
            name: {"value": value, "source": config.sources[name]} for name, value in shown_settings(config).items()
        },
        "destinations": [
            {
                "name": destination.name,
                "type": destination.type,
                "source": destination.source,
                "options": shown_options(destination),
                "policy": {name: destination.policy[name] for name in POLICY},
            }
            for destination in config.destinations
        ],
        "project": {"directory": cwd, **project, "why": narrowing.why or None},
        "problems": list(problems),
        "ignored": list(config.ignored),
    }


def doctor_record(checks: Sequence[Check]) -> dict[str, object]:
    """All checks, and whether none of them is an error."""
    return {
        "is_healthy": all(check.mark is not Mark.BAD for check in checks),
        "checks": [{**msgspec.to_builtins(check), "todo": check.todo or None} for check in checks],
    }
