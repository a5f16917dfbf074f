"""`turnspan backfill`, `turnspan verify` and `turnspan retention`: bring the past in, and prove that it is there.

Rules:

- What is asked for goes to stdout, as lines or as one JSON object. How far it is goes to stderr: a bar on a terminal, a
  line now and then elsewhere.
- Exit code 0 says that everything was acknowledged, or is there; 1 that something is not; 130 that it was stopped.
- `cli.py` makes commands of these functions: `frame.command("backfill")(commands.backfill.backfill)`.
"""

# ruff: noqa: PLC0415 - a command imports what it needs when it runs

from __future__ import annotations

import os
import re
import sys
import time
from datetime import date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from turnspan.commands.progress import progress, stop_requests
from turnspan.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from turnspan.backends import Holdings
    from turnspan.bulk.backfill import Orders
    from turnspan.bulk.plan import Job, Plan
    from turnspan.bulk.report import Verified
    from turnspan.bulk.verify import Checked
    from turnspan.delivery.destinations import Target
    from turnspan.settings.config import Config, Destination

_INTERRUPTED: Final = 130
_LOOK_EVERY_S: Final = 0.1
_AGO: Final = re.compile(r"(\d+)([mhdw])")
_UNITS: Final = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class When(click.ParamType):  # type: ignore[type-arg] # generic since click 8.2; we take older ones
    """A day, a time, or how long ago; a day is meant from its beginning, or to its end."""

    name = "when"

    def __init__(self, *, is_end: bool = False) -> None:
        self._is_end = is_end

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:  # noqa: ANN401 - click's signature
        """The time in nanoseconds."""
        if isinstance(value, int):
            return value
        ago = _AGO.fullmatch(value)
        try:
            if ago is not None:
                at = datetime.now().astimezone() - timedelta(**{_UNITS[ago[2]]: int(ago[1])})
            else:
                at = datetime.fromisoformat(value)
                if self._is_end and _is_day(value):
                    at += timedelta(days=1)  # by the calendar: a day need not have 24 hours
                at = at.astimezone()
            return int(at.timestamp()) * 10**9
        except (ValueError, OverflowError):
            self.fail(f"{value!r} is no time; write 2026-08-31, 2026-08-31T14:00, or 12h, 7d, 4w ago", param, ctx)


def _is_day(value: str) -> bool:
    try:
        date.fromisoformat(value)
    except ValueError:  # a time of a day
        return False
    return True


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """The options that say which sessions are meant, and where they go."""
    for option in (
        click.option("--to", multiple=True, metavar="DESTINATION", help="Only this destination; may come again."),
        click.option("--session", multiple=True, metavar="ID", help="Only this session, by how its id begins."),
        click.option("--project", metavar="P", help="Only those of a directory and below, or with P in their path."),
        click.option("--until", type=When(is_end=True), metavar="WHEN", help="Only those begun before the end of it."),
        click.option("--since", type=When(), metavar="WHEN", help="Only those written to since then."),
        click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path), metavar="[PATH]..."),
    ):
        command = option(command)
    return command


@_selecting
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most N sessions, the oldest.")
@click.option("--jobs", type=click.IntRange(min=1), metavar="N", help="Processes; as many as there are cores.")
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="At most N spans a second.")
@click.option("--resend", "is_resend", is_flag=True, help="Send again what was acknowledged, too; see below.")
@click.option("--dry-run", "is_dry_run", is_flag=True, help="Only say what would be sent.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of lines.")
@click.pass_context
def backfill(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    since: int | None,
    until: int | None,
    project: str | None,
    session: tuple[str, ...],
    to: tuple[str, ...],
    limit: int | None,
    jobs: int | None,
    rate: float | None,
    is_resend: bool,
    is_dry_run: bool,
    is_json: bool,
) -> None:
    """Export the transcripts that are on disk, oldest first.

    Every session of every project, or only what lies in PATH: a transcript, a
    project's directory, or a copy of ~/.claude made elsewhere. What was sent
    before is not sent again. Ctrl-C stops it; the same command goes on there.

      turnspan backfill --dry-run            what would be sent, and what masked
      turnspan backfill                      all of it, everywhere
      turnspan backfill --since 7d --project .
      turnspan backfill --to langfuse --limit 10
      turnspan backfill /mnt/old-laptop/.claude

    WHEN is a day, a time, or how long ago: 2026-08-31, 2026-08-31T14:00, 12h, 7d.
    A session is sent as a whole, with its original times. In one that is still
    being written, only the turns that have ended are sent.

    --resend begins with the oldest session, each time it is run; one that was
    stopped says with which --since it would go on where it was.

    Exit code: 0 if everything was acknowledged, 1 if not, 130 after Ctrl-C.

    --json, one object: destinations seconds sessions turns spans copied off open
    refused cut masked{rule: times} left{session or project: why}
    given_up{destination: why}
    pending is_interrupted is_complete
    resend_since (null but for a --resend that is not complete)
    """
    from turnspan.bulk import report
    from turnspan.bulk.backfill import Orders, Totals, run
    from turnspan.bulk.plan import Selection, age_warning, make_plan
    from turnspan.delivery.destinations import Target
    from turnspan.terminal import count

    config = _config()
    destinations = _destinations(config, to)
    selection = Selection(paths=paths, since_ns=since, until_ns=until, project=project, sessions=session, limit=limit)
    plan = make_plan(config, selection, destinations, is_resend=is_resend)
    orders = Orders(config=config, destinations=destinations, rate=rate, is_resend=is_resend)
    if not plan.jobs:
        _remark("there are no sessions to send" if limit is None else "there is no session with anything left to send")
    if plan.copies:
        _remark(f"{count(plan.copies, 'file')} passed over: another one of the same session is as long or longer")
    for destination in destinations:
        warning = age_warning(destination, plan.jobs[0].began_ns, time.time_ns()) if plan.jobs else None
        if warning is not None:
            _remark(f"warning: {warning}")
    processes = jobs or _cores()
    if is_dry_run:
        ctx.exit(_survey(plan, orders, processes, is_json=is_json))
    for destination in destinations:
        Target(destination, config).backend.close()  # what is wrong with its settings is said here, once
    began_s = time.monotonic()
    with stop_requests() as should_stop, progress(len(plan.jobs), plan.left_bytes) as show:

        def watch(totals: Totals) -> None:
            show(totals.tried, totals.turns, totals.read_bytes, totals.waiting)

        totals = run(plan, orders, processes, watch, should_stop)
    seconds, names = time.monotonic() - began_s, [destination.name for destination in destinations]
    if is_json:
        _print_record(report.backfill_record(totals, names, seconds))
    else:
        _print_lines(report.backfill_lines(totals, names, seconds))
    ctx.exit(_INTERRUPTED if totals.is_interrupted else 0 if totals.is_complete else 1)


def _survey(plan: Plan, orders: Orders, processes: int, *, is_json: bool) -> int:
    from turnspan.bulk import report
    from turnspan.bulk.dry_run import Survey, survey

    with stop_requests() as should_stop, progress(len(plan.jobs), plan.left_bytes) as show:

        def watch(found: Survey) -> None:
            show(found.sessions, None, found.read_bytes, "")

        found = survey(plan, orders, processes, watch, should_stop)
    if is_json:
        _print_record(report.survey_record(found))
    else:
        _print_lines(report.survey_lines(found, len(plan.jobs)))
        _print_lines(["nothing was sent"])
    return _INTERRUPTED if found.is_interrupted else 1 if found.failed else 0


@_selecting
@click.option("--repair", "is_repair", is_flag=True, help="Send what is missing.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of a table.")
@click.pass_context
def verify(
    ctx: click.Context,
    *,
    paths: tuple[Path, ...],
    since: int | None,
    until: int | None,
    project: str | None,
    session: tuple[str, ...],
    to: tuple[str, ...],
    is_repair: bool,
    is_json: bool,
) -> None:
    """Compare the transcripts with what has arrived.

    Turns, responses, tool calls, tokens and cost of every session, against what
    each destination acknowledged, and against what it holds, where it can be
    asked: local files, Langfuse, and Jaeger if `query_url` is set. A table shows
    the sessions that differ, as what is there / what should be.

      turnspan verify                        everything, everywhere
      turnspan verify --since 7d --to langfuse
      turnspan verify --repair               send exactly what is missing

    Langfuse shows what it took after some seconds: wait a little after a backfill.

    Exit code: 0 if everything is there, 1 while something is missing or unknown.

    --json, one object:
      is_complete
      destinations{name: sessions expected acknowledged stored missing_spans off}
      differences[session_id path project destination expected acknowledged stored
        unsent lost refused forgotten doubtful is_unknown silence is_repaired problem]
      failed{session or project: why it cannot be read}
    `unsent`, `lost`, `refused` and `doubtful` (some of these were refused, it did
    not say which) are span ids; `forgotten` is how many more were refused than the
    200 whose ids are remembered; `stored` is null where the destination cannot be
    asked.
    """
    from turnspan.backends.reading import reader_of
    from turnspan.bulk import report
    from turnspan.bulk.plan import Selection, make_plan
    from turnspan.delivery.destinations import Target

    config = _config()
    destinations = _destinations(config, to)
    selection = Selection(paths=paths, since_ns=since, until_ns=until, project=project, sessions=session)
    plan = make_plan(config, selection, destinations, is_resend=True)  # all of it is read
    if not plan.jobs:
        _remark("there are no sessions to compare")
    targets = [Target(destination, config) for destination in destinations]
    found: list[Verified] = []
    names: dict[str, bool] = {}
    failed = dict(plan.unread)
    with (
        stop_requests() as should_stop,
        progress(len(plan.jobs) * len(targets), plan.left_bytes * len(targets)) as show,
    ):
        try:
            for target in targets:
                holdings = reader_of(target.backend)
                names[target.destination.name] = holdings is not None
                for done, one in _verified(
                    plan.jobs, target, config, holdings, failed, is_repair=is_repair, should_stop=should_stop
                ):
                    found.append(one)
                    show(len(found), None, plan.left_bytes * (len(names) - 1) + done, "")
                    if should_stop():
                        ctx.exit(_INTERRUPTED)
        finally:
            for target in targets:
                target.backend.close()
    if is_json:
        _print_record(report.verify_record(found, names, failed))
    else:
        _print_lines(report.verify_lines(found, names, failed))
    ctx.exit(0 if not failed and all(one.is_complete for one in found) else 1)


def _verified(
    jobs: Iterable[Job],
    target: Target,
    config: Config,
    holdings: Holdings | None,
    failed: dict[str, str],
    *,
    is_repair: bool,
    should_stop: Callable[[], bool],
) -> Iterator[tuple[int, Verified]]:
    """Every session at one destination, each with how many bytes have been read; `failed` hears what cannot be."""
    from turnspan.bulk.report import Verified
    from turnspan.bulk.verify import check
    from turnspan.errors import TranscriptError

    read_bytes = 0
    for job in jobs:
        read_bytes += job.bytes
        try:
            checked = check(job.session, target, config, holdings, time.time_ns())
        except TranscriptError as error:
            failed[job.session.session_id] = str(error)
            continue
        if is_repair and not checked.is_complete:
            is_repaired, problem = _repaired(checked, target, config, holdings, should_stop)
            yield read_bytes, Verified(target.destination.name, checked, is_repaired, problem)
        else:
            yield read_bytes, Verified(target.destination.name, checked)


def _repaired(
    checked: Checked, target: Target, config: Config, holdings: Holdings | None, should_stop: Callable[[], bool]
) -> tuple[bool, str]:
    from turnspan.bulk.backfill import Patience, serve_waiting
    from turnspan.bulk.verify import repair
    from turnspan.delivery import state
    from turnspan.errors import TurnspanError
    from turnspan.private_files import Busy

    if checked.is_unknown:
        return False, f"the backend does not say what it holds{checked.silence and f': {checked.silence}'}"
    if not checked.unsent and not checked.lost and holdings is None:
        return False, "it was refused, and the destination cannot be asked; `turnspan backfill --resend` tries again"
    patience = Patience(
        lambda seconds: _pause(seconds, should_stop),
        lambda waiting: _remark(f"waiting {waiting.seconds:.0f} s: {waiting.reason}"),
    )
    try:
        done = repair(checked.session, target, config, holdings, patience)
        serve_waiting(config.home, checked.session.session_id)
    except Busy:
        return False, "another turnspan has it"
    except TurnspanError as error:
        return False, str(error)
    if patience.is_cut_short:
        state.drop_hold(config.home, target.identity)  # as in a backfill: it is the person who has no time
    for shipped in done:
        if shipped.stopped is not None:
            return False, f"{shipped.stopped.answer}: {shipped.stopped.reason}"
        if shipped.held_until_s is not None:
            return False, f"on hold until {time.strftime('%H:%M', time.localtime(shipped.held_until_s))}"
        if shipped.refused:
            return False, f"{shipped.refused} spans were refused"
    return True, ""


def _pause(seconds: float, should_stop: Callable[[], bool]) -> bool:
    """Wait; False, and at once, if a stop is asked for."""
    until_s = time.monotonic() + seconds
    while not should_stop() and (left_s := until_s - time.monotonic()) > 0:
        time.sleep(min(left_s, _LOOK_EVERY_S))
    return not should_stop()


@click.option("--days", type=click.FloatRange(min=0), default=7.0, show_default=True, metavar="N", help="How soon.")
@click.option("--to", multiple=True, metavar="DESTINATION", help="Only this destination; may come again.")
@click.option("--json", "is_json", is_flag=True, help="One JSON object instead of a table.")
@click.pass_context
def retention(ctx: click.Context, *, days: float, to: tuple[str, ...], is_json: bool) -> None:
    """What Claude Code deletes soon and has not been sent.

    Claude Code deletes transcripts that were not written to for 30 days, or for
    `cleanupPeriodDays` in its settings. Started in a project, it deletes those of
    all projects by that project's settings: the shortest time counts.

      turnspan retention             what goes within a week
      turnspan retention --days 2    what goes within two days

    Exit code: 1 if something unsent goes so soon, or something cannot be read.

    --json, one object:
      cleanup_days cleanup_source
      expiring[session_id path project days_left unsent{destination}]
      failed{session or project: why it cannot be read}
    """
    from turnspan.bulk import report
    from turnspan.bulk.retention import cleanup_period, expiring

    config = _config()
    unread: dict[str, str] = {}
    found = list(expiring(config, _destinations(config, to), days, time.time_ns(), unread))
    period = cleanup_period(config.claude_home)
    if is_json:
        _print_record(report.retention_record(found, period, unread))
    else:
        _print_lines(report.retention_lines(found, period, days, unread))
    ctx.exit(1 if found or unread else 0)


# ---- settings


def _config() -> Config:
    """The settings in force; what is wrong with them is said, and the rest is used."""
    from turnspan.settings.config import load_config

    config = load_config(os.environ)
    for problem in config.problems:
        _remark(f"warning: {problem}")
    if not config.is_enabled:
        raise ConfigError(f"turnspan is switched off by {config.sources['enabled']}", hint="set `enabled` to true")
    return config


def _destinations(config: Config, names: tuple[str, ...]) -> tuple[Destination, ...]:
    from turnspan.delivery.destinations import destination_named

    if not names:
        return config.destinations
    return tuple(destination_named(config, name) for name in dict.fromkeys(names))


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # only those we may use
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- words


def _print_record(record: dict[str, object]) -> None:
    from turnspan.view.records import line_of

    click.echo(line_of(record))


def _print_lines(lines: Iterable[str]) -> None:
    from turnspan.terminal import in_ascii

    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    for line in lines:
        click.echo(line if is_unicode else in_ascii(line))


def _remark(sentence: str) -> None:
    """Say something next to the answer: stdout is for the answer alone."""
    from turnspan.terminal import one_line

    click.echo(one_line(sentence), err=True)
