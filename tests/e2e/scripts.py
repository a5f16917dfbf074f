"""The scripted model's responses: a script's name and a step → a `Reply`.

Rules:

- A script is a tuple of steps, one for each request of its turn. After the last step the model says "ok".
- `@CALL@` in a tool's input is replaced by the call's id, so that a subagent's prompt names the call that launched it.
- Long-running tools wait for a file (`gate`) that the story creates, so that nothing depends on the machine's speed.
- If a client offers `Task` instead of `Agent`, or fewer parameters, calls are adapted to it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

    from .api_request import ApiRequest

Block: TypeAlias = dict[str, Any]
IMAGE = "pixel.png"
TASK = re.compile(r"with ID: (\w+)")
OUTPUT_FILE = re.compile(r"(/\S+\.output)")
AGENT_ID = re.compile(r"agentId: (\w+)")
PLAN_TEXT = "# The plan\n\n{planrun} Write a greeting, then look at it.\n"

QUESTION = {
    "question": "Which colour do you prefer?",
    "header": "Colour",
    "options": [
        {"label": "Green", "description": "like grass"},
        {"label": "Violet", "description": "like violets"},
    ],
    "multiSelect": False,
}


@dataclass(frozen=True, slots=True)
class Reply:
    """One response of the model, or an error of the server."""

    blocks: tuple[Block, ...] = ()
    stop_reason: str = ""  # default: implied by the blocks
    status: int = 200
    error: str = ""
    fails: int = 0  # number of responses with `status` before the blocks are sent; 0 with an error status: always
    holds: bool = False  # the text streams until the client disconnects or the story calls let_go
    context: int = 0  # the pretended size of the context, in tokens
    cut: bool = False  # the server disconnects in the middle of the last block

    @property
    def ends_with(self) -> str:
        """The stop reason."""
        return self.stop_reason or ("tool_use" if any(b["type"] == "tool_use" for b in self.blocks) else "end_turn")


Step: TypeAlias = "Reply | Callable[[ApiRequest], Reply]"


def text(words: str) -> Block:
    """A text block."""
    return {"type": "text", "text": words}


def thinking(words: str) -> Block:
    """A thinking block with a signature, as the API sends it."""
    return {"type": "thinking", "thinking": words, "signature": "c2lnbmF0dXJlIG9mIHRoZSB0aG91Z2h0"}


def call(name: str, **arguments: Any) -> Block:
    """A tool call."""
    return {"type": "tool_use", "name": name, "input": arguments}


def bash(command: str) -> Block:
    """A Bash call."""
    return call("Bash", command=command, description="one step of the story")


def gate(name: str) -> str:
    """Return a command that waits until the story opens a gate, at most a minute."""
    wait = f"for i in $(seq 1200); do [ -e {name}.open ] && break; sleep 0.05; done"
    return f"touch {name}.begun; {wait}; echo passed {name}"


def in_background(name: str) -> Block:
    """A Bash call in the background that waits at a gate."""
    return call("Bash", command=gate(name), description="in the background", run_in_background=True)


def agent(script: str, description: str, *, background: bool | None = False, kind: str = "general-purpose") -> Block:
    """An Agent call whose prompt plays a script."""
    arguments = {
        "description": description,
        "prompt": f"{{{script}}} {description} [call @CALL@]",
        "subagent_type": kind,
    }
    return call("Agent", **arguments, **({} if background is None else {"run_in_background": background}))


def searched(query: str) -> tuple[Block, ...]:
    """Return the blocks of a search that the server ran."""
    found = {
        "type": "web_search_result",
        "title": "OTLP",
        "url": "https://example.com/otlp",
        "encrypted_content": "eA==",
        "page_age": None,
    }
    return (
        {"type": "server_tool_use", "id": "srvtoolu_@N@", "name": "web_search", "input": {"query": query}},
        {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_@N@", "content": [found]},
    )


def _says(*steps: str) -> tuple[Step, ...]:
    return tuple(Reply((text(words),)) for words in steps)


def _plan(request: ApiRequest) -> Reply:
    """Plan mode: write the plan file, then exit plan mode; older clients take the plan as a parameter."""
    if request.plan_file and "Write" in request.tools and "Write" not in request.called:
        return Reply((call("Write", file_path=request.plan_file, content=PLAN_TEXT),))
    if "ExitPlanMode" not in request.called:
        return Reply((text("Here is the plan."), call("ExitPlanMode", plan=PLAN_TEXT)))
    return (
        Reply((bash("echo planned > greeting.txt"),))
        if "Bash" not in request.called
        else Reply((text("The plan is carried out."),))
    )


def _read_output(request: ApiRequest) -> Reply:
    """Read the output of a background command: with the client's tool for that, else from the file that it named."""
    started = next(r.text for r in reversed(request.returned) if "background" in r.text)
    task, file = TASK.search(started), OUTPUT_FILE.search(started)
    if task and (tool := next((t for t in ("TaskOutput", "BashOutput") if t in request.tools), None)):
        return Reply((call(tool, task_id=task[1], bash_id=task[1], block=True, timeout=9000),))
    return Reply((call("Read", file_path=file[1] if file else "@CWD@/notes.txt"),))


def _send_on(request: ApiRequest) -> Reply:
    """Continue a finished agent: with a message, in older clients with a call that resumes it."""
    agent_id = _last_agent(request)
    words = "{subtasktwo} and once more [call @CALL@]"
    if any("resume" in known for known in request.tools.values()):
        more = {"description": "continue", "subagent_type": "general-purpose", "resume": agent_id}
        return Reply((call("Agent", prompt=words, **more),))
    return Reply((call("SendMessage", to=agent_id, summary="continue", message=words),))


def _say_to_agent(request: ApiRequest) -> Reply:
    """Send a message to a running agent."""
    return Reply(
        (call("SendMessage", to=_last_agent(request), summary="a word", message="Count the hidden ones too."),)
    )


def _last_agent(request: ApiRequest) -> str:
    return next(found[1] for r in reversed(request.returned) if (found := AGENT_ID.search(r.text)))


_LOOK = (
    Reply((thinking("Two looks at once."), text("I will look."), bash("ls"), bash("echo second; cat notes.txt"))),
    Reply((call("Read", file_path="@CWD@/notes.txt"),)),
    *_says("Done: I looked at the files."),
)

SCRIPTS: dict[str, tuple[Step, ...]] = {
    "hello": _says("Hello there."),
    "tools": _LOOK,
    "thinking": (Reply((thinking("A long thought about a short answer."), text("Forty-two."))),),
    "error": (Reply((bash("echo broken >&2; exit 3"),)), *_says("It failed with code 3.")),
    "unicode": (
        Reply((bash("printf '\\303\\251\\360\\237\\221\\213'"), text("Grüße, 世界 👋🏽 \u202eRTL\u202c \u2028 done."))),
        *_says("Ende: 終."),
    ),
    "image": (Reply((call("Read", file_path=f"@CWD@/{IMAGE}"),)), *_says("A pixel.")),
    "mcp": (
        Reply((call("mcp__lab__echo", text="over stdio"), call("mcp__lab__fail", text="no"))),
        *_says("The server echoed and failed."),
    ),
    "websearch": (Reply((call("WebSearch", query="otlp http"),)), *_says("Found it.")),
    "servertool": (Reply((*searched("otlp grpc"), text("The server itself searched."))),),
    "big": (Reply((bash("for i in $(seq 9000); do echo line $i of a long output; done"),)), *_says("That was big.")),
    "full": (Reply((text("This fills up."), bash("echo full")), context=985_000), *_says("Still here.")),
    "maxtok": (Reply((text("A cut answ"),), stop_reason="max_tokens"), *_says("er, resumed.")),
    "skill": (Reply((call("Skill", skill="lab"),)), *_says("I followed the skill.")),
    "background": (Reply((in_background("background"),)), *_says("It runs in the background.")),
    "backgroundtwo": (Reply((in_background("backgroundtwo"),)), *_says("It runs, too.")),
    "output": (_read_output, *_says("I read what it wrote.")),
    "denied": (
        Reply((bash("echo forbidden"), call("Read", file_path="@CWD@/notes.txt"), bash("touch unasked.txt"))),
        *_says("Some of it was denied."),
    ),
    "touch": (Reply((text("I make a file."), bash("touch unasked.txt"))), *_says("Then I leave it.")),
    "ask": (
        Reply((call("AskUserQuestion", questions=[QUESTION]),)),
        *_says("Then that one."),
    ),
    "many": (
        *(Reply(tuple(bash(f"echo call {i} of group {g}") for i in range(10))) for g in range(5)),
        Reply((*(bash(f"echo call {i} of the last group") for i in range(9)), bash(gate("slow")))),
        *_says("Sixty calls."),
    ),
    "slow": (Reply((text("This takes a while."), bash(gate("slow")))), *_says("It took a while.")),
    "slowstream": (Reply((text("A long answer that streams. "),), holds=True),),
    "cut": (Reply((text("This stream breaks in the mid"),), cut=True, fails=1),),
    "overload": (Reply((text("Third time lucky."),), status=529, error="Overloaded", fails=2),),
    "error500": (Reply((text("Second time lucky."),), status=500, error="Internal server error", fails=1),),
    "auth401": (Reply(status=401, error="invalid x-api-key"),),
    "bad400": (Reply(status=400, error="messages: scripted fatal error"),),
    "toolthen400": (
        Reply((bash("echo before the failure"),)),
        Reply(status=400, error="messages: scripted fatal error"),
    ),
    "agent": (Reply((text("I delegate."), agent("subtask", "count files"))), *_says("The agent finished.")),
    "twoagents": (Reply((agent("subtask", "first"), agent("subtasktwo", "second"))), *_says("Both agents finished.")),
    "agentdefault": (
        Reply((agent("subtask", "as the client likes", background=None),)),
        *_says("The agent was asked."),
    ),
    "bgagent": (
        Reply((text("In the background."), agent("subtaskslow", "slow count", background=True))),
        *_says("Started in background."),
    ),
    "sendon": (Reply((agent("subtask", "count files"),)), _send_on, *_says("The agent was sent on.")),
    "sendlater": (_send_on, Reply((bash(gate("slow")),)), *_says("It continued.")),
    "agentcommand": (Reply((agent("subtaskcommand", "long count", background=True),)), *_says("It was asked.")),
    "subtaskcommand": (Reply((in_background("background"),)), *_says("The command runs.")),
    "sayto": (_say_to_agent, *_says("I sent the agent a message.")),
    "bgnested": (
        Reply((agent("subtasknestbg", "outer", background=True),)),
        *_says("Two agents were asked."),
    ),
    "subtasknestbg": (Reply((agent("subtaskslow", "inner", background=True),)), *_says("The inner agent was asked.")),
    "nested": (Reply((agent("subtasknest", "outer"),)), *_says("Nested agents finished.")),
    "forkagent": (Reply((agent("subtask", "as a fork", background=True, kind="fork"),)), *_says("The fork was asked.")),
    "failagent": (Reply((agent("subtaskfail", "fails"),)), *_says("The agent failed.")),
    "subtask": (Reply((bash("ls | wc -l"),)), *_says("There are some files.")),
    "subtasktwo": (
        Reply((thinking("Two at once."), bash("echo a"), bash("echo b; exit 2"))),
        Reply((bash("echo c"),)),
        *_says("Three commands."),
    ),
    "subtaskslow": (Reply((bash(gate("agent")),)), *_says("The slow agent counted.")),
    "subtasknest": (Reply((agent("subtask", "inner"),)), *_says("The inner agent is done.")),
    "subtaskfail": (Reply(status=400, error="messages: scripted fatal error"),),
    "plan": (_plan,) * 8,
    "planrun": (Reply((bash("echo cleared > greeting.txt"),)), *_says("The plan is carried out afresh.")),
    "compacted": _says("I continue after the compaction."),
    "notified": _says("I saw the background task finish."),
    "bash": _says("I saw your command."),
}
AUX: dict[str, Reply] = {
    "compact": Reply(
        (text("<analysis>short</analysis>\n<summary>The user looked at files with the model.</summary>"),)
    ),
    "websearch": Reply((*searched("otlp http"), text("OTLP is a protocol."))),
    "title": Reply((text('{"title": "A scripted session", "isNewTopic": true}'),)),
    "topic": Reply((text('{"title": "A scripted session", "isNewTopic": true}'),)),
}


def reply_to(request: ApiRequest) -> Reply:
    """Return the model's response to a request."""
    if request.aux:
        return AUX.get(request.aux, Reply((text("ok"),)))
    steps = SCRIPTS.get(request.script or "", ())
    if request.step >= len(steps):
        return Reply((text("ok"),))
    step = steps[request.step]
    return fitted(step if isinstance(step, Reply) else step(request), request)


def fitted(reply: Reply, request: ApiRequest) -> Reply:
    """Adapt a reply to the tools that this client offers."""
    blocks = []
    for block in reply.blocks:
        if block["type"] == "tool_use":
            name = "Task" if block["name"] == "Agent" and "Agent" not in request.tools else block["name"]
            known = request.tools.get(name)
            given = {k: v for k, v in block["input"].items() if not known or k in known}
            blocks.append({**block, "name": name, "input": given})
        else:
            blocks.append(block)
    return replace(reply, blocks=tuple(blocks))
