import json
import os
import random
import shutil
import tracemalloc
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from lives import Life
from only_posix import make_fifo
from reads import one_pass, outline, read, sent, spans
from rows import Writer, agent_writer, save_agent, tool_id

from turnspan.errors import TranscriptError
from turnspan.source.progress import IDLE_NS, IDLE_WHILE_PENDING_NS, Ending, Progress
from turnspan.source.reader import PIECE_SPANS, Reading
from turnspan.source.sessions import SessionFile
from turnspan.transcript.resume import words_digest
from turnspan.transcript.times import parse_time

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORIES = sorted(path.parent.name for path in FIXTURES.glob("*/projects"))
LIVES = {story: Life(FIXTURES / story / "projects") for story in STORIES}


@pytest.fixture
def project(tmp_path):
    """A project directory below a projects directory."""
    return tmp_path / "projects" / "-home-ada-loom"


def walk(path, progress=None, **ending):
    """Return a reading after its walk, and its pieces."""
    reading = Reading(SessionFile(path.stem, path), progress or Progress(), Ending(**ending))
    return reading, list(reading.pieces())


# ---- events say when, never what


@given(data=st.data())
def test_any_cuts_equal_one_pass(data, tmp_path_factory):
    """Read at any moments, stopped wherever a turn had ended, each story gives the spans of one pass, byte for byte."""
    story = data.draw(st.sampled_from(STORIES))
    life = LIVES[story]
    moments = data.draw(st.lists(st.integers(0, len(life.steps)), max_size=8))
    directory = tmp_path_factory.mktemp("cuts", numbered=True) / "projects"
    assert sent(life.lived(directory, moments)) == sent(one_pass(life.projects))
    shutil.rmtree(directory.parent)


@pytest.mark.parametrize("story", STORIES)
def test_reading_row_by_row_equals_one_pass(story, tmp_path):
    """Read after every single row, each story gives the spans of one pass, once, byte for byte."""
    life = LIVES[story]
    assert sent(life.lived(tmp_path / "projects", range(len(life.steps)))) == sent(one_pass(life.projects))


def answer_some_call(writer, number):
    """Add a result for an earlier call, which may have one already."""
    calls = [
        row for row in writer.rows if row["type"] == "assistant" and row["message"]["content"][0]["type"] == "tool_use"
    ]
    if calls:
        writer.result(calls[number % len(calls)], f"late {number}")


STEPS = {
    "prompt": lambda w, n: w.prompt(f"prompt {n}"),
    "notification": lambda w, n: w.prompt(
        f"<task-notification>{n}</task-notification>", origin={"kind": "task-notification"}
    ),
    "command": lambda w, n: w.prompt(f"<command-name>/c{n}</command-name>"),
    "bash": lambda w, n: w.prompt(f"<bash-input>ls {n}</bash-input>"),
    "local": lambda w, n: w.prompt(f"<local-command-stdout>{n}</local-command-stdout>"),
    "meta": lambda w, n: w.prompt(f"meta {n}", isMeta=True),
    "summary": lambda w, n: w.prompt(f"summary {n}", isCompactSummary=True),
    "say": lambda w, n: w.say(f"answer {n}"),
    "think": lambda w, n: w.say([{"type": "thinking", "thinking": f"hm {n}"}]),
    "tool": lambda w, n: w.result(w.call("Bash", {"n": n}), f"done {n}", is_error=n % 3 == 0),
    "pending": lambda w, n: w.call("Bash", {"n": n}),
    "late": answer_some_call,
    "failed": lambda w, n: w.say(f"API Error {n}", model="<synthetic>", isApiErrorMessage=True),
    "feedback": lambda w, n: w.prompt(f"Stop hook feedback:\n{n}", isMeta=True),
    "interrupt": lambda w, _: w.prompt([{"type": "text", "text": "[Request interrupted by user]"}]),
    "stopped": lambda w, _: w.stopped(),
    "compacted": lambda w, _: w.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto"}),
    "retry": lambda w, n: w.row("system", subtype="api_error", retryAttempt=n),
    "title": lambda w, n: w.bare("ai-title", aiTitle=f"title {n}"),
    "topic": lambda w, n: w.bare(
        "summary", summary=f"topic {n}", leafUuid=w.rows[n * 7 % len(w.rows)].get("uuid") if w.rows and n % 3 else "x"
    ),
    "tag": lambda w, n: w.bare("tag", tag=f"tag {n}"),
    "mode": lambda w, n: w.bare("permission-mode", permissionMode=f"mode {n}"),
    "enqueue": lambda w, n: w.bare("queue-operation", operation="enqueue", content=f"words {n}"),
    "dequeue": lambda w, _: w.bare("queue-operation", operation="dequeue"),
    "remove": lambda w, _: w.bare("queue-operation", operation="remove"),
    "steer": lambda w, n: w.row("attachment", attachment={"type": "queued_command", "prompt": f"words {n}"}),
    "task": lambda w, n: w.row(
        "attachment", attachment={"type": "queued_command", "prompt": f"<task-notification>{n}</task-notification>"}
    ),
    "request": lambda w, n: w.bare("api-request", id=f"r{n}", timestamp=w.stamp()),
    "rewind": lambda w, n: setattr(w, "parent", w.rows[n % len(w.rows)].get("uuid") if w.rows else None),
}


@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=25),
    version=st.sampled_from(["1.0.80", "2.0.76", "2.1.29", "2.1.150", "2.1.325"]),
    seed=st.integers(0, 1000),
)
def test_any_cuts_of_any_session_equal_one_pass(steps, version, seed, tmp_path_factory):
    """Whatever a session holds, in whatever order, reading it in pieces gives what one pass gives."""
    writer = Writer(version=version)
    for number, step in enumerate(steps):
        STEPS[step](writer, number)
    assume(writer.rows)
    directory = tmp_path_factory.mktemp("any", numbered=True)
    writer.save(directory / "complete" / "-p")
    life = Life(directory / "complete")
    moments = random.Random(seed).sample(range(len(life.steps) + 1), min(6, len(life.steps)))
    assert sent(life.lived(directory / "lived", moments)) == sent(one_pass(directory / "complete"))
    shutil.rmtree(directory)


@given(story=st.sampled_from(STORIES), at=st.floats(0, 1), lost=st.integers(0, 400))
def test_a_span_once_final_never_changes(story, at, lost, tmp_path_factory):
    """A span exported from an incomplete file is the same when the file is complete."""
    life = LIVES[story]
    count = int(at * len(life.steps))
    cut = life.sizes(count)
    writing = life.steps[count - 1][0]  # what it copied from another file was complete before
    if writing in cut and writing in life.answered:
        cut[writing] = max(0, cut[writing] - lost)
    directory = tmp_path_factory.mktemp("grows", numbered=True)
    life.put(directory, cut)
    early = sent([t for name in life.answered if name in cut for t in read(directory / name, is_stopped=False)[0]])
    complete = sent(one_pass(life.projects))
    assert early.items() <= complete.items()
    shutil.rmtree(directory)


@given(story=st.sampled_from(STORIES), seed=st.integers(0, 1000), name=st.sampled_from(["x", "-other-place", "ü ber"]))
def test_only_content_makes_ids_and_times(story, seed, name, tmp_path_factory):
    """Another directory, another machine, other file times: the same transcript gives the same bytes."""
    projects = tmp_path_factory.mktemp("moved", numbered=True) / "projects"
    shutil.copytree(LIVES[story].projects, projects)
    for project in list(projects.iterdir()):
        project.rename(projects / name)
    chance = random.Random(seed)
    for path in projects.rglob("*"):
        os.utime(path, (chance.random() * 4e9,) * 2)
    assert sent(one_pass(projects)) == sent(one_pass(LIVES[story].projects))
    shutil.rmtree(projects.parent)


@given(data=st.data())
def test_any_transcript_is_handled(data, tmp_path_factory):
    """Lines that are torn, glued, doubled, swapped or lost raise nothing, repeat no span, and orphan none."""
    life = LIVES[data.draw(st.sampled_from(STORIES))]
    directory = tmp_path_factory.mktemp("hurt", numbered=True) / "projects"
    life.put(directory, life.sizes(len(life.steps)))
    for name in life.files:
        if name.suffix != ".jsonl":
            continue
        lines = life.files[name].splitlines(keepends=True)
        for _ in range(data.draw(st.integers(0, 3))):
            at, to = (data.draw(st.integers(0, len(lines) - 1)) for _ in range(2))
            cut = data.draw(st.integers(0, len(lines[at])))
            line, other = lines[at], lines[to]
            torn = [line[:cut], line[:cut] + other, line[:cut] + b"\xff" + line[cut:]]
            lines[at] = data.draw(st.sampled_from([b"", line * 2, other, line.rstrip(), b"\0" * 9 + line, *torn]))
        (directory / name).write_bytes(b"".join(lines))
    seen, parents = set(), set()  # of all sessions: a copy that lost its prompt continues a turn of its origin
    for session in life.answered:
        own = set()
        for trace in read(directory / session)[0]:
            for span in trace.spans:
                assert (trace.trace_id, span.span_id) not in own
                assert span.start_ns <= span.end_ns
                own.add((trace.trace_id, span.span_id))
                parents |= {(trace.trace_id, span.parent_id)} if span.parent_id is not None else set()
        seen |= own
    assert parents <= seen
    shutil.rmtree(directory.parent)


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


# ---- when a turn is exported


def test_a_turn_is_exported_when_its_last_message_is_there(project):
    """A Stop names the last message; until the file contains it, the turn waits, and the answer is missing."""
    writer = Writer()
    writer.prompt("One.")
    path = writer.save(project)
    reading, pieces = walk(path, is_stopped=True, last_words=words_digest("Done."))
    assert (pieces, reading.is_answer_missing, reading.has_unsealed) == ([], True, True)
    writer.say("Not yet.")
    writer.save(project)
    assert walk(path, is_stopped=True, last_words=words_digest("Done."))[1] == []
    writer.say([{"type": "text", "text": "  Done.\n"}])
    writer.save(project)
    reading, pieces = walk(path, is_stopped=True, last_words=words_digest("Done."))
    assert outline(pieces[0].traces) == ["Turn 1", "  said Not yet.", "  said   Done.\n"]
    assert not reading.is_answer_missing
    assert not reading.has_unsealed


def test_a_turn_that_waits_for_a_tool_is_not_exported(project):
    """A turn with a pending call is not exported at a Stop, but when the session is over."""
    writer = Writer()
    writer.prompt("One.")
    writer.call("Bash", {})
    path = writer.save(project)
    assert walk(path, is_stopped=True)[1] == []
    ((trace,),) = [piece.traces for piece in walk(path, is_over=True)[1]]
    assert trace.spans[0].facts["incomplete"] is True
    assert trace.spans[2].facts["incomplete"] is True


@pytest.mark.parametrize(("last", "patience"), [("say", IDLE_NS), ("call", IDLE_WHILE_PENDING_NS)])
def test_an_idle_turn_is_exported(project, last, patience):
    """Ten idle minutes end a turn, an hour if a call is pending, by the transcript's own times."""
    writer = Writer()
    writer.prompt("One.")
    row = writer.say("Done.") if last == "say" else writer.call("Bash", {})
    path = writer.save(project)
    at = parse_time(row["timestamp"])
    assert walk(path, now_ns=at + patience)[1] == []
    assert len(walk(path, now_ns=at + patience + 1)[1]) == 1


def test_a_session_with_an_incomplete_line_is_not_idle(project):
    """The client may be writing the rest of the line: it has as much time as with a pending call."""
    writer = Writer()
    asked = writer.prompt("Anyone?")
    path = writer.save(project)
    began = parse_time(asked["timestamp"])
    with path.open("ab") as file:
        file.write(b'{"type":"assistant","mess')
    reading, pieces = walk(path, now_ns=began + IDLE_NS + 1)
    assert (pieces, reading.has_unsealed) == ([], True)
    assert outline(read(path, now_ns=began + IDLE_WHILE_PENDING_NS + 1)[0]) == ["Turn 1"]


def test_an_answer_that_comes_after_all_starts_at_its_prompt(project):
    """A response after an idle turn was exported has the same bytes as in one pass."""
    writer = Writer()
    asked = writer.prompt("Anyone?")
    path = writer.save(project)
    late = parse_time(asked["timestamp"]) + IDLE_NS + 1
    first, progress = read(path, now_ns=late)
    assert outline(first) == ["Turn 1"]
    call = writer.call("Bash", {"command": "true"})
    path = writer.save(project)
    second, progress = read(path, progress, now_ns=late + 2 * IDLE_WHILE_PENDING_NS)
    writer.result(call, "ok")
    writer.say("Here.")
    third, _ = read(writer.save(project), progress, is_stopped=True)
    once = {span.span_id: (span.start_ns, span.end_ns) for span in spans(read(path)[0], "generation")}
    live = {span.span_id: (span.start_ns, span.end_ns) for span in spans(first + second + third, "generation")}
    assert live == once


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
    assert len(walk(path, now_ns=at + IDLE_WHILE_PENDING_NS + 1)[1]) == 1


def test_a_later_prompt_is_enough(project):
    """A turn that is followed by another one has ended, without any event."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.prompt("Two.")
    traces, progress = read(writer.save(project), is_stopped=False)
    assert outline(traces) == ["Turn 1", "  said First."]
    assert read(project / f"{writer.session}.jsonl", progress, is_stopped=False)[0] == []


def test_a_rewritten_file_is_read_again(project):
    """A file that was cut or changed before the stored position is read from its beginning, and reported."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.turn("Two.", "Second.")
    path = writer.save(project)
    before, progress = read(path)
    writer.rows = writer.rows[:2]
    writer.save(project)
    reading, pieces = walk(path, progress, is_over=True)
    assert reading.is_rewritten
    assert sent(pieces[0].traces).items() <= sent(before).items()


def test_progress_can_be_stored():
    """What is remembered between two readings can be stored and read back without loss."""
    for story in STORIES:
        for session in LIVES[story].answered:
            path = LIVES[story].projects / session
            for piece in walk(path, is_over=True)[1]:
                stored = msgspec.json.encode(piece.progress)
                assert msgspec.json.decode(stored, type=Progress) == piece.progress
    assert msgspec.json.decode(b"{}", type=Progress) == Progress()


# ---- lines


def test_a_line_of_a_hundred_megabytes_is_skipped(project):
    """A line that is too long is counted; the turns around it are exported, in little memory."""
    writer = Writer()
    writer.turn("One.", "First.")
    path = writer.save(project)
    writer.turn("Two.", "Second.")
    with path.open("ab") as file:
        file.truncate(path.stat().st_size + 100 * 1024 * 1024)
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + b"".join(writer.lines()[2:]))
    tracemalloc.start()
    reading, pieces = walk(path, is_over=True)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert reading.anomalies.oversized == 1
    assert outline([t for piece in pieces for t in piece.traces]) == [
        "Turn 1",
        "  said First.",
        "Turn 2",
        "  said Second.",
    ]
    assert peak < 60 * 1024 * 1024


def test_a_turn_may_end_inside_a_line(project):
    """A prompt that is glued to the answer before it is not lost when that answer was exported."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.turn("Two.", "Second.")
    lines = writer.lines()
    path = writer.save(project)
    path.write_bytes(lines[0] + lines[1].rstrip() + lines[2])
    first, progress = read(path, is_stopped=False)
    path.write_bytes(lines[0] + lines[1].rstrip() + lines[2] + lines[3])
    second, _ = read(path, progress)
    assert outline(first + second) == ["Turn 1", "  said First.", "Turn 2", "  said Second."]
    assert sent(first + second) == sent(read(path)[0])


def test_a_last_line_without_a_newline_counts_when_it_is_complete(project):
    """A restored file may end without a newline: its last row counts. Half a row does not, until it is complete."""
    writer = Writer()
    writer.turn("One.", "First.")
    lines = writer.lines()
    path = writer.save(project)
    path.write_bytes(lines[0] + lines[1][:-30])
    assert outline(read(path)[0]) == ["Turn 1"]
    path.write_bytes(lines[0] + lines[1].rstrip())
    first, progress = read(path)
    assert outline(first) == ["Turn 1", "  said First."]
    writer.turn("Two.", "Second.")
    for between in (b"", b"\n"):
        path.write_bytes(lines[0] + lines[1].rstrip() + between + b"".join(writer.lines()[2:]))
        assert outline(read(path, progress)[0]) == ["Turn 2", "  said Second."]


# ---- agents


def background(writer, agent_id, prompt, **fields):
    """Add a call that launches an agent in the background."""
    call = writer.call("Agent", {"prompt": prompt, "subagent_type": "Explore", "run_in_background": True}, **fields)
    agent = agent_writer(writer, agent_id)
    writer.result(
        call, f"agentId: {agent_id}", outcome={"isAsync": True, "status": "async_launched", "agentId": agent_id}
    )
    return call, agent


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
    reading, pieces = walk(path, progress, finished_agents=("a1",))
    assert (pieces, reading.is_answer_missing, reading.has_unsealed) == ([], True, True)  # its file lags behind
    agent.say("Been far.")
    save_agent(agent, project, "a1")
    second, progress = read(path, progress, finished_agents=("a1",))
    assert outline(second) == ["… Explore", "  said Been far."]
    assert second[0].trace_id == first[0].trace_id
    assert read(path, progress)[0] == []
    assert sent(first + second) == sent(read(path)[0])


def test_a_short_session_is_one_piece(project):
    """A session of a few turns and an agent is one piece, one commit; a long one is several."""
    writer = Writer()
    writer.prompt("Look far.")
    _, agent = background(writer, "a1", "Go far.")
    writer.say("Sent.")
    agent.say("Far.")
    save_agent(agent, project, "a1", {"agentType": "Explore"})
    writer.turn("And?", "It is far.")
    reading, pieces = walk(writer.save(project), is_over=True)
    assert [(piece.turns, len(piece.traces)) for piece in pieces] == [(2, 3)]
    assert reading.is_finished
    for number in range(PIECE_SPANS):
        writer.turn(f"{number}?", "Yes.")
    _, pieces = walk(writer.save(project), is_over=True)
    sizes = [sum(len(trace.spans) for trace in piece.traces) for piece in pieces]
    assert [size >= PIECE_SPANS for size in sizes] == [True, True, False]
    assert (max(sizes) < 2 * PIECE_SPANS, sum(piece.turns for piece in pieces)) == (True, PIECE_SPANS + 2)


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


def test_an_agent_that_is_sent_on_works_for_the_call_that_sent_it(project):
    """Each run of an agent is below the call it was run for, in the background or not, live or in one pass."""
    writer = Writer(version="2.1.100")
    writer.prompt("Go.")
    _, agent = background(writer, "a1", "Go far.")
    agent.turn("Go far.", "Been far.")
    writer.say("Started.")
    path = writer.save(project)
    save_agent(agent, project, "a1")
    first, progress = read(path, is_stopped=True, finished_agents=("a1",))
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
    first, progress = read(path, is_stopped=True, finished_agents=("a1",))
    agent.now = writer.now
    agent.turn("Go further.", "Been further.")
    save_agent(agent, project, "a1", {"agentType": "Explore"})
    second, _ = read(path, progress, is_stopped=True, finished_agents=("a1",))
    assert outline(second) == ["… Explore", "  said Been further."]
    (message,) = (span for span in spans(first, "tool") if span.name == "SendMessage")
    assert second[0].spans[0].parent_id == message.span_id
    assert sent(first + second) == sent(read(path)[0])


def test_an_agent_with_a_label_can_be_launched_by_a_call(project):
    """An agent with a dash in its id still belongs to the call that its meta.json names."""
    writer = Writer()
    writer.prompt("Go.")
    call = writer.call("Agent", {"prompt": "Review."})
    agent = agent_writer(writer, "areviewer-77")
    agent.turn("Review.", "Reviewed.")
    path = writer.save(project)
    save_agent(agent, project, "areviewer-77", {"agentType": "reviewer", "toolUseId": tool_id(call), "finished": True})
    first, progress = read(path, is_stopped=False, finished_agents=("areviewer-77",))
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
    assert sum(piece.warmups for piece in pieces + more) == 1
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


# ---- files that are not transcripts


@pytest.mark.parametrize("make", ["missing", "directory", "fifo", "device"])
def test_a_path_that_is_not_a_file_gives_a_clear_message(tmp_path, make):
    """A path that is missing, a directory, a pipe or a device gives one clear message."""
    path = tmp_path / "session.jsonl"
    {
        "missing": lambda: None,
        "directory": path.mkdir,
        "fifo": lambda: make_fifo(path),
        "device": lambda: path.symlink_to("/dev/null"),
    }[make]()
    with pytest.raises(TranscriptError, match=r"session\.jsonl"):
        read(path)


@pytest.mark.parametrize(
    "content", [b"", b"\n\n", b"\x7fELF\x01\0\0\n" * 999, b"\xff\xfe\n" * 99, b"hello\nworld\n", b"[1]\n{}\n"]
)
def test_a_file_without_turns_gives_nothing(tmp_path, content):
    """An empty, a binary or a foreign file has no turns; nothing is raised, and anomalies are counted."""
    path = tmp_path / "session.jsonl"
    path.write_bytes(content)
    reading, pieces = walk(path, is_over=True)
    assert pieces == []
    anomalies = reading.anomalies
    assert bool(content.strip()) == bool(anomalies.unreadable or anomalies.misshapen or anomalies.unknown)


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


# ---- turns that continue after they were exported


def idle_after(writer):
    """Return an ending that finds the rows written so far idle for hours."""
    return {"now_ns": parse_time(writer.stamp()) + 3 * IDLE_WHILE_PENDING_NS}


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


def test_a_response_that_is_cut_in_two_keeps_its_usage_once(project):
    """The first lines were exported with their usage: the later ones are a generation without any."""
    writer = Writer(version="2.0.76")
    writer.prompt("Wind it.")
    writer.say("Winding.", message="msg_cut")
    traces, progress = read(writer.save(project), **idle_after(writer))
    call = writer.call("Bash", {"command": "wind"}, message="msg_cut")
    writer.result(call, "wound")
    writer.say("Wound.", message="msg_end")
    traces += read(writer.save(project), progress)[0]
    cut = [span for span in spans(traces, "generation") if span.facts["response_id"] == "msg_cut"]
    assert [span.usage is not None for span in cut] == [True, False]
    assert [span.name for span in spans(traces, "tool")] == ["Bash"]
