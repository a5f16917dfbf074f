"""`turnspan search`: what is found, and that no input is an error of the database."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import Writer, agent_writer, save_agent, tool_id

from turnspan.errors import ConfigError
from turnspan.index import opened
from turnspan.index.search import parsed, search
from turnspan.index.stats import Slice
from turnspan.settings.config import load_config
from turnspan.text import cells

SESSION = "5e55104a-0000-4000-8000-000000000001"
SECRET = "sk-ant-api03-" + "Zx9" * 31 + "AA"


@pytest.fixture
def home(claude_home):
    """A home with two sessions about looms."""
    writer = Writer(session=SESSION, cwd="/home/ada/loom")
    writer.prompt("Why does the flaky parser test fail on Windows?")
    call = writer.call("Bash", {"command": "pytest tests/test_parser.py"})
    writer.result(call, "connection refused by the shuttle", is_error=True)
    writer.say(
        [{"type": "thinking", "thinking": "Perhaps the heddle is stuck"}, {"type": "text", "text": "It is fixed."}]
    )
    writer.turn(f"The key is {SECRET}, use it", "I will not.")
    writer.turn("織物の色を変えてください", "色を変えました。")
    writer.turn("Ünïcode Straße", "naïve café")
    writer.save(claude_home / "projects" / "-p")
    other = Writer(session="07e00000-0000-4000-8000-000000000002", tag="b", cwd="/home/ada/flax")
    other.wait(86400)
    other.turn("The parser of flax", "A parser, parsed: parsers parse.")
    other.save(claude_home / "projects" / "-q")
    return claude_home


def hits(command, *words):
    """Return the records of a search."""
    _, out, _ = command("search", "--json", *words)
    return [json.loads(line) for line in out.splitlines()]


def found(command, *words):
    """Return (the last digit of the session, turn, kind) of each hit."""
    return [(hit["session_id"][-1], hit["turn"], hit["kind"]) for hit in hits(command, *words)]


@pytest.mark.usefixtures("home")
def test_words_are_found_in_everything_that_was_said(command):
    """Prompts, answers, thinking, and the input and output of tools are searched."""
    assert found(command, "flaky", "windows") == [("1", 1, "prompt")]
    assert found(command, "pytest") == [("1", 1, "tool_input")]
    assert found(command, "shuttle") == [("1", 1, "tool_output")]
    assert found(command, "heddle") == [("1", 1, "thinking")]
    assert found(command, "fixed") == [("1", 1, "answer")]


@pytest.mark.usefixtures("home")
def test_the_newest_turn_is_first_and_has_one_hit(command):
    """A turn is listed once, with how many other texts match; the newest comes first."""
    assert found(command, "parser")[0][:2] == ("2", 1)
    assert [hit["session_id"][-1] for hit in hits(command, "parser")] == ["2", "1"]
    assert hits(command, "parser")[0]["others"] >= 1


@pytest.mark.usefixtures("home")
def test_phrases_prefixes_and_exclusions(command):
    """`"an exact phrase"`, `begin*` and `-without` narrow the search."""
    assert found(command, '"connection refused"') != []
    assert found(command, '"refused connection"') == []
    assert found(command, "shut*") == [("1", 1, "tool_output")]
    assert found(command, "shut") == []
    assert {hit[0] for hit in found(command, "parser", "-flax")} == {"1", "2"}  # an answer has no flax
    assert {hit[0] for hit in found(command, "parser", "-flax", "-parse")} == {"1"}


@pytest.mark.usefixtures("home")
def test_letters_of_all_scripts(command):
    """Case and accents do not matter; scripts without spaces are found as parts of a text."""
    assert found(command, "UNICODE") == [("1", 4, "prompt")]
    assert found(command, "cafe") == [("1", 4, "answer")]
    assert found(command, "織物") == [("1", 3, "prompt")]
    assert found(command, "色を", "-ました") == [("1", 3, "prompt")]
    assert hits(command, "織物")[0]["matches"] == ["織物"]


@pytest.mark.usefixtures("home")
def test_secrets_cannot_be_found(command):
    """What is searched is masked like everything that is exported."""
    assert found(command, SECRET) == []
    assert "[redacted:" in hits(command, '"The key is"')[0]["context"]


@pytest.mark.usefixtures("home")
def test_options_narrow_the_search(command):
    """`--project`, `--since`, `--until` and `--limit` work as in other commands."""
    assert {hit[0] for hit in found(command, "parser", "--project", "flax")} == {"2"}
    assert {hit[0] for hit in found(command, "parser", "--until", "2026-03-01")} == {"1"}
    assert {hit[0] for hit in found(command, "parser", "--since", "2026-03-02")} == {"2"}
    _, out, err = command("search", "parser", "--limit", "1", "--json")
    assert len(out.splitlines()) == 1
    assert "2 turns found" in err


@pytest.mark.usefixtures("home")
def test_a_hit_says_how_to_open_it(command, monkeypatch):
    """A hit has its time, project, turn and title, the words in context, and the commands that open it."""
    for width in (60, 140):
        monkeypatch.setenv("COLUMNS", str(width))
        code, out, _ = command("search", "shuttle")
        lines = out.splitlines()
        assert code == 0
        assert "loom  turn 1  Why does the" in lines[0]
        assert lines[1].startswith("  tool result: connection refused by the shuttle")
        assert lines[2].strip() == "turnspan show 5e55104a --turn 1    turnspan view 5e55104a"
        assert all(cells(line) <= width for line in lines)
    assert command("show", SESSION, "--turn", "1")[0] == 0


def test_the_beginning_of_an_id_is_printed_if_it_names_one_session(claude_home, command):
    """A session whose id begins like no other is named by eight characters of it."""
    for number, tag in ((SESSION, "a"), ("aaaaaaaa" + SESSION[8:], "b"), ("aaaaaaaa" + SESSION[8:-1] + "2", "c")):
        writer = Writer(session=number, tag=tag)
        writer.turn("a shuttle", "ok")
        writer.save(claude_home / "projects" / "-p")
    shown = [line.split()[2] for line in command("search", "shuttle")[1].splitlines() if "turnspan show" in line]
    assert sorted(shown) == sorted([SESSION[:8], "aaaaaaaa" + SESSION[8:], "aaaaaaaa" + SESSION[8:-1] + "2"])
    for name in shown:
        assert command("show", name)[0] == 0


@pytest.mark.usefixtures("home")
def test_a_wrong_option_is_not_a_word(command):
    """A misspelled option is an error, although words may begin with a dash."""
    code, _, err = command("search", "parser", "--limmit", "3")
    assert code == 2
    assert "--limmit" in err


def test_a_subagent_is_searched(claude_home, command):
    """What a subagent said is found in the turn that launched it."""
    writer = Writer(version="2.1.325")
    writer.prompt("look around")
    call = writer.call("Agent", {"description": "look", "prompt": "look", "subagent_type": "Explore"})
    agent = agent_writer(writer, "a1b2")
    agent.prompt("look")
    agent.say("A treadle is under the bench.")
    writer.result(call, "Found.", outcome={"agentId": "a1b2", "status": "completed"}, after=5)
    writer.say("Done.")
    writer.save(claude_home / "projects" / "-p")
    save_agent(agent, claude_home / "projects" / "-p", "a1b2", {"agentType": "Explore", "toolUseId": tool_id(call)})
    (hit,) = hits(command, "treadle")
    assert (hit["turn"], hit["kind"]) == (1, "answer")


@pytest.mark.usefixtures("home")
def test_nothing_found_is_a_sentence(command):
    """No result is a sentence and exit code 1; words without a letter are refused with a hint."""
    code, out, err = command("search", "warp-drive")
    assert (code, out) == (1, "")
    assert "nothing found for 'warp-drive'" in err
    code, _, err = command("search", "***")
    assert code == 1
    assert "nothing to search for" in err


@pytest.mark.parametrize(
    "words",
    [
        "NEAR(", "AND", "OR OR", "NOT", '"', '""', '"unclosed phrase', "col:word", "body:parser", "turn:1", "{a b}", "^parser",
        "a+b", "parser*", "*parser", "-", "--", "(((", "x'; DROP TABLE text; --", "%", "_", "\\", "\x00parser", "\ud800",
        "%織%", "織\\", "parser " * 300, "a" * 20_000, "NEAR(a b, 5)", "parser AND", "rank MATCH 'x'", "\u202eparser", "🧵",
    ],
)  # fmt: skip
@pytest.mark.usefixtures("home")
def test_no_input_is_a_syntax_error(command, words):
    """Whatever is typed is searched for as text: operators, quotes and markup of the database mean nothing."""
    code, _, err = command("search", "--", words)
    assert code in {0, 1}
    assert "turnspan failed" not in err
    assert "sqlite" not in err.lower()
    assert "cannot read" not in err


def test_random_input_is_never_an_error(home):
    """The same for thousands of random texts."""
    config = load_config({"CLAUDE_CONFIG_DIR": str(home), "HOME": str(home)})
    with opened(config) as index:

        @given(st.text(alphabet=st.sampled_from("ab\"*-+^:(){}\\%_'織 \x00NEAROT"), max_size=30))
        def check(words):
            try:
                query = parsed(words)
            except ConfigError:
                return
            search(index.connection, query, Slice())

        check()


def test_marks_of_a_snippet_in_a_text_do_no_harm(claude_home, command):
    """Control characters in a text, ours for marking a match among them, never reach the terminal."""
    writer = Writer()
    writer.turn("a \x02shuttle\x03 \x1b[31m of\x07 wood", "\x02" * 50 + "shuttle")
    writer.save(claude_home / "projects" / "-p")
    _, out, _ = command("search", "shuttle")
    assert "shuttle" in out
    assert not set(out) & {"\x02", "\x03", "\x1b", "\x07"}


def test_a_very_long_word_is_cut(claude_home, command, monkeypatch):
    """A megabyte without a space around a hit is one line of context."""
    writer = Writer()
    writer.turn("x" * 9000 + " shuttle " + "y" * 9000, "ok")
    writer.save(claude_home / "projects" / "-p")
    monkeypatch.setenv("COLUMNS", "80")
    lines = command("search", "shuttle")[1].splitlines()
    assert all(cells(line) <= 80 for line in lines)
    assert any("shuttle" in line and line.startswith("  ") for line in lines)
