"""A collector that is down, slow, wrong, or lies; then it is well again: the same spans are there, and none twice.

The story is lived in this process against a real server, with a clock of its own, so that no hold is waited for.
"""

import random

import pytest
from backends.servers import HttpServer, reply
from figures import IS_ALL, note

from faults.sink import FAULTS, UNSAID, Proxy
from faults.story import Story
from faults.world import World

STEP_S = 4000.0  # longer than any hold
SLOW = {"hang", "drip", "endless answer"}
YES = {name for name in FAULTS if name.startswith("ok")}
NO = sorted(FAULTS.keys() - YES)
tried: dict[str, int] = {"answers": 0, "spans": 0, "cuts": 0}


def live(world, faults_at):
    """Live the story with the clock going on; `faults_at` says what the server does at each event."""
    for number in range(len(world.story.moments)):
        world.clock_s += STEP_S
        faults_at(number)
        world.serve(world.payload(number))
    world.sink.faults.clear()
    world.sink.always = "ok"
    world.clock_s += STEP_S
    world.end()


def account(world, *, may_repeat=False):
    """Judge, and add to the figures."""
    judged = world.judge(may_repeat=may_repeat)
    tried["answers"] += len(world.sink.requests)
    tried["spans"] += judged.spans
    tested = f"{len(FAULTS)} kinds of answer and {tried['cuts']} cuts by a proxy; {tried['answers']} requests"
    note("network", f"{tested}, {tried['spans']} spans compared", is_sampled=True)
    return judged


@pytest.mark.parametrize("fault", [*sorted(YES), *NO])
def test_one_answer_goes_wrong(world, fault):
    """Whatever the first answer is, everything arrives, and what was not kept is not there twice."""
    world.env["TURNSPAN_OTLP_TIMEOUT_S"] = "0.3" if fault in SLOW else "5"
    live(world, lambda number: world.sink.faults.append(fault) if number == 1 else None)
    judged = account(world)
    assert (judged.repeats > 0) == (fault in UNSAID)
    world.go_on()


OUTAGES = [fault for fault in NO if fault not in SLOW | UNSAID]
SOME_OUTAGES = ["400", "401", "413", "503", "429 for ever", "html with 200", "reset before it is kept"]


@pytest.mark.parametrize("fault", OUTAGES if IS_ALL else SOME_OUTAGES)
def test_an_outage_of_half_the_story(world, fault):
    """For seven events nothing gets through; then all of it does, in order, each span once."""

    def faults_at(number):
        world.sink.always = fault if number < 7 else "ok"

    live(world, faults_at)
    assert account(world).repeats == 0
    starts = {}
    for one in world.sink.stored:
        starts.setdefault(one.key[0], one.key[2])
    assert len(starts) == 7
    world.go_on()


@pytest.mark.parametrize("seed", range(20 if IS_ALL else 3))
def test_a_server_that_flaps(world, seed):
    """Every second answer is some failure, another each time."""
    chance = random.Random(seed)
    quick = [fault for fault in NO if fault not in SLOW | {"413", "400", "422"}]

    def faults_at(_number):
        world.sink.faults[:] = [chance.choice(quick) if chance.random() < 0.5 else "ok" for _ in range(20)]

    live(world, faults_at)
    account(world)


@pytest.mark.slow
@pytest.mark.parametrize("fault", NO)
def test_every_request_in_turn_goes_wrong(place, sink, fault):
    """The first, the second, … the last request of the story meets the fault: the same spans each time."""
    number = 0
    while True:
        base = place / str(number)
        base.mkdir()
        world = World(base, sink)
        world.env["TURNSPAN_OTLP_TIMEOUT_S"] = "0.3" if fault in SLOW else "5"
        sink.stored.clear()
        sink.requests.clear()
        sink.faults[:] = ["ok"] * number + [fault]
        for moment in range(len(world.story.moments)):
            world.clock_s += STEP_S
            world.serve(world.payload(moment))
        is_met = not sink.faults
        sink.faults.clear()
        world.clock_s += STEP_S
        world.end()
        if fault != "413" or number < 7:  # a span that is alone in its request is cut, as it should be
            account(world)
        if not is_met:
            break
        number += 1
    assert number >= 8


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_a_redirect_is_never_followed(world, status):
    """No credentials and no spans are sent to its target; without the redirect, everything arrives."""
    world.env["TURNSPAN_OTLP_HEADERS"] = "authorization=Bearer%20spindle-7731"
    with HttpServer() as elsewhere:
        where = (f"{elsewhere.url}/v1/traces", f"{world.sink.url}/other", "//127.0.0.1/x")[status % 3]
        answer = reply(status, Location=where)
        FAULTS["redirect"] = lambda _sink, connection, _request: connection.sendall(answer)
        try:

            def faults_at(number):
                world.sink.always = "redirect" if number < 4 else "ok"

            live(world, faults_at)
        finally:
            del FAULTS["redirect"]
        assert elsewhere.requests == []
    assert {request.path for request in world.sink.requests} == {f"{world.sink.path}/v1/traces"}
    assert account(world).repeats == 0
    assert not any("spindle-7731" in line for line in world.log)
    assert any("redirect" in line and " ERROR " in line for line in world.log)


UP = [0, 1, 20, 60, 200, 400, 900] if IS_ALL else [0, 60, 900]
DOWN = [0, 1, 8, 15, 40, 75] if IS_ALL else [0, 8, 40]
PLANS = [
    *[pytest.param((cut, None, 0.0), False, id=f"request cut at {cut}") for cut in UP],
    *[pytest.param((None, cut, 0.0), True, id=f"answer cut at {cut}") for cut in DOWN],
    pytest.param((None, None, 0.05), False, id="slow"),
]


@pytest.mark.parametrize(("plan", "may_repeat"), PLANS)
def test_a_proxy_that_cuts(place, sink, plan, may_repeat):
    """Cut at any byte on the way there nothing was kept; on the way back it was, and comes again the same."""
    with Proxy(sink.port) as proxy:
        world = World(place, sink, TURNSPAN_OTLP_ENDPOINT=proxy.url + sink.path)
        proxy.plans += [plan, (None, None, 0.0), plan]
        live(world, lambda _number: None)
        tried["cuts"] += 1
        account(world, may_repeat=may_repeat)
        assert proxy.connections >= 3


def test_an_outage_of_days(place, sink):
    """Twelve sessions go on for days without a collector: hardly anybody asks for it, and then it gets everything."""
    story = Story()
    writers = [story.session(f"0da75000-0000-4000-8000-{number:012}", tag=f"d{number}") for number in range(12)]
    for turn in range(5):
        for writer in writers:
            writer.turn(f"Question {turn}.", f"Answer {turn}.")
            story.stop(writer)
    world = World(place, sink, story)
    sink.always = "503"
    for number in range(len(story.moments)):
        world.clock_s += 20
        world.serve(world.payload(number))
    asked = len(sink.requests)
    assert asked <= 12 * 6  # 1200 seconds: six or seven holds, each after six attempts
    sink.always = "ok"
    world.clock_s += STEP_S
    world.serve(world.payload(len(story.moments) - 1))
    assert sum(" WARN " in line for line in world.log) <= 12
    world.end()
    assert account(world).repeats == 0
