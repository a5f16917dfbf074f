"""Some clients write an answer before the prompt that it answers."""

import pytest
from reads import read
from rows import Writer


def swapped():
    """A session whose second answer stands before its own prompt."""
    writer = Writer(version="2.1.128")
    writer.turn("first question", "first answer")
    writer.turn("second question", "second answer")
    prompt, answer = writer.rows[-2:]
    writer.rows[-2:] = [answer, prompt]
    writer.turn("third question", "third answer")
    return writer


def told(traces):
    """What each trace's turn was asked and answered."""
    roots = [trace.spans[0] for trace in traces]
    return [(root.name, root.input[0].parts[0].text, root.output[0].parts[0].text) for root in roots]


def test_an_answer_before_its_prompt_belongs_to_that_prompt(tmp_path):
    """2.1.45 and 2.1.128 sometimes do so: the parent tells, not the position."""
    whole, _ = read(swapped().save(tmp_path))
    assert told(whole) == [
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
    whole, _ = read(writer.save(tmp_path))
    assert traces == whole


@pytest.mark.parametrize("is_over", [True, False])
def test_an_answer_whose_prompt_never_comes_is_not_lost(tmp_path, is_over):
    """When the session is over, what was held back for its prompt leaves all the same."""
    writer = swapped()
    writer.rows = writer.rows[:3]
    traces, _ = read(writer.save(tmp_path), is_over=is_over, is_stopped=True)
    answers = [s.output[0].parts[0].text for trace in traces for s in trace.spans if s.kind == "generation"]
    assert ("second answer" in answers) == is_over
