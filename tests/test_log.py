import os
import re
import shutil
import stat
import subprocess
import sys
import time
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from only_posix import make_fifo

from turnspan.log import KEPT_FILES, LOG_NAME, MAX_LOG_BYTES, format_line, log_line

LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z [A-Z]+ \S+( \w+=(\"([^\"\\]|\\.)*\"|\S*))*")


@pytest.fixture
def home(tmp_path):
    """A home for turnspan that does not exist yet."""
    return tmp_path / "turnspan"


def in_child(work):
    """Run `work` in a child process; return its id."""
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
    """Wait for processes, all of which must succeed."""
    assert [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids] == [0] * len(pids)


def test_line_has_time_level_event_and_facts():
    """A line is readable by people and by grep."""
    facts = {"session": "0a1b", "turns": 3, "took_s": 0.25, "error": 'said "no"', "path": "C:\\x", "none": ""}
    assert format_line(1700000000.0625, "WARN", "backend unreachable", facts) == (
        '2023-11-14T22:13:20.062Z WARN "backend unreachable" session=0a1b turns=3 took_s=0.25 '
        'error="said \\"no\\"" path="C:\\\\x" none=""\n'
    )


@given(st.text(), st.text())
def test_no_value_can_forge_a_line(event, value):
    """Newlines, terminal escapes, reversed text and lone surrogates are escaped: one event is one printable line."""
    line = format_line(0.0, "INFO", event, {"value": value})
    assert line.endswith("\n")
    assert line[:-1].isprintable()
    line.encode("utf-8")


@pytest.mark.parametrize("value", ["\x1b]52;c;x\x07", "a\r\nb", "\u202etxt", "\ud800", "\x00", "\u2028", "\x9b31m"])
def test_terminal_escapes_are_escaped(value):
    """Names from a transcript cannot control the terminal of a reader of the log."""
    assert re.fullmatch(r'[ -~]*v="[ -~]*\\[ -~]*"\n', format_line(0.0, "INFO", "x", {"v": value}))


def test_long_values_are_cut():
    """The length of a line is bounded."""
    assert len(format_line(0.0, "INFO", "x", {"v": "y" * 100_000})) < 1100


def test_log_is_private_and_grows_by_lines(home):
    """The first line creates the log, private to its owner; the next is appended."""
    assert log_line(home, "INFO", "first")
    assert log_line(home, "ERROR", "second", n=1)
    path = home / LOG_NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert [line.split(" ", 1)[1] for line in path.read_text().splitlines()] == ["INFO first", "ERROR second n=1"]


def test_a_full_log_is_rotated(home):
    """The line that makes the log too large rotates it, and the oldest file is dropped."""
    line = len(format_line(0.0, "INFO", "delivered", {"filler": "x" * 900}))
    for _ in range(4 * MAX_LOG_BYTES // line):
        assert log_line(home, "INFO", "delivered", filler="x" * 900)
    sizes = {path.name: path.stat().st_size for path in home.iterdir()}
    assert sizes.keys() == {LOG_NAME, f"{LOG_NAME}.1", f"{LOG_NAME}.2"}
    assert max(sizes.values()) <= MAX_LOG_BYTES + line


def test_ten_processes_share_a_log_that_rotates(home):
    """Every line is there once, complete, and in the end the log does not exceed its limit.

    A rotated file may: processes that have it open still write to it.
    """

    def write(worker):
        for number in range(1000):
            assert log_line(home, "INFO", "delivered", id=f"{worker}-{number}", filler="x" * 180)

    wait_all([in_child(lambda worker=worker: write(worker)) for worker in range(10)])
    files = sorted(home.iterdir())
    assert home / f"{LOG_NAME}.1" in files
    assert not (home / LOG_NAME).exists() or (home / LOG_NAME).stat().st_size <= MAX_LOG_BYTES
    lines = [line for path in files for line in path.read_text().splitlines()]
    assert all(LINE.fullmatch(line) for line in lines)
    ids = [match.group(1) for line in lines if (match := re.search(r" id=(\S+) ", line))]
    assert sorted(ids) == sorted(f"{worker}-{number}" for worker in range(10) for number in range(1000))


@pytest.mark.skipif(not shutil.which("strace"), reason="strace makes a system call take its time")
def test_only_one_process_rotates_the_log(home):
    """While one process renames the files, others keep writing and rename nothing: no line is lost."""
    assert log_line(home, "INFO", "first")
    path = home / LOG_NAME
    with path.open("ab") as file:
        file.write(b"x" * MAX_LOG_BYTES + b"\n")
    size = path.stat().st_size
    # `filelock` is loaded first: the process must lock the file as soon as it has written its line.
    code = "import filelock, pathlib; from turnspan.log import log_line; "
    code += f"log_line(pathlib.Path({str(home)!r}), 'INFO', 'a')"
    renames = "rename,renameat,renameat2"
    slowly = [
        "strace",
        "-o",
        os.devnull,
        "-e",
        f"trace={renames}",
        "-e",
        f"inject={renames}:delay_enter=1500000:when=1",
    ]
    with subprocess.Popen([*slowly, sys.executable, "-c", code]):
        end = time.monotonic() + 20
        while path.stat().st_size == size:
            assert time.monotonic() < end, "the other process did not write"
            time.sleep(0.005)
        time.sleep(0.1)  # it is about to rename, slowly
        assert log_line(home, "INFO", "b")
        assert log_line(home, "INFO", "c")
    assert sorted(entry.name for entry in home.iterdir()) == [f"{LOG_NAME}.1"]
    assert (home / f"{LOG_NAME}.1").read_text().count("INFO") == 4


def test_log_never_takes_more_than_its_files(home):
    """After any number of lines there are three files."""
    for number in range(5 * MAX_LOG_BYTES // 1000):
        log_line(home, "INFO", "x", n=number, filler="y" * 1000)
    assert len(list(home.iterdir())) == KEPT_FILES


@pytest.mark.skipif(not shutil.which("strace"), reason="strace makes the lock fail")
def test_a_log_is_rotated_where_the_file_system_cannot_lock(home):
    """On a file system without locks the log is bounded, too."""
    assert log_line(home, "INFO", "first")
    with (home / LOG_NAME).open("ab") as file:
        file.write(b"x" * MAX_LOG_BYTES + b"\n")
    code = f"import pathlib; from turnspan.log import log_line; log_line(pathlib.Path({str(home)!r}), 'INFO', 'a')"
    without_locks = ["strace", "-o", os.devnull, "-e", "trace=flock", "-e", "inject=flock:error=ENOLCK"]
    subprocess.run([*without_locks, sys.executable, "-c", code], check=True)
    assert sorted(entry.name for entry in home.iterdir()) == [f"{LOG_NAME}.1"]


def test_full_disk_is_not_an_error(home):
    """A log that cannot be written raises nothing."""
    resource = pytest.importorskip("resource", reason="POSIX only")
    log_line(home, "INFO", "first")

    def write_without_room():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
        assert not log_line(home, "INFO", "second")

    wait_all([in_child(write_without_room)])
    assert log_line(home, "INFO", "third")


@pytest.mark.parametrize("kind", ["link", "fifo", "directory", "home is a file"])
def test_only_a_regular_file_is_written(home, tmp_path, kind):
    """A link in place of the log is not followed, and a FIFO does not block."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.touch()
    if kind == "home is a file":
        home.touch()
    else:
        home.mkdir(mode=0o700)
        path = home / LOG_NAME
        {"link": lambda: path.symlink_to(elsewhere), "fifo": lambda: make_fifo(path), "directory": path.mkdir}[kind]()
    assert not log_line(home, "INFO", "x")
    assert elsewhere.read_bytes() == b""
