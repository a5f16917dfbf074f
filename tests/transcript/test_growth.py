"""Reading takes time with the number of rows, not with its square, whatever the rows are."""

import time

import pytest
from reads import one_pass
from rows import Writer

SMALL, TIMES = 3000, 4


def many_calls(writer, number):
    """One response with many tool calls, then their results."""
    calls = [writer.call("Bash", {"command": "ls"}, message="msg_1", after=0) for _ in range(number)]
    for call in calls:
        writer.result(call, "done", after=0)


def many_summaries(writer, number):
    """Many summaries between two rows of the conversation."""
    leaf = writer.say("Hello.")
    for n in range(number):
        writer.bare("summary", summary=f"Title {n}", leafUuid=leaf["uuid"])


@pytest.mark.parametrize("add", [many_calls, many_summaries])
def test_four_times_as_many_rows_take_no_sixteen_times_as_long(tmp_path, add):
    """The least of three runs each, in CPU time: four times as long is linear, sixteen times is quadratic."""
    took = []
    for number in (SMALL, TIMES * SMALL):
        writer = Writer()
        writer.prompt("Go.")
        add(writer, number)
        writer.prompt("And now?")
        projects = tmp_path / str(number)
        writer.save(projects / "-home-ada-loom")
        seconds = []
        for _ in range(3):
            began = time.process_time()
            assert one_pass(projects)
            seconds.append(time.process_time() - began)
        took.append(min(seconds))
    assert took[1] / took[0] < 2 * TIMES
