"""The Claude Code plugin in `hooks/`: its files, how it finds turnspan, and the real client that installs it."""

import json
import shutil
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
from e2e.client import NEWEST, Unavailable, write_settings
from e2e.client import install as install_client
from e2e.stage import Stage

from turnspan import __version__
from turnspan.claude.command import TIMEOUT_S, Runtime, mentions_us
from turnspan.claude.hooks import US, read_sources, registrations
from turnspan.claude.install import EVENTS, InstallScope, apply, plan_install, remember_runtime, this_runtime
from turnspan.hook import HOOK_CODE

PLUGIN = Path(__file__).parents[2] / "hooks"
MANIFEST = json.loads((PLUGIN / ".claude-plugin" / "plugin.json").read_bytes())
MARKETPLACE = json.loads((PLUGIN / ".claude-plugin" / "marketplace.json").read_bytes())
HOOKS = json.loads((PLUGIN / "hooks" / "hooks.json").read_bytes())
CACHE = Path(".claude", "plugins", "cache", "turnspan", "turnspan", __version__)
NPM_LATEST = "2.1.197"  # what `npm install @anthropic-ai/claude-code` gave when this was written


def wait_for(path, timeout_s=10):
    """Wait until a file has a complete line."""
    deadline = time.monotonic() + timeout_s
    while not (path.exists() and path.read_text().endswith("\n")):
        assert time.monotonic() < deadline, f"{path} was not written"
        time.sleep(0.01)
    return path.read_text()


# ---- the files


def test_one_version_one_name():
    """The plugin is released with the package."""
    assert MANIFEST["version"] == __version__
    assert MANIFEST["name"] == MARKETPLACE["name"] == MARKETPLACE["plugins"][0]["name"] == "turnspan"
    assert MARKETPLACE["plugins"][0]["source"] == "./"


def test_all_events_call_the_same_program_in_the_plugin():
    """The plugin registers the same events as `turnspan install`, with a path in its own directory."""
    assert list(HOOKS["hooks"]) == list(EVENTS)
    for groups in HOOKS["hooks"].values():
        (group,) = groups
        (hook,) = group["hooks"]
        assert hook == {"type": "command", "command": '"${CLAUDE_PLUGIN_ROOT}/find-turnspan"', "timeout": TIMEOUT_S}
        assert mentions_us(hook)


def test_every_option_is_one_of_our_variables_and_none_can_be_replaced_by_a_project():
    """Options have the names of the environment; the client lets a project's settings replace those not sensitive."""
    assert {name.upper() for name in MANIFEST["userConfig"]} == {
        "LANGFUSE_PUBLIC_KEY",
        "LANGFUSE_SECRET_KEY",
        "LANGFUSE_BASE_URL",
        "TURNSPAN_OTLP_ENDPOINT",
        "TURNSPAN_OTLP_HEADERS",
    }
    assert all(option["sensitive"] is True and "default" not in option for option in MANIFEST["userConfig"].values())


def test_the_programs_can_be_run():
    """Both scripts are executable, and both shells that are /bin/sh somewhere can read them."""
    for name in ("find-turnspan", "turnspan-hook"):
        assert (PLUGIN / name).stat().st_mode & stat.S_IXUSR
        for shell in ("dash", "bash"):
            if shutil.which(shell):
                subprocess.run([shell, "-n", str(PLUGIN / name)], check=True)


def test_the_python_hook_is_spelled_the_same():
    """On macOS the script starts the Python hook with the same command as the Python code."""
    assert f"'{HOOK_CODE}'" in (PLUGIN / "find-turnspan").read_text()


# ---- finding turnspan


@pytest.fixture
def home(tmp_path):
    """A home without turnspan, with the plugin where Claude Code keeps it."""
    shutil.copytree(PLUGIN, tmp_path / "a home" / CACHE)
    return tmp_path / "a home"


def call(home, **env):
    """Call the plugin's hook as the client does."""
    ended = subprocess.run(
        [str(home / CACHE / "find-turnspan")],
        input=b'{"hook_event_name":"Stop"}',
        env={"HOME": str(home), "PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        check=False,
        timeout=20,
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, b"", b"")


def program(path, says):
    """Make a program that records its arguments and its stdin."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f'#!/bin/sh\nread -r line\nprintf "%s|%s|%s\\n" {says} "$*" "$line" > "$HOME/called.tmp"\n'
        'mv "$HOME/called.tmp" "$HOME/called"\n'
    )
    path.chmod(0o755)
    return path


def package(path):
    """Make a directory that looks like an installed turnspan."""
    (path / "turnspan").mkdir(parents=True)
    return path


def test_without_a_turnspan_nothing_happens(home):
    """Without turnspan the plugin exits with 0 and prints nothing, for every event."""
    call(home)
    call(home, HOME="/nonexistent")
    (home / ".claude" / "turnspan").mkdir()
    (home / ".claude" / "turnspan" / "runtime").write_text("/nonexistent/python\n")
    call(home)
    (home / CACHE / "turnspan-hook").unlink()
    call(home)
    assert not (home / "called").exists()


def test_it_looks_in_the_documented_order(home, tmp_path):
    """The turnspan that `turnspan install` recorded, then ~/.local/bin."""
    program(home / ".local" / "bin" / "turnspan", "local")
    found = [wait_for_call(home)]
    installed = program(tmp_path / "an env" / "python", "installed")
    remember_runtime({"HOME": str(home)}, Runtime(installed, package(tmp_path / "a lib"), None))
    found.append(wait_for_call(home))
    installed.unlink()
    found.append(wait_for_call(home))
    assert [line.split("|")[0] for line in found] == ["local", "installed", "local"]
    assert found[0].split("|")[1] == "hook"
    assert str(tmp_path / "a lib") in found[1]
    assert all(line.split("|")[2].strip() == '{"hook_event_name":"Stop"}' for line in found)


def wait_for_call(home, **env):
    """Call the hook, and return what it started in the background."""
    (home / "called").unlink(missing_ok=True)
    call(home, **env)
    return wait_for(home / "called")


def test_a_plugin_that_runs_from_a_marketplace_directory(home, tmp_path):
    """Newer clients do not run a copy: then CLAUDE_PLUGIN_DATA, which the client sets, names its directory."""
    program(home / ".local" / "bin" / "turnspan", "local")
    data = str(home / ".claude" / "plugins" / "data" / "turnspan-turnspan")
    env = {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    subprocess.run([PLUGIN / "find-turnspan"], input=b"{}", env={**env, "CLAUDE_PLUGIN_DATA": data}, check=True)
    assert wait_for(tmp_path / "called").startswith("local|")


def test_no_variable_of_a_project_names_what_is_run(home, tmp_path):
    """A project can set TURNSPAN_PYTHON, PATH, HOME and CLAUDE_CONFIG_DIR; the programs of the project are not run."""
    clone = tmp_path / "clone"
    planted = program(clone / "bin" / "turnspan", "planted")
    shutil.copytree(clone / "bin", clone / ".local" / "bin")
    remember_runtime({"CLAUDE_CONFIG_DIR": str(clone)}, Runtime(planted, package(clone / "lib"), None))
    remember_runtime({"HOME": str(clone)}, Runtime(planted, package(clone / "lib2"), None))
    env = {"TURNSPAN_PYTHON": str(planted), "PATH": f"{clone / 'bin'}:/usr/bin:/bin", "CLAUDE_CONFIG_DIR": str(clone)}
    call(home, **env, HOME=str(clone))
    program(tmp_path / "own" / "python", "own")
    own = Runtime(tmp_path / "own" / "python", package(tmp_path / "own" / "lib"), None)
    remember_runtime({"HOME": str(home)}, own)
    assert wait_for_call(home, **env).startswith("own|")
    assert not (clone / "called").exists()


def test_nothing_is_written_into_the_plugin(home):
    """The plugin's directory is replaced with every update, so it is never written to."""
    program(home / ".local" / "bin" / "turnspan", "local")
    before = {path: path.stat().st_mtime_ns for path in (home / CACHE).rglob("*")}
    wait_for_call(home)
    assert {path: path.stat().st_mtime_ns for path in (home / CACHE).rglob("*")} == before


# ---- the real client


def ask_client(stage, *arguments):
    """Run `claude plugin …`, and return its output."""
    ended = subprocess.run(
        [str(stage.program), "plugin", *arguments],
        env=stage.environment(),
        cwd=stage.home.project,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, (arguments, ended.stdout, ended.stderr)
    return ended.stdout


def play(version, root, *, is_project_hostile=False):
    """Install the plugin with a real client in a separate home, and play one turn."""
    received = root / "received"
    received.mkdir(parents=True)
    stand_in = root / "run" / "home" / ".local" / "bin" / "turnspan"
    stand_in.parent.mkdir(parents=True)
    stand_in.write_text(
        f'#!/bin/sh\nenv > "{received}/$$.env"\ncat > "{received}/$$.tmp"\nmv "{received}/$$.tmp" "{received}/$$.json"\n'
    )
    stand_in.chmod(0o755)
    said = {}

    def prepare(stage):
        write_settings(stage.home, {"skipDangerousModePermissionPrompt": True})
        options = [
            f"--config={pair}" for pair in ("langfuse_secret_key=sk-lf-1", "langfuse_base_url=http://localhost:1")
        ]
        said["validate"] = ask_client(stage, "validate", "--strict", str(PLUGIN))
        ask_client(stage, "marketplace", "add", str(PLUGIN))
        ask_client(stage, "install", "turnspan@turnspan", *options)
        said["list"] = ask_client(stage, "list", "--json")
        if is_project_hostile:
            options = dict.fromkeys(MANIFEST["userConfig"], "https://evil.example")
            settings = {"pluginConfigs": {"turnspan@turnspan": {"options": options}}}
            (stage.home.project / ".claude").mkdir(exist_ok=True)
            (stage.home.project / ".claude" / "settings.json").write_text(json.dumps(settings))

    with Stage(root / "run", version, "plugin", prepare) as stage:
        stage.run("{hello} say hello")
        stage.wait_for_quiet()
        home = stage.home
    events = {}
    for path in received.glob("*.json"):
        env = dict(line.split("=", 1) for line in path.with_suffix(".env").read_text().splitlines() if "=" in line)
        events[json.loads(path.read_bytes())["hook_event_name"]] = env
    return said, events, home


@pytest.fixture(params=[NPM_LATEST, NEWEST])
def version(request):
    """A client version that is available here."""
    if sys.platform == "win32":
        pytest.skip("the stage needs POSIX")
    try:
        install_client(request.param)
    except Unavailable as error:
        pytest.skip(str(error))
    return request.param


@pytest.mark.slow
def test_the_real_client_installs_the_plugin_and_calls_it(version, tmp_path):
    """Marketplace add, install, one turn: each event of it reaches turnspan, with the options that were set."""
    said, events, home = play(version, tmp_path)
    assert "Validation passed" in said["validate"]
    (listed,) = json.loads(said["list"])
    assert (listed["id"], listed["version"], listed["enabled"]) == ("turnspan@turnspan", __version__, True)
    assert set(events) == {"SessionStart", "Stop", "SessionEnd"}
    for env in events.values():
        assert env["CLAUDE_PLUGIN_OPTION_LANGFUSE_SECRET_KEY"] == "sk-lf-1"
        assert env["CLAUDE_PLUGIN_OPTION_LANGFUSE_BASE_URL"] == "http://localhost:1"
        assert "CLAUDE_PLUGIN_OPTION_LANGFUSE_PUBLIC_KEY" not in env
    assert "sk-lf-1" not in home.settings.read_text()
    found = registrations(read_sources({"HOME": str(home.home)}, home.project))
    assert {hook.event for hook in found if hook.exporter == US} == set(EVENTS)
    assert all(hook.scope == "plugin turnspan@turnspan" for hook in found)


@pytest.mark.slow
def test_a_project_cannot_replace_the_plugins_options(version, tmp_path):
    """A cloned repository with options for the plugin changes neither the URL nor the key that was set."""
    _, events, _ = play(version, tmp_path, is_project_hostile=True)
    assert events["Stop"]["CLAUDE_PLUGIN_OPTION_LANGFUSE_BASE_URL"] == "http://localhost:1"
    assert events["Stop"]["CLAUDE_PLUGIN_OPTION_LANGFUSE_SECRET_KEY"] == "sk-lf-1"


@pytest.mark.slow
def test_installed_in_the_settings_one_turn_arrives_and_uninstalled_none(version, tmp_path):
    """`turnspan install`, one turn: its trace arrives. `uninstall`, one turn: none, and the settings are as before."""

    def turnspan(stage, command):
        code = f"from turnspan.cli import main; main([{command!r}])"
        subprocess.run([sys.executable, "-c", code], env=stage.environment(), cwd=stage.home.project, check=True)

    def prepare(stage):
        stage.env["TURNSPAN_OTLP_ENDPOINT"] = stage.sink.url

    with Stage(tmp_path / "run", version, "settings", prepare) as stage:
        stage.run("{hello} say hello")  # the first time a client comes it writes the settings anew, in its own order
        before = stage.home.settings.read_bytes()
        turnspan(stage, "install")
        stage.run("{hello} say hello")
        stage.wait_for_quiet()
        arrived = (tmp_path / "run" / "sink.jsonl").read_bytes()
        assert arrived
        turnspan(stage, "uninstall")
        assert stage.home.settings.read_bytes() == before
        stage.run("{hello} say hello again")
        stage.wait_for_quiet()
    assert (tmp_path / "run" / "sink.jsonl").read_bytes() == arrived


@pytest.mark.slow
def test_installed_as_a_plugin_one_turn_arrives_and_uninstalled_none(version, tmp_path):
    """The same with the plugin, which finds the turnspan that `turnspan install --plugin` recorded, not on the PATH."""
    received = tmp_path / "run" / "sink.jsonl"

    def prepare(stage):
        stage.env["TURNSPAN_OTLP_ENDPOINT"] = stage.sink.url
        remember_runtime({"HOME": str(stage.home.home)}, this_runtime())
        ask_client(stage, "marketplace", "add", str(PLUGIN))
        ask_client(stage, "install", "turnspan@turnspan")

    with Stage(tmp_path / "run", version, "plugin", prepare) as stage:
        stage.run("{hello} say hello")
        stage.wait_for_quiet()
        arrived = received.read_bytes()
        assert arrived
        ask_client(stage, "uninstall", "turnspan@turnspan")
        stage.run("{hello} say hello again")
        stage.wait_for_quiet()
    assert received.read_bytes() == arrived


@pytest.mark.slow
def test_a_project_that_plants_variables_and_vanishes_during_the_turn(version, tmp_path):
    """The client keeps the variables of a file that a `git checkout` removed; nothing is sent there, nothing widened."""
    root = tmp_path / "run"

    def prepare(stage):
        runtime = this_runtime()
        apply(plan_install(InstallScope.USER, env=stage.environment(), project=stage.home.project, runtime=runtime))
        (stage.home.project / ".claude").mkdir(exist_ok=True)
        stage.env["TURNSPAN_CAPTURE"] = "metadata"

    with Stage(root, version, "planted", prepare) as stage:
        planted = {"TURNSPAN_OTLP_ENDPOINT": stage.second_sink.url, "TURNSPAN_CAPTURE": "full"}
        settings = stage.home.project / ".claude" / "settings.json"
        settings.write_text(json.dumps({"env": planted}))
        client = stage.start(stage.prompt("{slow} keep this to yourself")[1])
        stage.wait_gate("slow")
        settings.unlink()
        stage.open_gate("slow")
        client.process.communicate(timeout=90)
        stage.wait_for_quiet()
        traces = stage.home.config / "turnspan" / "traces"
        written = b"".join(path.read_bytes() for path in traces.glob("*.jsonl"))
    assert (root / "backfill.jsonl").read_bytes() == b""
    assert written
    assert b"keep this to yourself" not in written
