"""`turnspan stats`: its groups, periods and filters; `test_figures` compares the figures with those of `show`."""

import json
import re
import time
from datetime import UTC, datetime

import pytest
from rows import MODEL, Writer, agent_writer, save_agent, tool_id

from turnspan.commands.stats import GROUPINGS
from turnspan.index.stats import DIMENSIONS
from turnspan.text import cells

KINDS = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h")
PRICES = {"input": 5, "output": 25, "cache_read": 0.5, "cache_write_5m": 6.25, "cache_write_1h": 10}  # of MODEL


@pytest.fixture
def in_zone(monkeypatch):
    """Set the local time zone."""

    def set_zone(name):
        monkeypatch.setenv("TZ", name)
        time.tzset()

    yield set_zone
    monkeypatch.undo()
    time.tzset()


def records(command, *arguments):
    """Run a command with `--json`; return its records."""
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def stats(command, *arguments):
    """Return the groups by key, and the total."""
    *groups, total = records(command, "stats", *arguments)
    assert total["by"] == "total"
    return {group["key"]: group for group in groups}, total


def saved(writer, home):
    """Save a transcript in a home."""
    return writer.save(home / "projects" / "-p")


def test_every_dimension_can_be_grouped_by():
    """`--by` takes every dimension of the index."""
    assert tuple(DIMENSIONS) == GROUPINGS


def test_active_time_is_that_of_the_turn(claude_home, command):
    """A tool that ran 1 s and waited 49 s for a permission was active for 1 s, in `stats` as on the turn's span.

    Neither the answer to a question nor what a denied call waited is work.
    """
    writer = Writer()
    writer.prompt("make it")
    call = writer.call("Bash", {"command": "make"}, after=1)
    writer.result(call, "done", outcome={"durationMs": 1000}, after=50)
    call = writer.call("AskUserQuestion", {"questions": []}, after=1)
    writer.result(call, "yes", after=1000)
    call = writer.call("Bash", {"command": "make install"}, after=1)
    writer.result(call, "The user doesn't want to proceed", is_error=True, after=70)
    writer.say("Done.", after=1)
    path = saved(writer, claude_home)
    (trace,) = records(command, "show", str(path))
    assert trace["spans"][0]["facts"]["duration.active_ms"] == 5000
    assert stats(command)[1]["active_ms"] == 5000


def test_cost_is_tokens_times_prices(claude_home, command):
    """The cost of each model, day and project is what its tokens cost by the price list, to the cent and below."""
    tokens = {}
    for number, project in enumerate(("/home/ada/loom", "/home/ada/loom", "/home/ada/flax")):
        writer = Writer(session=f"5e55104a-0000-4000-8000-00000000000{number}", tag=f"s{number}", cwd=project)
        for turn in range(4):
            used = {"input_tokens": 11 + turn, "output_tokens": 500 * (number + 1), "cache_read_input_tokens": 90_000,
                    "cache_creation_input_tokens": 700 + number}  # fmt: skip
            writer.prompt("go")
            writer.say("gone", usage=used)
            sums = tokens.setdefault(project, dict.fromkeys(KINDS, 0))
            sums["input"] += used["input_tokens"]
            sums["output"] += used["output_tokens"]
            sums["cache_read"] += used["cache_read_input_tokens"]
            sums["cache_write_5m"] += used["cache_creation_input_tokens"]
        saved(writer, claude_home)
    costs = {path: sum(PRICES[kind] * sums[kind] / 1e6 for kind in KINDS) for path, sums in tokens.items()}
    groups, total = stats(command, "--by", "project")
    assert {key: group["cost_usd"] for key, group in groups.items()} == pytest.approx(costs)
    assert total["cost_usd"] == pytest.approx(sum(costs.values()))
    assert list(stats(command, "--by", "model")[0]) == [MODEL]
    hits = sum(sums["cache_read"] for sums in tokens.values())
    asked = hits + sum(sums["input"] + sums["cache_write_5m"] for sums in tokens.values())
    assert total["cache_hit_rate"] == pytest.approx(hits / asked)


# ---- what belongs where


def test_a_turn_past_midnight_is_counted_on_both_days(claude_home, command, in_zone):
    """A response counts on the local day on which it ended, a tool call and a turn on the day on which they started."""
    in_zone("Asia/Tokyo")
    writer = Writer()
    writer.now = datetime(2026, 3, 1, 14, 59, 50, tzinfo=UTC)  # 23:59:50 in Tokyo
    writer.prompt("late", after=1)
    call = writer.call("Bash", {"command": "sleep 20"}, after=2)
    writer.result(call, "done", after=20)
    writer.say("Done.", after=2)
    saved(writer, claude_home)
    days, total = stats(command)
    assert list(days) == ["2026-03-01", "2026-03-02"]
    assert [day["generations"] for day in days.values()] == [1, 1]
    assert [day["turns"] for day in days.values()] == [1, 0]
    assert [day["tools"] for day in days.values()] == [1, 0]
    assert [day["cost_usd"] for day in days.values()] == pytest.approx([total["cost_usd"] / 2] * 2)
    in_zone("UTC")
    assert list(stats(command)[0]) == ["2026-03-01"]


def test_periods_are_weeks_from_monday_and_months(claude_home, command, in_zone):
    """A week is named by its Monday, a month by its number, both in the local time zone."""
    in_zone("America/New_York")
    for number, when in enumerate((datetime(2026, 3, 2, 4, tzinfo=UTC), datetime(2026, 3, 2, 6, tzinfo=UTC))):
        writer = Writer(session=f"5e55104a-0000-4000-8000-00000000000{number}", tag=f"s{number}")
        writer.now = when  # Sunday 23:00 and Monday 01:00 in New York
        writer.turn("hi", "Hello.")
        saved(writer, claude_home)
    assert list(stats(command, "--by", "week")[0]) == ["2026-02-23", "2026-03-02"]
    assert list(stats(command, "--by", "month")[0]) == ["2026-03"]


def test_responses_that_the_client_wrote_itself_are_api_errors(claude_home, command):
    """An answer that no model gave, `<synthetic>` in the transcript, is called what it is."""
    writer = Writer()
    writer.prompt("hi")
    writer.say("API Error: 529", model="<synthetic>", isApiErrorMessage=True)
    saved(writer, claude_home)
    assert {key: group["label"] for key, group in stats(command, "--by", "model")[0].items()} == {
        "API error": "API errors"
    }
    assert "API errors" in command("stats", "--by", "model")[1]


def test_what_an_agent_did_belongs_to_the_agent(claude_home, command):
    """Tokens and calls of a subagent are in the group of its type, the rest is (main)."""
    writer = Writer(version="2.1.325")
    writer.prompt("look around")
    call = writer.call("Agent", {"description": "look", "prompt": "look", "subagent_type": "Explore"})
    agent = agent_writer(writer, "a1b2")
    agent.prompt("look")
    reading = agent.call("Read", {"file_path": "/etc/hosts"})
    agent.result(reading, "no such file", is_error=True)
    agent.say("Nothing here.")
    writer.result(call, "Nothing here.", outcome={"agentId": "a1b2", "status": "completed"}, after=5)
    writer.say("Done.")
    saved(writer, claude_home)
    save_agent(agent, claude_home / "projects" / "-p", "a1b2", {"agentType": "Explore", "toolUseId": tool_id(call)})
    groups, _ = stats(command, "--by", "agent")
    assert {key: (group["generations"], group["tools"], group["agents"]) for key, group in groups.items()} == {
        "": (2, 1, 0),
        "Explore": (2, 1, 1),
    }
    assert groups[""]["label"] == "(main)"
    tools, total = stats(command, "--by", "tool")
    assert {key: (tool["tools"], tool["tools_failed"]) for key, tool in tools.items()} == {
        "Agent": (1, 0),
        "Read": (1, 1),
    }
    assert tools["Read"]["cost_usd"] is None
    assert total["errors"] == 1


def test_equal_groups_have_an_order(claude_home, command):
    """Sessions of the same cost are listed in the same order, whichever was indexed first."""
    names = [f"5e55104a-0000-4000-8000-00000000000{number}" for number in (3, 1, 2)]
    for name in names:
        writer = Writer(session=name, tag=f"t{name[-1]}")
        writer.turn("weave", "Woven.")
        saved(writer, claude_home)
        stats(command)  # indexed in this order
    assert list(stats(command, "--by", "session")[0]) == sorted(names)


def test_periods_of_time_add_up(claude_home, command):
    """What happened before and after a time, in the middle of a turn, adds up to everything."""
    writer = Writer()
    for number in range(3):
        writer.prompt(f"question {number}")
        call = writer.call("Bash", {"command": "true"}, after=30)
        writer.result(call, "fine", after=30)
        writer.say("Done.", after=30)
    saved(writer, claude_home)
    _, total = stats(command)
    for when in ("2026-03-01T09:00:40+00:00", "2026-03-01T09:02:10+00:00"):
        before, after = (stats(command, option, when)[1] for option in ("--until", "--since"))
        assert before["generations"] < total["generations"]
        for name in ("turns", "generations", "tools", "cost_usd", "tokens"):
            assert before[name] + after[name] == pytest.approx(total[name]), name


def test_a_project_is_a_directory_or_a_part_of_its_path(claude_home, command, tmp_path):
    """`--project` selects turns by their directory and those below it, or by a part of the path."""
    (tmp_path / "loom" / "src").mkdir(parents=True)
    for number, place in enumerate((tmp_path / "loom", tmp_path / "loom" / "src", tmp_path / "loom-2")):
        writer = Writer(session=f"5e55104a-0000-4000-8000-00000000000{number}", tag=f"s{number}", cwd=str(place))
        writer.turn("hi", "Hello.")
        saved(writer, claude_home)
    assert stats(command, "--project", str(tmp_path / "loom"))[1]["turns"] == 2
    assert stats(command, "--project", "LOOM")[1]["turns"] == 3
    code, out, err = command("stats", "--project", "nowhere")
    assert (code, out) == (0, "")
    assert err == "no turns found\n"


def test_a_partial_cost_is_marked(claude_home, command):
    """A model without a price has an unknown cost (?) in its own group, and makes the total a lower bound: ≥."""
    writer = Writer(version="2.1.325")
    writer.prompt("hi")
    writer.say("Hello.", model="some-model-of-tomorrow")
    writer.turn("hi", "Hello.")
    saved(writer, claude_home)
    groups, total = stats(command, "--by", "model")
    assert {key: group["is_cost_partial"] for key, group in groups.items()} == {
        "some-model-of-tomorrow": True,
        MODEL: False,
    }
    assert total["is_cost_partial"]
    out = command("stats", "--by", "model")[1]
    assert re.search(r"some-model-of-t.* \?", out)
    assert re.search(r"≥\$0\.\d*[1-9]", out)
    assert "no price for some-model-of-tomorrow" in out


def test_the_index_may_be_switched_off(claude_home, command, monkeypatch):
    """With `index = false` the figures are the same, and no file is written."""
    writer = Writer()
    writer.turn("hi", "Hello.")
    saved(writer, claude_home)
    monkeypatch.setenv("TURNSPAN_INDEX", "0")
    without = records(command, "stats", "--by", "session")
    assert not list((claude_home / "turnspan").glob("index*"))
    monkeypatch.delenv("TURNSPAN_INDEX")
    assert records(command, "stats", "--by", "session") == without


@pytest.mark.usefixtures("claude_home")
def test_an_empty_home_is_a_sentence(command):
    """Without sessions there is a sentence, and a total of nothing for programs."""
    code, out, err = command("stats")
    assert (code, out) == (0, "")
    assert "run Claude Code once, or try `turnspan demo`" in err
    groups, total = stats(command)
    assert groups == {}
    assert (total["turns"], total["cost_usd"], total["cache_hit_rate"]) == (0, 0.0, None)


# ---- the table


@pytest.mark.parametrize("width", [60, 72, 80, 100, 140, 220])
def test_the_table_fits_the_terminal(claude_home, command, monkeypatch, width):
    """From 60 columns on every grouping fits, with names cut; key, cost or calls, and a bar are always there."""
    for number, name in enumerate(("織物" * 20, "x" * 90, "\x1b[31mred\x07")):
        writer = Writer(session=f"5e55104a-0000-4000-8000-00000000000{number}", tag=f"s{number}",
                        cwd=f"/home/ada/{name}", gitBranch=name)  # fmt: skip
        writer.prompt(name)
        writer.result(writer.call(f"mcp__{name}", {}), "bad", is_error=True)
        writer.say("Done.", usage={"input_tokens": 10**9, "output_tokens": 10**8})
        saved(writer, claude_home)
    monkeypatch.setenv("COLUMNS", str(width))
    for by in GROUPINGS:
        lines = command("stats", "--by", by)[1].splitlines()
        assert max(map(cells, lines)) <= width, by
        assert lines[0].startswith(by.upper())
        assert lines[-1].startswith("TOTAL")
        assert any("█" in line for line in lines[1:-1]), by
        assert ("CALLS" if by == "tool" else "COST") in lines[0]
        assert not any("\x1b" in line or "\x07" in line for line in lines)
