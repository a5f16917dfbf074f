"""Stories in a terminal."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

from .client import version_tuple, write_settings
from .dialogs import PROCEED, options, press_until
from .story import OWN_ANSWER_UNTIL, TYPED, scenario, wait_for_words
from .terminal import wait_until

if TYPE_CHECKING:
    from .stage import Stage, Typed


@scenario(since=TYPED)
def typed(stage: Stage) -> None:
    """Two turns typed in a terminal."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario(since=TYPED)
def esc_in_tool(stage: Stage) -> None:
    """Esc while a command runs, then a normal turn."""
    client = stage.terminal()
    stage.api.wait_response(client.type("{slow} first"))
    stage.wait_gate("slow")
    press_until(client, "Escape", lambda: _interrupted(client))
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario(since=TYPED)
def esc_in_stream(stage: Stage) -> None:
    """Esc while a response streams, then a normal turn."""
    client = stage.terminal()
    stage.api.wait_request(client.type("{slowstream} first"))
    wait_for_words(stage)
    if version_tuple(stage.version) >= (2, 1, 207):  # older clients show no text before it is complete
        client.wait_shows("A long answer")
    press_until(client, "Escape", lambda: _interrupted(client))
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario(since=TYPED)
def typed_while_busy(stage: Stage) -> None:
    """A prompt typed while a tool runs."""
    client = stage.terminal()
    busy = client.type("{slow} first")
    stage.api.wait_response(busy)
    stage.wait_gate("slow")
    client.type("{hello} meanwhile", check=False)
    stage.open_gate("slow")
    stage.api.wait_response(busy, 1)
    if version_tuple(stage.version) <= OWN_ANSWER_UNTIL:
        stage.finished("p2", 0)
    stage.finished(client.type("{hello} later"), 0)
    client.quit()


@scenario(since=TYPED)
def bash_mode(stage: Stage) -> None:
    """A shell command of the user (`!`) between two turns."""
    client = stage.terminal()
    stage.finished(client.type("{hello} first"), 0)
    before = time.time()
    client.terminal.write("!")
    wait_until(lambda: any(line.strip().startswith("!") for line in client.terminal.screen().splitlines()), "bash mode")
    client.enter("echo from-bash-mode")
    if version_tuple(stage.version) >= (2, 1, 207):
        stage.api.wait_response("bash1")
        stage.wait_hook("Stop", after=before)
    else:
        wait_until(
            lambda: any("<bash-stdout>" in p.read_text() for p in stage.home.transcripts.glob("*/*.jsonl")),
            "the command's output",
        )
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario(since=TYPED)
def typed_compact(stage: Stage) -> None:
    """`/compact` in a terminal."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    client.enter("/compact", until=lambda: bool(stage.hooks("PreCompact")))
    stage.wait_hook(
        "PostCompact" if version_tuple(stage.version) >= (2, 1, 76) else "SessionStart",
        after=stage.hooks("PreCompact")[0]["t"],
    )
    stage.finished(client.type("{hello} after it"), 0)
    client.quit()


@scenario(since=TYPED)
def typed_clear(stage: Stage) -> None:
    """`/clear` between two turns: a new session."""
    client = stage.terminal()
    stage.finished(client.type("{tools} first"), 2)
    before = time.time()
    client.enter("/clear", until=lambda: any(h["t"] > before for h in stage.hooks("SessionStart")))
    stage.finished(client.type("{error} second"), 1)
    client.quit()


@scenario(since=TYPED, weight=2)
def typed_commands(stage: Stage) -> None:
    """A local command, which sends no request, and a custom one."""
    client = stage.terminal()
    stage.finished(client.type("{hello} first"), 0)
    client.enter("/status", until=lambda: client.shows("Session ID"))
    press_until(client, "Escape", lambda: not client.shows("Session ID"))
    stage.finished(client.type("/x with arguments"), 0)
    client.quit()


@scenario(since=TYPED)
def typed_error(stage: Stage) -> None:
    """A turn that ends with an API error, then a normal turn."""
    client = stage.terminal()
    failed = client.type("{toolthen400} first")
    stage.api.wait_for(
        lambda e: e["event"] == "response" and e["turn"] == failed and e["http_status"] == 400, "the failure"
    )
    client.wait_shows("scripted fatal error")
    stage.finished(client.type("{hello} second"), 0)
    client.quit()


@scenario(since="2.0.64", weight=2)
def quit_with_agent(stage: Stage) -> None:
    """The user exits while an agent is running; another session follows."""
    client = stage.terminal()
    stage.finished(client.type("{bgagent} delegate"), 1)
    at_work = stage.api.wait_for(
        lambda e: e["event"] == "response" and e["script"] == "subtaskslow", "the agent's first response"
    )
    stage.wait_written(at_work["message_id"])
    stage.wait_gate("agent")
    client.quit()
    stage.open_gate("agent")
    stage.run("{hello} another session")


@scenario(since=TYPED, weight=2)
def typed_sigkill(stage: Stage) -> None:
    """A client in a terminal is killed while a tool runs; the session is continued with `--continue`."""
    client = stage.terminal()
    stage.finished(client.type("{hello} first"), 0)
    stage.wait_written(stage.api.wait_response(client.type("{slow} killed"))["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGKILL)
    stage.open_gate("slow")
    stage.run("{hello} continued", "--continue")


@scenario(since="2.0.0", weight=2)
def plan(stage: Stage) -> None:
    """A plan accepted in the same conversation."""
    _accept_plan(stage, clear=False)


@scenario(since="2.1.9", weight=2)
def plan_clear(stage: Stage) -> None:
    """A plan accepted with cleared context, if the client offers that: a new session executes it."""
    settings = json.loads(stage.home.settings.read_text())
    write_settings(stage.home, {**settings, "showClearContextOnPlanAccept": True})
    _accept_plan(stage, clear=True)


def _accept_plan(stage: Stage, *, clear: bool) -> None:
    client = stage.terminal("--permission-mode", "plan")
    turn = client.type("{plan} make a plan")
    wait_until(lambda: client.shows("Yes,") or client.shows("1. Yes"), "the plan's menu", 20)
    offered = options(client)
    stage.notes.append(f"plan options: {offered}")
    wanted = [(n, o) for n, o in offered.items() if "Yes" in o and ("clear context" in o) == clear]
    if not wanted:
        stage.notes.append("not offered by this client")
        wanted = [(n, o) for n, o in offered.items() if "Yes" in o]
    number, words = wanted[0]
    press_until(client, number, lambda: not client.shows(words))
    if "clear context" in words:
        stage.finished("plan-exec", 1)
    else:
        _allow_the_first_step(client)
        done = stage.api.wait_for(
            lambda e: e["event"] == "response" and e["turn"] == turn and "carried out" in str(e["content"]),
            "the plan's end",
            40,
        )
        stage.wait_hook("Stop", after=done["t_end"] - 0.05)
    stage.finished(client.type("{hello} after the plan"), 0)
    client.quit()


def _allow_the_first_step(client: Typed) -> None:
    """Allow the plan's first command if the client asks; the newest does not."""
    wait_until(lambda: client.shows(PROCEED) or client.shows("carried out"), "the plan's first step", 30)
    if client.shows(PROCEED):
        press_until(client, "1", lambda: not client.shows(PROCEED))


def _interrupted(client: Typed) -> bool:
    return client.shows("Interrupted") or client.shows("[Request interrupted")  # 2.0.36 shows the text for the model
