"""Tokens, cost, turns and tool calls, in total and by day, project, model, tool and so on.

Rules:

- A group counts what belongs to it and nothing else: tokens and cost are those of responses, calls those of tools. What
  a grouping cannot attribute is None: a turn has several models, so turns are not counted by model.
- Every figure of a grouping adds up to the total, but for `sessions`: a session can be in several groups.
- A row belongs to its own time: a response to the day on which it ended, a tool call, a subagent and a turn to the day
  on which it started. The parts of a turn that runs past midnight are counted on two days, each once. Days are local.
- A filter applies to the rows that have the property, and otherwise to the turns that contain such a row: with a model,
  tokens are those of its responses, and tool calls those of the turns in which it responded.
- What a filter selects is added up once, by everything that it can be grouped by: a page asks for ten groupings.
"""

# ruff: noqa: S608 - the names in a query are constants of this module, values are parameters

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import msgspec

from turnspan.index.measures import COUNTS, Figures, figures_of
from turnspan.source.sessions import is_project
from turnspan.text import last_part, one_line, short_model

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_TIMES: Final = {
    "response": "response.end_ns",  # measured; the start is sometimes inferred
    "tool_call": "tool_call.start_ns",
    "subagent": "subagent.start_ns",
    "turn": "turn.start_ns",
}
_DAY: Final = "IIF({0} > 0, date({0} / 1000000000, 'unixepoch', 'localtime'), '')"


class Dimension(NamedTuple):
    """What figures can be grouped by: the key of each table that has one, and how keys are displayed."""

    name: str
    keys: Mapping[str, str]
    period: str = ""  # a period, made of the day
    names: Mapping[str, str] = {}  # of keys that are not names themselves
    short: Callable[[str], str] = one_line  # gives a label in a few characters

    def label(self, key: str) -> str:
        """Return how a key is displayed."""
        return self.names.get(key) or key or "(unknown)"


def _of_turn(column: str) -> Mapping[str, str]:
    return dict.fromkeys(COUNTS, f"turn.{column}")


DIMENSIONS: Final = {
    each.name: each
    for each in (
        Dimension("day", {}, "day"),
        Dimension("week", {}, "COALESCE(date(day, '-6 days', 'weekday 1'), '')"),  # its Monday
        Dimension("month", {}, "substr(day, 1, 7)"),
        Dimension("project", _of_turn("project"), short=lambda path: last_part(one_line(path)) or one_line(path)),
        Dimension("model", {"response": "response.model"}, names={"API error": "API errors"}, short=short_model),
        Dimension("tool", {"tool_call": "tool_call.name"}),
        Dimension(
            "agent",
            {"response": "response.agent", "tool_call": "tool_call.agent", "subagent": "subagent.name"},
            names={"": "(main)"},
        ),
        Dimension("branch", _of_turn("branch"), names={"": "(no branch)"}),
        Dimension("session", _of_turn("session")),
    )
}


class Slice(msgspec.Struct, frozen=True):
    """Which rows are counted; None is no restriction. Names are exact; "" selects what has none."""

    since_ns: int | None = None
    until_ns: int | None = None
    projects: tuple[str, ...] | None = None
    branch: str | None = None
    model: str | None = None
    tool: str | None = None
    agent: str | None = None
    has_errors: bool = False


class Group(msgspec.Struct, frozen=True):
    """One group: its key, a name for people, and its figures."""

    key: str
    label: str
    figures: Figures


class CostlyTurn(msgspec.Struct, frozen=True):
    """A turn that cost much."""

    session_id: str
    trace_id: str
    number: int | None
    prompt: str
    project: str
    start_ns: int
    figures: Figures


class Statistics:
    """The figures of what a filter selects. `counted` makes one."""

    def __init__(self, connection: sqlite3.Connection, chosen: Slice) -> None:
        self._connection = connection
        self._chosen = chosen
        self._names = {table: f"temp.counted_{table}_{id(self):x}" for table in COUNTS}
        for table, name in self._names.items():
            keys = {each.name: each.keys[table] for each in DIMENSIONS.values() if table in each.keys}
            keys["day"] = _DAY.format(_TIMES[table])
            columns = [f"COALESCE({key}, '') AS {by}" for by, key in keys.items()]
            columns += [f"{sql} AS {figure}" for figure, sql in COUNTS[table].items()]
            where, values = conditions(table, chosen)
            numbers = ", ".join(map(str, range(1, len(keys) + 1)))
            selected = f"SELECT {', '.join(columns)} FROM {_joined(table)} WHERE {where} GROUP BY {numbers}"
            connection.execute(f"CREATE TABLE {name} AS {selected}", values)

    def close(self) -> None:
        """Drop what was added up."""
        for name in self._names.values():
            self._connection.execute(f"DROP TABLE IF EXISTS {name}")

    def total(self) -> Figures:
        """Return the figures of everything that is selected."""
        return self._grouped((), COUNTS)[()]

    def by(self, grouping: str) -> list[Group]:
        """Return the groups: periods in their order, all others by cost or number of calls, the largest first."""
        dimension = DIMENSIONS[grouping]
        found = self._grouped((grouping,), [table for table in COUNTS if dimension.period or table in dimension.keys])
        if grouping == "session":
            names = self._session_names()
            return _largest_first(Group(*names.get(key, ("", "")), figures) for (key,), figures in found.items())
        groups = [Group(str(key), dimension.label(str(key)), figures) for (key,), figures in found.items()]
        return sorted(groups, key=lambda group: group.key) if dimension.period else _largest_first(groups)

    def stacked(self, period: str, grouping: str) -> dict[tuple[str, str], Figures]:
        """Return tokens and cost by period and group: the bars of a chart."""
        found = self._grouped((period, grouping), ("response",))
        return {(str(when), str(key)): figures for (when, key), figures in found.items()}

    def unpriced_models(self) -> list[str]:
        """Return the models without a known price."""
        name = self._names["response"]
        rows = self._connection.execute(f"SELECT DISTINCT model FROM {name} WHERE unpriced ORDER BY 1")
        return [str(model) for (model,) in rows]

    def costliest_turns(self, limit: int) -> list[CostlyTurn]:
        """Return the turns whose responses cost most."""
        where, values = conditions("response", self._chosen)
        figures = COUNTS["response"]
        rows = self._connection.execute(
            # With MIN, SQLite takes the other columns from that row: the turn itself, not what was added to it later.
            "SELECT session.session_id, turn.trace_id, turn.number, turn.prompt, turn.project, turn.start_ns,"
            f" MIN(turn.position), {', '.join(figures.values())}"
            f" FROM {_joined('response')} JOIN session ON session.id = turn.session WHERE {where}"
            " GROUP BY turn.session, turn.trace_id HAVING SUM(response.cost_usd) > 0"
            " ORDER BY SUM(response.cost_usd) DESC, turn.start_ns, turn.trace_id LIMIT ?",
            [*values, limit],
        )
        return [
            CostlyTurn(
                session, trace, number, prompt or "", project or "", start_ns or 0,
                figures_of(dict(zip(figures, counts, strict=True)), ("response",)),
            )
            for session, trace, number, prompt, project, start_ns, _, *counts in rows
        ]  # fmt: skip

    def _grouped(self, keys: Sequence[str], tables: Iterable[str]) -> dict[tuple[object, ...], Figures]:
        """Return the figures of some tables by keys; without keys there is one group, ()."""
        found: dict[tuple[object, ...], dict[str, object]] = {} if keys else {(): {}}
        tables = list(tables)
        for table in tables:
            sums = {figure: f"SUM({figure})" for figure in COUNTS[table]}
            if table == "turn":
                sums["sessions"] = "COUNT(DISTINCT session)"
            columns = [DIMENSIONS[key].period or key for key in keys] + list(sums.values())
            grouping = f"GROUP BY {', '.join(map(str, range(1, len(keys) + 1)))}" if keys else ""
            for row in self._connection.execute(f"SELECT {', '.join(columns)} FROM {self._names[table]} {grouping}"):
                counts = zip(sums, row[len(keys) :], strict=True)
                found.setdefault(row[: len(keys)], {}).update(counts)
        return {key: figures_of(values, tables) for key, values in found.items()}

    def _session_names(self) -> dict[object, tuple[str, str]]:
        rows = self._connection.execute("SELECT id, session_id, title FROM session")
        return {number: (str(session_id), str(title or "")) for number, session_id, title in rows}


@contextmanager
def counted(connection: sqlite3.Connection, chosen: Slice) -> Iterator[Statistics]:
    """Count what a filter selects."""
    statistics = Statistics(connection, chosen)
    try:
        yield statistics
    finally:
        statistics.close()


def added(figures: Iterable[Figures]) -> Figures:
    """Add figures up, but for the number of sessions, which can be in several of them."""
    sums: dict[str, Any] = {}
    for each in figures:
        for name in Figures.__struct_fields__:
            value = getattr(each, name)
            sums[name] = value if sums.get(name) is None or value is None else sums[name] + value
    return Figures(**{**sums, "sessions": None})


def projects_named(connection: sqlite3.Connection, project: str) -> tuple[str, ...]:
    """Return the working directories that a user means: one and those below it, or all with a part of their path."""
    known = connection.execute("SELECT DISTINCT COALESCE(project, '') FROM turn").fetchall()
    return tuple(path for (path,) in known if is_project(project, path))


# ---- queries


def conditions(table: str, chosen: Slice) -> tuple[str, list[object]]:
    """Return the condition for the rows of a table, and its values."""
    found = list(_each_condition(table, chosen))
    return " AND ".join(["1", *(part for part, _ in found)]), [value for _, values in found for value in values]


def sessions_with(chosen: Slice) -> tuple[str, list[object]]:
    """Return the condition for sessions with a turn that is selected, and its values."""
    where, values = conditions("turn", chosen)
    return f"session.id IN (SELECT turn.session FROM turn WHERE {where})", values


def _each_condition(table: str, chosen: Slice) -> Iterator[tuple[str, Sequence[object]]]:
    if chosen.since_ns is not None:
        yield f"{_TIMES[table]} >= ?", (chosen.since_ns,)
    if chosen.until_ns is not None:
        yield f"{_TIMES[table]} < ?", (chosen.until_ns,)
    if chosen.projects is not None:
        yield f"COALESCE(turn.project, '') IN ({', '.join('?' * len(chosen.projects))})", chosen.projects
    if chosen.branch is not None:
        yield "COALESCE(turn.branch, '') = ?", (chosen.branch,)
    if chosen.has_errors:
        yield "turn.errors > 0", ()
    for name, value in (("model", chosen.model), ("tool", chosen.tool), ("agent", chosen.agent)):
        if value is None:
            continue
        columns = DIMENSIONS[name].keys
        if table in columns:
            yield f"COALESCE({columns[table]}, '') = ?", (value,)
        else:
            turns = (f"SELECT turn FROM {each} WHERE COALESCE({key}, '') = ?" for each, key in columns.items())
            yield f"turn.id IN ({' UNION '.join(turns)})", (value,) * len(columns)


def _joined(table: str) -> str:
    return "turn" if table == "turn" else f"{table} JOIN turn ON turn.id = {table}.turn"


def _largest_first(groups: Iterable[Group]) -> list[Group]:
    # Rounded: the sum of the same costs in another order differs in its last digits.
    return sorted(
        groups, key=lambda each: (-round(each.figures.cost_usd or 0.0, 9), -(each.figures.tools or 0), each.key)
    )
