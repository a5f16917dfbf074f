"""`install` and `uninstall`: the files they change, what they report, and the dialog."""

import base64
import contextlib
import http.server
import json
import os
import re
import select
import shlex
import stat
import sys
import tempfile
import threading
import time
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from only_posix import make_fifo

from turnspan.claude.command import Runtime
from turnspan.claude.hooks import US, managed_settings, read_sources, registrations, sentences
from turnspan.claude.install import (
    EVENTS,
    InstallScope,
    apply,
    client_version,
    known_events,
    plan_install,
    plan_uninstall,
    plugin_directory,
    remember_runtime,
    settings_path,
    this_runtime,
)
from turnspan.cli import frame
from turnspan.errors import ConfigError, StateError, TurnspanError
from turnspan.settings.config import load_config
from turnspan.settings.config_file import with_destination, write_destination
from turnspan.settings.options import LANGFUSE_REGIONS

RUNTIME = Runtime(Path("/opt/my python/bin/python3"), Path("/opt/lib"), Path("/opt/lib/turnspan-hook"), "linux")
FOREIGN = {"type": "command", "command": "notify"}


@pytest.fixture
def place(tmp_path):
    """A home and a project, with a space in every path."""
    return Place(tmp_path / "a home", tmp_path / "a project")


class Place:
    def __init__(self, home, project):
        self.claude = home / ".claude"
        self.claude.mkdir(parents=True)
        project.mkdir()
        self.project = project
        self.env = {"HOME": str(home), "USERPROFILE": str(home), "PATH": os.environ["PATH"]}

    def path(self, scope=InstallScope.USER):
        return settings_path(scope, self.env, self.project)

    def write(self, settings, scope=InstallScope.USER):
        self.path(scope).parent.mkdir(exist_ok=True)
        content = settings if isinstance(settings, bytes) else json.dumps(settings, indent=2).encode()
        self.path(scope).write_bytes(content)
        return content

    def plan(self, scope=InstallScope.USER, runtime=RUNTIME, client=None):
        return plan_install(scope, env=self.env, project=self.project, runtime=runtime, client=client)

    def install(self, scope=InstallScope.USER, runtime=RUNTIME, client=None):
        plan = self.plan(scope, runtime, client)
        apply(plan)
        return plan

    def uninstall(self, scope=InstallScope.USER):
        plan = plan_uninstall(scope, env=self.env, project=self.project)
        apply(plan)
        return plan

    def files(self):
        return {path: path.read_bytes() for path in self.claude.parent.parent.rglob("*") if path.is_file()}


# ---- install


@pytest.mark.parametrize(
    ("scope", "name"), [("user", "settings.json"), ("project", "settings.json"), ("local", "settings.local.json")]
)
def test_each_scope_has_its_file(place, scope, name):
    """Hooks are registered in the user's, the project's, or the user's local settings of a project."""
    plan = place.install(InstallScope(scope))
    root = place.claude if scope == "user" else place.project / ".claude"
    assert plan.file.path == root / name
    hooks = json.loads((root / name).read_bytes())["hooks"]
    assert list(hooks) == list(EVENTS)
    assert all(len(groups) == 1 and groups[0]["hooks"][0]["timeout"] == 5 for groups in hooks.values())


def test_the_configured_directory_of_claude_code_is_honoured(place, tmp_path):
    """CLAUDE_CONFIG_DIR moves the settings, and our own files with them."""
    place.env["CLAUDE_CONFIG_DIR"] = str(tmp_path / "elsewhere")
    place.install()
    assert (tmp_path / "elsewhere" / "settings.json").is_file()
    assert (tmp_path / "elsewhere" / "turnspan" / "installed").is_dir()
    assert not list(place.claude.iterdir())


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b"{}",
        b"{ }\n",
        b"{\n}\n",
        b'{"a":1}',
        b'\xef\xbb\xbf{\r\n"a": "\xc3\xa9"\r\n}',
        b'{ "b":1.0,\n\n"a" : [ ]}',
    ],
)
def test_uninstall_restores_every_byte(place, content):
    """After uninstall the file is exactly as before; if there was none, it is removed."""
    if content is not None:
        place.write(content)
    before = place.files()
    for scope in InstallScope:
        place.install(scope)
    assert place.files() != before
    for scope in reversed(InstallScope):
        place.uninstall(scope)
    assert place.files() == before
    assert not (place.project / ".claude").exists()


def test_uninstall_restores_every_byte_after_an_update(place):
    """After an update, uninstall restores the file as it was before the first installation."""
    original = place.write(b'{"hooks": { },\t"z":1}\n')
    place.install(runtime=Runtime(Path("/old/python"), Path("/old"), None, "linux"))
    place.install()
    place.uninstall()
    assert place.path().read_bytes() == original


def test_changes_made_since_are_kept(place):
    """If the file was changed since, uninstall removes our entries and nothing else."""
    place.write({"hooks": {"Stop": []}, "model": "opus"})
    place.install()
    settings = json.loads(place.path().read_bytes())
    settings["model"] = "sonnet"
    settings["hooks"]["Stop"].append({"hooks": [FOREIGN]})
    place.path().write_text(json.dumps(settings, indent=2) + "\n")
    plan = place.uninstall()
    assert json.loads(place.path().read_bytes()) == {"hooks": {"Stop": [{"hooks": [FOREIGN]}]}, "model": "sonnet"}
    assert plan.file.backup.read_bytes() == json.dumps({"hooks": {"Stop": []}, "model": "opus"}, indent=2).encode()
    assert not place.uninstall().is_change


def test_containers_that_were_empty_before_stay_empty(place):
    """The user's empty list of hooks is kept by uninstall, even if the file has changed."""
    place.write({"hooks": {"Stop": []}})
    place.install()
    place.path().write_text(json.dumps({**json.loads(place.path().read_bytes()), "new": 1}))
    place.uninstall()
    assert json.loads(place.path().read_bytes()) == {"hooks": {"Stop": []}, "new": 1}


def test_a_file_with_only_our_hooks_is_removed_even_if_rewritten(place):
    """Claude Code may rewrite the file in its own layout; if it has only our hooks, it is removed."""
    place.install(InstallScope.LOCAL)
    path = place.path(InstallScope.LOCAL)
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=4))
    place.uninstall(InstallScope.LOCAL)
    assert not path.exists()


def test_installing_twice_changes_nothing(place):
    """A second install writes nothing, and keeps the first one's backup."""
    original = place.write({"a": 1})
    first = place.install()
    second = place.install()
    assert first.is_change
    assert not second.is_change
    assert second.diff == ""
    assert second.file.backup.read_bytes() == original


def test_planning_writes_nothing(place):
    """--dry-run shows the change as a diff, and changes no file or directory."""
    place.write({"a": 1})
    before = {path: path.stat().st_mtime_ns for path in place.claude.parent.parent.rglob("*")}
    plan = place.plan()
    assert {path: path.stat().st_mtime_ns for path in place.claude.parent.parent.rglob("*")} == before
    added = [line for line in plan.diff.splitlines() if line.startswith("+") and not line.startswith("+++")]
    removed = [line for line in plan.diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert any("turnspan-hook" in line for line in added)
    assert removed == ['-  "a": 1']
    assert "\\ No newline at end of file" in plan.diff


def test_the_diff_shows_no_credentials(place):
    """Keys near the hooks in the file are not printed."""
    place.write({"env": {"ANTHROPIC_API_KEY": "sk-ant-1", "X_AUTH_TOKEN": 'a\\"b', "OTHER": "seen"}})
    diff = place.plan().diff
    assert "sk-ant-1" not in diff
    assert 'a\\"b' not in diff
    assert '"OTHER": "seen"' in diff


@pytest.mark.parametrize(
    "content",
    [b"{\n// comment\n}", b'{"a":1,}', b"[]", b"\xff\xfe{}", b'{"hooks":[]}', b'{"hooks":{"Stop":{}}}', b"{" * 5000],
)
def test_a_malformed_file_is_not_changed(place, content):
    """A file that Claude Code cannot read either is not changed, and the error names it."""
    place.write(content)
    before = place.files()
    with pytest.raises(ConfigError, match=f"{re.escape(str(place.path()))} is malformed and was not changed") as caught:
        place.plan()
    assert caught.value.hint
    with pytest.raises(ConfigError, match="not changed"):
        plan_uninstall(InstallScope.USER, env=place.env, project=place.project)
    assert place.files() == before


def test_a_linked_settings_file_stays_a_link(place, tmp_path):
    """A link, for example into a dotfiles repository, is kept; its target changes and keeps its mode."""
    target = tmp_path / "dotfiles" / "claude.json"
    target.parent.mkdir()
    target.write_bytes(b'{"a": 1}')
    target.chmod(0o640)
    place.path().symlink_to(target)
    place.install()
    assert place.path().is_symlink()
    assert "hooks" in json.loads(target.read_bytes())
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert sorted(path.name for path in target.parent.iterdir()) == ["claude.json"]
    place.uninstall()
    assert place.path().is_symlink()
    assert target.read_bytes() == b'{"a": 1}'


def test_a_link_to_nothing_and_a_link_to_itself(place, tmp_path):
    """The missing target of a link is created; a link to itself is an error."""
    (tmp_path / "dotfiles").mkdir()
    place.path().symlink_to(tmp_path / "dotfiles" / "claude.json")
    place.install()
    assert (tmp_path / "dotfiles" / "claude.json").is_file()
    circle = place.path(InstallScope.PROJECT)
    circle.parent.mkdir()
    circle.symlink_to(circle)
    with pytest.raises(TurnspanError, match=re.escape(str(circle))):
        place.plan(InstallScope.PROJECT)


def test_only_a_regular_file_is_accepted(place):
    """A directory, or a FIFO that would block, is not a settings file."""
    make_fifo(place.path())
    with pytest.raises(ConfigError, match="is not a settings file"):
        place.plan()


def test_a_concurrent_change_is_not_overwritten(place):
    """Claude Code writes its settings too: if the file has changed since it was read, nothing is written."""
    place.write({"a": 1})
    plan = place.plan()
    place.write({"a": 2})
    with pytest.raises(StateError, match="was just changed by another program"):
        apply(plan)
    assert json.loads(place.path().read_bytes()) == {"a": 2}


@contextlib.contextmanager
def unprivileged_user():
    """Drop the privileges of root for a moment, because root can write everywhere."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_read_only_home_is_an_error_with_a_hint():
    """The error names the path and says what to do."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        root.chmod(0o755)
        place = Place(root / "home", root / "project")
        place.write({"a": 1})
        for path in (place.claude, root / "home"):
            path.chmod(0o555)
        with unprivileged_user():
            with pytest.raises(StateError, match=r"settings.json was not changed: .*no access to") as caught:
                place.install()
            assert caught.value.hint
        assert json.loads(place.path().read_bytes()) == {"a": 1}
        for path in (root / "home", place.claude):
            path.chmod(0o755)


def test_unreadable_settings_are_an_error():
    """Settings that cannot be read are not overwritten."""
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        place = Place(Path(directory) / "home", Path(directory) / "project")
        place.write({"a": 1})
        place.path().chmod(0o000)
        with unprivileged_user(), pytest.raises(StateError, match=r"cannot read .*settings.json"):
            place.plan()


def test_our_own_files_are_private(place):
    """A backup of the settings may contain keys: 0600 in 0700."""
    place.write({"env": {"KEY": "secret"}})
    plan = place.install()
    kept = list((place.claude / "turnspan").rglob("*"))
    assert plan.file.backup in kept
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept if path.is_file()} == {0o600}
    assert {stat.S_IMODE(path.stat().st_mode) for path in kept if path.is_dir()} == {0o700}


def test_uninstall_works_without_a_record(place):
    """If the record is lost, uninstall still finds our entries."""
    place.write({"a": 1})
    plan = place.install()
    (plan.file.kept_in / "record.json").write_text("{")
    place.uninstall()
    assert json.loads(place.path().read_bytes()) == {"a": 1}


# ---- the client


def test_this_turnspan_can_be_registered():
    """The running turnspan is found with its launcher and its plugin, by absolute paths."""
    runtime = this_runtime()
    assert runtime.python.is_absolute()
    assert (runtime.root / "turnspan" / "hook.py").is_file()
    assert runtime.launcher is not None
    assert os.access(runtime.launcher, os.X_OK)
    assert (plugin_directory(runtime) / "find-turnspan").is_file()


@pytest.mark.parametrize(
    ("client", "left_out"),
    [
        (None, set()),
        ((2, 1, 325), set()),
        ((2, 1, 78), set()),
        ((2, 1, 77), {"StopFailure"}),
        ((1, 0, 60), {"StopFailure", "SessionStart", "SessionEnd"}),
    ],
)
def test_an_old_client_gets_only_events_it_knows(place, client, left_out):
    """One unknown event makes an old client ignore all hooks of the file, so it is not registered, with a notice."""
    plan = place.install(client=client)
    assert set(json.loads(place.path().read_bytes())["hooks"]) == set(EVENTS) - left_out == set(known_events(client))
    said = " ".join(plan.notices)
    assert all(event in said for event in left_out)
    assert bool(left_out) == ("does not know" in said)
    place.install(client=None)
    assert set(json.loads(place.path().read_bytes())["hooks"]) == set(EVENTS)


def test_the_version_of_the_client_on_the_path(tmp_path):
    """The client on the PATH prints its version; without a client, or with other output, it is unknown."""
    env = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "PATH": str(tmp_path)}
    assert client_version(env) is None
    program = tmp_path / ".local" / "bin" / "claude"
    program.parent.mkdir(parents=True)
    program.write_text("#!/bin/sh\necho '2.1.197 (Claude Code)'\n")
    program.chmod(0o755)
    assert client_version(env) == (2, 1, 197)
    (tmp_path / "claude").write_text("#!/bin/sh\necho hello\n")
    (tmp_path / "claude").chmod(0o755)
    assert client_version(env) is None


def test_the_version_of_a_client_that_is_not_on_the_path(tmp_path):
    """The client of an editor or of the desktop app records its version in .claude.json."""
    env = {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "PATH": str(tmp_path)}
    noted = tmp_path / ".claude.json"
    noted.write_text(json.dumps({"lastOnboardingVersion": "2.0.9", "lastReleaseNotesSeen": "2.0.30"}))
    assert client_version(env) == (2, 0, 30)
    for nonsense in ("[]", "{", json.dumps({"lastOnboardingVersion": 3})):
        noted.write_text(nonsense)
        assert client_version(env) is None
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / ".claude.json").write_text(json.dumps({"lastOnboardingVersion": "2.1.100"}))
    assert client_version({**env, "CLAUDE_CONFIG_DIR": str(tmp_path / "elsewhere")}) == (2, 1, 100)


def test_a_path_that_is_not_utf_8_is_an_error(place):
    """A directory whose name is not UTF-8 cannot be written into settings."""
    runtime = Runtime(Path(os.fsdecode(b"/opt/\xff/python")), Path("/opt"), None, "linux")
    with pytest.raises(ConfigError, match="not UTF-8"):
        place.plan(runtime=runtime)


# ---- other registrations


def add_plugin(place, name, hooks, *, is_enabled=True, manifest=None):
    """Install a plugin as Claude Code does."""
    root = place.claude / "plugins" / "cache" / name.replace("@", "-")
    (root / "hooks").mkdir(parents=True)
    (root / ".claude-plugin").mkdir()
    (root / ".claude-plugin" / "plugin.json").write_text(json.dumps(manifest or {"name": name}))
    if hooks is not None:
        (root / "hooks" / "hooks.json").write_text(json.dumps({"hooks": hooks}))
    installed = place.claude / "plugins" / "installed_plugins.json"
    known = json.loads(installed.read_text())["plugins"] if installed.exists() else {}
    known[name] = [{"scope": "user", "installPath": str(root)}]
    installed.write_text(json.dumps({"version": 2, "plugins": known}))
    settings = json.loads(place.path().read_bytes()) if place.path().exists() else {}
    settings.setdefault("enabledPlugins", {})[name] = is_enabled
    place.write(settings)


def stop(command):
    """Hooks with one command on Stop."""
    return {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}


def test_the_same_hook_in_another_scope_is_reported(place):
    """Registered for the user and for the project it would run twice: the notice says where, and how to remove it."""
    place.install()
    said = place.plan(InstallScope.LOCAL).notices
    assert len(said) == 1
    assert str(place.path()) in said[0]
    assert "turnspan uninstall --scope user" in said[0]
    assert place.plan().notices == ()


def test_a_custom_command_that_calls_turnspan_is_reported(place):
    """A command of the user that runs the hook counts as a registration."""
    place.write({"hooks": stop("turnspan hook && echo done")}, InstallScope.LOCAL)
    assert any("--scope local" in sentence for sentence in place.plan().notices)


def test_the_plugin_is_reported(place):
    """The plugin and the settings together run every hook twice."""
    add_plugin(place, "turnspan@turnspan", stop('"${CLAUDE_PLUGIN_ROOT}/find-turnspan"'))
    assert any("claude plugin disable turnspan@turnspan" in sentence for sentence in place.plan().notices)


def test_a_disabled_plugin_is_not_reported(place):
    """Only enabled plugins count, and a scope with higher precedence can disable one."""
    add_plugin(place, "turnspan@turnspan", stop("find-turnspan"))
    place.write({"enabledPlugins": {"turnspan@turnspan": False}}, InstallScope.LOCAL)
    assert place.plan().notices == ()


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("python3 ~/.claude/hooks/langfuse_hook.py", "a Langfuse hook"),
        ("pnpm dlx github:someone/cc-langfuse", "cc-langfuse"),
        ("uv run --quiet ~/.claude/hooks/langsmith.py", "a LangSmith hook"),
        ("otel-hooks hook", "an OpenTelemetry hook"),
        ("npx claude_code_otel", "an OpenTelemetry hook"),
        ("/opt/bt/trace-claude-code/stop.sh", "a Braintrust hook"),
        ("node ./telemetry/send.js", "a hook that looks like tracing"),
    ],
)
def test_other_exporters_are_reported(place, command, name):
    """With another exporter every turn would appear twice; the notice says so."""
    place.write({"hooks": stop(command)}, InstallScope.PROJECT)
    said = [sentence for sentence in place.plan().notices if sentence.startswith(name)]
    assert len(said) == 1
    assert "twice" in said[0]
    assert str(place.path(InstallScope.PROJECT)) in said[0]


def test_another_exporter_is_recognised_by_its_plugin(place):
    """Its command can have any name; hooks can also be in the manifest, or in a file that it names."""
    add_plugin(place, "langfuse@langfuse-observability", stop("python3 hook.py"))
    add_plugin(place, "quiet@x", None, manifest={"name": "quiet", "hooks": stop("opik-hook")})
    add_plugin(place, "named@x", None, manifest={"name": "named", "hooks": ["./hooks/more.json"]})
    (place.claude / "plugins" / "cache" / "named-x" / "hooks" / "more.json").write_text(
        json.dumps({"hooks": stop("mlflow x")})
    )
    said = " ".join(place.plan().notices)
    assert "a Langfuse hook" in said
    assert "an Opik hook" in said
    assert "an MLflow hook" in said


def test_ordinary_hooks_are_not_reported(place):
    """A notification or a formatter is not an exporter. No command is printed: it may contain a key."""
    place.write({"hooks": stop("prettier --write . && LANGFUSE_SECRET_KEY=sk-lf-1 ./run.sh")})
    add_plugin(place, "formatter@tools", stop("${CLAUDE_PLUGIN_ROOT}/format.sh"))
    found = registrations(read_sources(place.env, place.project))
    assert [hook.exporter for hook in found] == ["a Langfuse hook", ""]
    assert "sk-lf-1" not in " ".join(place.plan().notices)


def test_claude_codes_own_traces_are_reported(place):
    """Claude Code can export traces itself; metrics alone are not duplicates."""
    env = {"CLAUDE_CODE_ENABLE_TELEMETRY": "1", "OTEL_METRICS_EXPORTER": "otlp"}
    place.write({"env": env})
    assert place.plan().notices == ()
    place.write({"env": {**env, "OTEL_TRACES_EXPORTER": "otlp"}})
    assert "Claude Code's own traces" in place.plan().notices[0]


def test_switches_that_disable_hooks_are_reported(place, tmp_path):
    """Registered and never called: `disableAllHooks` anywhere, or a policy that allows only an organisation's hooks."""
    place.write({"disableAllHooks": True}, InstallScope.LOCAL)
    policy = tmp_path / "managed-settings.json"
    policy.write_text(json.dumps({"allowManagedHooksOnly": True, "hooks": stop("turnspan hook")}))
    sources = read_sources(place.env, place.project, managed=[policy])
    said = sentences(sources, None)
    assert any("disableAllHooks" in sentence and "settings.local.json" in sentence for sentence in said)
    assert any("your organisation" in sentence for sentence in said)
    assert [hook.scope for hook in registrations(sources) if hook.exporter == US] == ["managed"]


def test_unreadable_files_of_other_scopes_are_reported(place):
    """A malformed file of another scope does not prevent installation, but its hooks are unknown."""
    place.write(b"{ // mine\n}", InstallScope.PROJECT)
    place.path(InstallScope.LOCAL).mkdir()
    said = place.install().notices
    assert len(said) == 2
    assert all("cannot be read" in sentence for sentence in said)


@pytest.mark.parametrize("is_linked", [False, True])
def test_the_home_directory_as_a_project(place, tmp_path, is_linked):
    """In the home directory the project's settings are the user's own: one file, one registration."""
    place.project = place.claude.parent
    if is_linked:
        place.project = tmp_path / "link"
        place.project.symlink_to(place.claude.parent)
    place.install()
    assert place.plan().notices == ()
    assert len(registrations(read_sources(place.env, place.project))) == len(EVENTS)


def test_a_shared_file_and_a_temporary_interpreter_are_reported(place):
    """A path of this machine in a shared file, or a path in a cache, will stop working."""
    runtime = Runtime(Path("/home/me/.cache/uv/archive-v0/x/bin/python"), Path("/opt"), None, "linux")
    said = place.plan(InstallScope.PROJECT, runtime=runtime).notices
    assert any("--scope local" in sentence for sentence in said)
    assert any("uv tool install ." in sentence for sentence in said)


def test_the_paths_of_policies():
    """Each system has its own path for an organisation's settings."""
    assert {str(managed_settings(name)[0].parent) for name in ("linux", "darwin", "win32")} == {
        "/etc/claude-code", "/Library/Application Support/ClaudeCode", "C:/Program Files/ClaudeCode"
    }  # fmt: skip


# ---- the config file

VALUES = st.one_of(
    st.text(),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.lists(st.text()),
    st.dictionaries(st.text(), st.text()),
)


@given(st.text(), st.dictionaries(st.text(), VALUES, max_size=5))
def test_any_destination_reads_back(name, values):
    """Any key or header is read back exactly as it was written."""
    first = with_destination("", name, values)
    assert tomllib.loads(first) == {"destinations": {name: values}}
    second = with_destination("# mine\nenabled = true\n", name, values)
    assert second.startswith("# mine\nenabled = true\n\n[destinations.")
    assert tomllib.loads(second) == {"enabled": True, "destinations": {name: values}}


def test_a_destination_is_replaced_and_the_rest_stays():
    """Comments, other destinations and settings keep their bytes."""
    text = (
        '# my settings\ncapture = "full"  # all of it\n\n[destinations.langfuse]\n'
        'type = "langfuse"\nsecret_key = "old"\n\n'
        '[destinations.langfuse.headers]\nX-Team = "a"\n\n# the team\'s\n[destinations.otlp]\nendpoint = "http://localhost:4318"\n'
    )
    changed = with_destination(text, "langfuse", {"type": "langfuse", "secret_key": "new"})
    assert changed == (
        '# my settings\ncapture = "full"  # all of it\n\n[destinations.langfuse]\n'
        'type = "langfuse"\nsecret_key = "new"\n\n'
        '# the team\'s\n[destinations.otlp]\nendpoint = "http://localhost:4318"\n'
    )
    assert with_destination(changed, "langfuse", {"type": "langfuse", "secret_key": "new"}) == changed


@pytest.mark.parametrize(
    "text", ['destinations.otlp.endpoint = "x"\n', "destinations = 3\n", 'a = """\n[destinations.otlp]\n"""\n']
)
def test_a_file_that_cannot_be_edited_safely_is_refused(text):
    """A destination that is written in another form is not edited."""
    with pytest.raises(ConfigError, match=r"destinations|another form"):
        with_destination(text, "otlp", {"type": "otlp"})


def test_the_config_file_is_private_and_read_by_the_rest(place):
    """The file is read back by `load_config`; it is 0600 in a private directory."""
    values = {
        "type": "langfuse",
        "base_url": "https://lf.example",
        "public_key": "pk",
        "secret_key": "sk",
        "capture": "metadata",
    }
    path = write_destination(place.env, "langfuse", values)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    config = load_config(place.env)
    assert config.problems == ()
    (destination,) = config.destinations
    assert destination.options == {"base_url": "https://lf.example", "public_key": "pk", "secret_key": "sk"}
    assert destination.policy["capture"] == "metadata"


def test_a_malformed_config_file_is_not_changed_and_not_shown(place):
    """A file with a syntax error may still contain keys."""
    path = place.claude / "turnspan" / "config.toml"
    path.parent.mkdir(mode=0o700)
    path.write_text('secret_key = "sk-lf-secret\n')
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="not valid TOML") as caught:
        write_destination(place.env, "otlp", {"type": "otlp"})
    assert "sk-lf-secret" not in str(caught.value)
    assert path.read_text() == 'secret_key = "sk-lf-secret\n'


def test_a_value_that_is_not_valid_text_is_refused():
    """A lone surrogate, from a terminal with another encoding, is not stored."""
    with pytest.raises(ConfigError):
        with_destination("", "otlp", {"endpoint": "\udc80"})


# ---- the commands


class Server(http.server.BaseHTTPRequestHandler):
    """An OTLP server that accepts one secret."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"] or 0))
        self.server.seen.append((self.path, self.headers.get("Authorization"), self.headers.get("x-team")))
        basic = base64.b64decode((self.headers.get("Authorization") or "").removeprefix("Basic "))
        is_right = self.headers.get("x-team") == "right" or basic.endswith(b":right")
        self.send_response(200 if is_right else 401)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_):
        pass


@pytest.fixture
def server():
    """A server on loopback."""
    running = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
    running.seen = []
    running.url = f"http://127.0.0.1:{running.server_port}"
    thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield running
    running.shutdown()
    running.server_close()
    thread.join()


def run(place, monkeypatch, command, *arguments, **env):
    """Run one command as a script does: without a terminal."""
    monkeypatch.chdir(place.project)
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    for name, value in {**place.env, "PATH": "/usr/bin:/bin", **env}.items():
        monkeypatch.setenv(name, value)
    return CliRunner().invoke(frame, [command, *arguments])


def test_install_and_uninstall_on_the_command_line(place, monkeypatch):
    """`install` registers, and prints the destination and the backup; `uninstall` restores everything."""
    original = place.write({"a": 1})
    said = run(place, monkeypatch, "install")
    assert said.exit_code == 0, said.output
    assert "+" not in said.stdout  # the diff is for --dry-run
    assert f"destination: local files ({place.claude / 'turnspan' / 'traces'})" in said.stdout
    assert str(place.claude / "turnspan" / "installed") in said.stdout
    assert (place.claude / "turnspan" / "runtime").read_text().splitlines() == [
        sys.executable,
        str(this_runtime().root),
    ]
    assert "already installed in" in run(place, monkeypatch, "install").stdout
    said = run(place, monkeypatch, "uninstall")
    assert said.stdout == f"turnspan is no longer registered in {place.path()}\n"
    assert place.path().read_bytes() == original
    assert "is not registered" in run(place, monkeypatch, "uninstall").stdout


def test_a_dry_run_writes_nothing_and_sends_nothing(place, monkeypatch, server):
    """--dry-run: no file, no request."""
    before = place.files()
    arguments = ["--dry-run", "--to", "otlp", "--endpoint", server.url]
    said = run(place, monkeypatch, "install", *arguments)
    assert said.exit_code == 0, said.output
    assert "turnspan-hook" in said.stdout
    assert "nothing was written" in said.stdout
    assert place.files() == before
    assert server.seen == []
    place.install()
    before = place.files()
    said = run(place, monkeypatch, "uninstall", "--dry-run")
    assert '-  "hooks": {' in said.stdout
    assert "nothing was written" in said.stdout
    assert place.files() == before


def test_a_destination_is_tested_before_it_is_stored(place, monkeypatch, server):
    """If the server refuses the keys, neither keys nor hooks are written."""
    arguments = ["--to", "langfuse", "--endpoint", server.url, "--public-key", "pk-lf-1"]
    said = run(place, monkeypatch, "install", *arguments, LANGFUSE_SECRET_KEY="sk-lf-wrong")
    assert isinstance(said.exception, ConfigError)
    assert "does not accept these credentials" in str(said.exception)
    assert "sk-lf-wrong" not in said.output + str(said.exception)
    assert list(place.files()) == []
    said = run(place, monkeypatch, "install", *arguments, "--capture", "metadata", LANGFUSE_SECRET_KEY="right")
    assert said.exit_code == 0, said.output
    assert "right" not in said.output
    config = tomllib.loads((place.claude / "turnspan" / "config.toml").read_text())
    assert config["destinations"]["langfuse"] == {
        "type": "langfuse",
        "base_url": server.url,
        "public_key": "pk-lf-1",
        "secret_key": "right",
        "capture": "metadata",
    }
    assert [path for path, *_ in server.seen] == ["/api/public/otel/v1/traces"] * 2


def test_keys_come_from_one_place(place, monkeypatch, server):
    """CC_LANGFUSE_* is used as a pair: a key that is set for another program is not mixed in."""
    env = {
        "CC_LANGFUSE_PUBLIC_KEY": "pk-lf-1",
        "CC_LANGFUSE_SECRET_KEY": "right",
        "CC_LANGFUSE_BASE_URL": server.url,
        "LANGFUSE_SECRET_KEY": "of-another-program",
        "LANGFUSE_BASE_URL": "http://127.0.0.1:1",
    }
    assert run(place, monkeypatch, "install", "--to", "langfuse", **env).exit_code == 0
    basic = base64.b64encode(b"pk-lf-1:right").decode()
    assert server.seen == [("/api/public/otel/v1/traces", f"Basic {basic}", None)]


def test_otlp_headers_come_from_the_environment(place, monkeypatch, server):
    """Headers may contain a token, so they are not an argument."""
    said = run(
        place, monkeypatch, "install", "--to", "otlp", "--endpoint", server.url, TURNSPAN_OTLP_HEADERS="x-team=right"
    )
    assert said.exit_code == 0, said.output
    config = tomllib.loads((place.claude / "turnspan" / "config.toml").read_text())
    assert config["destinations"]["otlp"] == {"type": "otlp", "endpoint": server.url, "headers": {"x-team": "right"}}
    assert server.seen == [("/v1/traces", None, "right")]


def test_a_server_that_is_down_is_stored_only_on_request(place, monkeypatch):
    """An unreachable server is an error; --no-check stores it anyway."""
    arguments = ["--to", "otlp", "--endpoint", "http://127.0.0.1:1"]
    said = run(place, monkeypatch, "install", *arguments)
    assert "--no-check" in said.exception.hint
    assert list(place.files()) == []
    assert run(place, monkeypatch, "install", *arguments, "--no-check").exit_code == 0
    assert "127.0.0.1:1" in (place.claude / "turnspan" / "config.toml").read_text()


def test_a_missing_key_is_named(place, monkeypatch):
    """Without a terminal nothing is asked: the error names the variable."""
    said = run(place, monkeypatch, "install", "--to", "langfuse", "--public-key", "pk")
    assert "LANGFUSE_SECRET_KEY" in str(said.exception)


def test_the_environment_alone_is_enough_but_must_be_there_later(place, monkeypatch):
    """A destination in the environment works only if Claude Code inherits it; a note says so."""
    said = run(place, monkeypatch, "install", TURNSPAN_OTLP_ENDPOINT="http://127.0.0.1:1")
    assert said.exit_code == 0, said.output
    assert "$TURNSPAN_OTLP_ENDPOINT must be set where Claude Code is started" in said.output
    assert not (place.claude / "turnspan" / "config.toml").exists()


def test_a_malformed_file_stops_before_anything_is_stored(place, monkeypatch, server):
    """No keys are asked for if the settings cannot be written."""
    place.write(b"{,}")
    before = place.files()
    said = run(
        place, monkeypatch, "install", "--to", "otlp", "--endpoint", server.url, TURNSPAN_OTLP_HEADERS="x-team=right"
    )
    assert "malformed" in str(said.exception)
    assert place.files() == before
    assert server.seen == []
    assert "malformed" in run(place, monkeypatch, "uninstall").output
    assert isinstance(run(place, monkeypatch, "uninstall", "--scope", "user").exception, ConfigError)


def test_uninstall_reports_remaining_registrations(place, monkeypatch):
    """The plugin and custom commands are not removed, but reported."""
    add_plugin(place, "turnspan@turnspan", stop("find-turnspan"))
    said = run(place, monkeypatch, "uninstall")
    assert "still registered in plugin turnspan@turnspan" in said.output


def test_the_plugin_is_explained(place, monkeypatch):
    """--plugin registers nothing: it records this turnspan for the plugin, and prints the two commands."""
    said = run(place, monkeypatch, "install", "--plugin")
    directory = plugin_directory(this_runtime())
    assert f"claude plugin marketplace add {shlex.quote(str(directory))}" in said.output
    assert list(place.files()) == [place.claude / "turnspan" / "runtime"]


def test_the_recorded_runtime_is_replaced(place):
    """The plugin starts the turnspan that was installed last."""
    remember_runtime(place.env, RUNTIME)
    remember_runtime(place.env, Runtime(Path("/new/python"), Path("/new"), None))
    path = place.claude / "turnspan" / "runtime"
    assert path.read_text() == "/new/python\n/new\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def talk(place, dialogue, *command):
    """Run `install`, or another command, in a terminal and answer its questions; return the screen and the exit code."""
    code = f"from turnspan.cli import main; main({list(command or ['install'])})"
    env = {**place.env, "PATH": "/usr/bin:/bin", "TERM": "dumb", "LANG": "C.UTF-8"}
    pty = pytest.importorskip("pty", reason="POSIX only")
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(place.project)
        os.execve(sys.executable, [sys.executable, "-X", "utf8", "-c", code], env)
    screen, deadline = b"", time.monotonic() + 30
    for question, answer in [*dialogue, (None, None)]:
        asked_from = len(screen)
        while question is None or question.encode() not in screen[asked_from:]:
            assert time.monotonic() < deadline, screen.decode()
            if select.select([terminal], [], [], 0.2)[0]:
                try:
                    chunk = os.read(terminal, 65536)
                except OSError:  # the other end is closed
                    chunk = b""
                if not chunk:
                    break
                screen += chunk
        if answer is not None:
            os.write(terminal, answer.encode() + b"\n")
    _, status = os.waitpid(pid, 0)
    os.close(terminal)
    return screen.decode(), os.waitstatus_to_exitcode(status)


def stored(place):
    """The destination that was stored."""
    [destination] = tomllib.loads((place.claude / "turnspan" / "config.toml").read_text())["destinations"].values()
    return destination


def test_a_terminal_is_asked_and_secrets_are_not_shown(place, server):
    """On a terminal it asks for the destination, the server and the keys; after a refusal only for the secret key.

    The URL that was typed is kept: a secret key is never sent to another server than the one it was typed for.
    """
    screen, code = talk(
        place,
        [
            ("Send traces to", "langfuse"),
            ("Langfuse URL", server.url),
            ("Public key", "pk-lf-1"),
            ("Secret key", "sk-lf-wrong"),
            ("Try again", ""),
            ("Secret key", "right"),
            ("Apply these changes?", "y"),
        ],
    )
    assert code == 0, screen
    assert "does not accept these credentials" in screen
    assert screen.count("Langfuse URL") == screen.count("Public key") == 1
    assert "sk-lf-wrong" not in screen
    assert "right" not in screen
    assert (stored(place)["base_url"], stored(place)["secret_key"]) == (server.url, "right")
    assert len(server.seen) == 2
    assert "hooks" in json.loads(place.path().read_bytes())


def test_a_second_refusal_asks_for_everything_and_proposes_what_was_typed(place, server):
    """Enter keeps the URL and the public key; no other server is proposed, so none gets the keys."""
    screen, code = talk(
        place,
        [
            ("Send traces to", "langfuse"),
            ("Langfuse URL", server.url),
            ("Public key", "pk-lf-1"),
            ("Secret key", "wrong"),
            ("Try again", "r"),
            ("Secret key", "wrong again"),
            ("Try again", "r"),
            (f"[{server.url}]", ""),
            ("[pk-lf-1]", ""),
            ("Secret key", "right"),
            ("Apply these changes?", ""),
        ],
    )
    assert code == 0, screen
    assert stored(place) == {
        "type": "langfuse",
        "base_url": server.url,
        "public_key": "pk-lf-1",
        "secret_key": "right",
    }
    assert len(server.seen) == 3


def test_a_server_that_is_down_keeps_the_answers_too(place, server):
    """The URL can be corrected; it is proposed as it was typed, not replaced by a default."""
    screen, code = talk(
        place,
        [
            ("Send traces to", "otlp"),
            ("OTLP endpoint", "http://127.0.0.1:1"),
            ("Headers", "x-team=right"),
            ("Try again", ""),
            ("OTLP endpoint [http://127.0.0.1:1]", server.url),
            ("Headers", "x-team=right"),
            ("Apply these changes?", "y"),
        ],
    )
    assert code == 0, screen
    assert stored(place)["endpoint"] == server.url
    assert "x-team=right" not in screen


def test_a_server_that_is_down_can_be_saved_anyway(place):
    """A server that is not running yet is saved without a test, with what was typed."""
    screen, code = talk(
        place,
        [
            ("Send traces to", "langfuse"),
            ("Langfuse URL", "http://127.0.0.1:1"),
            ("Public key", "pk-lf-1"),
            ("Secret key", "later"),
            ("Try again", "s"),
            ("Apply these changes?", "y"),
        ],
    )
    assert code == 0, screen
    assert stored(place) == {
        "type": "langfuse",
        "base_url": "http://127.0.0.1:1",
        "public_key": "pk-lf-1",
        "secret_key": "later",
    }
    assert "later" not in screen.replace("Retry later", "")


def test_the_regions_of_langfuse_are_listed_and_can_be_named(place, monkeypatch):
    """The dialog lists the regions; a short name is enough, there and for --endpoint."""
    screen, code = talk(place, [("Send traces to", "langfuse"), ("Langfuse URL", "\x03")])
    assert code == 130
    assert all(url in screen for _, url in LANGFUSE_REGIONS)
    said = run(
        place, monkeypatch, "install", "--to", "langfuse", "--endpoint", "jp", "--public-key", "pk", "--no-check",
        LANGFUSE_SECRET_KEY="sk",
    )  # fmt: skip
    assert said.exit_code == 0, said.output
    assert stored(place)["base_url"] == "https://jp.cloud.langfuse.com"
    assert "destination: langfuse (https://jp.cloud.langfuse.com" in said.output


def test_a_script_prints_which_server_gets_the_keys(place, monkeypatch, server):
    """Without a terminal the server is named before it is contacted, and the destination at the end."""
    said = run(
        place, monkeypatch, "install", "--to", "langfuse", "--endpoint", server.url, "--public-key", "pk",
        LANGFUSE_SECRET_KEY="right",
    )  # fmt: skip
    assert said.stdout.startswith(f"testing {server.url}\n")
    assert f"destination: langfuse ({server.url}, from " in said.stdout


def test_install_says_what_to_do_next(place, monkeypatch):
    """The last lines name the commands that show something."""
    said = run(place, monkeypatch, "install")
    assert [line.split()[1] for line in said.stdout.splitlines()[-3:]] == ["demo", "status", "backfill"]


def test_the_change_is_summarised_and_d_shows_it(place):
    """The question comes after one line; `d` prints the diff and asks again."""
    place.write({"a": 1})
    screen, code = talk(place, [("Send traces to", ""), ("Apply these changes?", "d"), ("Apply these changes?", "y")])
    assert code == 0, screen
    before, _, after = screen.partition("Apply these changes?")
    assert "This adds 5 hooks (Stop, " in before
    assert "+" not in before
    assert '+  "hooks": {' in after


def test_the_user_can_decline(place):
    """Declined at the end, nothing is written."""
    screen, code = talk(place, [("Send traces to", ""), ("Apply these changes?", "n")])
    assert code == 1, screen
    assert list(place.files()) == []


def test_uninstall_does_not_claim_to_know_a_malformed_file(place, monkeypatch):
    """Whether turnspan is registered in a file that cannot be read is unknown, and the exit code is 1."""
    place.write(b"{,}")
    said = run(place, monkeypatch, "uninstall")
    assert said.exit_code == 1
    assert "is not registered" not in said.output
    assert "unknown" in said.output


# ---- purge


def used_home(place, monkeypatch):
    """Install with a key, in the user's settings and in two projects, and leave state, traces and a log behind."""
    original = place.write({"a": 1})
    run(
        place, monkeypatch, "install", "--to", "langfuse", "--public-key", "pk", "--no-check", LANGFUSE_SECRET_KEY="sk"
    )  # fmt: skip
    run(place, monkeypatch, "install", "--scope", "local")
    other = place.project.parent / "another"
    other.mkdir()
    here, place.project = place.project, other
    run(place, monkeypatch, "install", "--scope", "project")
    place.project = here
    for name in ("state/s.json", "state/.hold-x", "traces/traces-000001.jsonl", "turnspan.log", "index.sqlite3"):
        path = place.claude / "turnspan" / name
        path.parent.mkdir(mode=0o700, exist_ok=True)
        path.write_text("x")
    return original


def test_purge_removes_everything_that_was_written(place, monkeypatch):
    """Hooks of all projects, keys, state and traces; the settings are as before, and transcripts are kept."""
    original = used_home(place, monkeypatch)
    transcript = place.claude / "projects" / "-p" / "s.jsonl"
    transcript.parent.mkdir(parents=True)
    transcript.write_text("{}")
    before = place.files()
    said = run(place, monkeypatch, "uninstall", "--purge", "--dry-run")
    assert "config.toml: settings and keys" in said.stdout
    assert "sk" not in said.stdout.replace("disk", "")
    assert place.files() == before
    said = run(place, monkeypatch, "uninstall", "--purge", "--yes")
    assert said.exit_code == 0, said.output
    assert place.files() == {place.path(): original, transcript: b"{}"}
    assert not (place.project.parent / "another" / ".claude").exists()
    assert "uv tool uninstall turnspan" in said.stdout
    said = run(place, monkeypatch, "uninstall", "--purge", "--yes")
    assert (said.exit_code, "nothing to delete" in said.stdout) == (0, True)


def test_purge_asks_and_without_a_terminal_needs_yes(place, monkeypatch):
    """Nothing is deleted and no hook is removed unless the user agrees."""
    used_home(place, monkeypatch)
    before = place.files()
    said = run(place, monkeypatch, "uninstall", "--purge")
    assert said.exception.hint == "use --yes"
    assert place.files() == before
    assert run(place, monkeypatch, "uninstall", "--purge", "--scope", "user").exit_code == 2
    screen, code = talk(place, [("delete these files?", "n")], "uninstall", "--purge")
    assert (code, place.files() == before) == (1, True), screen
    screen, code = talk(place, [("delete these files?", "y")], "uninstall", "--purge")
    assert code == 0, screen
    assert not (place.claude / "turnspan").exists()


@pytest.mark.parametrize("options", [[], ["--purge", "--yes"]], ids=["", "purge"])
def test_uninstall_in_the_home_directory(place, monkeypatch, options):
    """There the project's settings are the user's own file, which is changed once."""
    original = place.write({"a": 1})
    place.project = place.claude.parent
    run(place, monkeypatch, "install")
    said = run(place, monkeypatch, "uninstall", *options)
    assert said.exit_code == 0, said.output
    assert said.stdout.count("is no longer registered") == 1
    assert place.path().read_bytes() == original


def test_purge_deletes_a_link_and_not_its_target(place, monkeypatch, tmp_path):
    """A config.toml that is a link into a dotfiles repository is the user's own file."""
    own = tmp_path / "dotfiles.toml"
    own.write_text('[destinations.local]\ndirectory = "~/elsewhere"\n')
    elsewhere = Path(place.env["HOME"]) / "elsewhere"
    elsewhere.mkdir()
    for name in ("traces-000001.jsonl", "traces-000001.index", ".lock", "notes.txt"):
        (elsewhere / name).write_text("x")
    (place.claude / "turnspan").mkdir(mode=0o700)
    (place.claude / "turnspan" / "config.toml").symlink_to(own)
    said = run(place, monkeypatch, "uninstall", "--purge", "--yes")
    assert said.exit_code == 0, said.output
    assert "settings and keys (only the link)" in said.stdout
    assert own.exists()
    assert [path.name for path in elsewhere.iterdir()] == ["notes.txt"]


def test_purge_keeps_the_backups_if_a_settings_file_cannot_be_read(place, monkeypatch):
    """A malformed file may still have our hooks, and its backup is in turnspan's directory."""
    used_home(place, monkeypatch)
    place.write(b"{,}")
    said = run(place, monkeypatch, "uninstall", "--purge", "--yes")
    assert said.exit_code == 1
    assert "nothing was deleted" in said.output
    assert (place.claude / "turnspan" / "config.toml").exists()


def test_uninstall_says_how_to_remove_the_plugin(place, monkeypatch):
    """The plugin is Claude Code's to remove."""
    add_plugin(place, "turnspan@turnspan", stop("find-turnspan"))
    said = run(place, monkeypatch, "uninstall", "--purge", "--yes")
    assert "run `claude plugin uninstall turnspan@turnspan` to remove it" in said.output
