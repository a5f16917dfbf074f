"""Decides whether a value is a secret: a template, a variable and a word of documentation are not.

How strict the test is depends on the name before the value, and on the syntax between them (`Style`).
"""

from __future__ import annotations

import binascii
import re
from enum import Enum
from itertools import pairwise
from typing import Final

from turnspan import lazy


class Style(Enum):
    """The syntax between a name and its value."""

    QUOTED = "quoted"  # password = "…", "password": "…", <password>…</password>
    SHELL = "shell"  # PASSWORD=… as in a shell or an .env file
    YAML = "yaml"  # password: …, the only entry of its line
    BARE = "bare"  # password=… inside a line, --password …
    LOOSE = "loose"  # ("password", "…"), set_password("…")
    PLAIN = "plain"  # where no code can be: --password …, a form, an ini file, .netrc
    PROSE = "prose"  # the password is …


NAME_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
_TEMPLATE: Final = lazy.pattern(
    rb"""<.* | \$.* | \{.* | %.{0,2}\Z | %\(.* | \[(?:redacted|withheld).*
      | (?:\\u[0-9a-f]{4}|\\U[0-9a-f]{8})+\Z
      | .*(?:xxxx|\*\*\*|\.\.\.|\xe2\x80\xa6|redacted|\{\{|\}\}|\$\{|%\(|(?-i:%s)(?![A-Za-z0-9]))""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_PLACEHOLDER: Final = lazy.pattern(
    rb"""(?:
        ![A-Za-z]+ | \|-? | >-? | :.* | .*(?:your|change[_-]?me|placeholder).*
      | (?:none|null|nil|undefined|true|false|yes|no|on|off|str|string|bytes|int|integer|number|bool|boolean|any|object
         |text|required|optional|default|empty|unset|missing|invalid|unknown|value|varchar.*|password|passwd|passphrase
         |pass|secret|token|key|apikey|username|user|name|hidden|disabled|enabled|self|this|function|async|await|lambda
         |new|not)[;:?)]*
      | (?:process|os|env|environ|config|settings|self|this|secrets|vault|ssm|op|arn|vars?|params?|args?|options?|opts
         |kwargs|request|req|ctx|context|cfg|conf|data|state|props)(?:[.:\[?!]|->).*
    )\Z""",
    re.IGNORECASE | re.VERBOSE,
)  # fmt: skip
_CODE: Final = lazy.pattern(rb"[A-Za-z_$@&*!][\w$]*(?:(?:\?\.|\.|::|->)[A-Za-z_$][\w$]*)*[;?!]*\Z")
_PATH: Final = lazy.pattern(rb"(?:~|\.{1,2})?/|[A-Za-z]:[\\/]|https?://|[\w-]+(?:/[\w.-]+)+\.\w{1,5}\Z")
_DIGITS: Final = b"0123456789"
TOKEN_CHARACTERS: Final = NAME_CHARACTERS + b"+/=~%:"
_COUNT: Final = lazy.pattern(rb"[A-Za-z_]+[=:][0-9.,]+[kKM]?\Z")  # tokens: input=1234
_BASE64_KEY: Final = lazy.pattern(rb"[A-Za-z0-9+/]{30,}+={0,2}\Z")
_NUMBER: Final = lazy.pattern(  # a small or hexadecimal number, a version
    rb"(?:0x[0-9a-fA-F]{1,8}|[0-9]{1,3}|[\^~<>=v]{0,2}[0-9]+(?:\.[0-9x*]+){1,3}(?:-[\w.]+)?)[,;:]?\Z"
)
_SIGNS: Final = lazy.pattern(rb"[!#$%^&*+=~]")
_MIXED: Final = lazy.pattern(rb"(?=[^a-z]*+[a-z])(?=[^A-Z]*+[A-Z])[A-Za-z0-9+/]*+\Z")
_WORDS: Final = lazy.pattern(rb"[A-Z]?[a-z]{3,}|[A-Z]{4,}")


def is_template(value: bytes) -> bool:
    """Return whether a value is a template or already masked: `<…>`, `${…}`, `****`."""
    return not value.strip(value[:1]) or _TEMPLATE.match(value[:256]) is not None


def is_placeholder(value: bytes) -> bool:
    """Return whether a value is a template, a variable, a type or a word of documentation."""
    return is_template(value) or _PLACEHOLDER.match(value[:256]) is not None


def looks_random(value: bytes) -> bool:
    """Return whether a value looks generated: letters mixed with digits, capitals or signs, not words."""
    if len(value) < 8 or b" " in value:
        return False
    value = value[:512]
    digits = len(value) - len(value.translate(None, _DIGITS))
    if not value.translate(None, b"0123456789.:,-+eETZ_/ "):
        return False  # a number, a date, a version
    if is_placeholder(value) or _COUNT.match(value):
        return False
    if _PATH.match(value) or (digits == 0 and (len(value) < 16 or value.islower() or value.isupper())):
        return _is_gibberish(value)
    if digits and (_SIGNS.search(value) or (len(value) >= 20 and _MIXED.match(value))):
        return True
    in_words = sum(map(len, _WORDS.findall(value)))
    return in_words * 2 < len(value) or (digits >= 4 and in_words * 3 < len(value) * 2) or _is_gibberish(value)


# For each first letter, the letters that follow it in English words and identifiers: 90 % of all pairs there, a third
# of the pairs in random letters.
_PAIRS_OF_WORDS: Final = frozenset(
    (letters[0], follower)
    for letters in (
        b"aabcdgiklmnprstuy baceilorsu cacehiklorstu dadeilorsu eabcdefgilmnpqrstvwx faefiloru gaehinorsu haeiot "
        b"iabcdefglmnoprstvz keis ladeilostuy mabeimopsu nacdefginostuv obcdfgiklmnoprstuvw paehiloprstuy qu "
        b"racdegiklmnoprstuy sacehilmopstuy tacehiloprstuy uabceilmnprst vaei waeis xpt yps ze "
    ).split()
    for follower in letters[1:]
)


def _is_gibberish(value: bytes) -> bool:
    """Return whether neighbouring letters are random: too few of the pairs are common in words."""
    if len(value) < 12 or value.translate(None, TOKEN_CHARACTERS):
        return False
    value = value[:96]
    folded = value.lower()
    common = other = 0
    for at, pair in enumerate(pairwise(folded)):
        if pair in _PAIRS_OF_WORDS:
            common += 1
        elif _is_letter(pair[0]) != _is_letter(pair[1]):
            other += _is_digit(pair[0]) or _is_digit(pair[1])
        elif _is_letter(pair[0]):
            begins_word = _is_letter(value[at]) and not _is_letter(value[at + 1])  # camelCase
            other += not begins_word or not _is_letter(value[at - 1])
    return common + other >= 8 and common < (common + other) * (0.67 if len(value) >= 20 else 0.5)


def _is_letter(code: int) -> bool:
    return 97 <= code <= 122


def _is_digit(code: int) -> bool:
    return 48 <= code <= 57


def is_secret(rule: str, value: bytes, style: Style) -> bool:
    """Return whether a value is a secret, given the rule of its name and the syntax between them."""
    if rule in {"key", "credentials"}:
        return len(value) >= 16 and looks_random(value)
    if rule in {"aws-secret-key", "azure-key"} and _BASE64_KEY.match(value):
        return True
    is_header = rule in {"authorization", "cookie"}
    if rule != "password" and not is_header and style is not Style.SHELL:
        return looks_random(value)
    if len(value) < (3 if rule == "password" else 6) or is_placeholder(value):
        return False
    if _PATH.match(value) and not _is_gibberish(value):
        return False
    if style is Style.SHELL:
        return not value.isdigit() or (rule == "password" and len(value) >= 4)
    return is_header or _is_password(value, style)


def _is_password(value: bytes, style: Style) -> bool:
    """Return whether a value named password is one. Real passwords can be plain words, and so can code."""
    if _NUMBER.match(value):
        return False
    has_digit = len(value.translate(None, _DIGITS)) < len(value)
    is_likely = has_digit or _is_gibberish(value)
    match style:
        case Style.YAML:
            return _CODE.match(value) is None or (value.isalnum() and value.islower()) or is_likely
        case Style.BARE:
            return _CODE.match(value) is None or (len(value) >= 6 and value.strip(b"!*&@$?").isalnum() and is_likely)
        case Style.LOOSE:
            return len(value) >= 6 and b" " not in value and is_likely
        case Style.PLAIN:
            return _OPTION_WORD.match(value) is None
        case Style.PROSE:
            return has_digit or _ENGLISH.match(value) is None
        case _:
            return b" " not in value or has_digit


# After an option in a manual: `--password STRING`, "the --password option".
_OPTION_WORD: Final = lazy.pattern(
    rb"(?:(?:option|flag|argument|arg|parameter|param|switch|setting|field)s?|and|or|to|is|in|for|from|with|if|when|was|as|on|of|the"
    rb"|stdin|prompt|file|string|text|value|varname|pass|passwd|pw|pwd|instead|will|can|must|should|may|has|have|are|be"
    rb"|\.\.\.|\\|=)[.,;:)\]]*\Z",
    re.IGNORECASE,
)
# After "the password is": words of a sentence that goes on.
_ENGLISH: Final = lazy.pattern(
    rb"(?:[a-z]+(?:[^r]ed|ly|able|ible|ful|less|ous|ent)|being|coming|going|using|expiring|changing|nothing|something|a|an|the|not|no|never|always|too|in|on|at|of|to|for|from|by|if|as|so"
    rb"|correct|incorrect|valid|wrong|right|empty|missing|set|unset|null|none|blank|weak|strong|long|short|sent|read|kept|given"
    rb"|known|good|bad|ok|hidden|plain|optional|mandatory|still|only|also|now|just|then|what|that|this|it|when|being|been"
    rb"|one|more|less|at|least|used|safe|secure|same|different|new|old|hard|easy|out|up|gone|lost|held|built|passed|made"
    rb"|encoded|stored|true|false|your|my|their|his|her|its|our|equal|part|up|shown|done|left|written|taken|chosen|longer"
    rb"|shorter|case|available|present|absent|required|there|here|first|second|all|either|both|any|some|how|why|where|who"
    rb"|which|can|will|must|should|may|has|have|are|be|was|were|and|or|but|with|without|before|after|via|per|than|exactly"
    rb"|already|usually|often|sometimes|currently|probably|likely|supplied|specified|necessary|identical|similar|complex"
    rb"|simple|compromised|expired|changed|in-memory|base64-encoded|bcrypt|hash|text|ascii|utf-8|cleartext|public|private"
    rb"|secret|default|fine|rather|another|such|like|about|between|over|under|within|inside|outside|self|own|yet|once|again)"
    rb"[^A-Za-z0-9]*\Z",
    re.IGNORECASE,
)
# Values of these rules are long texts, or too often something else (`cacheKey`) to be searched everywhere.
_NOT_DISTINCTIVE: Final = frozenset({"key", "cookie", "private-key", "own-credential"})


LONGEST_KNOWN: Final = 2048


def is_distinctive(rule: str, value: bytes) -> bool:
    """Return whether a secret is so long and random that the same text is that secret anywhere else, too."""
    return rule not in _NOT_DISTINCTIVE and 12 <= len(value) <= LONGEST_KNOWN and looks_random(value)


def is_basic(value: bytes) -> bool:
    """Return whether a value is `user:password` in base64."""
    plain = from_base64(value[:512])
    return plain is not None and b":" in plain and plain.isascii() and plain.decode("ascii").isprintable()


def from_base64(value: bytes) -> bytes | None:
    """Decode base64 of either alphabet; None if the value is not base64."""
    value = value.translate(_STANDARD_BASE64, b"\r\n=")
    value = value[: len(value) - (len(value) % 4 == 1)]
    try:
        return binascii.a2b_base64(value + b"=" * (-len(value) % 4))
    except binascii.Error:
        return None


_STANDARD_BASE64: Final = bytes.maketrans(b"-_", b"+/")
