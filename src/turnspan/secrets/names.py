"""Secrets recognised by the name before them: `password = …`, `"api_key": "…"`, `Authorization: …`.

Rules:

- A name alone is not enough: most code with `password` in it holds no password. The value must look like a secret;
  how strict that test is depends on the syntax between name and value (`Style`).
- Templates, variables, types and words of documentation are not secrets (`is_placeholder`).
- Every `look_at_…` gets the position of its literal, reads a bounded number of bytes, appends the hits it finds and
  returns the position where the search continues.
"""

from __future__ import annotations

import binascii
import re
from enum import Enum
from itertools import pairwise
from typing import Final, TypeAlias

from turnspan import lazy

Hit: TypeAlias = tuple[int, int, str]  # start, end, rule


class Style(Enum):
    """The syntax between a name and its value."""

    QUOTED = "quoted"  # password = "…", "password": "…", <password>…</password>
    SHELL = "shell"  # PASSWORD=… as in a shell or an .env file
    YAML = "yaml"  # password: …, the only entry of its line
    BARE = "bare"  # password=… inside a line, --password …
    LOOSE = "loose"  # ("password", "…"), set_password("…")


_WORD: Final = rb"(?P<word>pass(?:word|wd|phrase|code)?|pwd|secret|token|key|cred(?:ential)?s?|pat)"
_SUFFIX: Final = (
    rb"(?:s|[_-]?(?:base|value|hash|prod(?:uction)?|dev|test|staging|live|main|default|primary|secondary|old|new"
    rb"|[0-9]{1,3}))?"
)
_NAMED: Final = lazy.pattern(
    _WORD + _SUFFIX + rb"""
    (?P<close>(?:\\{0,3}["'`])?\]?(?:\*\*)?)
    (?:
        (?P<annotated>[!?]?:[ ]?[&a-z][\w.\[\],\ |&'<>?]{0,40}=[ ]?(?=[bruf]{0,2}["'`]))  # password: &str = "..."
      | (?P<space>[ \t]{0,24})(?P<operator>=>|[:?|+.!]{0,3}={1,3}|:)(?P<after>(?:\*\*)?[ \t]{0,24})
      | (?P<cell>[ \t]{0,40}\|[ \t]{1,40})  # | password | ... |
      | (?P<attribute>[\s,]{1,24}(?:\\{0,3}["'])?value(?:\\{0,3}["'])?[ ]{0,2}[:=][ ]{0,2})  # name: TOKEN, value: ...
      | (?P<loose>[ \t]{0,2}[,(][ \t]{0,2}(?=\\{0,3}["'`]))  # ("password", "..."), set_password("...")
      | (?P<element></key>\s{0,40}<string>|>\s{0,40})  # <password>...</password>, and property lists
      | (?P<prose>[ ]is:?[ ])
      | (?P<spaced>[ \t]{1,20}(?=N?["'`]))  # WITH PASSWORD '...', #define PASSWORD "...", --password "..."
      | (?P<flag>[ ](?=[^\s-]))  # --password ...
    )""",
    re.IGNORECASE | re.VERBOSE,
)  # fmt: skip
_QUOTED: Final = lazy.pattern(
    rb"""[bBrRuUfFN@$]{0,2}(?:
        "((?:[^"\\\r\n]|\\[^\r\n]){1,1024}+)"
      | '((?:[^'\\\r\n]|\\[^\r\n]){1,1024}+)'
      | `([^`\r\n]{1,1024}+)`
      | \\{1,3}["']([^"'\\\r\n]{1,1024}+)\\{1,3}["']
    )""",
    re.VERBOSE,
)
# A bare value ends at an escape of JSON, such as \n; a single backslash can be part of a password.
_BARE_CHARACTER: Final = rb"""(?:[^\s"'`\\,;&(){}\[\]<>|]|\\(?![nrtu"'\\]))"""
_SHELL_CHARACTER: Final = rb"""(?:[^\s"'`\\<]|<(?!/[A-Za-z])|\\(?![nrtu"'\\]))"""
_BARE: Final = lazy.pattern(_BARE_CHARACTER + rb"{3,512}+"), lazy.pattern(_BARE_CHARACTER + rb"*+")
_SHELL: Final = lazy.pattern(_SHELL_CHARACTER + rb"{3,512}+"), lazy.pattern(_SHELL_CHARACTER + rb"*+")
_LINE_END: Final = lazy.pattern(rb"[ \t]*(?:\Z|[\r\n]|\\[rn])")
_NAME_CHARACTERS: Final = b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-"
KEY_OWNERS: Final = (
    b"api", b"access", b"account", b"private", b"secret", b"shared", b"encryption", b"encrypt", b"signing", b"master",
    b"auth", b"app", b"application", b"service", b"storage", b"deploy", b"session", b"consumer", b"subscription",
    b"client", b"admin", b"hmac", b"jwt", b"ssh", b"ingest", b"license", b"write", b"server", b"function", b"functions",
)  # fmt: skip
_PASS_OWNERS: Final = (b"store", b"key", b"db", b"user", b"root", b"admin", b"my", b"smtp", b"mail", b"ftp", b"auth")
_PAT_OWNERS: Final = (b"github", b"gitlab", b"gh", b"azure", b"devops", b"ado")
_SECRET_WORDS: Final = (
    b"pass",
    b"pwd",
    b"secret",
    b"token",
    b"key",
    b"cred",
    b"pat",
    b"authori",
    b"cookie",
)  # a quick test
_WHOLE_NAME: Final = lazy.pattern(_WORD + _SUFFIX + rb"\Z", re.IGNORECASE)
_HEADER_NAME: Final = lazy.pattern(rb"(?:\A|-)(?:authori[sz]ation|(?:set-)?cookie)\Z", re.IGNORECASE)


def rule_of_name(name: bytes) -> str | None:
    """Return the rule for a complete name, such as a key of a JSON object."""
    name = name[-64:]
    folded = name.lower()
    if not any(word in folded for word in _SECRET_WORDS):
        return None
    if _HEADER_NAME.search(name):
        return "authorization" if name[-1:] in b"nN" else "cookie"
    found = _WHOLE_NAME.search(name)
    return _rule_of_word(found["word"], name[: found.start()]) if found is not None else None


def _rule_of_word(word: bytes, before: bytes) -> str | None:
    """Return the rule for a name that ends in `before` + `word`, or None if it is not the name of a secret."""
    match word[:4].lower():
        case b"pwd":
            return "password"
        case b"pass":
            # Many words end in `pass` (bypass, compass): it counts alone, after a separator or one of a few words.
            is_name = len(word) > 4 or not before[-1:].isalnum() or before.lower().endswith(_PASS_OWNERS)
            return "password" if is_name else None
        case b"secr":
            return "secret"
        case b"cred":
            return "credentials"
        case b"toke":
            return "token"
        case b"pat":  # a personal access token: PAT, GITHUB_PAT, githubPat; else a pattern
            is_name = word.isupper() or before.lower().rstrip(b"_-").endswith(_PAT_OWNERS)
            return "credentials" if is_name and (word[:1] == b"P" or not before[-1:].isalnum()) else None
        case _:
            return _rule_of_key(before)


def _rule_of_key(before: bytes) -> str | None:
    owner = before[-24:].lower()
    if owner.rstrip(b"_- .").endswith((b"public", b"pub")):
        return None
    if owner.translate(None, b" _.-").endswith(b"secretaccess"):
        return "aws-secret-key"
    if owner.endswith((b"account", b"sharedaccess")):
        return "azure-key"
    if (owner[:-1] if owner[-1:] in {b" ", b"_", b".", b"-"} else owner).endswith(KEY_OWNERS):
        return "api-key"
    return "key" if before[-1:] in {b"_", b"-"} or before[-1:].isalpha() else None


# ---- values

_TEMPLATE: Final = lazy.pattern(
    rb"""<.* | .*> | \$.* | \{.* | %.{0,2}\Z | %\(.* | \[(?:redacted|withheld).*
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
_TOKEN_CHARACTERS: Final = _NAME_CHARACTERS + b"+/=~%:"
_COUNT: Final = lazy.pattern(rb"[A-Za-z_]+[=:][0-9.,]+[kKM]?\Z")  # tokens: input=1234
_BASE64_KEY: Final = lazy.pattern(rb"[A-Za-z0-9+/]{30,}+={0,2}\Z")
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
    if len(value) < 12 or value.translate(None, _TOKEN_CHARACTERS):
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
    if len(value) < (3 if rule == "password" else 6) or is_placeholder(value) or _PATH.match(value):
        return False
    if style is Style.SHELL:
        return not value.isdigit()
    return is_header or _is_password(value, style)


def _is_password(value: bytes, style: Style) -> bool:
    """Return whether a value named password is one. Real passwords can be plain words, and so can code."""
    has_digit = len(value.translate(None, _DIGITS)) < len(value)
    is_likely = has_digit or _is_gibberish(value)
    match style:
        case Style.YAML:
            return _CODE.match(value) is None or (value.isalnum() and value.islower()) or is_likely
        case Style.BARE:
            return _CODE.match(value) is None or (len(value) >= 6 and value.lstrip(b"!*&@$").isalnum() and is_likely)
        case Style.LOOSE:
            return len(value) >= 6 and b" " not in value and is_likely
        case _:
            return b" " not in value or has_digit


def look_at_name(data: bytes, at: int, hits: list[Hit]) -> int:
    """A name that ends in `pass`, `pwd`, `secret`, `token` or `key`, and its value."""
    named = _NAMED.match(data, at)
    if named is None:
        return at + 3
    after_word = named.end("word")
    before = data[max(0, at - 48) : at]
    rule = _rule_of_word(named["word"], before)
    if rule is None:
        return after_word
    head = before.rstrip(_NAME_CHARACTERS)
    name = before[len(head) :]
    if _is_code(named, data, head, name):
        return after_word
    is_shell = _is_shell(named, head, name)
    start = named.end()
    quoted = _QUOTED.match(data, start)
    if quoted is not None and quoted.lastindex is not None:
        start, end = quoted.span(quoted.lastindex)
        style = Style.SHELL if is_shell else Style.LOOSE if _is_loose(named, head, name) else Style.QUOTED
        if is_secret(rule, data[start:end], style):
            hits.append((start, end, rule))
            return end
        return after_word
    if named["loose"] is not None or named["spaced"] is not None:
        return after_word
    if data[start : start + 1] in {b'"', b"'", b"`"}:
        start += 1  # a quote without its end: truncated text
    pattern, rest = _SHELL if is_shell else _BARE
    bare = pattern.match(data, start)
    if bare is None or (not is_shell and data[bare.end() : bare.end() + 1] in {b"(", b"["}):
        return after_word  # nothing, or a call: code
    if not is_secret(rule, bare[0], _style_of_bare(data, named, head, bare.end(), is_shell=is_shell)):
        return after_word
    tail = rest.match(data, bare.end())
    end = tail.end() if tail is not None else bare.end()
    hits.append((start, end, rule))
    return end


def _is_code(named: re.Match[bytes], data: bytes, head: bytes, name: bytes) -> bool:
    """Return whether name and value are part of code or prose: an option must begin with a dash, a cell with a pipe."""
    if named["cell"] is not None:
        is_cell = head.rstrip(b" \t*`").endswith(b"|") and b"." not in name
        return not is_cell or _CELL_END.match(data, named.end()) is None
    if named["flag"] is not None:  # an option, `aws configure set`, or a .netrc file
        is_set = head.endswith(b" set ") or b"login " in head
        return name[:1] != b"-" and not is_set
    return _is_verb(named, head, name)


def _is_verb(named: re.Match[bytes], head: bytes, name: bytes) -> bool:
    """Return whether `pass:` is the result of a test or the verb (`--- PASS: TestName`, "that would pass: …")."""
    if named["word"].lower() != b"pass" or name or named["close"]:
        return False
    if named["spaced"] is not None:
        return True
    if not named["after"]:
        return False
    before = head.rstrip(b" \t-*")
    return named["operator"] == b":" and (
        named["word"].isupper() or not (_begins_line(before) or before[-1:] in _JOINTS)
    )


_CELL_END: Final = lazy.pattern(rb"[^|\r\n]{3,512}\|")
_JOINTS: Final = frozenset({b",", b";", b"|", b"/", b"&", b"(", b"{"})


def _is_loose(named: re.Match[bytes], head: bytes, name: bytes) -> bool:
    """Return whether name and value are only next to each other: arguments of a call, cells, words of a sentence."""
    if named["spaced"] is not None:
        return not (name[:1] == b"-" or head.endswith(b"#define ") or named["word"].isupper())
    return named["loose"] is not None or named["cell"] is not None


def _is_shell(named: re.Match[bytes], head: bytes, name: bytes) -> bool:
    """Return whether it is an assignment of a shell or an .env file; `name` is the part of the name before the word."""
    if named["attribute"] is None and (named["operator"] != b"=" or named["close"] or named["space"] or named["after"]):
        return False
    if named["word"].isupper() and name == name.upper() and b"-" not in name:
        return True
    return named["attribute"] is None and _begins_line(head)


def _begins_line(head: bytes) -> bool:
    """Return whether a name is the first word of its line; a line number of Claude Code's Read tool may precede it."""
    # A backslash: of an escaped line end, whose n was taken for a part of the name.
    if not head or head[-1:] in {b"\n", b"\r", b"\\"} or head.endswith((b"export ", b"set ", b"ENV ", b"ARG ")):
        return True
    return head.endswith(b"\xe2\x86\x92") or (head[-1:] == b"\t" and head[-2:-1].isdigit())


def _style_of_bare(data: bytes, named: re.Match[bytes], head: bytes, end: int, *, is_shell: bool) -> Style:
    if is_shell:
        return Style.SHELL
    if named["element"] is not None:
        return Style.QUOTED if data[end : end + 40].lstrip().startswith(b"</") else Style.LOOSE
    if named["prose"] is not None or named["cell"] is not None:
        return Style.LOOSE
    is_yaml = named["operator"] == b":" and named["after"] and _begins_line(head.rstrip(b" \t-*"))
    return Style.YAML if is_yaml and _LINE_END.match(data, end) else Style.BARE


# ---- headers

_QUOTE: Final = rb"""(?:\\{0,3}["'`])?"""
_AUTHORIZATION: Final = lazy.pattern(
    rb"authori[sz]ation"
    + _QUOTE
    + rb"\]?[ \t]{0,4}(?:=>|[:=,])[ \t]{0,4}[bruf]{0,2}"
    + _QUOTE
    + rb"""
    (?:(?P<scheme>bearer|basic|token|bot|api-?key|key|splunk|negotiate|ntlm|digest|hawk|aws4-hmac-sha256)[ \t]{1,4})?
    (?P<value>[^\s"'`\\,;<>()]{6,512})""",
    re.IGNORECASE | re.VERBOSE,
)
_REST: Final = lazy.pattern(rb"""[^\s"'`\\,;<>()]*+""")
_REST_OF_LINE: Final = lazy.pattern(rb"[^\r\n\\`']*+")
_DOCKER_AUTH: Final = lazy.pattern(
    rb"auth" + _QUOTE + rb"[ \t]{0,4}[:=][ \t]{0,4}" + _QUOTE + rb"(?P<value>[A-Za-z0-9+/]{8,512}={0,2})", re.IGNORECASE
)
_COOKIE: Final = lazy.pattern(
    rb"cookie" + _QUOTE + rb"\]?(?:[ \t]{0,4}[:=,]|(?<=--cookie)[ ])[ \t]{0,4}" + _QUOTE
    + rb"""(?P<value>[\w.!-]{1,80}=[^\s"'`\\;,]{4,512}[^\r\n"'`\\]*+)""",
    re.IGNORECASE,
)  # fmt: skip


def look_at_authorization(data: bytes, at: int, hits: list[Hit]) -> int:
    """An Authorization header, or the base64 under `auth` in the settings of Docker and npm."""
    found = _AUTHORIZATION.match(data, at)
    if found is None:
        found = _DOCKER_AUTH.match(data, at)
        if found is None or not is_basic(found["value"]):
            return at + 4
    elif not _authorizes(found["scheme"], found["value"]):
        return at + 4
    start, end = found.span("value")
    # These schemes have several values, some of them in quotes.
    has_many = (found.groupdict().get("scheme") or b"").lower() in {b"digest", b"hawk", b"aws4-hmac-sha256"}
    rest = (_REST_OF_LINE if has_many else _REST).match(data, end)
    end = rest.end() if rest is not None else end
    hits.append((start, end, "authorization"))
    return end


def _authorizes(scheme: bytes | None, value: bytes) -> bool:
    if scheme is None:
        return looks_random(value)
    is_word = value.isalpha() and (value.islower() or value.isupper() or value.istitle())
    return not is_word and not is_placeholder(value)


def look_at_cookie(data: bytes, at: int, hits: list[Hit]) -> int:
    """Cookie and Set-Cookie headers, and curl's `--cookie`."""
    found = _COOKIE.match(data, at)
    if found is None or is_placeholder(found["value"].partition(b"=")[2]):
        return at + 6
    hits.append((*found.span("value"), "cookie"))
    return found.end()


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
