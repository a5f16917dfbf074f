"""Writes transcripts the way clients do: rows that know their session, their parent and their time."""

import json
from datetime import UTC, datetime, timedelta

STOP_REASON_FROM = (2, 1, 63)
MODEL = "claude-opus-4-5-20251101"
USAGE = {"input_tokens": 10, "cache_creation_input_tokens": 20, "cache_read_input_tokens": 300, "output_tokens": 40}


class Writer:
    """A transcript being written; every method adds one row and returns it."""

    def __init__(self, session="5e55104a-0000-4000-8000-000000000001", version="2.1.100", tag="a", **always):
        self.session, self.version, self.tag = session, version, tag
        self.always = {"cwd": "/home/ada/loom", "gitBranch": "main", "userType": "external", **always}
        self.now = datetime(2026, 3, 1, 9, 0, 0, tzinfo=UTC)
        self.rows = []
        self.parent = None
        self.count = 0

    def wait(self, seconds):
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def stamp(self):
        """Return the time as the client writes it."""
        return self.now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{self.now.microsecond // 1000:03}Z"

    def bare(self, kind, **fields):
        """Add a row outside the conversation's chain: a title, a queue operation."""
        row = {"type": kind, **fields, "sessionId": self.session}
        self.rows.append(row)
        return row

    def row(self, kind, *, after=1.0, **fields):
        """Add a row of the chain; `after` seconds after the one before."""
        self.wait(after)
        self.count += 1
        uuid = fields.pop("uuid", f"{self.tag:0>8}-0000-4000-8000-{self.count:012}")
        row = {
            "parentUuid": self.parent, "isSidechain": False, **self.always, "sessionId": self.session,
            "version": self.version, "type": kind, **fields, "uuid": uuid,
            "timestamp": fields.get("timestamp", self.stamp()),
        }  # fmt: skip
        self.parent = row["uuid"]
        self.rows.append(row)
        return row

    def prompt(self, content, **fields):
        """Add a prompt."""
        return self.row("user", message={"role": "user", "content": content}, **fields)

    def say(self, blocks, message=None, usage=None, stop="", model=MODEL, **fields):
        """Add a line of a response: text, or blocks. It has a stop reason if the client records it."""
        blocks = [{"type": "text", "text": blocks}] if isinstance(blocks, str) else blocks
        if stop == "":
            reason = "tool_use" if any(block["type"] == "tool_use" for block in blocks) else "end_turn"
            stop = reason if tuple(map(int, self.version.split("."))) >= STOP_REASON_FROM else None
        message = message or f"msg_{self.tag}{self.count + 1:03}"
        said = {
            "id": message, "type": "message", "role": "assistant", "model": model, "content": blocks,
            "stop_reason": stop, "usage": usage or USAGE,
        }  # fmt: skip
        return self.row("assistant", message=said, **{"requestId": f"req_{message[4:]}", **fields})

    def call(self, name, arguments, tool=None, **fields):
        """Add a tool call, alone in its response unless `message` names one."""
        tool = tool or f"toolu_{self.tag}{self.count + 1:03}"
        return self.say([{"type": "tool_use", "id": tool, "name": name, "input": arguments}], **fields)

    def result(self, call, content, *, is_error=None, outcome=None, **fields):
        """Add the result of a call."""
        block = {"tool_use_id": tool_id(call), "type": "tool_result", "content": content}
        if is_error is not None:
            block["is_error"] = is_error
        if outcome is not None:
            fields["toolUseResult"] = outcome
        return self.row("user", message={"role": "user", "content": [block]}, **fields)

    def stopped(self):
        """Add what the client records after its Stop hooks."""
        return self.row("system", subtype="stop_hook_summary", hookCount=1, hookErrors=[], after=0.1)

    def turn(self, prompt, answer):
        """Add a complete turn of two rows; return its prompt."""
        asked = self.prompt(prompt)
        self.say(answer)
        return asked

    def lines(self):
        """Return the rows as lines, each with its newline."""
        return [json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n" for row in self.rows]

    def save(self, directory):
        """Write the transcript into a project directory, under its session's name."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"{self.session}.jsonl"
        path.write_bytes(b"".join(self.lines()))
        return path


def tool_id(call):
    """Return the id of the call in a row."""
    return next(block["id"] for block in call["message"]["content"] if block["type"] == "tool_use")


def agent_writer(main, agent_id, **options):
    """Return a writer for a subagent of `main` that begins now."""
    writer = Writer(main.session, options.pop("version", main.version), options.pop("tag", agent_id[-3:]),
                    **{**main.always, "agentId": agent_id, "isSidechain": True, **options})  # fmt: skip
    writer.now = main.now
    return writer


def save_agent(writer, directory, agent_id, meta=None, *, flat=False, below="subagents"):
    """Write a subagent's transcript where the client puts it, next to the session or below it."""
    folder = directory if flat else directory / writer.session / below
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"agent-{agent_id}.jsonl"
    path.write_bytes(b"".join(writer.lines()))
    if meta is not None:
        path.with_suffix(".meta.json").write_text(json.dumps(meta, separators=(",", ":")))
    return path
