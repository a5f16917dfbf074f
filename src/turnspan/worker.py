"""The detached process behind a hook: it reads one event from stdin, exports the session, and logs one line.

Rules:

- Claude Code does not wait for it, so it can wait: for the last message to reach the file, and for a backend that says
  "later".
- It exports the session of the event first, then looks through the project for orphaned sessions, within a budget.
- An error is one line in the log. A failing session stops no other, nor does an unusable destination.
- After it has released the lock of a session, it looks for events that arrived meanwhile.
"""

from __future__ import annotations

import gc

gc.set_threshold(100_000)  # before anything else is loaded: Python's default takes a twentieth of an event

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan import log
from turnspan.claude.event import OTHER_SIDE, foreign_system, parse_event
from turnspan.delivery import marks, state, unsent
from turnspan.delivery.callers import parsed
from turnspan.delivery.destinations import since, targets_of
from turnspan.delivery.prune import prune
from turnspan.delivery.ship import ship
from turnspan.errors import BackendError, ConfigError, TurnspanError
from turnspan.files import Busy, home_of_transcript, turnspan_home
from turnspan.hook import take_over
from turnspan.log import report
from turnspan.settings.config import load_config
from turnspan.source import sessions
from turnspan.source.progress import Ending
from turnspan.source.scan import modified_ns
from turnspan.transcript.resume import words_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from turnspan.backends import Verdict
    from turnspan.claude.event import Event
    from turnspan.delivery.destinations import Target
    from turnspan.delivery.ship import Shipped
    from turnspan.settings.config import Config
    from turnspan.source.sessions import SessionFile

EVENTS: Final = frozenset({"Stop", "SubagentStop", "StopFailure", "SessionStart", "SessionEnd"})
_ANSWER_WAIT_S: Final = 2.0
_SILENT_END_S: Final = 1.6
_LONGEST_END_S: Final = 6.0
_RETRIES_S: Final = (0.3, 0.7, 1.5, 3.0, 6.0)
_SWEEP_BUDGET_S: Final = 20.0
_SWEEP_EVERY_S: Final = 60.0
_POLL_S: Final = 0.05
_LATE_S: Final = 60.0  # the rest of a line that was written to since then is expected
_SWITCHED_OFF: Final = "switched off"
_RECOVERED: Final = "recovered"
_RESTRICTED: Final = "restricted"


class Context(msgspec.Struct, frozen=True):
    """The settings, destinations and clocks of the event that is handled."""

    config: Config
    targets: list[Target]  # without those that turned out to be unusable
    clock: Callable[[], float]
    sleep: Callable[[float], None]


def main() -> None:
    """Handle one event, then os._exit: interpreter shutdown would add 10 % CPU."""
    _serve_stdin()
    os._exit(0)


def _serve_stdin() -> None:
    started = time.time()
    payload = take_over()
    env = dict(os.environ)
    try:
        home = _home(payload, env)
    except TurnspanError:
        return  # without a home directory there is no log
    if not payload.strip():  # `turnspan hook` was run in a terminal: not an error of the installation
        log.log_line(home, "INFO", "no event", reason="stdin is empty; Claude Code runs this command")
        return
    try:
        event = msgspec.structs.replace(parse_event(payload), at_s=_born_s())
        serve(event, env, time.time, time.sleep)
    except (TurnspanError, OSError) as error:
        log.log_line(home, "ERROR", "failed", reason=str(error), seconds=round(time.time() - started, 3))
    except Exception as error:
        # Without this, a bug would go unnoticed. Its text may hold content, so only its type is logged.
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where is not None else ""
        log.log_line(home, "ERROR", "bug", type=type(error).__name__, at=place)
        if env.get("TURNSPAN_RAISE"):
            raise


def _home(payload: bytes, env: Mapping[str, str]) -> Path:
    """Return our directory: next to the transcript, or, if the payload names none, where the environment says."""
    with suppress(TurnspanError):
        found = home_of_transcript(Path(parse_event(payload).transcript_path))
        if found is not None:
            return found / "turnspan"
    return turnspan_home(env)


def _born_s() -> float:
    """Return when this process was started; now if that is unknown. The client waited for the hook until then."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        up_s = float(Path("/proc/uptime").read_text().split()[0])
        return time.time() - max(0.0, up_s - int(fields[19]) / os.sysconf("SC_CLK_TCK"))
    except (OSError, ValueError, IndexError):
        return time.time()


def serve(
    event: Event,
    env: Mapping[str, str],
    clock: Callable[[], float],
    sleep: Callable[[float], None],
    find_targets: Callable[[Config], list[Target]] = targets_of,
) -> None:
    """Handle one event: export its session, then orphaned ones of the project."""
    project = Path(event.cwd or env.get("CLAUDE_PROJECT_DIR") or "/")
    config = load_config(env, project=project, transcript=Path(event.transcript_path))
    _note(config, event)
    if event.hook_event_name not in EVENTS:
        raise TurnspanError(f"unknown event {event.hook_event_name[:60]!r}")
    session = _session_of(event, config)
    if config.is_session_off or not config.is_enabled:
        # Remember that this session is switched off or restricted, or another session's worker would export it as an
        # orphan, or a backfill when export is enabled again.
        event_name = _SWITCHED_OFF if config.is_session_off else _RESTRICTED
        if config.is_session_off or config.session_capture:
            facts = {"event": event_name, "path": str(session.path), "capture": config.session_capture}
            _attend(Context(config, [], clock, sleep), session, facts)
        return
    context = Context(config, find_targets(config), clock, sleep)
    opened = list(context.targets)
    for target in opened:
        since(config, target.identity, clock())
    try:
        _attend(context, session, _facts(event, config, session, clock()))
        if config.values["recover"] and _is_sweep_due(config, event, session, clock()):
            is_stop = event.hook_event_name in {"Stop", "SessionEnd"}
            sweep(context, session, event.session_id if is_stop else None)
        prune(config.home, clock())
    finally:
        for target in opened:
            target.close()


def _facts(event: Event, config: Config, session: SessionFile, now_s: float) -> dict[str, Any]:
    """Return what is to be remembered about an event until it is handled."""
    facts: dict[str, Any] = {"event": event.hook_event_name, "path": str(session.path), "at": event.at_s or now_s}
    if event.last_assistant_message:
        facts["words"] = words_digest(event.last_assistant_message)
    if event.agent_id:
        facts["agent"] = event.agent_id
    if event.hook_event_name == "SessionStart" and event.source != "compact":
        facts["caller"] = config.traceparent if parsed(config.traceparent) is not None else ""
    if config.session_capture:
        facts["capture"] = config.session_capture
    return facts


def _note(config: Config, event: Event) -> None:
    """Log problems of the settings, and drop variables that the project has set: a proxy, a certificate, a HOME."""
    for name in config.planted:
        os.environ.pop(name, None)
    for problem in config.problems:
        log.log_line(config.home, "ERROR", "setting", reason=problem)
    for sentence in config.ignored if event.hook_event_name == "SessionStart" else ():
        log.log_line(config.home, "INFO", "setting", reason=sentence)


def _attend(context: Context, session: SessionFile, facts: dict[str, Any]) -> None:
    """Have an event handled, here or by the worker that holds its session."""
    home, session_id = context.config.home, session.session_id

    def work(events: list[dict[str, Any]], is_locked: bool) -> None:
        if not is_locked:
            log.log_line(home, "WARN", "lock unavailable", session=session_id)
        if any(mark.get("event") == _SWITCHED_OFF for mark in events):
            _switch_off(context.config, session)
        else:
            _note_callers(context.config, session, events)
            _note_capture(context.config, session, events)
            _serve_session(context, session, events)

    if not marks.attend(home, session_id, facts, work):
        log.log_line(home, "INFO", "busy", session=session_id, trigger=facts["event"])


def _note_callers(config: Config, session: SessionFile, events: list[dict[str, Any]]) -> None:
    """Remember which program ran the client, by the environment of its start."""
    is_parent = config.values["traceparent"] == "parent"
    for mark in events:
        caller, at = mark.get("caller"), mark.get("at")
        if isinstance(caller, str) and isinstance(at, (int, float)):
            _log_corrupt(config, session, state.note_caller(config.home, session, caller, at_s=at, is_parent=is_parent))


def _note_capture(config: Config, session: SessionFile, events: list[dict[str, Any]]) -> None:
    """Remember to which capture mode the environment of the client restricts the session: others may export it."""
    for capture in sorted({str(mark["capture"]) for mark in events if mark.get("capture")}):
        _log_corrupt(config, session, state.note_capture(config.home, session, capture))


def _log_corrupt(config: Config, session: SessionFile, kept_as: str) -> None:
    if kept_as:
        log.log_line(config.home, "WARN", "state corrupt", session=session.session_id, kept_as=kept_as)


def _session_of(event: Event, config: Config) -> SessionFile:
    path = Path(event.transcript_path)
    if not sessions.is_safe_id(event.session_id):
        raise TurnspanError(f"{event.session_id[:60]!r} is not a session id")
    if system := foreign_system(event.transcript_path):
        raise TurnspanError(f"the transcript has a path of {system}", hint=OTHER_SIDE)
    if not event.transcript_path or not path.is_absolute():
        raise TurnspanError("the hook's payload has no transcript path")
    session = sessions.session_at(path)
    if not sessions.is_below(path, sessions.projects_dir(config.claude_home)):
        raise TurnspanError(f"{path} is not below {sessions.projects_dir(config.claude_home)}, so it is not read")
    return session


def _switch_off(config: Config, session: SessionFile) -> None:
    """Record that a session is not exported. The caller holds its lock."""
    checkpoint = state.load(config.home, session.session_id).checkpoint
    if not checkpoint.is_off:
        state.save(config.home, msgspec.structs.replace(checkpoint, is_off=True, transcript=str(session.path)))
        log.log_line(config.home, "INFO", _SWITCHED_OFF, session=session.session_id)


# ---- the session of the event


def _serve_session(context: Context, session: SessionFile, events: list[dict[str, Any]]) -> None:
    ending = _ending(events, _late_since_ns(context))
    if not session.path.exists() and ending.is_stopped:
        _wait(session.path.exists, _ANSWER_WAIT_S, context.sleep)
    if not session.path.exists():
        return  # SessionStart fires before the file is created
    home, clock = context.config.home, context.clock
    waiting = marks.marks_length(home, session.session_id)
    for target in list(context.targets):
        patience = _Patience(context.sleep)
        early = _before_the_end(context, session, target, ending, patience) if ending.is_over else None
        shipped = _ship(context, session, target, ending, patience) if target in context.targets else None
        if shipped is None:
            continue
        if early is not None:
            shipped = early + shipped
        deadline = clock() + _ANSWER_WAIT_S
        for _ in range(int(_ANSWER_WAIT_S / _POLL_S)):  # counted, too: the clock may be set back
            if not shipped.is_answer_missing or not shipped.is_complete or clock() >= deadline:
                break
            if marks.marks_length(home, session.session_id) > waiting:
                break  # another event arrived: it is handled with all that was written until then
            context.sleep(_POLL_S)
            shipped += ship(session, target, ending, clock, is_patient=patience)
        report(context.config, session, shipped, events)


def _before_the_end(
    context: Context, session: SessionFile, target: Target, ending: Ending, patience: _Patience
) -> Shipped | None:
    """SessionEnd fires before the client writes its last rows: if a turn is open, wait until the files stop growing."""
    agents, late_since_ns = ending.finished_agents, ending.late_since_ns
    stopped = Ending(is_stopped=True, finished_agents=agents, late_since_ns=late_since_ns)
    shipped = _ship(context, session, target, stopped, patience)
    sizes, silent_s = _sizes(session), 0.0
    for _ in range(int(_LONGEST_END_S / _POLL_S)):
        if shipped is None or not shipped.has_unsealed or silent_s >= _SILENT_END_S:
            break
        context.sleep(_POLL_S)
        before, sizes = sizes, _sizes(session)
        silent_s = silent_s + _POLL_S if sizes == before else 0.0
    return shipped


def _sizes(session: SessionFile) -> list[int]:
    """Return the sizes of the files of a session."""
    paths = [session.path, *(agent.path for agent in sessions.agent_files(session).values())]
    return [path.stat().st_size for path in paths if path.exists()]


def _ship(
    context: Context, session: SessionFile, target: Target, ending: Ending, patience: _Patience
) -> Shipped | None:
    """Send a session to a destination. An unusable destination is logged once and removed; the others stay."""
    try:
        return ship(session, target, ending, context.clock, is_patient=patience)
    except (ConfigError, BackendError) as error:
        log.log_line(context.config.home, "ERROR", "setting", destination=target.destination.name, reason=str(error))
        context.targets.remove(target)
        return None


def _late_since_ns(context: Context) -> int:
    return int((context.clock() - _LATE_S) * 1e9)


def _ending(events: list[dict[str, Any]], late_since_ns: int) -> Ending:
    """Return what these events say together. Idle time does not matter: an event shows that the session is alive."""
    names = {str(mark.get("event")) for mark in events}
    # StopFailure fires for a subagent too (2.1.325): then it names the agent, and the turn has not ended.
    stops = [m for m in events if m.get("event") == "Stop" or (m.get("event") == "StopFailure" and not m.get("agent"))]
    agents = [mark for mark in events if mark.get("event") in {"SubagentStop", "StopFailure"}]
    words = stops[-1].get("words") if stops and stops[-1].get("event") == "Stop" else None
    at = stops[-1].get("at") if stops else None
    return Ending(
        is_over="SessionEnd" in names,
        is_stopped=bool(stops),
        last_words=str(words) if words else None,
        stopped_ns=int(at * 1e9) if isinstance(at, (int, float)) else None,
        finished_agents=tuple(str(mark["agent"]) for mark in agents if mark.get("agent")),
        late_since_ns=late_since_ns,
    )


class _Patience:
    """Waits a few seconds in all for a backend that says "later"."""

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._left = list(_RETRIES_S)

    def __call__(self, verdict: Verdict) -> bool:
        if not self._left:
            return False
        pause = self._left.pop(0)
        if verdict.retry_after_s is not None:
            if verdict.retry_after_s > sum(_RETRIES_S):
                return False
            pause = max(pause, verdict.retry_after_s)
        self._sleep(pause)
        return True


def _wait(is_there: Callable[[], bool], seconds: float, sleep: Callable[[float], None]) -> None:
    for _ in range(int(seconds / _POLL_S)):
        if is_there():
            return
        sleep(_POLL_S)


# ---- orphaned sessions


def _is_sweep_due(config: Config, event: Event, session: SessionFile, now_s: float) -> bool:
    if event.hook_event_name in {"SessionStart", "SessionEnd"}:
        return True
    stamp = config.home / "state" / f".swept-{session.project[-80:]}"
    try:
        is_due = not 0 <= now_s - stamp.stat().st_mtime < _SWEEP_EVERY_S
    except FileNotFoundError:
        is_due = True
    except OSError:
        return False
    if is_due:
        with suppress(OSError):  # then the next sweep is earlier
            stamp.touch(mode=0o600)
            os.utime(stamp, (now_s, now_s))
    return is_due


def sweep(context: Context, current: SessionFile, stopped: str | None = None) -> int:
    """Export what is unsent of other sessions of the project; return the number of turns.

    `stopped` is the id of the session whose turn has just ended: its turns may be in another file than the event names.
    """
    config, clock = context.config, context.clock
    deadline = clock() + _SWEEP_BUDGET_S
    patience = _Patience(context.sleep)
    recovered = 0
    for session in _orphans(context, current):
        if clock() > deadline:
            break
        try:
            with state.lock(config.home, session.session_id):
                recovered += _recover(context, session, patience, stopped)
            if marks.has_marks(config.home, session.session_id):
                _attend(context, session, {"event": _RECOVERED})
        except Busy:
            continue  # its own worker exports it
        except (TurnspanError, OSError) as error:
            log.log_line(config.home, "WARN", "not recovered", session=session.session_id, reason=str(error))
    return recovered


def _recover(context: Context, session: SessionFile, patience: _Patience, stopped: str | None) -> int:
    """Export what is unsent of one session that is idle; return the number of turns."""
    config, now_s = context.config, context.clock()
    turns = 0
    for target in list(context.targets):
        if modified_ns(session.path) < 1e9 * since(config, target.identity, now_s):
            continue
        ending = Ending(now_ns=int(now_s * 1e9), stopped_session=stopped, late_since_ns=_late_since_ns(context))
        shipped = _ship(context, session, target, ending, patience)
        if shipped is None:
            continue
        turns += shipped.turns
        if shipped.spans or shipped.stopped is not None or shipped.refused:
            report(config, session, shipped, [{"event": _RECOVERED}])
    return turns


def _orphans(context: Context, current: SessionFile) -> Iterator[SessionFile]:
    """Yield the other sessions of the project that may have something unsent, the latest first."""
    config = context.config
    others = [s for s in sessions.sessions_in(current.path.parent) if s.session_id != current.session_id]
    root = sessions.projects_dir(config.claude_home)
    for session in sorted(others, key=lambda session: modified_ns(session.path), reverse=True):
        if not sessions.is_below(session.path, root):
            continue
        try:
            found = state.load(config.home, session.session_id)
            is_orphan = any(
                unsent.may_have_more(session, found.checkpoint, target.identity) for target in context.targets
            )
        except (TurnspanError, OSError):
            continue
        _log_corrupt(config, session, found.kept_as)
        if is_orphan:
            yield session


if __name__ == "__main__":
    main()
