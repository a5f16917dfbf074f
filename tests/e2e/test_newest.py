"""The newest client, end to end: with turnspan's hooks, against the scripted API, compared span by span."""

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
    """Each response of a story is exported once, in its place, with its own tokens."""
    assert played[name].is_right, played[name].report()


def test_the_stories_are_not_empty(played: dict[str, Outcome]):
    """The comparison covers many responses, tools and subagents."""
    totals = {
        what: sum(o.figures.get(what, 0) for o in played.values())
        for what in ("generations", "tools", "subagent responses", "turns")
    }
    assert totals["generations"] > 100
    assert totals["tools"] > 40
    assert totals["subagent responses"] > 10
    assert totals["turns"] > 60


def test_costs_equal_the_clients_own_totals(played: dict[str, Outcome]):
    """The cost of a session equals the client's own total exactly, if the client recorded one."""
    assert sum(o.figures.get("costs compared", 0) for o in played.values()) > 20


def test_the_hook_is_fast(played: dict[str, Outcome]):
    """The hook's duration as measured by the client, on a machine that runs three clients at once."""
    waited = [ms for outcome in played.values() for ms in outcome.hook_ms]
    assert len(waited) > 50
    assert statistics.median(waited) < 500
    assert max(waited) < 5000
