"""Names and parents of spans, as a destination is set to show them."""

import msgspec
import pytest

from backends.samples import AGENT, EVENT, GENERATION, SESSION, TOOL, TRACE, TURN
from turnspan.backends.genai import GenAI
from turnspan.backends.langfuse import LangfuseNaming
from turnspan.backends.naming import place
from turnspan.backends.otlp_json import decode_line, encode_lines
from turnspan.backends.otlp_messages import encode_request
from turnspan.backends.settings import Capture
from turnspan.delivery.callers import Caller, called
from turnspan.delivery.destinations import targets_of
from turnspan.settings.config import load_config
from turnspan.trace.model import Json, Kind

HINTED = msgspec.structs.replace(TOOL, facts={**TOOL.facts, "tool.hint": "pytest -q"})
TOKEN = "ghp_" + "8fK2pQ9xLm4TzR7wVb3nYc6dHs1jGa5eUq0o"


def named(span, names):
    """Return the name of a span."""
    return place(span, Capture(span_names=names))[0]


def with_facts(span, **facts):
    """Return a span with more facts."""
    return msgspec.structs.replace(span, facts={**span.facts, **facts})


def test_plain_names_are_those_of_the_model():
    """The default: graphs, facets and span metrics group by name."""
    assert [named(span, "plain") for span in TRACE.spans] == [span.name for span in TRACE.spans]


def test_hints_say_what_ran():
    """A tool has its hint, an agent its description; everything else keeps its name."""
    assert named(HINTED, "hint") == "Bash: pytest -q"
    assert named(AGENT, "hint") == f"{AGENT.name}: finds things"
    for span in (TOOL, TURN, GENERATION, EVENT, msgspec.structs.replace(AGENT, facts={})):
        assert named(span, "hint") == span.name


def test_a_name_with_a_hint_is_one_line_of_at_most_60_characters():
    """A description may be long and have line breaks."""
    name = named(with_facts(AGENT, agent_description="find\nthe place " * 20), "hint")

    assert len(name) <= 60
    assert name.startswith(f"{AGENT.name}: find the place")
    assert name.endswith("…")


def test_semconv_names_are_those_of_the_conventions():
    """The operation and its subject; a turn is named by `turn_names`."""
    assert named(GENERATION, "semconv") == f"chat {GENERATION.model}"
    assert named(msgspec.structs.replace(GENERATION, model=None, name="API error"), "semconv") == "chat"
    assert named(HINTED, "semconv") == "execute_tool Bash"
    assert named(AGENT, "semconv") == f"invoke_agent {AGENT.name}"
    assert [named(span, "semconv") for span in (TURN, EVENT)] == [TURN.name, EVENT.name]


@pytest.mark.parametrize("names", ["hint", "semconv"])
def test_the_name_of_the_tool_stays_an_attribute(names):
    """What groups by `gen_ai.tool.name` still does; Langfuse, which would take it for the name, does not get it."""
    capture = Capture(span_names=names)

    assert GenAI(capture).of_span(TRACE, HINTED)["gen_ai.tool.name"] == "Bash"
    assert "gen_ai.tool.name" not in LangfuseNaming(capture, "").of_span(TRACE, HINTED)


def test_a_tool_is_below_its_response_or_beside_it():
    """Only tools move, and only with `tool_parent = "turn"`; ids do not change."""
    asked = msgspec.structs.replace(TOOL, asker_id=TURN.span_id)

    assert place(asked, Capture())[1] == GENERATION.span_id
    assert place(asked, Capture(tool_parent="turn"))[1] == TURN.span_id
    assert [place(span, Capture(tool_parent="turn"))[1] for span in TRACE.spans] == [s.parent_id for s in TRACE.spans]


def test_both_encoders_use_names_and_parents():
    """JSON and protobuf have the name and the parent that the destination is set to."""
    naming = GenAI(Capture(span_names="hint", tool_parent="turn"))
    trace = msgspec.structs.replace(TRACE, spans=(msgspec.structs.replace(HINTED, asker_id=TURN.span_id),))
    [line] = decode_line(encode_lines([trace], naming))
    body = encode_request([trace], naming)

    assert (line["name"], line["parent_span_id"]) == ("Bash: pytest -q", TURN.span_id.hex())
    assert b"Bash: pytest -q" in body
    assert GENERATION.span_id not in body


@pytest.mark.parametrize("capture", ["redacted", "metadata"])
@pytest.mark.parametrize("kind", ["otlp", "langfuse", "local"])
def test_a_secret_in_a_command_is_not_in_a_name(tmp_path, kind, capture):
    """Hints are made of what is masked already; in metadata mode there are none."""
    home = tmp_path / "turnspan"
    home.mkdir(mode=0o700)
    options = {
        "otlp": 'endpoint = "http://127.0.0.1:1"',
        "langfuse": 'base_url = "http://127.0.0.1:1"\npublic_key = "pk-1"\nsecret_key = "sk-123456"',
        "local": f'directory = "{tmp_path}"',
    }
    text = f'capture = "{capture}"\nspan_names = "hint"\n[destinations.there]\ntype = "{kind}"\n{options[kind]}\n'
    (home / "config.toml").write_text(text)
    (home / "config.toml").chmod(0o600)
    [target] = targets_of(load_config({"CLAUDE_CONFIG_DIR": str(tmp_path), "HOME": str(tmp_path)}))
    tool = msgspec.structs.replace(TOOL, input=Json(f'{{"command":"push {TOKEN} now"}}'), error_message="")
    agent = with_facts(AGENT, agent_description=f"use {TOKEN}")
    masked = target.mask(msgspec.structs.replace(TRACE, spans=(TURN, GENERATION, tool, agent))).trace
    names = [target.backend._naming.place(span)[0] for span in masked.spans if span.kind in (Kind.TOOL, Kind.AGENT)]

    assert TOKEN.encode() not in target.backend.encode([masked])
    if capture == "metadata":
        assert names == ["Bash", AGENT.name]
    else:
        assert [name.partition("[redacted")[0] for name in names] == ["Bash: push ", f"{AGENT.name}: use "]


# ---- Langfuse


def langfuse(trace, *, release="", trace_name="turn"):
    """Return what Langfuse gets with every span of a trace."""
    return LangfuseNaming(Capture(), release, trace_name).of_trace(trace)


def test_a_trace_can_have_the_name_of_its_project():
    """Langfuse's home then lists projects; without a known directory the turn's name is used."""
    elsewhere = msgspec.structs.replace(TRACE, facts={})

    assert langfuse(TRACE)["langfuse.trace.name"] == TRACE.name
    assert langfuse(TRACE, trace_name="project")["langfuse.trace.name"] == "project"
    assert langfuse(elsewhere, trace_name="project")["langfuse.trace.name"] == TRACE.name


def test_a_release_can_be_the_branch():
    """A branch that is unknown gives no release."""
    assert langfuse(TRACE, release="{branch}")["langfuse.release"] == "main"
    assert langfuse(TRACE, release="v1-{branch}")["langfuse.release"] == "v1-main"
    assert "langfuse.release" not in langfuse(msgspec.structs.replace(TRACE, facts={}), release="{branch}")


def test_skills_and_mcp_servers_are_tags():
    """Each once, after the tags of the trace."""
    tools = (with_facts(TOOL, skill="pdf"), with_facts(TOOL, mcp_server="github"), with_facts(TOOL, skill="pdf"))
    trace = msgspec.structs.replace(TRACE, spans=(TURN, *tools))

    assert langfuse(trace)["langfuse.trace.tags"] == (*TRACE.tags, "skill:pdf", "mcp:github")


def test_a_turn_in_a_trace_of_another_program_is_a_root():
    """Langfuse takes it for the root of our part of the trace, as it does with its own SDK."""
    naming = LangfuseNaming(Capture(), "")
    trace = called(TRACE, (Caller(trace_id="1" * 32, span_id="2" * 16, is_parent=True),))
    marked = [naming.of_span(trace, span).get("langfuse.internal.is_app_root") for span in trace.spans]

    assert marked == [True, *[None] * (len(trace.spans) - 1)]
    assert not any("langfuse.internal.is_app_root" in naming.of_span(TRACE, span) for span in TRACE.spans)
    assert trace.session_id == SESSION
