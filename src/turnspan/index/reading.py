"""Reads one session for the index, from a place on: traces, and the masked rows that are made of them.

Rules:

- A session is read as if it had ended: the index shows what there is. What only that assumption seals is provisional:
  it is read again when the session has grown.
- A trace is masked by the export policy of the destination. Of a session or a directory that is switched off, only
  metadata is kept.
"""

from __future__ import annotations

from enum import IntEnum
from itertools import chain, groupby, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from turnspan.delivery.destinations import prices_of
from turnspan.delivery.policy import ExportPolicy, rules_of
from turnspan.errors import TranscriptError
from turnspan.index.changes import DISABLED, narrowing_digest
from turnspan.index.places import difference
from turnspan.index.rows import TraceRows, rows_of
from turnspan.secrets.replace import mask
from turnspan.source.ending import Ending
from turnspan.source.forks import Neighbours
from turnspan.source.progress import Progress
from turnspan.source.reader import PIECE_SPANS, Reader
from turnspan.source.scan import first_time_ns, last_time_ns, modified_ns
from turnspan.source.sessions import SessionFile, cwd_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turnspan.settings.config import Config, Destination
    from turnspan.trace.model import Trace


class ReadJob(msgspec.Struct, frozen=True):
    """A session to read, and where to begin."""

    session_id: str
    path: str
    progress: Progress = Progress()
    restriction: str = ""  # how the user restricted this session: `restriction_of`
    size: int = 0  # bytes to read, for the progress bar


class Stage(IntEnum):
    """The stages of reading a session: see `places`."""

    SETTLED = 0
    END = 1
    LATE = 2


class Part(msgspec.Struct, frozen=True):
    """What was read of a session between two places."""

    change: Progress  # the difference to the progress before
    rows: list[TraceRows]
    stage: Stage = Stage.SETTLED
    is_anew: bool = False  # the file was rewritten: this is the first part of it, and earlier rows are void


class _Unmasked(NamedTuple):
    """What a `Part` is made of: traces as they were read."""

    change: Progress
    traces: list[Trace]
    stage: Stage = Stage.SETTLED
    is_anew: bool = False


class Finish(msgspec.Struct, frozen=True):
    """What is known when a session was read to its end."""

    first_row_ns: int
    last_row_ns: int
    cwd: str  # where the session began
    narrowings: dict[str, str]  # by working directory
    is_off: bool
    capture: str
    neighbours: Neighbours = Neighbours()  # the files that decided which of the turns that were read are copies
    is_from_start: bool = True
    problem: str = ""  # why it could not be read


class SessionReader:
    """Reads sessions with one configuration."""

    def __init__(self, config: Config, destination: Destination) -> None:
        self._config = config
        self._reader = Reader.for_people(prices_of(config))
        self._rules = rules_of(config)
        self._policy = ExportPolicy(destination, config)
        self._paths: dict[str, str] = {}  # without secrets
        self._digests: dict[str, str] = {}  # of what each directory restricts
        least = {**destination.policy, "capture": "metadata"}
        self._least = ExportPolicy(msgspec.structs.replace(destination, policy=least), config)

    def parts(self, job: ReadJob) -> Iterator[Part | Finish]:
        """Yield what was read, part by part, and at last a `Finish`."""
        policy = self._policy_of(job.restriction)
        parts: list[_Unmasked] = []  # that are masked together
        spans = 0
        for found in self._read(job, policy):
            if isinstance(found, Finish):
                yield from self._masked(parts, policy)
                yield found
                return
            parts.append(found)
            spans += sum(len(trace.spans) for trace in found.traces)
            if spans >= PIECE_SPANS:
                yield from self._masked(parts, policy)
                parts, spans = [], 0

    def _masked(self, parts: Sequence[_Unmasked], policy: ExportPolicy) -> Iterator[Part]:
        """Yield the masked rows of what was read."""
        traces = [[trace for trace in part.traces if trace.spans] for part in parts]  # others are not exported
        rows = self._rows([*chain.from_iterable(traces)], policy)
        for part, own in zip(parts, traces, strict=True):
            yield Part(part.change, list(islice(rows, len(own))), part.stage, part.is_anew)

    def _read(self, job: ReadJob, policy: ExportPolicy) -> Iterator[_Unmasked | Finish]:
        session = SessionFile(job.session_id, Path(job.path))
        reading = self._reader.read(session, job.progress, Ending(is_over=True))
        before, narrowings, problem = job.progress, dict[str, str](), ""
        is_disabled = job.restriction == DISABLED
        is_off, capture, is_first = is_disabled, str(policy.capture("")), True
        try:
            for piece in reading.pieces(is_end_apart=True):
                is_anew = is_first and reading.is_rewritten
                before = Progress() if is_anew else before
                for trace in piece.traces:
                    self._note_narrowing(trace.cwd, narrowings)
                    is_off = is_disabled or policy.is_off(trace.cwd)
                    capture = "metadata" if is_off else str(policy.capture(trace.cwd))
                stage = Stage(reading.is_at_end + reading.is_behind_end)
                change = difference(piece.progress, before)
                before, is_first = piece.progress, False
                yield _Unmasked(change, piece.traces, stage, is_anew)
        except TranscriptError as error:
            problem = str(error)
        if is_first and reading.is_rewritten:
            yield _Unmasked(Progress(), [], is_anew=True)
        began_in = self._without_secrets(cwd_of(session.path))
        is_from_start = reading.is_rewritten or not job.progress.main.offset
        yield Finish(
            *self._row_times(session.path), began_in, narrowings, is_off, capture, reading.neighbours, is_from_start,
            problem,
        )  # fmt: skip

    def _policy_of(self, restriction: str) -> ExportPolicy:
        return self._least if restriction == DISABLED else self._policy.of_session(restriction)

    def _rows(self, traces: Sequence[Trace], policy: ExportPolicy) -> Iterator[TraceRows]:
        """Yield the rows of each trace."""
        for cwd, group in groupby(traces, key=lambda trace: trace.cwd):
            allowed = self._least if policy.is_off(cwd) else policy
            for masked in allowed.masked_all(list(group)):
                yield rows_of(masked.trace, masked.trace.cwd or self._without_secrets(cwd))

    def _note_narrowing(self, cwd: str, narrowings: dict[str, str]) -> None:
        """Add what a directory restricts. It is stored without secrets; with one, later changes are not noticed."""
        stored = self._without_secrets(cwd)
        if stored not in narrowings:
            if stored not in self._digests:  # as the policy, which also looks at each directory once
                self._digests[stored] = narrowing_digest(self._config, stored)
            narrowings[stored] = self._digests[stored]

    def _without_secrets(self, path: str) -> str:
        if path not in self._paths:
            self._paths[path] = mask(path, rules=self._rules).text if path else ""
        return self._paths[path]

    def _row_times(self, path: Path) -> tuple[int, int]:
        try:
            return first_time_ns(path) or 0, last_time_ns(path) or modified_ns(path)
        except TranscriptError:
            return 0, modified_ns(path)
