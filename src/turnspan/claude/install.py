"""Registers our hooks in Claude Code's settings, and takes them out again as if they had never been there.

Rules:

- `plan_install` and `plan_uninstall` only look: a `Plan` holds the bytes before and after, and `apply` writes them.
- As long as nobody has changed the file since, `uninstall` puts back the very bytes; after that it removes our entries.
- A hook is registered by absolute paths: the desktop app's `PATH` has nothing of the person's.
- A client that does not know an event ignores every hook of a file that names it, other people's too: measured with
  StopFailure and the clients 1.0.80 to 2.1.76. So an event is registered only for clients that know it.
"""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from turnspan import private_files
from turnspan.claude.hooks import read_sources, sentences
from turnspan.claude.settings_file import Record, SettingsFile, change, digest, look_at, read_record
from turnspan.claude.settings_json import containers, parse_settings, with_hooks, without_hooks
from turnspan.errors import ConfigError
from turnspan.hook import HOOK_CODE, HOOK_OPTIONS, PACKAGE_ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from turnspan.claude.settings_json import Hook

T = TypeVar("T")

# The events we want, and the first client that knows each.
EVENTS: Final = {
    "Stop": (1, 0, 38),
    "SubagentStop": (1, 0, 41),
    "StopFailure": (2, 1, 78),
    "SessionStart": (1, 0, 62),
    "SessionEnd": (1, 0, 85),
}
# The hook is gone in a tenth of a second. SessionEnd hooks share 1.5 s, or as long as the longest of their time-outs.
TIMEOUT_S: Final = 5
_REPAIR: Final = "correct it first; Claude Code does not read it as it is"
_SECRET: Final = re.compile(
    r'("[^"\n]*(?:KEY|TOKEN|SECRET|PASSWORD|AUTH|CREDENTIAL|HEADERS)[^"\n]*"\s*:\s*)"(?:[^"\\\n]|\\.)*"', re.IGNORECASE
)
_PASSING: Final = re.compile(r"[/\\](uv[/\\]archive-v\d+|\.cache[/\\]uv|uv[/\\]cache|pipx[/\\]\.cache)[/\\]")


class Scope(StrEnum):
    """Whose sessions call us: all of a person's, all people's in a project, or this person's in this project."""

    USER = "user"
    PROJECT = "project"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Runtime:
    """What starts turnspan: an interpreter, the directory that turnspan is in, and the launcher if there is one."""

    python: Path
    root: Path
    launcher: Path | None
    platform: str = sys.platform


@dataclass(frozen=True, slots=True)
class Plan:
    """One change to one settings file, looked at and not yet made."""

    scope: Scope
    file: SettingsFile
    after: bytes | None  # None: no file
    record: Record | None  # of the installation that this is; None when it ends one
    notices: tuple[str, ...] = ()

    @property
    def is_change(self) -> bool:
        """Whether there is anything to write."""
        return self.file.content != self.after

    @property
    def diff(self) -> str:
        """The change as a unified diff for a person: values that look like credentials are not shown."""
        name = str(self.file.path)
        lines = difflib.unified_diff(_lines(self.file.content), _lines(self.after), fromfile=name, tofile=name)
        return _SECRET.sub(r'\1"…"', "".join(lines))


# ---- what is registered


def this_runtime() -> Runtime:
    """The interpreter and the turnspan that are running now."""
    root = Path(PACKAGE_ROOT)
    # In a wheel the plugin is part of the package; in a clone it lies beside the sources.
    candidates = (root / "turnspan" / "plugin" / "turnspan-hook", root.parent / "hooks" / "turnspan-hook")
    launcher = next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)
    return Runtime(Path(sys.executable), root, launcher)


def plugin_directory(runtime: Runtime) -> Path | None:
    """What `claude plugin marketplace add` takes, if it is part of this installation."""
    candidates = (runtime.root / "turnspan" / "plugin", runtime.root.parent / "hooks")
    return next((path for path in candidates if (path / ".claude-plugin" / "plugin.json").is_file()), None)


def hook_of(runtime: Runtime) -> Hook:
    """The hook that calls us. None of its ways to fail ends with exit code 2, which would keep Claude working."""
    if runtime.launcher is not None and runtime.platform == "linux":  # elsewhere a pipe is too small for it
        words = [str(runtime.launcher), str(runtime.python), str(runtime.root)]
    else:
        words = [str(runtime.python), *HOOK_OPTIONS, HOOK_CODE, str(runtime.root)]
    if runtime.platform == "win32":  # perhaps PowerShell, perhaps Git Bash: past both of them
        return {"type": "command", "command": words[0], "args": words[1:], "timeout": TIMEOUT_S}
    return {"type": "command", "command": shlex.join(words), "timeout": TIMEOUT_S}


def known_events(client: tuple[int, ...] | None) -> tuple[str, ...]:
    """The events that a client of this version knows; all of them where the version is not known."""
    return tuple(event for event, first in EVENTS.items() if client is None or client >= first)


# ---- looking


def settings_path(scope: Scope, env: Mapping[str, str], project: Path) -> Path:
    """The settings file of a scope."""
    match scope:
        case Scope.USER:
            return private_files.claude_home(env) / "settings.json"
        case Scope.PROJECT:
            return project / ".claude" / "settings.json"
        case Scope.LOCAL:
            return project / ".claude" / "settings.local.json"


def plan_install(
    scope: Scope, *, env: Mapping[str, str], project: Path, runtime: Runtime, client: tuple[int, ...] | None = None
) -> Plan:
    """What registering our hooks would change. Raises ConfigError for a file that must not be touched."""
    file = look_at(settings_path(scope, env, project), private_files.turnspan_home(env))
    wanted = dict.fromkeys(known_events(client), hook_of(runtime))
    after = _encoded(file.path, _edited(file.path, _text(file), lambda text: with_hooks(text, wanted)))
    notices = (*sentences(read_sources(env, project), file.path), *_remarks(scope, file.path, runtime, client))
    return Plan(scope, file, after, _new_record(file, after), notices)


def plan_uninstall(scope: Scope, *, env: Mapping[str, str], project: Path) -> Plan:
    """What removing our hooks would change: everything back as it was, or only our entries if it changed since."""
    file = look_at(settings_path(scope, env, project), private_files.turnspan_home(env))
    record = read_record(file)
    after = file.content
    if file.content is not None and record is not None and digest(file.content) == record.written_sha256:
        after = None if record.original is None else record.original.encode()
    elif file.content is not None:
        kept = _kept(file, record)
        after = _encoded(file.path, _edited(file.path, _text(file), lambda text: without_hooks(text, kept)))
        if record is not None and record.original is None and not parse_settings(after.decode()):
            after = None  # there was no file, and nobody has put anything into ours
    return Plan(scope, file, after, None)


def apply(plan: Plan) -> None:
    """Make the change. Raises StateError, and then the settings are as they were."""
    change(plan.file, plan.after, plan.record)


def _text(file: SettingsFile) -> str:
    try:
        return (file.content or b"").decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.path} is malformed and was not touched: it is not UTF-8", hint=_REPAIR) from error


def _edited(path: Path, text: str, edit: Callable[[str], T]) -> T:
    """What `edit` makes of the text; a malformed text is the person's to repair."""
    try:
        return edit(text)
    except ConfigError as error:
        raise ConfigError(f"{path} is malformed and was not touched: {error.args[0]}", hint=_REPAIR) from error


def _encoded(path: Path, text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        message = f"{path} was not touched: the path of this turnspan is not UTF-8, and JSON could not hold it"
        raise ConfigError(message, hint="install turnspan below another directory") from error


def _new_record(file: SettingsFile, after: bytes) -> Record:
    """What undoes this installation; if it follows another one, then that one too."""
    known = read_record(file)
    if known is not None and file.content is not None and digest(file.content) == known.written_sha256:
        return msgspec.structs.replace(known, written_sha256=digest(after))
    kept = _kept(file, known)
    original = None if file.content is None else _edited(file.path, _text(file), lambda text: without_hooks(text, kept))
    return Record(str(file.path), digest(after), original, made_directory=not file.target.parent.exists())


def _kept(file: SettingsFile, record: Record | None) -> tuple[str, ...]:
    original = None if record is None else record.original
    return () if original is None else _edited(file.path, original, containers)


def _remarks(scope: Scope, path: Path, runtime: Runtime, client: tuple[int, ...] | None) -> Iterator[str]:
    if scope is Scope.PROJECT:
        yield f"{path} is often shared, and the hook names paths of this machine; --scope local is for you alone"
    if _PASSING.search(str(runtime.python)):
        yield f"{runtime.python} is in a cache that will be emptied; `uv tool install turnspan` puts it where it stays"
    left_out = [event for event in EVENTS if event not in known_events(client)]
    if left_out:
        version = ".".join(map(str, client or ()))
        yield (
            f"Claude Code {version} does not know {', '.join(left_out)} and ignores all hooks of a file that names it; "
            "so it is left out until you run `turnspan install` with a newer one"
        )


def _lines(content: bytes | None) -> list[str]:
    lines = (content or b"").decode(errors="replace").splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += "\n\\ No newline at end of file\n"
    return lines


# ---- the client and the plugin


def remember_runtime(env: Mapping[str, str], runtime: Runtime) -> None:
    """Tell the plugin which turnspan to start, whatever `PATH` Claude Code has (`hooks/find-turnspan` reads it)."""
    directory = private_files.private_directory(private_files.turnspan_home(env))
    private_files.replace_private(
        directory / "runtime", f"{runtime.python}\n{runtime.root}\n".encode(errors="surrogateescape")
    )


def client_version(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """The version of the Claude Code that this person starts, or that was here last; None without a sign of one."""
    places = (
        private_files.claude_home(env) / "local" / "claude",
        Path(env.get("HOME", "")) / ".local" / "bin" / "claude",
    )
    program = shutil.which("claude", path=env.get("PATH")) or next(
        (str(place) for place in places if place.is_absolute() and place.is_file()), None
    )
    if program is None:
        return _noted_version(env)
    try:
        said = subprocess.run(  # noqa: S603 - the person's own client
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return _noted_version(env)
    return _version(said.stdout) or _noted_version(env)


def _noted_version(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """What a client last noted about itself: one inside an editor or a desktop app is on nobody's PATH."""
    beside = private_files.claude_home(env) if env.get("CLAUDE_CONFIG_DIR") else private_files.claude_home(env).parent
    try:
        noted = json.loads((beside / ".claude.json").read_bytes())
        found = [_version(str(noted.get(key, ""))) for key in ("lastReleaseNotesSeen", "lastOnboardingVersion")]
    except (OSError, ValueError, AttributeError, RecursionError):
        return None
    return max((version for version in found if version is not None), default=None)


def _version(text: str) -> tuple[int, ...] | None:
    match = re.match(r"(\d+)\.(\d+)\.(\d+)", text)
    return tuple(map(int, match.groups())) if match else None
