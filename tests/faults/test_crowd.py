"""Many at once: sessions, hooks, ends and a backfill. Every span arrives once."""

import os
import random
import signal
import subprocess
import sys
import time

import pytest
from figures import IS_ALL, note

from faults.story import Story
from faults.world import BY_SHELL, HOOK, World

SESSIONS = 20


def crowd(sessions, turns):
    """Return a story in which many sessions have a turn at the same time."""
    story = Story()
    writers = [
        story.session(f"0c20{number:04}-0000-4000-8000-000000000001", tag=f"c{number}") for number in range(sessions)
    ]
    for turn in range(turns):
        for writer in writers:
            writer.prompt(f"Question {turn}.")
            writer.result(writer.call("Bash", {"command": "ls"}), "a b")
            writer.say(f"Answer {turn}.")
            story.stop(writer)
    return story


def finish(processes):
    """Wait for hooks, and hold each to its promise."""
    for process in processes:
        out, err = process.stdout.read(), process.stderr.read()
        assert (process.wait(60), out, err) == (0, b"", b"")
        process.stdout.close()
        process.stderr.close()


def test_twenty_sessions_stop_at_once(place, sink):
    """Twenty hooks in the same moment, twice: each turn arrives once, without any help."""
    world = World(place, sink, crowd(SESSIONS, 2), TURNSPAN_RECOVER="false")
    for turn in range(2):
        first = turn * SESSIONS
        world.story.put(world.projects, first + SESSIONS - 1)
        payloads = [world.story.moments[first + number].payload(world.projects) for number in range(SESSIONS)]
        finish([world.start_hook(payload) for payload in payloads])
        world.wait()
    assert world.judge().repeats == 0
    assert sum("INFO sent" in line for line in world.log) == 2 * SESSIONS
    note("crowd", f"{SESSIONS} sessions at once, {2 * SESSIONS} turns, none twice")


@pytest.mark.parametrize("seed", range(20 if IS_ALL else 1))
def test_a_third_of_the_workers_is_killed(place, sink, seed):
    """Sessions stop at once, and some of their workers are killed: the next events bring what is missing."""
    chance = random.Random(seed)
    sessions = SESSIONS if IS_ALL else 8
    world = World(place, sink, crowd(sessions, 1))
    world.story.put(world.projects, sessions - 1)
    finish([world.start_hook(moment.payload(world.projects)) for moment in world.story.moments])
    time.sleep(chance.uniform(0.05, 0.4))  # the harm comes at some moment: nothing is waited for
    for worker in world.workers():
        if chance.random() < 0.4:
            try:
                os.kill(worker, signal.SIGKILL)
            except ProcessLookupError:
                continue
    world.wait()
    world.end()
    world.judge(may_repeat=True)
    world.go_on()


def test_a_hook_that_is_registered_twice(world):
    """In the settings and in a plugin: two hooks for each event, at the same moment, and every span once."""
    for number in (1, 2, 4):
        payload = world.payload(number)
        finish([world.start_hook(payload, command=command) for command in (HOOK, BY_SHELL)])
        world.wait()
    world.live(5)
    assert world.judge().repeats == 0


def test_a_stop_an_end_and_a_backfill_at_once(world):
    """One worker holds the session, the others leave marks; every span arrives once."""
    world.live(0, 4)
    stop = world.payload(4)
    path = world.projects / "-home-ada-loom" / f"{world.story.moments[4].session}.jsonl"
    backfill = subprocess.Popen(
        [sys.executable, "-I", "-m", "turnspan", "backfill", "--json"], env=world.env, cwd=world.base,
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    hooks = [world.start_hook(stop), world.start_hook(world.end_of(path)), world.start_hook(stop)]
    finish(hooks)
    out, err = backfill.communicate(timeout=60)
    assert backfill.returncode == 0, (out, err)
    world.wait()
    world.live(5)
    assert world.judge().repeats == 0
