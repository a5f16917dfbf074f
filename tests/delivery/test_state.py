import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import time
import traceback
from contextlib import suppress

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from only_posix import is_root, make_fifo, posix_only

from turnspan import files
from turnspan.delivery import marks, state
from turnspan.delivery.prune import Pruned, prune
from turnspan.delivery.state import Checkpoint, Cursor
from turnspan.errors import StateError
from turnspan.files import (
    Busy,
    Replacements,
    claude_home,
    disk_error,
    private_directory,
    rename_patiently,
    turnspan_home,
)
from turnspan.source.progress import Position, Progress

SESSION = "0f6c9a4e-1111-4222-8333-444455556666"
DAY_S = 86400.0
PATIENCE_S = 20.0
needs_root = pytest.mark.skipif(not is_root, reason="only root can give files away")
needs_strace = pytest.mark.skipif(not shutil.which("strace"), reason="strace makes the system calls fail")


@pytest.fixture
def home(tmp_path):
    """A home for turnspan that does not exist yet."""
    return tmp_path / ".claude" / "turnspan"


def checkpoint_of(turns, **cursor):
    """Return a checkpoint with a number of turns to recognise it by."""
    local = Cursor(sent_turns=turns, **cursor)
    return Checkpoint(session_id=SESSION, transcript="/p/q/s.jsonl", destinations={"local": local})


def in_child(work):
    """Run `work` in a process of its own, and return its id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:  # noqa: BLE001 - the parent sees the status
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def wait_all(pids):
    """Wait for processes, all of which must have succeeded."""
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


def wait_for(condition):
    """Wait for something to become true, but not for ever."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.002)


# --- where it lives


def test_home_follows_claude_codes_own(tmp_path):
    """The home directory is next to Claude Code's files, wherever those are."""
    assert turnspan_home({"HOME": "/home/ada"}).as_posix() == "/home/ada/.claude/turnspan"
    assert turnspan_home({"HOME": "/home/ada", "CLAUDE_CONFIG_DIR": str(tmp_path)}) == tmp_path / "turnspan"
    assert claude_home({"HOME": "/home/ada", "CLAUDE_CONFIG_DIR": ""}).as_posix() == "/home/ada/.claude"


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative/home"}], ids=["none", "empty", "relative"])
def test_home_without_home_is_the_users_own(env):
    """Without a usable HOME the system knows where this user lives."""
    import pwd  # noqa: PLC0415

    assert claude_home(env).as_posix() == f"{pwd.getpwuid(os.geteuid()).pw_dir.rstrip('/')}/.claude"


def test_relative_configuration_directory_is_refused():
    """A worker has no directory that it could be relative to: it is refused."""
    with pytest.raises(StateError, match=r"no state dir: CLAUDE_CONFIG_DIR is 'conf'.*absolute"):
        turnspan_home({"HOME": "/home/ada", "CLAUDE_CONFIG_DIR": "conf"})


@needs_root
def test_a_user_without_a_name_gets_a_hint():
    """A container that runs under a bare number has no home; the sentence says what helps."""

    def ask():
        os.setuid(54321)
        with pytest.raises(StateError, match=r"no state dir.*set HOME or CLAUDE_CONFIG_DIR"):
            turnspan_home({})

    wait_all([in_child(ask)])


def test_everything_is_private(home):
    """Directories are 0700 and files 0600, whatever the umask."""
    before = os.umask(0)
    try:
        state.save(home, checkpoint_of(1))
        marks.leave_mark(home, SESSION, {})
        with state.lock(home, SESSION):
            pass
    finally:
        os.umask(before)
    for path in (home, home / "state"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o700
    files = sorted((home / "state").iterdir())
    assert [path.name.removeprefix(SESSION) for path in files] == [".json", ".lock", ".marks"]
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


@pytest.mark.parametrize(
    "name", ["..", "../../x", "/etc/x", "a/b", "", ".hidden", "CON", "com1", "a\n", "a\x00b", "ä", "a" * 129]
)
def test_session_id_that_is_not_a_plain_name_is_refused(home, name):
    """An id can never lead out of the state directory."""
    for act in (
        lambda: state.load(home, name),
        lambda: state.save(home, Checkpoint(session_id=name)),
        lambda: state.lock(home, name).__enter__(),
        lambda: marks.leave_mark(home, name, {}),
    ):
        with pytest.raises(StateError, match="is not a session id"):
            act()
    assert not home.exists()


def make_link(path):
    """Put a link where `path` should be."""
    target = path.with_name("elsewhere")
    target.touch()
    path.symlink_to(target)


def make_foreign(path):
    """Put another user's file where `path` should be."""
    path.touch()
    os.chown(path, 54321, 54321)


def make_open(path):
    """Put a file that all can write where `path` should be."""
    path.touch()
    path.chmod(0o666)


UNSAFE = [
    make_link,
    os.mkdir,
    make_fifo,
    pytest.param(make_open, marks=posix_only),
    pytest.param(make_foreign, marks=needs_root),
]


@posix_only
def test_links_are_not_followed_where_the_system_has_no_flag_for_it(home, monkeypatch):
    """Windows has no O_NOFOLLOW: a link is recognised before it is opened."""
    monkeypatch.delattr(os, "O_NOFOLLOW")
    monkeypatch.setattr(files, "_SAFELY", 0)
    private_directory(home)
    make_link(home / "a.json")
    with pytest.raises(StateError, match="not a regular file"):
        files.read_private(home / "a.json", 10)


@pytest.mark.parametrize("make", UNSAFE)
@pytest.mark.parametrize(
    ("suffix", "act"),
    [
        (".json", lambda home: state.load(home, SESSION)),
        (".lock", lambda home: state.lock(home, SESSION).__enter__()),
        (".marks", lambda home: marks.leave_mark(home, SESSION, {})),
    ],
    ids=["state", "lock", "marks"],
)
def test_unsafe_file_is_refused(home, make, suffix, act):
    """A link, a directory, a FIFO, someone else's file in the place of ours is neither followed nor waited for."""
    directory = private_directory(private_directory(home) / "state")
    make(directory / f"{SESSION}{suffix}")
    with pytest.raises(StateError, match="unsafe state path"):
        act(home)


@pytest.mark.parametrize("place", ["turnspan", "state"])
@pytest.mark.parametrize("kind", ["link", "file", "open", pytest.param("foreign", marks=needs_root)])
def test_unsafe_directory_is_refused(tmp_path, place, kind):
    """A state directory that others can write to, or that leads elsewhere, is not used."""
    home = tmp_path / "turnspan"
    private_directory(home)
    path = home if place == "turnspan" else home / "state"
    if path == home:
        home.rmdir()
    if kind == "link":
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "file":
        path.touch()
    else:
        path.mkdir(mode=0o700)
        if kind == "open":
            path.chmod(0o777)
        else:
            os.chown(path, 54321, 54321)
    for act in (
        lambda: state.load(home, SESSION),
        lambda: state.save(home, checkpoint_of(1)),
        lambda: state.probe_writable(home),
    ):
        with pytest.raises(StateError, match="unsafe state path"):
            act()


# --- checkpoints


def test_checkpoint_survives(home):
    """What was saved is what is loaded."""
    assert state.load(home, SESSION) == state.Loaded(Checkpoint(session_id=SESSION))
    quarantined = (state.Quarantine(trace_id="ab" * 16, span_id="cd" * 8, reason="400", at_s=1.5),)
    place = Position(line=12, offset=3456, fingerprint="00ff")
    progress = Progress(main=place, agents={"a1": Position(line=3, offset=99, fingerprint="ff")})
    saved = checkpoint_of(7, progress=progress, quarantined=quarantined, arrived=("ab",))
    state.save(home, saved)
    assert state.load(home, SESSION) == state.Loaded(saved)


def broken_states():
    """States as a crash, a disk or another program may write them."""
    good = json.loads(msgspec.json.encode(checkpoint_of(1)))
    yield from [b"", b"{", b"\x00" * 600, b"\xff\xfe\x00", b"null", b"[]", b"NaN", b'{"version":1}', b"[" * 1_000_000]
    yield b'{"version":1,"session_id":"' + SESSION.encode() + b'","unknown":' + b'{"a":' * 100_000
    yield json.dumps({**good, "session_id": "another"}).encode()
    for version in (0, -1, 1.5, "1", None, True):
        yield json.dumps({**good, "version": version}).encode()
    for offset in (-1, 1.5, "7", None, 1e300, 2**63, True, [], float("nan")):
        for progress in ({"main": {"offset": offset}}, {"agents": {"a": {"offset": offset}}}):
            yield json.dumps({**good, "destinations": {"local": {"progress": progress}}}).encode()
    yield json.dumps({**good, "destinations": {"local": {"progress": {"main": {"line": 9, "offset": 3}}}}}).encode()
    yield msgspec.json.encode(checkpoint_of(1))[:-20]
    yield msgspec.json.encode(checkpoint_of(1)) + b"}"


@pytest.mark.parametrize("raw", list(broken_states()), ids=lambda raw: repr(raw[:30]))
def test_broken_state_is_set_aside(home, raw):
    """A state that cannot be decoded is set aside, and the session starts again."""
    state.save(home, checkpoint_of(1))
    path = state.state_path(home, SESSION)
    path.write_bytes(raw)
    loaded = state.load(home, SESSION)
    assert loaded == state.Loaded(Checkpoint(session_id=SESSION), f"{SESSION}.json.corrupt-1")
    assert path.with_name(loaded.kept_as).read_bytes() == raw
    assert state.load(home, SESSION) == state.Loaded(Checkpoint(session_id=SESSION))


def test_state_of_fifty_megabytes_is_not_read(home):
    """A huge file is not loaded into memory."""
    state.save(home, checkpoint_of(1))
    with state.state_path(home, SESSION).open("r+b") as file:
        file.truncate(50_000_000_000)
    assert state.load(home, SESSION).kept_as


def test_set_aside_states_do_not_pile_up(home):
    """However often it happens, a few are kept."""
    private_directory(private_directory(home) / "state")
    for number in range(8):
        state.state_path(home, SESSION).write_bytes(b"broken %d" % number)
        assert state.load(home, SESSION).kept_as
    assert len(list((home / "state").iterdir())) == state.KEPT_CORRUPT


wrong = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.just({"a": 1})
)
PLACES = [
    (),
    ("version",),
    ("session_id",),
    ("transcript",),
    ("destinations",),
    ("destinations", "local"),
    *(("destinations", "local", name) for name in Cursor.__struct_fields__),
    *(("destinations", "local", "progress", name) for name in Progress.__struct_fields__),
    *(("destinations", "local", "progress", "main", name) for name in Position.__struct_fields__),
    ("destinations", "local", "progress", "agents", "a"),
    ("destinations", "local", "progress", "agents", "a", "offset"),
]


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(PLACES), wrong)
def test_wrong_type_in_any_field_is_survived(tmp_path_factory, place, value):
    """Whatever a field holds, loading returns a checkpoint with valid values, or a new one."""
    home = tmp_path_factory.getbasetemp() / "fuzz" / "turnspan"
    progress = Progress(main=Position(line=1, offset=2), agents={"a": Position(line=1, offset=1)})
    complete = checkpoint_of(1, progress=progress)
    document = {"": json.loads(msgspec.json.encode(complete))}
    inner = document
    for step in ("", *place)[:-1]:
        inner = inner[step]
    inner[("", *place)[-1]] = value
    private_directory(private_directory(home) / "state")
    state.state_path(home, SESSION).write_text(json.dumps(document[""]))
    try:
        loaded = state.load(home, SESSION)
    except state.NewerStateError:
        assert place == ("version",)
        assert value > state.VERSION
        return
    for cursor in loaded.checkpoint.destinations.values():
        for position in (cursor.progress.main, *cursor.progress.agents.values()):
            assert type(position.offset) is int
            assert position.offset >= position.line >= 0
    assert loaded.checkpoint.session_id == SESSION


def test_state_of_a_newer_turnspan_is_left_alone(home):
    """After a downgrade the newer state is neither read nor touched, and the sentence says what to do."""
    state.save(home, checkpoint_of(1))
    path = state.state_path(home, SESSION)
    path.write_bytes(b'{"version":99,"session_id":12,"all":"different"}')
    before = path.read_bytes(), path.stat().st_mtime_ns
    with pytest.raises(state.NewerStateError, match=r"newer version \(99.*update turnspan"):
        state.load(home, SESSION)
    assert (path.read_bytes(), path.stat().st_mtime_ns) == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_too_many_open_files_is_not_an_empty_state(home):
    """When the state cannot be opened nothing is concluded from it."""
    state.save(home, checkpoint_of(3))

    def starve():
        import resource  # noqa: PLC0415

        resource.setrlimit(resource.RLIMIT_NOFILE, (3, 3))
        for act in (lambda: state.load(home, SESSION), lambda: prune(home, time.time())):
            with pytest.raises(StateError, match="too many open files"):
                act()

    wait_all([in_child(starve)])
    assert state.load(home, SESSION) == state.Loaded(checkpoint_of(3))


def test_room_is_asked_for_before_anything_is_sent(home):
    """If the state is writable, the probe creates no file."""
    state.probe_writable(home)
    assert list((home / "state").iterdir()) == []


@needs_root
@pytest.mark.parametrize(("options", "words"), [("ro", "make it writable"), ("size=64k", "disk full")])
def test_home_without_room_is_found_out_first(tmp_path, options, words):
    """A read-only or a full disk is noticed before anything is sent, and the old state stays what it was."""
    home = tmp_path / "turnspan"

    def ask():
        state.save(home, checkpoint_of(3))
        if options != "ro":
            with suppress(OSError):
                (home / "filler").write_bytes(b"x" * 100_000)
        else:
            mount("-o", "remount,ro", str(tmp_path))
        with pytest.raises(StateError, match=words):
            state.probe_writable(home)
        with pytest.raises(StateError, match=words):
            state.save(home, checkpoint_of(4, last_error="x" * 10_000))
        assert state.load(home, SESSION).checkpoint == checkpoint_of(3)
        assert len(list((home / "state").iterdir())) == 1

    def mount(*args):
        subprocess.run(["mount", *args], check=True, capture_output=True)

    def ask_on_a_disk_of_its_own():
        unshare = ctypes.CDLL(None, use_errno=True).unshare
        if unshare(0x00020000):  # CLONE_NEWNS: the mount is seen by this process only
            os._exit(77)
        try:
            mount("--make-rprivate", "/")
            mount("-t", "tmpfs", "-o", "rw" if options == "ro" else options, "tmpfs", str(tmp_path))
        except subprocess.CalledProcessError:
            os._exit(77)
        ask()

    status = os.waitstatus_to_exitcode(os.waitpid(in_child(ask_on_a_disk_of_its_own), 0)[1])
    if status == 77:
        pytest.skip("this machine does not allow mounting")
    assert status == 0


def test_home_that_cannot_be_made_is_an_error(tmp_path):
    """A file where a directory should be: a sentence, not a traceback."""
    (tmp_path / "file").touch()
    with pytest.raises(StateError, match="cannot persist state"):
        state.load(tmp_path / "file" / "turnspan", SESSION)


def test_disk_errors_are_reported_in_words(tmp_path):
    """Each refusal of a disk is a sentence that says what to do."""
    import errno  # noqa: PLC0415

    messages = {
        code: str(disk_error(OSError(code, os.strerror(code)), tmp_path))
        for code in (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EIO)
    }
    assert "disk full" in messages[errno.ENOSPC]
    assert "disk full" in messages[errno.EDQUOT]
    assert "make it writable" in messages[errno.EROFS]
    assert "make it writable" in messages[errno.EACCES]
    assert "Input/output error" in messages[errno.EIO]


def start_python(code, *args, strace):
    """Run some code in a fresh interpreter, with system calls that fail or take their time."""
    return subprocess.Popen(
        ["strace", "-o", os.devnull, *strace, sys.executable, "-c", code, *map(str, args)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run_python(code, *args, strace):
    """Run it to its end."""
    process = start_python(code, *args, strace=strace)
    stdout, stderr = process.communicate(timeout=PATIENCE_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


SAVE_CODE = """
import sys
from pathlib import Path
from turnspan.delivery import marks, state
from turnspan.delivery.prune import Pruned, prune
from turnspan.errors import StateError
try:
    state.save(Path(sys.argv[1]), state.Checkpoint(session_id=sys.argv[2], transcript="new"))
except StateError as error:
    raise SystemExit(f"StateError: {error}")
"""


@needs_strace
@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        ("write:when=1", "ENOSPC", "disk full"),
        ("fsync:when=1", "EIO", "Input/output"),
        ("fsync:when=1", "EDQUOT", "disk full"),
        ("rename,renameat,renameat2:when=1", "EROFS", "no access"),
    ],
)
def test_old_state_outlives_a_failed_save(home, call, error, words):
    """A disk that is full, read-only or broken costs the new checkpoint, never the old one, and no temporary file is left."""
    state.save(home, checkpoint_of(3))
    calls, when = call.split(":")
    done = run_python(
        SAVE_CODE, home, SESSION, strace=["-e", f"trace={calls}", "-e", f"inject={calls}:error={error}:{when}"]
    )
    assert f"StateError: {words}" in done.stderr or words in done.stderr
    assert done.returncode == 1
    assert state.load(home, SESSION).checkpoint == checkpoint_of(3)
    assert [path.name for path in (home / "state").iterdir()] == [f"{SESSION}.json"]


@needs_strace
@pytest.mark.parametrize("call", ["write", "fsync", "rename,renameat,renameat2", "fsync:when=2"])
def test_killed_in_the_middle_of_a_save(home, call):
    """Killed at any step, the state is the old one or the new one."""
    state.save(home, checkpoint_of(3))
    calls, _, when = call.partition(":")
    inject = f"inject={calls}:signal=KILL:{when or 'when=1'}"
    done = run_python(SAVE_CODE, home, SESSION, strace=["-e", f"trace={calls}", "-e", inject])
    assert done.returncode != 0
    loaded = state.load(home, SESSION)
    assert loaded.checkpoint in (checkpoint_of(3), Checkpoint(session_id=SESSION, transcript="new"))


def test_killed_at_any_moment(home):
    """A worker is killed while it saves on and on: the last finished checkpoint is there, or the one after it."""
    for round_number in range(12):
        reader, writer = os.pipe()

        def save_on_and_on(writer=writer):
            for turns in range(10_000):
                state.save(home, checkpoint_of(turns))
                os.write(writer, turns.to_bytes(4))

        pid = in_child(save_on_and_on)
        os.close(writer)
        os.read(reader, 4)
        time.sleep(round_number * 0.0017)  # the moment is what is tested
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        rest = bytearray()
        while chunk := os.read(reader, 65536):
            rest += chunk
        os.close(reader)
        last = int.from_bytes(rest[-4:]) if rest else 0
        loaded = state.load(home, SESSION)
        assert not loaded.kept_as
        assert loaded.checkpoint.destinations["local"].sent_turns - last in (0, 1)


def test_file_in_use_is_waited_for(tmp_path):
    """Windows refuses to replace a file that a scanner has open; a little later it does not."""

    class InUseError(PermissionError):
        winerror = 32

    refusals = [InUseError(), InUseError()]

    def rename(source, target):
        if refusals:
            raise refusals.pop()
        source.replace(target)

    (tmp_path / "new").write_text("new")
    rename_patiently(tmp_path / "new", tmp_path / "old", rename=rename)
    assert (tmp_path / "old").read_text() == "new"
    refusals.extend([InUseError()] * 1000)
    (tmp_path / "new").write_text("newer")
    with pytest.raises(InUseError):
        rename_patiently(tmp_path / "new", tmp_path / "old", rename=rename, patience_s=0.1)
    assert (tmp_path / "old").read_text() == "new"


# --- locks


def test_twenty_processes_lose_no_update(home):
    """Updates made under the lock are never overwritten by a concurrent worker."""
    state.save(home, checkpoint_of(0))

    def increment():
        for _ in range(5):
            with state.lock(home, SESSION, timeout_s=PATIENCE_S):
                turns = state.load(home, SESSION).checkpoint.destinations["local"].sent_turns
                state.save(home, checkpoint_of(turns + 1))

    wait_all([in_child(increment) for _ in range(20)])
    assert state.load(home, SESSION).checkpoint == checkpoint_of(100)


def test_locked_session_is_busy_and_others_are_not(home):
    """A lock blocks its own session at once and no other session."""
    with state.lock(home, SESSION) as is_locked:
        assert is_locked
        with pytest.raises(Busy), state.lock(home, SESSION, timeout_s=0.05):
            pass
        with state.lock(home, "another"):
            pass
    with state.lock(home, SESSION):
        pass


def test_lock_ends_with_its_holder(home):
    """A killed worker releases its session immediately."""
    reader, writer = os.pipe()

    def hold():
        with state.lock(home, SESSION):
            os.write(writer, b"x")
            time.sleep(PATIENCE_S)

    pid = in_child(hold)
    os.read(reader, 1)
    with pytest.raises(Busy), state.lock(home, SESSION):
        pass
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    with state.lock(home, SESSION):
        pass


def test_lock_is_not_kept_by_a_child(home):
    """A process that was forked while the lock was held does not keep the lock after its release."""
    reader, writer = os.pipe()

    def stay():
        os.close(writer)
        os.read(reader, 1)

    with state.lock(home, SESSION):
        pid = in_child(stay)
    try:
        with state.lock(home, SESSION):
            pass
    finally:
        os.close(writer)
    wait_all([pid])


def test_lock_is_not_inherited(home):
    """A program started while the lock is held gets no descriptor of the lock file, and the file stays."""
    path = state.state_path(home, SESSION, ".lock")
    with state.lock(home, SESSION):
        listing = "import os; print(*(os.path.realpath(f'/dev/fd/{n}') for n in range(3, 64)), sep='\\n')"
        opened = subprocess.run(
            [sys.executable, "-c", listing], stdout=subprocess.PIPE, text=True, check=True, close_fds=False
        )
        assert str(path.resolve()) not in opened.stdout.splitlines()
    assert path.exists()


@needs_strace
@pytest.mark.parametrize("error", ["ENOLCK", "ENOSYS", "EOPNOTSUPP"])
def test_file_system_without_locks_is_reported(home, error):
    """Where the kernel cannot lock, the session is handled without a lock, and the caller knows, to log it."""
    code = """
import sys
from pathlib import Path
from turnspan.delivery import state
with state.lock(Path(sys.argv[1]), sys.argv[2]) as is_locked:
    print(is_locked)
"""
    done = run_python(code, home, SESSION, strace=["-e", "trace=flock", "-e", f"inject=flock:error={error}"])
    assert (done.stdout, done.returncode) == ("False\n", 0), done.stderr


@needs_strace
@pytest.mark.parametrize("is_replaced", [False, True], ids=["removed", "replaced"])
def test_lock_of_a_removed_file_does_not_count(home, is_replaced):
    """A worker that opened a lock file which was removed or replaced before it was locked does not hold the session."""
    code = """
import sys
from pathlib import Path
from turnspan.delivery import marks, state
from turnspan.delivery.prune import Pruned, prune
from turnspan.files import Busy
try:
    with state.lock(Path(sys.argv[1]), sys.argv[2]):
        print("locked")
except Busy:
    print("busy")
"""
    slowly = ["-e", "trace=flock", "-e", "inject=flock:delay_enter=500000:when=1"]
    process = start_python(code, home, SESSION, strace=slowly)
    path = state.state_path(home, SESSION, ".lock")
    wait_for(path.exists)  # opened, and not locked for another half second
    path.unlink()
    if is_replaced:
        path.touch(mode=0o600)
    with state.lock(home, SESSION):
        assert process.communicate(timeout=PATIENCE_S)[0] == "busy\n"


# --- marks


def test_event_is_served_with_its_facts(home):
    """The work gets what the event said, and nothing is left when it is done."""
    served = []
    assert marks.attend(
        home, SESSION, {"event": "Stop", "at": 1.5}, lambda events, is_locked: served.append((events, is_locked))
    )
    assert served == [([{"event": "Stop", "at": 1.5}], True)]
    assert not marks.has_marks(home, SESSION)


def test_event_that_arrives_meanwhile_is_served_by_the_holder(home):
    """The second event's worker returns at once; the first one handles both."""
    served = []

    def work(events, _is_locked):
        served.append([mark["n"] for mark in events])
        if len(served) == 1:
            for number in (2, 3):
                assert not marks.attend(home, SESSION, {"n": number}, lambda *_: pytest.fail("the session is ours"))

    assert marks.attend(home, SESSION, {"n": 1}, work)
    assert served == [[1], [2, 3]]


@needs_strace
def test_event_in_the_last_moment_is_served(home, tmp_path):
    """An event that arrives when the holder has looked for marks and not yet let go is served by that holder."""
    code = """
import sys
from pathlib import Path
from turnspan.delivery import marks
home, session_id, ledger = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
def work(events, is_locked):
    with ledger.open("a") as file:
        file.write("".join(mark["n"] for mark in events))
marks.attend(home, session_id, {"n": "1"}, work)
"""
    ledger = tmp_path / "served"
    slowly = ["-e", "trace=flock", "-e", "inject=flock:delay_enter=800000:when=2"]  # the second flock lets go
    process = start_python(code, home, SESSION, ledger, strace=slowly)
    wait_for(lambda: ledger.exists() and ledger.read_text() == "1")
    time.sleep(0.2)  # the holder looks for marks in no time, and then takes its time to let go
    assert not marks.attend(home, SESSION, {"n": "2"}, lambda *_: pytest.fail("the session is not ours"))
    assert process.wait(PATIENCE_S) == 0, process.stderr.read()
    assert ledger.read_text() == "12"


def test_failed_work_is_left_for_the_next_event(home):
    """Events that waited for a worker which failed, or was killed over them, are served with the next one."""
    marks.leave_mark(home, SESSION, {"n": 1})

    def fail(*_):
        raise StateError("disk full")

    with pytest.raises(StateError):
        marks.attend(home, SESSION, {"n": 2}, fail)
    marks.leave_mark(home, SESSION, {"n": 3})
    kill = in_child(lambda: marks.attend(home, SESSION, {"n": 4}, lambda *_: os.kill(os.getpid(), signal.SIGKILL)))
    os.waitpid(kill, 0)
    served = []
    marks.attend(home, SESSION, {"n": 5}, lambda events, _: served.extend(mark["n"] for mark in events))
    assert served == [1, 3, 5]


def test_mark_that_was_cut_is_still_a_mark(home):
    """Half a line, from a disk that was full, costs its facts and not the event, nor the facts of the next."""
    marks.leave_mark(home, SESSION, {"n": 1})
    with state.state_path(home, SESSION, ".marks").open("ab") as file:
        file.write(b'\n{"n": ')
    marks.leave_mark(home, SESSION, {"n": 3})
    assert marks.read_marks(home, SESSION).events == [{"n": 1}, {"n": 3}]
    state.state_path(home, SESSION, ".marks").write_bytes(b'\n{"n": ')
    served = []
    marks.attend(home, SESSION, {"n": 4}, lambda events, _: served.extend(events))
    assert served == [{"n": 4}]
    assert not marks.has_marks(home, SESSION)


def test_marks_do_not_grow_without_bound(home):
    """However many events meet a holder that hangs, their file stays small; and the last is still a mark."""
    facts = {"path": "x" * 10_000}
    for _ in range(60):
        marks.leave_mark(home, SESSION, facts)
    found = marks.read_marks(home, SESSION)
    assert found.length < marks.MAX_MARKS_BYTES + 60
    marks.leave_mark(home, SESSION, facts)
    marks.drop_marks(home, SESSION, found)
    assert marks.has_marks(home, SESSION)


def test_no_mark_is_lost_between_workers(home, tmp_path):
    """Events from many workers at once: each is served, and never by two of them at the same time."""
    ledger = tmp_path / "served"
    inside = tmp_path / "inside"

    def work(events, _is_locked):
        os.close(os.open(inside, os.O_CREAT | os.O_EXCL))  # fails when someone else is inside
        with ledger.open("ab", buffering=0) as file:
            file.write("".join(f"{mark['n']}\n" for mark in events).encode())
        inside.unlink()

    def fire(worker):
        for event in range(40):
            marks.attend(home, SESSION, {"n": f"{worker}-{event}"}, work)

    wait_all([in_child(lambda worker=worker: fire(worker)) for worker in range(8)])
    assert not marks.has_marks(home, SESSION)  # the last holder served the last mark, with no further event
    assert sorted(set(ledger.read_text().split())) == sorted(
        f"{worker}-{event}" for worker in range(8) for event in range(40)
    )


def test_no_mark_is_lost_when_workers_are_killed(home, tmp_path):
    """With workers killed at random, every event left behind is served by those that follow."""
    ledger = tmp_path / "served"
    sent = tmp_path / "sent"

    def note(path, text):
        with path.open("ab", buffering=0) as file:
            file.write(text.encode())

    def work(events, _is_locked):
        note(ledger, "".join(f"{mark['n']}\n" for mark in events))

    def fire(worker):
        for event in range(1000):
            marks.leave_mark(home, SESSION, {"n": f"{worker}-{event}"})
            note(sent, f"{worker}-{event}\n")
            marks.attend(home, SESSION, {"n": "again"}, work)

    for round_number in range(4):
        pids = [in_child(lambda worker=worker, r=round_number: fire(f"{r}{worker}")) for worker in range(4)]
        size = sent.stat().st_size if sent.exists() else 0
        wait_for(lambda size=size: sent.exists() and sent.stat().st_size > size + 200)
        for pid in pids:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
    marks.attend(home, SESSION, {"n": "last"}, work)
    assert set(sent.read_text().split()) <= set(ledger.read_text().split())


# --- pruning


@pytest.fixture
def project(tmp_path):
    """A project directory of Claude Code's."""
    directory = tmp_path / ".claude" / "projects" / "-home-ada"
    directory.mkdir(parents=True)
    return directory


def age(path, days):
    """Make a file look as if it was last touched so many days ago."""
    at = time.time() - days * DAY_S
    os.utime(path, (at, at), follow_symlinks=False)


def keep(home, session_id, transcript, days):
    """Save a state that was last touched so many days ago."""
    state.save(home, Checkpoint(session_id=session_id, transcript=str(transcript)))
    with state.lock(home, session_id):
        pass
    for suffix in (".json", ".lock"):
        age(state.state_path(home, session_id, suffix), days)


def test_only_what_is_gone_for_good_is_pruned(home, project):
    """State of a transcript deleted long ago goes; everything that might still be needed stays."""
    (project / "there.jsonl").touch()
    keep(home, "there", project / "there.jsonl", days=400)
    keep(home, "gone", project / "gone.jsonl", days=100)
    keep(home, "recently", project / "recently.jsonl", days=80)
    keep(home, "elsewhere", home / "unmounted" / "projects" / "p" / "x.jsonl", days=400)
    keep(home, "relative", "projects/p/x.jsonl", days=400)
    keep(home, "below-a-file", project / "there.jsonl" / "x" / "y.jsonl", days=400)
    assert prune(home, time.time()) == Pruned(states=1)
    assert sorted(path.stem for path in (home / "state").glob("*.json")) == [
        "below-a-file",
        "elsewhere",
        "recently",
        "relative",
        "there",
    ]
    assert prune(home, time.time() + 2 * DAY_S) == Pruned(leftovers=1)  # the lock that is left of "gone"
    assert not list((home / "state").glob("gone.*"))


def test_leftovers_of_killed_workers_are_removed(home):
    """A temporary file is removed after an hour, not earlier."""
    directory = private_directory(private_directory(home) / "state")
    for name, days in (
        (".x.json.aa.tmp", 0.05),
        (".x.json.bb.tmp", 0.03),
        ("x.json.corrupt-1", 100),
        ("y.json.corrupt-1", 80),
    ):
        (directory / name).touch(0o600)
        age(directory / name, days)
    assert prune(home, time.time()) == Pruned(leftovers=2)
    assert sorted(path.name for path in directory.iterdir()) == [".pruned", ".x.json.bb.tmp", "y.json.corrupt-1"]


def test_pruning_happens_once_a_day(home, project):
    """Of all events of a day one looks through the directory; a clock that was set back does not stop that for ever."""
    now_s = time.time()
    assert prune(home, now_s) == Pruned()
    keep(home, "gone", project / "gone.jsonl", days=100)
    assert prune(home, now_s + 3600) == Pruned()
    assert prune(home, now_s + DAY_S + 1) == Pruned(states=1)
    keep(home, "gone", project / "gone.jsonl", days=100)
    assert prune(home, now_s) == Pruned(states=1)


def test_session_in_use_is_not_pruned(home, project):
    """A session that a worker holds is not looked at."""
    keep(home, "gone", project / "gone.jsonl", days=100)
    with state.lock(home, "gone"):
        assert prune(home, time.time()) == Pruned()
    assert state.state_path(home, "gone").exists()


@needs_strace
def test_nothing_is_pruned_on_an_error(home, project):
    """A file system that answers anything but "no such file" keeps every state."""
    keep(home, "gone", project / "gone.jsonl", days=100)
    code = """
import sys, time
from pathlib import Path
from turnspan.delivery.prune import prune
print(prune(Path(sys.argv[1]), time.time()))
"""
    calls = "lstat,stat,newfstatat,statx"
    for error in ("EACCES", "EMFILE", "EIO", "ESTALE"):
        (home / "state" / ".pruned").unlink(missing_ok=True)
        strace = ["-P", str(project / "gone.jsonl"), "-e", f"trace={calls}", "-e", f"inject={calls}:error={error}"]
        done = run_python(code, home, strace=strace)
        assert done.stdout == "Pruned(states=0, leftovers=0)\n", done.stderr
    assert state.state_path(home, "gone").exists()
    assert prune(home, time.time() + 2 * DAY_S) == Pruned(states=1)  # and without an error it goes


# ---- several files together


def contents_in(directory):
    """Return the content of each file of a directory, leftovers included."""
    return {path.name: path.read_bytes() for path in directory.iterdir()}


@pytest.mark.parametrize("sync_s", [0.0, 0.002])
def test_files_are_replaced_together_when_they_are_synced(tmp_path, monkeypatch, sync_s):
    """Until then they keep their old content; on a slow disk, several are synced at the same time."""
    synced, real = [], os.fsync
    monkeypatch.setattr("turnspan.files._SLOW_SYNCS_S", 0.005)
    monkeypatch.setattr(os, "fsync", lambda file: (time.sleep(sync_s), synced.append(file), real(file)))
    (tmp_path / "1").write_bytes(b"old")
    new = {str(number): f"new {number}".encode() for number in range(20)}
    replacements = Replacements(tmp_path, new)
    replacements.sync()
    assert len(set(synced)) == len(synced) == len(new)
    assert (tmp_path / "1").read_bytes() == b"old"
    assert replacements.commit() == {}
    assert contents_in(tmp_path) == new


@pytest.mark.parametrize("call", ["fsync", "close", "replace"])
def test_a_file_that_cannot_be_replaced_keeps_its_content(tmp_path, monkeypatch, call):
    """The others are replaced, and nothing is left over."""
    for name in "ab":
        (tmp_path / name).write_bytes(b"old")
    replacements = Replacements(tmp_path, {"a": b"new", "b": b"new"})
    real, calls = getattr(os, call), []

    def failing(*args):
        calls.append(args)
        if len(calls) == 1:
            raise OSError(5, "Input/output error")
        return real(*args)

    if call == "replace":  # a default argument: it is known since the import
        monkeypatch.setattr(rename_patiently, "__kwdefaults__", {**rename_patiently.__kwdefaults__, "rename": failing})
    else:
        monkeypatch.setattr(os, call, failing)
    replacements.sync()
    failed = replacements.commit()
    monkeypatch.undo()
    assert len(failed) == 1
    assert all(isinstance(error, StateError) for error in failed.values())
    assert contents_in(tmp_path) == {name: b"old" if name in failed else b"new" for name in "ab"}


def test_replacements_can_be_discarded(tmp_path):
    """Nothing is replaced, and nothing is left over."""
    (tmp_path / "a").write_bytes(b"old")
    Replacements(tmp_path, {"a": b"new", "b": b"new"}).discard()
    assert contents_in(tmp_path) == {"a": b"old"}
