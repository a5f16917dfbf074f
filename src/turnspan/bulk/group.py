"""Group commit: the progress of several sessions is stored together, because syncing a disk is slow.

A backfill of many small sessions would spend most of its time waiting for the disk: two syncs for the lines of a
session, two for its checkpoint. A group needs two for all lines, one for each checkpoint, and one for their directory.

| step | what is on disk if the process is killed after it |
|---|---|
| requests are sent, or kept if the backend can store them together (`Grouping`) | nothing new |
| the group is full: the kept requests are stored and synced | lines without a checkpoint: sent again, and found |
| … the checkpoints are written to temporary files and synced | the same, and leftovers |
| … they are renamed | some or all of the group |
| … the directory is synced, the locks are released | the group |

Rules:

- A checkpoint is replaced only after everything that it acknowledges was acknowledged. If kept requests cannot be
  stored, the checkpoints are written without them, and the caller sends the same sessions again, one by one: until then
  they are in `refused`, and nothing is saved of them.
- A session is locked until its checkpoint is written.
- A process that is killed sends again at most what one group holds: 32 pieces, 8 MB of kept requests, or what was sent
  within two seconds. Nothing is kept during a pause.
- A checkpoint that cannot be written concerns its own session only (`failed`).
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.backends import Answer, Grouping, Readable, Verdict
from turnspan.delivery import state

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from turnspan.backends import Backend
    from turnspan.bulk.runner import Step
    from turnspan.errors import StateError
    from turnspan.trace.model import Trace

GROUP_BYTES: Final = 8 << 20
GROUP_PIECES: Final = 32
_GROUP_S: Final = 2.0


class CommitGroup:
    """The sessions whose progress is committed together. It is used again after each `store`.

    `on_release` is called with the id of each session whose lock was released, `on_stored` with the steps that were
    committed, all of a group at once: a message for each would take the parent longer than anything else it does.
    """

    def __init__(self, home: Path, on_release: Callable[[str], None]) -> None:
        self._home = home
        self._on_release = on_release
        self._outboxes: dict[str, Outbox] = {}  # by destination
        self._unstored: dict[str, state.Checkpoint] = {}  # by session
        self._steps: list[tuple[str, Step]] = []  # with the destination
        self._locks: dict[str, ExitStack] = {}
        self._finished: set[str] = set()
        self._pieces = 0
        self._since_s = 0.0
        self.on_stored: Callable[[list[Step]], None] = lambda _steps: None
        self.failed: dict[str, StateError] = {}  # session → why its checkpoint could not be written
        self.refused: dict[str, set[str]] = {}  # session to send again → destinations that did not store its requests

    # ---- for `ship`: `state.Checkpoints`

    def load(self, session_id: str) -> state.Loaded:
        """Return the checkpoint of a session, as it will be. Raises StateError."""
        unstored = self._unstored.get(session_id)
        return state.Loaded(unstored) if unstored is not None else state.load(self._home, session_id)

    def save(self, checkpoint: state.Checkpoint) -> None:
        """Replace the checkpoint of a session with those of its group; not if it may acknowledge what was refused."""
        if checkpoint.session_id not in self.refused:
            self._since_s = self._since_s if self._unstored else time.monotonic()
            self._unstored[checkpoint.session_id] = checkpoint
            self._pieces += 1

    def outbox(self, identity: str, backend: Backend) -> Backend:
        """Return what keeps the requests for a backend, if it can store several together; else the backend."""
        if not isinstance(backend, Grouping):
            return backend
        return self._outboxes.setdefault(identity, Outbox(backend, backend))

    # ---- for the sender

    def lock(self, session_id: str) -> None:
        """Lock a session until it is finished and its checkpoint is written. Raises Busy."""
        with ExitStack() as stack:
            stack.enter_context(state.lock(self._home, session_id))
            self._locks[session_id] = stack.pop_all()

    def finish(self, session_id: str) -> None:
        """Nothing more is sent of a session with its group: its lock is released then, unless it was refused."""
        if session_id not in self.refused:
            self._finished.add(session_id)

    def finish_refused(self, session_id: str) -> None:
        """A session that was refused has been sent by itself: its lock is released now."""
        del self.refused[session_id]
        self._release({session_id})

    def abandon(self) -> None:
        """Forget what was not stored, and release all locks: something unforeseen has happened."""
        for outbox in self._outboxes.values():
            outbox.empty()
        self._unstored, self._steps, self._pieces, self._finished, self.refused = {}, [], 0, set(), {}
        self._release({*self._locks})

    def when_stored(self, destination: str, step: Step) -> None:
        """Report a step when what was sent of a session to a destination is committed; not at all if it is not."""
        self._steps.append((destination, step))

    @property
    def is_full(self) -> bool:
        """Whether it should be stored now."""
        kept = sum(outbox.size for outbox in self._outboxes.values())
        is_old = bool(self._unstored) and time.monotonic() - self._since_s > _GROUP_S
        return self._pieces >= GROUP_PIECES or kept >= GROUP_BYTES or is_old

    def store(self) -> bool:
        """Store everything that was sent; return False if a destination did not: the sessions are in `refused`."""
        refusing = {name for name, outbox in self._outboxes.items() if not outbox.store()}
        checkpoints, steps = self._unstored, self._steps
        self._unstored, self._steps, self._pieces = {}, [], 0
        if refusing:
            self.refused |= dict.fromkeys(self._locks, refusing)
            checkpoints = {name: self._without(found, refusing) for name, found in checkpoints.items()}
        failed = state.save_all(self._home, checkpoints.values())
        self.failed |= failed
        stored = [step for name, step in steps if step.session_id not in failed and name not in refusing]
        if stored:
            self.on_stored(stored)
        if not refusing:
            self._release(self._finished)
        self._finished = set()
        return not refusing

    def _without(self, checkpoint: state.Checkpoint, refusing: set[str]) -> state.Checkpoint:
        """Return a checkpoint with the progress at some destinations as it is on disk."""
        before = state.known(self._home, checkpoint.session_id).destinations
        kept = {name: cursor for name, cursor in checkpoint.destinations.items() if name not in refusing}
        kept |= {name: before[name] for name in refusing if name in before}
        return msgspec.structs.replace(checkpoint, destinations=kept)

    def _release(self, sessions: set[str]) -> None:
        for session_id in sessions:
            self._locks.pop(session_id).close()
        for session_id in sessions:
            self._on_release(session_id)


class Outbox:
    """A backend whose requests are kept until they are stored together: each counts as acknowledged only then."""

    def __init__(self, backend: Backend, together: Grouping) -> None:
        self.backend = backend
        self.name = backend.name
        self.max_request_bytes = backend.max_request_bytes
        self.size = 0
        self._together = together
        self._bodies: list[bytes] = []

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """Encode traces as the backend does."""
        return self.backend.encode(traces)

    def send(self, body: bytes) -> Verdict:
        """Keep a request. The group commits nothing of it before it is stored."""
        self._bodies.append(body)
        self.size += len(body)
        return Verdict(Answer.ACKNOWLEDGED)

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return what the backend has of a trace, if it can be asked."""
        return self.backend.stored(trace_id) if isinstance(self.backend, Readable) else None

    def close(self) -> None:
        """Close the backend."""
        self.backend.close()

    def store(self) -> bool:
        """Store the requests; return False if none of them was stored. They are kept no longer."""
        bodies = self.empty()
        return not bodies or self._together.send_all(bodies).answer is Answer.ACKNOWLEDGED

    def empty(self) -> list[bytes]:
        """Return the requests, and keep them no longer."""
        bodies, self._bodies, self.size = self._bodies, [], 0
        return bodies
