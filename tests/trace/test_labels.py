"""Labels: the name of a turn, and what a tool call ran."""

import json

import msgspec
import pytest

from turnspan.secrets.replace import compile_rules
from turnspan.trace.labels import LONGEST, labelled, numbered, tool_hint
from turnspan.trace.model import Json, Kind, Media, Message, Span, Text, Trace
from turnspan.trace.redact import CaptureMode, Policy, redact

SECRET = "sk-ant-api03-" + "Zq7Lm2Xw9Rt4Vb6N" * 5 + "-AA"
RULES = compile_rules({}, [], [])


def turn(*parts, **facts):
    """Return a trace of one turn with a prompt."""
    parts = tuple(Text(part) if isinstance(part, str) else part for part in parts)
    root = Span(
        span_id=b"r" * 8,
        parent_id=None,
        kind=Kind.TURN,
        name="Turn 3",
        start_ns=1,
        end_ns=2,
        input=(Message("user", parts),) if parts else None,
        facts=facts,
    )
    return Trace(trace_id=b"t" * 16, name="Turn 3", session_id="s", client_version="2", spans=(root,))


def tool(trace, **arguments):
    """Return the trace with a tool call."""
    span = Span(
        span_id=b"c" * 8,
        parent_id=b"r" * 8,
        kind=Kind.TOOL,
        name="Bash",
        start_ns=1,
        end_ns=2,
        input=Json(json.dumps(arguments)),
    )
    return msgspec.structs.replace(trace, spans=(*trace.spans, span))


def exported(trace, capture=CaptureMode.REDACTED, *, by_prompt=True):
    """Return the trace as it is exported."""
    return labelled(redact(trace, Policy(capture, rules=RULES)).trace, by_prompt=by_prompt)


@pytest.mark.parametrize(
    ("parts", "facts", "name"),
    [
        (("Fix the failing loader test",), {}, "Turn 3: Fix the failing loader test"),
        (("  Fix\n\tthe   loader\x07 ",), {}, "Turn 3: Fix the loader"),
        (("ide_opened_file: a.py", "explain"), {}, "Turn 3: explain"),
        (("/review the code", "a long expansion"), {"command": "/review"}, "Turn 3: /review"),
        (("! ls shed", "loom"), {"command": "!"}, "Turn 3: ! ls shed"),
        (
            ('<teammate-message teammate_id="dyer" color="blue">The warp &amp; the weft.</teammate-message>',),
            {},
            "Turn 3: dyer: The warp & the weft.",
        ),
        (
            (
                '<teammate-message teammate_id="dyer" summary="Yarn &quot;A&quot; is dyed">Long words.</teammate-message>',
            ),
            {},
            'Turn 3: dyer: Yarn "A" is dyed',
        ),
        (("<b>fish &amp; chips</b>",), {}, "Turn 3: fish &amp; chips"),
        (
            ("<task-notification><task-id>b1</task-id><summary>Tests passed</summary></task-notification>",),
            {"origin": "task_notification"},
            "Turn 3: Tests passed",
        ),
        (("<bash-input>make test</bash-input>",), {"origin": "bash"}, "Turn 3: make test"),
        ((Media("image/png", 12),), {}, "Turn 3"),
        ((), {}, "Turn 3"),
    ],
)
def test_a_turn_is_named_after_its_prompt(parts, facts, name):
    """The first words, the name of a command, or the summary of a notification; else the number alone."""
    trace = exported(turn(*parts, **facts))
    assert (trace.name, trace.spans[0].name) == (name, name)
    assert numbered(trace.name) == "Turn 3"
    assert exported(turn(*parts, **facts), by_prompt=False).name == "Turn 3"


def test_a_long_prompt_is_cut_between_words():
    """A name has at most 60 characters, and a prompt without spaces is cut anywhere."""
    words = exported(turn("Please have a look at the loader, which fails on Windows only sometimes")).name
    assert words == "Turn 3: Please have a look at the loader, which fails on…"
    assert len(exported(turn("x" * 500)).name) == LONGEST


def test_a_secret_is_masked_in_names_and_hints():
    """Labels are cut from masked text: no half of a secret remains, wherever the cut is."""
    for padding in range(50):
        trace = exported(tool(turn(f"{'x' * padding} {SECRET}"), command=f"{'y' * padding} {SECRET}"))
        assert SECRET[:16] not in trace.name
        assert SECRET[:16] not in trace.spans[1].facts["tool.hint"]


def test_metadata_has_neither_prompts_nor_hints():
    """In `metadata` mode a turn is named by its number, and a tool call has no hint."""
    trace = exported(tool(turn("Fix it", command="/fix"), command="ls"), CaptureMode.METADATA)
    assert [span.name for span in trace.spans] == ["Turn 3", "Bash"]
    assert "tool.hint" not in trace.spans[1].facts


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        ({"command": "pytest -q", "description": "Run the tests"}, "Run the tests"),
        ({"command": "pytest -q\nls"}, "pytest -q ls"),
        ({"file_path": "/home/ada/loom/src/warp.py"}, "warp.py"),
        ({"file_path": "C:\\loom\\warp.py"}, "warp.py"),
        ({"notebook_path": "/a/b.ipynb"}, "b.ipynb"),
        ({"pattern": "def \\w+", "path": "/src"}, "def \\w+"),
        ({"url": "https://ada:pw@docs.example.org:8443/a?b", "prompt": "Summarise"}, "docs.example.org:8443"),
        ({"query": "warp knitting"}, "warp knitting"),
        ({"skill": "weave"}, "weave"),
        ({"description": 7, "command": "ls"}, "ls"),
        ({"todos": []}, ""),
    ],
)
def test_a_tool_call_has_a_hint_of_what_ran(arguments, hint):
    """The description or the command, a file's name, a pattern, the host of a URL."""
    assert tool_hint(Json(json.dumps(arguments))) == hint


@pytest.mark.parametrize("content", [None, "text", Json("[]"), Json("{"), Json('"[withheld: tool inputs]"'), Json("7")])
def test_unusual_arguments_give_no_hint(content):
    """Arguments that are missing, withheld, damaged or not an object."""
    assert tool_hint(content) == ""


def test_a_further_part_keeps_its_number():
    """It does not contain the prompt."""
    trace = tool(msgspec.structs.replace(turn("Fix it"), spans=()), command="ls")
    assert exported(trace).name == "Turn 3"
