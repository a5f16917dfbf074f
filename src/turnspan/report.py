"""What became of a session, as one line of the log that tells the truth."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turnspan import log
from turnspan.backends import Answer

if TYPE_CHECKING:
    from turnspan.settings.config import Config
    from turnspan.ship import Shipped
    from turnspan.source.sessions import SessionFile


def report(config: Config, session: SessionFile, shipped: Shipped, marks: list[dict[str, Any]]) -> None:
    """Write the line; `marks` are the events that it was done for."""
    facts: dict[str, Any] = {
        "session": session.session_id,
        "destination": shipped.destination,
        "trigger": ",".join(sorted({str(mark.get("event")) for mark in marks})),
        "turns": shipped.turns,
        "spans": shipped.spans,
    }
    for name in ("copied", "off", "refused", "cut", "kept_as"):
        if getattr(shipped, name):
            facts[name] = getattr(shipped, name)
    for name, counts in (("masked", shipped.masked), ("noticed", shipped.noticed), ("unknown", shipped.unknown)):
        if counts:
            facts[name] = ",".join(f"{key}={count}" for key, count in sorted(counts.items()))
    if shipped.is_rewritten:
        facts["rewritten"] = True
    if shipped.is_answer_missing:
        facts["unsealed"] = True
    if shipped.stopped is not None:
        facts["reason"] = shipped.stopped.reason
    log.log_line(config.home, _level(shipped), _said(shipped), **facts)


def _level(shipped: Shipped) -> log.Level:
    stopped = shipped.stopped
    if shipped.refused or (stopped is not None and stopped.answer is not Answer.LATER):
        return "ERROR"
    return "WARN" if stopped is not None or shipped.is_rewritten or shipped.kept_as else "INFO"


def _said(shipped: Shipped) -> str:
    if shipped.stopped is not None:
        return f"held: {shipped.stopped.answer}"
    if shipped.refused:
        return "quarantined"
    if shipped.kept_as:
        return "state corrupt"
    if shipped.held_until_s is not None:
        return "on hold"
    return "sent" if shipped.spans else "nothing new"
