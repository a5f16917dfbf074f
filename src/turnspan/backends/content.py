"""Content as the text of an attribute: GenAI messages, ChatML or plain text, cut to a size.

Rules:

- Messages become JSON. A tool call's arguments are embedded as JSON if they are JSON, otherwise as a string.
- `fit` cuts strings inside the JSON value, the longest first, so that the result is valid JSON. Only if the text
  between the strings is too long does it become one JSON string with the beginning of the text.
- A cut text ends in an ellipsis. The caller records the original length.
- Images and documents become a marker: the model does not hold their bytes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec

from turnspan.backends.naming import scrub
from turnspan.trace.model import Json, Media, Message, Reasoning, Text, ToolCall, ToolResult

if TYPE_CHECKING:
    from collections.abc import Callable

    from turnspan.trace.model import Content, Part

Tree: TypeAlias = "dict[str, Tree] | list[Tree] | str | int | float | bool | None"

ELLIPSIS = "…"
_ELLIPSIS_BYTES = len(ELLIPSIS.encode())
_SHORTEST_CUT = 16  # a string leaf is not worth cutting below this many bytes

_encode = msgspec.json.Encoder().encode
_decode_raw = msgspec.json.Decoder(msgspec.Raw).decode


def as_text(content: Content, direction: str) -> str:
    """Return text as it is, and messages as GenAI JSON."""
    if isinstance(content, str):
        return content
    if isinstance(content, Json):
        return well_formed(content.text)
    return genai_messages(content, direction)


def words(content: Content) -> str | None:
    """Return the text of content that is only text; None for any other."""
    if isinstance(content, str):
        return content
    if isinstance(content, Json) or len(content) != 1:
        return None
    texts = []
    for part in content[0].parts:
        if isinstance(part, Text):
            texts.append(part.text)
        elif isinstance(part, Media):
            texts.append(marker(part))
        else:
            return None
    return "\n\n".join(texts)


def genai_messages(content: Content, direction: str) -> str:
    """Return content as GenAI messages; `direction` is "input" or "output"."""
    return _encode([_genai_message(message, direction) for message in _as_messages(content, direction)]).decode()


def chatml(content: Content, direction: str) -> str:
    """Return content as ChatML, which Langfuse displays."""
    out = [item for message in _as_messages(content, direction) for item in _chatml_message(message)]
    return _encode(out[0] if direction == "output" and len(out) == 1 else out).decode()


def marker(media: Media) -> str:
    """Return the text in place of an image or a document."""
    return f"[{media.mime}, {media.bytes} bytes]"


def well_formed(text: str) -> str:
    """Return JSON text without escaped lone surrogates, which most parsers reject."""
    if "\\ud" not in text and "\\uD" not in text:
        return text
    import json  # noqa: PLC0415 - only this parser accepts a lone surrogate, and they are rare

    try:
        return _encode(scrub(json.loads(text))).decode()
    except (ValueError, RecursionError, OverflowError):
        return text


def is_json(text: str) -> bool:
    """Whether `text` is one JSON value."""
    try:
        _decode_raw(text)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def _as_messages(content: Content, direction: str) -> tuple[Message, ...]:
    if isinstance(content, tuple):
        return content
    text = content.text if isinstance(content, Json) else content
    return (Message("user" if direction == "input" else "assistant", (Text(text),)),)


class _GenAIText(msgspec.Struct, tag="text"):
    content: str


class _GenAIReasoning(msgspec.Struct, tag="reasoning"):
    content: str


class _GenAICall(msgspec.Struct, tag="tool_call"):
    id: str
    name: str
    arguments: msgspec.Raw | str


class _GenAIResult(msgspec.Struct, tag="tool_call_response"):
    id: str
    response: str


_GenAIPart: TypeAlias = _GenAIText | _GenAIReasoning | _GenAICall | _GenAIResult


class _GenAIMessage(msgspec.Struct, omit_defaults=True):
    role: str
    parts: list[_GenAIPart]
    finish_reason: str | None = None


def _genai_message(message: Message, direction: str) -> _GenAIMessage:
    reason = message.finish_reason
    if reason is None and direction == "output":
        # The schema requires it, and Phoenix shows no output without it; most transcripts do not record one.
        calls = any(isinstance(part, ToolCall) for part in message.parts)
        reason = "tool_call" if calls else "stop"
    return _GenAIMessage(message.role, list(map(_genai_part, message.parts)), reason)


def _genai_part(part: Part) -> _GenAIPart:
    if isinstance(part, Text):
        return _GenAIText(part.text)
    if isinstance(part, ToolResult):
        return _GenAIResult(part.id, part.result)
    if isinstance(part, ToolCall):
        return _GenAICall(part.id, part.name, _embedded(part.arguments))
    if isinstance(part, Reasoning):
        return _GenAIReasoning(part.text)
    return _GenAIText(marker(part))


def _embedded(text: str) -> msgspec.Raw | str:
    text = well_formed(text)
    return msgspec.Raw(text) if is_json(text) else text


def _chatml_message(message: Message) -> list[dict[str, object]]:
    """Return a message as ChatML, which has a separate message for each tool result."""
    texts: list[str] = []
    thinking: list[dict[str, str]] = []
    calls: list[dict[str, object]] = []
    results: list[dict[str, object]] = []
    for part in message.parts:
        match part:
            case Text(text):
                texts.append(text)
            case Reasoning(text):
                thinking.append({"type": "thinking", "content": text})
            case ToolCall(call_id, name, arguments):
                function = {"name": name, "arguments": well_formed(arguments)}
                calls.append({"id": call_id, "type": "function", "function": function})
            case ToolResult(call_id, result):
                results.append({"role": "tool", "tool_call_id": call_id, "content": result})
            case Media():
                texts.append(marker(part))
    if results and not texts and not thinking and not calls:
        return results
    own: dict[str, object] = {"role": message.role, "content": "\n\n".join(texts)}
    if thinking:
        own["thinking"] = thinking
    if calls:
        own["tool_calls"] = calls
    return [*results, own]


def fit(text: str, limit: int, *, is_json: bool) -> str:
    """Return `text` cut to at most `limit` bytes of UTF-8; JSON stays valid JSON."""
    shorter: Tree = None
    if is_json:
        try:
            shorter = _with_leaves_cut(msgspec.json.decode(text), limit)
        except msgspec.DecodeError:
            is_json = False
        except RecursionError:
            pass
    if shorter is None:
        shorter = _cut(text, limit, _json_size if is_json else _utf8_size)
        if not is_json:
            return shorter
    return _encode(shorter).decode()


def _with_leaves_cut(tree: Tree, limit: int) -> Tree:
    """Return the tree with its longest strings cut to fit into `limit` bytes; None if that is not enough."""
    sizes: list[int] = []

    def measured(leaf: str) -> str:
        sizes.append(_json_size(leaf))
        return ""

    between = len(_encode(_map_strings(tree, measured))) - len(sizes) * _json_size("")
    cap = _level(sizes, limit - between)
    if cap < _SHORTEST_CUT:
        return None
    remaining = iter(sizes)  # of the same strings, in the same order
    return _map_strings(tree, lambda leaf: leaf if next(remaining) <= cap else _cut_leaf(leaf, cap))


def _level(sizes: list[int], spare: int) -> int:
    """Return the cap on each size with which their sum is at most `spare`; only the longest are cut."""
    rest = len(sizes)
    for size in sorted(sizes):
        if size * rest > spare:
            return spare // rest
        spare -= size
        rest -= 1
    return max(sizes, default=0)


def _cut_leaf(leaf: str, cap: int) -> str:
    """Return a string that is longer than `cap` as JSON, cut to that."""
    if leaf[:1] in "{[":
        # ChatML has arguments as JSON inside a string, which must stay valid as well.
        room = cap
        while room > _SHORTEST_CUT * 4:
            inner = fit(leaf, room, is_json=True)
            size = _json_size(inner)
            if size <= cap:
                return inner
            room = min(room - 1, room * cap // size)
    return _cut(leaf, cap, _json_size)


def _cut(text: str, limit: int, size_of: Callable[[str], int]) -> str:
    """Return a prefix of `text` with an ellipsis whose `size_of` is at most `limit`."""
    if len(text) <= limit and size_of(text) <= limit:
        return text
    n = max(limit - _ELLIPSIS_BYTES, 0)
    size = size_of(text[:n] + ELLIPSIS)
    while n > 0 and size > limit:
        shorter = min(n - 1, n * limit // size)
        size -= size_of(text[shorter:n]) - size_of("")
        n = shorter
    return text[:n] + ELLIPSIS


def _utf8_size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode())


def _json_size(text: str) -> int:
    return len(_encode(text))


def _map_strings(tree: Tree, change: Callable[[str], str]) -> Tree:
    """Return the tree with `change` applied to every string value, but not to keys."""
    if isinstance(tree, str):
        return change(tree)
    if isinstance(tree, list):
        return [_map_strings(item, change) for item in tree]
    if isinstance(tree, dict):
        return {key: _map_strings(item, change) for key, item in tree.items()}
    return tree
