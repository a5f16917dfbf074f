"""The result of a backfill, a dry run, a check or a retention report as lines to read.

Rules:

- Control characters from transcripts, paths and servers are removed.
- A long list is cut, with the number of entries left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.text import count, drawn, duration, last_part, one_line, tokens, usd
from turnspan.trace.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.bulk.dry_run import DryRun, Share
    from turnspan.bulk.retention import Expiring
    from turnspan.bulk.runner import Totals
    from turnspan.bulk.verify import Checked
    from turnspan.claude.cleanup import Period
    from turnspan.source.progress import Counts

_NAMED: Final = 20  # sessions with a line of their own
_CELL_WIDTH: Final = 36  # of the widest cell; of MISSING 60
_TABLE_WIDTH: Final = 400  # more than all columns together
_FIGURES: Final = ("TURNS", "RESPONSES", "TOOLS", "TOKENS", "COST")


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
    yield from _skipped(totals)
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


def _skipped(found: Totals | Counts) -> Iterator[str]:
    if found.copied:
        yield f"  {count(found.copied, 'turn')} skipped: copied from other sessions and exported from there"
    if found.repeated:
        yield f"  {count(found.repeated, 'turn')} skipped: repeated in the same file"
    if found.warmups:
        yield f"  {count(found.warmups, 'subagent')} skipped: warm-ups, which the client starts by itself"
    if found.off:
        yield f"  {count(found.off, 'trace')} skipped: switched off"


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
        yield from _table(("PROJECT", "SESSIONS", *_FIGURES, "MB"), [*rows, ("all", *_cells(total))])
        if total.counts.masked:
            yield f"  to be masked: {_rules(total.counts.masked)}"
        yield from _skipped(total.counts)
    yield from _unreadable(found.totals)
    yield from _named("cannot be read", found.totals.left)


def _cells(share: Share) -> tuple[str, ...]:
    return (f"{share.sessions:,}", *_tally_cells(share.tally), f"{share.bytes / 1e6:,.1f}")


# ---- verify


def verify_lines(
    found: Sequence[Verified], names: Mapping[str, bool], history: Mapping[str, int], failed: Mapping[str, str]
) -> Iterator[str]:
    """A table of differences, then a sentence for each destination.

    `names` says which ones can be queried, `history` how many sessions of each wait for `turnspan backfill`.
    """
    rows = [_difference(one) for one in found if not one.checked.is_complete]
    if rows:
        yield from _table(("SESSION", "PROJECT", "TO", *_FIGURES, "MISSING"), rows, left=3)
    for name, is_asked in names.items():
        yield _verdict(name, [one for one in found if one.destination == name], is_asked=is_asked)
        if history[name]:
            older = count(history[name], "older session")
            yield f"  {older} not exported, as intended; run `turnspan backfill` to export {_them(history[name])}"
    yield from _named("not repaired", {one.checked.session.session_id: one.problem for one in found if one.problem})
    yield from _named("cannot be read", failed)


def _them(number: int) -> str:
    return "it" if number == 1 else "them"


def _difference(one: Verified) -> tuple[str, ...]:
    checked = one.checked
    arrived = checked.stored if checked.stored is not None else checked.acknowledged
    cells = zip(_tally_cells(arrived), _tally_cells(checked.expected), strict=True)
    return (
        checked.session.session_id[:8],
        one_line(last_part(checked.project)),
        one.destination,
        *(all_of_it if part == all_of_it else f"{part}/{all_of_it}" for part, all_of_it in cells),
        ", ".join(_missing(one)),
    )


def _missing(one: Verified) -> Iterator[str]:
    checked = one.checked
    states = ((checked.unsent, "not sent"), (checked.lost, "lost"), (checked.refused, "refused"))
    for ids, word in (*states, (checked.in_flight, "in flight")):
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
    if not found:
        return f"{name}: no session was exported yet"
    expected = sum((one.checked.expected for one in found), start=Tally())
    used, cost = _tokens_and_cost(expected)
    figures = (
        f"{count(len(found), 'session')}, {count(expected.turns, 'turn')}, {count(expected.generations, 'response')}, "
        f"{count(expected.tools, 'tool call')}, {used} tokens, {cost}"
    )
    bad = [one for one in found if not one.is_complete]
    doubled = sum(len(one.checked.doubled) for one in found)
    twice = f"; it shows {count(doubled, 'span')} twice" if doubled else ""
    if not bad:
        if is_asked:
            return f"{name}: complete ({figures}){twice}"
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
    flying = sum(len(one.checked.in_flight) for one in bad)
    late = f"; {flying} of these in flight: acknowledged, and not shown yet" if flying else ""
    return f"{name}: {lacks}{late}{doubt}{silent}{beyond}{twice}"


# ---- retention


def retention_lines(
    found: Sequence[Expiring], period: Period, within: float, failed: Mapping[str, str]
) -> Iterator[str]:
    """The unsent sessions that Claude Code deletes soon."""
    source = f" ({one_line(str(period.source))})" if period.source is not None else ""
    deletes = f"Claude Code deletes transcripts after {period.days} days{source}"
    if found:
        head = ("DELETED IN", "SESSION", "PROJECT", "NOT SENT TO", *_FIGURES)
        yield from _table(head, [row for one in found for row in _expiring_rows(one)], left=4)
        yield f"{deletes}; run `turnspan backfill` to send these first"
    else:
        yield f"no unsent transcript will be deleted in the next {within:g} days; {deletes}"
    yield from _named("cannot be read", failed)


def _expiring_rows(one: Expiring) -> Iterator[tuple[str, ...]]:
    deleted_in = "now" if one.days_left < 0 else f"{one.days_left:.1f} d"
    for name, tally in one.unsent.items():
        yield deleted_in, one.session.session_id[:8], one_line(one.project), name, *_tally_cells(tally)


# ---- figures


def _tally_cells(tally: Tally) -> tuple[str, ...]:
    return (f"{tally.turns:,}", f"{tally.generations:,}", f"{tally.tools:,}", *_tokens_and_cost(tally))


def _tokens_and_cost(tally: Tally) -> tuple[str, str]:
    used = tokens(tally.tokens, is_partial=tally.usage.is_incomplete)
    return used, usd(tally.cost_usd, is_partial=tally.is_cost_partial)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, left: int = 1) -> Iterator[str]:
    """Rows under a heading. The first `left` columns and MISSING are left-aligned text, the others numbers."""
    from rich.table import Table  # noqa: PLC0415 - slow to import
    from rich.text import Text  # noqa: PLC0415

    table = Table.grid(padding=(0, 2, 0, 0))
    for number, name in enumerate(head):
        is_text = number < left or name == "MISSING"
        table.add_column(
            justify="left" if is_text else "right", max_width=60 if name == "MISSING" else _CELL_WIDTH, no_wrap=True
        )
    for row in (head, *rows):
        table.add_row(*(Text(cell, overflow="ellipsis") for cell in row))
    return drawn(table, _TABLE_WIDTH)
