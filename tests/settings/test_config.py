"""Settings: where values come from, and what happens to invalid ones."""

import json
import os
import re
import sys
from pathlib import Path

import pytest
from only_posix import make_fifo

from turnspan.settings.config import OPTIONS, SETTINGS, load_config, narrowed, project_narrowing
from turnspan.settings.matrix import OPTIONS_ROW, ROWS, Power, SettingSource, matrix_table
from turnspan.settings.options import POLICY, table
from turnspan.settings.toml_text import read_toml

ROOT = Path(__file__).parents[2]
SECRET = "sk-lf-0123456789"
KEYS = {"LANGFUSE_PUBLIC_KEY": "pk-lf-1", "LANGFUSE_SECRET_KEY": SECRET}


@pytest.fixture
def place(tmp_path):
    """A separate home directory."""
    return Place(tmp_path)


@pytest.fixture
def backend_of_another_package(tmp_path, monkeypatch):
    """An installed package with a backend: its type."""
    info = tmp_path / "site" / "turnspan_sqlite-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: turnspan-sqlite\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[turnspan.backends]\nsqlite = turnspan_sqlite:open_backend\n")
    monkeypatch.syspath_prepend(str(info.parent))
    return "sqlite"


class Place:
    def __init__(self, base):
        self.base = base
        self.claude = base / "claude"
        self.file = self.claude / "turnspan" / "config.toml"
        self.project = base / "project"
        self.project.mkdir()

    def write(self, text, mode=0o600):
        """Write the user's config file."""
        self.file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.file.write_text(text)
        self.file.chmod(mode)

    def load(self, *, project=None, **env):
        """Load the settings."""
        return load_config({"HOME": str(self.base), "CLAUDE_CONFIG_DIR": str(self.claude), **env}, project)

    def hook(self, **env):
        """Load the settings as a hook in the project does."""
        env = {"HOME": str(self.base), "CLAUDE_CONFIG_DIR": str(self.claude), **env}
        return load_config(env, project=self.project, transcript=self.claude / "projects" / "-slug" / "s.jsonl")

    def narrow(self, text, directory=None):
        """Write a project's file."""
        path = (directory or self.project) / ".claude" / "turnspan.toml"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path


# ---- precedence


def test_nothing_needs_to_be_set(place):
    """Without settings, traces are written to local files, with secrets masked."""
    config = place.load()
    assert config.problems == ()
    assert config.is_enabled
    [destination] = config.destinations
    assert (destination.name, destination.type, destination.source) == ("local", "local", "default")
    assert destination.policy["capture"] == "redacted"
    assert set(config.sources.values()) == {"default"}


def test_the_environment_overrides_the_file(place):
    """Each value has its source."""
    place.write('capture = "full"\ntags = ["a"]\n')
    config = place.load(TURNSPAN_TAGS="b, c")
    assert (config.values["capture"], config.sources["capture"]) == ("full", str(place.file))
    assert (config.values["tags"], config.sources["tags"]) == (["b", "c"], "$TURNSPAN_TAGS")


@pytest.mark.parametrize(
    ("text", "value"), [("0", False), ("No", False), (" off ", False), ("1", True), ("TRUE", True)]
)
def test_switches_in_the_environment(place, text, value):
    """All usual spellings of true and false are accepted."""
    config = place.load(TURNSPAN_RECOVER=text)
    assert config.values["recover"] is value
    assert config.problems == ()


def test_variables_in_claude_codes_settings_apply_on_the_command_line(place):
    """With keys under `env` in settings.json, the command line has the same destinations as the hook."""
    place.claude.mkdir()
    (place.claude / "settings.json").write_text(json.dumps({"env": {**KEYS, "TURNSPAN_CAPTURE": "metadata", "N": 1}}))
    config = place.load()
    assert [destination.type for destination in config.destinations] == ["langfuse"]
    assert config.destinations[0].source == f"LANGFUSE_PUBLIC_KEY in {place.claude / 'settings.json'}"
    assert config.values["capture"] == "metadata"
    assert place.load(TURNSPAN_CAPTURE="full").values["capture"] == "full"


# ---- destinations


def test_several_destinations_each_with_its_own_policy(place):
    """A destination inherits the settings that it does not override."""
    place.write(
        'capture = "metadata"\n[destinations.jaeger]\ntype = "otlp"\nendpoint = "http://localhost:4318"\n'
        f'[destinations.langfuse]\npublic_key = "pk"\nsecret_key = "{SECRET}"\ncapture = "full"\nthinking = false\n'
    )
    config = place.load()
    assert config.problems == ()
    jaeger, langfuse = config.destinations
    assert (jaeger.type, jaeger.policy["capture"], jaeger.policy["thinking"]) == ("otlp", "metadata", True)
    assert (langfuse.type, langfuse.policy["capture"], langfuse.policy["thinking"]) == ("langfuse", "full", False)


def test_the_environment_alone_is_enough(place):
    """Environment variables alone can configure two destinations."""
    config = place.load(
        TURNSPAN_OTLP_ENDPOINT="http://localhost:4318",
        TURNSPAN_OTLP_HEADERS="Authorization=Bearer%20x, x-team=a",
        TURNSPAN_OTLP_TIMEOUT_S="3",
        LANGFUSE_HOST="https://lf.example",
        **KEYS,
    )
    otlp, langfuse = config.destinations
    assert otlp.options["headers"] == {"Authorization": "Bearer x", "x-team": "a"}
    assert otlp.options["timeout_s"] == 3.0
    assert langfuse.options == {"public_key": "pk-lf-1", "secret_key": SECRET, "base_url": "https://lf.example"}


OWN = f'[destinations.langfuse]\nbase_url = "https://own.example"\npublic_key = "pk"\nsecret_key = "{SECRET}"\n'


@pytest.mark.parametrize(
    "env",
    [
        {"LANGFUSE_BASE_URL": "https://evil.example"},
        {"LANGFUSE_PUBLIC_KEY": "pk-2", "LANGFUSE_SECRET_KEY": "sk-2"},
        {"LANGFUSE_PUBLIC_KEY": "pk-2"},
        {"CC_LANGFUSE_SECRET_KEY": "sk-2"},
        {"TURNSPAN_OTLP_ENDPOINT": "https://evil.example", "TURNSPAN_OTLP_HEADERS": "nonsense"},
        {"CLAUDE_PLUGIN_OPTION_TURNSPAN_OTLP_ENDPOINT": "https://evil.example"},
    ],
    ids="+".join,
)
def test_a_file_that_names_destinations_decides_alone(place, env):
    """Variables neither redirect, replace nor drop a destination of the file. Each that is ignored is named."""
    place.write(OWN)
    config = place.load(**env)
    [kept] = config.destinations
    assert kept.options == {"base_url": "https://own.example", "public_key": "pk", "secret_key": SECRET}
    assert config.problems == ()
    assert sorted(config.ignored) == sorted(f"${name} is ignored: {place.file} names the destinations" for name in env)


def test_the_environment_can_only_restrict_a_file_that_names_destinations(place):
    """It can disable export and reduce what is exported, also to a destination with a capture mode of its own."""
    place.write(f'enabled = false\nrecover = false\n{OWN}capture = "full"\n')
    config = place.load(TURNSPAN_ENABLED="1", TURNSPAN_RECOVER="1", TURNSPAN_CAPTURE="full", TURNSPAN_TAGS="a")
    assert (config.is_enabled, config.values["recover"], config.values["capture"]) == (False, False, "redacted")
    assert (config.destinations[0].policy["capture"], config.values["tags"]) == ("full", ["a"])
    assert [sentence.split()[0] for sentence in config.ignored] == [
        "$TURNSPAN_ENABLED",
        "$TURNSPAN_CAPTURE",
        "$TURNSPAN_RECOVER",
    ]
    place.write(f'{OWN}capture = "full"\n')
    for text, mode in (("metadata", "metadata"), ("redacted", "redacted"), ("metdata", "metadata"), ("full", "full")):
        assert place.load(TURNSPAN_CAPTURE=text).destinations[0].policy["capture"] == mode
    assert not place.load(TURNSPAN_ENABLED="0").is_enabled
    assert place.load(TURNSPAN_ENABLED="0").is_session_off
    for text in (OWN, f'{OWN}turn_names = "prompt"\n'):
        place.write(text)
        assert place.load(TURNSPAN_TURN_NAMES="number").destinations[0].policy["turn_names"] == "number"
    place.write(f'turn_names = "number"\n{OWN}')
    assert place.load(TURNSPAN_TURN_NAMES="prompt").destinations[0].policy["turn_names"] == "number"


def test_without_destinations_in_the_file_the_environment_decides(place):
    """In CI, in a container, or with two exports in the shell, variables override the other settings of the file."""
    place.write('capture = "metadata"\nenabled = false\n')
    config = place.load(TURNSPAN_CAPTURE="full", TURNSPAN_ENABLED="1", **KEYS)
    assert (config.is_enabled, config.values["capture"], config.ignored) == (True, "full", ())
    assert [destination.type for destination in config.destinations] == ["langfuse"]


def test_switching_from_another_hook_needs_no_changes(place):
    """CC_LANGFUSE_* is accepted, and overrides LANGFUSE_*, which may be set for other programs."""
    theirs = {"CC_LANGFUSE_PUBLIC_KEY": "pk-cc", "CC_LANGFUSE_SECRET_KEY": "sk-cc"}
    [found] = place.load(**theirs, **KEYS, LANGFUSE_BASE_URL="https://us.example").destinations
    assert found.options == {"public_key": "pk-cc", "secret_key": "sk-cc", "base_url": "https://us.example"}
    [found] = place.load(
        **theirs, CC_LANGFUSE_HOST="https://cc.example", LANGFUSE_HOST="https://x.example"
    ).destinations
    assert found.options["base_url"] == "https://cc.example"


def test_options_of_the_plugin_have_the_lowest_precedence(place):
    """Claude Code passes the plugin's options with a prefix of its own."""
    options = {f"CLAUDE_PLUGIN_OPTION_{name}": value for name, value in KEYS.items()}
    options |= {"CLAUDE_PLUGIN_OPTION_TURNSPAN_OTLP_ENDPOINT": "http://localhost:1"}
    found = {destination.name: destination for destination in place.load(**options).destinations}
    assert found["langfuse"].options == {"public_key": "pk-lf-1", "secret_key": SECRET}
    assert found["otlp"].options == {"endpoint": "http://localhost:1"}
    config = place.load(**options, LANGFUSE_PUBLIC_KEY="pk-2", LANGFUSE_SECRET_KEY="sk-2")
    assert {destination.name: destination.options.get("public_key") for destination in config.destinations} == {
        "langfuse": "pk-2",
        "otlp": None,
    }


def test_options_of_a_third_party_backend_are_passed_on(place, backend_of_another_package):
    """Such a backend checks its own options."""
    place.write(f'[destinations.db]\ntype = "{backend_of_another_package}"\npath = "/x"\ncapture = "full"\n')
    [found] = place.load().destinations
    assert (found.type, found.options, found.policy["capture"]) == ("sqlite", {"path": "/x"}, "full")


# ---- problems


PROBLEMS = {
    "unknown setting": ("\ncaptur = 'full'\n", "config.toml:2: unknown setting 'captur' (did you mean 'capture'?)"),
    "no such choice": ("capture = 'all'\n", "config.toml:1: capture is 'all'; allowed: metadata, redacted, full"),
    "no switch": ("\n\nthinking = 'yes'", "config.toml:3: thinking is 'yes'; allowed: true or false"),
    "no number": ("attribute_max_bytes = true", "attribute_max_bytes is True; allowed: an integer"),
    "no list of texts": ("tags = [1]", "tags is [1]; allowed: a list of strings"),
    "no destinations": ("destinations = 3", "config.toml:1: `destinations` must be tables"),
    "no table": (
        "[destinations]\nx = 3",
        "config.toml:2: [destinations.x] must be a table with a type; allowed: otlp, ",
    ),
    "no type": (
        "[destinations.jaeger]\nendpoint = 'http://localhost:4318'",
        'config.toml:1: [destinations.jaeger] has no type (did you mean `type = "otlp"`?); nothing is sent to jaeger',
    ),
    "no such type": (
        "[destinations.jaeger]\nendpoint = 'http://localhost:4318'\ntype = 'otpl'",
        "config.toml:3: [destinations.jaeger] type is 'otpl' (did you mean `type = \"otlp\"`?",
    ),
    "no type, with keys": (
        "[destinations.mine]\npublic_key = 'a'\nsecret_key = 'b'",
        'did you mean `type = "langfuse"`?',
    ),
    "a name like a type": ("[destinations.langfus]\nx = 1", 'has no type (did you mean `type = "langfuse"`?'),
    "a list": (
        "[destinations.x]\ntype = []",
        "config.toml:2: [destinations.x] type is []; allowed: otlp, langfuse, local, sdk",
    ),
    "unknown option": (
        "[destinations.a]\ntype = 'otlp'\nendpoint = 'http://a'\n\n[destinations.b]\ntype = 'otlp'\nendpont = 'x'",
        "config.toml:7: [destinations.b] unknown option 'endpont' (did you mean 'endpoint'?); nothing",
    ),
    "wrong option": (
        "capture = 'full'\n[destinations.otlp]\ncapture = 'metadta'",
        "config.toml:3: [destinations.otlp] capture is 'metadta'",
    ),
    "an option of another type": ("[destinations.local]\nendpoint = 'x'", "unknown option 'endpoint'"),
    "not TOML": ("a = 1\nb = = 2\n", "config.toml:2 is not valid TOML: Invalid value (at line 2, column 5): b = …"),
    "no bracket": ("\n[destinations.jaeger\n", "column 21): [destinations.jaeger; nothing is exported"),
    "a path of Windows": (
        'prices = "C:\\Users\\ada\\prices.json"',
        "): prices = …; a backslash needs single quotes, 'C:\\…'; nothing is exported",
    ),
}


@pytest.mark.parametrize(("text", "sentence"), PROBLEMS.values(), ids=PROBLEMS)
def test_problems_name_the_file_and_the_line(place, text, sentence):
    """The message has the file, the line, the setting, its value and what is allowed. The rest is used."""
    place.write(text)
    config = place.load()
    assert len(config.problems) == 1
    assert sentence in config.problems[0]


def test_an_invalid_privacy_setting_becomes_the_most_restrictive_one(place):
    """An invalid value is replaced by the most restrictive one."""
    place.write('capture = "metdata"\nthinking = "no"\nmask_paths = "yes"\n')
    config = place.load()
    assert config.values["capture"] == "metadata"
    assert config.values["thinking"] is False
    assert config.values["mask_paths"] is True
    assert all("for now" in problem for problem in config.problems)
    assert place.load(TURNSPAN_ENABLED="maybe").is_enabled is False
    place.write("off = 3\n")
    assert place.load().narrowing("/anywhere").is_off


@pytest.mark.parametrize("text", ["enabled = false\nx = = 1\n", "patterns = 3\n", "[[[["])
def test_an_unreadable_config_file_disables_export(place, text):
    """Nothing is exported then, whatever the environment says."""
    place.write(text)
    config = place.load(TURNSPAN_ENABLED="1", **KEYS)
    assert not config.is_enabled
    assert "nothing is exported" in config.problems[0]


def test_a_destination_with_an_invalid_option_is_not_used(place):
    """A misspelt base_url must not send the keys of a self-hosted server to the cloud."""
    place.write(
        f'[destinations.langfuse]\npublic_key = "pk"\nsecret_key = "{SECRET}"\nbase_ulr = "https://own.example"\n'
    )
    config = place.load()
    assert [destination.name for destination in config.destinations] == ["local"]
    assert "nothing is sent to langfuse until this is fixed" in config.problems[0]
    assert SECRET not in str(config.problems)
    config = place.load(TURNSPAN_OTLP_ENDPOINT="http://localhost:1", TURNSPAN_OTLP_HEADERS="nonsense")
    assert [destination.name for destination in config.destinations] == ["local"]


def test_no_message_contains_a_credential(place):
    """No header, no key of the wrong type, no part of a line that is not valid TOML."""
    place.write(f'[destinations.langfuse]\npublic_key = "pk"\nsecret_key = ["{SECRET}"]\n')
    assert SECRET not in str(place.load().problems)
    place.write(f'[destinations.otlp]\nendpoint = "http://localhost:1"\nheaders = {{ Authorization = ["{SECRET}"] }}\n')
    assert SECRET not in str(place.load(TURNSPAN_OTLP_HEADERS=SECRET).problems)
    for line in (
        f'secret_key = "{SECRET}" "{SECRET}"',
        f"secret_key = {SECRET}",
        SECRET,
        f'["{SECRET}"',
        f"{SECRET} =",
        "QUJDREVGR0g=",
        "QUJDREVGRw==",
    ):
        place.write(f"a = 1\n{line}\n")
        [problem] = place.load().problems
        assert "config.toml:2 is not valid TOML" in problem
        assert SECRET not in problem
        assert "QUJD" not in problem


@pytest.mark.parametrize("missing", KEYS)
def test_langfuse_needs_both_keys(place, missing):
    """The message names the missing key."""
    config = place.load(**{name: value for name, value in KEYS.items() if name != missing})
    assert [destination.name for destination in config.destinations] == ["local"]
    assert config.problems == (
        f"${missing} is not set, and Langfuse needs both keys; nothing is sent to langfuse until this is fixed",
    )


@pytest.mark.skipif(sys.platform == "win32", reason="modes")
def test_a_config_file_writable_by_other_users_is_ignored(place):
    """Another user could have set any endpoint in it; a link to a private file is accepted."""
    place.write("user_id = 'ada'", mode=0o666)
    config = place.load()
    assert (config.values["user_id"], config.is_enabled) == ("", False)
    assert "chmod go-w" in config.problems[0]
    place.file.chmod(0o644)
    assert place.load().values["user_id"] == "ada"
    place.file.rename(place.base / "elsewhere.toml")
    place.file.symlink_to(place.base / "elsewhere.toml")
    assert place.load().values["user_id"] == "ada"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (make_fifo, "not a regular file"),
        (lambda path: path.mkdir(), "not a regular file"),
        (lambda path: path.write_bytes(b"#" * 300_000), "longer than"),
        (lambda path: path.write_bytes(b"a = " + b"[" * 100_000), "nested too deep"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "not UTF-8"),
    ],
    ids=["FIFO", "directory", "huge", "deep", "binary"],
)
def test_any_kind_of_file_gives_a_problem_and_never_blocks(tmp_path, make, why):
    """No file in a project's directory can block or crash a worker."""
    path = tmp_path / "x.toml"
    make(path)
    assert why in read_toml(path).problem


# ---- projects


def test_a_project_can_disable_restrict_and_tag(place):
    """The restrictions apply in its directory and below."""
    place.narrow('capture = "metadata"\nthinking = false\ntags = ["loom"]\n')
    (place.project / "deep" / "down").mkdir(parents=True)
    found = place.load().narrowing(str(place.project / "deep" / "down"))
    assert (found.is_off, found.capture, found.withheld, found.tags) == (False, "metadata", ("thinking",), ("loom",))
    policy = {"capture": "full", "thinking": True, "images": True}
    assert narrowed(policy, found) == {"capture": "metadata", "thinking": False, "images": True}
    assert narrowed({**policy, "capture": "metadata"}, project_narrowing(str(place.base)))["capture"] == "metadata"
    place.narrow("enabled = false\n")
    assert place.load().narrowing(str(place.project)).is_off


def test_a_project_never_widens(place):
    """`full` in a project's file has no effect if the user allows only metadata."""
    place.narrow('capture = "full"\nthinking = true\nenabled = true\n')
    found = place.load().narrowing(str(place.project))
    assert narrowed({"capture": "metadata", "thinking": False}, found) == {"capture": "metadata", "thinking": False}


def test_restrictions_of_a_parent_directory_apply_below(place):
    """A file in a subdirectory cannot undo a restriction of a parent."""
    place.narrow('enabled = false\ncapture = "metadata"\n')
    below = place.project / "below"
    place.narrow('capture = "redacted"\ntags = ["x"]\n', below)
    found = place.load().narrowing(str(below))
    assert (found.is_off, found.capture, found.tags) == (True, "metadata", ("x",))
    assert found.why == str(place.project / ".claude" / "turnspan.toml")


@pytest.mark.parametrize("key", ["endpoint", "destinations", "patterns", "off", "prices", "user_id"])
def test_keys_that_a_project_cannot_set_are_reported(place, key):
    """A repository's file cannot set an endpoint, a key or a path; the attempt is reported."""
    path = place.narrow(f'tags = ["a"]\n{key} = "https://evil.example"\n')
    found = place.load().narrowing(str(place.project))
    assert found.tags == ("a",)
    assert found.problems[0].startswith(f"{path}:2: a project cannot set '{key}'")


def test_an_invalid_project_file_restricts_as_much_as_possible(place):
    """An invalid value becomes the most restrictive one; an unreadable file disables export."""
    place.narrow('capture = "metdata"\nthinking = "no"\n')
    found = place.load().narrowing(str(place.project))
    assert (found.capture, found.withheld) == ("metadata", ("thinking",))
    assert len(found.problems) == 2
    place.narrow('enabled = "false"\n')
    assert place.load().narrowing(str(place.project)).is_off
    place.narrow("enabled = = true\n")
    assert place.load().narrowing(str(place.project)).is_off


@pytest.mark.parametrize(
    ("pattern", "directory", "is_off"),
    [
        ("~/private/**", "private", True),
        ("~/private/**", "private/deep/er", True),
        ("~/private/**", "private-not", False),
        ("~/private", "private", True),
        ("~/private", "private/deep", False),
        ("*/secret-*", "x/secret-1", True),
    ],
)
def test_directories_that_are_never_exported(place, monkeypatch, pattern, directory, is_off):
    """Patterns in the user's settings are matched with the working directory of the session."""
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(place.base))
    place.write(f'off = "{pattern}"\n')
    assert place.load().narrowing(str(place.base / directory)).is_off is is_off


@pytest.mark.parametrize("pattern", ["c:/work/secret/**", r"C:\Work\Secret/**", r"C:\Work\Secret\**", "*/secret/*"])
def test_directories_of_windows_that_are_never_exported(place, pattern):
    """Both slashes and any case name the same directory there."""
    place.write(f"off = '{pattern}'\n")
    assert place.load().narrowing(r"C:\Work\Secret\x").is_off
    assert not place.load().narrowing(r"C:\Work\Secretary\x").is_off


def plant(directory, env, name="settings.json"):
    """Write a project's settings for Claude Code."""
    path = directory / ".claude" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"env": env}))


@pytest.mark.parametrize("name", ["settings.json", "settings.local.json"])
def test_variables_set_by_a_project_are_ignored(place, name):
    """A repository cannot redirect the endpoint, even if the session changes its directory."""
    planted = {"TURNSPAN_OTLP_ENDPOINT": "https://evil.example", "LANGFUSE_BASE_URL": "https://evil.example"}
    plant(place.project, planted, name)
    inside = place.project / "src"
    inside.mkdir()
    for project, env in (
        (place.project, {}),
        (inside, {}),
        (inside, {"CLAUDE_PROJECT_DIR": str(place.project)}),
        (place.base, {"CLAUDE_PROJECT_DIR": str(place.project)}),
    ):
        config = place.load(project=project, **planted, **KEYS, **env)
        [destination] = config.destinations
        assert "base_url" not in destination.options
    plant(place.project, {"TURNSPAN_OTLP_ENDPOINT": ["https://evil.example"]}, name)  # the client makes text of it
    assert place.load(project=place.project, **planted).destinations[0].type == "local"


@pytest.mark.parametrize(
    "make",
    [
        lambda path: path.write_text('{"env":{"LANGFUSE_HOST":"https://evil.example"}}' + " " * (9 << 20)),
        lambda path: path.write_text('// perhaps\n{"env":{"LANGFUSE_HOST":"https://evil.example"}}'),
        lambda path: path.write_text('{"env":' * 100_000),
        make_fifo,
    ],
    ids=["huge", "comments", "deep", "FIFO"],
)
def test_unreadable_project_settings_make_all_variables_ignored(place, make):
    """They could set any variable, so none of the environment is used there; the user's config file still is."""
    (place.project / ".claude").mkdir()
    make(place.project / ".claude" / "settings.json")
    planted = {**KEYS, "LANGFUSE_HOST": "https://evil.example"}
    config = place.hook(**planted, TURNSPAN_ENABLED="1")
    assert (config.is_enabled, config.is_session_off) == (False, False)  # for now, and not remembered
    assert not (place.claude / "turnspan" / "state").exists()
    assert place.load(project=place.project, **planted).destinations[0].type == "local"
    place.write('[destinations.otlp]\nendpoint = "http://localhost:1"\n')
    assert place.load(project=place.project, **planted).destinations[0].type == "otlp"


def test_a_project_cannot_set_the_plugins_options(place):
    """Claude Code accepts them from a project's settings, but turnspan ignores those."""
    (place.project / ".claude").mkdir()
    table = {"pluginConfigs": {"turnspan@x": {"options": {"langfuse_base_url": "https://evil.example"}}}}
    (place.project / ".claude" / "settings.json").write_text(json.dumps(table))
    env = {f"CLAUDE_PLUGIN_OPTION_{name}": value for name, value in KEYS.items()}
    env["CLAUDE_PLUGIN_OPTION_LANGFUSE_BASE_URL"] = "https://evil.example"
    assert [destination.type for destination in place.load(project=place.project, **env).destinations] == ["local"]


@pytest.mark.parametrize("planted", ["0", "1", "", "maybe"])
def test_a_switch_that_a_project_sets_disables_export(place, planted):
    """The user's own TURNSPAN_ENABLED=0 can no longer be seen, so any value counts as 0, for the session."""
    plant(place.project, {"TURNSPAN_ENABLED": planted})
    for text in ("", OWN):
        place.write(text)
        config = place.hook(TURNSPAN_ENABLED=planted)
        assert not config.is_enabled
        assert config.is_session_off
        assert config.how_to_enable == "remove TURNSPAN_ENABLED from the project's Claude Code settings"


def test_a_capture_mode_that_a_project_sets_counts_as_metadata(place):
    """The user's own TURNSPAN_CAPTURE=metadata can no longer be seen. A value in the user's settings can."""
    plant(place.project, {"TURNSPAN_CAPTURE": "full"})
    for text in ("", f'{OWN}capture = "full"\n'):
        place.write(text)
        config = place.hook(TURNSPAN_CAPTURE="full")
        assert config.values["capture"] == config.destinations[0].policy["capture"] == "metadata"
        assert config.is_enabled
    (place.claude / "settings.json").write_text(json.dumps({"env": {"TURNSPAN_CAPTURE": "redacted", **KEYS}}))
    place.write("")
    plant(place.project, dict.fromkeys((*KEYS, "TURNSPAN_CAPTURE"), "evil"))
    config = place.hook(**dict.fromkeys((*KEYS, "TURNSPAN_CAPTURE"), "evil"))
    assert config.values["capture"] == "redacted"
    assert config.destinations[0].options == {"public_key": "pk-lf-1", "secret_key": SECRET}
    assert config.ignored == ()


def test_what_a_project_has_set_is_remembered_when_its_settings_vanish(place):
    """A `git checkout` during the turn removes the file; the client keeps the variables, also after `/clear`."""
    planted = {"TURNSPAN_OTLP_ENDPOINT": "https://evil.example", "TURNSPAN_CAPTURE": "full", "HTTPS_PROXY": "http://x"}
    plant(place.project, planted)
    place.hook(**planted)
    (place.project / ".claude" / "settings.json").unlink()
    config = place.hook(**planted)
    assert [destination.type for destination in config.destinations] == ["local"]
    assert config.values["capture"] == "metadata"
    assert config.planted == {*planted}
    assert "$TURNSPAN_OTLP_ENDPOINT is ignored: set in the project's Claude Code settings" in config.ignored
    [memory] = (place.claude / "turnspan" / "state").iterdir()
    assert "evil" not in memory.read_text()
    own = place.hook(TURNSPAN_OTLP_ENDPOINT="http://localhost:1", TURNSPAN_CAPTURE="redacted")
    assert (own.destinations[0].type, own.values["capture"], own.ignored) == ("otlp", "redacted", ())


def test_keys_are_not_sent_to_the_cloud_because_a_project_sets_a_url(place):
    """The user's own URL can no longer be seen, so the user's keys are not used at all."""
    plant(place.project, {"LANGFUSE_HOST": "https://evil.example"})
    config = place.hook(**KEYS, LANGFUSE_HOST="https://evil.example")
    assert [destination.type for destination in config.destinations] == ["local"]
    assert config.problems == ()


@pytest.mark.parametrize("name", ["HOME", "CLAUDE_CONFIG_DIR"])
def test_a_project_that_moves_claude_codes_directory_is_not_exported(place, name):
    """Clients up to 2.1.98 write the transcript there, and a config.toml of the project would be next to it."""
    evil = place.project / "evil"
    plant(place.project, {name: str(evil)})
    for transcript in (evil / "projects" / "-slug" / "s.jsonl", place.claude / "projects" / "-slug" / "s.jsonl"):
        config = load_config({"HOME": str(place.base), name: str(evil)}, project=place.project, transcript=transcript)
        assert not config.is_enabled
        assert config.is_session_off
        assert config.how_to_enable == f"remove {name} from the project's Claude Code settings"
    (place.project / ".claude" / "settings.json").unlink()
    assert load_config({name: str(evil)}, project=place.project, transcript=transcript).is_session_off


def test_our_directory_is_next_to_the_transcript(place):
    """Whatever CLAUDE_CONFIG_DIR and HOME say."""
    place.write('user_id = "ada"\n')
    for env in ({"CLAUDE_CONFIG_DIR": "/elsewhere"}, {"HOME": "/elsewhere"}, {"CLAUDE_CONFIG_DIR": "relative"}, {}):
        transcript = place.claude / "projects" / "-slug" / "s.jsonl"
        config = load_config(env, project=place.project, transcript=transcript)
        assert (config.home, config.values["user_id"]) == (place.file.parent, "ada")


def test_a_command_that_claude_runs_ignores_the_projects_variables(place, monkeypatch):
    """Claude's shell has the same variables as a hook."""
    monkeypatch.chdir(place.project)
    planted = {"TURNSPAN_OTLP_ENDPOINT": "https://evil.example"}
    plant(place.project, planted)
    assert place.load(**planted, CLAUDECODE="1").destinations[0].type == "local"
    assert place.load(**planted).destinations[0].type == "otlp"


@pytest.mark.skipif(sys.platform == "win32", reason="user database")
def test_directories_that_are_never_exported_do_not_depend_on_home(place, monkeypatch):
    """A HOME that a project sets cannot undo `off`."""
    import pwd  # noqa: PLC0415

    monkeypatch.setenv("HOME", str(place.base))
    place.write('off = "~/private/**"\n')
    assert place.load().narrowing(f"{pwd.getpwuid(os.geteuid()).pw_dir}/private/x").is_off


def test_variables_of_the_users_own_settings_are_kept(place):
    """Settings in the home directory are the user's own, also for a session started there."""
    home = place.base / "home"
    plant(home, KEYS)
    for project in (home, home / "work"):
        project.mkdir(exist_ok=True)
        config = load_config({"HOME": str(home), "USERPROFILE": str(home), **KEYS}, project=project)
        assert [destination.type for destination in config.destinations] == ["langfuse"]


# ---- the command


@pytest.fixture
def turnspan(place, monkeypatch, command):
    """Run a command; return its exit code and output."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(place.claude))
    monkeypatch.chdir(place.project)
    return command


def test_config_shows_values_and_sources_and_no_secret(place, turnspan, monkeypatch, backend_of_another_package):
    """The output can be pasted into a bug report: it contains no secret."""
    place.write(
        'user_id = "ada"\npatterns = { mine = "hunter2" }\n'
        f'[destinations.langfuse]\npublic_key = "pk-lf-0123456789"\nsecret_key = "{SECRET}"\ncapture = "metadata"\n'
        '[destinations.otlp]\nendpoint = "https://o.example"\nproxy = "http://ada:hunter3@proxy.example:1"\n'
        'headers = { Authorization = "Bearer hunter4" }\n'
        f'[destinations.mine]\ntype = "{backend_of_another_package}"\napi_token = "hunter5"\nplace = "x"\n'
    )
    monkeypatch.setenv("TURNSPAN_CAPTURE", "full")
    code, out, err = turnspan("config")
    assert (code, err) == (0, "")
    assert re.search(rf"^user_id +ada +from {re.escape(str(place.file))}$", out, re.MULTILINE)
    assert re.search(r"^capture +redacted$", out, re.MULTILINE)
    assert f"note: $TURNSPAN_CAPTURE is ignored: {place.file} names the destinations, so it can only restrict" in out
    assert re.search(r"^capture +metadata$", out, re.MULTILINE)
    assert "proxy               http://…@proxy.example:1" in out
    as_json = turnspan("config", "--json")[1]
    for text in (out, as_json):
        assert "Authorization" in text
        assert SECRET not in text
        assert "hunter" not in text
    record = json.loads(as_json)
    assert record["settings"]["user_id"] == {"value": "ada", "source": str(place.file)}
    printed = turnspan("config", "--help")[1]
    for name in (*record, *record["project"], *record["destinations"][0]):
        assert re.search(rf"\b{name}\b", printed), name


def test_config_names_problems_and_exits_with_1(place, turnspan):
    """Problems in the user's file and in the project's file are listed."""
    place.write("captur = 1\n")
    place.narrow('endpoint = "x"\n')
    code, out, _ = turnspan("config")
    assert code == 1
    assert "config.toml:1: unknown setting 'captur'" in out
    assert "turnspan.toml:1: a project cannot set 'endpoint'" in out
    assert len(json.loads(turnspan("config", "--json")[1])["problems"]) == 2


def test_config_names_a_pattern_that_cannot_be_used(place, turnspan):
    """A pattern that would take too long is a problem of the settings, and does not crash a command."""
    place.write('patterns = { ids = "(?:\\\\w+\\\\s*){60}" }\n')
    code, out, _ = turnspan("config")
    assert code == 1
    assert "the pattern 'ids' can match the same text in too many ways" in out


def test_config_shows_the_restrictions_of_the_project(place, turnspan):
    """Disabled export, restrictions and tags are shown."""
    place.narrow('enabled = false\ncapture = "metadata"\nimages = false\ntags = ["a", "b"]\n')
    out = turnspan("config")[1]
    for words in (r"enabled +false", r"capture +metadata at most", r"images +false", r"tags +a, b"):
        assert re.search(f"^{words}$", out, re.MULTILINE), words


# ---- the table


def test_the_table_names_everything(turnspan):
    """The table has every setting, every option and every environment variable."""
    code, out, _ = turnspan("config", "--table")
    assert code == 0
    assert out.splitlines() == [*matrix_table(), "", *table()]
    for setting in (*SETTINGS, *(option for options in OPTIONS.values() for option in options)):
        assert f"| `{setting.name}` |" in out
        assert all(f"`{name}`" in out for name in setting.env)
    assert all(f"`{name}`" in out.splitlines()[-1] for name in POLICY)


@pytest.mark.parametrize(("name", "lines"), [("settings", table), ("matrix", matrix_table)])
def test_the_page_shows_the_tables(name, lines):
    """The tables in the docs are generated from the code: `turnspan config --table` prints them."""
    text = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    found = re.search(rf"<!-- {name} -->\n(.*?)<!-- /{name} -->", text, re.DOTALL)
    assert found is not None
    assert found[1].strip() == "\n".join(lines()).strip()


def test_the_matrix_covers_every_setting():
    """A variable has a column of its own where it exists, and restricts where "less" has a meaning."""
    assert set(ROWS) == {OPTIONS_ROW, *(setting.name for setting in SETTINGS)}
    for setting in SETTINGS:
        row = ROWS[setting.name]
        beside = Power.RESTRICTS if setting.narrowest is not None else Power.SETS
        powers = (Power.SETS, beside, Power.HIDES) if setting.env else (Power.NOTHING,) * 3
        columns = (SettingSource.ENVIRONMENT, SettingSource.BESIDE, SettingSource.PLANTED)
        assert tuple(row[column] for column in columns) == powers, setting.name
        assert row[SettingSource.PROJECT] in {Power.NOTHING, Power.RESTRICTS, Power.ADDS}


def test_the_options_are_those_the_backends_know():
    """The table and the backends have the same options."""
    from turnspan.backends import langfuse, local, otlp  # noqa: PLC0415

    above = {
        "attribute_max_bytes",
        "user_id",
        "environment",
        "host",
        "service_name",
        "tags",
        "span_names",
        "tool_parent",
    }  # set once, for all destinations
    for kind, backend in (("otlp", otlp), ("langfuse", langfuse), ("local", local)):
        names = {option.name for option in OPTIONS[kind]}
        assert names == backend.KNOWN - above
