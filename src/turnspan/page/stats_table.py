"""Figures as a table for the terminal, with a bar for each group.

Rules:

- A table has the columns that its grouping can count, most important first; a narrow terminal shows fewer of them.
- The bar shows the group's share of the largest one: its cost, or its calls if tools have no cost.
- The last line is the total.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from turnspan.index.stats import PERIODS
from turnspan.text import cells, count, drawn, duration, fit, last_part, one_line, tokens, usd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from turnspan.index.stats import Figures, Group

    Cell = Callable[[Figures], str]

_MODEL_DATE: Final = re.compile(r"-20\d{6}$")
_BAR: Final = (4, 24)  # columns, at least and at most
_LABEL: Final = (10, 40)  # columns, at least, and how many more at most
_GAP: Final = 2


class _Column(NamedTuple):
    name: str
    cell: Cell
    is_counted: Callable[[Figures], bool]


def _number(name: str) -> Cell:
    def cell(figures: Figures) -> str:
        value = getattr(figures, name)
        return f"{value:,}" if value is not None else ""

    return cell


def _used(*names: str) -> Cell:
    def cell(figures: Figures) -> str:
        used = figures.usage
        is_partial = names == ("output",) and bool(figures.incomplete)
        return tokens(sum(getattr(used, name) for name in names), is_partial=is_partial) if used is not None else ""

    return cell


def _time(name: str) -> Cell:
    return lambda figures: duration(getattr(figures, name)) if getattr(figures, name) is not None else ""


def _cost(figures: Figures) -> str:
    return usd(figures.cost_usd, is_partial=figures.is_cost_partial) if figures.cost_usd is not None else ""


def _tokens(figures: Figures) -> str:
    return tokens(figures.tokens, is_partial=bool(figures.incomplete)) if figures.tokens is not None else ""


def _hit_rate(figures: Figures) -> str:
    return f"{figures.cache_hit_rate:.0%}" if figures.cache_hit_rate is not None else ""


def _has(name: str) -> Callable[[Figures], bool]:
    return lambda figures: getattr(figures, name) is not None


# In the order of importance.
_COLUMNS: Final = (
    _Column("COST", _cost, _has("cost_usd")),
    _Column("TOKENS", _tokens, _has("usage")),
    _Column("TURNS", _number("turns"), _has("turns")),
    _Column("RUNS", _number("agents"), lambda f: f.agents is not None and f.turns is None),
    _Column("RESPONSES", _number("generations"), lambda f: f.generations is not None and f.turns is None),
    _Column("CALLS", _number("tools"), _has("tools")),
    _Column("FAILED", _number("tools_failed"), _has("tools")),
    _Column("CACHE", _hit_rate, _has("usage")),
    _Column("ACTIVE", _time("active_ns"), _has("active_ns")),
    _Column("DENIED", _number("tools_denied"), lambda f: f.tools is not None and f.usage is None),
    _Column("TIME", _time("tools_ns"), lambda f: f.tools is not None and f.usage is None),
    _Column("INPUT", _used("input"), _has("usage")),
    _Column("OUTPUT", _used("output"), _has("usage")),
    _Column("READ", _used("cache_read"), _has("usage")),
    _Column("WRITE", _used("cache_write_5m", "cache_write_1h"), _has("usage")),
)


def stats_lines(grouping: str, groups: Sequence[Group], total: Figures, width: int) -> Iterator[str]:
    """Yield the table: a head, a line for each group, the total."""
    from rich.bar import Bar  # noqa: PLC0415 - slow to import, and only tables need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    labels = [_label(grouping, group) for group in groups]
    figures = [*(group.figures for group in groups), total]
    columns = [column for column in _COLUMNS if column.is_counted(figures[0])]
    widths = {column.name: max(len(column.name), *(cells(column.cell(each)) for each in figures)) for column in columns}
    longest = max([len("TOTAL"), len(grouping), *map(cells, labels)])
    label_width = min(longest, max(_LABEL[0], width // 4))
    left = width - label_width
    shown: list[_Column] = []
    for column in columns:
        if left - widths[column.name] - _GAP < (_BAR[0] + _GAP if shown else 0):
            break
        left -= widths[column.name] + _GAP
        shown.append(column)
    more = min(longest - label_width, max(left - _GAP - _BAR[1], 0), _LABEL[1])  # what the bar does not need
    label_width, left = label_width + more, left - more
    bar_width = min(left - _GAP, _BAR[1])

    table = Table.grid(padding=(0, _GAP, 0, 0))
    table.add_column(width=label_width, no_wrap=True)
    for column in shown:
        table.add_column(width=widths[column.name], justify="right", no_wrap=True)
    if bar_width >= _BAR[0]:
        table.add_column(width=bar_width, no_wrap=True)
    sizes = [_size(group.figures) for group in groups]
    largest = max(sizes, default=0.0)
    table.add_row(Text(grouping.upper()), *(Text(column.name) for column in shown))
    for label, group, size in zip(labels, groups, sizes, strict=True):
        cells_ = (Text(column.cell(group.figures)) for column in shown)
        table.add_row(Text(fit(label, label_width)), *cells_, Bar(largest or 1.0, 0, size, width=max(bar_width, 1)))
    table.add_row(Text("TOTAL"), *(Text(column.cell(total)) for column in shown))
    yield from drawn(table, width)


def note_lines(figures: Figures, models: Sequence[str]) -> Iterator[str]:
    """Yield what ≥ means, if a figure is partial; `models` are those without a known price."""
    if figures.incomplete:
        responses = count(figures.incomplete, "response")
        yield f"≥ at least: the client did not record the final output tokens of {responses}"
    if figures.cut_off:
        yield f"≥ at least: the client did not record the cost of {count(figures.cut_off, 'interrupted response')}"
    if figures.unpriced:
        yield f"≥ at least: no price for {', '.join(map(one_line, models))}"


def short_label(grouping: str, label: str) -> str:
    """Return the name of a group in a few characters: the last part of a path, a model without its date."""
    label = one_line(label)
    if grouping == "project":
        return last_part(label) or label
    return short_model(label) if grouping == "model" else label


def short_model(model: str) -> str:
    """Return a model without its maker and date: opus-4-5."""
    return _MODEL_DATE.sub("", model).removeprefix("claude-")


def _label(grouping: str, group: Group) -> str:
    if grouping == "session":
        return f"{group.key[:8]} {one_line(group.label)}".rstrip()
    return group.label if grouping in PERIODS else short_label(grouping, group.label)


def _size(figures: Figures) -> float:
    return figures.cost_usd if figures.cost_usd is not None else float(figures.tools or 0)
