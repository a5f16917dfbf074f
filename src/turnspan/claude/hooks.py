"""The hooks that Claude Code calls: those of every settings file and enabled plugin, and which of them concern us.

Rules:

- Read-only; a file that cannot be read is reported like any other finding.
- A hook that is registered twice runs twice. Nothing is sent twice, but it wastes time.
- Other exporters are recognised by words in their command: a list of names would never be complete.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan.claude.command import command_of, mentions_us
from turnspan.claude.settings_json import hooks_by_event
from turnspan.claude.settings_reader import as_table, read_settings
from turnspan.files import claude_home

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

US: Final = "turnspan"
_PLUGIN: Final = "plugin "
# The first match names the exporter; the last pattern is a guess, and says so.
_EXPORTERS: Final = tuple(
    (re.compile(pattern, re.IGNORECASE), name)
    for pattern, name in (
        (r"cc-langfuse", "cc-langfuse"),
        (r"langfuse", "a Langfuse hook"),
        (r"langsmith", "a LangSmith hook"),
        (r"claude[-_]code[-_]otel|otel[-_]hooks?|\botel\b|opentelemetry", "an OpenTelemetry hook"),
        (r"\bopik\b", "an Opik hook"),
        (r"braintrust|trace-claude-code", "a Braintrust hook"),
        (r"\barize\b|phoenix|openinference", "an Arize hook"),
        (r"\bmlflow\b", "an MLflow hook"),
        (r"\b(weave|wandb)\b", "a Weave hook"),
        (r"\b(lmnr|laminar)\b", "a Laminar hook"),
        (r"logfire|traceloop|helicone|langwatch|honeycomb|signoz|langtrace|datadog|\bdd-apm", "a tracing hook"),
        (r"telemetry|observab|\btrac(e|es|er|ing)\b", "a hook that looks like tracing"),
    )
)


@dataclass(frozen=True, slots=True)
class Source:
    """One file that can register hooks. `settings` is None if it could not be read; `problem` says why."""

    scope: str  # user, project, local, managed, or "plugin NAME@MARKETPLACE"
    path: Path
    settings: Mapping[str, object] | None
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Registration:
    """One hook; `exporter` is "turnspan", the name of another exporter, or empty."""

    scope: str
    path: Path
    event: str
    hook: Mapping[str, object]
    exporter: str


# ---- reading


def read_sources(
    env: Mapping[str, str], project: Path | None, managed: Sequence[Path] | None = None
) -> tuple[Source, ...]:
    """Every settings file and enabled plugin that applies in a project, lowest precedence first."""
    home = claude_home(env)
    files = [("user", home / "settings.json")]
    if project is not None:
        files += [
            ("project", project / ".claude" / "settings.json"),
            ("local", project / ".claude" / "settings.local.json"),
        ]
    files += [("managed", path) for path in (managed_settings() if managed is None else managed)]
    found: dict[Path, Source] = {}
    for scope, path in files:
        source = _read_source(scope, path)
        if source is not None:  # in the home directory the project's file and the user's are the same
            found.setdefault(_real(path), source)
    return (*found.values(), *_plugins(home, tuple(found.values())))


def managed_settings(platform: str = sys.platform) -> tuple[Path, ...]:
    """The files of an organisation's policy on this machine."""
    roots = {"darwin": "/Library/Application Support/ClaudeCode", "win32": "C:/Program Files/ClaudeCode"}
    root = Path(roots.get(platform, "/etc/claude-code"))
    return (root / "managed-settings.json", *sorted(root.glob("managed-settings.d/*.json")))


def registrations(sources: Sequence[Source]) -> tuple[Registration, ...]:
    """All hooks of all sources."""
    return tuple(
        Registration(source.scope, source.path, event, hook, _exporter(source, hook))
        for source in sources
        for event, hook in hooks_by_event(source.settings or {})
    )


def _read_source(scope: str, path: Path) -> Source | None:
    found = read_settings(path)
    if not found.exists:
        return None
    return Source(scope, path, None if found.problem else found.values, found.problem)


def _plugins(home: Path, sources: Sequence[Source]) -> Iterator[Source]:
    """The enabled plugins that are installed, with the hooks of each: in hooks/hooks.json and in its manifest."""
    enabled: dict[str, object] = {}
    for source in sources:
        enabled |= as_table((source.settings or {}).get("enabledPlugins"))
    versions = read_settings(home / "plugins" / "installed_plugins.json").table("plugins")
    for name in (name for name, is_enabled in enabled.items() if is_enabled is True):
        root = _install_path(versions.get(name))
        if root is not None:
            yield from _plugin_hooks(_PLUGIN + name, root)


def _plugin_hooks(scope: str, root: Path) -> Iterator[Source]:
    standard = _read_source(scope, root / "hooks" / "hooks.json")
    yield standard or Source(scope, root, {})
    more = read_settings(root / ".claude-plugin" / "plugin.json").values.get("hooks")
    for item in more if isinstance(more, list) else [more]:
        if isinstance(item, str):
            source = _read_source(scope, root / item)
            if source is not None:
                yield source
        elif isinstance(item, dict):
            yield Source(scope, root / ".claude-plugin" / "plugin.json", item if "hooks" in item else {"hooks": item})


def _install_path(versions: object) -> Path | None:
    for version in versions if isinstance(versions, list) else [versions]:
        path = version.get("installPath") if isinstance(version, dict) else None
        if isinstance(path, str) and Path(path).is_dir():
            return Path(path)
    return None


def _real(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return path


def _exporter(source: Source, hook: Mapping[str, object]) -> str:
    if mentions_us(hook) or source.scope.startswith(f"{_PLUGIN}{US}@"):
        return US
    words = f"{source.scope.removeprefix(_PLUGIN)} {command_of(hook)} {hook.get('url', '')}"
    return next((name for pattern, name in _EXPORTERS if pattern.search(words)), "")


# ---- findings


def sentences(sources: Sequence[Source], mine: Path | None) -> tuple[str, ...]:
    """What the user should know when turnspan is registered in the settings file `mine`, one sentence each."""
    return (
        *_registered_elsewhere(sources, mine),
        *_other_exporters(sources),
        *(text for source in sources for text in _switches(source)),
        *(
            f"{_named(source)} cannot be read ({source.problem}), so its hooks are unknown"
            for source in sources
            if source.settings is None and source.path != mine
        ),
    )


def _registered_elsewhere(sources: Sequence[Source], mine: Path | None) -> Iterator[str]:
    places: dict[tuple[str, Path], None] = {}
    for found in registrations(sources):
        if found.exporter == US and (mine is None or _real(found.path) != _real(mine)):
            places[found.scope, found.path] = None
    for scope, path in places:
        if scope.startswith(_PLUGIN):
            remedy = f"run `claude plugin disable {scope.removeprefix(_PLUGIN)}`"
        elif scope == "managed":
            remedy = "your organisation already provides it, so you do not need your own"
        else:
            remedy = f"run `turnspan uninstall --scope {scope}`"
        yield f"turnspan is also registered in the {scope}{_settings(scope)} ({path}); one place is enough: {remedy}"


def _other_exporters(sources: Sequence[Source]) -> Iterator[str]:
    found: dict[tuple[str, str, Path], list[str]] = {}
    for hook in registrations(sources):
        if hook.exporter not in {"", US}:
            found.setdefault((hook.exporter, hook.scope, hook.path), []).append(hook.event)
    for (name, scope, path), events in found.items():  # without the command, which may contain a key
        yield (
            f"{name} is called on {', '.join(dict.fromkeys(events))} by the {scope}{_settings(scope)} ({path}); "
            "if it exports to the same destination, every turn appears twice: remove one of the two"
        )
    for source in sources:
        env = as_table((source.settings or {}).get("env"))
        is_on = str(env.get("CLAUDE_CODE_ENABLE_TELEMETRY", "")).lower() in {"1", "true"}
        exporter = str(env.get("OTEL_TRACES_EXPORTER", "none"))
        if is_on and exporter not in {"", "none"}:
            yield (
                f"{_named(source)} turns on Claude Code's own traces (OTEL_TRACES_EXPORTER={json.dumps(exporter)}); "
                "if they go to the same destination, every turn appears as two traces"
            )


def _switches(source: Source) -> Iterator[str]:
    settings = source.settings or {}
    if settings.get("disableAllHooks") is True:
        yield f"`disableAllHooks` is set in {_named(source)}: Claude Code calls no hooks until it is removed"
    if source.scope == "managed" and settings.get("allowManagedHooksOnly") is True:
        yield f"{_named(source)} allows only your organisation's hooks: ask it to add turnspan's"


def _named(source: Source) -> str:
    return f"the {source.scope}{_settings(source.scope)} ({source.path})"


def _settings(scope: str) -> str:
    return "" if scope.startswith(_PLUGIN) else " settings"
