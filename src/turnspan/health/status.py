"""Where everything stands: what each destination has, what it has not, and why.

Rules:

- It only looks: no file is made, nothing is set aside, and nobody is asked over the network unless `is_asking`.
- A figure is counted, never guessed: what could not be counted in time says "at least".
"""

from __future__ import annotations

import re
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Linkable, Outcome, probe
from turnspan.bulk.pending import Pending, count_pending, first_uses
from turnspan.claude.hooks import US, read_sources, registrations
from turnspan.delivery import state
from turnspan.delivery.destinations import Target, identity_of
from turnspan.errors import StateError, TurnspanError
from turnspan.health.hook_times import HookTimes, hook_times
from turnspan.health.log_lines import Line, counts_in, read_log
from turnspan.settings.options import OPTIONS
from turnspan.source import sessions
from turnspan.trace import ids

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from turnspan.settings.config import Config, Destination

_COUNTING_S: Final = 2.0
_FORGOTTEN: Final = "why is not remembered: of each session, only the latest ones are"
_USER_IN_URL: Final = re.compile(r"//[^/@]*@")


class Place(msgspec.Struct, frozen=True):
    """Where our hooks are registered."""

    scope: str
    path: str
    events: tuple[str, ...]


class Refusal(msgspec.Struct, frozen=True):
    """What a destination will not take, by the reason it gave."""

    reason: str
    spans: int
    session_id: str  # of the latest one


class Newest(msgspec.Struct, frozen=True):
    """The turn that arrived last."""

    session_id: str
    turn: int
    trace_id: str
    at_s: float
    link: str = ""


class Standing(msgspec.Struct, frozen=True, kw_only=True):
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
    held_until_s: float | None = None  # it is left in peace until then
    pending: Pending = Pending()
    refused: tuple[Refusal, ...] = ()
    newest: Newest | None = None
    answer: str | None = None  # what it answers now; None: it was not asked
    answer_reason: str = ""


class Status(msgspec.Struct, frozen=True, kw_only=True):
    """Everything."""

    at_s: float
    home: str
    is_enabled: bool
    switched_by: str
    places: tuple[Place, ...]
    transcripts: int
    unread: tuple[str, ...]  # why some projects cannot be listed: theirs are not counted
    known: int  # sessions with a state
    off: int  # of these, switched off
    unreadable: int  # of these, not understood
    destinations: tuple[Standing, ...]
    strangers: tuple[str, ...]  # destinations with a state that are configured no more
    hook: HookTimes | None
    masked: dict[str, int]
    masked_since: str
    last_trouble: Line | None
    problems: tuple[str, ...]


def take_status(
    config: Config, env: Mapping[str, str], project: Path | None, *, now_s: float, is_asking: bool = False
) -> Status:
    """Look at everything."""
    known = dict(state.checkpoints(config.home))
    checkpoints = [checkpoint for checkpoint in known.values() if checkpoint is not None]
    projects = sessions.projects_dir(config.claude_home)
    unread: dict[str, str] = {}
    files = list(sessions.all_sessions(projects, unread))
    since = first_uses(config.home)
    deadline = time.monotonic() + _COUNTING_S
    standings = []
    for destination in config.destinations:
        identity = identity_of(destination)
        pending = count_pending(
            files, known, config, identity, since_s=since.get(identity), now_s=now_s, deadline=deadline
        )
        standings.append(_standing(destination, checkpoints, config, pending, now_s, is_asking=is_asking))
    ours = {identity_of(destination) for destination in config.destinations}
    masked, masked_since, trouble = _from_log(read_log(config.home))
    return Status(
        at_s=now_s,
        home=str(config.home),
        is_enabled=config.is_enabled,
        switched_by=config.sources["enabled"],
        places=places(env, project),
        transcripts=len(files),
        unread=tuple(unread.values()),
        known=len(known),
        off=sum(checkpoint.is_off for checkpoint in checkpoints),
        unreadable=sum(checkpoint is None for checkpoint in known.values()),
        destinations=tuple(standings),
        strangers=tuple(sorted({name for each in checkpoints for name in each.destinations} - ours)),
        hook=hook_times(projects),
        masked=masked,
        masked_since=masked_since,
        last_trouble=trouble,
        problems=config.problems,
    )


def places(env: Mapping[str, str], project: Path | None) -> tuple[Place, ...]:
    """Where Claude Code is told to call us."""
    found: dict[tuple[str, str], list[str]] = {}
    for hook in registrations(read_sources(env, project)):
        if hook.exporter == US:
            found.setdefault((hook.scope, str(hook.path)), []).append(hook.event)
    return tuple(Place(scope, path, tuple(dict.fromkeys(events))) for (scope, path), events in found.items())


def where_of(destination: Destination, home: Path) -> str:
    """Where a destination leads, without anything secret."""
    options = destination.options
    defaults = {option.name: option.default for option in OPTIONS.get(destination.type, ())}
    if "directory" in defaults:
        return str(Path(str(options["directory"])).expanduser() if options.get("directory") else home / "traces")
    url = str(
        options.get("endpoint") or options.get("base_url") or defaults.get("base_url") or options.get("exporter", "")
    )
    return _USER_IN_URL.sub("//…@", url)


# ---- one destination


def _standing(
    destination: Destination,
    checkpoints: Sequence[state.Checkpoint],
    config: Config,
    pending: Pending,
    now_s: float,
    *,
    is_asking: bool,
) -> Standing:
    identity = identity_of(destination)
    cursors = [(each.session_id, each.destinations[identity]) for each in checkpoints if identity in each.destinations]
    hold = _hold(config.home, identity)
    answer, reason = ask(destination, config) if is_asking else (None, "")
    newest = max(cursors, key=lambda pair: pair[1].last_success_s, default=None)
    errors = [cursor.last_error for _, cursor in cursors if cursor.last_error]
    return Standing(
        name=destination.name,
        type=destination.type,
        where=where_of(destination, config.home),
        source=destination.source,
        capture=str(destination.policy["capture"]),
        sessions=sum(cursor.sent_spans > 0 for _, cursor in cursors),
        turns=sum(cursor.sent_turns for _, cursor in cursors),
        spans=sum(cursor.sent_spans for _, cursor in cursors),
        last_success_s=(newest[1].last_success_s or None) if newest is not None else None,
        last_error=f"{hold.answer}: {hold.reason}" if hold is not None else errors[-1] if errors else "",
        held_until_s=hold.until_s if hold is not None and hold.until_s > now_s else None,
        pending=pending,
        refused=_refusals(cursors),
        newest=_newest(newest, destination, config) if newest is not None else None,
        answer=answer,
        answer_reason=reason,
    )


def _hold(home: Path, identity: str) -> state.Hold | None:
    try:
        return state.load_hold(home, identity)
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
    link = link_of(destination, config, trace_id) or ""
    return Newest(session_id, recent[-1].number, trace_id.hex(), cursor.last_success_s, link)


def link_of(destination: Destination, config: Config, trace_id: bytes) -> str | None:
    """Return the URL of a trace at a destination, without a network request; None if it has none."""
    target = Target(destination, config)
    try:
        return target.backend.link(trace_id) if isinstance(target.backend, Linkable) else None
    except TurnspanError:
        return None
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


def _from_log(lines: Iterable[Line]) -> tuple[dict[str, int], str, Line | None]:
    masked: Counter[str] = Counter()
    since = ""
    trouble = None
    for line in lines:
        since = since or line.at
        masked.update(counts_in(line.facts.get("masked", "")))
        if line.level in {"WARN", "ERROR"}:
            trouble = line
    return dict(masked), since, trouble
