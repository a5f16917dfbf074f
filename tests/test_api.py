"""The public API: what scripts, notebooks and third-party backends use."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rows import Writer

from turnspan import api

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
SECRET = "AKIA" + "Q7ZXW2MB4KPL9TRN"  # not a real key


def save(home, session, *turns):
    """Save a session with these prompts, each with an answer."""
    writer = Writer(session, tag=session[:4])
    for prompt in turns:
        writer.turn(prompt, "Done.")
    return writer.save(home / "projects" / "-p")


def test_importing_the_package_loads_nothing():
    """A hook imports the package: it has a version and nothing else."""
    code = "import sys; before = set(sys.modules); import turnspan; print(*set(sys.modules) - before)"
    done = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["turnspan"]


def test_every_public_name_exists():
    """Each name of `__all__` can be imported, and is listed once."""
    assert len(set(api.__all__)) == len(api.__all__)
    assert all(getattr(api, name) is not None for name in api.__all__)


def test_sessions_are_sorted_by_time_and_found_by_name(claude_home):
    """The one written to last is the first; an id, the beginning of one, or a path names a session."""
    old = save(claude_home, "aaaaaaaa-0000-4000-8000-000000000001", "one")
    save(claude_home, "bbbbbbbb-0000-4000-8000-000000000002", "two")
    os.utime(old, (1000, 1000))
    first, second = api.sessions()
    assert (first.session_id[:4], second.session_id[:4]) == ("bbbb", "aaaa")
    assert second.modified.year == 1970
    assert first.directory == "/home/ada/loom"
    assert api.session("aaaa") == api.session(second.session_id) == api.session(old)
    assert api.sessions(claude_home / "nothing") == []
    with pytest.raises(api.TranscriptError, match="no session 'cccc'") as error:
        api.session("cccc")
    assert error.value.hint


@pytest.mark.parametrize(
    ("capture", "has_secret", "has_text"),
    [(None, False, True), ("redacted", False, True), ("full", True, True), ("metadata", False, False)],
)
def test_the_capture_mode_decides_about_content(claude_home, capture, has_secret, has_text):
    """As exported by default; "full" is the transcript itself, "metadata" has no content."""
    save(claude_home, "aaaaaaaa-0000-4000-8000-000000000001", f"use {SECRET} now")
    (turn,) = api.sessions()[0].turns(capture=capture)
    assert (SECRET in turn.prompt) is has_secret
    assert ("use" in turn.prompt) is has_text
    assert turn.tally() == api.sessions()[0].tally()


def test_the_settings_of_the_user_hold(claude_home):
    """Without `capture`, a session is what config.toml exports."""
    save(claude_home, "aaaaaaaa-0000-4000-8000-000000000001", "hello")
    config = claude_home / "turnspan" / "config.toml"
    config.write_text('capture = "metadata"\n')
    config.chmod(0o600)
    assert api.sessions()[0].turns()[0].prompt == ""
    with pytest.raises(api.ConfigError, match="capture is 'all'"):
        api.sessions()[0].turns(capture="all")


def test_a_turn_has_everything_that_was_written_for_it(claude_home):
    """The spans of a background agent come in a trace of their own, and belong to the turn that started it."""
    shutil.copytree(FIXTURES / "agents-background" / "projects", claude_home / "projects")
    (session,) = [each for each in api.sessions() if any(turn.agents for turn in each.turns())]
    traces, turns = list(session.traces()), session.turns()
    assert len(traces) > len(turns)
    assert sum(len(turn.spans) for turn in turns) == sum(len(trace.spans) for trace in traces)
    total = api.tally(traces)
    assert session.tally() == total
    assert sum(turn.tally().usage.output for turn in turns) == total.usage.output
    assert turns[0].start <= turns[0].end


def test_figures_are_those_of_the_command_line(claude_home, command):
    """`turnspan sessions --json` has the same tokens and cost."""
    save(claude_home, "aaaaaaaa-0000-4000-8000-000000000001", "one", "two")
    _, out, _ = command("sessions", "--json")
    shown, total = json.loads(out.splitlines()[0]), api.sessions()[0].tally()
    assert (shown["turns"], shown["usage"]["output"], shown["cost_usd"]) == (2, total.usage.output, total.cost_usd)


def test_own_patterns_are_checked():
    """A pattern that cannot be used is an error with a hint."""
    assert api.mask("nothing here") == ("nothing here", {})
    with pytest.raises(api.ConfigError, match="not a regular expression"):
        api.mask("text", {"bad": "("})
