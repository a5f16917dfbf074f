"""Project settings that are links, pipes, huge or broken: what they plant never counts, and nothing waits for them."""

import json

import pytest
from only_posix import make_fifo

from faults.sink import Sink
from faults.world import BY_SHELL, HOOK

PROMPT = "What is here?"


def directly(project, env):
    """Write settings.json."""
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / "settings.json").write_text(json.dumps({"env": env}))


def locally(project, env):
    """Write settings.local.json next to harmless settings."""
    directly(project, {})
    (project / ".claude" / "settings.local.json").write_text(json.dumps({"env": env}))


def behind_a_link(project, env):
    """Make `.claude` a link to another directory."""
    directly(project.parent / "elsewhere", env)
    project.mkdir()
    (project / ".claude").symlink_to(project.parent / "elsewhere" / ".claude")


def as_a_linked_file(project, env):
    """Make settings.json a link."""
    directly(project.parent / "elsewhere", env)
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / "settings.json").symlink_to(project.parent / "elsewhere" / ".claude" / "settings.json")


def too_deep(project, env):
    """Nest settings.json deeper than a decoder can read."""
    directly(project, env)
    depth = 200_000
    text = json.dumps({"env": env})[:-1] + ', "x": ' + "[" * depth + "]" * depth + "}"
    (project / ".claude" / "settings.json").write_text(text)


def too_long(project, env):
    """Write settings.json of many megabytes."""
    directly(project, env)
    (project / ".claude" / "settings.json").write_text(json.dumps({"x": "y" * 40_000_000, "env": env}))


def twice(project, env):
    """Write the same key twice: the client uses the last one."""
    directly(project, env)
    text = '{"env": {"A": "1"}, "env": ' + json.dumps(env) + "}"
    (project / ".claude" / "settings.json").write_text(text)


def with_a_mark(project, env):
    """Begin settings.json with a byte order mark."""
    directly(project, env)
    (project / ".claude" / "settings.json").write_text("\ufeff" + json.dumps({"env": env}))


def as_a_pipe(project, _env):
    """Make settings.json a pipe to which nothing is written."""
    (project / ".claude").mkdir(parents=True)
    make_fifo(project / ".claude" / "settings.json")


def as_a_directory(project, _env):
    """Make settings.json a directory."""
    (project / ".claude" / "settings.json").mkdir(parents=True)


def as_endless(project, _env):
    """Make settings.json a link to a device that never ends."""
    (project / ".claude").mkdir(parents=True)
    (project / ".claude" / "settings.json").symlink_to("/dev/zero")


WAYS = (
    directly, locally, behind_a_link, as_a_linked_file, too_deep, too_long, twice, with_a_mark, as_a_pipe,
    as_a_directory, as_endless,
)  # fmt: skip


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("event", ["SessionStart", "Stop", "SubagentStop"])
def test_planted_variables_do_not_count(world, tmp_path, way, event):
    """An endpoint, a capture mode and a switch are planted at each event: nothing reaches the foreign endpoint."""
    project = tmp_path / "clone"
    with Sink() as evil:
        planted = {"TURNSPAN_OTLP_ENDPOINT": evil.url, "TURNSPAN_CAPTURE": "full", "TURNSPAN_ENABLED": "1"}
        way(project, planted)
        payload = {**json.loads(world.payload(1)), "cwd": str(project), "hook_event_name": event}
        world.call_hook(json.dumps(payload).encode(), command=HOOK, env=planted)
        world.wait()
        assert evil.requests == []
    for path in (world.home / "traces").glob("*"):
        assert PROMPT not in path.read_text()


@pytest.mark.parametrize("way", [directly, behind_a_link, as_a_pipe])
@pytest.mark.parametrize("command", [HOOK, BY_SHELL], ids=["python", "sh"])
def test_a_project_directory_that_is_a_link(world, tmp_path, way, command):
    """The client works in a link to the project, or in a directory below it."""
    real = tmp_path / "real" / "clone"
    real.parent.mkdir()
    with Sink() as evil:
        planted = {"TURNSPAN_OTLP_ENDPOINT": evil.url, "TURNSPAN_CAPTURE": "full"}
        way(real, planted)
        (real / "below").mkdir()
        (tmp_path / "link").symlink_to(real)
        (tmp_path / "inner").symlink_to(real / "below")
        for cwd in (tmp_path / "link", tmp_path / "link" / "below", tmp_path / "inner"):
            payload = {**json.loads(world.payload(1)), "cwd": str(cwd)}
            env = {**planted, "CLAUDE_PROJECT_DIR": str(real)}
            world.call_hook(json.dumps(payload).encode(), command=command, env=env, cwd=cwd)
            world.wait()
        assert evil.requests == []


@pytest.mark.parametrize("way", ["pipe", "deep", "long", "endless", "directory"])
def test_a_project_file_of_ours_that_cannot_be_read(world, way):
    """`.claude/turnspan.toml` in the project of the session cannot block the worker; unreadable, it disables export."""
    payload = json.loads(world.payload(1))
    writer = next(iter(world.story._writers.values()))
    project = world.base / "project"
    (project / ".claude").mkdir(parents=True)
    path = project / ".claude" / "turnspan.toml"
    if way == "pipe":
        make_fifo(path)
    elif way == "deep":
        path.write_text("x = " + "[" * 100_000 + "]" * 100_000)
    elif way == "long":
        path.write_text("# " + "x" * 40_000_000)
    elif way == "endless":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for row in writer.rows:
        row["cwd"] = str(project)
    writer.save(world.projects / "-project")
    payload |= {"cwd": str(project), "session_id": writer.session}
    payload["transcript_path"] = str(world.projects / "-project" / f"{writer.session}.jsonl")
    world.call_hook(json.dumps(payload).encode())
    world.wait()
    assert world.sink.requests == []
    assert not [line for line in world.log if " ERROR bug " in line]
