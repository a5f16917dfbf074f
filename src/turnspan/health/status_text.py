"""A status as lines to read.

Rules:

- Text from a file, a log or a server goes through `one_line`: no control sequence reaches the terminal.
- Empty sections are omitted.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from turnspan.text import age, count, one_line, paint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turnspan.health.log_lines import LogLine
    from turnspan.health.status import DestinationStatus, Status

_LABEL: Final = 9
_NAMED: Final = 5  # reasons that are listed
_GOOD, _POOR, _BAD = "green", "yellow", "red"


def status_lines(status: Status) -> Iterator[str]:
    """Yield the lines of a status."""
    yield from _switches(status)
    more = "at least " if status.unreadable else ""
    words = [more + count(status.transcripts, "transcript"), f"{status.known:,} seen by turnspan"]
    words += [f"{status.off:,} switched off"] if status.off else []
    words += [f"{status.unreadable_states:,} with an unreadable state"] if status.unreadable_states else []
    yield _row("sessions", ", ".join(words))
    for why in status.unreadable:
        yield _row("", paint(one_line(why), _BAD))
    if status.hook is not None:
        took = f"median {status.hook.median_ms:.0f} ms, max {status.hook.longest_ms:.0f} ms"
        yield _row("hook", f"duration: {took} ({count(status.hook.stops, 'run')})")
    if status.masked:
        rules = ", ".join(f"{one_line(rule)} {times:,}" for rule, times in sorted(status.masked.items()))
        yield _row("masked", f"{rules} (in the log since {status.masked_since[:10]})")
    if status.last_error is not None:
        yield _row("error", _log_line(status.last_error))
    for problem in status.problems:
        yield _row("settings", paint(one_line(problem), _BAD))
    for sentence in status.ignored:
        yield _row("settings", one_line(sentence))
    for destination in status.destinations:
        yield ""
        yield from _destination_lines(destination, status.at_s)
    if status.other_exporters:
        yield ""
        names = ", ".join(map(one_line, status.other_exporters))
        yield f"not configured here, but used before or configured in Claude Code's environment: {names}"


def _switches(status: Status) -> Iterator[str]:
    if not status.is_enabled:
        yield _row("turnspan", paint(f"disabled by {one_line(status.disabled_by)}", _BAD))
    for place in status.places:
        yield _row("hooks", f"{one_line(place.scope)} ({one_line(place.path)}): {', '.join(place.events)}")
    if not status.places:
        none = paint("none: Claude Code does not call turnspan", _BAD)
        yield _row("hooks", f"{none}; run `turnspan install`")


def _log_line(line: LogLine) -> str:
    facts = " ".join(f"{name}={one_line(value)}" for name, value in line.facts.items() if name != "trigger")
    return f"{line.at[:19].replace('T', ' ')} UTC, {one_line(line.event)}: {facts}"


def _row(label: str, text: str) -> str:
    return f"{label:{_LABEL}} {text}"


# ---- one destination


def _destination_lines(it: DestinationStatus, now_s: float) -> Iterator[str]:
    source = "" if it.source == "default" else f", from {one_line(it.source)}"
    yield f"{paint(one_line(it.name), is_bold=True)}  {one_line(it.where)} ({it.type}, {it.capture}{source})"
    if it.answer is not None:
        is_good = it.answer == "acknowledged"
        reason = f"{it.answer}: {one_line(it.answer_reason)}"
        yield _below("check", paint("ok", _GOOD) if is_good else paint(reason, _BAD))
    if it.spans:
        when = f", last {_ago(now_s, it.last_success_s)}" if it.last_success_s else ""
        yield _below(
            "sent", f"{count(it.turns, 'turn')} in {count(it.spans, 'span')} of {count(it.sessions, 'session')}{when}"
        )
    else:
        yield _below("sent", "nothing yet")
    yield from _pending_lines(it)
    if it.held_until_s is not None:
        until = time.strftime("%H:%M:%S", time.localtime(it.held_until_s))
        yield _below("backoff", paint(f"until {until} after {one_line(it.last_error)}", _BAD))
    elif it.last_error:
        yield _below("error", paint(f"{one_line(it.last_error)}; the next event retries", _POOR))
    for refusal in it.refused[:_NAMED]:
        where = f"{count(refusal.spans, 'span')}, latest in {one_line(refusal.session_id)[:8]}"
        yield _below("refused", paint(f"{where}: {one_line(refusal.reason)}", _BAD))
    if len(it.refused) > _NAMED:
        yield _below("", f"and for {len(it.refused) - _NAMED} other reasons")
    if it.newest is not None:
        turn = f"turn {it.newest.turn} of {it.newest.session_id[:8]}, {_ago(now_s, it.newest.at_s)}"
        yield _below("newest", f"{turn}: {it.newest.link or it.newest.trace_id}")


def _pending_lines(it: DestinationStatus) -> Iterator[str]:
    pending = it.pending
    if pending.sessions or pending.is_more:
        more = "at least " if pending.is_more else ""
        words = f"{more}{count(pending.turns, 'turn')} of {count(pending.sessions, 'session')}"
        yield _below("pending", paint(words, _POOR))
    if pending.open:
        yield _below("open", f"{count(pending.open, 'session')} with a turn in progress")
    if pending.history:
        older = count(pending.history, "older session")
        yield _below("history", f"{older}; run `turnspan backfill` to export them")


def _below(label: str, text: str) -> str:
    return f"  {label:{_LABEL - 1}} {text}"


def _ago(now_s: float, then_s: float | None) -> str:
    words = age(max(0.0, now_s - (then_s or 0.0)))
    return "just now" if words == "now" else f"{words} ago"
