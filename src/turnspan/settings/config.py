"""Loads the settings from the user's config.toml and the environment into one frozen `Config`.

Rules:

- `matrix` says which source may set, restrict or hide a setting; what has no effect is listed in `ignored`.
- Keys are sent only to the server they were configured with: destinations come from the file or from the environment,
  and one of which a project sets a variable is not used.
- A destination with an invalid option is not used: a misspelt `base_url` must not send keys to the default server.
- If a project hides a switch or the capture mode, the most restrictive value is used, because the user's own value can
  no longer be seen (`planted`). The user's own Claude Code settings also apply on the command line.
- In a hook our directory is the one that holds the transcript, not what a variable says.
- A problem names the setting, its value and what is allowed. It never stops a worker: the valid rest is used, and the
  problem goes to the log and to the command line.
"""

from __future__ import annotations

import fnmatch
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.claude.settings_reader import read_settings
from turnspan.errors import ConfigError
from turnspan.files import claude_home, home_of_transcript, recorded_home
from turnspan.settings.matrix import Power, SettingSource, power_of
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
    narrower,
    of_kind,
    restricted,
)
from turnspan.settings.planted import LOCATING, OURS, PLUGIN, TRACEPARENT, Planted, planted_in
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
_PROJECT: Final = "the project's Claude Code settings"
_UNUSED: Final = "nothing is sent to {} until this is fixed"


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
    ignored: tuple[str, ...] = ()  # variables that have no effect, one sentence each
    planted: frozenset[str] = frozenset()  # variables that a project's settings set
    is_session_off: bool = False  # the environment of this session disables export
    session_capture: str = ""  # the capture mode to which the environment of this session restricts it
    traceparent: str = ""  # TRACEPARENT of this session, unless a project sets it or it is switched off

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
        if source.partition(" in ")[0] in {"TURNSPAN_ENABLED", *LOCATING}:  # in Claude Code's settings
            return f"remove {source.replace(' in ', ' from ', 1)}"
        return f"set `enabled = true` in {source}"

    def narrowing(self, cwd: str) -> Narrowing:
        """What the user's settings and the project's files restrict in a working directory."""
        for pattern in self.values["off"]:
            if cwd and any(_matches(cwd, expanded) for expanded in _expanded(str(pattern))):
                return Narrowing({"enabled": False}, why=f"`off` contains {pattern}")
        return project_narrowing(cwd)


class _Loading:
    """Settings while they are loaded."""

    def __init__(self, path: Path) -> None:
        self.path = path  # of config.toml
        self.values: dict[str, Any] = {setting.name: setting.default for setting in SETTINGS}
        self.sources = dict.fromkeys(self.values, "default")
        self.problems: list[str] = []
        self.ignored: list[str] = []
        self.unusable: list[str] = []  # sources that could not be understood
        self.limits: dict[str, Any] = {}  # restrictions, also of a destination with a value of its own

    def apply(self, source: SettingSource, setting: Setting, value: object, label: str, where: str = "") -> None:
        """Use a value as far as the matrix allows its source; an invalid one is the most restrictive."""
        power = power_of(source, setting.name)
        value = setting.narrowest if power is Power.HIDES else self._valid(setting, value, label, where or label)
        if power is Power.NOTHING or value is None:
            return
        if power is not Power.SETS:
            self.limits[setting.name] = value
        before = self.values[setting.name]
        if power is Power.RESTRICTS and value != before and narrower(setting, before, value) == before:
            self.ignored.append(f"{label} is ignored: {self.path} names the destinations, so it can only restrict")
            return
        self.values[setting.name], self.sources[setting.name] = value, label

    def _valid(self, setting: Setting, value: object, label: str, where: str) -> object:
        try:
            return checked(setting, value)
        except ConfigError as error:
            if setting.name == "patterns":  # no other value could mask secrets that are not known
                self.give_up(label, f"{where}: {error}")
                return None
            instead = setting.narrowest if setting.narrowest is not None else setting.default
            self.problems.append(f"{where}: {error}; using {_shown(instead)} for now")
            return instead

    def give_up(self, source: str, problem: str) -> None:
        """Export nothing because of a source that could not be understood, whatever the environment says."""
        self.unusable.append(source)
        self.problems.append(f"{problem}; nothing is exported until this is fixed")

    def policy(self, own: Mapping[str, Any]) -> dict[str, Any]:
        """What is exported to a destination with these settings of its own."""
        policy = {name: own.get(name, self.values[name]) for name in POLICY}
        return policy | restricted(policy, self.limits)


def load_config(env: Mapping[str, str], project: Path | None = None, transcript: Path | None = None) -> Config:
    """Load the settings; in a hook for `project`, the working directory, and the `transcript` of its session."""
    home = (home_of_transcript(transcript) if transcript is not None else None) or claude_home(env)
    if project is None and env.get("CLAUDECODE"):  # a command that Claude runs has the variables of a hook
        with suppress(OSError):  # a deleted directory
            project = Path.cwd()
    planted = Planted() if project is None else planted_in(env, project, home, transcript)
    variables = _Variables(env, home, planted)
    file = read_toml(home / "turnspan" / CONFIG_NAME, is_ours=True)
    loading = _Loading(file.path)
    _take_file(file, loading)
    widest = _widest_capture(file, loading)
    is_file_deciding = bool(file.table.get("destinations"))
    _take_environment(variables, loading, SettingSource.BESIDE if is_file_deciding else SettingSource.ENVIRONMENT)
    capture = loading.limits.get("capture", loading.values["capture"])
    is_narrower = narrower(SETTING["capture"], capture, widest) != widest
    for source in loading.unusable:
        loading.values["enabled"], loading.sources["enabled"] = False, f"an error in {source}"
    if is_file_deciding:
        found = tuple(_in_file(file, loading))
        loading.ignored += [
            f"{variables.label(name)} is ignored: {file.path} names the destinations" for name in variables.destinations
        ]
    else:
        found = tuple(_in_environment(variables, loading))
    return Config(
        home / "turnspan",
        home,
        loading.values,
        loading.sources,
        found or (Destination("local", "local", {}, loading.policy({}), "default"),),
        tuple(loading.problems),
        is_invalid=bool(loading.unusable),
        ignored=tuple(loading.ignored),
        planted=planted.certain,
        is_session_off=_is_off(env, variables.hidden & planted.certain),
        session_capture=capture if is_narrower and variables.is_of_session("TURNSPAN_CAPTURE", planted) else "",
        traceparent=""
        if loading.values["traceparent"] == "off" or TRACEPARENT in planted.names
        else env.get(TRACEPARENT, ""),
    )


def _is_off(env: Mapping[str, str], hidden: set[str]) -> bool:
    """Whether the environment of this session disables export."""
    is_said = env.get("TURNSPAN_ENABLED", "").strip().lower() in OFF
    return is_said or not hidden.isdisjoint({"TURNSPAN_ENABLED", *LOCATING})


def _widest_capture(file: TomlFile, loading: _Loading) -> str:
    """The widest capture mode of a destination, before the environment restricts it."""
    tables = file.table.get("destinations")
    own = (
        [table.get("capture") for table in tables.values() if isinstance(table, dict)]
        if isinstance(tables, dict)
        else []
    )
    modes: list[str] = [loading.values["capture"], *(mode for mode in own if mode in CAPTURES)]
    return max(modes, key=CAPTURES.index)


def _take_file(file: TomlFile, loading: _Loading) -> None:
    if file.problem:
        loading.give_up(str(file.path), file.problem)
    for key, value in file.table.items():
        if key in SETTING:
            loading.apply(SettingSource.FILE, SETTING[key], value, str(file.path), file.at("", key))
        elif key != "destinations":
            loading.problems.append(f"{file.at('', key)}: unknown setting {key!r}{_like(key, SETTING)}")


def _take_environment(variables: _Variables, loading: _Loading, source: SettingSource) -> None:
    for setting in SETTINGS:
        for name in setting.env:
            if name in variables.hidden:
                loading.apply(SettingSource.PLANTED, setting, None, f"{name} in {_PROJECT}")
            elif variables[name]:
                loading.apply(source, setting, from_text(setting, variables[name]), variables.label(name))
    for name in sorted(variables.hidden & LOCATING):  # our settings are then the project's
        loading.apply(SettingSource.PLANTED, SETTING["enabled"], None, f"{name} in {_PROJECT}")
    loading.ignored += [f"${name} is ignored: set in {_PROJECT}" for name in sorted(variables.hidden - LOCATING)]


# ---- destinations


def _in_file(file: TomlFile, loading: _Loading) -> Iterator[Destination]:
    tables = file.table.get("destinations", {})
    if not isinstance(tables, dict):
        loading.problems.append(f"{file.at('', 'destinations')}: `destinations` must be tables, [destinations.NAME]")
        return
    for name, raw in tables.items():
        table = f"destinations.{name}"
        try:
            kind = _type_of(name, raw)
        except ConfigError as error:
            loading.problems.append(f"{file.at(table, 'type')}: [{table}] {error}; {_UNUSED.format(name)}")
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
                wrong.append(f"{file.at(table, key)}: [{table}] {error}; {_UNUSED.format(name)}")
        loading.problems += wrong
        if not wrong:
            yield Destination(name, kind, options, loading.policy(policy), str(file.path))


def _type_of(name: str, table: object) -> str:
    """The type of a destination: its name, if none is given. Raises ConfigError if no backend has it."""
    options = table if isinstance(table, dict) else {}
    kind = options.get("type", name)
    if isinstance(kind, str) and isinstance(table, dict) and (kind in OPTIONS or _is_installed(kind)):
        return kind
    fits = {known: sum(option.name in options for option in OPTIONS[known]) for known in OPTIONS}
    meant = _close(str(kind), OPTIONS) or max(
        (known for known in fits if fits[known]), key=fits.__getitem__, default=""
    )
    instead = f' (did you mean `type = "{meant}"`?)' if meant else f"; allowed: {', '.join(OPTIONS)}"
    if not isinstance(table, dict):
        raise ConfigError(f"must be a table with a type{instead}")
    raise ConfigError(f"type is {kind!r}{instead}" if "type" in options else f"has no type{instead}")


def _is_installed(kind: str) -> bool:
    """Whether another package has a backend of this name."""
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow, and most users have none

    return bool(entry_points(group="turnspan.backends", name=kind))


def _option(kind: str, key: str, value: object) -> Any:  # noqa: ANN401 - of the option's kind
    if kind not in OPTIONS:
        return value  # the backend of another package checks its own
    for option in OPTIONS[kind]:
        if option.name == key:
            return of_kind(option, value)
    names = (*(option.name for option in OPTIONS[kind]), *POLICY)
    raise ConfigError(f"unknown option {key!r}{_like(key, names)}")


def _in_environment(variables: _Variables, loading: _Loading) -> Iterator[Destination]:
    seen: set[str] = set()
    for prefix in ("", PLUGIN):  # options of the plugin have the lowest precedence
        for name, options, source, wrong in (_otlp(variables, prefix), _langfuse(variables, prefix)):
            if name in seen or not (options or wrong) or variables.is_planted(name, prefix):
                continue
            seen.add(name)
            loading.problems += [f"{problem}; {_UNUSED.format(name)}" for problem in wrong]
            if not wrong:
                yield Destination(name, name, options, loading.policy({}), variables.label(source))


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


# ---- the environment


_FAMILIES: Final = {"otlp": ("TURNSPAN_OTLP_",), "langfuse": ("LANGFUSE_", "CC_LANGFUSE_")}
_KEYS: Final = ("LANGFUSE_PUBLIC_KEY", "LANGFUSE_SECRET_KEY", "LANGFUSE_BASE_URL", "LANGFUSE_HOST")


class _Variables:
    """The environment, and below it what the user's Claude Code settings add to a hook's environment.

    A variable that a project sets has the value of the user's settings; without one it is `hidden`.
    """

    def __init__(self, env: Mapping[str, str], directory: Path, planted: Planted) -> None:
        self._file = directory / "settings.json"
        self._added = {
            name: value
            for name, value in read_settings(self._file).table("env").items()
            if name.startswith(OURS) and not name.startswith(PLUGIN) and isinstance(value, str)
        }
        self._env = {name: value for name, value in env.items() if name not in planted.names}
        hidden = {name for name in planted.names if name.startswith(OURS) and name not in self._added}
        self.hidden = hidden | (planted.names & LOCATING)

    def __getitem__(self, name: str) -> str:
        """The value of a variable; empty if it is not set."""
        return self._env.get(name) or self._added.get(name, "")

    def is_of_session(self, name: str, planted: Planted) -> bool:
        """Whether this session has a value of its own, and commands have another: its shell or its project sets it."""
        return name in self.hidden & planted.certain or self._env.get(name, "") not in {"", self._added.get(name)}

    def label(self, name: str) -> str:
        """Where a variable comes from."""
        return f"${name}" if self._env.get(name) else f"{name} in {self._file}"

    def is_planted(self, destination: str, prefix: str) -> bool:
        """Whether a project sets a variable of a destination: then the user's own values are not complete."""
        names = tuple(prefix + family for family in _FAMILIES[destination])
        return any(name.startswith(names) for name in self.hidden)

    @property
    def destinations(self) -> list[str]:
        """The variables that are set and describe a destination."""
        known = [name for option in OPTIONS["otlp"] for name in option.env]
        known += [prefix + name for prefix in ("CC_", "") for name in _KEYS]
        return [name for prefix in ("", PLUGIN) for name in (prefix + one for one in known) if self[name]]


# ---- words


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def _like(key: str, names: Iterable[str]) -> str:
    close = _close(key, names)
    return f" (did you mean {close!r}?)" if close else ""


def _close(word: str, words: Iterable[str]) -> str:
    """The most similar of some words, or an empty one."""
    from difflib import get_close_matches  # noqa: PLC0415 - only for a mistyped name

    return next(iter(get_close_matches(word, list(words), 1)), "")


def _expanded(pattern: str) -> set[str]:
    """A pattern with `~` expanded: by HOME, and by the user database, because a project may have set HOME."""
    expanded = {os.path.expanduser(pattern)}  # noqa: PTH111 - a pattern, not a path
    if pattern.startswith(("~/", "~\\")) and (home := recorded_home()) is not None:
        expanded.add(f"{home}{pattern[1:]}")
    return {one.rstrip("/") for one in expanded}


def _matches(cwd: str, pattern: str) -> bool:
    if cwd[1:3] in {":\\", ":/"} or cwd.startswith("\\\\"):  # a path of Windows: both slashes, any case
        cwd, pattern = (text.replace("\\", "/").lower() for text in (cwd, pattern))
    base = pattern.removesuffix("/**")
    is_in = base != pattern and cwd.startswith(f"{base}/")
    return cwd == base or is_in or fnmatch.fnmatchcase(cwd, pattern)
