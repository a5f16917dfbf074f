"""Writes the transcripts of the demo like a client of version 2.1.325 writes its own.

Tokens follow the texts: what a response adds to the conversation is written to the cache by the next one, which reads
all that was there before.
"""

from __future__ import annotations

import base64
import hashlib
import json
import uuid
from datetime import UTC, datetime, timedelta

VERSION = "2.1.325"
# The time of the last row of the newest session; `turnspan.page.demo` moves all times.
NEWEST = datetime(2026, 1, 15, 16, 40, tzinfo=UTC)
SYSTEM_TOKENS = 19_400  # the client's own prompt and tools
REFUSED = (
    "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. if it was a file edit, the "
    "new_string was NOT written to the file). STOP what you are doing and wait for the user to tell you how to proceed."
)


def tokens(text):
    """Return about how many tokens a text has."""
    return len(text) // 4 + 3


def numbered(text, first=1):
    """Return a file as Read shows it."""
    return "\n".join(f"{first + n}\t{line}" for n, line in enumerate(text.split("\n")))


class Chain:
    """Rows of one file that follow each other."""

    def __init__(self, name, *, model, start, speed=60.0):
        self.name, self.model, self.speed = name, model, speed
        self.now = start
        self.rows = []
        self.parent = None
        self.cached = 0  # tokens of the conversation that are in the cache
        self.fresh = SYSTEM_TOKENS  # tokens that the next response writes to it
        self.prompt_id = None
        self.extra = {}
        self.weight = 20  # results are longer in reality than those of the demo

    def make_id(self, kind):
        """Return an id that depends on the name and the number of rows only."""
        self.count = getattr(self, "count", 0) + 1
        return hashlib.sha256(f"{self.name}/{kind}/{self.count}".encode()).hexdigest()

    def uuid(self):
        """Return a random-looking UUID."""
        return str(uuid.UUID(self.make_id("uuid")[:32], version=4))

    def stamp(self):
        """Return the time as the client writes it."""
        return self.now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.now.microsecond // 1000:03}Z"

    def wait(self, seconds):
        """Let time pass."""
        self.now += timedelta(milliseconds=round(seconds * 1000))

    def row(self, kind, **fields):
        """Add a row of the conversation."""
        row = {"parentUuid": self.parent, "isSidechain": False, **self.extra, "type": kind, **fields}
        row |= {"uuid": self.uuid(), "timestamp": self.stamp()}
        self.parent = row["uuid"]
        self.rows.append(row)
        return row

    def bare(self, kind, **fields):
        """Add a row beside the conversation."""
        self.rows.append({"type": kind, **fields})

    # ---- the model

    def respond(self, *blocks, thinking="", wait=0.7, fast=False):
        """Add a response: texts, and calls as (tool, arguments). Return the ids of the calls."""
        self.wait(0.04)
        request = self.uuid()
        self.bare(
            "api-request", id=request, timestamp=self.stamp(), version=VERSION, querySource="repl_main_thread",
            params={"model": self.model, "max_tokens": 64_000, "output_config": {"effort": "medium"}},
        )  # fmt: skip
        self.wait(wait)
        made = [{"type": "thinking", "thinking": thinking, "signature": ""}] if thinking else []
        calls = []
        for block in blocks:
            if isinstance(block, str):
                made.append({"type": "text", "text": block})
            else:
                calls.append(f"toolu_01{self.make_id('call')[:22]}")
                made.append({"type": "tool_use", "id": calls[-1], "name": block[0], "input": block[1]})
        output = sum(tokens(json.dumps(block)) for block in made)
        message = {
            "id": f"msg_01{self.make_id('message')[:22]}",
            "type": "message",
            "role": "assistant",
            "model": self.model,
        }
        usage = {
            "input_tokens": 4 + len(made), "cache_creation_input_tokens": self.fresh,
            "cache_read_input_tokens": self.cached, "output_tokens": output, "service_tier": "standard",
            "cache_creation": {"ephemeral_5m_input_tokens": self.fresh, "ephemeral_1h_input_tokens": 0},
        }  # fmt: skip
        request_id = f"req_01{self.make_id('request')[:20]}"
        for index, block in enumerate(made):
            seconds = tokens(json.dumps(block)) / self.speed / (3 if fast else 1)
            self.wait(seconds)
            took = {"text": {}, "thinking": {"thinkingDurationMs": int(seconds * 1000)}}.get(
                block["type"], {"toolInputStreamMs": int(seconds * 1000)}
            )
            said = {
                **message, "content": [block], "stop_reason": "tool_use" if calls else "end_turn",
                "stop_sequence": None, "usage": usage,
            }  # fmt: skip
            self.row(
                "assistant", message=said, apiBlockIndex=index, **took, requestId=request_id, requestRef=request,
                requestedModel=self.model, effort="medium",
            )  # fmt: skip
        self.cached, self.fresh = self.cached + self.fresh, output
        return calls

    def result(self, call, content, *, after=0.2, is_error=False, outcome=None, **fields):
        """Add the result of a call."""
        self.wait(after)
        self.fresh += tokens(content if isinstance(content, str) else content[0]["text"]) * self.weight
        block = {
            "tool_use_id": call,
            "type": "tool_result",
            "content": content,
            **({"is_error": True} if is_error else {}),
        }
        return self.row(
            "user", promptId=self.prompt_id, message={"role": "user", "content": [block]},
            **({"toolUseResult": outcome} if outcome is not None else {}), **fields,
        )  # fmt: skip

    def use(self, tool, arguments, content, *, say="", thinking="", after=0.2, is_error=False):
        """Add a response with one call, and its result."""
        blocks = (say, (tool, arguments)) if say else ((tool, arguments),)
        (call,) = self.respond(*blocks, thinking=thinking)
        self.result(call, content, after=after, is_error=is_error)
        return call


class Session(Chain):
    """A session: turns, agents, compactions, what a user does."""

    def __init__(self, project, *, model, branch, ends, title, mode="default"):
        super().__init__(f"{project}/{title}", model=model, start=ends)
        self.project, self.branch, self.mode = project, branch, mode
        self.session = self.uuid()
        self.agents = []
        self.turns = 0
        self.bare("mode", mode="normal")
        self.bare("ai-title", aiTitle=title)

    def prompt(self, text, *, after=0.0, image=0):
        """Begin a turn."""
        self.wait(after)
        self.turns += 1
        self.prompt_id = self.uuid()
        self.fresh += tokens(text) + (1_600 if image else 0)
        content = text
        if image:
            source = {"type": "base64", "media_type": "image/png", "data": picture(image)}
            content = [{"type": "image", "source": source}, {"type": "text", "text": text}]
        self.row(
            "user", promptId=self.prompt_id, message={"role": "user", "content": content}, permissionMode=self.mode,
            origin={"kind": "human"}, promptSource="typed", turnOrigin="human",
            turnPosition={"promptIndex": self.turns, "turnIndex": self.turns},
        )  # fmt: skip
        self._began = self.now

    def done(self):
        """End a turn as the client does."""
        self.wait(0.05)
        length = int((self.now - self._began).total_seconds() * 1000)
        self.row("system", subtype="turn_duration", durationMs=length, messageCount=len(self.rows), isMeta=False)

    def answer(self, text, **options):
        """End a turn with an answer."""
        self.respond(text, **options)
        self.done()

    def refuse(self, call, *, after):
        """The user refuses a call, which ends the turn."""
        self.result(
            call, REFUSED, after=after, is_error=True, outcome="User rejected tool use", toolDenialKind="user-rejected"
        )
        words = [{"type": "text", "text": "[Request interrupted by user for tool use]"}]
        self.row("user", promptId=self.prompt_id, message={"role": "user", "content": words})

    def retry(self, attempt, wait_ms):
        """The API was busy, and the client tries again."""
        self.wait(0.3)
        request = f"req_01{self.make_id('request')[:20]}"
        error = {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}, "request_id": request}
        self.row(
            "system", subtype="api_error", level="error", retryInMs=wait_ms, retryAttempt=attempt, maxRetries=10,
            error={"message": f"529 {json.dumps(error)}", "status": 529, "requestId": request, "formatted": "529 Overloaded"},
            source="request_retry",
        )  # fmt: skip
        self.wait(wait_ms / 1000)

    def compact(self, summary):
        """The conversation is replaced by a summary."""
        self.wait(14)
        before = self.cached + self.fresh
        old = self.parent
        self.parent = None
        self.row(
            "system", subtype="compact_boundary", content="Conversation compacted", isMeta=False, level="info",
            logicalParentUuid=old, compactMetadata={
                "trigger": "auto", "preTokens": before, "postTokens": SYSTEM_TOKENS + tokens(summary), "durationMs": 13_800,
            },
        )  # fmt: skip
        text = (
            "This session is being continued from a previous conversation that ran out of context. The summary below "
            f"covers the earlier portion of the conversation.\n\n{summary}"
        )
        self.row(
            "user", promptId=self.prompt_id, message={"role": "user", "content": text}, isVisibleInTranscriptOnly=True,
            isCompactSummary=True,
        )  # fmt: skip
        self.cached, self.fresh = 0, SYSTEM_TOKENS + tokens(summary)

    def agent(self, call, arguments, steps, report, *, model=None, start=None):
        """Write a subagent: `steps` are (tool, arguments, result, seconds); return it."""
        agent_id = f"a{self.make_id('agent')[:16]}"
        chain = Chain(f"{self.name}/{agent_id}", model=model or self.model, start=start or self.now)
        chain.extra = {"agentId": agent_id, "isSidechain": True}
        chain.prompt_id = self.prompt_id
        chain.fresh = 8_200 + tokens(arguments["prompt"])
        chain.row("user", promptId=self.prompt_id, message={"role": "user", "content": arguments["prompt"]})
        for tool, given, result, seconds in steps:
            chain.use(tool, given, result, after=seconds)
        chain.respond(report)
        meta = {
            "agentType": arguments["subagent_type"], "description": arguments["description"], "toolUseId": call,
            "spawnDepth": 1, "finished": True,
        }  # fmt: skip
        self.agents.append((agent_id, chain, meta))
        return agent_id, chain

    def reported(self, call, agent_id, chain, report):
        """Add an agent's report as the result of its call."""
        self.now = max(self.now, chain.now)
        text = f"{report}\nagentId: {agent_id} (use SendMessage with to: '{agent_id}' to continue this agent)"
        outcome = {"status": "completed", "agentId": agent_id, "content": [{"type": "text", "text": report}]}
        self.result(call, [{"type": "text", "text": text}], outcome=outcome)

    def moved(self, ends):
        """Move all times so that the last row is written at a time."""
        by = ends - self.now
        for chain in (self, *(chain for _, chain, _ in self.agents)):
            for row in chain.rows:
                if "timestamp" in row:
                    chain.now = datetime.fromisoformat(row["timestamp"]) + by
                    row["timestamp"] = chain.stamp()
        return self

    def files(self):
        """Yield (path, fields of every row of the conversation, fields of all others, rows) of each file."""
        folder = "projects/" + "".join(c if c.isalnum() else "-" for c in self.project)
        every = {
            "userType": "external", "entrypoint": "cli", "cwd": self.project, "sessionId": self.session,
            "version": VERSION, "gitBranch": self.branch,
        }  # fmt: skip
        yield f"{folder}/{self.session}.jsonl", every, {"sessionId": self.session}, self.rows
        for agent_id, chain, meta in self.agents:
            path = f"{folder}/{self.session}/subagents/agent-{agent_id}"
            yield f"{path}.jsonl", every, {"sessionId": self.session, "agentId": agent_id}, chain.rows
            yield f"{path}.meta.json", {}, {}, [meta]


def picture(size):
    """Return the base64 of about so many bytes; only their number is ever shown."""
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"\0" * (size - 8)).decode()
