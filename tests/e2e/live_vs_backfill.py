"""Compares the spans that were exported live with those of a backfill of the finished transcripts on another machine.

They must be identical, except for the hours by which the copied transcripts were moved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .time_shift import HOURS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Row = dict[str, Any]
RECEIPT = ("request", "t", "path")  # fields about the delivery, not about the span


def differences(live: Iterable[Row], backfilled: Iterable[Row]) -> Iterator[str]:
    """Yield a description of every span that differs."""
    first = {_identity(row): row for row in live}
    second = {_identity(row): row for row in map(_moved_forward, backfilled)}
    for key in first.keys() | second.keys():
        one = {k: v for k, v in first.get(key, {}).items() if k not in RECEIPT}
        two = {k: v for k, v in second.get(key, {}).items() if k not in RECEIPT}
        differing = [k for k in one.keys() | two.keys() if one.get(k) != two.get(k)]
        if differing and differing != ["span_id"]:
            what = "only live" if not two else "only in the backfill" if not one else _describe(differing, one, two)
            yield f"{one.get('name') or two.get('name')} {key[1]}: {what}"


def _identity(row: Row) -> tuple[str, ...]:
    """Return what identifies a span. An event's id may be derived from the time of its row, which was moved."""
    if row["attributes"].get("openinference.span.kind") != "CHAIN":
        return row["trace_id"], row["span_id"]
    return row["trace_id"], row["name"], str(row["start_ns"])


def _moved_forward(row: Row) -> Row:
    moved = HOURS * 3600 * 10**9
    return {**row, "start_ns": row["start_ns"] + moved, "end_ns": row["end_ns"] + moved}


def _describe(differing: list[str], one: Row, two: Row) -> str:
    if differing == ["attributes"]:
        one, two = one["attributes"], two["attributes"]
        differing = [k for k in one.keys() | two.keys() if one.get(k) != two.get(k)]
    return ", ".join(f"{k}: {str(one.get(k))[:60]} / {str(two.get(k))[:60]}" for k in sorted(differing))
