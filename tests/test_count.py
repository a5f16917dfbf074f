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

from turnspan.source.reader import all_traces
from turnspan.source.sessions import all_sessions, each_once

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = sorted(path.parent for path in (ROOT / "fixtures").glob("*/projects"))
CORPUS = sorted(path.parent for path in (ROOT.parent / "shared" / "corpus").glob("*/*/projects"))
SEEDS = range(8)
NOT_COUNTED = {
    (
        "agents-forked",
        "truncated",
    ): "a fork begins with a copy of the message that launched it, which is not exported, even if it is the only one",
    ("copied-resume-1.0.80", "truncated"): "an origin that was cut off between the lines of a response has its own",
}
DECODER = json.JSONDecoder(strict=False)


def objects_in(path):
    """Yield the JSON objects of a file, also of glued lines; what cannot be decoded is skipped."""
    for line in path.read_bytes().replace(b"\0", b"").decode("utf-8", "replace").splitlines():
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
    if row.get("type") == "assistant" and isinstance(row.get("message"), dict):
        yield row


def is_warmup(rows):
    """Whether a file is an agent that the client started by itself."""
    texts = [row["message"].get("content") for row in rows if row.get("type") == "user" and row.get("message")]
    return bool(texts) and texts[0] == "Warmup"


def counted(projects):
    """Return message id → usage of its last row, and the distinct tool ids."""
    usages, tools = {}, set()
    for path in sorted(projects.rglob("*.jsonl")):
        rows = [row for row in objects_in(path) if isinstance(row.get("message", {}), (dict, type(None)))]
        if path.name.startswith("agent-") and is_warmup(rows):
            continue
        for said in (found for row in rows for found in messages_in(row)):
            message = said["message"]
            if message.get("model") == "<synthetic>" or not isinstance(message.get("id"), str):
                continue
            usage = message.get("usage") or {}
            if (usage.get("output_tokens") or 0) >= usages.get(message["id"], (0, 0))[1]:
                usages[message["id"]] = usage.get("input_tokens") or 0, usage.get("output_tokens") or 0
            blocks = message["content"] if isinstance(message.get("content"), list) else []
            tools |= {b["id"] for b in blocks if isinstance(b, dict) and b.get("type") == "tool_use" and b.get("id")}
    return usages, tools


def exported(projects):
    """Return what the sessions of a tree give: message id → usages, and how often each tool id occurs."""
    usages, tools = {}, Counter()
    for session in each_once(all_sessions(projects)):
        for span in spans(all_traces(session)):
            if span.kind == "generation" and span.model != "<synthetic>":
                usage = (span.usage.input, span.usage.output) if span.usage is not None else None
                usages.setdefault(span.facts["response_id"], []).append(usage)
            elif span.kind == "tool":
                tools[span.facts["tool_call_id"]] += 1
    return usages, tools


def differences(projects):
    """Return what is missing, doubled or has another usage."""
    (wanted, tools), (found, calls) = counted(projects), exported(projects)
    problems = {f"missing {key}" for key in wanted if key not in found}
    problems |= {f"doubled {key}" for key, usages in found.items() if len(usages) > 1}
    problems |= {f"usage {key}" for key, usages in found.items() if key in wanted and usages != [wanted[key]]}
    problems |= {f"missing call {key}" for key in tools if key not in calls}
    return problems | {f"doubled call {key}" for key, count in calls.items() if count > 1}


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
    """Write every row again, with spaces after colons and commas, and its keys in another order."""
    for path in projects.rglob("*.jsonl"):
        rows = [dict(chance.sample(list(row.items()), len(row))) for row in objects_in(path)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


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
    """Append one session to another of the project."""
    paths = sessions_of(projects)
    if len(paths) > 1:
        one, other = chance.sample(paths, 2)
        if one.parent == other.parent and not other.with_suffix("").is_dir():
            one.write_bytes(one.read_bytes().rstrip(b"\n") + b"\n" + other.read_bytes())
            other.unlink()


def backed_up(projects, chance):
    """Copy some sessions under another name, as they are or as they once were."""
    for number, path in enumerate(sessions_of(projects)):
        rows = path.read_bytes().splitlines(keepends=True)
        if chance.random() < 0.7 and rows:
            kept = rows[: chance.randrange(1, len(rows) + 1)] if chance.random() < 0.5 else rows
            backup = path.with_name(f"0-backup-{number}.jsonl")
            backup.write_bytes(b"".join(kept))
            shutil.copystat(path, backup)


CHANGES = (written_again, renamed, removed, agents_removed, truncated, merged, backed_up)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("tree", FIXTURES, ids=lambda tree: tree.name)
def test_every_response_of_a_changed_tree_is_exported(tree, change, tmp_path):
    """Files that were removed, renamed, written again, cut off or merged still give every response in them, once."""
    if (tree.name, change.__name__) in NOT_COUNTED:
        pytest.skip(NOT_COUNTED[tree.name, change.__name__])
    for seed in SEEDS:
        projects = tmp_path / str(seed) / "projects"
        shutil.copytree(tree / "projects", projects)
        change(projects, random.Random(seed))
        assert differences(projects) == set(), f"seed {seed}"
        shutil.rmtree(projects)


@pytest.mark.parametrize("tree", FIXTURES, ids=lambda tree: tree.name)
def test_every_response_of_a_tree_that_was_changed_twice_is_exported(tree, tmp_path):
    """The same after two different accidents."""
    for seed in SEEDS:
        chance = random.Random(seed)
        changes = chance.sample(CHANGES, 2)
        if any((tree.name, change.__name__) in NOT_COUNTED for change in changes):
            continue
        projects = tmp_path / str(seed) / "projects"
        shutil.copytree(tree / "projects", projects)
        for change in changes:
            change(projects, chance)
        names = " and ".join(change.__name__ for change in changes)
        assert differences(projects) == set(), f"seed {seed}: {names}"
        shutil.rmtree(projects)
