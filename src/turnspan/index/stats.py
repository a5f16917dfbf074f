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
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.source.sessions import is_project
from turnspan.trace.model import Usage

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Iterator, Mapping, Sequence

PERIODS: Final = ("day", "week", "month")
GROUPINGS: Final = (*PERIODS, "project", "model", "tool", "agent", "branch", "session")

_USAGE: Final = Usage.__struct_fields__[:-1]
_NO_PRICE: Final = (
    "cost_usd IS NULL AND NOT is_aborted AND response.input + response.output + response.cache_read"
    " + response.cache_write_5m + response.cache_write_1h > 0"
)
# What is counted in each table, by the name of the figure.
_FIGURES: Final[Mapping[str, Mapping[str, str]]] = {
    "response": {
        "generations": "COUNT(*)",
        "generations_failed": "SUM(response.error IS NOT NULL)",
        **{name: f"SUM(response.{name})" for name in _USAGE},
        "cost_usd": "SUM(response.cost_usd)",
        "cut_off": "SUM(response.cost_usd IS NULL AND is_aborted AND response.input IS NOT NULL)",
        "unpriced": f"SUM(response.{_NO_PRICE})",
        "incomplete": "SUM(is_incomplete)",
    },
    "tool_call": {
        "tools": "COUNT(*)",
        "tools_failed": "SUM(tool_call.status = 'error')",
        "tools_denied": "SUM(tool_call.status = 'denied')",
        "tools_interrupted": "SUM(tool_call.status = 'interrupted')",
        "tools_ns": "SUM(tool_call.end_ns - tool_call.start_ns)",
    },
    "subagent": {"agents": "COUNT(*)"},
    "turn": {"turns": "SUM(NOT turn.is_later)", "active_ns": "SUM(turn.active_ns)"},
}
_TIMES: Final = {
    "response": "response.end_ns",  # measured; the start is sometimes inferred
    "tool_call": "tool_call.start_ns",
    "subagent": "subagent.start_ns",
    "turn": "turn.start_ns",
}
# What each table can be grouped by; all of them by day, project, branch and session.
_OWN: Final[Mapping[str, Mapping[str, str]]] = {
    "response": {"model": "response.model", "agent": "response.agent"},
    "tool_call": {"tool": "tool_call.name", "agent": "tool_call.agent"},
    "subagent": {"agent": "subagent.name"},
    "turn": {},
}
_SHARED: Final = {"project": "turn.project", "branch": "turn.branch", "session": "turn.session"}
_DAY: Final = "IIF({0} > 0, date({0} / 1000000000, 'unixepoch', 'localtime'), '')"
_PERIODS_OF_DAY: Final = {
    "day": "day",
    "week": "COALESCE(date(day, '-6 days', 'weekday 1'), '')",  # its Monday
    "month": "substr(day, 1, 7)",
}
_WITHOUT_NAME: Final = {"agent": "(main)", "branch": "(no branch)"}


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


class Figures(msgspec.Struct, frozen=True):
    """What was counted; None if the grouping cannot attribute it."""

    sessions: int | None = None
    turns: int | None = None
    generations: int | None = None
    generations_failed: int | None = None
    tools: int | None = None
    tools_failed: int | None = None
    tools_denied: int | None = None
    tools_interrupted: int | None = None
    tools_ns: int | None = None
    agents: int | None = None
    usage: Usage | None = None
    cost_usd: float | None = None  # of responses with a known cost
    cut_off: int = 0  # interrupted responses, whose cost was not recorded
    unpriced: int = 0  # responses of models without a known price
    incomplete: int = 0  # responses whose final output tokens were not recorded
    active_ns: int | None = None

    @property
    def errors(self) -> int | None:
        """Failed responses and tool calls, refused and interrupted ones included, as `show` counts them."""
        parts = (self.generations_failed, self.tools_failed, self.tools_denied, self.tools_interrupted)
        return None if None in parts else sum(part or 0 for part in parts)

    @property
    def tokens(self) -> int | None:
        """All tokens, cached ones included."""
        used = self.usage
        return None if used is None else used.input + used.output + used.cache_read + used.cache_write

    @property
    def is_cost_partial(self) -> bool:
        """Whether the real cost is higher."""
        return bool(self.cut_off or self.unpriced or self.incomplete)

    @property
    def cache_hit_rate(self) -> float | None:
        """Which part of the input tokens was read from the cache; None without input."""
        used = self.usage
        asked = used.input + used.cache_read + used.cache_write if used is not None else 0
        return used.cache_read / asked if used is not None and asked else None


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
        self._names = {table: f"temp.counted_{table}_{id(self):x}" for table in _FIGURES}
        for table, name in self._names.items():
            keys = {"day": _DAY.format(_TIMES[table]), **_SHARED, **_OWN[table]}
            columns = [f"COALESCE({key}, '') AS {by}" for by, key in keys.items()]
            columns += [f"{sql} AS {figure}" for figure, sql in _FIGURES[table].items()]
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
        return self._grouped((), _FIGURES)[()]

    def by(self, grouping: str) -> list[Group]:
        """Return the groups: periods in their order, all others by cost or number of calls, the largest first."""
        tables = [table for table in _FIGURES if grouping in {*PERIODS, *_SHARED, *_OWN[table]}]
        found = self._grouped((grouping,), tables)
        if grouping == "session":
            names = self._session_names()
            return _largest_first(Group(*names.get(key, ("", "")), figures) for (key,), figures in found.items())
        groups = [Group(str(key), label_of(grouping, str(key)), figures) for (key,), figures in found.items()]
        return sorted(groups, key=lambda group: group.key) if grouping in PERIODS else _largest_first(groups)

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
        figures = _FIGURES["response"]
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
                _figures(dict(zip(figures, counts, strict=True)), ("response",)),
            )
            for session, trace, number, prompt, project, start_ns, _, *counts in rows
        ]  # fmt: skip

    def _grouped(self, keys: Sequence[str], tables: Iterable[str]) -> dict[tuple[object, ...], Figures]:
        """Return the figures of some tables by keys; without keys there is one group, ()."""
        found: dict[tuple[object, ...], dict[str, object]] = {} if keys else {(): {}}
        tables = list(tables)
        for table in tables:
            sums = {figure: f"SUM({figure})" for figure in _FIGURES[table]}
            if table == "turn":
                sums["sessions"] = "COUNT(DISTINCT session)"
            columns = [_PERIODS_OF_DAY.get(key, key) for key in keys] + list(sums.values())
            grouping = f"GROUP BY {', '.join(map(str, range(1, len(keys) + 1)))}" if keys else ""
            for row in self._connection.execute(f"SELECT {', '.join(columns)} FROM {self._names[table]} {grouping}"):
                counts = zip(sums, row[len(keys) :], strict=True)
                found.setdefault(row[: len(keys)], {}).update(counts)
        return {key: _figures(values, tables) for key, values in found.items()}

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


def label_of(grouping: str, key: str) -> str:
    """Return how a key is displayed."""
    return key or _WITHOUT_NAME.get(grouping, "(unknown)")


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
        if name in _OWN[table]:
            yield f"COALESCE({_OWN[table][name]}, '') = ?", (value,)
        else:
            columns = {each: own[name] for each, own in _OWN.items() if name in own}
            turns = (f"SELECT turn FROM {each} WHERE COALESCE({key}, '') = ?" for each, key in columns.items())
            yield f"turn.id IN ({' UNION '.join(turns)})", (value,) * len(columns)


def _joined(table: str) -> str:
    return "turn" if table == "turn" else f"{table} JOIN turn ON turn.id = {table}.turn"


def _figures(values: Mapping[str, object], tables: Iterable[str]) -> Figures:
    """Make figures of what was found: 0 if a table has no such row, None if the figure is in none of the tables."""
    found: dict[str, Any] = {figure: values.get(figure) or 0 for table in tables for figure in _FIGURES[table]}
    if "turns" in found:
        found["sessions"] = values.get("sessions") or 0
    if "input" in found:
        used = {name: found.pop(name) for name in _USAGE}
        found["usage"] = Usage(**used, is_incomplete=bool(found["incomplete"]))
        found["cost_usd"] = float(found["cost_usd"])
    return Figures(**found)


def _largest_first(groups: Iterable[Group]) -> list[Group]:
    # Rounded: the sum of the same costs in another order differs in its last digits.
    return sorted(
        groups, key=lambda each: (-round(each.figures.cost_usd or 0.0, 9), -(each.figures.tools or 0), each.key)
    )
