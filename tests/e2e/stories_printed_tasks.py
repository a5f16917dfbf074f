"""Stories of agents and background commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .client import version_tuple
from .story import notified, scenario

if TYPE_CHECKING:
    from .stage import Stage, Streamed


@scenario()
def background_command(stage: Stage) -> None:
    """A background command outlives its turn; its notification is a separate turn, or part of the next one."""
    client = stage.stream()
    stage.finished(client.say("{background} begin"), 1)
    stage.wait_gate("background")
    stage.finished(client.say("{hello} meanwhile"), 0)
    stage.open_gate("background")
    if version_tuple(stage.version) >= (2, 1, 128):
        notified(stage, 1)
    stage.finished(client.say("{output} read it"), 1)
    if version_tuple(stage.version) >= (2, 1, 128):
        _ends_meanwhile(stage, client)
    client.close()


def _ends_meanwhile(stage: Stage, client: Streamed) -> None:
    """Let a background command end while a turn is running."""
    turn = client.say("{backgroundtwo} begin")
    stage.finished(turn, 1)
    busy = client.say("{slow} work")
    stage.api.wait_response(busy)
    stage.wait_gate("slow")
    stage.open_gate("backgroundtwo")
    stage.wait_written(f"<tool-use-id>{stage.api.wait_response(turn)['tool_uses'][0]['id']}")
    stage.open_gate("slow")
    stage.finished(busy, 1)
    stage.finished(client.say("{hello} afterwards"), 0)


@scenario(weight=3)
def agents(stage: Stage) -> None:
    """An agent in the foreground, two parallel agents, a nested agent."""
    stage.run("{agent} delegate")
    stage.run("{twoagents} delegate twice")
    stage.run("{nested} delegate deeply")


@scenario()
def failing_agent(stage: Stage) -> None:
    """An agent whose requests fail."""
    stage.run("{failagent} delegate in vain")


@scenario(since="2.1.128")  # older clients report the end of an agent only with the next prompt
def background_agent(stage: Stage) -> None:
    """An agent outlives the turn that launched it; its notification is a separate turn; then a prompt."""
    client = stage.stream()
    stage.finished(client.say("{bgagent} delegate"), 1)
    stage.finished(client.say("{hello} meanwhile"), 0)
    stage.open_gate("agent")
    notified(stage, 1)
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario(since="2.0.64")
def background_default(stage: Stage) -> None:
    """An agent launched in the client's default mode, with `-p`, which waits for it."""
    stage.run("{agentdefault} delegate")


@scenario(since="2.0.64", until="2.1.63", weight=2)
def agent_resumed(stage: Stage) -> None:
    """A finished agent is resumed by a later call of the same turn, then by another turn while that is running."""
    client = stage.stream()
    stage.finished(client.say("{sendon} delegate"), 2)
    turn = client.say("{sendlater} once more")
    _ends_within(stage, turn)
    stage.finished(turn, 2)
    client.close()


@scenario(since="2.1.207", weight=2)
def agent_sent_on(stage: Stage) -> None:
    """A finished agent continues after a message; another one gets a message while it is running."""
    client = stage.stream()
    stage.finished(client.say("{sendon} delegate"), 2)
    notified(stage, 1)
    turn = client.say("{sendlater} once more")
    _ends_within(stage, turn)
    stage.finished(turn, 2)
    stage.finished(client.say("{bgagent} delegate again"), 1)
    stage.wait_gate("agent")
    stage.finished(client.say("{sayto} one more thing"), 1)
    stage.open_gate("agent")
    notified(stage, 2)
    client.close()


def _ends_within(stage: Stage, turn: str) -> None:
    """Let an agent end, and turnspan handle that event, while the turn that continued it is running."""
    first = stage.api.wait_response(turn)["n"]
    stage.wait_gate("slow")
    end = stage.api.wait_for(
        lambda e: e["event"] == "response" and e["script"] == "subtasktwo" and e["step"] == 2 and e["n"] > first,
        "the agent's last response",
    )
    stage.wait_hook("SubagentStop", after=end["t_end"] - 0.05)
    stage.wait_for_workers()
    stage.open_gate("slow")


@scenario(since="2.1.207")
def background_nested(stage: Stage) -> None:
    """A background agent launches another background agent."""
    client = stage.stream()
    stage.finished(client.say("{bgnested} delegate"), 1)
    stage.wait_gate("agent")
    stage.finished(client.say("{hello} meanwhile"), 0)
    stage.open_gate("agent")
    notified(stage, 2)
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario(since="2.1.325")
def agent_with_command(stage: Stage) -> None:
    """An agent starts a background command and ends; it continues when the command ends."""
    client = stage.stream()
    stage.finished(client.say("{agentcommand} delegate"), 1)
    notified(stage, 1)
    stage.open_gate("background")
    notified(stage, 3)  # the agent, then the conversation
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario(since="2.1.325")
def fork_agent(stage: Stage) -> None:
    """An agent that inherits the conversation."""
    client = stage.stream()
    stage.finished(client.say("{tools} first"), 2)
    stage.finished(client.say("{forkagent} delegate to yourself"), 1)
    notified(stage, 1)
    client.close()
