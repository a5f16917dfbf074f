"""The generated archives of the benchmarks contain what their expected.json says."""

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

GENERATOR = Path(__file__).parent.parent / "benchmarks" / "generate.py"
TOKENS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")


def generate(out, *options):
    """Run the generator; return its expected.json."""
    subprocess.run([sys.executable, GENERATOR, out, *map(str, options)], check=True, capture_output=True)
    return json.loads((out / "expected.json").read_text())


def rows_of(path):
    """Yield the rows of a transcript; every line must be complete."""
    with path.open("rb") as file:
        for line in file:
            assert line.endswith(b"\n")
            yield json.loads(line)


def starts_turn(row):
    """Whether a row starts a turn, by rules that are independent of the generator."""
    content = row["message"]["content"]
    if row.get("isSidechain") or row.get("isMeta") or row.get("isCompactSummary") or "toolUseResult" in row:
        return False
    text = content if isinstance(content, str) else content[0].get("text", "")
    return bool(text) and not text.startswith(("[Request interrupted", "<local-command", "<command-name>", "<bash-"))


class Count:
    """The contents of some transcripts, read line by line with plain json."""

    def __init__(self):
        self.totals, self.tokens, self.kinds = Counter(), Counter(), Counter()
        self.usage, self.agents, self.calls, self.results = {}, set(), {}, set()

    def read(self, path):
        self.totals["bytes"] += path.stat().st_size
        for row in rows_of(path):
            self.totals["lines"] += 1
            self.kinds[row["type"]] += 1
            message = row.get("message")
            if row["type"] == "assistant" and message["model"] == "<synthetic>":
                self.totals["api_errors"] += row["isApiErrorMessage"]
            elif row["type"] == "assistant":
                self.usage[message["id"]] = message["usage"], row["isSidechain"]
                self.calls |= {b["id"]: b["name"] for b in message["content"] if b["type"] == "tool_use"}
            elif row["type"] == "user":
                self.totals["turns"] += starts_turn(row)
                self.read_result(row, message["content"])
            self.totals["compactions"] += row.get("subtype") == "compact_boundary"

    def read_result(self, row, content):
        if isinstance(content, list) and content[0]["type"] == "tool_result":
            self.results.add(content[0]["tool_use_id"])
            self.totals["tool_errors"] += content[0]["is_error"]
        outcome = row.get("toolUseResult")
        if isinstance(outcome, dict) and "agentId" in outcome:
            self.agents.add((row["sessionId"], outcome["agentId"]))

    def report(self):
        self.totals["generations"] = len(self.usage)
        self.totals["subagent_generations"] = sum(is_agent for _, is_agent in self.usage.values())
        self.totals["tool_calls"] = len(self.calls)
        self.totals["tool_calls_without_result"] = len(self.calls.keys() - self.results)
        for usage, _ in self.usage.values():
            written = usage["cache_creation"]
            self.tokens["input"] += usage["input_tokens"]
            self.tokens["output"] += usage["output_tokens"]
            self.tokens["cache_read"] += usage["cache_read_input_tokens"]
            self.tokens["cache_write_5m"] += written["ephemeral_5m_input_tokens"]
            self.tokens["cache_write_1h"] += written["ephemeral_1h_input_tokens"]
        return self.totals


def check_tree(out, expected):
    """Count every file of the tree again and compare; return the counts of the sessions."""
    sessions, strays = Count(), Count()
    paths = sorted((out / "projects").rglob("*.jsonl"))
    mains = [path for path in paths if not path.name.startswith("agent-")]
    for path in mains:
        sessions.read(path)
    places = {}
    for path in paths:
        if path not in mains:
            places[next(rows_of(path))["sessionId"], path.stem.removeprefix("agent-")] = path
    seen = set()
    while seen != sessions.agents:  # agents launch agents
        for agent in sessions.agents - seen:
            sessions.read(places.pop(agent))
            seen.add(agent)
    for path in places.values():
        strays.read(path)
    found, totals = sessions.report(), expected["totals"]
    for name in found:
        assert found[name] == totals.get(name, 0), name
    assert len(mains) == totals["sessions"] == len(expected["sessions"])
    assert dict(sessions.tokens) == totals["tokens"]
    assert dict(Counter(sessions.calls.values())) == totals["tool_calls_by_name"]
    assert sum(totals["turns_by_origin"].values()) == totals["turns"]
    apart = [expected["unlaunched_agents"], expected["warmups"]]
    strays.report()
    assert len(places) == sum(part.get("agents", 0) for part in apart)
    assert all(strays.tokens[name] == sum(part["tokens"][name] for part in apart) for name in TOKENS)
    kinds = Counter()
    for kind, count in expected["line_kinds"].items():
        kinds[kind.partition("/")[0]] += count["lines"]
    assert kinds == sessions.kinds + strays.kinds
    return sessions


def test_an_archive_contains_what_expected_json_says(tmp_path):
    """Counting every line again with plain json gives the same totals."""
    expected = generate(tmp_path / "archive", "--megabytes", 6, "--sessions", 20, "--seed", 7)
    check_tree(tmp_path / "archive", expected)
    assert 5.5e6 < sum(kind["bytes"] for kind in expected["line_kinds"].values()) < 7.5e6
    assert {row["version"] for row in expected["sessions"]} == set(expected["by_version"])


@pytest.mark.parametrize("version", ["1.0.128", "2.0.76", "2.1.29", "2.1.128", "2.1.325"])
def test_every_client_version_has_its_own_format(tmp_path, version):
    """A long session of each version has its own line types and its own location for subagents."""
    expected = generate(tmp_path / "one", "--turns", 70, "--version", version)
    sessions = check_tree(tmp_path / "one", expected)
    agents = {path.parent.name for path in (tmp_path / "one").rglob("agent-*.jsonl")}
    assert expected["totals"]["turns"] == 70
    assert ("subagents" in agents) == version.startswith("2.1.")
    assert (sessions.kinds["progress"] > 0) == (version == "2.1.29")
    assert (sessions.kinds["api-request"] > 0) == (version == "2.1.325")


def test_the_same_seed_gives_the_same_bytes(tmp_path):
    """Two runs give the same bytes, another seed does not, and a longer session begins like a shorter one."""

    def made(name, *options):
        generate(tmp_path / name, *options)
        return {p.relative_to(tmp_path / name): p.read_bytes() for p in (tmp_path / name).rglob("*") if p.is_file()}

    first = made("a", "--megabytes", 3, "--sessions", 9)
    assert first == made("b", "--megabytes", 3, "--sessions", 9)
    assert first.keys() != made("c", "--megabytes", 3, "--sessions", 9, "--seed", 2).keys()
    short = max(made("short", "--turns", 10).values(), key=len)
    assert any(text.startswith(short[: len(short) * 9 // 10]) for text in made("long", "--turns", 20).values())


def test_a_cost_state_is_the_sum_of_its_tokens(tmp_path):
    """The newest client's own totals of a session are the sum of its transcripts."""
    expected = generate(tmp_path / "one", "--turns", 60)
    (row,) = expected["sessions"]
    (states,) = [[r for r in rows_of(tmp_path / "one" / row["path"]) if r["type"] == "cost-state"]]
    assert states[-1]["totalCostUSD"] == row["client_cost_usd"] > 0
    assert sum(model["outputTokens"] for model in states[-1]["modelUsage"].values()) == row["tokens"]["output"]
