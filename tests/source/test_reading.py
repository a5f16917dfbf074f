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
from rows import Writer, agent_writer, save_agent

from turnspan.errors import TranscriptError
from turnspan.source.ending import IDLE, PENDING, Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import PIECE_SPANS, Reader
from turnspan.source.sessions import SessionFile
from turnspan.transcript.carry import parse_time, words_digest

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures"
STORIES = sorted(path.parent.name for path in FIXTURES.glob("*/projects"))
LIVES = {story: Life(FIXTURES / story / "projects") for story in STORIES}


def walk(path, progress=None, **ending):
    """Return a reading after its walk, and its pieces."""
    reading = Reader.for_people().read(SessionFile(path.stem, path), progress or Progress(), Ending(**ending))
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


# ---- when a turn is exported


def test_a_turn_is_exported_when_its_last_message_is_there(project):
    """A Stop names the last message; until the file contains it, the turn waits, and the answer is missing."""
    writer = Writer()
    writer.prompt("One.")
    path = writer.save(project)
    reading, pieces = walk(path, is_stopped=True, words=words_digest("Done."))
    assert (pieces, reading.is_answer_missing, reading.has_unsealed) == ([], True, True)
    writer.say("Not yet.")
    writer.save(project)
    assert walk(path, is_stopped=True, words=words_digest("Done."))[1] == []
    writer.say([{"type": "text", "text": "  Done.\n"}])
    writer.save(project)
    reading, pieces = walk(path, is_stopped=True, words=words_digest("Done."))
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


@pytest.mark.parametrize(("last", "patience"), [("say", IDLE.patience_ns), ("call", PENDING.patience_ns)])
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
    reading, pieces = walk(path, now_ns=began + IDLE.patience_ns + 1)
    assert (pieces, reading.has_unsealed) == ([], True)
    assert outline(read(path, now_ns=began + PENDING.patience_ns + 1)[0]) == ["Turn 1"]


def test_an_answer_that_comes_after_all_starts_at_its_prompt(project):
    """A response after an idle turn was exported has the same bytes as in one pass."""
    writer = Writer()
    asked = writer.prompt("Anyone?")
    path = writer.save(project)
    late = parse_time(asked["timestamp"]) + IDLE.patience_ns + 1
    first, progress = read(path, now_ns=late)
    assert outline(first) == ["Turn 1"]
    call = writer.call("Bash", {"command": "true"})
    path = writer.save(project)
    second, progress = read(path, progress, now_ns=late + 2 * PENDING.patience_ns)
    writer.result(call, "ok")
    writer.say("Here.")
    third, _ = read(writer.save(project), progress, is_stopped=True)
    once = {span.span_id: (span.start_ns, span.end_ns) for span in spans(read(path)[0], "generation")}
    live = {span.span_id: (span.start_ns, span.end_ns) for span in spans(first + second + third, "generation")}
    assert live == once


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


# ---- turns that continue after they were exported


def idle_after(writer):
    """Return an ending that finds the rows written so far idle for hours."""
    return {"now_ns": parse_time(writer.stamp()) + 3 * PENDING.patience_ns}


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
