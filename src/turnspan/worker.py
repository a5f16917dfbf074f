"""The detached process behind a hook: one event comes in on stdin, what may leave leaves, one line goes to the log.

Rules:

- Nobody waits for it, so it may wait: for the last words to reach the file, and for a backend that says "later".
- It serves its own session first, then looks through the project for sessions that were left behind, within a budget.
- Whatever goes wrong is one line in the log and never anybody else's problem: one failing session stops no other, nor
  does a destination that cannot be used.
- Whoever had a session locked looks, after letting go, for events that came meanwhile.
"""

from __future__ import annotations

from turnspan import lazy  # noqa: F401  before anybody else loads msgspec

# isort: split
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan import log
from turnspan.delivery import marks, state
from turnspan.delivery.destinations import since, targets_of
from turnspan.delivery.prune import prune
from turnspan.errors import BackendError, ConfigError, TurnspanError
from turnspan.hook import take_over
from turnspan.hook_event import parse_event
from turnspan.private_files import Busy
from turnspan.report import report
from turnspan.settings.config import OFF, load_config
from turnspan.ship import ship
from turnspan.source import sessions
from turnspan.source.progress import Ending
from turnspan.source.scan import modified_ns, size_of
from turnspan.transcript.resume import words_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from turnspan.backends import Verdict
    from turnspan.delivery.destinations import Target
    from turnspan.hook_event import Event
    from turnspan.settings.config import Config
    from turnspan.ship import Shipped
    from turnspan.source.sessions import SessionFile

EVENTS: Final = frozenset({"Stop", "SubagentStop", "StopFailure", "SessionStart", "SessionEnd"})
_ANSWER_WAIT_S: Final = 2.0
_SILENT_END_S: Final = 1.6
_LONGEST_END_S: Final = 6.0
_RETRIES_S: Final = (0.3, 0.7, 1.5, 3.0, 6.0)
_SWEEP_BUDGET_S: Final = 20.0
_SWEEP_EVERY_S: Final = 60.0
_POLL_S: Final = 0.05
_SWITCHED_OFF: Final = "switched off"
_RECOVERED: Final = "recovered"


class Shift(msgspec.Struct, frozen=True):
    """What a worker has at hand while it serves an event."""

    config: Config
    targets: list[Target]  # those that can be used, as far as is known
    clock: Callable[[], float]
    sleep: Callable[[float], None]


def main() -> None:
    """Serve one event, and be gone: taking the interpreter apart would cost a tenth of the event."""
    _serve_stdin()
    os._exit(0)


def _serve_stdin() -> None:
    started = time.time()
    payload = take_over()
    env = dict(os.environ)
    try:
        home = load_config(env).home
    except TurnspanError:
        return  # no home at all: there is not even a log
    try:
        event = msgspec.structs.replace(parse_event(payload), at_s=_born_s())
        serve(event, env, time.time, time.sleep)
    except (TurnspanError, OSError) as error:
        log.log_line(home, "ERROR", "failed", reason=str(error), seconds=round(time.time() - started, 3))
    except Exception as error:
        # The last resort: without it a bug here would be silence. Its text may hold content, so only its type is told.
        where = error.__traceback__
        while where is not None and where.tb_next is not None:
            where = where.tb_next
        place = f"{Path(where.tb_frame.f_code.co_filename).name}:{where.tb_lineno}" if where is not None else ""
        log.log_line(home, "ERROR", "bug", type=type(error).__name__, at=place)
        if env.get("TURNSPAN_RAISE"):
            raise


def _born_s() -> float:
    """When this process was started, where that can be told: the client waited for the hook until then, not longer."""
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
    """Do everything that one event asks for."""
    project = Path(event.cwd or env.get("CLAUDE_PROJECT_DIR") or "/")
    config = load_config(env, project=project)
    for problem in config.problems:
        log.log_line(config.home, "ERROR", "setting", reason=problem)
    if event.hook_event_name not in EVENTS:
        raise TurnspanError(f"there is nothing to do for the event {event.hook_event_name[:60]!r}")
    session = _session_of(event, config)
    if env.get("TURNSPAN_ENABLED", "").strip().lower() in OFF:
        # Switched off for this session: remember it, or another session's worker would export it as left behind.
        off = {"event": _SWITCHED_OFF, "path": str(session.path)}
        _attend(Shift(config, [], clock, sleep), session, off)
        return
    if not config.is_enabled:
        return
    shift = Shift(config, find_targets(config), clock, sleep)
    opened = list(shift.targets)
    for target in opened:
        since(config, target.identity, clock())
    try:
        facts: dict[str, Any] = {"event": event.hook_event_name, "path": str(session.path), "at": event.at_s or clock()}
        if event.last_assistant_message:
            facts["words"] = words_digest(event.last_assistant_message)
        if event.agent_id:
            facts["agent"] = event.agent_id
        _attend(shift, session, facts)
        if config.values["recover"] and _is_sweep_due(config, event, session, clock()):
            is_stop = event.hook_event_name in {"Stop", "SessionEnd"}
            sweep(shift, session, event.session_id if is_stop else None)
        prune(config.home, clock())
    finally:
        for target in opened:
            target.close()


def _attend(shift: Shift, session: SessionFile, facts: dict[str, Any]) -> None:
    """Have an event served, by us or by whoever has its session now."""
    home, session_id = shift.config.home, session.session_id

    def work(events: list[dict[str, Any]], is_locked: bool) -> None:
        if not is_locked:
            log.log_line(home, "WARN", "lock unavailable", session=session_id)
        if any(mark.get("event") == _SWITCHED_OFF for mark in events):
            _switch_off(shift.config, session)
        else:
            _serve_session(shift, session, events)

    if not marks.attend(home, session_id, facts, work):
        log.log_line(home, "INFO", "busy", session=session_id, trigger=facts["event"])


def _session_of(event: Event, config: Config) -> SessionFile:
    path = Path(event.transcript_path)
    if not sessions.is_safe_id(event.session_id):
        raise TurnspanError(f"{event.session_id[:60]!r} is not a session id")
    if not event.transcript_path or not path.is_absolute():
        raise TurnspanError("the hook was told no transcript path")
    session = sessions.session_at(path)
    if not sessions.is_below(path, sessions.projects_dir(config.claude_home)):
        raise TurnspanError(f"{path} is not below {sessions.projects_dir(config.claude_home)}: not read")
    return session


def _switch_off(config: Config, session: SessionFile) -> None:
    """Note that nothing of a session leaves. The caller holds its lock."""
    checkpoint = state.load(config.home, session.session_id).checkpoint
    if not checkpoint.is_off:
        state.save(config.home, msgspec.structs.replace(checkpoint, is_off=True, transcript=str(session.path)))
        log.log_line(config.home, "INFO", _SWITCHED_OFF, session=session.session_id)


# ---- the session of the event


def _serve_session(shift: Shift, session: SessionFile, events: list[dict[str, Any]]) -> None:
    ending = _ending(events)
    if not session.path.exists() and ending.is_stopped:
        _wait(session.path.exists, _ANSWER_WAIT_S, shift.sleep)
    if not session.path.exists():
        return  # SessionStart comes before the file does
    home, clock = shift.config.home, shift.clock
    waiting = marks.marks_length(home, session.session_id)
    for target in list(shift.targets):
        patience = _Patience(shift.sleep)
        early = _before_the_end(shift, session, target, ending, patience) if ending.is_over else None
        shipped = _ship(shift, session, target, ending, patience) if target in shift.targets else None
        if shipped is None:
            continue
        if early is not None:
            shipped = _joined(early, shipped)
        deadline = clock() + _ANSWER_WAIT_S
        for _ in range(int(_ANSWER_WAIT_S / _POLL_S)):  # counted too: a clock that steps back must not keep us here
            if not shipped.is_answer_missing or not shipped.is_complete or clock() >= deadline:
                break
            if marks.marks_length(home, session.session_id) > waiting:
                break  # the session has gone on: whoever came meanwhile is served with the whole
            shift.sleep(_POLL_S)
            again = ship(session, target, shift.config, ending, clock, is_patient=patience)
            shipped = _joined(shipped, again)
        report(shift.config, session, shipped, events)


def _before_the_end(
    shift: Shift, session: SessionFile, target: Target, ending: Ending, patience: _Patience
) -> Shipped | None:
    """SessionEnd comes before a client's last rows: if anything is still open, let the files fall silent first."""
    stopped = Ending(is_stopped=True, finished_agents=ending.finished_agents)
    shipped = _ship(shift, session, target, stopped, patience)
    sizes, silent_s = _sizes(session), 0.0
    for _ in range(int(_LONGEST_END_S / _POLL_S)):
        if shipped is None or not shipped.has_unsealed or silent_s >= _SILENT_END_S:
            break
        shift.sleep(_POLL_S)
        before, sizes = sizes, _sizes(session)
        silent_s = silent_s + _POLL_S if sizes == before else 0.0
    return shipped


def _sizes(session: SessionFile) -> list[int]:
    """How long the files of a session are."""
    paths = [session.path, *(agent.path for agent in sessions.agent_files(session).values())]
    return [path.stat().st_size for path in paths if path.exists()]


def _ship(shift: Shift, session: SessionFile, target: Target, ending: Ending, patience: _Patience) -> Shipped | None:
    """Bring a session to a destination. One that cannot be used is told once and left out; the others go on."""
    try:
        return ship(session, target, shift.config, ending, shift.clock, is_patient=patience)
    except (ConfigError, BackendError) as error:
        log.log_line(shift.config.home, "ERROR", "setting", destination=target.destination.name, reason=str(error))
        shift.targets.remove(target)
        return None


def _ending(events: list[dict[str, Any]]) -> Ending:
    """What the events since the last time say together. Idleness is no question: an event shows that it is alive."""
    names = {str(mark.get("event")) for mark in events}
    # StopFailure fires for a subagent too (2.1.325): then it names the agent, and the turn goes on.
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
    )


class _Patience:
    """Waits a little, a few times, for a backend that says "later"; nobody waits for us."""

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


def _joined(first: Shipped, second: Shipped) -> Shipped:
    """Two rounds told as one."""
    for count in ("turns", "spans", "copied", "refused", "cut"):
        setattr(second, count, getattr(first, count) + getattr(second, count))
    second.kept_as = first.kept_as
    second.is_rewritten |= first.is_rewritten
    second.stopped = second.stopped or first.stopped
    for rule, number in first.masked.items():
        second.masked[rule] = second.masked.get(rule, 0) + number
    return second


# ---- sessions left behind


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
        with suppress(OSError):  # then it is looked at again sooner
            stamp.touch(mode=0o600)
            os.utime(stamp, (now_s, now_s))
    return is_due


def sweep(shift: Shift, current: SessionFile, stopped: str | None = None) -> int:
    """Export what sessions of the same project left behind; the number of turns.

    `stopped` is the id of the session whose turn has just ended: its turns may stand in another file than it names.
    """
    config, clock = shift.config, shift.clock
    deadline = clock() + _SWEEP_BUDGET_S
    patience = _Patience(shift.sleep)
    recovered = 0
    for session in _left_behind(shift, current):
        if clock() > deadline:
            break
        try:
            with state.lock(config.home, session.session_id):
                recovered += _recover(shift, session, patience, stopped)
            if marks.has_marks(config.home, session.session_id):
                _attend(shift, session, {"event": _RECOVERED})
        except Busy:
            continue  # its own worker is at it
        except (TurnspanError, OSError) as error:
            log.log_line(config.home, "WARN", "not recovered", session=session.session_id, reason=str(error))
    return recovered


def _recover(shift: Shift, session: SessionFile, patience: _Patience, stopped: str | None) -> int:
    """Export what is left of one session that has fallen silent; the number of turns."""
    config, now_s = shift.config, shift.clock()
    turns = 0
    for target in list(shift.targets):
        if modified_ns(session.path) < 1e9 * since(config, target.identity, now_s):
            continue
        shipped = _ship(shift, session, target, Ending(now_ns=int(now_s * 1e9), stopped_session=stopped), patience)
        if shipped is None:
            continue
        turns += shipped.turns
        if shipped.spans or shipped.stopped is not None or shipped.refused:
            report(config, session, shipped, [{"event": _RECOVERED}])
    return turns


def _left_behind(shift: Shift, current: SessionFile) -> Iterator[SessionFile]:
    """The other sessions of the project that may hold something unsent, the latest first."""
    config = shift.config
    others = [s for s in sessions.sessions_in(current.path.parent) if s.session_id != current.session_id]
    root = sessions.projects_dir(config.claude_home)
    for session in sorted(others, key=lambda session: modified_ns(session.path), reverse=True):
        if not sessions.is_below(session.path, root):
            continue
        try:
            found = state.load(config.home, session.session_id)
        except (TurnspanError, OSError):
            continue
        if found.kept_as:
            log.log_line(config.home, "WARN", "state corrupt", session=session.session_id, kept_as=found.kept_as)
        known, size = found.checkpoint, size_of(session.path)
        cursors = [known.destinations.get(target.identity) for target in shift.targets]
        if known.is_off or all(cursor is not None and cursor.seen_bytes == size for cursor in cursors):
            continue
        yield session


if __name__ == "__main__":
    main()
