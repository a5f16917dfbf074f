"""Makes rows of entries: what each needs to know about itself, found out once.

A row that seals a turn is taken two or three times, and so are the rows after one that waits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnspan.transcript import entries as e
from turnspan.transcript.classify import QUIET, SENDS_ON, SYNTHETIC, is_interruption, response_key
from turnspan.transcript.resume import known_as
from turnspan.transcript.times import parse_time
from turnspan.transcript.turns import Row, UserRow

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turnspan.transcript.entries import Entry
    from turnspan.transcript.turns import Place


def rows_of(entries: Iterable[tuple[Place, Entry]], *, is_agent: bool) -> list[Row]:
    """Return entries as rows, except what the client wrote because no model answered ("No response requested.")."""
    rows = [_row_of(entry, place, is_agent) for place, entry in entries]
    return [row for row in rows if row is not None]


def _row_of(entry: Entry, place: Place, is_agent: bool) -> Row | None:  # not by keyword: that takes twice as long
    if (uuid := known_as(entry.uuid)) is not entry.uuid:
        entry.uuid = uuid
    if (parent := known_as(entry.parent_uuid)) is not entry.parent_uuid:
        entry.parent_uuid = parent
    kind, message, time_ns = entry.type, entry.message, parse_time(entry.timestamp)
    if message is None:
        return Row(entry, place, time_ns)
    if kind == "assistant":
        if message.model == SYNTHETIC and not entry.is_api_error_message:
            return None
        return Row(entry, place, time_ns, True, response_key(entry))
    if kind != "user":
        return Row(entry, place, time_ns)
    if entry.is_sidechain and not is_agent:
        return Row(entry, place, time_ns, True)
    said = _user_row(message)
    is_conversation = bool(said.results) or _is_message(entry, said, is_agent=is_agent)
    return Row(entry, place, time_ns, is_conversation, "", said)


def _user_row(message: e.Message) -> UserRow:
    blocks = e.blocks(message)
    results = [block for block in blocks if block.type == "tool_result"]
    if len(results) == len(blocks):
        return UserRow(blocks, results, [], "", is_interruption=False)
    texts = e.plain_texts(blocks)
    text = "\n".join(texts)
    return UserRow(blocks, results, texts, text, is_interruption(text))


def _is_message(entry: Entry, said: UserRow, *, is_agent: bool) -> bool:
    """Whether a user row without results is a message of the user; all others are read with the next such row."""
    if is_agent and entry.origin is not None and entry.origin.kind in SENDS_ON:
        return True  # marked as meta since 2.1.207, but it starts what the agent does next
    if entry.is_meta or entry.is_compact_summary or entry.is_visible_in_transcript_only:
        return False
    text = said.text.lstrip()
    return not text.startswith(QUIET) and e.command_of(text) is None
