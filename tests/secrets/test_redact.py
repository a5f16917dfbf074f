from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from random import Random

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from reads import one_pass
from secret_samples import MAKERS, some

from turnspan.secrets.replace import compile_rules
from turnspan.trace import model
from turnspan.trace.model import (
    Json,
    Kind,
    Link,
    Media,
    Message,
    Reasoning,
    Span,
    Text,
    ToolCall,
    ToolResult,
    Trace,
    Usage,
)  # fmt: skip
from turnspan.trace.redact import METADATA_FACTS, CaptureMode, Policy, redact, redact_all

FULL, REDACTED, METADATA = (Policy(capture=capture) for capture in CaptureMode)
TOKEN = "gh" + "p_" + some(Random(7), "abcXYZ0123", 36)


def trace_of(text: str, *, document: str | None = None) -> Trace:
    """Return a trace with `text` in every field that can hold a string."""
    document = json.dumps({"command": text, text: [text]}) if document is None else document
    everything = (
        Message(text, (Text(text), Reasoning(text), ToolCall(text, text, document), Text("and")), text),
        Message("tool", (ToolResult(text, text), Media(text, 3), Reasoning("so"))),
    )
    facts = {text: text, "title": text, "cwd": text, "request_id": text, "tags": (text, "b"), "turn_number": 3}
    spans = tuple(
        Span(
            span_id=bytes([n]) * 8, parent_id=None, kind=kind, name=text, start_ns=1, end_ns=2, input=went_in,
            output=came_out, model=text, error=text, error_message=text, facts=facts, usage=Usage(1, 2), cost_usd=0.5,
            links=(Link(b"x" * 16, b"y" * 8, "previous_turn"),),
        )
        for n, kind in enumerate(Kind)
        for went_in, came_out in ((everything, text), (Json(document), Json(json.dumps(text))))
    )  # fmt: skip
    return Trace(
        trace_id=b"t" * 16, name=text, session_id=text, client_version=text, tags=(text,), facts=facts, spans=spans
    )


def one_span(**values: object) -> Trace:
    """Return a trace of one tool span."""
    span = {"span_id": b"s" * 8, "parent_id": None, "kind": Kind.TOOL, "name": "Bash", "start_ns": 1, "end_ns": 2}
    return Trace(trace_id=b"t" * 16, name="Turn 1", session_id="s", client_version="2", spans=(Span(**span | values),))


def test_the_sample_trace_fills_every_string_field():
    """Every field of the model that can hold a string holds one in `trace_of`."""
    filled: set[tuple[str, str]] = set()

    def look(value: object) -> None:
        if isinstance(value, msgspec.Struct):
            for name in value.__struct_fields__:
                if "here" in str(getattr(value, name)):
                    filled.add((type(value).__name__, name))
                look(getattr(value, name))
        elif isinstance(value, tuple):
            for item in value:
                look(item)

    look(trace_of("here"))
    wanted = {
        (kind.__name__, name)
        for kind in vars(model).values()
        if isinstance(kind, type) and issubclass(kind, msgspec.Struct)
        for name, hint in kind.__annotations__.items()
        if any(word in hint for word in ("str", "Facts", "Content", "Part", "Message", "Span"))
    }
    assert wanted - {("Link", "relation"), ("Trace", "blocks")} == filled  # a constant, and what is never exported


@pytest.mark.parametrize("policy", [REDACTED, METADATA], ids=["redacted", "metadata"])
@pytest.mark.parametrize("seed", range(3))
def test_no_secret_is_exported_from_any_field(seed, policy):
    """Secrets of every rule in every field: none is in the exported bytes."""
    random = Random(seed)
    for make in MAKERS:
        sample = make(random)
        redacted = redact(trace_of(sample.text), policy)
        assert sample.secret.encode() not in msgspec.json.encode(redacted.trace), sample.rule
        if policy is REDACTED:
            assert redacted.counts[sample.rule] > 20


def test_metadata_is_structure_only():
    """Metadata mode exports times, tokens, cost, names and ids, and no free text."""
    trace = trace_of("a user's very own words")
    facts = {"request_id": "req_1", "exit_code": 2, "file_path": "/a", "git_branch": "b", "stop_reason": "two words"}
    span = Span(
        span_id=b"s" * 8, parent_id=None, kind=Kind.TOOL, name="mcp__git__log", start_ns=5, end_ns=9, model="m-1[1m]",
        input=Json("{}"), output="out", usage=Usage(7), cost_usd=0.25, error="tool_error", error_message="no",
        facts=facts,
    )  # fmt: skip
    trace = msgspec.structs.replace(trace, spans=(*trace.spans, span))
    redacted = redact(trace, METADATA).trace
    assert (redacted.session_id, redacted.client_version) == ("unknown", "unknown")
    kept = msgspec.structs.replace(
        span, input=None, output=None, error_message="", facts={"request_id": "req_1", "exit_code": 2}
    )
    assert redacted.spans[-1] == kept
    assert redacted.facts == {"turn_number": 3}
    assert redacted.tags == ()
    assert b"a user's" not in msgspec.json.encode(redacted)
    assert {span.kind for span in redacted.spans} == set(Kind)


def test_an_unlisted_fact_is_content():
    """Only listed facts are exported in metadata mode."""
    facts = dict.fromkeys(METADATA_FACTS, 1) | {"new_fact": 1}
    assert redact(one_span(facts=facts), METADATA).trace.spans[0].facts == dict.fromkeys(METADATA_FACTS, 1)


def test_full_masks_only_own_credentials():
    """Full mode exports everything except turnspan's own keys."""
    policy = Policy(capture=CaptureMode.FULL, rules=compile_rules(credentials=["our-own-value"]))
    assert redact(trace_of(TOKEN), policy) == (trace_of(TOKEN), {})
    redacted = redact(trace_of("x our-own-value y"), policy)
    assert b"our-own-value" not in msgspec.json.encode(redacted.trace)
    assert set(redacted.counts) == {"own-credential"}


def test_switches():
    """Thinking, tool inputs, tool outputs and images can each be switched off."""
    parts = (
        Reasoning("thought"),
        ToolCall("c", "Bash", '{"a":"given"}'),
        ToolResult("c", "got"),
        Media("image/png", 9),
    )
    trace = one_span(
        input=Json('{"a":"given"}'), output="got", error_message="got", facts={"file_path": "given", "exit_code": 1}
    )
    chat = msgspec.structs.replace(trace.spans[0], kind=Kind.GENERATION, facts={}, error_message="", input=None,
                                   output=(Message("assistant", parts), Message("tool", (Text("got"),))))  # fmt: skip
    trace = msgspec.structs.replace(trace, spans=(trace.spans[0], chat))
    for switch, gone in (("thinking", "thought"), ("tool_inputs", "given"), ("tool_outputs", "got"), ("images", "png")):
        said = msgspec.json.encode(redact(trace, Policy(**{switch: False})).trace).decode()
        assert gone not in said
        assert [word for word in ("thought", "given", "got", "png") if word in said] == [
            word for word in ("thought", "given", "got", "png") if word != gone
        ]
        assert "exit_code" in said


@pytest.mark.parametrize("event", ["late_result", "task_notification"])
def test_a_late_result_is_a_tool_output(event):
    """The switch for tool outputs also removes late results and the notification of a finished task."""
    trace = one_span(kind=Kind.EVENT, output="got", facts={"event": event})
    assert "got" not in msgspec.json.encode(redact(trace, Policy(tool_outputs=False)).trace).decode()


def test_json_stays_json():
    """Tool arguments are masked inside their strings and keys, and values also by their key."""
    document = json.dumps({
        "env": {"DB_PASSWORD": "hunter\n2", "pin_password": 123456}, "list": ["--token", TOKEN], "n": 1.5, TOKEN: None,
        "header": {"Authorization": "Custom abcdef"}, "text": f"say\n{TOKEN}", "passwords": ["swordfish"],
    })  # fmt: skip
    redacted = redact(one_span(input=Json(document), output=(Message("a", (ToolCall("1", "T", document),)),)), REDACTED)
    for masked in (redacted.trace.spans[0].input.text, redacted.trace.spans[0].output[0].parts[0].arguments):
        assert json.loads(masked) == {
            "env": {"DB_PASSWORD": "[redacted:password]", "pin_password": "[redacted:password]"},
            "list": ["--token", "[redacted:github-token]"], "n": 1.5, "[redacted:github-token]": None,
            "header": {"Authorization": "[redacted:authorization]"}, "text": "say\n[redacted:github-token]",
            "passwords": ["[redacted:password]"],
        }  # fmt: skip


@pytest.mark.parametrize("hidden", [
    '{"a": "\\u0067hp_' + TOKEN[4:] + '"}', '{"a": "x\\n' + TOKEN + '"}', '{"a": "{\\"b\\": \\"' + TOKEN + '\\"}"}',
    '{"a": "\\ud800 ' + TOKEN + '"}', '["--password", "s3cretword"]', '{"name": "DB_PASSWORD", "value": "s3cretword"}',
])  # fmt: skip
def test_encoded_secrets_are_found(hidden):
    """A secret with escapes, in JSON inside JSON, or next to its name in a list is masked; JSON stays valid."""
    masked = redact(one_span(input=Json(hidden)), REDACTED).trace.spans[0].input.text
    json.loads(masked)
    for word in (TOKEN, TOKEN[4:], "s3cretword"):
        assert word not in masked


def test_a_secret_split_over_parts():
    """A secret that begins in one part of a message and ends in the next is masked; other parts stay separate."""

    def words(*texts: str) -> tuple[Message, ...]:
        return (Message("user", tuple(map(Text, texts))),)

    cut = redact(one_span(input=words("see " + TOKEN[:12], TOKEN[12:30], TOKEN[30:] + " ok")), REDACTED)
    assert cut.trace.spans[0].input == words("see [redacted:github-token] ok")
    assert cut.counts == {"github-token": 1}
    apart = words("one", "two")
    assert redact(one_span(input=apart, output=TOKEN), REDACTED).trace.spans[0].input == apart


def test_a_secret_of_one_text_is_masked_in_all_texts_of_a_trace():
    """A token that a tool printed with its name is masked where the answer repeats it without the name."""
    secret = "q7Zt" + "4mPx9Lw2Rk8Vb3Nc6Yd1"
    trace = one_span(
        input=Json(json.dumps({"command": "echo $DEPLOY_TOKEN", "out": f"é {secret}"})),
        output=f"DEPLOY_TOKEN={secret}",
        error_message=f"the token is set to {secret}, as you can see",
    )
    redacted = redact(trace, REDACTED)
    assert secret not in str(redacted.trace)
    assert redacted.trace.spans[0].error_message == "the token is set to [redacted:token], as you can see"
    assert redacted.counts == {"token": 3}


def test_ids_are_not_masked_because_a_text_calls_them_a_secret():
    """A tool that prints the session's id or a call's id as a token changes neither: traces are found by them."""
    session, call = "7c1f2b9e-5a34-4c19-9d58-1e2f3a4b5c6d", "toolu_" + "0151319e3dd479d49d3e6cd3"
    said = one_span(
        output=f"SESSION_TOKEN={session}\nnext_token: {call}\n",
        input=(Message("tool", (ToolResult(call, "ok"),)),),
        facts={"tool_call_id": call},
    )
    redacted = redact(msgspec.structs.replace(said, session_id=session), REDACTED)
    assert redacted.trace.session_id == session
    assert redacted.trace.spans[0].facts == {"tool_call_id": call}
    assert redacted.trace.spans[0].input[0].parts[0].id == call
    assert redacted.trace.spans[0].output == "SESSION_TOKEN=[redacted:token]\nnext_token: [redacted:token]\n"


def test_an_error_message_cut_inside_a_secret():
    """An error message that is a truncated output is masked like the output."""
    output = "x" * 480 + f" {TOKEN} and more"
    span = redact(one_span(output=output, error_message=output[:500]), REDACTED).trace.spans[0]
    assert TOKEN[:8] not in span.error_message
    assert span.error_message == span.output[:500]


def test_home_directories_can_be_masked():
    """With the switch for paths, home directories are masked."""
    trace = one_span(output="/home/alice/src C:\\Users\\bob\\x /Users/carol /root/.ssh https://x.org/home/page")
    assert redact(trace, REDACTED).trace == trace
    masked = redact(trace, Policy(paths=True))
    assert masked.trace.spans[0].output == (
        "[redacted:home]/src [redacted:home]\\x [redacted:home] [redacted:home]/.ssh https://x.org/home/page"
    )
    assert masked.counts == {"home": 4}


def test_a_trace_without_secrets_is_unchanged():
    """A trace without secrets is exported as it was built."""
    trace = trace_of("nothing to see")
    assert redact(trace, REDACTED) == (trace, {})


def test_content_beyond_the_budget_is_withheld():
    """Beyond the budget content is withheld, names are not, and equal traces give equal results."""
    trace = one_span(input=Json('{"a": "' + "API_KEY=a1b2 " * 9_000 + '\\n"}'), output="token: a1b2 " * 30_000)
    redacted = redact(trace, REDACTED, budget=500_000)
    span = redacted.trace.spans[0]
    assert span.name == "Bash"
    assert (span.input, span.output) == (Json('"[withheld: scan budget]"'), "[withheld: scan budget]")
    assert redacted.counts == {"withheld": 2}
    assert redact(trace, REDACTED, budget=500_000) == redacted


def test_after_the_time_limit_everything_is_withheld():
    """After the time limit no text is exported unmasked."""
    assert b"hello" not in msgspec.json.encode(redact(trace_of("hello"), REDACTED, is_late=lambda: True).trace)


@pytest.mark.parametrize(
    "document", ["[" * 100_000 + f'"\\t{TOKEN}"' + "]" * 100_000, f'{{"x": 1e999, "a": "\\t{TOKEN}"}}']
)
def test_json_that_cannot_be_masked_is_withheld(document):
    """JSON that is nested too deeply, or holds numbers that cannot be written, is withheld."""
    redacted = redact(one_span(input=Json(document)), REDACTED)
    assert redacted.trace.spans[0].input == Json('"[withheld: masking failed]"')
    assert redacted.counts == {"withheld": 1}


def test_invalid_json_is_masked_as_text():
    """Truncated JSON is masked like any text."""
    assert redact(one_span(input=Json(f'{{"a": "{TOKEN}')), REDACTED).trace.spans[0].input == Json(
        '{"a": "[redacted:github-token]'
    )


def test_the_documentation_names_every_rule_and_every_fact():
    """docs/privacy.md lists every rule and every fact of metadata mode."""
    said = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    rules = {make(Random(0)).rule for make in MAKERS} | {"own-credential", "home"}
    assert [rule for rule in sorted(rules) if f"`{rule}`" not in said and f"[redacted:{rule}]" not in said] == []
    assert [fact for fact in sorted(METADATA_FACTS) if f"`{fact}`" not in said] == []


texts = st.lists(
    st.one_of(
        st.text(st.characters(codec=None), max_size=30),
        st.builds(lambda maker, seed: maker(Random(seed)).text, st.sampled_from(MAKERS), st.integers(0, 999)),
    ),
    max_size=3,
).map("\n".join)
trees = st.recursive(
    texts | st.none() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


@given(texts, trees)
@settings(max_examples=60, deadline=None)
def test_redaction_is_idempotent(text, tree):
    """Redacting a redacted trace changes nothing, and JSON stays valid."""
    document = json.dumps(tree)
    once = redact(trace_of(text, document=document), REDACTED).trace
    assert redact(once, REDACTED) == (once, {})
    for span in once.spans:
        if isinstance(span.input, Json):
            json.loads(span.input.text)


# ---- several traces at once

FIXTURES = Path(__file__).parents[2] / "fixtures"


@cache
def fixture_traces() -> list[Trace]:
    """Return the traces of all fixtures."""
    return [trace for projects in sorted(FIXTURES.glob("*/projects")) for trace in one_pass(projects)]


@pytest.mark.parametrize(
    "policy",
    [FULL, REDACTED, METADATA, Policy(paths=True), Policy(CaptureMode.FULL, rules=compile_rules({}, ["here"]))],
)
def test_traces_are_masked_together_as_they_are_one_by_one(policy):
    """Scanning several traces at once gives the same bytes and counts as masking each of them."""
    dice = Random(11)
    traces = [*fixture_traces(), trace_of("here"), one_span(output="fine")]
    traces += [trace_of(make(dice).text) for make in MAKERS]
    traces += [one_span(facts={"password": "hunter2hunter2"}), one_span(output="hunter2hunter2"), trace_of(TOKEN)]
    dice.shuffle(traces)
    one_by_one = [redact(trace, policy) for trace in traces]
    for size in (1, 7, len(traces)):
        together = [one for at in range(0, len(traces), size) for one in redact_all(traces[at : at + size], policy)]
        assert together == one_by_one


def test_a_budget_is_that_of_one_trace(monkeypatch):
    """Neighbours that are expensive to scan do not cause a trace to be withheld."""
    monkeypatch.setattr("turnspan.trace.redact.SCAN_BUDGET", 400_000)
    traces = [one_span(output=f"{number} " + "word " * 50_000) for number in range(4)]
    assert [one.counts for one in redact_all(traces, REDACTED)] == [{}, {}, {}, {}]
