"""Count the responses and tool calls of a session in its files, by a way of its own.

`verify` compares these with the spans that the same session gives. A response that the export overlooks is missing on
both of its other sides, because both are built by the same code. So this is one plain pass over the rows that uses
nothing of `transcript`: every `message.id` of an assistant row, and every id of a `tool_use` block in it.

Not counted: messages that the client wrote itself (API errors, `<synthetic>`), rows that are not one JSON object, and
ids that are not plain text. What the export skips on purpose is subtracted by `verify`.
"""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.errors import TranscriptError
from turnspan.source import sessions, tail

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from turnspan.source.sessions import SessionFile

_SYNTHETIC: Final = "<synthetic>"
_PLAIN_ID: Final = re.compile(r"[A-Za-z0-9_.:/-]{1,128}")
_ASSISTANT: Final = b'"assistant"'


class _Block(msgspec.Struct):
    type: str | None = None
    id: str | None = None


class _Message(msgspec.Struct):
    id: str | None = None
    model: str | None = None
    content: list[_Block] | str | None = None


class _Row(msgspec.Struct, rename="camel"):
    type: str | None = None
    message: _Message | None = None
    is_api_error_message: bool | None = None
    data: _Progress | None = None


class _Progress(msgspec.Struct):
    message: _Row | None = None


class Recount(msgspec.Struct, frozen=True):
    """The ids of distinct responses and tool calls."""

    responses: frozenset[str] = frozenset()
    calls: frozenset[str] = frozenset()

    def minus(self, ids: set[str]) -> Recount:
        """Return those that are not among these ids."""
        return Recount(self.responses - ids, self.calls - ids)

    @property
    def total(self) -> int:
        """How many there are."""
        return len(self.responses) + len(self.calls)


_decode: Final = msgspec.json.Decoder(_Row).decode


def recount(session: SessionFile) -> Recount:
    """Return the responses and tool calls in the files of a session, its subagents' files included."""
    responses: set[str] = set()
    calls: set[str] = set()
    agents = [*sessions.agent_files(session).values(), *sessions.flat_agent_files(session)]
    for path in dict.fromkeys((session.path, *(agent.path for agent in agents))):
        for message in _messages(path):
            responses.update(_plain(message.id))
            for block in message.content if isinstance(message.content, list) else ():
                if block.type == "tool_use":
                    calls.update(_plain(block.id))
    return Recount(frozenset(responses), frozenset(calls))


def _plain(given: str | None) -> tuple[str, ...]:
    return (given,) if given is not None and _PLAIN_ID.fullmatch(given) else ()


def _messages(path: Path) -> Iterator[_Message]:
    """Yield the messages of a model in a file; those of a subagent can be inside of a progress row (up to 2.1.47)."""
    for row in _rows(path):
        inner = row.data.message if row.type == "progress" and row.data is not None else row
        if inner is None or inner.type != "assistant" or inner.message is None or inner.is_api_error_message:
            continue
        if inner.message.model != _SYNTHETIC:
            yield inner.message


def _rows(path: Path) -> Iterator[_Row]:
    try:
        descriptor = tail.open_regular(path)
    except TranscriptError:
        return  # the export says so
    try:
        for line in tail.complete_lines(descriptor):
            if line.data is not None and _ASSISTANT in line.data:
                try:
                    yield _decode(line.data)
                except (ValueError, RecursionError):  # every error of msgspec's is a ValueError
                    continue
    finally:
        os.close(descriptor)
