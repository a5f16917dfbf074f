"""One session, turn by turn."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

from generator.responses import announce_context, respond, stray_agent
from generator.templates import (
    AT,
    FLAT_AGENTS,
    NESTED_AGENTS,
    NEWEST,
    NOUNS,
    PRICES,
    PROGRESS_BEGAN,
    PROGRESS_ENDED,
    TOKEN_CLASSES,
    fill,
    shape,
)
from generator.tools import path_of
from generator.writing import Sink, Tally, Transcript, stamp

if TYPE_CHECKING:
    from generator.templates import Era
    from generator.writing import Archive

COMPACT_ABOVE_TOKENS = 165_000

TYPED = shape([{"type": "text", "text": "<<text>>"}])
TYPED_IMAGE = shape(
    [{"type": "text", "text": "<<text>>"},
     {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "<<data>>"}}]
)  # fmt: skip
BACKUP = shape({"backupFileName": "<<name>>@v1", "version": 1, "backupTime": AT})


def command_text(name: bytes) -> bytes:
    """A client command as the transcript has it."""
    parts = (b"<command-name>/", name, b"</command-name>\\n            <command-message>", name, b"</command-message>")
    return b"".join((*parts, b"\\n            <command-args></command-args>"))


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
        """Write one turn, and sometimes the lines between turns."""
        t, dice = self.main, self.dice
        t.tick(5_000, 240_000)
        if dice.chance(0.06):
            self.local_command(dice.random())
        if dice.chance(0.01) and self.version < (2, 1, 100):
            t.link("user/meta", content=b'"Continue from where you stopped."')
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
        """Write the turn that the client starts when a background agent has ended."""
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
        """Write a command that only the client answers: not a turn."""
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
        """Write the responses of a turn, which may end early; return whether the client ran its Stop hooks."""
        t, dice, fate = self.main, self.dice, self.dice.random()
        if fate < 0.008 and t.prompt[:1] != b"<":  # a command without a reply would not be a turn
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
        if fate > 0.975:  # another hook blocked the stop: the same turn continues
            t.link("user/meta", content=b'"Stop hook feedback:\\n- the change log has no entry yet"')
            respond(t, is_final=False)
            respond(t, is_final=True)
            self.tally.counts["turns_continued_by_hook"] += 1
        return True

    def between(self) -> None:
        """Write lines between two responses of a turn."""
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
        """Write a compaction: a boundary without a parent, the summary, and a much shorter context."""
        t, dice = self.main, self.dice
        logical, t.parent = t.parent, b"null"
        t.link("system/compact_boundary", logical=logical, trigger=trigger, tokens=b"%d" % t.context)
        t.link("user/compact", content=b'"%b"' % (b"This is what happened so far: " + dice.prose(6_000)))
        t.context, t.fresh = 16_000, 3_000
        self.tally.counts["compactions"] += 1
        if NESTED_AGENTS <= self.version < NEWEST and dice.chance(0.5):
            stray_agent(t, self.stray, b"acompact-", b"Write down what happened so far.")

    def stop(self, began: int, messages: int) -> None:
        """Write the lines that follow the Stop hooks."""
        t, dice = self.main, self.dice
        t.tick(20, 300)
        if PROGRESS_BEGAN <= self.version < PROGRESS_ENDED:
            t.link("progress/hook", event=b"Stop", match=b"", tool=dice.uuid())
            if dice.chance(0.03):
                stray_agent(t, self.stray, b"aprompt_suggestion-", b"Suggest what the user may want next.")
        if self.version >= (2, 0, 50):
            t.link("system/stop_hook_summary", took_ms=b"%d" % dice.below(900), tool=dice.uuid())
        if self.version >= (2, 1, 100):
            t.link("system/turn_duration", took_ms=b"%d" % (t.now - began), messages=b"%d" % messages)

    def note_state(self) -> None:
        """Write lines about the session, and sometimes a compaction by command."""
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
        """Bytes of all transcripts so far, including the agents'."""
        return self.main.sink.bytes + sum(x.counts["bytes"] for x in (self.tally, self.stray, self.warmups))

    def cost_state(self) -> None:
        """Write the newest client's own totals of the session so far."""
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
        alone = {"unlaunched_agents": self.stray.counts["agents"], "warmups": self.warmups.counts["agents"]}
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
        """Write a last turn whose tool calls have no results."""
        self.turns += 1
        self.tally.counts["turns"] += 1
        self.main.tick(5_000, 60_000)
        self.prompt()
        respond(self.main, is_final=False, blob=self.blob, tools="lost")
