"""Parses one Messages API request: a body and its headers → `ApiRequest`.

The scripted API records what really happened. It therefore derives the turn of each request from the request alone, not
from the transcript that it is compared with. Rules:

- Every prompt of a story has a script name and a mark: `{tools} look around #p3` plays the script `tools` as turn `p3`.
- A turn starts at the last text block with a mark, a task notification, bash input or an accepted plan. Text that the
  client marks as typed in the meantime (or wraps in a reminder) is `queued`.
- `step` counts the responses since that start. A subagent's prompt names the call that launched it: `[call toolu_…]`.
- Requests outside the conversation (titles, compaction, warm-ups, the search behind WebSearch) have a kind in `aux`.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any

MARK = re.compile(r"#(p\d+)\b")
SCRIPT = re.compile(r"\{(\w+)\}")
CALLED_BY = re.compile(r"\[call (toolu_\w+)\]")
REMINDER = re.compile(r"<system-reminder>.*?</system-reminder>", re.DOTALL)
NOTIFIED = re.compile(  # if an agent continued by itself (2.1.325), only the task is named
    r"<task-notification>\s*<task-id>(\w+)</task-id>\s*<output-file>"
    r"|<task-notification>.*?<tool-use-id>(toolu_\w+)</tool-use-id>",
    re.DOTALL,
)
PLAN_FILE = re.compile(r"(/[^\s\"'`<>]*/plans/[\w.-]+\.md)")
INTERRUPTED = "[Request interrupted by user"
PLAN_ACCEPTED = "Implement the following plan:"
MEANWHILE = ("The user sent a new message while you were working", "The user sent the following message")
COMPACTED = "This session is being continued from a previous conversation"
CONTINUED = (
    "continued"  # placeholder for a request that has only the summary: it belongs to the turn before the compaction
)
STOP_BLOCKED = "Stop hook feedback"

# The kind of a request without a prompt, by a phrase in its instructions (oldest clients last).
AUX_PHRASES = (
    ("Your task is to create a detailed summary", "compact"),
    ("[SUGGESTION MODE", "suggestion"),
    ("new conversation topic", "topic"),
    ("title", "title"),
    ("Extract any file paths", "paths"),
    ("policy_spec", "bash-prefix"),
    ("command prefix", "bash-prefix"),
)


@dataclass(frozen=True, slots=True)
class Returned:
    """A tool result that the client sent back."""

    tool_use_id: str
    is_error: bool
    text: str


@dataclass(frozen=True, slots=True)
class ApiRequest:
    """One parsed request."""

    session_id: str | None
    model: str
    stream: bool
    max_tokens: int
    attempt: str
    tools: dict[str, frozenset[str]]  # the available tools, each with its parameters
    aux: str | None = None
    thread: str = "main"
    parent_tool_use_id: str | None = None
    turn: str | None = None
    turn_kind: str | None = None
    queued: tuple[str, ...] = ()
    script: str | None = None
    step: int = 0
    returned: tuple[Returned, ...] = ()
    plan_file: str | None = None
    called: tuple[str, ...] = field(default=())  # names of the tools called since the turn's start


@dataclass(frozen=True, slots=True)
class _Block:
    """One text block of the conversation and its position."""

    at: int  # index of its message
    text: str
    is_aside: bool  # addressed to the running turn: it does not start a new one


@dataclass(frozen=True, slots=True)
class _Start:
    """A block that starts a turn."""

    at: int
    text: str
    turn: str | None
    kind: str | None


def read_request(body: dict[str, Any], headers: dict[str, str]) -> ApiRequest:
    """Parse a request."""
    messages = body.get("messages") or []
    blocks = _text_blocks(messages)
    tools = {str(t.get("name")): frozenset((t.get("input_schema") or {}).get("properties") or {}) for t in _tools(body)}
    base = ApiRequest(
        session_id=_session_id(body, headers),
        model=str(body.get("model")),
        stream=bool(body.get("stream")),
        max_tokens=int(body.get("max_tokens") or 0),
        attempt=headers.get("x-stainless-retry-count", "0"),
        tools=tools,
        returned=tuple(_results(messages)),
    )
    aux = _aux(body, messages, tools)
    starts = list(_starts(blocks))
    start = starts[-1] if starts else None
    agent = next((s for s in (*starts[-1:], *starts[:1]) if s.turn is None), None)  # a fork's prompt is its last start
    is_sub = agent is not None
    call = CALLED_BY.search(agent.text) if agent else None
    script = _script(start)
    return replace(
        base,
        aux=aux or (None if start else "other"),
        thread="subagent" if is_sub else "main",
        parent_tool_use_id=call.group(1) if call else None,
        turn=None if is_sub or start is None else start.turn,
        turn_kind=None if is_sub or start is None else _kind(start, blocks),
        queued=() if start is None else _queued(blocks, start),
        script=script,
        step=0 if start is None else sum(m.get("role") == "assistant" for m in messages[start.at :]),
        called=() if start is None else tuple(_calls(messages[start.at :])),
        plan_file=_plan_file(body),
    )


def _tools(body: dict[str, Any]) -> list[dict[str, Any]]:
    return [t for t in body.get("tools") or [] if isinstance(t, dict)]


def _session_id(body: dict[str, Any], headers: dict[str, str]) -> str | None:
    if sid := headers.get("x-claude-code-session-id"):
        return sid
    user = str((body.get("metadata") or {}).get("user_id") or "")
    if user.startswith("{"):
        return json.loads(user).get("session_id")
    return user.rsplit("session_", 1)[1] if "session_" in user else None


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content or [])


def _text_blocks(messages: list[dict[str, Any]]) -> list[_Block]:
    """Return the text blocks of users and clients, in order. Reminders are dropped, except those with queued prompts."""
    found = []
    for at, message in enumerate(messages):
        if message.get("role") == "assistant":
            continue
        parts = _parts(message)
        beside_result = any(p.get("type") == "tool_result" for p in parts)
        for part in parts:
            if part.get("type") != "text":
                continue
            text = str(part.get("text"))
            if text.startswith(INTERRUPTED):
                beside_result = False
            said = REMINDER.sub("", text).strip()
            if said and message.get("role") == "user":
                found.append(_Block(at, said, is_aside=said.startswith(MEANWHILE)))
            if NOTIFIED.search(text) and not NOTIFIED.search(said):  # newest clients wrap it in a reminder
                found.append(_Block(at, text, is_aside=beside_result))
            elif said != text.strip() or message.get("role") == "system":
                found.append(_Block(at, text, is_aside=True))
    return found


def _starts(blocks: list[_Block]) -> list[_Start]:
    found, shells = [], 0
    for block in blocks:
        if block.is_aside:
            continue
        mark, notified = MARK.search(block.text), NOTIFIED.search(block.text)
        if notified:
            task = notified.group(1) or notified.group(2)
            found.append(_Start(block.at, block.text, f"n:{task}", "task-notification"))
        elif "<bash-input>" in block.text:
            shells += 1
            found.append(_Start(block.at, block.text, f"bash{shells}", "bash-mode"))
        elif block.text.startswith(PLAN_ACCEPTED):
            found.append(_Start(block.at, block.text, "plan-exec", "plan-clear-context"))
        elif block.text.startswith(COMPACTED):
            found.append(_Start(block.at, block.text, CONTINUED, "human"))
        elif mark:
            found.append(_Start(block.at, block.text, mark.group(1), "human"))
        elif CALLED_BY.search(block.text):
            found.append(_Start(block.at, block.text, None, None))
    return found


def _kind(start: _Start, blocks: list[_Block]) -> str | None:
    blocked = any(b.at > start.at and b.text.startswith(STOP_BLOCKED) for b in blocks)
    return "stop-hook" if blocked else start.kind


def _queued(blocks: list[_Block], start: _Start) -> tuple[str, ...]:
    marks = [m.group(1) for b in blocks if b.at > start.at and b.is_aside for m in MARK.finditer(b.text)]
    return tuple(dict.fromkeys(m for m in marks if m != start.turn))


def _script(start: _Start | None) -> str | None:
    if start is None:
        return None
    if start.kind == "task-notification":
        return "notified"
    if start.kind == "bash-mode":
        return "bash"
    if start.turn == CONTINUED:
        return "compacted"
    named = SCRIPT.search(start.text)
    return named.group(1) if named else None


def _calls(messages: list[dict[str, Any]]) -> list[str]:
    return [
        str(p.get("name"))
        for m in messages
        if m.get("role") == "assistant"
        for p in _parts(m)
        if p.get("type") == "tool_use"
    ]


def _results(messages: list[dict[str, Any]]) -> list[Returned]:
    found = []
    for message in messages:
        for part in _parts(message):
            if part.get("type") == "tool_result":
                texts = [str(p.get("text")) if p.get("type") == "text" else f"[{p.get('type')}]" for p in _parts(part)]
                found.append(Returned(str(part.get("tool_use_id")), bool(part.get("is_error")), "".join(texts)))
    return found


def _aux(body: dict[str, Any], messages: list[dict[str, Any]], tools: dict[str, frozenset[str]]) -> str | None:
    if int(body.get("max_tokens") or 0) == 1:
        return "quota"
    if any(str(t.get("type", "")).startswith("web_search") for t in _tools(body)) and len(tools) == 1:
        return "websearch"
    said_last = [m for m in messages if m.get("role") != "system"][
        -1:
    ]  # 2.1.250 appends the number of remaining tokens
    last = "".join(str(p.get("text", "")) for m in said_last for p in _parts(m))
    first = "".join(str(p.get("text", "")) for m in messages[:1] for p in _parts(m))
    if REMINDER.sub("", first).strip() == "Warmup":
        return "warmup"
    if AUX_PHRASES[0][0] in last or AUX_PHRASES[1][0] in last:
        return "compact" if AUX_PHRASES[0][0] in last else "suggestion"
    if tools:
        return None
    said = json.dumps(body.get("system") or "") + last
    return next((name for phrase, name in AUX_PHRASES if phrase in said), "other")


def _plan_file(body: dict[str, Any]) -> str | None:
    found = PLAN_FILE.findall(json.dumps(body))
    return found[-1] if found else None
