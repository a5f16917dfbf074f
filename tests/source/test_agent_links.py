"""Which call launched a subagent: however the client says so, its spans are below that call."""
from pathlib import Path

import pytest
from lives import Life
from reads import outline, read, sent, spans
from rows import Writer, agent_writer, save_agent, tool_id

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORIES = sorted(path.parent.name for path in FIXTURES.glob("*/projects"))
LIVES = {story: Life(FIXTURES / story / "projects") for story in STORIES}


def background(writer, agent_id, prompt, **fields):
    """Add a call that launches an agent in the background."""
    call = writer.call("Agent", {"prompt": prompt, "subagent_type": "Explore", "run_in_background": True}, **fields)
    agent = agent_writer(writer, agent_id)
    writer.result(
        call, f"agentId: {agent_id}", outcome={"isAsync": True, "status": "async_launched", "agentId": agent_id}
    )
    return call, agent


def test_an_agent_whose_file_appears_late_is_below_its_call(project):
    """A background agent's file may appear a moment after its turn was exported (2.1.152)."""
    writer = Writer(version="2.1.152")
    writer.prompt("Delegate.")
    call = writer.call("Agent", {"prompt": "Count.", "run_in_background": True})
    launched = {"isAsync": True, "status": "async_launched", "agentId": "a5b1f1"}
    writer.result(call, "Async agent launched successfully.\nagentId: a5b1f1", outcome=launched)
    writer.say("Started.")
    agent = agent_writer(writer, "a5b1f1")
    agent.turn("Count.", "One, two.")
    early, progress = read(writer.save(project), is_stopped=True)
    save_agent(agent, project, "a5b1f1", {"agentType": "general-purpose", "toolUseId": tool_id(call)})
    late, _ = read(writer.save(project), progress)
    assert sent([*early, *late]) == sent(read(writer.save(project))[0])
    assert outline(late) == ["… general-purpose", "  said One, two."]


@pytest.mark.parametrize("child", ["a0", "z9"])
def test_what_a_background_agent_launches_is_below_it(project, child):
    """An agent of a background agent belongs below the call that launched it, whatever their files are called."""
    writer = Writer()
    writer.prompt("Go.")
    _, agent = background(writer, "m5", "Go far.")
    writer.say("Started.")
    agent.prompt("Go far.")
    call = agent.call("Agent", {"prompt": "Help.", "subagent_type": "Plan"})
    helper = agent_writer(agent, child)
    helper.turn("Help.", "Helped.")
    agent.wait(5)
    agent.result(call, "Helped.", outcome={"status": "completed", "agentId": child})
    agent.say("Been far.")
    path = writer.save(project)
    save_agent(agent, project, "m5")
    save_agent(helper, project, child)
    assert outline(read(path)[0])[4:] == [
        "… Explore",
        "  said Agent",
        "    Agent",
        "      Plan",
        "        said Helped.",
        "  said Been far.",
    ]


def test_an_agent_with_a_label_can_be_launched_by_a_call(project):
    """An agent with a dash in its id still belongs to the call that its meta.json names."""
    writer = Writer()
    writer.prompt("Go.")
    call = writer.call("Agent", {"prompt": "Review."})
    agent = agent_writer(writer, "areviewer-77")
    agent.turn("Review.", "Reviewed.")
    path = writer.save(project)
    save_agent(agent, project, "areviewer-77", {"agentType": "reviewer", "toolUseId": tool_id(call), "finished": True})
    first, progress = read(path, is_stopped=False, agents=("areviewer-77",))
    assert first == []
    writer.wait(9)
    writer.result(call, "Reviewed.")
    writer.say("Good.")
    writer.save(project)
    assert outline(read(path, progress)[0])[:4] == ["Turn 1", "  said Agent", "    Agent", "      reviewer"]


def test_a_printed_agent_id_launches_nothing(project):
    """A command that prints the id of a running agent does not end it, nor move it."""
    writer = Writer()
    writer.prompt("Go.")
    _, agent = background(writer, "a1", "Go far.")
    agent.prompt("Go far.")
    writer.result(writer.call("Bash", {"command": "ps"}), "agentId: a1")
    writer.say("It runs.")
    path = writer.save(project)
    save_agent(agent, project, "a1")
    first, progress = read(path, is_stopped=True)
    assert "agent" not in {span.kind for span in spans(first)}
    agent.say("Been far.")
    save_agent(agent, project, "a1")
    assert outline(read(path, progress)[0]) == ["… Explore", "  said Been far."]
