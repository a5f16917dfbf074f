"""The records that `--json` prints: values that JSON can represent.

Rules:

- The keys are an interface: `--help` lists them, and a test compares all of them with a snapshot.
- Every key is always present: null where there is no value. Ids are hexadecimal; times are UTC, in nanoseconds.
- `line_of` gives ASCII: control characters are escaped, so a record cannot control a terminal.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import msgspec

from turnspan.health.checks import Mark
from turnspan.settings.in_force import shown_options, shown_settings
from turnspan.settings.options import POLICY
from turnspan.text import iso_time
from turnspan.trace.model import Json, ToolCall
from turnspan.trace.tally import Tally

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from turnspan.bulk.dry_run import DryRun, Share
    from turnspan.bulk.report import Verified
    from turnspan.bulk.retention import Expiring
    from turnspan.bulk.runner import Totals
    from turnspan.claude.cleanup import Period
    from turnspan.health.checks import Check
    from turnspan.health.status import DestinationStatus, Status
    from turnspan.index.search import Hit
    from turnspan.page.sessions_table import Summary
    from turnspan.settings.config import Config
    from turnspan.settings.project import Narrowing
    from turnspan.trace.model import Content, Part, Span, Trace


Record = dict[str, object]


def line_of(record: Mapping[str, object]) -> str:
    """A record as one line of JSON."""
    return json.dumps(record, separators=(",", ":")).replace("\x7f", "\\u007f")


def _fields(value: msgspec.Struct, *, without: Iterable[str] = ()) -> Record:
    """The fields of a value under their own names."""
    return {name: msgspec.to_builtins(getattr(value, name)) for name in value.__struct_fields__ if name not in without}


def _tally_record(tally: Tally) -> Record:
    shown = _fields(tally, without=("cut_off", "unpriced", "inferred", "incomplete"))
    return {**shown, "is_cost_partial": tally.is_cost_partial}


# ---- sessions and show


def summary_record(summary: Summary, sent: str) -> Record:
    """One session; `sent` says how much of it was exported."""
    return {
        **_fields(summary, without=("path", "tally", "last_ns")),
        "path": str(summary.path),
        "last_activity": iso_time(summary.last_ns) if summary.last_ns else None,
        **_tally_record(summary.tally),
        "sent": sent,
    }


def hit_record(hit: Hit) -> Record:
    """One hit of a search."""
    return {
        **_fields(hit, without=("start_ns", "context")),
        "start": iso_time(hit.start_ns) if hit.start_ns else None,
        "context": "".join(text for text, _ in hit.context),
        "matches": [text for text, is_match in hit.context if is_match],
    }


def trace_record(trace: Trace, masked: Mapping[str, int]) -> Record:
    """A trace with all its spans; `masked` counts the replacements of each rule."""
    return {
        "trace_id": trace.trace_id.hex(),
        "name": trace.name,
        "session_id": trace.session_id,
        "client_version": trace.client_version,
        "tags": list(trace.tags),
        "facts": msgspec.to_builtins(trace.facts),
        "masked": dict(masked),
        "spans": [span_record(span) for span in trace.spans],
    }


def span_record(span: Span) -> Record:
    """A span with its content."""
    return {
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_id.hex() if span.parent_id is not None else None,
        "kind": span.kind.value,
        "name": span.name,
        "start": iso_time(span.start_ns),
        "end": iso_time(span.end_ns),
        "duration_ms": (span.end_ns - span.start_ns) / 1e6,
        "first_token": iso_time(span.first_token_ns) if span.first_token_ns is not None else None,
        "model": span.model,
        "usage": msgspec.to_builtins(span.usage),
        "cost_usd": span.cost_usd,
        "totals": msgspec.to_builtins(span.totals),
        "totals_cost_usd": span.totals_cost_usd,
        "error": span.error,
        "error_message": span.error_message,
        "input": _content_record(span.input),
        "output": _content_record(span.output),
        "facts": msgspec.to_builtins(span.facts),
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex(), "relation": link.relation}
            for link in span.links
        ],
    }


def _content_record(content: Content | None) -> object:
    if isinstance(content, tuple):
        return [
            {
                "role": message.role,
                "finish_reason": message.finish_reason,
                "parts": [_part_record(p) for p in message.parts],
            }
            for message in content
        ]
    return _value(content.text) if isinstance(content, Json) else content


def _part_record(part: Part) -> object:
    record = msgspec.to_builtins(part)
    if isinstance(part, ToolCall):
        record["arguments"] = _value(part.arguments)
    return record


def _value(text: str) -> object:
    """The value of JSON text; the text itself if it is not valid JSON, for example because it was cut."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is not valid JSON")


# ---- config and doctor


def config_record(config: Config, cwd: str, narrowing: Narrowing, problems: tuple[str, ...]) -> Record:
    """The settings in force, without secrets."""
    return {
        "home": str(config.home),
        "claude_home": str(config.claude_home),
        "settings": {
            name: {"value": value, "source": config.sources[name]} for name, value in shown_settings(config).items()
        },
        "destinations": [
            {
                "name": destination.name,
                "type": destination.type,
                "source": destination.source,
                "options": shown_options(destination),
                "policy": {name: destination.policy[name] for name in POLICY},
            }
            for destination in config.destinations
        ],
        "project": {
            "directory": cwd,
            **{name: getattr(narrowing, name) for name in ("is_off", "capture", "withheld", "tags")},
            "why": narrowing.why or None,
        },
        "problems": list(problems),
        "ignored": list(config.ignored),
    }


def doctor_record(checks: Sequence[Check]) -> Record:
    """All checks, and whether none of them is an error."""
    return {
        "is_healthy": all(check.mark is not Mark.BAD for check in checks),
        "checks": [{**_fields(check), "todo": check.todo or None} for check in checks],
    }


# ---- status


def status_record(status: Status) -> Record:
    """What was sent, what is pending, and why."""
    renamed = ("at_s", "places", "hook", "known", "off", "unreadable_states")
    return {
        **_fields(status, without=(*renamed, "masked_since", "destinations")),
        "at": _iso(status.at_s),
        "hooks": msgspec.to_builtins(status.places),
        "hook_ms": msgspec.to_builtins(status.hook),
        "sessions": {"known": status.known, "off": status.off, "unreadable": status.unreadable_states},
        "masked_since": status.masked_since or None,
        "destinations": [_destination_status_record(destination) for destination in status.destinations],
    }


def _destination_status_record(it: DestinationStatus) -> Record:
    newest = it.newest
    return {
        **_fields(it, without=("last_success_s", "held_until_s", "newest")),
        "answer_reason": it.answer_reason or None,
        "last_success": _iso(it.last_success_s),
        "last_error": it.last_error or None,
        "backoff_until": _iso(it.held_until_s),
        "newest": newest
        and {**_fields(newest, without=("at_s",)), "at": _iso(newest.at_s), "link": newest.link or None},
    }


def _iso(at_s: float | None) -> str | None:
    return iso_time(int(at_s * 1e9)) if at_s is not None else None


# ---- backfill, verify and retention


def backfill_record(totals: Totals, destinations: Sequence[str], seconds: float) -> Record:
    """What a backfill sent, and what it did not."""
    return {
        "destinations": list(destinations),
        "seconds": round(seconds, 3),
        **_fields(totals),
        "is_complete": totals.is_complete,
    }


def dry_run_record(found: DryRun) -> Record:
    """What a backfill would send."""
    return {
        "destinations": {
            name: {
                "total": _share_record(found.total(name)),
                "projects": {project: _share_record(share) for project, share in projects.items()},
            }
            for name, projects in found.destinations.items()
        },
        "unreadable": found.totals.unreadable,
        "failed": found.totals.left,
        "is_interrupted": found.totals.is_interrupted,
    }


def _share_record(share: Share) -> Record:
    counts = _fields(share.counts, without=("refused", "cut"))  # of what is sent
    return {**_fields(share, without=("tally", "cwd", "counts")), **counts, **_tally_record(share.tally)}


def verify_record(
    found: Sequence[Verified], names: Mapping[str, bool], history: Mapping[str, int], failed: Mapping[str, str]
) -> Record:
    """The differences of a check; `names` says which destinations can be queried, `history` what was not compared."""
    return {
        "is_complete": not failed and all(one.is_complete for one in found),
        "destinations": {
            name: {
                **_verified_record([one for one in found if one.destination == name], is_asked=is_asked),
                "history": history[name],
            }
            for name, is_asked in names.items()
        },
        "differences": [_difference_record(one) for one in found if not one.checked.is_complete],
        "failed": dict(failed),
    }


def _verified_record(found: Sequence[Verified], *, is_asked: bool) -> Record:
    def total(tallies: Iterable[Tally]) -> Record:
        return _tally_record(sum(tallies, start=Tally()))

    stored = (one.checked.stored for one in found)
    return {
        "sessions": len(found),
        "expected": total(one.checked.expected for one in found),
        "acknowledged": total(one.checked.acknowledged for one in found),
        "stored": total(tally for tally in stored if tally is not None) if is_asked else None,
        "missing_spans": sum(one.checked.missing for one in found if not one.is_complete),
        "doubled_spans": sum(len(one.checked.doubled) for one in found),
        "off": sum(one.checked.off for one in found),
    }


def _difference_record(one: Verified) -> Record:
    checked = one.checked
    return {
        "session_id": checked.session.session_id,
        "path": str(checked.session.path),
        "project": checked.project,
        "expected": _tally_record(checked.expected),
        "acknowledged": _tally_record(checked.acknowledged),
        "stored": _tally_record(checked.stored) if checked.stored is not None else None,
        "unsent": _hex(checked.unsent),
        "lost": _hex(checked.lost),
        "in_flight": _hex(checked.in_flight),
        "refused": _hex(checked.refused),
        "forgotten": checked.forgotten,
        "doubtful": _hex(checked.doubtful),
        "is_unknown": checked.is_unknown,
        "silence": checked.silence or None,
        "overlooked": sorted(checked.overlooked.responses | checked.overlooked.calls),
        **_fields(one, without=("checked",)),
    }


def _hex(ids: Iterable[bytes]) -> list[str]:
    return sorted(span_id.hex() for span_id in ids)


def retention_record(found: Sequence[Expiring], period: Period, failed: Mapping[str, str]) -> Record:
    """The unsent transcripts that Claude Code deletes soon."""
    return {
        "cleanup_days": period.days,
        "cleanup_source": str(period.source) if period.source is not None else None,
        "expiring": [
            {
                "session_id": one.session.session_id,
                "path": str(one.session.path),
                "project": one.project,
                "days_left": round(one.days_left, 3),
                "unsent": {name: _tally_record(tally) for name, tally in one.unsent.items()},
            }
            for one in found
        ],
        "failed": dict(failed),
    }
