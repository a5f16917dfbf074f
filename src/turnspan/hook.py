"""Takes one event from Claude Code, hands it to a detached worker, and is gone.

Rules:

- Whatever happens, the exit code is 0 and nothing is printed: Claude Code goes on working on exit code 2, and reads
  any stdout that starts with a brace.
- Only the standard library, and of that only `os`, `sys`, `select` and `time`: an interpreter started with `-I -S` has
  little else at hand, and `subprocess` alone takes longer to load than that interpreter takes to start.
- The payload is not parsed here, and never lies in a file that has a name.
- Nothing is waited for but stdin, and silence there ends the wait: at once after a whole JSON object, which is an event
  also when the client never closes its end; otherwise after `SILENCE_S`.
- `TURNSPAN_RAISE=1` lets errors through, for tests.

It is registered as `python -I -S -c HOOK_CODE PACKAGE_ROOT`: a module is compiled once, a script with every event, and
that takes as long as all the rest; an interpreter that does not find its script leaves with 2. The launcher in `hooks/`
starts the worker without this module; `take_over` is how the worker begins, either way.
"""

# pathlib would take a third of the interpreter's own start to load.
# ruff: noqa: PTH100, PTH108, PTH120

import os
import sys

PAYLOAD_LIMIT = 8 * 1024 * 1024
SILENCE_S = 0.7  # with the interpreter's start less than a second, half of what SessionEnd grants all hooks together
WORKER_SILENCE_S = 2.0  # nobody waits for the worker
READ_S = 5.0  # for a client that dribbles
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

HOOK_OPTIONS = ("-I", "-S", "-c")
HOOK_CODE = (  # the excepthook is for a package that is gone
    "import os, sys; sys.excepthook = lambda *_: os._exit(0); sys.path.append(sys.argv[1]); "
    "from turnspan.hook import main; main()"
)

# `-c`, not `-m`: runpy is slow to load. Our own root comes last on the path: it helps where `-I` hides the person's own
# site-packages, and can take the place of nothing. `-X utf8`: what the transcripts name is UTF-8 in any locale.
WORKER_OPTIONS = ("-I", "-X", "utf8", "-c")
WORKER_CODE = "import sys; sys.path.append(sys.argv[1]); from turnspan.worker import main; main()"


def main() -> None:
    """Hand the event over and exit 0, always."""
    try:
        hand_over()
    except BaseException:  # no failure of ours, not even an interrupt, is Claude Code's problem
        if os.environ.get("TURNSPAN_RAISE") == "1":
            sys.excepthook = sys.__excepthook__
            raise
    os._exit(0)  # without the interpreter's goodbye: faster, and nothing can be printed by it


def hand_over() -> None:
    """Start a worker, in a session of its own, that finds the payload on its stdin."""
    devnull = open_devnull()
    payload = read_payload(SILENCE_S)
    os.chdir(os.sep)  # a worker must not keep a project's directory busy, nor start in one that is gone
    _start([sys.executable, *WORKER_OPTIONS, WORKER_CODE, PACKAGE_ROOT], payload, devnull)


def take_over() -> bytes:
    """Read the worker's payload, then hold on to nothing of the client's: no pipe, no session."""
    devnull = open_devnull()
    payload = read_payload(WORKER_SILENCE_S)
    os.dup2(devnull, 0)
    os.closerange(3, 1024)
    leave_session()
    return payload


def leave_session() -> None:
    """Go where no signal to the client's process group arrives."""
    if sys.platform != "win32" and os.getpgrp() != os.getpid():  # the leader of a group may not, and need not
        os.setsid()


def open_devnull() -> int:
    """A descriptor on nothing, above 2; those of the first three that were closed lead to nothing from now on."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    return descriptor


def read_payload(silence_s: float) -> bytes:
    """What there is on stdin: all of it, or a whole JSON object, or what came in time."""
    payload = bytearray()
    try:  # noqa: SIM105 - contextlib is slow to load
        _read_into(payload, silence_s)
    except OSError:  # a directory, or a terminal that went away: the worker will say that this was no event
        pass
    return bytes(payload)


def is_whole(payload: bytearray) -> bool:
    """Whether every string and every brace of this JSON object has been closed."""
    if not payload[-9:].rstrip().endswith(b"}"):  # cheaply, most of the times that a long event pauses
        return False
    pieces = payload.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    bare = b"".join(pieces[::2])  # what stands outside the strings
    return len(pieces) % 2 == 1 and bare.count(b"{") == bare.count(b"}") > 0


if sys.platform != "win32":

    def _read_into(payload: bytearray, silence_s: float) -> None:
        import select  # noqa: PLC0415 - only an event that is read pays for it
        import time  # noqa: PLC0415

        deadline = time.monotonic() + READ_S
        while len(payload) < PAYLOAD_LIMIT and time.monotonic() < deadline:
            is_silent = not select.select([0], [], [], 0)[0]
            if is_silent and (is_whole(payload) or not select.select([0], [], [], silence_s)[0]):
                return
            chunk = os.read(0, PAYLOAD_LIMIT - len(payload))
            if not chunk:
                return
            payload += chunk

    def _start(command: list[str], payload: bytes, devnull: int) -> None:
        stdio = [(os.POSIX_SPAWN_DUP2, hold(payload), 0), *((os.POSIX_SPAWN_DUP2, devnull, fd) for fd in (1, 2))]
        try:
            os.posix_spawn(command[0], command, os.environ, file_actions=stdio, setsid=True)
        except NotImplementedError:  # an interpreter built against a C library from before 2017
            leave_session()
            os.posix_spawn(command[0], command, os.environ, file_actions=stdio)

    def hold(payload: bytes) -> int:
        """A descriptor the payload can be read from when we are gone, got without waiting for a reader."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            if os.write(writer, payload) == len(payload):
                return reader
            return _hold_in_file(payload)
        except OSError:  # not even a temporary file: the worker has to do with the beginning, which names the session
            return reader

    def _hold_in_file(payload: bytes) -> int:
        path = f"{os.environ.get('TMPDIR') or '/tmp'}/turnspan-{os.urandom(16).hex()}"  # noqa: S108 - exclusive and 0600
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        os.unlink(path)
        unwritten = memoryview(payload)
        while unwritten:
            unwritten = unwritten[os.write(descriptor, unwritten) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
        return descriptor

else:  # select() knows no pipes there, and there is no posix_spawn

    def _read_into(payload: bytearray, silence_s: float) -> None:
        import threading  # noqa: PLC0415

        def drain() -> None:
            while len(payload) < PAYLOAD_LIMIT and (chunk := os.read(0, 65536)):
                payload.extend(chunk)

        reader = threading.Thread(target=drain, daemon=True)
        reader.start()
        reader.join(silence_s)

    def _start(command: list[str], payload: bytes, devnull: int) -> None:
        import subprocess  # noqa: PLC0415

        flags = subprocess.DETACHED_PROCESS | subprocess.CREATE_NEW_PROCESS_GROUP
        worker = subprocess.Popen(  # noqa: S603 - our own interpreter and our own code
            command, stdin=subprocess.PIPE, stdout=devnull, stderr=devnull, creationflags=flags
        )
        if worker.stdin is not None:
            worker.stdin.write(payload)
            worker.stdin.close()


if __name__ == "__main__":
    main()
