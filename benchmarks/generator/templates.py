"""The lines that each client version writes, and made-up texts to fill them with."""

from __future__ import annotations

import base64
import bisect
import itertools
import json
import operator
import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Iterable
    from typing import Any

BIG_BYTES = 200_000
HALF_EMOJI = b"\\ud83d"  # lone surrogates occur in real transcripts
TOKEN_CLASSES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")

# ---------------------------------------------------------------- templates

HOLE = re.compile(rb'"<<=(\w+)>>"|<<(\w+)>>')  # "<<=x>>" takes ready JSON, <<x>> takes text inside a string


class Shape(NamedTuple):
    """A line with holes: `text % pick(holes)`."""

    text: bytes
    pick: Callable[[dict[str, Any]], Any]


def shape(value: object) -> Shape:
    """Render a template to bytes, once."""
    text = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode().replace(b"%", b"%%")
    names = [(raw or plain).decode() for raw, plain in HOLE.findall(text)]
    pick = operator.itemgetter(*names) if names else lambda _: ()
    return Shape(HOLE.sub(b"%b", text), pick)


def fill(form: Shape, /, **holes: bytes) -> bytes:
    filled: bytes = form.text % form.pick(holes)
    return filled


# ---------------------------------------------------------------- versions


class Era(NamedTuple):
    """One client version, and its share of an archive's sessions."""

    version: tuple[int, int, int]
    share: float
    model: str
    agent_model: str

    @property
    def name(self) -> str:
        return ".".join(map(str, self.version))


HAIKU = "claude-haiku-4-5-20251001"
ERAS = (
    Era((1, 0, 128), 0.06, "claude-sonnet-4-20250514", "claude-sonnet-4-20250514"),
    Era((2, 0, 76), 0.16, "claude-sonnet-4-5-20250929", HAIKU),
    Era((2, 1, 29), 0.30, "claude-sonnet-4-5-20250929", HAIKU),
    Era((2, 1, 128), 0.28, "claude-sonnet-4-6", "claude-sonnet-4-6"),
    Era((2, 1, 325), 0.20, "claude-opus-5-5", HAIKU),
)
# 1e-8 USD a token, by TOKEN_CLASSES: what the newest client adds up in its cost-state lines
PRICES = {"claude-opus-5-5": (400, 2000, 20, 500, 800), HAIKU: (100, 500, 10, 125, 200)}

FLAT_AGENTS, NESTED_AGENTS = (2, 0, 28), (2, 1, 2)
PROGRESS_BEGAN, PROGRESS_ENDED = (2, 1, 9), (2, 1, 97)
NEWEST = (2, 1, 300)

PARENT, UUID, AT = "<<=parent>>", "<<uuid>>", "<<at>>"


def usage_form(version: tuple[int, int, int]) -> dict[str, object]:
    form: dict[str, object] = {
        "input_tokens": "<<=input>>",
        "cache_creation_input_tokens": "<<=written>>",
        "cache_read_input_tokens": "<<=cache_read>>",
        "cache_creation": {
            "ephemeral_5m_input_tokens": "<<=cache_write_5m>>",
            "ephemeral_1h_input_tokens": "<<=cache_write_1h>>",
        },
        "output_tokens": "<<=output>>",
        "service_tier": "standard",
    }
    if version >= (2, 1, 100):
        form |= {"server_tool_use": {"web_search_requests": 0, "web_fetch_requests": 0}}
        form |= {"inference_geo": "", "iterations": [], "speed": "standard"}
    if version >= NEWEST:
        form |= {"output_tokens_details": {"thinking_tokens": 0}, "fallback_credit": None}
    return form


def line_forms(era: Era, *, is_agent: bool, seas: Seas) -> dict[str, Shape]:  # noqa: C901 (a table of line types)
    """Every type of line this version writes; `@…@` are a session's constants."""
    version = era.version
    newest = version >= NEWEST

    def chained(body: dict[str, object]) -> Shape:
        place = {
            "userType": "external",
            "cwd": "@cwd@",
            "sessionId": "@sid@",
            "version": era.name,
            "gitBranch": "@branch@",
        }
        head: dict[str, object] = {"parentUuid": PARENT, "isSidechain": is_agent}
        mark = {"agentId": "@agent@"} if is_agent and version >= FLAT_AGENTS else {}
        slug = {"slug": "@slug@"} if version >= NESTED_AGENTS else {}
        if version < (2, 1, 100):
            return shape({**head, **place, **mark, **slug, **body})
        place = {"userType": place.pop("userType"), "entrypoint": "cli", **place}
        return shape({**head, **mark, **body, **({"session_id": "@sid@"} if newest else {}), **place, **slug})

    def user(before: dict[str, object] | None = None, after: dict[str, object] | None = None) -> Shape:
        prompt_id = {"promptId": "<<prompt_id>>"} if version >= (2, 1, 100) else {}
        stamped = {"uuid": UUID, "timestamp": AT}
        message = {"type": "user", "message": {"role": "user", "content": "<<=content>>"}}
        return chained({**prompt_id, **message, **(before or {}), **stamped, **(after or {})})

    def attached(kind: str, value: dict[str, object], rendered: int = 0) -> Shape:
        shown = (
            {"rendered": [{"content": seas.filler(rendered)}], "renderedRole": "system"} if newest and rendered else {}
        )
        return chained(
            {"attachment": {"type": kind, **value}, "type": "attachment", "uuid": UUID, "timestamp": AT, **shown}
        )

    def system(subtype: str, value: dict[str, object]) -> Shape:
        return chained({"type": "system", "subtype": subtype, **value, "timestamp": AT, "uuid": UUID})

    def loose(kind: str, value: dict[str, object]) -> Shape:
        return shape({"type": kind, **value, "sessionId": "@sid@"})

    def progress(value: dict[str, object]) -> Shape:
        ids = {"toolUseID": "<<tool>>", "parentToolUseID": "<<tool>>"}
        return chained({"type": "progress", "data": value, **ids, "timestamp": AT, "uuid": UUID})

    prompted: dict[str, object] = {"permissionMode": "acceptEdits"} if version >= NESTED_AGENTS else {}
    if newest:
        prompted |= {"origin": {"kind": "<<kind>>"}, "promptSource": "<<source>>", "turnOrigin": "<<origin>>"}
        prompted |= {"turnPosition": {"promptIndex": "<<=turn>>", "turnIndex": "<<=turn>>"}}
    noticed = {**prompted, "origin": {"kind": "<<kind>>"}} if version >= (2, 1, 100) else prompted
    answered: dict[str, object] = {"toolUseResult": "<<=outcome>>"}
    if version >= NESTED_AGENTS:
        answered |= {"sourceToolAssistantUUID": "<<asked_by>>"}
    if newest:
        answered |= {"permissionDecision": {"decision": "accept", "source": "config", "reasonType": "mode"}}
    timing, block = ({"<<timing>>": "<<=took_ms>>"}, {"apiBlockIndex": "<<=index>>"}) if newest else ({}, {})
    request = {"requestId": "<<request>>"}
    if newest:
        request |= {"requestRef": "<<ref>>", "requestedModel": era.model, "promptCacheRequested": "5m"}
    made = {"effort": "medium", "perTurnEffort": "medium", "madeBy": "model"} if newest else {}
    spoken = {"type": "assistant", "uuid": UUID, "timestamp": AT}
    error_message = {
        "id": "<<id>>", "container": None, "model": "<synthetic>", "role": "assistant", "stop_reason": "stop_sequence",
        "stop_sequence": "", "type": "message", "usage": {"input_tokens": 0, "output_tokens": 0,
        "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0, "service_tier": None},
        "content": [{"type": "text", "text": "<<text>>"}],
    }  # fmt: skip
    hooks = [{"command": "python3 .claude/hooks/on_stop.py", "durationMs": "<<=took_ms>>"}]
    copied: dict[str, object] = {
        "message": {"type": "<<role>>", "message": "<<=message>>", "uuid": "<<inner>>", "timestamp": AT},
        "normalizedMessages": [],
        "type": "agent_progress",
        "prompt": "<<prompt>>",
        "agentId": "<<agent>>",
    }
    forms = {
        "user/prompt": user(after=prompted),
        "user/notice": user(after=noticed),
        "user/result": user(after=answered),
        "user/result-bare": user(),
        "user/plain": user(),
        "user/meta": user(before={"isMeta": True}),
        "user/compact": user(before={"isVisibleInTranscriptOnly": True, "isCompactSummary": True}),
        "assistant": chained({"message": "<<=message>>", **block, **request, **spoken, **made}),
        "assistant/timed": chained({"message": "<<=message>>", **timing, **block, **request, **spoken, **made}),
        "assistant/error": chained(
            {**spoken, "message": error_message, "error": "<<error>>", "isApiErrorMessage": True}
        ),
        "assistant/none": chained({**spoken, "message": error_message, "isApiErrorMessage": False}),
        "system/stop_hook_summary": system(
            "stop_hook_summary",
            {"hookCount": 1, "hookInfos": hooks, "hookErrors": [], "preventedContinuation": False, "stopReason": "",
             "hasOutput": False, "level": "suggestion", "toolUseID": "<<tool>>"},
        ),
        "system/turn_duration": system(
            "turn_duration", {"durationMs": "<<=took_ms>>", "messageCount": "<<=messages>>", "isMeta": False}
        ),
        "system/local_command": system("local_command", {"content": "<<text>>", "level": "info", "isMeta": False}),
        "system/api_error": system(
            "api_error",
            {"level": "error", "error": {"status": 529, "formatted": "529 Overloaded"}, "retryInMs": "<<=took_ms>>",
             "retryAttempt": 1, "maxRetries": 10},
        ),
        "system/compact_boundary": system(
            "compact_boundary",
            {"logicalParentUuid": "<<=logical>>", "content": "Conversation compacted", "isMeta": False, "level": "info",
             "compactMetadata": {"trigger": "<<trigger>>", "preTokens": "<<=tokens>>"}},
        ),
        "progress/hook": progress(
            {"type": "hook_progress", "hookEvent": "<<event>>", "hookName": "<<event>>:<<match>>",
             "command": "python3 .claude/hooks/check_style.py"}
        ),
        "progress/bash": progress(
            {"type": "bash_progress", "output": "<<tail>>", "fullOutput": "<<full>>",
             "elapsedTimeSeconds": "<<=took_s>>", "totalLines": "<<=lines>>"}
        ),
        "progress/agent": progress(copied),
        "attachment/skill_listing": attached(
            "skill_listing", {"content": seas.filler(2500), "skillCount": 11, "isInitial": True}, 2600
        ),
        "attachment/queued_command": attached(
            "queued_command", {"prompt": "<<text>>", "commandMode": "prompt", "origin": {"kind": "human"}}, 300
        ),
        "attachment/command_permissions": attached("command_permissions", {"allowedTools": []}),
        "summary": shape({"type": "summary", "summary": "<<text>>", "leafUuid": "<<leaf>>"}),
        "file-history-snapshot": shape(
            {"type": "file-history-snapshot", "messageId": "<<message_id>>",
             "snapshot": {"messageId": "<<message_id>>", "trackedFileBackups": "<<=backups>>", "timestamp": AT},
             "isSnapshotUpdate": False}
        ),
        "file-history-delta": shape(
            {"type": "file-history-delta", "messageId": "<<message_id>>", "snapshotMessageId": "<<message_id>>",
             "trackingPath": "<<path>>", "backup": {"backupFileName": "<<backup>>", "version": 1, "backupTime": AT},
             "timestamp": AT}
        ),
        "queue-operation/enqueue": loose(
            "queue-operation", {"operation": "enqueue", "timestamp": AT, "content": "<<text>>"}
        ),
        "queue-operation/take": loose("queue-operation", {"operation": "<<operation>>", "timestamp": AT}),
        "last-prompt": loose("last-prompt", {"lastPrompt": "<<text>>", "leafUuid": "<<leaf>>"}),
        "permission-mode": loose("permission-mode", {"permissionMode": "acceptEdits"}),
        "mode": loose("mode", {"mode": "normal"}),
        "ai-title": loose("ai-title", {"aiTitle": "<<text>>"}),
    }  # fmt: skip
    if newest:
        forms |= newest_forms(era, is_agent=is_agent, seas=seas, attached=attached, loose=loose)
    return forms


def newest_forms(
    era: Era, *, is_agent: bool, seas: Seas, attached: Callable[..., Shape], loose: Callable[..., Shape]
) -> dict[str, Shape]:
    """The lines that only the newest client writes: context, and its complete requests."""
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    names = ("Agent", "Bash", "Edit", "Glob", "Grep", "Read", "Skill", "WebFetch", "Write", "mcp__tickets__search")
    size = 1200 if is_agent else 2600
    tools = [{"name": name, "description": seas.filler(size), "input_schema": schema} for name in names]
    system_prompt = [seas.filler(size // 2) for _ in range(3 if is_agent else 7)]
    snapshot = {"systemPrompt": system_prompt, "reminderFold": False, "contextRendering": "announced"}
    params = {
        "model": era.model,
        "betas": [f"feature-{n}-2026-01-01" for n in range(8)],
        "max_tokens": 64000,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "output_config": {"effort": "medium"},
    }
    marks = [{"path": ["system", n], "value": {"type": "ephemeral"}} for n in range(2)]
    owner = {"agentId": "@agent@"} if is_agent else {}
    usage = {"inputTokens": "<<=input>>", "outputTokens": "<<=output>>", "thinkingTokens": 0,
             "cacheReadInputTokens": "<<=cache_read>>", "cacheCreationInputTokens": "<<=written>>",
             "cacheCreationEphemeral5mInputTokens": "<<=cache_write_5m>>",
             "cacheCreationEphemeral1hInputTokens": "<<=cache_write_1h>>", "webSearchRequests": 0,
             "costUSD": "<<=cost>>"}  # fmt: skip
    return {
        "attachment/environment": attached("environment", {"snapshot": {"workingDirectory": "@cwd@"}}, 700),
        "attachment/model": attached("model", {"identity": {"modelId": era.model}, "text": seas.filler(100)}, 150),
        "attachment/agent_listing_delta": attached("agent_listing_delta", {"addedLines": [seas.filler(1600)]}, 1700),
        "attachment/session_context": attached("session_context", {"context": {"gitStatus": seas.filler(300)}}, 600),
        "attachment/prompt_snapshot": attached("prompt_snapshot", snapshot),
        "attachment/prompt_snapshot-full": attached("prompt_snapshot", {**snapshot, "tools": tools}),
        "api-request-shape": loose(
            "api-request-shape",
            {**owner, "shapeHash": "@shape@", "timestamp": AT, "version": era.name,
             "shape": {"system": [{"type": "text", "text": seas.filler(size * 2)}], "tools": tools}},
        ),
        "api-request-blob": loose(
            "api-request-blob", {**owner, "hash": "<<hash>>", "message": {"role": "user", "content": "<<=content>>"}}
        ),
        "api-request": loose(
            "api-request",
            {**owner, "id": "<<ref>>", "timestamp": AT, "version": era.name,
             "querySource": "agent:builtin:general-purpose" if is_agent else "repl_main_thread", "shapeHash": "@shape@",
             "params": params, "base": "<<base>>", "keep": 2, "tail": ["<<hash>>"], "cacheControl": marks,
             "requestDigest": "<<digest>>"},
        ),
        "cost-state": loose(
            "cost-state",
            {"totalCostUSD": "<<=cost>>", "totalAPIDuration": "<<=took_ms>>", "totalLinesAdded": 0,
             "modelUsage": "<<=by_model>>", "hasUnknownModelCost": False},
        ),
        "cost-state/model": shape(usage),
        "atis-latch": loose("atis-latch", {"atis": ""}),
        "tools-used": loose("tools-used", {"tools": ["Bash", "Read", "Edit"]}),
    }  # fmt: skip


# ---------------------------------------------------------------- texts

NOUNS = (
    "parser", "cursor", "ledger", "socket", "bucket", "widget", "session", "invoice", "router", "cache", "tenant",
    "shard", "token", "buffer", "clock",
)  # fmt: skip
VERBS = (
    "load", "store", "merge", "split", "trim", "check", "resolve", "render", "fetch", "retry", "commit", "rotate",
    "flush", "index", "drain",
)  # fmt: skip
PHRASES = (
    "the {n} is {v}ed twice when the {m} is empty", "let me look at how the {n} calls {v}", "one test fails in the {n}",
    "after the change every {n} can {v} its own {m}", "I would rather {v} the {n} than keep a second {m}",
    "das Prüfen des {n} schlägt fehl, sobald der {m} leer ist", "le {n} reste bloqué après le premier {v} du {m}",
    "{n} の {v} が二回呼ばれています", "the {n} → {m} path is slow 🐢, so {v} it first", "note: “{n}” may {v} late",
)  # fmt: skip
CODE = (
    "def {v}_{n}(self, {m}: str) -> int:", "    if {m} is None:", "        return self._{n}.{v}({m}, limit={d})",
    "    for {n} in sorted({m}s):", '        total += {n}.{v}(\\"{m}\\")', "    # {v} the {n} before the {m} is read",
    "", "class {N}{M}:", "    {n}_by_{m} = {{}}", '    raise ValueError(f\\"no {n} for {{{m}}}\\")',
)  # fmt: skip
LOGS = (
    "tests/test_{n}.py::test_{v}_{m}[{d}] PASSED", "2026-08-01 12:00:{d:02d} INFO  {n}: {v} took {d} ms",
    "\\u001b[32m✓\\u001b[39m {n} {v} ({d} files)", "src/{n}/{m}.py:{d}:1: {v} is not used",
    "drwxr-xr-x {d} dev dev {n}", "\\tmodified:   src/{n}/{v}_{m}.py", "{d} passed, 0 failed in {d}.0s",
    "src/{n}/{v}.py-{d}-    return {m}.{v}()",
)  # fmt: skip


class Sea:
    """Many ready-escaped lines, cut anywhere between two of them."""

    def __init__(self, lines: list[bytes]) -> None:
        self.text = b"".join(lines)
        self.starts = list(itertools.accumulate(map(len, lines), initial=0))

    def cut(self, at: float, size: int) -> bytes:
        """Complete lines of about `size` bytes, starting at the fraction `at` in [0, 1)."""
        starts = self.starts
        fitting = bisect.bisect_right(starts, len(self.text) - size - 200)
        begin = starts[int(at * fitting)]
        return self.text[begin : starts[bisect.bisect_right(starts, begin + size)]]

    def rows(self, first: int, count: int) -> bytes:
        return self.text[self.starts[first] : self.starts[first + count]]


class Seas:
    """Code, logs and prose; code also numbered as Read shows it, and as JSON strings for patches."""

    def __init__(self, rng: random.Random) -> None:
        def said(patterns: Iterable[str], count: int) -> list[bytes]:
            nouns, others, verbs = (rng.choices(words, k=count) for words in (NOUNS, NOUNS, VERBS))
            picked = rng.choices(tuple(patterns), k=count)
            return [
                pattern.format(n=n, m=m, v=v, N=n.title(), M=m.title(), d=d % 58 + 2).encode()
                for d, (pattern, n, m, v) in enumerate(zip(picked, nouns, others, verbs, strict=True))
            ]

        code = said(CODE, 16_000)
        self.code = Sea([row + b"\\n" for row in code])
        self.arrowed = Sea([b"%6d\xe2\x86\x92%b\\n" % (n % 2000 + 1, row) for n, row in enumerate(code)])
        self.tabbed = Sea([b"%d\\t%b\\n" % (n % 2000 + 1, row) for n, row in enumerate(code)])
        self.quoted = Sea([b'" %b",' % row for row in code])
        self.logs = Sea([row + b"\\n" for row in said(LOGS, 14_000)])
        self.prose = Sea([row + rng.choice((b". ", b". ", b".\\n", b".\\n\\n")) for row in said(PHRASES, 12_000)])
        self.base64 = base64.b64encode(rng.randbytes(300_000))
        self._fill = rng.random

    def filler(self, size: int) -> str:
        """Prose in place of the client's instructions."""
        text: str = json.loads(b'"' + self.prose.cut(self._fill(), size) + b'"')
        return text
