"""Looking into files without decoding all of them: an id is found if a row has it, however often one asks."""

from hypothesis import given
from hypothesis import strategies as st

from turnspan.source import scan


@given(
    ids=st.lists(st.text("abcdef0123-", min_size=1, max_size=8), min_size=1, max_size=30),
    asked=st.lists(st.text("abcdef0123-", min_size=1, max_size=8), max_size=10),
    spaces=st.sampled_from(["", " "]),
)
def test_a_file_that_is_searched_often_gives_the_same_answers(tmp_path_factory, ids, asked, spaces):
    """After some searches an index of the ids in a file is used: it never hides one, at any offset, in any spelling."""
    path = tmp_path_factory.mktemp("often", numbered=True) / "a.jsonl"
    keys = ("uuid", "id", "requestId", "parentUuid", "messageUuid")
    rows = [
        f'{{"{keys[n % 5]}"{spaces}:{spaces}"{each}", "text": "\\"uuid\\":\\"zz\\""}}\n' for n, each in enumerate(ids)
    ]
    path.write_text("".join(rows))
    size = path.stat().st_size
    questions = [
        (each, key, before) for each in (*ids, *asked, "zz") for key in keys for before in (None, size // 2, 0)
    ]

    def answers():
        return [scan.contains_id(path, each, key=key, before=before) for each, key, before in questions]

    def times():
        return [scan.first_row_time_ns(path, ("id", b'"%b"' % each.encode())) for each in (*ids, *asked)]

    scan._searched.cache_clear()
    found = answers()
    before_index = times()
    assert (answers(), times()) == (found, before_index)
    text = path.read_text()
    for (each, key, before), is_there in zip(questions, found, strict=True):
        at = text.find(f'"{key}"{spaces}:{spaces}"{each}"')
        end = at + len(f'"{key}"{spaces}:{spaces}"{each}"')
        assert is_there == (at >= 0 and (before is None or end <= before)), (each, key, before)


def test_a_torn_row_has_nothing(tmp_path):
    """An id in a row that was cut off does not count, wherever the row is; one in a row that is glued to it does."""
    path = tmp_path / "a.jsonl"
    row = b'{"type":"assistant","message":{"id":"msg_1"},"uuid":"u1"}'
    path.write_bytes(row[:45] + b"\n" + b'{"type":"user","uuid":"u2"}\n')
    assert [scan.contains_id(path, "msg_1", key="id"), scan.contains_id(path, "u2")] == [False, True]
    path.write_bytes(row[:45] + row + b"\n")
    assert scan.contains_id(path, "msg_1", key="id")
