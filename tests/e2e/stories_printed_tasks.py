"""Stories of work that goes on beside the conversation: agents, and commands in the background."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .client import version_tuple
from .story import notified, scenario

if TYPE_CHECKING:
    from .stage import Stage, Streamed


@scenario()
def background_command(stage: Stage) -> None:
    """A command in the background outlives its turn; its end is a turn of its own, or told within the next."""
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
    """Let a command in the background end while the model is busy."""
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
    """An agent in the foreground, two at once, one in another, one that fails."""
    stage.run("{agent} delegate")
    stage.run("{twoagents} delegate twice")
    stage.run("{nested} delegate deeply")


@scenario()
def failing_agent(stage: Stage) -> None:
    """An agent whose requests fail."""
    stage.run("{failagent} delegate in vain")


@scenario(since="2.1.128")  # older clients wait for the next prompt before they tell of an agent's end
def background_agent(stage: Stage) -> None:
    """An agent goes on after the turn that launched it; its end is a turn of its own; then a prompt."""
    client = stage.stream()
    stage.finished(client.say("{bgagent} delegate"), 1)
    stage.finished(client.say("{hello} meanwhile"), 0)
    stage.open_gate("agent")
    notified(stage, 1)
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario(since="2.0.64")
def background_default(stage: Stage) -> None:
    """An agent launched as the client likes best, under `-p`, which waits for it."""
    stage.run("{agentdefault} delegate")


@scenario(since="2.0.64", until="2.1.63", weight=2)
def agent_resumed(stage: Stage) -> None:
    """An agent that has finished is resumed by a later call of the same turn, and then in another, which goes on."""
    client = stage.stream()
    stage.finished(client.say("{sendon} delegate"), 2)
    turn = client.say("{sendlater} once more")
    _ends_within(stage, turn)
    stage.finished(turn, 2)
    client.close()


@scenario(since="2.1.207", weight=2)
def agent_sent_on(stage: Stage) -> None:
    """A message sends an agent on that has finished; another one gets a message while it is at work."""
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
    """Let an agent end, and turnspan see that, while the turn that sent it on is at work."""
    asked = stage.api.wait_response(turn)["n"]
    stage.wait_gate("slow")
    end = stage.api.wait_for(
        lambda e: e["event"] == "response" and e["script"] == "subtasktwo" and e["step"] == 2 and e["n"] > asked,
        "the agent's last answer",
    )
    stage.wait_hook("SubagentStop", after=end["t_end"] - 0.05)
    stage.wait_for_workers()
    stage.open_gate("slow")


@scenario(since="2.1.207")
def background_nested(stage: Stage) -> None:
    """An agent in the background runs another one in the background."""
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
    """An agent starts a command in the background and ends; the command's end sends it on."""
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
