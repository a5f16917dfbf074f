"""Subagents: what each did is exported once, with its turn or when it has finished."""
import json
import shutil
from pathlib import Path

import pytest
from lives import Life
from reads import one_pass, outline, read, sent, spans
from rows import Writer, agent_writer, save_agent, tool_id

from turnspan.source.ending import PENDING, Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import SessionFile
from turnspan.transcript.carry import parse_time

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORIES = sorted(path.parent.name for path in FIXTURES.glob("*/projects"))
LIVES = {story: Life(FIXTURES / story / "projects") for story in STORIES}


def walk(path, progress=None, **ending):
    """Return a reading after its walk, and its pieces."""
    reading = Reader.for_people().read(SessionFile(path.stem, path), progress or Progress(), Ending(**ending))
    return reading, list(reading.pieces())


def background(writer, agent_id, prompt, **fields):
    """Add a call that launches an agent in the background."""
    call = writer.call("Agent", {"prompt": prompt, "subagent_type": "Explore", "run_in_background": True}, **fields)
    agent = agent_writer(writer, agent_id)
    writer.result(
        call, f"agentId: {agent_id}", outcome={"isAsync": True, "status": "async_launched", "agentId": agent_id}
    )
    return call, agent


def idle_after(writer):
    """Return an ending that finds the rows written so far idle for hours."""
    return {"now_ns": parse_time(writer.stamp()) + 3 * PENDING.patience_ns}


def test_an_agent_that_still_works_keeps_its_turn_awake(project):
    """A turn is not idle while one of its agents writes."""
    writer = Writer()
    writer.prompt("One.")
    call = writer.call("Agent", {"prompt": "Go."})
    agent = agent_writer(writer, "a1")
    agent.prompt("Go.")
    row = agent.say("Going.", after=5000)
    path = writer.save(project)
    save_agent(agent, project, "a1", {"toolUseId": tool_id(call)})
    at = parse_time(row["timestamp"])
    assert walk(path, now_ns=at + 1)[1] == []
    assert len(walk(path, now_ns=at + PENDING.patience_ns + 1)[1]) == 1


def test_a_background_agent_is_exported_when_it_has_finished(project):
    """The turn is exported at its Stop; the agent's spans join its trace when the client says that it has finished."""
    writer = Writer()
    writer.prompt("Go.")
    _, agent = background(writer, "a1", "Go far.")
    writer.say("Started.")
    agent.prompt("Go far.")
    path = writer.save(project)
    save_agent(agent, project, "a1")
    first, progress = read(path, is_stopped=True)
    assert outline(first) == ["Turn 1", "  said Agent", "    Agent", "  said Started."]
    reading, pieces = walk(path, progress, agents=("a1",))
    assert (pieces, reading.is_answer_missing, reading.has_unsealed) == ([], True, True)  # its file lags behind
    agent.say("Been far.")
    save_agent(agent, project, "a1")
    second, progress = read(path, progress, agents=("a1",))
    assert outline(second) == ["… Explore", "  said Been far."]
    assert second[0].trace_id == first[0].trace_id
    assert read(path, progress)[0] == []
    assert sent(first + second) == sent(read(path)[0])


def test_an_agent_that_is_sent_on_works_for_the_call_that_sent_it(project):
    """Each run of an agent is below the call it was run for, in the background or not, live or in one pass."""
    writer = Writer(version="2.1.100")
    writer.prompt("Go.")
    _, agent = background(writer, "a1", "Go far.")
    agent.turn("Go far.", "Been far.")
    writer.say("Started.")
    path = writer.save(project)
    save_agent(agent, project, "a1")
    first, progress = read(path, is_stopped=True, agents=("a1",))
    writer.wait(100)
    writer.prompt("Again.")
    call = writer.call("Task", {"prompt": "Go further.", "resume": "a1"})
    agent.now = writer.now
    agent.turn("Go further.", "Been further.")
    writer.wait(5)
    writer.result(call, "Been further.", outcome={"status": "completed", "agentId": "a1"})
    writer.say("It went on.")
    writer.save(project)
    save_agent(agent, project, "a1")
    second, progress = read(path, progress, is_stopped=True)
    writer.wait(100)
    agent.now = writer.now
    agent.turn("And home.", "Been home.")  # a message that no call of the session sent
    save_agent(agent, project, "a1")
    third, _ = read(path, progress)
    assert outline(first)[4:] == ["… Explore", "  said Been far."]
    assert outline(second) == [
        "Turn 2",
        "  said Task",
        "    Task",
        "      agent",
        "        said Been further.",
        "  said It went on.",
    ]
    assert outline(third) == ["… agent", "  said Been home."]
    assert third[0].trace_id == second[0].trace_id
    assert sent(first + second + third) == sent(read(path)[0])


def test_an_agent_that_a_message_sent_on_belongs_to_the_message(project):
    """SendMessage resumes an agent that had finished: what it does then, in the background, is below that call."""
    writer = Writer(version="2.1.200")
    writer.prompt("Go.")
    _, agent = background(writer, "a1", "Go far.")
    agent.turn("Go far.", "Been far.")
    writer.say("Started.")
    writer.wait(100)
    writer.prompt("Again.")
    call = writer.call("SendMessage", {"to": "a1", "message": "Go further."})
    writer.result(call, '{"success":true}', outcome={"success": True, "message": "resumed", "resumedAgentId": "a1"})
    writer.say("It continues.")
    path = writer.save(project)
    save_agent(agent, project, "a1", {"agentType": "Explore"})
    first, progress = read(path, is_stopped=True, agents=("a1",))
    agent.now = writer.now
    agent.turn("Go further.", "Been further.")
    save_agent(agent, project, "a1", {"agentType": "Explore"})
    second, _ = read(path, progress, is_stopped=True, agents=("a1",))
    assert outline(second) == ["… Explore", "  said Been further."]
    (message,) = (span for span in spans(first, "tool") if span.name == "SendMessage")
    assert second[0].spans[0].parent_id == message.span_id
    assert sent(first + second) == sent(read(path)[0])


@pytest.mark.parametrize("is_split", [False, True])
def test_warm_ups_in_the_sessions_own_file_are_counted(project, is_split):
    """2.0.25 writes them between the rows of the session: each is counted once, also if it is read in pieces."""
    writer = Writer(version="2.0.25")
    writer.turn("One.", "First.")
    before, writer.parent = writer.parent, None
    writer.prompt("Warmup", isSidechain=True)
    said = writer.say("Ready.", isSidechain=True)
    writer.parent = before
    path = writer.save(project)
    pieces, skipped, progress = [], set(), Progress()
    if is_split:
        reading, pieces = walk(path, is_stopped=True)
        skipped, progress = reading.skipped, pieces[-1].progress
    writer.turn("Two.", "Second.")
    writer.save(project)
    reading, more = walk(path, progress, is_over=True)
    assert sum(piece.counts.warmups for piece in pieces + more) == 1
    assert skipped | reading.skipped == {said["message"]["id"]}


def test_an_agent_that_a_call_launched_is_not_a_warm_up(project):
    """The prompt "Warmup" can also be the model's own: then the agent is exported below its call."""
    writer = Writer(version="2.1.325")
    writer.prompt("Get ready.")
    call = writer.call("Agent", {"prompt": "Warmup", "run_in_background": True})
    writer.result(call, "Async agent launched", outcome={"agentId": "w1", "status": "async_launched", "isAsync": True})
    writer.say("It is warming up.")
    agent = agent_writer(writer, "w1")
    agent.turn("Warmup", "I am warm.")
    save_agent(agent, project, "w1", {"toolUseId": tool_id(call)})
    reading, pieces = walk(writer.save(project), is_over=True)
    assert reading.warmups == 0
    assert "  said I am warm." in outline([t for piece in pieces for t in piece.traces])


def test_warm_ups_are_counted_and_not_exported(project):
    """2.0.x starts agents by itself: they are not exported; an agent that no call claims is a trace of its own."""
    writer = Writer(version="2.0.50")
    writer.turn("One.", "First.")
    path = writer.save(project)
    for agent_id, prompt in (("w1", "Warmup"), ("w2", "Warmup"), ("u1", "Who asked?")):
        agent = agent_writer(writer, agent_id)
        agent.turn(prompt, "Here I am.")
        save_agent(agent, project, agent_id, flat=True)
    reading, pieces = walk(path, is_over=True)
    assert reading.warmups == 2
    assert outline([t for piece in pieces for t in piece.traces]) == [
        "Turn 1",
        "  said First.",
        "agent",
        "  said Here I am.",
    ]


@pytest.mark.parametrize("is_before", [True, False])
def test_a_warm_up_without_its_prompt_is_recognised_by_its_time(project, is_before):
    """2.0.55 records no prompts of agents: one that answered before any agent was called is a warm-up."""
    writer = Writer(version="2.0.55")
    writer.prompt("Count.")
    early = agent_writer(writer, "w1")
    writer.call("Task", {"prompt": "Go far."})  # killed before there was a result
    late = agent_writer(writer, "u1")
    agent = early if is_before else late
    agent.wait(0.5 if is_before else 5)
    agent.say("Ready.", after=0)
    save_agent(agent, project, "a1", flat=True)
    reading, pieces = walk(writer.save(project), is_over=True)
    found = outline([t for piece in pieces for t in piece.traces])
    assert (reading.warmups, found[2:]) == (
        (1, ["    Task"]) if is_before else (0, ["    Task", "agent", "  said Ready."])
    )


def test_each_run_of_an_unclaimed_agent_is_a_trace_with_one_root(project):
    """No call links its second run either: in one trace both runs would be the root."""
    writer = Writer()
    writer.turn("One.", "First.")
    agent = agent_writer(writer, "u1")
    agent.turn("Who asked?", "Here I am.")
    agent.turn("And now?", "Still here.")
    save_agent(agent, project, "u1")
    traces = read(writer.save(project), is_over=True)[0]
    assert [sum(span.parent_id is None for span in trace.spans) for trace in traces] == [1, 1, 1]
    assert len({trace.trace_id for trace in traces}) == 3


def test_an_agent_whose_file_appears_later_is_exported_once(tmp_path):
    """A subagent that was exported from progress rows gains a file: only what the rows did not have is exported."""
    origin = FIXTURES / "agents-progress" / "projects"
    complete = sent(one_pass(origin))
    projects = tmp_path / "projects"
    shutil.copytree(origin, projects)
    (path,) = projects.glob("*/*.jsonl")
    (file,) = projects.rglob("agent-*.jsonl")
    data = file.read_bytes()
    file.unlink()
    traces, progress = read(path)
    assert sent(traces).keys() == complete.keys()
    file.write_bytes(data)
    assert read(path, progress)[0] == []
    more = json.loads(data.splitlines()[-2])
    more["uuid"], more["message"]["id"] = "88888888-0000-4000-8000-000000000001", "msg_later"
    more["message"]["content"] = [{"type": "text", "text": "Later."}]
    file.write_bytes(data + json.dumps(more).encode() + b"\n")
    (late,), _ = read(path, progress)
    assert outline([late]) == ["… said Later."]
    assert late.trace_id == traces[0].trace_id


@pytest.mark.parametrize("version", ["1.0.72", "2.0.0"])
@pytest.mark.parametrize("cut", range(2, 9))
def test_an_agent_inside_the_file_that_continues_loses_nothing(project, version, cut):
    """A turn is exported while its agent waits for permission overnight; everything after is below the same agent."""
    writer = Writer(version=version)
    writer.prompt("Count the ends.")
    call = writer.call("Task", {"prompt": "Count them.", "subagent_type": "Explore"}, message="msg_main")
    main = writer.parent
    side = {"isSidechain": True}
    writer.parent = None
    writer.prompt("Count them.", **side)
    step = writer.call("Bash", {"command": "wc"}, message="msg_side1", **side)
    writer.result(step, "480", **side)
    again = writer.call("Read", {"file_path": "/x"}, message="msg_side2", **side)
    writer.result(again, "x", **side)
    writer.say("480 ends.", message="msg_side3", **side)
    writer.parent = main
    writer.result(call, "480 ends.")
    writer.say("There are 480 ends.", message="msg_end")
    everything, writer.rows = writer.rows, writer.rows[:cut]
    path = writer.save(project)
    traces, progress = read(path, **idle_after(writer))
    assert spans(traces, "turn")
    writer.rows = everything
    traces += read(writer.save(project), progress)[0]
    found = [span.facts["response_id"] for span in spans(traces, "generation")]
    assert sorted(found) == ["msg_end", "msg_main", "msg_side1", "msg_side2", "msg_side3"]
    known = {span.span_id: span for span in spans(traces)}
    assert all(span.parent_id in known for span in spans(traces) if span.parent_id is not None)
    (task,) = (span for span in spans(traces, "tool") if span.name == "Task")
    for agent in spans(traces, "agent"):
        assert agent.parent_id == task.span_id
    for span in spans(traces, "generation"):
        if span.facts["response_id"].startswith("msg_side"):
            assert known[span.parent_id].kind == "agent"
    (result,) = (span for span in spans(traces, "event") if span.name == "late result" and span.output == "480 ends.")
    assert result.parent_id == task.span_id
