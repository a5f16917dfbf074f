"""Content as markup: what is shown of each kind of span, and that nothing else ever becomes markup."""

import json
import random
import re
import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markup import Markup

from turnspan.page.content import sections
from turnspan.page.content.code import _LANGUAGES, highlighted, language_named, language_of
from turnspan.page.content.console import _SEQUENCE, ansi
from turnspan.page.content.diff import diff
from turnspan.page.content.markdown import markdown
from turnspan.page.content.markup import _SPECIAL, attribute, painted, shown
from turnspan.page.content.section import Budget
from turnspan.trace.model import Json, Kind, Media, Message, Reasoning, Span, Text, ToolCall, ToolResult

HOSTILE = [
    "<script>alert(1)</script>", "<img src=x onerror=alert(1)>", "</pre></div><svg onload=alert(1)>",
    "[x](javascript:alert(1))", "![x](https://example.com/pixel.png)", '"><a href="javascript:1">', "&lt;b&gt;",
    '[x](https://example.com/"onmouseover=alert(1))', "<!-- -->", "]]>", "<?php ?>", "\x1b]0;title\x07", "\x1b[31mred",
    "\u202eevil\u202c", "\x00", "\ud800", "[redacted:api_key]", "[withheld: tool outputs]", "[redacted:x](https://a.b)",
    "javascript:alert(1)", "<https://example.com/<b>>", "`<b>`", "```<b>\n<i>\n```", "|a|b|\n|-|-|\n|c|d|e|", "> > > x",
    "~~~\n", "    code", "- [ ] <b>", "1. a\n7. b", "<system-reminder>", "a\r\nb\rc", "&#x3c;b&#x3e;", "\\<b\\>",
]  # fmt: skip
PIECES = st.lists(
    st.one_of(
        st.sampled_from(HOSTILE), st.text(max_size=20), st.sampled_from(list("*_`~[]()<>#|-+>!\\\n \t\"'&:/=.1"))
    ),
    max_size=25,
).map("".join)


def span(kind=Kind.TOOL, **fields):
    """Return a span."""
    return Span(
        span_id=bytes(8), parent_id=None, kind=kind, start_ns=0, end_ns=1, **({"name": "Bash"} | fields)
    )  # fmt: skip


def tool(name, arguments, output=None, **fields):
    """Return the span of a tool call."""
    return span(name=name, input=Json(json.dumps(arguments)), output=output, **fields)


def only(shown_span, **options):
    """Return the only section of a span, after checking its markup."""
    (section,) = checked(sections(shown_span, **options))
    return section


def checked(made):
    """Return sections after checking their markup."""
    for section in made:
        assert Markup(section.html).problems == []
    return made


def text_of(html):
    """Return the text of markup."""
    return Markup(html).text


def full():
    """Return a budget for complete texts."""
    return Budget(is_full=True)


def visible(text):
    """Return a text as a page shows it: with one kind of line ends and visible control characters."""
    return text_of(shown(re.sub("\r\n?", "\n", text)))


# ---- safety


@given(PIECES)
def test_text_becomes_nothing_but_text(text):
    """Any text is shown as it is, without a tag of its own, and can be encoded as UTF-8."""
    html = shown(text)
    html.encode()
    made = Markup(html)
    assert made.problems == []
    assert "\x00" not in made.text
    assert "\u202e" not in made.text
    assert len(made.text) >= len(text)


@given(PIECES, st.booleans())
def test_markdown_becomes_only_known_tags(text, is_typed):
    """Markdown gives tags and attributes of a short list, and links to web and mail addresses only."""
    made = Markup(markdown(text, full(), is_typed=is_typed))
    assert made.problems == []


@given(PIECES, st.booleans())
def test_markdown_loses_no_words(text, is_typed):
    """Every letter and digit of the source can be seen in the result, or when pointing at a link."""
    made = Markup(markdown(text, full(), is_typed=is_typed))
    rest = made.text + made.hidden
    source = re.sub(r"[\ud800-\udfff]", "", text)
    for letter in {letter for letter in source if letter.isalnum()}:
        assert rest.count(letter) >= source.count(letter), letter


@given(PIECES, st.sampled_from(["", *_LANGUAGES]))
def test_code_is_complete_in_every_language(text, language):
    """Highlighting changes colours, never the text."""
    text = text.replace("\r", "")
    lines = highlighted(text, language, full())
    assert Markup("\n".join(lines)).problems == []
    assert text_of("\n".join(lines)) == visible(text)
    assert all(not Markup(line).problems for line in lines)


@given(PIECES, PIECES)
def test_a_diff_shows_both_texts(old, new):
    """The lines without a plus are the old text, those without a minus the new one."""
    made = Markup(diff(old, new, "python", full()))
    assert made.problems == []
    rows = re.findall(r"<div(?: class=\"(c-ins|c-del)\")?><i>.</i><span>(.*?)</span></div>", diff(old, new, "", full()))
    for text, missing in ((old, "c-ins"), (new, "c-del")):
        lines = [text_of(html) for css, html in rows if css != missing]
        assert "\n".join(lines).rstrip("\n") == visible(text).rstrip("\n")


@given(PIECES)
def test_terminal_output_loses_only_escape_sequences(text):
    """Output of a program is complete; sequences that a terminal would interpret are removed."""
    made = Markup(ansi(text))
    assert made.problems == []
    assert made.text == visible(_SEQUENCE.sub("", re.sub("\r\n?", "\n", text)))


@given(
    st.sampled_from(["Edit", "MultiEdit", "Write", "Read", "Grep", "Glob", "Bash", "TodoWrite", "TaskCreate", "TaskUpdate",
                     "TaskList", "Agent", "ExitPlanMode", "WebFetch", "WebSearch", "Skill", "NotebookEdit", "mcp__x__y"]),
    st.dictionaries(
        st.sampled_from(["file_path", "old_string", "new_string", "edits", "content", "pattern", "command", "description",
                         "todos", "subject", "taskId", "status", "prompt", "plan", "url", "query", "skill", "other<b>"]),
        st.one_of(PIECES, st.none(), st.integers(), st.lists(st.dictionaries(
            st.sampled_from(["old_string", "new_string", "content", "status"]), st.one_of(PIECES, st.none())), max_size=3)),
        max_size=6,
    ),
    st.one_of(st.none(), PIECES),
    st.sampled_from([None, "tool_error", "permission_denied", "interrupted"]),
)  # fmt: skip
def test_tool_calls_are_safe_whatever_the_model_wrote(name, arguments, output, error):
    """Any arguments and any output of any tool give only known tags."""
    arguments = json.loads(re.sub(r"\\ud[89a-f][0-9a-f]{2}", "", json.dumps(arguments)))
    checked(sections(tool(name, arguments, output, error=error)))
    checked(sections(tool(name, arguments, output, error=error), is_full=True))


@given(PIECES, PIECES, PIECES)
def test_messages_are_safe(one, other, third):
    """Prompts, answers, thinking, calls and results of the model give only known tags."""
    parts = (Text(one), Reasoning(other), ToolCall(one, other, third), ToolResult(one, third), Media(other, 5))
    for kind in (Kind.TURN, Kind.GENERATION, Kind.AGENT, Kind.EVENT):
        content = (Message("user", parts), Message(third, parts))
        checked(sections(span(kind, input=content, output=content, error_message=one)))


@pytest.mark.parametrize(
    "arguments", ["", "{", "[1]", '"[withheld: tool inputs]"', "[" * 100_000, '{"command": 1}', "\ud800"]
)
def test_arguments_that_are_not_an_object_are_shown_as_text(arguments):
    """Invalid, deep or withheld arguments are shown as they are."""
    made = checked(sections(span(input=Json(arguments)), is_full=True))
    assert "".join(text_of(section.html) for section in made).replace("\n", "").replace(" ", "") == visible(
        arguments
    ).replace(" ", "")


# ---- what people see


def test_an_edit_is_a_diff_with_changed_words():
    """An Edit shows the file, removed and added lines with signs, and emphasises what changed within a line."""
    section = only(
        tool("Edit", {"file_path": "/p/a.py", "old_string": "x = 1\ny = f(2)", "new_string": "x = 1\ny = f(3)"})
    )
    assert (section.label, section.kind) == ("Edit", "diff")
    assert text_of(section.html) == "/p/a.py x = 1-y = f(2)+y = f(3)"
    assert re.findall(r"<b>(?:<[^>]*>)?(\w+)", section.html) == ["a", "2", "3"]


def test_unchanged_lines_are_folded():
    """Long parts of an edit without changes are folded; three lines around a change are not."""
    lines = [f"line {n}" for n in range(30)]
    html = diff("\n".join(lines), "\n".join([*lines[:15], "new", *lines[15:]]), "", full())
    assert "<summary>12 unchanged lines</summary>" in html
    assert text_of(html).count("line") == 32


def test_several_edits_of_a_file_are_several_diffs():
    """MultiEdit shows each edit below the name of the file."""
    edits = [{"old_string": "a", "new_string": "b"}, {"old_string": "c", "new_string": ""}]
    section = only(tool("MultiEdit", {"file_path": "/p/a.txt", "edits": edits}))
    assert text_of(section.html) == "/p/a.txt-a+b-c"


def test_a_written_file_has_line_numbers():
    """Write shows all lines as added."""
    section = only(tool("Write", {"file_path": "/p/a.py", "content": "import os\n\nprint(1)\n"}))
    assert text_of(section.html) == "/p/a.py1+import os2+3+print(1)"
    assert '<span class="h-k">import</span>' in section.html


def test_a_command_is_a_terminal_block_with_its_status():
    """Bash shows the command, its output and the exit code; the result of a refused call is its status."""
    failed = only(tool("Bash", {"command": "make", "description": "Build"}, "Exit code 2\nno rule", error="tool_error"))
    assert failed.kind == "terminal"
    assert text_of(failed.html) == "Build$ makeno ruleexit code 2"
    refused = only(tool("Bash", {"command": "make"}, "The user doesn't want", error="permission_denied"))
    assert text_of(refused.html).endswith("refused")


def test_terminal_colours_are_classes():
    """Colours of a terminal are kept, in the palette of the page."""
    assert ansi("\x1b[1;31mFAILED\x1b[0m ok\x1b[2K") == '<span class="c-ab c-a1">FAILED</span> ok'
    assert ansi("\x1b[38;5;196mx\x1b[m") == "x"


@pytest.mark.parametrize("mark", ["→", "\t"])
def test_a_file_that_was_read_has_its_line_numbers(mark):
    """Read shows line numbers of both formats, the language's colours, and folds the client's reminder."""
    text = f"     9{mark}def f():\n    10{mark}    return 1\n\n<system-reminder>\nhm\n</system-reminder>\n"
    file, reminder = checked(sections(tool("Read", {"file_path": "/p/a.py", "limit": 2}, text)))
    assert text_of(file.html) == "/p/a.py limit: 29def f():10    return 1"
    assert '<span class="h-f">f</span>' in file.html
    assert reminder.is_folded
    assert "hm" in reminder.html


def test_found_files_and_lines_are_lists():
    """Grep and Glob show paths, and found lines with numbers below their file."""
    section = only(tool("Grep", {"pattern": "a+", "glob": "*.py"}, "Found 1 file\nsrc/a.py\nsrc/b.py:3:x = a"))
    assert text_of(section.html) == "a+ glob: *.pyFound 1 filesrc/a.pysrc/b.py3x = a"


def test_todo_lists_are_check_lists():
    """TodoWrite shows a box for each item, and its status as a word."""
    todos = [{"content": "one", "status": "completed"}, {"content": "two", "status": "in_progress"}]
    section = only(tool("TodoWrite", {"todos": todos}))
    assert (section.kind, text_of(section.html)) == ("todos", "☑ one completed▣ two in progress")


def test_a_search_shows_its_links():
    """WebSearch shows the pages it found as links."""
    output = 'Web search results for query: "x"\n\nLinks: [{"title":"OTLP","url":"https://example.com/otlp"}]\n\nText.'
    _, pages, rest = checked(sections(tool("WebSearch", {"query": "x"}, output)))
    assert Markup(pages.html).links == ["https://example.com/otlp"]
    assert "Text." in rest.html


def test_json_is_indented_and_folded_if_long():
    """Arguments of unknown tools are indented JSON with all digits as they were written."""
    section = only(span(name="mcp__a__b", input=Json('{"a":1.50,"b":[1,2]}')))
    assert (section.kind, section.is_folded) == ("json", False)
    assert '"a": 1.50' in text_of(section.html)
    assert only(span(name="x", input=Json(json.dumps(list(range(50)))))).is_folded


def test_thinking_is_folded_and_input_is_last():
    """A response shows its text, its thinking folded, and what was sent to the model folded."""
    said = Message("assistant", (Reasoning("hm"), Text("**Done**"), ToolCall("1", "Bash", '{"command":"ls"}')))
    made = checked(sections(span(Kind.GENERATION, input=(Message("user", (Text("go"),)),), output=(said,))))
    assert [(each.label, each.is_folded) for each in made] == [
        ("Thinking", True), ("Answer", False), ("Bash", True), ("Input", True),
    ]  # fmt: skip
    assert "<strong>Done</strong>" in made[1].html


def test_words_of_a_user_stay_as_typed():
    """A prompt keeps asterisks, underscores, backslashes and its lines; code and addresses are recognised."""
    html = markdown("fix __init__ in C:\\new\n# not a heading\n`x` https://example.com/a.", full(), is_typed=True)
    assert text_of(html).strip() == "fix __init__ in C:\\new\n# not a heading\nx https://example.com/a."
    assert Markup(html).links == ["https://example.com/a"]


def test_markdown_has_tables_tasks_and_numbers():
    """Tables, task lists, numbered lists and code blocks of an answer are rendered."""
    html = markdown("# T\n\n|a|b|\n|-:|-|\n|1|2|\n\n- [x] done\n\n3. c\n9. d\n\n```python\nx = 1\n```", full())
    assert Markup(html).problems == []
    for part in (
        "<h1>T</h1>",
        "<td>2</td>",
        "c-right",
        "☑",
        '<li value="9">',
        '<div class="c-name">python</div>',
        "h-n",
    ):
        assert part in html


def test_images_are_named_and_not_loaded():
    """An image in Markdown is its description and address; an attached one its type and size."""
    made = Markup(markdown("![logo](https://example.com/x.png)", full()))
    assert made.problems == []
    assert made.text.strip() == "logo https://example.com/x.png"
    prompt = (Message("user", (Text("see"), Media("image/png", 34_567))),)
    assert "34.6 kB" in checked(sections(span(Kind.TURN, input=prompt)))[1].html
    assert only(tool("x", {}, "[image/png, 120 bytes]")).kind == "image"


@pytest.mark.parametrize("mask", ["[redacted:api_key]", "[withheld: tool outputs]"])
def test_masked_parts_are_marked_everywhere(mask):
    """A masked part is one mark: in prose, links, code, diffs, terminals, files, JSON."""
    python = f'```python\nkey = "{mask}"\n```'
    for made in (
        markdown(f"a {mask} b", full()),
        markdown(f"{mask}(https://example.com)", full()),
        markdown(python, full()),
        diff("", f'k = "{mask}"', "python", full()),
        ansi(f"\x1b[31mk={mask}"),
        only(tool("Read", {"file_path": "a.py"}, f"1\tk = '{mask}'")).html,
        only(tool("Bash", {"command": f"curl -H {mask}"})).html,
        only(span(name="x", input=Json(json.dumps({"key": mask})))).html,
    ):
        assert Markup(made).marks == [mask]


def test_an_error_is_shown_once():
    """The message of an error is not repeated by the output that contains it."""
    failed = only(tool("Skill2", {}, "<tool_use_error>no</tool_use_error>", error="tool_error", error_message="no"))
    assert (failed.kind, text_of(failed.html)) == ("error", "no")
    said = (Message("assistant", (Text("API Error: 529"),)),)
    assert only(span(Kind.GENERATION, output=said, error="api_error", error_message="API Error: 529")).kind == "error"


def test_control_and_direction_characters_are_visible():
    """A reader sees characters that would hide or reorder text."""
    assert text_of(shown("a\x1bb\u202ec\x7f\ud800\ufeff")) == "a␛bU+202Ec␡U+D800U+FEFF"
    assert shown("👩‍💻 ok\tx\n") == "👩‍💻 ok\tx\n"


def test_long_texts_have_the_same_characters():
    """Control characters of a long text are visible, too, without an element for each."""
    special = "".join(chr(code) for code in range(sys.maxunicode + 1) if _SPECIAL.match(chr(code)))
    assert text_of(attribute(special)) == text_of(shown(special))
    assert len(shown("\u202e" * 1_000_001)) == 6 * 1_000_001


def test_many_lines_are_one_block():
    """A text of tens of thousands of lines has no element for each line, and is complete."""
    text = "a\n" * 30_000
    for made in (
        tool("Write", {"file_path": "a.py", "content": text}),
        tool("Edit", {"file_path": "a.py", "old_string": text, "new_string": ""}),
        tool("Read", {"file_path": "a.py"}, "1\ta\n" * 30_000),
        tool("Grep", {"pattern": "a"}, "a.py:1:a\n" * 30_000),
    ):
        html = "".join(section.html for section in checked(sections(made, is_full=True)))
        assert html.count("<div") < 10
        assert text_of(html).count("a\n") >= 29_999


def test_the_language_comes_from_the_name():
    """Files and blocks are highlighted by their names; unknown ones are plain."""
    names = {
        "/a/b.py": "python",
        "C:\\x\\Dockerfile": "docker",
        "a.TSX": "tsx",
        ".bashrc": "bash",
        "x": "",
        "a.zzz": "",
    }
    assert {name: language_of(name) for name in names} == names
    assert language_named("Python") == "python"


# ---- size


def test_long_texts_are_cut_until_all_is_wanted():
    """A section shows the beginning of a long text and says so; on request it shows all of it."""
    output = "\n".join(f"line {n}" for n in range(10_000))
    cut = only(tool("Bash", {"command": "seq"}, output))
    assert cut.is_cut
    assert cut.size == len(output) + 3
    assert "line 299" in cut.html
    assert "line 300" not in cut.html
    assert "line 9999" in only(tool("Bash", {"command": "seq"}, output), is_full=True).html


@pytest.mark.parametrize(
    "unit",
    ["a", "\n", "<", "[", "*a ", "> ", "- ", "\x1b[3", "/*", '"', "`", "|a", "\u202e", "[redacted:", "{", "  1→x\n"],
)
def test_long_content_takes_linear_time(unit):
    """The time for any content grows with its length; beyond a budget it is plain text."""
    text = unit * (30_000 // len(unit))
    began = time.process_time()
    for made in (
        span(Kind.TURN, input=(Message("user", (Text(text),)),), output=text),
        tool("Bash", {"command": text}, text),
        tool("Edit", {"file_path": "a.c", "old_string": text, "new_string": text[1:] + "x"}),
        tool("Read", {"file_path": "a.py"}, text),
        tool("Grep", {"pattern": "x"}, text),
        tool("mcp", {"a": text}, text),
    ):
        sections(made)
        sections(made, is_full=True)
    assert time.process_time() - began < 12


@pytest.mark.parametrize(
    "unit",
    ["/*", '"', "'", "`", "<", "<!--", "{{", "(", "\\", "$(", "<<a\n", "'''", "#", "a:", "\n ", "=begin\n", "%{"],
)
def test_malformed_code_does_not_take_long(unit):
    """No lexer takes more than a moment for code that does not end."""
    text = unit * (1_500 // len(unit))
    for language in _LANGUAGES:
        began = time.process_time()
        highlighted(text, language, full())
        assert time.process_time() - began < 3, language


def test_a_large_edit_is_compared_within_a_budget():
    """An edit of thousands of lines is shown without comparing every line with every other."""
    numbers = random.Random(1)
    old = "\n".join(str(numbers.randrange(50)) for _ in range(6_000))
    new = "\n".join(str(numbers.randrange(50)) for _ in range(6_000))
    began = time.process_time()
    assert diff(old, new, "", full()).count("c-ins") == 6_000
    assert time.process_time() - began < 5


def test_painting_keeps_the_text_whatever_the_runs():
    """Runs that overlap or have gaps do not change the text."""
    assert painted("abcdef\ng", [(1, 3, "h-k"), (2, 5, "h-s")], [(4, 6)]) == [
        'a<span class="h-k">bc</span><span class="h-s">d</span><b><span class="h-s">e</span></b><b>f</b>', "g",
    ]  # fmt: skip
