import msgspec
import pytest

from turnspan.trace.build import Agent, Launch, build_agent, build_turn, root_of, trace_of
from turnspan.trace.facts import agent_arguments
from turnspan.trace.model import Json, Kind, Media, Message, Reasoning, Text, ToolCall, ToolResult, Usage
from turnspan.transcript import entries as e
from turnspan.transcript.carry import TurnRef
from turnspan.transcript.rows import LinePlace
from turnspan.transcript.turns import Happening, InlineAgent, ModelResponse, Prompt, Result, Said, Turn, TurnCall

S = 1_000_000_000
HERE = LinePlace(0, 0, 1)
MODEL = "claude-opus-4-5-20251101"


def turn(*responses, number=1, part=0, **fields):
    """Return a turn that was asked at second 100 and answered by some responses."""
    times = [100 * S, *(r.last_ns for r in responses if r.last_ns)]
    known = {"prompt": Prompt("Weave.", 100 * S), "times": times, "version": "2.1.325"}
    return Turn("s", "p", number, part, "human", HERE, HERE, responses=list(responses), **{**known, **fields})


def said(key, *parts, at=103, **fields):
    """Return a response that ended at a second."""
    known = {"first_ns": at * S, "last_ns": at * S, "trigger_ns": 100 * S, "stop_reason": "end_turn",
             "usage": e.ApiUsage(input_tokens=10, output_tokens=5)}  # fmt: skip
    texts = [part for part in parts if isinstance(part, str)]
    calls = [part for part in parts if isinstance(part, TurnCall)]
    parts = [Said("text", part) if isinstance(part, str) else part for part in parts]
    return ModelResponse(
        key, f"u-{key}", MODEL, "2.1.325", parts=parts, calls=calls, texts=texts, **{**known, **fields}
    )


def call(key="t", name="Bash", arguments="{}", at=102, result=None):
    """Return a tool call that was made at a second."""
    return TurnCall(key, name, arguments, at * S, result)


def by_kind(trace, kind):
    """Return the spans of a kind."""
    return [span for span in trace.spans if span.kind is kind]


# ---- the shape


def test_a_turn_becomes_a_tree():
    """Turn, generation, tool: each is below what asked for it, and parents come first."""
    done = call(result=Result("ok", False, 102 * S + 5))
    trace = build_turn(turn(said("m1", done, at=102), said("m2", "Woven.", at=104)))
    root, first, tool, second = trace.spans
    assert [span.kind for span in trace.spans] == [Kind.TURN, Kind.GENERATION, Kind.TOOL, Kind.GENERATION]
    assert [root.parent_id, first.parent_id, tool.parent_id, second.parent_id] == [
        None,
        root.span_id,
        first.span_id,
        root.span_id,
    ]
    assert trace.trace_id == trace_of(TurnRef("s", "p", 1, 1))
    assert root.span_id == root_of(trace.trace_id)
    assert (trace.name, root.name, first.name, tool.name) == ("Turn 1", "Turn 1", MODEL, "Bash")


def test_only_the_first_generation_carries_the_prompt():
    """The first generation has the prompt as input, later ones the results that triggered them."""
    done = call(result=Result("ok", False, 102 * S))
    _, first, tool, second = build_turn(
        turn(said("m1", Said("thinking", "hm"), done, at=102), said("m2", "Woven."))
    ).spans
    assert first.input == (Message("user", (Text("Weave."),)),)
    assert first.output == (Message("assistant", (Reasoning("hm"), ToolCall("t", "Bash", "{}")), "stop"),)
    assert second.input == (Message("tool", (ToolResult("t", "ok"),)),)
    assert (tool.input, tool.output) == (Json("{}"), "ok")


def test_a_prompt_has_all_its_parts():
    """Text, what the editor added, a command's expansion and images are parts of the prompt."""
    prompt = Prompt("Why?", 100 * S, (("image/png", 9),), ("ide_selection: x",), "/why", "Explain why.")
    root = build_turn(turn(said("m", "So."), prompt=prompt)).spans[0]
    assert root.input[0].parts == (Text("ide_selection: x"), Text("Why?"), Text("Explain why."), Media("image/png", 9))
    assert root.output == (Message("assistant", (Text("So."),), "stop"),)
    assert root.facts["command"] == "/why"


def test_turns_are_linked():
    """A turn's root points to the root of the turn before it."""
    root = build_turn(turn(said("m", "So."), previous=TurnRef("s", "p0", 0, 1))).spans[0]
    (link,) = root.links
    before = trace_of(TurnRef("s", "p0", 0, 1))
    assert (link.trace_id, link.span_id, link.relation) == (before, root_of(before), "previous_turn")


def test_a_later_part_has_only_new_spans():
    """What a turn did after it was exported is below the root that was sent before."""
    complete = turn(said("m1", "Woven."))
    part = turn(said("m2", "And hemmed."), part=1, prompt=None)
    (span,) = build_turn(part).spans
    assert span.parent_id == build_turn(complete).spans[0].span_id
    assert build_turn(part).trace_id == build_turn(complete).trace_id
    assert span.input is None


def test_a_response_that_continues_after_export_is_not_counted_twice():
    """Further rows of an exported response are a span of their own, without its usage."""
    first = build_turn(turn(said("m1", "Wov"))).spans[1]
    (second,) = build_turn(turn(said("m1", "en.", is_repeat=True), part=1)).spans
    assert second.span_id != first.span_id
    assert second.usage is None
    assert second.cost_usd is None


def test_a_repeated_key_has_two_ids():
    """A damaged file may contain an id twice: no two spans of a trace share one."""
    trace = build_turn(turn(said("m", call("t"), call("t")), said("m", "x")))
    assert len({span.span_id for span in trace.spans}) == len(trace.spans) == 5


# ---- times


def test_a_recorded_request_is_the_start():
    """A recorded request is the start; else the row that triggered it, marked as inferred."""
    recorded = build_turn(turn(said("m", "x", request_ns=101 * S))).spans[1]
    inferred = build_turn(turn(said("m", "x"))).spans[1]
    unknown = build_turn(turn(said("m", "x", trigger_ns=None))).spans[1]
    assert (recorded.start_ns, recorded.end_ns, recorded.facts.get("time.inferred")) == (101 * S, 103 * S, None)
    assert (inferred.start_ns, inferred.end_ns, inferred.facts["time.inferred"]) == (100 * S + 1_000, 103 * S, "start")
    assert (unknown.start_ns, unknown.facts["time.inferred"]) == (103 * S, "start")


def test_a_first_response_starts_after_its_turn():
    """Backends that sort by start, then by id, show the turn first; a recorded start is kept."""
    root, inferred = build_turn(turn(said("m", "x"))).spans
    recorded = build_turn(turn(said("m", "x", request_ns=100 * S))).spans[1]
    assert (inferred.start_ns - root.start_ns, recorded.start_ns - root.start_ns) == (1_000, 0)


@pytest.mark.parametrize(("request_s", "trigger_s"), [(105, 100), (None, 104)])
def test_an_impossible_order_is_clamped(request_s, trigger_s):
    """No span ends before it starts, even if clocks run backwards; one of no length lasts 1 ns."""
    asked = request_s * S if request_s else None
    span = build_turn(turn(said("m", "x", request_ns=asked, trigger_ns=trigger_s * S))).spans[1]
    start_s = 103 if request_s is None else request_s
    assert (span.start_ns, span.end_ns) == (start_s * S, start_s * S + 1)


def test_the_first_token_precedes_its_block():
    """The first token came as long before the end of its block as the client measured, within the response."""
    for ms, expected in ((700, 102.3), (9000, 101.0)):
        span = build_turn(turn(said("m", "x", request_ns=101 * S, first_block_ms=ms))).spans[1]
        assert span.first_token_ns == int(expected * S)
    assert build_turn(turn(said("m", "x", request_ns=101 * S))).spans[1].first_token_ns is None  # only its end is known
    assert build_turn(turn(said("m", error="API Error"))).spans[1].first_token_ns is None


def test_a_tool_lasts_from_its_call_to_its_result():
    """Parallel calls overlap as they did; a call without a result says so and lasts 1 ns."""
    long, short = call("a", at=101, result=Result("x", False, 109 * S, duration_ms=7.0)), call("b", at=102)
    _, _, first, second = build_turn(turn(said("m", long, short))).spans
    assert (first.start_ns, first.end_ns, first.facts["duration_ms"]) == (101 * S, 109 * S, 7.0)
    assert (second.start_ns, second.end_ns) == (102 * S, 102 * S + 1)
    assert (second.facts["incomplete"], second.output) == (True, None)


def test_a_turn_without_any_time_is_still_a_turn():
    """A turn without any time is built, without using the clock."""
    nothing = turn(said("m", call("t"), first_ns=None, last_ns=None, trigger_ns=None), prompt=None, times=[])
    assert {(span.start_ns, span.end_ns) for span in build_turn(nothing).spans if span.kind is not Kind.TOOL} == {
        (0, 1)
    }


# ---- usage and cost


@pytest.mark.parametrize(
    ("recorded", "usage"),
    [
        (e.ApiUsage(3, 5, 7, 11), Usage(3, 5, 7, 11, 0)),
        (e.ApiUsage(3, 5, 7, 11, e.CacheCreation(8, 3)), Usage(3, 5, 7, 8, 3)),
        (e.ApiUsage(3, 5, 7, 0, e.CacheCreation(8, 3)), Usage(3, 5, 7, 8, 3)),
        (e.ApiUsage(3, 5, 7, 11, e.CacheCreation(None, 3)), Usage(3, 5, 7, 8, 3)),
        (e.ApiUsage(3, 5, server_tool_use=e.ServerTools(2)), Usage(3, 5, web_searches=2)),
        (e.ApiUsage(-3, 2**60), Usage()),
        (e.ApiUsage(), Usage()),
    ],
)
def test_usage_is_what_the_api_counted(recorded, usage):
    """Input never includes cached tokens; cache writes are split by lifetime; absurd counts are ignored."""
    assert build_turn(turn(said("m", "x", usage=recorded))).spans[1].usage == usage


@pytest.mark.parametrize(
    ("version", "stop", "output", "text", "is_incomplete"),
    [
        ("2.1.325", "end_turn", 1, "x" * 500, False),
        ("2.1.325", None, 1, "x", True),
        ("2.1.29", None, 400, "x", True),
        ("2.0.76", None, 400, "x" * 500, False),
        ("2.0.76", None, 3, "x", True),
        ("2.0.76", None, 20, "x" * 500, True),
        ("", None, 400, "x", True),
    ],
)
def test_a_placeholder_is_marked_as_incomplete(version, stop, output, text, is_incomplete):
    """Output counts that the client recorded before the stream had ended are marked as such."""
    response = said("m", text, stop_reason=stop, usage=e.ApiUsage(1, output))
    response.version = version
    assert build_turn(turn(response)).spans[1].usage.is_incomplete is is_incomplete


def test_totals_are_on_the_turn_and_nowhere_else():
    """A turn has the sum of what is below it, with foreground agents, without background agents."""
    launching = call("t", "Agent", result=Result("ok", False, 109 * S))
    inner = turn(said("i", "x", usage=e.ApiUsage(1, 2)))
    agents = {"t": [Agent("a1", "Explore", (inner,)), Agent("a2", "Explore", (inner,), is_background=True)]}
    root, first, *_ = build_turn(turn(said("m", launching)), agents).spans
    assert root.totals == Usage(11, 7)
    assert root.usage is None
    assert root.totals_cost_usd == pytest.approx(11 * 5e-6 + 7 * 25e-6)
    assert first.totals is None


def test_an_unknown_model_makes_the_total_unknown():
    """A sum with an unknown part is unknown."""
    stranger = said("m", "x")
    stranger.model = "gpt-99"
    root, first = build_turn(turn(stranger)).spans
    assert first.cost_usd is None
    assert root.totals_cost_usd is None


def test_cost_follows_the_model_that_was_asked_for_and_its_advisors():
    """The client counts the requested model, plus an advisor's tokens; for an aborted response, nothing."""
    asked = build_turn(turn(said("m", "x", requested_model="claude-haiku-4-5"))).spans[1]
    assert asked.cost_usd == pytest.approx(10 * 1e-6 + 5 * 5e-6)
    advice = e.Iteration("advisor_message", "claude-haiku-4-5", 1000, 100)
    advised = build_turn(turn(said("m", "x", usage=e.ApiUsage(10, 5, iterations=[advice])))).spans[1]
    assert advised.cost_usd == pytest.approx(10 * 5e-6 + 5 * 25e-6 + 1000 * 1e-6 + 100 * 5e-6)
    assert build_turn(turn(said("m", "x", is_aborted=True))).spans[1].cost_usd is None


# ---- errors


def test_an_api_error_fails_the_turn():
    """A turn that ended in an API error is an error, and so is its generation, which has no usage."""
    root, first = build_turn(turn(said("m", error="API Error: 529", error_status=529))).spans
    assert (root.error, root.error_message) == ("api_error", "API Error: 529")
    assert (first.error, first.usage, first.facts["error_status"]) == ("api_error", None, 529)


def test_an_error_on_the_way_does_not_fail_the_turn():
    """A turn that got its answer in the end has not failed."""
    root, *_ = build_turn(turn(said("m1", error="API Error"), said("m2", "So."))).spans
    assert root.error is None


def test_an_interrupted_turn_has_not_failed():
    """Esc is a fact of the turn, not an error."""
    root = build_turn(turn(said("m", "x"), is_interrupted=True)).spans[0]
    assert (root.error, root.facts["interrupted"]) == (None, True)
    assert "incomplete" not in root.facts
    assert build_turn(turn()).spans[0].facts["incomplete"] is True


@pytest.mark.parametrize(
    ("result", "error"),
    [
        (Result("ok", False, None), None),
        (Result("no", True, None), "tool_error"),
        (Result("no", True, None, denial="user_rejected"), "permission_denied"),
        (Result("The user doesn't want to proceed with it", True, None), "permission_denied"),
        (Result("no", True, None, was_interrupted=True), "interrupted"),
        (Result("no", True, None, denial="interrupted"), "interrupted"),
        (Result("[Request interrupted by user for tool use]", True, None), "interrupted"),
    ],
)
def test_a_failed_tool_says_how(result, error):
    """A tool that failed, was denied or was interrupted says which; one that worked has no error."""
    tool = build_turn(turn(said("m", call(result=result)))).spans[2]
    assert tool.error == error
    assert tool.error_message == (result.text if error else "")


def test_what_only_the_client_knows_about_a_result():
    """That a command was interrupted and yet no error, and that the user changed an edit before accepting it."""
    results = (Result("ok", False, None, was_interrupted=True), Result("ok", False, None, is_user_modified=True))
    facts = [build_turn(turn(said("m", call(result=result)))).spans[2].facts for result in results]
    assert [(found.get("interrupted"), found.get("user_modified")) for found in facts] == [(True, None), (None, True)]


@pytest.mark.parametrize(
    ("name", "arguments", "facts"),
    [
        ("Read", '{"file_path":"/a"}', {"file_path": "/a"}),
        ("NotebookEdit", '{"notebook_path":"/n"}', {"file_path": "/n"}),
        ("Skill", '{"skill":"weave"}', {"skill": "weave"}),
        ("mcp__shed__measure", "{}", {"mcp_server": "shed"}),
        ("mcp__", "{}", {"mcp_server": ""}),
        ("Read", '{"file_path":5}', {}),
        ("Read", "[]", {}),
        ("Read", "rubbish", {}),
    ],
)
def test_a_tool_knows_its_file_its_skill_and_its_server(name, arguments, facts):
    """What a tool worked on is a fact; invalid arguments are ignored."""
    tool = build_turn(turn(said("m", call(name=name, arguments=arguments)))).spans[2]
    known = {key: value for key, value in tool.facts.items() if key not in {"tool_call_id", "incomplete"}}
    assert known == facts


def test_an_exit_code_is_a_fact():
    """The exit code that a failed command's result begins with is a fact."""
    tool = build_turn(turn(said("m", call(result=Result("Exit code 2\nno", True, None))))).spans[2]
    assert tool.facts["exit_code"] == 2


def test_happenings_are_events():
    """Typed-ahead words, compactions and retries are events below the turn; a late result below its call."""
    happenings = [
        Happening("steering", "k1", 101 * S, "hurry"),
        Happening("compaction", "k2", 102 * S, "", {"trigger": "auto"}),
        Happening("late_result", "k3", 103 * S, "at last", {"tool_call_id": "t"}),
        Happening("late_result", "k4", 103 * S, "whose?", {"unknown_call_id": "t9"}),
        Happening("retry", "k5", None, "529"),
    ]
    trace = build_turn(turn(said("m", call("t")), happenings=happenings))
    steering, compaction, late, stray, retry = by_kind(trace, Kind.EVENT)
    assert (steering.input, steering.start_ns, steering.end_ns) == (
        (Message("user", (Text("hurry"),)),),
        101 * S,
        101 * S + 1,
    )
    assert compaction.facts == {"event": "compaction", "trigger": "auto"}
    assert late.parent_id == by_kind(trace, Kind.TOOL)[0].span_id
    assert (late.name, late.output) == ("late result", "at last")
    assert stray.parent_id == trace.spans[0].span_id
    assert retry.start_ns == 100 * S


# ---- agents


def test_agents_are_below_their_calls_at_any_depth():
    """An agent is below its call, and its own agents below theirs."""
    inner = turn(said("i2", "Deep."))
    outer = turn(said("i1", call("t2", "Agent", result=Result("Deep.", False, 108 * S))), said("i3", "Done."))
    agents = {"t1": [Agent("a1", "Explore", (outer,), depth=1)], "t2": [Agent("a2", "Plan", (inner,), depth=2)]}
    trace = build_turn(turn(said("m", call("t1", "Agent"))), agents)
    names = {span.span_id: span.name for span in trace.spans}
    assert [(span.name, names.get(span.parent_id)) for span in trace.spans] == [
        ("Turn 1", None),
        (MODEL, "Turn 1"),
        ("Agent", MODEL),
        ("Explore", "Agent"),
        (MODEL, "Explore"),
        ("Agent", MODEL),
        ("Plan", "Agent"),
        (MODEL, "Plan"),
        (MODEL, "Explore"),
    ]


def test_an_agent_that_contains_its_own_call_is_built_once():
    """In a damaged file an agent may contain the call that launched it: it is built once."""
    own = turn(said("i", call("t", "Agent")))
    trace = build_turn(turn(said("m", call("t", "Agent"))), {"t": [Agent("a", "Explore", (own,))]})
    assert len(by_kind(trace, Kind.AGENT)) == 1
    assert len({span.span_id for span in trace.spans}) == len(trace.spans)


def test_inline_agents_are_found_by_their_prompt():
    """Before 2.0.28 an agent is in its parent's file and begins with the call's prompt. A stray one is kept."""
    calls = [call("t1", "Task", '{"prompt":"A.","subagent_type":"Explore"}'), call("t2", "Task", '{"prompt":"B."}')]
    agents = [InlineAgent("r2", "B. ", [turn(said("b", "x"))]), InlineAgent("r1", "A.", [turn(said("a", "x"))]),
              InlineAgent("r3", "C.", [turn(said("c", "x"))])]  # fmt: skip
    trace = build_turn(turn(said("m", *calls), agents=agents))
    parents = {span.span_id: span for span in trace.spans}
    above = [
        (span.facts["agent_id"], parents[span.parent_id].facts.get("tool_call_id"))
        for span in by_kind(trace, Kind.AGENT)
    ]
    assert above == [("r1", "t1"), ("r2", "t2"), ("r3", None)]
    assert [span.name for span in by_kind(trace, Kind.AGENT)] == ["Explore", "agent", "agent"]


def test_a_background_agent_joins_the_trace_of_its_turn():
    """An agent that finishes later joins the trace that launched it; one without a call is a trace of its own."""
    launch = Launch(b"t" * 16, b"s" * 8, "Turn 4")
    agent = Agent("a1", "Explore", (), description="far", depth=1, is_background=True)
    joined = build_agent(agent, turn(said("i", "x")), launch)
    assert (joined.trace_id, joined.name, joined.spans[0].parent_id) == (b"t" * 16, "Turn 4", b"s" * 8)
    facts = {"agent_id": "a1", "background": True, "agent_description": "far", "depth": 1}
    assert joined.spans[0].facts == facts
    alone = build_agent(agent, turn(said("i", "x")), None)
    assert (alone.name, alone.spans[0].parent_id) == ("Explore", None)
    again = build_agent(agent, turn(said("j", "y"), number=2), launch)
    assert again.spans[0].span_id != joined.spans[0].span_id
    (late,) = build_agent(agent, turn(said("k", "z"), part=1), launch).spans
    assert late.parent_id == joined.spans[0].span_id


def test_a_call_says_what_agent_it_asks_for():
    """The prompt and the type of agent are read from the call's arguments, if they are valid."""
    asking = call(arguments='{"prompt":"Go.","subagent_type":"Explore"}')
    assert agent_arguments(asking) == ("Go.", "Explore", "")
    for arguments in ("[]", "rubbish", '{"prompt":5}', "[" * 5000):
        assert agent_arguments(call(arguments=arguments)) == ("", "", "")


# ---- context


def test_a_trace_knows_its_session():
    """Title, directory, branch, slug, entry point, tag, pull request and the session before are on the trace."""
    around = {"cwd": "C:\\loom", "git_branch": "main", "slug": "s", "entrypoint": "cli", "previous_session": "s0",
              "pull_request": "https://example.org/1"}  # fmt: skip
    titles = {"summary": "old", "ai-title": "new"}
    trace = build_turn(turn(said("m", "x"), titles=titles, tag="red", **around))
    assert trace.facts == {**around, "title": "new", "client_version": "2.1.325"}
    assert trace.tags == ("red",)
    assert (trace.session_id, trace.client_version) == ("s", "2.1.325")


def test_a_generation_knows_its_request():
    """Ids, effort, limits, tier, speed and thinking time of a response are facts; a finish reason is always there."""
    usage = e.ApiUsage(1, 2, service_tier="standard", speed="fast")
    known = said(
        "m", call(), request_id="r", effort="high", max_tokens=9, thinking_ms=70.5, usage=usage, stop_reason="tool_use"
    )
    facts = build_turn(turn(known)).spans[1].facts
    assert facts == {
        "response_id": "m", "request_id": "r", "request_model": MODEL, "effort": "high", "max_tokens": 9,
        "speed": "fast", "stop_reason": "tool_use",
        "service_tier": "standard", "thinking_ms": 70.5, "finish_reason": "tool_call",
        "time.inferred": "start",
    }  # fmt: skip
    for stop, finish in (
        ("end_turn", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("new", "new"),
        (None, "stop"),
    ):
        assert build_turn(turn(said("m", "x", stop_reason=stop))).spans[1].facts["finish_reason"] == finish


# ---- what the model was, and how it ended


@pytest.mark.parametrize(
    ("key", "provider"),
    [("msg_01", "anthropic"), ("msg_bdrk_01", "aws.bedrock"), ("msg_vrtx_01", "gcp.vertex_ai"), ("gen-1", None)],
)
def test_the_provider_is_that_of_the_first_id(key, provider):
    """A turn and its response have the provider that the id of the response names, and the model."""
    for span in build_turn(turn(said(key, "x"))).spans:
        assert span.facts.get("provider") == provider
        assert span.facts.get("request_model") == (MODEL if provider or span.kind is Kind.GENERATION else None)


def test_an_api_error_has_no_model_and_finishes_with_an_error():
    """The client writes `<synthetic>` where no model answered."""
    response = msgspec.structs.replace(
        said("u", "529", error="overloaded", stop_reason="stop_sequence"), model="<synthetic>"
    )
    span = build_turn(turn(response)).spans[1]

    assert (span.name, span.model, span.facts.get("request_model")) == ("API error", None, None)
    assert span.facts["finish_reason"] == span.output[0].finish_reason == "error"


@pytest.mark.parametrize(("stop_reason", "finish"), [(None, "error"), ("end_turn", "stop")])
def test_a_response_that_was_cut_off_finishes_with_an_error(stop_reason, finish):
    """Unless the client recorded why it stopped."""
    span = build_turn(turn(said("m", "x", stop_reason=stop_reason, is_aborted=True))).spans[1]

    assert span.facts["finish_reason"] == finish


def test_a_tool_knows_its_response_and_its_turn():
    """Its parent is the response; a destination may show it below the turn instead."""
    root, response, tool = build_turn(turn(said("m", call()))).spans

    assert (tool.parent_id, tool.asker_id) == (response.span_id, root.span_id)
    assert (root.asker_id, response.asker_id) == (None, None)
