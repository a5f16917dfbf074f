import json
import sys
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rows import Writer

from turnspan.transcript import entries, lines
from turnspan.transcript.carry import parse_time
from turnspan.transcript.entries import ContentBlock, Entry, Inner, MediaSource
from turnspan.transcript.lines import Anomalies, parse


def read(line):
    """Return the entries of a line, and the anomalies."""
    anomalies = Anomalies()
    return parse(line if isinstance(line, bytes) else json.dumps(line).encode(), anomalies), anomalies


PROMPT = {"type": "user", "uuid": "u1", "sessionId": "s1", "message": {"role": "user", "content": "Weave."}}


# ---- valid lines


def test_a_line_is_decoded_into_typed_fields():
    """A line of any client becomes one entry with the known fields; all others are ignored."""
    (entry,), anomalies = read({**PROMPT, "gitBranch": "main", "todos": [], "thinkingMetadata": {"level": "high"}})
    assert (entry.type, entry.uuid, entry.session_id, entry.git_branch) == ("user", "u1", "s1", "main")
    assert entry.message.content == "Weave."
    assert anomalies.is_clean


@pytest.mark.parametrize("kind", sorted(lines.SKIPPED))
def test_lines_that_carry_nothing_are_skipped(kind):
    """Snapshots, progress and recorded request bodies are skipped, wherever the type is in the line."""
    assert read({"type": kind, "data": {"message": {"role": "user"}}}) == ((), Anomalies())
    assert read({"data": {"message": {"role": "user"}}, "type": kind}) == ((), Anomalies())


def test_a_progress_line_is_known_by_its_own_type():
    """A prompt that quotes a progress line is still a prompt; a progress line that embeds a message is not."""
    quoting = {"parentUuid": None, "data": {"type": "progress"}, **PROMPT}
    assert len(read(json.dumps(quoting, separators=(",", ":")).encode())[0]) == 1
    embedding = {"parentUuid": "x", "data": {"type": "assistant", "message": {"usage": {}}}, "type": "progress"}
    assert read(json.dumps(embedding, separators=(",", ":")).encode())[0] == ()


def test_an_unknown_type_is_counted_with_its_version():
    """A type that a newer client invents is counted by type and version, never an error."""
    found, anomalies = read({"type": "sparkle", "version": "3.0.0"})
    assert found == ()
    assert dict(anomalies.unknown) == {("sparkle", "3.0.0"): 1}
    assert read({"hello": "world"})[1].unknown == {("(none)", "?"): 1}
    assert anomalies.is_clean


def test_early_lines_had_only_the_role():
    """A line without a type, but with a message, gets the message's role as its type."""
    (entry,), _ = read({"message": {"role": "assistant", "content": []}})
    assert entry.type == "assistant"


# ---- damaged lines


def test_two_objects_on_one_line_are_both_read():
    """A restored file may have lost a newline: both records are read."""
    line = json.dumps(PROMPT).encode()
    found, anomalies = read(line + b" " + line.replace(b"u1", b"u2"))
    assert [entry.uuid for entry in found] == ["u1", "u2"]
    assert (anomalies.glued, anomalies.unreadable) == (1, 0)


def test_a_record_glued_to_one_that_is_skipped_is_read():
    """The record after a snapshot that lost its newline is not skipped with it."""
    wanted = json.dumps(PROMPT, separators=(",", ":")).encode()
    for skipped in (b'{"type":"last-prompt","x":{}}', b'{"type":"progress","data":{"type":"progress"}}'):
        for between in (b"", b"\0\0\0"):
            assert [entry.uuid for entry in read(skipped + between + wanted)[0]] == ["u1"]
            assert [entry.uuid for entry in read(wanted + between + skipped)[0]] == ["u1"]
    assert read(b'{"type":"last-prompt","x":"}{"}') == ((), Anomalies())


def test_the_records_of_a_glued_line_have_places():
    """The offset at which each record ends is exact, also after a torn one."""
    first, second = json.dumps(PROMPT).encode(), json.dumps({**PROMPT, "uuid": '}{"', "x": "\xe9}"}).encode()
    for between in (b"", b"  ", b"\0\0"):
        line = first + between + second + between + first
        assert [line[start:end] for start, end in lines.records(line)] == [first, second, first]
    assert lines.records(first) == [(0, len(first))]
    typed = json.dumps(PROMPT, separators=(",", ":")).encode()
    line = b"[" + typed + b"[" + typed
    assert [line[start:end] for start, end in lines.records(line)] == [typed, typed]


@pytest.mark.parametrize("cut", [0, 1, 20, -2, -1])
def test_a_complete_record_is_recognised(cut):
    """A record without its newline is complete when it ends with its last brace, and only then."""
    line = json.dumps(PROMPT).encode()
    assert lines.is_record(line)
    assert lines.is_record(b"\0" + line + b" ")
    assert not lines.is_record(line[:cut])
    assert not lines.is_record(b"[]")


def test_a_torn_record_does_not_hide_the_next_one():
    """Half a record, then a complete one on the same line: the complete one is read."""
    line = json.dumps(PROMPT).encode()
    for begin in (b'{"type": "user", "mess', b'{"parentUuid":"x","message":{"content":"a'):
        found, anomalies = read(begin + line)
        assert [entry.uuid for entry in found] == ["u1"]
        assert anomalies.unreadable == 1


def test_a_torn_record_counts_once():
    """Blocks inside of a torn record look like records: they are the same line."""
    blocks = [{"type": "text", "text": "a"}, {"type": "tool_use", "id": "t", "input": {"type": "x"}}, {"type": "text"}]
    line = json.dumps({"type": "assistant", "message": {"content": blocks}}, separators=(",", ":")).encode()
    for cut in range(1, len(line)):
        _, anomalies = read(line[:cut])
        assert anomalies.unreadable == 1, line[:cut]


@pytest.mark.parametrize("noise", [b"\0" * 4096, b"\xef\xbb\xbf", b"\r", b"  "])
def test_noise_around_a_record_is_ignored(noise):
    """NUL blocks of a crashed disk, byte order marks and carriage returns do not hide a record."""
    found, anomalies = read(noise + json.dumps(PROMPT).encode() + noise.replace(b"\xef\xbb\xbf", b""))
    assert [entry.uuid for entry in found] == ["u1"]
    assert anomalies.is_clean


def test_bad_bytes_become_replacement_characters():
    """Invalid UTF-8 and lone surrogates become readable text that can be encoded again."""
    line = json.dumps(PROMPT).encode()
    for bad in (b"\xff\xfe", b"\\ud83d"):
        (entry,), _ = read(line.replace(b"Weave", b"We" + bad + b"ve"))
        assert entry.message.content.startswith("We\ufffd")
        entry.message.content.encode()


@pytest.mark.parametrize("line", [b"", b"\0\0\0", b"   "])
def test_an_empty_line_is_nothing(line):
    """An empty line is neither a record nor counted."""
    assert read(line) == ((), Anomalies())


@pytest.mark.parametrize("line", [b"hello", b"{", b"]", b'{"type":', b"\xff" * 50, b"[" * 100_000, b'{"a":' * 100_000])
def test_what_is_not_json_is_counted(line):
    """A line that cannot be read is counted once, and affects nothing else."""
    found, anomalies = read(line)
    assert found == ()
    assert anomalies.unreadable == 1


@pytest.mark.parametrize("line", [b"[]", b"1", b'"text"', b"null", b"NaN", b"1e999"])
def test_json_that_is_not_an_object_is_counted(line):
    """A value that is not an object is counted."""
    found, anomalies = read(line)
    assert found == ()
    assert anomalies.misshapen == 1


@pytest.mark.parametrize("depth", [100, 190, 500, 520, 1000, 10_000, 200_000])
@pytest.mark.parametrize("bracket", [(b"[", b"]"), (b'{"a":', b"}")])
@pytest.mark.parametrize("inside", [b"1", b'"\\ud83d"'])
def test_deep_nesting_is_survived(depth, bracket, inside):
    """A line that nests ten thousand deep is read or counted, never a crash, whatever else is wrong with it."""
    line = (
        json.dumps(PROMPT).encode()[:-1]
        + b',"toolUseResult":'
        + bracket[0] * depth
        + inside
        + bracket[1] * depth
        + b"}"
    )
    found, anomalies = read(line)
    assert len(found) + anomalies.unreadable == 1


def test_a_field_of_the_wrong_type_is_dropped_alone():
    """A field of the wrong type counts as missing; the rest of its line is kept, and the loss is counted."""
    row = {
        **PROMPT,
        "gitBranch": 7,
        "isMeta": "no",
        "timestamp": {},
        "message": {
            "role": "user",
            "content": [{"type": "text", "text": "Weave."}, 5, {"type": "text", "text": []}],
            "usage": [],
        },
    }
    (entry,), anomalies = read(row)
    assert (entry.uuid, entry.git_branch, entry.is_meta, entry.timestamp) == ("u1", None, None, None)
    assert entries.plain_text(entries.blocks(entry.message)) == "Weave."
    assert anomalies.misshapen >= 5


@pytest.mark.parametrize(
    "value", [10**30, -(10**30), 2**63, 1e308, float("nan"), float("inf"), -0.0, True, "5", None, [], {}]
)
def test_absurd_counts_are_dropped(value):
    """Counts out of range are dropped, and the line is kept."""
    row = Writer().say("Done.", usage={"input_tokens": value, "output_tokens": 3})
    (entry,), _ = read(row)
    assert entry.message.usage.output_tokens == 3
    msgspec.json.encode(entry)


ROWS = Writer(version="2.1.325")
ROWS.prompt(
    [{"type": "text", "text": "Look."}, {"type": "image", "source": {"media_type": "image/png", "data": "aGk="}}]
)
CALL = ROWS.call(
    "Read", {"file_path": "/a"}, usage={"cache_creation": {"ephemeral_5m_input_tokens": 3}, "iterations": [{}]}
)
ROWS.result(CALL, [{"type": "text", "text": "a"}], is_error=True, outcome={"agentId": "x", "durationMs": 3})
ROWS.row("system", subtype="compact_boundary", compactMetadata={"trigger": "auto", "preTokens": 5}, content="x")
ROWS.row("attachment", attachment={"type": "queued_command", "prompt": "and?"})
ROWS.bare("queue-operation", operation="enqueue", content="words")
ROWS.bare("pr-link", prNumber=1, prUrl="u")
ROWS.bare("api-request", id="r", params={"model": "m", "max_tokens": 5})
ROWS.prompt("Go.", forkedFrom={"sessionId": "s", "messageUuid": "m"}, origin={"kind": "human"}, planContent="p")
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.sampled_from([10**30, "\ud83d", "", "<command-name>/x</command-name>", "2026-01-01T00:00:00Z", "text"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["type", "text", "content"]), inner),
    max_leaves=4,
)


def places(value, path=()):
    """Return the path of everything inside a value."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from places(item, (*path, key))


@given(data=st.data())
def test_any_line_is_handled(data):
    """Any value in any place of any line is handled, and the entries can be encoded again."""
    row = json.loads(json.dumps(data.draw(st.sampled_from(ROWS.rows))))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from([path for path in places(row) if path]))
        holder = row
        for key in path[:-1]:
            holder = holder[key]
        holder[path[-1]] = data.draw(ANYTHING)
    line = json.dumps(row).encode()
    cut = data.draw(st.integers(0, len(line)))
    for torn in (line, line[:cut], line[cut:], line + line, b"\0" + line, line[:cut] + b"\xff" + line[cut:]):
        for entry in read(torn)[0]:
            msgspec.json.encode(entry)
            entries.time_ns(entry)
            entries.outcome(entry)
            entries.system_text(entry)
            for block in entries.blocks(entry.message) if entry.message is not None else ():
                "".join(entries.inner_texts(block.content)).encode()
                entries.media(block.source)


@given(st.binary(max_size=200))
def test_any_bytes_are_handled(line):
    """Any bytes at all are read or counted."""
    read(line)
    read(b'{"type":"user","message":' + line + b"}")


def test_a_line_is_read_the_same_deep_in_the_stack():
    """The depth of the stack does not change the result."""
    line = json.dumps(PROMPT).encode()[:-1] + b',"toolUseResult":' + b"[" * 150 + b'"\\ud83d"' + b"]" * 150 + b"}"

    def deeper(left):
        return read(line) if left == 0 else deeper(left - 1)

    assert deeper(sys.getrecursionlimit() // 3)[1] == read(line)[1]


# ---- reading entries


@pytest.mark.parametrize(
    ("stamp", "moment"),
    [
        ("2026-03-01T09:00:00.250Z", datetime(2026, 3, 1, 9, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-03-01T10:00:00.250+01:00", datetime(2026, 3, 1, 9, 0, 0, 250_000, tzinfo=UTC)),
        ("2026-03-01T09:00:00.250", datetime(2026, 3, 1, 9, 0, 0, 250_000, tzinfo=UTC)),
        (1772355600250, datetime(2026, 3, 1, 9, 0, 0, 250_000, tzinfo=UTC)),
        (1772355600.25, datetime(2026, 3, 1, 9, 0, 0, 250_000, tzinfo=UTC)),
    ],
)
def test_times_are_read_in_every_form(stamp, moment):
    """A time is the same moment on every machine, however it was written."""
    assert parse_time(stamp) == int(moment.timestamp() * 1000) * 1_000_000


@pytest.mark.parametrize(
    "stamp", ["", "soon", "2026-13-01", "0001-01-01T00:00:00+23:59", "9999-12-31T23:59:59Z", -5, 0, 1e300, None]
)
def test_an_invalid_time_is_none(stamp):
    """A time that cannot be parsed, or that no span can have, is None: never now, never 1970."""
    assert parse_time(stamp) is None


@given(st.one_of(st.text(), st.integers(), st.floats(), st.none()))
def test_any_time_is_handled(stamp):
    """Any value gives a time that fits 63 bits, or None."""
    found = parse_time(stamp)
    assert found is None or 0 < found < 2**63


def test_a_command_has_a_name_and_arguments():
    """A slash command is recognised by its tags."""
    assert entries.command_of("<command-name>/weave</command-name>\n<command-args>two yards</command-args>") == (
        "/weave",
        "two yards",
    )
    assert entries.command_of("<command-message>x</command-message><command-name> /x </command-name>") == ("/x", "")
    assert entries.command_of("tell me about commands") is None


def test_ide_tags_are_separated_from_the_prompt():
    """What the editor adds is separated from what the user typed."""
    typed, added = entries.without_ide_tags("<ide_selection>lines 1 to 3</ide_selection>\nWhy?")
    assert (typed, added) == ("Why?", ("ide_selection: lines 1 to 3",))
    assert entries.without_ide_tags("I like <ide_tags") == ("I like <ide_tags", ())


def test_a_result_is_text_with_markers_for_the_rest():
    """Images and links in a result are described, not repeated."""
    image = Inner(type="image", source=MediaSource("image/png", msgspec.Raw(b'"aGVsbG8h"')))
    assert entries.inner_texts([Inner(type="text", text="two"), image, "ells"]) == [
        "two",
        "[image/png, 6 bytes]",
        "ells",
    ]
    assert entries.inner_texts([Inner(title="Loom", url="https://example.org")]) == ["Loom https://example.org"]
    found = [Inner(type="tool_reference", tool_name=name) for name in ("Loom", "mcp__mill__spin")]
    assert entries.inner_texts(found) == ["Loom", "mcp__mill__spin"]
    assert entries.inner_texts(None) == []


def test_ids_in_texts_are_found():
    """Agents, calls, sessions and exit codes are also found in texts."""
    assert entries.agent_named_in("Started.\nagentId: a1b2 (for later)") == "a1b2"
    assert entries.tool_notified("<tool-use-id>toolu_1</tool-use-id>") == "toolu_1"
    session = "0badcafe-0000-4000-8000-00000000000a"
    assert entries.session_named_in(f"see /x/{session}.jsonl") == session
    assert entries.exit_code_of("Exit code 3\nno") == 3
    assert entries.exit_code_of("Error: Exit code 127") == 127
    assert entries.exit_code_of("it said Exit code 3") is None


def test_the_outcome_is_read_only_as_far_as_needed():
    """Of `toolUseResult` only what the message does not repeat is read; text and invalid values are ignored."""

    def outcome(raw):
        return entries.outcome(msgspec.json.decode(b'{"toolUseResult":' + raw + b"}", type=Entry))

    found = outcome(b'{"agentId":"a","stdout":"long","durationMs":12,"interrupted":"no","status":[]}')
    assert (found.agent_id, found.duration_ms, found.interrupted, found.status) == ("a", 12.0, False, None)
    assert outcome(b'{"totalDurationMs":5,"isAsync":true}').duration_ms == 5
    assert outcome(b'{"filePath":"/a","userModified":true}').user_modified
    for raw in (b'"Error: no"', b"[1]", b'{"agentId":5}', b"null", b"5", b"true"):
        assert outcome(raw).agent_id is None
    assert entries.outcome(Entry()).agent_id is None


def test_plain_text_is_only_text_blocks():
    """Blocks of other types add nothing to the text."""
    assert (
        entries.plain_text(
            [ContentBlock(type="text", text="a"), ContentBlock(type="image"), ContentBlock(type="text", text="b")]
        )
        == "a\nb"
    )
