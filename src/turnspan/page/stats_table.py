"""Figures as a table for the terminal, with a bar for each group.

Rules:

- A table has the columns that its grouping can count, most important first; a narrow terminal shows fewer of them.
- The bar shows the group's share of the largest one: its cost, or its calls if tools have no cost.
- The last line is the total.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from turnspan.index.measures import MEASURES
from turnspan.index.stats import DIMENSIONS
from turnspan.text import cells, count, drawn, fit, one_line

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.index.measures import Figures, Measure
    from turnspan.index.stats import Group

_BAR: Final = (4, 24)  # columns, at least and at most
_LABEL: Final = (10, 40)  # columns, at least, and how many more at most
_GAP: Final = 2


def stats_lines(grouping: str, groups: Sequence[Group], total: Figures, width: int) -> Iterator[str]:
    """Yield the table: a head, a line for each group, the total."""
    from rich.bar import Bar  # noqa: PLC0415 - slow to import, and only tables need it
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    labels = [_label(grouping, group) for group in groups]
    figures = [*(group.figures for group in groups), total]
    columns = [each for each in MEASURES if any(each.is_shown(group.figures) for group in groups)]
    widths = {each.name: max(len(each.column), *(cells(each.shown(group)) for group in figures)) for each in columns}
    longest = max([len("TOTAL"), len(grouping), *map(cells, labels)])
    label_width = min(longest, max(_LABEL[0], width // 4))
    left = width - label_width
    shown: list[Measure] = []
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
    table.add_row(Text(grouping.upper()), *(Text(column.column) for column in shown))
    for label, group, size in zip(labels, groups, sizes, strict=True):
        cells_ = (Text(column.shown(group.figures)) for column in shown)
        table.add_row(Text(fit(label, label_width)), *cells_, Bar(largest or 1.0, 0, size, width=max(bar_width, 1)))
    table.add_row(Text("TOTAL"), *(Text(column.shown(total)) for column in shown))
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


def _label(grouping: str, group: Group) -> str:
    if grouping == "session":
        return f"{group.key[:8]} {one_line(group.label)}".rstrip()
    return DIMENSIONS[grouping].short(group.label)


def _size(figures: Figures) -> float:
    return figures.cost_usd if figures.cost_usd is not None else float(figures.tools or 0)
