"""Sessions as rows of a table: what each amounts to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from turnspan.terminal import age, cells, fit, one_line, pad, tokens, usd
from turnspan.trace.model import Kind
from turnspan.trace.one_liner import words_of
from turnspan.trace.tally import Tally, tally_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace


class Summary(msgspec.Struct, frozen=True):
    """A session in one row."""

    session_id: str
    path: Path
    title: str
    project: str  # the working directory; before any turn the name of the directory it lies in
    tally: Tally
    last_ns: int  # when something last happened in it
    client_version: str = ""


def summarise(session: SessionFile, traces: Iterable[Trace], *, title: str = "", written_ns: int = 0) -> Summary:
    """What a session amounts to. `title` and `written_ns` hold where its traces say nothing about that."""
    total = Tally()
    named = prompt = project = version = ""
    last_ns = 0
    for trace in traces:
        total += tally_of(trace)
        named = str(trace.facts.get("title") or named)
        project = trace.cwd or project
        version = trace.client_version or version
        last_ns = max([last_ns, *(span.end_ns for span in trace.spans)])
        prompt = prompt or next((words_of(span) for span in trace.spans if span.kind is Kind.TURN), "")
    return Summary(
        session.session_id,
        session.path,
        one_line(named or title or prompt),
        project or session.project,
        total,
        last_ns or written_ns,
        version,
    )


def table_head(width: int, *, has_sent: bool = False) -> str:
    """The names of the columns."""
    return _row(("AGE", "SESSION", "TURNS", "TOKENS", "COST", "SENT" if has_sent else None, "PROJECT", "TITLE"), width)


def table_row(summary: Summary, width: int, *, now_ns: int, sent: str | None = None) -> str:
    """A session on one line. `sent` says how much of it has arrived; without it there is no such column."""
    return _row(columns_of(summary, now_ns=now_ns, sent=sent), width)


def columns_of(summary: Summary, *, now_ns: int, sent: str | None) -> tuple[str | None, ...]:
    """A session's age, id, turns, tokens, cost, how much has arrived, project and title, each for a person."""
    total = summary.tally
    used = total.usage
    counted = used.input + used.output + used.cache_read + used.cache_write
    return (
        age((now_ns - summary.last_ns) / 1e9) if summary.last_ns else "",
        summary.session_id[:8],
        str(total.turns),
        ("≥" if used.is_incomplete else "") + tokens(counted) if total.generations else "",
        ("≥" if total.is_cost_partial else "") + usd(total.cost_usd) if total.generations else "",
        sent,
        one_line(re.split(r"[/\\]", summary.project.rstrip("/\\"))[-1]),
        summary.title if total.turns or summary.title else "(no turn yet)",
    )


def _row(columns: tuple[str | None, ...], width: int) -> str:
    when, session, turns, used, cost, sent, project, title = columns
    line = f"{when:>4}  {session:8}  {turns:>5}  {used:>7}  {cost:>9}  "
    if sent is not None:
        line += f"{sent:>7}  "
    left = max(width - cells(line), 20)
    for_project = min(20, left * 2 // 5)
    return (line + pad(project or "", for_project) + "  " + fit(title or "", left - for_project - 2)).rstrip()
