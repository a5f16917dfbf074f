"""`turnspan verify`: compare the transcripts with what the destinations have."""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

import click

from turnspan.commands.declare import command, json_flag
from turnspan.commands.selection import INTERRUPTED, selecting

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from turnspan.backends import Readable
    from turnspan.bulk.plan import Job, Selection
    from turnspan.bulk.report import Verified
    from turnspan.delivery.backoff import Patience
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config

_LOOK_EVERY_S: Final = 0.1


@command()
@selecting()
@click.option("--repair", "is_repair", is_flag=True, help="Send what is missing.")
@json_flag("One JSON object instead of a table")
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    selection: Selection,
    to: tuple[str, ...],
    is_repair: bool,
    is_json: bool,
) -> None:
    """Compare the transcripts with what was exported.

    Turns, responses, tool calls, tokens and cost of every session, compared with what
    each destination acknowledged, and with what it has, if it can be queried: local
    files, Langfuse, and Jaeger if `query_url` is set. A table shows the sessions that
    differ, as found / expected. Sessions from before turnspan was installed are not
    missing: they are exported only by `turnspan backfill`, and counted apart.

      turnspan verify                        all sessions, all destinations
      turnspan verify --since 7d --to langfuse
      turnspan verify --repair               send exactly what is missing

    Langfuse shows new traces after some seconds: what it acknowledged in the last five
    minutes is in flight, not lost, and --repair does not send it again. Spans that it
    shows twice are counted.

    Exit code: 0 if everything is there, 1 while something is missing or unknown.

    --json, one object:
      is_complete
      destinations{name: sessions expected acknowledged stored missing_spans
        doubled_spans off history}
      differences[session_id path project destination expected acknowledged stored
        unsent lost in_flight refused forgotten doubtful is_unknown silence overlooked
        is_repaired problem]
      failed{session or project: why it cannot be read}
    `unsent`, `lost`, `in_flight`, `refused` and `doubtful` (some of these were refused,
    but the destination did not say which) are span ids; `forgotten` is the number of
    refused spans beyond the 200 whose ids are kept; `stored` is null if the destination
    cannot be queried; `history` is the number of sessions that only `turnspan backfill`
    exports; `overlooked` are ids of responses and tool calls that are in the files and in
    no span: a bug of turnspan, please report it.
    """
    from turnspan.backends import reader_of
    from turnspan.bulk.plan import make_plan
    from turnspan.bulk.report import verify_lines
    from turnspan.commands.printing import destinations_named, print_lines, print_record, remark, settings_for_export
    from turnspan.commands.progress import progress, stop_requests
    from turnspan.commands.records import verify_record
    from turnspan.delivery.destinations import Target

    config = settings_for_export()
    destinations = destinations_named(config, to)
    plan = make_plan(config, selection, destinations, is_resend=True)  # every session is read completely
    if not plan.jobs:
        remark("no sessions to compare")
    targets = [Target(destination, config) for destination in destinations]
    found: list[Verified] = []
    names: dict[str, bool] = {}
    history: dict[str, int] = {}
    failed = dict(plan.unread)
    with (
        stop_requests() as should_stop,
        progress(len(plan.jobs) * len(targets), plan.left_bytes * len(targets)) as show,
    ):
        try:
            for target in targets:
                holdings = reader_of(target.backend)
                name = target.destination.name
                names[name], history[name] = holdings is not None, 0
                for done, one in _verified(
                    plan.jobs, target, config, holdings, failed, is_repair=is_repair, should_stop=should_stop
                ):
                    if one is None:
                        history[name] += 1
                    else:
                        found.append(one)
                    show(len(found) + sum(history.values()), None, plan.left_bytes * (len(names) - 1) + done, "")
                    if should_stop():
                        ctx.exit(INTERRUPTED)
        finally:
            for target in targets:
                target.backend.close()
    if is_json:
        print_record(verify_record(found, names, history, failed))
    else:
        print_lines(verify_lines(found, names, history, failed))
    ctx.exit(0 if not failed and all(one.is_complete for one in found) else 1)


def _verified(
    jobs: Iterable[Job],
    target: Target,
    config: Config,
    holdings: Readable | None,
    failed: dict[str, str],
    *,
    is_repair: bool,
    should_stop: Callable[[], bool],
) -> Iterator[tuple[int, Verified | None]]:
    """Compare every session at one destination; yield each with the bytes read so far, and add errors to `failed`.

    A session that only `turnspan backfill` exports is not compared: None.
    """
    from turnspan.bulk.repair import repair_problem
    from turnspan.bulk.report import Verified
    from turnspan.bulk.verify import check, is_history
    from turnspan.delivery.destinations import first_uses
    from turnspan.errors import StateError, TranscriptError

    read_bytes = 0
    uses = first_uses(config.home)
    for job in jobs:
        read_bytes += job.bytes
        try:
            if is_history(job.session, target, holdings, uses):
                yield read_bytes, None
                continue
            checked = check(job.session, target, config, holdings, time.time_ns())
        except (TranscriptError, StateError) as error:
            failed[job.session.session_id] = str(error)
            continue
        if is_repair and not checked.is_complete:
            problem = repair_problem(checked, target, config, holdings, _patience(should_stop))
            yield read_bytes, Verified(target.destination.name, checked, not problem, problem)
        else:
            yield read_bytes, Verified(target.destination.name, checked)


def _patience(should_stop: Callable[[], bool]) -> Patience:
    from turnspan.bulk.backfill import patience
    from turnspan.commands.printing import remark

    return patience(
        lambda seconds: _pause(seconds, should_stop),
        lambda waiting: remark(f"waiting {waiting.seconds:.0f} s: {waiting.reason}"),
    )


def _pause(seconds: float, should_stop: Callable[[], bool]) -> bool:
    """Wait; return False at once when a stop is requested."""
    until_s = time.monotonic() + seconds
    while not should_stop() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_EVERY_S))
    return not should_stop()
