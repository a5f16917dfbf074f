"""The result of a backfill, a dry run, a check or a retention report: lines to read, and the records of `--json`.

Rules:

- Values in, lines or records out. Control characters from transcripts, paths and servers are removed.
- The keys of a record are a promise: none is removed, none changes its meaning.
- A long list is cut, with the number of entries left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.terminal import count, duration, fit, one_line, pad, tokens, usd
from turnspan.trace.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from turnspan.bulk.dry_run import DryRun, Share
    from turnspan.bulk.retention import Expiring
    from turnspan.bulk.runner import Totals
    from turnspan.bulk.verify import Checked
    from turnspan.claude.cleanup import Period

_NAMED: Final = 20  # sessions with a line of their own
_NAME_WIDTH: Final = 36
_FIGURES: Final = ("TURNS", "RESPONSES", "TOOLS", "TOKENS", "COST")
_NOT_EXPORTED: Final = ("cut_off", "unpriced", "inferred", "incomplete")  # fields of a tally that are not in a record


class Verified(msgspec.Struct, frozen=True):
    """One session at one destination, and whether it was repaired."""

    destination: str
    checked: Checked
    is_repaired: bool = False
    problem: str = ""  # why it could not be repaired

    @property
    def is_complete(self) -> bool:
        """Whether nothing is missing any more."""
        return self.checked.is_complete or (self.is_repaired and not self.checked.overlooked.total)


# ---- backfill


def backfill_lines(totals: Totals, destinations: Sequence[str], seconds: float) -> Iterator[str]:
    """What a backfill sent, and what it did not."""
    speed = f", {totals.read_bytes / 1e6 / seconds:.1f} MB/s" if seconds and totals.read_bytes else ""
    together = " together" if len(destinations) > 1 else ""
    yield (
        f"sent {count(totals.turns, 'turn')} in {count(totals.spans, 'span')} to {', '.join(destinations)}{together}; "
        f"{count(totals.sessions, 'session')} complete, {duration(int(seconds * 1e9))}{speed}"
    )
    if totals.open:
        yield f"  {count(totals.open, 'session')} with a turn in progress: its hook or a later backfill sends it"
    yield from _skipped(totals.copied, totals.off)
    if totals.masked:
        yield f"  masked: {_rules(totals.masked)}"
    if totals.cut:
        yield f"  {count(totals.cut, 'span')} truncated to fit the size limit"
    if totals.refused:
        yield f"  {count(totals.refused, 'span')} refused permanently; `turnspan verify` lists their sessions"
    yield from _unreadable(totals)
    for name, why in totals.given_up.items():
        yield f"gave up on {name}: {one_line(why)}"
    yield from _named("incomplete", totals.left)
    if totals.is_interrupted and totals.waiting:
        yield f"stopped while {one_line(totals.waiting)}"
    if totals.pending:
        since = f" with --since {totals.resend_since}" if totals.resend_since else ""
        yield f"{count(totals.pending, 'session')} not finished: run the same command{since} to continue"


def backfill_record(totals: Totals, destinations: Sequence[str], seconds: float) -> dict[str, object]:
    """The record of a backfill."""
    return {
        "destinations": list(destinations),
        "seconds": round(seconds, 3),
        **msgspec.to_builtins(totals),
        "is_complete": totals.is_complete,
    }


def _skipped(copied: int, off: int) -> Iterator[str]:
    if copied:
        yield f"  {count(copied, 'turn')} skipped: copied from other sessions and exported from there"
    if off:
        yield f"  {count(off, 'trace')} skipped: switched off"


def _unreadable(totals: Totals) -> Iterator[str]:
    """The lines that cannot be read, by session."""
    why = "cannot be read; the rest of the session is not affected"
    yield from _named("damaged", {each: f"{count(lines, 'line')} {why}" for each, lines in totals.unreadable.items()})


def _named(what: str, reasons: Mapping[str, str]) -> Iterator[str]:
    for number, (session_id, why) in enumerate(reasons.items()):
        if number == _NAMED:
            yield f"… and {count(len(reasons) - _NAMED, 'session')} more"
            return
        yield f"{what}: {session_id}: {one_line(why)}"


def _rules(masked: Mapping[str, int]) -> str:
    most = sorted(masked.items(), key=lambda pair: -pair[1])
    return ", ".join(f"{one_line(rule)} {times:,}" for rule, times in most)


# ---- dry run


def dry_run_lines(found: DryRun, planned: int) -> Iterator[str]:
    """What a backfill would send, by destination and project; `planned` is the number of sessions in the plan."""
    if found.totals.is_interrupted:
        yield f"stopped: only {found.totals.tried:,} of {count(planned, 'session')} were read"
    for name, projects in found.destinations.items():
        yield f"to {name}:"
        total = found.total(name)
        rows = [(one_line(project), *_cells(share)) for project, share in sorted(projects.items()) if share.sessions]
        yield from table(("PROJECT", "SESSIONS", *_FIGURES, "MB"), [*rows, ("all", *_cells(total))])
        if total.masked:
            yield f"  to be masked: {_rules(total.masked)}"
        yield from _skipped(total.copied, total.off)
    yield from _unreadable(found.totals)
    yield from _named("cannot be read", found.totals.left)


def _cells(share: Share) -> tuple[str, ...]:
    return (f"{share.sessions:,}", *_tally_cells(share.tally), f"{share.bytes / 1e6:,.1f}")


def dry_run_record(found: DryRun) -> dict[str, object]:
    """The record of a dry run."""
    return {
        "destinations": {
            name: {
                "total": _share_record(found.total(name)),
                "projects": {project: _share_record(share) for project, share in projects.items()},
            }
            for name, projects in found.destinations.items()
        },
        "unreadable": found.totals.unreadable,
        "failed": found.totals.left,
        "is_interrupted": found.totals.is_interrupted,
    }


def _share_record(share: Share) -> dict[str, object]:
    record: dict[str, object] = msgspec.to_builtins(share)
    del record["tally"], record["cwd"]
    return {**record, **tally_record(share.tally)}


# ---- verify


def verify_lines(found: Sequence[Verified], names: Mapping[str, bool], failed: Mapping[str, str]) -> Iterator[str]:
    """A table of differences, then a sentence for each destination; `names` says which ones can be queried."""
    rows = [_difference(one) for one in found if not one.checked.is_complete]
    if rows:
        yield from table(("SESSION", "PROJECT", "TO", *_FIGURES, "MISSING"), rows, left=3)
    for name, is_asked in names.items():
        yield _verdict(name, [one for one in found if one.destination == name], is_asked=is_asked)
    yield from _named("not repaired", {one.checked.session.session_id: one.problem for one in found if one.problem})
    yield from _named("cannot be read", failed)


def _difference(one: Verified) -> tuple[str, ...]:
    checked = one.checked
    arrived = checked.stored if checked.stored is not None else checked.acknowledged
    cells = zip(_tally_cells(arrived), _tally_cells(checked.expected), strict=True)
    return (
        checked.session.session_id[:8],
        one_line(re.split(r"[/\\]", checked.project.rstrip("/\\"))[-1]),
        one.destination,
        *(all_of_it if part == all_of_it else f"{part}/{all_of_it}" for part, all_of_it in cells),
        ", ".join(_missing(one)),
    )


def _missing(one: Verified) -> Iterator[str]:
    checked = one.checked
    for ids, word in ((checked.unsent, "not sent"), (checked.lost, "lost"), (checked.refused, "refused")):
        if ids:
            yield f"{len(ids)} {word}"
    if checked.forgotten:
        yield f"{checked.forgotten} more refused (ids not kept)"
    if checked.doubtful:
        yield f"some of {len(checked.doubtful)} refused"
    if checked.overlooked.total:
        yield f"{_overlooked([checked])} in the files not exported"
    if checked.is_unknown:
        yield "no answer"
    if one.is_repaired:
        yield "sent now"


def _overlooked(found: Sequence[Checked]) -> str:
    """The responses and tool calls that no span has."""
    responses = sum(len(checked.overlooked.responses) for checked in found)
    calls = sum(len(checked.overlooked.calls) for checked in found)
    counts = ((responses, "response"), (calls, "tool call"))
    return " and ".join(count(number, what) for number, what in counts if number)


def _verdict(name: str, found: Sequence[Verified], *, is_asked: bool) -> str:
    expected = _sum(one.checked.expected for one in found)
    figures = (
        f"{count(len(found), 'session')}, {count(expected.turns, 'turn')}, {count(expected.generations, 'response')}, "
        f"{count(expected.tools, 'tool call')}, {tokens(_all_tokens(expected))} tokens, {usd(expected.cost_usd)}"
    )
    bad = [one for one in found if not one.is_complete]
    if not bad:
        if is_asked:
            return f"{name}: complete ({figures})"
        return f"{name}: all acknowledged ({figures}); it cannot be queried"
    missing = sum(one.checked.missing for one in bad)
    doubtful = sum(len(one.checked.doubtful) for one in bad)
    unknown = sum(one.checked.is_unknown for one in bad)
    why = next((f": {one_line(one.checked.silence)}" for one in bad if one.checked.silence), "")
    doubt = f"; some of {count(doubtful, 'span')} refused, it did not say which" if doubtful else ""
    silent = f"; no answer about {count(unknown, 'session')}{why}" if unknown else ""
    overlooked = _overlooked([one.checked for one in bad])
    beyond = f"; {overlooked} in the files not exported: please report this" if overlooked else ""
    lacks = f"{count(missing, 'span')} of {count(len(bad), 'session')} missing (of {figures})"
    return f"{name}: {lacks}{doubt}{silent}{beyond}"


def verify_record(found: Sequence[Verified], names: Mapping[str, bool], failed: Mapping[str, str]) -> dict[str, object]:
    """The record of a check."""
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
    stored = _sum(one.checked.stored for one in found if one.checked.stored is not None)
    return {
        "sessions": len(found),
        "expected": tally_record(_sum(one.checked.expected for one in found)),
        "acknowledged": tally_record(_sum(one.checked.acknowledged for one in found)),
        "stored": tally_record(stored) if is_asked else None,
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
        "unsent": _hex(checked.unsent),
        "lost": _hex(checked.lost),
        "refused": _hex(checked.refused),
        "forgotten": checked.forgotten,
        "doubtful": _hex(checked.doubtful),
        "is_unknown": checked.is_unknown,
        "silence": checked.silence or None,
        "overlooked": sorted(checked.overlooked.responses | checked.overlooked.calls),
        "is_repaired": one.is_repaired,
        "problem": one.problem,
    }


def _hex(ids: Iterable[bytes]) -> list[str]:
    return sorted(span_id.hex() for span_id in ids)


# ---- retention


def retention_lines(
    found: Sequence[Expiring], period: Period, within: float, failed: Mapping[str, str]
) -> Iterator[str]:
    """The unsent sessions that Claude Code deletes soon."""
    source = f" ({one_line(str(period.source))})" if period.source is not None else ""
    deletes = f"Claude Code deletes transcripts after {period.days} days{source}"
    if found:
        head = ("DELETED IN", "SESSION", "PROJECT", "NOT SENT TO", *_FIGURES)
        yield from table(head, [row for one in found for row in _expiring_rows(one)], left=4)
        yield f"{deletes}; run `turnspan backfill` to send these first"
    else:
        yield f"no unsent transcript will be deleted in the next {within:g} days; {deletes}"
    yield from _named("cannot be read", failed)


def _expiring_rows(one: Expiring) -> Iterator[tuple[str, ...]]:
    deleted_in = "now" if one.days_left < 0 else f"{one.days_left:.1f} d"
    for name, tally in one.unsent.items():
        yield deleted_in, one.session.session_id[:8], one_line(one.project), name, *_tally_cells(tally)


def retention_record(found: Sequence[Expiring], period: Period, failed: Mapping[str, str]) -> dict[str, object]:
    """The record of a retention report."""
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


def _sum(tallies: Iterable[Tally]) -> Tally:
    return sum(tallies, start=Tally())


def _all_tokens(tally: Tally) -> int:
    used = tally.usage
    return used.input + used.output + used.cache_read + used.cache_write


def _tally_cells(tally: Tally) -> tuple[str, ...]:
    cost = ("≥" if tally.is_cost_partial else "") + usd(tally.cost_usd)
    return (f"{tally.turns:,}", f"{tally.generations:,}", f"{tally.tools:,}", tokens(_all_tokens(tally)), cost)


def tally_record(tally: Tally) -> dict[str, object]:
    """The figures of some traces as a record."""
    figures: dict[str, object] = msgspec.to_builtins(tally)
    kept = {name: value for name, value in figures.items() if name not in _NOT_EXPORTED}
    return {**kept, "is_cost_partial": tally.is_cost_partial}


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, left: int = 1) -> Iterator[str]:
    """Rows under a heading. The first `left` columns and MISSING are left-aligned text, the others numbers."""
    widths = [min(_NAME_WIDTH, max(len(cell) for cell in column)) for column in zip(head, *rows, strict=True)]
    for row in (head, *rows):
        cells = [
            pad(cell, width) if number < left else fit(cell, 60) if head[number] == "MISSING" else f"{cell:>{width}}"
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
