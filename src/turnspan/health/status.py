"""The status: what each destination has, what it does not have, and why.

Rules:

- Nothing is written, and no network request is made unless `is_asking`.
- What is pending is counted by `unsent`: from the index for a session of which nothing was sent, else by reading.
- A figure is counted, never estimated: if there was no time to count everything, it says "at least".
- An error that is over is not shown: a later line of the log says that the same destination received something.
- Pending is what could be sent now. Sessions last written before a destination was first used are history: they wait
  for `backfill`.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Outcome, probe
from turnspan.claude.hooks import US, read_sources, registrations
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target, first_uses
from turnspan.delivery.unsent import is_history, may_have_more, read_unsent
from turnspan.errors import StateError, TurnspanError
from turnspan.health.hook_times import HookTimes, hook_times
from turnspan.health.log_lines import LogLine, counts_in, read_log
from turnspan.index.totals import KnownTotals
from turnspan.settings.options import OPTIONS
from turnspan.source import sessions
from turnspan.trace import ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from turnspan.settings.config import Config, Destination
    from turnspan.source.sessions import SessionFile

_COUNTING_S: Final = 2.0
_FORGOTTEN: Final = "the reason is not remembered: only the latest refusals of each session are"
_USER_IN_URL: Final = re.compile(r"//[^/@]*@")


class Pending(msgspec.Struct, frozen=True):
    """What could be sent now and was not."""

    sessions: int = 0
    turns: int = 0
    is_more: bool = False  # there was no time to count them all
    open: int = 0  # sessions with a turn that has not ended
    history: int = 0  # sessions from before the first use, which wait for `backfill`


class HookPlace(msgspec.Struct, frozen=True):
    """Where turnspan's hooks are registered."""

    scope: str
    path: str
    events: tuple[str, ...]


class Refusal(msgspec.Struct, frozen=True):
    """Spans that a destination refused, by the reason it gave."""

    reason: str
    spans: int
    session_id: str  # the latest one


class Newest(msgspec.Struct, frozen=True):
    """The turn that arrived last."""

    session_id: str
    turn: int
    trace_id: str
    at_s: float
    link: str = ""


class DestinationStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One destination."""

    name: str
    type: str
    where: str
    source: str
    capture: str
    sessions: int = 0
    turns: int = 0
    spans: int = 0
    last_success_s: float | None = None
    last_error: str = ""
    held_until_s: float | None = None  # backing off until then
    pending: Pending = Pending()
    refused: tuple[Refusal, ...] = ()
    newest: Newest | None = None
    answer: str | None = None  # its response now; None: it was not asked
    answer_reason: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """The status of everything."""

    at_s: float
    home: str
    is_enabled: bool
    disabled_by: str
    places: tuple[HookPlace, ...]
    transcripts: int
    unreadable: tuple[str, ...]  # why some projects cannot be listed: their transcripts are not counted
    known: int  # sessions with a state
    off: int  # of these, switched off
    unreadable_states: int  # of these, with a state that cannot be used
    destinations: tuple[DestinationStatus, ...]
    other_exporters: tuple[str, ...]  # destinations that have a state and are not configured
    hook: HookTimes | None
    masked: dict[str, int]
    masked_since: str
    last_error: LogLine | None
    problems: tuple[str, ...]
    ignored: tuple[str, ...] = ()  # variables that have no effect


def take_status(
    config: Config, env: Mapping[str, str], project: Path | None, *, now_s: float, is_asking: bool = False
) -> Status:
    """Return the status of everything."""
    known = dict(state.checkpoints(config.home))
    checkpoints = [checkpoint for checkpoint in known.values() if checkpoint is not None]
    projects = sessions.projects_dir(config.claude_home)
    unread: dict[str, str] = {}
    files = list(sessions.all_sessions(projects, unread))
    uses = _first_uses(config.home)
    deadline = time.monotonic() + _COUNTING_S
    targets = [Target(destination, config) for destination in config.destinations]
    destinations = []
    with closing(KnownTotals(config)) as totals:
        for target in targets:
            pending = count_pending(files, known, target, uses=uses, now_s=now_s, deadline=deadline, totals=totals)
            destinations.append(_destination_status(target, checkpoints, config, pending, now_s, is_asking=is_asking))
    ours = {target.identity for target in targets}
    masked, masked_since, last_error = _from_log(read_log(config.home))
    return Status(
        at_s=now_s,
        home=str(config.home),
        is_enabled=config.is_enabled,
        disabled_by=config.sources["enabled"],
        places=places(env, project),
        transcripts=len(files),
        unreadable=tuple(unread.values()),
        known=len(known),
        off=sum(checkpoint.is_off for checkpoint in checkpoints),
        unreadable_states=sum(checkpoint is None for checkpoint in known.values()),
        destinations=tuple(destinations),
        other_exporters=tuple(sorted({name for each in checkpoints for name in each.destinations} - ours)),
        hook=hook_times(projects),
        masked=masked,
        masked_since=masked_since,
        last_error=last_error,
        problems=config.problems,
        ignored=config.ignored,
    )


def places(env: Mapping[str, str], project: Path | None) -> tuple[HookPlace, ...]:
    """Return where turnspan's hooks are registered."""
    found: dict[tuple[str, str], list[str]] = {}
    for hook in registrations(read_sources(env, project)):
        if hook.exporter == US:
            found.setdefault((hook.scope, str(hook.path)), []).append(hook.event)
    return tuple(HookPlace(scope, path, tuple(dict.fromkeys(events))) for (scope, path), events in found.items())


def where_of(destination: Destination, home: Path) -> str:
    """Return the address of a destination, without secrets."""
    options = destination.options
    defaults = {option.name: option.default for option in OPTIONS.get(destination.type, ())}
    if "directory" in defaults:
        return str(Path(str(options["directory"])).expanduser() if options.get("directory") else home / "traces")
    url = str(
        options.get("endpoint") or options.get("base_url") or defaults.get("base_url") or options.get("exporter", "")
    )
    return _USER_IN_URL.sub("//…@", url)


# ---- pending


def _first_uses(home: Path) -> dict[str, float]:
    try:
        return first_uses(home)
    except StateError:
        return {}


def count_pending(
    files: Sequence[SessionFile],
    known: Mapping[str, state.Checkpoint | None],
    target: Target,
    *,
    uses: Mapping[str, float],
    now_s: float,
    deadline: float,
    totals: KnownTotals,
) -> Pending:
    """Count what one destination does not have. `deadline` is a time of the monotonic clock."""
    now_ns = int(now_s * 1e9)
    pending = turns = is_open = history = 0
    is_more = False
    for session in files:
        checkpoint = known.get(session.session_id)
        is_new = checkpoint is None or target.identity not in checkpoint.destinations
        try:
            if not may_have_more(session, checkpoint, target.identity):
                continue
            if is_history(session, checkpoint, target, uses):
                history += 1
                continue
            if is_new and (all_of_it := totals.if_unsent(session, target, now_ns)) is not None:
                pending += all_of_it.has_spans
                turns += all_of_it.tally.turns
                continue
            if time.monotonic() > deadline:
                is_more = True
                continue
            found = read_unsent(session, target, now_ns)
        except TurnspanError:  # it cannot be read, so it cannot be sent
            continue
        pending += bool(found.spans)
        turns += found.tally.turns
        is_open += found.has_open_turn
    return Pending(pending, turns, is_more, is_open, history)


# ---- one destination


def _destination_status(
    target: Target,
    checkpoints: Sequence[state.Checkpoint],
    config: Config,
    pending: Pending,
    now_s: float,
    *,
    is_asking: bool,
) -> DestinationStatus:
    destination, identity = target.destination, target.identity
    cursors = [(each.session_id, each.destinations[identity]) for each in checkpoints if identity in each.destinations]
    held = _backoff(config.home, identity)
    answer, reason = ask(destination, config) if is_asking else (None, "")
    newest = max(cursors, key=lambda pair: pair[1].last_success_s, default=None)
    errors = [cursor.last_error for _, cursor in cursors if cursor.last_error]
    return DestinationStatus(
        name=destination.name,
        type=destination.type,
        where=where_of(destination, config.home),
        source=destination.source,
        capture=str(destination.policy["capture"]),
        sessions=sum(cursor.sent_spans > 0 for _, cursor in cursors),
        turns=sum(cursor.sent_turns for _, cursor in cursors),
        spans=sum(cursor.sent_spans for _, cursor in cursors),
        last_success_s=(newest[1].last_success_s or None) if newest is not None else None,
        last_error=f"{held.answer}: {held.reason}" if held is not None else errors[-1] if errors else "",
        held_until_s=held.until_s if held is not None and held.until_s > now_s else None,
        pending=pending,
        refused=_refusals(cursors),
        newest=_newest(newest, destination, config) if newest is not None else None,
        answer=answer,
        answer_reason=reason,
    )


def _backoff(home: Path, identity: str) -> backoff.Backoff | None:
    try:
        return backoff.load(home, identity)
    except StateError:
        return None


def _refusals(cursors: Iterable[tuple[str, state.Cursor]]) -> tuple[Refusal, ...]:
    spans: Counter[str] = Counter()
    latest: dict[str, tuple[float, str]] = {}
    for session_id, cursor in cursors:
        if cursor.forgotten:
            spans[_FORGOTTEN] += cursor.forgotten
            latest[_FORGOTTEN] = (0.0, session_id)
        for entry in cursor.quarantined:
            spans[entry.reason] += entry.spans
            latest[entry.reason] = max(latest.get(entry.reason, (0.0, "")), (entry.at_s, session_id))
    return tuple(Refusal(reason, number, latest[reason][1]) for reason, number in spans.most_common())


def _newest(newest: tuple[str, state.Cursor], destination: Destination, config: Config) -> Newest | None:
    session_id, cursor = newest
    recent = cursor.progress.main.carry.recent
    if not recent or not cursor.sent_spans:
        return None
    trace_id = ids.trace_id(recent[-1].session_id, recent[-1].key)
    known = state.peek(config.home, session_id)
    if known is not None and known.callers and known.callers[-1].is_parent:
        trace_id = bytes.fromhex(known.callers[-1].trace_id)
    link = link_of(destination, config, trace_id) or ""
    return Newest(session_id, recent[-1].number, trace_id.hex(), cursor.last_success_s, link)


def link_of(destination: Destination, config: Config, trace_id: bytes) -> str | None:
    """Return the URL of a trace at a destination, without a network request; None if it has none."""
    target = Target(destination, config)
    try:
        return target.link(trace_id)
    finally:
        target.close()


def ask(destination: Destination, config: Config) -> tuple[str, str]:
    """Probe a destination; return its answer, and the reason if it cannot be used."""
    target = Target(destination, config)
    try:
        found = probe(target.backend)
    except TurnspanError as error:
        return "configuration", str(error)
    finally:
        target.close()
    return str(found.answer), "" if found.outcome is Outcome.GOOD else found.says


# ---- the log


def _from_log(lines: Iterable[LogLine]) -> tuple[dict[str, int], str, LogLine | None]:
    masked: Counter[str] = Counter()
    since = ""
    last_error = None
    for line in lines:
        since = since or line.at
        masked.update(counts_in(line.facts.get("masked", "")))
        if line.level in {"WARN", "ERROR"}:
            last_error = line
        elif last_error is not None and line.event == "sent" and _is_over(last_error, line):
            last_error = None
    return dict(masked), since, last_error


def _is_over(error: LogLine, sent: LogLine) -> bool:
    """Whether an error is over because something was sent later: to its destination, or of its session."""
    if error.event in {"bug", "quarantined"}:  # sending something else does not undo these
        return False
    if "destination" in error.facts:
        return error.facts["destination"] == sent.facts.get("destination")
    return "session" not in error.facts or error.facts["session"] == sent.facts.get("session")
