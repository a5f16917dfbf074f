"""When a turn has ended: the table, its edges, and what is remembered of events."""

import re
from pathlib import Path

import msgspec
import pytest

from turnspan.delivery import state
from turnspan.source.ending import PENDING, Ending, said, table

DOCS = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"
S = 10**9


def test_the_documentation_has_the_table(request):
    """docs/reliability.md prints it as the code has it; `--update-golden` writes it anew."""
    before, printed, after = re.split(r"(\n\| who knows it (?:.*\n)+?)(?=\n)", DOCS.read_text())
    if request.config.getoption("--update-golden"):
        DOCS.write_text(f"{before}\n{table()}\n{after}")
        return
    assert printed.strip() == table()


@pytest.mark.parametrize(("is_done", "slack_s"), [(False, 10), (True, 0)])
def test_rows_after_the_end_belong_to_it_for_a_while(is_done, slack_s):
    """The last rows come up to ten seconds after SessionEnd; when they are acknowledged, a later row is of a resumption."""
    ended = Ending(over_ns=100 * S, is_done=is_done)
    assert ended.is_still_over((100 + slack_s) * S)
    assert not ended.is_still_over((100 + slack_s) * S + 1)
    assert not Ending().is_still_over(0)


def test_a_client_that_is_silent_is_waited_for():
    """Ten minutes; an hour if a call has no result. Without a time, as at an event, for ever."""
    assert not Ending(now_ns=600 * S).is_idle(0)
    assert Ending(now_ns=600 * S + 1).is_idle(0)
    assert not Ending(now_ns=3600 * S).is_idle(0, PENDING)
    assert Ending(now_ns=3600 * S + 1).is_idle(0, PENDING)
    assert not Ending().is_idle(0)


def test_the_last_stop_counts():
    """Its time and its words; a failure has none, and that of a subagent ends only the subagent."""
    stop = {"event": "Stop", "at": 1.0, "words": "ab"}
    failed = {"event": "StopFailure", "at": 2.0, "words": "cd"}
    assert said([stop]) == Ending(is_stopped=True, stopped_ns=S, words="ab")
    assert said([stop, failed]) == Ending(is_stopped=True, stopped_ns=2 * S)
    assert said([stop, {**failed, "agent": "a1"}]) == Ending(is_stopped=True, stopped_ns=S, words="ab", agents=("a1",))
    assert said([{"event": "SubagentStop", "agent": "a1"}, {"event": "SessionStart"}]) == Ending(agents=("a1",))
    assert said([{"event": "SessionEnd", "at": 3.0}]) == Ending(is_over=True, over_ns=3 * S)
    assert said([{"event": "Stop", "at": "soon"}]) == Ending(is_stopped=True)
    assert said([]) == Ending()


def test_what_is_remembered():
    """The latest stop and end, and all subagents; an event of the client shows that an ended session was resumed."""
    stopped = Ending().then(Ending(is_stopped=True, words="ab", agents=("a1",)).handled(5 * S, 70))
    assert stopped == Ending(stopped_ns=5 * S, stopped_bytes=70, words="ab", agents=("a1",))
    over = stopped.then(Ending(is_over=True, agents=("a2", "a1")).handled(9 * S, 80))
    assert over == msgspec.structs.replace(stopped, over_ns=9 * S, agents=("a1", "a2"))
    assert over.then(Ending().handled(11 * S, 90)) == over
    done = over.when_done()
    assert done == Ending(over_ns=9 * S, is_done=True)
    assert done.then(Ending(now_ns=12 * S).handled(12 * S, 90)) == done
    assert done.then(Ending().handled(12 * S, 90)) == Ending()
    assert done.then(Ending(is_over=True).handled(12 * S, 90)) == Ending(over_ns=12 * S)
    many = Ending().then(Ending(agents=tuple(f"a{number}" for number in range(100))))
    assert many.agents == tuple(f"a{number}" for number in range(36, 100))


def test_what_is_known():
    """An event's own stop comes before a remembered one; a killed client writes no rest of a line."""
    remembered = Ending(stopped_ns=5 * S, stopped_bytes=70, words="ab", agents=("a1",))
    now = Ending(is_stopped=True, words="cd", stopped_ns=7 * S, agents=("a2",), late_since_ns=3)
    assert now.known(remembered, is_over=False, is_killed=False) == msgspec.structs.replace(now, agents=("a1", "a2"))
    looked = Ending(now_ns=9 * S, late_since_ns=3).known(remembered, is_over=True, is_killed=False)
    assert looked == msgspec.structs.replace(remembered, is_over=True, is_stopped=True, now_ns=9 * S, late_since_ns=3)
    killed = Ending(now_ns=9 * S, late_since_ns=3).known(Ending(), is_over=False, is_killed=True)
    assert killed == Ending(now_ns=9 * S, is_over=True)


def test_a_state_file_of_an_earlier_version_is_read_and_written_the_same():
    """An update in the middle of a session loses nothing of what events said, and can be undone."""
    said_before = (
        b'{"over_ns":5000000000,"is_done":true,"stopped_ns":4000000000,"stopped_bytes":70,"words":"ab","agents":["a1"]}'
    )
    expected = Ending(over_ns=5 * S, is_done=True, stopped_ns=4 * S, stopped_bytes=70, words="ab", agents=("a1",))
    cursor = msgspec.json.decode(b'{"sent_turns":3,"reported":%b}' % said_before, type=state.Cursor)
    assert cursor.reported == expected
    assert msgspec.json.encode(cursor.reported) == said_before
    known = Ending(now_ns=9 * S, is_asked=True, acknowledged=3, late_since_ns=2, stopped_session="x")
    remembered = cursor.reported.then(msgspec.structs.replace(known, is_over=True, is_stopped=True).handled(9 * S, 80))
    fields = {"over_ns", "stopped_ns", "stopped_bytes", "agents"}
    assert msgspec.json.decode(msgspec.json.encode(remembered)).keys() == fields
