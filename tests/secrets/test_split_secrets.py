"""A secret that is split over two text blocks of a transcript is masked like one that is not."""

import os

import msgspec
import pytest
from rows import Writer, agent_writer, save_agent

from turnspan.delivery.policy import ExportPolicy
from turnspan.index import NAME, opened
from turnspan.settings.config import load_config
from turnspan.source.reader import Reader
from turnspan.source.sessions import SessionFile
from turnspan.trace.model import Message, Text
from turnspan.trace.redact import Policy, redact, redact_all

TOKEN = "ghp_" + "f4Kq8Zt2Lm6Xw9Rb1Vn5Yd3Jc7Hs0Pg2Ta4E"
CUT = 17
FIRST, SECOND = TOKEN[:CUT], TOKEN[CUT:]


def blocks(*texts):
    """Return texts as blocks of a message."""
    return [{"type": "text", "text": text} for text in texts]


def in_prompt(writer):
    """Write a prompt of two blocks."""
    writer.prompt(blocks(f"use {FIRST}", f"{SECOND} please"))
    writer.say("Done.")


def in_three_blocks(writer):
    """Write a prompt in which the secret spans three blocks, next to long ones."""
    texts = ("a line\n" * 2_000 + TOKEN[:7], TOKEN[7:21], TOKEN[21:] + " is it\n" + "a line\n" * 2_000)
    writer.prompt(blocks(*texts))
    writer.say("Done.")


def in_result(writer, *, is_error=False):
    """Write the result of a tool in two blocks."""
    writer.prompt("What is it?")
    result = writer.call("mcp__vault__read", {"name": "x"})
    writer.result(result, blocks(f"one\n{FIRST}", f"{SECOND}\ntwo"), is_error=is_error)
    writer.say("Done.")


def in_failure(writer):
    """Write the result of a call that failed, which is also an error message."""
    in_result(writer, is_error=True)


def in_answer(writer):
    """Write an answer of two blocks; the span of the turn repeats it as one text."""
    writer.prompt("What is it?")
    writer.say(blocks(f"It is {FIRST}", f"{SECOND}."))


def in_late_result(writer):
    """Write the result of a call that is not in the file."""
    writer.turn("One?", "One.")
    lost = {"message": {"content": [{"type": "tool_use", "id": "toolu_lost"}]}}
    writer.result(lost, blocks(FIRST, SECOND))
    writer.say("Done.")


def in_expansion(writer):
    """Write the expansion of a command in two blocks."""
    writer.prompt("<command-name>/deploy</command-name>")
    writer.prompt(blocks(f"Use {FIRST}", f"{SECOND} for it"), isMeta=True)
    writer.say("Done.")


def in_steering(writer):
    """Write words that were typed while the model worked."""
    writer.prompt("Begin.")
    call = writer.call("Bash", {"command": "ls"})
    writer.result(call, "a\nb")
    attachment = {"type": "queued_command", "prompt": blocks(f"and {FIRST}", SECOND), "commandMode": "prompt"}
    writer.row("attachment", attachment=attachment)
    writer.say("Done.")


def in_queue(writer):
    """Write words that are only in the client's queue."""
    writer.prompt("Begin.")
    writer.bare(
        "queue-operation", operation="enqueue", content=blocks(f"and {FIRST}", SECOND), timestamp=writer.stamp()
    )
    writer.bare("queue-operation", operation="remove", content=blocks(f"and {FIRST}", SECOND), timestamp=writer.stamp())
    writer.say("Done.")


STORIES = (
    in_prompt, in_three_blocks, in_result, in_failure, in_answer, in_late_result, in_expansion, in_steering, in_queue,
)  # fmt: skip


def traces_of(path):
    """Return the traces of a transcript, as they were built."""
    return list(Reader.for_people().traces(SessionFile(path.stem, path)))


def leaks(data):
    """Return whether a part of the secret is in the data."""
    return FIRST.encode() in data or SECOND.encode() in data or TOKEN[7:21].encode() in data


@pytest.mark.parametrize("story", STORIES)
def test_a_split_secret_is_masked_wherever_it_is(tmp_path, story):
    """Each half of a token is missing in everything that is exported of the turn."""
    writer = Writer()
    story(writer)
    traces = traces_of(writer.save(tmp_path))
    assert leaks(msgspec.json.encode([trace.spans for trace in traces]))
    for redacted in (*redact_all(traces, Policy()), *(redact(trace, Policy()) for trace in traces)):
        assert not leaks(msgspec.json.encode(redacted.trace))
        assert redact(redacted.trace, Policy()) == (redacted.trace, {})
    assert b"[redacted:github-token]" in msgspec.json.encode([redact(trace, Policy()).trace for trace in traces])


@pytest.mark.parametrize("is_background", [False, True])
def test_a_split_secret_of_a_subagent(tmp_path, is_background):
    """The prompt and the results of a subagent are masked in the same way."""
    writer = Writer()
    writer.prompt("Ask an agent.")
    call = writer.call("Agent", {"prompt": "go", "subagent_type": "Explore"})
    agent = agent_writer(writer, "a1b2c3d")
    agent.prompt(blocks(f"use {FIRST}", f"{SECOND} please"))
    result = agent.call("Bash", {"command": "cat x"})
    agent.result(result, blocks(FIRST, SECOND))
    agent.say("Done.")
    save_agent(agent, tmp_path, "a1b2c3d")
    if is_background:
        writer.result(call, "started", outcome={"isAsync": True, "status": "async_launched", "agentId": "a1b2c3d"})
    else:
        writer.result(call, blocks("done", "agentId: a1b2c3d"), outcome={"agentId": "a1b2c3d", "status": "completed"})
    writer.say("Done.")
    traces = traces_of(writer.save(tmp_path))
    assert leaks(msgspec.json.encode([trace.spans for trace in traces]))
    assert not leaks(msgspec.json.encode([redact(trace, Policy()).trace for trace in traces]))


def test_a_named_secret_that_continues_in_the_next_block(tmp_path):
    """A value of which a half looks like a secret by itself is masked completely, in the answer's blocks, too."""
    first, second = "q7Zt4mPx9Lw2Rk8V", "b3Nc6Yd1Hs5Gf0Jq"
    writer = Writer()
    writer.prompt(blocks(f"DEPLOY_TOKEN={first}", f"{second}\nkeep"))
    writer.say(blocks(f"export DEPLOY_TOKEN={first}", f"{second}\nkeep"))
    (trace,) = traces_of(writer.save(tmp_path))
    masked = redact(trace, Policy()).trace
    data = msgspec.json.encode(masked)
    assert first.encode() not in data
    assert second.encode() not in data
    assert masked.spans[0].input == (Message("user", (Text("DEPLOY_TOKEN=[redacted:token]\nkeep"),)),)


def test_blocks_without_a_secret_are_unchanged(tmp_path):
    """Blocks are joined with a line break as before, and a secret inside of one does not change its neighbours."""
    writer = Writer()
    writer.prompt(blocks("one", "two"))
    result = writer.call("Bash", {"command": "ls"})
    writer.result(result, blocks(f"see {TOKEN} there", "agentId: a1"))
    writer.say("Done.")
    (trace,) = traces_of(writer.save(tmp_path))
    masked = redact(trace, Policy()).trace
    assert masked.spans[0].input == (Message("user", (Text("one\ntwo"),)),)
    assert masked.spans[2].output == "see [redacted:github-token] there\nagentId: a1"
    assert trace.blocks
    assert masked.blocks == ()
    assert redact(msgspec.structs.replace(trace, spans=trace.spans[:1]), Policy()).trace.blocks == ()


def test_a_split_secret_is_not_in_the_index(claude_home):
    """The index, which `view` and `search` read, masks split secrets also where it masks many turns together."""
    writer = Writer()
    for number in range(30):
        writer.turn(f"Question {number}", f"Answer {number}")
        if number > 10:
            STORIES[number % len(STORIES)](writer)
    writer.save(claude_home / "projects" / "-home-ada-loom")
    config = load_config(os.environ)
    with opened(config) as index:
        assert index.connection.execute("SELECT count(*) FROM turn").fetchone()[0] > 40
    data = b"".join(path.read_bytes() for path in (claude_home / "turnspan").glob(f"{NAME}*"))
    assert b"redacted" in data
    assert not leaks(data)
    policy = ExportPolicy(config.destinations[0], config)
    for path in (claude_home / "projects").rglob("*.jsonl"):
        for trace in Reader.for_people().traces(SessionFile(path.stem, path)):
            assert not leaks(msgspec.json.encode(policy.masked(trace).trace))


def test_blocks_that_cannot_be_scanned_are_withheld(tmp_path):
    """If the budget ends before the blocks were scanned joined, their text is withheld."""
    writer = Writer()
    in_prompt(writer)
    (trace,) = traces_of(writer.save(tmp_path))
    seen = set()
    for budget in range(0, 6_000, 100):
        redacted = redact(trace, Policy(), budget=budget)
        assert not leaks(msgspec.json.encode(redacted.trace))
        seen.add("withheld" in redacted.counts)
    assert seen == {True, False}


@pytest.mark.parametrize(("number", "counted"), [(40, "github-token"), (20_000, "withheld")])
def test_many_split_secrets(tmp_path, number, counted):
    """Up to a hundred different secrets are masked one by one; a text with more of them is withheld."""
    writer = Writer()
    writer.prompt("What is it?")
    result = writer.call("mcp__vault__read", {"name": "x"})
    texts = [f"{SECOND}{at:05}\n{FIRST}" for at in range(number)]
    writer.result(result, blocks(FIRST, *texts, f"{SECOND}\nthe end"))
    writer.say("Done.")
    (trace,) = traces_of(writer.save(tmp_path))
    redacted = redact(trace, Policy())
    assert not leaks(msgspec.json.encode(redacted.trace))
    assert list(redacted.counts) == [counted]
