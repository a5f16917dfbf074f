"""Forks: turns that were copied into a transcript from another one. They are exported from their origin only.

Claude Code copies history when a session is resumed into a new file, forked or branched.
`RULES` lists how each kind of copy is recognised. They are tried in that order, and the first that applies decides; the
table of `docs/dev/architecture.md` is printed from the list (`table`). The rules behind it:

- Rows that carry the file's own session id belong to its session, even if their prompt carries another one (2.0.36,
  forks; 2.1.12, a plan with cleared context): `transcript.assembly` gives such a turn the file's session. It is a copy
  only if the other file has its responses too.
- Some turns cannot be copies: those whose requests are recorded in this file (2.1.325). For turns that name no other
  session, `Reading` asks only until it has met one of the session's own: history is copied to the beginning of a file.
- **A copy whose origin is not on disk, and was never sent, is the only one there is: it is exported, under the origin's
  identity where the copy names it (`marked`, `old id`).** Of several such copies, the file that became a session of its
  own first exports it.
- `old id` has one more exception: 1.0.x `--continue` writes new turns into a new file under the old session's id. Then
  the old file does not contain them.
- For `unmarked`, only files that were being written when the prompt was are searched, as far as their times are
  trustworthy (2.0.30 on). If both have the prompt, `origins.is_origin` decides, by what clients do not copy.
- A transcript can be cut off in the middle of a turn that was copied before: what only the copy has is exported from
  there, as a further part of the original turn (`rest_of`). A row that is torn has nothing.
- Other tools append one transcript to another. So `new ids` compares times with later rows of the same file too, and
  `in place` does not count a copy that is exported from a third file, nor one that is younger than the turn itself.
- A renamed file that is no session's (`source.owners`) is never the origin of another file's own turns.
- A turn after skipped copies links to its predecessor in the origin: `original_ref`.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.source.beside import others, others_that_may_have, session_in
from turnspan.source.origins import OriginRow, became_own, is_origin
from turnspan.source.scan import contains_id, earliest_row_time_ns, row_as, rows_with, rows_with_field
from turnspan.source.tree import is_safe_id, names_in, project_names
from turnspan.transcript.carry import TurnRef, parse_time, version_of
from turnspan.transcript.entries import blocks, plain_text
from turnspan.transcript.lines import Anomalies, parse
from turnspan.transcript.rows import SYNTHETIC, copies_anew
from turnspan.transcript.turns import Happening

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from turnspan.source.sessions import SessionFile
    from turnspan.transcript.turns import InlineAgent, ModelResponse, Turn

_TIMES_KEPT_FROM: Final = (2, 0, 30)  # copies made by earlier clients carry new timestamps


def is_foreign(turn: Turn, session: SessionFile) -> bool:
    """Whether a turn names another session as its own."""
    return turn.session_id != session.session_id


class Rule(msgspec.Struct, frozen=True):
    """One kind of copy: which clients make it, how it is recognised, and where its origin is."""

    name: str
    clients: str
    keeps: tuple[str, str, str]  # the uuid, the session id and the times of a copied row, next to its origin's
    how: str  # `recognises`, in words
    origin: str
    recognises: Callable[[Turn, SessionFile, Callable[[str], bool]], bool]
    is_in_place: bool = False  # the origin is in the same file


def recognised(
    turn: Turn, session: SessionFile, was_sent: Callable[[str], bool], *, may_be_from_elsewhere: bool
) -> Rule | None:
    """Return the rule by which a turn is a copy, which is exported from its origin; None if it is exported from here.

    `was_sent` says whether a session that is no longer on disk was exported before.
    """
    is_asked = may_be_from_elsewhere and is_looked_up(turn, session)
    rules = (rule for rule in RULES if rule.is_in_place or is_asked)
    return next((rule for rule in rules if rule.recognises(turn, session, was_sent)), None)


def table() -> str:
    """Return the rules as a Markdown table."""
    rows = [
        ("copy", "client, action", "uuid", "session id", "times", "recognised by", "exported from"),
        ("---",) * 7,
        *((rule.name, rule.clients, *rule.keeps, rule.how, rule.origin) for rule in RULES),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def is_looked_up(turn: Turn, session: SessionFile) -> bool:
    """Whether other transcripts decide if a turn was copied."""
    if is_foreign(turn, session):
        return True
    return bool(turn.prompt_uuid) and (_may_have_new_uuids(turn) or not _has_own_requests(turn))


def _is_marked(turn: Turn, session: SessionFile, was_sent: Callable[[str], bool]) -> bool:
    return turn.forked_from is not None and _is_exported_elsewhere(turn, session, was_sent)


def _has_old_id(turn: Turn, session: SessionFile, was_sent: Callable[[str], bool]) -> bool:
    return turn.forked_from is None and _is_exported_elsewhere(turn, session, was_sent)


def _is_exported_elsewhere(turn: Turn, session: SessionFile, was_sent: Callable[[str], bool]) -> bool:
    """Whether a turn of another session is exported from that session's file, or from an earlier copy."""
    if not is_foreign(turn, session):
        return False
    origins, uuid = list(_files_of(turn.session_id, session)), _original_uuid(turn)
    if any(contains_id(path, uuid) and _has_response(path, turn) for path in origins):
        return True
    if not origins and is_safe_id(turn.session_id) and was_sent(turn.session_id):
        return True
    if not turn.prompt_uuid:
        return False
    return any(
        other.path not in origins
        and (contains_id(other.path, uuid) or contains_id(other.path, uuid, key="messageUuid"))
        and _has_response(other.path, turn)
        and became_own(other) < became_own(session)
        and not (_has_as_own(other, turn) and not _is_backup(session.path) and is_origin(session, other, uuid))
        for other in others_that_may_have(session, uuid)
    )


def _has_as_own(other: SessionFile, turn: Turn) -> bool:
    """Whether a file has a response of the turn in a row that names the file's own session: an unmarked copy."""
    for response in turn.responses[:1]:
        for _, line in rows_with_field(other.path, "id", b'"%b"' % response.key.encode()):
            return row_as(line, OriginRow).is_of(session_in(other.path))
    return False


def _has_response(path: Path, turn: Turn) -> bool:
    """Whether a transcript has a response of the turn too, if there is any: a prompt alone can be carried over."""
    keys = [response.key for response in reversed(turn.responses)]  # mostly it has all of them
    return not keys or any(_contains_response(path, key) for key in keys)


def _contains_response(path: Path, key: str) -> bool:
    return any(contains_id(path, key, key=name) for name in ("id", "requestId", "uuid"))


def rest_of(turn: Turn, session: SessionFile) -> Turn | None:
    """Return a copied turn with only the responses that no earlier transcript has; None if there are none.

    They are a further part of the original turn: its transcript was cut off in the middle of it. Of several copies that
    have the rest, one keeps it.
    """
    files, is_anew = list(_files_before(turn, session)), _may_have_new_uuids(turn)
    responses = [response for response in turn.responses if response.model != SYNTHETIC]

    def is_elsewhere(key: str) -> bool:
        if any(_contains_response(path, key) for path in files):
            return True
        return is_anew and _has_earlier_response(turn, session, key)

    if not responses or is_elsewhere(responses[-1].key):
        return None  # the usual case: the original turn is complete
    left = [response for response in responses if not is_elsewhere(response.key)]
    if not files and len(left) == len(responses):
        return None  # it was sent before its file was deleted, or is in this file twice
    left = [response for response in left if not _is_before(turn, session, response.key)]
    if not left:
        return None
    rest = msgspec.structs.replace(turn, responses=left, happenings=[])
    if is_anew:
        return rest
    ref = original_ref(turn.ref, session)
    origin = ref.session_id if ref is not None else turn.session_id
    return msgspec.structs.replace(rest, session_id=origin, part=max(1, turn.part))


def _files_before(turn: Turn, session: SessionFile) -> Iterator[Path]:
    """Yield the transcripts with responses of a copied turn that export it: its origin, and earlier copies."""
    if is_foreign(turn, session):
        origins, born = list(_files_of(turn.session_id, session)), became_own(session)
        keys = [response.key for response in turn.responses]
        copies = (other.path for other in others_that_may_have(session, *keys) if became_own(other) < born)
        yield from (path for path in dict.fromkeys((*origins, *copies)) if _has_response(path, turn))
    elif not _may_have_new_uuids(turn):
        yield from (other.path for other in _earlier(turn, session))


def _files_of(session_id: str, beside: SessionFile) -> Iterator[Path]:
    """Yield the transcripts of a session in the project of another one, renamed ones too, and in other projects."""
    directory, name, names = beside.path.parent, f"{session_id}.jsonl", names_in(beside.path.parent)
    named = {name}.intersection(names.sessions)
    for path in (directory / each for each in sorted({*names.renamed, *named})):
        if path != beside.path and session_in(path) == session_id:
            yield path
    if directory.parent.name == "projects" and is_safe_id(session_id):
        for project in project_names(directory.parent):
            path = directory.parent / project / name
            if project != directory.name and path.is_file():
                yield path


def _may_have_new_uuids(turn: Turn) -> bool:
    """Whether an old client may have copied this turn with new uuids and times: such copies do not name requests."""
    return copies_anew(turn.version) and not any(response.request_id for response in turn.responses)


def _was_written_earlier(turn: Turn, session: SessionFile, _was_sent: Callable[[str], bool]) -> bool:
    """Whether another transcript had the same responses earlier, or, if there are none, the same prompt."""
    if not _may_have_new_uuids(turn):
        return False
    keys = [response.key for response in turn.responses]
    if keys or turn.prompt is None or not turn.prompt.text:
        return _has_earlier_response(turn, session, *keys)
    words = msgspec.json.encode(turn.prompt.text)
    return _is_earlier(turn, session, others(session), ("content", words), ("text", words))


def _has_earlier_response(turn: Turn, session: SessionFile, *keys: str) -> bool:
    """Whether a response is in a row that is older than the turn."""
    fields = [("id", b'"%b"' % key.encode()) for key in keys]
    return _is_earlier(turn, session, others_that_may_have(session, *keys), *fields)


def _is_earlier(turn: Turn, session: SessionFile, files: Iterator[SessionFile], *fields: tuple[str, bytes]) -> bool:
    """Whether one of these fields is in a row that is older than the turn: in another transcript, or later in this one.

    It is later in this one if the origin was appended to the copy.
    """
    first_ns = min(turn.times, default=0)
    places = [(session.path, turn.end.end), *((other.path, 0) for other in files)]
    written = (earliest_row_time_ns(path, *fields, start=start) for path, start in places)
    return any(row_ns is not None and row_ns < first_ns for row_ns in written)


def _has_own_requests(turn: Turn) -> bool:
    """Whether its requests are recorded in this file, and none elsewhere: they are not copied (2.1.325)."""
    responses = turn.responses
    return any(r.request_ns is not None for r in responses) and not any(r.has_request_elsewhere for r in responses)


def _has_origin(turn: Turn, session: SessionFile, _was_sent: Callable[[str], bool]) -> bool:
    """Whether another transcript of the project had the prompt first, and answered it."""
    if is_foreign(turn, session) or _may_have_new_uuids(turn):
        return False
    return any(_is_surely_copied(turn) or _has_response(other.path, turn) for other in _earlier(turn, session))


def _earlier(turn: Turn, session: SessionFile) -> Iterator[SessionFile]:
    """Yield the other transcripts of the project that had the prompt first."""
    uuid = _original_uuid(turn)
    for other in others_that_may_have(session, uuid, at_ns=_original_time_ns(turn)):
        if not contains_id(other.path, uuid) or _is_backup(other.path):
            continue
        if _is_surely_copied(turn) or is_origin(other, session, uuid):
            yield other


def _is_backup(path: Path) -> bool:
    """Whether a renamed file is no session's: it only has turns of other sessions (`source.owners`)."""
    return len(path.stem) != 36 and session_in(path) == path.stem and not contains_id(path, path.stem, key="sessionId")


def _is_surely_copied(turn: Turn) -> bool:
    """Whether its requests are recorded, and not in this file (2.1.325)."""
    return any(response.has_request_elsewhere for response in turn.responses)


def _original_uuid(turn: Turn) -> str:
    """Return the uuid of a turn's prompt in its origin; a turn next to its own origin has more in its key."""
    return turn.key.partition("/")[0]


def original_ref(ref: TurnRef, session: SessionFile) -> TurnRef | None:
    """Return the identity of a copied turn in its origin, which unmarked copies do not name.

    None if no other transcript has its uuid: it was copied with a new one.
    """
    if ref.session_id != session.session_id:
        return ref
    origin: SessionFile | None = None
    for other in others_that_may_have(session, ref.key):
        if contains_id(other.path, ref.key) and (origin is None or is_origin(other, origin, ref.key)):
            origin = other
    return TurnRef(origin.session_id, ref.key, ref.number, ref.parts) if origin is not None else None


def _repeats_itself(turn: Turn, session: SessionFile, _was_sent: Callable[[str], bool]) -> bool:
    """Whether a turn is in the same file twice, and this is the second: with new uuids and the old message ids.

    VS Code wrote such copies when it resumed a session (2.1.11), with the old times; clients before 1.0.86 with every
    further prompt of a stream, with new times.
    """
    if not turn.is_repeat_suspect and not _may_have_new_uuids(turn):
        return False
    if turn.prompt_uuid and contains_id(session.path, turn.prompt_uuid, before=turn.start.offset):
        return True
    if turn.responses:
        return all(_is_repeated(turn, session, response) for response in turn.responses)
    return turn.is_repeat_suspect and _has_prompt_before(turn, session.path)


def _is_repeated(turn: Turn, session: SessionFile, response: ModelResponse) -> bool:
    """Whether a response is in the file before, with all of its calls: a copy can lack one of several calls."""
    return all(_is_before(turn, session, key) for key in (response.key, *(call.id for call in response.calls)))


def without_repeated(turn: Turn, session: SessionFile) -> Turn:
    """Return a turn without responses that are in the same file before: it was running when history was repeated.

    Calls that only this turn has are kept. The results of the others are kept as late ones, unless they are in the file
    before as well.
    """
    if turn.agents:  # few turns
        agents = [_without_repeated_runs(agent, turn, session) for agent in turn.agents]
        turn = msgspec.structs.replace(turn, agents=[agent for agent in agents if agent.turns])
    if turn.part > 0 or not (turn.is_repeat_suspect or _may_have_new_uuids(turn)):
        return turn
    kept: list[ModelResponse] = []
    late: list[Happening] = []
    for response in turn.responses:
        if not _is_before(turn, session, response.key):
            kept.append(response)
            continue
        calls = [call for call in response.calls if not _is_before(turn, session, call.id)]
        if calls:
            kept.append(msgspec.structs.replace(response, calls=calls, parts=[*calls], is_repeat=True))
        for call in (call for call in response.calls if call not in calls):
            if call.result is not None and not _is_before(turn, session, call.id, key="tool_use_id"):
                fact: dict[str, str | int | float] = {"unknown_call_id": call.id}
                result = call.result
                late.append(Happening("late_result", call.id, result.time_ns, result.text, fact, result.blocks))
    return msgspec.structs.replace(turn, responses=kept, happenings=[*turn.happenings, *late])


def _without_repeated_runs(agent: InlineAgent, turn: Turn, session: SessionFile) -> InlineAgent:
    """Return an agent inside the file (before 2.0.28) without runs from before a turn: its rows were written twice."""
    began_ns, runs = min(turn.times, default=0), []
    for run in agent.turns:
        if not run.times or min(run.times) >= began_ns:
            runs.append(run)
            continue
        left = [r for r in run.responses if not contains_id(session.path, r.uuid, before=turn.start.offset)]
        runs += [msgspec.structs.replace(run, responses=left)] if left else []
    return msgspec.structs.replace(agent, turns=runs)


def _is_before(turn: Turn, session: SessionFile, needle: str, key: str = "id") -> bool:
    """Whether a response, or a result, is in the file before a turn, and is exported from there.

    In a file that another session was appended to, it can be in a copy before that is exported from a third file.
    """
    if not contains_id(session.path, needle, key=key, before=turn.start.offset):
        return False
    _, line = next(rows_with_field(session.path, key, b'"%b"' % needle.encode()), (0, b""))
    row = row_as(line, OriginRow)
    if (parse_time(row.timestamp) or 0) > max(turn.times, default=0):
        return False  # a copy with a new time (before 1.0.86), which its origin was appended to
    if row.session_id in {"", turn.session_id, session.session_id}:
        return True
    return not any(contains_id(path, needle, key=key) for path in _files_of(row.session_id, session))


def _has_prompt_before(turn: Turn, path: Path) -> bool:
    """Whether a prompt is in the file before, with the same time: VS Code repeats a prompt in a row for each block."""
    prompt = turn.prompt
    if prompt is None or prompt.time_ns is None:
        return False
    when = datetime.fromtimestamp(prompt.time_ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")
    for line in rows_with(path, when.replace("+00:00", "Z").encode(), 0, turn.start.offset):
        for entry in parse(line, Anomalies()):
            if entry.type == "user" and entry.message is not None and prompt.text in plain_text(blocks(entry.message)):
                return True
    return False


def _original_time_ns(turn: Turn) -> int | None:
    """Return when a prompt was written, even if this is a copy; None if a copy would have a new time."""
    return turn.prompt.time_ns if turn.prompt is not None and version_of(turn.version) >= _TIMES_KEPT_FROM else None


class Neighbours(msgspec.Struct, frozen=True, array_like=True):
    """The files that decide which turns of a session are copies: of the project, or of all, up to a time.

    What they say can change when one of them grows, is restored or is deleted: a reader that stores its result reads
    again then. Rows that were written after the turns in question never matter.
    """

    until_ns: int = -1  # nothing was looked up
    is_everywhere: bool = False
    has_copies: bool = False  # turns were found in other files: it matters if one of them is deleted
    has_own: bool = False  # it has a turn of its own: a new file that was begun later does not matter

    def and_turn(self, turn: Turn, session: SessionFile, *, is_copied: bool) -> Neighbours:
        """Return them after a turn that may have been copied."""
        is_other = is_foreign(turn, session)
        has_own = self.has_own or not (is_copied or is_other)
        if self.until_ns < 0 and not is_looked_up(turn, session):
            return Neighbours(has_own=has_own)
        return Neighbours(
            max([self.until_ns, *turn.times]), self.is_everywhere or is_other, self.has_copies or is_copied, has_own
        )

    def and_later(self, later: Neighbours) -> Neighbours:
        """Return them after another part of the session was read."""
        return Neighbours(
            max(self.until_ns, later.until_ns),
            self.is_everywhere or later.is_everywhere,
            self.has_copies or later.has_copies,
            self.has_own or later.has_own,
        )


RULES: Final = (
    Rule(
        "marked", "`/branch`, SDK fork", ("same, SDK: new", "new", "same"),
        "`forkedFrom` names another session, whose file has the turn", "the session that it names", _is_marked,
    ),
    Rule(
        "old id", "some up to 2.1.63, resume or fork", ("same", "**old**", "new before 2.0.30"),
        "the row names another session, whose file has the turn", "the session that it names", _has_old_id,
    ),
    Rule(
        "new ids", "before 1.0.86, resume", ("new", "new", "new"),
        "another file had the same response ids, or words, earlier", "the file that had it earlier",
        _was_written_earlier,
    ),
    Rule(
        "unmarked", "later forks, 2.1.325 `--fork-session`", ("same", "new", "same"),
        "another file had the uuid first, or (2.1.325) its responses name requests of another file",
        "the file that had it first", _has_origin,
    ),
    Rule(
        "in place", "VS Code resume (2.1.11); streams before 1.0.86", ("new", "same", "same, streams: new"),
        "the same response ids, or prompt, are earlier in the file", "its first place in the file", _repeats_itself,
        is_in_place=True,
    ),
)  # fmt: skip
