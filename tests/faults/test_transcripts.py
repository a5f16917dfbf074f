"""What a transcript looks like when a hook is called may be anything; what it says in the end is what arrives."""

import os
import shutil
import time

import pytest
from figures import IS_ALL, note
from only_posix import make_fifo

from faults.story import DYER, HELPER, A

EVENT = 4  # the Stop of the turn with an agent
tried: set[str] = set()


def files_of(world):
    """Return the transcript that the event is about, and what it holds then."""
    world.live(0, EVENT)
    payload = world.payload(EVENT)
    path = world.projects / "-home-ada-loom" / f"{A}.jsonl"
    return payload, path, path.read_bytes()


def finish(world, what, *, may_repeat=False):
    """Live on to the end, judge, and count."""
    world.live(EVENT + 1)
    world.end()
    judged = world.judge(may_repeat=may_repeat)
    world.go_on()
    tried.add(what)
    note("transcript", f"{len(tried)} ways a transcript looked when its hook was called")
    return judged


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "link in a circle", "link to nowhere", "socket"])
def test_no_file_where_the_transcript_should_be(world, kind):
    """Refused at once; when the file is there again everything arrives."""
    payload, path, raw = files_of(world)
    path.unlink()
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        make_fifo(path)
    elif kind == "link in a circle":
        path.symlink_to(path)
    elif kind == "link to nowhere":
        path.symlink_to(world.base / "nowhere")
    elif kind == "socket":
        import socket  # noqa: PLC0415

        with socket.socket(socket.AF_UNIX) as one, pytest.MonkeyPatch.context() as patch:
            patch.chdir(path.parent)  # a socket's name must be short
            one.bind(path.name)
    began = time.monotonic()
    world.serve(payload)
    assert time.monotonic() - began < 2
    shutil.rmtree(path) if kind == "directory" else path.unlink(missing_ok=True)
    path.write_bytes(raw)
    finish(world, kind)


def test_a_transcript_outside_the_projects(world, tmp_path):
    """A link that leads out is not followed, and the file it leads to is not read."""
    payload, path, raw = files_of(world)
    (tmp_path / path.name).write_bytes(raw)
    path.unlink()
    path.symlink_to(tmp_path / path.name)
    assert "is not below" in world.serve(payload)
    path.unlink()
    path.write_bytes(raw)
    finish(world, "outside")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_transcript_that_may_not_be_read_for_a_while(world):
    """Kept pending, and exported when it may be read again."""
    payload, path, _ = files_of(world)
    path.chmod(0)
    assert "may not read" in world.serve(payload)
    path.chmod(0o600)
    finish(world, "unreadable")


@pytest.mark.parametrize("part", range(0, 100, 1 if IS_ALL else 24))
def test_half_a_line(world, part):
    """Wherever the last line breaks off, it is read when it is complete, and once."""
    payload, path, raw = files_of(world)
    start = raw.rstrip(b"\n").rfind(b"\n") + 1
    path.write_bytes(raw[: start + (len(raw) - start) * part // 100])
    world.serve(payload)
    path.write_bytes(raw)
    assert finish(world, "half a line").repeats == 0


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 200, b"\0" * 143_000, b"\xff\xfe\xc3", b'{"type":"user"', b"\r", b"\xf0\x9f\x98"],
    ids=["nul", "many nul", "no text", "half", "return", "half a sign"],
)
def test_something_that_is_not_a_row_at_the_end(world, tail):
    """Not yet a line: it is neither taken nor skipped, and what comes in its place is read."""
    payload, path, raw = files_of(world)
    path.write_bytes(raw + tail)
    assert world.serve(payload) == ""
    path.write_bytes(raw)
    assert finish(world, f"tail {tail[:3]}").repeats == 0


@pytest.mark.parametrize(
    "tail", [b"\0" * 200, b"\xff\xfe\xc3", b"[1,2]", b"", b"null", b'{"type":"new-thing","x":1}'], ids=len
)
def test_a_line_that_is_not_a_row(world, tail):
    """Skipped and counted; it stays in the file, and nothing else changes."""
    payload, path, raw = files_of(world)
    name = path.relative_to(world.projects)
    writer = world.story._writers[name]
    lines = writer.lines
    at = raw.count(b"\n")
    writer.lines = lambda: [*lines()[:at], tail + b"\n", *lines()[at:]]
    for number, moment in enumerate(world.story.moments):
        if number > EVENT:
            moment.sizes[name] += len(tail) + 1
    path.write_bytes(raw + tail + b"\n")
    assert world.serve(payload) == ""
    finish(world, f"line {tail[:3]}")


@pytest.mark.parametrize("left", [0.0, 0.3, 0.8])
def test_a_transcript_that_is_truncated_and_grows_again(world, left):
    """Cut in place below what was sent: read again, and what comes again is the same."""
    payload, path, raw = files_of(world)
    world.serve(payload)
    cut = raw[: int(len(raw) * left)]
    path.write_bytes(cut)
    world.serve(payload)
    path.write_bytes(raw)
    finish(world, "truncated", may_repeat=True)


def test_a_transcript_that_is_rewritten_without_a_line(world):
    """A line was taken out of the beginning: read again; what was removed stays where it was sent."""
    payload, path, raw = files_of(world)
    world.serve(payload)
    before = {one.key for one in world.sink.stored}
    lines = raw.splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:4] + lines[5:]))
    assert world.serve(payload) == ""
    assert "rewritten" in world.log[-1]
    assert before <= {one.key for one in world.sink.stored}
    assert len({key[:2] for key in before}) == len(before)
    tried.add("rewritten")


def test_a_transcript_that_is_another_file_for_a_while(world):
    """Renamed over: what it says is another session's, and then the right one is back."""
    payload, path, raw = files_of(world)
    world.serve(payload)
    other = path.with_name("0fa17000-0000-4000-8000-000000000002.jsonl")
    kept = path.with_name("kept")
    path.rename(kept)
    shutil.copy(other, path)
    world.serve(payload)
    kept.rename(path)
    assert path.read_bytes() == raw
    finish(world, "replaced", may_repeat=True)


@pytest.mark.parametrize("agent", [HELPER, DYER])
@pytest.mark.parametrize("kind", ["junk meta", "no meta", "empty meta", "half meta"])
def test_an_agents_description_is_junk(world, agent, kind):
    """While it is being written it may be anything: the agent is found by its call's result, or waits."""
    event = 7 if agent == DYER else EVENT
    world.live(0, event)
    payload = world.payload(event)
    meta = next(world.projects.rglob(f"agent-{agent}.meta.json"))
    raw = meta.read_bytes()
    junk = {"junk meta": b"\xff\0{", "empty meta": b"", "half meta": raw[: len(raw) // 2]}
    if kind == "no meta":
        meta.unlink()
    else:
        meta.write_bytes(junk[kind])
    world.serve(payload)
    meta.write_bytes(raw)
    world.live(event + 1)
    world.end()
    expected = world.expected()
    assert {key[:2] for key in expected} == {one.key[:2] for one in world.sink.stored}
    tried.add(kind)


@pytest.mark.parametrize("agent_id", ["../../x", "/etc/passwd", "..", "a\\u0000b", "x" * 300])
def test_an_agent_whose_id_is_a_path(world, agent_id):
    """It names no file of ours: nothing outside is opened, and the turn is exported."""
    payload, _, _ = files_of(world)
    payload = payload.replace(b"}", f',"agent_id":"{agent_id}"}}'.encode())
    assert world.serve(payload) == ""
    finish(world, "agent id")
