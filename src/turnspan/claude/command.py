"""The command that is registered as a hook: one function writes it and one reads it back, for all platforms.

Rules:

- It names absolute paths, because the desktop app does not have the user's `PATH`.
- It never fails: exit code 2 would make Claude continue, and any other is reported. If its program no longer exists,
  after `pip uninstall` or in a virtual environment that was moved, it exits with 0 and prints nothing.
- Linux gets the launcher; other systems, whose pipes are smaller, get the Python hook.
- On Windows a client runs `command` in Git Bash or PowerShell, which quote differently. `args` needs no shell. Clients
  before 2.1.139 do not know `args` and always have Git Bash: they get a shell command with forward slashes.
- Ours is a hook whose complete command is our launcher or our module. A longer command is the user's own.
"""

from __future__ import annotations

import os.path
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan.hook import HOOK_CODE, HOOK_OPTIONS

if TYPE_CHECKING:
    from collections.abc import Mapping

Hook = dict[str, object]  # one command as settings.json holds it: type, command, args, timeout

ARGS_SINCE: Final = (2, 1, 139)
# The hook returns within 100 ms. All SessionEnd hooks together have 1.5 s, or the longest of their timeouts.
TIMEOUT_S: Final = 5
_MENTION: Final = re.compile(
    r"turnspan-hook|find-turnspan|turnspan[/\\]hook\.py|turnspan\.hook\b|\bturnspan(\.exe)?[\"']?\s+hook\b"
)
_PYTHON_CODE: Final = "from turnspan.hook import main"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What starts turnspan: an interpreter, the directory of the package, and the launcher if there is one."""

    python: Path
    root: Path
    launcher: Path | None
    platform: str = sys.platform


def hook_of(runtime: Runtime, client: tuple[int, ...] | None = None) -> Hook:
    """Return the hook that a client of this version understands; None: the newest."""
    if runtime.launcher is not None and runtime.platform == "linux":
        words = [str(runtime.launcher), str(runtime.python), str(runtime.root)]
    else:
        words = [str(runtime.python), *HOOK_OPTIONS, HOOK_CODE, str(runtime.root)]
    if runtime.platform == "win32":
        if client is None or client >= ARGS_SINCE:
            return {"type": "command", "command": words[0], "args": words[1:], "timeout": TIMEOUT_S}
        words = [word if word == HOOK_CODE else word.replace("\\", "/") for word in words]
    guarded = f"[ ! -x {shlex.quote(words[0])} ] || exec {shlex.join(words)}"
    return {"type": "command", "command": guarded, "timeout": TIMEOUT_S}


def runtime_of(hook: Mapping[str, object]) -> Runtime | None:
    """Return what a hook that `hook_of` wrote starts; None for any other hook."""
    words = words_of(hook)
    if len(words) == 3 and _name(words[0]) == "turnspan-hook":
        return Runtime(Path(words[1]), Path(words[2]), Path(words[0]))
    if len(words) == 6 and tuple(words[1:4]) == HOOK_OPTIONS and _PYTHON_CODE in words[4]:
        return Runtime(Path(words[0]), Path(words[5]), None)
    return None


def is_ours(hook: Mapping[str, object]) -> bool:
    """Whether `install`, of this version or an earlier one, wrote this hook, so that it can change or remove it."""
    words = words_of(hook)
    old = {("turnspan-hook",), ("turnspan", "hook")}
    return runtime_of(hook) is not None or (bool(words) and (_name(words[0]), *words[1:]) in old)


def mentions_us(hook: Mapping[str, object]) -> bool:
    """Whether this hook runs turnspan, as `install` registers it or in a command of the user's own."""
    return bool(_MENTION.search(command_of(hook))) or is_ours(hook)


def command_of(hook: Mapping[str, object]) -> str:
    """A hook's command and arguments as one line."""
    command, arguments = hook.get("command"), hook.get("args")
    words = [command, *(arguments if isinstance(arguments, list) else ())]
    return " ".join(str(word) for word in words if isinstance(word, str))


def words_of(hook: Mapping[str, object]) -> list[str]:
    """The words of a hook's command, without the guard that `install` puts in front; empty if it is not a command."""
    words = _words(hook)
    is_guarded = len(words) > 7 and words[:3] == ["[", "!", "-x"] and words[4:7] == ["]", "||", "exec"]
    return words[7:] if is_guarded and words[3] == words[7] else words


def _words(hook: Mapping[str, object]) -> list[str]:
    command, arguments = hook.get("command"), hook.get("args")
    if not isinstance(command, str):
        return []
    if isinstance(arguments, list):
        return [command, *map(str, arguments)]
    reader = shlex.shlex(command, posix=True, punctuation_chars=True)  # a shell operator is a word of its own
    reader.whitespace_split = True
    reader.commenters = ""
    try:
        return list(reader)
    except ValueError:  # an unclosed quote
        return []


def _name(program: str) -> str:
    return os.path.basename(program.replace("\\", "/")).removesuffix(".exe")  # noqa: PTH119 - any system's path
