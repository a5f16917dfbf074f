"""The command of a hook: written for every system and client, and read back."""

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from turnspan.claude.command import ARGS_SINCE, Runtime, hook_of, is_ours, mentions_us, runtime_of, words_of
from turnspan.hook import HOOK_CODE

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="runs /bin/sh")
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12) | st.sampled_from(
    ["a b", "it's", '"quoted"', "$HOME", "a\\b", "Grüße 🎉", "#x", "a;b", "`c`", "-n", "!"]
)
PATHS = st.lists(NAMES.map(lambda name: name.replace("/", "_")), min_size=1, max_size=3)


@given(PATHS, PATHS, st.sampled_from(["linux", "darwin", "win32"]), st.sampled_from([None, (2, 1, 98), (2, 1, 326)]))
def test_what_is_written_is_read_back(python, root, platform, client):
    """Spaces, backslashes, quotes and Unicode in a path: `doctor` and `uninstall` find what `install` has registered."""
    start, separator = ("C:\\", "\\") if platform == "win32" else ("/", "/")
    launcher = f"{start}{separator.join(root)}{separator}turnspan-hook"
    wanted = [start + separator.join(python), start + separator.join(root), launcher if platform == "linux" else ""]
    hook = hook_of(Runtime(Path(wanted[0]), Path(wanted[1]), Path(launcher), platform), client)
    found = runtime_of(hook)
    read = [str(path or "") for path in (found.python, found.root, found.launcher)]
    if platform == "win32" and client == (2, 1, 98):  # forward slashes are the same path there
        wanted = [path.replace("\\", "/") for path in wanted]
    assert [path.rstrip("/") for path in read] == [str(Path(path)) if path else "" for path in wanted]
    assert is_ours(hook)
    assert mentions_us(hook)


def test_every_client_on_windows_gets_a_form_that_it_knows():
    """`args` since 2.1.139; before that a command for Git Bash, which those clients require."""
    runtime = Runtime(Path("C:\\my py\\python.exe"), Path("C:\\lib"), Path("C:\\lib\\turnspan-hook"), "win32")
    options = ["-I", "-S", "-c", HOOK_CODE]
    for client in (None, ARGS_SINCE, (2, 2)):
        hook = hook_of(runtime, client)
        assert (hook["command"], hook["args"]) == ("C:\\my py\\python.exe", [*options, "C:\\lib"])
    old = hook_of(runtime, (2, 1, 138))
    assert "args" not in old
    assert old["command"].startswith("[ ! -x 'C:/my py/python.exe' ] || exec 'C:/my py/python.exe' -I -S -c ")
    assert words_of(old) == ["C:/my py/python.exe", *options, "C:/lib"]


@posix_only
def test_the_command_survives_a_shell(tmp_path):
    """Paths with spaces, quotes and dollar signs reach the hook unchanged."""
    directory = tmp_path / "a 'quoted' $HOME \"dir\""
    directory.mkdir()
    launcher = directory / "turnspan-hook"
    launcher.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    launcher.chmod(0o755)
    hook = hook_of(Runtime(directory / "python", directory, launcher, "linux"))
    said = subprocess.run(["/bin/sh", "-c", hook["command"]], capture_output=True, text=True, check=True)
    assert said.stdout.splitlines() == [str(directory / "python"), str(directory)]
    assert is_ours(hook)


@posix_only
@pytest.mark.parametrize("platform", ["linux", "darwin"])
def test_a_deleted_turnspan_is_silent(tmp_path, platform):
    """After `pip uninstall`, or in a virtual environment that was moved, every event ends with 0 and prints nothing."""
    for python in (Path(sys.executable), tmp_path / "no-python"):
        for launcher in (tmp_path / "no-launcher", None):
            hook = hook_of(Runtime(python, tmp_path / "no-package", launcher, platform))
            ended = subprocess.run(["/bin/sh", "-c", hook["command"]], input=b"{}", capture_output=True, check=False)
            assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


@pytest.mark.parametrize(
    ("command", "is_managed", "is_mentioned"),
    [
        ("'/a b/turnspan-hook' /usr/bin/python3 /lib", True, True),
        ("[ ! -x '/a b/turnspan-hook' ] || exec '/a b/turnspan-hook' /usr/bin/python3 /lib", True, True),
        ("[ ! -x /a/turnspan-hook ] || exec /a/other /usr/bin/python3 /lib", False, True),
        ("/usr/local/bin/turnspan hook", True, True),
        ("turnspan hook", True, True),
        ("/py -I -S -c 'import sys; from turnspan.hook import main; main()' /lib", True, True),
        ("turnspan hook && notify-send done", False, True),
        ("turnspan hook; true", False, True),
        ("nice turnspan hook", False, True),
        ("/home/me/my-turnspan-hooks.sh", False, True),
        ("turnspan status", False, False),
        ("'unclosed turnspan", False, False),
        ("echo", False, False),
        ("", False, False),
    ],
)
def test_only_our_own_hooks_are_removed(command, is_managed, is_mentioned):
    """A longer command that calls turnspan is the user's own, but counts as a registration."""
    hook = {"type": "command", "command": command}
    assert is_ours(hook) is is_managed
    assert mentions_us(hook) is is_mentioned


def test_a_hook_with_separate_arguments_is_recognised():
    """On Windows the hook runs without a shell: a program and its arguments."""
    arguments = ["-I", "-S", "-c", "from turnspan.hook import main; main()", "C:/lib"]
    assert is_ours({"type": "command", "command": "C:\\py\\python.exe", "args": arguments})
    assert is_ours({"type": "command", "command": "C:\\Scripts\\turnspan.exe", "args": ["hook"]})
    assert not is_ours({"type": "prompt", "prompt": "turnspan hook"})
