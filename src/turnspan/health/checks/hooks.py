"""Whether Claude Code calls us, once, and whether what it calls still works.

Rules:

- Hooks of all settings run, whichever scope they stand in. What is decided by the strongest scope is whether any run.
- A program that only a project's files name is not started: whoever wrote them could have named anything.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final

from turnspan import __version__
from turnspan.claude.hooks import US, Registration, Source, read_sources, registrations, sentences
from turnspan.claude.install import EVENTS, Scope, client_version, known_events, plan_install, this_runtime
from turnspan.delivery import state
from turnspan.errors import TurnspanError
from turnspan.health.checks import Group
from turnspan.health.log_lines import read_log
from turnspan.hook import PACKAGE_ROOT
from turnspan.private_files import claude_home, turnspan_home
from turnspan.source.scan import modified_ns
from turnspan.source.sessions import newest_sessions, projects_dir

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from turnspan.health.checks import Check

GROUP: Final = Group("Claude Code")
_SCOPES: Final = ("user", "project", "local", "managed")  # the last that says something decides
_TRUSTED: Final = ("user", "managed")
_SWITCHES: Final = ("disableAllHooks", "allowManagedHooksOnly")
_START_S: Final = 30.0
_SETTLED_NS: Final = 120 * 10**9
_TRIAL: Final = (
    "import sys; sys.path.append(sys.argv[1]); import turnspan.worker, turnspan.backends.otlp; "
    "print(turnspan.__version__)"
)


def hook_checks(env: Mapping[str, str], project: Path, managed: Sequence[Path] | None = None) -> Iterator[Check]:
    """The client, its settings, our hooks in them, and who else is called."""
    client = client_version(env)
    if client is not None:
        yield GROUP.good(f"Claude Code {'.'.join(map(str, client))}")
        left_out = [event for event in EVENTS if event not in known_events(client)]
        if "Stop" in left_out:
            yield GROUP.bad("this Claude Code is too old to call hooks", "update Claude Code")
    sources = read_sources(env, project, managed)
    for source in sources:
        if source.settings is None:
            yield GROUP.bad(
                f"{source.path} cannot be used: {source.problem}; Claude Code reads nothing of it",
                "correct it; `turnspan install` keeps copies of what it changed in turnspan/installed",
            )
    ours = [found for found in registrations(sources) if found.exporter == US]
    yield from _registered(ours, env, project, client)
    yield from _switched_off(sources, ours)
    yield from _commands(ours, env)
    yield from _others(sources, ours)
    yield from _arrivals(env, ours)


# ---- registered


def _registered(
    ours: Sequence[Registration], env: Mapping[str, str], project: Path, client: tuple[int, ...] | None
) -> Iterator[Check]:
    if not ours:
        yield GROUP.bad("no hook is registered: Claude Code never calls turnspan", "run `turnspan install`")
        return
    for (scope, path), events in _by_place(ours).items():
        missing = [event for event in known_events(client) if event not in events]
        if missing:
            yield GROUP.doubt(
                f"the hooks in {scope} ({path}) leave out {', '.join(missing)}",
                f"run `turnspan install --scope {scope}`" if scope in set(Scope) else "update the plugin",
            )
        else:
            yield GROUP.good(f"the hooks are registered: {scope} ({path})")
        if scope in set(Scope) and not missing and not _is_as_installed(Scope(scope), env, project, client):
            yield GROUP.doubt(
                f"the hooks in {scope} are not as this turnspan writes them: another version, place or interpreter",
                f"run `turnspan install --scope {scope}` with the turnspan that shall be called",
            )


def _by_place(ours: Sequence[Registration]) -> dict[tuple[str, Path], set[str]]:
    found: dict[tuple[str, Path], set[str]] = {}
    for hook in ours:
        found.setdefault((hook.scope, hook.path), set()).add(hook.event)
    return found


def _is_as_installed(scope: Scope, env: Mapping[str, str], project: Path, client: tuple[int, ...] | None) -> bool:
    try:
        plan = plan_install(scope, env=env, project=project, runtime=this_runtime(), client=client)
    except TurnspanError:  # the file is malformed, which has been said
        return True
    return not plan.is_change


# ---- switched off


def _switched_off(sources: Sequence[Source], ours: Sequence[Registration]) -> Iterator[Check]:
    is_managed = any(hook.scope == "managed" for hook in ours)
    decides: Source | None = None
    for source in sorted((s for s in sources if s.scope in _SCOPES), key=lambda s: _SCOPES.index(s.scope)):
        settings = source.settings or {}
        if isinstance(settings.get("disableAllHooks"), bool):
            decides = source
        if source.scope == "managed" and settings.get("allowManagedHooksOnly") is True and not is_managed:
            yield GROUP.bad(
                f"the policy of your organisation ({source.path}) allows no hooks but its own",
                "ask them to add turnspan's hooks to it",
            )
    if decides is not None and (decides.settings or {}).get("disableAllHooks") is True:
        yield GROUP.bad(
            f"`disableAllHooks` is on in the {decides.scope} settings ({decides.path}): no hook is called at all",
            "ask your organisation" if decides.scope == "managed" else "take it out of that file",
        )


# ---- what they call


def _commands(ours: Sequence[Registration], env: Mapping[str, str]) -> Iterator[Check]:
    seen: set[tuple[str, str]] = set()
    for hook in ours:
        is_trusted = hook.scope in _TRUSTED
        key = (hook.command, "trusted" if is_trusted else hook.scope)
        if key in seen:
            continue
        seen.add(key)
        if hook.scope.startswith("plugin "):
            yield from _plugin_command(env)
        else:
            yield from _command(hook, is_trusted=is_trusted)


def _plugin_command(env: Mapping[str, str]) -> Iterator[Check]:
    """The plugin looks for a turnspan by itself, first of all in what `turnspan install` wrote down."""
    try:
        python, root = (turnspan_home(env) / "runtime").read_text(encoding="utf-8").splitlines()[:2]
    except (OSError, ValueError):
        yield GROUP.doubt(
            "the plugin looks for turnspan on the PATH, and a desktop app has another one",
            "run `turnspan install --plugin`, which writes down where turnspan is",
        )
        return
    yield from _trial(Path(python), Path(root), "`turnspan install --plugin`")


def _command(hook: Registration, *, is_trusted: bool) -> Iterator[Check]:
    again = f"`turnspan install --scope {hook.scope}`" if hook.scope in set(Scope) else "your organisation"
    try:
        words = [word for word in shlex.split(hook.command) if word]
    except ValueError:
        words = []
    if not words or not Path(words[0]).is_absolute():
        yield GROUP.doubt(
            f"the hook in {hook.scope} is found by the PATH, and a desktop app or an editor has another one",
            f"{again} registers it by its full path",
        )
        return
    # Our own ways to be called: LAUNCHER PYTHON ROOT, or PYTHON -I -S -c CODE ROOT.
    is_launcher = Path(words[0]).name == "turnspan-hook"
    gone = [word for word in words[: 2 if is_launcher else 1] if not Path(word).exists()]
    if gone:
        yield GROUP.bad(f"the hook in {hook.scope} calls {gone[0]}, which is gone", f"{again} registers what is there")
        return
    if len(words) not in {3, 6} or not (is_launcher or words[1:4] == ["-I", "-S", "-c"]):
        yield GROUP.good(f"the hook in {hook.scope} is a command of your own")
        return
    python, root = Path(words[1] if is_launcher else words[0]), Path(words[-1])
    if not is_trusted and str(root) != PACKAGE_ROOT:
        yield GROUP.doubt(
            f"the hook in {hook.scope} calls another turnspan ({root}), which was not tried: a project names it",
            f"if it is not yours, {again} registers this one",
        )
        return
    yield from _trial(python, root, again)


def _trial(python: Path, root: Path, again: str) -> Iterator[Check]:
    """Start what the hook would start, as far as its imports."""
    try:
        tried = subprocess.run(  # noqa: S603 - what the person's own settings name
            [str(python), "-I", "-X", "utf8", "-c", _TRIAL, str(root)],
            capture_output=True, text=True, timeout=_START_S, check=False, stdin=subprocess.DEVNULL, cwd=root.anchor,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        yield GROUP.bad(f"the hook's interpreter {python} does not start: {error}", f"{again} registers one that does")
        return
    if tried.returncode != 0:
        lines = tried.stderr.strip().splitlines()
        why = lines[-1] if lines else f"exit code {tried.returncode}"
        yield GROUP.bad(
            f"turnspan cannot be started as the hook starts it: {why}", f"install turnspan again, then {again}"
        )
        return
    version = tried.stdout.strip()
    if version != __version__ or str(root) != PACKAGE_ROOT:
        yield GROUP.doubt(
            f"there are two: the hook calls turnspan {version} in {root}, this is {__version__} in {PACKAGE_ROOT}",
            f"remove one of them, or {again} with the one that shall be called",
        )
    else:
        yield GROUP.good(f"what the hook calls starts: {python}")


# ---- others


def _others(sources: Sequence[Source], ours: Sequence[Registration]) -> Iterator[Check]:
    """The same hook elsewhere, and other exporters. Switches and unreadable files have been told already."""
    told = [
        replace(source, settings={key: value for key, value in source.settings.items() if key not in _SWITCHES})
        for source in sources
        if source.settings is not None
    ]
    doubled = sentences(told, ours[0].path if ours else None)
    for sentence in doubled:
        says, _, todo = sentence.partition("; ")
        yield GROUP.doubt(says, todo or "look into it")
    if not doubled:
        yield GROUP.good("nothing else exports the same turns")


# ---- whether it has ever worked


def _arrivals(env: Mapping[str, str], ours: Sequence[Registration]) -> Iterator[Check]:
    """Whether any event has reached us, if there must have been one since the hooks were registered."""
    if not ours or next(state.checkpoints(turnspan_home(env)), None) or next(read_log(turnspan_home(env)), None):
        return
    registered_ns = min((modified_ns(hook.path) for hook in ours), default=0)
    for session in newest_sessions(projects_dir(claude_home(env)), limit=1, unread={}):
        if modified_ns(session.path) > registered_ns + _SETTLED_NS:
            yield GROUP.doubt(
                "Claude Code was used since the hooks were registered, but no event has reached turnspan",
                "start a new session, for one that runs keeps the hooks it began with; `/hooks` lists what it calls",
            )
