import os
import threading

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from only_posix import make_fifo

from turnspan.errors import TranscriptError
from turnspan.source import tail
from turnspan.source.decode import entries_from
from turnspan.source.progress import Position
from turnspan.source.tail import Line, complete_lines, fingerprint, open_regular
from turnspan.transcript.lines import Anomalies, parse
from turnspan.transcript.turns import Place


def lines_of(path, offset=0, number=0, **options):
    """Return the complete lines of a file from an offset on."""
    descriptor = open_regular(path)
    try:
        return list(complete_lines(descriptor, offset, number, **options))
    finally:
        os.close(descriptor)


def test_every_line_has_its_place(tmp_path):
    """A line has its number and its offset; an incomplete line is left for later."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n\nthree\r\nhalf")
    assert lines_of(path) == [Line(b"one", 0, 0, 4), Line(b"", 1, 4, 5), Line(b"three\r", 2, 5, 12)]
    assert lines_of(path, 4, 1) == lines_of(path)[1:]
    with path.open("ab") as file:
        file.write(b" no more\n")
    assert lines_of(path, 12, 3) == [Line(b"half no more", 3, 12, 25)]


def test_an_empty_file_has_no_lines(tmp_path):
    """There are no lines in an empty file, nor after the end of a file."""
    path = tmp_path / "a.jsonl"
    path.touch()
    assert lines_of(path) == []
    path.write_bytes(b"one\n")
    assert lines_of(path, 4, 1) == []
    assert lines_of(path, 400, 1) == []


@given(st.lists(st.binary(max_size=30).filter(lambda line: b"\n" not in line), max_size=12), st.data())
def test_any_cuts_give_the_lines_of_one_pass(tmp_path_factory, lines, data):
    """However a file grows, and wherever reading continues, the lines and their offsets are those of one pass."""
    complete = b"".join(line + b"\n" for line in lines)
    path = tmp_path_factory.mktemp("cuts") / "a.jsonl"
    path.write_bytes(complete)
    wanted = lines_of(path)
    found = []
    for cut in [*sorted(data.draw(st.lists(st.integers(0, len(complete)), max_size=5))), len(complete)]:
        path.write_bytes(complete[:cut])
        place = (found[-1].end, found[-1].number + 1) if found else (0, 0)
        found += lines_of(path, *place)
    assert found == wanted
    assert b"".join(line.data + b"\n" for line in found) == complete


def test_lines_that_cross_chunks_are_complete(tmp_path):
    """Lines of any length up to the limit come in one piece."""
    path = tmp_path / "a.jsonl"
    lengths = [tail._CHUNK_BYTES - 1, tail._CHUNK_BYTES, tail._CHUNK_BYTES + 1, 3 * tail._CHUNK_BYTES + 7, 0, 5]
    path.write_bytes(b"".join(b"x" * length + b"\n" for length in lengths))
    assert [len(line.data) for line in lines_of(path)] == lengths


@given(st.lists(st.integers(0, 40), max_size=12), st.integers(1, 50), st.booleans())
def test_chunks_of_any_size_give_the_same_lines(tmp_path_factory, lengths, size, is_cut):
    """Where a chunk ends changes neither lines nor places: a line that it cuts is read again with the next one."""
    path = tmp_path_factory.mktemp("chunks") / "a.jsonl"
    path.write_bytes(b"".join(b"x" * length + b"\n" for length in lengths) + b"y" * is_cut)
    wanted = lines_of(path, is_complete=bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail, "_CHUNK_BYTES", size)
        assert lines_of(path, is_complete=bool) == wanted
        patch.setattr(tail, "_CHUNK_BYTES", min(size, 20))
        patch.setattr(tail, "MAX_LINE_BYTES", 20)
        cut = [line if len(line.data) <= 20 else msgspec.structs.replace(line, data=None) for line in wanted]
        assert lines_of(path, is_complete=bool) == cut


def test_a_line_that_is_too_long_is_skipped(tmp_path):
    """A line of 100 MB is reported without keeping it in memory, and the lines around it are read."""
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.write(b"before\n")
        file.truncate(7 + 100 * 1024 * 1024)  # a hole of NUL bytes, which costs no disk
        file.seek(0, os.SEEK_END)
        file.write(b"\nafter\n")
    before, huge, after = lines_of(path)
    assert (before.data, huge.data, after.data) == (b"before", None, b"after")
    assert (huge.offset, huge.end, after.number) == (7, 7 + 100 * 1024 * 1024 + 1, 2)


@pytest.mark.parametrize("begin", [0, 1, 700_000, tail._CHUNK_BYTES - 1])
@pytest.mark.parametrize(("length", "is_held"), [(tail.MAX_LINE_BYTES, True), (tail.MAX_LINE_BYTES + 1, False)])
def test_what_is_too_long_does_not_depend_on_where_reading_began(tmp_path, begin, length, is_held):
    """Only its own length decides whether a line is too long, so every reading sees the same lines."""
    path = tmp_path / "a.jsonl"
    with path.open("wb") as file:
        file.truncate(begin + length)
        file.seek(0, os.SEEK_END)
        file.write(b"\n")
    (line,) = lines_of(path, begin)
    assert (line.data is not None) == is_held


def test_reading_stops_at_the_given_size(tmp_path):
    """What is written during a reading is left for the next one."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\ntwo\nthree\n")
    assert [line.data for line in lines_of(path, until=8)] == [b"one", b"two"]
    assert [line.data for line in lines_of(path, until=10)] == [b"one", b"two"]


def test_a_file_cut_short_while_it_is_read_ends_there(tmp_path):
    """A file that is truncated while it is read is not an error."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"one\n" * 10)
    descriptor = open_regular(path)
    os.truncate(path, 6)
    assert [line.data for line in complete_lines(descriptor, until=40)] == [b"one"]
    os.close(descriptor)


def test_a_fingerprint_distinguishes_growth_from_a_rewrite(tmp_path):
    """Appending keeps the fingerprint; changing the content before the offset, near or at the beginning, does not."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"a" * 10_000 + b"b" * 10_000)

    def mark(offset=20_000):
        descriptor = open_regular(path)
        try:
            return fingerprint(descriptor, offset)
        finally:
            os.close(descriptor)

    before = mark()
    with path.open("ab") as file:
        file.write(b"more")
    assert mark() == before
    assert mark(20_004) != before
    for at in (0, 19_999):
        data = bytearray(path.read_bytes())
        data[at] ^= 1
        path.write_bytes(data)
        assert mark() != before
        data[at] ^= 1
        path.write_bytes(data)
    assert mark() == before


# ---- files that are not transcripts


def why_not(path):
    """Return the message that says why a path cannot be read."""
    with pytest.raises(TranscriptError) as caught:
        open_regular(path)
    text = str(caught.value)
    assert "\n" not in text
    assert repr(path.name)[1:-1][:40] in text
    return text


def test_a_missing_file_is_named(tmp_path):
    """A missing file gets one clear message."""
    assert "no such file" in why_not(tmp_path / "gone.jsonl")
    (tmp_path / "dangling.jsonl").symlink_to(tmp_path / "gone.jsonl")
    assert "no such file" in why_not(tmp_path / "dangling.jsonl")


def test_a_directory_is_named(tmp_path):
    """A directory is not read as a file."""
    (tmp_path / "dir.jsonl").mkdir()
    assert "is a directory" in why_not(tmp_path / "dir.jsonl")


def test_a_fifo_is_refused_without_waiting(tmp_path):
    """A pipe without a writer would block forever: it is refused at once."""
    make_fifo(tmp_path / "pipe.jsonl")
    said = []
    thread = threading.Thread(target=lambda: said.append(why_not(tmp_path / "pipe.jsonl")), daemon=True)
    thread.start()
    thread.join(5)
    assert said
    assert "not a regular file" in said[0]


def test_a_device_is_refused(tmp_path):
    """A device is refused, also through a symlink."""
    (tmp_path / "zero.jsonl").symlink_to("/dev/zero")
    assert "not a regular file" in why_not(tmp_path / "zero.jsonl")


def test_a_symlink_loop_is_named(tmp_path):
    """Symlinks that point to each other give a clear message."""
    (tmp_path / "a.jsonl").symlink_to(tmp_path / "b.jsonl")
    (tmp_path / "b.jsonl").symlink_to(tmp_path / "a.jsonl")
    assert "symlink loop" in why_not(tmp_path / "a.jsonl")


def test_an_impossible_name_is_named(tmp_path):
    """An impossible file name gives a clear message, not a crash."""
    assert "too long" in why_not(tmp_path / ("x" * 5000))
    assert why_not(tmp_path / "nul\0byte")
    (tmp_path / "two\nlines").mkdir()
    assert why_not(tmp_path / "two\nlines")


def test_an_unreadable_file_is_named(tmp_path):
    """A file without read permission gives a clear message."""
    path = tmp_path / "secret.jsonl"
    path.touch(mode=0)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)  # root can read every file; 65534 is an unprivileged user
    try:
        assert "permission denied" in why_not(path)
    finally:
        os.seteuid(user)


PROMPT = b'{"type":"user","uuid":"u1","message":{"role":"user","content":"Weave."}}'
LINES = [
    PROMPT, b'{"type":"system","subtype":"turn_duration"}', b'{"type":"file-history-snapshot","messageId":"u1"}',
    b'{"type":"unheard-of","version":"9.9.9"}', b'{"message":{"role":"assistant","content":[]}}', b"{}", b"", b"[]", b"{", b"}",
    b"7", PROMPT + b"\r", b" " + PROMPT, PROMPT + b" ", b"\0" + PROMPT, b"\xef\xbb\xbf" + PROMPT, PROMPT[:40], PROMPT[40:],
    b'{"type":"user","uuid":7}', b'{"type":"user","slug":"\\ud83d"}', b'{"type":"tag","tag":"\xff"}', b"[" * 2000,
    b'{"type":', b'"tag","tag":"red"}', b'{"message":{}', b',"type":"user"}', b'{"message":', b"{}}", b"{}{}",
]  # fmt: skip


@example([b"{}{}", b'{"type":"user","message":', b'{"role":"user"}}'])  # as many records as lines
@given(st.lists(st.sampled_from(LINES), max_size=6))
def test_lines_that_are_decoded_together_give_what_each_gives_by_itself(tmp_path_factory, lines):
    """Damaged lines and lines that no trace needs change nothing in the lines around them, nor in their places."""
    path = tmp_path_factory.mktemp("together") / "a.jsonl"
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    together, alone = Anomalies(), Anomalies()
    wanted = [
        (Place(line.number, line.offset, line.end), entry)
        for line in lines_of(path)
        for entry in parse(line.data, alone)
    ]
    descriptor = open_regular(path)
    try:
        found = [pair for pairs in entries_from(descriptor, Position(), together) for pair in pairs]
    finally:
        os.close(descriptor)
    assert found == wanted
    assert (together.unknown, together.misshapen) == (alone.unknown, alone.misshapen)
