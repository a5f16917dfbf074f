"""Sessions for the tests of the page, and how a page is driven and looked at."""

import json
from urllib.parse import urlsplit

from browser import Browser
from rows import USAGE, Writer
from test_view import SESSION, records_of

DEEP = "5e55104a-0000-4000-8000-00000000000d"
MANY = "document.querySelectorAll(%r).length"


def used(context, output=50):
    """The usage of a response with a context window of this size."""
    return {**USAGE, "input_tokens": 10, "cache_creation_input_tokens": 90, "cache_read_input_tokens": context - 100,
            "output_tokens": output}  # fmt: skip


def save(home, writer, agents=()):
    """Write a session and its agents: (id, rows, the call that launched it)."""
    directory = home / "projects" / "-home-ada-loom"
    below = directory / writer.session / "subagents"
    below.mkdir(parents=True, exist_ok=True)
    path = directory / f"{writer.session}.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in writer.rows))
    for name, rows, call in agents:
        (below / f"agent-{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        launched = {"agentType": "Explore", "description": "look", "finished": True,
                    "toolUseId": call["message"]["content"][0]["id"]}  # fmt: skip
        (below / f"agent-{name}.meta.json").write_text(json.dumps(launched))
    return path


def eventful(home):
    """A session in which everything happens: parallel calls, a failure, a refusal, a retry, a compaction, a wait."""
    writer = Writer(SESSION, version="2.1.200")
    writer.bare("ai-title", aiTitle="Fix the tokenizer")
    writer.prompt("Fix the **tokenizer**, please")
    message = "msg_both"
    writer.say("I look at both files.", message=message, stop=None, usage=used(10_000), after=2)
    first = writer.call("Read", {"file_path": "/home/ada/loom/a.py"}, message=message, usage=used(10_000))
    second = writer.call("Bash", {"command": "sleep 9"}, message=message, usage=used(10_000))
    writer.result(first, "     1\tprint(1)\n", after=1)
    writer.result(second, "done", after=8, outcome={"durationMs": 2000})
    failing = writer.call("Bash", {"command": "pytest -q"}, usage=used(12_000), after=3)
    writer.result(failing, "Exit code 1\nthe unmistakable reason", is_error=True, after=2)
    writer.say("It **fails**.", usage=used(13_000), after=2)
    writer.wait(60)
    writer.prompt("Push it")
    push = writer.call("Bash", {"command": "git push"}, usage=used(14_000), after=2)
    writer.result(push, "The user doesn't want to proceed with this tool use.", is_error=True, after=20)
    writer.say("As you wish.", usage=used(15_000), after=2)
    writer.wait(60)
    writer.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 15_000})
    writer.prompt("This session is being continued", isCompactSummary=True, isVisibleInTranscriptOnly=True)
    writer.prompt("And now?")
    writer.row("system", subtype="api_error", error={"status": 529}, retryInMs=900, retryAttempt=1, maxRetries=10)
    writer.say("All is well.", usage=used(4000), after=3)
    return save(home, writer)


def deep(home, levels=8):
    """A session with agents inside agents."""
    writer = Writer(DEEP, tag="d", version="2.1.200")
    writer.prompt("Go as deep as you can")
    call = writer.call("Task", {"description": "level 1", "prompt": "go deeper", "subagent_type": "Explore"})
    agents, above = [], call
    for level in range(1, levels + 1):
        agent = Writer(DEEP, tag=f"d{level}", version="2.1.200", agentId=f"a{level:07}", isSidechain=True)
        agent.now = writer.now
        agent.wait(level)
        agent.prompt(f"go deeper {level}")
        launched = above
        if level < levels:
            above = agent.call(
                "Task", {"description": f"level {level + 1}", "prompt": "go", "subagent_type": "Explore"}
            )
        agents.append((agent, launched, above))
    end = writer.now
    for level, (agent, _, call_below) in reversed(list(enumerate(agents, 1))):
        agent.now = max(agent.now, end)
        if level < levels:
            agent.result(call_below, "deep enough")
        agent.say(f"level {level} is done")
        end = agent.now
    writer.now = end
    writer.result(call, "all done", outcome={"agentId": "a0000001"})
    writer.say("That was deep.")
    save(home, writer, [(one.always["agentId"], one.rows, launched) for one, launched, _ in agents])
    return DEEP


class Page(Browser):
    """A browser on the page, which must log no error and connect to no other server."""

    def sized(self, width, height, *, is_phone=False):
        """Give the page a size."""
        self.tell(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=is_phone
        )

    def open(self, viewer, route, ready):
        """Open a route in a fresh page; wait for an expression."""
        self.visit("about:blank")
        self.visit(viewer.url + route)
        return self.wait(ready)

    def count(self, selector):
        """How many elements there are."""
        return self.value(MANY % selector)

    def text(self, selector):
        """The text of the first element."""
        return self.value(f"document.querySelector({selector!r})?.innerText ?? ''")

    def texts(self, selector):
        """The texts of all elements."""
        return json.loads(
            self.value(f"JSON.stringify([...document.querySelectorAll({selector!r})].map(e => e.innerText))")
        )

    def click(self, selector, number=0):
        """Click on an element."""
        self.value(f"document.querySelectorAll({selector!r})[{number}].click()")

    def has_none(self, selector):
        """Wait until there is no such element."""
        return self.wait(MANY % selector + " === 0")

    def has(self, selector, number=1):
        """Wait until there are at least so many elements."""
        return self.wait(MANY % selector + f" >= {number}")

    def check(self):
        """Nothing was logged, and no other server was asked."""
        assert self.said == []
        hosts = {
            urlsplit(url).hostname for url in self.asked if not url.startswith(("about:", "chrome", "data:", "blob:"))
        }
        assert hosts <= {"127.0.0.1"}


def turns_of(viewer, session=SESSION):
    """The turns of a session, as the page gets them."""
    return [one for one in records_of(viewer, f"session/{session}") if one["is"] == "turn"]


def spans_of(viewer, turn, session=SESSION):
    """The spans of a turn, as the page gets them."""
    return records_of(viewer, f"trace/{session}?at={turn['at']}&trace={turn['trace']}")[0]["spans"]
