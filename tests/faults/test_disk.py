"""A full disk, a read-only one, no home, a clock that jumps: the client does not notice, and nothing is lost."""

import contextlib
import ctypes
import os
import subprocess
import time

import pytest
from figures import note

from faults.world import HOOK, PATIENCE_S

resource = pytest.importorskip("resource", reason="POSIX only")

CLONE_NEWNS = 0x00020000
NO_MOUNT = 77


@pytest.mark.parametrize("size", [0, 200, 700, 2000])
@pytest.mark.parametrize("event", [0, 4])
def test_files_that_may_not_grow(world, event, size):
    """A limit on file sizes acts like a full disk at any write: what was not committed is sent again, unchanged."""
    world.live(0, event)
    limit = lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))  # noqa: E731
    assert world.run_worker(world.payload(event), preexec_fn=limit) == 0
    world.live(event + 1)
    world.end()
    world.judge(may_repeat=True)
    world.go_on()
    assert not list((world.home / "state").glob("*.tmp"))


def test_a_hook_whose_files_may_not_grow(world):
    """Not even an event that has to be kept in a file makes a sound."""
    words = "x" * 200_000
    payload = world.payload(1).replace(b'"Warp and weft."', f'"{words}"'.encode())
    world.call_hook(payload, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
    world.wait()
    world.live(1)
    world.end()
    world.judge(may_repeat=True)


def test_a_hook_that_cannot_even_complain(world):
    """Both ways out lead to a full disk."""
    with open("/dev/full", "wb") as full:  # noqa: PTH123  a device
        done = subprocess.run(
            HOOK, input=world.payload(1), stdout=full, stderr=full, env=world.env, timeout=PATIENCE_S, check=False
        )
    assert done.returncode == 0
    world.wait()
    world.live(2)
    world.judge()


def on_a_disk_of_its_own(world, options, act):
    """Run something in a process whose state directory is a file system of its own, in the middle of the story."""

    def mount(*arguments):
        if subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode:
            os._exit(NO_MOUNT)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            if ctypes.CDLL(None).unshare(CLONE_NEWNS):
                os._exit(NO_MOUNT)
            mount("--make-rprivate", "/")
            world.home.mkdir(mode=0o700)
            mount("-t", "tmpfs", "-o", options, "tmpfs", str(world.home))
            act(mount)
            status = 0
        finally:
            os._exit(status)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == NO_MOUNT:
        pytest.skip("this machine does not allow mounting")
    assert status == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_disk_that_fills_up(world):
    """A tiny file system is full for a while: then nothing is sent, and when there is room again all of it arrives."""

    def act(_mount):
        world.live(0, 2)
        sent = len(world.sink.requests)
        filler = world.home / "filler"
        with contextlib.suppress(OSError):
            filler.write_bytes(b"x" * 200_000)
        errors = [world.serve(world.payload(number)) for number in range(2, 7)]
        assert all("disk full" in one for one in errors if one), errors
        assert any(errors)
        assert len(world.sink.requests) <= sent + 1  # one checkpoint may fail after its request, and then no more
        filler.unlink()
        world.live(7)
        world.end()

    on_a_disk_of_its_own(world, "size=64k,mode=0700", act)
    world.judge(may_repeat=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
def test_a_home_that_becomes_read_only(world):
    """Nothing is sent while nothing can be noted; then all of it."""

    def act(mount):
        world.live(0, 2)
        sent = len(world.sink.requests)
        mount("-o", "remount,ro", str(world.home))
        errors = [world.serve(world.payload(number)) for number in range(2, 7)]
        assert all("make it writable" in one for one in errors), errors
        assert len(world.sink.requests) == sent
        mount("-o", "remount,rw", str(world.home))
        world.live(7)
        world.end()

    on_a_disk_of_its_own(world, "mode=0700", act)
    assert world.judge().repeats == 0


@pytest.mark.parametrize(
    "env",
    [
        {"CLAUDE_CONFIG_DIR": "relative/claude"},
        {"CLAUDE_CONFIG_DIR": "", "HOME": "/proc/nowhere"},
        {"CLAUDE_CONFIG_DIR": "/proc/nowhere"},
        {"CLAUDE_CONFIG_DIR": "/dev/null"},
    ],
    ids=lambda env: "+".join(env.values()),
)
def test_variables_that_name_no_home(world, env):
    """State is kept next to the transcript, whatever the variables say."""
    world.call_hook(world.payload(1), env=env)
    world.wait()
    assert len(world.sink.requests) == 1
    world.live(2)
    assert world.judge().repeats == 0


@pytest.mark.parametrize("jump_s", [-3600.0, -86400.0 * 400, 86400.0 * 30, 86400.0 * 400])
def test_a_clock_that_jumps(world, jump_s):
    """Back an hour or a year, or on: nothing is held for ever, and nothing moves."""
    # On a busy machine a response can take longer than five seconds; the request is then sent again, as it must be.
    world.env["TURNSPAN_OTLP_TIMEOUT_S"] = "120"
    began = time.time()
    world.clock_s = began
    for number in range(len(world.story.moments)):
        world.clock_s = began + (jump_s if 3 <= number < 8 else 0.0) + 10.0 * number
        world.sink.always = "503" if number in {2, 5} else "ok"
        world.serve(world.payload(number))
    world.sink.always = "ok"
    world.clock_s = began + 4000
    world.end()
    assert world.judge().repeats == 0
    note("clock", "jumps of an hour and of more than a year, both ways, in the middle of outages")
