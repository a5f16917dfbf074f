"""The keys of every `--json` output are a promise: json_keys.json lists them, and a change shows up there."""

import json
import os
import time
from pathlib import Path

import pytest
from rows import Writer

from turnspan import log
from turnspan.claude.install import InstallScope, apply, plan_install, this_runtime
from turnspan.delivery import state

SNAPSHOT = Path(__file__).with_name("json_keys.json")
SESSION = "5e55104a-0000-4000-8000-000000000001"
OLD = "01d00000-0000-4000-8000-000000000001"
SECRET = "AKIA" + "Q7ZXW2MB4KPL9TRN"  # not a real key
# Objects whose keys are data: rules, sessions, destinations, what a tool was called with.
MAPS = {"masked", "left", "given_up", "failed", "unreadable", "unsent", "facts", "arguments", "projects"}
COMMANDS = {
    "show": ("show", SESSION),
    "sessions": ("sessions",),
    "stats": ("stats", "--by", "tool"),
    "search": ("search", "use"),
    "status": ("status",),
    "doctor": ("doctor", "--to", "local"),
    "config": ("config",),
    "retention": ("retention", "--days", "30"),
    "backfill --dry-run": ("backfill", "--dry-run"),
    "backfill": ("backfill", "--since", "2020-01-01"),
    "verify": ("verify",),
}


@pytest.fixture
def world(tmp_path, monkeypatch):
    """A home with hooks, one session, one that Claude Code deletes soon, an error in the log and an old destination."""
    for name in [name for name in os.environ if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_", "CLAUDE"))]:
        monkeypatch.delenv(name)
    claude = tmp_path / "claude"
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(claude))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    claude.mkdir()
    apply(plan_install(InstallScope.USER, env=os.environ, project=tmp_path, runtime=this_runtime()))
    writer = Writer(session=SESSION)
    writer.prompt(f"use {SECRET}")
    call = writer.call("Bash", {"command": "ls"})
    writer.result(call, "made", is_error=True)
    writer.say("Done.")
    writer.row(
        "system", subtype="stop_hook_summary", hookInfos=[{"command": "/o/turnspan-hook /o/py /o", "durationMs": 9}]
    )
    writer.save(claude / "projects" / "-p")
    old = Writer(session=OLD, tag="b")
    old.turn("an old question", "An answer.")
    path = old.save(claude / "projects" / "-p")
    os.utime(path, (time.time() - 29 * 86400,) * 2)
    log.log_line(claude / "turnspan", "WARN", "backoff: later", session=SESSION, reason="busy")
    return claude


def keys(value, at=""):
    """Return every path of keys in a value: `destinations[].name`."""
    if isinstance(value, dict) and value:
        is_map = at.rpartition(".")[2].removesuffix("[]") in MAPS
        for key, item in value.items():
            yield from keys(item, f"{at}.{'*' if is_map else key}".lstrip("."))
    elif isinstance(value, list) and value:
        for item in value:
            yield from keys(item, f"{at}[]")
    else:
        yield at


def test_the_keys_of_json_output_change_only_on_purpose(world, command, request):
    """Run every command with `--json` and compare all keys, nested ones included, with the snapshot."""
    found = {}
    for name, arguments in COMMANDS.items():
        if name == "verify":  # after the backfill: now something was sent
            cursor = state.Cursor(sent_spans=5)
            gone = state.Checkpoint(session_id="0ther", destinations={"otlp-12345678": cursor})
            state.save(world / "turnspan", gone)
            found["status, sent"] = sorted(set(keys(json.loads(command("status", "--json")[1]))))
            for traces in (world / "turnspan" / "traces").iterdir():
                traces.unlink()
        _, out, err = command(*arguments, "--json")
        lines = [json.loads(line) for line in out.splitlines()]
        assert lines, err
        found[name] = sorted({path for line in lines for path in keys(line)})
    if request.config.getoption("--update-golden"):
        SNAPSHOT.write_text(json.dumps(found, indent=1) + "\n")
    assert found == json.loads(SNAPSHOT.read_text())
