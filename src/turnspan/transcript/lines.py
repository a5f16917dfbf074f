"""Decodes one line of a transcript into an `Entry`, also if the line is damaged.

Rules:

- Lines that no trace needs are skipped without being decoded. An unknown type is counted, never an error.
- A line that does not fit the types goes through `_salvage`, which keeps the fields that fit. A bad line never affects
  another one.
- Text in entries is valid Unicode: bad bytes and lone surrogates become U+FFFD.
"""

import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan import lazy
from turnspan.transcript.carry import version_of
from turnspan.transcript.entries import ApiUsage, Entry

if TYPE_CHECKING:
    from collections.abc import Iterator
    from json import JSONDecoder

# Lines that no trace needs. They are recognised by their first bytes, or by decoding only the type.
SKIPPED: Final = frozenset(
    {
        "api-request-blob", "api-request-shape", "atis-latch", "cost-state", "file-history-delta",
        "file-history-snapshot", "last-prompt", "progress", "relocated", "tools-used", "worktree-state",
    }
)  # fmt: skip
# All types that are not counted as unknown.
KNOWN: Final = SKIPPED | {
    "agent-name", "agent-setting", "ai-title", "api-request", "assistant", "attachment", "custom-title",
    "fork-context-ref", "mode", "permission-mode", "pr-link", "queue-operation", "summary", "system", "tag", "user",
}  # fmt: skip

_MAX_DEPTH: Final = 200  # no client writes deeper JSON, and our own decoders would refuse it later
_SURROGATE: Final = lazy.pattern("[\ud800-\udfff]")


class Anomalies(msgspec.Struct):
    """Counts of what was skipped or repaired while reading; `doctor` shows them."""

    unreadable: int = 0  # lines that are not JSON, or not all of it
    misshapen: int = 0  # fields of the wrong type, dropped
    oversized: int = 0  # lines too long to keep in memory
    glued: int = 0  # further objects found on a line
    unknown: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)  # (type, client version)
    places: set[tuple[int, int]] = set()  # unreadable lines that were counted: a file can be read more than once

    @property
    def is_clean(self) -> bool:
        """Whether nothing had to be repaired or dropped."""
        return not (self.unreadable or self.misshapen or self.oversized or self.glued)


class _TypeOnly(msgspec.Struct):
    type: str | None = None
    version: str | None = None


_decode = msgspec.json.Decoder(Entry).decode
_decode_type = msgspec.json.Decoder(_TypeOnly).decode
_HEAD: Final = b'{"type":"'
_HEAD_BYTES: Final = len(_HEAD)
_SKIPPED_NAMES: Final = frozenset(name.encode() for name in SKIPPED)
WANTED: Final = KNOWN - SKIPPED
_PROGRESS: Final = b'"type":"progress"'


def parse(line: bytes, anomalies: Anomalies) -> tuple[Entry, ...]:
    """Return the entries of one complete line: mostly one, sometimes none or several."""
    if line.startswith(_HEAD) and line[_HEAD_BYTES : line.find(b'"', _HEAD_BYTES)] in _SKIPPED_NAMES:
        if b'}{"' not in line and b"\0" not in line:
            return ()  # unless another record is glued to it
    elif line.find(_PROGRESS, 0, 600) >= 0:
        # The key can also be in a nested object: only the line's own type decides.
        try:
            if _decode_type(line).type == "progress":
                return ()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    try:
        entry = _decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return tuple(_salvage(line, anomalies))
    return (entry,) if entry.type in WANTED or is_wanted(entry, anomalies) else ()


def records(line: bytes) -> list[tuple[int, int]]:
    """Return the byte ranges of the records on a glued line, so that reading can continue between them."""
    text = line.decode("latin-1")  # one character per byte; the structure of JSON is ASCII
    if _is_too_deep(text):
        return [(0, len(line))]
    decoder = _lenient_decoder(strict=False)
    found, at = [], 0
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            at = _next_record(text, at)
            continue
        if isinstance(value, dict):
            found.append((at, end))
        at = end
        while at < len(text) and text[at] in " \t\r\n\0":
            at += 1
    return found or [(0, len(line))]


def _next_record(text: str, at: int) -> int:
    """Return where the next record may begin after a torn one: Claude Code's lines begin with one of these."""
    starts = [p for p in (text.find(head, at + 1) for head in ('{"type":', '{"parentUuid":')) if p > 0]
    return min(starts, default=len(text))


def is_record(line: bytes) -> bool:
    """Whether a line is one complete JSON object."""
    try:
        return line.rstrip().endswith(b"}") and bool(_decode_type(line.replace(b"\0", b"")))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def is_wanted(entry: Entry, anomalies: Anomalies) -> bool:
    """Whether a trace needs a line; if its type is not known, count it."""
    kind = entry.type
    if kind in SKIPPED:
        return False
    if kind not in KNOWN:
        if kind is None and entry.message is not None and entry.message.role in {"user", "assistant"}:
            entry.type = entry.message.role  # early lines had only the message's role
            return True
        anomalies.unknown[kind or "(none)", entry.version or "?"] += 1
        return False
    return True


# ---- lines that do not fit


def _salvage(line: bytes, anomalies: Anomalies) -> list[Entry]:
    """Return what can be read of a line that is torn, glued, binary, or has fields of wrong types."""
    text = line.replace(b"\0", b"").decode("utf-8", "replace").strip().lstrip("\ufeff")
    if not text:
        return []
    if _is_too_deep(text):
        anomalies.unreadable += 1
        return []
    entries: list[Entry] = []
    decoder = _lenient_decoder(strict=True)
    at = is_torn = 0
    while at < len(text):
        try:
            value, end = decoder.raw_decode(text, at)
            value = _clean(value)
        except (ValueError, RecursionError):
            anomalies.unreadable += not is_torn  # what looks like a record inside of a torn one is no other line
            at, is_torn = _next_record(text, at), 1
            continue
        if entries:
            anomalies.glued += 1
        if isinstance(value, dict):
            entry = _coerced(value, anomalies)
            if entry is not None and is_wanted(entry, anomalies):
                entries.append(entry)
        else:
            anomalies.misshapen += 1
        at = end
        while at < len(text) and text[at].isspace():
            at += 1
    return entries


def _is_too_deep(text: str) -> bool:
    """Whether brackets nest too deep, counted without recursion; brackets in strings can only add to the count."""
    if text.count("{") + text.count("[") <= _MAX_DEPTH:
        return False
    depth = 0
    for match in re.finditer(r"[\[{]+|[\]}]+", text):
        found = match.group()
        depth = depth + len(found) if found[0] in "[{" else max(0, depth - len(found))
        if depth > _MAX_DEPTH:
            return True
    return False


def _lenient_decoder(*, strict: bool) -> "JSONDecoder":
    """Return a decoder that takes one object after another, and numbers out of range."""
    import json  # noqa: PLC0415  few lines are broken

    return json.JSONDecoder(strict=strict, parse_int=_bounded_int, parse_constant=lambda _: None)


def _bounded_int(digits: str) -> int | None:
    return int(digits) if len(digits) <= 18 else None


def _coerced(value: dict[str, Any], anomalies: Anomalies) -> Entry | None:
    """Return the entry that remains when fields of the wrong type are dropped, one by one."""
    for _ in range(64):
        try:
            return _decode(msgspec.json.encode(value))
        except msgspec.ValidationError as error:
            anomalies.misshapen += 1
            if not _drop_at(value, str(error)):
                return None
    return None


_PATH_STEP: Final = lazy.pattern(r"\.([A-Za-z0-9_]+)|\[(\d+|\.\.\.)\]")


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


# ---- what a newer client may have added to messages


def unknown_parts(line: bytes, calls: dict[str, str]) -> "Iterator[str]":
    """Yield what a line has that no trace shows: blocks, usage, stop reasons, and tools that launch agents.

    `calls` has the tools of the calls so far, by their ids; those of this line are added.
    """
    try:
        row = msgspec.json.decode(line, type=_RowParts)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return
    message = row.message or _MessageParts()
    for block in message.content if isinstance(message.content, list) else ():
        kind = block.type or "(none)"
        if kind not in _BLOCKS and not kind.endswith("_tool_result"):
            yield f"content block {kind}"
        if kind == "tool_use":
            calls[block.id or ""] = block.name or ""
        elif kind == "tool_result":
            inner = (
                [part.get("type") for part in block.content if isinstance(part, dict)]
                if isinstance(block.content, list)
                else []
            )
            yield from (f"block {kind} in a result" for kind in inner if kind not in _BLOCKS_IN_RESULTS)
            tool, result = calls.get(block.tool_use_id or "", ""), row.tool_use_result
            if isinstance(result, dict) and result.get("agentId") and tool and tool not in _LAUNCHING:
                yield f"agents launched by {tool}"
    yield from (f"usage {name}" for name, count in (message.usage or {}).items() if name not in _USAGE and count)
    if message.stop_reason and message.stop_reason not in _STOP_REASONS:
        yield f"stop reason {message.stop_reason}"


class _BlockParts(msgspec.Struct):
    type: str | None = None
    id: str | None = None
    name: str | None = None
    tool_use_id: str | None = None
    content: Any = None


class _MessageParts(msgspec.Struct):
    content: str | list[_BlockParts] | None = None
    usage: dict[str, Any] | None = None
    stop_reason: str | None = None


class _RowParts(msgspec.Struct, rename="camel"):
    message: _MessageParts | None = None
    tool_use_result: Any = None


_BLOCKS: Final = frozenset(
    {
        "document", "image", "redacted_thinking", "server_tool_use", "text", "thinking", "tool_result", "tool_use",
    }
)  # fmt: skip
_BLOCKS_IN_RESULTS: Final = frozenset({"document", "image", "text", "tool_reference", "web_search_result"})
_USAGE: Final = frozenset({*ApiUsage.__struct_fields__, "fallback_credit", "output_tokens_details"})
_STOP_REASONS: Final = frozenset(
    {
        "end_turn", "max_tokens", "model_context_window_exceeded", "pause_turn", "refusal", "stop_sequence", "tool_use",
    }
)  # fmt: skip
_LAUNCHING: Final = frozenset({"Agent", "SendMessage", "Task", "Workflow"})


# ---- subagents in `progress` rows of their session's file (2.1.9 to 2.1.47): every message of an agent, once more.
# Where an agent has a file of its own, these rows repeat it. In backups and copied single files they are all there is.

MARK: Final = b"agent_progress"
_SINCE: Final = (2, 1, 9)
_UNTIL: Final = (2, 1, 97)  # no later client writes `progress` rows


class _ProgressData(msgspec.Struct, rename="camel"):
    type: str | None = None
    agent_id: str | None = None
    prompt: str | None = None
    message: Entry | None = None


class _ProgressRow(msgspec.Struct):
    type: str | None = None
    version: str | None = None
    parent_call: str | None = msgspec.field(default=None, name="parentToolUseID")
    data: _ProgressData | None = None


class AgentMessage(msgspec.Struct, frozen=True):
    """One message of a subagent: the call that launched it, and the row as the agent's own file would have it."""

    call_id: str
    agent_id: str
    prompt: str
    entry: Entry


_decode_progress: Final = msgspec.json.Decoder(_ProgressRow).decode


def writes_progress(version: str) -> bool:
    """Whether this client writes what its subagents do into the session's file too."""
    numbers = version_of(version)
    return _SINCE <= numbers <= _UNTIL


def message_in(line: bytes) -> AgentMessage | None:
    """Return the message of a subagent that a line holds; None if it is another line, or damaged."""
    try:
        row = _decode_progress(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    data = row.data
    if row.type != "progress" or data is None or data.type != MARK.decode() or data.message is None:
        return None
    if not row.parent_call or not data.agent_id:
        return None
    entry = data.message
    entry.version, entry.is_sidechain = row.version, True
    return AgentMessage(row.parent_call, data.agent_id, data.prompt or "", entry)
