"""The scripted API recognizes the turn, the agent and the step of a request."""

from __future__ import annotations

from typing import Any

import pytest

from .api_request import CONTINUED, ApiRequest, read_request

MEANWHILE = "The user sent a new message while you were working:\n{hello} meanwhile #p2"
NOTE = "<task-notification>\n<tool-use-id>toolu_7</tool-use-id>\n</task-notification>"
NOTE_AGAIN = "<task-notification>\n<task-id>a1</task-id>\n<output-file>out</output-file>\n</task-notification>"
REMINDER = "<system-reminder>Today is a day. #p9</system-reminder>"


def user(*texts: str, result: str = "") -> dict[str, Any]:
    """A user message, optionally after a tool result."""
    parts = [{"type": "tool_result", "tool_use_id": result, "content": "done"}] if result else []
    return {"role": "user", "content": [*parts, *({"type": "text", "text": t} for t in texts)]}


def answer(call: str = "") -> dict[str, Any]:
    """A response of the model, optionally with a call."""
    part = {"type": "tool_use", "id": call, "name": "Bash", "input": {}} if call else {"type": "text", "text": "yes"}
    return {"role": "assistant", "content": [part]}


def request_of(*messages: dict[str, Any], tools: tuple[str, ...] = ("Bash", "Agent"), **more: Any) -> ApiRequest:
    """A request with these messages."""
    body = {"model": "m", "max_tokens": 9, "messages": list(messages), "tools": [{"name": t} for t in tools], **more}
    return read_request(body, {"x-claude-code-session-id": "s"})


FIRST = user(REMINDER, "{tools} look #p1")
CASES = {
    "a prompt": ((FIRST,), ("p1", "human", "tools", 0)),
    "the next step": ((FIRST, answer("t"), user(result="t")), ("p1", "human", "tools", 1)),
    "another turn": ((FIRST, answer(), user("{hello} there #p2")), ("p2", "human", "hello", 0)),
    "after an interruption": (
        (FIRST, answer("t"), user("[Request interrupted by user]", "{hello} again #p2", result="t")),
        ("p2", "human", "hello", 0),
    ),
    "words typed meanwhile": ((FIRST, answer("t"), user(MEANWHILE, result="t")), ("p1", "human", "tools", 1)),
    "a notification": ((FIRST, answer(), user(NOTE)), ("n:toolu_7", "task-notification", "notified", 0)),
    "a second notification": (
        (FIRST, answer(), user(NOTE), answer(), user(NOTE_AGAIN)),
        ("n:a1", "task-notification", "notified", 0),
    ),
    "a notification in a reminder": (
        (FIRST, answer(), user(f"<system-reminder>{NOTE}</system-reminder>")),
        ("n:toolu_7", "task-notification", "notified", 0),
    ),
    "a notification beside a result": (
        (FIRST, answer("t"), user(f"<system-reminder>{NOTE}</system-reminder>", result="t")),
        ("p1", "human", "tools", 1),
    ),
    "bash mode": (
        (FIRST, answer(), user("<bash-input>ls</bash-input>", "<bash-stdout>")),
        ("bash1", "bash-mode", "bash", 0),
    ),
    "a plan": (
        (user("Implement the following plan:\n{planrun} go"),),
        ("plan-exec", "plan-clear-context", "planrun", 0),
    ),
    "a blocked stop": ((FIRST, answer(), user("Stop hook feedback:\nmore")), ("p1", "stop-hook", "tools", 1)),
    "after a compaction": (
        (user("This session is being continued from a previous conversation that ran out of context."),),
        (CONTINUED, "human", "compacted", 0),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_request_is_assigned_to_its_turn(case: str):
    """A request that continues a turn and one that starts a new turn are distinguished, in every format of the clients."""
    messages, (turn, kind, script, step) = CASES[case]
    seen = request_of(*messages)
    assert (seen.turn, seen.turn_kind, seen.script, seen.step) == (turn, kind, script, step)
    assert seen.thread == "main"
    assert seen.aux is None


def test_a_prompt_typed_while_a_turn_runs_is_queued():
    """It belongs to the running turn and keeps its own number."""
    assert request_of(FIRST, answer("t"), user(MEANWHILE, result="t")).queued == ("p2",)


def test_an_agent_is_identified_by_the_call_in_its_prompt():
    """A fork is identified, too, although its requests begin with the complete conversation."""
    alone = request_of(user("{subtask} count [call toolu_5]"))
    fork = request_of(
        FIRST, answer("toolu_5"), user("Your directive: {subtask} count [call toolu_5]", result="toolu_5")
    )
    for seen in (alone, fork):
        assert (seen.thread, seen.parent_tool_use_id) == ("subagent", "toolu_5")
        assert (seen.turn, seen.script, seen.step) == (None, "subtask", 0)


def test_requests_outside_the_conversation_are_recognized():
    """Titles, warm-ups, compactions and the search behind a tool do not belong to any turn."""
    compaction = user("Your task is to create a detailed summary of the conversation")
    assert request_of(FIRST, answer(), compaction).aux == "compact"
    assert request_of(user("Warmup")).aux == "warmup"
    assert request_of(user("hello"), tools=(), system="Write a title for this").aux == "title"
    assert (
        read_request({"max_tokens": 9, "tools": [{"type": "web_search_20250305", "name": "web_search"}]}, {}).aux
        == "websearch"
    )
