"""Which sessions there are, and what each amounts to.

Rules:

- Only the sessions asked for are read; finding the newest ones costs a look at each file's date.
- A sum says what it leaves out: responses without a known price, and output that the client did not count to its end.
- Usage and cost are added up from generations, each of which stands in exactly one trace.
"""

from __future__ import annotations

import re
import stat
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from turnspan.source import sessions
from turnspan.source.scan import last_time_ns
from turnspan.terminal import age, cells, fit, one_line, pad, tokens, usd
from turnspan.trace.model import Kind, Usage
from turnspan.view.one_liner import words_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from turnspan.source.sessions import SessionFile
    from turnspan.trace.model import Trace


class Tally(msgspec.Struct, frozen=True):
    """What some traces amount to."""

    turns: int = 0
    generations: int = 0
    tools: int = 0
    agents: int = 0
    errors: int = 0
    usage: Usage = Usage()
    cost_usd: float = 0.0  # of the responses whose cost is known
    cut_off: int = 0  # responses that were interrupted: what they cost is not recorded
    unpriced: frozenset[str] = frozenset()  # models without a known price
    inferred: int = 0  # spans with an inferred time
    incomplete: int = 0  # responses whose output was not counted to its end

    def __add__(self, other: Tally) -> Tally:
        return Tally(
            self.turns + other.turns,
            self.generations + other.generations,
            self.tools + other.tools,
            self.agents + other.agents,
            self.errors + other.errors,
            self.usage + other.usage,
            self.cost_usd + other.cost_usd,
            self.cut_off + other.cut_off,
            self.unpriced | other.unpriced,
            self.inferred + other.inferred,
            self.incomplete + other.incomplete,
        )

    @property
    def is_cost_partial(self) -> bool:
        """Whether the real cost is higher than what could be added up."""
        return bool(self.cut_off or self.unpriced or self.incomplete)


def tally_of(trace: Trace) -> Tally:
    """What one trace amounts to."""
    kinds = Counter(span.kind for span in trace.spans)
    usage, cost_usd, cut_off, incomplete = Usage(), 0.0, 0, 0
    unpriced = set()
    for span in trace.spans:
        if span.usage is None:
            continue
        usage += span.usage
        incomplete += span.usage.is_incomplete
        if span.cost_usd is not None:
            cost_usd += span.cost_usd
        elif "aborted" in span.facts:
            cut_off += 1
        elif has_tokens(span.usage):
            unpriced.add(span.model or span.name)
    return Tally(
        turns=kinds[Kind.TURN],
        generations=kinds[Kind.GENERATION],
        tools=kinds[Kind.TOOL],
        agents=kinds[Kind.AGENT],
        # A turn or an agent fails by one of its responses, which is counted.
        errors=sum(span.error is not None for span in trace.spans if span.kind in {Kind.GENERATION, Kind.TOOL}),
        usage=usage,
        cost_usd=cost_usd,
        cut_off=cut_off,
        unpriced=frozenset(unpriced),
        inferred=sum("time.inferred" in span.facts for span in trace.spans),
        incomplete=incomplete,
    )


def has_tokens(usage: Usage) -> bool:
    """Whether anything was counted."""
    return bool(usage.input or usage.output or usage.cache_read or usage.cache_write)


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
        project = str(trace.facts.get("cwd") or project)
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


# ---- finding them


def newest_sessions(
    projects: Path, *, limit: int, project: str | None = None, unread: dict[str, str] | None = None
) -> list[SessionFile]:
    """The sessions written to last, newest first; those of one project if one is named."""
    found = sessions.each_once(sessions.all_sessions(projects, unread))
    dated = [(written_ns(session.path), session) for session in found]
    dated.sort(key=lambda pair: pair[0], reverse=True)
    wanted = (session for when, session in dated if when and (project is None or sessions.is_of(session, project)))
    newest = [session for _, session in zip(range(limit), wanted, strict=False)]
    # Files that were copied have a new date: among the few that are shown, the transcript's own times decide.
    return sorted(newest, key=lambda s: last_time_ns(s.path) or written_ns(s.path), reverse=True)


def written_ns(path: Path) -> int:
    """When a file was last written to; 0 if it is gone, or nothing that can be read without waiting."""
    try:
        status = path.stat()
    except OSError:
        return 0
    return status.st_mtime_ns if stat.S_ISREG(status.st_mode) else 0


# ---- a table, row by row


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
