"""Tool calls and their results."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from generator.templates import BIG_BYTES, HALF_EMOJI, NESTED_AGENTS, NOUNS, VERBS, fill, shape
from generator.writing import Sink

if TYPE_CHECKING:
    from generator.writing import Transcript


class Call(NamedTuple):
    """A tool call and, except for agents, its result."""

    id: bytes
    name: bytes
    input: bytes
    content: bytes = b""
    outcome: bytes = b"null"
    is_error: bool = False
    prompt: bytes = b""  # agents only
    about: bytes = b""
    kind: bytes = b""


BASH_IN = shape({"command": "<<command>>", "description": "<<about>>"})
BASH_OUT = shape({"stdout": "<<out>>", "stderr": "", "interrupted": False, "isImage": False})
READ_OUT = shape(
    {"type": "text", "file": {"filePath": "<<path>>", "content": "<<rows>>", "numLines": "<<=count>>",
     "startLine": "<<=first>>", "totalLines": 2000}}
)  # fmt: skip
EDIT_IN = shape({"file_path": "<<path>>", "old_string": "<<old>>", "new_string": "<<new>>", "replace_all": False})
EDIT_OUT = shape(
    {"filePath": "<<path>>", "oldString": "<<old>>", "newString": "<<new>>", "originalFile": "<<file>>",
     "structuredPatch": [{"oldStart": 40, "oldLines": 8, "newStart": 40, "newLines": 8, "lines": "<<=lines>>"}],
     "userModified": False, "replaceAll": False}
)  # fmt: skip
WRITE_IN = shape({"file_path": "<<path>>", "content": "<<text>>"})
WRITE_OUT = shape({"type": "create", "filePath": "<<path>>", "content": "<<text>>", "structuredPatch": []})
GREP_IN = shape({"pattern": "<<pattern>>", "path": "<<path>>", "output_mode": "content", "-n": True})
GREP_OUT = shape({"mode": "content", "numFiles": 0, "filenames": [], "content": "<<out>>", "numLines": 30})
FETCH_IN = shape({"url": "https://docs.example.com/<<page>>", "prompt": "<<text>>"})
FETCH_OUT = shape({"bytes": "<<=size>>", "code": 200, "codeText": "OK", "result": "<<out>>", "durationMs": 840})
MCP_IN = shape({"query": "<<text>>", "limit": 50})
PARTS = shape([{"type": "text", "text": "<<out>>"}])
IMAGE = shape([{"type": "image", "source": {"type": "base64", "data": "<<data>>", "media_type": "image/png"}}])
IMAGE_START = IMAGE.text[:20]
IMAGE_OUT = shape({"type": "image", "file": {"base64": "<<data>>", "type": "image/png", "originalSize": 31000}})
TODO_IN = shape({"todos": [{"content": "<<text>>", "status": "in_progress", "activeForm": "<<text>>"}]})
TODO_OUT = shape(
    {"oldTodos": [], "newTodos": [{"content": "<<text>>", "status": "in_progress", "activeForm": "<<text>>"}]}
)
AGENT_IN = shape({"description": "<<about>>", "prompt": "<<prompt>>", "subagent_type": "<<kind>>"})


def path_of(t: Transcript) -> bytes:
    dice = t.archive.dice
    n, v = NOUNS[dice.below(len(NOUNS))], VERBS[dice.below(len(VERBS))]
    return b"%b/src/%b/%b.py" % (t.marks[b"@cwd@"], n.encode(), v.encode())


def bash(t: Transcript, id_: bytes, *, is_big: bool) -> Call:
    dice = t.archive.dice
    out = dice.seas.logs.cut(dice.random(), BIG_BYTES if is_big else dice.size())
    about = dice.words()
    command = b"cd %b && python -m pytest -q -k %b" % (t.marks[b"@cwd@"], NOUNS[dice.below(len(NOUNS))].encode())
    asked = fill(BASH_IN, command=command, about=about)
    if dice.chance(0.06):
        out = b"Exit code 1\\n" + out
        return Call(id_, b"Bash", asked, b'"%b"' % out, b'"Error: %b"' % out, is_error=True)
    shown = out
    if is_big and t.era.version >= (2, 1, 20):
        sink = Sink(t.folder / "tool-results" / f"{id_.decode()}.txt")
        sink.file.write(out.replace(b"\\n", b"\n"))
        sink.close(t.now)
        t.tally.counts["spilled_files"] += 1
        shown = b"<persisted-output>\\n%d bytes, the start:\\n%b</persisted-output>" % (
            len(out),
            out[: out.index(b"\\n", 2000) + 2],
        )
    return Call(id_, b"Bash", asked, b'"%b"' % shown, fill(BASH_OUT, out=out))


def read(t: Transcript, id_: bytes, *, is_big: bool) -> Call:
    dice = t.archive.dice
    path = path_of(t)
    asked = b'{"file_path":"%b"}' % path
    if dice.chance(0.01):
        data = dice.base64(8_000 + dice.below(40_000))
        return Call(id_, b"Read", asked, fill(IMAGE, data=data), fill(IMAGE_OUT, data=data))
    count = BIG_BYTES // 40 if is_big else dice.size() // 36 + 1
    first = dice.below(8_000)
    numbered = dice.seas.tabbed if t.era.version >= (2, 1, 100) else dice.seas.arrowed
    shown = numbered.rows(first, count)
    if t.era.version < NESTED_AGENTS:
        shown += b"\\n<system-reminder>\\nOnly a note for the model.\\n</system-reminder>\\n"
    numbers = {"count": b"%d" % count, "first": b"%d" % (first % 2000 + 1)}
    outcome = fill(READ_OUT, path=path, rows=dice.seas.code.rows(first, count), **numbers)
    return Call(id_, b"Read", asked, b'"%b"' % shown, outcome)


def edit(t: Transcript, id_: bytes) -> Call:
    dice = t.archive.dice
    path, first, count = path_of(t), dice.below(8_000), 3 + dice.below(12)
    texts = {"path": path, "old": dice.seas.code.rows(first, count), "new": dice.seas.code.rows(first + 1, count)}
    whole = dice.seas.code.rows(first, dice.size() // 30 + count)
    patch = b"[%b]" % dice.seas.quoted.rows(first, count + 4)[:-1]
    content = b'"The file %b has been updated:\\n%b"' % (path, dice.seas.arrowed.rows(first, count + 8))
    return Call(id_, b"Edit", fill(EDIT_IN, **texts), content, fill(EDIT_OUT, file=whole, lines=patch, **texts))


def other(t: Transcript, id_: bytes, *, is_big: bool) -> Call:
    dice = t.archive.dice
    size = BIG_BYTES if is_big else dice.size()
    text, roll = dice.words(), dice.random()
    if is_big or roll < 0.06:
        out = dice.prose(size)
        if dice.chance(0.02):
            out += HALF_EMOJI
        parts = fill(PARTS, out=out)
        return Call(id_, b"mcp__tickets__search", fill(MCP_IN, text=text), parts, parts)
    if roll < 0.12:
        out = dice.prose(size)
        asked = fill(FETCH_IN, page=dice.hex(6), text=text)
        return Call(id_, b"WebFetch", asked, b'"%b"' % out, fill(FETCH_OUT, out=out, size=b"%d" % size))
    if roll < 0.30:
        rows = {"path": path_of(t), "text": dice.seas.code.cut(dice.random(), size)}
        return Call(id_, b"Write", fill(WRITE_IN, **rows), b'"File created."', fill(WRITE_OUT, **rows))
    if roll < 0.40 and t.era.version < (2, 1, 100):
        return Call(id_, b"TodoWrite", fill(TODO_IN, text=text), b'"Todos were changed."', fill(TODO_OUT, text=text))
    out = dice.seas.logs.cut(dice.random(), size)
    asked = fill(GREP_IN, pattern=VERBS[dice.below(len(VERBS))].encode(), path=path_of(t))
    return Call(id_, b"Grep", asked, b'"%b"' % out, fill(GREP_OUT, out=out))


def make_call(t: Transcript) -> Call:
    dice, version = t.archive.dice, t.era.version
    id_ = b"toolu_01" + dice.hex(22)
    roll, is_big = dice.random(), dice.chance(0.004)
    may_delegate = t.depth == 0 or (t.depth == 1 and version >= (2, 1, 63) and dice.chance(0.3))
    if roll < 0.025 and may_delegate:
        name = b"Agent" if version >= (2, 1, 75) else b"Task"
        prompt = dice.prose(700) + id_  # unique, like a user's task
        about, kind = dice.words(), b"Explore" if dice.chance(0.4) else b"general-purpose"
        asked = fill(AGENT_IN, about=about, prompt=prompt, kind=kind)
        call = Call(id_, name, asked, prompt=prompt, about=about, kind=kind)
    elif roll < 0.40:
        call = bash(t, id_, is_big=is_big)
    elif roll < 0.66:
        call = read(t, id_, is_big=is_big)
    elif roll < 0.80:
        call = edit(t, id_)
    else:
        call = other(t, id_, is_big=is_big)
    t.tally.counts["tool_calls"] += 1
    t.tally.tools[call.name.decode()] += 1
    return call
