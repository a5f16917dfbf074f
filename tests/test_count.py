"""An independent count of responses and tool calls in any tree of files, compared with what is exported.

The counter shares no code with `src`: it decodes every object of every line, and counts distinct message ids, the last
usage of each, and distinct tool ids. Nothing may be missing or doubled, but for what a test names with its reason.
"""

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest
from reads import spans

from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions, each_once

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = sorted(path.parent for path in (ROOT / "fixtures").glob("*/projects"))
CORPUS = sorted(path.parent for path in (ROOT.parent / "shared" / "corpus").glob("*/*/projects"))
SEEDS = range(4)  # of each accident
PAIRS = range(12)  # of two accidents, chosen by the seed
UNNAMED = "unnamed:"  # a response that no id names
DECODER = json.JSONDecoder(strict=False)


def objects_in(path):
    """Yield the JSON objects of a file, also of glued lines; what cannot be decoded is skipped."""
    for line in path.read_bytes().replace(b"\0", b"").decode("utf-8-sig", "replace").splitlines():
        at = 0
        while at < len(line):
            try:
                value, at = DECODER.raw_decode(line, at)
            except (ValueError, RecursionError):
                at = line.find("}{", at) + 1  # another record can be glued to a torn one; what is inside of it is torn
                if not at:
                    break
                continue
            while at < len(line) and line[at].isspace():
                at += 1
            if isinstance(value, dict):
                yield value


def messages_in(row):
    """Yield the assistant rows that a row is or contains: a subagent's can be in a `progress` row."""
    if row.get("type") == "progress" and isinstance(row.get("data"), dict):
        inner = row["data"].get("message")
        if row["data"].get("type") == "agent_progress" and isinstance(inner, dict):
            row = inner
    message = row.get("message")
    is_said = isinstance(message, dict) and (row.get("type") or message.get("role")) == "assistant"
    if is_said and (message.get("usage") or not row.get("isMeta")):  # no request was made for others
        yield row


def is_warmup(rows):
    """Whether a file is an agent that the client started by itself."""
    texts = [row["message"].get("content") for row in rows if row.get("type") == "user" and row.get("message")]
    return bool(texts) and texts[0] == "Warmup"


def counted(projects):
    """Return message id → usage of its last row, and the distinct tool ids.

    Adjacent rows with neither a message id nor a request id are one response.
    """
    usages, tools = {}, set()
    for path in sorted(projects.rglob("*.jsonl")):
        rows = [row for row in objects_in(path) if isinstance(row.get("message", {}), (dict, type(None)))]
        if path.name.startswith("agent-") and is_warmup(rows):
            continue
        unnamed = 0
        for row in rows:
            said = next(messages_in(row), None)
            if said is None:
                unnamed += row.get("type") == "user" and not row.get("isMeta")
                continue
            message = said["message"]
            key = message.get("id") or said.get("requestId") or f"{UNNAMED}{path}:{unnamed}"
            if message.get("model") == "<synthetic>" or not isinstance(key, str):
                continue
            unnamed += not key.startswith(UNNAMED)
            usage = message.get("usage") or {}
            if (usage.get("output_tokens") or 0) >= usages.get(key, (0, 0))[1]:
                usages[key] = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
            blocks = message["content"] if isinstance(message.get("content"), list) else []
            tools |= {b["id"] for b in blocks if isinstance(b, dict) and b.get("type") == "tool_use" and b.get("id")}
    return usages, tools


def exported(projects):
    """Return what the sessions of a tree give: message id → usages, and how often each tool id occurs."""
    usages, tools = {}, Counter()
    for session in each_once(all_sessions(projects)):
        for span in spans(Reader.for_people().traces(session)):
            if span.kind == "generation" and span.model != "<synthetic>":
                usage = (span.usage.input, span.usage.output) if span.usage is not None else None
                usages.setdefault(span.facts["response_id"], []).append(usage)
            elif span.kind == "tool":
                tools[span.facts["tool_call_id"]] += 1
    # The later lines of a response that was exported before are a span without usage.
    return {key: [usage for usage in found if usage] or found for key, found in usages.items()}, tools


def differences(projects):
    """Return what is missing, doubled or has another usage."""
    (wanted, tools), (found, calls) = counted(projects), exported(projects)
    named = not_expected(projects)
    wanted = {key: usage for key, usage in wanted.items() if f"missing {key}" not in named and UNNAMED not in key}
    problems = {f"missing {key}" for key in wanted if key not in found}
    problems |= {f"doubled {key}" for key, usages in found.items() if len(usages) > 1}
    problems |= {
        f"usage {key}"
        for key, usages in found.items()
        if key in wanted and [u or (0, 0) for u in usages] != [wanted[key]]
    }
    problems |= {f"missing call {key}" for key in tools if key not in calls}
    problems |= {f"doubled call {key}" for key, count in calls.items() if count > 1}
    return problems - named


def conversations_in(path):
    """Return the sessions in a file, each with its responses in their order: message id → its rows."""
    found = {}
    for row in objects_in(path):
        if row.get("type") == "assistant" and isinstance(row.get("message"), dict) and row["message"].get("id"):
            found.setdefault(row.get("sessionId"), {}).setdefault(row["message"]["id"], []).append(row)
    return list(found.values())


def not_expected(projects):
    """Return the differences that cannot be avoided, each for one of five reasons.

    - A forked subagent begins with a copy of the message that launched it. It is exported from the session. If the session
      was cut off before it, the copy is the only one; but it may have been exported before, and the copy does not say in
      which turn, so it would arrive a second time in another trace.
    - A session was cut off between the lines of a response, and a copy has others of them. The response is exported from
      the session, with the lines and the usage that are there: what a copy adds would be a second response.
    - A session and its fork were moved apart, to different projects. Claude Code copies history inside of a project, so
      copies are looked for there; every event would have to search the transcripts of all projects otherwise.
    - Two files of different projects are named after one session, and each has something that the other lacks. A session is
      exported from one file, which is read from where its last export ended.
    - A row that lost its line break is followed by a torn one, at the end of the file: the client may be writing that line.
    """
    parts = [(path, found) for path in projects.rglob("*.jsonl") for found in conversations_in(path)]
    named = set()
    for path, found in parts:
        for key, rows in found.items():
            others = [(other, rest[key]) for other, rest in parts if rest is not found and key in rest]
            calls = calls_of(rows)
            if is_copy_of_launch(path, key) and not others:
                named |= {f"missing {key}", *(f"missing call {call}" for call in calls)}
            lines = {call for _, more in others for call in calls_of(more)} - calls
            if key == list(found)[-1] and (lines or any(len(more) > len(rows) for _, more in others)):
                named |= {f"usage {key}", *(f"missing call {call}" for call in lines)}
            if any(is_moved_apart(path, other) for other, _ in others):
                named |= {f"doubled {key}", f"usage {key}", *(f"doubled call {call}" for call in calls)}
            is_alone = all(other == path for other, _ in others)
            if is_alone and (is_before_torn_row(path, key) or is_in_two_projects(path)):
                named |= {f"missing {key}", f"usage {key}", *(f"missing call {call}" for call in calls)}
    return named


def is_copy_of_launch(path, key):
    """Whether a response is the first one of a forked subagent."""
    rows = list(objects_in(path))[:2] if path.name.startswith("agent-") else []
    types = [row.get("type") for row in rows]
    return types == ["fork-context-ref", "assistant"] and rows[1]["message"].get("id") == key


def is_before_torn_row(path, key):
    """Whether a response is in the last line of a file, which is incomplete."""
    last = path.read_bytes().decode("utf-8-sig", "replace").rpartition("\n")[2]
    try:
        return f'"{key}"' in last and DECODER.raw_decode(last.strip())[1] < len(last.strip())
    except ValueError:
        return False


def is_in_two_projects(path):
    """Whether there is a file with the same name in another project."""
    return len(list(path.parent.parent.glob(f"*/{path.name}"))) > 1


def is_moved_apart(one, other):
    """Whether two files are sessions of different projects."""
    is_agent = one.name.startswith("agent-") or other.name.startswith("agent-")
    return one.parent != other.parent and one.name != other.name and not is_agent


def calls_of(rows):
    """Return the ids of the tool calls in some rows."""
    blocks = [block for row in rows for block in row["message"].get("content") or [] if isinstance(block, dict)]
    return {block.get("id") for block in blocks if block.get("type") == "tool_use"}


@pytest.mark.parametrize("tree", FIXTURES, ids=lambda tree: tree.name)
def test_every_response_of_a_story_is_exported(tree):
    """Every response and call in the files of a story is exported once, with the last usage."""
    assert differences(tree / "projects") == set()


def test_every_response_of_the_corpus_is_exported():
    """The same for every recording of a real client."""
    for tree in CORPUS:
        assert differences(tree / "projects") == set(), tree


# ---- trees that other tools, and accidents, leave behind


def sessions_of(projects):
    """Return the transcripts of a tree, without those of agents."""
    return [path for path in sorted(projects.glob("*/*.jsonl")) if not path.name.startswith("agent-")]


def written_again(projects, chance):
    """Write every row again: with spaces after colons and commas and its keys in another order, or with sorted keys."""
    is_sorted = chance.random() < 0.3
    for path in projects.rglob("*.jsonl"):
        rows = [dict(chance.sample(list(row.items()), len(row))) for row in objects_in(path)]
        texts = [json.dumps(row, sort_keys=is_sorted, ensure_ascii=not is_sorted) + "\n" for row in rows]
        path.write_bytes("".join(texts).encode("utf-8", "backslashreplace"))


def edited(projects, chance):
    """Write some files as an editor on another system does: with carriage returns, or a byte order mark."""
    for path in sorted(projects.rglob("*.jsonl")):
        if chance.random() < 0.5:
            path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
        if chance.random() < 0.5:
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def renamed(projects, chance):
    """Rename some sessions; those without a directory of their own, whose name is all that connects them to agents."""
    for number, path in enumerate(sessions_of(projects)):
        if chance.random() < 0.7 and not path.with_suffix("").is_dir():
            path.rename(path.with_name(f"backup-{number}.jsonl"))


def removed(projects, chance):
    """Remove a session and its agents, if another one is left."""
    paths = sessions_of(projects)
    if len(paths) > 1:
        path = chance.choice(paths)
        session_id = path.stem
        path.unlink()
        shutil.rmtree(path.with_suffix(""), ignore_errors=True)
        for agent in projects.rglob("agent-*.jsonl"):
            if session_id.encode() in agent.read_bytes():
                agent.unlink()


def agents_removed(projects, chance):
    """Remove some files of agents: what they did may also be in `progress` rows."""
    for path in sorted(projects.rglob("agent-*.jsonl")):
        if chance.random() < 0.5:
            path.unlink()


def truncated(projects, chance):
    """Cut the end off some files, in the middle of a row."""
    for path in sorted(projects.rglob("*.jsonl")):
        if chance.random() < 0.5:
            data = path.read_bytes()
            path.write_bytes(data[: chance.randrange(len(data) // 4, len(data) + 1)] if data else b"")


def merged(projects, chance):
    """Append one session to another of the project, also without a line break between them."""
    paths = sessions_of(projects)
    if len(paths) > 1:
        one, other = chance.sample(paths, 2)
        if one.parent == other.parent and not other.with_suffix("").is_dir():
            glue = b"\n" if chance.random() < 0.8 else b""
            one.write_bytes(one.read_bytes().rstrip(b"\n") + glue + other.read_bytes())
            other.unlink()


def backed_up(projects, chance):
    """Copy some sessions under another name, as they are or as they once were."""
    for number, path in enumerate(sessions_of(projects)):
        if chance.random() < 0.7:
            copied(path, path.with_name(f"0-backup-{number}.jsonl"), chance)


def copied(path, to, chance):
    """Copy a file as it is, or as it once was."""
    rows = path.read_bytes().splitlines(keepends=True)
    kept = rows[: chance.randrange(1, len(rows) + 1)] if chance.random() < 0.5 and rows else rows
    to.write_bytes(b"".join(kept))
    shutil.copystat(path, to)


def moved(projects, chance):
    """Move or copy some sessions to the directory of another project, with their agents."""
    for path in sessions_of(projects):
        to = path.parent.with_name(chance.choice(["-home-ada-elsewhere", "-a"])) / path.name
        ids = {row.get("sessionId") for row in objects_in(path)} - {None}
        flat = [agent for agent in path.parent.glob("agent-*") if any(i.encode() in agent.read_bytes() for i in ids)]
        if flat and path.stem not in ids:
            continue  # their files are found by its name
        if chance.random() < 0.3:
            to.parent.mkdir(exist_ok=True)
            path.rename(to)
            for agent in flat:
                agent.rename(to.with_name(agent.name))
            if path.with_suffix("").is_dir():
                path.with_suffix("").rename(to.with_suffix(""))
        elif chance.random() < 0.3 and not flat and not path.with_suffix("").is_dir():
            to.parent.mkdir(exist_ok=True)
            copied(path, to, chance)


def repeated(projects, chance):
    """Write some rows of a session twice, as a tool that merges two states of a file does."""
    for path in sessions_of(projects):
        rows = path.read_bytes().splitlines(keepends=True)
        if rows and rows[-1].endswith(b"\n"):
            start = chance.randrange(len(rows))
            end = chance.randrange(start, len(rows)) + 1
            path.write_bytes(b"".join([*rows[:end], *rows[start:]]))


CHANGES = (written_again, edited, renamed, moved, removed, agents_removed, truncated, merged, backed_up, repeated)


def check(tree, changes, chance, place):
    """Change a copy of a tree, and check that every response in it is exported."""
    projects = place / "projects"
    shutil.copytree(tree / "projects", projects)
    for change in changes:
        change(projects, chance)
    names = " and ".join(change.__name__ for change in changes)
    assert differences(projects) == set(), f"{tree}: {names}"
    shutil.rmtree(projects)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("tree", FIXTURES, ids=lambda tree: tree.name)
def test_every_response_of_a_changed_tree_is_exported(tree, change, tmp_path):
    """Files that were removed, renamed, written again, cut off or merged still give every response in them, once."""
    for seed in SEEDS:
        check(tree, [change], random.Random(seed), tmp_path / str(seed))


@pytest.mark.parametrize("tree", FIXTURES, ids=lambda tree: tree.name)
def test_every_response_of_a_tree_that_was_changed_twice_is_exported(tree, tmp_path):
    """The same after two different accidents."""
    for seed in PAIRS:
        chance = random.Random(seed)
        check(tree, chance.sample(CHANGES, 2), chance, tmp_path / str(seed))


def test_every_response_of_a_changed_recording_is_exported(tmp_path):
    """The same for recordings of a real client, after one or two accidents."""
    for number, tree in enumerate(CORPUS):
        chance = random.Random(number)
        check(tree, chance.sample(CHANGES, 1 + number % 2), chance, tmp_path / str(number))
