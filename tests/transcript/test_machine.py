"""The table of states: complete, and printed into the documentation.

`pytest tests/transcript/test_machine.py --update-golden` prints it anew.
"""

import inspect
from pathlib import Path

import figures

from turnspan.transcript.machine import TRANSITIONS, Machine, RowKind, State

PAGE = Path(__file__).resolve().parents[2] / "docs" / "dev" / "architecture.md"
RULES = [
    (state, kind, cell if isinstance(cell, dict) else {"": cell})
    for state, row in TRANSITIONS.items()
    for kind, cell in row.items()
]


def plain(name):
    """Return a name as words."""
    return name.replace("_", " ")


def said_of(name):
    """Return what a predicate or an action says about itself, on one line of a table."""
    return " ".join(inspect.getdoc(getattr(Machine, name)).split())


def names():
    """Return the predicates and the actions of the table, each once, in its order."""
    predicates = [name for _, _, rules in RULES for name in rules if name not in {"", "otherwise"}]
    actions = [name for _, _, rules in RULES for name in rules.values()]
    return list(dict.fromkeys(predicates)), list(dict.fromkeys(actions))


def cell(state, kind):
    """Return the rules of a cell, the first that applies first."""
    rules = next((rules for at, what, rules in RULES if (at, what) == (state, kind)), {})
    parts = [plain(do) if when in {"", "otherwise"} else f"*{plain(when)}*: {plain(do)}" for when, do in rules.items()]
    return "<br>".join(parts) or "-"


def printed():
    """Return the table, and what its words mean, as Markdown."""
    lines = ["", "", f"| | {' | '.join(State)} |", "|---|" + "---|" * len(State)]
    lines += [f"| {kind} | {' | '.join(cell(state, kind) for state in State)} |" for kind in RowKind]
    for title, found in zip(("predicate", "action"), names(), strict=True):
        lines += ["", f"| {title} | |", "|---|---|", *(f"| {plain(name)} | {said_of(name)} |" for name in found)]
    return "\n".join([*lines, "", ""])


def test_the_documentation_has_the_table_of_the_code(request):
    """What the page says about states is printed from the table that the code runs."""
    if request.config.getoption("--update-golden"):
        figures.write(PAGE, {"states": printed()})
    assert printed() in PAGE.read_text(encoding="utf-8")


def test_every_row_has_an_action_in_every_state():
    """A line is a further one only while its response is open; everything else can come at any time."""
    missing = {(state, kind) for state in State for kind in RowKind} - {(state, kind) for state, kind, _ in RULES}
    assert missing == {(State.EMPTY, RowKind.LINE), (State.SEALED, RowKind.LINE)}


def test_the_last_rule_of_a_cell_always_applies():
    """So no row is without an action, and no rule is behind one that hides it."""
    assert all(list(rules).index("otherwise") == len(rules) - 1 for _, _, rules in RULES if "" not in rules)
