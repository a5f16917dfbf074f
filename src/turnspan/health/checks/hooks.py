"""Checks of the hooks: whether Claude Code calls us, only once, and whether the command works.

Rules:

- The hooks of all scopes run. Whether any run is decided by the scope with the highest precedence.
- A program that only a project's files name is not started: they could name anything.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan import __version__
from turnspan.claude.command import ARGS_SINCE, command_of, runtime_of, words_of
from turnspan.claude.event import OTHER_SIDE
from turnspan.claude.hooks import US, Registration, Source, read_sources, registrations, sentences
from turnspan.claude.install import EVENTS, InstallScope, client_version, known_events, plan_install, this_runtime
from turnspan.delivery import state
from turnspan.errors import TurnspanError
from turnspan.files import claude_home, turnspan_home
from turnspan.health.checks import CheckGroup
from turnspan.health.log_lines import read_log
from turnspan.hook import PACKAGE_ROOT
from turnspan.source.scan import modified_ns
from turnspan.source.sessions import newest_sessions, projects_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.health.checks import Check

GROUP: Final = CheckGroup("Claude Code")
_SCOPES: Final = ("user", "project", "local", "managed")  # lowest precedence first
_TRUSTED: Final = ("user", "managed")
_SWITCHES: Final = ("disableAllHooks", "allowManagedHooksOnly")
_START_S: Final = 30.0
_SETTLED_NS: Final = 120 * 10**9
_TRIAL: Final = (
    "import sys; sys.path.append(sys.argv[1]); import turnspan.worker, turnspan.backends.otlp; "
    "print(turnspan.__version__)"
)


def hook_checks(env: Mapping[str, str], project: Path, managed: Sequence[Path] | None = None) -> Iterator[Check]:
    """The client, its settings, our hooks in them, and other exporters."""
    client = client_version(env)
    if client is not None:
        yield GROUP.good(f"Claude Code {_dotted(client)}")
        left_out = [event for event in EVENTS if event not in known_events(client)]
        if "Stop" in left_out:
            yield GROUP.bad("this Claude Code is too old for hooks", "update Claude Code")
    sources = read_sources(env, project, managed)
    for source in sources:
        if source.settings is None:
            yield GROUP.bad(
                f"{source.path} cannot be used: {source.problem}; Claude Code ignores it",
                "fix it; `turnspan install` keeps backups of files it changed in turnspan/installed",
            )
    ours = [found for found in registrations(sources) if found.exporter == US]
    yield from _registered(ours, env, project, client)
    yield from _disabled(sources, ours)
    yield from _args(ours, client)
    yield from _commands(ours, env)
    yield from _others(sources, ours)
    yield from _arrivals(env, ours)


# ---- registered


def _registered(
    ours: Sequence[Registration], env: Mapping[str, str], project: Path, client: tuple[int, ...] | None
) -> Iterator[Check]:
    if not ours:
        yield GROUP.bad("no hooks registered: Claude Code does not call turnspan", "run `turnspan install`")
        return
    for (scope, path), events in _by_place(ours).items():
        missing = [event for event in known_events(client) if event not in events]
        if missing:
            yield GROUP.doubt(
                f"hooks missing in {scope} ({path}): {', '.join(missing)}",
                f"run `turnspan install --scope {scope}`" if scope in set(InstallScope) else "update the plugin",
            )
        else:
            yield GROUP.good(f"hooks registered: {scope} ({path})")
        if (
            scope in set(InstallScope)
            and not missing
            and not _is_as_installed(InstallScope(scope), env, project, client)
        ):
            yield GROUP.doubt(
                f"the hooks in {scope} were registered by another version, path or interpreter",
                f"re-run `turnspan install --scope {scope}` from the version you want to use",
            )


def _args(ours: Sequence[Registration], client: tuple[int, ...] | None) -> Iterator[Check]:
    """Whether the client knows the form in which a hook is registered."""
    for scope in dict.fromkeys(hook.scope for hook in ours if "args" in hook.hook):
        if client is not None and client < ARGS_SINCE:
            yield GROUP.bad(
                f"the hooks in {scope} need Claude Code {_dotted(ARGS_SINCE)}: {_dotted(client)} does not know `args`, "
                "prints an error after every turn and exports nothing",
                f"run `turnspan install --scope {scope}` again, or update Claude Code",
            )


def _dotted(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def _by_place(ours: Sequence[Registration]) -> dict[tuple[str, Path], set[str]]:
    found: dict[tuple[str, Path], set[str]] = {}
    for hook in ours:
        found.setdefault((hook.scope, hook.path), set()).add(hook.event)
    return found


def _is_as_installed(
    scope: InstallScope, env: Mapping[str, str], project: Path, client: tuple[int, ...] | None
) -> bool:
    try:
        plan = plan_install(scope, env=env, project=project, runtime=this_runtime(), client=client)
    except TurnspanError:  # a malformed file is reported elsewhere
        return True
    return not plan.is_change


# ---- disabled


def _disabled(sources: Sequence[Source], ours: Sequence[Registration]) -> Iterator[Check]:
    is_managed = any(hook.scope == "managed" for hook in ours)
    decides: Source | None = None
    for source in sorted((s for s in sources if s.scope in _SCOPES), key=lambda s: _SCOPES.index(s.scope)):
        settings = source.settings or {}
        if isinstance(settings.get("disableAllHooks"), bool):
            decides = source
        if source.scope == "managed" and settings.get("allowManagedHooksOnly") is True and not is_managed:
            yield GROUP.bad(
                f"your organisation's policy ({source.path}) allows only its own hooks",
                "ask your organisation to add turnspan's hooks",
            )
    if decides is not None and (decides.settings or {}).get("disableAllHooks") is True:
        yield GROUP.bad(
            f"`disableAllHooks` is set in the {decides.scope} settings ({decides.path}): no hooks are called",
            "ask your organisation" if decides.scope == "managed" else "remove it from that file",
        )


# ---- commands


def _commands(ours: Sequence[Registration], env: Mapping[str, str]) -> Iterator[Check]:
    seen: set[tuple[str, str]] = set()
    for hook in ours:
        is_trusted = hook.scope in _TRUSTED
        key = (command_of(hook.hook), "trusted" if is_trusted else hook.scope)
        if key in seen:
            continue
        seen.add(key)
        if hook.scope.startswith("plugin "):
            yield from _plugin_command(env)
        else:
            yield from _command(hook, is_trusted=is_trusted)


def _plugin_command(env: Mapping[str, str]) -> Iterator[Check]:
    """What the plugin calls: what `turnspan install` recorded, or the program of uv and pipx."""
    if sys.platform == "win32" and not (
        env.get("CLAUDE_CODE_GIT_BASH_PATH") or shutil.which("bash", path=env.get("PATH"))
    ):
        yield GROUP.bad(
            "the plugin is a shell script and needs Git Bash, which was not found",
            "`turnspan install` needs no shell; then run `claude plugin disable turnspan@turnspan`",
        )
    try:
        python, root = (turnspan_home(env) / "runtime").read_text(encoding="utf-8").splitlines()[:2]
    except (OSError, ValueError):
        program = claude_home(env).parent / ".local" / "bin" / "turnspan"
        if program.is_file():
            yield GROUP.good(f"the plugin calls {program}")
        else:
            yield GROUP.bad(
                f"the plugin does not find turnspan: it is not {program}, and no other path was recorded",
                "run `turnspan install --plugin`, which records the path of turnspan",
            )
        return
    yield from _trial(Path(python), Path(root), "`turnspan install --plugin`")


def _command(hook: Registration, *, is_trusted: bool) -> Iterator[Check]:
    again = f"`turnspan install --scope {hook.scope}`" if hook.scope in set(InstallScope) else "your organisation"
    words = words_of(hook.hook)
    if not words or not Path(words[0]).is_absolute():
        yield GROUP.doubt(
            f"the hook in {hook.scope} depends on the PATH, which is different in a desktop app or an editor",
            f"{again} registers the full path",
        )
        return
    found = runtime_of(hook.hook)
    programs = [Path(words[0])] if found is None or found.launcher is None else [found.launcher, found.python]
    missing = [program for program in programs if not program.exists()]
    if missing:
        yield GROUP.bad(f"the hook in {hook.scope} calls {missing[0]}, which does not exist", f"{again} updates it")
    elif found is None:
        yield GROUP.good(f"the hook in {hook.scope} is a custom command")
    elif not is_trusted and str(found.root) != PACKAGE_ROOT:
        yield GROUP.doubt(
            f"the hook in {hook.scope} calls another turnspan ({found.root}), which was not started: "
            "it comes from a project",
            f"if it is not yours, {again} registers this one",
        )
    else:
        yield from _trial(found.python, found.root, again)


def _trial(python: Path, root: Path, again: str) -> Iterator[Check]:
    """Start what the hook would start, up to its imports."""
    try:
        tried = subprocess.run(  # noqa: S603 - a program named by the user's own settings
            [str(python), "-I", "-X", "utf8", "-c", _TRIAL, str(root)],
            capture_output=True, text=True, timeout=_START_S, check=False, stdin=subprocess.DEVNULL, cwd=root.anchor,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        yield GROUP.bad(f"the hook's interpreter {python} does not start: {error}", f"{again} registers another")
        return
    if tried.returncode != 0:
        lines = tried.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit code {tried.returncode}"
        yield GROUP.bad(f"the hook's command does not start: {why}", f"reinstall turnspan, then {again}")
        return
    version = tried.stdout.strip()
    if version != __version__ or str(root) != PACKAGE_ROOT:
        yield GROUP.doubt(
            f"two installations: the hook calls turnspan {version} in {root}, this is {__version__} in {PACKAGE_ROOT}",
            f"remove one, or re-run {again} from the version you want to use",
        )
    else:
        yield GROUP.good(f"the hook's command starts: {python}")


# ---- other exporters


def _others(sources: Sequence[Source], ours: Sequence[Registration]) -> Iterator[Check]:
    """The same hook elsewhere, and other exporters. Switches and unreadable files are reported by other checks."""
    relevant = [
        replace(source, settings={key: value for key, value in source.settings.items() if key not in _SWITCHES})
        for source in sources
        if source.settings is not None
    ]
    doubled = sentences(relevant, ours[0].path if ours else None)
    for sentence in doubled:
        says, _, todo = sentence.partition("; ")
        yield GROUP.doubt(says, todo or "look into it")
    if not doubled:
        yield GROUP.good("no other exporter found")


# ---- events


def _arrivals(env: Mapping[str, str], ours: Sequence[Registration]) -> Iterator[Check]:
    """Whether an event has reached us, if one must have occurred since the hooks were registered."""
    lines = list(read_log(turnspan_home(env)))
    if lines and OTHER_SIDE in (why := lines[-1].facts.get("reason", "")):
        yield GROUP.bad(f"the last event could not be used: {why}", "install turnspan where Claude Code runs")
    if not ours or next(state.checkpoints(turnspan_home(env)), None) or lines:
        return
    registered_ns = min((modified_ns(hook.path) for hook in ours), default=0)
    for session in newest_sessions(projects_dir(claude_home(env)), limit=1, unread={}):
        if modified_ns(session.path) > registered_ns + _SETTLED_NS:
            yield GROUP.doubt(
                "Claude Code was used since the hooks were registered, but no event has reached turnspan",
                "start a new session (a running one keeps its old hooks); `/hooks` lists the hooks it calls",
            )
