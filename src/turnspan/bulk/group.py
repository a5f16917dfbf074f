"""Group commit: the progress of several sessions is stored together, because syncing a disk is slow.

A backfill of many small sessions would spend most of its time waiting for the disk: two syncs for the lines of a
session, two for its checkpoint. A group needs two for all lines, one for each checkpoint, and one for their directory.
If all its requests are buffered, a thread waits for most of these syncs while the next group is read. It does little
else: a thread waits for Python's global lock after every system call, and taking it from the other thread is slow.

| step | by | what is on disk if the process is killed after it |
|---|---|---|
| requests are sent, or buffered if the backend can store them together (`Grouping`) | | nothing new |
| when it is full: the checkpoints are written to temporary files | | nothing new, and leftovers |
| … the buffered requests are stored and synced | the thread | lines without a checkpoint: sent again, and found |
| … the temporary files are synced | the thread | the same |
| when the next one is full: they are renamed | | some or all of the group |
| … the directory is synced, the locks are released | | the group |

Rules:

- A checkpoint is replaced only after everything that it acknowledges was acknowledged. A buffered request counts only
  when it is stored: if it cannot be, the checkpoints are written without it (`Refused`), and the caller sends the same
  sessions again, one by one. So are those of the next group, if it has begun: it may continue the same sessions.
- Nothing of a group is stored or sent before the group before it is committed.
- A session is locked until its checkpoint is written.
- A process that is killed sends again at most what one group holds: 32 pieces, 8 MB of buffered requests, or what was
  sent within two seconds. Nothing is held during a pause.
- A checkpoint that cannot be written concerns its own session only.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from threading import Thread
from typing import TYPE_CHECKING, Final, NamedTuple

import msgspec

from turnspan.backends import Answer, Grouping, Readable, Verdict
from turnspan.delivery import state
from turnspan.delivery.destinations import Target

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from turnspan.backends import Backend
    from turnspan.bulk.runner import Step
    from turnspan.errors import StateError
    from turnspan.settings.config import Config, Destination
    from turnspan.trace.model import Trace

GROUP_BYTES: Final = 8 << 20
GROUP_PIECES: Final = 32
_GROUP_S: Final = 2.0


class Refused(Exception):  # noqa: N818 - a result, not an error
    """Buffered requests could not be stored: nothing that they contain was acknowledged."""


class _Batch(NamedTuple):
    """What is stored together."""

    bodies: dict[str, list[bytes]]  # buffered requests, by destination
    checkpoints: dict[str, state.Checkpoint]  # by session
    steps: list[tuple[str, str, Step]]  # reported when it is stored, by session and destination


class _Storing(Thread):
    """Stores the requests of a batch and syncs its checkpoints, in a thread (`start`) or in the caller's (`run`)."""

    def __init__(self, home: Path, batch: _Batch, store: Callable[[_Batch], set[str]]) -> None:
        super().__init__()
        self.batch = batch
        self.saving = state.Saving(home, batch.checkpoints.values())
        self.refusing: set[str] = set()  # destinations that did not store their requests
        self._store = store
        self._error: BaseException | None = None

    def run(self) -> None:
        """Store and sync."""
        try:
            self.refusing = self._store(self.batch)
            if not self.refusing:
                self.saving.sync()
        except BaseException as error:  # noqa: BLE001  raised by `finish`
            self._error = error

    def finish(self) -> None:
        """Wait until it is stored. Raises what `run` raised."""
        if self.is_alive():
            self.join()
        if self._error is not None:
            raise self._error


class Group:
    """The sessions whose progress is committed together. It is used again after each `flush`.

    `on_release` is called with the id of each session whose lock was released, `on_stored` with the steps that were
    committed, all of a group at once: a message for each would take the parent longer than anything else it does.
    """

    def __init__(self, home: Path, on_release: Callable[[str], None]) -> None:
        self._home = home
        self._on_release = on_release
        self._buffers: dict[str, BufferedBackend] = {}  # by destination
        self._is_direct = False  # some requests are sent at once, not buffered
        self._stored: dict[str, state.Checkpoint] = {}  # of each session: as it is on disk
        self._unstored: dict[str, state.Checkpoint] = {}  # … as it will be
        self._storing: _Storing | None = None
        self._locks: dict[str, ExitStack] = {}
        self._finished: set[str] = set()
        self._steps: list[tuple[str, str, Step]] = []
        self._pieces = 0
        self._since_s = 0.0
        self.on_stored: Callable[[list[Step]], None] = lambda _steps: None
        self.failed: dict[str, StateError] = {}  # session → why its checkpoint could not be written
        self.refused: dict[str, set[str]] = {}  # session → destinations that did not store its buffered requests
        self.is_immediate = False  # nothing is buffered or delayed

    # ---- checkpoints, for `ship`

    def load(self, session_id: str) -> state.Loaded:
        """Return the checkpoint of a session, as it will be. Raises StateError."""
        for known in (self._unstored, self._storing.batch.checkpoints if self._storing is not None else {}):
            if session_id in known:
                return state.Loaded(known[session_id])
        loaded = state.load(self._home, session_id)
        self._stored[session_id] = loaded.checkpoint
        return loaded

    def save(self, checkpoint: state.Checkpoint) -> None:
        """Replace the checkpoint of a session with those of its group. Raises StateError, Refused."""
        session_id = checkpoint.session_id
        if self.is_immediate:
            state.save(self._home, checkpoint)
            self._stored[session_id] = checkpoint
            return
        if not self._unstored:
            self._since_s = time.monotonic()
        self._unstored[session_id] = checkpoint
        self._pieces += 1
        if self._is_full():
            if self._is_direct:
                self.flush()
            else:
                self._begin()
            if session_id in self.failed:
                raise self.failed[session_id]

    def _is_full(self) -> bool:
        buffered = sum(buffer.size for buffer in self._buffers.values())
        is_old = time.monotonic() - self._since_s > _GROUP_S
        return self._pieces >= GROUP_PIECES or buffered >= GROUP_BYTES or is_old

    # ---- for the sender

    def lock(self, session_id: str) -> None:
        """Lock a session until it is finished and its checkpoint is written. Raises Busy."""
        with ExitStack() as stack:
            stack.enter_context(state.lock(self._home, session_id))
            self._locks[session_id] = stack.pop_all()

    def finish(self, session_id: str) -> None:
        """Nothing more is sent of a session: its lock is released with its group."""
        self._finished.add(session_id)

    def when_stored(self, destination: str, step: Step) -> None:
        """Report a step when what was sent of a session to a destination is committed; not at all if it is not."""
        if self.is_immediate:
            self.on_stored([step])
        else:
            self._steps.append((step.session_id, destination, step))

    def buffered(self, destination: str, backend: Backend) -> Backend:
        """Return a backend whose requests are stored with the group, if it can store several together."""
        if not isinstance(backend, Grouping):
            self._is_direct = True
            return backend
        return self._buffers.setdefault(destination, BufferedBackend(self, backend, backend))

    def flush(self) -> None:
        """Store everything that was sent. Raises Refused."""
        self._settle()
        self._storing = _Storing(self._home, self._taken(), self._store)
        self._storing.run()  # here: there is nothing to read meanwhile
        self._settle()

    # ---- storing

    def _begin(self) -> None:
        """Begin to store the group, when the one before it is stored. Raises Refused."""
        self._settle()
        self._storing = _Storing(self._home, self._taken(), self._store)
        self._storing.start()

    def _taken(self) -> _Batch:
        """Return what is to be stored, and begin a new group."""
        bodies = {name: buffer.take() for name, buffer in self._buffers.items()}
        batch = _Batch(bodies, self._unstored, self._steps)
        self._unstored, self._steps, self._pieces = {}, [], 0
        return batch

    def _store(self, batch: _Batch) -> set[str]:
        """Store the requests of a batch; return the destinations that did not."""
        return {name for name, bodies in batch.bodies.items() if not self._buffers[name].store(bodies)}

    def _settle(self) -> None:
        """Wait for the group that is being stored, and release its sessions. Raises Refused."""
        if self._storing is None:
            return
        storing, self._storing = self._storing, None
        storing.finish()
        if storing.refusing:
            storing.saving.discard()
            self._save_without(storing.batch, storing.refusing)
            later = self._taken()  # it may continue the same sessions
            for name in storing.refusing:
                del later.bodies[name]
            self._save_without(later, storing.refusing | self._store(later))
            raise Refused
        self._account(storing.batch, storing.saving.commit(), set())
        self._release()

    def _save_without(self, batch: _Batch, refusing: set[str]) -> None:
        """Save the checkpoints of a batch without what destinations that refuse seemed to acknowledge."""
        checkpoints = {name: self._acknowledged(found, refusing) for name, found in batch.checkpoints.items()}
        saving = state.Saving(self._home, checkpoints.values())
        saving.sync()
        self._account(batch._replace(checkpoints=checkpoints), saving.commit(), refusing)

    def _account(self, batch: _Batch, failed: dict[str, StateError], refusing: set[str]) -> None:
        """Note what was stored."""
        self.failed |= failed
        self._stored |= {name: found for name, found in batch.checkpoints.items() if name not in failed}
        stored = [step for name, where, step in batch.steps if name not in failed and where not in refusing]
        if stored:
            self.on_stored(stored)
        if refusing:
            for session_id in batch.checkpoints:
                self.refused.setdefault(session_id, set()).update(refusing)
            self._finished -= batch.checkpoints.keys()

    def _release(self) -> None:
        """Release the locks of finished sessions whose checkpoints are written."""
        finished = self._finished - self._unstored.keys()
        self._finished -= finished
        for session_id in finished:
            self._locks.pop(session_id).close()
            self._stored.pop(session_id, None)
        for session_id in finished:
            self._on_release(session_id)

    def _acknowledged(self, checkpoint: state.Checkpoint, refusing: set[str]) -> state.Checkpoint:
        """Return a checkpoint with the progress at some destinations as it is on disk."""
        if not refusing:
            return checkpoint
        before = self._stored[checkpoint.session_id].destinations
        kept = {name: cursor for name, cursor in checkpoint.destinations.items() if name not in refusing}
        kept |= {name: before[name] for name in refusing if name in before}
        return msgspec.structs.replace(checkpoint, destinations=kept)


class BufferedBackend:
    """A backend whose requests are stored when the group is flushed; until then each one counts as acknowledged."""

    def __init__(self, group: Group, backend: Backend, store: Grouping) -> None:
        self.name = backend.name
        self.max_request_bytes = backend.max_request_bytes
        self._group = group
        self._backend = backend
        self._store = store
        self._bodies: list[bytes] = []
        self.size = 0

    def encode(self, traces: Sequence[Trace]) -> bytes:
        """Encode traces as the backend does."""
        return self._backend.encode(traces)

    def send(self, body: bytes) -> Verdict:
        """Keep a request until the group is flushed."""
        if self._group.is_immediate:
            return self._backend.send(body)
        self._bodies.append(body)
        self.size += len(body)
        return Verdict(Answer.ACKNOWLEDGED)

    def stored(self, trace_id: bytes) -> frozenset[bytes] | None:
        """Return what the backend has of a trace, if it can be asked."""
        return self._backend.stored(trace_id) if isinstance(self._backend, Readable) else None

    def close(self) -> None:
        """Close the backend."""
        self._backend.close()

    def take(self) -> list[bytes]:
        """Return the requests that were kept, and keep them no longer."""
        bodies, self._bodies, self.size = self._bodies, [], 0
        return bodies

    def store(self, bodies: Sequence[bytes]) -> bool:
        """Store requests; return False if none of them was stored."""
        return not bodies or self._store.send_all(bodies).answer is Answer.ACKNOWLEDGED


class GroupTarget(Target):
    """A destination whose requests and checkpoints are stored with a group."""

    def __init__(self, destination: Destination, config: Config, group: Group) -> None:
        super().__init__(destination, config)
        self.checkpoints = group
        self._group = group

    def _opened(self) -> Backend:
        return self._group.buffered(self.identity, super()._opened())
