"""Whether each destination can be used, what it has done so far, and whether a trace arrives there."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan.backends import Answer
from turnspan.delivery import backoff, state
from turnspan.delivery.destinations import Target, identity_of
from turnspan.delivery.holdings import open_holdings
from turnspan.errors import StateError, TurnspanError
from turnspan.health.checks import Group, Mark
from turnspan.health.checks.servers import server_checks
from turnspan.health.status import can_write, nearest, where_of
from turnspan.settings.options import OPTIONS
from turnspan.terminal import count
from turnspan.trace.model import Kind, Message, Span, Text, Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turnspan.health.checks import Check
    from turnspan.settings.config import Config, Destination

_READ_BACK_S: Final = 15.0


def destination_checks(
    destination: Destination,
    config: Config,
    *,
    now_s: float,
    is_sending: bool,
    sleep: Callable[[float], None] = time.sleep,
) -> Iterator[Check]:
    """Everything about one destination; `is_sending` also sends it a test trace."""
    group = Group(f"Destination {destination.name}")
    source = "" if destination.source == "default" else f", set in {destination.source}"
    where = where_of(destination, config.home) or "nowhere"
    yield group.good(f"{destination.type}: {where}, {destination.policy['capture']}{source}")
    if destination.source.startswith("$"):
        yield group.doubt(
            "it is set in this shell only: a Claude Code that was started elsewhere, from the dock or an editor, "
            "does not have it",
            f"`turnspan install --to {destination.type}` stores it",
        )
    target = Target(destination, config)
    try:
        backend = target.backend
    except TurnspanError as error:
        yield group.bad(str(error.args[0]), _todo_for_setting(error, destination))
        return
    try:
        is_usable = True
        for check in _usable(group, destination, config, target, now_s):
            is_usable &= check.mark is not Mark.BAD
            yield check
        yield from _held(group, destination, config, now_s)
        if is_sending and is_usable:
            yield from _sent_and_read_back(group, target, config, now_s, sleep)
    finally:
        backend.close()


def _todo_for_setting(error: TurnspanError, destination: Destination) -> str:
    if destination.type == "langfuse" and "is missing" in str(error):
        return "make keys in the settings of your Langfuse project, then run `turnspan install --to langfuse`"
    return error.hint or "`turnspan config` shows what is set"


def _usable(group: Group, destination: Destination, config: Config, target: Target, now_s: float) -> Iterator[Check]:
    if destination.type == "local":
        yield from _local(group, Path(where_of(destination, config.home)))
    elif destination.type in OPTIONS:
        yield from server_checks(group, destination, target, now_s)


# ---- files


def _local(group: Group, directory: Path) -> Iterator[Check]:
    there = nearest(directory)
    if not can_write(there):
        yield group.bad(f"cannot write to {there}", "make it writable, or set `directory` to one that is")
        return
    files = sorted(directory.glob("traces-*.jsonl")) if directory.is_dir() else []
    size = sum(path.stat().st_size for path in files)
    yield group.good(f"{count(len(files), 'file')} with {size / 1e6:.1f} MB of traces" if files else "it can be made")


# ---- what it has done so far


def _held(group: Group, destination: Destination, config: Config, now_s: float) -> Iterator[Check]:
    identity = identity_of(destination)
    try:
        hold = backoff.load(config.home, identity)
    except StateError:
        hold = None
    if hold is not None:
        ended = "" if hold.until_s > now_s else ", which is over: the next event tries again"
        until = time.strftime("%H:%M:%S", time.localtime(hold.until_s))
        yield group.doubt(
            f"it was left in peace until {until}{ended}; its last answer was {hold.answer}: {hold.reason}",
            "when that is mended, the next event sends all that waits; `turnspan backfill` does so at once",
        )
    refused = sum(
        checkpoint.destinations[identity].refused_spans
        for _, checkpoint in state.checkpoints(config.home)
        if checkpoint is not None and identity in checkpoint.destinations
    )
    if refused:
        yield group.doubt(f"it has refused {count(refused, 'span')} for good", "`turnspan status` tells why")


# ---- a test trace


def _sent_and_read_back(
    group: Group, target: Target, config: Config, now_s: float, sleep: Callable[[float], None]
) -> Iterator[Check]:
    trace = _test_trace(int(now_s * 1e9))
    verdict = target.backend.send(target.backend.encode([trace]))
    name = trace.trace_id.hex()
    if verdict.answer is not Answer.ACKNOWLEDGED:
        yield group.bad(f"it did not take a test trace: {verdict.answer}: {verdict.reason}", "look at what it says")
        return
    try:
        holdings = open_holdings(target, config, sleep)
        if holdings is None:
            yield group.good(f"it took a test trace, {name}; it cannot be asked for it")
            return
        deadline = time.monotonic() + _READ_BACK_S
        while not (stored := holdings.stored(trace.trace_id)) and time.monotonic() < deadline:
            sleep(1.0)
            holdings = open_holdings(target, config, sleep) or holdings
    except TurnspanError as error:
        yield group.doubt(f"it took a test trace, {name}, but could not be asked for it: {error}", "look at it there")
        return
    if stored:
        yield group.good(f"a test trace was sent and read back: {name}")
    else:
        yield group.doubt(f"it took a test trace, but does not show it yet: {name}", "look for it there in a minute")


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
