"""New turns, responses and results, as the row that starts them describes them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turnspan.transcript import entries as e
from turnspan.transcript.classify import REPLIES, is_own_row, key_of, origin_of
from turnspan.transcript.launches import agent_of
from turnspan.transcript.resume import known_as
from turnspan.transcript.turns import Happening, Prompt, Response, Result, Turn, several

if TYPE_CHECKING:
    from turnspan.transcript.entries import Entry
    from turnspan.transcript.memory import Memory, Request
    from turnspan.transcript.resume import TurnRef
    from turnspan.transcript.turns import Row


def new_turn(memory: Memory, row: Row, origin: str, session_id: str) -> Turn:
    """Return the next turn, started by this row; `session_id` if the row does not name its session."""
    entry, past = row.entry, memory.past
    fork = entry.forked_from or e.ForkedFrom()
    key = known_as(fork.message_uuid) or entry.uuid or known_as(entry.prompt_id) or key_of(entry)
    if key in [ref.key for ref in past.recent]:
        key = f"{key}/{key_of(entry)}"  # it says that it is a copy of a turn next to it: still a turn of its own
    return Turn(
        session_id=known_as(fork.session_id) or known_as(entry.session_id) or session_id,
        key=key,
        number=past.turns + 1,
        part=0,
        origin=origin,
        start=row.place,
        end=row.place,
        previous=memory.earlier_turn(entry) if past.recent else None,
        forked_from=fork.session_id,
        prompt_uuid=entry.uuid or "",
        prompt_id=entry.prompt_id or "",
        permission_mode=entry.permission_mode or "",
    )


def further_part(ref: TurnRef, row: Row, session_id: str) -> Turn:
    """Return the next part of a sealed turn; `session_id` is the file's own."""
    return Turn(
        session_id=ref.session_id, key=ref.key, number=ref.number, part=ref.parts, origin="continued",
        start=row.place, end=row.place, is_own=ref.session_id != session_id and is_own_row(row.entry, session_id),
    )  # fmt: skip


def add_surroundings(turn: Turn, entry: Entry) -> None:
    """Add where a row was written to its turn: the last one that says it counts."""
    # They rarely change, and to compare takes less time than to assign.
    if entry.version and entry.version != turn.version:
        turn.version = entry.version
    if entry.cwd and entry.cwd != turn.cwd:
        turn.cwd = entry.cwd
    if entry.git_branch and entry.git_branch != turn.git_branch:
        turn.git_branch = entry.git_branch
    if entry.slug and entry.slug != turn.slug:
        turn.slug = entry.slug
    if entry.entrypoint and entry.entrypoint != turn.entrypoint:
        turn.entrypoint = entry.entrypoint


def command_prompt(row: Row) -> tuple[Prompt, str]:
    """Return the prompt of a command or `!` line, and the origin of its turn."""
    assert row.said is not None
    text, blocks = row.said.text, (several(row.said.texts),)
    command = e.command_of(text)
    if text.lstrip().startswith(REPLIES):  # a prompt after all: the model answers it
        return Prompt(text, row.time_ns, blocks=blocks), origin_of(row.entry, text)
    if command is None:
        return Prompt(text, row.time_ns, command="!", blocks=blocks), "bash"
    name, arguments = command
    text_of_command = f"{name} {arguments}".strip()
    return Prompt(text_of_command, row.time_ns, command=name, blocks=blocks), origin_of(row.entry, text)


def new_response(key: str, row: Row, message: e.Message, request: Request | None, trigger_ns: int | None) -> Response:
    """Return the response whose first line this is, without its content; `request` is the recorded one it names."""
    entry = row.entry
    params = request.params if request is not None else None
    return Response(
        key=key,
        uuid=entry.uuid or key_of(entry),
        model=message.model or "",
        version=entry.version or "",
        request_id=entry.request_id,
        requested_model=entry.requested_model or (params.model if params is not None else None),
        effort=entry.effort,
        max_tokens=params.max_tokens if params is not None else None,
        trigger_ns=trigger_ns,
        request_ns=request.time_ns if request is not None else None,
        has_request_elsewhere=entry.request_ref is not None and request is None,
        session_id=entry.session_id or "",
        first_ns=row.time_ns,
        first_block_ms=entry.thinking_duration_ms or entry.tool_input_stream_ms,
    )


def user_event(kind: str, row: Row, texts: list[str]) -> Happening:
    """Return what a user row adds to a turn that runs: an interruption, or typed words."""
    return Happening(kind, key_of(row.entry), row.time_ns, "\n".join(texts), blocks=several(texts))


def new_result(tool: str, texts: list[str], block: e.Block, row: Row, outcome: e.Outcome) -> Result:
    """Return the result of a call of this tool."""
    text = "\n".join(texts)
    agent_id, is_background = agent_of(tool, text, outcome)
    return Result(
        text=text,
        is_error=bool(block.is_error),
        time_ns=row.time_ns,
        denial=row.entry.tool_denial_kind,
        duration_ms=outcome.duration_ms,
        agent_id=agent_id,
        is_background=is_background,
        was_interrupted=outcome.interrupted,
        blocks=several(texts),
    )
