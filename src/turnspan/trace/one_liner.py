"""What a span says, in one line that a terminal can be given."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.terminal import duration, one_line, tokens
from turnspan.trace.model import Json, Kind, Media, Reasoning, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from turnspan.trace.model import Content, Part, Span

# The argument that says most about a call, in the order of preference.
_TELLING: Final = (
    "command", "file_path", "notebook_path", "pattern", "query", "url", "skill", "description", "prompt", "subject",
)  # fmt: skip
_TAG: Final = re.compile(r"</?[a-z][a-z_-]*>")
_FROM_EDITOR: Final = re.compile(r"ide_[a-z_]+: ")
_SUMMARY: Final = re.compile(r"<summary>(.*?)</summary>", re.DOTALL)
_LOOKED_AT: Final = 10_000  # characters of a notification: its summary stands near the beginning


def gist_of(span: Span, *, is_parent: bool) -> str:
    """What a span is about. `is_parent`: something stands below it that tells what came of it."""
    match span.kind:
        case Kind.TURN | Kind.AGENT:
            return _headline(words_of(span)) or one_line(str(span.facts.get("agent_description", "")))
        case Kind.GENERATION:
            return "" if span.error is not None else _said(span.output)
        case Kind.TOOL:
            asked = _asked_for(span.input)
            # What an agent answered stands at the agent; what went wrong has a line of its own.
            is_told = is_parent or span.error is not None or "background" in span.facts
            gave = "" if is_told or span.output is None else one_line(flat(span.output))
            return f"{asked} → {gave}" if asked and gave else asked or gave
        case Kind.EVENT:
            details = [_detail(name, value) for name, value in span.facts.items() if name != "event"]
            words = words_of(span) or (flat(span.output) if span.output is not None else "")
            return ", ".join(filter(None, (*details, _argument(words, "message") or _headline(words))))


def _headline(text: str) -> str:
    """The beginning of a prompt, without the tags the client wraps around what no person typed."""
    if not text.lstrip().startswith("<"):
        return one_line(text)
    summary = _SUMMARY.search(text[:_LOOKED_AT])
    return one_line(summary[1] if summary is not None else _TAG.sub(" ", text))


def _said(content: Content | None) -> str:
    """What the model said; what it thought, if it said nothing; what it called, if it did neither."""
    if not isinstance(content, tuple):
        return one_line(flat(content)) if content is not None else ""
    parts = [part for message in content for part in message.parts]
    for kind in (Text, Reasoning):
        words = next((one_line(part.text) for part in parts if isinstance(part, kind) and part.text.strip()), "")
        if words:
            return words if kind is Text else f"(thinking) {words}"
    calls = ", ".join(one_line(part.name) for part in parts if isinstance(part, ToolCall))
    return f"→ {calls}" if calls else ""


def _asked_for(content: Content | None) -> str:
    if not isinstance(content, Json):
        return one_line(flat(content)) if content is not None else ""
    return _argument(content.text, *_TELLING) or one_line(content.text).removeprefix("{").removesuffix("}")


def _argument(text: str, *names: str) -> str:
    """The first of some fields of a JSON object that holds text."""
    try:
        fields = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        found = (fields[name] for name in names if name in fields and bytes(fields[name]).startswith(b'"'))
        return next((one_line(msgspec.json.decode(field, type=str)) for field in found), "")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # never JSON, or cut by masking
        return ""


def flat(content: Content) -> str:
    """All text of a content, one after the other."""
    if isinstance(content, str):
        return content
    if isinstance(content, Json):
        return content.text
    return " ".join(part_text(part) for message in content for part in message.parts)


def part_text(part: Part) -> str:
    """A part of a message as text."""
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


def _detail(name: str, value: object) -> str:
    words = one_line(name).replace("_", " ")
    if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        if name.endswith("_ms"):
            return f"{words.removesuffix(' ms')} {duration(int(value * 1_000_000))}"
        if name.startswith("tokens"):
            return f"{words} {tokens(int(value))}"
    return f"{words} {one_line(str(value))}"


def words_of(span: Span) -> str:
    """The first words that a person, or an agent's caller, asked with; what an editor added only if there are none."""
    if not isinstance(span.input, tuple):
        return ""
    texts = [part.text for message in span.input for part in message.parts if isinstance(part, Text)]
    typed = (text for text in texts if text.strip() and _FROM_EDITOR.match(text) is None)
    return next(typed, texts[0] if texts else "")
