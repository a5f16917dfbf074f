"""The stories: what people do with the client, each played on its own stage.

Rules:

- A story drives the client and waits for what the API, the hooks or the screen show. It never sleeps and it judges nothing:
  `judge.py` compares afterwards.
- `SCENARIOS` maps a name to its story and to the first client version that can play it.
"""

from __future__ import annotations

import json
import os
import signal
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from .client import picture_block, version_tuple, write_settings
from .terminal import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from .stage import Stage, Typed

IDLE_MINUTES = 11  # a little more than what seals a turn that nobody ended


@dataclass(frozen=True, slots=True)
class Scenario:
    """A story and who can play it."""

    name: str
    play: Callable[[Stage], None]
    since: str = "1.0.128"

    def fits(self, version: str) -> bool:
        """Say whether a client version can play it."""
        return version_tuple(version) >= version_tuple(self.since)


SCENARIOS: dict[str, Scenario] = {}


def scenario(since: str = "1.0.128") -> Callable[[Callable[[Stage], None]], Callable[[Stage], None]]:
    """Register a story under its function's name."""

    def register(play: Callable[[Stage], None]) -> Callable[[Stage], None]:
        SCENARIOS[play.__name__] = Scenario(play.__name__, play, since)
        return play

    return register


# ---- one prompt, `-p`


@scenario()
def tools(stage: Stage) -> None:
    """Thinking, two tools at once, then a third."""
    stage.run("{tools} look around")


@scenario()
def words(stage: Stage) -> None:
    """Thinking; letters of the whole world; a failing command; a long output; in one session after another."""
    stage.run("{thinking} think")
    stage.run("{unicode} Ünïcödé 世界 👩‍💻 ‘quotes’")
    stage.run("{error} fail")
    stage.run("{big} print a lot")


@scenario()
def pictures(stage: Stage) -> None:
    """A picture read by a tool, and one in the prompt."""
    client = stage.stream()
    stage.finished(client.say("{image} look at it"), 1)
    stage.finished(client.say("{hello} and at this", picture_block()), 0)
    client.close()


@scenario()
def mcp(stage: Stage) -> None:
    """A tool of an MCP server that answers, and one that fails."""
    stage.run("{mcp} use the server", "--mcp-config", str(stage.root / "mcp.json"))


@scenario()
def web(stage: Stage) -> None:
    """A search through the WebSearch tool, and one that the server ran inside its answer."""
    stage.run("{websearch} search")
    stage.run("{servertool} search there")


@scenario()
def max_tokens(stage: Stage) -> None:
    """An answer cut at the token limit, which the client resumes."""
    stage.run("{maxtok} talk", expect=None)


@scenario()
def retries(stage: Stage) -> None:
    """Overload twice, then a server error, then a stream that breaks: each turn has its answer in the end."""
    stage.run("{overload} try")
    stage.run("{error500} try")
    stage.run("{cut} try", expect=None)


@scenario()
def api_errors(stage: Stage) -> None:
    """A rejected key, and a request that can never work."""
    stage.run("{auth401} no key", expect=None)
    stage.run("{bad400} no way", expect=None)
    stage.run("{toolthen400} half way", expect=None)


# ---- subagents


@scenario()
def agents(stage: Stage) -> None:
    """An agent in the foreground, two at once, one in another, one that fails."""
    stage.run("{agent} delegate")
    stage.run("{twoagents} delegate twice")
    stage.run("{nested} delegate deeply")


@scenario()
def failing_agent(stage: Stage) -> None:
    """An agent whose requests fail."""
    stage.run("{failagent} delegate in vain")


@scenario(since="2.0.64")
def background_agent(stage: Stage) -> None:
    """An agent goes on after the turn that launched it; its end is a turn of its own; then a prompt."""
    client = stage.stream()
    stage.finished(client.say("{bgagent} delegate"), 1)
    stage.finished(client.say("{hello} meanwhile"), 0)
    stage.open_gate("agent")
    told = stage.api.wait_for(lambda e: e["event"] == "response" and e["script"] == "notified", "the notification")
    stage.wait_hook("Stop", after=told["t_end"] - 0.05)
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario(since="2.0.64")
def background_default(stage: Stage) -> None:
    """An agent launched as the client likes best, under `-p`, which waits for it."""
    stage.run("{agentdefault} delegate")


@scenario(since="2.1.325")
def fork_agent(stage: Stage) -> None:
    """An agent that inherits the conversation."""
    client = stage.stream()
    stage.finished(client.say("{tools} first"), 2)
    stage.finished(client.say("{forkagent} delegate to yourself"), 1)
    told = stage.api.wait_for(lambda e: e["event"] == "response" and e["script"] == "notified", "the notification")
    stage.wait_hook("Stop", after=told["t_end"] - 0.05)
    client.close()


# ---- several turns


@scenario()
def turns(stage: Stage) -> None:
    """Several turns in one process."""
    client = stage.stream()
    for what, steps in (("hello", 0), ("tools", 2), ("error", 1), ("hello", 0)):
        stage.finished(client.say(f"{{{what}}} go on"), steps)
    client.close()


@scenario()
def command_and_skill(stage: Stage) -> None:
    """A custom command, and a skill that the model chose."""
    client = stage.stream()
    stage.finished(client.say("/x with arguments"), 0)
    if version_tuple(stage.version) >= (2, 0, 20):
        stage.finished(client.say("{skill} use it"), 1)
    client.close()


@scenario()
def compact(stage: Stage) -> None:
    """`/compact` between two turns."""
    client = stage.stream()
    stage.finished(client.say("{tools} first"), 2)
    client.say_text("/compact")
    stage.api.wait_for(lambda e: e["event"] == "response" and e["aux"] == "compact", "the compaction")
    client.wait_results(2)
    stage.finished(client.say("{error} after it"), 1)
    client.close()


@scenario()
def resume(stage: Stage) -> None:
    """A session resumed by its id, then continued, then forked, then resumed again."""
    first = stage.run("{tools} first")
    stage.run("{hello} resumed", "--resume", str(first["session_id"]))
    stage.run("{error} continued", "--continue")
    if version_tuple(stage.version) >= (2, 0, 0):
        stage.run("{hello} forked", "--resume", str(first["session_id"]), "--fork-session")
        stage.run("{hello} the original again", "--resume", str(first["session_id"]))


@scenario()
def two_sessions(stage: Stage) -> None:
    """Two sessions of one project at the same time, both busy."""
    (key_a, text_a), (key_b, text_b) = stage.prompt("{slow} one"), stage.prompt("{slow} two")
    one, two = stage.start(text_a), stage.start(text_b)
    stage.api.answered(key_a)
    stage.api.answered(key_b)
    stage.open_gate("slow")
    for client in (one, two):
        client.process.communicate(timeout=60)
        client.row.update(rc=client.process.returncode, t_end=time.time())


@scenario(since="2.1.0")
def queue_stream(stage: Stage) -> None:
    """A second prompt sent while the first is busy with a tool."""
    client = stage.stream()
    busy = client.say("{slow} first")
    stage.api.answered(busy)
    stage.wait_gate("slow")
    client.say("{hello} meanwhile")
    stage.open_gate("slow")
    stage.api.answered(busy, 1)
    stage.finished(client.say("{hello} later"), 0)
    client.close()


@scenario(since="2.0.0")
def interrupt_stream(stage: Stage) -> None:
    """An interruption through the control channel, in a stream and in a tool, then a normal turn."""
    client = stage.stream()
    stage.api.asked(client.say("{slowstream} never ends"))
    _wait_for_words(stage)
    client.interrupt()
    client.wait_results(1)
    stage.api.answered(client.say("{slow} hangs"))
    stage.wait_gate("slow")
    client.interrupt()
    client.wait_results(2)
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario()
def sigterm(stage: Stage) -> None:
    """The client is asked to end in the middle of a tool; another session follows later."""
    _, text = stage.prompt("{slow} will be ended")
    client = stage.start(text)
    stage.wait_written(stage.api.answered("p1")["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGTERM)
    stage.open_gate("slow")
    later(stage)
    stage.run("{hello} another session")


@scenario()
def sigkill(stage: Stage) -> None:
    """The client is killed in the middle of a tool; another session of the project follows later."""
    stage.run("{hello} before")
    _, text = stage.prompt("{slow} will be killed")
    client = stage.start(text)
    stage.wait_written(stage.api.answered("p2")["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGKILL)
    stage.open_gate("slow")
    later(stage)
    stage.run("{hello} another session")


# ---- in a terminal


@scenario()
def typed(stage: Stage) -> None:
    """Two turns typed in a terminal."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario()
def esc_in_tool(stage: Stage) -> None:
    """Esc while a command runs, then a normal turn."""
    client = stage.terminal()
    stage.api.answered(client.type("{slow} first"))
    stage.wait_gate("slow")
    _press_until(client, "Escape", lambda: _interrupted(client))
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario()
def esc_in_stream(stage: Stage) -> None:
    """Esc while the answer streams, then a normal turn."""
    client = stage.terminal()
    stage.api.asked(client.type("{slowstream} first"))
    _wait_for_words(stage)
    client.wait_shows("A long answer")
    _press_until(client, "Escape", lambda: _interrupted(client))
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario()
def typed_while_busy(stage: Stage) -> None:
    """Words typed while a tool runs."""
    client = stage.terminal()
    busy = client.type("{slow} first")
    stage.api.answered(busy)
    stage.wait_gate("slow")
    client.type("{hello} meanwhile", check=False)
    stage.open_gate("slow")
    stage.api.answered(busy, 1)
    stage.finished(client.type("{hello} later"), 0)
    client.quit()


@scenario()
def bash_mode(stage: Stage) -> None:
    """A command of the person's own (`!`), between two turns."""
    client = stage.terminal()
    stage.finished(client.type("{hello} first"), 0)
    before = time.time()
    client.terminal.write("!")
    client.enter("echo from-bash-mode")
    if version_tuple(stage.version) >= (2, 1, 207):
        stage.api.answered("bash1")
        stage.wait_hook("Stop", after=before)
    else:
        wait_until(lambda: any("<bash-stdout>" in p.read_text() for p in stage.home.transcripts.glob("*/*.jsonl")), "the command's output")
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario()
def typed_compact(stage: Stage) -> None:
    """`/compact` in a terminal."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    client.enter("/compact", until=lambda: bool(stage.hooks("PreCompact")))
    stage.wait_hook("PostCompact" if version_tuple(stage.version) >= (2, 1, 76) else "SessionStart", after=stage.hooks("PreCompact")[0]["t"])
    stage.finished(client.type("{hello} after it"), 0)
    client.quit()


@scenario()
def typed_clear(stage: Stage) -> None:
    """`/clear` between two turns: a new session."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    before = time.time()
    client.enter("/clear", until=lambda: any(h["t"] > before for h in stage.hooks("SessionStart")))
    stage.finished(client.type("{error} second"), 1)
    client.quit()


@scenario()
def typed_commands(stage: Stage) -> None:
    """A local command, which asks nothing of the model, and a custom one."""
    client = stage.terminal()
    stage.finished(client.type("{hello} first"), 0)
    client.enter("/status")
    client.wait_shows("Version")
    client.terminal.key("Escape")
    stage.finished(client.type("/x with arguments"), 0)
    client.quit()


@scenario()
def typed_error(stage: Stage) -> None:
    """A turn that ends with an API error, then a normal one."""
    client = stage.terminal()
    failed = client.type("{toolthen400} first")
    stage.api.wait_for(lambda e: e["event"] == "response" and e["turn"] == failed and e["http_status"] == 400, "the failure")
    client.wait_shows("scripted fatal error")
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario(since="2.0.64")
def quit_with_agent(stage: Stage) -> None:
    """The person leaves while an agent is still at work; another session follows later."""
    client = stage.terminal()
    stage.finished(client.type("{bgagent} delegate"), 1)
    at_work = stage.api.wait_for(lambda e: e["event"] == "response" and e["script"] == "subtaskslow", "the agent's first answer")
    stage.wait_written(at_work["message_id"])
    stage.wait_gate("agent")
    client.quit()
    stage.open_gate("agent")
    later(stage)
    stage.run("{hello} another session")


@scenario()
def typed_sigkill(stage: Stage) -> None:
    """The terminal's client is killed in the middle; the same session is continued in another."""
    client = stage.terminal()
    stage.finished(client.type("{hello} first"), 0)
    stage.wait_written(stage.api.answered(client.type("{slow} killed"))["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGKILL)
    stage.open_gate("slow")
    stage.run("{hello} continued", "--continue")


@scenario(since="2.0.0")
def plan(stage: Stage) -> None:
    """A plan accepted in the same conversation."""
    _accept_plan(stage, clear=False)


@scenario(since="2.1.9")
def plan_clear(stage: Stage) -> None:
    """A plan accepted with cleared context, where the client offers it: a new session carries it out."""
    settings = json.loads(stage.home.settings.read_text())
    write_settings(stage.home, {**settings, "showClearContextOnPlanAccept": True})
    _accept_plan(stage, clear=True)


def _accept_plan(stage: Stage, *, clear: bool) -> None:
    client = stage.terminal("--permission-mode", "plan")
    turn = client.type("{plan} make a plan")
    wait_until(lambda: client.shows("Yes,") or client.shows("1. Yes"), "the plan's menu", 20)
    lines = [line.strip(" │❯") for line in client.terminal.screen().splitlines()]
    options = [line for line in lines if line[:2] in ("1.", "2.", "3.", "4.", "5.")]
    stage.notes.append(f"plan options: {options}")
    wanted = [o for o in options if "Yes" in o and ("clear context" in o) == clear]
    if not wanted:
        stage.notes.append("not offered by this client")
        wanted = [o for o in options if "Yes" in o]
    _press_until(client, wanted[0][0], lambda: not client.shows(wanted[0]))
    if "clear context" in wanted[0]:
        stage.finished("plan-exec", 1)
    else:
        done = stage.api.wait_for(lambda e: e["event"] == "response" and e["turn"] == turn and "carried out" in str(e["content"]), "the plan's end", 40)
        stage.wait_hook("Stop", after=done["t_end"] - 0.05)
    stage.finished(client.type("{hello} after the plan"), 0)
    client.quit()


# ---- small parts


def later(stage: Stage) -> None:
    """Let the idle time pass that ends a turn nobody ended: every transcript gets older."""
    stage.wait_for_quiet()
    moment = time.time() - IDLE_MINUTES * 60
    for path in stage.home.transcripts.rglob("*.jsonl"):
        os.utime(path, (moment, moment))


def _wait_for_words(stage: Stage) -> None:
    """Wait until a held stream has shown something to the client."""
    stage.api.wait_for(lambda e: e["event"] == "holding", "the stream", 20)


def _interrupted(client: Typed) -> bool:
    return client.shows("Interrupted")


def _press_until(client: Typed, key: str, is_so: Callable[[], bool]) -> None:
    """Press a key, and again while nothing happened."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        client.terminal.key(key)
        pressed = time.monotonic()
        while time.monotonic() < pressed + 2:
            if is_so():
                return
            time.sleep(0.03)
    raise AssertionError(f"{key} did nothing\n{client.terminal.screen()}")
