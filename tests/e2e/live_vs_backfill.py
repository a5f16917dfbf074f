"""Live and once more: spans that came piece by piece, next to those that the finished files give on another machine.

They must be the same, to the last byte, but for the hours that the copied transcripts were moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .time_shift import HOURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Row = dict[str, Any]
RECEIPT = ("request", "t", "path")  # how a span came, not what it is


def differences(live: Iterable[Row], again: Iterable[Row]) -> Iterator[str]:
    """Name the spans that differ."""
    first = {_identity(row): row for row in live}
    second = {_identity(row): row for row in map(_hours_after, again)}
    for key in first.keys() | second.keys():
        one = {k: v for k, v in first.get(key, {}).items() if k not in RECEIPT}
        two = {k: v for k, v in second.get(key, {}).items() if k not in RECEIPT}
        differing = [k for k in one.keys() | two.keys() if one.get(k) != two.get(k)]
        if differing and differing != ["span_id"]:
            told = "only live" if not two else "only in the backfill" if not one else _told(differing, one, two)
            yield f"{one.get('name') or two.get('name')} {key[1]}: {told}"


def _identity(row: Row) -> tuple[str, ...]:
    """Know a span again; an event's id may come from the time of a row that has no other mark, and that time moved."""
    if row["attributes"].get("openinference.span.kind") != "CHAIN":
        return row["trace_id"], row["span_id"]
    return row["trace_id"], row["name"], str(row["start_ns"])


def _hours_after(row: Row) -> Row:
    moved = HOURS * 3600 * 10**9
    return {**row, "start_ns": row["start_ns"] + moved, "end_ns": row["end_ns"] + moved}


def _told(differing: list[str], one: Row, two: Row) -> str:
    if differing == ["attributes"]:
        one, two = one["attributes"], two["attributes"]
        differing = [k for k in one.keys() | two.keys() if one.get(k) != two.get(k)]
    return ", ".join(f"{k}: {str(one.get(k))[:60]} / {str(two.get(k))[:60]}" for k in sorted(differing))
