from hypothesis import given
from hypothesis import strategies as st

from turnspan.transcript.carry import Carry
from turnspan.transcript.context import ContextState, SessionContext
from turnspan.transcript.memory import REMEMBERED_ROWS, Memory

STEPS = st.one_of(
    st.tuples(st.integers(0, 80), st.integers(1, 4)), st.sampled_from(["begin", "commit", "undo", "trim"])
)


@given(st.lists(st.tuples(st.integers(0, 80), st.integers(1, 4)), max_size=100), st.lists(STEPS, max_size=40))
def test_rows_recorded_on_trial_are_forgotten_and_the_last_others_remembered(first, steps):
    """The owner of a row is what a list of all records says, also if a row is recorded twice."""
    memory = Memory(Carry(), SessionContext(ContextState(), lambda _offset, _length: None), "s", is_agent=False)
    certain, trial = [], None
    for step in [*first, *steps, "trim"]:
        if step == "begin":
            memory.begin()
            trial = [] if trial is None else trial
        elif step == "commit":
            memory.commit()
            certain, trial = [*certain, *(trial or [])], None
        elif step in {"undo", "trim"}:
            memory.undo()
            trial = None
            if step == "trim":
                certain = certain[-REMEMBERED_ROWS:]
                memory.rows.keep(memory.rows.latest())
        else:
            record = (str(step[0]), step[1])
            memory.rows.own(*record)
            (certain if trial is None else trial).append(record)
        assert memory.rows.order == [*certain, *(trial or [])]
        assert memory.rows.owner == dict(memory.rows.order)
