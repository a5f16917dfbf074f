"""The records of the overview, the list of sessions and the search: the figures of `turnspan stats`, ready to display.

Rules:

- Every figure is the number and the text that the terminal shows for it; partial ones are marked: ≥.
- A filter is a parameter of the URL with the name of a property: `project=/home/ada/loom`. An empty one selects what
  has no such property. An unknown parameter, or one that cannot be read, is ignored: a link must not break the page.
- Days are those of this machine's time zone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.delivery.destinations import identity_of
from turnspan.errors import ConfigError
from turnspan.index import Filter, count_sessions, list_sessions
from turnspan.index.listing import SORTS
from turnspan.index.measures import shown_values_of
from turnspan.index.search import parsed, search
from turnspan.index.stats import DIMENSIONS, Slice, added, counted, projects_named
from turnspan.page.overview import sent_of
from turnspan.page.stats_table import note_lines
from turnspan.text import last_part, one_line, tokens, usd

if TYPE_CHECKING:
    import sqlite3

    from turnspan.index import Index, SessionRow
    from turnspan.index.measures import Figures
    from turnspan.index.search import Hit
    from turnspan.index.stats import CostlyTurn, Group, Statistics
    from turnspan.page.server import Viewer
    from turnspan.settings.config import Config

Record = dict[str, object]
Query = Mapping[str, str]

_ROWS: Final = 50  # groups in a panel; the page shows some of them first
_TOP: Final = 8  # sessions and turns in a list of the most expensive
_SERIES: Final = 7  # colours of a chart; the rest is one more: other
_DAYS: Final = 92  # a chart with more days has weeks
_WEEKS: Final = 105  # a chart with more weeks has months
_HITS: Final = 30
_OPTIONS: Final = 200  # values of a property to choose from
_GROUPS: Final = ("project", "model", "tool", "agent", "branch")
_STACKS: Final = ("model", "project")
_DATES: Final = ("since", "until", "days")


class OverviewRequest(msgspec.Struct, frozen=True):
    """What a request is about: an index that is up to date, the parameters, and the time."""

    index: Index
    config: Config
    query: Query
    now: datetime
    page_size: int = 100
    project: str | None = None  # only what belongs to it, as given to `turnspan view`

    @property
    def connection(self) -> sqlite3.Connection:
        """The tables."""
        return self.index.connection

    @property
    def today(self) -> date:
        """The local date."""
        return self.now.date()

    def slice(self, *without: str) -> Slice:
        """Return what the parameters select, without some of them."""
        chosen = slice_of({name: value for name, value in self.query.items() if name not in without}, self.today)
        if self.project is None:
            return chosen
        known = projects_named(self.connection, self.project)
        mine = known if chosen.projects is None else tuple(path for path in chosen.projects if path in known)
        return msgspec.structs.replace(chosen, projects=mine)


def _route(records: Callable[[OverviewRequest], Iterator[Record]]) -> Callable[[Viewer, str, Query], Iterable[Record]]:
    def answer(server: Viewer, _name: str, query: Query) -> Iterable[Record]:
        def made(index: Index) -> Iterator[Record]:
            now = datetime.now().astimezone()
            return records(OverviewRequest(index, server.config, query, now, server.limit, server.project))

        return server.indexing.records(made)

    return answer


# ---- the query


def slice_of(query: Mapping[str, str], today: date) -> Slice:
    """Return what the parameters of a URL select."""
    since, until = _day(query.get("since")), _day(query.get("until"))
    if since is None and (length := query.get("days", "")).isdecimal() and 0 < int(length[:5]) < 40_000:
        since = today - timedelta(days=int(length[:5]) - 1)
    return Slice(
        since_ns=_start_ns(since) if since is not None else None,
        until_ns=_start_ns(until + timedelta(days=1)) if until is not None else None,
        projects=(query["project"],) if "project" in query else None,
        branch=query.get("branch"),
        model=query.get("model"),
        tool=query.get("tool"),
        agent=query.get("agent"),
        has_errors=bool(query.get("errors")),
    )


def _day(text: str | None) -> date | None:
    try:
        found = date.fromisoformat(text or "")
    except ValueError:
        return None
    return found if 1970 < found.year < 9999 else None


def _start_ns(day: date) -> int:
    """Return the beginning of a day in the local time zone."""
    return int(datetime(day.year, day.month, day.day).astimezone().timestamp()) * 10**9


# ---- the overview


def overview_records(place: OverviewRequest) -> Iterator[Record]:
    """Yield one record with everything that the overview shows."""
    query, today = place.query, place.today
    chosen = place.slice()
    week, month = today - timedelta(days=today.weekday()), today.replace(day=1)
    with counted(place.connection, _since(chosen, min(week, month))) as recent:
        days = {group.key: group.figures for group in recent.by("day")}
    if not {*_DATES} & query.keys() and _is_any(place.connection, today - timedelta(days=29)):
        chosen = _since(chosen, today - timedelta(days=29))
    stack = query.get("stack", "") if query.get("stack") in _STACKS else "model"
    with counted(place.connection, chosen) as statistics:
        figures = statistics.total()
        groups = {grouping: statistics.by(grouping) for grouping in (*_GROUPS, "session")}
        tools = sorted(groups["tool"], key=lambda group: group.figures.tools_failed or 0, reverse=True)
        yield {
            "is": "overview",
            "is_empty": not _is_any(place.connection),
            "since": _shown_day(chosen.since_ns),
            "until": _shown_day(chosen.until_ns and chosen.until_ns - 1),
            "total": shown_values_of(figures),
            "cards": [
                {"label": label, "since": since.isoformat(), **shown_values_of(_sum_from(days, since))}
                for label, since in (("Today", today), ("This week", week), ("This month", month))
            ],
            "chart": _chart(statistics, stack, chosen, today),
            "groups": {
                grouping: {
                    "count": len(groups[grouping]),
                    "rows": _distinct([_group_record(grouping, group) for group in groups[grouping][:_ROWS]]),
                }
                for grouping in _GROUPS
            },
            "failing": [_group_record("tool", group) for group in tools[:_TOP] if group.figures.tools_failed],
            "sessions": [
                _group_record("session", group) for group in groups["session"][:_TOP] if group.figures.cost_usd
            ],
            "turns": [_turn_record(turn) for turn in statistics.costliest_turns(_TOP)],
            "notes": list(note_lines(figures, statistics.unpriced_models())),
        }


def _is_any(connection: sqlite3.Connection, since: date | None = None) -> bool:
    since_ns = _start_ns(since) if since is not None else 0
    return connection.execute("SELECT 1 FROM turn WHERE start_ns >= ? LIMIT 1", (since_ns,)).fetchone() is not None


def _since(chosen: Slice, since: date) -> Slice:
    return msgspec.structs.replace(chosen, since_ns=_start_ns(since), until_ns=None)


def _sum_from(days: Mapping[str, Figures], since: date) -> Figures:
    """Add up the figures of the days from one on."""
    return added(figures for day, figures in days.items() if day >= since.isoformat())


def _shown_day(at_ns: int | None) -> str | None:
    return f"{datetime.fromtimestamp(at_ns // 10**9).astimezone():%Y-%m-%d}" if at_ns is not None else None


def _turn_record(turn: CostlyTurn) -> Record:
    return {
        "session": turn.session_id,
        "trace": turn.trace_id,
        "number": turn.number,
        "label": one_line(turn.prompt),
        "project": last_part(one_line(turn.project)),
        "start_ms": turn.start_ns / 1e6,
        **shown_values_of(turn.figures),
    }


def _group_record(by: str, group: Group) -> Record:
    return {
        "key": group.key,
        "label": DIMENSIONS[by].short(group.label),
        "title": one_line(group.label),
        **shown_values_of(group.figures),
    }


def _distinct(rows: list[Record]) -> list[Record]:
    """Return rows whose labels differ: those that are the last part of several paths get the part before it, too."""
    count = Counter(row["label"] for row in rows)
    for row in rows:
        parts = str(row["title"]).replace("\\", "/").rstrip("/").split("/")
        if count[row["label"]] > 1 and len(parts) > 2:
            row["label"] = "/".join(parts[-2:])
    return rows


# ---- the chart


def _chart(statistics: Statistics, stack: str, chosen: Slice, today: date) -> Record:
    """Return the stacked bars: cost and tokens of the largest groups by day, week or month, gaps included."""
    bars = statistics.stacked("day", stack)
    days = sorted({when for when, _ in bars if when})
    if not days:
        return {"unit": "day", "stack": stack, "keys": [], "series": []}
    last = _day(_shown_day(chosen.until_ns and chosen.until_ns - 1)) or max(today, date.fromisoformat(days[-1]))
    since, first = _day(_shown_day(chosen.since_ns)), date.fromisoformat(days[0])
    if since is not None and (last - since).days < _DAYS:
        first = since  # a short period shows its empty days, too
    unit = "day" if (last - first).days < _DAYS else "week" if (last - first).days < 7 * _WEEKS else "month"
    if unit != "day":
        bars = statistics.stacked(unit, stack)
    keys = [*([""] if any(not when for when, _ in bars) else []), *_each(unit, first, last)]
    costs: dict[str, tuple[float, int]] = {}
    for (_, key), figures in bars.items():
        cost, used = costs.get(key, (0.0, 0))
        costs[key] = cost + (figures.cost_usd or 0.0), used + (figures.tokens or 0)
    largest = sorted(costs, key=lambda key: costs[key], reverse=True)
    shown, others, dimension = largest[:_SERIES], largest[_SERIES:], DIMENSIONS[stack]
    series: list[tuple[str | None, str, tuple[str, ...]]] = [
        (key, one_line(dimension.label(key)), (key,)) for key in shown
    ]
    if others:
        series.append((None, f"{len(others)} others", tuple(others)))
    return {
        "unit": unit,
        "stack": stack,
        "keys": keys,
        "totals": [_bar(bars, when, largest) for when in keys],
        "series": [
            {
                "key": key,
                "label": dimension.short(label),
                "title": label,
                "values": [_bar(bars, when, members) for when in keys],
            }
            for key, label, members in series
        ],
    }


def _bar(bars: Mapping[tuple[str, str], Figures], when: str, members: Iterable[str]) -> list[object]:
    """Return cost and tokens of some groups in a period, each as a number and as text."""
    found = [bars[when, key] for key in members if (when, key) in bars]
    cost, used = sum(figures.cost_usd or 0.0 for figures in found), sum(figures.tokens or 0 for figures in found)
    is_partial, is_incomplete = any(f.is_cost_partial for f in found), any(f.incomplete for f in found)
    return [cost, usd(cost, is_partial=is_partial), used, tokens(used, is_partial=is_incomplete)] if found else []


def _each(unit: str, first: date, last: date) -> Iterator[str]:
    """Yield the key of every period from the first day to the last."""
    day = (
        first - timedelta(days=first.weekday())
        if unit == "week"
        else first.replace(day=1)
        if unit == "month"
        else first
    )
    while day <= last:
        yield f"{day:%Y-%m}" if unit == "month" else day.isoformat()
        day = (
            (day + timedelta(days=32)).replace(day=1)
            if unit == "month"
            else day + timedelta(7 if unit == "week" else 1)
        )


# ---- the list of sessions


def sessions_records(place: OverviewRequest) -> Iterator[Record]:
    """Yield one record with a page of the list."""
    query = place.query
    chosen = place.slice()
    wanted = Filter(
        turns=chosen if chosen != Slice() else None,
        words=" ".join(query.get("q", "").split())[:200],
        has_agents=bool(query.get("agents")),
    )
    sort = query.get("sort", "")
    if sort.removeprefix("-") not in SORTS:
        sort = "-last"
    total, size = count_sessions(place.index, wanted), place.page_size
    pages = max(1, math.ceil(total / size))
    number = query.get("page", "")
    page = min(max(int(number), 1), pages) if number.isdecimal() and len(number) < 10 else 1
    rows = list_sessions(place.index, wanted, sort=sort, limit=size, offset=(page - 1) * size)
    identities = [identity_of(destination) for destination in place.config.destinations]
    yield {
        "is": "sessions",
        "total": total,
        "page": page,
        "pages": pages,
        "from": (page - 1) * size + 1,
        "to": (page - 1) * size + len(rows),
        "sort": sort,
        "rows": [_session_record(row, sent_of(row, identities, is_enabled=place.config.is_enabled)) for row in rows],
    }


def facets_records(place: OverviewRequest) -> Iterator[Record]:
    """Yield one record with what the list can be filtered by: values of properties, the most frequent first."""
    yield {"is": "facets", **{name: _facet(place.connection, sql) for name, sql in _FACETS.items()}}


_FACETS: Final = {
    "project": "SELECT project, count(DISTINCT session) FROM turn GROUP BY 1",
    "branch": "SELECT branch, count(DISTINCT session) FROM turn GROUP BY 1",
    "model": "SELECT model, count(DISTINCT session) FROM response JOIN turn ON turn.id = turn GROUP BY 1",
    "tool": "SELECT tool_call.name, count(DISTINCT session) FROM tool_call JOIN turn ON turn.id = turn GROUP BY 1",
    "agent": "SELECT subagent.name, count(DISTINCT session) FROM subagent JOIN turn ON turn.id = turn GROUP BY 1",
}


def _facet(connection: sqlite3.Connection, sql: str) -> list[Record]:
    rows = connection.execute(f"{sql} ORDER BY 2 DESC, 1 LIMIT {_OPTIONS}")
    return [{"key": key or "", "sessions": sessions} for key, sessions in rows]


def _session_record(row: SessionRow, sent: str) -> Record:
    total = row.tally
    return {
        "session": row.session_id,
        "title": row.title or ("" if total.turns else "(no turn yet)"),
        "project": last_part(one_line(row.project)),
        "directory": row.project,
        "branch": row.branch,
        "last_ms": row.last_ns / 1e6 if row.last_ns else None,
        **shown_values_of(total),
        "sent": sent,
    }


# ---- the search


def search_records(place: OverviewRequest) -> Iterator[Record]:
    """Yield one record with some of the hits."""
    number = place.query.get("offset", "")
    offset = int(number) if number.isdecimal() and len(number) < 10 else 0
    try:
        wanted = parsed(place.query.get("q", "")[:1000])
    except ConfigError as error:
        yield {"is": "hits", "problem": str(error.args[0]), "total": 0, "hits": []}
        return
    found = search(place.connection, wanted, place.slice(), limit=_HITS, offset=offset)
    yield {"is": "hits", "problem": "", "total": found.turns, "hits": [_hit_record(hit) for hit in found.hits]}


def _hit_record(hit: Hit) -> Record:
    return {
        "session": hit.session_id,
        "title": one_line(hit.title),
        "project": one_line(hit.project),
        "trace": hit.trace_id,
        "span": hit.span_id,
        "turn": hit.turn,
        "start_ms": hit.start_ns / 1e6,
        "kind": hit.kind,
        "context": [list(piece) for piece in hit.context],
        "others": hit.others,
    }


# For the table of routes of the server.
ROUTES: Final = {
    "overview": _route(overview_records),
    "sessions": _route(sessions_records),
    "facets": _route(facets_records),
    "search": _route(search_records),
}
