"""The content of a span in one line for the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.text import count, duration, one_line, tokens
from turnspan.trace.labels import headline, words_of
from turnspan.trace.model import Json, Kind, Media, Reasoning, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from turnspan.trace.model import Content, Part, Span

# The arguments that describe a call best, in order of preference.
_DESCRIPTIVE: Final = (
    "command", "file_path", "notebook_path", "pattern", "query", "url", "skill", "description", "prompt", "subject",
)  # fmt: skip


def gist_of(span: Span, *, is_parent: bool) -> str:
    """Summarise a span. `is_parent`: its children show its result."""
    match span.kind:
        case Kind.TURN | Kind.AGENT:
            return one_line(headline(words_of(span))) or one_line(str(span.facts.get("agent_description", "")))
        case Kind.GENERATION:
            return "" if span.error is not None else _response(span.output)
        case Kind.TOOL:
            call = _call(span.input)
            # The result of an agent is shown at the agent, and an error on its own line.
            is_shown_elsewhere = is_parent or span.error is not None or "background" in span.facts
            result = "" if is_shown_elsewhere or span.output is None else one_line(flat(span.output))
            return f"{call} → {result}" if call and result else call or result
        case Kind.EVENT if span.facts.get("event") == "retry":
            return _retry(span)
        case Kind.EVENT:
            details = [_detail(name, value) for name, value in span.facts.items() if name != "event"]
            words = words_of(span) or (flat(span.output) if span.output is not None else "")
            return ", ".join(filter(None, (*details, _argument(words, "message") or one_line(headline(words)))))


def _response(content: Content | None) -> str:
    """Return the text of a response; without text its reasoning, without that its tool calls."""
    if not isinstance(content, tuple):
        return one_line(flat(content)) if content is not None else ""
    parts = [part for message in content for part in message.parts]
    for kind in (Text, Reasoning):
        words = next((one_line(part.text) for part in parts if isinstance(part, kind) and part.text.strip()), "")
        if words:
            return words if kind is Text else f"(thinking) {words}"
    calls = ", ".join(one_line(part.name) for part in parts if isinstance(part, ToolCall))
    return f"→ {calls}" if calls else ""


def _call(content: Content | None) -> str:
    if not isinstance(content, Json):
        return one_line(flat(content)) if content is not None else ""
    return (
        _argument(content.text, *_DESCRIPTIVE)
        or _tasks(content.text)
        or one_line(content.text).removeprefix("{").removesuffix("}")
    )


def _argument(text: str, *names: str) -> str:
    """Return the first of these fields of a JSON object that is a string."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        found = (fields[name] for name in names if name in fields and bytes(fields[name]).startswith(b'"'))
        return next((one_line(msgspec.json.decode(field, type=str)) for field in found), "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # not JSON, or truncated by masking
        return ""


class _Task(msgspec.Struct):
    content: str = ""
    status: str = ""


class _Tasks(msgspec.Struct):
    todos: list[_Task]


def _tasks(text: str) -> str:
    """Return how far a list of tasks is, and which one is under way; empty if the text is not one."""
    try:
        todos = msgspec.json.decode(text, type=_Tasks).todos
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    done = sum(task.status == "completed" for task in todos)
    current = next((one_line(task.content) for task in todos if task.status == "in_progress"), "")
    return f"{done} of {count(len(todos), 'task')} done" + (f": {current}" if current else "")


def flat(content: Content) -> str:
    """Return all text of a content, joined."""
    if isinstance(content, str):
        return content
    if isinstance(content, Json):
        return content.text
    return " ".join(part_text(part) for message in content for part in message.parts)


def part_text(part: Part) -> str:
    """Return a part of a message as text."""
    match part:
        case Text():
            return part.text
        case Reasoning():
            return f"(thinking) {part.text}"
        case ToolCall():
            return f"→ {part.name} {part.arguments}"
        case ToolResult():
            return f"← {part.result}"
        case Media():
            return f"[{part.mime}, {part.bytes:,} bytes]"


class _ApiError(msgspec.Struct):
    status: msgspec.Raw = msgspec.Raw(b"null")
    formatted: str | None = None  # "529 Overloaded", since 2.1.300
    message: str | None = None  # "overloaded", or the status and the body of the response


def _retry(span: Span) -> str:
    """Say why a request was repeated, and when: `overloaded (529), retried after 0.6 s`."""
    said = flat(span.output) if span.output is not None else ""
    try:
        error = msgspec.json.decode(said, type=_ApiError)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        error = _ApiError(message=said)
    status = bytes(error.status).decode() if bytes(error.status).isdigit() else ""
    reason = (error.formatted or error.message or "").removeprefix(status).strip()
    if reason.startswith("{"):
        reason = _argument(_field(reason, "error"), "message") or reason
    reason = one_line(reason[:1].lower() + reason[1:]).rstrip(".") or "API error"
    waited_ms, attempt = span.facts.get("retry_in_ms"), span.facts.get("attempt")
    after = f" after {waited_ms / 1000:.1f} s" if isinstance(waited_ms, (int, float)) else ""
    number = f" (attempt {attempt})" if isinstance(attempt, int) and attempt > 1 else ""
    return f"{reason}{f' ({status})' if status else ''}, retried{after}{number}"


def _field(text: str, name: str) -> str:
    """Return a field of a JSON object as JSON; empty if there is none."""
    try:
        return bytes(msgspec.json.decode(text, type=dict[str, msgspec.Raw])[name]).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, KeyError):
        return ""


def _detail(name: str, value: object) -> str:
    words = one_line(name).replace("_", " ")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        if name.endswith("_ms"):
            return f"{words.removesuffix(' ms')} {duration(int(value * 1_000_000))}"
        if name.startswith("tokens"):
            return f"{words} {tokens(int(value))}"
    return f"{words} {one_line(str(value))}"
