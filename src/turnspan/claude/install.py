"""Registers our hooks in Claude Code's settings, and removes them again.

Rules:

- `plan_install` and `plan_uninstall` only read: an `InstallPlan` holds the bytes before and after, `apply` writes them.
- If the file has not changed since, `uninstall` restores the same bytes; otherwise only our entries are removed.
- A client that does not know an event ignores every hook in a file that names it, those of others too: measured with
  StopFailure and the clients 1.0.80 to 2.1.76. So an event is registered only for clients that know it.
"""

from __future__ import annotations

import difflib
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan import files
from turnspan.claude.command import Runtime, command_of, hook_of, is_ours
from turnspan.claude.hooks import read_sources, sentences
from turnspan.claude.settings_file import (
    Record,
    SettingsFile,
    change,
    digest,
    look_at,
    read_record,
    recorded_files,
)
from turnspan.claude.settings_json import hooks_by_event, parse_settings, with_hooks, without_hooks
from turnspan.claude.settings_reader import read_settings
from turnspan.errors import ConfigError
from turnspan.hook import PACKAGE_ROOT
from turnspan.transcript.carry import version_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

# The events we register, and the first client version that knows each.
EVENTS: Final = {
    "Stop": (1, 0, 38),
    "SubagentStop": (1, 0, 41),
    "StopFailure": (2, 1, 78),
    "SessionStart": (1, 0, 62),
    "SessionEnd": (1, 0, 85),
}
_STATE_LIMIT: Final = 256 << 20  # .claude.json holds the history of every project
_REPAIR: Final = "fix it first; Claude Code cannot read it either"
_SECRET: Final = re.compile(
    r'("[^"\n]*(?:KEY|TOKEN|SECRET|PASSWORD|AUTH|CREDENTIAL|HEADERS)[^"\n]*"\s*:\s*)"(?:[^"\\\n]|\\.)*"', re.IGNORECASE
)
_PASSING: Final = re.compile(r"[/\\](uv[/\\]archive-v\d+|\.cache[/\\]uv|uv[/\\]cache|pipx[/\\]\.cache)[/\\]")


class InstallScope(StrEnum):
    """Which sessions call us: all of the user's, everyone's in a project, or the user's in a project."""

    USER = "user"
    PROJECT = "project"
    LOCAL = "local"


@dataclass(frozen=True, slots=True)
class InstallPlan:
    """A change of a settings file that was not applied yet."""

    scope: InstallScope
    file: SettingsFile
    after: bytes | None  # None: the file is removed
    record: Record | None  # of this installation; None: it is an uninstallation
    notices: tuple[str, ...] = ()
    made_directory: Path | None = None  # the directory of the file, if the installation created it

    @property
    def is_change(self) -> bool:
        """Whether the file changes."""
        return self.file.content != self.after

    @property
    def diff(self) -> str:
        """The change as a unified diff, without values that look like credentials."""
        name = str(self.file.path)
        lines = difflib.unified_diff(_lines(self.file.content), _lines(self.after), fromfile=name, tofile=name)
        return _SECRET.sub(r'\1"…"', "".join(lines))

    @property
    def summary(self) -> str:
        """The change of an installation in a few words."""
        before, after = (_our_events(content) for content in (self.file.content, self.after))
        what = f"{len(after)} hooks ({', '.join(after)})"
        if before:
            return f"updates {what} in {self.file.path}"
        return (
            f"creates {self.file.path} with {what}" if self.file.content is None else f"adds {what} to {self.file.path}"
        )


def _our_events(content: bytes | None) -> list[str]:
    settings = parse_settings((content or b"").decode())
    return list(dict.fromkeys(event for event, hook in hooks_by_event(settings) if is_ours(hook)))


# ---- what is registered


def this_runtime() -> Runtime:
    """The running interpreter and turnspan."""
    root = Path(PACKAGE_ROOT)
    # In a wheel the plugin is part of the package; in a clone it is next to the sources.
    candidates = (root / "turnspan" / "plugin" / "turnspan-hook", root.parent / "hooks" / "turnspan-hook")
    launcher = next((path for path in candidates if path.is_file() and os.access(path, os.X_OK)), None)
    return Runtime(Path(sys.executable), root, launcher)


def plugin_directory(runtime: Runtime) -> Path | None:
    """The directory for `claude plugin marketplace add`, if this installation includes it."""
    candidates = (runtime.root / "turnspan" / "plugin", runtime.root.parent / "hooks")
    return next((path for path in candidates if (path / ".claude-plugin" / "plugin.json").is_file()), None)


def known_events(client: tuple[int, ...] | None) -> tuple[str, ...]:
    """The events that a client of this version knows; all of them if the version is unknown."""
    return tuple(event for event, first in EVENTS.items() if client is None or client >= first)


# ---- planning


def settings_path(scope: InstallScope, env: Mapping[str, str], project: Path) -> Path:
    """The settings file of a scope."""
    match scope:
        case InstallScope.USER:
            return files.claude_home(env) / "settings.json"
        case InstallScope.PROJECT:
            return project / ".claude" / "settings.json"
        case InstallScope.LOCAL:
            return project / ".claude" / "settings.local.json"


def plan_install(
    scope: InstallScope,
    *,
    env: Mapping[str, str],
    project: Path,
    runtime: Runtime,
    client: tuple[int, ...] | None = None,
) -> InstallPlan:
    """Plan the registration of our hooks. Raises ConfigError for a file that cannot be edited."""
    file = look_at(settings_path(scope, env, project), files.turnspan_home(env))
    hook = hook_of(runtime, client)
    if any("\ud800" <= letter <= "\udfff" for letter in command_of(hook)):
        message = f"{file.path} was not changed: the path of this turnspan is not UTF-8 and cannot be written as JSON"
        raise ConfigError(message, hint="install turnspan in another directory")
    after = _edited(file, lambda text: with_hooks(text, dict.fromkeys(known_events(client), hook)))
    notices = (*sentences(read_sources(env, project), file.path), *_remarks(scope, file.path, runtime, client))
    return InstallPlan(scope, file, after, _new_record(file, after), notices)


def plan_uninstall(scope: InstallScope, *, env: Mapping[str, str], project: Path) -> InstallPlan:
    """Plan the removal of our hooks: restore the file, or remove only our entries if it has changed since."""
    return _plan_removal(scope, settings_path(scope, env, project), env)


def plan_recorded(env: Mapping[str, str]) -> Iterator[InstallPlan]:
    """Plan the removal from every file in which `install` was run, in any project."""
    for path in recorded_files(files.turnspan_home(env)):
        yield _plan_removal(
            InstallScope.LOCAL if path.name == "settings.local.json" else InstallScope.PROJECT, path, env
        )


def _plan_removal(scope: InstallScope, path: Path, env: Mapping[str, str]) -> InstallPlan:
    file = look_at(path, files.turnspan_home(env))
    record = read_record(file)
    after = file.content
    if file.content is not None and record is not None and digest(file.content) == record.written_sha256:
        after = None if record.original is None else record.original.encode()
    elif file.content is not None:
        after = _without_ours(file, record)
        if record is not None and record.original is None and not parse_settings(after.decode()):
            after = None  # there was no file before, and nothing was added since
    made = file.target.parent if record is not None and record.made_directory else None
    return InstallPlan(scope, file, after, None, made_directory=made)


def apply(plan: InstallPlan) -> None:
    """Apply the change. Raises StateError if that fails; then the file is unchanged."""
    change(plan.file, plan.after, plan.record)


def _edited(file: SettingsFile, edit: Callable[[str], str]) -> bytes:
    """Edit the text of a file. Raises ConfigError for malformed text, which the user must fix."""
    try:
        return edit((file.content or b"").decode()).encode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file.path} is malformed and was not changed: it is not UTF-8", hint=_REPAIR) from error
    except ConfigError as error:
        raise ConfigError(f"{file.path} is malformed and was not changed: {error.args[0]}", hint=_REPAIR) from error


def _without_ours(file: SettingsFile, record: Record | None) -> bytes:
    original = "" if record is None else record.original or ""
    return _edited(file, lambda text: without_hooks(text, original))


def _new_record(file: SettingsFile, after: bytes) -> Record:
    """The record that undoes this installation, and an earlier one it follows."""
    known = read_record(file)
    if known is not None and file.content is not None and digest(file.content) == known.written_sha256:
        return msgspec.structs.replace(known, written_sha256=digest(after))
    original = None if file.content is None else _without_ours(file, known).decode()
    return Record(str(file.path), digest(after), original, made_directory=not file.target.parent.exists())


def _remarks(scope: InstallScope, path: Path, runtime: Runtime, client: tuple[int, ...] | None) -> Iterator[str]:
    if scope is InstallScope.PROJECT:
        yield f"{path} is often shared with others, but the hook contains paths of this machine; use --scope local"
    if _PASSING.search(str(runtime.python)):
        yield f"{runtime.python} is in a temporary cache; run `uv tool install .` in a clone to keep it"
    left_out = [event for event in EVENTS if event not in known_events(client)]
    if left_out:
        version = ".".join(map(str, client or ()))
        yield (
            f"Claude Code {version} does not know {', '.join(left_out)} and would ignore all hooks in the file, "
            "so it is not registered; run `turnspan install` again after an update"
        )


def _lines(content: bytes | None) -> list[str]:
    lines = (content or b"").decode(errors="replace").splitlines(keepends=True)
    if lines and not lines[-1].endswith(("\n", "\r")):
        lines[-1] += "\n\\ No newline at end of file\n"
    return lines


# ---- the client and the plugin


def remember_runtime(env: Mapping[str, str], runtime: Runtime) -> None:
    """Record which turnspan the plugin starts, whatever `PATH` Claude Code has (`hooks/find-turnspan` reads it)."""
    directory = files.private_directory(files.turnspan_home(env))
    files.replace_private(directory / "runtime", f"{runtime.python}\n{runtime.root}\n".encode(errors="surrogateescape"))


def client_version(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """The version of the user's Claude Code, or of the last one that ran here; None if there is no trace of one."""
    home = Path(env.get("USERPROFILE" if sys.platform == "win32" else "HOME", ""))
    places = [
        directory / name
        for directory in (files.claude_home(env) / "local", home / ".local" / "bin")
        for name in ("claude", "claude.exe")
    ]
    program = shutil.which("claude", path=env.get("PATH")) or next(
        (str(place) for place in places if place.is_absolute() and place.is_file()), None
    )
    if program is None:
        return _noted_version(env)
    try:
        said = subprocess.run(  # noqa: S603 - the user's own client
            [program, "--version"], capture_output=True, text=True, timeout=20, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired):
        return _noted_version(env)
    return _version(said.stdout) or _noted_version(env)


def _noted_version(env: Mapping[str, str]) -> tuple[int, ...] | None:
    """The version in .claude.json: a client inside an editor or a desktop app is not on the PATH."""
    beside = files.claude_home(env) if env.get("CLAUDE_CONFIG_DIR") else files.claude_home(env).parent
    noted = read_settings(beside / ".claude.json", _STATE_LIMIT).values
    found = [_version(str(noted.get(key, ""))) for key in ("lastReleaseNotesSeen", "lastOnboardingVersion")]
    return max((version for version in found if version is not None), default=None)


def _version(text: str) -> tuple[int, ...] | None:
    """The version at the beginning of a text like "2.1.197 (Claude Code)"."""
    version = version_of(next(iter(text.split()), ""))
    return version if len(version) >= 3 else None
