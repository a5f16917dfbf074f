"""The command line: output, exit codes and errors of the commands."""

import contextlib
import json
import os
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from only_posix import is_root, make_fifo, posix_only
from rows import Writer, agent_writer, save_agent

from turnspan import __version__
from turnspan.cli import COMMANDS, SECTIONS, frame, main
from turnspan.errors import TranscriptError

SESSION = "5e55104a-0000-4000-8000-000000000001"
TURNSPAN = [sys.executable, "-c", "from turnspan.cli import main; main()"]
FULL = Path("/dev/full")
SECRET = "AKIA" + "Q7ZXW2MB4KPL9TRN"  # not a real key


@pytest.fixture
def projects(tmp_path, monkeypatch):
    """A separate Claude home, without this machine's settings."""
    for name in list(os.environ):
        if name.startswith(("TURNSPAN_", "LANGFUSE_", "CC_LANGFUSE_")) or name in {
            "NO_COLOR",
            "FORCE_COLOR",
            "COLUMNS",
        }:
            monkeypatch.delenv(name)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "claude" / "projects"


@pytest.fixture
def turnspan(projects, command):
    """The command line, and the home it works in."""
    command.projects = projects
    return command


def two_turns(**options):
    """A small session."""
    writer = Writer(**options)
    writer.prompt("weave a carpet")
    call = writer.call("Bash", {"command": "loom --start"})
    writer.result(call, "started")
    writer.say("It is woven.")
    writer.turn("and another", "Done.")
    return writer


# ---- show


def test_show_masked_says_what_is_masked_and_what_may_be_missing(turnspan):
    """Rules with turn, span and field, then strings that look like secrets with a pattern that masks each of them."""
    odd = "zmq_" + "Xk29QmPw7RtL4vBn8Hd3"
    writer = Writer()
    writer.prompt(f"the key is {SECRET}")
    call = writer.call("Bash", {"command": f"loom --start {odd} --password hunter22"})
    writer.result(call, "started")
    writer.say("It is woven.")
    writer.save(turnspan.projects / "-home-ada-loom")
    code, out, err = turnspan("show", SESSION, "--masked")
    assert (code, err) == (0, "")
    assert SECRET not in out
    assert "  aws-access-key (" in out
    assert "    Turn 1 > Bash > input.command" in out.partition("  password (")[2]
    assert f"  {odd}\n    Turn 1 > " in out
    assert "[patterns]" in out
    report = json.loads(turnspan("show", SESSION, "--masked", "--json")[1])
    assert {"rule": "password", "turn": "Turn 1", "span": "Bash", "field": "input.command", "times": 1} in report["masked"]
    assert [found["text"] for found in report["unmasked"]] == [odd]
    assert re.fullmatch(report["unmasked"][0]["pattern"], odd)
    home = turnspan.projects.parent / "turnspan"
    assert not (home / "traces").exists()  # nothing is sent
    home.mkdir(exist_ok=True)
    (home / "config.toml").write_text(out[out.index("[patterns]") :])
    assert odd not in turnspan("show", SESSION, "--full")[1]
    assert "Nothing else looks like a secret." in turnspan("show", SESSION, "--masked")[1]


def test_show_draws_the_session(turnspan):
    """A session by its id, by the beginning of its id, or by its path: the same tree."""
    path = two_turns().save(turnspan.projects / "-home-ada-loom")
    code, by_id, err = turnspan("show", SESSION)
    assert (code, err) == (0, "")
    assert "● Turn 1" in by_id
    assert "loom --start → started" in by_id
    assert "2 turns · 3 generations · 1 tool call" in by_id
    assert "Export:  to local, redacted" in by_id
    assert turnspan("show", "5e55")[1] == by_id
    assert turnspan("show", str(path))[1] == by_id


def test_show_without_a_name_takes_the_latest_of_this_directory(turnspan, tmp_path):
    """The latest session of this directory; if there is none, the latest of all."""
    here = two_turns(cwd=str(tmp_path)).save(turnspan.projects / "-here")
    other = two_turns(session="0ther000-0000-4000-8000-000000000001", cwd="/elsewhere").save(
        turnspan.projects / "-there"
    )
    os.utime(here, (1000, 1000))
    assert SESSION in turnspan("show")[1]
    here.unlink()
    assert other.stem in turnspan("show")[1]


def test_one_turn_can_be_selected(turnspan):
    """`--turn 2` shows only that turn; a turn that does not exist is an error."""
    two_turns().save(turnspan.projects / "-p")
    code, out, _ = turnspan("show", SESSION, "--turn", "2")
    assert code == 0
    assert "Turn 2" in out
    assert "Turn 1" not in out
    code, out, err = turnspan("show", SESSION, "--turn", "9")
    assert (code, out) == (1, "")
    assert "has no turn 9" in err


def test_json_is_one_object_for_each_trace(turnspan):
    """Every line is JSON with the keys listed in the help; `--turn` works the same."""
    two_turns().save(turnspan.projects / "-p")
    code, out, err = turnspan("show", SESSION, "--json")
    first, second = map(json.loads, out.splitlines())
    assert (code, err) == (0, "")
    assert re.fullmatch("[0-9a-f]{32}", first["trace_id"])
    assert [span["kind"] for span in first["spans"]] == ["turn", "generation", "tool", "generation"]
    help_text = turnspan("show", "--help")[1]
    for name in (*first, *first["spans"][0], *first["spans"][1]["usage"]):
        assert re.search(rf"\b{name}\b", help_text), name
    assert json.loads(turnspan("show", SESSION, "--json", "--turn", "2")[1]) == second


def test_full_shows_every_word(turnspan):
    """`--full` prints all content, not only the beginning."""
    writer = Writer()
    writer.turn("first line\n" + "word " * 200 + "end", "Done.")
    writer.save(turnspan.projects / "-p")
    assert "word end" not in turnspan("show", SESSION)[1]
    assert "word end" in turnspan("show", SESSION, "--full")[1]


def test_secrets_are_masked_and_counted(turnspan):
    """The output is what would be exported: a key is masked in the tree and in JSON, and counted."""
    writer = Writer()
    writer.prompt(f"use {SECRET} please")
    writer.say(f"I used {SECRET}.")
    writer.save(turnspan.projects / "-p")
    for options in ([], ["--full"], ["--json"]):
        _, out, _ = turnspan("show", SESSION, *options)
        assert SECRET not in out
        assert "[redacted:" in out
    assert re.search(r"masked: \d+ [a-z]", turnspan("show", SESSION)[1])
    assert sum(json.loads(turnspan("show", SESSION, "--json")[1])["masked"].values()) >= 2


def test_capture_narrows_what_is_shown(turnspan, monkeypatch):
    """With `metadata` no content is exported, and none is shown."""
    two_turns().save(turnspan.projects / "-p")
    monkeypatch.setenv("TURNSPAN_CAPTURE", "metadata")
    _, out, _ = turnspan("show", SESSION, "--full")
    assert "carpet" not in out
    assert "Export:  to local, metadata" in out
    assert "Bash" in out


def test_a_disabled_session_is_shown_and_marked(turnspan, monkeypatch):
    """A session that is not exported can be shown, and the output says that it is not exported."""
    two_turns().save(turnspan.projects / "-p")
    monkeypatch.setenv("TURNSPAN_ENABLED", "0")
    assert "Export:  nowhere: switched off by $TURNSPAN_ENABLED" in turnspan("show", SESSION)[1]


def test_a_transcript_with_a_name_of_its_own_is_shown(turnspan, tmp_path):
    """A renamed transcript gives the same output, ids included."""
    path = two_turns().save(turnspan.projects / "-p")
    as_it_was = turnspan("show", str(path), "--json")
    for kept in (tmp_path / "monday.jsonl", path.with_name("copy-of-monday.jsonl")):
        kept.write_bytes(path.read_bytes())
        assert turnspan("show", str(kept), "--json") == as_it_was


def test_copied_turns_are_shown_in_their_own_session(turnspan):
    """A fork shows its own turns; copied turns are shown in the original session."""
    origin = two_turns(version="2.1.45")
    path = origin.save(turnspan.projects / "-p")
    os.utime(path, (time.time(), time.time()))
    fork = two_turns(version="2.1.45")
    fork.turn("a turn of my own", "Good.")
    for row in fork.rows[-2:]:
        row["sessionId"] = "f0f0f0f0-0000-4000-8000-000000000001"
    fork.session = "f0f0f0f0-0000-4000-8000-000000000001"
    fork.save(turnspan.projects / "-p")
    _, out, err = turnspan("show", "f0f0")
    assert "a turn of my own" in out
    assert "weave a carpet" not in out
    assert "not shown: 2 turns copied from other sessions" in err


def test_damaged_lines_are_skipped_and_counted(turnspan):
    """Lines that cannot be read are skipped and counted."""
    path = two_turns().save(turnspan.projects / "-p")
    path.write_bytes(b'{"torn\n' + path.read_bytes() + b'{"type":"news-from-tomorrow"}\n')
    code, out, err = turnspan("show", SESSION)
    assert code == 0
    assert "2 turns" in out
    assert "skipped: 1 unreadable line" in err
    assert "news-from-tomorrow" in err


BAD_INPUT = {
    "missing": (lambda _path: None, "no such file"),
    "a directory": (lambda path: path.mkdir(), "is a directory"),
    "a FIFO": (make_fifo, "not a regular file"),
    "empty": (lambda path: path.write_bytes(b""), "is empty"),
    "binary": (lambda path: path.write_bytes(bytes(range(256)) * 40), "binary data"),
    "a program": (lambda path: path.symlink_to(sys.executable), "binary data"),
    "prose": (lambda path: path.write_text("Dear diary,\nnothing happened.\n"), "not a transcript"),
    "other JSON": (lambda path: path.write_text('{"a":1}\n[2]\n3\n'), "not a transcript"),
    "half a line": (lambda path: path.write_text('{"type":"user"'), "no complete line"),
    "a circle of links": (lambda path: path.symlink_to(path), "symlink loop"),
}


@pytest.mark.parametrize(("make", "sentence"), BAD_INPUT.values(), ids=BAD_INPUT)
def test_a_file_that_is_not_a_transcript_gives_one_clear_error(turnspan, tmp_path, make, sentence):
    """For any wrong file: one sentence, exit code 1, nothing on stdout, no traceback."""
    path = tmp_path / "x.jsonl"
    make(path)
    code, out, err = turnspan("show", str(path))
    assert (code, out) == (1, "")
    assert err.startswith("error: ")
    assert sentence in err.splitlines()[0]
    assert [line.split(":")[0] for line in err.splitlines()] in (["error"], ["error", "hint"])


@posix_only
@pytest.mark.skipif(is_root, reason="root may read everything")
def test_a_file_without_read_permission_is_an_error(turnspan, tmp_path):
    """The error names the missing permission."""
    path = two_turns().save(tmp_path)
    path.chmod(0)
    code, _, err = turnspan("show", str(path))
    assert code == 1
    assert "permission denied" in err


def test_an_agents_own_file_leads_to_its_session(turnspan):
    """A subagent's transcript is shown with its session, not alone."""
    writer = two_turns()
    writer.save(turnspan.projects / "-p")
    agent = agent_writer(writer, "a1b2")
    agent.turn("look", "Seen.")
    path = save_agent(agent, turnspan.projects / "-p", "a1b2")
    code, _, err = turnspan("show", str(path))
    assert code == 1
    assert "transcript of a subagent" in err


def test_one_row_without_a_newline_is_a_transcript(turnspan):
    """A restored file may have lost its last newline, even if it has only one line."""
    writer = Writer()
    writer.prompt("weave")
    path = writer.save(turnspan.projects / "-p")
    path.write_bytes(path.read_bytes().rstrip())
    code, out, _ = turnspan("show", str(path))
    assert code == 0
    assert "weave" in out


def test_a_session_without_turns_is_not_an_error(turnspan):
    """A session that has just started is a valid transcript without turns."""
    path = turnspan.projects / "-p" / f"{SESSION}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text('{"type":"file-history-snapshot","messageId":"x"}\n')
    code, out, err = turnspan("show", SESSION)
    assert (code, out) == (0, "")
    assert "has no turns yet" in err


@pytest.mark.parametrize(
    ("name", "sentence"), [("zzz", "no session 'zzz'"), ("", "is a directory"), ("5e5", "2 sessions begin with '5e5'"),
                         ("~no-such-user", "no session '~no-such-user'")]
)  # fmt: skip
def test_an_unknown_or_ambiguous_session_is_explained(turnspan, name, sentence):
    """An unknown or an ambiguous name says what to do."""
    two_turns().save(turnspan.projects / "-p")
    two_turns(session="5e500000-0000-4000-8000-000000000001").save(turnspan.projects / "-p")
    code, _, err = turnspan("show", name)
    assert code == 1
    assert sentence in err
    assert "hint: " in err


def test_an_unknown_user_after_a_tilde_is_not_an_error(turnspan):
    """`~` before an unknown user name is taken literally."""
    two_turns().save(turnspan.projects / "-p")
    code, out, err = turnspan("sessions", "--project", "~no-such-user")
    assert (code, out) == (0, "")
    assert "no sessions of '~no-such-user' found" in err


def test_no_transcripts_at_all(turnspan):
    """On a machine where Claude Code never ran, the error says that there are no transcripts."""
    code, _, err = turnspan("show")
    assert code == 1
    assert "no transcripts found" in err


@pytest.mark.parametrize("asked", ["show", "sessions"])
def test_projects_that_cannot_be_listed_are_not_reported_as_empty(turnspan, asked):
    """If the directory cannot be read, the commands do not claim that there are no sessions."""
    turnspan.projects.parent.mkdir()
    turnspan.projects.symlink_to(turnspan.projects)
    code, out, err = turnspan(asked)
    assert (code, out) == (1, "")
    assert err.startswith("error: cannot list ")


# ---- sessions


def test_sessions_are_listed(turnspan):
    """Title, project, turns, tokens, cost, age and id of each, newest first."""
    two_turns().save(turnspan.projects / "-home-ada-loom")
    later = Writer(session="7a7e0000-0000-4000-8000-000000000001", cwd="/home/ada/shed")
    later.wait(86400)
    later.turn("sharpen the shears", "Sharp.")
    later.save(turnspan.projects / "-home-ada-shed")
    code, out, err = turnspan("sessions")
    head, first, second = out.splitlines()
    assert (code, err) == (0, "")
    assert head.split() == ["AGE", "SESSION", "TURNS", "TOKENS", "COST", "SENT", "PROJECT", "TITLE"]
    assert first.split()[1:4] == ["7a7e0000", "1", "370"]
    assert "shed" in first
    assert first.endswith("sharpen the shears")
    assert second.split()[1:4] == ["5e55104a", "2", "1.1k"]
    assert len(turnspan("sessions", "--limit", "1")[1].splitlines()) == 2
    assert "shears" not in turnspan("sessions", "--project", "loom")[1]


def test_sessions_are_listed_as_json(turnspan):
    """Every line is JSON with the keys listed in the help."""
    path = two_turns().save(turnspan.projects / "-home-ada-loom")
    record = json.loads(turnspan("sessions", "--json")[1])
    assert record["session_id"] == SESSION
    assert record["path"] == str(path)
    assert record["turns"] == 2
    assert record["last_activity"] == "2026-03-01T09:00:06.000000000Z"
    help_text = turnspan("sessions", "--help")[1]
    for name in record:
        assert re.search(rf"\b{name}\b", help_text), name


def test_an_empty_list_of_sessions_is_not_an_error(turnspan):
    """An empty list is not an error, and `--json` prints no line."""
    code, out, err = turnspan("sessions", "--json", "--project", "nowhere")
    assert (code, out) == (0, "")
    assert "no sessions of 'nowhere' found" in err


def test_one_project_that_cannot_be_listed_hides_no_other(turnspan):
    """The other projects are listed; the skipped one is reported, and the exit code is 1."""
    two_turns().save(turnspan.projects / "-home-ada-loom")
    (turnspan.projects / "circle").symlink_to("circle")
    code, out, err = turnspan("sessions")
    assert (code, len(out.splitlines())) == (1, 2)
    assert err.startswith(f"skipped: cannot list {str(turnspan.projects / 'circle')!r}: ")
    assert len(err.splitlines()) == 1
    for name in ((), (SESSION[:4],)):
        code, out, again = turnspan("show", *name)
        assert (code, again) == (0, err)
        assert "weave a carpet" in out


@posix_only
@pytest.mark.skipif(is_root, reason="root may read everything")
def test_one_transcript_that_cannot_be_read_hides_no_other(turnspan):
    """It is reported, and the exit code is 1."""
    two_turns().save(turnspan.projects / "-home-ada-loom")
    closed = two_turns(session="7a7e0000-0000-4000-8000-000000000001").save(turnspan.projects / "-home-ada-loom")
    closed.chmod(0)
    code, out, err = turnspan("sessions")
    assert (code, len(out.splitlines())) == (1, 2)
    assert err == f"skipped: cannot read {str(closed)!r}: permission denied\n"


# ---- the frame


def test_help_teaches_with_examples(turnspan):
    """The help lists every command in a section, with examples, and explains shell completion."""
    code, out, _ = turnspan("--help")
    assert code == 0
    assert "turnspan show 3f2a --turn 4" in out
    assert "_TURNSPAN_COMPLETE=zsh_source" in out
    listed = [name for names in SECTIONS.values() for name in names]
    for name, command in frame.commands.items():
        if not command.hidden:
            assert name in listed, f"put {name!r} under a heading of SECTIONS"
            assert re.search(rf"^  {name} ", out, re.MULTILINE)
            assert f"turnspan {name}" in turnspan(name, "-h")[1]
        assert all(len(line) <= 88 for line in turnspan(name, "--help")[1].splitlines())


def test_version(turnspan):
    """`--version` prints the version."""
    assert turnspan("--version") == (0, f"turnspan {__version__}\n", "")


@pytest.mark.parametrize("arguments", [["bogus"], ["show", "--bogus"], ["show", "--turn", "0"], ["show", "a", "b"]])
def test_wrong_usage_exits_with_2(turnspan, arguments):
    """Usage errors have another exit code than failures."""
    code, out, err = turnspan(*arguments)
    assert (code, out) == (2, "")
    assert "--help" in err


@pytest.mark.usefixtures("projects")
def test_tracebacks_are_printed_only_for_debugging(monkeypatch):
    """With TURNSPAN_DEBUG=1 exceptions are not caught."""
    monkeypatch.setenv("TURNSPAN_DEBUG", "1")
    with pytest.raises(TranscriptError, match="no session 'zzz'"):
        main(["show", "zzz"])


@pytest.mark.parametrize("is_debugging", [False, True])
def test_an_unexpected_error_is_one_sentence(is_debugging):
    """An unexpected error is printed without a traceback, unless TURNSPAN_DEBUG is set."""
    code = (
        "from turnspan.cli import frame, main\n@frame.command()\ndef boom(): raise RuntimeError('oh')\nmain(['boom'])"
    )
    env = {**os.environ, "TURNSPAN_DEBUG": "1" if is_debugging else ""}
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, env=env)
    assert ran.returncode == 1
    assert ("Traceback" in ran.stderr) is is_debugging
    assert "RuntimeError: oh" in ran.stderr


def test_an_invalid_setting_is_a_warning_and_the_rest_is_used(turnspan, monkeypatch):
    """A typo in the settings does not prevent showing a session."""
    two_turns().save(turnspan.projects / "-p")
    monkeypatch.setenv("TURNSPAN_CAPTURE", "everything")
    code, out, err = turnspan("show", SESSION)
    assert code == 0
    assert "Turn 1" in out
    assert err.startswith("warning: ")
    assert "everything" in err


def test_an_unknown_destination_lists_the_available_ones(turnspan):
    """`--to` takes the name of a destination."""
    two_turns().save(turnspan.projects / "-p")
    code, _, err = turnspan("show", SESSION, "--to", "nowhere")
    assert code == 1
    assert "unknown destination 'nowhere'" in err
    assert "local" in err


def test_escapes_in_names_do_not_reach_the_terminal(turnspan):
    """Arguments are stripped of escapes before they are printed."""
    _, _, err = turnspan("show", "\x1b[31mred\x07.jsonl")
    assert "\x1b" not in err
    assert "\x07" not in err


def test_sessions_complete(turnspan, capsys, monkeypatch):
    """The shell completes commands, options and the ids of sessions."""
    two_turns().save(turnspan.projects / "-home-ada-loom")

    def completed(words, number):
        monkeypatch.setenv("_TURNSPAN_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(number))
        with pytest.raises(SystemExit):
            main([])
        return capsys.readouterr().out.split()

    assert completed("turnspan ses", 1) == ["plain,sessions"]
    assert completed("turnspan show 5e", 2) == [f"plain,{SESSION}"]
    assert completed("turnspan show ./", 2) == ["file,./"]
    assert "plain,--turn" in completed("turnspan show --", 2)


def test_little_is_loaded_to_say_the_version():
    """`--version` and completion of commands load neither the reader nor the settings."""
    code = "import sys\nfrom turnspan.cli import main\ntry: main(['--version'])\nexcept SystemExit: pass\n"
    code += "print(*[name for name in sys.modules if name.startswith(('turnspan', 'rich', 'msgspec'))])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.splitlines()[1].split() == [
        "turnspan",
        "turnspan.commands",
        "turnspan.commands.declare",
        "turnspan.errors",
        "turnspan.cli",
    ]


# ---- in a separate process


def screen_of(main_end):
    """Everything that a process wrote to a terminal, once it has ended."""
    screen = b""
    with contextlib.suppress(OSError):  # EIO: the other end is closed
        while chunk := os.read(main_end, 65536):
            screen += chunk
    os.close(main_end)
    return screen


@pytest.fixture
def process(projects):
    """Start a command as a separate process."""
    writer = Writer()
    for number in range(300):
        writer.turn(f"question {number} über → ●", "answer")
    writer.save(projects / "-p")
    running = []

    def start(*arguments, env=(), **options):
        started = subprocess.Popen(
            [*TURNSPAN, *arguments], env={**os.environ, **dict(env)}, stdin=subprocess.DEVNULL, **options
        )
        running.append(started)
        return started

    yield start
    for started in running:
        started.kill()
        started.wait()
        for stream in (started.stdout, started.stderr):
            if stream is not None:
                stream.close()


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_closed_pipe_is_not_an_error(process, options):
    """`turnspan show | head -1` prints one line and no error, and exits with 0."""
    shown = process("show", SESSION, *options, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout.readline()
    shown.stdout.close()
    assert shown.stderr.read() == b""
    assert shown.wait(20) == 0


# Commands that read stdin, start a server or need an argument. `tests/test_export.py` and its neighbours have those.
NOT_LISTED = {"hook", "view", "demo", "forget", "export", "search"}


@pytest.mark.parametrize(
    "command", [["--help"], ["--version"], *([name] for name in COMMANDS if name not in NOT_LISTED)]
)
def test_every_command_can_be_read_by_head(projects, command):
    """A reader that closes the pipe before the first line is not an error for any command."""
    two_turns().save(projects / "-p")
    if command[0] in {"install", "uninstall", "backfill"}:
        command = [*command, "--dry-run"]
    reading_end, writing_end = os.pipe()
    os.close(reading_end)
    code = "from turnspan.__main__ import main; main()"
    ran = subprocess.run(
        [sys.executable, "-c", code, *command], stdin=subprocess.DEVNULL, stdout=writing_end, stderr=subprocess.PIPE,
        check=False,
    )  # fmt: skip
    os.close(writing_end)
    assert ran.returncode == 0, ran.stderr
    assert b"Broken pipe" not in ran.stderr
    assert b"Error" not in ran.stderr


@pytest.mark.skipif(not FULL.exists(), reason="a Linux device")
def test_a_full_disk_is_an_error_with_a_reason(process):
    """If the output cannot be written, the error says why."""
    with FULL.open("wb") as full:
        shown = process("show", SESSION, stdout=full, stderr=subprocess.PIPE)
        assert shown.stderr.read() == b"error: No space left on device\n"
        assert shown.wait(20) == 1


def test_an_interrupt_is_quiet(process):
    """Ctrl-C ends a listing with the code that shells expect."""
    shown = process("show", SESSION, "--full", stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    shown.stdout.readline()
    shown.send_signal(2)
    while shown.stdout.read(65536):
        pass
    assert b"Traceback" not in shown.stderr.read()
    assert shown.wait(20) in {130, 0}  # it may have been done already


def test_the_message_of_ctrl_c_has_its_own_line():
    """The progress bar is cleared first: the message never starts in the middle of it."""
    code = (
        "import os, signal\n"
        "from turnspan.commands.progress import progress, stop_requests\n"
        "with stop_requests() as is_stopping, progress(10, 100) as show:\n"
        "    show(1, 2, 10, '')\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    stopping = is_stopping()\n"
        "print(stopping)\n"
    )
    pty = pytest.importorskip("pty", reason="POSIX only")
    main_end, terminal = pty.openpty()
    env = {**os.environ, "TERM": "xterm"}
    ran = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.PIPE, stderr=terminal)
    os.close(terminal)
    screen = screen_of(main_end)
    assert ran.communicate(timeout=20)[0] == b"True\n"
    assert b"\r\x1b[2KStopping... press Ctrl-C again to quit immediately\r\n" in screen


def test_ascii_terminals_get_ascii_symbols(process):
    """A terminal with ASCII encoding gets an ASCII tree, and no error."""
    shown = process("show", SESSION, "--turn", "1", env={"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}.items(),
                    stdout=subprocess.PIPE)  # fmt: skip
    out = shown.stdout.read().decode("ascii")
    assert shown.wait(20) == 0
    assert "* Turn 1" in out
    assert "`-o opus-4-5  answer" in out
    assert "?ber" in out


@pytest.mark.parametrize(
    ("env", "is_coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
    ids=["", "NO_COLOR", "dumb"],
)
def test_colour_is_for_terminals_that_want_it(process, env, is_coloured):
    """On a terminal lines have colours and fit its width; NO_COLOR and a dumb terminal mean none at all."""
    pty = pytest.importorskip("pty", reason="POSIX only")
    main_end, terminal = pty.openpty()
    import fcntl  # noqa: PLC0415 - POSIX only
    import termios  # noqa: PLC0415

    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 64, 0, 0))
    shown = process("show", SESSION, "--turn", "1", env=env.items(), stdout=terminal, stderr=terminal)
    os.close(terminal)
    out = screen_of(main_end)
    assert shown.wait(20) == 0
    assert (b"\x1b[" in out) is is_coloured
    plain = re.sub(rb"\x1b\[[0-9;]*m", b"", out).decode()
    tree = [line for line in plain.splitlines() if line.startswith(("●", "├", "└"))]
    assert len(tree) == 2
    assert all(len(line) == 64 for line in tree)


def test_no_colour_without_a_terminal(process):
    """A file or a pipe gets plain text, unless FORCE_COLOR asks for more."""
    plain = process("show", SESSION, "--turn", "1", stdout=subprocess.PIPE)
    assert b"\x1b" not in plain.stdout.read()
    forced = process("show", SESSION, "--turn", "1", env={"FORCE_COLOR": "1"}.items(), stdout=subprocess.PIPE)
    assert b"\x1b[" in forced.stdout.read()


def test_closed_streams_are_not_an_error(projects):
    """A caller that closed stdout and stderr gets an exit code."""
    two_turns().save(projects / "-p")
    command = f'exec "$0" -c "{TURNSPAN[2]}" show {SESSION} >&- 2>&-'
    assert subprocess.run(["sh", "-c", command, sys.executable], check=False).returncode == 0


def test_the_picture_in_the_readme_is_what_show_prints(turnspan, monkeypatch):
    """The example in the README is real output of the command below it."""
    root = Path(__file__).parents[2]
    picture = re.search(r"^```\n(● .*?)^```$", (root / "README.md").read_text(), re.DOTALL | re.MULTILINE)[1]
    (path,) = (root / "fixtures" / "agents-nested").glob("projects/*/*.jsonl")
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    try:
        assert picture in turnspan("show", str(path))[1]
    finally:
        monkeypatch.undo()
        time.tzset()
