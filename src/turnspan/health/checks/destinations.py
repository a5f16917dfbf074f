"""Checks each destination: whether it can be used, its last errors, and whether a test trace arrives."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Final

from turnspan.backends import Answer, Finding, Linkable, Outcome, Probeable, reader_of
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target, identity_of
from turnspan.errors import StateError, TurnspanError
from turnspan.health.checks import CheckGroup, Mark
from turnspan.health.status import where_of
from turnspan.text import count
from turnspan.trace.model import Kind, Message, Span, Text, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnspan.backends import Backend
    from turnspan.health.checks import Check
    from turnspan.settings.config import Config, Destination

_READ_BACK_S: Final = 15.0
_LOOK: Final = "`turnspan config` shows the settings"


def destination_checks(
    destination: Destination,
    config: Config,
    *,
    now_s: float,
    is_sending: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Check]:
    """Check one destination; `is_sending` also sends it a test trace."""
    group = CheckGroup(f"Destination {destination.name}")
    source = "" if destination.source == "default" else f", set in {destination.source}"
    where = where_of(destination, config.home)
    yield group.good(f"{destination.type}: {where and f'{where}, '}{destination.policy['capture']}{source}")
    if destination.source.startswith("$"):
        yield group.doubt(
            "it is set in this shell only: Claude Code started elsewhere, from the dock or an editor, does not see it",
            f"`turnspan install --to {destination.type}` stores it",
        )
    target = Target(destination, config)
    try:
        backend = target.backend
    except TurnspanError as error:
        yield group.bad(str(error.args[0]), error.hint or _LOOK)
        return
    try:
        is_usable = True
        for check in _probed(group, backend):
            is_usable &= check.mark is not Mark.BAD
            yield check
        yield from _past(group, destination, config, now_s)
        if is_sending and is_usable:
            yield from _send_and_read_back(group, target, now_s, sleep)
    finally:
        backend.close()


def _probed(group: CheckGroup, backend: Backend) -> Iterator[Check]:
    """Probe a destination. One that cannot be probed is not sent anything: doctor only looks."""
    if not isinstance(backend, Probeable):
        yield group.good("it cannot be probed; `turnspan doctor --send-test` sends it a test trace")
        return
    found = backend.probe()
    findings = found.findings or (Finding(found.outcome, found.says or "it answers", found.hint),)
    for finding in findings:
        match finding.outcome:
            case Outcome.GOOD:
                yield group.good(finding.says)
            case Outcome.UNKNOWN:
                yield group.doubt(finding.says, finding.hint or _LOOK)
            case Outcome.BAD:
                yield group.bad(finding.says, finding.hint or _LOOK)


# ---- earlier results


def _past(group: CheckGroup, destination: Destination, config: Config, now_s: float) -> Iterator[Check]:
    identity = identity_of(destination)
    try:
        pause = backoff.load(config.home, identity)
    except StateError:
        pause = None
    if pause is not None:
        until = time.strftime("%H:%M:%S", time.localtime(pause.until_s))
        when = f"backing off until {until}" if pause.until_s > now_s else f"the backoff ended at {until}"
        yield group.doubt(
            f"{when} after {pause.answer}: {pause.reason}",
            "the next event after that retries, or run `turnspan backfill`",
        )
    refused = sum(
        checkpoint.destinations[identity].refused_spans
        for _, checkpoint in state.checkpoints(config.home)
        if checkpoint is not None and identity in checkpoint.destinations
    )
    if refused:
        yield group.doubt(f"it rejected {count(refused, 'span')} for good", "`turnspan status` shows why")


# ---- a test trace


def _send_and_read_back(
    group: CheckGroup, target: Target, now_s: float, sleep: Callable[[float], None]
) -> Iterator[Check]:
    trace = _test_trace(int(now_s * 1e9))
    verdict = target.backend.send(target.backend.encode([trace]))
    name = trace.trace_id.hex()
    if verdict.answer is not Answer.ACKNOWLEDGED:
        yield group.bad(f"it did not accept a test trace: {verdict.answer}: {verdict.reason}", _LOOK)
        return
    if isinstance(target.backend, Linkable):
        name = target.backend.link(trace.trace_id) or name
    reader = reader_of(target.backend, sleep)
    if reader is None:
        yield group.good(f"it accepted a test trace, {name}; it cannot be asked for it")
        return
    deadline = time.monotonic() + _READ_BACK_S
    while not (stored := reader.stored(trace.trace_id)) and time.monotonic() < deadline:
        sleep(1.0)
    if stored:
        yield group.good(f"a test trace was sent and read back: {name}")
    else:
        yield group.doubt(f"it accepted a test trace, but does not show it yet: {name}", "look for it in a minute")


def _test_trace(now_ns: int) -> Trace:
    said = (Message("user", (Text("A test of `turnspan doctor`."),)),)
    span = Span(
        span_id=os.urandom(8),
        parent_id=None,
        kind=Kind.TURN,
        name="turnspan doctor",
        start_ns=now_ns - 1_000_000,
        end_ns=now_ns,
        input=said,
    )
    return Trace(
        trace_id=os.urandom(16), name="turnspan doctor", session_id="turnspan-doctor", client_version="", spans=(span,)
    )
