import json

import pytest
from rows import Writer, tool_id

from turnspan.transcript.carry import Carry
from turnspan.transcript.grouping import Grouper
from turnspan.transcript.lines import Anomalies, parse
from turnspan.transcript.rows import LinePlace


def entries_of(writer):
    """Return the entries of a transcript with their places."""
    at, found = 0, []
    for number, line in enumerate(writer.lines()):
        place = LinePlace(number, at, at + len(line))
        found += [(entry, place) for entry in parse(line.rstrip(b"\n"), Anomalies())]
        at += len(line)
    return found


def grouped(writer, **options):
    """Return the turns of a transcript."""
    data = b"".join(writer.lines())

    def recall(offset, length):
        return parse(data[offset : offset + length].rstrip(b"\n"), Anomalies())[0]

    grouper = Grouper(writer.session, None, recall, **options)
    turns = [
        turn for entry, place in entries_of(writer) for sealed in grouper.feed(entry, place) for turn in sealed.turns
    ]
    turns += [turn for sealed in grouper.flush() for turn in sealed.turns]
    last = grouper.seal()
    return turns + (last.turns if last is not None else [])


def shape(turns):
    """Return what each turn, or part of one, is about: its number, origin, prompt, and what was said."""
    return [
        (
            turn.number if turn.part == 0 else f"{turn.number}+{turn.part}",
            turn.origin,
            turn.prompt.text if turn.prompt is not None else None,
            [part.text for response in turn.responses for part in response.parts if hasattr(part, "text")],
        )
        for turn in turns
    ]


# ---- what starts a turn


def test_a_prompt_starts_a_turn_and_ends_the_one_before():
    """One prompt and everything that answered it is one turn."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.turn([{"type": "text", "text": "Two."}], "Second.")
    assert shape(grouped(writer)) == [(1, "human", "One.", ["First."]), (2, "human", "Two.", ["Second."])]


@pytest.mark.parametrize(
    ("fields", "text", "origin"),
    [
        ({}, "Go.", "human"),
        ({"origin": {"kind": "task-notification"}}, "Go.", "task_notification"),
        ({}, "<task-notification>\n<tool-use-id>toolu_1</tool-use-id>", "task_notification"),
        ({}, "<agent-notification>\n<agent-id>a</agent-id>", "task_notification"),
        ({"turnOrigin": "scheduled"}, "Go.", "scheduled"),
        ({"turnOrigin": "sdk"}, "Go.", "sdk"),
        ({"planContent": "1. Go."}, "Implement the following plan:\n1. Go.", "plan"),
    ],
)
def test_a_turn_says_who_asked_for_it(fields, text, origin):
    """A user, a task that ended, a schedule, an SDK or a plan: the origin is known for new clients and for old ones."""
    writer = Writer()
    writer.prompt(text, **fields)
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert turn.origin == origin
    assert turn.answers_call == ("toolu_1" if "toolu_1" in text else None)


@pytest.mark.parametrize(
    ("content", "fields"),
    [
        ("words for the model", {"isMeta": True}),
        ("what was said so far", {"isCompactSummary": True}),
        ("what was said so far", {"isVisibleInTranscriptOnly": True}),
        ("<local-command-stdout>Set.</local-command-stdout>", {}),
        ("<local-command-stderr>No.</local-command-stderr>", {}),
        ("<bash-input>ls</bash-input>", {}),
        ("<bash-stdout>loom</bash-stdout><bash-stderr></bash-stderr>", {}),
        ("<command-name>/model</command-name>", {}),
        ("Caveat: The messages below were made locally.", {}),
        ("Stop hook feedback:\nno", {}),
        ([{"type": "text", "text": "[Request interrupted by user]"}], {}),
    ],
)
def test_rows_without_a_response_start_no_turn(content, fields):
    """Local commands, their output, summaries and meta rows start no turn."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.prompt(content, **fields)
    writer.turn("Two.", "Second.")
    assert [turn.number for turn in grouped(writer)] == [1, 2]


def test_a_command_that_got_a_reply_is_a_turn():
    """A custom command starts a turn with its name and its expansion; a local one is context of the next turn."""
    writer = Writer()
    writer.prompt("<command-name>/cost</command-name>")
    writer.prompt("<local-command-stdout>nothing</local-command-stdout>")
    writer.prompt("<command-name>/weave</command-name>\n<command-args>a yard</command-args>")
    writer.prompt("Weave what is asked for.", isMeta=True)
    writer.say("Woven.")
    (turn,) = grouped(writer)
    assert (turn.prompt.text, turn.prompt.command, turn.prompt.expansion) == (
        "/weave a yard",
        "/weave",
        "Weave what is asked for.",
    )
    assert turn.local_commands == ("/cost",)


def test_a_local_command_of_newer_clients_is_context_too():
    """2.1.282 writes a local command and its output as system lines; the next turn records it all the same."""
    writer = Writer(version="2.1.282")
    writer.turn("One.", "First.")
    for said in ("<command-name>/model</command-name>\n<command-args>b</command-args>", "<local-command-stdout>set"):
        writer.row("system", subtype="local_command", content=said)
    writer.turn("Two.", "Second.")
    assert [turn.local_commands for turn in grouped(writer)] == [(), ("/model",)]


def test_a_prompt_that_quotes_a_command_is_a_prompt():
    """A user who asks about a transcript may paste a piece of one: all of it is the prompt."""
    words = "Why does it say <command-name>/weave</command-name> <command-args>a yard</command-args> there?"
    writer = Writer()
    writer.turn(words, "Because.")
    (turn,) = grouped(writer)
    assert (turn.prompt.text, turn.prompt.command) == (words, None)


@pytest.mark.parametrize(("tool", "name"), [("Skill", "spin"), ("SlashCommand", "/spin")])
def test_a_command_that_the_model_ran_starts_no_turn(tool, name):
    """2.0.36 writes a skill after the call that ran it as if the user had typed it: the turn continues."""
    writer = Writer(version="2.0.36")
    writer.prompt("Use the skill.")
    writer.result(writer.call(tool, {"skill": "spin"}), "Launching skill: spin")
    writer.prompt(
        f'<command-message>The "spin" skill is running</command-message>\n<command-name>{name}</command-name>'
    )
    writer.prompt("Base directory for this skill: ~/.claude/skills/spin", isMeta=True)
    writer.say("Spun.")
    writer.prompt("<command-name>/weave</command-name>")
    writer.say("Woven.")
    assert shape(grouped(writer)) == [
        (1, "human", "Use the skill.", ["Spun."]),
        (2, "human", "/weave", ["Woven."]),
    ]


def test_a_tool_result_is_not_a_prompt():
    """Results belong to the running turn; what the user typed while it ran is an event in it."""
    writer = Writer()
    writer.prompt("One.")
    call = writer.call("Bash", {"command": "ls"})
    block = {"type": "tool_result", "tool_use_id": tool_id(call), "content": "loom"}
    writer.prompt([block, {"type": "text", "text": "and hurry"}])
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert turn.responses[0].calls[0].result.text == "loom"
    assert [(event.kind, event.text) for event in turn.happenings] == [("steering", "and hurry")]


# ---- what belongs to it


def test_a_response_is_merged_by_its_id():
    """Lines of one response are one response, also with a result between them; the last usage counts."""
    writer = Writer()
    writer.prompt("One.")
    first = writer.call("Read", {}, "t1", message="msg_1", usage={"output_tokens": 2})
    writer.result(first, "a")
    second = writer.call("Read", {}, "t2", message="msg_1", usage={"output_tokens": 90})
    writer.result(second, "b")
    writer.say("Done.", "msg_2")
    (turn,) = grouped(writer)
    assert [response.key for response in turn.responses] == ["msg_1", "msg_2"]
    assert [(call.id, call.result.text) for call in turn.responses[0].calls] == [("t1", "a"), ("t2", "b")]
    assert turn.responses[0].usage.output_tokens == 90
    assert turn.has_answer


def test_a_response_without_an_id_is_known_by_its_request_or_its_row():
    """Without a message id, the request or the row identifies the response."""
    writer = Writer()
    writer.prompt("One.")
    for request in ("req_1", "req_1", None):
        row = writer.say("x", requestId=request)
        del row["message"]["id"]
    (turn,) = grouped(writer)
    assert [response.key for response in turn.responses] == ["req_1", writer.rows[-1]["uuid"]]


def test_a_call_that_is_repeated_is_one_call():
    """A call in two lines of a response is one call."""
    writer = Writer()
    writer.prompt("One.")
    writer.call("Read", {}, "t1", message="msg_1")
    writer.call("Read", {}, "t1", message="msg_1")
    (turn,) = grouped(writer)
    assert [call.id for call in turn.responses[0].calls] == ["t1"]


def test_api_errors_and_retries_are_recorded():
    """Retries are events; a request that failed for good is a response with an error; a placeholder is ignored."""
    writer = Writer()
    writer.prompt("One.")
    writer.row("system", subtype="api_error", error={"status": 529}, retryAttempt=1, retryInMs=500)
    writer.say("API Error: 529", model="<synthetic>", isApiErrorMessage=True, apiErrorStatus=529)
    writer.prompt("Two.")
    writer.say("No response requested.", model="<synthetic>")
    first, second = grouped(writer)
    assert [event.facts for event in first.happenings] == [{"attempt": 1, "retry_in_ms": 500.0}]
    assert (first.responses[0].error, first.responses[0].error_status) == ("API Error: 529", 529)
    assert first.has_answer
    assert second.responses == []


def test_an_interruption_ends_a_turn():
    """Esc ends the turn, in a tool or in the stream."""
    writer = Writer()
    writer.prompt("One.")
    writer.call("Bash", {})
    writer.prompt([{"type": "text", "text": "[Request interrupted by user for tool use]"}])
    (turn,) = grouped(writer)
    assert turn.is_interrupted
    assert turn.has_answer


def test_a_compaction_inside_a_turn_does_not_end_it():
    """A turn continues after a compaction; the next response starts at the summary, not before."""
    writer = Writer()
    writer.prompt("One.")
    writer.result(writer.call("Bash", {}), "done")
    writer.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 9}, after=50)
    summary = writer.prompt("So far so good.", isCompactSummary=True)
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert [(event.kind, event.facts) for event in turn.happenings] == [
        ("compaction", {"trigger": "auto", "tokens_before": 9})
    ]
    assert turn.responses[1].trigger_ns == turn.responses[1].first_ns - 10**9
    assert summary["type"] == "user"


def test_typed_ahead_words_are_an_event_in_newer_clients():
    """Words from the queue are recorded once, whether by a remove, an attachment, or both."""
    writer = Writer(version="2.1.325")
    writer.prompt("One.")
    call = writer.call("Bash", {})
    writer.bare("queue-operation", operation="enqueue", content="and whistle", timestamp=writer.stamp())
    writer.result(call, "done")
    writer.bare("queue-operation", operation="remove", timestamp=writer.stamp())
    writer.row("attachment", attachment={"type": "queued_command", "prompt": [{"type": "text", "text": "and whistle"}]})
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert [(event.kind, event.text) for event in turn.happenings] == [("steering", "and whistle")]


@pytest.mark.parametrize(
    ("words", "operation"), [("and whistle", "popAll"), ('{"task_id":"b1","status":"completed"}', "remove")]
)
def test_words_given_back_and_task_notices_are_not_steering(words, operation):
    """`popAll` gives queued words back to the editor; the client's notice of a task was not typed (2.1.47)."""
    writer = Writer(version="2.1.47")
    writer.prompt("One.")
    call = writer.call("Bash", {})
    writer.bare("queue-operation", operation="enqueue", content=words, timestamp=writer.stamp())
    writer.bare("queue-operation", operation=operation, timestamp=writer.stamp())
    writer.result(call, "done")
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert turn.happenings == []


def test_a_message_of_a_teammate_is_not_the_users():
    """A turn that a teammate's message started has its own origin."""
    writer = Writer()
    writer.turn('<teammate-message teammate_id="weaver">The warp is ready.</teammate-message>', "Good.")
    assert [turn.origin for turn in grouped(writer)] == ["teammate"]


@pytest.mark.parametrize("version", ["2.0.76", "2.1.1", "2.1.12"])
def test_typed_ahead_words_are_a_turn_in_older_clients(version):
    """Up to 2.1.12 they got an answer of their own: two final answers in a row are two turns."""
    writer = Writer(version=version)
    writer.turn("One.", "First.")
    writer.say("Second.")
    assert shape(grouped(writer)) == [(1, "human", "One.", ["First."]), (2, "queued", "", ["Second."])]


def test_what_a_hook_adds_is_not_a_prompt():
    """1.0.128 writes what hooks add as user rows: before, after and within a turn."""
    writer = Writer(version="1.0.128")
    writer.prompt("<session-start-hook>Mind the loom.</session-start-hook>")
    writer.prompt("One.")
    writer.prompt("<user-prompt-submit-hook>Mind the yarn.</user-prompt-submit-hook>")
    writer.result(writer.call("Bash", {}), "done")
    writer.prompt("<post-tool-use-hook>Mind the dust.</post-tool-use-hook>")
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert turn.prompt.text == "One."
    assert len(turn.responses) == 2


def test_a_title_that_came_after_a_turn_is_not_its_own():
    """A client that resumes writes a title and a placeholder: the turn may have been exported long before."""
    writer = Writer(version="2.0.76")
    writer.turn("One.", "First.")
    writer.prompt("<command-name>/exit</command-name>")
    writer.prompt("<local-command-stdout>Bye</local-command-stdout>")
    writer.bare("summary", summary="About yarn", leafUuid=writer.parent)
    writer.say("No response requested.", model="<synthetic>")
    writer.turn("Two.", "Second.")
    first, second = grouped(writer)
    assert (first.titles, second.titles) == ({}, {"summary": "About yarn"})
    assert second.local_commands == ("/exit",)


def test_an_old_notification_is_not_words():
    """What a background task enqueues is not the user's steering."""
    writer = Writer(version="2.1.50")
    writer.prompt("One.")
    call = writer.call("Bash", {})
    writer.bare("queue-operation", operation="enqueue", content="<task-notification>done</task-notification>")
    writer.result(call, "done")
    writer.bare("queue-operation", operation="remove")
    writer.say("Done.")
    assert grouped(writer)[0].happenings == []


def test_a_task_that_ends_in_a_turn_is_an_event_of_it():
    """A notification during a turn is recorded as such, with the call it answers: the user did not type it."""
    writer = Writer(version="2.1.325")
    writer.prompt("One.")
    call = writer.call("Bash", {})
    writer.result(call, "running in the background")
    notice = f"<task-notification>\n<tool-use-id>{tool_id(call)}</tool-use-id>\n</task-notification>"
    for operation in ("enqueue", "remove"):
        writer.bare("queue-operation", operation=operation, content=notice, timestamp=writer.stamp())
    queued = {"type": "queued_command", "prompt": notice, "commandMode": "task-notification"}
    writer.row("attachment", attachment=queued)
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert [(event.kind, event.text, event.facts) for event in turn.happenings] == [
        ("task_notification", notice, {"answers_call": tool_id(call)})
    ]


def test_a_blocked_stop_gives_a_second_part():
    """A Stop hook that blocks the stop gives a further part of the same turn, with new responses only."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.prompt("Stop hook feedback:\nnot yet", isMeta=True)
    writer.say("Now.")
    assert shape(grouped(writer)) == [(1, "human", "One.", ["First."]), ("1+1", "continued", None, ["Now."])]


def test_the_context_of_a_turn_is_what_precedes_its_last_row():
    """Titles, tags and links apply from their row on; one after the last row applies to the next turn."""
    writer = Writer(slug="s", entrypoint="cli")
    writer.bare("ai-title", aiTitle="A name")
    writer.bare("permission-mode", permissionMode="plan")
    writer.turn("One.", "First.")
    writer.bare("custom-title", customTitle="A better name")
    writer.bare("tag", tag="red")
    writer.bare("pr-link", prUrl="https://example.org/1", prNumber=1)
    writer.turn("Two.", "Second.")
    first, second = grouped(writer)
    assert (first.titles, first.tag, first.permission_mode) == ({"ai-title": "A name"}, "", "plan")
    assert second.titles == {"ai-title": "A name", "custom-title": "A better name"}
    assert (second.tag, second.pull_request, second.slug, second.entrypoint) == (
        "red",
        "https://example.org/1",
        "s",
        "cli",
    )


def test_a_summary_of_another_session_is_not_a_title():
    """Clients up to 2.0.x write the summaries of other sessions into a new one's file: they do not name it."""
    writer = Writer(version="2.0.0")
    writer.bare("summary", summary="Another session", leafUuid="0000000f-0000-4000-8000-000000000009")
    writer.turn("One.", "First.")
    writer.bare("summary", summary="This session", leafUuid=writer.parent)
    writer.bare("summary", summary="Yet another one", leafUuid="0000000f-0000-4000-8000-000000000019")
    writer.turn("Two.", "Second.")
    writer.turn("Three.", "Third.")
    assert [turn.titles for turn in grouped(writer)] == [{}, {"summary": "This session"}, {"summary": "This session"}]


@pytest.mark.parametrize("is_copied", [True, False])
def test_a_summary_before_its_rows_is_a_title_from_there_on(is_copied):
    """A copied summary precedes the rows it was made of; `--continue` (1.0.128) continues them in another file."""
    writer = Writer(version="1.0.128")
    leaf = "0000000f-0000-4000-8000-000000000009"
    writer.bare("summary", summary="What was done", leafUuid=leaf)
    if is_copied:
        writer.turn("One.", "First.")
        writer.rows[-1]["uuid"] = writer.parent = leaf
    else:
        writer.parent = leaf
    writer.turn("Two.", "Second.")
    writer.turn("Three.", "Third.")
    turns = grouped(writer)
    assert [turn.titles for turn in turns[-2:]] == [{"summary": "What was done"}] * 2


# ---- rows that come late, or from elsewhere


def test_two_terminals_share_a_file():
    """Rows of two conversations alternate; each belongs to the turn of its parent."""
    writer = Writer()
    writer.turn("Begin.", "Begun.")
    base = writer.parent
    writer.prompt("Left.")
    left = writer.parent
    writer.parent = base
    writer.prompt("Right.")
    right = writer.parent
    writer.parent = left
    writer.say("Left done.")
    writer.parent = right
    writer.say("Right done.")
    writer.turn("More right.", "More done.")
    turns = grouped(writer)
    assert shape(turns)[1:] == [
        (2, "human", "Left.", []),
        (3, "human", "Right.", ["Right done."]),
        ("2+1", "continued", None, ["Left done."]),
        (4, "human", "More right.", ["More done."]),
    ]
    assert [turn.previous.number for turn in turns if turn.previous is not None] == [1, 1, 3]


def test_a_result_after_its_turn_was_exported_is_recorded():
    """The result of a call that was exported without one is a late result of that turn, even during another one."""
    writer = Writer()
    writer.prompt("One.")
    call = writer.call("Bash", {}, "t1")
    parent = writer.parent
    writer.turn("Two.", "Second.")
    writer.parent = parent
    writer.result(call, "at last")
    turns = grouped(writer)
    found = [(turn.number, turn.part, [(event.kind, event.facts) for event in turn.happenings]) for turn in turns]
    assert found == [(1, 0, []), (2, 0, []), (1, 1, [("late_result", {"tool_call_id": "t1"})])]


def test_repeated_rows_are_taken_once():
    """A compaction, queued words and a call that a damaged file repeats after another turn are recorded once."""
    writer = Writer(version="2.1.325")
    rows = [
        {"kind": "system", "subtype": "compact_boundary", "uuid": "c0", "parentUuid": None},
        {"kind": "queue-operation", "operation": "remove", "content": "and whistle", "timestamp": writer.stamp()},
    ]

    def tell():
        before = writer.parent
        writer.row(**rows[0])
        writer.bare(**rows[1])
        writer.parent = before

    writer.prompt("One.")
    tell()
    writer.call("Bash", {}, "t1")
    parent = writer.parent
    writer.turn("Two.", "Second.")
    writer.parent = parent
    tell()
    writer.call("Bash", {}, "t1")
    turns = grouped(writer)
    assert [(turn.number, turn.part) for turn in turns] == [(1, 0), (2, 0), (1, 1)]
    assert [[event.kind for event in turn.happenings] for turn in turns] == [["compaction", "steering"], [], []]
    calls = [[call.id for response in turn.responses for call in response.calls] for turn in turns]
    assert calls == [["t1"], [], []]


def test_a_result_without_a_call_is_recorded():
    """A result without a known call belongs to the running turn."""
    writer = Writer()
    call = {"message": {"content": [{"type": "tool_use", "id": "t9"}]}}
    writer.prompt("One.")
    writer.result(call, "what?")
    writer.say("Done.")
    (turn,) = grouped(writer)
    assert [(event.kind, event.text, event.facts) for event in turn.happenings] == [
        ("late_result", "what?", {"unknown_call_id": "t9"})
    ]


def test_an_agent_is_named_by_agent_calls_alone():
    """A command that prints an agent's id has not launched that agent."""
    writer = Writer()
    writer.prompt("One.")
    writer.result(writer.call("Bash", {"command": "cat log"}), "agentId: a1")
    writer.result(writer.call("Task", {"prompt": "p"}), "agentId: a2")
    writer.result(writer.call("Skill", {"skill": "x"}), "done", outcome={"agentId": "a3"})
    (turn,) = grouped(writer)
    assert [call.result.agent_id for response in turn.responses for call in response.calls] == [None, "a2", "a3"]


def test_rows_of_an_agent_inside_the_file_count_once():
    """A file that contains itself twice gives the agents of its turn once, with all that they said."""
    writer = Writer(version="1.0.72")
    writer.prompt("Ask a helper.")
    call = writer.call("Task", {"prompt": "List the dyes."})
    before, writer.parent = writer.parent, None
    writer.prompt("List the dyes.", isSidechain=True)
    writer.say("Madder.", isSidechain=True)
    writer.parent = before
    writer.result(call, "Madder.")
    writer.say("It is madder.")
    writer.rows *= 2
    (turn,) = grouped(writer)
    assert [[inner.last_text for inner in agent.turns] for agent in turn.agents] == [["Madder."]]


@pytest.mark.parametrize("version", ["2.0.76", "2.1.50"])
def test_a_repeated_row_of_the_queue_is_one_event(version):
    """A queue operation has no id of its own: with the same time and the same words it is the same one."""
    writer = Writer(version=version)
    writer.prompt("Wind the bobbins.")
    call = writer.call("Bash", {"command": "wind"})
    for operation, words in (("enqueue", {"content": "Only the blue ones."}), ("remove", {})):
        for _ in range(2):
            writer.bare("queue-operation", operation=operation, timestamp=writer.stamp(), **words)
    writer.result(call, "wound")
    writer.say("Done.")
    writer.turn("And the red ones?", "Done, too.")
    said = [happening.text for turn in grouped(writer) for happening in turn.happenings]
    assert said == ["Only the blue ones."]


@pytest.mark.parametrize("is_split", [False, True])
def test_an_agent_that_the_client_starts_by_itself_is_in_no_turn(is_split):
    """2.0.25 writes its warm-ups into the session's file, between turns and across them: they are in no turn."""
    writer = Writer(version="2.0.25")
    writer.turn("One.", "First.")
    before, writer.parent = writer.parent, None
    writer.prompt("Warmup", isSidechain=True)
    warm, answer = writer.parent, {"isSidechain": True, "model": "claude-haiku-4-5"}
    if not is_split:
        writer.say("Ready.", **answer)
    writer.parent = before
    writer.prompt("Two.")
    if is_split:
        before, writer.parent = writer.parent, warm
        writer.say("Ready.", **answer)
        writer.parent = before
    writer.say("Second.")
    turns = grouped(writer)
    assert shape(turns) == [(1, "human", "One.", ["First."]), (2, "human", "Two.", ["Second."])]
    assert [turn.agents for turn in turns] == [[], []]


def test_a_file_that_begins_in_the_middle_is_read():
    """A file whose beginning is lost still gives turns: the first response starts one."""
    writer = Writer()
    writer.say("As I said.")
    writer.turn("Two.", "Second.")
    assert shape(grouped(writer)) == [(1, "unknown", None, ["As I said."]), (2, "human", "Two.", ["Second."])]


def test_parents_in_a_cycle_end():
    """Rows that are each other's parents are read once, in the order of the file."""
    writer = Writer()
    writer.turn("One.", "First.")
    writer.turn("Two.", "Second.")
    for row, other in zip(writer.rows, [*writer.rows[1:], writer.rows[0]], strict=True):
        row["parentUuid"] = other["uuid"]
    writer.rows[1]["parentUuid"] = writer.rows[1]["uuid"]
    assert [response.key for turn in grouped(writer) for response in turn.responses] == ["msg_a002", "msg_a004"]


# ---- what is remembered


def test_what_is_remembered_is_small_and_without_content():
    """Between two readings only ids and places are kept, however long the session is."""
    writer = Writer(version="2.1.100")
    for number in range(40):
        writer.bare("ai-title", aiTitle=f"secret title {number}")
        writer.prompt(f"secret prompt {number}")
        for _ in range(5):
            writer.result(writer.call("Bash", {"command": "secret"}), "secret result")
        writer.bare("queue-operation", operation="enqueue", content="secret words")
        writer.say("secret answer")
    grouper, sizes = Grouper(writer.session), []
    for entry, place in entries_of(writer):
        for sealed in grouper.feed(entry, place):
            kept = json.dumps(
                sealed.carry, default=lambda value: {k: getattr(value, k) for k in value.__struct_fields__}
            )
            assert "secret" not in kept
            sizes.append(len(kept))
    assert max(sizes[10:]) < 8000
    assert max(sizes) < max(sizes[:30]) + 20


def test_a_grouper_continues_from_what_was_remembered():
    """A new grouper after any sealed turn, with only what was remembered, gives the same turns."""
    writer = Writer(version="2.1.100")
    writer.bare("ai-title", aiTitle="A name")
    writer.turn("One.", "First.")
    writer.prompt("Stop hook feedback:\nnot yet", isMeta=True)
    writer.say("Now.")
    writer.bare("queue-operation", operation="enqueue", content="hm")
    writer.turn("Two.", "Second.")
    writer.turn("Three.", "Third.")
    data = b"".join(writer.lines())
    found = entries_of(writer)

    def recall(offset, length):
        return parse(data[offset : offset + length].rstrip(b"\n"), Anomalies())[0]

    grouper = Grouper(writer.session, None, recall)
    sealed = [group for entry, place in found for group in grouper.feed(entry, place)]
    sealed.append(grouper.seal())
    for number, group in enumerate(sealed[:-1]):
        rest = Grouper(writer.session, group.carry, recall)
        again = [s for entry, place in found if place.offset >= group.end.end for s in rest.feed(entry, place)]
        again.append(rest.seal())
        assert again == sealed[number + 1 :]
    assert Grouper("s", Carry()).seal() is None


def test_a_copy_of_a_response_does_not_make_it_last_for_hours():
    """History that is repeated in the same file, a row for each text, does not extend the response that waits."""
    writer = Writer(version="1.0.120")
    writer.prompt("Describe both.")
    writer.say("The warp.\nThe weft.", message="msg_both")
    writer.wait(3 * 3600)
    writer.parent = None
    writer.prompt("Describe both.")
    writer.say("The warp.", message="msg_both")
    writer.say("The weft.", message="msg_both")
    turns = grouped(writer)
    response = turns[0].responses[0]
    assert response.last_ns == response.first_ns
    assert len(response.parts) == 1


# ---- rules of the table that no story needs


def test_an_own_response_after_a_copied_turn_is_a_further_part_of_it():
    """The copied part belongs to the session it was copied from; what this session answered is its own."""
    writer = Writer()
    own, writer.session = writer.session, "5e55104a-0000-4000-8000-00000000000b"
    writer.turn("One.", "First.")
    writer.session = own
    writer.say("Second.")
    turns = grouped(writer)
    assert shape(turns) == [(1, "human", "One.", ["First."]), ("1+1", "continued", None, ["Second."])]
    assert [turn.is_own for turn in turns] == [False, True]


def test_an_interrupted_tool_does_not_begin_a_file():
    """A truncated file whose first row is the result of an interrupted call has nothing to interrupt."""
    writer = Writer()
    writer.prompt([
        {"type": "tool_result", "tool_use_id": "toolu_1", "content": "no"},
        {"type": "text", "text": "[Request interrupted by user for tool use]"},
    ])  # fmt: skip
    writer.turn("One.", "First.")
    assert shape(grouped(writer)) == [(1, "human", "One.", ["First."])]


@pytest.mark.parametrize(("version", "is_command"), [("2.1.172", True), ("2.0.76", False)])
def test_a_further_part_ends_with_the_next_turn(version, is_command):
    """A command that is answered, and an answer to words typed meanwhile, are turns of their own after such a part."""
    writer = Writer(version=version)
    writer.turn("One.", "First.")
    found = entries_of(writer)
    grouper = Grouper(writer.session)
    for entry, place in found:
        grouper.feed(entry, place)
    sealed = grouper.seal()
    stopped = len(found)
    writer.prompt("Stop hook feedback:\ngo on", isMeta=True)
    writer.say("Going on.")
    if is_command:
        writer.prompt("<command-name>/weave</command-name>")
    writer.say("Woven.")
    turns = []
    for entry, place in entries_of(writer)[stopped:]:
        turns += [turn for found in grouper.feed(entry, place) for turn in found.turns]
    turns += [turn for found in grouper.flush() for turn in found.turns] + grouper.seal().turns
    assert sealed.turns[0].number == 1
    next_turn = (2, "human", "/weave", ["Woven."]) if is_command else (2, "queued", "", ["Woven."])
    assert shape(turns) == [("1+1", "continued", None, ["Going on."]), next_turn]
