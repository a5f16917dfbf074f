"""API responses with their tool calls, and the subagents that these launch."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from generator.templates import (
    BIG_BYTES,
    ERAS,
    FLAT_AGENTS,
    HALF_EMOJI,
    NESTED_AGENTS,
    NEWEST,
    PROGRESS_BEGAN,
    PROGRESS_ENDED,
    TOKEN_CLASSES,
    fill,
    shape,
    usage_form,
)
from generator.tools import IMAGE_START, PARTS, make_call
from generator.writing import Sink, Transcript, stamp

if TYPE_CHECKING:
    from generator.tools import Call
    from generator.writing import Tally

# ---------------------------------------------------------------- answers

THINKING = shape({"type": "thinking", "thinking": "<<text>>", "signature": "<<signature>>"})
TEXT = shape({"type": "text", "text": "<<text>>"})
TOOL_USE = shape({"type": "tool_use", "id": "<<id>>", "name": "<<name>>", "input": "<<=input>>"})
RESULT = shape([{"tool_use_id": "<<id>>", "type": "tool_result", "content": "<<=content>>", "is_error": "<<=error>>"}])
MESSAGE = shape(
    {"id": "<<id>>", "type": "message", "role": "assistant", "model": "<<model>>", "content": ["<<=block>>"],
     "stop_reason": "<<=stop>>", "stop_sequence": None, "usage": "<<=usage>>"}
)  # fmt: skip
USAGES = {era.version: shape(usage_form(era.version)) for era in ERAS}


def spend(t: Transcript, output: int) -> tuple[bytes, bytes]:
    """The usage of one response, on its last line and on those before; the last line is right.

    Up to 2.1.45 a line is stamped while the response streams: early lines hold a placeholder for the output, the last
    line mostly the right count before 2.1.20 and never from then on.
    """
    dice, version = t.archive.dice, t.era.version
    early = 1 + dice.below(8)
    placeholder = (2, 1, 20) <= version < (2, 1, 63) or (version < (2, 1, 20) and dice.chance(0.2))
    last = early if placeholder else output
    one_hour = t.fresh if version >= NEWEST and dice.chance(0.5) else 0
    tokens = (3 + dice.below(9), last, t.context, t.fresh - one_hour, one_hour)
    for n, value in enumerate(tokens):
        t.tally.tokens[t.model][n] += value
    t.tally.counts["output_placeholders"] += placeholder
    holes = {name: b"%d" % value for name, value in zip(TOKEN_CLASSES, tokens, strict=True)}
    # before 2.1.152 the sum may be 0 where its parts are not
    holes["written"] = b"0" if version < (2, 1, 152) and dice.chance(0.02) else b"%d" % t.fresh
    final = fill(USAGES[version], **holes)
    if version >= (2, 1, 63):
        return final, final
    return final, fill(USAGES[version], **{**holes, "output": b"%d" % early})


def announce_request(t: Transcript, blob: bytes) -> None:
    """Write the request, as the newest client does; only content it cannot derive is in a blob."""
    dice = t.archive.dice
    hash_, base, t.request = dice.hex(64), t.request, dice.uuid()
    if blob:
        t.put("api-request-blob", hash=hash_, content=blob)
    t.put("api-request", ref=t.request, at=stamp(t.now), base=base, hash=hash_, digest=dice.hex(64))


def say(t: Transcript, message: bytes, request: bytes, index: int, timing: bytes) -> bytes:
    took = t.tick(200, 4_000)
    holes = {"timing": timing, "took_ms": b"%d" % took, "index": b"%d" % index}
    kind = "assistant/timed" if timing else "assistant"
    uuid = t.link(kind, message=message, request=request, ref=t.request, **holes)
    reflect(t, b"assistant", message, uuid)
    return uuid


def reflect(t: Transcript, role: bytes, message: bytes, uuid: bytes) -> None:
    """Copy a subagent's line into its parent's file as progress, as clients of 2.1.9 to 2.1.97 do."""
    if t.mirror:
        parent, call_id = t.mirror
        parent.now = max(parent.now, t.now)
        parent.link(
            "progress/agent", role=role, message=message, inner=uuid, prompt=t.prompt, agent=t.agent, tool=call_id
        )


def respond(t: Transcript, *, is_final: bool, blob: bytes = b"", tools: str = "run") -> bytes:
    """Write one API response and its tool results (`run`, `stopped` or `lost`); return its last text."""
    dice, version, tally = t.archive.dice, t.era.version, t.tally
    t.tick(20, 400)
    if version >= NEWEST:
        announce_request(t, blob)
    calls = [] if is_final else [make_call(t) for _ in range(1 if dice.chance(0.72) else 2 + dice.below(3))]
    text = dice.prose(500 if is_final else 120)
    blocks = []
    if dice.chance(0.3):
        thought = b"" if version >= (2, 1, 114) and dice.chance(0.9) else dice.prose(500)
        signature = dice.base64(300 + dice.below(900))
        blocks.append((b"thinkingDurationMs", fill(THINKING, text=thought, signature=signature)))
    if is_final or dice.chance(0.45):
        blocks.append((b"", fill(TEXT, text=text)))
    blocks += [(b"toolInputStreamMs", fill(TOOL_USE, id=c.id, name=c.name, input=c.input)) for c in calls]
    last, early = spend(t, 20 + sum(len(block) for _, block in blocks) // 4)
    id_, request = b"msg_01" + dice.hex(22), b"req_011C" + dice.hex(20)
    tally.counts["generations"] += 1
    tally.counts["subagent_generations"] += t.depth > 0
    stop = b"null" if version < (2, 1, 63) and dice.chance(0.95) else b'"end_turn"' if is_final else b'"tool_use"'
    # some tools finish before the response does: their results are between its lines
    is_split = len(calls) > 1 and not any(c.prompt for c in calls) and dice.chance(0.18)
    tally.counts["responses_split_by_results"] += is_split
    asked_by: list[bytes] = []
    messages = len(blocks)
    for index, (timing, block) in enumerate(blocks):
        if is_split and index == messages - 1:
            answer(t, calls[0], asked_by[-len(calls) + 1])
        usage = last if index == messages - 1 else early
        message = fill(MESSAGE, id=id_, model=t.model.encode(), block=block, stop=stop, usage=usage)
        asked_by.append(say(t, message, request, index, timing))
    t.context += t.fresh
    t.fresh = 60 + sum(len(block) for _, block in blocks) // 4
    began = t.now
    for call, uuid in zip(calls[is_split:], asked_by[len(asked_by) - len(calls) + is_split :], strict=True):
        if tools == "stopped":
            refuse(t, call, uuid)
        elif tools == "lost":
            tally.counts["tool_calls_without_result"] += 1
        elif call.prompt:
            delegate(t, call, uuid, began)
        else:
            answer(t, call, uuid)
    return text


def answer(t: Transcript, call: Call, asked_by: bytes) -> None:
    """Write a tool's result, and the progress that clients of 2.1.9 to 2.1.97 show while it runs."""
    dice, version = t.archive.dice, t.era.version
    t.parent = b'"%b"' % asked_by
    if PROGRESS_BEGAN <= version < PROGRESS_ENDED and not call.is_error:
        if call.name == b"Bash":
            out = call.content[1:-1] if len(call.content) < 6_000 else b""
            for second in range(dice.below(2)):
                t.now += 1000
                elapsed = b"%d" % (second + 2)
                t.link(
                    "progress/bash", tail=out.partition(b"\\n")[0], full=out, took_s=elapsed, lines=b"9", tool=call.id
                )
        elif call.name in (b"Edit", b"Write"):
            t.link("progress/hook", event=b"PostToolUse", match=call.name, tool=call.id)
    t.tick(30, 6_000)
    content = fill(RESULT, id=call.id, content=call.content, error=b"true" if call.is_error else b"false")
    if t.depth and PROGRESS_BEGAN <= version < PROGRESS_ENDED:
        uuid = t.link("user/result-bare", content=content)
    else:
        uuid = t.link("user/result", content=content, outcome=call.outcome, asked_by=asked_by)
    t.fresh += len(call.content) // 3
    t.tally.counts["tool_errors"] += call.is_error
    t.tally.counts["big_results"] += len(call.outcome) > BIG_BYTES // 2
    t.tally.counts["images"] += call.content.startswith(IMAGE_START)
    t.tally.counts["lone_surrogates"] += call.content.endswith(HALF_EMOJI + b'"}]')
    reflect(t, b"user", b'{"role":"user","content":%b}' % content, uuid)


def refuse(t: Transcript, call: Call, asked_by: bytes) -> None:
    """Write an interruption: the user pressed Esc while the tool ran."""
    t.parent = b'"%b"' % asked_by
    t.tick(500, 3_000)
    content = fill(RESULT, id=call.id, content=b'"Stopped by the user."', error=b"true")
    t.link("user/result", content=content, outcome=b'"Stopped by the user."', asked_by=asked_by)
    t.tally.counts["tool_errors"] += 1


# ---------------------------------------------------------------- subagents

DONE = shape(
    {"status": "completed", "prompt": "<<prompt>>", "agentId": "<<agent>>", "content": "<<=content>>",
     "totalDurationMs": "<<=took_ms>>", "totalTokens": "<<=tokens>>", "totalToolUseCount": 3}
)  # fmt: skip
DONE_INLINE = shape({"content": "<<=content>>", "totalDurationMs": "<<=took_ms>>", "totalTokens": "<<=tokens>>"})
LAUNCHED = shape({"isAsync": True, "status": "async_launched", "agentId": "<<agent>>", "prompt": "<<prompt>>"})
REPORT = shape(
    [{"type": "text", "text": "<<text>>"}, {"type": "text", "text": "agentId: <<agent>> (keep it to continue)"}]
)
NOTE = shape([{"type": "text", "text": "Runs in the background.\nagentId: <<agent>>"}])


def start_agent(t: Transcript, name: bytes, tally: Tally) -> Transcript:
    """A subagent's transcript: in its own file since 2.0.28, between the parent's lines before."""
    version = t.era.version
    if version < FLAT_AGENTS:
        sink = t.sink
    else:
        folder = t.folder / "subagents" if version >= NESTED_AGENTS else t.folder.parent
        sink = Sink(folder / f"agent-{name.decode()}.jsonl")
    marks = {**t.marks, b"@agent@": name, b"@shape@": t.archive.dice.hex(64)}
    agent = Transcript(t.archive, sink, t.era, marks, now=t.now, tally=tally)
    agent.depth, agent.prompt_id = t.depth + 1, t.prompt_id
    return agent


def end_agent(t: Transcript, agent: Transcript, tally: Tally) -> None:
    if agent.sink is not t.sink:
        agent.sink.close(agent.now)
        tally.counts["lines"] += agent.sink.lines
        tally.counts["bytes"] += agent.sink.bytes


def delegate(t: Transcript, call: Call, asked_by: bytes, began: int) -> None:
    """Write an agent's work, then its result; for a background agent a note now and the result as a later turn."""
    dice, version = t.archive.dice, t.era.version
    name = b"a" + dice.hex(16 if version >= (2, 1, 63) else 6)
    in_background = t.depth == 0 and version >= (2, 1, 20) and dice.chance(0.25)
    agent = start_agent(t, name, t.tally)
    agent.prompt, agent.now = call.prompt, began  # parallel agents overlap
    if PROGRESS_BEGAN <= version < PROGRESS_ENDED and not in_background:
        t.parent = b'"%b"' % asked_by
        agent.mirror = (t, call.id)
    t.tally.counts["subagents"] += 1
    t.tally.counts["nested_subagents"] += t.depth > 0
    uuid = agent.link("user/plain", content=b'"%b"' % call.prompt)
    reflect(agent, b"user", b'{"role":"user","content":"%b"}' % call.prompt, uuid)
    if version >= NEWEST:
        announce_context(agent)
    for n in range(1 + dice.below(7)):
        respond(agent, is_final=False)
        if version >= NEWEST and n == 0:
            agent.link("attachment/prompt_snapshot-full")
    text = respond(agent, is_final=True)
    end_agent(t, agent, t.tally)
    if version >= (2, 1, 100):
        meta: dict[str, object] = {"agentType": call.kind.decode(), "description": call.about.decode()}
        if version >= (2, 1, 172):
            meta |= {"toolUseId": call.id.decode(), "spawnDepth": agent.depth, "finished": True}
            meta |= {"parentAgentId": t.agent.decode()} if t.agent else {}
        agent.sink.path.with_suffix(".meta.json").write_text(json.dumps(meta))
    t.parent = b'"%b"' % asked_by
    if in_background:
        t.tick(50, 200)
        content, outcome = fill(NOTE, agent=name), fill(LAUNCHED, agent=name, prompt=call.prompt)
        t.tally.counts["background_subagents"] += 1
        t.notices.append((agent.now, name, call.id, text))
    else:
        t.now = max(t.now, agent.now) + 40
        named = version >= FLAT_AGENTS
        content = fill(REPORT, text=text, agent=name) if named else fill(PARTS, out=text)
        holes = {
            "took_ms": b"%d" % (agent.now - began),
            "tokens": b"%d" % agent.context,
            "content": fill(PARTS, out=text),
        }
        outcome = fill(DONE if named else DONE_INLINE, prompt=call.prompt, agent=name, **holes)
    content = fill(RESULT, id=call.id, content=content, error=b"false")
    t.link("user/result", content=content, outcome=outcome, asked_by=asked_by)


def stray_agent(t: Transcript, stray: Tally, prefix: bytes, prompt: bytes) -> None:
    """An agent file that no tool call launched: warm-ups, suggestions, the summary of a compaction."""
    agent = start_agent(t, prefix + t.archive.dice.hex(6), stray)
    agent.link("user/plain", content=b'"%b"' % prompt)
    respond(agent, is_final=True)
    end_agent(t, agent, stray)
    stray.counts["agents"] += 1


def announce_context(t: Transcript) -> None:
    """Write the context that the newest client adds before the first request, and the shape of its requests."""
    for kind in ("environment", "model", "agent_listing_delta", "skill_listing", "session_context", "prompt_snapshot"):
        t.link("attachment/" + kind)
    t.put("api-request-shape", at=stamp(t.now))
