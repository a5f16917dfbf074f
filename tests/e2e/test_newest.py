"""The newest client, end to end: with turnspan's hooks, against the scripted API, judged span by span."""

from __future__ import annotations

import statistics
import time

import pytest

from .client import NEWEST, Unavailable, install
from .play import Outcome, play_all
from .scenarios import SCENARIOS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All stories of the newest client, played once."""
    try:
        install(NEWEST)
    except Unavailable as reason:
        pytest.skip(str(reason))
    began = time.monotonic()
    outcomes = list(play_all(NEWEST, tmp_path_factory.mktemp("e2e")))
    print(f"\n{len(outcomes)} stories in {time.monotonic() - began:.0f} s")  # noqa: T201 - shown with -s
    return {o.scenario: o for o in outcomes}


@pytest.mark.parametrize("name", [name for name, story in SCENARIOS.items() if story.fits(NEWEST)])
def test_story(played: dict[str, Outcome], name: str):
    """Whatever a person does with the client, each response is exported once, in its place, with its own tokens."""
    assert played[name].is_right, played[name].report()


def test_the_stories_are_not_empty(played: dict[str, Outcome]):
    """The comparison covers what it claims to: responses, tools and subagents in number."""
    totals = {
        what: sum(o.figures.get(what, 0) for o in played.values())
        for what in ("generations", "tools", "subagent responses", "turns")
    }
    assert totals["generations"] > 100
    assert totals["tools"] > 40
    assert totals["subagent responses"] > 10
    assert totals["turns"] > 60


def test_what_the_client_counted_is_what_we_counted(played: dict[str, Outcome]):
    """The cost of a session equals the client's own figure, to the last digit, wherever the client gave one."""
    assert sum(o.figures.get("costs compared", 0) for o in played.values()) > 20


def test_the_client_hardly_waits(played: dict[str, Outcome]):
    """The client's own clock says how long our hook held it up, on a machine that is busy with three clients."""
    waited = [ms for outcome in played.values() for ms in outcome.hook_ms]
    assert len(waited) > 50
    assert statistics.median(waited) < 500
    assert max(waited) < 5000
