"""One line of a transcript becomes an `Entry`; nobody else reads Claude Code's JSON.

Rules:

- The list of types and fields is open. What we know is decoded into typed values, what we do not read is skipped
  without being built, and an unknown type is counted, never an error.
- Every field is optional and may have the wrong type. A line that does not fit goes through `_salvage`, which keeps
  what does fit: no line can cost another one.
- Text that leaves this module is valid Unicode: bad bytes and lone surrogates become U+FFFD.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import msgspec

from turnspan import late

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

# Lines that carry nothing a trace needs. They are recognised by their first bytes, or by a decode of the type alone.
SKIPPED: Final = frozenset(
    {
        "api-request-blob", "api-request-shape", "atis-latch", "cost-state", "file-history-delta",
        "file-history-snapshot", "last-prompt", "progress", "relocated", "tools-used", "worktree-state",
    }
)  # fmt: skip
# Lines that say something about the session or its turns.
KNOWN: Final = SKIPPED | {
    "agent-name", "ai-title", "api-request", "assistant", "attachment", "custom-title", "fork-context-ref", "mode",
    "permission-mode", "pr-link", "queue-operation", "summary", "system", "tag", "user",
}  # fmt: skip

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)
_LONGEST_TIME: Final = 64  # characters; nobody writes a longer one
_MAX_DEPTH: Final = 200  # deeper JSON is nobody's conversation, and our own decoders would refuse it later
_SURROGATE: Final = late.pattern("[\ud800-\udfff]")
_COMMAND: Final = late.pattern(r"<command-name>(.*?)</command-name>", re.DOTALL)
_COMMAND_ARGS: Final = late.pattern(r"<command-args>(.*?)</command-args>", re.DOTALL)
_IDE_TAG: Final = late.pattern(r"<(ide_[a-z_]+)>(.*?)</\1>", re.DOTALL)
_EXIT_CODE: Final = late.pattern(r"(?:Error: )?Exit code (\d+)")
_OLD_TRANSCRIPT: Final = late.pattern(r"([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.jsonl")
_AGENT_ID: Final = late.pattern(r"\bagentId: ([A-Za-z0-9_-]+)")
_TASK_TOOL: Final = late.pattern(r"<tool-use-id>(.*?)</tool-use-id>")


class CacheCreation(msgspec.Struct, frozen=True):
    """How long written cache tokens live."""

    ephemeral_5m_input_tokens: int | None = None
    ephemeral_1h_input_tokens: int | None = None


class ServerTools(msgspec.Struct, frozen=True):
    """What the API itself did for a response."""

    web_search_requests: int | None = None


class Iteration(msgspec.Struct, frozen=True):
    """Tokens of another model that took part in a response and that no top-level counter holds."""

    type: str | None = None
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
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


class Source(msgspec.Struct, frozen=True):
    """Where an image or a document comes from; its data is only measured."""

    media_type: str | None = None
    data: msgspec.Raw = msgspec.Raw()


class Inner(msgspec.Struct, frozen=True):
    """A block inside a tool result."""

    type: str | None = None
    text: str | None = None
    source: Source | None = None
    title: str | None = None
    url: str | None = None


class Block(msgspec.Struct, frozen=True):
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
    source: Source | None = None


class Message(msgspec.Struct, frozen=True):
    """The API message inside a line."""

    id: str | None = None
    role: str | None = None
    model: str | None = None
    content: str | list[Block | str] | None = None
    stop_reason: str | None = None
    usage: Usage | None = None


class ForkedFrom(msgspec.Struct, frozen=True, rename="camel"):
    """Where a copied line first stood."""

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


class Attachment(msgspec.Struct, frozen=True):
    """What the client slipped into the conversation."""

    type: str | None = None
    prompt: str | list[Block | str] | None = None


_ABSENT: Final = msgspec.Raw()


class ToolUseResult(msgspec.Struct, frozen=True, rename="camel"):
    """The few fields of `toolUseResult` that the message does not repeat. Raw: any tool may call anything so."""

    agent_id: msgspec.Raw = _ABSENT
    status: msgspec.Raw = _ABSENT
    is_async: msgspec.Raw = _ABSENT
    duration_ms: msgspec.Raw = _ABSENT
    total_duration_ms: msgspec.Raw = _ABSENT
    interrupted: msgspec.Raw = _ABSENT


class Entry(msgspec.Struct, rename="camel"):
    """What one line says, in Python's spelling; everything may be missing."""

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
    message: Message | None = None
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
    prompt_source: str | None = None
    turn_companion: bool | None = None
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
    source_tool_use_id: str | None = msgspec.field(default=None, name="sourceToolUseID")
    # system lines
    content: msgspec.Raw = msgspec.Raw()
    compact_metadata: CompactMetadata | None = None
    retry_attempt: int | None = None
    retry_in_ms: float | None = None
    duration_ms: float | None = None
    # what surrounds a turn
    id: str | None = None
    params: RequestParams | None = None
    operation: str | None = None
    attachment: Attachment | None = None
    summary: str | None = None
    leaf_uuid: str | None = None
    custom_title: str | None = None
    ai_title: str | None = None
    tag: str | None = None
    mode: str | None = None
    pr_url: str | None = None
    pr_number: int | None = None


class Outcome(msgspec.Struct, frozen=True):
    """What is known of a tool call beside its result."""

    agent_id: str | None = None
    status: str | None = None
    is_async: bool = False
    duration_ms: float | None = None
    interrupted: bool = False


class Noticed(msgspec.Struct):
    """What was passed over while reading, for people to see: `doctor` shows it."""

    unreadable: int = 0  # lines, or parts of lines, that are not JSON
    misshapen: int = 0  # fields of the wrong type, dropped
    oversized: int = 0  # lines too long to hold
    glued: int = 0  # further objects found on a line
    unknown: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)  # (type, client version)

    @property
    def is_clean(self) -> bool:
        """Whether nothing had to be repaired or dropped."""
        return not (self.unreadable or self.misshapen or self.oversized or self.glued)


class _TypeOnly(msgspec.Struct):
    type: str | None = None
    version: str | None = None


_decode = msgspec.json.Decoder(Entry).decode
_decode_type = msgspec.json.Decoder(_TypeOnly).decode
_decode_text = msgspec.json.Decoder(str).decode
_decode_number = msgspec.json.Decoder(float).decode
_decode_bool = msgspec.json.Decoder(bool).decode
_NO_OUTCOME: Final = Outcome()
_SEAM: Final = late.pattern(rb"(?<=\})[\s\0]*(?=\{\")")
_HEAD: Final = b'{"type":"'
_SKIPPED_NAMES: Final = frozenset(name.encode() for name in SKIPPED)
_WANTED: Final = KNOWN - SKIPPED
_PROGRESS: Final = b'"type":"progress"'


def parse(line: bytes, noticed: Noticed) -> tuple[Entry, ...]:
    """The entries on one complete line: mostly one, sometimes none or several."""
    if line.startswith(_HEAD) and line[len(_HEAD) : line.find(b'"', len(_HEAD))] in _SKIPPED_NAMES:
        if b'}{"' not in line and b"\0" not in line:
            return ()  # … unless a record that we want is glued to it
    elif line.find(_PROGRESS, 0, 600) >= 0:
        # The key may also stand in a nested object: only the line's own type decides.
        try:
            if _decode_type(line).type == "progress":
                return ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    try:
        entry = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return tuple(_salvage(line, noticed))
    return (entry,) if entry.type in _WANTED or _is_wanted(entry, noticed) else ()


def records(line: bytes) -> list[tuple[int, int]]:
    """Where the records of a glued line stand, so that reading can go on between them."""
    found, start = [], 0
    for seam in _SEAM.finditer(line):
        if is_record(line[start : seam.start()]):
            found.append((start, seam.start()))
            start = seam.end()
    return [*found, (start, len(line))]


def is_record(line: bytes) -> bool:
    """Whether a line is one whole JSON object."""
    try:
        return line.rstrip().endswith(b"}") and bool(_decode_type(line.replace(b"\0", b"")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def _is_wanted(entry: Entry, noticed: Noticed) -> bool:
    kind = entry.type
    if kind in SKIPPED:
        return False
    if kind not in KNOWN:
        if kind is None and entry.message is not None and entry.message.role in {"user", "assistant"}:
            entry.type = entry.message.role  # seed 002: early lines had only the message's role
            return True
        noticed.unknown[kind or "(none)", entry.version or "?"] += 1
        return False
    return True


# ---- lines that do not fit


def _salvage(line: bytes, noticed: Noticed) -> list[Entry]:
    """What can be read of a line that is torn, glued, binary or of wrong types."""
    text = line.replace(b"\0", b"").decode("utf-8", "replace").strip().lstrip("\ufeff")
    if not text:
        return []
    if _is_too_deep(text):
        noticed.unreadable += 1
        return []
    entries: list[Entry] = []
    decoder = json.JSONDecoder(parse_int=_bounded_int, parse_constant=lambda _: None)
    at = 0
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
            value = _clean(value)
        except (ValueError, RecursionError):
            noticed.unreadable += 1
            # A torn record may be followed by a whole one: Claude Code's lines begin with one of these.
            starts = [p for p in (text.find(head, at + 1) for head in ('{"type":', '{"parentUuid":')) if p > 0]
            if not starts:
                break
            at = min(starts)
            continue
        if entries:
            noticed.glued += 1
        if isinstance(value, dict):
            entry = _coerced(value, noticed)
            if entry is not None and _is_wanted(entry, noticed):
                entries.append(entry)
        else:
            noticed.misshapen += 1
        at = end
        while at < len(text) and text[at].isspace():
            at += 1
    return entries


def _is_too_deep(text: str) -> bool:
    """Whether brackets nest too deep, counted without recursion; those in strings may add to it, never take away."""
    if text.count("{") + text.count("[") <= _MAX_DEPTH:
        return False
    depth = 0
    for match in re.finditer(r"[\[{]+|[\]}]+", text):
        found = match.group()
        depth = depth + len(found) if found[0] in "[{" else max(0, depth - len(found))
        if depth > _MAX_DEPTH:
            return True
    return False


def _bounded_int(digits: str) -> int | None:
    return int(digits) if len(digits) <= 18 else None


def _coerced(value: dict[str, Any], noticed: Noticed) -> Entry | None:
    """The entry that is left when fields of the wrong type are dropped, one by one."""
    for _ in range(64):
        try:
            return _decode(msgspec.json.encode(value))
        except msgspec.ValidationError as error:
            noticed.misshapen += 1
            if not _drop_at(value, str(error)):
                return None
    return None


_PATH_STEP: Final = late.pattern(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]")


def _drop_at(value: dict[str, Any], complaint: str) -> bool:
    """Remove the field a validation error names (`… - at `$.message.usage.input_tokens``); False if it names none."""
    where = complaint.rpartition("`$")[2].rstrip("`")
    steps = _PATH_STEP.findall(where)
    holder: Any = value
    for number, (name, index) in enumerate(steps):
        is_last = number == len(steps) - 1
        if name and isinstance(holder, dict) and name in holder:
            if is_last:
                del holder[name]
                return True
            holder = holder[name]
        elif index.isdigit() and isinstance(holder, list) and int(index) < len(holder):
            if is_last:
                del holder[int(index)]
                return True
            holder = holder[int(index)]
        elif index == "..." and isinstance(holder, list):  # msgspec names the list, not the element
            keep = [x for x in holder if isinstance(x, (dict, str))]
            if len(keep) == len(holder):
                keep = []
            holder[:] = keep
            return True
        else:
            return False
    return False


def _clean(value: Any) -> Any:  # noqa: ANN401  any JSON value
    if isinstance(value, str):
        return value if value.isascii() else _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


# ---- what an entry says


def time_ns(entry: Entry) -> int | None:
    """When the line was written, in nanoseconds since 1970; None where it does not say so in any form we know."""
    stamp = entry.timestamp
    return _parse_iso(stamp) if type(stamp) is str and len(stamp) <= _LONGEST_TIME else parse_time(stamp)


def parse_time(stamp: str | float | None) -> int | None:
    """ISO 8601 text, or seconds or milliseconds since 1970, as nanoseconds. A naive time is UTC, on every machine."""
    if isinstance(stamp, str):
        return _parse_iso(stamp) if len(stamp) <= _LONGEST_TIME else None
    if isinstance(stamp, (int, float)) and 0 < stamp < 1e15:
        ns = round(stamp * 1000 if stamp > 1e11 else stamp * 1_000_000) * 1000
        return ns if 0 < ns < 2**63 else None
    return None


def _parse_iso(stamp: str) -> int | None:
    try:
        moment = datetime.fromisoformat(stamp)
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=UTC)
        ns = (moment - _EPOCH) // _MICROSECOND * 1000
    except (ValueError, OverflowError):
        return None
    return ns if 0 < ns < 2**63 else None


def blocks(message: Message) -> list[Block]:
    """The content blocks of a message; plain text is one text block."""
    content = message.content
    if content is None:
        return []
    if isinstance(content, str):
        return [Block(type="text", text=content)]
    if str in map(type, content):
        content = [Block(type="text", text=block) if isinstance(block, str) else block for block in content]
    return cast("list[Block]", content)


def plain_text(found: list[Block]) -> str:
    """The words of text blocks, in order."""
    return "\n".join(block.text for block in found if block.type == "text" and block.text)


def raw_text(raw: msgspec.Raw) -> str:
    """A raw JSON value as text, empty if it was not there."""
    return str(raw, "utf-8", "replace")


def inner_text(content: str | list[Inner | str] | Inner | None) -> str:
    """The words of a tool result; images and links as short markers."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
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
    return "\n".join(parts)


def media(source: Source | None) -> tuple[str, int]:
    """Type and size in bytes of an image or document that is inlined as base64."""
    if source is None:
        return "image", 0
    encoded = max(0, len(bytes(source.data)) - 2)
    return source.media_type or "image", encoded * 3 // 4


def outcome(entry: Entry) -> Outcome:
    """What `toolUseResult` adds; its body repeats the message and is not built."""
    found = entry.tool_use_result
    if type(found) is not ToolUseResult:
        return _NO_OUTCOME
    took = found.duration_ms if found.duration_ms is not _ABSENT else found.total_duration_ms
    return Outcome(
        _value(found.agent_id, _decode_text),
        _value(found.status, _decode_text),
        _value(found.is_async, _decode_bool) or False,
        _value(took, _decode_number),
        _value(found.interrupted, _decode_bool) or False,
    )


def _value(raw: msgspec.Raw, decode: Callable[[msgspec.Raw], T]) -> T | None:
    """A field's value; None where it is not there, or something else."""
    if raw is _ABSENT:
        return None
    try:
        return decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def system_text(entry: Entry) -> str:
    """The words of a system line or a queue operation."""
    raw = bytes(entry.content)
    try:
        if raw.startswith(b'"'):
            return _decode_text(raw)
        if raw.startswith(b"["):
            found = msgspec.json.decode(raw, type=list[Block])
            return plain_text(found)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass
    return ""


def command_of(text: str) -> tuple[str, str] | None:
    """Name and arguments of a slash command, if the text records one."""
    if "<command-name>" not in text[:4096]:
        return None
    name = _COMMAND.search(text)
    arguments = _COMMAND_ARGS.search(text)
    return (name[1].strip() if name else "", arguments[1].strip() if arguments else "")


def without_ide_tags(text: str) -> tuple[str, tuple[str, ...]]:
    """The words a person typed, and what the editor added to them (`ide_selection`, `ide_opened_file`)."""
    if "<ide_" not in text:
        return text, ()
    added = tuple(f"{match[1]}: {match[2].strip()}" for match in _IDE_TAG.finditer(text))
    return _IDE_TAG.sub("", text).strip(), added


def exit_code_of(text: str) -> int | None:
    """The exit code a failed command's result begins with."""
    match = _EXIT_CODE.match(text)
    return int(match[1]) if match and len(match[1]) < 10 else None


def session_named_in(text: str) -> str | None:
    """The session whose transcript a text points to (a plan carried over names the one it was made in)."""
    match = _OLD_TRANSCRIPT.search(text)
    return match[1] if match else None


def agent_named_in(text: str) -> str | None:
    """The agent id that a launch note or a result states."""
    match = _AGENT_ID.search(text)
    return match[1] if match else None


def tool_notified(text: str) -> str | None:
    """The tool call that a task notification answers."""
    match = _TASK_TOOL.search(text)
    return match[1] if match else None
