"""The Windows half of the Python hook: how the worker is started, and what arrives there."""

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from not_on_windows import SKIPPED

from turnspan import hook

windows_only = pytest.mark.skipif(sys.platform != "win32", reason="Windows only")
WORKER = (  # writes down what it was given
    "import os, sys; sys.path.append(sys.argv[1]); from turnspan.hook import take_over; out = os.environ['OUT']; "
    "payload = take_over(); file = open(out + '.new', 'wb'); file.write(payload); file.close(); "
    "os.replace(out + '.new', out)"
)
CALL = (
    "import sys; sys.path.append(sys.argv[1]); from turnspan import hook; hook.WORKER_CODE = sys.argv[2]; hook.main()"
)


def test_no_console_window_is_opened():
    """A virtual environment's python.exe starts another one: detached, that would open a window at every turn."""
    create_no_window, new_group, detached = 0x08000000, 0x00000200, 0x00000008
    assert create_no_window | new_group == hook.WINDOWS_FLAGS
    assert not hook.WINDOWS_FLAGS & detached  # must not be combined


@pytest.fixture
def call(tmp_path, monkeypatch):
    """Call the hook with a worker that only writes down what it was given; return that."""
    out = tmp_path / "out"
    monkeypatch.setenv("OUT", str(out))

    def run(payload, *, is_closing=True):
        command = [sys.executable, *hook.HOOK_OPTIONS, CALL, hook.PACKAGE_ROOT, WORKER]
        streams = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        with subprocess.Popen(command, **streams) as process:
            process.stdin.write(payload)
            process.stdin.flush()
            if is_closing:
                process.stdin.close()
            assert (process.stdout.read(), process.stderr.read(), process.wait(60)) == (b"", b"", 0)
        end = time.monotonic() + 60
        while not out.exists():
            assert time.monotonic() < end, "the worker wrote nothing"
            time.sleep(0.05)
        return out.read_bytes()

    return run


@windows_only
@pytest.mark.parametrize("size", [10, 5_000_000])
@pytest.mark.parametrize("is_closing", [True, False])
def test_the_worker_gets_the_event(call, size, is_closing):
    """Byte for byte, also a long one, and also if the client does not close its end."""
    event = json.dumps({"session_id": "0a1b", "text": 'ä "{' + "x" * size}).encode()
    assert call(event, is_closing=is_closing) == event


@windows_only
@pytest.mark.parametrize("payload", [b"", b"not json", b'{"session_id":'])
def test_what_is_not_an_event_reaches_the_worker_too(call, payload):
    """The worker writes it into the log; the client sees a quiet success."""
    assert call(payload) == payload


def test_the_tests_that_are_skipped_on_windows_exist():
    """A name in the list that no test has would hide nothing, and nobody would notice."""
    texts = [path.read_text(encoding="utf-8") for path in Path(__file__).parent.rglob("test_*.py")]
    assert [name for name in SKIPPED if not any(f"def {name}(" in text for text in texts)] == []
