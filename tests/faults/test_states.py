"""State files are missing, damaged, old, new, or foreign: that costs a second reading, and never a span."""

import shutil

import pytest
from figures import note

from faults.story import A

MIDDLE = 6
RUBBISH = {
    "empty": b"",
    "half": None,  # the first half of what is there
    "binary": bytes(range(256)),
    "brackets": b"[" * 1_000_000,
    "not a number": b'{"version":NaN}',
    "another's": b'{"version":1,"session_id":"another-session"}',
    "a list": b"[1,2]",
    "zeros": bytes(4096),
    "offset beyond the end": None,
    "offset in a line": None,
    "offset below nothing": None,
}
seen: set[str] = set()


def state_file(world, session=A, suffix=".json"):
    """Return a session's own file."""
    return world.home / "state" / f"{session}{suffix}"


def finish(world, *, may_repeat=True):
    """Live on to the end, and judge."""
    world.live(MIDDLE)
    world.end()
    judged = world.judge(may_repeat=may_repeat)
    world.go_on()
    return judged


def count_case(what):
    """Count what was tested."""
    seen.add(what)
    note("state", f"{len(seen)} ways in which our own files were lost, torn, old, new or foreign")


@pytest.mark.parametrize("what", RUBBISH)
def test_state_that_makes_no_sense(world, what):
    """It is set aside, said in the log, and the session is read again: what comes again is the same."""
    world.live(0, MIDDLE)
    path = state_file(world)
    raw = path.read_bytes()
    number = raw.split(b'"offset":')[1].split(b",")[0]
    harm = {
        "half": raw[: len(raw) // 2],
        "offset beyond the end": raw.replace(b'"offset":' + number, b'"offset":99999999'),
        "offset in a line": raw.replace(b'"offset":' + number, b'"offset":' + str(int(number) - 7).encode()),
        "offset below nothing": raw.replace(b'"offset":' + number, b'"offset":-5'),
    }
    path.write_bytes(harm[what] if what in harm else RUBBISH[what])
    finish(world)
    is_place = what in {"offset beyond the end", "offset in a line"}
    assert any(("rewritten" if is_place else "corrupt-1") in line and " WARN " in line for line in world.log)
    count_case(what)


@pytest.mark.parametrize("what", ["one session's", "all of it", "the home"])
def test_a_state_that_was_deleted(world, what):
    """Deleted under our feet: read again."""
    world.live(0, MIDDLE)
    if what == "one session's":
        state_file(world).unlink()
    else:
        shutil.rmtree(world.home / "state" if what == "all of it" else world.home)
    assert finish(world).repeats > 0
    count_case(what)


def test_state_of_an_older_day(world):
    """A backup was restored: what was sent since then comes again, the same."""
    world.live(0, 3)
    old = state_file(world).read_bytes()
    world.live(3, MIDDLE)
    state_file(world).write_bytes(old)
    finish(world)
    count_case("an older day")


def test_state_of_a_newer_day(world):
    """A backup of the transcripts was restored: the state knows more than they hold."""
    world.live(0, 2)
    shutil.copytree(world.projects, world.base / "backup")
    world.live(2, MIDDLE)
    shutil.rmtree(world.projects)
    shutil.copytree(world.base / "backup", world.projects)
    assert world.serve(world.end_of(world.projects / "-home-ada-loom" / f"{A}.jsonl")) == ""
    assert any("rewritten" in line for line in world.log)
    finish(world)
    count_case("a newer day")


def test_state_of_a_newer_turnspan(world):
    """It is not touched, it is logged, and other sessions are not affected; without it, everything arrives."""
    world.live(0, MIDDLE)
    newer = b'{"version":99,"session_id":"whatever"}'
    state_file(world).write_bytes(newer)
    errors = [world.serve(world.payload(number)) for number in range(MIDDLE, len(world.story.moments))]
    assert [bool(one) for one in errors] == [m.session == A for m in world.story.moments[MIDDLE:]]
    assert "newer version" in "".join(errors)
    assert state_file(world).read_bytes() == newer
    state_file(world).unlink()
    finish(world)
    count_case("a newer turnspan")


@pytest.mark.parametrize("suffix", [".json", ".lock", ".marks"])
@pytest.mark.parametrize("kind", ["directory", "link", "open to all"])
def test_state_that_is_not_ours(world, suffix, kind):
    """A link, a directory, a file that others can write to: refused with a reason, and nothing is sent meanwhile."""
    world.live(0, MIDDLE)
    path = state_file(world, suffix=suffix)
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(world.base / "target")
    else:
        path.touch()
        path.chmod(0o666)
    sent = len(world.sink.requests)
    error = world.serve(world.payload(MIDDLE))
    if suffix == ".marks" and kind == "open to all":
        assert error == ""  # an empty file is not opened
    else:
        assert "unsafe state path" in error
        assert len(world.sink.requests) == sent
    assert not (world.base / "target").exists()
    path.rmdir() if kind == "directory" else path.unlink()
    finish(world)
    count_case(f"{suffix} {kind}")


@pytest.mark.parametrize("name", ["since.json", "state/.hold-{identity}", "state/{session}.marks"])
@pytest.mark.parametrize("raw", [b"", b"\0\0\0", b'{"until_s":1e300,"otlp":{}}', b"[" * 5000], ids=len)
def test_our_other_files_make_no_sense(world, name, raw):
    """Whatever they hold, everything is exported."""
    world.live(0, MIDDLE)
    identity = next(iter((world.home / "since.json").read_text().split('"')[1:2]))
    path = world.home / name.format(identity=identity, session=A)
    path.write_bytes(raw)
    path.chmod(0o600)
    finish(world, may_repeat=False)
    count_case(name)
