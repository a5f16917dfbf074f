"""Some clients write an answer before the prompt that it answers."""

import pytest
from reads import read, sent, spans
from rows import Writer


def swapped():
    """Return a session whose second answer precedes its own prompt."""
    writer = Writer(version="2.1.128")
    writer.turn("first question", "first answer")
    writer.turn("second question", "second answer")
    prompt, answer = writer.rows[-2:]
    writer.rows[-2:] = [answer, prompt]
    writer.turn("third question", "third answer")
    return writer


def turns_of(traces):
    """Return name, prompt and answer of each trace's turn."""
    roots = [trace.spans[0] for trace in traces]
    return [(root.name, root.input[0].parts[0].text, root.output[0].parts[0].text) for root in roots]


def test_an_answer_before_its_prompt_belongs_to_that_prompt(tmp_path):
    """2.1.45 and 2.1.128 sometimes write it first: the parent decides, not the position."""
    complete, _ = read(swapped().save(tmp_path))
    assert turns_of(complete) == [
        ("Turn 1", "first question", "first answer"),
        ("Turn 2", "second question", "second answer"),
        ("Turn 3", "third question", "third answer"),
    ]


def test_the_same_when_it_is_read_after_every_row(tmp_path):
    """A reading that finds only the answer waits for the prompt, and no later reading finds either twice."""
    writer = swapped()
    rows, traces, progress = writer.rows, [], None
    for count in range(1, len(rows) + 1):
        writer.rows = rows[:count]
        more, progress = read(writer.save(tmp_path), progress, is_stopped=True)
        traces += more
    complete, _ = read(writer.save(tmp_path))
    assert traces == complete


@pytest.mark.parametrize("has_tool", [True, False])
def test_the_first_answer_of_a_session_can_precede_its_prompt(tmp_path, has_tool):
    """2.1.45 in a terminal: the first answer, and even its tool's result, before the first prompt."""
    writer = Writer(version="2.1.45")
    asked = writer.prompt("question")
    if has_tool:
        writer.result(writer.call("Bash", {"command": "ls"}), "loom")
    else:
        writer.call("Bash", {"command": "ls"})
    writer.rows = [*writer.rows[1:], asked]
    writer.say("answer")
    writer.turn("second question", "second answer")
    complete, _ = read(writer.save(tmp_path))
    assert turns_of(complete) == [("Turn 1", "question", "answer"), ("Turn 2", "second question", "second answer")]
    assert sent(piece_by_piece(writer, tmp_path)) == sent(complete)


def piece_by_piece(writer, directory):
    """Return the traces of reading after each row."""
    rows, traces, progress = writer.rows, [], None
    for count in range(1, len(rows) + 1):
        writer.rows = rows[:count]
        more, progress = read(writer.save(directory), progress, is_stopped=False)
        traces += more
    return traces + read(writer.save(directory), progress)[0]


@pytest.mark.parametrize("is_prompt_late", [True, False])
def test_rows_between_are_exported_once_in_any_pieces(tmp_path, is_prompt_late):
    """A compaction after an answer that waits for its prompt belongs to the same turn, however the file was read."""
    writer = Writer(version="2.1.128")
    writer.turn("first question", "first answer")
    answer = writer.say("second answer", parentUuid="ffffffff-0000-4000-8000-000000000001")
    writer.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto"})
    writer.prompt("second question", timestamp=answer["timestamp"] if is_prompt_late else writer.stamp())
    writer.say("third answer")
    writer.turn("third question", "fourth answer")
    complete, _ = read(writer.save(tmp_path))
    assert sent(piece_by_piece(writer, tmp_path)) == sent(complete)
    assert [span.name for span in spans(complete, "event")] == ["compaction"]


def test_a_held_back_answer_without_a_time_is_not_lost(tmp_path):
    """A row without a time is exported with the rest when the session is over."""
    writer = swapped()
    writer.rows = writer.rows[:3]
    del writer.rows[-1]["timestamp"]
    assert [s.output[0].parts[0].text for s in spans(read(writer.save(tmp_path))[0], "generation")] == [
        "first answer",
        "second answer",
    ]


@pytest.mark.parametrize("is_over", [True, False])
def test_an_answer_whose_prompt_never_comes_is_not_lost(tmp_path, is_over):
    """When the session is over, a response that waited for its prompt is exported without it."""
    writer = swapped()
    writer.rows = writer.rows[:3]
    traces, _ = read(writer.save(tmp_path), is_over=is_over, is_stopped=True)
    answers = [s.output[0].parts[0].text for trace in traces for s in trace.spans if s.kind == "generation"]
    assert ("second answer" in answers) == is_over
