"""Whether we understand what the client writes, and whether it is sent before the client deletes it."""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.bulk.retention import cleanup_period, expiring
from turnspan.errors import TranscriptError
from turnspan.health.checks import Group
from turnspan.source import sessions, tail
from turnspan.source.sessions import newest_sessions
from turnspan.terminal import count
from turnspan.transcript import lines

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.health.checks import Check
    from turnspan.settings.config import Config

GROUP: Final = Group("Transcripts")
_SESSIONS: Final = 20
_BYTES: Final = 8 * 1024 * 1024
_READING_S: Final = 3.0
_SOON_DAYS: Final = 7.0
_MOST_EXPIRING: Final = 50
# Every field that stood on a line of the conversation in clients up to 2.1.325.
_FIELDS: Final = frozenset(
    """
    agentId apiBlockIndex apiError apiErrorStatus apiErrorType attributionAgent attributionMcpServer attributionMcpTool
    attributionSkill costUSD cwd durationMs effort entrypoint error failedResponseHadNoToolCall forkedFrom gitBranch
    imagePasteIds interruptedMessageId isAbortedMidStream isApiErrorMessage isCompactSummary isMeta isSidechain
    isVisibleInTranscriptOnly madeBy mcpCallNotReadOnly message origin parentUuid perTurnEffort permissionDecision
    permissionMode planContent promptCacheRequested promptId promptSource queueSkipAttachments repeatsCompactSummary
    requestId requestRef requestedModel sandboxed serverClassifierRequest sessionId session_id slug
    sourceToolAssistantUUID sourceToolUseID thinkingDisplay thinkingDurationMs thinkingMetadata timestamp todos
    toolDenialKind toolInputStreamMs toolUseResult turnCompanion turnOrigin turnPosition type userType uuid version
    """.split()  # noqa: SIM905 - a list of a hundred quotes is read by nobody
)


class Seen(msgspec.Struct):
    """What stands in the transcripts that were written last."""

    unread: dict[str, str] = {}  # session or project → why it cannot be read
    sessions: int = 0
    noticed: lines.Anomalies = msgspec.field(default_factory=lines.Anomalies)
    versions: Counter[str] = msgspec.field(default_factory=Counter)
    fields: dict[str, str] = {}  # new to us → the version that wrote it


def transcript_checks(config: Config, now_ns: int) -> Iterator[Check]:
    """What was read lately, what of it is new to us, and what will be gone soon."""
    projects = sessions.projects_dir(config.claude_home)
    seen = look_through(projects)
    for why in seen.unread.values():
        yield GROUP.bad(f"what lies there is not exported: {why}", "make it readable for the user who runs Claude Code")
    if not seen.sessions and not seen.unread:
        yield GROUP.doubt(f"there are no transcripts below {projects}", "use Claude Code, or set CLAUDE_CONFIG_DIR")
        return
    if seen.sessions:
        yield from _drift(seen)
    yield from _expiring(config, now_ns)


def look_through(projects: Path) -> Seen:
    """Read the sessions written to last, for a few seconds at most."""
    seen = Seen()
    deadline = time.monotonic() + _READING_S
    for session in newest_sessions(projects, limit=_SESSIONS, unread=seen.unread):
        if time.monotonic() > deadline:
            break
        try:
            descriptor = tail.open_regular(session.path)
        except TranscriptError as error:
            seen.unread[session.session_id] = str(error)
            continue
        try:
            size = os.fstat(descriptor).st_size
            for line in tail.complete_lines(descriptor, until=min(size, _BYTES)):
                if line.data is not None:
                    _look_at(line.data, seen)
        finally:
            os.close(descriptor)
        seen.sessions += 1
    return seen


def _look_at(line: bytes, seen: Seen) -> None:
    for entry in lines.parse(line, seen.noticed):
        if entry.version:
            seen.versions[entry.version] += 1
        if entry.type in {"user", "assistant"}:
            try:
                names = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # two on one line, or torn
                continue
            for name in names.keys() - _FIELDS:
                seen.fields.setdefault(name, entry.version or "?")


def _drift(seen: Seen) -> Iterator[Check]:
    versions = sorted(seen.versions, key=_version)
    if versions:
        span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        yield GROUP.good(f"Claude Code {span} wrote the {count(seen.sessions, 'newest session')}")
    noticed = seen.noticed
    if noticed.unknown:
        kinds = ", ".join(
            f"{kind} ({version}, {times} times)" for (kind, version), times in sorted(noticed.unknown.items())
        )
        yield GROUP.doubt(
            f"lines of types that this turnspan does not know are passed over: {kinds}",
            "update turnspan; if it goes on, report the types",
        )
    if noticed.misshapen:
        yield GROUP.doubt(
            f"{count(noticed.misshapen, 'field')} had another shape than this turnspan knows, and were left out",
            "update turnspan",
        )
    if noticed.unreadable:
        yield GROUP.doubt(
            f"{count(noticed.unreadable, 'line')} cannot be read", "nothing can be done: the rest is exported"
        )
    if not (noticed.unknown or noticed.misshapen or noticed.unreadable):
        yield GROUP.good("every line of them is understood")
    if seen.fields:
        new = ", ".join(f"{name} ({version})" for name, version in sorted(seen.fields.items())[:8])
        yield GROUP.good(f"fields that are new to this turnspan, and not needed: {new}")


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _expiring(config: Config, now_ns: int) -> Iterator[Check]:
    days = cleanup_period(config.claude_home).days
    going = list(islice(expiring(config, config.destinations, _SOON_DAYS, now_ns, {}), _MOST_EXPIRING))
    if not going:
        yield GROUP.good(f"nothing unsent is about to be deleted (Claude Code keeps transcripts {count(days, 'day')})")
        return
    first = max(0.0, going[0].days_left)
    turns = sum(max(tally.turns for tally in one.unsent.values()) for one in going)
    some = "at least " if len(going) == _MOST_EXPIRING else ""
    yield GROUP.doubt(
        f"Claude Code deletes {some}{count(len(going), 'session')} with {count(turns, 'unsent turn')} within a week, "
        f"the first in {first:.0f} days",
        "`turnspan retention` lists them, `turnspan backfill` sends them; or set `cleanupPeriodDays` in settings.json",
    )
