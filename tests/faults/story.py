"""A small story: the rows of a few sessions and the hook events, in order.

Two sessions, tools, an agent in the foreground and one in the background, and a fork as of 2.1.325, which can only be
recognized by copied responses whose requests are not in its file. No session has an open turn during an event of another
one, so that the time between events does not matter.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rows import Writer, agent_writer

PROJECT = "-home-ada-loom"
A, B, FORK = (f"0fa17000-0000-4000-8000-00000000000{number}" for number in (1, 2, 3))
HELPER, DYER = "a1110000000000001", "a2220000000000002"


@dataclass(frozen=True)
class Moment:
    """An event, and the size of every file at that time."""

    name: str
    session: str
    sizes: dict[Path, int]
    facts: dict[str, str]

    def payload(self, projects):
        """Return what the client writes to the hook's stdin."""
        path = projects / PROJECT / f"{self.session}.jsonl"
        common = {"session_id": self.session, "transcript_path": str(path), "cwd": "/home/ada/loom"}
        return json.dumps({**common, "hook_event_name": self.name, **self.facts}).encode()


class Recorder(Writer):
    """A client that records its requests, as 2.1.325 does."""

    def say(self, blocks, **fields):
        """Add the request, then a line of its response."""
        self.count += 1
        request = f"request-{self.tag}-{self.count}"
        self.bare("api-request", id=request, timestamp=self.stamp(), version=self.version)
        return super().say(blocks, **{"requestRef": request, **fields})


class Story:
    """Growing files, and the moments at which a hook is called."""

    def __init__(self):
        self.moments: list[Moment] = []
        self._writers: dict[Path, Writer] = {}
        self._texts: dict[Path, bytes] = {}

    @property
    def files(self):
        """The final content of every file."""
        rows = {path: b"".join(writer.lines()) for path, writer in self._writers.items()}
        return {**rows, **self._texts}

    @property
    def sessions(self):
        """The sessions in the order of their first events."""
        return list(dict.fromkeys(moment.session for moment in self.moments))

    def session(self, session_id, **options):
        """Begin a session."""
        writer = Recorder(session_id, "2.1.325", **options)
        writer.now = datetime.now(tz=UTC).replace(microsecond=0) - timedelta(minutes=5)
        self._writers[Path(PROJECT) / f"{session_id}.jsonl"] = writer
        return writer

    def agent(self, main, agent_id, **meta):
        """Begin an agent of a session."""
        writer = agent_writer(main, agent_id)
        path = Path(PROJECT) / main.session / "subagents" / f"agent-{agent_id}.jsonl"
        self._writers[path] = writer
        self._texts[path.with_suffix(".meta.json")] = json.dumps(meta).encode()
        return writer

    def event(self, name, writer, **facts):
        """Add a hook event at the current sizes."""
        sizes = {path: len(b"".join(one.lines())) for path, one in self._writers.items()}
        sizes |= {path: len(text) for path, text in self._texts.items()}
        self.moments.append(Moment(name, writer.session, sizes, facts))

    def stop(self, writer):
        """Add a Stop event, then the row that the client writes after its Stop hooks."""
        words = writer.rows[-1]["message"]["content"][0]["text"]
        self.event("Stop", writer, last_assistant_message=words)
        writer.stopped()

    def put(self, projects, number):
        """Let every file grow to its size at a moment."""
        files = self.files
        sizes = self.moments[number].sizes if number < len(self.moments) else {p: len(d) for p, d in files.items()}
        for name, size in sizes.items():
            path = projects / name
            path.parent.mkdir(parents=True, exist_ok=True)
            has = path.stat().st_size if path.exists() else 0
            if has < size:
                with path.open("ab") as file:
                    file.write(files[name][has:size])


def loom():
    """Return the story that all fault tests use."""
    story = Story()
    ada = story.session(A, tag="a1")
    story.event("SessionStart", ada)
    ada.prompt("What is here?")
    ada.result(ada.call("Bash", {"command": "ls"}), "warp weft")
    ada.say("Warp and weft.")
    story.stop(ada)

    bob = story.session(B, tag="b2")
    bob.turn("Count to two.", "One, two.")
    story.stop(bob)

    ada.prompt("Ask an agent.")
    call = ada.call("Agent", {"prompt": "Look around.", "subagent_type": "Explore"}, tool="toolu_helper")
    helper = story.agent(ada, HELPER, agentType="Explore", toolUseId="toolu_helper", description="look")
    helper.prompt("Look around.")
    helper.result(helper.call("Read", {"file_path": "/home/ada/loom/a"}), "a")
    helper.say("Looked.")
    ada.now = helper.now
    story.event("SubagentStop", ada, agent_id=HELPER)
    ada.result(call, "Looked.", outcome={"status": "completed", "agentId": HELPER})
    ada.say("The agent looked.")
    story.stop(ada)

    fork = story.session(FORK, tag="f3")
    fork.bare("mode", mode="normal")
    fork.rows += [{**row, "sessionId": FORK} for row in ada.rows if row["type"] != "api-request"]
    fork.parent, fork.now = ada.parent, ada.now + timedelta(seconds=30)
    fork.turn("Another way.", "Another way it is.")
    story.stop(fork)

    ada.prompt("Dye it meanwhile.")
    call = ada.call("Agent", {"prompt": "Dye.", "run_in_background": True}, tool="toolu_dyer")
    dyer = story.agent(ada, DYER, agentType="general-purpose", toolUseId="toolu_dyer")
    dyer.prompt("Dye.")
    ada.result(call, "Launched.", outcome={"isAsync": True, "status": "async_launched", "agentId": DYER})
    ada.say("It is in the vat.")
    story.stop(ada)
    dyer.wait(20)
    dyer.result(dyer.call("Bash", {"command": "dye"}), "dyed")
    dyer.say("Dyed.")
    ada.now = dyer.now
    story.event("SubagentStop", ada, agent_id=DYER, last_assistant_message="Dyed.")
    note = f"<task-notification>\n<task-id>{DYER}</task-id>\n<status>completed</status>\n</task-notification>"
    ada.prompt(note, origin={"kind": "task-notification"})
    ada.say("The wool is dyed.")
    story.stop(ada)

    bob.prompt("And three?")  # no response: the session ends
    for writer in (bob, fork, ada):
        story.event("SessionEnd", writer)
    return story
