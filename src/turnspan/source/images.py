"""Images in a transcript, read again for a user who wants to look at them: traces have only their type and size.

Rules:

- A row is found by the id of a tool call or by the time of a prompt, and must have images of the sizes that the trace
  says: another image is never taken for one.
- What an image is decided from its first bytes, not from the type that the transcript says.
"""

from __future__ import annotations

import base64
import binascii
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.scan import rows_with
from turnspan.source.sessions import agent_files, flat_agent_files
from turnspan.transcript import entries, lines

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from turnspan.source.sessions import SessionFile
    from turnspan.transcript.entries import ContentBlock, Entry, MediaSource

MOST_BYTES: Final = 16 << 20  # of an image that is shown
_KINDS: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"), (b"\xff\xd8\xff", "image/jpeg"), (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
)  # fmt: skip
_SECOND_NS: Final = 10**9


class Image(msgspec.Struct, frozen=True):
    """The bytes of an image, and what they are."""

    mime: str
    data: bytes


def image_of_call(session: SessionFile, call_id: str, sizes: Sequence[int], number: int) -> Image | None:
    """Return one of the images in the result of a tool call; `sizes` are those of all of them."""
    for path in _files(session) if call_id else ():
        for entry in _entries(path, call_id.encode()):
            for block in _blocks(entry):
                if block.type == "tool_result" and block.tool_use_id == call_id:
                    inner = block.content if isinstance(block.content, list) else [block.content]
                    found = [item.source for item in inner if isinstance(item, entries.Inner) and item.source]
                    if image := _image(found, sizes, number):
                        return image
    return None


def image_of_prompt(session: SessionFile, at_ns: int, sizes: Sequence[int], number: int) -> Image | None:
    """Return one of the images of the prompt that was written at this time; `sizes` are those of all of them."""
    try:
        second = f"{datetime.fromtimestamp(at_ns // _SECOND_NS, UTC):%Y-%m-%dT%H:%M:%S}"
    except (ValueError, OverflowError, OSError):  # no client writes such a time
        return None
    for path in _files(session):
        for entry in _entries(path, second.encode()):
            if entry.type == "user" and entries.time_ns(entry) == at_ns:
                kinds = {"image", "document"}  # as the trace counts them
                found = [block.source for block in _blocks(entry) if block.type in kinds and block.source]
                if image := _image(found, sizes, number):
                    return image
    return None


def _files(session: SessionFile) -> Iterator[Path]:
    yield session.path
    yield from (file.path for file in agent_files(session).values())
    yield from (file.path for file in flat_agent_files(session))


def _entries(path: Path, needle: bytes) -> Iterator[Entry]:
    for row in rows_with(path, needle):
        yield from lines.parse(row, lines.Anomalies())


def _blocks(entry: Entry) -> list[ContentBlock]:
    return entries.blocks(entry.message) if entry.message is not None else []


def _image(sources: Sequence[MediaSource], sizes: Sequence[int], number: int) -> Image | None:
    """Return an image if these are the ones that were meant, and it is one that browsers display safely."""
    if [entries.media(source)[1] for source in sources] != list(sizes) or not 0 <= number < len(sources):
        return None
    raw = bytes(sources[number].data)
    if sizes[number] > MOST_BYTES:
        return None
    try:
        data = base64.b64decode(msgspec.json.decode(raw, type=str), validate=True)
    except (msgspec.DecodeError, UnicodeDecodeError, binascii.Error, ValueError):
        return None
    mime = _kind_of(data)
    return Image(mime, data) if mime else None


def _kind_of(data: bytes) -> str:
    """Return the type of an image, from its first bytes; empty if it is none of the known ones."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((mime for beginning, mime in _KINDS if data.startswith(beginning)), "")
