"""The search for names and prefixes finds what a slower and simpler search finds."""

from __future__ import annotations

import re
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secret_samples import MAKERS

from turnspan.secrets import formats, names, scan
from turnspan.secrets.replace import compile_rules
from turnspan.secrets.scan import Meter

RULES = compile_rules()

# ---- The search for names before it was made faster: capitals become small letters, and `e`, `o` and `y` become `k`, so
# that one search finds the middles of key, t[oke]n, c[ook]ie and h[ook]s.

FOLD = bytes.maketrans(b"ABCDEFGHIJKLMNOPQRSTUVWXYZeoy", b"abcdkfghijklmnkpqrstuvwxkzkkk")
AS_NAME = (
    rb"""(?:[_-]?[a-z]{1,10}+[0-9]{0,2}+|[_-]?[0-9]{1,3}+)?+(?:\\{0,3}["'`])?+\]?+(?:\*\*)?+"""
    rb"""(?:[ \t]{0,40}+(?:[:=!|]|-{1,2}>?[ ]["'`]|[?+.]{1,2}=|\?:|n?["'`]|[,(][ \t]?[\\"'`])"""
    rb"""|[\s,]{1,24}+[\\"']{0,4}+value|[ ]-{1,2}(?:value|body|>)|%(?:22%)?3[ad]|[ ]\{\s{1,24}+(?:type|default|get;)"""
    rb"""|</key>|>|[ ]is[ :])"""
)


def look_at_key_token_cookie_or_hook(data, at, hits):
    """Decide by the letters around a run of `e`, `o`, `y` and `k`."""
    word = data[max(0, at - 1) : at + 5].lower()
    if word[:5] == b"token":
        return names.look_at_name(data, at - 1, hits)
    run = re.match(rb"[eoykEOYK]++", data[at:])
    if run is not None and (key := run[0].lower().rfind(b"key")) >= 0:
        return scan._look_at_key(data, at + key, hits)
    if word == b"cookie":
        return names.look_at_cookie(data, at - 1, hits)
    return scan._look_at_webhook(data, at - 1, hits) if word[:5] in {b"hooks", b"hookb"} else at + 1


PLACES = [
    (re.compile(pattern.translate(FOLD)), look)
    for pattern, look in (
        (
            rb"p(?=ass(?:wor[dt]|wd|phrase|code)?" + AS_NAME
            + rb"|ass(?<=[a-z _-]pass)(?:wor[dt]|wd|phrase|code)? [^ -]|w(?:d?" + AS_NAME
            + rb"|(?<=[a-z_-]pw) [^ -]|d(?<=[a-z_-]pwd) [^ -])|sk" + AS_NAME + rb"""|ats?(?:\\{0,3}["'`])?+\]?+[ ]?[:=])""",
            names.look_at_name,
        ),
        (
            rb"c(?=ret" + AS_NAME + rb"|ret(?<=[a-z_-]secret)[ \t][^ -]|red(?:ential)?s?" + AS_NAME + rb")",
            scan._look_at_secret_or_credentials,
        ),
        (
            rb"keyk*+(?=n?" + AS_NAME + rb"|(?<=[_-]key)[ \t][^ -]|(?<=[_-]toke)n[ \t][^ -]"
            rb"|ie|s[./\\]|b2/|(?: block)?-----|-file-[0-9])",
            look_at_key_token_cookie_or_hook,
        ),
        (rb"identified(?= (?:with|by))", scan._look_at_sql),
        (rb"auth(?=ori|" + AS_NAME + rb")", names.look_at_authorization),
        (
            rb"-(?=(?<= -)(?:u [^ ]{0,64}:|-user[ =]|p[^-]|a [^-]|-?[a-z_-]{2,40}+(?<=[nyd]) [^ -]))",
            scan._look_at_option,
        ),
    )
]  # fmt: skip


def names_by_folding(data):
    """Return the hits, and the number of candidates."""
    hits, folded, candidates = [], data.translate(FOLD), 0
    for pattern, look in PLACES:
        done = 0
        for found in pattern.finditer(folded):
            if found.start() >= done:
                candidates += 1
                done = look(data, found.start(), hits)
    return hits, candidates


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
    "docker login", " by ", " with ", "8fK2pQ9x" + "Lm4T", "s3cr3t", "hex", "base64", "new", "prod", "12", "m", "None", "str",
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
def test_names_are_found_as_before(data):
    """The search by rare letters finds the same secrets as the search in a reduced alphabet, with no more candidates."""
    hits, steps = [], Steps()
    scan._find_names(data, hits, steps)
    expected, candidates = names_by_folding(data)
    assert hits == expected
    candidates += len(re.findall(rb"[eoykEOYK]{43,}+", data))  # the end of a long run is not looked at in advance
    assert steps.spent <= candidates * scan._ATTEMPT


@given(texts, st.sampled_from((" is ", ": ", ":", " : ", " is: ")), texts)
@settings(max_examples=200, deadline=None)
def test_values_after_a_colon_and_in_prose_are_found_as_before(before, operator, after):
    """A value that is rejected because it is short is rejected by the other tests, too."""
    for word in ("token", "client_secret", "api_key", "CREDS"):
        for value in (after, f"str = {after}", f"a.b or {after}", f"None{after}", f" {after}", f"\\n{after}"):
            data = f"{before} {word}{operator}{value}".encode("utf-8", "surrogatepass")
            hits: list[names.Hit] = []
            scan._find_names(data, hits, Steps())
            assert hits == names_by_folding(data)[0]


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
def test_a_long_run_of_the_letters_of_key_takes_linear_time(text):
    """Looking for the last `key` of a run does not read the run once for each of its letters."""
    steps = Steps()
    scan._find_names(text.encode(), [], steps)
    assert steps.spent <= 2 * scan._ATTEMPT
