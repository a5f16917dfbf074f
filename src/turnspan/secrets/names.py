"""Secrets recognised by the name before them: `password = …`, `"api_key": "…"`, `--token …`.

Rules:

- `WORDS` are the ends of names, `_SUFFIXES` what may follow such a word, `_CONNECTIONS` what may be between a name and
  its value. `_NAMED`, and what `words` searches for, are made from these tables.
- A name alone is not enough: most code with `password` in it holds no password. The value must look like a secret
  (`values`). How much depends on the syntax around it (`Style`): a bare word is code where code can be, and a password
  where it cannot (after an option, in an ini file, in a form, in `.netrc`).
- A look reads a bounded number of bytes.
"""

from __future__ import annotations

import re
from string import ascii_lowercase
from typing import TYPE_CHECKING, Final

from turnspan import lazy
from turnspan.secrets.around import (
    KEY_OWNERS,
    LINE_END,
    NUMBERED,
    is_code,
    is_loose,
    is_no_name,
    is_plain,
    is_shell,
    pattern_of_bare,
    style_of_bare,
)
from turnspan.secrets.values import NAME_CHARACTERS, TOKEN_CHARACTERS, Style, is_secret
from turnspan.secrets.words import WordRow

if TYPE_CHECKING:
    from turnspan.secrets.words import Hit

# The beginning of a word, which is searched for, the rest of the word, and what must precede it if only a space is
# between it and its value.
WORDS: Final = (
    (b"pass", rb"(?:wor[dt]|wd|phrase|code|e(?![a-z]))?+", rb"[\s_.a-z-]"),
    (b"pw", b"d?+", rb"[_.a-z-]"),
    (b"psk", b"", rb"[_-]"),
    (b"pat", b"", rb"[_-]"),
    (b"secret", b"", rb"[_.a-z-]"),
    (b"cred", rb"(?:ential)?+s?+", rb"[_-]"),
    (b"token", b"", rb"[_.a-z-]"),
    (b"key", b"", rb"[_.a-z-]"),
)
_SHORT_WORDS: Final = frozenset({b"pw", b"psk", b"pat"})
_WORD: Final = rb"(?P<word>" + b"|".join(word + rest for word, rest, _ in WORDS) + rb")"
_SUFFIXES: Final = (
    "base64", "base", "b64", "hex", "value", "hash", "production", "prod", "dev", "test", "staging", "live", "main",
    "default", "primary", "secondary", "old", "new", "string", "plaintext", "plain",
)  # fmt: skip
_SUFFIX: Final = rb"(?:[_-]?(?:" + "|".join(_SUFFIXES).encode() + rb"|v?[0-9]{1,3})|s)?+"
_CLOSE: Final = rb"""(?:\\{0,3}["'`])?\]?(?:\*\*)?"""
_NEXT_LINE: Final = rb"(?:\r?\n|\\r\\n|\\n)"
# What is between a name and its value, in small letters: blanks, and what follows them. The first that fits counts.
_CONNECTIONS: Final = (
    ("annotated", b"",  # password: str = "…"
     rb"""[!?:](?:(?<=:)|:)[ ]?[&a-z][\w.\[\],\ |&'<>?]{0,40}=[ ]?(?=[bruf]{0,2}["'`]|[a-z]{1,20}\()"""),
    ("property", rb"[ ]", rb"""\{[ ]get;[^}\r\n]{0,40}\}[ ]=[ ](?=["'@$])"""),  # string Password { get; set; } = "…"
    ("default", b"", rb":[-=](?=[^\s}])"),  # ${PASSWORD:-…}
    ("nested", rb"[ ]{0,2}",  # "token": {"host": "…"
     rb""":\s{0,4}\{\s{0,24}\\{0,3}"[\w.-]{3,60}\\{0,3}"\s?:\s?(?=\\{0,3}")"""),
    ("next_line", rb"[ \t]{0,4}",  # in YAML and JSON
     rb":[ \t]{0,8}" + _NEXT_LINE + NUMBERED + rb"[ \t]{1,40}(?![\s#:-]|[0-9]{1,6}(?:\t|\xe2))"),
    ("operator", rb"[ \t]{0,40}", rb"[=:?|+.!](?:>|[:?|+.!]{0,2}={0,3}(?<=[=:]))(?:\*\*)?[ \t]{0,40}"),
    ("multipart", rb"(?<=\")(?:;[^\r\n]{0,60})?(?:\r?\n){2}", rb"(?:(?<=\n\n)|(?<=\n\r\n))(?=[^\s])"),
    ("cell", rb"[ \t]{0,40}", rb"\|[ \t]{1,40}"),  # | password | … |
    ("attribute", rb"[\s,]{1,24}",  # name: TOKEN, value: …
     rb"""(?:[\w-]{2,12}="[^"\r\n]{0,24}"\s{1,4})?(?:\\{0,3}["'])?(?:value|content)["'\\]{0,4}[ ]{0,2}[:=][ ]{0,2}"""),
    ("valued", rb"[ ]", rb"(?:--?[\w-]{2,20}[ =][^\s-][^\s]{0,40}[ ])?--?(?:value|body)[ =]"),  # --name TOKEN --value …
    ("variable", rb"[ ]",  # Terraform
     rb"""\{\s{1,24}(?:type\s{0,12}=\s{0,4}string\s{1,24})?default\s{0,12}=\s{0,4}(?=")"""),
    ("loose", rb"[ \t]{0,2}", rb"""[,(][ \t]{0,2}(?=\\{0,3}["'`])"""),  # ("password", "…"), set_password("…")
    ("element", b"", rb"[<>](?:(?<=>)\s{0,40}|/key>\s{0,40}<string>)"),  # <password>…</password>, and property lists
    ("prose", rb"[ ]", rb"[if](?:s:?[ ]|or[ ][^\s:]{1,60}(?::[ ]|[ ]is:?[ ]))"),  # the password (for bob) is …
    ("spaced", rb"[ \t]{1,20}", rb"""(?=n?["'`])"""),  # WITH PASSWORD '…', #define PASSWORD "…", --password "…"
    ("dash", rb"[ ]", rb"""-{1,2}>?[ ](?=["'`])"""),  # token - '…'
    ("arrow", rb"[ ]", rb"-{1,2}>[ ](?=[^\s-])"),  # token -> …
    ("encoded", b"", rb"%(?:22%)?3[ad](?:%2[02])*"),  # %22token%22%3A%22…
)  # fmt: skip
_FLAG: Final = rb"[ \t]{1,4}(?=[^\s-])"  # --password …
_NAMED: Final = lazy.pattern(
    _WORD + _SUFFIX + b"(?P<close>" + _CLOSE + rb")(?:"
    + b"|".join(b"(?P<%b>%b%b)" % (name.encode(), *both) for name, *both in (*_CONNECTIONS, ("flag", b"", _FLAG)))
    + b")",
    re.IGNORECASE,
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
# What may precede a value: `process.env.TOKEN || "..."`, `os.getenv("TOKEN") or "..."`, `SecretStr("...")`, and in YAML
# a tag, or the sign of a text that begins on the next line.
_BEFORE_VALUE: Final = lazy.pattern(
    rb"""
        [A-Za-z_$][\w.$?]{0,60}+(?:[(\[]["'`]?[\w.-]{0,60}+["'`]?[)\]])?+[ ](?:\|\||\?\?|or)[ ](?=["'`])
      | (?P<call>[\w.:\[\]&]{1,40}+)\((?:\w{1,16}[ ]?[=:][ ]?)?(?=[bruf]?["'`])
      | ![a-z]{1,20}[ ](?![|>])
      | (?:![a-z]{1,20}[ ])?[|>][+-]?[ ]{0,4}(?:\r?\n|\\n)[ ]{1,40}
    """,
    re.VERBOSE,
)
# Calls whose argument is a name, and calls whose argument is a value.
_READS: Final = lazy.pattern(
    rb"(?:\A|[._])(?:get|env|find|lookup|look_up|read|load|fetch|has|query|select|header|param|input|prompt|match|search|pattern"
    rb"|compile|test)\w*\Z",
    re.IGNORECASE,
)
_WRAPPER: Final = lazy.pattern(rb"(?:secret\w*|field|string|str|bytes?|some|from|of)\Z", re.IGNORECASE)
# Keys of data, not of a lock.
_DATA_KEYS: Final = (
    b"public", b"pub", b"partition", b"idempotency", b"result", b"s3", b"sort", b"primary", b"foreign", b"row",
    b"object", b"lookup", b"range", b"routing", b"shard", b"sharding", b"message", b"dedup", b"translation", b"group",
)  # fmt: skip
_PASS_OWNERS: Final = (
    b"store", b"key", b"db", b"user", b"root", b"admin", b"my", b"smtp", b"mail", b"ftp", b"auth", b"ssh", b"bind",
    b"require",
)  # fmt: skip
_PAT_OWNERS: Final = (b"github", b"gitlab", b"gh", b"azure", b"devops", b"ado")
_WHOLE_NAME: Final = lazy.pattern(_WORD + _SUFFIX + rb"\Z", re.IGNORECASE)
_HEADER_NAME: Final = lazy.pattern(rb"(?:\A|-)(?:authori[sz]ation|(?:set-)?cookie)\Z", re.IGNORECASE)


def rows() -> list[WordRow]:
    """Return the words to search for, and what must follow: a suffix, a quote, a connection, or a space and a value."""
    no_suffix = rb"(?![" + _other_letters(*_SUFFIXES, "s", "v", "n'") + rb")])"  # v2, N'…'
    no_word = _other_letters("is", "for", "value", "content", "n'")
    no_connection = rb"(?![\w);/]|(?<![\"'`])[ ,.]{1,2}[" + no_word + rb"0-9])"
    connections = rb"[\s,]{0,40}+(?:" + b"|".join(pattern for _, _, pattern in _CONNECTIONS) + b")"
    connected = no_suffix + _SUFFIX + _CLOSE + no_connection + connections
    # A token has six characters after `=`, otherwise twelve or a digit; before it a quote, a call or `X or` may be.
    worth = (
        rb"(?=(?<==)[^\s]{6}|[^\s\w]{0,4}[bruf]{0,2}[^\s\w]{0,4}(?:[^\s\"'`0-9]{0,11}[0-9]|[^\s\"'`]{12})"
        rb"|[\w.:\[\]&]{1,40}\(|[\w.$?]{1,40}[ ](?:or|\|\||\?\?)[ ]|[|>!]|[\\\"'`]{1,4}[ ])"
    )
    short = rb"s?+" + _CLOSE + rb"(?:[ \t]{0,40}+[:=|,<>\"'`(!?%+]|[ ]is[ ]|[\s,]{1,24}+[\"']?value)"
    spaced, long = rb"(?:s|-string)?" + _FLAG, rb"(?=[^\s]{12}|[^\s]{0,11}[0-9])"
    return [
        *(WordRow(word, look_at_name, connected if word == b"pass" else connected + worth, rest)
          for word, rest, _ in WORDS if word not in _SHORT_WORDS),
        *(WordRow(word, look_at_name, short, rest) for word, rest, _ in WORDS if word in _SHORT_WORDS),
        *(WordRow(word, look_at_name, spaced if word in {b"pass", b"pw"} else spaced + long,
              rb"(?<=" + before + word + rb")" + rest) for word, rest, before in WORDS),
    ]


def _other_letters(*words: str) -> bytes:
    """Return the letters with which none of the words begins."""
    return "".join(sorted({*ascii_lowercase} - {word[0] for word in words})).encode()


def rule_of_name(name: bytes) -> str | None:
    """Return the rule for a complete name, such as a key of a JSON object."""
    name = name[-64:]
    folded = name.lower()
    if not any(word in folded for word in (*(word for word, _, _ in WORDS), b"authori", b"cookie")):
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
        case b"pw" | b"psk":  # the last: of a wireless network or a VPN. Other words and mnemonics end like this, too.
            begins_word = word[:1] == b"P" and before[-1:].islower()  # dbPw
            is_name = not before[-1:].isalnum() or begins_word
            return "password" if is_name or before.lower().endswith(_PASS_OWNERS) else None
        case b"pass":
            # Many words end in `pass` (bypass, compass): it counts alone, after a separator or one of a few words.
            is_name = len(word) > 4 or not before[-1:].isalnum() or before.lower().endswith(_PASS_OWNERS)
            return "password" if is_name or (word[:1] == b"P" and before[-1:].islower()) else None
        case b"secr":
            return "secret" if not before.endswith(b":") else None  # arn:aws:secretsmanager:…:secret:NAME
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
    if owner.rstrip(b"_- .").endswith(_DATA_KEYS):
        return None
    if owner.translate(None, b" _.-").endswith(b"secretaccess"):
        return "aws-secret-key"
    if owner.endswith((b"account", b"sharedaccess")):
        return "azure-key"
    if (owner[:-1] if owner[-1:] in {b" ", b"_", b".", b"-"} else owner).endswith(KEY_OWNERS):
        return "api-key"
    return "key" if before[-1:] in {b"_", b"-", b"?", b"&"} or before[-1:].isalpha() else None


def look_at_name(data: bytes, at: int, hits: list[Hit]) -> int:
    """A name that ends in one of the words, and its value."""
    named = _NAMED.match(data, at)
    if named is None:
        return at + 1
    before = data[max(0, at - 48) : at]
    rule = _rule_of_word(named["word"], before)
    head = before.rstrip(NAME_CHARACTERS)
    name = before[len(head) :]
    if rule is None or is_no_name(named, before) or is_code(named, data, head, name):
        return at + 1
    is_assigned = is_shell(named, head, name)
    start, is_wrapped = _value_start(data, named, rule)
    quoted = _QUOTED.match(data, start)
    if quoted is not None and quoted.lastindex is not None:
        start, end = quoted.span(quoted.lastindex)
        value = data[start:end]
        start, end = end - len(value.lstrip()), start + len(value.rstrip())  # '…' can have spaces inside
        style = Style.LOOSE if is_wrapped or is_loose(named, head, name) else Style.QUOTED
        style = Style.SHELL if is_assigned else style
        is_pattern = (is_wrapped or rule == "credentials") and rule != "password"
        is_own_name = (name + named["word"]).endswith(data[start:end])  # EOF_TOKEN = "EOF_TOKEN"
        if is_own_name or (is_pattern and data[start:end].translate(None, TOKEN_CHARACTERS)):
            return at + 1
        return _found(hits, start, end, rule) if _holds(named, rule, data[start:end], style) else at + 1
    if any(named[each] is not None for each in ("loose", "spaced", "dash", "nested")):
        return at + 1
    if data[start : start + 1] in {b'"', b"'", b"`"}:
        start += 1  # a quote without its end: truncated text
    plain = is_plain(named, data, at, head, name) if rule == "password" else ""
    pattern, rest = pattern_of_bare(named, plain, is_assigned=is_assigned)
    bare = pattern.match(data, start)
    if bare is None or (not is_assigned and not plain and data[bare.end() : bare.end() + 1] in {b"(", b"["}):
        return at + 1  # nothing, or a call: code
    if named["next_line"] is not None and (bare[0][-1:] == b":" or LINE_END.match(data, bare.end()) is None):
        return at + 1  # a block of code or of YAML
    style = Style.PLAIN if plain else style_of_bare(data, named, head, bare.end(), is_assigned=is_assigned)
    value = bare[0].rstrip(b".,;:!?)") if named["prose"] is not None else bare[0]
    if not _holds(named, rule, value, style):
        return at + 1
    tail = rest.match(data, start + len(value))
    return _found(hits, start, tail.end() if tail is not None and named["prose"] is None else start + len(value), rule)


def _found(hits: list[Hit], start: int, end: int, rule: str) -> int:
    hits.append((start, end, rule))
    return end


def _value_start(data: bytes, named: re.Match[bytes], rule: str) -> tuple[int, bool]:
    """Return where the value begins, and whether it is the argument of a call."""
    start = named.end()
    if named["operator"] is None and named["annotated"] is None:
        return start, False
    found = _BEFORE_VALUE.match(data, start)
    if found is None or found["call"] is None:
        return found.end() if found is not None else start, False
    is_value = (
        _WRAPPER.search(found["call"]) if rule == "password" else rule != "key" and not _READS.search(found["call"])
    )
    return (found.end(), True) if is_value else (start, False)


def _holds(named: re.Match[bytes], rule: str, value: bytes, style: Style) -> bool:
    """Return whether the value is a secret. Short names are often something else: then it must have six characters."""
    is_unlikely = len(named["word"]) < 4 and rule == "password" and len(value) < 6 and named["word"].lower() != b"pwd"
    return not is_unlikely and is_secret(rule, value, style)
