"""Turns that a caller's span is the parent of: they share the caller's trace, and each can be found and opened."""

import pytest
from test_view import SESSION, made, records_of, viewing

from turnspan.delivery import state
from turnspan.delivery.callers import Caller

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


@pytest.fixture
def called(tmp_path):
    """A home with a session of three turns that one caller started, and a destination with pages."""
    made(tmp_path, "the first treadle", "the second", "the third shuttle")
    home = tmp_path / "turnspan"
    home.mkdir(mode=0o700)
    destination = 'type = "otlp"\nendpoint = "http://127.0.0.1:9"\nquery_url = "http://127.0.0.1:9"\n'
    (home / "config.toml").write_text(f"[destinations.jaeger]\n{destination}")
    caller = Caller(trace_id=TRACE, span_id=SPAN, is_parent=True)
    state.save(home, state.Checkpoint(session_id=SESSION, callers=(caller,)))
    return tmp_path


def turns_of(viewer):
    """The turns of the session."""
    return [one for one in records_of(viewer, f"session/{SESSION}") if one["is"] == "turn"]


def test_each_turn_of_a_caller_is_opened(called):
    """Three turns, none of them a later part of another, each with its own spans and a context window."""
    with viewing(called) as viewer:
        turns = turns_of(viewer)
        assert len({turn["trace"] for turn in turns}) == 3
        assert TRACE not in {turn["trace"] for turn in turns}
        for turn, words in zip(turns, ("treadle", "second", "shuttle"), strict=True):
            assert (turn["is_later"], turn["badges"]) == (False, [])
            assert len(turn["context"]) == 1
            (trace,) = records_of(viewer, f"trace/{SESSION}?at={turn['at']}&trace={turn['trace']}")
            assert words in trace["spans"][0]["gist"]
            assert (trace["spans"][0]["kind"], len(trace["spans"])) == ("turn", 2)


def test_a_hit_leads_to_the_turn_of_a_caller(called):
    """What search and overview link to is a turn of the session."""
    with viewing(called) as viewer:
        turns = turns_of(viewer)
        (found,) = records_of(viewer, "search?q=shuttle")
        assert [hit["trace"] for hit in found["hits"]] == [turns[2]["trace"]]
        (overview,) = records_of(viewer, "overview?days=all")
        assert {turn["trace"] for turn in overview["turns"]} == {turn["trace"] for turn in turns}


def test_the_link_to_a_backend_goes_to_the_trace_of_the_caller(called):
    """There the spans are in the caller's trace: its id is shown and linked, and so is the caller's span."""
    with viewing(called) as viewer:
        (turn, *_) = turns_of(viewer)
        where = f"{SESSION}?at=0&trace={turn['trace']}"
        root = records_of(viewer, f"trace/{where}")[0]["spans"][0]["id"]
        (span,) = records_of(viewer, f"span/{where}&span={root}")
    assert span["links"] == [["jaeger", f"http://127.0.0.1:9/trace/{TRACE}"]]
    assert ["trace", TRACE] in span["ids"]
    assert ["caller", f"{TRACE}/{SPAN}"] in span["ids"]


def test_show_prints_the_turns_of_a_caller_as_turns(called, command, monkeypatch):
    """The tree has no later parts; in full it names the caller's trace; --json is what is exported."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(called))
    code, out, _ = command("show", SESSION)
    assert code == 0
    assert "later, in the same trace" not in out
    assert f"trace={TRACE}" in command("show", SESSION, "--full")[1]
    assert command("show", SESSION, "--json")[1].count(TRACE) >= 3


def test_an_exported_page_has_the_turns_of_a_caller(called, command, monkeypatch):
    """No turn is marked as a later part."""
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(called))
    target = called / "page.html"
    assert command("export", SESSION, "-o", str(target))[0] == 0
    text = target.read_text(encoding="utf-8")
    assert text.count("<article") == 3
    assert "later, in the same trace" not in text
