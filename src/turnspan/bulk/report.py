"""What became of a backfill, a survey or a check: lines for people, records for machines.

Rules:

- Values in, lines out. What came from a transcript, a path or a server is stripped of what a terminal would obey.
- A list that is long is cut, and says how much more there is.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.terminal import count, duration, fit, one_line, pad, tokens, usd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.bulk.backfill import Totals
    from turnspan.bulk.dry_run import Share, Survey
    from turnspan.bulk.retention import Expiring
    from turnspan.bulk.verify import Checked
    from turnspan.claude.cleanup import Period
    from turnspan.trace.tally import Tally

_NAMED: Final = 20  # sessions with a line of their own
_NAME_WIDTH: Final = 36


class Verified(msgspec.Struct, frozen=True):
    """One session at one destination, and whether it was repaired."""

    destination: str
    checked: Checked
    is_repaired: bool = False
    problem: str = ""  # why it could not be repaired

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing any more."""
        return self.checked.is_complete or self.is_repaired


# ---- a backfill


def backfill_lines(totals: Totals, destinations: Sequence[str], seconds: float) -> Iterator[str]:
    """What a backfill did, and what it did not."""
    speed = f", {totals.read_bytes / 1e6 / seconds:.1f} MB/s" if seconds and totals.read_bytes else ""
    took = f"{duration(int(seconds * 1e9))}{speed}"
    together = " together" if len(destinations) > 1 else ""
    yield (
        f"sent {count(totals.turns, 'turn')} in {count(totals.spans, 'span')} to {', '.join(destinations)}{together}; "
        f"{count(totals.sessions, 'session')} done, {took}"
    )
    if totals.open:
        yield f"  {count(totals.open, 'session')} with a turn that goes on: its hook sends it, or a later backfill"
    if totals.copied:
        yield f"  {count(totals.copied, 'turn')} copied from other sessions, where they are sent"
    if totals.off:
        yield f"  {count(totals.off, 'trace')} not sent: switched off"
    if totals.masked:
        yield f"  masked: {_rules(totals.masked)}"
    if totals.cut:
        yield f"  {count(totals.cut, 'span')} shortened to be taken"
    if totals.refused:
        yield f"  {count(totals.refused, 'span')} refused for good; `turnspan verify` names their sessions"
    for name, why in totals.given_up.items():
        yield f"{name} was given up: {one_line(why)}"
    yield from _named("not acknowledged", totals.left)
    if totals.is_interrupted and totals.waiting:
        yield f"stopped while {one_line(totals.waiting)}"
    if totals.pending:
        since = f" with --since {totals.resend_since}" if totals.resend_since else ""
        yield f"{count(totals.pending, 'session')} not done: the same command{since} goes on with them"


def backfill_record(totals: Totals, destinations: Sequence[str], seconds: float) -> dict[str, object]:
    """The same for machines."""
    return {
        "destinations": list(destinations),
        "seconds": round(seconds, 3),
        **msgspec.to_builtins(totals),
        "is_complete": totals.is_complete,
    }


def _named(what: str, reasons: Mapping[str, str]) -> Iterator[str]:
    for number, (session_id, why) in enumerate(reasons.items()):
        if number == _NAMED:
            yield f"… and {count(len(reasons) - _NAMED, 'session')} more"
            return
        yield f"{what}: {session_id}: {one_line(why)}"


def _rules(masked: Mapping[str, int]) -> str:
    most = sorted(masked.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{one_line(rule)} {times:,}" for rule, times in most)


# ---- what one would do


def survey_lines(survey: Survey, planned: int) -> Iterator[str]:
    """What would be sent, by destination and project; `planned` sessions were to be looked at."""
    if survey.is_interrupted:
        yield f"stopped: only {survey.sessions:,} of {count(planned, 'session')} were looked at"
    for name, projects in survey.destinations.items():
        yield f"to {name}:"
        total = survey.total(name)
        named = sorted(((project, share) for project, share in projects.items() if share.sessions), key=_by_name)
        rows = [(one_line(project), *_figures(share)) for project, share in named]
        yield from table(
            ("PROJECT", "SESSIONS", "TURNS", "RESPONSES", "TOOLS", "TOKENS", "COST", "MB"),
            [*rows, ("all", *_figures(total))],
        )
        if total.masked:
            yield f"  would be masked: {_rules(total.masked)}"
        if total.off:
            yield f"  {count(total.off, 'trace')} would stay here: switched off"
        if total.copied:
            yield f"  {count(total.copied, 'turn')} copied from other sessions, where they are sent"
    yield from _named("cannot be read", survey.failed)


def _by_name(pair: tuple[str, Share]) -> str:
    return pair[0]


def _figures(share: Share) -> tuple[str, ...]:
    return (f"{share.sessions:,}", *_tally_cells(share.tally), f"{share.bytes / 1e6:,.1f}")


def survey_record(survey: Survey) -> dict[str, object]:
    """The same for machines."""
    return {
        "destinations": {
            name: {
                "total": _share_record(survey.total(name)),
                "projects": {project: _share_record(share) for project, share in projects.items()},
            }
            for name, projects in survey.destinations.items()
        },
        "failed": survey.failed,
        "is_interrupted": survey.is_interrupted,
    }


def _share_record(share: Share) -> dict[str, object]:
    return {
        "sessions": share.sessions,
        **tally_record(share.tally),
        "bytes": share.bytes,
        "masked": share.masked,
        "off": share.off,
        "copied": share.copied,
    }


# ---- a check


def verify_lines(found: Sequence[Verified], names: Mapping[str, bool], failed: Mapping[str, str]) -> Iterator[str]:
    """A table of differences, then a sentence for each destination; `names` says which ones could be asked."""
    rows = [_difference(one) for one in found if not one.checked.is_complete]
    if rows:
        yield from table(
            ("SESSION", "PROJECT", "TO", "TURNS", "RESPONSES", "TOOLS", "TOKENS", "COST", "MISSING"), rows, left=3
        )
    for name, is_asked in names.items():
        yield _verdict(name, [one for one in found if one.destination == name], is_asked=is_asked)
    yield from _named("not repaired", {one.checked.session.session_id: one.problem for one in found if one.problem})
    yield from _named("cannot be read", failed)


def _difference(one: Verified) -> tuple[str, ...]:
    checked = one.checked
    there = checked.stored if checked.stored is not None else checked.acknowledged
    cells = zip(_tally_cells(there), _tally_cells(checked.expected), strict=True)
    missing = [
        f"{len(ids)} {word}"
        for ids, word in ((checked.unsent, "not sent"), (checked.lost, "lost"), (checked.refused, "refused"))
        if ids
    ]
    if checked.forgotten:
        missing.append(f"{checked.forgotten} more refused, not remembered which")
    if checked.doubtful:
        missing.append(f"some of {len(checked.doubtful)} refused")
    if checked.is_unknown:
        missing.append("no answer")
    if one.is_repaired:
        missing.append("sent now")
    return (
        checked.session.session_id[:8],
        one_line(re.split(r"[/\\]", checked.project.rstrip("/\\"))[-1]),
        one.destination,
        *(whole if part == whole else f"{part}/{whole}" for part, whole in cells),
        ", ".join(missing),
    )


def _verdict(name: str, found: Sequence[Verified], *, is_asked: bool) -> str:
    expected = sum((one.checked.expected for one in found), start=_nothing())
    figures = (
        f"{count(len(found), 'session')}, {count(expected.turns, 'turn')}, {count(expected.generations, 'response')}, "
        f"{count(expected.tools, 'tool call')}, {tokens(_all_tokens(expected))} tokens, {usd(expected.cost_usd)}"
    )
    bad = [one for one in found if not one.is_complete]
    if not bad:
        there = "there" if is_asked else "acknowledged; it cannot be asked what it holds"
        return f"{name}: all of {figures} is {there}"
    missing = sum(one.checked.missing for one in bad)
    unknown = sum(one.checked.is_unknown for one in bad)
    why = next((f": {one_line(one.checked.silence)}" for one in bad if one.checked.silence), "")
    silent = f"; no answer about {count(unknown, 'session')}{why}" if unknown else ""
    doubtful = sum(len(one.checked.doubtful) for one in bad)
    doubt = f"; some of {count(doubtful, 'span')} refused, it did not say which" if doubtful else ""
    return f"{name}: of {figures}, {count(missing, 'span')} of {count(len(bad), 'session')} missing{doubt}{silent}"


def verify_record(found: Sequence[Verified], names: Mapping[str, bool], failed: Mapping[str, str]) -> dict[str, object]:
    """The same for machines."""
    return {
        "is_complete": not failed and all(one.is_complete for one in found),
        "destinations": {
            name: _destination_record([one for one in found if one.destination == name], is_asked=is_asked)
            for name, is_asked in names.items()
        },
        "differences": [_difference_record(one) for one in found if not one.checked.is_complete],
        "failed": dict(failed),
    }


def _destination_record(found: Sequence[Verified], *, is_asked: bool) -> dict[str, object]:
    stored = [one.checked.stored for one in found]
    return {
        "sessions": len(found),
        "expected": tally_record(sum((one.checked.expected for one in found), start=_nothing())),
        "acknowledged": tally_record(sum((one.checked.acknowledged for one in found), start=_nothing())),
        "stored": tally_record(sum((s for s in stored if s is not None), start=_nothing())) if is_asked else None,
        "missing_spans": sum(one.checked.missing for one in found if not one.is_complete),
        "off": sum(one.checked.off for one in found),
    }


def _difference_record(one: Verified) -> dict[str, object]:
    checked = one.checked
    return {
        "session_id": checked.session.session_id,
        "path": str(checked.session.path),
        "project": checked.project,
        "destination": one.destination,
        "expected": tally_record(checked.expected),
        "acknowledged": tally_record(checked.acknowledged),
        "stored": tally_record(checked.stored) if checked.stored is not None else None,
        "unsent": sorted(span.hex() for span in checked.unsent),
        "lost": sorted(span.hex() for span in checked.lost),
        "refused": sorted(span.hex() for span in checked.refused),
        "forgotten": checked.forgotten,
        "doubtful": sorted(span.hex() for span in checked.doubtful),
        "is_unknown": checked.is_unknown,
        "silence": checked.silence or None,
        "is_repaired": one.is_repaired,
        "problem": one.problem,
    }


# ---- what goes soon


def retention_lines(
    found: Sequence[Expiring], period: Period, within: float, failed: Mapping[str, str]
) -> Iterator[str]:
    """The sessions that go soon with something unsent."""
    yield from _expiring_lines(found, period, within)
    yield from _named("cannot be read", failed)


def _expiring_lines(found: Sequence[Expiring], period: Period, within: float) -> Iterator[str]:
    says = f" ({one_line(str(period.source))})" if period.source is not None else ""
    deletes = f"Claude Code deletes transcripts after {period.days} days{says}"
    if not found:
        yield f"nothing unsent goes within {within:g} days; {deletes}"
        return
    rows = [
        (
            "now" if one.days_left < 0 else f"{one.days_left:.1f} d",
            one.session.session_id[:8],
            one_line(one.project),
            name,
            *_tally_cells(tally),
        )
        for one in found
        for name, tally in one.unsent.items()
    ]
    yield from table(
        ("GOES IN", "SESSION", "PROJECT", "NOT SENT TO", "TURNS", "RESPONSES", "TOOLS", "TOKENS", "COST"), rows, left=4
    )
    yield f"{deletes}; `turnspan backfill` sends them before that"


def retention_record(found: Sequence[Expiring], period: Period, failed: Mapping[str, str]) -> dict[str, object]:
    """The same for machines."""
    return {
        "cleanup_days": period.days,
        "cleanup_source": str(period.source) if period.source is not None else None,
        "expiring": [
            {
                "session_id": one.session.session_id,
                "path": str(one.session.path),
                "project": one.project,
                "days_left": round(one.days_left, 3),
                "unsent": {name: tally_record(tally) for name, tally in one.unsent.items()},
            }
            for one in found
        ],
        "failed": dict(failed),
    }


# ---- figures


def _nothing() -> Tally:
    from turnspan.trace.tally import Tally  # noqa: PLC0415 - it is only needed to begin a sum

    return Tally()


def _all_tokens(tally: Tally) -> int:
    used = tally.usage
    return used.input + used.output + used.cache_read + used.cache_write


def _tally_cells(tally: Tally) -> tuple[str, ...]:
    cost = ("≥" if tally.is_cost_partial else "") + usd(tally.cost_usd)
    return (f"{tally.turns:,}", f"{tally.generations:,}", f"{tally.tools:,}", tokens(_all_tokens(tally)), cost)


def tally_record(tally: Tally) -> dict[str, object]:
    """What some traces amount to, for machines."""
    return {
        "turns": tally.turns,
        "generations": tally.generations,
        "tools": tally.tools,
        "agents": tally.agents,
        "errors": tally.errors,
        "usage": msgspec.to_builtins(tally.usage),
        "cost_usd": tally.cost_usd,
        "is_cost_partial": tally.is_cost_partial,
    }


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, left: int = 1) -> Iterator[str]:
    """Rows below their names; the first `left` columns and the last of a longer row are words, the others figures."""
    widths = [min(_NAME_WIDTH, max(len(cell) for cell in column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            pad(cell, width) if number < left else fit(cell, 60) if head[number] == "MISSING" else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
