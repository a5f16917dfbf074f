"""Live export to a real Phoenix, with real hooks, while transcripts grow."""

import msgspec
import pytest
from backends.samples import GENERATION, TOOL, TRACE, TURN
from figures import note

from real.compare import differences, wanted_in
from real.homes import LIVE_STORIES, Past, copy_stories, live_through
from real.phoenix import derived
from turnspan.backends import Answer
from turnspan.backends.otlp import open_backend
from turnspan.delivery.callers import Caller, called

pytestmark = pytest.mark.slow
MICROSECOND_NS = 1_000  # the precision of Phoenix


@pytest.fixture(params=["turnspan-e2d1"])
def project(phoenix, request):
    """An empty project, emptied again afterwards: Phoenix stores a span in one project only."""
    phoenix.forget(request.param)
    yield request.param
    phoenix.forget(request.param)


def test_phoenix_has_every_span_of_a_live_export(phoenix, project, tmp_path):
    """Eleven sessions are stored in Phoenix exactly as one reading of their final files gives them.

    Every turn, response, tool call, agent and event is compared: ids, parents, names, times, status, all attributes, and
    what Phoenix derives from them.
    """
    world = live_through(tmp_path, phoenix, TURNSPAN_OTLP_HEADERS=f"x-project-name={project}")
    wanted = wanted_in(world.projects, world.env)
    kinds = {one.span.kind for one in wanted.values()}
    assert kinds == {"turn", "generation", "tool", "agent", "event"}
    assert any(one.error is not None for one in wanted.values())

    seen = phoenix.wait_for(project, len(wanted))

    assert differences(wanted, seen, precision_ns=MICROSECOND_NS, derived=derived) == []
    assert not [line for line in world.log if " ERROR " in line], world.log
    note("phoenix-live", f"{len(wanted)} spans of {len(LIVE_STORIES)} sessions, {len(world.story.moments)} events")


@pytest.mark.parametrize("project", ["default"], indirect=True)
def test_phoenix_accepts_grpc(phoenix, project, tmp_path):
    """Spans can be sent over gRPC; Phoenix ignores the project header there and uses the project `default`."""
    past = Past(tmp_path, {"TURNSPAN_OTLP_ENDPOINT": phoenix.grpc_url, "TURNSPAN_OTLP_PROTOCOL": "grpc"})
    copy_stories(["parallel-tools", "agents-nested"], past.projects)
    wanted = wanted_in(past.projects, past.env)

    assert past.turnspan("backfill")["spans"] == len(wanted)

    seen = phoenix.wait_for(project, len(wanted))
    assert differences(wanted, seen, precision_ns=MICROSECOND_NS, derived=derived) == []


def test_phoenix_keeps_names_and_parents_as_they_are_set(phoenix, project, tmp_path):
    """Hints in names, tools below the turn, and a turn whose parent is never exported: every span is there once."""
    send = {
        "endpoint": phoenix.url, "headers": {"x-project-name": project}, "span_names": "hint", "tool_parent": "turn",
    }  # fmt: skip
    backend = open_backend(send, name="there", home=tmp_path)
    tool = msgspec.structs.replace(TOOL, asker_id=TURN.span_id, facts={**TOOL.facts, "tool.hint": "pytest -q"})
    trace = msgspec.structs.replace(TRACE, spans=(TURN, GENERATION, tool))
    caller = Caller(trace_id="1" * 32, span_id="2" * 16, is_parent=True)
    assert backend.send(backend.encode([called(trace, (caller,))])).answer is Answer.ACKNOWLEDGED
    backend.close()

    seen = {one.name: one.parent_id for one in phoenix.wait_for(project, 3)}

    assert seen == {
        TURN.name: caller.span_id,
        GENERATION.name: TURN.span_id.hex(),
        "Bash: pytest -q": TURN.span_id.hex(),
    }
