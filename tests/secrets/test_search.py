"""The search for names and prefixes finds what a slower and simpler search finds."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secret_samples import MAKERS

from turnspan.secrets import formats, scan
from turnspan.secrets.replace import compile_rules
from turnspan.secrets.scan import Meter

RULES = compile_rules()



def found_plainly(data):
    """Return what is found by searching for each word of the table, one after the other."""
    hits, lower = [], data.lower()
    for row in scan.rows():
        pattern, done = re.compile(row.pattern), 0
        for found in pattern.finditer(lower):
            if found.start() >= done:
                done = row.look(data, found.start(), hits)
    return sorted(hits)


def found_fast(data):
    """Return what is found by the searches that are derived from the table."""
    hits = []
    scan._find_words(data, hits, Steps())
    return sorted(hits)


class Steps(Meter):
    """Counts the steps of a scan."""

    def __init__(self):
        super().__init__(0)
        self.spent = 0

    def spend(self, steps):
        self.spent += steps


PIECES = (
    "password", "token", "secret", "api_key", "key", "pwd", "pass", "psk", "pat", "pw", "auth", "Authorization", "cookie",
    "hooks", "hookb2/", "private", "privateKey", "cookieKey", "keyold", "keykey", "cred", "credentials", "identified", "e",
    "o", "y", "k", "n", "s", "ed", "_", "-", "--", " -", "u ", "p", "a ", "user", "sid=", "=", ": ", ":", '"', "'", '\\"',
    "\\n", "\n", " ", "\t", ",", "{", "}", "[", "]", "(", ")", ";", "$", " is ", "value", "get;", "type", "default", ">",
    "</key>", "</", "\\", "%3D", "%22", "%", "é", "→", "\0", "hunter2", "user:pw", "-----", " BLOCK", "-File-2", ".", "/",
    "-----BEGIN RSA PRI" + "VATE KEY-----", "-----END RSA PRI" + "VATE KEY-----", "...", "!", "|", "||", " or ", "?", "+",
    "*", "`", "x" * 20, "hooks.slack.com", "/services/", "export ", "QUJD" * 12, "curl", "mysql", "sshpass", "redis-cli",
    "docker login", "sudo -S", "chpasswd", "htpasswd -b ", "net user ", "ConvertTo-SecureString", "oauth.", "--auth", "<<<",
    "echo ", "| ", "[client]\n", "\tTRUE\t", '"value"', "name", "zip -P", "ldapsearch", "-w ", "-N ", "\x1b[1m", " by ", " with ", "8fK2pQ9x" + "Lm4T", "s3cr3t", "hex", "base64", "new", "prod", "12", "m", "None", "str",
)  # fmt: skip
PREFIXES = tuple(prefix.replace("\\", "")[:12] for _, some, _, _ in formats.FORMATS for prefix in some.split())
cased = st.sampled_from((str, str.upper, str.title))
samples = st.builds(lambda maker, seed: maker(Random(seed)).text, st.sampled_from(MAKERS), st.integers(0, 2**20))
words = st.builds(lambda change, piece: change(piece), cased, st.sampled_from(PIECES))
texts = st.lists(st.one_of(words, words, words, samples, st.text(max_size=9)), max_size=30).map("".join)
data = st.builds(
    lambda text, times, more: (text * times).encode("utf-8", "surrogatepass") + b" " * more,
    texts, st.sampled_from((1, 1, 3, 40)), st.sampled_from((0, scan._SMALL)),
)  # fmt: skip


@given(data)
@settings(max_examples=200, deadline=None)
def test_the_derived_search_finds_what_a_plain_search_finds(data):
    """Searching by a few letters finds the same as searching for each word of the table."""
    assert found_fast(data) == found_plainly(data)


@pytest.mark.parametrize("suffix", [".py", ".md", ".js", ".txt", ".sh", ".toml"])
def test_both_searches_find_the_same_in_files(suffix):
    """In files of the installed packages and of this project, too."""
    files = [*Path(__file__).parents[2].glob(f"*/**/*{suffix}"), *Path(pytest.__file__).parents[1].rglob(f"*{suffix}")]
    texts = [file.read_bytes() for file in sorted(files)[:400] if file.is_file()]
    data = b"\n\0\n".join(texts)[:3_000_000]
    assert found_fast(data) == found_plainly(data)


def test_every_word_of_the_table_is_searched_by_one_literal():
    """No word is forgotten, and the literals are few."""
    searched = [word for search in scan._searches() for word in search.words]
    assert sorted(searched) == sorted({row.word for row in scan.rows()})
    assert all(search.literal in word for search in scan._searches() for word in search.words)
    assert len(scan._searches()) <= 12


@given(
    st.lists(st.one_of(st.sampled_from((*PREFIXES, *PIECES)), st.from_regex(r"[\w%\[;\\-]{1,9}", fullmatch=True))).map(
        "".join
    )
)
@settings(max_examples=200, deadline=None)
def test_prefixes_after_a_boundary_are_found_as_before(text):
    """A prefix is found after any character that is neither letter nor digit, and after an escape."""
    data = b"\n" + text.encode("utf-8", "surrogatepass")
    source = formats.PREFIX[1]._source
    prefix = source[source.index(b"(?P<prefix>") :]
    simple = re.compile(rb"(?:\\[nrtbf]|%[0-9A-Fa-f]{2}|[\[;][0-9]{0,3}m|[^A-Za-z0-9])" + prefix)
    for at in range(len(data)):
        found, expected = formats.PREFIX[1].match(data, at), simple.match(data, at)
        assert (found and found.span("prefix")) == (expected and expected.span("prefix"))


@pytest.mark.parametrize("text", ["key" * 80_000, "e" * 240_000, "keyo" * 60_000 + ":", "k" * 240_000])
def test_a_long_run_of_the_letters_of_a_word_takes_linear_time(text):
    """A run of the letters of words has few candidates."""
    steps = Steps()
    scan._find_words(text.encode(), [], steps)
    assert steps.spent <= 2 * scan._ATTEMPT
