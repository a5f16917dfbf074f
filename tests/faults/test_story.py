"""Without any fault: the measure that the other suites are held to."""

from figures import note

from faults.world import BY_SHELL, HOOK


def test_the_story_arrives_once(world):
    """Event by event, everything is there, byte by byte, and nothing twice."""
    world.live()
    judged = world.judge()
    assert judged.spans == 27
    assert judged.repeats == 0
    world.end()
    assert world.judge().repeats == 0
    world.go_on()


def test_the_story_arrives_through_real_hooks(world):
    """Each event through the hook process and its detached worker; every other one through the shell's launcher."""
    for number in range(len(world.story.moments)):
        world.call_hook(world.payload(number), command=BY_SHELL if number % 2 else HOOK)
        world.wait()
    assert world.judge().repeats == 0
    assert len(world.log) >= len(world.story.moments) - 1  # a start before there is a file says nothing
    slowest = max(world.hook_s)
    note(
        "hook",
        f"{len(world.hook_s)} events, each exit 0 and silent; the slowest took {slowest:.2f} s on a busy machine",
    )
