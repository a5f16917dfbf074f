"""Checks of the transcripts: whether we understand them, and whether they are sent before Claude Code deletes them."""

from __future__ import annotations

import os
import time
from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.bulk.retention import cleanup_period, expiring
from turnspan.errors import TranscriptError
from turnspan.health.checks import CheckGroup
from turnspan.source import sessions, tail
from turnspan.source.sessions import newest_sessions
from turnspan.text import count
from turnspan.transcript import lines
from turnspan.transcript.carry import version_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.health.checks import Check
    from turnspan.settings.config import Config

GROUP: Final = CheckGroup("Transcripts")
_SESSIONS: Final = 20
_BYTES: Final = 8 * 1024 * 1024
_READING_S: Final = 3.0
_NAMED: Final = 8
_SOON_DAYS: Final = 7.0
_MOST_EXPIRING: Final = 50
# Every field of user and assistant lines in clients up to 2.1.325.
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
    """.split()  # noqa: SIM905 - easier to read than a hundred quoted strings
)


class Seen(msgspec.Struct):
    """What the latest transcripts contain."""

    unread: dict[str, str] = {}  # session or project → why it cannot be read
    sessions: int = 0
    noticed: lines.Anomalies = msgspec.field(default_factory=lines.Anomalies)
    versions: Counter[str] = msgspec.field(default_factory=Counter)
    fields: dict[str, str] = {}  # unknown field → the version that wrote it
    parts: Counter[tuple[str, str]] = msgspec.field(default_factory=Counter)  # (what no trace shows, client version)
    calls: dict[str, str] = {}  # tools, by the ids of their calls
    damaged: list[str] = []  # sessions with lines that cannot be read

    @property
    def unreadable(self) -> int:
        """How many lines cannot be read."""
        return self.noticed.unreadable + self.noticed.oversized


def transcript_checks(config: Config, now_ns: int) -> Iterator[Check]:
    """Unknown lines and fields in the latest sessions, and unsent sessions that will be deleted soon."""
    projects = sessions.projects_dir(config.claude_home)
    seen = look_through(projects)
    for why in seen.unread.values():
        yield GROUP.bad(f"not exported: {why}", "make it readable for the user who runs Claude Code")
    if not seen.sessions and not seen.unread:
        yield GROUP.doubt(f"no transcripts in {projects}", "use Claude Code, or set CLAUDE_CONFIG_DIR")
        return
    if seen.sessions:
        yield from _drift(seen)
    yield from _expiring(config, now_ns)


def look_through(projects: Path) -> Seen:
    """Read the latest sessions, for a few seconds at most."""
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
        before = seen.unreadable
        try:
            size = os.fstat(descriptor).st_size
            for line in tail.complete_lines(descriptor, until=min(size, _BYTES)):
                if line.data is not None:
                    _look_at(line.data, seen)
                else:
                    seen.noticed.oversized += 1
        finally:
            os.close(descriptor)
        seen.sessions += 1
        if seen.unreadable > before:
            seen.damaged.append(session.session_id)
    return seen


def _look_at(line: bytes, seen: Seen) -> None:
    for entry in lines.parse(line, seen.noticed):
        if entry.version:
            seen.versions[entry.version] += 1
        if entry.type in {"user", "assistant"}:
            try:
                names = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):  # two objects on one line, or a torn one
                continue
            for name in names.keys() - _FIELDS:
                seen.fields.setdefault(name, entry.version or "?")
            for part in lines.unknown_parts(line, seen.calls):
                seen.parts[part, entry.version or "?"] += 1


def _drift(seen: Seen) -> Iterator[Check]:
    versions = sorted(seen.versions, key=version_of)
    if versions:
        span = versions[0] if len(versions) == 1 else f"{versions[0]} to {versions[-1]}"
        yield GROUP.good(f"Claude Code {span} wrote the {count(seen.sessions, 'newest session')}")
    noticed = seen.noticed
    skipped = {
        "lines of unknown types are skipped": noticed.unknown,
        "unknown parts of messages are skipped": seen.parts,
    }
    for what, found in skipped.items():
        if found:
            kinds = ", ".join(f"{kind} ({version}, {times} times)" for (kind, version), times in sorted(found.items()))
            yield GROUP.doubt(f"{what}: {kinds}", "update turnspan; if it continues, report the types")
    if noticed.misshapen:
        yield GROUP.doubt(
            f"{count(noticed.misshapen, 'field')} with an unknown format skipped",
            "update turnspan",
        )
    if seen.unreadable:
        named = ", ".join(session_id[:8] for session_id in seen.damaged[:_NAMED])
        more = ", …" if len(seen.damaged) > _NAMED else ""
        yield GROUP.doubt(
            f"{count(seen.unreadable, 'line')} of {count(len(seen.damaged), 'session')} cannot be read: {named}{more}",
            "nothing to do; the rest is exported",
        )
    if not (noticed.unknown or seen.parts or noticed.misshapen or seen.unreadable):
        yield GROUP.good("every line is understood")
    if seen.fields:
        new = ", ".join(f"{name} ({version})" for name, version in sorted(seen.fields.items())[:8])
        yield GROUP.good(f"unknown fields, not needed: {new}")


def _expiring(config: Config, now_ns: int) -> Iterator[Check]:
    days = cleanup_period(config.claude_home).days
    due = list(islice(expiring(config, config.destinations, _SOON_DAYS, now_ns, {}), _MOST_EXPIRING))
    if not due:
        yield GROUP.good(f"no unsent transcript will be deleted soon (Claude Code keeps them {count(days, 'day')})")
        return
    first = max(0.0, due[0].days_left)
    turns = sum(max(tally.turns for tally in one.unsent.values()) for one in due)
    some = "at least " if len(due) == _MOST_EXPIRING else ""
    yield GROUP.doubt(
        f"Claude Code deletes {some}{count(len(due), 'session')} with {count(turns, 'unsent turn')} within a week, "
        f"the first in {first:.0f} days",
        "run `turnspan backfill` (`turnspan retention` lists them), or increase `cleanupPeriodDays` in settings.json",
    )
