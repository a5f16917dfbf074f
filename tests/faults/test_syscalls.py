"""Killed, or failed by the kernel, at every call that touches a file or a socket: nothing is lost and nothing changes.

The story is played up to an event. There a real worker runs under strace, which kills it, or has one call fail. Then the
rest of the story is played without faults, and the result is judged. By default one call of each kind is tried at a few events; with
`TURNSPAN_FAULTS=all`, every call at every event, and every error that a call can give.
"""

import random
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest
from figures import IS_ALL, note

from faults import syscalls
from faults.conftest import needs_strace
from faults.sink import Sink
from faults.world import HOOK, World

pytestmark = needs_strace
# A first Stop, a background agent; then a fork, an agent's turn, and an end with its sweep.
EVENTS = (1, 7, 5, 4, 11) if IS_ALL else (1, 7)
SEED = 7


class Laboratory:
    """A world just before one event; as many as wanted."""

    def __init__(self, base, event, sink):
        base.mkdir()
        self.world, self.event = World(base, sink), event
        self.world.live(0, event)
        self.payload = self.world.payload(event)
        self.back = self.world.keep()
        log = base / "calls"
        self.world.run_worker(self.payload, prefix=syscalls.counting(log))
        self.points = syscalls.points(event, log, self.world.claude)
        self.repeats = 0

    def go_wrong(self, point, harm):
        """Have the worker meet this harm; its exit code. Then live on, and judge."""
        self.back()
        code = self.world.run_worker(self.payload, prefix=point.prefix(harm))
        try:
            self.world.live(self.event + 1)
            self.world.end()
            self.repeats += self.world.judge(may_repeat=True).repeats
            self.world.go_on()
            assert self.world.log
        except AssertionError as error:
            raise AssertionError(f"{harm} at {point}: {error}") from error
        return code


def sampled(points):
    """Return one point of every kind of call."""
    chance = random.Random(SEED)
    return [chance.choice([p for p in points if p.name == name]) for name in dict.fromkeys(p.name for p in points)]


def run(base, events, choose, check):
    """Try what is chosen at some events, each in a world of its own; the harms done, the repeats, and the lost."""

    def at_event(event):
        with Sink() as sink:
            laboratory = Laboratory(base / f"event-{event}", event, sink)
            done, failures = [], []
            for point, harm in choose(laboratory.points, list(events).index(event), len(events)):
                try:
                    code = laboratory.go_wrong(point, harm)
                    check(point, harm, code)
                    done.append((point.name, harm))
                except AssertionError as error:
                    failures.append(str(error))
            return done, laboratory.repeats, failures

    with Sink() as sink:  # once for nothing: what is compiled at a first run is not counted at the second
        first = World(base / "first", sink)
        assert first.run_worker(first.payload(1)) == 0
    with ThreadPoolExecutor(2) as pool:
        results = list(pool.map(at_event, events))
    failures = [failure for result in results for failure in result[2]]
    assert not failures, f"{len(failures)} points:\n" + "\n".join(failures[:20])
    return [harm for result in results for harm in result[0]], sum(result[1] for result in results)


def test_killed_at_a_call_of_every_kind(place):
    """A worker that is killed costs a second sending at most, and what is sent again is the same, byte by byte."""

    def choose(points, place, count):
        return [(point, "signal=KILL") for point in (points if IS_ALL else sampled(points)[place::count])]

    def check(point, _harm, code):
        assert code in {-9, 137}, f"{point} was not reached: {code}"

    events = range(12) if IS_ALL else EVENTS
    done, repeats = run(place, events, choose, check)
    kinds = len({name for name, _ in done})
    tested = f"{len(done)} points, {kinds} kinds of call, at {len(events)} events"
    note("kill", f"{tested}; {repeats} spans came again, the same", is_sampled=True)


def test_every_kind_of_call_may_fail(place):
    """A disk or a network that says no costs time, never a span; it is a line in the log, and not a bug of ours."""

    def choose(points, place, count):
        if IS_ALL:
            return [(point, f"error={error}") for point in points for error in syscalls.errors_of(point)]
        chance = random.Random(SEED)
        chosen = [(point, f"error={chance.choice(syscalls.errors_of(point))}") for point in sampled(points)]
        return chosen[place::count]

    def check(point, harm, code):
        assert code == 0, f"{harm} at {point}: exit code {code}"

    done, repeats = run(place, EVENTS, choose, check)
    errors = Counter(harm.removeprefix("error=") for _, harm in done)
    failures = ", ".join(f"{name} {count}" for name, count in sorted(errors.items()))
    kinds = len({name for name, _ in done})
    note(
        "errno",
        f"{len(done)} failures, {kinds} kinds of call ({failures}); {repeats} spans came again",
        is_sampled=True,
    )


@pytest.mark.parametrize(
    "harm",
    ["flock:error=ENOLCK", "write:error=ENOSPC", "fsync:error=EIO", "rename:error=EROFS", "flock:error=EIO"],
)
def test_what_fails_for_as_long_as_an_event_lasts(world, harm):
    """No lock, a full disk, a broken one, a read-only one: the hook is silent, and when it is over nothing is missing."""
    event = 1
    world.live(0, event)
    call = harm.partition(":")[0]
    prefix = ["strace", "-f", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={harm}"]
    world.call_hook(world.payload(event), command=[*prefix, *HOOK])
    world.wait()
    world.live(event + 1)
    world.end()
    world.judge(may_repeat=True)
    world.go_on()
    assert any(" WARN " in line or " ERROR " in line for line in world.log) or call == "write"


@pytest.mark.parametrize("call", ["read", "chdir", "pipe2", "write", "vfork,clone,clone3", "exit_group"])
def test_a_hook_that_is_killed_loses_an_event_and_nothing_else(world, call):
    """Killed before it could hand over: the next event of the session brings everything."""
    world.live(0, 4)
    payload = world.payload(4)
    when = "" if call != "read" else ":when=2+"
    prefix = ["strace", "-o", "/dev/null", "-e", f"trace={call}", "-e", f"inject={call}:signal=KILL{when}"]
    with pytest.raises(AssertionError):  # it was killed: the exit code is not 0
        world.call_hook(payload, command=[*prefix, *HOOK])
    world.wait()
    world.live(5)
    world.judge(may_repeat=call == "exit_group")
    world.go_on()
