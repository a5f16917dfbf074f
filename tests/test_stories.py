"""One directory in `fixtures/` is one story: transcripts as clients write them, and the traces they must give.

`pytest tests/test_stories.py --update-golden` writes the golden files anew; read the difference before you commit it.
"""

import json
from collections import Counter
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path

import msgspec
import pytest
from reads import one_pass, spans

from turnspan.source.ending import Ending
from turnspan.source.progress import Progress
from turnspan.source.reader import Reader
from turnspan.source.sessions import all_sessions
from turnspan.trace.model import Json, Media, Text
from turnspan.transcript.lines import unknown_parts

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures"
STORIES = sorted(path.parent.name for path in FIXTURES.glob("*/projects"))


def moment(ns):
    """Return a readable time, to the millisecond."""
    return datetime.fromtimestamp(ns / 1e9, tz=UTC).isoformat(timespec="milliseconds")


def words(content):
    """Return content in a readable form."""
    if content is None or isinstance(content, str):
        return content
    if isinstance(content, Json):
        return json.loads(content.text)
    rendered = []
    for message in content:
        for part in message.parts:
            fields = msgspec.to_builtins(part)
            fields.pop("type")
            what = part.text if isinstance(part, Text) else fields
            name = "media" if isinstance(part, Media) else type(part).__name__.lower()
            rendered.append({f"{message.role} {name}": what})
        if message.finish_reason:
            rendered.append({"finish": message.finish_reason})
    return rendered


def render_span(span):
    """Return the fields of a span, without empty ones."""
    rendered = {
        "span": span.span_id.hex(),
        "parent": span.parent_id.hex() if span.parent_id is not None else None,
        "kind": str(span.kind),
        "name": span.name,
        "start": moment(span.start_ns),
        "first_token": moment(span.first_token_ns) if span.first_token_ns is not None else None,
        "end": moment(span.end_ns),
        "model": span.model,
        "usage": used(span.usage),
        "cost_usd": span.cost_usd,
        "totals": used(span.totals),
        "totals_cost_usd": span.totals_cost_usd,
        "error": span.error,
        "error_message": span.error_message or None,
        "facts": span.facts or None,
        "links": [f"{link.relation} {link.trace_id.hex()} {link.span_id.hex()}" for link in span.links] or None,
        "input": words(span.input),
        "output": words(span.output),
    }
    return {key: value for key, value in rendered.items() if value is not None}


def used(usage):
    """Return the counts of a usage that are not zero."""
    if usage is None:
        return None
    return {key: value for key, value in msgspec.to_builtins(usage).items() if value}


def render(projects):
    """Return the traces of every session of a story, as its golden file has them."""
    rendered = {}
    for session in all_sessions(projects):
        reading = Reader.for_people().read(session, Progress(), Ending(is_over=True))
        traces = [trace for piece in reading.pieces() for trace in piece.traces]
        anomalies = msgspec.structs.asdict(reading.anomalies)
        del anomalies["places"]
        anomalies["unknown"] = {" ".join(key): count for key, count in reading.anomalies.unknown.items()}
        rendered[f"{session.project}/{session.session_id}"] = {
            "noticed": {key: value for key, value in anomalies.items() if value},
            "warmups": reading.warmups,
            "traces": [
                {
                    "trace": trace.trace_id.hex(),
                    "name": trace.name,
                    "session": trace.session_id,
                    "client": trace.client_version,
                    "tags": list(trace.tags),
                    "facts": trace.facts,
                    "spans": [render_span(span) for span in trace.spans],
                }
                for trace in traces
            ],
        }
    return json.loads(json.dumps(rendered))


@pytest.mark.parametrize("story", STORIES)
def test_a_story_gives_its_traces(story, request):
    """Each story gives exactly the traces in its golden file, which were reviewed."""
    golden = FIXTURES / story / "golden.json"
    rendered = render(FIXTURES / story / "projects")
    if request.config.getoption("--update-golden"):
        golden.write_text(json.dumps(rendered, indent=1, ensure_ascii=False) + "\n")
    assert rendered == json.loads(golden.read_text())


def test_ids_and_times_change_only_on_purpose(request):
    """A backend keeps a span by its id and its start: a change means that `--resend` doubles it, so CHANGELOG.md says so."""
    lines = []
    for story in STORIES:
        traces = sorted(one_pass(FIXTURES / story / "projects"), key=lambda trace: (trace.trace_id, trace.spans[0].span_id))
        kept = [(trace.trace_id.hex(), span.span_id.hex(), span.start_ns) for trace in traces for span in trace.spans]
        lines.append(f"{story} {len(kept)} {sha256(repr(sorted(kept)).encode()).hexdigest()[:32]}\n")
    if request.config.getoption("--update-golden"):
        (FIXTURES / "ids.txt").write_text("".join(lines))
    assert "".join(lines) == (FIXTURES / "ids.txt").read_text()


@pytest.mark.parametrize("story", STORIES)
def test_a_story_is_well_formed(story):
    """Ids are unique, parents precede their children, nothing ends before it starts, and no story is empty."""
    traces = one_pass(FIXTURES / story / "projects")
    assert traces
    seen = set()
    for trace in traces:
        for span in trace.spans:
            assert (trace.trace_id, span.span_id) not in seen
            assert span.parent_id is None or (trace.trace_id, span.parent_id) in seen
            assert span.start_ns <= span.end_ns
            assert len(span.span_id) == 8
            assert len(trace.trace_id) == 16
            seen.add((trace.trace_id, span.span_id))


def test_each_response_of_a_story_is_exported_once():
    """No response of any story is exported twice, even if the history was copied."""
    for story in STORIES:
        found = Counter(
            span.facts["response_id"] for span in spans(one_pass(FIXTURES / story / "projects"), "generation")
        )
        assert found.most_common(1)[0][1] == 1, story


def test_only_the_damaged_story_has_anomalies():
    """No story has unknown or repaired lines, except the one about damaged files."""
    for story in STORIES:
        for session in json.loads((FIXTURES / story / "golden.json").read_text()).values():
            assert bool(session["noticed"]) == (story == "damaged"), story


def test_no_story_has_a_part_that_no_trace_shows():
    """Every block, count of tokens and stop reason of the stories is known."""
    for path in FIXTURES.glob("*/projects/**/*.jsonl"):
        calls = {}
        assert [part for line in path.read_bytes().splitlines() for part in unknown_parts(line, calls)] == [], path
