"""The variables that a project's Claude Code settings set. They never count: a cloned repository could set anything.

Rules:

- `env` and plugin options in a project's `.claude/settings.json` and `settings.local.json` reach a hook's environment.
  Their names are ignored, whatever the value: the client converts values to text, so they cannot be compared.
- The file may change or vanish while the client keeps its variables, so they are remembered for the project, each with
  a digest of its value. A variable with another value is not the project's.
- If the file cannot be read, Claude Code perhaps can read it: then any of our variables may come from it. That is not
  remembered, because a file that is being edited cannot be read either.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from turnspan.claude.settings_reader import as_table, read_settings
from turnspan.files import private_directory, read_private, replace_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

PLUGIN: Final = "CLAUDE_PLUGIN_OPTION_"  # the options of our plugin, as Claude Code passes them to a hook
OURS: Final = ("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_", PLUGIN)
TRACEPARENT: Final = "TRACEPARENT"  # the trace of the program that runs Claude Code
# Clients up to 2.1.98 pass these on, and write their transcripts where they say.
LOCATING: Final = frozenset({"HOME", "USERPROFILE", "CLAUDE_CONFIG_DIR"})
_MAX_BYTES: Final = 64 * 1024
_MOST: Final = 300


class Planted(msgspec.Struct, frozen=True):
    """The names of the variables that do not count."""

    certain: frozenset[str] = frozenset()  # set by a project's settings, now or before
    possible: frozenset[str] = frozenset()  # settings that could not be read may set these

    @property
    def names(self) -> frozenset[str]:
        """All of them."""
        return self.certain | self.possible


def planted_in(env: Mapping[str, str], project: Path, home: Path, transcript: Path | None = None) -> Planted:
    """The variables of a project where a hook runs; `home` is Claude Code's directory. Those found are remembered."""
    certain: set[str] = set()
    possible: set[str] = set()
    for directory in _directories(env, project):
        if _is_same(directory / ".claude", home):
            continue
        for name in ("settings.json", "settings.local.json"):
            found = _set_by(directory / ".claude" / name)
            if found is not None:
                certain |= found
            else:
                possible |= {variable for variable in env if variable.startswith((*OURS, TRACEPARENT))}
                if home.is_relative_to(directory):
                    possible.add("CLAUDE_CONFIG_DIR")
    if transcript is not None:
        certain = _remembered(env, certain, home / "turnspan" / "state", transcript.parent.name)
    return Planted(frozenset(certain), frozenset(possible))


def _directories(env: Mapping[str, str], project: Path) -> Iterator[Path]:
    """Where the session may have begun: older clients do not pass that directory, and it may have changed since."""
    began = env.get("CLAUDE_PROJECT_DIR")
    if began and not project.is_relative_to(began):
        yield Path(began)
    for directory in (project, *project.parents):
        yield directory
        if began and directory == Path(began):
            return


def _set_by(path: Path) -> set[str] | None:
    """The variables that a settings file sets, also as options of a plugin (2.1.197); None if it cannot be read."""
    found = read_settings(path)
    if found.problem:
        return None
    plugins = [as_table(plugin).get("options") for plugin in found.table("pluginConfigs").values()]
    return {*found.table("env"), *(f"{PLUGIN}{key.upper()}" for plugin in plugins for key in as_table(plugin))}


def _remembered(env: Mapping[str, str], planted: set[str], directory: Path, project: str) -> set[str]:
    """The variables, with those that this project has set before to the value that they have now."""
    path = directory / f"{_digest(project)}.planted"  # `prune` removes it
    raw = read_private(path, _MAX_BYTES)
    known = _decoded(raw or b"")
    seen = {(name, _digest(env[name])) for name in planted if name in env}
    if not seen <= known:
        private_directory(directory.parent)
        private_directory(directory)
        kept = [*sorted(seen), *sorted(known - seen)][:_MOST]
        replace_private(path, msgspec.json.encode(kept))
    return planted | {name for name, digest in known if name in env and _digest(env[name]) == digest}


def _decoded(raw: bytes) -> set[tuple[str, str]]:
    try:
        return set(msgspec.json.decode(raw, type=list[tuple[str, str]]))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return set()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:32]


def _is_same(directory: Path, other: Path) -> bool:
    try:
        return directory.samefile(other)
    except OSError:
        return False
