"""Takes one event from Claude Code, starts a detached worker for it, and exits.

Rules:

- The exit code is always 0 and nothing is printed: exit code 2 makes Claude continue, and Claude Code parses any stdout
  that starts with a brace.
- Only `os`, `sys` and modules that are part of the interpreter: it is started with `-I -S`, and loading `subprocess`
  alone would take longer than starting it.
- The payload is not parsed here, and is never written to a file that has a name.
- It waits only for stdin: until a complete JSON object was read, even if the client does not close its end, or until
  nothing arrived for `SILENCE_S`.
- `TURNSPAN_RAISE=1` lets errors through, for tests.

It is registered as `python -I -S -c HOOK_CODE PACKAGE_ROOT`: a module is compiled once, but a script with every event,
which would double the time; and an interpreter that does not find its script exits with 2. The launcher in `hooks/`
starts the worker without this module. Either way the worker begins with `take_over`.
"""

# Loading pathlib would take a third of the time that the interpreter takes to start.
# ruff: noqa: PTH100, PTH108, PTH120

import os
import sys

PAYLOAD_LIMIT = 8 * 1024 * 1024
SILENCE_S = 0.7  # all SessionEnd hooks together have 1.5 s
WORKER_SILENCE_S = 2.0  # Claude Code does not wait for the worker
READ_S = 5.0  # for a client that writes slowly
PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))

HOOK_OPTIONS = ("-I", "-S", "-c")
HOOK_CODE = (  # the excepthook is for a package that was removed
    "import os, sys; sys.excepthook = lambda *_: os._exit(0); sys.path.append(sys.argv[1]); "
    "from turnspan.hook import main; main()"
)

# `-c`, not `-m`: runpy is slow to load. Our own root comes last on the path: it is needed if `-I` hides the user's
# site-packages, and replaces nothing. `-X utf8`: paths in transcripts are UTF-8 in any locale.
WORKER_OPTIONS = ("-I", "-X", "utf8", "-c")
WORKER_CODE = "import sys; sys.path.append(sys.argv[1]); from turnspan.worker import main; main()"
# CREATE_NO_WINDOW | CREATE_NEW_PROCESS_GROUP. Not DETACHED_PROCESS: the `python.exe` of a virtual environment starts
# another one, which would then open a console window at every turn.
WINDOWS_FLAGS = 0x08000000 | 0x00000200


def main() -> None:
    """Start the worker, then exit with 0 in any case."""
    try:
        hand_over()
    except BaseException:  # no failure of ours, not even an interrupt, may reach Claude Code
        if os.environ.get("TURNSPAN_RAISE") == "1":
            sys.excepthook = sys.__excepthook__
            raise
    os._exit(0)  # skips the interpreter's shutdown, which takes time and could print something


def hand_over() -> None:
    """Start a worker in a session of its own, with the payload on its stdin."""
    devnull = open_devnull()
    payload = read_payload(SILENCE_S)
    os.chdir(os.sep)  # a worker must not keep a project's directory busy, and its own may have been deleted
    _start([sys.executable, *WORKER_OPTIONS, WORKER_CODE, PACKAGE_ROOT], payload, devnull)


def take_over() -> bytes:
    """Read the worker's payload, then close the client's pipes and leave its session."""
    devnull = open_devnull()
    payload = read_payload(WORKER_SILENCE_S)
    os.dup2(devnull, 0)
    os.closerange(3, 1024)
    leave_session()
    return payload


def leave_session() -> None:
    """Move to a session of our own, which gets no signal that is sent to the client's process group."""
    if sys.platform != "win32" and os.getpgrp() != os.getpid():  # the leader of a group cannot, and need not
        os.setsid()


def open_devnull() -> int:
    """Return a descriptor of the null device above 2; those of 0, 1 and 2 that were closed become null devices."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    return descriptor


def read_payload(silence_s: float) -> bytes:
    """Return what is on stdin: all of it, a complete JSON object, or what arrived in time."""
    payload = bytearray()
    try:  # noqa: SIM105 - contextlib is slow to load
        _read_into(payload, silence_s)
    except OSError:  # a directory, or a terminal that was closed: the worker logs that there was no event
        pass
    return bytes(payload)


def is_complete(payload: bytearray) -> bool:
    """Return whether every string and every brace of this JSON object has been closed."""
    if not payload[-9:].rstrip().endswith(b"}"):  # a cheap test first
        return False
    pieces = payload.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    bare = b"".join(pieces[::2])  # everything outside of strings
    return len(pieces) % 2 == 1 and bare.count(b"{") == bare.count(b"}") > 0


if sys.platform != "win32":

    def _read_into(payload: bytearray, silence_s: float) -> None:
        import select  # noqa: PLC0415 - only an event that is read pays for it
        import time  # noqa: PLC0415

        deadline = time.monotonic() + READ_S
        while len(payload) < PAYLOAD_LIMIT and time.monotonic() < deadline:
            is_silent = not select.select([0], [], [], 0)[0]
            if is_silent and (is_complete(payload) or not select.select([0], [], [], silence_s)[0]):
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
        """Return a descriptor to read the payload from after we have exited, without waiting for a reader."""
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        try:
            if os.write(writer, payload) == len(payload):
                return reader
            return _hold_in_file(payload)
        except OSError:  # not even a temporary file: the worker gets the beginning, which names the session
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

else:  # Windows: select() does not work with pipes, and there is no posix_spawn
    # Not `threading` and `subprocess`: loading them takes longer than starting the interpreter.

    def _read_into(payload: bytearray, silence_s: float) -> None:
        import _thread  # noqa: PLC0415

        reading = _thread.allocate_lock()
        reading.acquire()

        def drain() -> None:
            try:
                while len(payload) < PAYLOAD_LIMIT and not is_complete(payload) and (chunk := os.read(0, 65536)):
                    payload.extend(chunk)
            except OSError:
                pass
            reading.release()

        _thread.start_new_thread(drain, ())
        seen = -1
        while seen < len(payload) and not reading.acquire(timeout=silence_s):
            seen = len(payload)

    class _Startup:
        """The STARTUPINFO of the worker: its standard streams, and that it inherits nothing else."""

        dwFlags = 0x100  # STARTF_USESTDHANDLES  # noqa: N815 - names of Windows
        wShowWindow = 0  # noqa: N815

        def __init__(self, stdin: int, devnull: int) -> None:
            self.hStdInput = stdin
            self.hStdOutput = self.hStdError = devnull
            self.lpAttributeList = {"handle_list": [stdin, devnull]}

    def _start(command: list[str], payload: bytes, devnull: int) -> None:
        import _winapi  # noqa: PLC0415
        import msvcrt  # noqa: PLC0415

        reader, writer = _winapi.CreatePipe(None, len(payload) + 1)  # the hook does not wait for the worker
        startup = _Startup(reader, msvcrt.get_osfhandle(devnull))
        for handle in startup.lpAttributeList["handle_list"]:
            os.set_handle_inheritable(handle, True)
        line = " ".join(f'"{word}\\"' if word.endswith("\\") else f'"{word}"' for word in command)
        _winapi.CreateProcess(command[0], line, None, None, True, WINDOWS_FLAGS, None, None, startup)
        _winapi.WriteFile(writer, payload)
        _winapi.CloseHandle(writer)


if __name__ == "__main__":
    main()
