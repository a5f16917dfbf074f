from __future__ import annotations

import base64
import json
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secret_samples import ALNUM, INSIDE, MAKERS, PREFIXED, some

from turnspan.errors import ConfigError
from turnspan.secrets import formats
from turnspan.secrets.replace import compile_rules, mask, mask_named, suspects
from turnspan.secrets.scan import Meter, OverBudget

RULES = compile_rules()
PIECES = (
    "password", "token", "secret", "api_key", "key", "pwd", "pass", "auth", "Authorization", "Bearer ", "cookie",
    "sid=", "=", ": ", '"', "'", '\\"', "\\n", "\n", " ", "://", "@", ",", "{", "}", "[", "]", "(", ";", "$", "--",
    "is ", "value", ">", "</", "\\", "\\u0067", "\\u003d", "%3D", "é", "→", "“", "\ud800", "\0", "hunter2", "user:pw",
    "[redacted:token]", "[redacted:", "-----", "BEGIN RSA PRI" + "VATE KEY", "END RSA PRI" + "VATE KEY", "AK" + "IA",
    "ey" + "J", ".", "sk" + "-", "gh" + "p_", "x" * 20, "Aa1" * 8, "hooks.slack.com", "/services/", "export ",
    "QUJD" * 12,
)  # fmt: skip
samples = st.builds(lambda maker, seed: maker(Random(seed)).text, st.sampled_from(MAKERS), st.integers(0, 2**20))
texts = st.lists(st.one_of(st.sampled_from(PIECES), samples, st.text(max_size=20)), max_size=12).map("".join)


@pytest.mark.parametrize("seed", range(5))
def test_every_rule_finds_its_secrets(seed):
    """A secret of every known format is replaced by a marker that names its rule."""
    random = Random(seed)
    for make in MAKERS:
        sample = make(random)
        masked = mask(sample.text, rules=RULES)
        assert sample.secret not in masked.text, sample.rule
        assert sample.rule in masked.counts
        assert f"[redacted:{sample.rule}]" in masked.text


def test_every_format_has_a_sample():
    """The tests generate a secret for every token format."""
    tried = {rule for rule, *_ in PREFIXED} | {rule for rule, *_ in INSIDE}
    tried |= {make(Random(0)).rule for make in MAKERS}
    assert {rule for rule, *_ in formats.FORMATS} <= tried


@pytest.mark.parametrize(
    "text",
    [
        "token = get_token()", "password: str", "def f(password: str, token: Token = None): ...", "password = None",
        'password = os.environ["DB_PASSWORD"]', "API_KEY=${API_KEY}", "api_key: <your-api-key>", "token=xxx",
        "SECRET=changeme", "PASSWORD=your_password_here", "self.token = token", "max_tokens=4096", '"tokens": 12345678',
        "for key in keys: print(key)", "PWD=/home/dev/project", "if token is None:", "the password is required",
        'headers = {"Authorization": f"Bearer {token}"}', "Authorization: Bearer <token>", "password_file: /run/x",
        "mysql://root:${PW}@host/db", "http://localhost:5173/@vite/client", "git@github.com:org/repo.git",
        "user@example.com", "sk-fading-circle-something-long-here", "pass\n    return", "commit 9fceb02d0ae598e95dc97",
        "id 550e8400-e29b-41d4-a716-446655440000", "private_key_path = key.pem", "ssh-rsa AAAAB3NzaC1yc2E me@host",
        "-----BEGIN PUB" + "LIC KEY-----\nMIIBIjANBgkqhkiG9w0BAQEFAAOCAQ8A\n-----END PUB" + "LIC KEY-----",
        "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk",
        "test_that_the_password_is_not_shown_in_the_log_file", "    --- PASS: TestName1/sub_2 (0.00s)", "PASS: test-bit1",
        "that would pass: `make check2`", "tokens: input=1234 output=99", "pass `allow_nan1=True` to get them",
        "PublicKey: 0123abcd4567ef890123abcd4567ef89", 'longopt_pat = r"--[a-zA-Z0-9]{1,20}x"', "docker run -p 8080:80 mysql",
        "mysql -u root -p shop2", "A | SyntaxKind.AtToken | SyntaxKind.NewLineTrivia2 | B", "mkdir -p src/a1b2c3",
        "credentials=get_credentials()", "PASSWORD=<your password>", "token: authenticationserviceprovider", "[redacted:token]", "token: [redacted:token]",
    ],
)  # fmt: skip
def test_ordinary_text_is_not_masked(text):
    """Code that handles secrets, templates and documentation are not masked."""
    assert mask(text, rules=RULES) == (text, {})


def test_only_the_password_of_a_url_is_masked():
    """A connection string stays readable."""
    word = some(Random(1), "abcXYZ789", 12)
    masked = mask(f"postgres://app:{word}@db:5432/x?y=1", rules=RULES)
    assert masked.text == "postgres://app:[redacted:url-password]@db:5432/x?y=1"


def test_a_truncated_key_is_masked_completely():
    """A private key without its END line is masked up to its last line."""
    body = "\n".join(some(Random(n), "abcdefXYZ0123+/", 64) for n in range(500))
    masked = mask("-----BEGIN RSA PRI" + f"VATE KEY-----\n{body}", rules=RULES)
    assert masked == ("[redacted:private-key]", {"private-key": 1})


def test_own_credentials_are_masked_in_every_spelling():
    """Own keys are masked raw, as Basic auth, in a URL, in JSON and in base64."""
    public, secret = "pk-lf-" + some(Random(1), "0123abcd", 12), 'p/w"' + some(Random(2), "xyz789", 8)
    rules = compile_rules(credentials=["header-value-1"], basic=[(public, secret)])
    basic = base64.b64encode(f"{public}:{secret}".encode()).decode()
    for only in (rules, rules.credentials_only()):
        said = f"{secret} {json.dumps(secret)} {basic} p%2Fw%22{secret[4:]} header-value-1"
        masked = mask(f"env: {said}", rules=only)
        assert masked.counts == {"own-credential": 5}
        assert secret[4:] not in masked.text
        assert basic not in masked.text
    assert secret not in repr(rules)
    assert mask(f"x {basic} y", rules=RULES.credentials_only()).counts == {}


def test_user_patterns():
    """A pattern from the configuration masks under its own name, and does not change existing markers."""
    rules = compile_rules({"ticket": r"ACME-\d{4,}", "word": "redacted"})
    masked = mask("see ACME-12345 and password=hunter2", rules=rules)
    assert masked.text == "see [redacted:ticket] and password=[redacted:password]"
    assert mask(masked.text, rules=rules).text == masked.text
    long = "x" * 3_990 + "ACME-12345" + "y" * 9_000
    assert "ACME-1" not in mask(long, rules=rules).text


@pytest.mark.parametrize("source", ["(", "a**", "(a+)+$", "(a|aa)*b", "(?:x*y?){2,}", "", "a?"])
def test_an_unusable_pattern_is_refused(source):
    """A pattern that is not a regex, matches the empty text or can take exponential time is refused by name."""
    with pytest.raises(ConfigError, match="mine"):
        compile_rules({"mine": source})


@pytest.mark.parametrize("source", [r"(?:ab)+c", r"[a-z]+-\d+", r"(foo|bar)-\d{3}", r"\(a+\)+", r"(?:a+x)++"])
def test_a_harmless_pattern_is_accepted(source):
    """Groups, alternatives and repetitions are accepted unless the same text can match in too many ways."""
    assert compile_rules({"mine": source}).patterns[0][0] == "mine"


def test_an_invalid_pattern_name_is_refused():
    """The name of a pattern becomes part of the marker, so only some characters are allowed."""
    with pytest.raises(ConfigError, match="My Pattern"):
        compile_rules({"My Pattern": "x"})


def test_a_value_is_masked_by_its_name():
    """The name of a value counts even if it is not part of the text."""
    assert mask_named("password", "hunter2", rules=RULES).text == "[redacted:password]"
    assert mask_named("Authorization", "Custom abcdef", rules=RULES).text == "[redacted:authorization]"
    assert mask_named("file_path", "hunter2", rules=RULES) == ("hunter2", {})
    assert mask_named("password", "hunter2", rules=RULES.credentials_only()) == ("hunter2", {})


def test_a_secret_that_is_repeated_without_its_name():
    """A secret recognised by its name is masked in the rest of the text, too; a short or ordinary value is not."""
    secret = some(Random(4), ALNUM, 32)
    masked = mask(f"API_TOKEN={secret}\nnow the request uses '{secret}' | {secret}", rules=RULES)
    assert masked == (
        "API_TOKEN=[redacted:token]\nnow the request uses '[redacted:token]' | [redacted:token]",
        {"token": 3},
    )
    assert mask("password=hunter2\nhunter2 is a joke", rules=RULES).text.endswith("\nhunter2 is a joke")
    cached = f'cache_key: "{secret}"\nlooked up {secret}'
    assert mask(cached, rules=RULES).text.endswith(f"looked up {secret}")  # too often not a secret


@settings(max_examples=200, deadline=None)
@given(texts)
def test_a_long_text_is_masked_like_a_short_one(text):
    """In a short text fewer searches are made, and the same secrets are found."""
    after = "\n\0\n" + "~ " * 5_000
    short, long = (mask(each, rules=RULES) for each in (text, text + after))
    assert (long.text, long.counts) == (short.text + after, short.counts)


@given(texts)
@settings(max_examples=150, deadline=None)
def test_masking_is_idempotent(text):
    """Masking a masked text changes nothing, and the same text always gives the same result."""
    once = mask(text, rules=RULES)
    assert mask(once.text, rules=RULES) == (once.text, {})
    assert mask(text, rules=RULES) == once


@given(st.lists(texts, max_size=6))
@settings(max_examples=150, deadline=None)
def test_one_scan_of_many_texts_finds_every_suspect(many):
    """Scanning texts together finds each text that would be masked on its own."""
    found, _ = suspects(many, rules=RULES, meter=Meter(10**12))
    assert {text for text in many if mask(text, rules=RULES).counts} <= found


@given(st.text(st.characters(codec=None)) | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
@settings(max_examples=100, deadline=None)
def test_any_text_can_be_masked(text):
    """Any text can be masked, lone surrogates included."""
    mask(text, rules=RULES)


BAD = {
    "base64": base64.b64encode(Random(1).randbytes(3_750_000)).decode(),
    "names": "API_KEY=" * 100_000,
    "names with values": "API_KEY=a1b2 " * 40_000,
    "urls": "://a:" * 100_000,
    "urls with an end": "://a:@" * 100_000,
    "keys that begin": ("-----BEGIN RSA PRI" + "VATE KEY-----\n") * 38_000,
    "keys that end": ("-----END RSA PRI" + "VATE KEY-----\n") * 20_000,
    "no space": "Aa1" * 333_333,
    "prefixes": "-eyJ" * 100_000,
    "quotes": 'password="' * 30_000,
    "web keys": '"kty"}' * 60_000,
    "web keys without an end": '"kty":' * 60_000,
    "PuTTY keys": "Key-File-2:Private-Lines:" * 20_000,
    "options": " -pa1b2 --apikey x" * 20_000,
    "cells": "| password | a1 " * 30_000,
    "letters that fold alike": "eKey" * 100_000 + "=",
    "SQL": "identified by 'a" * 30_000,
    "tags": "password>  " * 30_000,
}


@pytest.mark.parametrize("name", BAD)
def test_the_scan_is_linear(name):
    """Megabytes of text that is hard for the patterns are scanned within the budget, in seconds."""
    began = time.process_time()
    mask(BAD[name], rules=RULES, meter=Meter(60_000_000))
    assert time.process_time() - began < 10  # under two on an idle machine; a quadratic scan takes hours


def test_a_budget_is_kept():
    """A scan that exceeds its budget raises OverBudget."""
    with pytest.raises(OverBudget):
        mask("API_KEY=a1b2 " * 10_000, rules=RULES, meter=Meter(100_000))
    with pytest.raises(OverBudget):
        mask("hello", rules=RULES, meter=Meter(10**9, lambda: True))
