"""One line of a transcript as typed values. Only this package knows Claude Code's field names.

Rules:

- The list of types and fields is open. Known fields are decoded into typed values; all others are skipped without
  building them.
- Every field is optional and can have the wrong type. `lines` decodes, and keeps the fields that fit.
- Here and in other modules that decode during an event, there is no `from __future__ import annotations`: msgspec would
  evaluate the text of each annotation, with every event.
"""

import re
from collections.abc import Callable
from typing import Final, TypeVar

import msgspec

from turnspan import lazy
from turnspan.transcript.carry import parse_time

T = TypeVar("T")

_COMMAND: Final = lazy.pattern(r"<command-name>(.*?)</command-name>", re.DOTALL)
_COMMAND_ARGS: Final = lazy.pattern(r"<command-args>(.*?)</command-args>", re.DOTALL)
_IDE_TAG: Final = lazy.pattern(r"<(ide_[a-z_]+)>(.*?)</\1>", re.DOTALL)
_EXIT_CODE: Final = lazy.pattern(r"(?:Error: )?Exit code (\d+)")
_OLD_TRANSCRIPT: Final = lazy.pattern(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl")
_AGENT_ID: Final = lazy.pattern(r"\bagentId: ([A-Za-z0-9_-]+)")
_RESUMED_AGENT: Final = lazy.pattern(r'"resumedAgentId": ?"([A-Za-z0-9_-]+)"')
_TASK_TOOL: Final = lazy.pattern(r"<tool-use-id>(.*?)</tool-use-id>")


class CacheCreation(msgspec.Struct, frozen=True):
    """Cache writes by lifetime."""

    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class ServerTools(msgspec.Struct, frozen=True):
    """Tools that the API ran by itself."""

    web_search_requests: int | None = None


class Iteration(msgspec.Struct, frozen=True):
    """Tokens of another model that took part in a response; no top-level counter includes them."""

    type: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class ApiUsage(msgspec.Struct, frozen=True):
    """Tokens as the API counted them."""

    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None
    cache_creation: CacheCreation | None = None
    server_tool_use: ServerTools | None = None
    service_tier: str | None = None
    speed: str | None = None
    inference_geo: str | None = None
    iterations: list[Iteration] | None = None


class MediaSource(msgspec.Struct, frozen=True):
    """An inlined image or document; only the size of its data is read."""

    media_type: str | None = None
    data: msgspec.Raw = msgspec.Raw()


class Inner(msgspec.Struct, frozen=True):
    """A block inside a tool result."""

    type: str | None = None
    text: str | None = None
    source: MediaSource | None = None
    title: str | None = None
    url: str | None = None
    tool_name: str | None = None


class ContentBlock(msgspec.Struct, frozen=True):
    """One content block of a message."""

    type: str | None = None
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: msgspec.Raw = msgspec.Raw()
    tool_use_id: str | None = None
    content: str | list[Inner | str] | Inner | None = None
    is_error: bool | None = None
    source: MediaSource | None = None


class ApiMessage(msgspec.Struct, frozen=True):
    """The API message inside a line."""

    id: str | None = None
    role: str | None = None
    model: str | None = None
    content: str | list[ContentBlock | str] | None = None
    stop_reason: str | None = None
    usage: ApiUsage | None = None
    timestamp: str | int | float | None = None


class ForkedFrom(msgspec.Struct, frozen=True, rename="camel"):
    """The origin of a copied line."""

    session_id: str | None = None
    message_uuid: str | None = None


class Origin(msgspec.Struct, frozen=True):
    """Who asked for a turn."""

    kind: str | None = None


class CompactMetadata(msgspec.Struct, frozen=True, rename="camel"):
    """What a compaction did."""

    trigger: str | None = None
    pre_tokens: int | None = None
    post_tokens: int | None = None


class RequestParams(msgspec.Struct, frozen=True):
    """Parameters of a recorded request."""

    model: str | None = None
    max_tokens: int | None = None


class Attachment(msgspec.Struct, frozen=True, rename="camel"):
    """What the client added to the conversation."""

    type: str | None = None
    prompt: str | list[ContentBlock | str] | None = None
    command_mode: str | None = None


_ABSENT: Final = msgspec.Raw()


class ToolUseResult(msgspec.Struct, frozen=True, rename="camel"):
    """The few fields of `toolUseResult` that the message does not repeat. Raw: any tool can use these names."""

    agent_id: msgspec.Raw = _ABSENT
    resumed_agent_id: msgspec.Raw = _ABSENT
    status: msgspec.Raw = _ABSENT
    is_async: msgspec.Raw = _ABSENT
    duration_ms: msgspec.Raw = _ABSENT
    total_duration_ms: msgspec.Raw = _ABSENT
    interrupted: msgspec.Raw = _ABSENT
    user_modified: msgspec.Raw = _ABSENT


class Entry(msgspec.Struct, rename="camel"):
    """One line of a transcript; every field can be missing."""

    type: str | None = None
    subtype: str | None = None
    uuid: str | None = None
    parent_uuid: str | None = None
    session_id: str | None = None
    timestamp: str | int | float | None = None
    version: str | None = None
    is_meta: bool | None = None
    is_sidechain: bool | None = None
    is_compact_summary: bool | None = None
    is_visible_in_transcript_only: bool | None = None
    is_api_error_message: bool | None = None
    is_aborted_mid_stream: bool | None = None
    message: ApiMessage | None = None
    agent_id: str | None = None
    cwd: str | None = None
    git_branch: str | None = None
    slug: str | None = None
    entrypoint: str | None = None
    permission_mode: str | None = None
    # turns
    origin: Origin | None = None
    turn_origin: str | None = None
    prompt_id: str | None = None
    plan_content: str | None = None
    forked_from: ForkedFrom | None = None
    # responses
    request_id: str | None = None
    request_ref: str | None = None
    requested_model: str | None = None
    effort: str | None = None
    thinking_duration_ms: float | None = None
    tool_input_stream_ms: float | None = None
    api_error_status: int | None = None
    error: msgspec.Raw = msgspec.Raw()
    # tool results
    tool_use_result: ToolUseResult | str | list[msgspec.Raw] | float | bool | None = None
    tool_denial_kind: str | None = None
    # system lines
    content: msgspec.Raw = msgspec.Raw()
    compact_metadata: CompactMetadata | None = None
    retry_attempt: int | None = None
    retry_in_ms: float | None = None
    duration_ms: float | None = None
    # context
    id: str | None = None
    params: RequestParams | None = None
    operation: str | None = None
    attachment: Attachment | None = None
    summary: str | None = None
    leaf_uuid: str | None = None
    custom_title: str | None = None
    ai_title: str | None = None
    agent_setting: str | None = None
    tag: str | None = None
    mode: str | None = None
    pr_url: str | None = None


class ToolOutcome(msgspec.Struct, frozen=True):
    """What `toolUseResult` says about a tool call."""

    agent_id: str | None = None
    resumed_agent_id: str | None = None
    status: str | None = None
    is_async: bool = False
    duration_ms: float | None = None
    interrupted: bool = False
    user_modified: bool = False  # the user changed an edit before accepting it


_decode_text = msgspec.json.Decoder(str).decode
_decode_content = msgspec.json.Decoder(str | list[ContentBlock | str] | None).decode
_decode_number = msgspec.json.Decoder(float).decode
_decode_bool = msgspec.json.Decoder(bool).decode
_NO_OUTCOME: Final = ToolOutcome()
_NOTHING_MORE: Final = ToolUseResult()


def time_ns(entry: Entry) -> int | None:
    """Return when the line was written, in nanoseconds since 1970; None if it has no time in a known format."""
    found = parse_time(entry.timestamp)
    return parse_time(entry.message.timestamp) if found is None and entry.message is not None else found


def own_message(entry: Entry) -> ApiMessage | None:
    """Return the message of a line that has its content at the top; None if it has none."""
    try:
        return ApiMessage(role=entry.type, content=_decode_content(entry.content)) if entry.content else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def blocks(message: ApiMessage) -> list[ContentBlock]:
    """Return the content blocks of a message; plain text is one text block."""
    content = message.content
    if content is None:
        return []
    if type(content) is str:
        return [ContentBlock(type="text", text=content)]
    for block in content:
        if type(block) is str:  # rare
            return [ContentBlock(type="text", text=each) if isinstance(each, str) else each for each in content]
    return content  # type: ignore[return-value]  # no element is text; `cast` would be a call for each row


def plain_texts(found: list[ContentBlock]) -> list[str]:
    """Return the texts of all text blocks, in order."""
    return [block.text for block in found if block.type == "text" and block.text]


def plain_text(found: list[ContentBlock]) -> str:
    """Return the text of all text blocks, in order."""
    return "\n".join(plain_texts(found))


def raw_text(raw: msgspec.Raw) -> str:
    """Return a raw JSON value as text, empty if it is missing."""
    return str(raw, "utf-8", "replace")


def inner_texts(content: str | list[Inner | str] | Inner | None) -> list[str]:
    """Return the texts of a tool result; images, links and found tools (ToolSearch) as short markers."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, Inner):
        content = [content]
    parts = []
    for item in content:
        if isinstance(item, str):
            parts.append(item)
        elif item.text is not None:
            parts.append(item.text)
        elif item.type == "image" or item.source is not None:
            mime, size = media(item.source)
            parts.append(f"[{mime}, {size} bytes]")
        elif item.url is not None:
            parts.append(f"{item.title or ''} {item.url}".strip())
        elif item.tool_name is not None:
            parts.append(item.tool_name)
    return parts


def media(source: MediaSource | None) -> tuple[str, int]:
    """Return the type and the size in bytes of an image or document that is inlined as base64."""
    if source is None:
        return "image", 0
    encoded = max(0, len(bytes(source.data)) - 2)
    return source.media_type or "image", encoded * 3 // 4


def outcome(entry: Entry) -> ToolOutcome:
    """Return what `toolUseResult` adds to the message; the rest of it repeats the message and is not decoded."""
    found = entry.tool_use_result
    if type(found) is not ToolUseResult or found == _NOTHING_MORE:
        return _NO_OUTCOME
    took = found.duration_ms if found.duration_ms is not _ABSENT else found.total_duration_ms
    return ToolOutcome(
        None if found.agent_id is _ABSENT else _value(found.agent_id, _decode_text),
        None if found.resumed_agent_id is _ABSENT else _value(found.resumed_agent_id, _decode_text),
        None if found.status is _ABSENT else _value(found.status, _decode_text),
        found.is_async is not _ABSENT and _value(found.is_async, _decode_bool) is True,
        None if took is _ABSENT else _value(took, _decode_number),
        found.interrupted is not _ABSENT and _value(found.interrupted, _decode_bool) is True,
        found.user_modified is not _ABSENT and _value(found.user_modified, _decode_bool) is True,
    )


def _value(raw: msgspec.Raw, decode: Callable[[msgspec.Raw], T]) -> T | None:
    """Return a field's value; None if it is of another type."""
    try:
        return decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def system_texts(entry: Entry) -> list[str]:
    """Return the texts of a system line or a queue operation."""
    raw = bytes(entry.content)
    try:
        if raw.startswith(b'"'):
            return [_decode_text(raw)]
        if raw.startswith(b"["):
            return plain_texts(msgspec.json.decode(raw, type=list[ContentBlock]))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return []


def system_text(entry: Entry) -> str:
    """Return the text of a system line or a queue operation."""
    return "\n".join(system_texts(entry))


def command_of(text: str) -> tuple[str, str] | None:
    """Return the name and arguments of a slash command, if the text records one; a text that quotes one is a prompt."""
    head = text[:4096].lstrip()
    if not head.startswith("<command-") or "<command-name>" not in head:
        return None
    name = _COMMAND.search(text)
    arguments = _COMMAND_ARGS.search(text)
    return (name[1].strip() if name else "", arguments[1].strip() if arguments else "")


def without_ide_tags(text: str) -> tuple[str, tuple[str, ...]]:
    """Return what the user typed, and what the editor added to it (`ide_selection`, `ide_opened_file`)."""
    if "<ide_" not in text:
        return text, ()
    added = tuple(f"{match[1]}: {match[2].strip()}" for match in _IDE_TAG.finditer(text))
    return _IDE_TAG.sub("", text).strip(), added


def exit_code_of(text: str) -> int | None:
    """Return the exit code that the result of a failed command begins with."""
    match = _EXIT_CODE.match(text)
    return int(match[1]) if match and len(match[1]) < 10 else None


def session_named_in(text: str) -> str | None:
    """Return the session whose transcript a text names (a plan carried over names the session it was made in)."""
    match = _OLD_TRANSCRIPT.search(text)
    return match[1] if match else None


def agent_named_in(text: str) -> str | None:
    """Return the agent id in a launch note or a result."""
    match = _AGENT_ID.search(text)
    return match[1] if match else None


def agent_resumed_in(text: str) -> str | None:
    """Return the agent that a message resumed, from its result."""
    match = _RESUMED_AGENT.search(text)
    return match[1] if match else None


def tool_notified(text: str) -> str | None:
    """Return the tool call that a task notification answers."""
    match = _TASK_TOOL.search(text)
    return match[1] if match else None
