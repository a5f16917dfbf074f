"""Sessions of real clients, next to what was really served to them: every response, tool call, agent and turn, once."""

import re
import shutil
import statistics
from collections import Counter, defaultdict
from pathlib import Path

import pytest
from reads import one_pass, read, sent
from recordings import recordings

from turnspan.source.sessions import sessions_in
from turnspan.transcript.carry import words_digest

# What the recordings themselves get wrong, or cannot know. There are no other exceptions.
NOT_IN_ANY_TRANSCRIPT = {("2.1.29/tui_queue", 11)}  # the response was cut off by /exit before any row of it was written
# The client was quitting: it stamped the row 424 ms after the last byte.
STAMPED_LATE = {("2.1.325/tui_bg_quit", 2)}
# The agent was still writing, for 2.4 s, when its session had ended: its last rows come as late parts.
WRITES_AFTER_THE_END = {"2.1.29/tui_bg_quit"}

ADDED_FOR_THE_MODEL = re.compile(r"(?s)^\s*<tools-used.*?</tools-used-before-summary>|<system-reminder>.*")
# What the API saw of who asked, and what we may call it.
ORIGINS = {
    "human": {"human", "sdk", "queued"},
    "stop-hook": {"human", "sdk"},
    "task-notification": {"task_notification"},
    "plan-clear-context": {"plan", "auto_continuation"},
    "bash-mode": {"bash"},
}


def typed(root):
    """Return the prompt of a turn."""
    return " ".join(part.text for part in root.input[0].parts if hasattr(part, "text")) if root.input else ""


class Exported:
    """The spans of one recording, by what they represent."""

    def __init__(self, traces):
        self.traces = traces
        self.spans = [(trace, span) for trace in traces for span in trace.spans]
        self.by_id = {(trace.trace_id, span.span_id): span for trace, span in self.spans}
        self.responses, self.calls = defaultdict(list), defaultdict(list)
        for trace, span in self.spans:
            if span.kind == "generation" and span.error is None:
                self.responses[span.facts["response_id"]].append((trace, span))
            elif span.kind == "tool":
                self.calls[span.facts["tool_call_id"]].append((trace, span))

    def above(self, trace, span):
        """Return the spans above one, the nearest first."""
        found = []
        while span.parent_id is not None and len(found) < 50:
            span = self.by_id[trace.trace_id, span.parent_id]
            found.append(span)
        return found


@pytest.fixture(scope="module")
def exported():
    """Every recording, with the spans of one reading."""
    return [(recording, Exported(one_pass(recording.path / "projects"))) for recording in recordings()]


@pytest.fixture
def report(capsys):
    """Print a line that pytest does not capture."""

    def show(line):
        with capsys.disabled():
            print(f"\n  corpus: {line}", end="")  # noqa: T201  the figures are what one runs this for

    return show


def test_spans_are_well_formed(exported, report):
    """Ids are unique, every parent exists and precedes its children, nothing ends before it starts."""
    for recording, found in exported:
        seen = set()
        for trace, span in found.spans:
            assert (trace.trace_id, span.span_id) not in seen, recording.name
            assert span.parent_id is None or (trace.trace_id, span.parent_id) in seen, recording.name
            assert 0 < span.start_ns <= span.end_ns, recording.name
            seen.add((trace.trace_id, span.span_id))
    spans = [span for _, found in exported for _, span in found.spans]
    kinds = ", ".join(f"{count} {kind}s" for kind, count in Counter(str(span.kind) for span in spans).items())
    report(f"{len(exported)} recordings give {sum(len(found.traces) for _, found in exported)} traces with {kinds}")


def test_each_response_is_exported_once(exported, report):
    """Each response that was served is exported once, in its session, with its exact usage, and no other one.

    Where the client recorded a placeholder instead of the output tokens, that is said and not passed off as the count.
    """
    exact = placeholders = 0
    for recording, found in exported:
        served = {row["message_id"] for row in recording.truth if row["event"] == "response"}
        assert set(found.responses) <= served, recording.name
        for row in recording.responses:
            where = f"{recording.name} r{row['n']}"
            if (recording.name, row["n"]) in NOT_IN_ANY_TRANSCRIPT:
                assert row["message_id"] not in found.responses
                continue
            assert len(found.responses[row["message_id"]]) == 1, where
            trace, span = found.responses[row["message_id"]][0]
            usage, split = row["usage"], row["usage"]["cache_creation"]
            assert trace.session_id == row["session_id"], where
            assert span.model == row["model"], where
            assert span.usage.input == usage["input_tokens"], where
            assert span.usage.cache_read == usage["cache_read_input_tokens"], where
            assert span.usage.cache_write_5m == split["ephemeral_5m_input_tokens"], where
            assert span.usage.cache_write_1h == split["ephemeral_1h_input_tokens"], where
            is_exact = span.usage.output == usage["output_tokens"]
            assert is_exact != span.usage.is_incomplete, where
            exact += is_exact
            placeholders += not is_exact
    report(f"{exact + placeholders} responses once: {exact} exact, {placeholders} marked as placeholders of the client")


def test_responses_say_what_the_model_said(exported):
    """A generation contains the text and the calls of its response, in order."""
    for recording, found in exported:
        for row in recording.responses:
            for _, span in found.responses[row["message_id"]]:
                words = [block["text"] for block in row["content"] if block["type"] == "text" and block["text"]]
                calls = [block["id"] for block in row["content"] if block["type"] == "tool_use"]
                said = span.output[0].parts
                assert [part.text for part in said if type(part).__name__ == "Text"][: len(words)] == words
                assert [part.id for part in said if type(part).__name__ == "ToolCall"] == calls, recording.name


def test_each_tool_call_is_exported_once(exported, report):
    """Each call is exported once, below the response that asked for it, with the status and the output that came back."""
    count = failed = 0
    for recording, found in exported:
        for tool_use_id, (row, call) in recording.calls.items():
            if row["aux"] or row["aborted"] or (recording.name, row["n"]) in NOT_IN_ANY_TRANSCRIPT:
                continue
            where = f"{recording.name} r{row['n']} {call['name']}"
            assert len(found.calls[tool_use_id]) == 1, where
            trace, span = found.calls[tool_use_id][0]
            assert span.name == call["name"], where
            assert found.above(trace, span)[0].facts["response_id"] == row["message_id"], where
            result = recording.results.get(tool_use_id)
            count += 1
            if result is None:
                continue
            failed += result["is_error"]
            assert (span.error is not None) == result["is_error"], where
            if "[image]" not in result["text"]:  # images are described, not repeated
                wanted = ADDED_FOR_THE_MODEL.sub("", result["text"]).strip()
                assert wanted[:2000] in ADDED_FOR_THE_MODEL.sub("", span.output).strip() + "\n", where
        assert found.calls.keys() <= recording.calls.keys(), recording.name
    report(f"{count} tool calls once, {failed} of them failed")


def test_each_agent_is_below_its_call(exported, report):
    """The responses of a subagent are below the call that launched it, at any depth, in the foreground or not."""
    count = 0
    for recording, found in exported:
        for row in recording.responses:
            if row["thread"] != "subagent":
                continue
            trace, span = found.responses[row["message_id"]][0]
            above = found.above(trace, span)
            assert above[0].kind == "agent", recording.name
            assert above[1].facts["tool_call_id"] == row["parent_tool_use_id"], f"{recording.name} r{row['n']}"
            assert above[-1].kind == "turn", recording.name
            count += 1
    report(f"{count} responses of subagents below the call that launched them")


def test_turns_are_the_right_ones(exported, report):
    """One prompt is one trace: no turn is split, none is merged, each has its origin and its prompt."""
    turns = 0
    for recording, found in exported:
        traces_of, prompts_of, kinds = defaultdict(set), defaultdict(set), defaultdict(set)
        for row in recording.responses:
            for trace, _ in found.responses[row["message_id"]]:
                traces_of[recording.turn_of(row)].add(trace.trace_id)
                prompts_of[trace.trace_id].add(recording.turn_of(row))
                if row["turn"]:
                    kinds[trace.trace_id].add(row["turn_kind"])
        for key, traces in traces_of.items():
            assert len(traces) == 1, (recording.name, key)
        assert all(len(keys) == 1 for keys in prompts_of.values()), recording.name
        roots = {trace.trace_id: span for trace, span in found.spans if span.kind == "turn"}
        for trace_id, keys in prompts_of.items():
            turns += 1
            root, key = roots[trace_id], next(iter(keys))
            wanted = set().union(*(ORIGINS[kind] for kind in kinds[trace_id]))
            assert root.facts["origin"] in wanted, f"{recording.name} {key} {root.facts['origin']}"
            if key in recording.prompts and root.facts["origin"] != "queued":
                assert recording.prompts[key].split()[-1] in typed(root), f"{recording.name} {key}"
        silent = {trace_id for trace_id in roots if trace_id not in prompts_of}
        for trace_id in silent:  # a prompt that got no response: it failed, or it was interrupted before
            facts = roots[trace_id].facts
            assert roots[trace_id].error or facts.get("interrupted") or facts.get("incomplete"), recording.name
        answered = {key for keys in prompts_of.values() for key in keys}
        unanswered = [key for key in recording.prompts if key not in answered]
        labels = [
            next((k for k in unanswered if recording.prompts[k].split()[-1] in typed(roots[t])), "") for t in silent
        ]
        assert all(labels), recording.name
        assert len(set(labels)) == len(labels), recording.name
    report(f"{turns} turns with an answer, none split or merged")


def test_generations_are_timed_as_they_were_served(exported, report):
    """Where the client recorded its requests, start and end are the real ones; elsewhere the start is marked as inferred."""
    recorded = defaultdict(list)
    for recording, found in exported:
        for row in recording.responses:
            for _, span in found.responses[row["message_id"]]:
                if "time.inferred" in span.facts:
                    assert span.facts["time.inferred"] == "start"
                    assert not recording.name.startswith("2.1.325/"), recording.name
                    continue
                late = (recording.name, row["n"]) in STAMPED_LATE
                for name, ours, real in (
                    ("start", span.start_ns, row["t_request"]),
                    ("first token", span.first_token_ns, row["t_first_token"]),
                    ("end", span.end_ns, row["t_end"]),
                ):
                    if ours is None:
                        assert name == "first token"  # words have no recorded beginning
                        continue
                    off = abs(ours / 1e6 - real * 1e3)
                    recorded[name].append(off)
                    where = f"{recording.name} r{row['n']} {name}: {off:.0f} ms"
                    assert off <= 250 or (late and name == "end"), where
    assert recorded
    assert statistics.median(recorded["start"]) <= 50
    assert statistics.median(recorded["end"]) <= 50
    told_ms = ", ".join(f"{name} {statistics.median(off):.0f} ({max(off):.0f})" for name, off in recorded.items())
    report(f"{len(recorded['start'])} recorded requests, off in ms, median (worst): {told_ms}")


# ---- live


def ending_of(payload):
    """Return the ending that an event gives: it decides when something is exported, never what."""
    event = payload["hook_event_name"]
    if event in {"Stop", "StopFailure"}:
        words = payload.get("last_assistant_message")
        return {"is_stopped": True, "words": words_digest(words) if words and event == "Stop" else None}
    if event == "SubagentStop":
        return {"agents": (payload["agent_id"],) if "agent_id" in payload else ()}
    return {"is_over": True} if event == "SessionEnd" else {"is_stopped": False}


class Copies:
    """Copies of a recording's files, which grow as the files did."""

    def __init__(self, recording, projects):
        self.projects = projects
        self.sizes = {}
        origin = recording.path / "projects"
        self.data = {path.relative_to(origin): path.read_bytes() for path in origin.rglob("*") if path.is_file()}

    def grow(self, name, size):
        """Grow a file to the size it had at a moment."""
        data, before = self.data.get(name, b""), self.sizes.get(name, 0)
        if size == before or name not in self.data:
            return
        if name.name.endswith(".meta.json"):  # rewritten when the agent ends
            data, before = data if size == len(data) else data.replace(b',"finished":true', b""), 0
            assert len(data) == size
        path = self.projects / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab" if 0 < before < size else "wb") as file:
            file.write(data[before if before < size else 0 : size])
        self.sizes[name] = size


def lived(recording, projects, *, is_curious):
    """Return the traces of reading a recording at each of its hooks, on files cut to the sizes they had then.

    The curious also look at every session of the project at every hook, knowing nothing.
    """
    copies, progress, traces = Copies(recording, projects), {}, []

    def look(path, **ending):
        if path.exists():
            new, progress[path] = read(path, progress.get(path), **ending)
            traces.extend(new)

    for payload, sizes in recording.hooks:
        project = Path(payload["transcript_path"].rpartition("/.claude/projects/")[2].partition("/")[0])
        for name, size in sizes.items():
            copies.grow(project / name, size)
        look(projects / project / f"{payload['session_id']}.jsonl", **ending_of(payload))
        if is_curious:
            for session in list(sessions_in(projects / project)):
                look(session.path, is_stopped=False)
    for name, data in copies.data.items():
        copies.grow(name, len(data))
    for project in sorted(projects.iterdir()):
        for session in sessions_in(project):
            look(session.path)
    return traces


@pytest.mark.parametrize("is_curious", [False, True], ids=["its own events", "every event for all"])
def test_live_equals_one_pass(exported, is_curious, tmp_path, report):
    """Events decide when a turn is exported, never what is in it: hook by hook, every span has the same bytes, once."""
    spans = hooks = 0
    for number, (recording, found) in enumerate(exported):
        live = sent(lived(recording, tmp_path / str(number), is_curious=is_curious))
        at_once = sent(found.traces)
        shutil.rmtree(tmp_path / str(number))
        hooks += len(recording.hooks)
        spans += len(at_once)
        if recording.name in WRITES_AFTER_THE_END:
            assert set(at_once) <= set(live)
            assert sum(live[key] != at_once[key] for key in at_once) == 2
            continue
        assert live.keys() == at_once.keys(), recording.name
        assert live == at_once, recording.name
    report(f"{spans} spans read live at {hooks} hooks have the bytes of one reading")
