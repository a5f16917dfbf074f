"""Patterns of the user that would take seconds are refused when they are read."""

import time

import pytest

from turnspan.errors import ConfigError
from turnspan.secrets.replace import compile_rules, mask

SLOW = {
    "three repetitions": r"a*a*a*b",
    "two repetitions of anything": r".*foo.*bar",
    "spaces around an optional comma": r"x?\s*,?\s*,?\s*y",
    "many optional parts": "a?" * 30 + "a" * 30,
    "a repeated optional part": r"(?:a?){30}a{30}",
    "ambiguous choices": "(?:a|ab|b)" * 25 + "c",
    "a back-reference": r"(a*)b?\1c",
    "long limits": r"a{0,900}a{0,900}b",
    "a repeated group with two repetitions": r"(?:\w+\s*){60}",
    "nested repetitions": r"(a+)+$",
    "nested groups": "(?:" * 40 + "a+" + ")+" * 40,
}
USUAL = [
    r"TCK-[0-9]{8}",
    r"\bEMP\d{6}\b",
    r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}",
    r"[\w.+-]+@[\w-]+\.\w+",
    r"(?:password|passwd|pwd|secret|token)\s*[:=]\s*\S+",
    r"(?i)internal-[a-z]+-[0-9a-f]{32}",
    r"https?://intranet\.example/\S*",
    r"[A-Z]{2}\d{2}(?: ?[A-Z0-9]{4}){4,7}",
    r"acme_(?:live|test)_[A-Za-z0-9]{24,}",
    r"-----BEGIN ACME-----[^-]*-----END ACME-----",
    r"\b\d{3}-\d{2}-\d{4}\b",
    r"(?<=user=)\w+",
    r"ä+ö|[^\x00-\x7f]{9,}",
    r"(?:foo|bar)+",
    r"id-(?:[0-9]|[a-f])+",
]


@pytest.mark.parametrize("source", SLOW.values(), ids=SLOW)
def test_a_pattern_that_would_take_seconds_is_refused(source):
    """The message names the pattern and says what to do."""
    with pytest.raises(ConfigError, match="'mine'"):
        compile_rules({"mine": source})


@pytest.mark.parametrize("source", USUAL)
def test_usual_patterns_are_accepted_and_fast(source):
    """Also on text that is made to be slow for them: thousands of characters that nearly match."""
    rules = compile_rules({"mine": source})
    for text in ("a" * 8000, "1." * 4000, " " * 8000, "TCK-1" * 1600, "A1 " * 2600, "a@a." * 2000):
        began = time.process_time()
        mask(text, rules=rules)
        assert time.process_time() - began < 3.0
