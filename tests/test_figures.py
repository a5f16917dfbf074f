"""One question, one answer: every figure of `stats` is the sum over `show --json`, which has the spans that are stored."""

import json
import shutil
from datetime import datetime
from itertools import pairwise
from pathlib import Path

import pytest
from corpus.recordings import corpus
from test_count import counted

from turnspan.commands.stats import GROUPINGS

FIXTURES = sorted(path.parent for path in (Path(__file__).resolve().parents[1] / "fixtures").glob("*/projects"))
USAGE = ("input", "output", "cache_read", "cache_write_5m", "cache_write_1h", "web_searches", "is_incomplete")
STORED_KINDS = {"LLM": "generation", "TOOL": "tool", "AGENT": "agent"}
NOT_ADDED = {"by", "key", "label", "sessions", "is_cost_partial", "cache_hit_rate", "usage"}


def records(command, *arguments):
    """Run a command with `--json`; return its records."""
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    return [json.loads(line) for line in out.splitlines()]


def nanoseconds(stamp):
    """Return a time of `--json`, such as 2026-03-01T09:00:01.000000000Z."""
    return int(datetime.fromisoformat(stamp[:19] + "Z").timestamp()) * 10**9 + int(stamp[20:-1])


# ---- the same span from both places


def shown_span(span):
    """Return what counts of a span of `show --json`."""
    facts = span["facts"]
    return {
        "kind": span["kind"], "name": span["name"], "start": nanoseconds(span["start"]),
        "end": nanoseconds(span["end"]), "error": span["error"], "usage": span["usage"], "cost_usd": span["cost_usd"],
        "is_aborted": bool(facts.get("aborted")), "took_ms": facts.get("duration_ms"),
        "active_ms": facts.get("duration.active_ms"),
    }  # fmt: skip


def stored_span(span):
    """Return the same of a span in an OTLP-JSON file."""
    values = {each["key"]: next(iter(each["value"].values())) for each in span["attributes"]}
    kind = "turn" if "turnspan.turn_number" in values else STORED_KINDS.get(values["openinference.span.kind"], "event")
    read, written = (int(values.get(f"gen_ai.usage.cache_{what}.input_tokens", 0)) for what in ("read", "creation"))
    used = [
        values.get("turnspan.usage." + name, 0) for name in ("cache_creation_5m", "cache_creation_1h", "web_searches")
    ]
    five, hour, searches = map(int, used)
    asked = int(values.get("gen_ai.usage.input_tokens", 0)) - read - written
    counts = (asked, int(values.get("gen_ai.usage.output_tokens", 0)), read, five, hour, searches,
              bool(values.get("turnspan.usage.incomplete")))  # fmt: skip
    took_ms = values.get("turnspan.duration_ms")
    return {
        "kind": kind, "name": span["name"], "start": int(span["startTimeUnixNano"]),
        "end": int(span["endTimeUnixNano"]), "error": values.get("error.type"),
        "usage": dict(zip(USAGE, counts, strict=True)) if "gen_ai.usage.input_tokens" in values else None,
        "cost_usd": values.get("gen_ai.usage.cost"), "is_aborted": "turnspan.aborted" in values,
        "took_ms": float(took_ms) if took_ms is not None else None,
        "active_ms": int(values["turnspan.duration.active_ms"]) if "turnspan.duration.active_ms" in values else None,
    }  # fmt: skip


def stored_spans(home):
    """Return what was stored by a backfill, by trace and span id; nothing is stored twice."""
    found = {}
    for path in (home / "turnspan" / "traces").glob("*.jsonl"):
        for line in path.read_bytes().splitlines():
            for resource in json.loads(line)["resourceSpans"]:
                for span in resource["scopeSpans"][0]["spans"]:
                    key = span["traceId"], span["spanId"]
                    assert key not in found
                    found[key] = stored_span(span)
    return found


# ---- the figures


def at_work(span):
    """Return when a span was at work: not while it waited for the user."""
    start, end = span["start"], span["end"]
    if span["kind"] == "tool" and (
        span["name"] in {"AskUserQuestion", "ExitPlanMode"} or span["error"] == "permission_denied"
    ):
        return end, end
    if span["kind"] == "tool" and span["took_ms"] is not None and span["took_ms"] >= 0:
        return max(start, end - int(span["took_ms"] * 10**6)), end
    return start, end


def active_ms(spans):
    """Return for how many milliseconds something was at work, by counting between all beginnings and ends."""
    works = [at_work(span) for span in spans if span["kind"] in {"generation", "tool", "agent"}]
    moments = sorted({moment for work in works for moment in work})
    total = sum(
        after - before
        for before, after in pairwise(moments)
        if any(start <= before and after <= end for start, end in works)
    )
    return round(total / 1e6)


def figures(sessions):
    """Return the figures of sessions, each a list of traces, each a list of spans."""
    traces = [trace for session in sessions for trace in session]
    spans = [span for trace in traces for span in trace]
    tools, responses = ([span for span in spans if span["kind"] == kind] for kind in ("tool", "generation"))
    used = [span["usage"] for span in responses if span["usage"] is not None]
    usage = {name: sum(each[name] for each in used) for name in USAGE[:-1]}
    asked = usage["input"] + usage["cache_read"] + usage["cache_write_5m"] + usage["cache_write_1h"]
    is_incomplete = any(each["is_incomplete"] for each in used)
    unknown = [span for span in responses if span["usage"] is not None and span["cost_usd"] is None]
    errors = [span["error"] for span in tools]
    found = {
        "sessions": sum(any(session) for session in sessions),
        "turns": sum(span["kind"] == "turn" for span in spans),
        "generations": len(responses),
        "generations_failed": sum(span["error"] is not None for span in responses),
        "tools": len(tools),
        "tools_failed": errors.count("tool_error"),
        "tools_denied": errors.count("permission_denied"),
        "tools_interrupted": errors.count("interrupted"),
        "tools_ms": sum(span["end"] - span["start"] for span in tools) / 1e6,
        "agents": sum(span["kind"] == "agent" for span in spans),
        "errors": sum(span["error"] is not None for span in (*tools, *responses)),
        "tokens": asked + usage["output"],
        "cost_usd": sum(span["cost_usd"] or 0 for span in responses),
        "is_cost_partial": is_incomplete
        or any(span["is_aborted"] or any(list(span["usage"].values())[:5]) for span in unknown),
        "cache_hit_rate": usage["cache_read"] / asked if asked else None,
        "active_ms": sum(map(active_ms, traces)),
    }
    return {**usage, "is_incomplete": is_incomplete, **found}


def compare(command, home):
    """Compare `stats`, `show` and what a backfill stores; return the total of `stats`."""
    (*_, total) = records(command, "stats")
    shown, sessions = {}, []
    for session in records(command, "sessions", "--limit", "100000"):
        traces = []
        is_empty = not Path(session["path"]).stat().st_size  # `show` refuses it
        for trace in [] if is_empty else records(command, "show", session["path"]):
            spans = {(trace["trace_id"], span["span_id"]): shown_span(span) for span in trace["spans"]}
            assert not spans.keys() & shown.keys()
            shown |= spans
            traces.append(list(spans.values()))
        sessions.append(traces)
        top = figures([traces])
        assert {name: session[name] for name in session if name in top} == pytest.approx(
            {name: top[name] for name in session if name in top}, abs=1e-9
        )
        assert [each["active_ms"] or 0 for spans in traces for each in spans if each["kind"] == "turn"] == [
            active_ms(spans) for spans in traces if spans and spans[0]["kind"] == "turn"
        ]
    flat = {**total, **total["usage"]}
    wanted = figures(sessions)
    assert {name: flat[name] for name in wanted} == pytest.approx(wanted, abs=1e-9)
    assert set(total) - {"by", "key", "label", "usage"} <= set(wanted)
    command("backfill", "--since", "2020-01-01")
    stored = stored_spans(home)
    assert stored.keys() == shown.keys()
    assert [key for key in shown if shown[key] != stored[key]] == []
    return total


@pytest.mark.parametrize("tree", FIXTURES, ids=lambda tree: tree.name)
def test_the_figures_of_a_fixture_are_the_same_everywhere(tree, claude_home, command):
    """They are those of `show`, of the stored spans and of a count that shares no code with us; every grouping adds up."""
    shutil.copytree(tree / "projects", claude_home / "projects")
    total = compare(command, claude_home)
    if tree.name != "damaged":  # that counter skips rows that are glued to a torn one
        usages, calls = counted(claude_home / "projects")
        assert total["usage"]["input"] == sum(used[0] for used in usages.values())
        assert total["usage"]["output"] == sum(used[1] for used in usages.values())
        assert total["tools"] == len(calls)
    for by in GROUPINGS:
        (*groups, again) = records(command, "stats", "--by", by)
        assert again == total
        for name in total.keys() - NOT_ADDED:
            if groups and groups[0][name] is not None:
                assert sum(group[name] for group in groups) == pytest.approx(total[name], abs=1e-9), (by, name)
        used = [group["usage"] for group in groups if group["usage"] is not None]
        assert not used or {kind: sum(each[kind] for each in used) for kind in USAGE[:-1]} == {
            kind: total["usage"][kind] for kind in USAGE[:-1]
        }


def test_the_figures_of_all_recordings_are_the_same_everywhere(claude_home, command):
    """All recorded sessions in one home: `stats` is the sum over `show --json`, and that is what a backfill stores."""
    for project in corpus().glob("*/*/projects/*"):
        scenario = project.parents[1]
        shutil.copytree(project, claude_home / "projects" / f"-{scenario.parent.name}-{scenario.name}{project.name}")
    assert compare(command, claude_home)["turns"] > 500
