"""A real Phoenix, filled by real hooks while transcripts grow."""

import pytest
from figures import note

from real.compare import differences, wanted_in
from real.homes import LIVE_STORIES, Past, copy_stories, live_through
from real.phoenix import derived

pytestmark = pytest.mark.slow
MICROSECOND_NS = 1_000  # Phoenix keeps no finer times


@pytest.fixture(params=["turnspan-e2d1"])
def project(phoenix, request):
    """A project with nothing in it; and nothing afterwards, for the same span cannot be in two."""
    phoenix.forget(request.param)
    yield request.param
    phoenix.forget(request.param)


def test_what_hooks_send_live_is_in_phoenix_span_by_span(phoenix, project, tmp_path):
    """Eleven sessions at once are there as one reading of their final files gives them.

    Every turn, response, tool call, agent and event: ids, parents, names, times, status, every attribute; and what
    Phoenix derives from them.
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
def test_phoenix_takes_grpc_as_well(phoenix, project, tmp_path):
    """On its other port; there Phoenix knows no project header, and all goes to the project `default`."""
    past = Past(tmp_path, {"TURNSPAN_OTLP_ENDPOINT": phoenix.grpc_url, "TURNSPAN_OTLP_PROTOCOL": "grpc"})
    copy_stories(["parallel-tools", "agents-nested"], past.projects)
    wanted = wanted_in(past.projects, past.env)

    assert past.turnspan("backfill")["spans"] == len(wanted)

    seen = phoenix.wait_for(project, len(wanted))
    assert differences(wanted, seen, precision_ns=MICROSECOND_NS, derived=derived) == []
