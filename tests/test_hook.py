import json
import os
import shutil
import signal
import subprocess
import sys
import time
import venv
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turnspan import hook

resource = pytest.importorskip("resource", reason="the shell launcher and POSIX processes; see test_hook_windows.py")
REPOSITORY = Path(__file__).parent.parent
LAUNCHER = REPOSITORY / "hooks" / "turnspan-hook"
PATIENCE_S = 20.0
EVENT = b'{"session_id":"0a1b","transcript_path":"/x/y.jsonl","hook_event_name":"Stop","text":"\xc3\xa4 \\"{"}'

# Writes down what a worker finds when it begins. With `GO` in its environment it waits for that file to appear first.
WORKER = """
import json, os, sys, time
from turnspan.hook import take_over

def main():
    found = {"at_start": os.getsid(0) == os.getpid(), "utf8": sys.flags.utf8_mode}
    payload = take_over()
    out = os.environ["OUT"]
    open(f"{out}/{os.getpid()}.began", "w").close()
    end = time.monotonic() + 30
    while os.environ.get("GO") and not os.path.exists(os.environ["GO"]) and time.monotonic() < end:
        time.sleep(0.01)
    found["payload"] = payload.decode("latin-1")
    found["is_leader"] = os.getsid(0) == os.getpid()
    found["cwd"] = os.getcwd()
    found["fds"] = [os.readlink(f"/proc/self/fd/{fd}") for fd in (0, 1, 2)] if os.path.isdir("/proc/self/fd") else None
    with open(f"{out}/{os.getpid()}.tmp", "w") as file:
        json.dump(found, file)
    os.rename(f"{out}/{os.getpid()}.tmp", f"{out}/{os.getpid()}.json")
"""


class Office:
    """A turnspan whose worker writes down what it was handed, and the ways to call its hook."""

    def __init__(self, base, python):
        self.base = base
        self.python = python
        self.root = base / "pkg"
        package = self.root / "turnspan"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        shutil.copy(hook.__file__, package / "hook.py")
        (package / "worker.py").write_text(WORKER)
        self.out = base / "out"
        self.out.mkdir()
        self.tmp = base / "tmp"
        self.tmp.mkdir()
        self.env = {"PATH": "/usr/bin:/bin", "OUT": str(self.out), "TMPDIR": str(self.tmp), "HOME": str(base)}

    def command(self, way):
        if way == "python":
            return [self.python, *hook.HOOK_OPTIONS, hook.HOOK_CODE, str(self.root)]
        if way == "script":
            return [self.python, "-I", "-S", str(self.root / "turnspan" / "hook.py")]
        shell, *applet = way.split()
        return [shutil.which(shell), *applet, str(LAUNCHER), self.python, str(self.root)]

    def call(self, way, stdin=EVENT, *args, env=None, cwd=None, preexec_fn=None):
        """Run the hook as a client would, and hold it to its promise."""
        done = subprocess.run(
            [*self.command(way), *args],
            input=stdin,
            capture_output=True,
            env={**self.env, **(env or {})},
            cwd=cwd or self.base,
            timeout=PATIENCE_S,
            preexec_fn=preexec_fn,
            check=False,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")

    def handed(self, count=1):
        """What `count` workers wrote down."""
        wait_for(lambda: len(list(self.out.glob("*.json"))) >= count)
        return [json.loads(path.read_text()) for path in sorted(self.out.glob("*.json"))]

    def payload(self):
        [found] = self.handed()
        return found["payload"].encode("latin-1")


def wait_for(condition):
    """Wait for something to become true, but not for ever."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)


@pytest.fixture(scope="session")
def bare_python(tmp_path_factory):
    """An interpreter that has no turnspan of its own."""
    place = tmp_path_factory.mktemp("bare")
    venv.create(place, symlinks=True)
    return str(place / "bin" / "python")


@pytest.fixture
def office(tmp_path, bare_python):
    """A turnspan of our own, with a worker that only takes notes."""
    return Office(tmp_path, bare_python)


SHELLS = [name for name in ("dash", "bash", "busybox sh") if shutil.which(name.split()[0])]
both = pytest.mark.parametrize("way", ["python", "sh"])
every = pytest.mark.parametrize("way", ["python", "script", *SHELLS])
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace makes the system calls fail")


@every
def test_event_is_handed_over_to_a_detached_process(office, way):
    """The worker gets the event byte for byte, in its own session, with nothing of the client's in its hands."""
    office.call(way)
    [found] = office.handed()
    assert found["payload"].encode("latin-1") == EVENT
    assert found["is_leader"]
    assert found["at_start"]
    assert found["utf8"]
    assert found["cwd"] == "/"
    assert found["fds"] in ([os.devnull] * 3, None)


def test_launcher_and_hook_start_the_same_worker():
    """It makes no difference to the worker who started it."""
    text = LAUNCHER.read_text()
    assert hook.WORKER_CODE in text
    assert " ".join(hook.WORKER_OPTIONS) in text
    assert os.access(LAUNCHER, os.X_OK)


@pytest.mark.parametrize(
    "stdin",
    [b"", b"\n", b"not json", b"[1, 2]", b"\x00" * 5000, b"\xff\xfe{", b'{"session_id":', b"[" * 200_000, b"null"],
    ids=["empty", "newline", "words", "array", "nul", "binary", "half", "deep", "null"],
)
@both
def test_whatever_is_on_stdin_is_not_claude_codes_problem(office, way, stdin):
    """Nonsense goes to the worker, which says so in its log; the client sees a quiet success."""
    office.call(way, stdin)
    assert office.payload() == stdin


@both
def test_long_answer_arrives_completely(office, way):
    """An event far larger than a pipe is not cut, and leaves no file behind."""
    event = b'{"last_assistant_message":"' + b"x" * 5_000_000 + b'"}'
    office.call(way, event)
    assert office.payload() == event
    assert list(office.tmp.iterdir()) == []


@both
def test_flood_on_stdin_is_cut(office, way):
    """A hundred megabytes cost neither time nor memory: some are enough to tell that this is no event."""
    office.call(way, b"x" * 100_000_000)
    assert len(office.payload()) == hook.PAYLOAD_LIMIT


@both
def test_event_is_complete_when_its_last_brace_is_there(office, way):
    """A client that never closes stdin is not waited for."""
    with subprocess.Popen(
        office.command(way), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=office.env
    ) as process:
        process.stdin.write(EVENT)
        process.stdin.flush()
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 0
        assert office.payload() == EVENT  # while stdin is still open


def test_an_event_ends_with_its_last_brace():
    """The hook does not wait for silence after a complete event."""
    code = "from turnspan import hook; import sys; sys.stdout.buffer.write(hook.read_payload(silence_s=1000.0))"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        process.stdin.write(EVENT)
        process.stdin.flush()
        assert process.wait(PATIENCE_S) == 0
        assert process.stdout.read() == EVENT


@both
def test_silent_client_is_not_waited_for_long(office, way):
    """Nothing on stdin, which stays open: the hook gives up by itself."""
    with subprocess.Popen(
        office.command(way), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=office.env
    ) as process:
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 0
        assert office.payload() == b""


@both
def test_event_that_comes_in_pieces_is_put_together(office, way):
    """A slow client's event is complete when it ends, not when it pauses."""
    with subprocess.Popen(office.command(way), stdin=subprocess.PIPE, env=office.env) as process:
        for start in range(0, len(EVENT), 20):
            process.stdin.write(EVENT[start : start + 20])
            process.stdin.flush()
            time.sleep(0.01)  # the pause is what is tested
        process.wait(PATIENCE_S)
        assert office.payload() == EVENT


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (1, 2), (0, 1, 2)], ids=str)
@every
def test_closed_descriptors_do_not_hurt(office, way, closed):
    """A client that closed stdin, stdout or stderr gets the same quiet success."""

    def close():
        for descriptor in closed:
            os.close(descriptor)

    process = subprocess.Popen(
        office.command(way),
        stdin=subprocess.PIPE,
        env=office.env,
        preexec_fn=close,  # noqa: PLW1509 - there are no threads here
    )
    if 0 not in closed:
        process.stdin.write(EVENT)
    process.stdin.close()
    assert process.wait(PATIENCE_S) == 0
    if 0 not in closed:
        [found] = office.handed()
        assert found["payload"].encode("latin-1") == EVENT
        assert found["fds"] in ([os.devnull] * 3, None)


@both
def test_stdout_that_takes_nothing_does_not_hurt(office, way):
    """A full disk or a reader that went away behind stdout is never noticed, for nothing is written."""
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            office.command(way), input=EVENT, stdout=full, stderr=full, env=office.env, check=False, timeout=PATIENCE_S
        )
    assert done.returncode == 0
    assert office.payload() == EVENT


def test_stdin_that_cannot_be_read_does_not_hurt(office):
    """A directory as stdin: no interpreter even starts with that, and the launcher says nothing about it."""
    descriptor = os.open(office.base, os.O_RDONLY)
    done = subprocess.run(
        office.command("sh"), stdin=descriptor, capture_output=True, env=office.env, check=False, timeout=PATIENCE_S
    )
    os.close(descriptor)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@both
def test_unknown_arguments_do_not_hurt(office, way):
    """A usage error would be exit code 2 elsewhere, and keep Claude working."""
    office.call(way, EVENT, "--no-such-option", "x")
    assert office.payload() == EVENT


@both
def test_nothing_in_the_current_directory_is_imported(office, way):
    """Modules named like the standard library's in a project, and a `PYTHONPATH` that leads to them, run nothing."""
    project = office.base / "project"
    project.mkdir()
    trap = f"open({str(office.base / 'trapped')!r}, 'w')\n"
    for name in ("os", "json", "select", "time", "sitecustomize", "usercustomize", "turnspan"):
        (project / f"{name}.py").write_text(trap)
    env = {"PYTHONPATH": ".", "PYTHONSTARTUP": "os.py", "PYTHONHOME": str(project), "PYTHONINSPECT": "1"}
    office.call(way, cwd=project, env=env)
    assert office.payload() == EVENT
    assert not (office.base / "trapped").exists()


@both
def test_current_directory_that_was_deleted_does_no_harm(office, way):
    """A worktree that was removed under the session still gets its event out."""
    gone = office.base / "gone"
    gone.mkdir()

    def leave():
        os.chdir(gone)
        gone.rmdir()

    done = subprocess.run(
        office.command(way),
        input=EVENT,
        capture_output=True,
        env=office.env,
        timeout=PATIENCE_S,
        preexec_fn=leave,
        check=False,
    )
    said = [
        line for line in done.stderr.splitlines() if b"getcwd" not in line
    ]  # dash's own word, before our first line
    assert (done.returncode, done.stdout, said) == (0, b"", [])
    assert office.payload() == EVENT


@pytest.mark.parametrize("locale", ["C", "en_US.ISO-8859-1", "no_SUCH.thing"])
@both
def test_locale_makes_no_difference(office, way, locale):
    """The event is bytes; no encoding of a terminal touches it."""
    office.call(way, env={"LC_ALL": locale, "PYTHONIOENCODING": "ascii", "TZ": "Nowhere/Else"})
    [found] = office.handed()
    assert found["payload"].encode("latin-1") == EVENT
    assert found["utf8"]


@pytest.mark.parametrize("gone", ["turnspan/worker.py", "turnspan/hook.py", "turnspan"])
@both
def test_package_that_was_deleted_does_no_harm(office, way, gone):
    """Uninstalled completely or in part while a session runs: Claude Code continues."""
    (office.root / gone).rename(office.base / "gone")
    office.call(way)


def test_interpreter_that_was_deleted_does_no_harm(office):
    """An interpreter that an upgrade removed is no reason for the launcher to say anything."""
    done = subprocess.run(
        [LAUNCHER, office.base / "no-python", office.root],
        input=EVENT,
        capture_output=True,
        env=office.env,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_launcher_calls_a_program(office):
    """With one argument it calls `PROGRAM hook`; without any it does nothing, whatever is on the PATH."""
    command = office.base / "bin" / "turnspan"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\ncd "$OUT"\ncat >tmp\necho "$@" >>tmp\nmv tmp got\n')
    command.chmod(0o755)
    env = {**office.env, "PATH": f"{office.base}/bin:/usr/bin:/bin"}
    for arguments, payload in (((), b"no\n"), ((command,), b"{}\n")):
        done = subprocess.run(
            [LAUNCHER, *arguments], input=payload, capture_output=True, env=env, check=False, timeout=PATIENCE_S
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    wait_for((office.out / "got").exists)
    assert (office.out / "got").read_text() == "{}\nhook\n"


@every
def test_worker_outlives_the_client(office, way):
    """`claude -p` ends, the terminal closes, its process group is killed: the worker finishes."""
    go = office.base / "go"
    with subprocess.Popen(
        office.command(way), stdin=subprocess.PIPE, env={**office.env, "GO": str(go)}, start_new_session=True
    ) as process:
        process.communicate(EVENT)
        wait_for(lambda: list(office.out.glob("*.began")))
        with pytest.raises(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # no process is left in it
    go.touch()
    assert office.payload() == EVENT


@both
def test_worker_lets_go_of_what_the_client_left_open(office, way):
    """A descriptor that the client forgot to close on its side is not kept open by a worker that works on."""
    go = office.base / "go"
    reader, writer = os.pipe()
    with subprocess.Popen(
        office.command(way), stdin=subprocess.PIPE, env={**office.env, "GO": str(go)}, pass_fds=[writer]
    ) as process:
        process.communicate(EVENT)
    os.close(writer)
    assert os.read(reader, 1) == b""  # waits for the last writer to close it
    os.close(reader)
    assert not list(office.out.glob("*.json"))  # the worker still works
    go.touch()
    office.handed()


@both
def test_two_registrations_are_two_events(office, way):
    """Registered in the settings and in a plugin: both calls succeed; the worker's lock sorts them out."""
    office.call(way)
    office.call(way)
    assert [found["payload"].encode("latin-1") for found in office.handed(2)] == [EVENT, EVENT]


def test_interrupt_is_not_claude_codes_problem(office):
    """Ctrl-C while the hook waits for its event."""
    with subprocess.Popen(
        office.command("python"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=office.env
    ) as process:
        process.stdin.write(b"{")
        process.stdin.flush()
        wait_for(lambda: is_read(process.stdin))
        process.send_signal(signal.SIGINT)
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""
        assert process.wait(PATIENCE_S) == 0


def test_errors_can_be_let_through_for_tests(office):
    """With `TURNSPAN_RAISE=1` nothing is hidden."""
    with subprocess.Popen(
        office.command("python"),
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**office.env, "TURNSPAN_RAISE": "1"},
    ) as process:
        process.stdin.write(b"{")
        process.stdin.flush()
        wait_for(lambda: is_read(process.stdin))
        process.send_signal(signal.SIGINT)
        assert b"KeyboardInterrupt" in process.stderr.read()
        assert process.wait(PATIENCE_S) != 0


def is_read(pipe):
    """Whether the other side has taken all that was written."""
    import array  # noqa: PLC0415
    import fcntl  # noqa: PLC0415
    import termios  # noqa: PLC0415

    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] == 0


@pytest.mark.parametrize(
    ("limit", "value"),
    [(resource.RLIMIT_AS, 64 * 1024 * 1024), (resource.RLIMIT_NOFILE, 12), (resource.RLIMIT_FSIZE, 0)],
    ids=["memory", "descriptors", "file size"],
)
@both
def test_tight_limits_are_not_claude_codes_problem(office, way, limit, value):
    """Too little memory, too few descriptors, no room for a file: a quiet success all the same."""
    event = b'{"session_id":"' + b"x" * 3_000_000 + b'"}'
    office.call(way, event, preexec_fn=lambda: resource.setrlimit(limit, (value, value)))


def test_event_without_room_still_names_its_session(office):
    """Where not even a temporary file can be made, the worker gets the beginning of a long event."""
    event = b'{"session_id":"0a1b","last_assistant_message":"' + b"x" * 3_000_000 + b'"}'
    office.call("python", event, env={"TMPDIR": str(office.base / "none")})
    payload = office.payload()
    assert payload
    assert event.startswith(payload)


@needs_strace
@pytest.mark.parametrize(
    ("way", "inject"),
    [
        ("python", "pipe2:error=EMFILE"),
        ("python", "chdir:error=EACCES"),
        ("python", "select,pselect6:error=ENOMEM"),
        ("python", "vfork,fork,clone,clone3:error=EAGAIN"),
        ("sh", "vfork,fork,clone,clone3:error=EAGAIN"),
        ("sh", "chdir:error=EACCES"),
        ("sh", "dup2:error=EMFILE:when=2+"),
    ],
)
def test_failing_system_calls_are_not_claude_codes_problem(office, way, inject):
    """Whatever the system refuses, the exit code is 0 and nothing is printed."""
    calls = inject.split(":")[0]
    done = subprocess.run(
        ["strace", "-o", os.devnull, "-e", f"trace={calls}", "-e", f"inject={inject}", *office.command(way)],
        input=EVENT,
        capture_output=True,
        env=office.env,
        check=False,
        timeout=PATIENCE_S,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda values: st.lists(values, max_size=3) | st.dictionaries(st.text(), values, max_size=3),
    max_leaves=8,
)


@settings(max_examples=60)
@given(st.dictionaries(st.text(), json_values, max_size=4), st.booleans())
def test_an_object_is_complete_with_its_last_byte(value, ascii_only):
    """Braces, quotes and backslashes in strings do not matter: only the last byte completes an object."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    assert hook.is_complete(bytearray(text))
    assert hook.is_complete(bytearray(text + b"\n"))
    for end in range(0, len(text), 1 + len(text) // 100):
        assert not hook.is_complete(bytearray(text[:end]))


def test_hook_loads_next_to_nothing():
    """The imports of the hook are counted: each would be paid at the end of every turn."""
    code = """if True:
        import sys, os
        before = set(sys.modules)
        exec(compile(open(sys.argv[1]).read(), "hook", "exec"), {"__file__": "/a/b/c", "__name__": "hook"})
        print(*set(sys.modules) - before)
    """
    command = [sys.executable, "-I", "-S", "-c", code, hook.__file__]
    assert subprocess.run(command, capture_output=True, check=True, text=True).stdout.split() == []  # nothing but `os`
