"""The figures of a group: what is counted, and how each figure is named and written wherever it is shown.

`turnspan stats`, its `--json`, the list of sessions and the page have these figures and no others. A new one is a row
of `COUNTS` (a sum over a table of the index) with its field in `Figures`, and a row of `MEASURES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import msgspec

from turnspan.text import duration, tokens, usd
from turnspan.trace.model import Usage
from turnspan.trace.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

USAGE: Final = Usage.__struct_fields__[:-1]
_NO_PRICE: Final = (
    "cost_usd IS NULL AND NOT is_aborted AND response.input + response.output + response.cache_read"
    " + response.cache_write_5m + response.cache_write_1h > 0"
)
# What is counted in each table, by the name of the figure.
COUNTS: Final[Mapping[str, Mapping[str, str]]] = {
    "response": {
        "generations": "COUNT(*)",
        "generations_failed": "SUM(response.error IS NOT NULL)",
        **{name: f"SUM(response.{name})" for name in USAGE},
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
        """Failed responses and tool calls, denied and interrupted ones included, as `show` counts them."""
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

    @property
    def tools_ms(self) -> float | None:
        """How long tool calls took."""
        return self.tools_ns / 1e6 if self.tools_ns is not None else None

    @property
    def active_ms(self) -> float | None:
        """How long a response, a tool or an agent was at work."""
        return self.active_ns / 1e6 if self.active_ns is not None else None


Counted: TypeAlias = Figures | Tally


def figures_of(values: Mapping[str, object], tables: Iterable[str]) -> Figures:
    """Make figures of what was found: 0 if a table has no such row, None if the figure is in none of the tables."""
    found: dict[str, Any] = {figure: values.get(figure) or 0 for table in tables for figure in COUNTS[table]}
    if "turns" in found:
        found["sessions"] = values.get("sessions") or 0
    if "input" in found:
        used = {name: found.pop(name) for name in USAGE}
        found["usage"] = Usage(**used, is_incomplete=bool(found["incomplete"]))
        found["cost_usd"] = float(found["cost_usd"])
    return Figures(**found)


# ---- how they are shown


def _number(value: int, _counted: Counted) -> str:
    return f"{value:,}"


def _tokens(value: int, _counted: Counted) -> str:
    return tokens(value)


def _partial_tokens(value: int, counted: Counted) -> str:
    return tokens(value, is_partial=bool(counted.incomplete)) if counted.generations else ""


def _usd(value: float, counted: Counted) -> str:
    return usd(value, is_partial=counted.is_cost_partial) if counted.generations else ""


def _share(value: float, _counted: Counted) -> str:
    return "<1%" if 0 < value < 0.01 else f"{value:.0%}"


def _time(value: float, _counted: Counted) -> str:
    return duration(round(value * 1e6))


class Measure(NamedTuple):
    """A figure: its name, which is its key in JSON, how it is written, and its column in a table."""

    name: str  # of an attribute; with a dot, of a part of one
    text: Callable[[Any, Counted], str] | None = None
    column: str = ""
    unless: str = ""  # a figure that is shown instead, if it is known

    def value(self, counted: Counted) -> object:
        """Return the value; None if it is not known."""
        value: object = counted
        for part in self.name.split("."):
            value = getattr(value, part, None)
        return value

    def shown(self, counted: Counted) -> str:
        """Return the value as text; empty if it is not known."""
        value = self.value(counted)
        return self.text(value, counted) if self.text is not None and value is not None else ""

    def is_shown(self, counted: Counted) -> bool:
        """Whether a table has a column for it."""
        return bool(self.column) and self.value(counted) is not None and getattr(counted, self.unless, None) is None


# The columns of a table in the order of importance.
MEASURES: Final = (
    Measure("cost_usd", _usd, "COST"),
    Measure("tokens", _partial_tokens, "TOKENS"),
    Measure("turns", _number, "TURNS"),
    Measure("agents", _number, "RUNS", unless="turns"),
    Measure("generations", _number, "RESPONSES", unless="turns"),
    Measure("tools", _number, "CALLS"),
    Measure("tools_failed", _number, "FAILED"),
    Measure("cache_hit_rate", _share, "CACHE"),
    Measure("active_ms", _time, "ACTIVE"),
    Measure("tools_denied", _number, "DENIED", unless="usage"),
    Measure("tools_ms", _time, "TIME", unless="usage"),
    Measure("usage.input", _tokens, "INPUT"),
    Measure("usage.output", _partial_tokens, "OUTPUT"),
    Measure("usage.cache_read", _tokens, "READ"),
    Measure("usage.cache_write", _tokens, "WRITE"),
    Measure("usage.cache_write_5m", _tokens),
    Measure("usage.cache_write_1h", _tokens),
    Measure("sessions", _number),
    Measure("generations_failed", _number),
    Measure("tools_interrupted", _number),
    Measure("errors", _number),
    Measure("usage"),
    Measure("is_cost_partial"),
)
_BY_NAME: Final = {measure.name: measure for measure in MEASURES}


def values_of(counted: Counted) -> dict[str, object]:
    """Return all figures as values that JSON can represent."""
    return {each.name: msgspec.to_builtins(each.value(counted)) for each in MEASURES if "." not in each.name}


def text_of(name: str, counted: Counted) -> str:
    """Return a figure as text."""
    return _BY_NAME[name].shown(counted)


def shown_values_of(counted: Counted) -> dict[str, object]:
    """Return all figures as values, and below `text` as the terminal shows them."""
    texts = {each.name: each.shown(counted) for each in MEASURES if each.text is not None}
    return {**values_of(counted), "text": texts}
