from hypothesis import given
from hypothesis import strategies as st

from turnspan.transcript.memory import REMEMBERED_ROWS, RowMemory

STEPS = st.one_of(
    st.tuples(st.integers(0, 80), st.integers(1, 4)), st.sampled_from(["begin", "commit", "undo", "roll_back"])
)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 4)), max_size=100), st.lists(STEPS, max_size=40))
def test_rows_recorded_on_trial_are_forgotten_and_the_last_others_remembered(first, steps):
    """The owner of a row is what a list of all records says, also if a row is recorded twice."""
    memory, certain, trial = RowMemory(()), [], None
    for step in [*first, *steps, "roll_back"]:
        if step == "begin":
            memory.begin()
            trial = [] if trial is None else trial
        elif step == "commit":
            memory.commit()
            certain, trial = [*certain, *(trial or [])], None
        elif step == "undo":
            memory.undo()
            trial = None
        elif step == "roll_back":
            certain, trial = certain[-REMEMBERED_ROWS:], None
            assert memory.roll_back() == tuple(certain)
        else:
            record = (str(step[0]), step[1])
            memory.own(*record)
            (certain if trial is None else trial).append(record)
        assert memory.owner == dict([*certain, *(trial or [])])
