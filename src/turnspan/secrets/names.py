"""Secrets recognised by the name before them: `password = …`, `"api_key": "…"`, `Authorization: …`.

Rules:

- A name alone is not enough: most code with `password` in it holds no password. The value must look like a secret
  (`values`).
- Every `look_at_…` gets the position of its literal, reads a bounded number of bytes, appends the hits it finds and
  returns the position where the search continues.
"""

from __future__ import annotations

import re
from typing import Final, TypeAlias

from turnspan import lazy
from turnspan.secrets.values import (
    NAME_CHARACTERS,
    TOKEN_CHARACTERS,
    Style,
    is_basic,
    is_placeholder,
    is_secret,
    looks_random,
)

Hit: TypeAlias = tuple[int, int, str]  # start, end, rule


_WORD: Final = rb"(?P<word>pass(?:wor[dt]|wd|phrase|code)?|pwd?|psk|secret|token|key|cred(?:ential)?s?|pat)"
_SUFFIX: Final = (
    rb"(?:s|[_-]?(?:base(?:64)?|b64|hex|value|hash|prod(?:uction)?|dev|test|staging|live|main|default|primary|secondary"
    rb"|old|new|v?[0-9]{1,3}))?"
)
_NAMED: Final = lazy.pattern(
    _WORD + _SUFFIX + rb"""
    (?P<close>(?:\\{0,3}["'`])?\]?(?:\*\*)?)
    (?:
        # password: &str = "..."
        (?P<annotated>[!?]?:[ ]?[&a-z][\w.\[\],\ |&'<>?]{0,40}=[ ]?(?=[bruf]{0,2}["'`]|[a-z]{1,20}\())
      | [ ]\{[ ]get;[^}\r\n]{0,40}\}[ ]=[ ](?=["'@$])  # string Password { get; set; } = "..."
      | (?P<space>[ \t]{0,40})(?P<operator>=>|[:?|+.!]{0,3}={1,3}|:)(?P<after>(?:\*\*)?[ \t]{0,40})
      | (?P<cell>[ \t]{0,40}\|[ \t]{1,40})  # | password | ... |
      | (?P<attribute>
            [\s,]{1,24}(?:\\{0,3}["'])?value(?:\\{0,3}["'])?[ ]{0,2}[:=][ ]{0,2}  # name: TOKEN, value: ...
          | [ ]--?(?:value|body)[ =]  # --name TOKEN --value ...
          | [ ]\{\s{1,24}(?:type\s{0,12}=\s{0,4}string\s{1,24})?default\s{0,12}=\s{0,4}(?=")  # Terraform
        )
      | (?P<loose>[ \t]{0,2}[,(][ \t]{0,2}(?=\\{0,3}["'`]))  # ("password", "..."), set_password("...")
      | (?P<element></key>\s{0,40}<string>|>\s{0,40})  # <password>...</password>, and property lists
      | (?P<prose>[ ]is:?[ ])
      | (?P<spaced>[ \t]{1,20}(?=N?["'`]))  # WITH PASSWORD '...', #define PASSWORD "...", --password "..."
      | (?P<dash>[ ]-{1,2}>?[ ](?=["'`]))  # token - '...'
      | (?P<arrow>[ ]-{1,2}>[ ](?=[^\s-]))  # token -> ...
      | (?P<encoded>(?:%22)?%3[AD](?:%2[02])*)  # %22token%22%3A%22...
      | (?P<flag>[ \t](?=[^\s-]))  # --password ...
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
# A bare value ends at an escape of JSON, such as \n; a single backslash can be part of a password.
_BARE_CHARACTER: Final = rb"""(?:[^\s"'`\\,;&(){}\[\]<>|]|\\(?![nrtu"'\\]))"""
_SHELL_CHARACTER: Final = rb"""(?:[^\s"'`\\<]|<(?!/[A-Za-z])|\\(?![nrtu"'\\]))"""
_BARE: Final = lazy.pattern(_BARE_CHARACTER + rb"{3,512}+"), lazy.pattern(_BARE_CHARACTER + rb"*+")
_SHELL: Final = lazy.pattern(_SHELL_CHARACTER + rb"{3,512}+"), lazy.pattern(_SHELL_CHARACTER + rb"*+")
_LINE_END: Final = lazy.pattern(rb"[ \t]*(?:\Z|[\r\n]|\\[rn])")
KEY_OWNERS: Final = (
    b"api", b"access", b"account", b"private", b"secret", b"shared", b"encryption", b"encrypt", b"signing", b"master",
    b"auth", b"app", b"application", b"service", b"storage", b"deploy", b"session", b"consumer", b"subscription",
    b"client", b"admin", b"hmac", b"jwt", b"ssh", b"ingest", b"license", b"write", b"server", b"function", b"functions",
)  # fmt: skip
_PASS_OWNERS: Final = (
    b"store",
    b"key",
    b"db",
    b"user",
    b"root",
    b"admin",
    b"my",
    b"smtp",
    b"mail",
    b"ftp",
    b"auth",
    b"ssh",
)
_PAT_OWNERS: Final = (b"github", b"gitlab", b"gh", b"azure", b"devops", b"ado")
_SECRET_WORDS: Final = (
    b"pass",
    b"pw",
    b"psk",
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
        case b"pw" | b"psk":  # the last: of a wireless network or a VPN. Other words and mnemonics end like this, too.
            is_name = not before[-1:].isalnum() or word[:1] == b"P" != before[-1:].upper() == before[-1:]
            return "password" if is_name or before.lower().endswith(_PASS_OWNERS) else None
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
    return "key" if before[-1:] in {b"_", b"-", b"?", b"&"} or before[-1:].isalpha() else None


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
    head = before.rstrip(NAME_CHARACTERS)
    name = before[len(head) :]
    if _is_code(named, data, head, name):
        return after_word
    is_shell = _is_shell(named, head, name)
    start, is_wrapped = _value_start(data, named, rule)
    quoted = _QUOTED.match(data, start)
    if quoted is not None and quoted.lastindex is not None:
        start, end = quoted.span(quoted.lastindex)
        value = data[start:end]
        start, end = end - len(value.lstrip()), start + len(value.rstrip())  # '…' can have spaces inside
        style = Style.SHELL if is_shell else Style.LOOSE if is_wrapped or _is_loose(named, head, name) else Style.QUOTED
        is_pattern = is_wrapped and rule != "password" and data[start:end].translate(None, TOKEN_CHARACTERS)
        is_own_name = (name + named["word"]).endswith(data[start:end])  # EOF_TOKEN = "EOF_TOKEN"
        if not is_pattern and not is_own_name and _holds(named, rule, data[start:end], style):
            hits.append((start, end, rule))
            return end
        return after_word
    if named["loose"] is not None or named["spaced"] is not None or named["dash"] is not None:
        return after_word
    if data[start : start + 1] in {b'"', b"'", b"`"}:
        start += 1  # a quote without its end: truncated text
    pattern, rest = _SHELL if is_shell else _BARE
    bare = pattern.match(data, start)
    if bare is None or (not is_shell and data[bare.end() : bare.end() + 1] in {b"(", b"["}):
        return after_word  # nothing, or a call: code
    if not _holds(named, rule, bare[0], _style_of_bare(data, named, head, bare.end(), is_shell=is_shell)):
        return after_word
    tail = rest.match(data, bare.end())
    end = tail.end() if tail is not None else bare.end()
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


def _is_long_token(named: re.Match[bytes], data: bytes) -> bool:
    """Return whether a value without an operator before it can only be a token: long, random, with digits."""
    value = _BARE[0].match(data, named.end())
    return (
        value is not None and len(value[0]) >= 20 and named["word"].lower() in {b"key", b"token", b"secret"}
        and not value[0].translate(None, TOKEN_CHARACTERS) and any(digit in value[0] for digit in b"0123456789")
        and looks_random(value[0])
    )  # fmt: skip


def _holds(named: re.Match[bytes], rule: str, value: bytes, style: Style) -> bool:
    """Return whether the value is a secret. Short names are often something else: then it must have six characters."""
    is_unlikely = len(named["word"]) < 4 and rule == "password" and len(value) < 6 and named["word"].lower() != b"pwd"
    return not is_unlikely and is_secret(rule, value, style)


def _is_code(named: re.Match[bytes], data: bytes, head: bytes, name: bytes) -> bool:
    """Return whether name and value are part of code or prose: an option must begin with a dash, a cell with a pipe."""
    if named["cell"] is not None:
        is_cell = (head.rstrip(b" \t*`").endswith(b"|") or _begins_line(head)) and b"." not in name
        return not is_cell or _CELL_END.match(data, named.end()) is None
    if named["flag"] is not None:  # an option, `aws configure set`, or a .netrc file
        is_set = head.endswith((b" set ", b"ENV ", b"setenv ", b"set -x ", b"set -gx ")) or b"login " in head
        return name[:1] != b"-" and not is_set and not _is_long_token(named, data)
    if named["arrow"] is not None:
        return not _is_long_token(named, data)
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
    return named["loose"] is not None or named["cell"] is not None or named["dash"] is not None


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
