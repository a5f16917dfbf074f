from __future__ import annotations

import base64
import json
import time
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from secret_samples import INSIDE, MAKERS, PREFIXED, some

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
    """A secret of any known format is replaced by a marker that names its rule."""
    random = Random(seed)
    for make in MAKERS:
        sample = make(random)
        masked = mask(sample.text, rules=RULES)
        assert sample.secret not in masked.text, sample.rule
        assert sample.rule in masked.counts
        assert f"[redacted:{sample.rule}]" in masked.text


def test_every_format_is_tried():
    """There is a made-up secret for each rule that the documentation names."""
    tried = {rule for rule, *_ in PREFIXED} | {rule for rule, *_ in INSIDE}
    tried |= {make(Random(0)).rule for make in MAKERS}
    assert {rule for rule, *_ in formats._FORMATS} <= tried


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
        "test_that_the_password_is_not_shown_in_the_log_file", "[redacted:token]", "token: [redacted:token]",
    ],
)  # fmt: skip
def test_ordinary_text_stays_as_it_is(text):
    """Code that passes secrets around, templates and documentation are no secrets."""
    assert mask(text, rules=RULES) == (text, {})


def test_only_the_password_of_a_url_goes():
    """A connection string stays readable."""
    word = some(Random(1), "abcXYZ789", 12)
    masked = mask(f"postgres://app:{word}@db:5432/x?y=1", rules=RULES)
    assert masked.text == "postgres://app:[redacted:url-password]@db:5432/x?y=1"


def test_a_key_that_never_ends_goes_to_its_end():
    """A private key whose end was cut off leaves nothing of itself behind."""
    body = "\n".join(some(Random(n), "abcdefXYZ0123+/", 64) for n in range(500))
    masked = mask("-----BEGIN RSA PRI" + f"VATE KEY-----\n{body}", rules=RULES)
    assert masked == ("[redacted:private-key]", {"private-key": 1})


def test_own_credentials_are_masked_in_every_spelling():
    """Our own keys never leave: not raw, not as Basic auth, not in a URL, not in JSON, not in base64."""
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


def test_a_persons_own_patterns():
    """A pattern from the configuration masks under its own name, and leaves the markers of others alone."""
    rules = compile_rules({"ticket": r"ACME-\d{4,}", "word": "redacted"})
    masked = mask("see ACME-12345 and password=hunter2", rules=rules)
    assert masked.text == "see [redacted:ticket] and password=[redacted:password]"
    assert mask(masked.text, rules=rules).text == masked.text
    long = "x" * 3_990 + "ACME-12345" + "y" * 9_000
    assert "ACME-1" not in mask(long, rules=rules).text


@pytest.mark.parametrize("source", ["(", "a**", "(a+)+$", "(a|aa)*b", "(?:x*y?){2,}", "", "a?"])
def test_a_pattern_that_cannot_be_used_is_named(source):
    """A pattern that is no regex, matches nothing at all, or could take for ever, is refused by its name."""
    with pytest.raises(ConfigError, match="mine"):
        compile_rules({"mine": source})


@pytest.mark.parametrize("source", [r"(?:ab)+c", r"[a-z]+-\d+", r"(foo|bar)-\d{3}", r"\(a+\)+", r"(?:a+x)++"])
def test_a_harmless_pattern_is_accepted(source):
    """Groups, choices and repetitions are fine as long as they are not repeated in one another."""
    assert compile_rules({"mine": source}).patterns[0][0] == "mine"


def test_a_name_that_cannot_be_a_marker_is_refused():
    """The name of a pattern becomes part of the text: it must be one."""
    with pytest.raises(ConfigError, match="My Pattern"):
        compile_rules({"My Pattern": "x"})


def test_a_value_with_a_telling_name():
    """The name of a value counts even where the two do not stand in one text."""
    assert mask_named("password", "hunter2", rules=RULES).text == "[redacted:password]"
    assert mask_named("Authorization", "Custom abcdef", rules=RULES).text == "[redacted:authorization]"
    assert mask_named("file_path", "hunter2", rules=RULES) == ("hunter2", {})
    assert mask_named("password", "hunter2", rules=RULES.credentials_only()) == ("hunter2", {})


@given(texts)
@settings(max_examples=150, deadline=None)
def test_masking_twice_is_masking_once(text):
    """What was masked is clean, and the same text always gives the same result."""
    once = mask(text, rules=RULES)
    assert mask(once.text, rules=RULES) == (once.text, {})
    assert mask(text, rules=RULES) == once


@given(st.lists(texts, max_size=6))
@settings(max_examples=150, deadline=None)
def test_one_scan_over_many_texts_overlooks_nothing(many):
    """Scanning texts together finds each text that would be masked on its own."""
    found = suspects(many, rules=RULES, meter=Meter(10**12))
    assert {text for text in many if mask(text, rules=RULES).counts} <= found


@given(st.text(st.characters(codec=None)) | st.binary().map(lambda data: data.decode("utf-8", "surrogateescape")))
@settings(max_examples=100, deadline=None)
def test_no_text_hurts(text):
    """Any text at all can be masked, lone surrogates included."""
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
}


@pytest.mark.parametrize("name", BAD)
def test_nothing_stalls_the_scan(name):
    """Megabytes made to trip patterns take no longer than they are long: within a budget, and in seconds."""
    began = time.process_time()
    mask(BAD[name], rules=RULES, meter=Meter(60_000_000))
    assert time.process_time() - began < 10  # under two on an idle machine; what is quadratic takes hours


def test_a_budget_is_kept():
    """A scan that may not cost what it costs says so instead of going on."""
    with pytest.raises(OverBudget):
        mask("API_KEY=a1b2 " * 10_000, rules=RULES, meter=Meter(100_000))
    with pytest.raises(OverBudget):
        mask("hello", rules=RULES, meter=Meter(10**9, lambda: True))
