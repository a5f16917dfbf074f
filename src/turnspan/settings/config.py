"""Loads the settings: environment over files over defaults, into one frozen `Config`.

Rules:

- A destination comes from one source. A key from a file is never sent to an endpoint from the environment: a
  destination in the environment replaces the one of the same name in the file.
- A destination with an invalid option is not used: a misspelt `base_url` must not send keys to the default server.
- A project's files can disable export, restrict it and add tags, nothing else. Variables that a project's Claude Code
  settings put into a hook's environment are ignored; those of the user's own settings also apply on the command line.
- A problem names the setting, its value and what is allowed. It never stops a worker: the valid rest is used, and the
  problem goes to the log and to the command line.
"""

from __future__ import annotations

import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.claude.settings_reader import as_table, read_settings
from turnspan.errors import ConfigError
from turnspan.private_files import claude_home, turnspan_home
from turnspan.settings.options import (
    CAPTURES,
    OFF,
    OPTIONS,
    POLICY,
    SETTING,
    SETTINGS,
    Setting,
    checked,
    from_text,
    of_kind,
)
from turnspan.settings.project import PROJECT_FILE, Narrowing, narrowed, project_narrowing
from turnspan.settings.toml_text import read_toml

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from turnspan.settings.toml_text import TomlFile

__all__ = [
    "CAPTURES", "OFF", "OPTIONS", "PROJECT_FILE", "SETTINGS", "TYPES", "Config", "Destination", "Narrowing", "Setting",
    "load_config", "narrowed", "project_narrowing",
]  # fmt: skip

TYPES: Final = tuple(OPTIONS)
CONFIG_NAME: Final = "config.toml"
_PLUGIN: Final = "CLAUDE_PLUGIN_OPTION_"  # the options of our plugin, as Claude Code passes them to a hook
_OURS: Final = ("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_", _PLUGIN)


class Destination(msgspec.Struct, frozen=True):
    """A destination: its backend, the options of that, and what is exported to it."""

    name: str
    type: str
    options: dict[str, Any]
    policy: dict[str, Any]
    source: str


class Config(msgspec.Struct, frozen=True):
    """The settings in force."""

    home: Path
    claude_home: Path
    values: dict[str, Any]
    sources: dict[str, str]
    destinations: tuple[Destination, ...]
    problems: tuple[str, ...] = ()
    is_invalid: bool = False  # the settings could not be understood, so nothing is exported

    @property
    def is_enabled(self) -> bool:
        """Whether anything is exported at all."""
        return bool(self.values["enabled"])

    @property
    def how_to_enable(self) -> str:
        """What to do about a setting that disables export."""
        source = self.sources["enabled"]
        if self.is_invalid:
            return "fix it; `turnspan config` shows the problem"
        if source.startswith("$"):
            return f"unset {source.removeprefix('$')}"
        if source.startswith("TURNSPAN_ENABLED"):  # in Claude Code's settings
            return f"remove {source.replace(' in ', ' from ', 1)}"
        return f"set `enabled = true` in {source}"

    def narrowing(self, cwd: str) -> Narrowing:
        """What the user's settings and the project's files restrict in a working directory."""
        for pattern in self.values["off"]:
            expanded = os.path.expanduser(str(pattern)).rstrip("/")  # noqa: PTH111 - a pattern, not a path
            base = expanded.removesuffix("/**")
            if cwd and (cwd == base or fnmatch.fnmatchcase(cwd, expanded) or (base != expanded and _is_in(cwd, base))):
                return Narrowing(is_off=True, why=f"`off` contains {pattern}")
        return project_narrowing(cwd)


class _Loading:
    """Settings while they are loaded."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {setting.name: setting.default for setting in SETTINGS}
        self.sources = dict.fromkeys(self.values, "default")
        self.problems: list[str] = []
        self.unusable: list[str] = []  # sources that could not be understood

    def take(self, setting: Setting, value: object, source: str, where: str) -> None:
        """Use a value, or the most restrictive one if it is not valid."""
        try:
            self.values[setting.name] = checked(setting, value)
        except ConfigError as error:
            if setting.name == "patterns":  # no other value could mask secrets that are not known
                self.give_up(source, f"{where}: {error}")
                return
            instead = setting.narrowest if setting.narrowest is not None else setting.default
            self.values[setting.name] = instead
            self.problems.append(f"{where}: {error}; using {_shown(instead)} for now")
        self.sources[setting.name] = source

    def give_up(self, source: str, problem: str) -> None:
        """Export nothing because of a source that could not be understood."""
        self.unusable.append(source)
        self.problems.append(f"{problem}; nothing is exported until this is fixed")

    def conclude(self) -> None:
        """Disable export if a source could not be understood, whatever the environment says."""
        for source in self.unusable:
            self.values["enabled"], self.sources["enabled"] = False, f"an error in {source}"


def load_config(env: Mapping[str, str], flags: Mapping[str, Any] | None = None, project: Path | None = None) -> Config:
    """Load the settings; variables that the settings of `project`, where a hook runs, have set are ignored."""
    variables = _Variables(_without_project_env(env, project))
    home = turnspan_home(env)
    loading = _Loading()
    file = read_toml(home / CONFIG_NAME, is_ours=True)
    if file.problem:
        loading.give_up(str(file.path), file.problem)
    _take_file(file, loading)
    for setting in SETTINGS:
        for name in setting.env:
            if variables[name]:
                label = variables.label(name)
                loading.take(setting, from_text(setting, variables[name]), label, label)
    loading.conclude()
    for key, value in (flags or {}).items():
        loading.values[key] = checked(SETTING[key], value)
        loading.sources[key] = f"--{key.replace('_', '-')}"
    found = {destination.name: destination for destination in _in_file(file, loading)}
    for name, destination in _in_environment(variables, loading).items():
        found.pop(name, None)
        if destination is not None:
            found[name] = destination
    if not found:
        found["local"] = Destination("local", "local", {}, _policy(loading.values, {}), "default")
    return Config(
        home,
        claude_home(env),
        loading.values,
        loading.sources,
        tuple(found.values()),
        tuple(loading.problems),
        is_invalid=bool(loading.unusable),
    )


def _take_file(file: TomlFile, loading: _Loading) -> None:
    for key, value in file.table.items():
        if key in SETTING:
            loading.take(SETTING[key], value, str(file.path), file.at("", key))
        elif key != "destinations":
            loading.problems.append(f"{file.at('', key)}: unknown setting {key!r}{_like(key, SETTING)}")


# ---- destinations


def _in_file(file: TomlFile, loading: _Loading) -> Iterator[Destination]:
    tables = file.table.get("destinations", {})
    if not isinstance(tables, dict):
        loading.problems.append(f"{file.at('', 'destinations')}: `destinations` must be tables, [destinations.NAME]")
        return
    for name, raw in tables.items():
        table = f"destinations.{name}"
        kind = raw.get("type", name) if isinstance(raw, dict) else None
        if not isinstance(kind, str):
            allowed = f"{', '.join(TYPES)}, or one of an installed package"
            loading.problems.append(f"{file.at(table)}: [{table}] must be a table with a type: {allowed}")
            continue
        options: dict[str, Any] = {}
        policy: dict[str, Any] = {}
        wrong: list[str] = []
        for key, value in raw.items():
            try:
                if key in POLICY:
                    policy[key] = checked(SETTING[key], value)
                elif key != "type":
                    options[key] = _option(kind, key, value)
            except ConfigError as error:
                wrong.append(f"{file.at(table, key)}: [{table}] {error}; nothing is sent to {name} until this is fixed")
        loading.problems += wrong
        if not wrong:
            yield Destination(name, kind, options, _policy(loading.values, policy), str(file.path))


def _option(kind: str, key: str, value: object) -> Any:  # noqa: ANN401 - of the option's kind
    if kind not in OPTIONS:
        return value  # the backend of another package checks its own
    for option in OPTIONS[kind]:
        if option.name == key:
            return of_kind(option, value)
    names = (*(option.name for option in OPTIONS[kind]), *POLICY)
    raise ConfigError(f"unknown option {key!r}{_like(key, names)}")


def _in_environment(variables: _Variables, loading: _Loading) -> dict[str, Destination | None]:
    """The destinations in the environment; None for one with an invalid option."""
    found: dict[str, Destination | None] = {}
    for prefix in ("", _PLUGIN):  # options of the plugin have the lowest precedence
        for name, options, source, wrong in (_otlp(variables, prefix), _langfuse(variables, prefix)):
            if name in found or not (options or wrong):
                continue
            loading.problems += [f"{problem}; nothing is sent to {name} until this is fixed" for problem in wrong]
            policy = _policy(loading.values, {})
            found[name] = None if wrong else Destination(name, name, options, policy, variables.label(source))
    return found


_Named = tuple[str, dict[str, Any], str, list[str]]  # a destination's name, its options, their source, problems


def _otlp(variables: _Variables, prefix: str) -> _Named:
    options: dict[str, Any] = {}
    wrong: list[str] = []
    source = f"{prefix}TURNSPAN_OTLP_ENDPOINT"
    for option in OPTIONS["otlp"] if variables[source] else ():
        name = f"{prefix}{option.env[0]}" if option.env else ""
        if name and variables[name]:
            try:
                options[option.name] = of_kind(option, from_text(option, variables[name]))
            except ConfigError as error:
                wrong.append(f"{variables.label(name)}: {error}")
    return "otlp", options, source, wrong


def _langfuse(variables: _Variables, prefix: str) -> _Named:
    """Both keys from one place: CC_LANGFUSE_* first, because LANGFUSE_* may be set for other programs."""
    places = (prefix,) if prefix else ("CC_", "")
    for place in places:
        keys = {key: variables[f"{place}LANGFUSE_{key.upper()}"] for key in ("public_key", "secret_key")}
        if not any(keys.values()):
            continue
        missing = [f"{place}LANGFUSE_{key.upper()}" for key, value in keys.items() if not value]
        wrong = [f"${name} is not set, and Langfuse needs both keys" for name in missing]
        urls = (f"{other}LANGFUSE_{name}" for other in (place, *places) for name in ("BASE_URL", "HOST"))
        url = next((variables[name] for name in urls if variables[name]), "")
        options = {**keys, **({"base_url": url} if url else {})}
        return "langfuse", options, f"{place}LANGFUSE_PUBLIC_KEY", wrong
    return "langfuse", {}, "", []


def _policy(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: own.get(name, values[name]) for name in POLICY}


# ---- the environment


class _Variables:
    """The environment, and below it what the user's Claude Code settings add to a hook's environment."""

    def __init__(self, env: Mapping[str, str]) -> None:
        self._env = env
        self._directory = claude_home(env)
        self._added = {
            name: value
            for name, value in read_settings(self._directory / "settings.json").table("env").items()
            if name.startswith(_OURS) and not name.startswith(_PLUGIN) and isinstance(value, str)
        }

    def __getitem__(self, name: str) -> str:
        """The value of a variable; empty if it is not set."""
        return self._env.get(name) or self._added.get(name, "")

    def label(self, name: str) -> str:
        """Where a variable comes from."""
        return f"${name}" if self._env.get(name) else f"{name} in {self._directory / 'settings.json'}"


def _without_project_env(env: Mapping[str, str], project: Path | None) -> Mapping[str, str]:
    """The environment without our variables that the project's Claude Code settings set.

    A session may have changed into a subdirectory: newer clients pass the directory where it started, older ones do
    not. Values cannot be compared to find out who set one: the client converts numbers and booleans to text.
    """
    if project is None:
        return env
    began = env.get("CLAUDE_PROJECT_DIR")
    planted: set[str] = set()
    for directory in (Path(began), project) if began else (project, *project.parents):
        if not _is_same(directory / ".claude", claude_home(env)):
            for name in ("settings.json", "settings.local.json"):
                planted |= _planted_in(directory / ".claude" / name, env)
    if env.get("TURNSPAN_ENABLED", "").strip().lower() in OFF:
        planted.discard("TURNSPAN_ENABLED")  # a project may disable export
    return {name: value for name, value in env.items() if name not in planted}


def _planted_in(path: Path, env: Mapping[str, str]) -> set[str]:
    """The variables that a project's settings set for a hook, also as options of a plugin (2.1.197 accepts them).

    If the file cannot be read, Claude Code perhaps can read it: then any of our variables may come from it.
    """
    found = read_settings(path)
    if found.problem:
        return {name for name in env if name.startswith(_OURS)}
    plugins = [as_table(plugin).get("options") for plugin in found.table("pluginConfigs").values()]
    options = {f"{_PLUGIN}{key.upper()}" for plugin in plugins for key in as_table(plugin)}
    return {name for name in {*found.table("env"), *options} if name.startswith(_OURS)}


def _is_same(directory: Path, other: Path) -> bool:
    try:
        return directory.samefile(other)
    except OSError:
        return False


# ---- words


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _like(key: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistyped name

    close = get_close_matches(key, list(names), 1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _is_in(cwd: str, base: str) -> bool:
    return cwd.startswith((base + "/", base + "\\"))
