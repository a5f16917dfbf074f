"""Settings: environment over files over defaults, read once into one frozen `Config`.

Rules:

- One source names a destination as a whole. A key from a file never travels to an endpoint from the environment: a
  destination in the environment replaces the one of the same name in the file.
- A project's files may switch off, tag and narrow, nothing else. What a project's own settings put into a hook's
  environment is not taken from there.
- A wrong setting is a sentence that names the setting, its value and what is allowed. It never stops a worker: what is
  still right is used, and the sentence goes to the log and to the command line.
"""

from __future__ import annotations

import fnmatch
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from turnspan.errors import ConfigError
from turnspan.home import claude_home, turnspan_home

if TYPE_CHECKING:
    from collections.abc import Mapping

CAPTURES: Final = ("metadata", "redacted", "full")  # from the least to the most
TYPES: Final = ("otlp", "langfuse", "local")
OFF: Final = frozenset({"0", "false", "no", "off"})
ON: Final = frozenset({"1", "true", "yes", "on"})
PROJECT_FILE: Final = Path(".claude") / "turnspan.toml"
_SECRET_WORDS: Final = ("key", "secret", "header", "token", "password")


class Setting(msgspec.Struct, frozen=True):
    """One thing a person can set: its name in the file, in the environment, its default, and what it does."""

    name: str
    kind: type
    default: object
    says: str
    env: tuple[str, ...] = ()
    choices: tuple[str, ...] = ()


# Everything that can be set besides destinations. docs and README show this table; a test holds them equal.
SETTINGS: Final = (
    Setting("enabled", bool, True, "whether anything is exported at all", ("TURNSPAN_ENABLED",)),
    Setting("capture", str, "redacted", "what may leave", ("TURNSPAN_CAPTURE",), CAPTURES),
    Setting("thinking", bool, True, "export the model's thinking"),
    Setting("tool_inputs", bool, True, "export what tools were called with"),
    Setting("tool_outputs", bool, True, "export what tools gave back"),
    Setting("images", bool, True, "say that there was an image, its type and size"),
    Setting("mask_paths", bool, False, "mask home directories in paths"),
    Setting("patterns", dict, {}, "your own secrets: a table of name = regular expression"),
    Setting("off", list, [], "working directories that are never exported, as patterns (`~/private/**`)"),
    Setting("tags", list, [], "tags on every trace", ("TURNSPAN_TAGS",)),
    Setting("user_id", str, "", "who you are, on every span", ("TURNSPAN_USER_ID",)),
    Setting("environment", str, "", "Langfuse environment", ("TURNSPAN_ENVIRONMENT",)),
    Setting("prices", str, "", "a JSON file with newer prices"),
    Setting("recover", bool, True, "export sessions that were left behind", ("TURNSPAN_RECOVER",)),
    Setting("attribute_max_bytes", int, 60_000, "longest value of one attribute"),
)  # fmt: skip
_BY_NAME: Final = {setting.name: setting for setting in SETTINGS}
_POLICY: Final = ("capture", "thinking", "tool_inputs", "tool_outputs", "images", "attribute_max_bytes")
# What a destination takes besides its type and the policy settings above, by type.
OPTIONS: Final[dict[str, dict[str, type]]] = {
    "otlp": {
        "endpoint": str, "headers": dict, "protocol": str, "certificate": str, "client_certificate": str,
        "client_key": str, "proxy": str, "proxy_from_env": bool, "timeout_s": float, "compression": str,
        "max_request_bytes": int,
    },
    "langfuse": {
        "base_url": str, "public_key": str, "secret_key": str, "certificate": str, "client_certificate": str,
        "client_key": str, "proxy": str, "proxy_from_env": bool, "timeout_s": float, "max_request_bytes": int,
        "headers": dict, "compression": str, "release": str,
    },
    "local": {"directory": str, "max_file_bytes": int, "max_files": int, "max_request_bytes": int},
}  # fmt: skip
_OTLP_ENV: Final = {
    "endpoint": "TURNSPAN_OTLP_ENDPOINT", "headers": "TURNSPAN_OTLP_HEADERS", "protocol": "TURNSPAN_OTLP_PROTOCOL",
    "certificate": "TURNSPAN_OTLP_CERTIFICATE", "client_certificate": "TURNSPAN_OTLP_CLIENT_CERTIFICATE",
    "client_key": "TURNSPAN_OTLP_CLIENT_KEY", "timeout_s": "TURNSPAN_OTLP_TIMEOUT_S",
    "compression": "TURNSPAN_OTLP_COMPRESSION", "proxy": "TURNSPAN_OTLP_PROXY",
}  # fmt: skip
_LANGFUSE_ENV: Final = {
    "public_key": ("LANGFUSE_PUBLIC_KEY", "CC_LANGFUSE_PUBLIC_KEY"),
    "secret_key": ("LANGFUSE_SECRET_KEY", "CC_LANGFUSE_SECRET_KEY"),
    "base_url": ("LANGFUSE_BASE_URL", "LANGFUSE_HOST", "CC_LANGFUSE_BASE_URL", "CC_LANGFUSE_HOST"),
}  # fmt: skip


class Destination(msgspec.Struct, frozen=True):
    """Where traces go, and how much of them."""

    name: str
    type: str
    options: dict[str, Any]
    policy: dict[str, Any]
    source: str


class Narrowing(msgspec.Struct, frozen=True):
    """What a project asks for: off, less, or tags; never more."""

    is_off: bool = False
    capture: str | None = None
    withheld: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    why: str = ""


class Config(msgspec.Struct, frozen=True):
    """All settings in force."""

    home: Path
    claude_home: Path
    values: dict[str, Any]
    sources: dict[str, str]
    destinations: tuple[Destination, ...]
    problems: tuple[str, ...] = ()

    @property
    def is_enabled(self) -> bool:
        """Whether anything may leave at all."""
        return bool(self.values["enabled"])

    def narrowing(self, cwd: str) -> Narrowing:
        """What the person and the project say about a working directory."""
        for pattern in self.values["off"]:
            expanded = os.path.expanduser(str(pattern)).rstrip("/")
            base = expanded.removesuffix("/**")
            if cwd and (cwd == base or fnmatch.fnmatchcase(cwd, expanded) or (base != expanded and _is_in(cwd, base))):
                return Narrowing(is_off=True, why=f"`off` names {pattern}")
        return project_narrowing(cwd)


def load_config(env: Mapping[str, str], flags: Mapping[str, Any] | None = None, project: Path | None = None) -> Config:
    """The settings in force for an environment; `project` is where a hook runs, whose own settings name nothing."""
    env = _without_project_env(env, project)
    home = turnspan_home(env)
    problems: list[str] = []
    path = home / "config.toml"
    text, table = _read_toml(path, problems)
    values = {setting.name: setting.default for setting in SETTINGS}
    sources = dict.fromkeys(values, "default")
    for key, value in table.items():
        if key == "destinations":
            continue
        known = _BY_NAME.get(key)
        if known is None:
            problems.append(f"{path}{_line(text, key)}: there is no setting {key!r}")
            continue
        try:
            values[key] = _checked(known, value)
            sources[key] = str(path)
        except ConfigError as error:
            problems.append(f"{path}{_line(text, key)}: {error}")
    for setting in SETTINGS:
        for name in setting.env:
            if env.get(name):
                try:
                    values[setting.name] = _checked(setting, _from_text(setting, env[name]))
                    sources[setting.name] = f"${name}"
                except ConfigError as error:
                    problems.append(f"${name}: {error}")
    for key, value in (flags or {}).items():
        values[key] = _checked(_BY_NAME[key], value)
        sources[key] = f"--{key.replace('_', '-')}"
    destinations = _destinations(env, table.get("destinations"), path, text, values, problems)
    return Config(home, claude_home(env), values, sources, destinations, tuple(problems))


# ---- destinations


def _destinations(
    env: Mapping[str, str], table: object, path: Path, text: str, values: Mapping[str, Any], problems: list[str]
) -> tuple[Destination, ...]:
    found: dict[str, Destination] = {}
    if table is not None and not isinstance(table, dict):
        problems.append(f"{path}: `destinations` must be tables, [destinations.NAME]")
        table = None
    for name, raw in (table or {}).items():
        where = f"{path}{_line(text, f'destinations.{name}')}: [destinations.{name}]"
        if not isinstance(raw, dict) or not isinstance(raw.get("type", name), str):
            problems.append(f"{where} must be a table with a type: {', '.join(TYPES)}, or one that a package brings")
            continue
        kind = raw.get("type", name)
        options, policy = {}, {}
        for key, value in raw.items():
            wanted = OPTIONS.get(kind, {}).get(key)
            try:
                if key in _POLICY:
                    policy[key] = _checked(_BY_NAME[key], value)
                elif kind not in OPTIONS and key != "type":
                    options[key] = value  # somebody else's backend checks its own
                elif wanted is not None:
                    options[key] = _typed(key, wanted, value)
                elif key != "type":
                    problems.append(f"{where} there is no setting {key!r}")
            except ConfigError as error:
                problems.append(f"{where} {error}")
        found[name] = Destination(name, kind, options, _policy(values, policy), str(path))
    for destination in _from_env(env, values, problems):
        found[destination.name] = destination
    if not found:
        found["local"] = Destination("local", "local", {}, _policy(values, {}), "default")
    return tuple(found.values())


def _from_env(env: Mapping[str, str], values: Mapping[str, Any], problems: list[str]) -> list[Destination]:
    found = []
    if env.get("TURNSPAN_OTLP_ENDPOINT"):
        options: dict[str, Any] = {}
        for key, name in _OTLP_ENV.items():
            if env.get(name):
                try:
                    value: object = _headers(env[name]) if key == "headers" else env[name]
                    options[key] = _typed(key, OPTIONS["otlp"][key], value)
                except ConfigError as error:
                    problems.append(f"${name}: {error}")
        found.append(Destination("otlp", "otlp", options, _policy(values, {}), "$TURNSPAN_OTLP_ENDPOINT"))
    keys = {}
    for key, names in _LANGFUSE_ENV.items():
        name = next((name for name in names if env.get(name)), None)
        if name is not None:
            keys[key] = env[name]
    if "public_key" in keys and "secret_key" in keys:
        found.append(Destination("langfuse", "langfuse", keys, _policy(values, {}), "$LANGFUSE_PUBLIC_KEY"))
    elif "public_key" in keys or "secret_key" in keys:
        missing = "LANGFUSE_SECRET_KEY" if "public_key" in keys else "LANGFUSE_PUBLIC_KEY"
        problems.append(f"${missing} is not set: Langfuse needs both keys, so nothing is sent there")
    return found


def _headers(text: str) -> dict[str, str]:
    """`name=value,name=value`, as OpenTelemetry writes them; values may be percent-encoded."""
    from urllib.parse import unquote  # noqa: PLC0415  a hook's worker mostly needs none

    headers = {}
    for item in text.split(","):
        name, equals, value = item.partition("=")
        if item.strip() and (not equals or not name.strip()):
            raise ConfigError("headers are written as name=value,name=value")  # the value may be a secret: not repeated
        if item.strip():
            headers[name.strip()] = unquote(value.strip())
    return headers


def _policy(values: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    return {name: own.get(name, values[name]) for name in _POLICY}


# ---- projects


def project_narrowing(cwd: str) -> Narrowing:
    """What the files of a working directory, or of one above it, ask for."""
    if not cwd or not os.path.isabs(cwd):
        return Narrowing()
    for directory in (Path(cwd), *Path(cwd).parents):
        path = directory / PROJECT_FILE
        problems: list[str] = []
        text, table = _read_toml(path, problems)
        if problems:  # what cannot be read is taken as the wish for privacy that it probably is
            return Narrowing(is_off=True, why=problems[0])
        if text is None:
            continue
        capture = table.get("capture")
        tags = table.get("tags", [])
        return Narrowing(
            is_off=table.get("enabled") is False,
            capture=capture if capture in CAPTURES else None,
            withheld=tuple(key for key in ("thinking", "tool_inputs", "tool_outputs", "images") if table.get(key) is False),
            tags=tuple(str(tag) for tag in tags) if isinstance(tags, list) else (),
            why=str(path),
        )
    return Narrowing()


def narrowed(policy: Mapping[str, Any], narrowing: Narrowing) -> dict[str, Any]:
    """A destination's policy for one project: the narrower of the two."""
    result = dict(policy)
    if narrowing.capture is not None:
        result["capture"] = min(narrowing.capture, result["capture"], key=CAPTURES.index)
    for key in narrowing.withheld:
        result[key] = False
    return result


def _without_project_env(env: Mapping[str, str], project: Path | None) -> Mapping[str, str]:
    """The environment without what the project's own Claude Code settings put there about us (law 4)."""
    if project is None:
        return env
    planted: set[str] = set()
    for name in ("settings.json", "settings.local.json"):
        try:
            with (project / ".claude" / name).open("rb") as file:
                table = json.loads(file.read(1 << 20))
            planted |= {key for key, value in table["env"].items() if env.get(key) == str(value)}
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
    ours = {key for key in planted if key.startswith(("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_"))}
    narrowing = {"TURNSPAN_ENABLED"} if env.get("TURNSPAN_ENABLED", "").lower() in OFF else set()
    return {key: value for key, value in env.items() if key not in ours - narrowing}


# ---- values


def _read_toml(path: Path, problems: list[str]) -> tuple[Any, dict[str, Any]]:
    """Text and table of a TOML file; (None, {}) if there is none."""
    try:
        raw = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None, {}
    except OSError as error:
        problems.append(f"cannot read {path}: {error.strerror}")
        return None, {}
    import tomllib  # noqa: PLC0415  most people have no file

    try:
        text = raw.decode()
        return text, tomllib.loads(text)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        problems.append(f"{path} is not valid TOML: {error}")
        return "", {}


def _line(text: str | None, key: str) -> str:
    """`:N`, the line that names a key, if it can be told."""
    last = key.rpartition(".")[2]
    for number, line in enumerate((text or "").splitlines(), 1):
        stripped = line.strip().strip("[]").strip()
        if stripped == key or stripped.split("=")[0].strip().strip('"') == last:
            return f":{number}"
    return ""


def _checked(setting: Setting, value: object) -> Any:
    checked = _typed(setting.name, setting.kind, value)
    if setting.choices and checked not in setting.choices:
        raise ConfigError(f"{setting.name} is {value!r}; allowed: {', '.join(setting.choices)}")
    return checked


def _typed(name: str, kind: type, value: object) -> Any:
    if kind is float and isinstance(value, (int, str)) and not isinstance(value, bool):
        try:
            value = float(value)
        except ValueError:
            pass
    if kind is int and isinstance(value, str) and value.isdecimal():
        value = int(value)
    if isinstance(value, kind) and not (kind is int and isinstance(value, bool)):
        return value
    words = {bool: "true or false", str: "text", int: "a whole number", float: "a number", dict: "a table", list: "a list"}
    shown = "…" if any(word in name for word in _SECRET_WORDS) else repr(value)
    raise ConfigError(f"{name} is {shown}; allowed: {words[kind]}")


def _from_text(setting: Setting, text: str) -> object:
    if setting.kind is bool:
        lowered = text.strip().lower()
        if lowered in ON | OFF:
            return lowered in ON
    if setting.kind is list:
        return [item.strip() for item in text.split(",") if item.strip()]
    return text


def _is_in(cwd: str, base: str) -> bool:
    return cwd.startswith(base + "/") or cwd.startswith(base + "\\")
