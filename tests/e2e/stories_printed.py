"""Stories without a terminal: `-p` with one prompt, and prompts sent as stream-json."""

from __future__ import annotations

import json
import signal
import time
from typing import TYPE_CHECKING

from .client import picture_block, register_hooks, version_tuple, write_settings
from .story import OWN_ANSWER_UNTIL, hours_later, scenario, wait_for_words

if TYPE_CHECKING:
    from .stage import Stage

# ---- one prompt, `-p`


@scenario()
def tools(stage: Stage) -> None:
    """Thinking, two parallel tools, then a third."""
    stage.run("{tools} look around")


@scenario(weight=3)
def words(stage: Stage) -> None:
    """Thinking; many scripts and emoji; a failing command; a long output; each in a separate session."""
    stage.run("{thinking} think")
    stage.run("{unicode} Ünïcödé 世界 👩‍💻 “quotes”")
    stage.run("{error} fail")
    stage.run("{big} print a lot")


@scenario()
def pictures(stage: Stage) -> None:
    """An image read by a tool, and one in the prompt."""
    client = stage.stream()
    stage.finished(client.say("{image} look at it"), 1)
    stage.finished(client.say("{hello} and at this", picture_block()), 0)
    client.close()


@scenario()
def mcp(stage: Stage) -> None:
    """A tool of an MCP server that succeeds, and one that fails."""
    stage.run("{mcp} use the server", "--mcp-config", str(stage.root / "mcp.json"))


@scenario()
def web(stage: Stage) -> None:
    """A search with the WebSearch tool, and one that the server ran within its response."""
    stage.run("{websearch} search")
    stage.run("{servertool} search there")


@scenario()
def max_tokens(stage: Stage) -> None:
    """A response cut off at the token limit, which the client resumes."""
    stage.run("{maxtok} talk", expect=None)


@scenario(weight=3)
def retries(stage: Stage) -> None:
    """Overload twice, then a server error, then a broken stream: each turn gets its response in the end."""
    stage.run("{overload} try")
    stage.run("{error500} try")
    stage.run("{cut} try", expect=None)


@scenario(weight=3)
def api_errors(stage: Stage) -> None:
    """A rejected key, and an invalid request."""
    stage.run("{auth401} no key", expect=None)
    stage.run("{bad400} no way", expect=None)
    stage.run("{toolthen400} half way", expect=None)


@scenario()
def denied(stage: Stage) -> None:
    """Calls that need a permission which no user can give, and one that the settings deny."""
    settings = json.loads(stage.home.settings.read_text())
    write_settings(stage.home, {**settings, "permissions": {"deny": ["Bash(echo forbidden)"]}})
    stage.run("{denied} try", "--permission-mode", "default")


@scenario()
def hooked(stage: Stage) -> None:
    """Other hooks add context, deny a call and block a prompt."""

    def says(event: str, **said: str) -> None:
        output = json.dumps({"hookSpecificOutput": {"hookEventName": event, **said}})
        answer = stage.root / f"{event}.json"
        answer.write_text(output)
        when = "grep -q 'echo second' && " if event == "PreToolUse" else ""
        register_hooks(stage.home, f"{when}cat '{answer}' || true", (event,))

    register_hooks(stage.home, "grep -q unwelcome && { echo not this >&2; exit 2; } || true", ("UserPromptSubmit",))

    for event in ("SessionStart", "UserPromptSubmit", "PostToolUse"):
        says(event, additionalContext=f"What a hook of {event} says.")
    says("PreToolUse", permissionDecision="deny", permissionDecisionReason="A hook forbids it.")
    client = stage.stream()
    stage.finished(client.say("{tools} first"), 2)
    client.say("{hello} an unwelcome one")
    client.wait_results(2)
    stage.finished(client.say("{hello} third"), 0)
    client.close()


@scenario(weight=2)
def many_calls(stage: Stage) -> None:
    """Sixty calls in groups of ten, the last one interrupted; then a prompt of three thousand lines."""
    client = stage.stream()
    stage.api.wait_response(client.say("{many} work"), 5)
    stage.wait_gate("slow")
    client.interrupt()
    client.wait_results(1)
    lines = "\n".join(f"line {n} of what was pasted" for n in range(3000))
    stage.finished(client.say(f"{{hello}} look at this:\n{lines}\n"), 0)
    client.close()


# ---- several turns


@scenario()
def turns(stage: Stage) -> None:
    """Several turns in one process."""
    client = stage.stream()
    for what, steps in (("hello", 0), ("tools", 2), ("error", 1), ("hello", 0)):
        stage.finished(client.say(f"{{{what}}} continue"), steps)
    client.close()


@scenario()
def stop_blocked(stage: Stage) -> None:
    """Another Stop hook blocks the end of a turn: the turn continues, and its Stop hooks run twice."""
    once = stage.root / "blocked.once"
    register_hooks(stage.home, f"[ -e '{once}' ] || {{ touch '{once}'; echo say more >&2; exit 2; }}", ("Stop",))
    client = stage.stream()
    turn = client.say("{hello} first")
    stage.finished(turn, 1)
    stage.finished(client.say("{hello} second"), 0)
    client.close()


@scenario()
def command_and_skill(stage: Stage) -> None:
    """A custom command, and a skill that the model chose."""
    client = stage.stream()
    stage.finished(client.say("/x with arguments"), 0)
    if version_tuple(stage.version) >= (2, 0, 20):
        stage.finished(client.say("{skill} use it"), 1)
    client.close()


@scenario()
def compact(stage: Stage) -> None:
    """`/compact` between two turns."""
    client = stage.stream()
    stage.finished(client.say("{tools} first"), 2)
    client.say_text("/compact")
    stage.api.wait_for(lambda e: e["event"] == "response" and e["aux"] == "compact", "the compaction")
    client.wait_results(2)
    stage.finished(client.say("{error} after it"), 1)
    client.close()


@scenario(since="2.1.325")
def auto_compact(stage: Stage) -> None:
    """The context is full in the middle of a turn: the client compacts, and the same turn continues."""
    client = stage.stream()
    turn = client.say("{full} work")
    stage.wait_hook("Stop", after=stage.api.wait_response(turn)["t_end"])
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario(weight=3)
def resume(stage: Stage) -> None:
    """A session resumed by its id, then continued, then forked, then resumed again."""
    first = stage.run("{tools} first")
    stage.run("{hello} resumed", "--resume", str(first["session_id"]))
    stage.run("{error} continued", "--continue")
    if version_tuple(stage.version) >= (2, 0, 0):
        stage.run("{hello} forked", "--resume", str(first["session_id"]), "--fork-session")
        stage.run("{hello} the original again", "--resume", str(first["session_id"]))


@scenario(since="2.0.0", weight=3)
def fork_of_a_fork(stage: Stage) -> None:
    """A fork of a fork, while the original session continues: each turn is exported from its original session."""
    first = stage.run("{tools} first")
    fork = stage.run("{hello} forked", "--resume", str(first["session_id"]), "--fork-session")
    stage.run("{hello} the original again", "--resume", str(first["session_id"]))
    again = stage.run("{error} forked again", "--resume", str(fork["session_id"]), "--fork-session")
    stage.run("{hello} the second fork", "--resume", str(again["session_id"]))


@scenario()
def another_model(stage: Stage) -> None:
    """A session continues with another model."""
    first = stage.run("{tools} first")
    stage.run("{tools} resumed", "--resume", str(first["session_id"]), "--model", "haiku")


@scenario(weight=2)
def one_session_twice(stage: Stage) -> None:
    """Two clients resume the same session at the same time and write to the same file."""
    first = stage.run("{hello} first")
    (key_a, text_a), (key_b, text_b) = stage.prompt("{slow} one"), stage.prompt("{slow} two")
    one = stage.start(text_a, "--resume", str(first["session_id"]))
    stage.api.wait_response(key_a)
    two = stage.start(text_b, "--resume", str(first["session_id"]))
    stage.api.wait_response(key_b)
    stage.open_gate("slow")
    for client in (one, two):
        client.process.communicate(timeout=60)
        client.row.update(rc=client.process.returncode, t_end=time.time())
    stage.run("{hello} last", "--resume", str(first["session_id"]))


@scenario()
def two_sessions(stage: Stage) -> None:
    """Two sessions of one project run at the same time."""
    (key_a, text_a), (key_b, text_b) = stage.prompt("{slow} one"), stage.prompt("{slow} two")
    one, two = stage.start(text_a), stage.start(text_b)
    stage.api.wait_response(key_a)
    stage.api.wait_response(key_b)
    stage.open_gate("slow")
    for client in (one, two):
        client.process.communicate(timeout=60)
        client.row.update(rc=client.process.returncode, t_end=time.time())


@scenario(since="2.1.0")
def queue_stream(stage: Stage) -> None:
    """A second prompt is sent while the first turn runs a tool."""
    client = stage.stream()
    busy = client.say("{slow} first")
    stage.api.wait_response(busy)
    stage.wait_gate("slow")
    client.say("{hello} meanwhile")
    stage.open_gate("slow")
    stage.api.wait_response(busy, 1)
    if version_tuple(stage.version) <= OWN_ANSWER_UNTIL:
        stage.finished("p2", 0)
    stage.finished(client.say("{hello} later"), 0)
    client.close()


@scenario(since="2.0.0")
def interrupt_stream(stage: Stage) -> None:
    """Interruptions through the control channel, during a stream and during a tool, then a normal turn."""
    client = stage.stream()
    stage.api.wait_request(client.say("{slowstream} never ends"))
    wait_for_words(stage)
    client.interrupt()
    client.wait_results(1)
    stage.api.wait_response(client.say("{slow} hangs"))
    stage.wait_gate("slow")
    client.interrupt()
    client.wait_results(2)
    stage.finished(client.say("{hello} afterwards"), 0)
    client.close()


@scenario()
def sigterm(stage: Stage) -> None:
    """The client gets SIGTERM while a tool runs; another session follows."""
    _, text = stage.prompt("{slow} will be ended")
    client = stage.start(text)
    stage.wait_written(stage.api.wait_response("p1")["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGTERM)
    stage.open_gate("slow")
    stage.wait_for_quiet()
    session = str(stage.api.wait_response("p1")["session_id"])
    if not any(h["payload"].get("session_id") == session for h in stage.hooks("SessionEnd")):
        hours_later(stage, session)  # the client exited before its hook started (2.1.292): as if it had been killed
    stage.run("{hello} another session")


@scenario()
def sigkill(stage: Stage) -> None:
    """The client is killed while a tool runs; another session of the project follows hours later."""
    stage.run("{hello} before")
    _, text = stage.prompt("{slow} will be killed")
    client = stage.start(text)
    stage.wait_written(stage.api.wait_response("p2")["message_id"])
    stage.wait_gate("slow")
    client.kill(signal.SIGKILL)
    stage.open_gate("slow")
    hours_later(stage, str(stage.api.wait_response("p2")["session_id"]))
    stage.run("{hello} another session")
