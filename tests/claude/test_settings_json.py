"""The editor and the reader of Claude Code's settings.json."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from only_posix import make_fifo

from turnspan.claude.command import is_ours
from turnspan.claude.settings_json import hooks_by_event, parse_settings, with_hooks, without_hooks
from turnspan.claude.settings_reader import read_settings
from turnspan.errors import ConfigError

EVENTS = ("Stop", "SubagentStop", "StopFailure", "SessionStart", "SessionEnd")
HOOK = {"type": "command", "command": "'/opt/turn span/turnspan-hook' /usr/bin/python3 /opt/lib", "timeout": 5}
WANTED = dict.fromkeys(EVENTS, HOOK)

FOREIGN = {"type": "command", "command": "~/.claude/notify.sh 'Grüße 🎉'"}
SHAPES = {
    "an empty object": "{}",
    "an empty object and a newline": "{}\n",
    "two spaces": json.dumps({"model": "opus", "permissions": {"allow": ["Bash(ls:*)"], "deny": []}}, indent=2) + "\n",
    "four spaces, no newline at the end": json.dumps({"a": [1, 2], "ключ": "значение"}, indent=4, ensure_ascii=False),
    "tabs": json.dumps({"env": {"A": "1"}, "hooks": {"Stop": [{"hooks": [FOREIGN]}]}}, indent="\t") + "\n",
    "windows line ends": json.dumps({"env": {"A": "1"}}, indent=2).replace("\n", "\r\n") + "\r\n",
    "one line": json.dumps({"a": 1, "b": {"hooks": 2}}),
    "no spaces at all": json.dumps({"a": 1, "hooks": {"Stop": [{"hooks": [FOREIGN]}]}}, separators=(",", ":")),
    "hooks of others": json.dumps(
        {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [FOREIGN]}], "Stop": [{"hooks": [FOREIGN]}]}, "z": 0},
        indent=2,
    ),
    "empty containers": '{\n  "hooks": {\n    "Stop": [],\n    "SessionEnd": []\n  },\n  "x": {}\n}\n',
    "empty hooks": '{"hooks": {}, "x": []}\n',
    "a surrogate": '{\n  "é": "\\ud800"\n}',
    "escapes": '{\n  "a": "\\u00e9"\n}',
    "mixed layout": '{ "a":1,\n\n "hooks" : {"Stop":[ {"hooks":[\n{"type":"command","command":"x"}]} ]}  ,"b":[ ] }\n',
    "strings that look like JSON": json.dumps({"a": '}],"hooks":{"Stop":[', "b\\": '"', "é": "\u2028 😀"}, indent=2),
    "a byte order mark": "\ufeff" + json.dumps({"a": 1}, indent=2) + "\n",
}  # fmt: skip

UNUSUAL = [SHAPES[name] for name in ("empty containers", "mixed layout")]  # no program writes these


def ours_in(text):
    """Our hooks, with their events."""
    return [(event, hook) for event, hook in hooks_by_event(parse_settings(text)) if is_ours(hook)]


@pytest.mark.parametrize("text", SHAPES.values(), ids=SHAPES)
def test_the_style_of_a_file_is_kept(text):
    """A file as `JSON.stringify`, `jq` or an editor writes it comes back with every byte."""
    again = without_hooks(with_hooks(text, WANTED), text)
    assert parse_settings(again) == parse_settings(text)
    assert again == text or text in UNUSUAL


@pytest.mark.parametrize(
    ("text", "layout"),
    [
        ("{}", '{\n  "hooks": {\n    "Stop": [\n      {\n        "hooks": [\n          {\n            "type"'),
        ('{\n\t"a": 1\n}', '{\n\t"a": 1,\n\t"hooks": {\n\t\t"Stop": [\n\t\t\t{\n'),
        ('{\n    "a": 1\n}', '{\n    "a": 1,\n    "hooks": {\n        "Stop": [\n            {\n'),
        ('{\r\n  "a": 1\r\n}', '{\r\n  "a": 1,\r\n  "hooks": {\r\n    "Stop": [\r\n      {\r\n'),
        ('{"a": 1}', '{"a": 1, "hooks": {"Stop": [{"hooks": [{"type"'),
        ('{\n  "hooks": {\n    "Stop": []\n  }\n}', '{\n  "hooks": {\n    "Stop": [\n      {\n        "hooks": [\n'),
    ],
)
def test_our_lines_look_like_the_others(text, layout):
    """Indentation and line ends are those of the file."""
    changed = with_hooks(text, {"Stop": HOOK})
    assert changed.startswith(layout)
    assert ("\r\n" in text) == ("\r\n" in changed)
    if "\r\n" in text:
        assert not re.search(r"[^\r]\n", changed)


def test_an_empty_file_has_no_settings():
    """Claude Code reads an empty file as no settings, and so does turnspan."""
    assert json.loads(with_hooks("", WANTED)) == {"hooks": {event: [{"hooks": [HOOK]}] for event in EVENTS}}
    assert with_hooks(" \n", WANTED).endswith("}\n")


def test_an_old_entry_is_replaced_in_place():
    """After an update the hook has another path; it keeps its place, and there is only one."""
    old = {"type": "command", "command": "/old/bin/turnspan hook"}
    text = json.dumps(
        {
            "hooks": {
                "Stop": [{"matcher": "x", "hooks": [FOREIGN, old, FOREIGN]}, {"hooks": [old]}],
                "PreCompact": [{"hooks": [old]}],
            }
        },
        indent=2,
    )
    hooks = json.loads(with_hooks(text, {"Stop": HOOK}))["hooks"]
    assert hooks == {"Stop": [{"matcher": "x", "hooks": [FOREIGN, HOOK, FOREIGN]}]}
    assert json.loads(without_hooks(text))["hooks"] == {"Stop": [{"matcher": "x", "hooks": [FOREIGN, FOREIGN]}]}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('{\n  // mine\n  "a": 1\n}', "comments"),
        ('{"a": 1,}', "comma before a closing bracket"),
        ('{"a": 1', "line 1"),
        ("[]", "a list"),
        ("null", "null"),
        ("3", "a number"),
        ('{"a": NaN}', "NaN"),
        ("{} {}", "Extra data"),
        ('{"a": "\x01"}', "control character"),
        ('{"hooks": []}', "`hooks` in it is not an object"),
        ('{"hooks": {"Stop": {}}}', "`hooks.Stop` in it is not a list"),
        ('{"hooks": {}, "hooks": {}}', "twice"),
        ('{"a": {"b": 1, "c": 2, "b": 3}}', "it contains 'b' twice"),
        ('{"a": 1e999}', "too large"),
        ("[" * 100_000, "nested too deeply"),
    ],
)
def test_malformed_text_is_refused_with_a_message(text, says):
    """A file that Claude Code cannot read is never rewritten; the error has the line and column."""
    with pytest.raises(ConfigError, match=re.escape(says)):
        with_hooks(text, WANTED)


# ---- the reader


@pytest.mark.parametrize(
    ("content", "values", "problem"),
    [
        (None, {}, ""),
        (b"", {}, ""),
        (b" \n", {}, ""),
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}, ""),
        (b'{"a": "\\ud800"}', {"a": "\ud800"}, ""),  # Claude Code accepts it, and so must we
        (b'{"a": 1 2}', {}, "line 1, column 9"),
        (b"[]", {}, "it contains a list, not an object"),
        (b"\xff{}", {}, "it is not UTF-8"),
        (b"[" * 100_000, {}, "nested too deeply"),
    ],
)
def test_the_reader_gives_values_or_a_problem(tmp_path, content, values, problem):
    """A missing or empty file has no settings; a malformed one has a problem that says where."""
    path = tmp_path / "settings.json"
    if content is not None:
        path.write_bytes(content)
    found = read_settings(path)
    assert (found.values, found.exists) == (values, content is not None)
    assert problem in found.problem
    assert bool(found.problem) is bool(problem)


def test_the_reader_never_blocks(tmp_path):
    """A directory or a FIFO in the place of a settings file is a problem, not an exception or a hang."""
    make_fifo(tmp_path / "fifo")
    for path in (tmp_path, tmp_path / "fifo"):
        assert read_settings(path).problem == "it is not a regular file"


# ---- generated settings

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
COMMANDS = st.sampled_from(["echo", "turnspan hook && x", "/x/notify 'a b'"]) | st.text().filter(
    lambda command: not is_ours({"command": command})
)
ENTRIES = st.fixed_dictionaries({"type": st.just("command"), "command": COMMANDS}, optional={"timeout": st.integers()})
GROUPS = st.fixed_dictionaries({"hooks": st.lists(ENTRIES, max_size=2)}, optional={"matcher": st.text()})
HOOKS = st.dictionaries(
    st.sampled_from([*EVENTS, "PreToolUse", "Notification"]), st.lists(GROUPS, max_size=3), max_size=4
)
LAYOUTS = st.sampled_from([None, 0, 1, 2, 4, "\t"])


@st.composite
def settings_texts(draw):
    """Settings files of all kinds."""
    table = draw(st.dictionaries(st.text(), PLAIN, max_size=4))
    table.pop("hooks", None)
    if draw(st.booleans()):
        table = dict(draw(st.permutations([*table.items(), ("hooks", draw(HOOKS))])))
    separators = draw(st.sampled_from([None, (",", ":"), (" ,  ", " : ")]))
    text = json.dumps(table, indent=draw(LAYOUTS), ensure_ascii=draw(st.booleans()), separators=separators)
    if draw(st.booleans()):
        text = text.replace("\n", "\r\n")
    return draw(st.sampled_from(["", "\ufeff", "\n", " "])) + text + draw(st.sampled_from(["", "\n", "\r\n", " \n\n"]))


@given(settings_texts(), st.sets(st.sampled_from(EVENTS), min_size=1))
def test_any_settings_survive(text, events):
    """For any settings: install and uninstall cancel out, and installing twice is installing once."""
    wanted = {event: HOOK for event in EVENTS if event in events}
    changed = with_hooks(text, wanted)
    assert with_hooks(changed, wanted) == changed
    assert dict(ours_in(changed)) == wanted
    assert parse_settings(without_hooks(changed, text)) == parse_settings(text)
    assert without_hooks(text) == text
