"""Claude Code projects trees of any size, realistic in shape and the same bytes for the same seed.

    python benchmarks/generate.py OUT --megabytes 1000 --sessions 3000 --seed 1     an archive
    python benchmarks/generate.py OUT --turns 1000                                  one long session

writes OUT/projects/… as the client lays it out, and OUT/expected.json: what is in it, counted while writing.

- A line is a template, rendered to bytes once a client version and bound to a session's constants once a session;
  writing it fills the holes. Long texts are slices of a few seas of ready-escaped lines.
- Everything is streamed: all that grows with the archive is a row a session. Nothing reads the clock or the machine.
- The templates follow the field sets of five client versions; every text in them is made up here.
- A session of N turns begins with the same bytes as one of N + 1 turns: what grows is only the file.
"""

from __future__ import annotations

import argparse
import base64
import bisect
import itertools
import json
import math
import operator
import os
import random
import re
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

FIRST_DAY_MS = 1_785_542_400_000  # every archive begins on 2026-08-01 and spans 90 days
SPAN_MS = 90 * 86_400_000
COMPACT_ABOVE_TOKENS = 165_000
BIG_BYTES = 200_000
HALF_EMOJI = b"\\ud83d"  # lone surrogates occur in real transcripts
ALWAYS_REPORTED = ("turns", "generations", "tool_calls", "tool_errors", "subagents", "api_errors", "lines", "bytes")
TOKEN_CLASSES = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")

# ---------------------------------------------------------------- templates

HOLE = re.compile(rb'"<<=(\w+)>>"|<<(\w+)>>')  # "<<=x>>" takes ready JSON, <<x>> takes text inside a string


class Shape(NamedTuple):
    """A line with holes: `text % pick(holes)`."""

    text: bytes
    pick: Callable[[dict[str, Any]], Any]


def shape(value: object) -> Shape:
    """Render once what only its holes change."""
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
    """Every kind of line this version writes; `@…@` are a session's constants."""
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
    """What only the newest client writes: announced context, and its requests in full."""
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
        """Whole lines of about `size` bytes, from the place `at` in [0, 1) of all where they fit."""
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
        """Prose for a template: what stands where the client has instructions."""
        text: str = json.loads(b'"' + self.prose.cut(self._fill(), size) + b'"')
        return text


# ---------------------------------------------------------------- chance and time


class Dice:
    """All the randomness of one run, in the order it is asked for."""

    def __init__(self, seed: int, result_bytes: int) -> None:
        self.rng = random.Random(seed)
        self.random = self.rng.random
        self.seas = Seas(random.Random(0))  # the same texts whatever the seed
        sizes, spread = random.Random(0), 1.15
        middle = math.log(result_bytes) - spread**2 / 2
        self._sizes = [min(28_000, int(sizes.lognormvariate(middle, spread)) + 30) for _ in range(4096)]
        self._hex, self._at = b"", 0

    def chance(self, probability: float) -> bool:
        return self.random() < probability

    def below(self, n: int) -> int:
        return int(self.random() * n)

    def size(self) -> int:
        """How long a tool's result is: `result_bytes` on average, at most 28 KB."""
        return self._sizes[int(self.random() * 4096)]

    def hex(self, length: int) -> bytes:
        if self._at + length > len(self._hex):
            self._hex, self._at = self.rng.randbytes(65_536).hex().encode(), 0
        self._at += length
        return self._hex[self._at - length : self._at]

    def uuid(self) -> bytes:
        h = self.hex(30)
        return b"%b-%b-4%b-a%b-%b" % (h[:8], h[8:12], h[12:15], h[15:18], h[18:30])

    def prose(self, size: int) -> bytes:
        return self.seas.prose.cut(self.random(), size)

    def words(self) -> bytes:
        """A short sentence on one line."""
        return self.seas.prose.cut(self.random(), 40).replace(b"\\n", b"")

    def base64(self, size: int) -> bytes:
        begin = self.below(300_000)
        return self.seas.base64[begin : begin + size]


_days: dict[int, bytes] = {}


def stamp(ms: int) -> bytes:
    day, rest = divmod(ms, 86_400_000)
    if day not in _days:
        _days[day] = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400)).encode()
    seconds, ms = divmod(rest, 1000)
    minutes, seconds = divmod(seconds, 60)
    return b"%bT%02d:%02d:%02d.%03dZ" % (_days[day], *divmod(minutes, 60), seconds, ms)


# ---------------------------------------------------------------- truth


class Tally:
    """What has been written: one for a session, others for the agents that belong to no turn of it."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = defaultdict(int)
        self.tokens: dict[str, list[int]] = defaultdict(lambda: [0, 0, 0, 0, 0])
        self.tools: dict[str, int] = defaultdict(int)
        self.origins: dict[str, int] = defaultdict(int)

    def add(self, other: Tally) -> None:
        for mine, theirs in ((self.counts, other.counts), (self.tools, other.tools), (self.origins, other.origins)):
            for key, value in theirs.items():
                mine[key] += value
        for model, tokens in other.tokens.items():
            self.tokens[model] = [a + b for a, b in zip(self.tokens[model], tokens, strict=True)]

    def cost(self) -> int:
        """In 1e-8 USD; for the newest client, whose models have prices here."""
        return sum(sum(map(operator.mul, tokens, PRICES[model])) for model, tokens in self.tokens.items())

    def report(self) -> dict[str, object]:
        total = [sum(column) for column in zip(*self.tokens.values(), strict=True)] or [0] * 5
        return {
            **dict(sorted({**dict.fromkeys(ALWAYS_REPORTED, 0), **self.counts}.items())),
            "tokens": dict(zip(TOKEN_CLASSES, total, strict=True)),
            "tokens_by_model": {m: dict(zip(TOKEN_CLASSES, t, strict=True)) for m, t in sorted(self.tokens.items())},
            "tool_calls_by_name": dict(sorted(self.tools.items())),
            "turns_by_origin": dict(sorted(self.origins.items())),
        }


class Archive(NamedTuple):
    """Everything one run shares."""

    projects: Path
    dice: Dice
    forms: dict[tuple[Era, bool], dict[str, Shape]]
    kinds: dict[str, list[int]]  # kind of line → lines, bytes

    def forms_of(self, era: Era, *, is_agent: bool) -> dict[str, Shape]:
        key = (era, is_agent)
        if key not in self.forms:
            self.forms[key] = line_forms(era, is_agent=is_agent, seas=self.dice.seas)
        return self.forms[key]


class Sink:
    """One file being written."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self.path, self.bytes, self.lines = path, 0, 0
        self.file = path.open("wb", buffering=1 << 18)

    def close(self, now_ms: int) -> None:
        """The file's age is its last line's: `--since` and oldest first look at it."""
        self.file.close()
        os.utime(self.path, (now_ms / 1000, now_ms / 1000))


class Transcript:
    """One chain of lines, with its own clock: a session's, or a subagent's."""

    def __init__(
        self, archive: Archive, sink: Sink, era: Era, marks: dict[bytes, bytes], *, now: int, tally: Tally
    ) -> None:
        self.archive, self.sink, self.era, self.now, self.tally = archive, sink, era, now, tally
        self.agent = marks.get(b"@agent@", b"")
        self.folder = archive.projects / marks[b"@project@"].decode() / marks[b"@sid@"].decode()
        self.model = era.agent_model if self.agent else era.model
        self.forms = archive.forms_of(era, is_agent=bool(self.agent))
        self.marks = marks
        self.bound: dict[str, Shape] = {}
        self.parent, self.prompt_id, self.prompt = b"null", archive.dice.uuid(), b""
        self.request = archive.dice.uuid()
        self.context, self.fresh = 18_000 if not self.agent else 9_000, 600
        self.mirror: tuple[Transcript, bytes] | None = None  # who shows our lines as progress, under which call
        self.notices: list[tuple[int, bytes, bytes, bytes]] = []  # background agents: ended at, name, call, report
        self.depth = 0

    def put(self, kind: str, /, **holes: bytes) -> None:
        if kind not in self.bound:
            text, pick = self.forms[kind]
            for mark, value in self.marks.items():
                text = text.replace(mark, value)
            self.bound[kind] = Shape(text + b"\n", pick)
        text, pick = self.bound[kind]
        line = text % pick(holes)
        self.sink.file.write(line)
        self.sink.bytes += len(line)
        self.sink.lines += 1
        count = self.archive.kinds[kind]
        count[0] += 1
        count[1] += len(line)

    def link(self, kind: str, /, **holes: bytes) -> bytes:
        uuid = self.archive.dice.uuid()
        self.put(kind, parent=self.parent, uuid=uuid, at=stamp(self.now), prompt_id=self.prompt_id, **holes)
        self.parent = b'"%b"' % uuid
        return uuid

    def tick(self, low_ms: int, high_ms: int) -> int:
        took = low_ms + int(self.archive.dice.random() * (high_ms - low_ms))
        self.now += took
        return took


# ---------------------------------------------------------------- tools


class Call(NamedTuple):
    """A tool call and, but for agents, what came of it."""

    id: bytes
    name: bytes
    input: bytes
    content: bytes = b""
    outcome: bytes = b"null"
    is_error: bool = False
    prompt: bytes = b""  # agents only
    about: bytes = b""
    kind: bytes = b""


BASH_IN = shape({"command": "<<command>>", "description": "<<about>>"})
BASH_OUT = shape({"stdout": "<<out>>", "stderr": "", "interrupted": False, "isImage": False})
READ_OUT = shape(
    {"type": "text", "file": {"filePath": "<<path>>", "content": "<<rows>>", "numLines": "<<=count>>",
     "startLine": "<<=first>>", "totalLines": 2000}}
)  # fmt: skip
EDIT_IN = shape({"file_path": "<<path>>", "old_string": "<<old>>", "new_string": "<<new>>", "replace_all": False})
EDIT_OUT = shape(
    {"filePath": "<<path>>", "oldString": "<<old>>", "newString": "<<new>>", "originalFile": "<<file>>",
     "structuredPatch": [{"oldStart": 40, "oldLines": 8, "newStart": 40, "newLines": 8, "lines": "<<=lines>>"}],
     "userModified": False, "replaceAll": False}
)  # fmt: skip
WRITE_IN = shape({"file_path": "<<path>>", "content": "<<text>>"})
WRITE_OUT = shape({"type": "create", "filePath": "<<path>>", "content": "<<text>>", "structuredPatch": []})
GREP_IN = shape({"pattern": "<<pattern>>", "path": "<<path>>", "output_mode": "content", "-n": True})
GREP_OUT = shape({"mode": "content", "numFiles": 0, "filenames": [], "content": "<<out>>", "numLines": 30})
FETCH_IN = shape({"url": "https://docs.example.com/<<page>>", "prompt": "<<text>>"})
FETCH_OUT = shape({"bytes": "<<=size>>", "code": 200, "codeText": "OK", "result": "<<out>>", "durationMs": 840})
MCP_IN = shape({"query": "<<text>>", "limit": 50})
PARTS = shape([{"type": "text", "text": "<<out>>"}])
IMAGE = shape([{"type": "image", "source": {"type": "base64", "data": "<<data>>", "media_type": "image/png"}}])
IMAGE_START = IMAGE.text[:20]
IMAGE_OUT = shape({"type": "image", "file": {"base64": "<<data>>", "type": "image/png", "originalSize": 31000}})
TODO_IN = shape({"todos": [{"content": "<<text>>", "status": "in_progress", "activeForm": "<<text>>"}]})
TODO_OUT = shape(
    {"oldTodos": [], "newTodos": [{"content": "<<text>>", "status": "in_progress", "activeForm": "<<text>>"}]}
)
AGENT_IN = shape({"description": "<<about>>", "prompt": "<<prompt>>", "subagent_type": "<<kind>>"})


def path_of(t: Transcript) -> bytes:
    dice = t.archive.dice
    n, v = NOUNS[dice.below(len(NOUNS))], VERBS[dice.below(len(VERBS))]
    return b"%b/src/%b/%b.py" % (t.marks[b"@cwd@"], n.encode(), v.encode())


def bash(t: Transcript, id_: bytes, *, is_big: bool) -> Call:
    dice = t.archive.dice
    out = dice.seas.logs.cut(dice.random(), BIG_BYTES if is_big else dice.size())
    about = dice.words()
    command = b"cd %b && python -m pytest -q -k %b" % (t.marks[b"@cwd@"], NOUNS[dice.below(len(NOUNS))].encode())
    asked = fill(BASH_IN, command=command, about=about)
    if dice.chance(0.06):
        out = b"Exit code 1\\n" + out
        return Call(id_, b"Bash", asked, b'"%b"' % out, b'"Error: %b"' % out, is_error=True)
    shown = out
    if is_big and t.era.version >= (2, 1, 20):
        sink = Sink(t.folder / "tool-results" / f"{id_.decode()}.txt")
        sink.file.write(out.replace(b"\\n", b"\n"))
        sink.close(t.now)
        t.tally.counts["spilled_files"] += 1
        shown = b"<persisted-output>\\n%d bytes, the start:\\n%b</persisted-output>" % (
            len(out),
            out[: out.index(b"\\n", 2000) + 2],
        )
    return Call(id_, b"Bash", asked, b'"%b"' % shown, fill(BASH_OUT, out=out))


def read(t: Transcript, id_: bytes, *, is_big: bool) -> Call:
    dice = t.archive.dice
    path = path_of(t)
    asked = b'{"file_path":"%b"}' % path
    if dice.chance(0.01):
        data = dice.base64(8_000 + dice.below(40_000))
        return Call(id_, b"Read", asked, fill(IMAGE, data=data), fill(IMAGE_OUT, data=data))
    count = BIG_BYTES // 40 if is_big else dice.size() // 36 + 1
    first = dice.below(8_000)
    numbered = dice.seas.tabbed if t.era.version >= (2, 1, 100) else dice.seas.arrowed
    shown = numbered.rows(first, count)
    if t.era.version < NESTED_AGENTS:
        shown += b"\\n<system-reminder>\\nOnly a note for the model.\\n</system-reminder>\\n"
    numbers = {"count": b"%d" % count, "first": b"%d" % (first % 2000 + 1)}
    outcome = fill(READ_OUT, path=path, rows=dice.seas.code.rows(first, count), **numbers)
    return Call(id_, b"Read", asked, b'"%b"' % shown, outcome)


def edit(t: Transcript, id_: bytes) -> Call:
    dice = t.archive.dice
    path, first, count = path_of(t), dice.below(8_000), 3 + dice.below(12)
    texts = {"path": path, "old": dice.seas.code.rows(first, count), "new": dice.seas.code.rows(first + 1, count)}
    whole = dice.seas.code.rows(first, dice.size() // 30 + count)
    patch = b"[%b]" % dice.seas.quoted.rows(first, count + 4)[:-1]
    content = b'"The file %b has been updated:\\n%b"' % (path, dice.seas.arrowed.rows(first, count + 8))
    return Call(id_, b"Edit", fill(EDIT_IN, **texts), content, fill(EDIT_OUT, file=whole, lines=patch, **texts))


def other(t: Transcript, id_: bytes, *, is_big: bool) -> Call:
    dice = t.archive.dice
    size = BIG_BYTES if is_big else dice.size()
    text, roll = dice.words(), dice.random()
    if is_big or roll < 0.06:
        out = dice.prose(size)
        if dice.chance(0.02):
            out += HALF_EMOJI
        parts = fill(PARTS, out=out)
        return Call(id_, b"mcp__tickets__search", fill(MCP_IN, text=text), parts, parts)
    if roll < 0.12:
        out = dice.prose(size)
        asked = fill(FETCH_IN, page=dice.hex(6), text=text)
        return Call(id_, b"WebFetch", asked, b'"%b"' % out, fill(FETCH_OUT, out=out, size=b"%d" % size))
    if roll < 0.30:
        rows = {"path": path_of(t), "text": dice.seas.code.cut(dice.random(), size)}
        return Call(id_, b"Write", fill(WRITE_IN, **rows), b'"File created."', fill(WRITE_OUT, **rows))
    if roll < 0.40 and t.era.version < (2, 1, 100):
        return Call(id_, b"TodoWrite", fill(TODO_IN, text=text), b'"Todos were changed."', fill(TODO_OUT, text=text))
    out = dice.seas.logs.cut(dice.random(), size)
    asked = fill(GREP_IN, pattern=VERBS[dice.below(len(VERBS))].encode(), path=path_of(t))
    return Call(id_, b"Grep", asked, b'"%b"' % out, fill(GREP_OUT, out=out))


def make_call(t: Transcript) -> Call:
    dice, version = t.archive.dice, t.era.version
    id_ = b"toolu_01" + dice.hex(22)
    roll, is_big = dice.random(), dice.chance(0.004)
    may_delegate = t.depth == 0 or (t.depth == 1 and version >= (2, 1, 63) and dice.chance(0.3))
    if roll < 0.025 and may_delegate:
        name = b"Agent" if version >= (2, 1, 75) else b"Task"
        prompt = dice.prose(700) + id_  # unique, as a person's task would be
        about, kind = dice.words(), b"Explore" if dice.chance(0.4) else b"general-purpose"
        asked = fill(AGENT_IN, about=about, prompt=prompt, kind=kind)
        call = Call(id_, name, asked, prompt=prompt, about=about, kind=kind)
    elif roll < 0.40:
        call = bash(t, id_, is_big=is_big)
    elif roll < 0.66:
        call = read(t, id_, is_big=is_big)
    elif roll < 0.80:
        call = edit(t, id_)
    else:
        call = other(t, id_, is_big=is_big)
    t.tally.counts["tool_calls"] += 1
    t.tally.tools[call.name.decode()] += 1
    return call


# ---------------------------------------------------------------- answers

THINKING = shape({"type": "thinking", "thinking": "<<text>>", "signature": "<<signature>>"})
TEXT = shape({"type": "text", "text": "<<text>>"})
TOOL_USE = shape({"type": "tool_use", "id": "<<id>>", "name": "<<name>>", "input": "<<=input>>"})
RESULT = shape([{"tool_use_id": "<<id>>", "type": "tool_result", "content": "<<=content>>", "is_error": "<<=error>>"}])
MESSAGE = shape(
    {"id": "<<id>>", "type": "message", "role": "assistant", "model": "<<model>>", "content": ["<<=block>>"],
     "stop_reason": "<<=stop>>", "stop_sequence": None, "usage": "<<=usage>>"}
)  # fmt: skip
USAGES = {era.version: shape(usage_form(era.version)) for era in ERAS}


def spend(t: Transcript, output: int) -> tuple[bytes, bytes]:
    """The usage of one response, on its last line and on those before; what the last line says is the truth.

    Up to 2.1.45 a line is stamped while the response streams: early lines hold a placeholder for the output, the last
    line mostly the right count before 2.1.20 and never from then on.
    """
    dice, version = t.archive.dice, t.era.version
    early = 1 + dice.below(8)
    placeholder = (2, 1, 20) <= version < (2, 1, 63) or (version < (2, 1, 20) and dice.chance(0.2))
    last = early if placeholder else output
    one_hour = t.fresh if version >= NEWEST and dice.chance(0.5) else 0
    tokens = (3 + dice.below(9), last, t.context, t.fresh - one_hour, one_hour)
    for n, value in enumerate(tokens):
        t.tally.tokens[t.model][n] += value
    t.tally.counts["output_placeholders"] += placeholder
    holes = {name: b"%d" % value for name, value in zip(TOKEN_CLASSES, tokens, strict=True)}
    # before 2.1.152 the sum may be 0 where its parts are not
    holes["written"] = b"0" if version < (2, 1, 152) and dice.chance(0.02) else b"%d" % t.fresh
    final = fill(USAGES[version], **holes)
    if version >= (2, 1, 63):
        return final, final
    return final, fill(USAGES[version], **{**holes, "output": b"%d" % early})


def announce_request(t: Transcript, blob: bytes) -> None:
    """The newest client writes down each request it sends; only content it cannot derive is in a blob."""
    dice = t.archive.dice
    hash_, base, t.request = dice.hex(64), t.request, dice.uuid()
    if blob:
        t.put("api-request-blob", hash=hash_, content=blob)
    t.put("api-request", ref=t.request, at=stamp(t.now), base=base, hash=hash_, digest=dice.hex(64))


def say(t: Transcript, message: bytes, request: bytes, index: int, timing: bytes) -> bytes:
    took = t.tick(200, 4_000)
    holes = {"timing": timing, "took_ms": b"%d" % took, "index": b"%d" % index}
    kind = "assistant/timed" if timing else "assistant"
    uuid = t.link(kind, message=message, request=request, ref=t.request, **holes)
    reflect(t, b"assistant", message, uuid)
    return uuid


def reflect(t: Transcript, role: bytes, message: bytes, uuid: bytes) -> None:
    """Clients of 2.1.9 to 2.1.97 copy a subagent's lines into its parent's file as progress."""
    if t.mirror:
        parent, call_id = t.mirror
        parent.now = max(parent.now, t.now)
        parent.link(
            "progress/agent", role=role, message=message, inner=uuid, prompt=t.prompt, agent=t.agent, tool=call_id
        )


def respond(t: Transcript, *, is_final: bool, blob: bytes = b"", tools: str = "run") -> bytes:
    """One API response and the results of its tools, if they `run`, are `stopped` or `lost`; the text it ended with."""
    dice, version, tally = t.archive.dice, t.era.version, t.tally
    t.tick(20, 400)
    if version >= NEWEST:
        announce_request(t, blob)
    calls = [] if is_final else [make_call(t) for _ in range(1 if dice.chance(0.72) else 2 + dice.below(3))]
    text = dice.prose(500 if is_final else 120)
    blocks = []
    if dice.chance(0.3):
        thought = b"" if version >= (2, 1, 114) and dice.chance(0.9) else dice.prose(500)
        signature = dice.base64(300 + dice.below(900))
        blocks.append((b"thinkingDurationMs", fill(THINKING, text=thought, signature=signature)))
    if is_final or dice.chance(0.45):
        blocks.append((b"", fill(TEXT, text=text)))
    blocks += [(b"toolInputStreamMs", fill(TOOL_USE, id=c.id, name=c.name, input=c.input)) for c in calls]
    last, early = spend(t, 20 + sum(len(block) for _, block in blocks) // 4)
    id_, request = b"msg_01" + dice.hex(22), b"req_011C" + dice.hex(20)
    tally.counts["generations"] += 1
    tally.counts["subagent_generations"] += t.depth > 0
    stop = b"null" if version < (2, 1, 63) and dice.chance(0.95) else b'"end_turn"' if is_final else b'"tool_use"'
    # some tools are done before the response is: their results stand between its lines
    is_split = len(calls) > 1 and not any(c.prompt for c in calls) and dice.chance(0.18)
    tally.counts["responses_split_by_results"] += is_split
    asked_by: list[bytes] = []
    messages = len(blocks)
    for index, (timing, block) in enumerate(blocks):
        if is_split and index == messages - 1:
            answer(t, calls[0], asked_by[-len(calls) + 1])
        usage = last if index == messages - 1 else early
        message = fill(MESSAGE, id=id_, model=t.model.encode(), block=block, stop=stop, usage=usage)
        asked_by.append(say(t, message, request, index, timing))
    t.context += t.fresh
    t.fresh = 60 + sum(len(block) for _, block in blocks) // 4
    began = t.now
    for call, uuid in zip(calls[is_split:], asked_by[len(asked_by) - len(calls) + is_split :], strict=True):
        if tools == "stopped":
            refuse(t, call, uuid)
        elif tools == "lost":
            tally.counts["tool_calls_without_result"] += 1
        elif call.prompt:
            delegate(t, call, uuid, began)
        else:
            answer(t, call, uuid)
    return text


def answer(t: Transcript, call: Call, asked_by: bytes) -> None:
    """A tool's result, and what clients of 2.1.9 to 2.1.97 show while it runs."""
    dice, version = t.archive.dice, t.era.version
    t.parent = b'"%b"' % asked_by
    if PROGRESS_BEGAN <= version < PROGRESS_ENDED and not call.is_error:
        if call.name == b"Bash":
            out = call.content[1:-1] if len(call.content) < 6_000 else b""
            for second in range(dice.below(2)):
                t.now += 1000
                elapsed = b"%d" % (second + 2)
                t.link(
                    "progress/bash", tail=out.partition(b"\\n")[0], full=out, took_s=elapsed, lines=b"9", tool=call.id
                )
        elif call.name in (b"Edit", b"Write"):
            t.link("progress/hook", event=b"PostToolUse", match=call.name, tool=call.id)
    t.tick(30, 6_000)
    content = fill(RESULT, id=call.id, content=call.content, error=b"true" if call.is_error else b"false")
    if t.depth and PROGRESS_BEGAN <= version < PROGRESS_ENDED:
        uuid = t.link("user/result-bare", content=content)
    else:
        uuid = t.link("user/result", content=content, outcome=call.outcome, asked_by=asked_by)
    t.fresh += len(call.content) // 3
    t.tally.counts["tool_errors"] += call.is_error
    t.tally.counts["big_results"] += len(call.outcome) > BIG_BYTES // 2
    t.tally.counts["images"] += call.content.startswith(IMAGE_START)
    t.tally.counts["lone_surrogates"] += call.content.endswith(HALF_EMOJI + b'"}]')
    reflect(t, b"user", b'{"role":"user","content":%b}' % content, uuid)


def refuse(t: Transcript, call: Call, asked_by: bytes) -> None:
    """The person pressed Esc while the tool ran."""
    t.parent = b'"%b"' % asked_by
    t.tick(500, 3_000)
    content = fill(RESULT, id=call.id, content=b'"Stopped by the user."', error=b"true")
    t.link("user/result", content=content, outcome=b'"Stopped by the user."', asked_by=asked_by)
    t.tally.counts["tool_errors"] += 1


# ---------------------------------------------------------------- subagents

DONE = shape(
    {"status": "completed", "prompt": "<<prompt>>", "agentId": "<<agent>>", "content": "<<=content>>",
     "totalDurationMs": "<<=took_ms>>", "totalTokens": "<<=tokens>>", "totalToolUseCount": 3}
)  # fmt: skip
DONE_INLINE = shape({"content": "<<=content>>", "totalDurationMs": "<<=took_ms>>", "totalTokens": "<<=tokens>>"})
LAUNCHED = shape({"isAsync": True, "status": "async_launched", "agentId": "<<agent>>", "prompt": "<<prompt>>"})
REPORT = shape(
    [{"type": "text", "text": "<<text>>"}, {"type": "text", "text": "agentId: <<agent>> (keep it to go on)"}]
)
NOTE = shape([{"type": "text", "text": "Runs in the background.\nagentId: <<agent>>"}])


def start_agent(t: Transcript, name: bytes, tally: Tally) -> Transcript:
    """A transcript below `t`: in its own file since 2.0.28, between the parent's lines before."""
    version = t.era.version
    if version < FLAT_AGENTS:
        sink = t.sink
    else:
        folder = t.folder / "subagents" if version >= NESTED_AGENTS else t.folder.parent
        sink = Sink(folder / f"agent-{name.decode()}.jsonl")
    marks = {**t.marks, b"@agent@": name, b"@shape@": t.archive.dice.hex(64)}
    agent = Transcript(t.archive, sink, t.era, marks, now=t.now, tally=tally)
    agent.depth, agent.prompt_id = t.depth + 1, t.prompt_id
    return agent


def end_agent(t: Transcript, agent: Transcript, tally: Tally) -> None:
    if agent.sink is not t.sink:
        agent.sink.close(agent.now)
        tally.counts["lines"] += agent.sink.lines
        tally.counts["bytes"] += agent.sink.bytes


def delegate(t: Transcript, call: Call, asked_by: bytes, began: int) -> None:
    """An agent's whole work, then its result; in the background only a note, and the result as a turn of its own."""
    dice, version = t.archive.dice, t.era.version
    name = b"a" + dice.hex(16 if version >= (2, 1, 63) else 6)
    in_background = t.depth == 0 and version >= (2, 1, 20) and dice.chance(0.25)
    agent = start_agent(t, name, t.tally)
    agent.prompt, agent.now = call.prompt, began  # parallel agents overlap
    if PROGRESS_BEGAN <= version < PROGRESS_ENDED and not in_background:
        t.parent = b'"%b"' % asked_by
        agent.mirror = (t, call.id)
    t.tally.counts["subagents"] += 1
    t.tally.counts["nested_subagents"] += t.depth > 0
    uuid = agent.link("user/plain", content=b'"%b"' % call.prompt)
    reflect(agent, b"user", b'{"role":"user","content":"%b"}' % call.prompt, uuid)
    if version >= NEWEST:
        announce_context(agent)
    for n in range(1 + dice.below(7)):
        respond(agent, is_final=False)
        if version >= NEWEST and n == 0:
            agent.link("attachment/prompt_snapshot-full")
    text = respond(agent, is_final=True)
    end_agent(t, agent, t.tally)
    if version >= (2, 1, 100):
        meta: dict[str, object] = {"agentType": call.kind.decode(), "description": call.about.decode()}
        if version >= (2, 1, 172):
            meta |= {"toolUseId": call.id.decode(), "spawnDepth": agent.depth, "finished": True}
            meta |= {"parentAgentId": t.agent.decode()} if t.agent else {}
        agent.sink.path.with_suffix(".meta.json").write_text(json.dumps(meta))
    t.parent = b'"%b"' % asked_by
    if in_background:
        t.tick(50, 200)
        content, outcome = fill(NOTE, agent=name), fill(LAUNCHED, agent=name, prompt=call.prompt)
        t.tally.counts["background_subagents"] += 1
        t.notices.append((agent.now, name, call.id, text))
    else:
        t.now = max(t.now, agent.now) + 40
        named = version >= FLAT_AGENTS
        content = fill(REPORT, text=text, agent=name) if named else fill(PARTS, out=text)
        holes = {
            "took_ms": b"%d" % (agent.now - began),
            "tokens": b"%d" % agent.context,
            "content": fill(PARTS, out=text),
        }
        outcome = fill(DONE if named else DONE_INLINE, prompt=call.prompt, agent=name, **holes)
    content = fill(RESULT, id=call.id, content=content, error=b"false")
    t.link("user/result", content=content, outcome=outcome, asked_by=asked_by)


def stray_agent(t: Transcript, stray: Tally, prefix: bytes, prompt: bytes) -> None:
    """An agent file that no tool call launched: warm-ups, suggestions, the summary of a compaction."""
    agent = start_agent(t, prefix + t.archive.dice.hex(6), stray)
    agent.link("user/plain", content=b'"%b"' % prompt)
    respond(agent, is_final=True)
    end_agent(t, agent, stray)
    stray.counts["agents"] += 1


# ---------------------------------------------------------------- a session

TYPED = shape([{"type": "text", "text": "<<text>>"}])
TYPED_IMAGE = shape(
    [{"type": "text", "text": "<<text>>"},
     {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "<<data>>"}}]
)  # fmt: skip
BACKUP = shape({"backupFileName": "<<name>>@v1", "version": 1, "backupTime": AT})


def command_text(name: bytes) -> bytes:
    """How the client notes a command of its own."""
    parts = (b"<command-name>/", name, b"</command-name>\\n            <command-message>", name, b"</command-message>")
    return b"".join((*parts, b"\\n            <command-args></command-args>"))


def announce_context(t: Transcript) -> None:
    """What the newest client tells the model before the first request, and the shape of its requests."""
    for kind in ("environment", "model", "agent_listing_delta", "skill_listing", "session_context", "prompt_snapshot"):
        t.link("attachment/" + kind)
    t.put("api-request-shape", at=stamp(t.now))


class Session:
    """One session, turn by turn."""

    def __init__(self, archive: Archive, era: Era, project: str, now: int) -> None:
        dice = archive.dice
        self.id, self.project, self.era, self.started = dice.uuid().decode(), project, era, now
        self.dice, self.version = dice, era.version
        self.tally, self.stray, self.warmups = Tally(), Tally(), Tally()
        marks = {
            b"@sid@": self.id.encode(),
            b"@project@": project.encode(),
            b"@cwd@": b"/home/dev/" + project.rsplit("-", 1)[1].encode(),
            b"@branch@": b"main" if dice.chance(0.6) else b"feature/" + dice.hex(6),
            b"@slug@": b"-".join(NOUNS[dice.below(len(NOUNS))].encode() for _ in range(3)),
            b"@shape@": dice.hex(64),
        }
        self.main = Transcript(
            archive, Sink(archive.projects / project / f"{self.id}.jsonl"), era, marks, now=now, tally=self.tally
        )
        self.backups: list[bytes] = []
        self.title, self.turns, self.blob, self.showed_tools = dice.words(), 0, b"", False
        self.open()

    def open(self) -> None:
        t, dice = self.main, self.dice
        if self.version < FLAT_AGENTS and dice.chance(0.5):
            t.put("summary", text=self.title, leaf=dice.uuid())
        if FLAT_AGENTS <= self.version < NESTED_AGENTS:
            for _ in range(2):
                stray_agent(t, self.warmups, b"a", b"Warmup")
        if self.version >= (2, 1, 100):
            t.put("permission-mode")
        if self.version >= NEWEST:
            t.put("mode")
            t.put("atis-latch")
        if PROGRESS_BEGAN <= self.version < PROGRESS_ENDED:
            t.link("progress/hook", event=b"SessionStart", match=b"startup", tool=dice.uuid())

    def turn(self) -> None:
        """One turn, and now and then what stands between turns."""
        t, dice = self.main, self.dice
        t.tick(5_000, 240_000)
        if dice.chance(0.06):
            self.local_command(dice.random())
        if dice.chance(0.01) and self.version < (2, 1, 100):
            t.link("user/meta", content=b'"Go on from where you stopped."')
            t.link("assistant/none", id=dice.uuid(), text=b"No response requested.")
            self.tally.counts["synthetic_without_request"] += 1
        self.turns += 1
        self.tally.counts["turns"] += 1
        t.prompt_id = dice.uuid()
        began, lines = t.now, t.sink.lines
        if t.notices and t.notices[0][0] < t.now:
            self.notified(*t.notices.pop(0))
        elif dice.chance(0.04):
            self.custom_command()
        else:
            self.prompt()
        if self.turns == 1:
            self.announce()
        if self.work():
            self.stop(began, t.sink.lines - lines)
        self.note_state()

    def start(self, content: bytes, origin: str) -> None:
        self.tally.origins[origin] += 1
        kind, source = ("user/prompt", b"typed") if origin == "human" else ("user/notice", b"system")
        holes = {"kind": origin.replace("_", "-").encode(), "origin": origin.encode(), "turn": b"%d" % self.turns}
        uuid = self.main.link(kind, content=content, source=source, **holes)
        if self.version >= FLAT_AGENTS:
            held = b"{%b}" % b",".join(self.backups[-8:])
            self.main.put("file-history-snapshot", message_id=uuid, backups=held, at=stamp(self.main.now))

    def prompt(self) -> None:
        t, dice = self.main, self.dice
        t.prompt = dice.prose(30 + dice.size() // 6)
        self.blob = fill(TYPED, text=t.prompt)
        content = b'"%b"' % t.prompt
        if self.version >= FLAT_AGENTS and dice.chance(0.1):
            t.put("queue-operation/enqueue", at=stamp(t.now), text=t.prompt)
            t.put("queue-operation/take", at=stamp(t.now + 30), operation=b"dequeue")
        if dice.chance(0.01):
            self.tally.counts["images"] += 1
            content = fill(TYPED_IMAGE, text=t.prompt, data=dice.base64(20_000 + dice.below(60_000)))
        elif dice.chance(0.03):
            content = self.blob
        self.start(content, "human")

    def custom_command(self) -> None:
        t, dice = self.main, self.dice
        t.prompt = b"<command-message>review</command-message>\\n<command-name>/review</command-name>\\n"
        t.prompt += b"<command-args>%b</command-args>" % dice.words()
        self.blob = fill(TYPED, text=dice.prose(1_500))
        self.start(b'"%b"' % t.prompt, "human")
        t.link("user/meta", content=self.blob)
        if self.version >= (2, 1, 100):
            t.link("attachment/command_permissions")
        self.tally.counts["custom_commands"] += 1

    def notified(self, _: int, agent: bytes, call_id: bytes, report: bytes) -> None:
        """A background agent has ended: the client starts a turn to tell the model."""
        t = self.main
        t.prompt = b"".join(
            (b"<task-notification>\\n<task-id>", agent, b"</task-id>\\n<tool-use-id>", call_id, b"</tool-use-id>\\n")
        )
        t.prompt += b"<status>completed</status>\\n<result>%b</result>\\n</task-notification>" % report
        t.put("queue-operation/enqueue", at=stamp(t.now), text=t.prompt)
        t.put("queue-operation/take", at=stamp(t.now + 20), operation=b"dequeue")
        self.blob = fill(TYPED, text=t.prompt)
        self.start(b'"%b"' % t.prompt, "task_notification")

    def local_command(self, roll: float) -> None:
        """Commands that only the client answers: no turn."""
        t = self.main
        self.tally.counts["local_commands"] += 1
        if roll < 0.25 and self.version < (2, 1, 200):
            t.link("user/plain", content=b'"<bash-input>git status</bash-input>"')
            t.link("user/plain", content=b'"<bash-stdout>nothing to commit</bash-stdout><bash-stderr></bash-stderr>"')
        elif self.version >= NEWEST:
            t.link("system/local_command", text=command_text(b"context"))
            t.link("system/local_command", text=b"<local-command-stdout>%b</local-command-stdout>" % self.dice.words())
        else:
            self.local_lines(b"cost", self.dice.words())

    def local_lines(self, name: bytes, shown: bytes) -> None:
        t = self.main
        t.link("user/meta", content=b'"<local-command-caveat>Not meant for the model.</local-command-caveat>"')
        t.link("user/plain", content=b'"%b"' % command_text(name))
        t.link("user/plain", content=b'"<local-command-stdout>%b</local-command-stdout>"' % shown)

    def announce(self) -> None:
        t = self.main
        if self.version >= NEWEST:
            announce_context(t)
        elif self.version >= (2, 1, 100):
            t.link("attachment/skill_listing")
        if self.version >= (2, 1, 100):
            t.put("ai-title", text=self.title)

    def work(self) -> bool:
        """Responses until the last one, or until something ends the turn early; whether the client got to its Stop."""
        t, dice, fate = self.main, self.dice, self.dice.random()
        if fate < 0.008 and t.prompt[:1] != b"<":  # a command without a reply would be no turn
            t.link("user/plain", content=fill(TYPED, text=b"[Request interrupted by user]"))
            self.tally.counts["turns_interrupted"] += 1
            self.tally.counts["turns_without_reply"] += 1
            return False
        steps = min(40, int(dice.rng.expovariate(1 / 2.7)))
        interrupted_at = dice.below(steps) if steps and fate < 0.04 else -1
        for step in range(steps):
            if t.context > COMPACT_ABOVE_TOKENS:
                self.compact(b"auto")
            blob, self.blob = self.blob, b""
            respond(t, is_final=False, blob=blob, tools="stopped" if step == interrupted_at else "run")
            if step == interrupted_at:
                t.link("user/plain", content=fill(TYPED, text=b"[Request interrupted by user for tool use]"))
                self.tally.counts["turns_interrupted"] += 1
                return False
            self.between()
        if fate > 0.985:
            error = b"overloaded_error: try again later"
            t.link("assistant/error", id=dice.uuid(), text=b"API Error: 529 " + error, error=b"unknown")
            self.tally.counts["api_errors"] += 1
            return False
        respond(t, is_final=True, blob=self.blob)
        if fate > 0.975:  # another hook would not let it stop: the same turn goes on
            t.link("user/meta", content=b'"Stop hook feedback:\\n- the change log has no entry yet"')
            respond(t, is_final=False)
            respond(t, is_final=True)
            self.tally.counts["turns_continued_by_hook"] += 1
        return True

    def between(self) -> None:
        """What may stand between two responses of a turn."""
        t, dice = self.main, self.dice
        roll = dice.random()
        if self.version >= NEWEST and not self.showed_tools:
            self.showed_tools = True
            t.link("attachment/prompt_snapshot-full")
        if roll < 0.008 and self.version >= (2, 1, 98):
            text = dice.words()
            t.put("queue-operation/enqueue", at=stamp(t.now), text=text)
            t.put("queue-operation/take", at=stamp(t.now + 30), operation=b"remove")
            t.link("attachment/queued_command", text=text)
            self.tally.counts["queued_words"] += 1
        elif roll < 0.014 and self.version >= NEWEST:
            t.link("system/api_error", took_ms=b"557")
            self.tally.counts["api_retries"] += 1
        elif roll < 0.06 and self.version >= FLAT_AGENTS:
            path, name = path_of(t), dice.hex(16)
            self.backups = [*self.backups[-40:], b'"%b":%b' % (path, fill(BACKUP, name=name, at=stamp(t.now)))]
            if self.version >= NEWEST:
                t.put("file-history-delta", message_id=dice.uuid(), path=path, backup=name, at=stamp(t.now))

    def compact(self, trigger: bytes) -> None:
        """A boundary without a parent, the summary, and a much shorter context."""
        t, dice = self.main, self.dice
        logical, t.parent = t.parent, b"null"
        t.link("system/compact_boundary", logical=logical, trigger=trigger, tokens=b"%d" % t.context)
        t.link("user/compact", content=b'"%b"' % (b"This is what happened so far: " + dice.prose(6_000)))
        t.context, t.fresh = 16_000, 3_000
        self.tally.counts["compactions"] += 1
        if NESTED_AGENTS <= self.version < NEWEST and dice.chance(0.5):
            stray_agent(t, self.stray, b"acompact-", b"Write down what happened so far.")

    def stop(self, began: int, messages: int) -> None:
        """What the client writes once its Stop hooks have run."""
        t, dice = self.main, self.dice
        t.tick(20, 300)
        if PROGRESS_BEGAN <= self.version < PROGRESS_ENDED:
            t.link("progress/hook", event=b"Stop", match=b"", tool=dice.uuid())
            if dice.chance(0.03):
                stray_agent(t, self.stray, b"aprompt_suggestion-", b"Say what the person may want next.")
        if self.version >= (2, 0, 50):
            t.link("system/stop_hook_summary", took_ms=b"%d" % dice.below(900), tool=dice.uuid())
        if self.version >= (2, 1, 100):
            t.link("system/turn_duration", took_ms=b"%d" % (t.now - began), messages=b"%d" % messages)

    def note_state(self) -> None:
        """Loose lines about the session, and now and then a compaction somebody asked for."""
        t, dice = self.main, self.dice
        if self.version >= (2, 1, 100):
            t.put("last-prompt", text=t.prompt.partition(b". ")[0], leaf=t.parent.strip(b'"'))
            t.put("permission-mode")
        if self.version >= NEWEST:
            t.put("mode")
            t.put("atis-latch")
            if dice.chance(0.3):
                t.put("tools-used")
        if t.context > COMPACT_ABOVE_TOKENS and dice.chance(0.07):
            self.compact(b"manual")
            self.local_lines(b"compact", b"Compacted")

    def size(self) -> int:
        """All transcript bytes so far, the agents' included."""
        return self.main.sink.bytes + sum(x.counts["bytes"] for x in (self.tally, self.stray, self.warmups))

    def cost_state(self) -> None:
        """The newest client's own account of the session so far."""
        usages = []
        for model, tokens in self.tally.tokens.items():
            holes = {name: b"%d" % value for name, value in zip(TOKEN_CLASSES, tokens, strict=True)}
            cost = repr(sum(map(operator.mul, tokens, PRICES[model])) / 1e8).encode()
            usage = fill(self.main.forms["cost-state/model"], cost=cost, written=b"%d" % sum(tokens[3:]), **holes)
            usages.append(b'"%b":%b' % (model.encode(), usage))
        cost = repr(self.tally.cost() / 1e8).encode()
        self.main.put("cost-state", cost=cost, took_ms=b"90000", by_model=b"{%b}" % b",".join(usages))

    def close(self) -> dict[str, object]:
        t = self.main
        if self.version >= NEWEST:
            self.cost_state()
        t.sink.close(t.now)
        counts = self.tally.counts
        counts["lines"] += t.sink.lines
        counts["bytes"] += t.sink.bytes
        path = f"projects/{self.project}/{self.id}.jsonl"
        alone = {"agents_nobody_launched": self.stray.counts["agents"], "warmups": self.warmups.counts["agents"]}
        cost = {"client_cost_usd": self.tally.cost() / 1e8} if self.version >= NEWEST else {}
        times = {"started": stamp(self.started).decode(), "ended": stamp(t.now).decode()}
        return {
            "session": self.id,
            "version": self.era.name,
            "path": path,
            **times,
            **cost,
            **alone,
            **self.tally.report(),
        }

    def cut_off(self) -> None:
        """A last turn whose tool calls never got their results."""
        self.turns += 1
        self.tally.counts["turns"] += 1
        self.main.tick(5_000, 60_000)
        self.prompt()
        respond(self.main, is_final=False, blob=self.blob, tools="lost")


# ---------------------------------------------------------------- an archive


def write_archive(
    out: Path,
    *,
    megabytes: float = 200,
    sessions: int = 600,
    turns: int | None = None,
    version: str | None = None,
    result_bytes: int = 2000,
    seed: int = 1,
) -> dict[str, Any]:
    """Write the tree below `out` and say what is in it."""
    sessions = 1 if turns else sessions
    dice = Dice(seed, result_bytes)
    archive = Archive(out / "projects", dice, {}, defaultdict(lambda: [0, 0]))
    eras = [era for era in ERAS if version in (None, era.name)]
    if not eras:
        sys.exit(f"no such version: {version} (there are {', '.join(era.name for era in ERAS)})")
    weights = [dice.rng.lognormvariate(0, 1.1) for _ in range(sessions)]
    until = list(itertools.accumulate(era.share for era in eras))
    totals, strays, warmups, rows = Tally(), Tally(), Tally(), []
    by_version: dict[str, Tally] = defaultdict(Tally)
    left_bytes, left_weight = megabytes * 1e6, sum(weights)
    projects = [f"-home-dev-{NOUNS[n % len(NOUNS)]}{n // len(NOUNS) or ''}" for n in range(1 + sessions // 60)]
    for n, weight in enumerate(weights):
        # archives are ordered by time, and newer sessions come from newer clients
        era = eras[bisect.bisect_left(until, (n + 0.5) / sessions * until[-1])] if sessions > 1 else eras[-1]
        started = FIRST_DAY_MS + n * SPAN_MS // sessions + dice.below(600_000)
        session = Session(archive, era, projects[dice.below(len(projects))], started)
        target = left_bytes * weight / left_weight
        while (session.turns < turns) if turns else (not session.turns or session.size() < target):
            session.turn()
        if not turns and dice.chance(0.01):  # the terminal was closed while a tool ran
            session.cut_off()
        left_bytes, left_weight = left_bytes - session.size(), left_weight - weight
        rows.append(session.close())
        totals.add(session.tally)
        strays.add(session.stray)
        warmups.add(session.warmups)
        by_version[era.name].add(session.tally)
        by_version[era.name].counts["sessions"] += 1
    totals.counts["sessions"] = sessions
    expected = {
        "made_with": {
            "megabytes": None if turns else megabytes,
            "sessions": sessions,
            "turns": turns,
            "version": version,
            "result_bytes": result_bytes,
            "seed": seed,
        },
        "totals": totals.report(),
        "agents_nobody_launched": strays.report(),
        "warmups": warmups.report(),
        "line_kinds": {kind: {"lines": n, "bytes": size} for kind, (n, size) in sorted(archive.kinds.items())},
        "by_version": {name: tally.report() for name, tally in by_version.items()},
        "sessions": rows,
    }
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")
    return expected


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("out", type=Path, help="a new or empty directory; use it as CLAUDE_CONFIG_DIR")
    parser.add_argument("--megabytes", type=float, default=200, help="size of the archive, spread over its sessions")
    parser.add_argument("--sessions", type=int, default=600)
    parser.add_argument("--turns", type=int, help="one session of so many turns instead of an archive")
    parser.add_argument("--version", help="only this client version; a long session is of the newest unless told")
    parser.add_argument(
        "--result-bytes", type=int, default=2000, help="mean size of tool results: less is more spans a MB"
    )
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"{options.out} is not empty")
    began = time.perf_counter()
    expected = write_archive(**vars(options))
    took = time.perf_counter() - began
    size = sum(kind["bytes"] for kind in expected["line_kinds"].values()) / 1e6
    totals = expected["totals"]
    print(f"{size:,.0f} MB, {totals['sessions']} sessions, {totals['turns']} turns")
    print(f"written in {took:.1f} s, {size / took:.0f} MB/s")


if __name__ == "__main__":
    main()
